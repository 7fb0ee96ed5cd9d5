//! Shared by these tests: the command itself, and helpers of the tests of any command.

use std::process::Command;

pub(crate) use test_support::{DirectoryContents, TestDirectory, copy_program, succeeds};

/// The command under test.
pub(crate) fn weir_trace() -> Command {
    Command::new(env!("CARGO_BIN_EXE_weir-trace"))
}
