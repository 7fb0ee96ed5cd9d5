//! Measures the cost of strace. A traced thread stands still while strace notes a call. Most of that time
//! lies between the return of one call and the entry of the next, where it looks like the program's own
//! computing.

use super::strace;
use crate::event::EventKind;
use crate::parse::{Source, Strace};
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;
use trace_file::{TraceError, TracerCost};

/// Calls of the busy program: enough for a steady median, in a quarter of a second.
const CALLS: usize = 4000;
/// Calls of the waiting program.
const WAITS: usize = 200;
/// The length of a wait: about a device's request.
const WAIT: Duration = Duration::from_millis(1);
/// A program that does nothing between its calls and exists on every machine. It copies byte by byte.
const PROGRAM: [&str; 3] = ["dd", "of=/dev/null", "bs=1"];

/// Measures the median time under strace between two calls of a program that makes one call after the other
/// within a microsecond. `None` if there is no such program or strace cannot trace it; strace reports the
/// reason when it is needed.
pub(super) fn tracer_cost(trace: &Path) -> Result<Option<TracerCost>, TraceError> {
    let busy = pause_of(trace, CALLS, &["if=/dev/zero"], |_| ())?;
    let after_wait = pause_of(trace, WAITS, &[], |program| {
        let Some(mut bytes) = program.stdin.take() else { return };
        for _ in 0..WAITS {
            std::thread::sleep(WAIT);
            // If the program has ended, its exit status shows that.
            let _ = bytes.write_all(b"x");
        }
    })?;
    let cost = busy.zip(after_wait).map(|(busy, after_wait)| TracerCost { busy, after_wait });
    Ok(cost.filter(|cost| cost.busy > 0))
}

/// The median pause of the program while it copies `bytes` bytes. `feed` provides them, unless `more` names
/// an input.
fn pause_of(
    trace: &Path,
    bytes: usize,
    more: &[&str],
    feed: impl FnOnce(&mut Child),
) -> Result<Option<u64>, TraceError> {
    let path = trace.with_added_extension("calibration");
    let mut command = strace(&path);
    command.arg("--").args(PROGRAM).arg(format!("count={bytes}")).args(more);
    let started = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let ended = started.and_then(|mut program| {
        feed(&mut program);
        program.wait()
    });
    let nanos = match ended {
        Ok(status) if status.success() => Some(median_pause(&path)?),
        _ => None,
    };
    let _ = std::fs::remove_file(&path);
    Ok(nanos)
}

fn median_pause(path: &Path) -> Result<u64, TraceError> {
    let file = File::open(path).map_err(TraceError::io("opening", path))?;
    let mut source = Strace::new(BufReader::new(file));
    let (mut pauses, mut last) = (Vec::new(), None);
    while let Some(event) = source.next_event().map_err(TraceError::io("reading", path))? {
        let moves = matches!(&event.what, EventKind::Call { name, .. } if name == "read" || name == "write");
        if let Some(end) = last.filter(|_| moves) {
            pauses.push(event.start.saturating_sub(end));
        }
        last = moves.then_some(event.end);
    }
    pauses.sort_unstable();
    let middle = pauses.len().div_ceil(2).saturating_sub(1);
    Ok(pauses.get(middle).copied().unwrap_or(0))
}
