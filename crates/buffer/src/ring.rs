//! Where groups go: pure arithmetic on a ring of blocks.

use crate::format::{GROUP_BLOCKS_MAX, RING_START};
use device::{BLOCK_BYTES, Block, Incarnation, Lsn};
use std::fmt;

/// The number of a commit group: groups are numbered in the order of the log, without gaps, for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupNo(pub u64);

impl GroupNo {
    /// The group after this one.
    pub(crate) fn next(self) -> GroupNo {
        GroupNo(self.0 + 1)
    }
}

impl fmt::Display for GroupNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A block of the ring, counted on through all laps, so that later always means larger. Lap 0 starts at 0.
/// Only its remainder is on media; laps are counted afresh by every opening.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct RingPosition(pub(crate) u64);

impl RingPosition {
    pub(crate) fn plus(self, blocks: u64) -> RingPosition {
        RingPosition(self.0 + blocks)
    }

    pub(crate) fn minus(self, blocks: u64) -> RingPosition {
        RingPosition(self.0 - blocks)
    }
}

/// A point of the log between two groups: what the group that follows must fit to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupBoundary {
    /// Where the group starts, unless it does not fit before the ring's end: then at the next lap's start.
    pub(crate) position: RingPosition,
    /// Its number.
    pub(crate) number: GroupNo,
    /// The LSN after that of the last record before it.
    pub(crate) lsn: Lsn,
    /// The incarnation of the group before it.
    pub(crate) incarnation: Incarnation,
    /// The checksum of the group before it; 0 before the first.
    pub(crate) predecessor: u32,
}

/// The part of the device that holds groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogRing {
    pub(crate) start: Block,
    pub(crate) blocks: u64,
    pub(crate) group_blocks_max: u64,
}

/// Blocks that `bytes` fill.
pub(crate) fn blocks_of(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES as u64)
}

impl LogRing {
    /// One of so many blocks. Its longest group is a quarter of it, and no longer than any may be.
    pub(crate) fn with_blocks(blocks: u64) -> LogRing {
        LogRing { start: RING_START, blocks, group_blocks_max: (blocks / 4).min(GROUP_BLOCKS_MAX) }
    }

    /// The ring on a device of so many blocks, none if they are too few.
    pub(crate) fn on_device(device_blocks: u64) -> LogRing {
        LogRing::with_blocks(device_blocks.saturating_sub(RING_START.0))
    }

    /// Blocks that a device must have for it.
    pub(crate) fn device_blocks(&self) -> u64 {
        self.start.0 + self.blocks
    }

    /// The block on the device.
    pub(crate) fn block(&self, at: RingPosition) -> Block {
        self.start.plus(at.0 % self.blocks)
    }

    /// Blocks from `at` to the ring's end.
    pub(crate) fn left(&self, at: RingPosition) -> u64 {
        self.blocks - at.0 % self.blocks
    }

    /// The start of the lap after the one that `at` is in.
    pub(crate) fn next_lap(&self, at: RingPosition) -> RingPosition {
        at.plus(self.left(at))
    }

    /// Where a group of this length goes when the one before it ends at `at`: groups are contiguous.
    pub(crate) fn place(&self, at: RingPosition, blocks: u64) -> RingPosition {
        if blocks <= self.left(at) { at } else { self.next_lap(at) }
    }

    /// Blocks that surely can be appended behind `end` before `limit`, whatever way they are cut into groups. At
    /// most one lap's end lies between, and there at most one block less than a group can be lost; nothing is lost
    /// of what fits before it. Free space never shrinks when the tail moves.
    ///
    /// `grows` says whether a group that is still open ends at `end`: if it grows beyond the lap's end it moves as
    /// a whole, so for it the lap's end costs even when it is right here.
    pub(crate) fn free_blocks(&self, end: RingPosition, limit: RingPosition, grows: bool) -> u64 {
        let free = limit.0.saturating_sub(end.0);
        let at_lap = end.0.is_multiple_of(self.blocks);
        let lap = if grows && at_lap { end } else { self.next_lap(end) };
        let lost = if lap < limit { self.group_blocks_max - 1 } else { 0 };
        free.saturating_sub(lost).max(lap.min(limit).0.saturating_sub(end.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RING: LogRing = LogRing { start: Block(3), blocks: 40, group_blocks_max: 10 };

    #[test]
    fn a_group_that_does_not_fit_before_the_end_starts_the_next_lap() {
        assert_eq!(RING.place(RingPosition(38), 2), RingPosition(38));
        assert_eq!(RING.place(RingPosition(38), 3), RingPosition(40));
        assert_eq!(RING.block(RingPosition(40)), Block(3));
        assert_eq!(RING.place(RingPosition(40), 10), RingPosition(40));
    }

    proptest! {
        #[test]
        fn groups_that_take_no_more_than_the_free_space_always_fit(
            tail in 0u64..200, used in 0u64..40, groups in prop::collection::vec(1u64..=10, 0..40),
        ) {
            let limit = RingPosition(tail + RING.blocks);
            let mut end = RingPosition(tail + used);
            let mut space = RING.free_blocks(end, limit, false);
            for blocks in groups {
                if blocks > space {
                    continue;
                }
                end = RING.place(end, blocks).plus(blocks);
                prop_assert!(end <= limit);
                let after = RING.free_blocks(end, limit, false);
                prop_assert!(after >= space - blocks, "space {space} shrank to {after} by {blocks}");
                space -= blocks;
            }
        }

        #[test]
        fn free_space_never_shrinks_when_the_ring_gets_larger(
            blocks in 253u64..20_000, more in 0u64..20_000, tail in 0u64..20_000, used in 0u64..20_000, grows in any::<bool>(),
        ) {
            let (ring, larger) = (LogRing::with_blocks(blocks), LogRing::with_blocks(blocks + more));
            let tail = tail % blocks;
            let end = tail + used % (blocks - tail);
            let space = |ring: LogRing| ring.free_blocks(RingPosition(end), RingPosition(tail + ring.blocks), grows);
            prop_assert!(space(larger) >= space(ring));
        }

        #[test]
        fn free_space_never_shrinks_when_the_tail_moves(
            tail in 0u64..200, used in 0u64..40, released in 0u64..40, grows in any::<bool>(),
        ) {
            let end = RingPosition(tail + used);
            let space = |tail| RING.free_blocks(end, RingPosition(tail + RING.blocks), grows);
            prop_assert!(space(tail + released.min(used)) >= space(tail));
        }

        #[test]
        fn a_group_that_grows_within_the_free_space_always_fits_even_where_it_moves_to_the_next_lap(
            tail in 0u64..200, used in 0u64..40, steps in prop::collection::vec(1u64..=4, 0..60),
        ) {
            let limit = RingPosition(tail + RING.blocks);
            let (mut end, mut open) = (RingPosition(tail + used), 0);
            let open_end = |end, open| RING.place(end, open).plus(open);
            let mut space = RING.free_blocks(end, limit, false);
            for more in steps {
                if more > space {
                    continue;
                }
                if open + more > RING.group_blocks_max {
                    (end, open) = (open_end(end, open), 0);
                }
                open += more;
                let here = open_end(end, open);
                prop_assert!(here <= limit);
                let after = RING.free_blocks(here, limit, true);
                prop_assert!(after >= space - more, "space {space} shrank to {after} by {more}");
                // The next appender believes the space as it is now.
                space = after;
            }
        }
    }
}
