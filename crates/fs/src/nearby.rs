//! Small files that are read one after the other: those that were made with them are fetched together.
//!
//! A tree is mostly read as a whole (`tar`, `cp -r`, a compiler), a file at a time, in the order of its directories' names. Files
//! that were made together have inodes next to each other, so three reads that wait for files of one stretch of inodes are
//! taken as the beginning of such a pass; where the stretch before it or behind it was one, the first read is.

use crate::format::Slot;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Inodes of one stretch: as many reads as a disk does at the same time.
const STRETCH: u32 = 32;

/// Larger files are not fetched before somebody reads them; of a stretch at most 2 MiB are.
pub(crate) const SMALL_BYTES_MAX: u64 = 64 << 10;

/// Stretches that are remembered: a directory's files, where others were made meanwhile, or several readers'.
const REMEMBERED: usize = 16;

/// Reads that wait before a stretch is fetched.
const MISSES: u32 = 3;

/// Which stretches were read lately. After a crash: nothing.
#[derive(Default)]
pub(crate) struct Nearby(Mutex<VecDeque<Stretch>>);

struct Stretch {
    number: u32,
    misses: u32,
    is_fetched: bool,
}

impl Nearby {
    /// Notes a read that waits for a small file; the inodes whose files are worth fetching now.
    pub(crate) fn missed(&self, slot: Slot) -> Option<Range<u32>> {
        let number = slot.0 / STRETCH;
        // A list that a panic left is as good as any.
        let mut lately = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = lately.iter().any(|known| known.is_fetched && known.number.abs_diff(number) == 1);
        let at = lately.iter().position(|known| known.number == number);
        let mut stretch =
            at.and_then(|at| lately.remove(at)).unwrap_or(Stretch { number, misses: 0, is_fetched: false });
        stretch.misses += 1;
        let is_pass = !stretch.is_fetched && (goes_on || stretch.misses == MISSES);
        stretch.is_fetched |= is_pass;
        lately.push_back(stretch);
        if lately.len() > REMEMBERED {
            lately.pop_front();
        }
        is_pass.then(|| number * STRETCH..(number + 1).saturating_mul(STRETCH))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::SeededRng;

    #[test]
    fn a_pass_over_files_is_seen_after_three_and_then_stretch_by_stretch() {
        let nearby = Nearby::default();
        assert_eq!([70, 90, 65].map(|slot| nearby.missed(Slot(slot))), [None, None, Some(64..96)]);
        assert_eq!(nearby.missed(Slot(66)), None, "once");
        assert_eq!(nearby.missed(Slot(100)), Some(96..128));
        assert_eq!(nearby.missed(Slot(40)), Some(32..64), "in either direction");
        assert_eq!(nearby.missed(Slot(500)), None);
    }

    #[test]
    fn reads_at_random_are_no_pass() {
        let (nearby, mut random) = (Nearby::default(), SeededRng::new(5));
        let passes = (0..10_000).filter(|_| nearby.missed(Slot(random.below(1 << 20) as u32)).is_some());
        assert_eq!(passes.count(), 0);
    }

    #[test]
    fn the_last_inodes_are_a_stretch_too() {
        let nearby = Nearby::default();
        let last = Slot(u32::MAX);
        assert!((0..3).filter_map(|_| nearby.missed(last)).all(|slots| slots.end >= slots.start));
    }
}
