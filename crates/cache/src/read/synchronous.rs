//! Reads many ranges of an object at once, in the caller's thread. The pages do not stay in memory.

use crate::error::CacheError;
use crate::page_table::{PageKey, pages_of};
use crate::state::{CacheShared, CacheState};
use device::{ObjectId, PageNo};
use std::ops::Range;
use store::{PageResult, Store, StoreError};

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
        && state.pages.newest_punch_of(key).is_none_or(|punch| page_lsn >= punch)
    {
        state.counters.fetched_for_reads += 1;
        into.copy_from_slice(&page.0[start..start + into.len()]);
    }
    if let Some(delta) = state.pages.get(&key).and_then(|entry| entry.patch()) {
        delta.read(start, into);
    }
    Ok(())
}
