//! Reading much of an object at once, in the caller's thread. What is read does not come into memory: it is read once.

use crate::error::CacheError;
use crate::page_table::{PageKey, PageTable, pages_of};
use crate::state::{CacheShared, CacheState};
use device::{BLOCK_BYTES, ObjectId, PageNo};
use std::ops::Range;
use store::{PageResult, Store, StoreError};

/// Reads ranges (offset, length) of an object as the store has it, holes as zeros: for a reader while the buffer is being
/// [read](crate::RecoveredBuffer::read), too, and has its changes [laid over](crate::Cache::overlay_memory) what he has read afterwards.
///
/// # Errors
/// The first that the store had with one of the pages.
pub fn read_stored(
    store: &Store,
    object: ObjectId,
    ranges: &[(u64, usize)],
) -> Result<Vec<Vec<u8>>, StoreError> {
    read_ranges(store, object, ranges, &mut |_, start, found, into| {
        if let Some((page, _)) = found? {
            into.copy_from_slice(&page.0[start..start + into.len()]);
        }
        Ok(())
    })
}

/// Puts a part of a page, from a position in it on, into zeros.
type PageSink<'a> = &'a mut dyn FnMut(PageNo, usize, PageResult<'_>, &mut [u8]) -> Result<(), StoreError>;

fn read_ranges(
    store: &Store,
    object: ObjectId,
    ranges: &[(u64, usize)],
    lay: PageSink<'_>,
) -> Result<Vec<Vec<u8>>, StoreError> {
    let mut bytes: Vec<Vec<u8>> = ranges.iter().map(|&(_, len)| vec![0; len]).collect();
    let mut pages: Vec<(ObjectId, PageNo)> = Vec::new();
    let mut pieces: Vec<(usize, usize, Range<usize>)> = Vec::new();
    for (number, &(offset, len)) in ranges.iter().enumerate() {
        for (page, start, range) in pages_of(offset, len) {
            pages.push((object, page));
            pieces.push((number, start, range));
        }
    }
    let mut outcome = Ok(());
    store.read_in_device_order(&pages, &mut |index, found| {
        let (number, start, range) = pieces[index].clone();
        let laid = lay(pages[index].1, start, found, &mut bytes[number][range]);
        if outcome.is_ok() {
            outcome = laid;
        }
    });
    outcome?;
    Ok(bytes)
}

/// What is in memory over bytes of an object from `offset` on that were read from the store; `false` where that is not enough.
pub(crate) fn overlay_memory(pages: &PageTable, object: ObjectId, offset: u64, bytes: &mut [u8]) -> bool {
    if !pages.punches_of(object).is_empty() || pages.range_ops().any_touching(object) {
        return false;
    }
    let end = offset + bytes.len() as u64;
    let range = PageNo::of(offset)..PageNo(end.div_ceil(BLOCK_BYTES as u64));
    for (PageKey { page, .. }, entry) in pages.range(object, range) {
        let begins = page.0 * BLOCK_BYTES as u64;
        let from = begins.max(offset);
        let to = (begins + BLOCK_BYTES as u64).min(end);
        entry.read((from - begins) as usize, &mut bytes[(from - offset) as usize..(to - offset) as usize]);
    }
    true
}

/// Reads ranges (offset, length) of an object as it is now, in the order in which they lie in the store.
pub(crate) fn read_all_now(
    shared: &CacheShared,
    object: ObjectId,
    ranges: &[(u64, usize)],
) -> Result<Vec<Vec<u8>>, CacheError> {
    let mut lay = |page, start, found: PageResult<'_>, into: &mut [u8]| {
        overlay_page(&mut shared.state(), PageKey { object, page }, start, found, into)
    };
    Ok(read_ranges(shared.store_io(), object, ranges, &mut lay)?)
}

/// Reads a part of a page, from `start` on, into zeros: what the store has, unless it is punched, and over
/// that what is in memory.
fn overlay_page(
    state: &mut CacheState,
    key: PageKey,
    start: usize,
    found: PageResult<'_>,
    into: &mut [u8],
) -> Result<(), StoreError> {
    let entry = state.pages.get(&key);
    if let Some(entry) = entry.filter(|entry| entry.covers(start..start + into.len())) {
        entry.read(start, into);
        return Ok(());
    }
    if let Some((page, page_lsn)) = found?
        && state.pages.newest_punch_of(key).is_none_or(|cut| page_lsn >= cut)
    {
        state.counters.fetched_for_reads += 1;
        into.copy_from_slice(&page.0[start..start + into.len()]);
    }
    if let Some(delta) = state.pages.get(&key).and_then(|entry| entry.patch()) {
        delta.read(start, into);
    }
    Ok(())
}
