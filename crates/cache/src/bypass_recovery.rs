//! Recovery of bypassed pages: which bytes does a page have whose last record in the log names it without
//! them?
//!
//! The store has the page if its page LSN is that of the bypass, or newer. Otherwise a crash took the
//! bypassed bytes, and the page *reverts* to what older records make of it. A later record of the page
//! decides that, too: it is only logged where the store has the page, behind a record with all of the page's
//! bytes, or behind older records that a start has relogged.
//!
//! If the object grew with a page that a crash took, the object has a *lost tail* from that page on.

use crate::error::CacheError;
use crate::page_table::{PageKey, STORE_CHECK_PAGES};
use buffer::{GroupNo, LogRecord};
use device::{Lsn, ObjectId, PageNo, VolumeId};
use std::collections::BTreeMap;
use std::ops::Range;
use store::{Store, StoreError};

/// How often the store is asked before a start fails: an error of a read may occur once.
const READ_ATTEMPTS: usize = 3;
/// Leaves of the store's map that are listed at once.
const LISTED_LEAVES: usize = 256;

/// Pages whose last record is a bypass, while the log is replayed.
#[derive(Default)]
pub(crate) struct BypassRecovery {
    /// Pages for which there are older records, with the LSN of the first bypass after these.
    over_older_records: BTreeMap<PageKey, Lsn>,
    /// Pages with which objects grew: ranges by their first pages.
    growth: BTreeMap<ObjectId, BTreeMap<PageNo, GrowthRange>>,
}

#[derive(Clone, Copy)]
struct GrowthRange {
    to: PageNo,
    lsn: Lsn,
    group: GroupNo,
}

/// The end of an object, after a crash took the bypassed pages behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LostTail {
    /// The first lost page.
    pub(crate) from: PageNo,
    /// The bypass that wrote that page.
    pub(crate) lsn: Lsn,
    /// The oldest group with a record of the loss.
    pub(crate) group: GroupNo,
    /// A newer punch removes the lost pages, but is not durable yet.
    pub(crate) is_punched: bool,
}

impl LostTail {
    /// A record that makes the next recovery find the same page lost.
    pub(crate) fn record(&self, object: ObjectId) -> LogRecord<'static> {
        LogRecord::Bypassed { object, from: self.from, to: PageNo(self.from.0 + 1), extends_file: true }
    }
}

impl BypassRecovery {
    pub(crate) fn is_empty(&self) -> bool {
        self.over_older_records.is_empty() && self.growth.is_empty()
    }

    /// Notes a bypass of a page for which there are older records.
    pub(crate) fn note_over_older_records(&mut self, key: PageKey, lsn: Lsn) {
        self.over_older_records.entry(key).or_insert(lsn);
    }

    /// Notes a bypass of pages behind the object's end.
    pub(crate) fn note_growth(&mut self, object: ObjectId, pages: Range<PageNo>, lsn: Lsn, group: GroupNo) {
        self.forget_growth(object, pages.clone(), lsn);
        self.growth.entry(object).or_default().insert(pages.start, GrowthRange { to: pages.end, lsn, group });
    }

    /// Notes a later record of a page's bytes. Returns whether what older records made of the page is
    /// invalid.
    pub(crate) fn note_logged_write(&mut self, key: PageKey) -> bool {
        self.forget_growth(key.object, key.page..PageNo(key.page.0 + 1), Lsn(u64::MAX));
        self.over_older_records.remove(&key).is_some()
    }

    /// Notes a punch, or another change that removes the older bytes of pages.
    pub(crate) fn note_punch(&mut self, object: ObjectId, pages: Range<PageNo>, lsn: Lsn) {
        self.forget_growth(object, pages.clone(), lsn);
        let older: Vec<PageKey> = self
            .over_older_records_in(object, pages)
            .filter(|(_, bypassed)| *bypassed < lsn)
            .map(|(key, _)| key)
            .collect();
        older.iter().for_each(|key| {
            self.over_older_records.remove(key);
        });
    }

    /// Notes that pages are in the source of a range operation. Returns pages for which older records are
    /// invalid.
    pub(crate) fn note_range_op_source(
        &mut self,
        object: ObjectId,
        pages: Range<PageNo>,
        lsn: Lsn,
    ) -> Vec<PageKey> {
        let keys = self.over_older_records_in(object, pages.clone()).map(|(key, _)| key).collect();
        self.note_punch(object, pages, lsn);
        keys
    }

