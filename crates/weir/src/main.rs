#![doc = include_str!("../README.md")]

mod address;
mod ahead;
mod awake;
mod blank;
mod check;
mod cli;
mod client;
mod control;
mod daemon;
mod epochs;
mod error;
mod find_buffer;
mod format;
mod grow;
mod logs;
mod man;
mod media;
mod mount;
mod mount_point;
mod replace_buffer;
mod scrub;
mod signals;
mod size;
mod stack;
mod status;
mod trace;
mod unmount;
mod volume;
mod watch;

use clap::Parser;
use cli::{Cli, Command, DirArgs, SpaceArgs, StatusArgs, TuneArgs};
use client::Found;
use error::WeirError;
use serde_json::json;
use std::io::Write;
use std::process::ExitCode;

/// Resident memory is what `--memory` says and little more only if a page takes a page: see `Cargo.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The next step after errors that have none of their own.
const WITHOUT_HELP: &str = "see what the kernel says with `dmesg | tail`, and `weir check` the store";

/// What a shell reports of a program that SIGPIPE ended.
const NOBODY_READS: u8 = 128 + 13;

/// Ends the process when what it prints cannot be written; the library's own way is a panic.
fn end_when_output_fails() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        match panic.payload_as_str().and_then(|why| why.strip_prefix("failed printing to ")) {
            Some(why) => std::process::exit(i32::from(output_failed(why))),
            None => others(panic),
        }
    }));
}

/// The exit code after output that cannot be written: as of SIGPIPE when nobody reads it any more, as in
/// `weir trace explain … | head`.
fn output_failed(why: &str) -> u8 {
    if why.contains("Broken pipe") {
        return NOBODY_READS;
    }
    if let Some(why) = why.strip_prefix("stdout: ") {
        let help = "the command may have done its work, but its output is lost: redirect the output to another place";
        tell(&format!("error: standard output: {why}\n  help: {help}"));
    }
    1
}

/// Writes a line to standard error. Where that fails there is nobody left to tell.
fn tell(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

fn main() -> ExitCode {
    end_when_output_fails();
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(refused) => return refuse_command_line(&refused),
    };
    match run(command) {
        Ok(code) => code,
        Err(error) => {
            let help = error.help().unwrap_or(WITHOUT_HELP.into());
            tell(&format!("error: {}\n  help: {}", printable(&error.to_string()), printable(&help)));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Prints what is wrong with the command line, or the help that it asks for.
fn refuse_command_line(refused: &clap::Error) -> ExitCode {
    match refused.print() {
        Err(why) if !refused.use_stderr() => ExitCode::from(output_failed(&format!("stdout: {why}"))),
        _ => ExitCode::from(u8::try_from(refused.exit_code()).unwrap_or(2)),
    }
}

/// `text` with characters that move the cursor, as a file's name may hold, written out.
fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}

fn run(command: Command) -> Result<ExitCode, WeirError> {
    let done = |()| ExitCode::SUCCESS;
    match command {
        Command::Format(args) => format::run(&args).map(done),
        Command::Mount(args) => mount::run(&args),
        Command::Unmount(args) => unmount::run(&args).map(done),
        Command::Status(args) => status(&args).map(done),
        Command::Sync(args) => sync(&args).map(done),
        Command::Check(args) => check::run(&args),
        Command::Space(args) => space(&args).map(done),
        Command::Scrub(args) => scrub::run(&args),
        Command::ReplaceBuffer(args) => replace_buffer::run(&args).map(done),
        Command::Grow(args) => grow::run(&args).map(done),
        Command::Tune(args) => tune(&args).map(done),
        Command::Order(args) => match args.arguments[0] {},
        Command::Volume(args) => volume::run(&args.command).map(done),
        Command::Trace(args) => trace::run(&args),
        Command::Man(args) => man::run(&args).map(done),
    }
}

fn tune(args: &TuneArgs) -> Result<(), WeirError> {
    let mode = store::DataMode::from(args.data).name();
    Found::at(&args.dir)?.connect()?.ask(&json!({ "operation": "tune", "data": mode })).map(drop)
}

fn status(args: &StatusArgs) -> Result<(), WeirError> {
    let report = Found::at(&args.dir)?.connect()?.request("status")?;
    match args.json {
        true => println!("{report:#}"),
        false => status::print(&report),
    }
    Ok(())
}

fn space(args: &SpaceArgs) -> Result<(), WeirError> {
    let operation = if args.exact { "space_exact" } else { "space" };
    let space = Found::at(&args.dir)?.connect()?.request(operation)?;
    match args.json {
        true => println!("{space:#}"),
        false => status::print_space(&space),
    }
    Ok(())
}

fn sync(args: &DirArgs) -> Result<(), WeirError> {
    Found::at(&args.dir)?.connect()?.request("sync").map(drop)
}
