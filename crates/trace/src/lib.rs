#![doc = include_str!("../README.md")]

mod action;
mod benchmark;
mod confine;
mod coverage;
mod decode;
mod error;
mod event;
mod init;
mod model;
mod names;
mod op;
mod order;
mod overlay;
mod parse;
mod parts;
mod record;
mod replay;
mod report;
mod tracer;
mod unseen;
mod verify;

pub use action::{Action, ActionId, Fate, Moment, Rule};
pub use benchmark::{About, Benchmark, CompileSettings, Inventory, OrderInventory, compile, compile_to};
pub use confine::{Confined, Site, Stay, confine};
pub use coverage::Coverage;
pub use decode::{EXECUTED, MODELLED};
pub use error::TraceError;
pub use init::{Built, initialise};
pub use model::Repairs;
pub use names::{Name, Names};
pub use op::{Op, Outcome};
pub use order::{Order, Switches, Wait};
pub use overlay::Overlay;
pub use parse::{Merged, Source, Strace};
pub use record::{RecordSettings, Recording, record};
pub use replay::{
    Baseline, Cache, CacheControl, Failure, Results, Run, Sample, Settings, Speed, Syncs, WriteOut, replay,
    replay_onto_nothing, results_from_bytes, results_to_bytes,
};
pub use report::{Comparison, Explanation, Report, Summary, explain, write_time_line};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
pub use tracer::TracerCost;
pub use unseen::Unseen;
pub use verify::{Deviation, Unjudged, Verification, verify};

/// Opens a trace or snapshot; compressed with gzip if its first bytes say so.
pub fn open_text(path: &Path) -> Result<Box<dyn Read>, TraceError> {
    let mut file =
        BufReader::with_capacity(1 << 16, File::open(path).map_err(TraceError::io("opening", path))?);
    let packed = file.fill_buf().map_err(TraceError::io("reading", path))?.starts_with(&[0x1f, 0x8b]);
    Ok(match packed {
        true => Box::new(flate2::bufread::MultiGzDecoder::new(file)),
        false => Box::new(file),
    })
}
