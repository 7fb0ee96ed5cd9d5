//! At a start: pages that the log names as written around the buffer, until the store says which of them it has.
//!
//! A page whose last record is a bypass is what the store has, if that is as new; else what older records make of it. A later record of
//! it settles that: it stands in the log only where the store has the page, behind all of its bytes, or behind what a start has logged
//! again of older records.

use crate::error::CacheError;
use crate::pages::{Key, LOOK_PAGES};
use buffer::{GroupNo, LogRecord};
use device::{Lsn, ObjectId, PageNo, VolumeId};
use std::collections::BTreeMap;
use std::ops::Range;
use store::{Store, StoreError};

/// How often the store is asked before a start fails: an error of a read may come once.
const ATTEMPTS: usize = 3;
/// Leaves of the store's map that are listed at once.
const LEAVES: usize = 256;

/// Pages whose last record is a bypass.
#[derive(Default)]
pub(crate) struct Named {
    /// Those that older records are about, and the first bypassing write since.
    overtaken: BTreeMap<Key, Lsn>,
    /// Those with which their objects grew: the first of some, the page after the last, and what wrote them.
    grown: BTreeMap<ObjectId, BTreeMap<PageNo, Grown>>,
}

#[derive(Clone, Copy)]
struct Grown {
    to: PageNo,
    lsn: Lsn,
    group: GroupNo,
}

/// Where an object ends, since a crash took what was written behind that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lost {
    /// The first page that is gone.
    pub(crate) from: PageNo,
    /// What wrote that page.
    pub(crate) lsn: Lsn,
    /// The oldest group that says so.
    pub(crate) group: GroupNo,
    /// The object ends there by a newer change, which is not durable yet.
    pub(crate) is_cut: bool,
}

impl Lost {
    /// The record that makes the next start find the same page gone.
    pub(crate) fn record(&self, object: ObjectId) -> LogRecord<'static> {
        LogRecord::Bypassed { object, from: self.from, to: PageNo(self.from.0 + 1), extends_file: true }
    }
}

impl Named {
    pub(crate) fn is_empty(&self) -> bool {
        self.overtaken.is_empty() && self.grown.is_empty()
    }

    /// A bypassing write of a page that older records are about.
    pub(crate) fn overtook(&mut self, key: Key, lsn: Lsn) {
        self.overtaken.entry(key).or_insert(lsn);
    }

    /// A bypassing write of pages behind the object's end.
    pub(crate) fn grew(&mut self, object: ObjectId, pages: Range<PageNo>, lsn: Lsn, group: GroupNo) {
        self.forget_grown(object, pages.clone(), lsn);
        self.grown.entry(object).or_default().insert(pages.start, Grown { to: pages.end, lsn, group });
    }

    /// A later record of a page's bytes. Whether what older ones made of it is worth nothing.
    pub(crate) fn was_written(&mut self, key: Key) -> bool {
        self.forget_grown(key.object, key.page..PageNo(key.page.0 + 1), Lsn(u64::MAX));
        self.overtaken.remove(&key).is_some()
    }

    /// A cut, or something else that takes what pages were.
    pub(crate) fn cut(&mut self, object: ObjectId, pages: Range<PageNo>, lsn: Lsn) {
        self.forget_grown(object, pages.clone(), lsn);
        let older: Vec<Key> = self
            .overtaken_in(object, pages)
            .filter(|(_, bypassed)| *bypassed < lsn)
            .map(|(key, _)| key)
            .collect();
        older.iter().for_each(|key| {
            self.overtaken.remove(key);
        });
    }

    /// Pages that a clone or a move has in its source: what older records made of these is worth nothing.
    pub(crate) fn were_shared(&mut self, object: ObjectId, pages: Range<PageNo>, lsn: Lsn) -> Vec<Key> {
        let keys = self.overtaken_in(object, pages.clone()).map(|(key, _)| key).collect();
        self.cut(object, pages, lsn);
        keys
    }

