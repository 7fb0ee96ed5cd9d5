//! Times of the machine's processors, from `/proc/stat`.

use std::fs;
use std::time::Duration;

/// Milliseconds of a tick in /proc: USER_HZ is 100 on every Linux.
pub(crate) const TICK_MS: u64 = 10;

/// Times of the machine's processors since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessorTimes {
    /// The total over all processors.
    pub all: Duration,
    /// The part in which a processor had work, but the hypervisor ran another guest.
    pub stolen: Duration,
}

impl ProcessorTimes {
    /// The present times; zeros if the kernel does not report them.
    pub fn now() -> ProcessorTimes {
        ProcessorTimes::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(stat: &str) -> ProcessorTimes {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        // user nice system idle iowait irq softirq steal; guest times are included in the first two.
        let times = line.split_whitespace().take(8).filter_map(|ticks| ticks.parse().ok());
        let times: Vec<Duration> = times.map(|ticks: u64| Duration::from_millis(ticks * TICK_MS)).collect();
        ProcessorTimes { all: times.iter().sum(), stolen: times.get(7).copied().unwrap_or_default() }
    }

    /// The stolen share of the time since `before`, 0 to 1.
    pub fn stolen_since(&self, before: &ProcessorTimes) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let stolen = self.stolen.saturating_sub(before.stolen);
        if all.is_zero() { 0.0 } else { stolen.as_secs_f64() / all.as_secs_f64() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stolen_share_is_of_all_processors_time() {
        let before = ProcessorTimes::parse("cpu  100 0 100 700 0 0 0 100 0 0\ncpu0 1 1 1 1\n");
        let after = ProcessorTimes::parse("cpu  150 0 100 720 0 0 0 130 50 0\n");
        assert_eq!(before.all, Duration::from_secs(10));
        assert!((after.stolen_since(&before) - 0.3).abs() < 1e-9);
        assert!(before.stolen_since(&before).abs() < 1e-9);
        // Sixteen processors that have been idle for a month.
        let before = ProcessorTimes::parse("cpu  100 0 100 5000000000 0 0 0 100 0 0\n");
        let after = ProcessorTimes::parse("cpu  150 0 100 5000000020 0 0 0 130 50 0\n");
        assert!((after.stolen_since(&before) - 0.3).abs() < 1e-9);
        assert!(ProcessorTimes::now().all > Duration::ZERO);
    }
}
