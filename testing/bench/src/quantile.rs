//! Exact quantiles of all measured values.

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

#[cfg(test)]
mod tests {
    use super::*;

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
