//! Pages that were written directly: memory has their bytes, the buffer only a record that names them, and the store gets them soon.
//!
//! The buffer keeps space in which each of them can be logged after all, at any moment and without waiting: as a merged transaction
//! of the whole page, under the LSN that it has. So whatever must not come before such a page in the one order (a part of it that is
//! logged, a clone of it, a name of its file, a sync) has it logged first, and nothing ever waits for the store.

use crate::change::Change;
use crate::page::{Body, Dirt};
use crate::pages::{Key, Pages};
use crate::plant::{PlantedBug, is_planted};
use crate::shared::State;
use buffer::{Buffer, BufferError, Record};
use device::{BLOCK_BYTES, ObjectId, PageNo};
use std::ops::{Bound, Range, RangeInclusive};

/// Such pages are stored as soon as there are so many: a MiB, which any device writes at its full speed.
const PRESSING_PAGES: u64 = 256;

/// What the buffer keeps free for so many of them.
pub(crate) fn reserved_bytes(pages: u64) -> u64 {
    pages * buffer::footprint(1, BLOCK_BYTES as u64)
}

/// What it may keep free for them at most.
fn bytes_max(buffer: &Buffer) -> u64 {
    buffer.capacity_bytes() / 8
}

/// Whether so many more find space there, beside so many others.
pub(crate) fn fit(buffer: &Buffer, more: u64, others: u64) -> bool {
    reserved_bytes(more + others) <= bytes_max(buffer)
}

/// Whether they are to be stored now.
pub(crate) fn press(buffer: &Buffer, pages: &Pages) -> bool {
    let count = pages.unlogged() as u64;
    count >= PRESSING_PAGES || reserved_bytes(count) > bytes_max(buffer) / 2
}

/// All pages of an object.
pub(crate) fn of_object(object: ObjectId) -> RangeInclusive<Key> {
    Key { object, page: PageNo(0) }..=Key { object, page: PageNo(u64::MAX) }
}

/// Logs pages that the buffer does not have. It keeps space for that, so only its device can fail it.
pub(crate) fn log(
    buffer: &Buffer,
    state: &mut State,
    keys: impl IntoIterator<Item = Key>,
) -> Result<(), BufferError> {
    for key in keys {
        let Some(entry) = state.pages.get(&key).filter(|entry| entry.is_unlogged()) else { continue };
        let newest = entry.dirt().or(entry.writing()).map(|dirt: &Dirt| dirt.newest);
        let (Body::Whole(bytes), Some(newest)) = (entry.body(), newest) else {
            unreachable!("a page that was written directly is whole and not stored");
        };
        let record = Record::Write { object: key.object, page: key.page, start: 0, bytes: &bytes.0 };
        let group = buffer.append_merged(newest, &[record])?;
        state.pages.page_was_logged(key);
        state.syncs.logged_again(group);
        state.counters.pages_logged_late += 1;
    }
    Ok(())
}

/// Logs all of them in a range of keys.
pub(crate) fn log_all(
    buffer: &Buffer,
    state: &mut State,
    keys: impl std::ops::RangeBounds<Key>,
) -> Result<(), BufferError> {
    if state.pages.unlogged() == 0 {
        return Ok(());
    }
    let keys: Vec<Key> = state.pages.unlogged_in(keys).collect();
    log(buffer, state, keys)
}

/// Logs those that must not come after `changes`: of which a part changes, and which are cloned or moved, or named.
pub(crate) fn log_before(
    buffer: &Buffer,
    state: &mut State,
    changes: &[Change<'_>],
) -> Result<(), BufferError> {
    if state.pages.unlogged() == 0 {
        return Ok(());
    }
    for change in changes {
        match *change {
            Change::Write { object, offset, bytes } => {
                log_edges(buffer, state, object, offset..offset + bytes.len() as u64)?;
            }
            Change::Zero { object, offset, len } => {
                log_edges(buffer, state, object, offset..offset.saturating_add(len))?;
            }
            Change::Clone { transfer } | Change::Move { transfer }
                if !is_planted(PlantedBug::CloneBeforeBytes) =>
            {
                let Range { start, end } = transfer.source();
                let (from, to) =
                    (Key { object: transfer.from, page: start }, Key { object: transfer.from, page: end });
                log_all(buffer, state, (Bound::Included(from), Bound::Excluded(to)))?;
            }
            Change::Settle { object } if !is_planted(PlantedBug::NameBeforeBytes) => {
                log_all(buffer, state, of_object(object))?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Those at the ends of a range of bytes, if it has only a part of them.
fn log_edges(
    buffer: &Buffer,
    state: &mut State,
    object: ObjectId,
    bytes: Range<u64>,
) -> Result<(), BufferError> {
    let edges = [bytes.start, bytes.end].into_iter().filter(|edge| !edge.is_multiple_of(BLOCK_BYTES as u64));
    match is_planted(PlantedBug::PartBeforeWhole) {
        true => Ok(()),
        false => log(buffer, state, edges.map(|edge| Key { object, page: PageNo::of(edge) })),
    }
}
