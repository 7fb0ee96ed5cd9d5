//! Space below: a store that is a sparse file asks the file system that holds it for a segment's space before the segment counts as
//! free. So a file system that is full is a smaller store, to all that counts space.
//!
//! | free segments above what is [wanted](Map::wanted_below) | what is done |
//! | --- | --- |
//! | fewer than [`ahead`] | more are asked for, until there are twice as many |
//! | up to four times as many | dead ones are free without a trim |
//! | more | dead ones are trimmed, and bare |

use crate::counters::count;
use crate::error::StoreError;
use crate::map::Map;
use crate::policy::{Class, ahead, low_mark};
use crate::store::{Store, Writer};
use device::{BLOCK_BYTES, Block};
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Map {
    /// Free segments that the store should have: the reserves, what is reserved, and what cleaning keeps in hand.
    fn wanted_below(&self) -> u64 {
        self.floor(Class::Reservation) + low_mark(self.segments.held()) + self.reserved_segments()
    }

    fn ahead(&self) -> u64 {
        ahead(self.segments.held(), self.segments.geometry.segment_blocks)
    }

    /// Free segments beyond which dead ones are trimmed.
    pub(crate) fn kept_from_trims(&self) -> u64 {
        self.wanted_below() + 4 * self.ahead()
    }
}

impl Store {
    /// Finds out which segments have space below, and asks for some for those that the store will need first. Where there is none, the
    /// store is what it has.
    pub(crate) fn take_stock(&self, writer: &mut Writer) -> Result<(), StoreError> {
        let Some(known) = self.device.allocated() else { return Ok(()) };
        self.map_mut().segments.take_stock(&joined(known));
        if writer.log_is_fresh {
            // An older weir did not ask for their space.
            let mut log = vec![writer.log.segment, writer.log.next];
            log.retain(|&segment| self.map().segments.get(segment).has_holes);
            writer.log_is_fresh = log.into_iter().all(|segment| self.allocate(segment).is_ok());
        }
        let wanted = self.map().wanted_below();
        self.allocate_up_to(wanted).map(drop)
    }

    /// Whether the file system below should be asked for more space: soon free segments will be wanted; or it was full, and may not
    /// be any more.
    pub fn allocation_is_due(&self) -> bool {
        let map = self.map();
        let is_low = || map.segments.free_count() < map.wanted_below() + map.ahead();
        map.segments.bare_count() > 0 && (self.is_known_full_below() || is_low())
    }

    /// Asks the file system below for as much space as will be needed soon. `false` if it is full.
    ///
    /// # Errors
    /// The device's, but for a file system that is full.
    pub fn allocate_ahead(&self) -> Result<bool, StoreError> {
        let goal = {
            let map = self.map();
            map.wanted_below() + 2 * map.ahead()
        };
        self.allocate_up_to(goal)?;
        Ok(!self.is_known_full_below())
    }

    /// Asks it for more than that, because an operation needs it now. `false` if there is no more than before.
    ///
    /// # Errors
    /// The same.
    pub fn allocate_more(&self) -> Result<bool, StoreError> {
        let goal = {
            let map = self.map();
            (map.wanted_below() + 2 * map.ahead()).max(map.segments.free_count() + map.ahead())
        };
        Ok(self.allocate_up_to(goal)? > 0)
    }

    /// Whether the file system below had no space for a segment when it was last asked.
    pub fn is_known_full_below(&self) -> bool {
        self.is_full_below.load(Ordering::Relaxed)
    }

    /// Whether asking for more may help: there are segments without space, and the file system below was not full the last time.
    pub fn may_allocate(&self) -> bool {
        !self.is_known_full_below() && self.map().segments.bare_count() > 0
    }

    /// Bytes that are left in the file system below, if it has no space for a segment that the store could use.
    pub fn full_below(&self) -> Option<u64> {
        let spare = self.device.spare_blocks();
        let map = self.map();
        let is_full = spare.is_some_and(|spare| spare < self.geometry.segment_blocks);
        let counts = map.segments.bare_count() > 0 && (is_full || self.is_known_full_below());
        counts.then(|| spare.unwrap_or(0) * BLOCK_BYTES as u64)
    }

    /// Why there is no space.
    pub(crate) fn full(&self, map: &Map) -> StoreError {
        match map.segments.bare_count() {
            0 => StoreError::Full,
            _ => StoreError::FullBelow { device: self.device.name().to_owned() },
        }
    }

    /// Asks for space until `goal` segments are free, or there is no more. Returns how many got some. No lock is held while the file
    /// system is asked; in it stays what others cannot have either, as ext4 keeps some for the administrator.
    pub(crate) fn allocate_up_to(&self, goal: u64) -> Result<u64, StoreError> {
        let (mut allocated, mut is_full) = (0, false);
        while !is_full {
            let has_space =
                self.device.spare_blocks().is_none_or(|spare| spare >= self.geometry.segment_blocks);
            let Some(segment) = self.bare_below(goal) else { break };
            let outcome = if has_space { self.allocate(segment) } else { Err(StoreError::Full) };
            match outcome {
                Ok(()) => allocated += 1,
                Err(error) => {
                    self.map_mut().segments.stays_bare(segment);
                    if !error.is_full() {
                        return Err(error);
                    }
                    is_full = true;
                }
            }
        }
        self.is_full_below.store(is_full, Ordering::Relaxed);
        Ok(allocated)
    }

    /// A segment to ask for space for, while fewer than `goal` are free.
    fn bare_below(&self, goal: u64) -> Option<u32> {
        let mut map = self.map_mut();
        if map.segments.free_count() < goal { map.segments.take_bare() } else { None }
    }

    fn allocate(&self, segment: u32) -> Result<(), StoreError> {
        self.device.allocate(self.geometry.start(segment), self.geometry.segment_blocks)?;
        count(&self.counting.segments_allocated, 1);
        self.map_mut().segments.has_space(segment);
        Ok(())
    }
}

/// The same blocks in as few ranges as they take.
fn joined(ranges: Vec<Range<Block>>) -> Vec<Range<Block>> {
    let mut joined: Vec<Range<Block>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}
