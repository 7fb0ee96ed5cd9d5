//! The simulator: the whole stack, from the file system down, on simulated disks, on one thread, from one seed.
//! Read `run.rs` first; `docs/testing.md` says what is promised and how to repeat a failure.
mod answer;
mod call;
mod change;
mod client;
mod crash;
mod exhaust;
mod faults;
mod log;
mod meanwhile;
mod model;
mod oracle;
mod plant;
mod planted;
mod probe;
mod replace;
mod rescued;
mod rights;
mod run;
mod stack;
#[cfg(test)]
mod tests;
mod volumes;
mod watchdog;
mod watched;
mod workload;

use clap::ValueEnum;
use plant::Plant;
use run::{Counts, Run};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// What to run.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// What everything is drawn from; the same seed gives the same run.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Operations of all clients.
    #[arg(long, default_value_t = 20_000)]
    pub(crate) operations: u64,
    /// Power cuts and kills, at least, spread over the operations.
    #[arg(long, default_value_t = 500)]
    pub(crate) crashes: u64,
    /// Lets the disks make read, write and flush errors, too.
    #[arg(long)]
    pub(crate) faults: bool,
    /// Runs seed after seed until so many seconds have passed.
    #[arg(long)]
    pub(crate) seconds: Option<u64>,
    /// Runs so many seeds, each with as many operations and crashes, every second one with --faults.
    #[arg(long, conflicts_with = "seconds")]
    pub(crate) seeds: Option<u64>,
    /// What a night is for: a million operations with ten thousand crashes from fifty seeds, then all programs of two
    /// operations, and a thousand of three.
    #[arg(long, conflicts_with_all = ["seconds", "seeds", "operations", "crashes", "exhaust", "programs", "faults"])]
    pub(crate) long: bool,
    /// Breaks one rule, to see it found.
    #[arg(long)]
    pub(crate) plant: Option<Plant>,
    /// Breaks each rule in turn, or the one that --plant names, in short runs from --seed on, and prints after how many operations
    /// that was found.
    #[arg(long, conflicts_with_all = ["seconds", "seeds", "long", "exhaust", "faults"])]
    pub(crate) planted: bool,
    /// Instead of random operations: all programs of one, or of up to two, operations, or some of three or four, cut at
    /// every write and flush; with --faults with an error at each operation of a disk, too.
    #[arg(long, value_name = "LENGTH", value_parser = clap::value_parser!(u8).range(1..=4))]
    pub(crate) exhaust: Option<u8>,
    /// How many programs of three or four operations.
    #[arg(long, default_value_t = 300)]
    pub(crate) programs: u64,
    /// Prints every event to stderr.
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Prints no progress.
    #[arg(long)]
    pub(crate) quiet: bool,
}

impl Options {
    /// One quiet run.
    fn of_one(seed: u64, operations: u64, crashes: u64) -> Options {
        Options {
            seed,
            operations,
            crashes,
            faults: false,
            seconds: None,
            seeds: None,
            long: false,
            plant: None,
            planted: false,
            exhaust: None,
            programs: 0,
            verbose: false,
            quiet: true,
        }
    }

    #[cfg(test)]
    fn for_test(seed: u64) -> Options {
        Options::of_one(seed, 4000, 100)
    }
}

/// What one run did.
#[derive(Debug)]
pub(crate) struct Summary {
    counts: Counts,
    hash: u64,
    seconds: f64,
}

/// What went wrong, and after how many operations.
#[derive(Debug)]
pub(crate) struct Failure {
    what: String,
    operations: u64,
    hash: u64,
}

/// Runs what `options` say and prints how it went; `false` if a promise was broken.
pub(crate) fn command(options: &Options) -> bool {
    if options.planted {
        return planted::command(options.plant, options.seed);
    }
    if options.long {
        return long_command(options);
    }
    if let Some(length) = options.exhaust {
        return exhaust_command(options, length);
    }
    if let Some(seeds) = options.seeds {
        return seeds_command(options, seeds);
    }
    let started = Instant::now();
    let mut options = options.clone();
    loop {
        if run_and_print(&options).is_none() {
            return false;
        }
        match options.seconds {
            Some(seconds) if started.elapsed() < Duration::from_secs(seconds) => options.seed += 1,
            _ => return true,
        }
    }
}

/// One run; `None` if a promise was broken.
fn run_and_print(options: &Options) -> Option<Summary> {
    match run(options) {
        Ok(summary) => {
            print_summary(options, &summary);
            Some(summary)
        }
        Err(failure) => {
            print_failure(options, &failure);
            None
        }
    }
}

