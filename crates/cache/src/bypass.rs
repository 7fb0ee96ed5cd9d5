//! Bypassed pages: their bytes are in memory, the buffer has only a record that names them, and the store
//! gets them soon.
//!
//! The buffer keeps space in which each of them can be logged late, at any moment and without waiting: as a
//! relogged transaction of the whole page, under its LSN. A partial overwrite of a bypassed page, a clone of
//! it, a new name of its file and a sync must not become durable before the page. So each of them logs the
//! page first, and need not wait for the store. A sync of many pages does wait for the store if that costs
//! less than writing them twice.

use crate::page_table::{PageKey, PageTable};
use buffer::Buffer;
use device::{BLOCK_BYTES, ObjectId, PageNo, VolumeId};
use std::ops::RangeInclusive;

/// Bypassed pages are stored as soon as there are this many: a MiB, which any device writes at full speed.
const PRESSING_PAGES: u64 = 256;

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
