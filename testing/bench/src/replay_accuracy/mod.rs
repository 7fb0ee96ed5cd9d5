//! `weir-bench replay-accuracy`: how far a replay's time is from the program's own, on other storage than that on which it
//! was traced.
//!
//! | file | what it is |
//! | --- | --- |
//! | `plan` | programs, configurations, and which runs are made |
//! | `campaign` | makes them, and goes on where it stopped |
//! | `programs`, `load` | RocksDB's db_bench; readers of our own |
//! | `place`, `cache` | a file system on a modelled device; a small page cache |
//! | `results`, `table` | what was measured, and what it says |

mod cache;
mod campaign;
mod load;
mod place;
mod plan;
mod programs;
mod results;
mod table;

pub(super) use load::{LoadArgs, run_load};

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::cleanup;
use super::cpu_affinity::{self, CpuAffinity, ProcessorSplit};
use super::error::BenchError;
use super::program::check_programs;
use campaign::{CampaignProgress, ReplayCampaign, edges};
use plan::{CampaignSize, ExperimentKind, experiments};
use results::RunResults;
use table::{AccuracyTable, text};

/// A device holds every file twice: the program's, and the replay's.
const DEVICE_BYTES: [u64; 2] = [128 << 20, 1 << 30];

/// What to measure.
#[derive(Debug, Args)]
pub(super) struct ReplayAccuracyArgs {
    /// Where traces and results lie; with results of an earlier call, only what they lack is measured
    #[arg(long, value_name = "DIR")]
    results: PathBuf,
    /// `small` only shows that everything works; `real` gives figures.
    #[arg(long, value_enum, default_value_t = CampaignSize::Real)]
    size: CampaignSize,
    /// Only experiments of this kind [default: both]
    #[arg(long, value_enum)]
    kind: Option<ExperimentKind>,
    /// Only this experiment; repeat it for several
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// How often the program runs, and each trace in our order
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// In how many of these rounds the other orders run, too
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100))]
    baselines: u32,
    /// Stop after that many seconds, and print what there is; the same command goes on
    #[arg(long, value_name = "SECONDS")]
    stop_after: Option<u64>,
    /// Measure nothing, print what there is
    #[arg(long)]
    report: bool,
    /// Whether the modelled devices have processors of their own; the rest of the machine shares the first one.
    #[arg(long, value_enum, default_value_t = CpuAffinity::Apart)]
    cpu_affinity: CpuAffinity,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// Runs what is missing and prints what there is.
pub(super) fn run_benchmark(args: &ReplayAccuracyArgs) -> Result<(), BenchError> {
    let mut chosen = experiments(args.size);
    chosen.retain(|experiment| args.kind.is_none_or(|kind| kind == experiment.kind));
    chosen.retain(|experiment| args.only.is_empty() || args.only.iter().any(|name| name == experiment.name));
    std::fs::create_dir_all(&args.results)
        .map_err(|error| BenchError::io("cannot create", &args.results, error))?;
    let directory = std::path::absolute(&args.results)
        .map_err(|error| BenchError::io("cannot find", &args.results, error))?;
    let mut results = RunResults::open(&directory)?;
    let mut progress = CampaignProgress::Complete;
    let mut placed = None;
    if !args.report {
        let mut programs = vec!["strace", "losetup", "mke2fs", "mount", "umount"];
        if chosen.iter().any(|experiment| experiment.kind == ExperimentKind::Macro) {
            programs.push("db_bench");
        }
        check_programs(&programs)?;
        cleanup::install()?;
        placed = ProcessorSplit::claim(args.cpu_affinity)?;
        let campaign = ReplayCampaign {
            experiments: &chosen,
            rounds: args.rounds,
            baselines: args.baselines,
            directory: &directory,
            device_bytes: DEVICE_BYTES[usize::from(args.size == CampaignSize::Real)],
            processors: placed,
            until: args.stop_after.map(|seconds| Instant::now() + Duration::from_secs(seconds)),
        };
        progress = campaign.run(&mut results)?;
    }
    let table = AccuracyTable::new(&chosen, results.outcomes());
    let mut traces = Vec::new();
    for experiment in &chosen {
        for source in &experiment.configurations {
            if programs::benchmark(&directory, experiment.name, source.name).exists() {
                let found = edges(&directory, experiment.name, source.name)?;
                traces.push((experiment.name.to_owned(), source.name.to_owned(), found));
            }
        }
    }
    let complete = progress == CampaignProgress::Complete;
    if args.json {
        println!("{:#}", json!({"complete": complete, "results": table, "traces": traces}))
    } else {
        if !args.report {
            println!("{}; ext4, cold caches", cpu_affinity::text(placed));
        }
        print!("{}", text(&table, &traces));
    }
    if !complete {
        eprintln!("not everything is measured yet: the same command goes on");
    }
    Ok(())
}
