//! The plan of a campaign: programs, configurations and runs. Pure.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::super::device_model::DeviceKind;
use super::load::ReadPattern;

/// Scale of a campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum CampaignSize {
    /// Shows that everything works.
    Small,
    /// Gives figures.
    Real,
}

/// A storage configuration: a device, the page cache's size and an I/O scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StorageConfig {
    pub(super) name: &'static str,
    pub(super) device: DeviceKind,
    /// Limit of a program's page cache; `None`: no limit.
    pub(super) cache_bytes: Option<u64>,
    /// Milliseconds for which BFQ serves one thread; `None`: no scheduler.
    pub(super) slice_ms: Option<u32>,
}

const fn plain(name: &'static str, device: DeviceKind) -> StorageConfig {
    StorageConfig { name, device, cache_bytes: None, slice_ms: None }
}

const CLOUD: StorageConfig = plain("cloud", DeviceKind::Cloud);
const FLASH: StorageConfig = plain("flash", DeviceKind::Flash);
const FLASH_TWO: StorageConfig = plain("flash-two", DeviceKind::FlashTwo);
const DISK: StorageConfig = plain("disk", DeviceKind::Disk);
const DISK_TWO: StorageConfig = plain("disk-two", DeviceKind::DiskTwo);
/// The cache holds a quarter of the database, or half of the file that the scanning reader reads.
const SMALL_CACHE: StorageConfig =
    StorageConfig { name: "small-cache", cache_bytes: Some(16 << 20), ..CLOUD };
const SHORT_SLICES: StorageConfig = StorageConfig { name: "slices-4ms", slice_ms: Some(4), ..DISK };
const LONG_SLICES: StorageConfig = StorageConfig { name: "slices-100ms", slice_ms: Some(100), ..DISK };

/// A program with its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TracedProgram {
    /// `threads` threads make `reads` reads each, from their own files.
    Readers { threads: u32, reads: u64, file_pages: u64, how: ReadPattern },
    /// RocksDB's db_bench makes `writes` synced writes on each of four threads.
    RocksFill { writes: u64 },
    /// RocksDB's db_bench makes `reads` reads on each of four threads, from a database of `keys` keys.
    RocksRead { reads: u64, keys: u64 },
}

/// A program and its configurations. A trace from each is replayed on each.
#[derive(Debug, Clone)]
pub(super) struct ReplayExperiment {
    pub(super) name: &'static str,
    pub(super) kind: ExperimentKind,
    pub(super) program: TracedProgram,
    pub(super) configurations: Vec<StorageConfig>,
}

/// The group in which an experiment's errors are summarized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum ExperimentKind {
    /// Programs of ten lines.
    Micro,
    /// RocksDB.
    Macro,
}

/// All experiments of this size.
pub(super) fn experiments(size: CampaignSize) -> Vec<ReplayExperiment> {
    let small = size == CampaignSize::Small;
    let readers = |name, threads, how, reads, configurations: &[StorageConfig]| {
        let (reads, file_pages) = if small { (20, 256) } else { (reads, 8192) };
        let program = TracedProgram::Readers { threads, reads, file_pages, how };
        ReplayExperiment {
            name,
            kind: ExperimentKind::Micro,
            program,
            configurations: configurations.to_vec(),
        }
    };
    let database = |name, program| ReplayExperiment {
        name,
        kind: ExperimentKind::Macro,
        program,
        configurations: vec![CLOUD, FLASH, FLASH_TWO, DISK, SMALL_CACHE],
    };
    let (writes, reads, keys) = if small { (10, 20, 1000) } else { (150, 1000, 150_000) };
    vec![
        readers("readers-1", 1, ReadPattern::Random, 400, &[DISK, FLASH]),
        readers("readers-2", 2, ReadPattern::Random, 400, &[DISK, FLASH]),
        readers("readers-8", 8, ReadPattern::Random, 250, &[DISK, FLASH]),
        readers("two-devices", 2, ReadPattern::Random, 500, &[DISK, DISK_TWO]),
        readers("cache", 2, ReadPattern::ScanFirst, 1000, &[CLOUD, SMALL_CACHE]),
        readers("slices", 2, ReadPattern::Sequential, 1500, &[SHORT_SLICES, LONG_SLICES]),
        database("rocksdb-fill", TracedProgram::RocksFill { writes }),
        database("rocksdb-read", TracedProgram::RocksRead { reads, keys }),
    ]
}

/// How a trace is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct ReplayVariant {
    pub(super) order: ReplayOrder,
    pub(super) speed: ReplayPace,
}

/// The ordering of a replay's threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ReplayOrder {
    Weir,
    Root,
    Temporal,
    Single,
}

impl ReplayOrder {
    pub(super) fn name(self) -> &'static str {
        match self {
            ReplayOrder::Weir => "weir",
            ReplayOrder::Root => "root",
            ReplayOrder::Temporal => "temporal",
            ReplayOrder::Single => "single",
        }
    }
}

/// Whether a replay keeps the program's pauses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum ReplayPace {
    Natural,
    Full,
}

impl ReplayPace {
    pub(super) fn name(self) -> &'static str {
        match self {
            ReplayPace::Natural => "natural",
            ReplayPace::Full => "full",
        }
    }
}

/// The speed whose errors are reported. Fixed before any measurement, because a program's computing is part
/// of its time.
pub(super) const MODE: ReplayPace = ReplayPace::Natural;

/// All variants of a replay: weir's order at both speeds, the others at [`MODE`].
pub(super) const VARIANTS: [ReplayVariant; 5] = [
    ReplayVariant { order: ReplayOrder::Weir, speed: MODE },
    ReplayVariant { order: ReplayOrder::Weir, speed: ReplayPace::Full },
    ReplayVariant { order: ReplayOrder::Root, speed: MODE },
    ReplayVariant { order: ReplayOrder::Temporal, speed: MODE },
    ReplayVariant { order: ReplayOrder::Single, speed: MODE },
];

/// Identity of a run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct RunKey {
    pub(super) experiment: String,
    pub(super) target: String,
    /// Source and variant of a replay; `None` for the program itself.
    pub(super) replay: Option<(String, ReplayVariant)>,
    pub(super) round: u32,
}

/// The runs of an experiment on a target: in each round the program itself, then each source's trace in all
/// variants.
///
/// Variants in other orders than weir's run in the first `baselines` rounds only.
pub(super) fn runs(
    experiment: &ReplayExperiment,
    target: &StorageConfig,
    rounds: u32,
    baselines: u32,
) -> Vec<RunKey> {
    let mut keys = Vec::new();
    for round in 0..rounds {
        let key =
            |replay| RunKey { experiment: experiment.name.into(), target: target.name.into(), replay, round };
        keys.push(key(None));
        for source in &experiment.configurations {
            let wanted =
                VARIANTS.iter().filter(|variant| variant.order == ReplayOrder::Weir || round < baselines);
            keys.extend(wanted.map(|variant| key(Some((source.name.into(), *variant)))));
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn originals_and_replays_take_turns_and_every_source_meets_every_target() {
        let experiment = &experiments(CampaignSize::Real)[6];
        let keys = runs(experiment, &experiment.configurations[1], 3, 1);
        let originals: Vec<_> = (0..keys.len()).filter(|at| keys[*at].replay.is_none()).collect();
        assert_eq!(originals, [0, 26, 37]);
        for source in &experiment.configurations {
            let of = |variant: ReplayVariant| {
                keys.iter().filter(|key| key.replay == Some((source.name.into(), variant))).count()
            };
            assert_eq!(VARIANTS.map(of), [3, 3, 1, 1, 1]);
        }
    }
}
