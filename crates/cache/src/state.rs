//! The page table, its indexes, and the cuts that have not been written back: everything under the cache's one lock.

use crate::admit::AdmissionQueue;
use crate::commit::Syncs;
use crate::cut::PendingCut;
use crate::gather::Index;
use crate::page::{Body, Entry, FetchNo};
use crate::read::Reads;
use crate::rescue::Rescue;
use crate::retry::RetryList;
use crate::seek::Seeks;
use crate::settings::Settings;
use crate::status::Counters;
use crate::table::{Pages, Table};
use buffer::{BufferError, GroupNo};
use device::{BLOCK_BYTES, Lsn, ObjectId, PageNo};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Pages looked at per eviction: more than an operation usually adds, so that memory goes down, and few enough to be
/// done under the lock.
const EVICT_LOOKS: usize = 512;

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) object: ObjectId,
    pub(crate) page: PageNo,
}

/// Everything under the lock. After a crash: rebuilt from the buffer's records.
pub(crate) struct State {
    pub(crate) table: Table,
    /// Pages that need the buffer, by the oldest group that they need.
    by_group: BTreeSet<(GroupNo, Key)>,
    /// Dirty pages, about in the order of their last writes; entries may be stale.
    by_write: VecDeque<Key>,
    /// Whole pages in the order of a clock's hand; entries may be stale.
    sweep: VecDeque<Key>,
    /// Pages that were cut, dirty ones and those waited for made neither. Nothing finds them; they take memory until they are
    /// cleared.
    pub(crate) discarded: VecDeque<Pages>,
    /// Oldest first within each object.
    pub(crate) cuts: BTreeMap<ObjectId, Vec<PendingCut>>,
    /// How many there are in all.
    pub(crate) cuts_pending: usize,
    /// From which page on the store must be asked whether pages that were found in the buffer are stored; `None` once it was
    /// asked about all.
    pub(crate) recovery_cursor: Option<Key>,
    pub(crate) memory_bytes: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) fetches: u64,
    pub(crate) reads: Reads,
    pub(crate) seeks: Seeks,
    pub(crate) syncs: Syncs,
    pub(crate) admission: AdmissionQueue,
    pub(crate) retries: RetryList,
    pub(crate) counters: Counters,
    /// When freeing what deleted volumes held may be tried again.
    pub(crate) free_not_before: Duration,
    /// When the file system below the store may be asked for space again.
    pub(crate) allocate_not_before: Duration,
    pub(crate) rescue: Rescue,
    /// Set once, when the buffer has failed.
    pub(crate) failed: Option<BufferError>,
    pub(crate) stopping: bool,
}

impl State {
    pub(crate) fn new() -> State {
        State {
            table: Table::default(),
            discarded: VecDeque::new(),
            by_group: BTreeSet::new(),
            by_write: VecDeque::new(),
            sweep: VecDeque::new(),
            cuts: BTreeMap::new(),
            recovery_cursor: None,
            cuts_pending: 0,
            memory_bytes: 0,
            dirty_bytes: 0,
            fetches: 0,
            reads: Reads::default(),
            seeks: Seeks::default(),
            syncs: Syncs::default(),
            admission: AdmissionQueue::default(),
            retries: RetryList::default(),
            counters: Counters::default(),
            free_not_before: Duration::ZERO,
            allocate_not_before: Duration::ZERO,
            rescue: Rescue::default(),
            failed: None,
            stopping: false,
        }
    }

    /// Changes an entry, making it if it is absent, and keeps indexes and sums right.
    pub(crate) fn change<T>(&mut self, key: Key, with: impl FnOnce(&mut Entry) -> T) -> T {
        let new = || Entry::new(Body::Patch(Default::default()));
        let (entry, was_there) = self.table.get_or_insert_with(key, new);
        let before = if was_there { Account::of(entry) } else { Account::default() };
        let result = with(entry);
        let after = Account::of(entry);
        if let Some(dirt) = entry.dirt.as_ref().filter(|_| entry.queued.is_none()) {
            entry.queued = Some(dirt.newest);
            self.by_write.push_back(key);
        }
        self.account(key, before, after);
        result
    }

