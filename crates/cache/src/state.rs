//! The page table, its indexes, and the cuts that have not gone home: everything under the cache's one lock.

use crate::admit::Gate;
use crate::commit::Syncs;
use crate::page::{Body, Entry, FlightNo};
use crate::read::Reads;
use crate::rescue::Rescue;
use crate::seek::Seeks;
use crate::settings::Settings;
use crate::status::Counters;
use crate::trouble::Trouble;
use buffer::{BufferError, GroupNo};
use device::{BLOCK_BYTES, ObjectId, PageNo, Sequence};
use std::collections::btree_map::Entry as Place;
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

/// Pages of an object that became holes and that the store may still hold. A page that is fetched with a home below
/// `sequence` is zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingCut {
    pub(crate) from: PageNo,
    pub(crate) to: PageNo,
    pub(crate) sequence: Sequence,
    /// The oldest group that must stay until the cut is home: its own, or that of a change that it took out of
    /// memory. Were the cut lost with a commit that fails, that change would be the newest again.
    pub(crate) group: GroupNo,
    pub(crate) whole_object: bool,
    pub(crate) since: Duration,
}

/// Everything under the lock. After a crash: rebuilt from the buffer's records.
pub(crate) struct State {
    /// Boxed, so that a page that comes or goes moves the pointers beside it and not whole entries.
    pub(crate) table: BTreeMap<Key, Box<Entry>>,
    /// Pages that need the buffer, by the oldest group that they need.
    by_group: BTreeSet<(GroupNo, Key)>,
    /// Dirty pages, about in the order of their last writes; entries may be stale.
    by_write: VecDeque<Key>,
    /// Whole pages in the order of a clock's hand; entries may be stale.
    sweep: VecDeque<Key>,
    /// Oldest first within each object.
    pub(crate) cuts: BTreeMap<ObjectId, Vec<PendingCut>>,
    /// How many there are in all.
    pub(crate) cuts_pending: usize,
    /// Pages found in the buffer of which nobody has asked the store yet whether they are home.
    pub(crate) recovered: Vec<Key>,
    pub(crate) memory_bytes: u64,
    pub(crate) dirty_bytes: u64,
    pub(crate) flights: u64,
    pub(crate) reads: Reads,
    pub(crate) seeks: Seeks,
    pub(crate) syncs: Syncs,
    pub(crate) gate: Gate,
    pub(crate) trouble: Trouble,
    pub(crate) counters: Counters,
    /// When freeing what deleted volumes held may be tried again.
    pub(crate) free_not_before: Duration,
    pub(crate) rescue: Rescue,
    /// Set once, when the buffer has failed.
    pub(crate) failed: Option<BufferError>,
    pub(crate) stopping: bool,
    #[cfg(feature = "planted-bugs")]
    pub(crate) planted: Option<crate::page::PlantedBug>,
}

impl State {
    pub(crate) fn new() -> State {
        State {
            table: BTreeMap::new(),
            by_group: BTreeSet::new(),
            by_write: VecDeque::new(),
            sweep: VecDeque::new(),
            cuts: BTreeMap::new(),
            recovered: Vec::new(),
            cuts_pending: 0,
            memory_bytes: 0,
            dirty_bytes: 0,
            flights: 0,
            reads: Reads::default(),
            seeks: Seeks::default(),
            syncs: Syncs::default(),
            gate: Gate::default(),
            trouble: Trouble::default(),
            counters: Counters::default(),
            free_not_before: Duration::ZERO,
            rescue: Rescue::default(),
            failed: None,
            stopping: false,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }

    /// Changes an entry, making it if it is absent, and keeps indexes and sums right.
    pub(crate) fn change<T>(&mut self, key: Key, with: impl FnOnce(&mut Entry) -> T) -> T {
        let (entry, before) = match self.table.entry(key) {
            Place::Occupied(place) => {
                let entry = place.into_mut();
                let before = Account::of(entry);
                (entry, before)
            }
            Place::Vacant(place) => {
                (place.insert(Box::new(Entry::new(Body::Patch(Default::default())))), Account::default())
            }
        };
        let result = with(entry);
        let after = Account::of(entry);
        if let Some(dirt) = entry.dirt.as_ref().filter(|_| entry.queued.is_none()) {
            entry.queued = Some(dirt.newest);
            self.by_write.push_back(key);
        }
        self.account(key, before, after);
        result
    }

    /// Takes in dirty pages that it has not, in the order of their first changes, since which they count as queued.
    pub(crate) fn adopt(&mut self, pages: Vec<(Key, Box<Entry>)>) {
        if !self.table.is_empty() {
            for (key, entry) in pages {
                self.by_write.push_back(key);
                let account = Account::of(&entry);
                self.table.insert(key, entry);
                self.account(key, Account::default(), account);
            }
            return;
        }
        // An empty table and its index are built from all that is sorted, which costs much less.
        for (key, entry) in &pages {
            let Account { memory, dirty, whole, .. } = Account::of(entry);
            self.memory_bytes += memory;
            self.dirty_bytes += dirty;
            self.by_write.push_back(*key);
            self.sweep.extend(whole.then_some(*key));
        }
        self.by_group = pages.iter().filter_map(|(key, entry)| Some((entry.group()?, *key))).collect();
        self.table = pages.into_iter().collect();
    }

    /// Drops an entry; its waiters are the caller's business.
    pub(crate) fn remove(&mut self, key: Key) -> Option<Entry> {
        let entry = *self.table.remove(&key)?;
        self.account(key, Account::of(&entry), Account::default());
        Some(entry)
    }

    fn account(&mut self, key: Key, before: Account, after: Account) {
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
            self.sweep = self.table.iter().filter(|(_, entry)| whole(entry)).map(|(&key, _)| key).collect();
        }
    }

