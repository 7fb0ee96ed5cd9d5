//! Logs requests that fail for a reason that no program can mend, and limits how many lines that takes.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines that may be logged at once: more than a damaged file usually has bad pages.
const BURST: u32 = 20;
/// The time after which one more line may be logged: a program that tries again for ever must not fill a disk.
const PAUSE: Duration = Duration::from_secs(1);

static BUDGET: Mutex<LineBudget> = Mutex::new(LineBudget { lines: BURST, since: None, left_out: 0 });

/// Logs `error` and the next step, unless many errors were logged lately.
pub(crate) fn log_error(error: &dyn Display, help: Option<&str>) {
    let Some(left_out) = BUDGET.lock().unwrap_or_else(PoisonError::into_inner).take(Instant::now()) else {
        return;
    };
    let more = match left_out {
        0 => String::new(),
        left_out => format!(" (and {left_out} more since the last line)"),
    };
    let help = help.map(|help| format!("\n  help: {help}")).unwrap_or_default();
    tracing::error!("{error}{more}{help}");
}

/// Lines that may still be logged. In memory only.
struct LineBudget {
    lines: u32,
    /// Since when the next line is earned; `None` while all [`BURST`] lines may be logged.
    since: Option<Instant>,
    /// Errors since the last line that were not logged.
    left_out: u64,
}

impl LineBudget {
    /// Takes one line and returns how many errors before it were not logged; `None` if no line is left.
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
    fn flood_gets_a_burst_then_a_line_a_second() {
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
