//! What is compared with what: programs, configurations, and the runs that are to be made. Pure.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::super::device_model::Device;
use super::load::How;

/// How much to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Size {
    /// Shows that everything works.
    Small,
    /// Gives figures.
    Real,
}

/// A machine to run on: a device and what the kernel does with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Configuration {
    pub(super) name: &'static str,
    pub(super) device: Device,
    /// How many bytes of page cache a program may fill; `None`: as much as there is.
    pub(super) cache_bytes: Option<u64>,
    /// How many milliseconds BFQ serves one thread before the next; `None`: no scheduler.
    pub(super) slice_ms: Option<u32>,
}

const fn plain(name: &'static str, device: Device) -> Configuration {
    Configuration { name, device, cache_bytes: None, slice_ms: None }
}

const CLOUD: Configuration = plain("cloud", Device::Cloud);
const FLASH: Configuration = plain("flash", Device::Flash);
const FLASH_TWO: Configuration = plain("flash-two", Device::FlashTwo);
const DISK: Configuration = plain("disk", Device::Disk);
const DISK_TWO: Configuration = plain("disk-two", Device::DiskTwo);
/// A quarter of what the database holds, half of what the scanning reader's file does.
const SMALL_CACHE: Configuration =
    Configuration { name: "small-cache", cache_bytes: Some(16 << 20), ..CLOUD };
const SHORT_SLICES: Configuration = Configuration { name: "slices-4ms", slice_ms: Some(4), ..DISK };
const LONG_SLICES: Configuration = Configuration { name: "slices-100ms", slice_ms: Some(100), ..DISK };

/// A program with its input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    /// So many threads read so often, each from a file of its own.
    Readers { threads: u32, reads: u64, file_pages: u64, how: How },
    /// RocksDB's db_bench writes so often on each of four threads, with a sync each.
    RocksFill { writes: u64 },
    /// RocksDB's db_bench reads so often on each of four threads, from so many keys.
    RocksRead { reads: u64, keys: u64 },
}

/// A program, and the configurations among which its traces travel: from each to each.
#[derive(Debug, Clone)]
pub(super) struct Experiment {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) program: Program,
    pub(super) configurations: Vec<Configuration>,
}

/// What an experiment's errors are summed up with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    /// Programs of ten lines.
    Micro,
    /// RocksDB.
    Macro,
}

/// All experiments of that size.
pub(super) fn experiments(size: Size) -> Vec<Experiment> {
    let small = size == Size::Small;
    let readers = |name, threads, how, reads, configurations: &[Configuration]| {
        let (reads, file_pages) = if small { (20, 256) } else { (reads, 8192) };
        let program = Program::Readers { threads, reads, file_pages, how };
        Experiment { name, kind: Kind::Micro, program, configurations: configurations.to_vec() }
    };
    let database = |name, program| Experiment {
        name,
        kind: Kind::Macro,
        program,
        configurations: vec![CLOUD, FLASH, FLASH_TWO, DISK, SMALL_CACHE],
    };
    let (writes, reads, keys) = if small { (10, 20, 1000) } else { (150, 1000, 150_000) };
    vec![
        readers("readers-1", 1, How::Random, 400, &[DISK, FLASH]),
        readers("readers-2", 2, How::Random, 400, &[DISK, FLASH]),
        readers("readers-8", 8, How::Random, 250, &[DISK, FLASH]),
        readers("two-devices", 2, How::Random, 500, &[DISK, DISK_TWO]),
        readers("cache", 2, How::ScanFirst, 1000, &[CLOUD, SMALL_CACHE]),
        readers("slices", 2, How::Sequential, 1500, &[SHORT_SLICES, LONG_SLICES]),
        database("rocksdb-fill", Program::RocksFill { writes }),
        database("rocksdb-read", Program::RocksRead { reads, keys }),
    ]
}

/// How a trace is replayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Variant {
    pub(super) order: Order,
    pub(super) speed: Speed,
}

/// What orders the threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Order {
    Weir,
    Root,
    Temporal,
    Single,
}

impl Order {
    pub(super) fn name(self) -> &'static str {
        match self {
            Order::Weir => "weir",
            Order::Root => "root",
            Order::Temporal => "temporal",
            Order::Single => "single",
        }
    }
}

/// With the program's pauses or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Speed {
    Natural,
    Full,
}

impl Speed {
    pub(super) fn name(self) -> &'static str {
        match self {
            Speed::Natural => "natural",
            Speed::Full => "full",
        }
    }
}

/// The mode that counts, fixed before anything was measured: a program's computing is part of how long it takes.
pub(super) const MODE: Speed = Speed::Natural;

/// Every way in which a trace is replayed: ours at both speeds, the others at the one that counts.
pub(super) const VARIANTS: [Variant; 5] = [
    Variant { order: Order::Weir, speed: MODE },
    Variant { order: Order::Weir, speed: Speed::Full },
    Variant { order: Order::Root, speed: MODE },
    Variant { order: Order::Temporal, speed: MODE },
    Variant { order: Order::Single, speed: MODE },
];

/// One run that is to be made, or was.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Key {
    pub(super) experiment: String,
    pub(super) target: String,
    /// Where the trace comes from and how it is replayed; nothing for the program itself.
    pub(super) replay: Option<(String, Variant)>,
    pub(super) round: u32,
}

/// The runs of an experiment on a target: in each round the program itself, then every source's trace in every way.
pub(super) fn runs(experiment: &Experiment, target: &Configuration, rounds: u32, baselines: u32) -> Vec<Key> {
    let mut keys = Vec::new();
    for round in 0..rounds {
        let key =
            |replay| Key { experiment: experiment.name.into(), target: target.name.into(), replay, round };
        keys.push(key(None));
        for source in &experiment.configurations {
            let wanted = VARIANTS.iter().filter(|variant| variant.order == Order::Weir || round < baselines);
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
        let experiment = &experiments(Size::Real)[6];
        let keys = runs(experiment, &experiment.configurations[1], 3, 1);
        let originals: Vec<_> = (0..keys.len()).filter(|at| keys[*at].replay.is_none()).collect();
        assert_eq!(originals, [0, 26, 37]);
        for source in &experiment.configurations {
            let of = |variant: Variant| {
                keys.iter().filter(|key| key.replay == Some((source.name.into(), variant))).count()
            };
            assert_eq!(VARIANTS.map(of), [3, 3, 1, 1, 1]);
        }
    }
}
