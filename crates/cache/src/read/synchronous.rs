//! Reads many ranges of an object at once, in the caller's thread. The pages do not stay in memory.

use crate::error::CacheError;
use crate::page_table::{PageKey, PageTable, pages_of};
use crate::state::{CacheShared, CacheState};
use crate::status::CacheCounters;
use device::{ObjectId, PageNo};
use std::ops::Range;
use store::{PageResult, StoreError};

/// Reads ranges (offset, length) of an object as it is now, in the order in which they lie in the store.
pub(crate) fn read_all_now(
    shared: &CacheShared,
    object: ObjectId,
    ranges: &[(u64, usize)],
) -> Result<Vec<Vec<u8>>, CacheError> {
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
    shared.store_io().data().read_in_device_order(&pages, &mut |index, found| {
        let (number, start, range) = pieces[index].clone();
        let key = PageKey { object, page: pages[index].1 };
        let CacheState { pages, counters, .. } = &mut *shared.state();
        let copied = copy_page(pages, counters, key, start, found, &mut bytes[number][range]);
        if outcome.is_ok() {
            outcome = copied;
        }
    });
    outcome?;
    Ok(bytes)
}

/// Copies a part of a page, from `start` on, into zeros. The store's bytes come first, unless a newer punch
/// removed them; the bytes in memory overwrite them.
fn copy_page(
    pages: &PageTable,
    counters: &mut CacheCounters,
    key: PageKey,
    start: usize,
    found: PageResult<'_>,
    into: &mut [u8],
) -> Result<(), StoreError> {
    let entry = pages.get(&key);
    if let Some(entry) = entry.filter(|entry| entry.covers(start..start + into.len())) {
        entry.read(start, into);
        return Ok(());
    }
    if let Some((page, page_lsn)) = found?
        && pages.newest_punch_of(key).is_none_or(|punch| page_lsn >= punch)
    {
        counters.fetched_for_reads += 1;
        into.copy_from_slice(&page.0[start..start + into.len()]);
    }
    if let Some(delta) = pages.get(&key).and_then(|entry| entry.patch()) {
        delta.read(start, into);
    }
    Ok(())
}
