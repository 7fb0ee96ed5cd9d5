//! How long calls took: exact quantiles, from all samples.

use serde::{Deserialize, Serialize};

/// A distribution of times, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// How many.
    pub count: u64,
    /// All of them together.
    pub total_ns: u64,
    /// Half took at most that.
    pub p50_ns: u64,
    /// Nine of ten.
    pub p90_ns: u64,
    /// 99 of 100.
    pub p99_ns: u64,
    /// 999 of 1000.
    pub p999_ns: u64,
    /// The longest.
    pub max_ns: u64,
}

impl Latency {
    /// Of these times.
    pub(crate) fn of(mut times: Vec<u64>) -> Latency {
        times.sort_unstable();
        let at = |per_mille: usize| {
            // The smallest time that at least so many do not exceed.
            let place = (times.len() * per_mille).div_ceil(1000).max(1) - 1;
            times.get(place).copied().unwrap_or(0)
        };
        Latency {
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
        let latency = Latency::of((1..=1000).rev().collect());
        let got = [latency.p50_ns, latency.p90_ns, latency.p99_ns, latency.p999_ns, latency.max_ns];
        assert_eq!(got, [500, 900, 990, 999, 1000]);
        assert_eq!((latency.count, latency.total_ns), (1000, 500_500));
        assert_eq!(Latency::of(vec![7]).p50_ns, 7);
        assert_eq!(Latency::of(Vec::new()), Latency::default());
    }
}
