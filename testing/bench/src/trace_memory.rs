//! `weir-bench trace-memory`: how much memory and time it takes to compile a long trace, to look into the benchmark, and to replay
//! it onto a target that does nothing.

use super::error::BenchError;
use super::system::own;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::time::Instant;
use trace::{Baseline, Benchmark, CompileSettings, GeneratedTrace, Inventory, Settings, Speed, Strace};

/// The trace, and where its benchmark may lie.
#[derive(Debug, Args)]
pub(super) struct TraceMemoryArgs {
    /// How many calls the trace has; repeat it for several traces [default: 1000000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    actions: Vec<u64>,
    /// By how many threads
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: u32,
    /// Files of each thread, and as many that all share
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    files: u32,
    /// Give each new file a new name, as programs name temporary ones
    #[arg(long)]
    fresh_names: bool,
    /// Of the random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where the benchmark is written, and the file in which a compilation keeps its calls
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    on: PathBuf,
    /// Leave out the replay, which keeps all actions in memory
    #[arg(long)]
    no_replay: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Set on the processes that do one step each, with the benchmark.
    #[arg(long, hide = true, requires = "benchmark")]
    step: Option<Step>,
    #[arg(long, hide = true)]
    benchmark: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Step {
    Compile,
    Info,
    Replay,
}

/// What one step took.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Figures {
    seconds: f64,
    peak_bytes: u64,
}

/// Runs each step in a process of its own, so that each has its own peak.
pub(super) fn run_benchmark(args: &TraceMemoryArgs) -> Result<(), BenchError> {
    if let (Some(step), Some(benchmark)) = (args.step, &args.benchmark) {
        println!("{}", serde_json::json!(one_step(args, step, benchmark)?));
        return Ok(());
    }
    let mut all = Vec::new();
    let default = [1_000_000];
    for actions in if args.actions.is_empty() { &default[..] } else { &args.actions } {
        all.push(one_trace(args, *actions)?);
    }
    if args.json {
        println!("{:#}", serde_json::json!(all));
    }
    Ok(())
}

fn one_trace(args: &TraceMemoryArgs, actions: u64) -> Result<serde_json::Value, BenchError> {
    let name = format!("weir-trace-memory-{}", std::process::id());
    let benchmark = args.on.join(name);
    let steps = ["compile", "info", "replay"];
    let steps = &steps[..if args.no_replay { 2 } else { 3 }];
    let mut result = serde_json::json!({"actions": actions, "threads": args.threads, "files": args.files});
    let done = steps.iter().try_for_each(|name| {
        let figures = child(args, name, actions, &benchmark)?;
        let file_bytes = benchmark.metadata().map_or(0, |found| found.len());
        if !args.json {
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            println!(
                "{actions:>10} actions of {} threads: {name:<7} {:>7.1} s, peak {:>6.0} MiB; the benchmark has {:.0} MiB",
                args.threads,
                figures.seconds,
                mib(figures.peak_bytes),
                mib(file_bytes)
            );
        }
        result[*name] = serde_json::json!(figures);
        result["file_bytes"] = file_bytes.into();
        Ok(())
    });
    // It is there unless compiling failed.
    let _ = std::fs::remove_file(&benchmark);
    done.map(|()| result)
}

fn child(args: &TraceMemoryArgs, step: &str, actions: u64, benchmark: &Path) -> Result<Figures, BenchError> {
    let mut command = own("trace-memory");
    command.args(["--actions", &actions.to_string()]);
    command.args(["--threads", &args.threads.to_string(), "--files", &args.files.to_string()]);
    command.args(["--seed", &args.seed.to_string(), "--step", step, "--benchmark"]).arg(benchmark);
    if args.fresh_names {
        command.arg("--fresh-names");
    }
    let says = super::program::run(&mut command)?;
    serde_json::from_str(&says)
        .map_err(|_| BenchError::Command { command: super::program::line(&command), says })
}

fn one_step(args: &TraceMemoryArgs, step: Step, benchmark: &Path) -> Result<Figures, BenchError> {
    let begun = Instant::now();
    match step {
        Step::Compile => {
            let calls = args.actions.first().copied().unwrap_or(0);
            let (threads, files, seed) = (args.threads, args.files, args.seed);
            let trace = GeneratedTrace { calls, threads, files, seed };
            let text = if args.fresh_names { trace.text_with_fresh_names() } else { trace.text() };
            let mut source = Strace::new(BufReader::with_capacity(1 << 20, text));
            let settings = CompileSettings::default();
            trace::compile_to(&mut source, "generated".as_ref(), &settings, benchmark)?;
        }
        Step::Info => drop(Inventory::read(benchmark)?),
        Step::Replay => {
            let order = Baseline::Compiled("weir".into());
            let settings = Settings { order, speed: Speed::Full, stall_seconds: 60 };
            trace::replay_onto_nothing(&Benchmark::read(benchmark)?, &settings)?;
        }
    }
    Ok(Figures { seconds: begun.elapsed().as_secs_f64(), peak_bytes: peak()? })
}

/// The most memory that this process had at any time.
fn peak() -> Result<u64, BenchError> {
    const STATUS: &str = "/proc/self/status";
    let text =
        std::fs::read_to_string(STATUS).map_err(|source| BenchError::io("cannot read", STATUS, source))?;
    let peak =
        text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok());
    Ok(peak.map_or(0, |kib: u64| kib << 10))
}
