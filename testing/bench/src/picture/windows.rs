//! Percentiles of the client's writes, by window of time and by phase.

use super::super::quantile::quantile;
use super::client::WriteSample;

/// Median, 99th percentile and maximum of some latencies, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct LatencyPercentiles {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) longest: f64,
}

impl LatencyPercentiles {
    /// The percentiles of the writes that were due in `from..to`; `None` if there were none.
    pub(super) fn within(samples: &[WriteSample], from: f64, to: f64) -> Option<LatencyPercentiles> {
        let due = |sample: &&WriteSample| sample.due >= from && sample.due < to;
        let took: Vec<f64> = samples.iter().filter(due).map(|sample| sample.took).collect();
        let [p50, p99, longest] = [0.5, 0.99, 1.0].map(|share| quantile(&took, share));
        (!took.is_empty()).then_some(LatencyPercentiles { p50, p99, longest })
    }
}

/// The percentiles of each window of `seconds`, from the start of the run to its `end`.
pub(super) fn windows(samples: &[WriteSample], seconds: f64, end: f64) -> Vec<Option<LatencyPercentiles>> {
    let count = (end / seconds).ceil() as u32;
    let start = |window: u32| f64::from(window) * seconds;
    (0..count).map(|window| LatencyPercentiles::within(samples, start(window), start(window + 1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_belongs_to_the_window_in_which_it_was_due() {
        let samples = [0.0, 0.1, 0.19, 0.2, 0.7].map(|due| WriteSample { due, took: due + 1.0 });
        let found = windows(&samples, 0.2, 0.8);
        let medians: Vec<Option<f64>> = found.iter().map(|window| Some((*window)?.p50)).collect();
        assert_eq!(medians, [Some(1.1), Some(1.2), None, Some(1.7)]);
        assert_eq!(found[0].expect("three writes").longest, 1.19);
    }
}
