//! What to run, as the command line says it.

use crate::planted_rules::PlantedRule;
use clap::ValueEnum;

/// What to run.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SimulatorOptions {
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
    /// Keeps every store nearly full; otherwise that of one seed in five.
    #[arg(long)]
    pub(crate) full: bool,
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
    pub(crate) plant: Option<PlantedRule>,
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

impl SimulatorOptions {
    /// One quiet run.
    pub(crate) fn of_one(seed: u64, operations: u64, crashes: u64) -> SimulatorOptions {
        SimulatorOptions {
            seed,
            operations,
            crashes,
            faults: false,
            full: false,
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
    pub(crate) fn for_test(seed: u64) -> SimulatorOptions {
        SimulatorOptions::of_one(seed, 4000, 100)
    }
}

/// The line that repeats a run.
pub(crate) fn repeat_line(options: &SimulatorOptions) -> String {
    let SimulatorOptions { seed, operations, crashes, faults, full, .. } = options;
    let mut line = format!("cargo sim --seed {seed} --operations {operations} --crashes {crashes}");
    if *faults {
        line += " --faults";
    }
    if *full {
        line += " --full";
    }
    if let Some(plant) = options.plant.and_then(|plant| plant.to_possible_value()) {
        line += &format!(" --plant {}", plant.get_name());
    }
    line
}