    /// Volumes that are not there.
    pub(crate) fn keep(&mut self, is_there: impl Fn(VolumeId) -> bool) {
        self.overtaken.retain(|key, _| is_there(key.object.volume));
        self.grown.retain(|object, _| is_there(object.volume));
    }

    fn overtaken_in(&self, object: ObjectId, pages: Range<PageNo>) -> impl Iterator<Item = (Key, Lsn)> + '_ {
        let key = |page| Key { object, page };
        self.overtaken.range(key(pages.start)..key(pages.end)).map(|(&key, &lsn)| (key, lsn))
    }

    /// What was written there before `lsn` is known.
    fn forget_grown(&mut self, object: ObjectId, pages: Range<PageNo>, lsn: Lsn) {
        let Some(grown) = self.grown.get_mut(&object) else { return };
        let before = grown.range(..pages.start).next_back().map(|(&from, _)| from);
        let touched = before.into_iter().chain(grown.range(pages.clone()).map(|(&from, _)| from));
        for from in touched.collect::<Vec<_>>() {
            let one = grown[&from];
            if one.to <= pages.start || one.lsn >= lsn {
                continue;
            }
            grown.remove(&from);
            if from < pages.start {
                grown.insert(from, Grown { to: pages.start, ..one });
            }
            if one.to > pages.end {
                grown.insert(pages.end, one);
            }
        }
        if grown.is_empty() {
            self.grown.remove(&object);
        }
    }

    /// Pages that older records are about.
    pub(crate) fn overtaken(&self) -> impl Iterator<Item = Key> + '_ {
        self.overtaken.keys().copied()
    }

    /// Those of which the store has something newer than older records make of them. What is damaged there is not hidden behind older
    /// bytes: reading it is an error.
    pub(crate) fn stale(&self, store: &Store) -> Result<Vec<Key>, CacheError> {
        let mut stale = Vec::new();
        let all: Vec<(Key, Lsn)> = self.overtaken.iter().map(|(&key, &lsn)| (key, lsn)).collect();
        for some in all.chunks(LOOK_PAGES) {
            let pages: Vec<(ObjectId, PageNo)> = some.iter().map(|(key, _)| (key.object, key.page)).collect();
            for (&(key, bypassed), found) in some.iter().zip(store.page_lsns(&pages)) {
                match found.or_else(|_| patiently(|| store.page_lsn(key.object, key.page))) {
                    Ok(Some(page_lsn)) if page_lsn >= bypassed => stale.push(key),
                    Ok(_) => {}
                    Err(error) if error.is_damage() => stale.push(key),
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(stale)
    }

    /// Objects that grew with pages which the store does not have.
    pub(crate) fn lost(&self, store: &Store) -> Result<BTreeMap<ObjectId, Lost>, CacheError> {
        let mut lost = BTreeMap::new();
        for (&object, grown) in &self.grown {
            for (&from, one) in grown {
                // Of what is damaged there nothing is lost: reading it is an error.
                match patiently(|| first_missing(store, object, from..one.to, one.lsn)) {
                    Ok(Some(from)) => {
                        let groups = grown.range(from..).map(|(_, one)| one.group);
                        let group = groups.fold(one.group, GroupNo::min);
                        lost.insert(object, Lost { from, lsn: one.lsn, group, is_cut: false });
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

fn patiently<T>(mut ask: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let mut answer = ask();
    for _ in 1..ATTEMPTS {
        match answer {
            Err(ref error) if !error.is_damage() => answer = ask(),
            _ => break,
        }
    }
    answer
}

/// The first of some pages that the store does not have as of `lsn`.
fn first_missing(
    store: &Store,
    object: ObjectId,
    pages: Range<PageNo>,
    lsn: Lsn,
) -> Result<Option<PageNo>, StoreError> {
    let mut expected = pages.start;
    while expected < pages.end {
        let listed = store.list(object, expected..pages.end, LEAVES)?;
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
