//! Read-ahead of small files: files that were created together are fetched together.
//!
//! A tree is mostly read as a whole (`tar`, `cp -r`, a compiler), a file at a time, in the order of its
//! directories' names. Files that were created together have neighbouring inodes. So three misses in one
//! group of inodes are taken as the beginning of a pass over the tree, and the group's small files are
//! fetched. If a neighbouring group was fetched, one miss is enough.

use crate::format::InodeSlot;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Inodes in a group: as many as a disk reads at the same time.
const GROUP_INODES: u32 = 32;

/// Larger files are not fetched ahead, so a group's files are at most 2 MiB.
pub(crate) const SMALL_BYTES_MAX: u64 = 64 << 10;

/// Groups that are remembered: several readers' groups, or those of a directory whose files were created
/// while others were.
const GROUPS_REMEMBERED: usize = 16;

/// Misses in a group before it is fetched.
const MISSES_BEFORE_FETCH: u32 = 3;

/// The groups with recent misses, oldest first. In memory only.
#[derive(Default)]
pub(crate) struct SmallFileReadahead(Mutex<VecDeque<InodeGroup>>);

struct InodeGroup {
    number: u32,
    misses: u32,
    is_fetched: bool,
}

impl SmallFileReadahead {
    /// Notes a miss in a small file. Returns the slots whose files should be fetched now.
    pub(crate) fn note_miss(&self, slot: InodeSlot) -> Option<Range<u32>> {
        let number = slot.0 / GROUP_INODES;
        // The list is only a hint, so a panic that left it half changed does no harm.
        let mut lately = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let goes_on = lately.iter().any(|known| known.is_fetched && known.number.abs_diff(number) == 1);
        let at = lately.iter().position(|known| known.number == number);
        let mut stretch = at.and_then(|at| lately.remove(at)).unwrap_or(InodeGroup {
            number,
            misses: 0,
            is_fetched: false,
        });
        stretch.misses += 1;
        let is_pass = !stretch.is_fetched && (goes_on || stretch.misses == MISSES_BEFORE_FETCH);
        stretch.is_fetched |= is_pass;
        lately.push_back(stretch);
        if lately.len() > GROUPS_REMEMBERED {
            lately.pop_front();
        }
        is_pass.then(|| number * GROUP_INODES..(number + 1).saturating_mul(GROUP_INODES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::SeededRng;

    #[test]
    fn a_pass_over_files_is_seen_after_three_and_then_stretch_by_stretch() {
        let nearby = SmallFileReadahead::default();
        assert_eq!([70, 90, 65].map(|slot| nearby.note_miss(InodeSlot(slot))), [None, None, Some(64..96)]);
        assert_eq!(nearby.note_miss(InodeSlot(66)), None, "once");
        assert_eq!(nearby.note_miss(InodeSlot(100)), Some(96..128));
        assert_eq!(nearby.note_miss(InodeSlot(40)), Some(32..64), "in either direction");
        assert_eq!(nearby.note_miss(InodeSlot(500)), None);
    }

    #[test]
    fn reads_at_random_are_no_pass() {
        let (nearby, mut random) = (SmallFileReadahead::default(), SeededRng::new(5));
        let passes =
            (0..10_000).filter(|_| nearby.note_miss(InodeSlot(random.below(1 << 20) as u32)).is_some());
        assert_eq!(passes.count(), 0);
    }

    #[test]
    fn the_last_inodes_are_a_stretch_too() {
        let nearby = SmallFileReadahead::default();
        let last = InodeSlot(u32::MAX);
        assert!((0..3).filter_map(|_| nearby.note_miss(last)).all(|slots| slots.end >= slots.start));
    }
}
