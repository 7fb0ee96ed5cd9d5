//! `weir-bench replay-engine`: how many actions a second `weir trace replay` can start, onto a target that does nothing.

use super::engine_load::{EngineFigures, EngineTest, test_engine};
use super::error::BenchError;
use clap::Args;

/// The load.
#[derive(Debug, Args)]
pub(super) struct ReplayEngineArgs {
    /// How many actions, over all threads
    #[arg(long, default_value_t = 4_000_000, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    actions: u32,
    /// How many threads
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: u32,
    /// Of a hundred actions, how many wait for another thread; repeat it for several loads [default: 1 10 100]
    #[arg(long, value_parser = clap::value_parser!(u32).range(0..=100))]
    crossing: Vec<u32>,
    /// Of the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark and prints what it found.
pub(super) fn run_benchmark(args: &ReplayEngineArgs) -> Result<(), BenchError> {
    let loads = if args.crossing.is_empty() { &[1, 10, 100][..] } else { &args.crossing };
    let mut all = Vec::new();
    for crossing_percent in loads {
        let test = EngineTest {
            actions: args.actions,
            threads: args.threads,
            crossing_percent: *crossing_percent,
            seed: args.seed,
        };
        let figures = test_engine(&test)?;
        if !args.json {
            print(&figures);
        }
        all.push(figures);
    }
    if args.json {
        println!("{:#}", serde_json::json!(all));
    }
    Ok(())
}

fn print(figures: &EngineFigures) {
    println!(
        "{:>3} % of {} actions of {} threads wait for another thread: {:.0} actions/s; own cost {:.0} ns a call",
        figures.test.crossing_percent,
        figures.test.actions,
        figures.test.threads,
        figures.actions_per_second,
        figures.own_ns_per_call
    );
}
