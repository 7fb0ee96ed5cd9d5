#![doc = include_str!("../README.md")]

mod confine;
mod init;
mod merge;
mod replay;
mod report;

pub use confine::{Confined, Site, Stay, confine};
pub use init::{Built, initialise};
pub use merge::Overlay;
pub use replay::{
    Baseline, Cache, CacheControl, Failure, Results, Run, Sample, Settings, Speed, Syncs, WriteOut, replay,
    replay_onto_nothing, results_from_bytes, results_to_bytes,
};
pub use report::{Comparison, Explanation, Report, Summary, explain, same, show, write_time_line};
