//! What a tracer adds to the time between two calls.

use serde::{Deserialize, Serialize};

/// Nanoseconds that pass between two calls of a program that does nothing there; 0 where they are not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracerCost {
    /// While it goes from call to call.
    pub busy: u64,
    /// Around a call that has waited: whoever slept finds its memory and its processor cold, and the tracer slept, too.
    pub after_wait: u64,
}

/// How the line begins in which `weir trace record` says what the tracer costs. strace itself writes no such lines.
pub const TRACER_NOTE: &str = "# nanoseconds that the tracer adds between two calls: ";
/// What stands between the two numbers.
const AND: &str = ", around one that has waited: ";
/// A call that took so long has waited for something. Others take some microseconds, and strace itself, which may be in it, tens.
const WAIT_NANOS: u64 = 100_000;

impl TracerCost {
    /// The same in all cases.
    pub fn same(nanos: u64) -> TracerCost {
        TracerCost { busy: nanos, after_wait: nanos }
    }

    /// The lower of what is known of two tracers.
    pub fn least(self, other: TracerCost) -> TracerCost {
        let least =
            |one: u64, other: u64| if one == 0 || other == 0 { one.max(other) } else { one.min(other) };
        TracerCost {
            busy: least(self.busy, other.busy),
            after_wait: least(self.after_wait, other.after_wait),
        }
    }

    /// The line for the trace.
    pub fn note(self) -> String {
        format!("{TRACER_NOTE}{}{AND}{}", self.busy, self.after_wait)
    }

    /// Reads such a line; nothing if it is none. One number counts for all cases.
    pub fn parse(line: &[u8]) -> Option<Option<TracerCost>> {
        let numbers = std::str::from_utf8(line.strip_prefix(TRACER_NOTE.as_bytes())?).ok();
        Some(numbers.and_then(|numbers| {
            let (busy, after_wait) =
                numbers.trim().split_once(AND).unwrap_or((numbers.trim(), numbers.trim()));
            Some(TracerCost { busy: busy.parse().ok()?, after_wait: after_wait.parse().ok()? })
        }))
    }

    /// What lies before a call, when the two before it took so long.
    pub fn before(self, took: [u64; 2]) -> u64 {
        if took.iter().any(|took| *took >= WAIT_NANOS) { self.after_wait } else { self.busy }
    }
}
