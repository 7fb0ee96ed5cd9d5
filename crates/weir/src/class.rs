//! `weir class`: runs a program in place of this one, tagged with a class.

use crate::cli::ClassArgs;
use crate::error::WeirError;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Becomes the program. Returns only if that fails.
pub(crate) fn run(args: &ClassArgs) -> WeirError {
    let (program, arguments) = args.command.split_first().expect("clap asks for a command");
    let source = Command::new(program).args(arguments).env(host::TAG_VARIABLE, args.class.name()).exec();
    WeirError::Run { program: program.into(), source }
}
