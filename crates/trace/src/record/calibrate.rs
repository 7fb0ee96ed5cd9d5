//! What strace itself costs. A traced thread stands still while strace takes note of a call, and most of that time lies
//! between the return of one call and the entry of the next, where it looks like the program's own thinking.

use super::strace;
use crate::error::TraceError;
use crate::event::What;
use crate::parse::{Source, Strace};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::process::Stdio;

/// Enough for a steady median, and over in a quarter of a second.
const CALLS: usize = 4000;
/// A program that does nothing between its calls, and is on every machine.
const PROGRAM: [&str; 3] = ["dd", "if=/dev/zero", "of=/dev/null"];

/// The time that passes under strace, in the median, between two calls of a program that goes from one to the next within
/// a microsecond. Nothing if there is no such program, or strace cannot trace it: then strace says why when it is needed.
pub(super) fn tracer_nanos(trace: &Path) -> Result<Option<u64>, TraceError> {
    let path = trace.with_added_extension("calibration");
    let mut command = strace(&path);
    command.arg("--").args(PROGRAM).args(["bs=1".to_owned(), format!("count={CALLS}")]);
    let ended = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let nanos = match ended {
        Ok(status) if status.success() => Some(median_pause(&path)?),
        _ => None,
    };
    let _ = std::fs::remove_file(&path);
    Ok(nanos.filter(|nanos| *nanos > 0))
}

fn median_pause(path: &Path) -> Result<u64, TraceError> {
    let file = File::open(path).map_err(TraceError::io("opening", path))?;
    let mut source = Strace::new(BufReader::new(file));
    let (mut pauses, mut last) = (Vec::new(), None);
    while let Some(event) = source.next_event().map_err(TraceError::io("reading", path))? {
        let moves = matches!(&event.what, What::Call { name, .. } if name == "read" || name == "write");
        if let Some(end) = last.filter(|_| moves) {
            pauses.push(event.start.saturating_sub(end));
        }
        last = moves.then_some(event.end);
    }
    pauses.sort_unstable();
    Ok(pauses.get(pauses.len() / 2).copied().unwrap_or(0))
}