    /// Pages that went and came back stand in the queue twice; it is made anew before that adds up.
    fn requeue(&mut self) {
        let dirty = self.table.iter_mut().filter_map(|(&key, entry)| {
            entry.queued = entry.dirt.as_ref().map(|dirt| dirt.newest);
            Some((entry.queued?, key))
        });
        let mut dirty: Vec<(Sequence, Key)> = dirty.collect();
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

    /// Takes a range of pages out of memory and remembers the cut until the store has it. Returns how many of the
    /// store's promises the dropped pages held, and the reads that waited for them, which must look again.
    pub(crate) fn cut(&mut self, object: ObjectId, mut cut: PendingCut) -> (u64, Vec<u64>) {
        let (from, to) = (Key { object, page: cut.from }, Key { object, page: cut.to });
        let keys: Vec<Key> = self.table.range(from..to).map(|(&key, _)| key).collect();
        let (mut promises, mut waiters) = (0, Vec::new());
        for key in keys {
            let Some(entry) = self.remove(key) else { continue };
            cut.group = entry.group().map_or(cut.group, |group| group.min(cut.group));
            // A write-back under way keeps its own promise until it ends.
            promises += u64::from(entry.dirt.is_some_and(|dirt| dirt.reserved));
            waiters.extend(entry.waiters);
        }
        let pending = self.cuts.entry(object).or_default();
        let before = pending.len();
        pending.retain(|old| {
            let stays = old.from < cut.from || old.to > cut.to;
            cut.group = if stays { cut.group } else { cut.group.min(old.group) };
            stays
        });
        pending.push(cut);
        self.cuts_pending = self.cuts_pending + pending.len() - before;
        (promises, waiters)
    }

    /// The same for a cut that was written to the log again, after changes that are newer than it: those stay.
    pub(crate) fn cut_again(&mut self, object: ObjectId, cut: PendingCut) -> u64 {
        let (from, to) = (Key { object, page: cut.from }, Key { object, page: cut.to });
        let is_older = |entry: &Entry| entry.dirt.as_ref().is_none_or(|dirt| dirt.newest < cut.sequence);
        let older = self.table.range(from..to).filter(|(_, entry)| is_older(entry));
        let older: Vec<Key> = older.map(|(&key, _)| key).collect();
        let dropped = older.into_iter().filter_map(|key| self.remove(key));
        let promises = dropped.filter(|entry| entry.dirt.as_ref().is_some_and(|dirt| dirt.reserved)).count();
        let pending = self.cuts.entry(object).or_default();
        let before = pending.len();
        pending.retain(|old| old.sequence != cut.sequence);
        let at = pending.partition_point(|old| old.sequence < cut.sequence);
        pending.insert(at, cut);
        self.cuts_pending = self.cuts_pending + pending.len() - before;
        promises as u64
    }

    /// The newest pending cut that covers a page.
    pub(crate) fn cut_of(&self, key: Key) -> Option<Sequence> {
        let cuts = self.cuts.get(&key.object)?;
        cuts.iter().filter(|cut| cut.from <= key.page && key.page < cut.to).map(|cut| cut.sequence).max()
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

    /// Dirty pages of one object at most `distance` pages away, `key` among them if it is dirty.
    pub(crate) fn dirty_around(&self, key: Key, distance: u64) -> impl Iterator<Item = Key> + '_ {
        let page = |number| Key { object: key.object, page: PageNo(number) };
        let near = page(key.page.0.saturating_sub(distance))..=page(key.page.0.saturating_add(distance));
        self.table.range(near).filter(|(_, entry)| entry.dirt.is_some()).map(|(&key, _)| key)
    }

    /// How many pages are newer than the store.
    pub(crate) fn dirty_pages(&self) -> usize {
        self.by_group.len()
    }

    /// When the oldest change that is not home was made, about: of the page or cut that needs the oldest group.
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
        while self.memory_bytes > settings.memory_bytes_max && looks > 0 {
            looks -= 1;
            let Some(key) = self.sweep.pop_front() else { return };
            let Some(entry) = self.table.get_mut(&key) else { continue };
            if matches!(entry.body, Body::Patch(_)) {
                continue;
            }
            let busy = entry.dirt.is_some() || entry.writing.is_some() || !entry.waiters.is_empty();
            if busy || std::mem::take(&mut entry.used) {
                self.sweep.push_back(key);
            } else {
                self.remove(key);
                self.counters.evicted += 1;
            }
        }
    }

    /// A number for a new fetch.
    pub(crate) fn next_flight(&mut self) -> FlightNo {
        self.flights += 1;
        FlightNo(self.flights)
    }
}

/// What an entry counts for in the indexes and sums.
#[derive(Default, PartialEq, Eq)]
struct Account {
    memory: u64,
    dirty: u64,
    group: Option<GroupNo>,
    whole: bool,
}

impl Account {
    fn of(entry: &Entry) -> Account {
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
