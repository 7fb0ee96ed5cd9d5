//! Checks of the whole project: `cargo xtask check`, `cargo xtask tidy`.
mod check;
mod documents;
mod test_programs;
mod tidy;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Checks weir's source tree")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gate before a review: tidy, formatting, tests, simulator, fuzz targets, lints, documentation.
    Check,
    /// Check the project's own rules about its text.
    Tidy,
}

fn main() -> ExitCode {
    let passed = match Arguments::parse().command {
        Command::Check => check::command(),
        Command::Tidy => tidy::command(),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
