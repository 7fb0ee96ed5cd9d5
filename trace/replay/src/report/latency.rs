//! Latencies of calls: exact quantiles, from all samples.

use serde::{Deserialize, Serialize};

/// A distribution of times, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallLatency {
    /// Number of calls.
    pub count: u64,
    /// Total time.
    pub total_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl CallLatency {
    /// The distribution of these times.
    pub(crate) fn of(mut times: Vec<u64>) -> CallLatency {
        times.sort_unstable();
        let at = |per_mille: usize| {
            // The smallest time that is an upper bound for at least this share of the times.
            let place = (times.len() * per_mille).div_ceil(1000).max(1) - 1;
            times.get(place).copied().unwrap_or(0)
        };
        CallLatency {
            count: times.len() as u64,
            total_ns: times.iter().sum(),
            p50_ns: at(500),
            p90_ns: at(900),
            p99_ns: at(990),
            p999_ns: at(999),
            max_ns: at(1000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_exact() {
        let latency = CallLatency::of((1..=1000).rev().collect());
        let got = [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns, latency.max_ns];
        assert_eq!(got, [500, 900, 990, 999, 1000]);
        assert_eq!((latency.count, latency.total_ns), (1000, 500_500));
        assert_eq!(CallLatency::of(vec![7]).p50_ns, 7);
        assert_eq!(CallLatency::of(Vec::new()), CallLatency::default());
    }
}
