//! Reads many ranges of an object at once, in the caller's thread. The pages do not stay in memory.

use crate::error::CacheError;
use crate::page_table::{PageKey, PageTable, pages_of};
use crate::state::{CacheShared, CacheState};
use crate::status::CacheCounters;
use device::{Lsn, ObjectId, PageNo};
use std::ops::Range;
use store::{PageResult, StoreError};

/// Reads ranges (offset, length) of an object as it is now, in the order in which they lie in the store.
pub(crate) fn read_all_now(
    shared: &CacheShared,
    object: ObjectId,
    ranges: &[(u64, usize)],
) -> Result<Vec<Vec<u8>>, CacheError> {
    let mut bytes: Vec<Vec<u8>> = ranges.iter().map(|&(_, len)| vec![0; len]).collect();
    let mut wanted: Vec<WantedPart> = Vec::new();
    for (number, &(offset, len)) in ranges.iter().enumerate() {
        wanted.extend(pages_of(offset, len).map(|(page, start, range)| {
            let key = PageKey { object, page };
            WantedPart { key, start, number, range }
        }));
    }
    while !wanted.is_empty() {
        let before: Vec<InMemory> = {
            let state = shared.state();
            wanted.iter().map(|part| InMemory::of(&state.pages, part.key)).collect()
        };
        let places: Vec<(ObjectId, PageNo)> = wanted.iter().map(|part| (object, part.key.page)).collect();
        let (mut outcome, mut outdated) = (Ok(()), Vec::new());
        shared.store_io().data().read_in_device_order(&places, &mut |index, found| {
            let part = &wanted[index];
            let into = &mut bytes[part.number][part.range.clone()];
            let CacheState { pages, counters, .. } = &mut *shared.state();
            match copy_part(pages, counters, part, &before[index], found, into) {
                Ok(true) => {}
                Ok(false) => outdated.push(index),
                Err(error) if outcome.is_ok() => outcome = Err(error),
                Err(_) => {}
            }
        });
        outcome?;
        wanted = outdated.into_iter().map(|index| wanted[index].clone()).collect();
    }
    Ok(bytes)
}

/// A part of a page, and where its bytes go.
#[derive(Clone)]
struct WantedPart {
    key: PageKey,
    /// Where the part begins in the page.
    start: usize,
    /// The range of the caller's.
    number: usize,
    /// The part's place in that range.
    range: Range<usize>,
}

/// What memory had of a page before the store was read.
struct InMemory {
    unstored: [Option<Lsn>; 2],
    punch: Option<Lsn>,
}

impl InMemory {
    fn of(pages: &PageTable, key: PageKey) -> InMemory {
        let unstored = pages.get(&key).map(|entry| entry.unstored()).unwrap_or_default();
        InMemory { unstored, punch: pages.newest_punch_of(key) }
    }
}

/// Copies a part of a page. The store's bytes come first, unless a newer punch removed them; the bytes in memory
/// overwrite them. `false` if some bytes were stored, and dropped from memory, after the store was read: neither has
/// them then.
fn copy_part(
    pages: &PageTable,
    counters: &mut CacheCounters,
    part: &WantedPart,
    before: &InMemory,
    found: PageResult<'_>,
    into: &mut [u8],
) -> Result<bool, StoreError> {
    let start = part.start;
    let entry = pages.get(&part.key);
    if let Some(entry) = entry.filter(|entry| entry.covers(start..start + into.len())) {
        entry.read(start, into);
        return Ok(true);
    }
    let found = found?;
    let now = InMemory::of(pages, part.key);
    let stored_meanwhile =
        before.unstored.iter().flatten().filter(|&&lsn| !now.unstored.contains(&Some(lsn)));
    if stored_meanwhile.max().is_some_and(|&lsn| found.is_none_or(|(_, page_lsn)| page_lsn < lsn)) {
        return Ok(false);
    }
    let punch = before.punch.max(now.punch);
    into.fill(0);
    if let Some((page, page_lsn)) = found
        && punch.is_none_or(|punch| page_lsn >= punch)
    {
        counters.fetched_for_reads += 1;
        into.copy_from_slice(&page.0[start..start + into.len()]);
    }
    if let Some(delta) = entry.and_then(|entry| entry.patch()) {
        delta.read(start, into);
    }
    Ok(true)
}
