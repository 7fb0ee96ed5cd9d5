//! Pages that bypassed the buffer: memory has their bytes, the buffer only a record that names them, and the store gets them soon.
//!
//! The buffer keeps space in which each of them can be logged after all, at any moment and without waiting: as a merged transaction
//! of the whole page, under the LSN that it has. So whatever must not come before such a page in the one order (a part of it that is
//! logged, a clone of it, a name of its file, a sync) has it logged first and need not wait for the store; a sync of many does, where that
//! costs less than writing them twice.

use crate::change::Change;
use crate::page::Body;
use crate::pages::{Key, Pages};
use crate::plant::{PlantedBug, is_planted};
use buffer::{Buffer, BufferError, GroupNo, LogRecord};
use device::{BLOCK_BYTES, ObjectId, PageNo, VolumeId};
use std::ops::{Bound, Range, RangeInclusive};

/// Such pages are stored as soon as there are so many: a MiB, which any device writes at its full speed.
const PRESSING_PAGES: u64 = 256;

/// What was logged after all.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Logged {
    /// The last group that has some of it.
    pub(crate) group: Option<GroupNo>,
    pub(crate) pages: u64,
}

impl Logged {
    fn add(&mut self, later: Logged) {
        self.group = later.group.or(self.group);
        self.pages += later.pages;
    }
}

/// What the buffer keeps free for so many of them.
pub(crate) fn reserved_bytes(pages: u64) -> u64 {
    pages * buffer::footprint(1, BLOCK_BYTES as u64)
}

/// Pages that may be bypassed and not stored at most: four steps of write-back. More would make a steady stream no faster, and the buffer's
/// device must take them all when their commit interval is over, should the store not.
const UNLOGGED_PAGES_MAX: u64 = 4096;

/// What it may keep free for them at most.
fn bytes_max(buffer: &Buffer) -> u64 {
    reserved_bytes(UNLOGGED_PAGES_MAX).min(buffer.capacity_bytes() / 8)
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

/// All pages of all objects.
pub(crate) const ALL: RangeInclusive<Key> = {
    let last = VolumeId(u32::MAX).object(u64::MAX, u32::MAX);
    Key { object: VolumeId(0).object(0, 0), page: PageNo(0) }..=Key { object: last, page: PageNo(u64::MAX) }
};

/// All pages of an object.
pub(crate) fn of_object(object: ObjectId) -> RangeInclusive<Key> {
    Key { object, page: PageNo(0) }..=Key { object, page: PageNo(u64::MAX) }
}

/// Logs pages that the buffer does not have. It keeps space for that, so only its device can fail it.
pub(crate) fn log(
    buffer: &Buffer,
    pages: &mut Pages,
    keys: impl IntoIterator<Item = Key>,
) -> Result<Logged, BufferError> {
    let mut logged = Logged::default();
    for key in keys {
        let Some(entry) = pages.get(&key).filter(|entry| entry.is_unlogged()) else { continue };
        let (Body::Whole(bytes), Some(newest)) = (entry.body(), entry.newest()) else {
            unreachable!("a page that bypassed the buffer is whole and not stored");
        };
        let record = LogRecord::Write { object: key.object, page: key.page, start: 0, bytes: &bytes.0 };
        logged.group = Some(buffer.append_relogged(newest, &[record])?);
        logged.pages += 1;
        pages.page_was_logged(key);
    }
    Ok(logged)
}

/// Logs all of them in a range of keys.
pub(crate) fn log_all(
    buffer: &Buffer,
    pages: &mut Pages,
    keys: impl std::ops::RangeBounds<Key>,
) -> Result<Logged, BufferError> {
    if pages.unlogged() == 0 {
        return Ok(Logged::default());
    }
    let keys: Vec<Key> = pages.unlogged_in(keys).collect();
    log(buffer, pages, keys)
}

/// Logs those that must not come after `changes`: of which a part changes, and which are cloned or moved, or named.
pub(crate) fn log_before(
    buffer: &Buffer,
    pages: &mut Pages,
    changes: &[Change<'_>],
) -> Result<Logged, BufferError> {
    if pages.unlogged() == 0 {
        return Ok(Logged::default());
    }
    let mut logged = Logged::default();
    for change in changes {
        logged.add(match *change {
            Change::Write { object, offset, bytes } => {
                log_edges(buffer, pages, object, offset..offset + bytes.len() as u64)?
            }
            Change::Zero { object, offset, len } => {
                log_edges(buffer, pages, object, offset..offset.saturating_add(len))?
            }
            Change::Clone { transfer } | Change::Move { transfer }
                if !is_planted(PlantedBug::CloneBeforeBytes) =>
            {
                let Range { start, end } = transfer.source();
                let (from, to) =
                    (Key { object: transfer.from, page: start }, Key { object: transfer.from, page: end });
                log_all(buffer, pages, (Bound::Included(from), Bound::Excluded(to)))?
            }
            Change::Settle { object } if !is_planted(PlantedBug::NameBeforeBytes) => {
                log_all(buffer, pages, of_object(object))?
            }
            _ => Logged::default(),
        });
    }
    Ok(logged)
}

/// Those at the ends of a range of bytes, if it has only a part of them.
fn log_edges(
    buffer: &Buffer,
    pages: &mut Pages,
    object: ObjectId,
    bytes: Range<u64>,
) -> Result<Logged, BufferError> {
    let edges = [bytes.start, bytes.end].into_iter().filter(|edge| !edge.is_multiple_of(BLOCK_BYTES as u64));
    match is_planted(PlantedBug::PartBeforeWhole) {
        true => Ok(Logged::default()),
        false => log(buffer, pages, edges.map(|edge| Key { object, page: PageNo::of(edge) })),
    }
}
