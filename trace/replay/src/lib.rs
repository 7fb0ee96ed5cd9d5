#![doc = include_str!("../README.md")]

mod confine;
mod init;
mod merge;
mod replay;
mod report;

pub use confine::{AfterReplay, Confined, ReplaySandbox, confine};
pub use init::{BuiltTree, initialise};
pub use merge::MergedTraces;
pub use replay::{
    ActionSample, CacheControl, FsyncMeaning, OrderChoice, ReplayFailure, ReplayResults, ReplayRun,
    ReplaySettings, ReplaySpeed, StartCache, WriteOut, replay, replay_onto_nothing, results_from_bytes,
    results_to_bytes,
};
pub use report::{
    Explanation, IncompleteReplay, ReplayReport, ReportComparison, RunSummary, explain, same, show,
    write_time_line,
};
