//! Converts all of strace's kinds of time stamps to one clock.

use super::head::Stamp;

/// Converts stamps to nanoseconds that do not go backwards at midnight.
#[derive(Default)]
pub(super) struct TraceClock {
    /// Sum of pauses, or of the days that have passed.
    base: u64,
    last: u64,
}

const DAY: u64 = 24 * 3600 * 1_000_000_000;

impl TraceClock {
    /// The time of a line. `None` if the stamp is out of range.
    pub(super) fn nanoseconds(&mut self, stamp: Stamp, line: u64) -> Option<u64> {
        let now = match stamp {
            // Without a clock, the order of the lines is the only information.
            Stamp::Missing => return Some(if self.last == 0 { line } else { self.last }),
            Stamp::Epoch(now) => now,
            Stamp::Pause(pause) => {
                self.base = self.base.checked_add(pause)?;
                self.base
            }
            Stamp::Day(now) => {
                // A step back of more than half a day is midnight; a smaller one is another task's line.
                if self.base.checked_add(now)?.checked_add(DAY / 2)? < self.last {
                    self.base = self.base.checked_add(DAY)?;
                }
                self.base.checked_add(now)?
            }
        };
        self.last = now;
        Some(now)
    }
}
