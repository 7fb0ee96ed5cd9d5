//! Checks of the whole project: `cargo xtask check`, `cargo xtask tidy`, `cargo xtask sim`, `cargo xtask load`.
mod check;
mod circles;
mod documents;
mod load;
mod sim;
mod tidy;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Checks and simulates weir")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Formatting, lints, tests, documentation and tidiness: what must pass before a review.
    Check,
    /// The project's own rules about its text.
    Tidy,
    /// Random operations, crashes and recoveries of the whole stack on simulated disks.
    Sim(sim::Options),
    /// Eight clients (fio, git, pgbench) on a mount; memory, descriptors and latency must stay flat.
    Load(load::Options),
}

fn main() -> ExitCode {
    let passed = match Arguments::parse().command {
        Command::Check => check::command(),
        Command::Tidy => tidy::command(),
        Command::Sim(options) => sim::command(&options),
        Command::Load(options) => load::command(&options),
    };
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
