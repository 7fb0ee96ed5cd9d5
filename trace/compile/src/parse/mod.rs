//! Parses the text of a trace into [`TraceEvent`](crate::event::TraceEvent)s.

mod dtruss;
mod lines;
mod source;
mod strace;
mod task_files;

pub(crate) use dtruss::Dtruss;
pub use source::Source;
pub use strace::Strace;
pub use task_files::TaskFiles;

use std::io::{self, BufReader, Cursor, Read};

/// Bytes at the beginning of a trace that show its form.
const FORM_BYTES: u64 = 1 << 16;

/// Reads a trace of strace or of dtruss. The beginning of the trace shows its form.
pub fn read_trace(input: impl Read + 'static) -> io::Result<Box<dyn Source>> {
    let mut input = BufReader::with_capacity(1 << 20, input);
    let mut beginning = Vec::new();
    input.by_ref().take(FORM_BYTES).read_to_end(&mut beginning)?;
    let is_dtruss = dtruss::is_dtruss(&beginning);
    let input = Cursor::new(beginning).chain(input);
    Ok(if is_dtruss { Box::new(Dtruss::new(input)) } else { Box::new(Strace::new(input)) })
}