    /// Keeps only what is about volumes that exist.
    pub(crate) fn retain_volumes(&mut self, is_there: impl Fn(VolumeId) -> bool) {
        self.over_older_records.retain(|key, _| is_there(key.object.volume));
        self.growth.retain(|object, _| is_there(object.volume));
    }

    fn over_older_records_in(
        &self,
        object: ObjectId,
        pages: Range<PageNo>,
    ) -> impl Iterator<Item = (PageKey, Lsn)> + '_ {
        let key = |page| PageKey { object, page };
        self.over_older_records.range(key(pages.start)..key(pages.end)).map(|(&key, &lsn)| (key, lsn))
    }

    /// Forgets growth in a range before `lsn`.
    fn forget_growth(&mut self, object: ObjectId, pages: Range<PageNo>, lsn: Lsn) {
        let Some(grown) = self.growth.get_mut(&object) else { return };
        let before = grown.range(..pages.start).next_back().map(|(&from, _)| from);
        let touched = before.into_iter().chain(grown.range(pages.clone()).map(|(&from, _)| from));
        for from in touched.collect::<Vec<_>>() {
            let one = grown[&from];
            if one.to <= pages.start || one.lsn >= lsn {
                continue;
            }
            grown.remove(&from);
            if from < pages.start {
                grown.insert(from, GrowthRange { to: pages.start, ..one });
            }
            if one.to > pages.end {
                grown.insert(pages.end, one);
            }
        }
        if grown.is_empty() {
            self.growth.remove(&object);
        }
    }

    /// Pages for which there are older records.
    pub(crate) fn over_older_records(&self) -> impl Iterator<Item = PageKey> + '_ {
        self.over_older_records.keys().copied()
    }

    /// Pages of which the store has something newer than older records make of them. A damaged page counts,
    /// too: reading it is an error, and older bytes must not hide that.
    pub(crate) fn newer_in_store(&self, store: &Store) -> Result<Vec<PageKey>, CacheError> {
        let mut stale = Vec::new();
        let all: Vec<(PageKey, Lsn)> =
            self.over_older_records.iter().map(|(&key, &lsn)| (key, lsn)).collect();
        for some in all.chunks(STORE_CHECK_PAGES) {
            let pages: Vec<(ObjectId, PageNo)> = some.iter().map(|(key, _)| (key.object, key.page)).collect();
            for (&(key, bypassed), found) in some.iter().zip(store.data().page_lsns(&pages)) {
                match found.or_else(|_| retry_read(|| store.data().page_lsn(key.object, key.page))) {
                    Ok(Some(page_lsn)) if page_lsn >= bypassed => stale.push(key),
                    Ok(_) => {}
                    Err(error) if error.is_damage() => stale.push(key),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(stale)
    }

    /// Objects that grew with pages which the store lacks.
    pub(crate) fn lost_tails(&self, store: &Store) -> Result<BTreeMap<ObjectId, LostTail>, CacheError> {
        let mut lost = BTreeMap::new();
        for (&object, grown) in &self.growth {
            for (&from, one) in grown {
                // Damaged pages are not lost: reading them is an error.
                match retry_read(|| first_missing(store, object, from..one.to, one.lsn)) {
                    Ok(Some(from)) => {
                        let groups = grown.range(from..).map(|(_, one)| one.group);
                        let group = groups.fold(one.group, GroupNo::min);
                        lost.insert(object, LostTail { from, lsn: one.lsn, group, is_punched: false });
                        break;
                    }
                    Ok(None) => {}
                    Err(error) if error.is_damage() => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(lost)
    }
}

fn retry_read<T>(mut ask: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let mut answer = ask();
    for _ in 1..READ_ATTEMPTS {
        match answer {
            Err(ref error) if !error.is_damage() => answer = ask(),
            _ => break,
        }
    }
    answer
}

/// The first page of `pages` that the store lacks, or has only as of before `lsn`.
fn first_missing(
    store: &Store,
    object: ObjectId,
    pages: Range<PageNo>,
    lsn: Lsn,
) -> Result<Option<PageNo>, StoreError> {
    let mut expected = pages.start;
    while expected < pages.end {
        let listed = store.data().list(object, expected..pages.end, LISTED_LEAVES)?;
        for (page, page_lsn) in listed.pages {
            if page != expected || page_lsn < lsn {
                return Ok(Some(expected));
            }
            expected = PageNo(page.0 + 1);
        }
        if expected < listed.until.min(pages.end) {
            return Ok(Some(expected));
        }
    }
    Ok(None)
}
