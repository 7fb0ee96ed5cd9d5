//! Bypassed pages: their bytes are in memory, the buffer has only a record that names them, and the store
//! gets them soon.
//!
//! The buffer keeps space in which each of them can be logged late, at any moment and without waiting: as a
//! relogged transaction of the whole page, under its LSN. A partial overwrite of a bypassed page, a clone of
//! it, a new name of its file and a sync must not become durable before the page. So each of them logs the
//! page first, and need not wait for the store. A sync of many pages does wait for the store if that costs
//! less than writing them twice.

use crate::change::ObjectChange;
use crate::page::PageBody;
use crate::page_table::{PageKey, PageTable};
use crate::planted_bug::{CacheBug, is_planted};
use buffer::{Buffer, BufferError, GroupNo, LogRecord};
use device::{BLOCK_BYTES, ObjectId, PageNo, VolumeId};
use std::ops::{Bound, Range, RangeInclusive};

/// Bypassed pages are stored as soon as there are this many: a MiB, which any device writes at full speed.
const PRESSING_PAGES: u64 = 256;

/// Pages that were logged late.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LateLogged {
    /// The last group with some of them.
    pub(crate) group: Option<GroupNo>,
    pub(crate) pages: u64,
}

impl LateLogged {
    fn add(&mut self, later: LateLogged) {
        self.group = later.group.or(self.group);
        self.pages += later.pages;
    }
}

/// The space that the buffer keeps for `pages` bypassed pages.
pub(crate) fn reserved_bytes(pages: u64) -> u64 {
    const EACH: u64 = buffer::footprint(1, BLOCK_BYTES as u64);
    pages * EACH
}

/// Bypassed pages that may not be stored, at most: four steps of write-back. More would not make a steady
/// stream faster. If the store fails, the buffer's device must take all of them after a commit interval.
const UNLOGGED_PAGES_MAX: u64 = 4096;

/// The most space that the buffer may keep for bypassed pages.
fn bytes_max(buffer: &Buffer) -> u64 {
    reserved_bytes(UNLOGGED_PAGES_MAX).min(buffer.capacity_bytes() / 8)
}

/// Whether the buffer has space for `more` bypassed pages beside `others`.
pub(crate) fn has_space_for(buffer: &Buffer, more: u64, others: u64) -> bool {
    reserved_bytes(more + others) <= bytes_max(buffer)
}

/// Whether bypassed pages are to be stored now, because there are many.
pub(crate) fn need_write_back(buffer: &Buffer, pages: &PageTable) -> bool {
    let count = pages.unlogged() as u64;
    count >= PRESSING_PAGES || reserved_bytes(count) > bytes_max(buffer) / 2
}

/// All pages of all objects.
pub(crate) const ALL: RangeInclusive<PageKey> = {
    let last = VolumeId(u32::MAX).object(u64::MAX, u32::MAX);
    PageKey { object: VolumeId(0).object(0, 0), page: PageNo(0) }..=PageKey {
        object: last,
        page: PageNo(u64::MAX),
    }
};

/// All pages of an object.
pub(crate) fn of_object(object: ObjectId) -> RangeInclusive<PageKey> {
    PageKey { object, page: PageNo(0) }..=PageKey { object, page: PageNo(u64::MAX) }
}

/// Logs bypassed pages. The buffer keeps space for that, so only its device can fail it.
pub(crate) fn log(
    buffer: &Buffer,
    pages: &mut PageTable,
    keys: impl IntoIterator<Item = PageKey>,
) -> Result<LateLogged, BufferError> {
    let mut logged = LateLogged::default();
    for key in keys {
        let Some(entry) = pages.get(&key).filter(|entry| entry.is_unlogged()) else { continue };
        let (PageBody::Whole(bytes), Some(newest)) = (entry.body(), entry.newest()) else {
            unreachable!("a page that bypassed the buffer is whole and not stored");
        };
        let record = LogRecord::Write { object: key.object, page: key.page, start: 0, bytes: &bytes.0 };
        logged.group = Some(buffer.append_relogged(newest, &[record])?);
        logged.pages += 1;
        pages.mark_page_logged(key);
    }
    Ok(logged)
}

/// Logs all bypassed pages in a range of keys.
pub(crate) fn log_all(
    buffer: &Buffer,
    pages: &mut PageTable,
    keys: impl std::ops::RangeBounds<PageKey>,
) -> Result<LateLogged, BufferError> {
    if pages.unlogged() == 0 {
        return Ok(LateLogged::default());
    }
    let keys: Vec<PageKey> = pages.unlogged_in(keys).collect();
    log(buffer, pages, keys)
}

/// Logs the bypassed pages that must not become durable after `changes`: pages that change in part, are
/// cloned or moved, or whose file gets a name.
pub(crate) fn log_before(
    buffer: &Buffer,
    pages: &mut PageTable,
    changes: &[ObjectChange<'_>],
) -> Result<LateLogged, BufferError> {
    if pages.unlogged() == 0 {
        return Ok(LateLogged::default());
    }
    let mut logged = LateLogged::default();
    for change in changes {
        logged.add(match *change {
            ObjectChange::Write { object, offset, bytes }
            | ObjectChange::FileWrite { object, offset, bytes, .. } => {
                log_edges(buffer, pages, object, offset..offset + bytes.len() as u64)?
            }
            ObjectChange::Zero { object, offset, len } => {
                log_edges(buffer, pages, object, offset..offset.saturating_add(len))?
            }
            ObjectChange::Transfer(transfer) if !is_planted(CacheBug::CloneBeforeBytes) => {
                let Range { start, end } = transfer.source();
                let from = PageKey { object: transfer.from, page: start };
                let to = PageKey { object: transfer.from, page: end };
                log_all(buffer, pages, (Bound::Included(from), Bound::Excluded(to)))?
            }
            ObjectChange::LogBypassed { object } if !is_planted(CacheBug::NameBeforeBytes) => {
                log_all(buffer, pages, of_object(object))?
            }
            _ => LateLogged::default(),
        });
    }
    Ok(logged)
}

/// Logs the pages at the ends of a range of bytes that covers them only in part.
fn log_edges(
    buffer: &Buffer,
    pages: &mut PageTable,
    object: ObjectId,
    bytes: Range<u64>,
) -> Result<LateLogged, BufferError> {
    let edges = [bytes.start, bytes.end].into_iter().filter(|edge| !edge.is_multiple_of(BLOCK_BYTES as u64));
    if is_planted(CacheBug::PartBeforeWhole) {
        Ok(LateLogged::default())
    } else {
        log(buffer, pages, edges.map(|edge| PageKey { object, page: PageNo::of(edge) }))
    }
}
