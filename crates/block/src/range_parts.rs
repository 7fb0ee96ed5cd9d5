//! Divides a range of a volume into parts that are small enough for one request of the cache.

use device::BLOCK_BYTES;
use std::ops::Range;

/// The ranges in which `range` is read or written: each but the last ends at a multiple of `bytes_max`, which is a
/// multiple of a page, so that no page is in two of them unless the range begins or ends within a page.
pub(crate) fn parts_of(range: Range<u64>, bytes_max: u64) -> impl Iterator<Item = Range<u64>> {
    debug_assert!(bytes_max > 0 && bytes_max.is_multiple_of(BLOCK_BYTES as u64), "whole pages");
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = (start / bytes_max + 1).saturating_mul(bytes_max).min(range.end);
        (start < range.end).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cover_the_range_and_end_at_multiples() {
        let parts: Vec<_> = parts_of(5000..20_000, 8192).collect();
        assert_eq!(parts, [5000..8192, 8192..16_384, 16_384..20_000]);
        assert_eq!(parts_of(8192..16_384, 8192).count(), 1);
        assert_eq!(parts_of(7..7, 8192).count(), 0);
    }
}
