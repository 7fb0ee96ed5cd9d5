//! The time that a tracer adds between two calls.

use serde::{Deserialize, Serialize};

/// Nanoseconds that the tracer adds between two calls of a program that does nothing there; 0 if unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TracerCost {
    /// Between two calls of a busy program.
    pub busy: u64,
    /// Around a call that has waited. The memory and processor of the woken thread are cold, and the tracer
    /// slept, too.
    pub after_wait: u64,
}

/// The beginning of the line in which `weir trace record` notes the tracer's cost. strace itself writes no
/// such line.
pub const TRACER_NOTE: &str = "# nanoseconds that the tracer adds between two calls: ";
/// The text between the two numbers.
const AND: &str = ", around one that has waited: ";
/// Duration from which a call counts as having waited, in nanoseconds. Other calls take some microseconds, or
/// tens if strace's own work is included.
const WAIT_NANOS: u64 = 100_000;

impl TracerCost {
    /// A cost that is the same for busy programs and after waits.
    pub fn same(nanos: u64) -> TracerCost {
        TracerCost { busy: nanos, after_wait: nanos }
    }

    /// The lower of two tracers' costs, as far as they are known.
    pub fn least(self, other: TracerCost) -> TracerCost {
        let least =
            |one: u64, other: u64| if one == 0 || other == 0 { one.max(other) } else { one.min(other) };
        TracerCost {
            busy: least(self.busy, other.busy),
            after_wait: least(self.after_wait, other.after_wait),
        }
    }

    /// The line that notes the cost in a trace.
    pub fn note(self) -> String {
        format!("{TRACER_NOTE}{}{AND}{}", self.busy, self.after_wait)
    }

    /// Reads the line of a note. `None` for any other line, `Some(None)` for an unreadable note. A single
    /// number counts for both costs.
    pub fn parse(line: &[u8]) -> Option<Option<TracerCost>> {
        let numbers = std::str::from_utf8(line.strip_prefix(TRACER_NOTE.as_bytes())?).ok();
        Some(numbers.and_then(|numbers| {
            let (busy, after_wait) =
                numbers.trim().split_once(AND).unwrap_or((numbers.trim(), numbers.trim()));
            Some(TracerCost { busy: busy.parse().ok()?, after_wait: after_wait.parse().ok()? })
        }))
    }

    /// The tracer's cost before a call. `took` is how long the two calls before took.
    pub fn before(self, took: [u64; 2]) -> u64 {
        if took.iter().any(|took| *took >= WAIT_NANOS) { self.after_wait } else { self.busy }
    }
}
