//! Divides a range of a volume into parts that are small enough for one request of the cache.

use device::BLOCK_BYTES;
use std::ops::Range;

/// The ranges in which `range` is read or written, as few as possible of at most `bytes_max`, which is a multiple of a
/// page. They meet where a page ends, so that no page is in two of them.
pub(crate) fn parts_of(range: Range<u64>, bytes_max: u64) -> impl Iterator<Item = Range<u64>> {
    debug_assert!(bytes_max > 0 && bytes_max.is_multiple_of(BLOCK_BYTES as u64), "whole pages");
    let page = BLOCK_BYTES as u64;
    let mut at = range.start;
    std::iter::from_fn(move || {
        let start = at;
        at = if range.end - start <= bytes_max { range.end } else { (start + bytes_max) / page * page };
        (start < range.end).then_some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cover_the_range_and_meet_at_page_ends() {
        let parts: Vec<_> = parts_of(5000..20_000, 8192).collect();
        assert_eq!(parts, [5000..12_288, 12_288..20_000]);
        assert_eq!(parts_of(8191..16_383, 8192).count(), 1, "short enough for one");
        assert_eq!(parts_of(0..16_385, 8192).last(), Some(16_384..16_385));
        assert_eq!(parts_of(7..7, 8192).count(), 0);
    }
}
