//! Exact quantiles of all measured values, and the spread of a figure's rounds.

use serde::Serialize;

/// The value below which a `share` of the values lies, interpolated between two. 0 if there are no values.
pub(super) fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = share * sorted.len().saturating_sub(1) as f64;
    let (below, above) = (sorted.get(at.floor() as usize), sorted.get(at.ceil() as usize));
    below.zip(above).map_or(0.0, |(below, above)| below + (above - below) * at.fract())
}

/// The median; of an even number, the mean of the middle two. 0 if there are no values.
pub(super) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// (largest − smallest) / median, as a share.
pub(super) fn spread(values: &[f64]) -> f64 {
    (quantile(values, 1.0) - quantile(values, 0.0)) / median(values).max(f64::MIN_POSITIVE)
}

/// Median and quartiles of the rounds. All are 0 if there were no rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct RoundSpread {
    pub(super) median: f64,
    pub(super) first_quartile: f64,
    pub(super) third_quartile: f64,
}

impl RoundSpread {
    pub(super) fn of(values: &[f64]) -> RoundSpread {
        let [first_quartile, median, third_quartile] = [0.25, 0.5, 0.75].map(|share| quantile(values, share));
        RoundSpread { median, first_quartile, third_quartile }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quartiles_hold_the_middle_half() {
        let of = RoundSpread::of(&[8.0, 1.0, 7.0, 2.0, 6.0, 3.0, 5.0, 4.0]);
        assert_eq!(of, RoundSpread { median: 4.5, first_quartile: 2.75, third_quartile: 6.25 });
        let one = RoundSpread::of(&[3.0]);
        assert_eq!(one, RoundSpread { median: 3.0, first_quartile: 3.0, third_quartile: 3.0 });
    }

    #[test]
    fn the_spread_is_a_share_of_the_median() {
        assert!((spread(&[90.0, 120.0, 100.0]) - 0.3).abs() < 1e-9);
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), 3.0);
    }

    #[test]
    fn quantiles_lie_between_the_smallest_and_the_largest() {
        let values: Vec<f64> = (0..=1000).rev().map(f64::from).collect();
        let of = [0.0, 0.25, 0.999, 1.0].map(|share| quantile(&values, share));
        assert_eq!(of, [0.0, 250.0, 999.0, 1000.0]);
        assert_eq!(quantile(&[7.0], 0.999), 7.0);
    }
}
