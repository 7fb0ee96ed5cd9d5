#![doc = include_str!("../README.md")]

mod assigned_classes;
mod blank_check;
mod byte_size;
mod check;
mod class;
mod cli;
mod control_server;
mod copy;
mod daemon;
mod epoch_keeper;
mod error;
mod export;
mod exported_volume;
mod format;
mod grow;
mod json_schema;
mod lender;
mod lending_plan;
mod log_files;
mod lost_buffer;
mod man;
mod messages;
mod metrics;
mod mount;
mod mount_helper;
mod mount_list;
mod mount_point;
mod mount_problems;
mod mount_request;
mod mount_row;
mod mounted_volume;
mod option_values;
mod pm_qos;
mod range_request;
mod replace_buffer;
mod rule_suggestions;
mod rules;
mod run;
mod scrub;
mod service_manager;
mod signals;
mod status_print;
mod status_report;
mod store_daemon;
mod store_path;
mod store_server;
mod task_sampler;
mod top;
mod trace;
mod unmount;
mod volume;
mod waits_print;
mod waits_report;
mod why;
mod write_policy;

use clap::{CommandFactory, Parser};
use cli::{DirArgs, SpaceArgs, StatusArgs, TuneArgs, WeirCommand, WeirCommandLine};
use client::WeirMount;
use error::WeirError;
use serde_json::json;
use std::process::ExitCode;
use store::DataMode;
use write_policy::PolicyChoice;

/// An allocator in which a page takes no more than a page. Otherwise resident memory would far exceed
/// `--memory`: see `Cargo.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The next step after errors without a specific one.
const DEFAULT_HELP: &str = "see what the kernel says with `dmesg | tail`, and `weir check` the store";

/// The exit code that a shell reports for a program that SIGPIPE ended.
const EXIT_CODE_SIGPIPE: u8 = 128 + 13;

/// Ends the process if its output cannot be written. The library panics in that case.
fn exit_when_output_fails() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        match panic.payload_as_str().and_then(|why| why.strip_prefix("failed printing to ")) {
            Some(why) => std::process::exit(i32::from(exit_code_of_failed_output(why))),
            None => others(panic),
        }
    }));
}

/// The exit code after output that cannot be written. If the reader is gone, as in `weir volume list … |
/// head`, the code is that of SIGPIPE.
fn exit_code_of_failed_output(why: &str) -> u8 {
    if why.contains("Broken pipe") {
        return EXIT_CODE_SIGPIPE;
    }
    if let Some(why) = why.strip_prefix("stdout: ") {
        let help = "the command may have done its work, but its output is lost: redirect the output to another place";
        tracing::error!("standard output: {why}\n  help: {help}");
    }
    1
}

