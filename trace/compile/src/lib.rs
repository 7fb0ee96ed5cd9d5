#![doc = include_str!("../README.md")]

mod call;
mod compile;
mod coverage;
mod decode;
mod event;
mod model;
mod order;
mod parse;
mod record;
mod step;
mod untraced;

pub use compile::{CompileSettings, compile, compile_to};
pub use decode::{EXECUTED, MODELLED};
pub use order::Switches;
pub use parse::{Source, Strace, TaskFiles, read_trace};
pub use record::{RecordSettings, Recording, record};

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use trace_file::TraceError;

/// Opens a trace or snapshot. Its first bytes show whether it is compressed with gzip.
pub fn open_text(path: &Path) -> Result<Box<dyn Read>, TraceError> {
    let file = File::open(path).map_err(TraceError::io("opening", path))?;
    let mut file = BufReader::with_capacity(1 << 16, file);
    let packed = file.fill_buf().map_err(TraceError::io("reading", path))?.starts_with(&[0x1f, 0x8b]);
    if packed { Ok(Box::new(flate2::bufread::MultiGzDecoder::new(file))) } else { Ok(Box::new(file)) }
}