    /// Takes in dirty pages that it has not, in the order of their keys. They count as queued in the order of their first changes.
    pub(crate) fn adopt(&mut self, pages: impl Iterator<Item = (Key, Box<Entry>)>, index: Index) {
        let Index { mut named, whole, bytes } = index;
        if self.table.is_empty() {
            // An empty table and its indexes are built at once. The groups are in order, and few pages are one group's: this
            // sorts faster than all of them together.
            self.by_write.extend(named.iter().map(|&(_, key)| key));
            named.chunk_by_mut(|one, next| one.0 == next.0).for_each(|group| group.sort_unstable());
            self.by_group = named.into_iter().collect();
            self.table = Table::of(pages);
            self.sweep.extend(whole);
            self.memory_bytes += bytes;
            self.dirty_bytes += bytes;
        } else {
            for (key, entry) in pages {
                let account = Account::of(&entry);
                self.table.insert(key, entry);
                self.account(key, Account::default(), account);
            }
            self.by_write.extend(named.into_iter().map(|(_, key)| key));
        }
    }

    /// Drops an entry; its waiters are the caller's business.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Entry> {
        let entry = *self.table.remove(&key)?;
        self.account(key, Account::of(&entry), Account::default());
        Some(entry)
    }

    pub(crate) fn account(&mut self, key: Key, before: Account, after: Account) {
        self.memory_bytes = self.memory_bytes + after.memory - before.memory;
        self.dirty_bytes = self.dirty_bytes + after.dirty - before.dirty;
        if before.group != after.group {
            before.group.map(|group| self.by_group.remove(&(group, key)));
            after.group.map(|group| self.by_group.insert((group, key)));
        }
        if after.whole && !before.whole {
            self.sweep.push_back(key);
            self.trim_sweep();
        }
        if self.by_write.len() > 2 * self.table.len() + 64 {
            self.requeue();
        }
    }

    /// Pages that were cut and came back stand in the sweep twice; it is made anew before that adds up.
    fn trim_sweep(&mut self) {
        if self.sweep.len() > 2 * self.table.len() + 64 {
            let whole = |entry: &Entry| matches!(entry.body, Body::Whole(_));
            self.sweep = self.table.iter().filter(|(_, entry)| whole(entry)).map(|(key, _)| key).collect();
        }
    }

    /// Pages that went and came back stand in the queue twice; it is made anew before that adds up.
    fn requeue(&mut self) {
        let dirty = self.table.iter_mut().filter_map(|(key, entry)| {
            entry.queued = entry.dirt.as_ref().map(|dirt| dirt.newest);
            Some((entry.queued?, key))
        });
        let mut dirty: Vec<(Lsn, Key)> = dirty.collect();
        dirty.sort_unstable();
        self.by_write = dirty.into_iter().map(|(_, key)| key).collect();
    }

    /// The dirty page that was written least recently (*DF-LRW*, section 3.3), about: a page that was written again goes
    /// to the end only when its turn comes, so that a write to a dirty page costs nothing here. What is returned goes to
    /// the end, too. `looks` is counted down to 0 and bounds the search over several calls.
    pub(crate) fn least_recently_written(&mut self, looks: &mut usize) -> Option<Key> {
        while *looks > 0 {
            *looks -= 1;
            let key = self.by_write.pop_front()?;
            let Some(entry) = self.table.get_mut(&key) else { continue };
            let Some(dirt) = &entry.dirt else {
                entry.queued = None;
                continue;
            };
            let waited = entry.queued == Some(dirt.newest);
            entry.queued = Some(dirt.newest);
            self.by_write.push_back(key);
            if waited {
                return Some(key);
            }
        }
        None
    }

    /// How many pages may stand in the queue of [`least_recently_written`](State::least_recently_written).
    pub(crate) fn queued(&self) -> usize {
        self.by_write.len()
    }

    /// The oldest group that anything still needs.
    pub(crate) fn oldest_group(&self) -> Option<GroupNo> {
        let pages = self.by_group.first().map(|&(group, _)| group);
        let cuts = self.cuts.values().flatten().map(|cut| cut.group).min();
        pages.into_iter().chain(cuts).min()
    }

    /// Pages that need the buffer, those that need its oldest groups first.
    pub(crate) fn by_group(&self) -> impl Iterator<Item = (GroupNo, Key)> + '_ {
        self.by_group.iter().copied()
    }

    /// The same from one of them on.
    pub(crate) fn by_group_from(&self, from: (GroupNo, Key)) -> impl Iterator<Item = (GroupNo, Key)> + '_ {
        self.by_group.range(from..).copied()
    }

    /// Dirty pages of one object at most `distance` pages away, `key` among them if it is dirty.
    pub(crate) fn dirty_around(&self, key: Key, distance: u64) -> impl Iterator<Item = Key> + '_ {
        let (first, last) = (key.page.0.saturating_sub(distance), key.page.0.saturating_add(distance));
        let near = self.table.range(key.object, PageNo(first)..=PageNo(last));
        near.filter(|(_, entry)| entry.dirt.is_some()).map(|(key, _)| key)
    }

    /// Whether anything is newer than the store.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty_pages() > 0 || !self.cuts.is_empty()
    }

    /// How many pages are newer than the store.
    pub(crate) fn dirty_pages(&self) -> usize {
        self.by_group.len()
    }

    /// When the oldest change that is not stored was made, about: of the page or cut that needs the oldest group.
    pub(crate) fn oldest_since(&self) -> Option<Duration> {
        let page = self.by_group.first().and_then(|(_, key)| self.table.get(key));
        let page =
            page.and_then(|entry| entry.writing.as_deref().or(entry.dirt.as_ref())).map(|dirt| dirt.since);
        let cut = self.cuts.values().flatten().map(|cut| cut.since).min();
        page.into_iter().chain(cut).min()
    }

    /// Drops clean pages that were not used lately while memory is over its limit: a bounded piece of that work.
    pub(crate) fn evict(&mut self, settings: &Settings) {
        let mut looks = EVICT_LOOKS;
        if self.memory_bytes > settings.memory_bytes_max {
            looks -= self.clear_discarded(looks).len();
        }
        while self.memory_bytes > settings.memory_bytes_max && looks > 0 {
            looks -= 1;
            let Some(key) = self.sweep.pop_front() else { return };
            let Some(entry) = self.table.get_mut(&key) else { continue };
            if matches!(entry.body, Body::Patch(_)) {
                continue;
            }
            if entry.is_busy() || std::mem::take(&mut entry.used) {
                self.sweep.push_back(key);
            } else {
                self.remove(key);
                self.counters.evicted += 1;
            }
        }
    }

    /// Whole pages that may be evicted once they are clean, in the order of their keys.
    #[cfg(test)]
    pub(crate) fn swept(&self) -> Vec<Key> {
        let mut keys: Vec<Key> = self.sweep.iter().copied().collect();
        keys.sort();
        keys
    }

    /// A number for a new fetch.
    pub(crate) fn next_fetch(&mut self) -> FetchNo {
        self.fetches += 1;
        FetchNo(self.fetches)
    }
}

/// What an entry counts for in the indexes and sums.
#[derive(Default, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) memory: u64,
    dirty: u64,
    pub(crate) group: Option<GroupNo>,
    pub(crate) whole: bool,
}

impl Account {
    pub(crate) fn of(entry: &Entry) -> Account {
        let memory = entry.memory_bytes() as u64;
        let group = entry.group();
        Account {
            memory,
            dirty: if group.is_some() { memory } else { 0 },
            group,
            whole: matches!(entry.body, Body::Whole(_)),
        }
    }
}

/// Splits bytes from `offset` on at page ends: (page, position in the page, range of the bytes).
pub(crate) fn pages_of(
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (PageNo, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let start = (at % BLOCK_BYTES as u64) as usize;
        let take = (BLOCK_BYTES - start).min(len - done);
        let range = done..done + take;
        done += take;
        Some((PageNo::of(at), start, range))
    })
}
