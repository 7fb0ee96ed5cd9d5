#![doc = include_str!("../README.md")]

mod ahead;
mod bench;
mod blank;
mod check;
mod cli;
mod client;
mod control;
mod counted;
mod daemon;
mod error;
mod format;
mod man;
mod media;
mod mount;
mod mount_point;
mod overlay;
mod replace_buffer;
mod scrub;
mod signals;
mod size;
mod slowest;
mod stack;
mod status;
mod trace;
mod unmount;
mod volume;
mod watch;

use clap::Parser;
use cli::{Cli, Command, DirArgs, SpaceArgs, StatusArgs};
use client::Found;
use error::WeirError;
use std::process::ExitCode;

/// Resident memory is what `--memory` says and little more only if a page takes a page: see `Cargo.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The next step after errors that have none of their own.
const WITHOUT_HELP: &str = "see what the kernel says with `dmesg | tail`, and `weir check` the store";

/// What a shell reports of a program that SIGPIPE ended.
const NOBODY_READS: i32 = 128 + 13;

/// Ends the process as SIGPIPE would when nobody reads what it prints any more, as in `weir trace explain … | head`; the library's
/// own way is a panic.
fn end_when_nobody_reads() {
    let others = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let is_it = |why: &str| why.starts_with("failed printing to") && why.contains("Broken pipe");
        if panic.payload_as_str().is_some_and(is_it) {
            std::process::exit(NOBODY_READS);
        }
        others(panic);
    }));
}

fn main() -> ExitCode {
    end_when_nobody_reads();
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            let help = error.help().unwrap_or(WITHOUT_HELP.into());
            eprintln!("error: {error}\n  help: {help}");
            ExitCode::from(error.exit_code())
        }
    }
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
        Command::Volume(args) => volume::run(&args.command).map(done),
        Command::Bench(args) => Ok(bench::run(&args).map(done)?),
        Command::Trace(args) => trace::run(&args),
        Command::Man(args) => man::run(&args).map(done),
    }
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
