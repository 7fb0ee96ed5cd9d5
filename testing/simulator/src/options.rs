//! The options of the command line.

use crate::planted_rules::PlantedRule;
use clap::ValueEnum;

/// The most volumes that are mounted at once.
pub(crate) const MOUNTS_MAX: u64 = 3;

/// The options of a simulation.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct SimulatorOptions {
    /// Set the seed of all random choices. The same seed gives the same run.
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Set the number of operations of all clients together.
    #[arg(long, default_value_t = 20_000)]
    pub(crate) operations: u64,
    /// Set the least number of power cuts and kills, spread over the operations.
    #[arg(long, default_value_t = 500)]
    pub(crate) crashes: u64,
    /// Let the disks make read, write and flush errors, too.
    #[arg(long)]
    pub(crate) faults: bool,
    /// Keep every store nearly full. Without this option one seed in five has a store that is nearly full.
    #[arg(long)]
    pub(crate) full: bool,
    /// Run seed after seed until this many seconds have passed.
    #[arg(long)]
    pub(crate) seconds: Option<u64>,
    /// Run this many seeds, each with the given numbers of operations and crashes, every second one with
    /// --faults.
    #[arg(long, conflicts_with = "seconds")]
    pub(crate) seeds: Option<u64>,
    /// Run the long check, for a night: a million operations with ten thousand crashes from fifty seeds, then
    /// all programs of two operations, and a thousand of three.
    #[arg(long, conflicts_with_all = ["seconds", "seeds", "operations", "crashes", "exhaust", "programs", "faults"])]
    pub(crate) long: bool,
    /// Mount at most this many volumes at once.
    #[arg(long, default_value_t = MOUNTS_MAX, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) mounts: u64,
    /// Break one rule, to see the simulator find the bug.
    #[arg(long)]
    pub(crate) plant: Option<PlantedRule>,
    /// Break each rule in turn, or the one that --plant names, in short runs from --seed on. Print after how
    /// many operations the simulator found the bug.
    #[arg(long, conflicts_with_all = ["seconds", "seeds", "long", "exhaust", "faults"])]
    pub(crate) planted: bool,
    /// Run short programs instead of random operations: all programs of one, or of up to two, operations, or
    /// some of three or four. Cut the power at every write and flush. With --faults also make an error at
    /// each operation of a disk.
    #[arg(long, value_name = "LENGTH", value_parser = clap::value_parser!(u8).range(1..=4))]
    pub(crate) exhaust: Option<u8>,
    /// Set the number of programs of three or four operations.
    #[arg(long, default_value_t = 300)]
    pub(crate) programs: u64,
    /// Print every event to stderr.
    #[arg(long)]
    pub(crate) verbose: bool,
    /// Print no progress.
    #[arg(long)]
    pub(crate) quiet: bool,
}

impl SimulatorOptions {
    /// The options of a single quiet run.
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
            mounts: MOUNTS_MAX,
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

/// The command line that repeats a run.
pub(crate) fn repeat_line(options: &SimulatorOptions) -> String {
    let SimulatorOptions { seed, operations, crashes, faults, full, mounts, .. } = options;
    let mut line = format!("cargo sim --seed {seed} --operations {operations} --crashes {crashes}");
    if *faults {
        line += " --faults";
    }
    if *full {
        line += " --full";
    }
    if *mounts != MOUNTS_MAX {
        line += &format!(" --mounts {mounts}");
    }
    if let Some(plant) = options.plant.and_then(|plant| plant.to_possible_value()) {
        line += &format!(" --plant {}", plant.get_name());
    }
    line
}
