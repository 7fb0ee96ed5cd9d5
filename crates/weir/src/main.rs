//! The command line of weir.

mod bench;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure weir beside its baselines.
    Bench(bench::BenchArgs),
}

fn main() -> std::process::ExitCode {
    let Verb::Bench(args) = Cli::parse().verb;
    match bench::run(&args) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            if let Some(help) = error.help() {
                eprintln!("  help: {help}");
            }
            std::process::ExitCode::FAILURE
        }
    }
}
