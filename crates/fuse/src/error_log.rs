//! What the daemon's log is told of requests that fail for a reason that no program can mend.

use std::fmt::Display;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines that may be written at once: more than a damaged file usually has bad pages.
const BURST: u32 = 20;
/// How long until one more may be written: a program that tries again for ever must not fill a disk.
const PAUSE: Duration = Duration::from_secs(1);

static BUDGET: Mutex<LineBudget> = Mutex::new(LineBudget { lines: BURST, since: None, left_out: 0 });

/// Writes `error` and the next step to the log, unless there was much of that lately.
pub(crate) fn log_error(error: &dyn Display, help: Option<&str>) {
    let left_out = BUDGET.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now());
    let help = help.map(|help| format!("\n  help: {help}")).unwrap_or_default();
    let more = match left_out {
        None => return,
        Some(0) => String::new(),
        Some(left_out) => format!(" (and {left_out} more since the last line)"),
    };
    // A log that cannot be written must not end the daemon.
    let _ = writeln!(io::stderr(), "error: {error}{more}{help}");
}

/// Lines that may still be written. In memory only.
struct LineBudget {
    lines: u32,
    /// Since when the next one is earned; `None` while there are all.
    since: Option<Instant>,
    /// Errors since the last line that got none.
    left_out: u64,
}

impl LineBudget {
    /// Takes one line, if there is one, and tells how many errors had none before it.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let since = self.since.unwrap_or(now);
        let earned = u32::try_from(now.duration_since(since).as_secs() / PAUSE.as_secs()).unwrap_or(u32::MAX);
        let lines = self.lines.saturating_add(earned);
        self.since = if lines >= BURST { Some(now) } else { Some(since + PAUSE * earned) };
        self.lines = lines.min(BURST);
        if self.lines == 0 {
            self.left_out += 1;
            return None;
        }
        self.lines -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_errors_gets_a_burst_of_lines_then_one_a_second_that_counts_the_others() {
        let begun = Instant::now();
        let mut budget = LineBudget { lines: BURST, since: None, left_out: 0 };
        let told = (0..100).filter_map(|_| budget.take(begun)).collect::<Vec<_>>();
        assert_eq!(told, [0; BURST as usize]);
        assert_eq!(budget.take(begun + PAUSE / 2), None);
        assert_eq!(budget.take(begun + PAUSE), Some(100 - u64::from(BURST) + 1));
        assert_eq!(budget.take(begun + PAUSE), None);
        let later = begun + PAUSE * 1000;
        assert_eq!((0..100).filter_map(|_| budget.take(later)).count(), BURST as usize);
    }
}