fn main() -> ExitCode {
    exit_when_output_fails();
    if mount_helper::is_called() {
        messages::start_on_stderr();
        return mount_helper::run();
    }
    let command = match WeirCommandLine::try_parse() {
        Ok(command_line) => command_line.command,
        Err(refused) => {
            messages::start_on_stderr();
            return print_usage_error(&refused);
        }
    };
    match &command {
        WeirCommand::Mount(args) if args.foreground || args.daemon => messages::start_of_daemon(),
        _ => messages::start_on_stderr(),
    }
    match run(command) {
        Ok(code) => code,
        Err(error) => {
            let help = error.help().unwrap_or(DEFAULT_HELP.into());
            let what = escape_control_chars(&error.to_string());
            tracing::error!("{what}\n  help: {}", escape_control_chars(&help));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Prints the error in the command line, or the requested help.
fn print_usage_error(refused: &clap::Error) -> ExitCode {
    match refused.print() {
        Err(why) if !refused.use_stderr() => {
            ExitCode::from(exit_code_of_failed_output(&format!("stdout: {why}")))
        }
        _ => ExitCode::from(u8::try_from(refused.exit_code()).unwrap_or(2)),
    }
}

/// `text` with its control characters escaped. A file name may hold characters that move the cursor.
fn escape_control_chars(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

fn run(command: WeirCommand) -> Result<ExitCode, WeirError> {
    let done = |()| ExitCode::SUCCESS;
    match command {
        WeirCommand::Format(args) => format::run(&args).map(done),
        WeirCommand::Mount(args) => mount::run(&args),
        WeirCommand::Unmount(args) => unmount::run(&args).map(done),
        WeirCommand::Status(args) => status(&args).map(done),
        WeirCommand::Top(args) => top::run(&args).map(done),
        WeirCommand::Metrics(args) => metrics::run(&args).map(done),
        WeirCommand::Why(args) => why::run(&args).map(done),
        WeirCommand::Sync(args) => sync(&args).map(done),
        WeirCommand::Check(args) => check::run(&args),
        WeirCommand::Space(args) => space(&args).map(done),
        WeirCommand::Scrub(args) => scrub::run(&args),
        WeirCommand::ReplaceBuffer(args) => replace_buffer::run(&args),
        WeirCommand::Grow(args) => grow::run(&args).map(done),
        WeirCommand::Tune(args) => tune(&args).map(done),
        WeirCommand::Rules(args) => rules::run(&args.command),
        WeirCommand::Class(args) => class::run(&args).map(done),
        WeirCommand::Order(args) => match args.arguments[0] {},
        WeirCommand::Volume(args) => volume::run(&args.command).map(done),
        WeirCommand::Cp(args) => copy::run(&args).map(done),
        WeirCommand::Export(args) => export::run(&args).map(done),
        WeirCommand::Trace(args) => Err(trace::run(&args)),
        WeirCommand::Run(args) => run::run(&args).map(done),
        WeirCommand::Completions(args) => {
            let mut text = Vec::new();
            clap_complete::generate(args.shell, &mut WeirCommandLine::command(), "weir", &mut text);
            print!("{}", String::from_utf8_lossy(&text));
            Ok(ExitCode::SUCCESS)
        }
        WeirCommand::Man(args) => man::run(&args).map(done),
    }
}

fn tune(args: &TuneArgs) -> Result<(), WeirError> {
    let choice = PolicyChoice::of_options(args.policy.policy.as_ref(), args.policy.rules.as_deref())?;
    let mut request = json!({ "operation": "tune", "data": args.data.map(DataMode::name) });
    if let Some(PolicyChoice { policy, rules }) = choice {
        let rules: Vec<String> = rules.rules().iter().map(ToString::to_string).collect();
        request["policy"] = policy.to_string().into();
        request["rules"] = rules.join("\n").into();
    }
    if WeirMount::at(&args.dir)?.connect()?.ask(&request)?["file_is_missing"] == true {
        let policy = request["policy"].as_str().unwrap_or_default();
        let message = format!("--policy {policy}: the mount has no such file yet");
        tracing::warn!("{}", escape_control_chars(&message));
    }
    Ok(())
}

fn status(args: &StatusArgs) -> Result<(), WeirError> {
    let Some(dir) = &args.dir else { return mount_list::print(args.json) };
    let mut daemon = WeirMount::at(dir)?.connect()?;
    if args.json {
        println!("{:#}", daemon.request("status")?);
    } else {
        status_print::print(&daemon.report("status")?);
    }
    Ok(())
}

fn space(args: &SpaceArgs) -> Result<(), WeirError> {
    let operation = if args.exact { "space_exact" } else { "space" };
    let mut daemon = WeirMount::at(&args.dir)?.connect()?;
    if args.json {
        println!("{:#}", daemon.request(operation)?);
    } else {
        status_print::print_space(&daemon.report(operation)?);
    }
    Ok(())
}

fn sync(args: &DirArgs) -> Result<(), WeirError> {
    WeirMount::at(&args.dir)?.connect()?.request("sync")?;
    Ok(())
}
