//! Space of the host file system. A store that is a sparse file has a segment allocated there before the
//! segment counts as free. So a full host file system is a smaller store, to everything that counts space.
//!
//! | free segments above the [wanted number](crate::map::PageMap::free_segments_wanted) | action |
//! | --- | --- |
//! | fewer than [`segments_ahead`](crate::map::PageMap::segments_ahead) | segments are allocated, until there are twice as many |
//! | up to four times as many | dead segments are freed without a trim |
//! | more | dead segments are trimmed, and unbacked |

use crate::counters::count;
use crate::error::StoreError;
use crate::log_writer::LogWriter;
use crate::map::PageMap;
use crate::shared::StoreShared;
use device::{BLOCK_BYTES, Block};
use std::ops::Range;

/// Finds out which segments are backed by the host file system, and allocates those that the store will need
/// first. Where there is no space, the store is as large as what is backed.
pub(crate) fn allocate_at_start(shared: &StoreShared, log: &mut LogWriter) -> Result<(), StoreError> {
    let Some(known) = shared.medium.device().allocated() else { return Ok(()) };
    shared.map_mut().nodes.segments.set_backed_ranges(&merge_adjacent(known));
    if log.is_fresh() {
        // An older weir did not allocate them.
        let mut segments = vec![log.cursor().segment, log.cursor().next_segment];
        segments.retain(|&segment| shared.map().nodes.segments.get(segment).has_holes);
        log.set_fresh(segments.into_iter().all(|segment| allocate_segment(shared, segment).is_ok()));
    }
    let goal = {
        let map = shared.map();
        map.free_segments_wanted(map.segments_ahead())
    };
    allocate_up_to(shared, goal).map(drop)
}

/// Whether space should be allocated in the host file system: free segments are running low, or it was full
/// and may not be any more.
pub(crate) fn allocation_is_due(shared: &StoreShared) -> bool {
    let map = shared.map();
    let is_low = || map.nodes.segments.free_count() < map.free_segments_wanted(map.segments_ahead());
    map.nodes.segments.unbacked_count() > 0 && (shared.medium.is_host_fs_known_full() || is_low())
}

/// Allocates as much space in the host file system as will be needed soon. `false` if that is full.
pub(crate) fn allocate_ahead(shared: &StoreShared) -> Result<bool, StoreError> {
    let goal = {
        let map = shared.map();
        map.free_segments_wanted(2 * map.segments_ahead())
    };
    allocate_up_to(shared, goal)?;
    Ok(!shared.medium.is_host_fs_known_full())
}

/// Allocates more than [`allocate_ahead`] does, because a caller needs it now. `false` if there is no more
/// than before.
pub(crate) fn allocate_more(shared: &StoreShared) -> Result<bool, StoreError> {
    let goal = {
        let map = shared.map();
        map.free_segments_wanted(2 * map.segments_ahead())
            .max(map.nodes.segments.free_count() + map.segments_ahead())
    };
    Ok(allocate_up_to(shared, goal)? > 0)
}

/// Whether allocating more may help: there are unbacked segments, and the host file system was not full the
/// last time.
pub(crate) fn may_allocate(shared: &StoreShared) -> bool {
    !shared.medium.is_host_fs_known_full() && shared.map().nodes.segments.unbacked_count() > 0
}

/// Bytes left in the host file system, if it has no space for a segment that the store could use.
pub(crate) fn host_fs_free_bytes_if_full(shared: &StoreShared) -> Option<u64> {
    let spare = shared.medium.device().spare_blocks();
    let map = shared.map();
    let is_full = spare.is_some_and(|spare| spare < shared.medium.geometry().segment_blocks);
    let counts =
        map.nodes.segments.unbacked_count() > 0 && (is_full || shared.medium.is_host_fs_known_full());
    counts.then(|| spare.unwrap_or(0) * BLOCK_BYTES as u64)
}

/// The error that says whether the store is full or the host file system.
pub(crate) fn full_error(shared: &StoreShared, map: &PageMap) -> StoreError {
    match map.nodes.segments.unbacked_count() {
        0 => StoreError::Full,
        _ => StoreError::HostFsFull { device: shared.medium.name() },
    }
}

/// Allocates segments in the host file system until `goal` are free, or it is full. Returns how many it
/// allocated. No lock is held while it works. Space that stays free there may be out of reach for everybody,
/// as ext4 keeps some for the administrator.
pub(crate) fn allocate_up_to(shared: &StoreShared, goal: u64) -> Result<u64, StoreError> {
    let mut allocated = 0;
    let mut is_full = false;
    while !is_full {
        let has_space = shared
            .medium
            .device()
            .spare_blocks()
            .is_none_or(|spare| spare >= shared.medium.geometry().segment_blocks);
        let Some(segment) = next_unbacked(shared, goal) else { break };
        let outcome = if has_space { allocate_segment(shared, segment) } else { Err(StoreError::Full) };
        match outcome {
            Ok(()) => allocated += 1,
            Err(error) => {
                shared.map_mut().nodes.segments.put_back_unbacked(segment);
                if !error.is_full() {
                    return Err(error);
                }
                is_full = true;
            }
        }
    }
    shared.medium.set_host_fs_full(is_full);
    Ok(allocated)
}

/// An unbacked segment to allocate, while fewer than `goal` are free.
fn next_unbacked(shared: &StoreShared, goal: u64) -> Option<u32> {
    let mut map = shared.map_mut();
    if map.nodes.segments.free_count() < goal { map.nodes.segments.take_unbacked() } else { None }
}

fn allocate_segment(shared: &StoreShared, segment: u32) -> Result<(), StoreError> {
    shared
        .medium
        .device()
        .allocate(shared.medium.geometry().segment_start(segment), shared.medium.geometry().segment_blocks)?;
    count(&shared.medium.counting().segments_allocated, 1);
    shared.map_mut().nodes.segments.set_backed(segment);
    Ok(())
}

/// Joins adjacent ranges.
fn merge_adjacent(ranges: Vec<Range<Block>>) -> Vec<Range<Block>> {
    let mut joined: Vec<Range<Block>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}
