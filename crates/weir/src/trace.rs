//! `weir trace`: runs `weir-trace`, a program of its own, in place of this one.

use crate::cli::TraceArgs;
use crate::error::WeirError;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

const PROGRAM: &str = "weir-trace";

/// Becomes `weir-trace`, which gets all arguments and decides the exit code. Returns only if that fails.
pub(crate) fn run(args: &TraceArgs) -> WeirError {
    let found = beside().map(|program| run_program(program, args));
    let source = match found {
        Some(error) if error.kind() != io::ErrorKind::NotFound => error,
        _ => run_program(PathBuf::from(PROGRAM), args),
    };
    WeirError::NoTraceProgram { source }
}

/// The place beside this program.
fn beside() -> Option<PathBuf> {
    std::env::current_exe().ok().map(|own| own.with_file_name(PROGRAM))
}

/// Becomes `program`, which is looked up in PATH unless it has a directory.
fn run_program(program: PathBuf, args: &TraceArgs) -> io::Error {
    Command::new(program).args(&args.arguments).exec()
}