/// Several seeds, the odd ones on disks that fail at times.
fn seeds_command(options: &Options, seeds: u64) -> bool {
    let (mut operations, mut crashes, mut errors) = (0, 0, 0);
    for seed in options.seed..options.seed + seeds {
        let faults = options.faults || seed % 2 == 1;
        let Some(summary) = run_and_print(&Options { seed, faults, ..options.clone() }) else { return false };
        operations += summary.counts.operations;
        crashes += summary.counts.crashes();
        errors += summary.counts.errors_made_up;
    }
    println!(
        "{seeds} seeds: {operations} operations, {crashes} crashes, {errors} device errors: no promise broken"
    );
    true
}

/// The sizes that the nightly run has.
fn long_command(options: &Options) -> bool {
    const SEEDS: u64 = 50;
    let random = Options { operations: 1_000_000 / SEEDS, crashes: 10_000 / SEEDS, ..options.clone() };
    let short = Options { faults: true, programs: 1000, ..options.clone() };
    seeds_command(&random, SEEDS) && exhaust_command(&short, 2) && exhaust_command(&short, 3)
}

fn exhaust_command(options: &Options, length: u8) -> bool {
    let Options { seed, programs, faults, .. } = options;
    let outcome = exhaust::exhaust(options, usize::from(length), *programs);
    match &outcome {
        Ok(tried) => println!(
            "{} programs of up to {length} operations, {} crashes, {} device errors: no promise broken",
            tried.programs, tried.crashes, tried.errors
        ),
        Err(failure) => {
            println!("FAILED: {}", failure.what);
            let faults = if *faults { " --faults" } else { "" };
            println!(
                "repeat with: cargo xtask sim --exhaust {length} --programs {programs} --seed {seed}{faults}"
            );
        }
    }
    outcome.is_ok()
}

/// One run of one seed.
pub(crate) fn run(options: &Options) -> Result<Summary, Failure> {
    Plant::for_this_thread(options.plant);
    let mut run = Run::new(options).map_err(|what| Failure { what, operations: 0, hash: 0 })?;
    let outcome = catch_unwind(AssertUnwindSafe(|| run.go()));
    let (operations, hash) = (run.counts.operations, run.media.log.hash());
    match outcome {
        Ok(Ok(())) => Ok(Summary { counts: run.counts.clone(), hash, seconds: run.seconds() }),
        Ok(Err(what)) => Err(Failure { what, operations, hash }),
        Err(panic) => {
            // After a panic the stack's locks are poisoned: dropping it could panic again.
            std::mem::forget(run);
            let words = panic.downcast_ref::<String>().cloned();
            let words = words.or_else(|| panic.downcast_ref::<&str>().map(|words| (*words).to_owned()));
            let what = format!("a panic: {}", words.unwrap_or_default());
            Err(Failure { what, operations, hash })
        }
    }
}

/// The line that repeats a run.
fn repeat_line(options: &Options) -> String {
    let Options { seed, operations, crashes, faults, .. } = options;
    let mut line = format!("cargo xtask sim --seed {seed} --operations {operations} --crashes {crashes}");
    if *faults {
        line += " --faults";
    }
    if let Some(plant) = options.plant.and_then(|plant| plant.to_possible_value()) {
        line += &format!(" --plant {}", plant.get_name());
    }
    line
}

fn print_summary(options: &Options, summary: &Summary) {
    let Summary { counts, hash, seconds } = summary;
    println!(
        "seed {}: {} operations, {} crashes, {} clean stops in {seconds:.1} s ({:.0} operations/s); hash {hash:016x}",
        options.seed,
        counts.operations,
        counts.crashes(),
        counts.clean_stops,
        counts.operations as f64 / seconds
    );
    let phases: Vec<String> =
        counts.crashes.iter().map(|(phase, times)| format!("{phase}: {times}")).collect();
    println!("  crashes by phase: {}", phases.join("; "));
    let volumes = &counts.volumes;
    println!(
        "  copies of volumes: {}, and {} found after crashes; {} changes meanwhile; deleted: {}; another one mounted: {}; \
         looked at: {}",
        volumes.copies, volumes.found, volumes.meanwhile, volumes.deletions, volumes.mounts, volumes.looks
    );
    println!(
        "  buffers replaced: {}; volumes rescued and looked at: {}; changes refused midway: {}",
        counts.replaced, counts.rescued, counts.refused
    );
    println!(
        "  completed changes lost to crashes, none of them synced: {}; refused for space: {}; device errors: {}, \
         told to clients: {}",
        counts.changes_lost, counts.no_space, counts.errors_made_up, counts.errors_told
    );
}

fn print_failure(options: &Options, failure: &Failure) {
    let Failure { what, operations, hash } = failure;
    println!("seed {}: FAILED after {operations} operations; hash {hash:016x}", options.seed);
    println!("{what}");
    println!("repeat with: {}", repeat_line(options));
}
