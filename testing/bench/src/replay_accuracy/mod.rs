//! `weir-bench replay-accuracy`: error of a replay's time, on other storage than the trace was recorded on.
//!
//! | file | contents |
//! | --- | --- |
//! | `plan` | programs, configurations and the list of runs |
//! | `campaign` | makes the missing runs |
//! | `programs`, `load` | RocksDB's db_bench; our own reading program |
//! | `place`, `cache` | a file system on a modelled device; a small page cache |
//! | `results`, `table` | results of runs; errors and noise |

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

use super::cleanup;
use super::cpu_affinity::{self, CpuAffinity, ProcessorSplit};
use super::error::BenchError;
use super::program::check_programs;
use super::report::BenchReport;
use campaign::{CampaignProgress, ReplayCampaign, edges};
use plan::{CampaignSize, ExperimentKind, experiments};
use results::RunResults;
use table::{AccuracyTable, add_text};

/// Size of a device, `small` and `real`. It holds every file twice: the program's and the replay's.
const DEVICE_BYTES: [u64; 2] = [128 << 20, 1 << 30];

/// Options of `weir-bench replay-accuracy`.
#[derive(Debug, Args)]
pub(super) struct ReplayAccuracyArgs {
    /// Directory for traces and results; runs with a result there are not repeated
    #[arg(long, value_name = "DIR")]
    results: PathBuf,
    /// Scale: `small` only shows that everything works; `real` gives figures.
    #[arg(long, value_enum, default_value_t = CampaignSize::Real)]
    size: CampaignSize,
    /// Run only experiments of this kind [default: both]
    #[arg(long, value_enum)]
    kind: Option<ExperimentKind>,
    /// Run only this experiment; repeat the option for several
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Runs of each program, and of each trace in weir's order
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Number of these rounds that include the other orders
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(0..=100))]
    baselines: u32,
    /// Stop after this time and print the results so far; the same command continues
    #[arg(long, value_name = "SECONDS")]
    stop_after: Option<u64>,
    /// Print the results so far and measure nothing
    #[arg(long)]
    report: bool,
    /// Give the modelled devices their own processors (`apart`), and all other programs the first; or leave
    /// all to the kernel (`free`).
    #[arg(long, value_enum, default_value_t = CpuAffinity::Apart)]
    cpu_affinity: CpuAffinity,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// Makes the missing runs and prints all results.
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
    let mut report = BenchReport::new("replay-accuracy");
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
    if !args.report {
        report.line(format!("{}; ext4, cold caches", cpu_affinity::text(placed)));
    }
    add_text(&mut report, &table, &traces);
    report.fact("complete", complete);
    report.fact("results", table);
    report.fact("traces", traces);
    report.print(args.json);
    if !complete {
        eprintln!("not everything is measured yet: the same command goes on");
    }
    Ok(())
}
