//! The page table: pages and deltas in memory, by object, the indexes and sums that are kept of them, and the cuts, clones and moves
//! that have not been written back.
//!
//! Pages that become holes are out of the table at once; the store hears of it later, and their memory is given back a bounded piece at
//! a time, since a file of a gigabyte has a quarter of a million of them.

use crate::bypass_age::BypassedPages;
use crate::named::Lost;
use crate::page::{Body, Dirt, Entry, FetchNo};
use crate::plant::{PlantedBug, is_planted};
use crate::reserved::Reserved;
use crate::transfers::{Belongs, Kind, Ordered, Pending, Transfers, pages_reserved};
use buffer::GroupNo;
use device::{BLOCK_BYTES, Lsn, ObjectId, PageNo, VolumeId};
use std::collections::btree_map::Entry as Place;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Bound, Range, RangeBounds};
use std::time::Duration;
use store::ReservationEstimate;

/// Pages looked at per eviction: more than an operation usually adds, so that memory goes down, and few enough to be
/// done under the lock.
const EVICT_LOOKS: usize = 512;

/// Pages of which the store is asked at once: their map nodes are read together.
pub(crate) const LOOK_PAGES: usize = 4096;

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) object: ObjectId,
    pub(crate) page: PageNo,
}

/// Pages of an object that became holes and that the store may still hold. A page that is fetched with a page LSN below
/// `lsn` is zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingCut {
    pub(crate) from: PageNo,
    pub(crate) to: PageNo,
    pub(crate) lsn: Lsn,
    /// The oldest group that must stay until the cut is stored: its own, or that of a change that it took out of
    /// memory. Were the cut lost with a commit that fails, that change would be the newest again.
    pub(crate) group: GroupNo,
    pub(crate) whole_object: bool,
    pub(crate) since: Duration,
    /// It was found in the buffer as one that was logged again: the store may have it, and what a later clone brought.
    pub(crate) logged_again: bool,
}

/// The page table and what is kept of it. Under the cache's lock; after a crash rebuilt from the buffer's records.
#[derive(Default)]
pub(crate) struct Pages {
    table: Table,
    /// Pages that need the buffer, by the oldest group that they need.
    by_group: BTreeSet<(GroupNo, Key)>,
    /// Dirty pages, about in the order of their last writes; entries may be stale.
    by_write: VecDeque<Key>,
    /// Whole pages in the order of a clock's hand; entries may be stale.
    sweep: VecDeque<Key>,
    /// Pages that were cut, dirty ones and those waited for made neither. Nothing finds them; they take memory until they are
    /// cleared.
    discarded: VecDeque<OfObject>,
    /// Oldest first within each object.
    cuts: BTreeMap<ObjectId, Vec<PendingCut>>,
    /// How many there are in all.
    cuts_pending: usize,
    /// Clones and moves.
    transfers: Transfers,
    /// From which page on the store must be asked whether pages that were found in the buffer are stored; `None` once it was
    /// asked about all.
    recovery_cursor: Option<Key>,
    memory: Memory,
    reserved: Reserved,
    /// Pages of which the buffer does not have the bytes.
    unlogged: BypassedPages,
    /// Objects that a crash has made shorter than they say, until that is logged.
    lost: BTreeMap<ObjectId, Lost>,
    fetches: u64,
}

/// What pages take of memory, in bytes, about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// All of them.
    pub(crate) all: u64,
    /// Those that are newer than the store.
    pub(crate) dirty: u64,
    /// Of these, those of which not all bytes are known.
    pub(crate) deltas: u64,
    /// How many those are.
    pub(crate) delta_count: u64,
}

impl Memory {
    /// What one page takes.
    pub(crate) fn of(entry: &Entry) -> Memory {
        let all = entry.memory_bytes() as u64;
        let is_dirty = entry.group().is_some();
        let is_delta = is_dirty && !entry.is_whole();
        Memory {
            all,
            dirty: if is_dirty { all } else { 0 },
            deltas: if is_delta { all } else { 0 },
            delta_count: u64::from(is_delta),
        }
    }

    /// One of the pages takes something else now.
    pub(crate) fn replace(&mut self, before: &Memory, after: &Memory) {
        self.all = self.all + after.all - before.all;
        self.dirty = self.dirty + after.dirty - before.dirty;
        self.deltas = self.deltas + after.deltas - before.deltas;
        self.delta_count = self.delta_count + after.delta_count - before.delta_count;
    }
}

/// What the table keeps of pages beside the pages, for many of them at once.
#[derive(Default)]
pub(crate) struct Index {
    /// All of them, in the order in which the log first names them, with the groups that do.
    pub(crate) named: Vec<(GroupNo, Key)>,
    /// Those of which all bytes are known.
    pub(crate) whole: Vec<Key>,
    /// What they take.
    pub(crate) memory: Memory,
}

/// One change of a page's bytes, as the log has it.
pub(crate) struct PageChange<'a> {
    pub(crate) key: Key,
    pub(crate) range: Range<usize>,
    /// `None`: they become zeros.
    pub(crate) bytes: Option<&'a [u8]>,
    pub(crate) newest: Lsn,
    pub(crate) group: GroupNo,
    /// The whole page changes, and the log does not have the bytes.
    pub(crate) is_bypassing: bool,
}

impl PageChange<'_> {
    /// Makes it. `first` makes the dirt of a clean page.
    pub(crate) fn make(self, entry: &mut Entry, first: impl FnOnce() -> Dirt) {
        match self.bytes {
            Some(bytes) => entry.write(self.range.start, bytes),
            None => entry.zero(self.range.start, self.range.len()),
        }
        entry.note(self.range, self.newest, self.group, first);
        match self.is_bypassing {
            true => entry.was_bypassed(),
            false => entry.was_logged(),
        }
    }
}

/// What pages had that were taken out of memory.
#[derive(Debug, Default)]
struct Taken {
    /// The oldest group that they needed.
    oldest: Option<GroupNo>,
    /// The store's reservations that they held.
    reservations: u64,
    /// Reads that waited for them.
    waiters: Vec<u64>,
}

/// What a change met.
pub(crate) struct Changed {
    /// Not all bytes of the page were in memory.
    pub(crate) was_absent: bool,
    /// Reads that waited for the page and need not any more: nothing else would tell them.
    pub(crate) waiters: Vec<u64>,
}

impl Pages {
    pub(crate) fn get(&self, key: &Key) -> Option<&Entry> {
        self.table.get(key)
    }

    /// A page of which the bytes of `range` are in memory, for a read of them.
    pub(crate) fn read(&mut self, key: &Key, range: Range<usize>) -> Option<&Entry> {
        let entry = self.table.get_mut(key).filter(|entry| entry.covers(range))?;
        entry.mark_used();
        Some(entry)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// What the store may know of those for which it counts space.
    pub(crate) fn known_to_store(&self) -> ReservationEstimate {
        self.reserved.known()
    }

    /// What they take of it.
    pub(crate) fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Pages of one object, in their order.
    pub(crate) fn range(
        &self,
        object: ObjectId,
        pages: impl RangeBounds<PageNo>,
    ) -> impl Iterator<Item = (Key, &Entry)> {
        self.table.range(object, pages)
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &Entry)> {
        self.table.iter()
    }

    /// Makes a change of one page. `first` makes its dirt if it is clean.
    pub(crate) fn write(&mut self, change: PageChange<'_>, first: impl FnOnce() -> Dirt) -> Changed {
        let key = change.key;
        if let Some(entry) = self.table.get_mut(&key)
            && entry.is_whole_and_dirty()
            && entry.is_unlogged() == change.is_bypassing
        {
            // Neither its memory nor the group that it needs changes, nor whether the buffer has it.
            change.make(entry, first);
            entry.mark_used();
            return Changed { was_absent: false, waiters: Vec::new() };
        }
        self.change(key, |entry| {
            let was_absent = !entry.covers(0..BLOCK_BYTES);
            change.make(entry, first);
            entry.mark_used();
            let waiters = if entry.fetch().is_none() { entry.take_waiters() } else { Vec::new() };
            Changed { was_absent, waiters }
        })
    }

    /// Changes an entry, making it if it is absent, and keeps indexes and sums right.
    pub(crate) fn change<T>(&mut self, key: Key, with: impl FnOnce(&mut Entry) -> T) -> T {
        let new = || Entry::new(Body::Patch(Default::default()));
        let (entry, was_there) = self.table.get_or_insert_with(key, new);
        let before = if was_there { Account::of(entry) } else { Account::default() };
        let result = with(entry);
        let after = Account::of(entry);
        if entry.is_dirty() && !entry.is_queued() {
            entry.queue();
            self.by_write.push_back(key);
        }
        self.account(key, before, after);
        result
    }

    /// Takes in dirty pages that it has not, in the order of their keys. They count as queued in the order of their first changes.
    pub(crate) fn adopt(&mut self, pages: impl Iterator<Item = (Key, Box<Entry>)>, index: Index) {
        let Index { mut named, whole, memory } = index;
        if self.table.is_empty() {
            // An empty table and its indexes are built at once. The groups are in order, and few pages are one group's: this
            // sorts faster than all of them together.
            self.by_write.extend(named.iter().map(|&(_, key)| key));
            named.chunk_by_mut(|one, next| one.0 == next.0).for_each(|group| group.sort_unstable());
            self.by_group = named.into_iter().collect();
            let reserved = &mut self.reserved;
            self.table =
                Table::of(pages.inspect(|(key, entry)| reserved.replace(key, 0, entry.reservations())));
            self.sweep.extend(whole);
            self.memory.replace(&Memory::default(), &memory);
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

    fn account(&mut self, key: Key, before: Account, after: Account) {
        self.memory.replace(&before.memory, &after.memory);
        self.reserved.replace(&key, before.reservations, after.reservations);
        if before.group != after.group {
            before.group.map(|group| self.by_group.remove(&(group, key)));
            after.group.map(|group| self.by_group.insert((group, key)));
        }
        if after.unlogged != before.unlogged {
            match after.unlogged {
                true => self.unlogged.insert(key),
                false => self.unlogged.remove(&key),
            }
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
            let whole = self.table.iter().filter(|(_, entry)| entry.is_whole());
            self.sweep = whole.map(|(key, _)| key).collect();
        }
    }

    /// Pages that went and came back stand in the queue twice; it is made anew before that adds up.
    fn requeue(&mut self) {
        let dirty = self.table.iter_mut().filter_map(|(key, entry)| Some((entry.queue()?, key)));
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
            let was_written_again = entry.was_written_since_queued();
            if entry.queue().is_none() {
                continue;
            }
            self.by_write.push_back(key);
            if !was_written_again {
                return Some(key);
            }
        }
        None
    }

    /// How many pages may stand in the queue of [`least_recently_written`](Pages::least_recently_written).
    pub(crate) fn queued(&self) -> usize {
        self.by_write.len()
    }

    /// The oldest group that anything still needs.
    pub(crate) fn oldest_group(&self) -> Option<GroupNo> {
        let pages = self.by_group.first().map(|&(group, _)| group);
        let cuts = self.cuts.values().flatten().map(|cut| cut.group).min();
        let transfers = self.transfers.iter().map(|one| one.group).min();
        let lost = self.lost.values().map(|lost| lost.group).min();
        pages.into_iter().chain(cuts).chain(transfers).chain(lost).min()
    }

    /// Pages that need the buffer, those that need its oldest groups first.
    pub(crate) fn by_group(&self) -> impl Iterator<Item = (GroupNo, Key)> + '_ {
        self.by_group.iter().copied()
    }

    /// The same from one of them on.
    pub(crate) fn by_group_from(&self, from: (GroupNo, Key)) -> impl Iterator<Item = (GroupNo, Key)> + '_ {
        self.by_group.range(from..).copied()
    }

    /// What a start found lost.
    pub(crate) fn set_lost(&mut self, lost: BTreeMap<ObjectId, Lost>) {
        self.lost = lost;
    }

    /// Objects that a crash has made shorter than they say, and their first pages that are gone.
    pub(crate) fn lost(&self) -> impl Iterator<Item = (ObjectId, PageNo)> + '_ {
        self.lost.iter().map(|(&object, lost)| (object, lost.from))
    }

    /// Whether the log is needed for that alone.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost.is_empty()
    }

    /// Objects whose loss the log says in a group before `limit`, and nothing newer settles.
    pub(crate) fn lost_before(&self, limit: GroupNo) -> impl Iterator<Item = (ObjectId, Lost)> + '_ {
        let stays = move |lost: &Lost| !lost.is_cut && lost.group < limit;
        self.lost.iter().map(|(&object, &lost)| (object, lost)).filter(move |(_, lost)| stays(lost))
    }

    /// What is lost of an object stands in the log again, durably.
    pub(crate) fn lost_was_relogged(&mut self, object: ObjectId, group: GroupNo) {
        if let Some(lost) = self.lost.get_mut(&object) {
            lost.group = group;
        }
    }

    /// What another buffer said is lost.
    pub(crate) fn take_over_lost(&mut self, object: ObjectId, lost: Lost) {
        self.lost.insert(object, lost);
    }

    /// It is durable that an object is shorter, or gone.
    pub(crate) fn forget_lost(&mut self, object: ObjectId) {
        self.lost.remove(&object);
    }

    /// How many pages there are of which the buffer does not have the bytes.
    pub(crate) fn unlogged(&self) -> usize {
        self.unlogged.len()
    }

    /// Whether a page is one of these.
    pub(crate) fn is_unlogged(&self, key: &Key) -> bool {
        self.unlogged.contains(key)
    }

    /// These, in the order of their keys.
    pub(crate) fn unlogged_in(&self, keys: impl RangeBounds<Key>) -> impl Iterator<Item = Key> + '_ {
        self.unlogged.range(keys)
    }

    /// The same, with their ages.
    pub(crate) fn bypassed(&self) -> &BypassedPages {
        &self.unlogged
    }

    /// A commit begins: it makes durable whatever took the place of bypassed pages until now.
    pub(crate) fn settled_bypassed_are_committed(&mut self) {
        self.unlogged.settled_are_committed();
    }

    /// These pages were just bypassed, in one write.
    pub(crate) fn note_bypassed_write(&mut self, at: Duration, object: ObjectId, pages: Range<PageNo>) {
        self.unlogged.note_write(at, object, pages);
    }

    /// The buffer has the bytes of a page now; whether it had not before.
    pub(crate) fn page_was_logged(&mut self, key: Key) -> bool {
        let is_new = self.is_unlogged(&key);
        if is_new {
            self.change(key, Entry::was_logged);
        }
        is_new
    }

    /// Dirty pages of one object at most `distance` pages away, `key` among them if it is dirty.
    pub(crate) fn dirty_around(&self, key: Key, distance: u64) -> impl Iterator<Item = Key> + '_ {
        let (first, last) = (key.page.0.saturating_sub(distance), key.page.0.saturating_add(distance));
        let near = self.table.range(key.object, PageNo(first)..=PageNo(last));
        near.filter(|(_, entry)| entry.is_dirty()).map(|(key, _)| key)
    }

    /// Dirty deltas behind a delta in the same object, among so many pages; none, if it is whole.
    pub(crate) fn deltas_behind(&self, key: Key, looks: usize) -> impl Iterator<Item = Key> + '_ {
        let is_dirty_delta = |entry: &Entry| entry.is_dirty() && !entry.is_whole();
        let looks = if self.get(&key).is_some_and(is_dirty_delta) { looks } else { 0 };
        let behind = self.table.range(key.object, key.page..).take(looks);
        behind.filter(move |(_, entry)| is_dirty_delta(entry)).map(|(key, _)| key)
    }

    /// Whether anything is newer than the store.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty_pages() > 0 || !self.cuts.is_empty() || !self.transfers.is_empty()
    }

    /// How many pages are newer than the store; those that lie beside a clone or a move count, too.
    pub(crate) fn dirty_pages(&self) -> usize {
        self.by_group.len() + self.transfers.iter().map(|one| one.before().count()).sum::<usize>()
    }

    /// When the oldest change that is not stored was made, about: of the page or cut that needs the oldest group.
    pub(crate) fn oldest_since(&self) -> Option<Duration> {
        let page = self.by_group.first().and_then(|(_, key)| self.table.get(key));
        let page = page.and_then(Entry::since);
        let cut = self.cuts.values().flatten().map(|cut| cut.since).min();
        let transfer = self.transfers.iter().map(|one| one.since).min();
        page.into_iter().chain(cut).chain(transfer).min()
    }

    /// Drops clean pages that were not used lately while memory is over `bytes_max`: a bounded piece of that work. Returns how many.
    pub(crate) fn evict(&mut self, bytes_max: u64) -> u64 {
        let (mut looks, mut evicted) = (EVICT_LOOKS, 0);
        if self.memory.all > bytes_max {
            looks -= self.clear_discarded(looks).len();
        }
        while self.memory.all > bytes_max && looks > 0 {
            looks -= 1;
            let Some(key) = self.sweep.pop_front() else { break };
            let Some(entry) = self.table.get_mut(&key) else { continue };
            if !entry.is_whole() {
                continue;
            }
            if entry.is_busy() || entry.take_used() {
                self.sweep.push_back(key);
            } else {
                self.remove(key);
                evicted += 1;
            }
        }
        evicted
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

    /// Cuts of an object that have not been written back, the oldest first.
    pub(crate) fn cuts_of(&self, object: ObjectId) -> &[PendingCut] {
        self.cuts.get(&object).map_or(&[], Vec::as_slice)
    }

    /// All of them.
    pub(crate) fn cuts(&self) -> impl Iterator<Item = (ObjectId, PendingCut)> + '_ {
        self.cuts.iter().flat_map(|(&object, cuts)| cuts.iter().map(move |&cut| (object, cut)))
    }

    /// How many there are.
    pub(crate) fn cuts_pending(&self) -> usize {
        self.cuts_pending
    }

    /// Whether one is still pending.
    pub(crate) fn is_pending(&self, object: ObjectId, cut: Lsn) -> bool {
        self.cuts_of(object).iter().any(|one| one.lsn == cut)
    }

    /// The store has a cut.
    pub(crate) fn cut_is_stored(&mut self, object: ObjectId, cut: Lsn) {
        let Some(pending) = self.cuts.get_mut(&object) else { return };
        let before = pending.len();
        pending.retain(|one| one.lsn != cut);
        self.cuts_pending -= before - pending.len();
        if pending.is_empty() {
            self.cuts.remove(&object);
        }
    }

    /// What a page or a cut needs is in a newer group, too, and durable there.
    pub(crate) fn page_was_relogged(&mut self, key: Key, group: GroupNo) {
        if self.table.contains_key(&key) {
            self.change(key, |entry| entry.was_relogged(group));
        }
    }

    /// The same for a cut.
    pub(crate) fn cut_was_relogged(&mut self, object: ObjectId, cut: Lsn, group: GroupNo) {
        let pending = self.cuts.get_mut(&object).into_iter().flatten();
        pending.filter(|one| one.lsn == cut).for_each(|one| one.group = group);
    }

    /// Whether pages that were cut still take memory.
    pub(crate) fn has_discarded(&self) -> bool {
        !self.discarded.is_empty()
    }

    /// Takes a range of pages out of memory and remembers the cut until the store has it. Returns how many of the
    /// store's reservations the pages held, and the reads that waited for them, which must look again.
    pub(crate) fn cut(&mut self, object: ObjectId, mut cut: PendingCut) -> (u64, Vec<u64>) {
        let Taken { oldest, reservations, waiters } = self.take_out(object, cut.from, cut.to);
        let taken = oldest.filter(|_| !is_planted(PlantedBug::CutWithoutGroups));
        cut.group = taken.map_or(cut.group, |group| group.min(cut.group));
        let pending = self.cuts.entry(object).or_default();
        let before = pending.len();
        let transfers = &self.transfers;
        pending.retain(|old| {
            // What came between them needs the older one.
            let parted = transfers.any_between(object, old.lsn..cut.lsn);
            let stays = old.from < cut.from || old.to > cut.to || parted;
            cut.group = if stays { cut.group } else { cut.group.min(old.group) };
            stays
        });
        pending.push(cut);
        self.cuts_pending = self.cuts_pending + pending.len() - before;
        // Logged again behind this cut, the loss would come back with it.
        let lost = self.lost.get_mut(&object).filter(|lost| (cut.from..cut.to).contains(&lost.from));
        if let Some(lost) = lost {
            lost.is_cut = true;
        }
        (reservations, waiters)
    }

    /// Takes pages out of memory.
    fn take_out(&mut self, object: ObjectId, from: PageNo, to: PageNo) -> Taken {
        let mut taken = Taken::default();
        let mut pages = self.table.take(object, from, to);
        for (&page, entry) in pages.iter_mut().filter(|(_, entry)| entry.is_busy()) {
            let before = Account::of(entry);
            taken.oldest = taken.oldest.into_iter().chain(before.group).min();
            // A write-back under way keeps its own reservation until it ends.
            let discarded = entry.discard();
            taken.reservations += u64::from(discarded.was_reserved);
            taken.waiters.extend(discarded.waiters);
            self.account(Key { object, page }, before, Account::of(entry));
        }
        if !pages.is_empty() {
            self.discarded.push_back(pages);
        }
        taken
    }

    /// The volumes of which there are pages, cuts, clones or moves.
    pub(crate) fn volumes(&self) -> BTreeSet<VolumeId> {
        let objects = self.table.objects.keys().chain(self.cuts.keys()).map(|object| object.volume);
        objects.chain(self.transfers.iter().flat_map(|one| one.what.volumes())).collect()
    }

    /// Those of which something is newer than the store.
    pub(crate) fn dirty_volumes(&self) -> BTreeSet<VolumeId> {
        let pages = self.by_group.iter().map(|(_, key)| key.object.volume);
        let cuts = self.cuts.keys().map(|object| object.volume);
        pages.chain(cuts).chain(self.transfers.iter().flat_map(|one| one.what.volumes())).collect()
    }

    /// Takes all of a volume out of memory, which the store does not have any more. Returns what [`cut`](Pages::cut) does.
    pub(crate) fn drop_volume(&mut self, volume: VolumeId) -> (u64, Vec<u64>) {
        let (mut reservations, mut waiters) = (0, Vec::new());
        let all = volume.object(0, 0)..=volume.object(u64::MAX, u32::MAX);
        let objects: Vec<ObjectId> =
            self.table.objects.range(all.clone()).map(|(&object, _)| object).collect();
        for object in objects {
            let taken = self.take_out(object, PageNo(0), PageNo(u64::MAX));
            reservations += taken.reservations;
            waiters.extend(taken.waiters);
        }
        let cut: Vec<ObjectId> = self.cuts.range(all).map(|(&object, _)| object).collect();
        for object in cut {
            self.cuts_pending -= self.cuts.remove(&object).map_or(0, |cuts| cuts.len());
        }
        self.lost.retain(|object, _| object.volume != volume);
        let about = self.transfers.iter().filter(|one| one.what.volumes().contains(&volume));
        let about: Vec<Lsn> = about.map(|one| one.what.lsn).collect();
        reservations += about.into_iter().map(|lsn| self.drop_transfer(lsn)).sum::<u64>();
        (reservations, waiters)
    }

    /// Whether what the table has of a page must not be stored yet.
    pub(crate) fn holds_back(&self, key: &Key) -> bool {
        self.transfers.hold_back(key.object, key.page) && !is_planted(PlantedBug::TransferOvertaken)
    }

    /// Clones and moves that are not stored.
    pub(crate) fn transfers(&self) -> &Transfers {
        &self.transfers
    }

    /// Makes a clone or a move: its target is taken out of memory, and what the source has that is newer than the store is laid beside
    /// it. Returns what [`cut`](Pages::cut) does; it has its own reservations.
    pub(crate) fn transfer(&mut self, mut pending: Pending) -> (u64, Vec<u64>) {
        let Ordered { kind, transfer, .. } = pending.what;
        let (source, target) = (transfer.source(), transfer.target());
        let mut taken = self.take_out(transfer.to, target.start, target.end);
        let is_newer = |entry: &Entry| entry.group().is_some();
        let newer = self.table.range(transfer.from, source.clone()).filter(|(_, entry)| is_newer(entry));
        for key in newer.map(|(key, _)| key).collect::<Vec<_>>() {
            let Some(mut entry) = self.table.remove(&key) else { continue };
            let before = Account::of(&entry);
            self.account(key, before, Account::default());
            taken.waiters.extend(entry.take_waiters());
            entry.end_fetch();
            if kind == Kind::Clone {
                self.keep_bytes(key, &entry);
            }
            self.account_beside(&Account::default(), &Account::of(&entry));
            pending.keep(key.page, entry);
        }
        if kind == Kind::Move {
            let gone = self.take_out(transfer.from, source.start, source.end);
            taken.waiters.extend(gone.waiters);
        }
        pending.group = taken.oldest.into_iter().fold(pending.group, GroupNo::min);
        self.transfers.insert(pending);
        (taken.reservations, taken.waiters)
    }

    /// The same for one that was written to the log again, after changes that are newer than it: those stay.
    pub(crate) fn transfer_again(&mut self, pending: Pending) {
        self.transfers.insert(pending);
    }

    /// A page whose changes lie elsewhere from now on stays in memory, clean, if all of it was there.
    fn keep_bytes(&mut self, key: Key, entry: &Entry) {
        if let Body::Whole(page) = entry.body() {
            let copy = Entry::new(Body::Whole(page.clone()));
            let account = Account::of(&copy);
            self.table.insert(key, Box::new(copy));
            self.account(key, Account::default(), account);
        }
    }

    /// For what lies beside a clone or a move, which is in no index.
    fn account_beside(&mut self, before: &Account, after: &Account) {
        self.memory.replace(&before.memory, &after.memory);
    }

    /// Where a change that recovery found belongs, if not into the table.
    pub(crate) fn place_of(&self, key: Key, lsn: Lsn) -> Option<Belongs> {
        self.transfers.place_of(key.object, key.page, lsn)
    }

    /// Changes a page that lies beside a clone or a move.
    pub(crate) fn change_beside<T>(
        &mut self,
        lsn: Lsn,
        page: PageNo,
        with: impl FnOnce(&mut Entry) -> T,
    ) -> Option<T> {
        let pending = self.transfers.get_mut(lsn)?;
        let is_there = pending.has(page);
        let entry = pending.page_mut(page, || Entry::new(Body::Patch(Default::default())));
        let before = if is_there { Account::of(entry) } else { Account::default() };
        let result = with(entry);
        let after = Account::of(entry);
        pending.group = after.group.into_iter().fold(pending.group, GroupNo::min);
        self.account_beside(&before, &after);
        Some(result)
    }

    /// Changes the page of which a write-back with this newest change is under way, wherever it lies by now; `None` if it is nowhere.
    pub(crate) fn change_written<T>(
        &mut self,
        key: Key,
        newest: Lsn,
        with: impl FnOnce(&mut Entry) -> T,
    ) -> Option<T> {
        let is_it = |entry: &Entry| entry.writing().is_some_and(|writing| writing.newest == newest);
        if self.get(&key).is_some_and(is_it) {
            let result = self.change(key, with);
            self.drop_needless(key);
            return Some(result);
        }
        let lsn = self.transfers.writing(key.object, key.page, newest)?;
        let (result, is_stored) = self.change_beside(lsn, key.page, |entry| {
            let result = with(entry);
            (result, entry.group().is_none())
        })?;
        if is_stored {
            self.beside_is_stored(lsn, key.page);
        }
        Some(result)
    }

    /// The store has a page that lies beside a clone or a move. Whether anything was reserved for it.
    pub(crate) fn beside_is_stored(&mut self, lsn: Lsn, page: PageNo) -> bool {
        let Some(mut entry) = self.transfers.get_mut(lsn).and_then(|pending| pending.take(page)) else {
            return false;
        };
        self.account_beside(&Account::of(&entry), &Account::default());
        entry.take_dirt().is_some_and(|dirt| dirt.reserved)
    }

    /// The store has a clone or a move, or nobody needs it. Returns how many of its reservations, and of those of the pages beside it,
    /// there were.
    pub(crate) fn drop_transfer(&mut self, lsn: Lsn) -> u64 {
        let Some(pending) = self.transfers.get(lsn) else { return 0 };
        let reserved = pages_reserved(&pending.what.transfer);
        let beside: Vec<PageNo> = pending.before().map(|(page, _)| page).collect();
        let pages = beside.into_iter().filter(|&page| self.beside_is_stored(lsn, page)).count();
        self.transfers.remove(lsn);
        reserved + pages as u64
    }

    /// The store was asked about one that was found in the buffer, and has it not.
    pub(crate) fn transfer_is_new(&mut self, lsn: Lsn) {
        self.transfers.get_mut(lsn).into_iter().for_each(|one| one.recovered = false);
    }

    /// What it needs is in a newer group, too, and durable there.
    pub(crate) fn transfer_was_relogged(&mut self, lsn: Lsn, group: GroupNo) {
        self.transfers.get_mut(lsn).into_iter().for_each(|one| one.was_relogged(group));
    }

    /// Cuts of the objects of a clone or a move that are older.
    pub(crate) fn cuts_before(&self, what: &Ordered) -> Vec<(ObjectId, PendingCut)> {
        let older = |(object, cut): &(ObjectId, PendingCut)| cut.lsn < what.lsn && what.is_about(*object);
        self.cuts().filter(older).collect()
    }

    /// The same for a cut that was written to the log again, after changes that are newer than it: those stay.
    pub(crate) fn cut_again(&mut self, object: ObjectId, cut: PendingCut) -> u64 {
        let is_older = |entry: &Entry| {
            let older = entry.dirt().is_none_or(|dirt| dirt.newest < cut.lsn);
            older || is_planted(PlantedBug::MergedCutKills)
        };
        let older = self.table.range(object, cut.from..cut.to).filter(|(_, entry)| is_older(entry));
        let older: Vec<Key> = older.map(|(key, _)| key).collect();
        let dropped = older.into_iter().filter_map(|key| self.remove(key));
        let reservations = dropped.filter(|entry| entry.dirt().is_some_and(|dirt| dirt.reserved)).count();
        let pending = self.cuts.entry(object).or_default();
        let before = pending.len();
        pending.retain(|old| old.lsn != cut.lsn);
        let at = pending.partition_point(|old| old.lsn < cut.lsn);
        pending.insert(at, cut);
        self.cuts_pending = self.cuts_pending + pending.len() - before;
        reservations as u64
    }

    /// The newest pending cut that covers a page.
    pub(crate) fn cut_of(&self, key: Key) -> Option<Lsn> {
        let cuts = self.cuts.get(&key.object)?;
        cuts.iter().filter(|cut| cut.from <= key.page && key.page < cut.to).map(|cut| cut.lsn).max()
    }

    /// Takes at most so many of the pages that were cut off the books; their memory is the caller's to give back, best
    /// without the lock.
    pub(crate) fn clear_discarded(&mut self, most: usize) -> Vec<(PageNo, Box<Entry>)> {
        let mut cleared = Vec::new();
        while cleared.len() < most
            && let Some(pages) = self.discarded.front_mut()
        {
            match pages.pop_first() {
                Some((page, entry)) => {
                    self.memory.replace(&Memory::of(&entry), &Memory::default());
                    cleared.push((page, entry));
                }
                None => drop(self.discarded.pop_front()),
            }
        }
        cleared
    }

    /// Whether the store was not asked yet about all pages that were found in the buffer.
    pub(crate) fn is_asking(&self) -> bool {
        self.recovery_cursor.is_some()
    }

    /// From now on the store is to be asked about every page that is there.
    pub(crate) fn begin_to_ask(&mut self) {
        self.recovery_cursor = self.table.iter().next().map(|(key, _)| key);
    }

    /// Makes a page clean that was found in the buffer, if the store has it as of its newest change. Returns whether the store counts
    /// space for it that is not needed any more.
    pub(crate) fn forget_if_stored(&mut self, key: Key, page_lsn: Lsn) -> bool {
        let dirt = self.get(&key).and_then(|entry| entry.dirt());
        if dirt.is_none_or(|dirt| !dirt.recovered || dirt.newest > page_lsn) {
            return false;
        }
        let was_reserved = self.change(key, |entry| entry.take_dirt().is_some_and(|dirt| dirt.reserved));
        self.drop_needless(key);
        was_reserved
    }

    /// Drops a page of which there is only a part that is stored.
    fn drop_needless(&mut self, key: Key) {
        if self.get(&key).is_some_and(Entry::is_needless) {
            self.remove(key);
        }
    }

    /// The next of the pages that were found in the buffer and that the store was not asked about; `None` when there are no more.
    /// The table has them in order, so those that come together lie near each other in the store's map.
    pub(crate) fn next_recovered(&mut self) -> Option<Vec<Key>> {
        let mut looked = self.table.from(self.recovery_cursor?);
        let recovered = |entry: &Entry| entry.dirt().is_some_and(|dirt| dirt.recovered);
        let found = looked.by_ref().take(LOOK_PAGES).filter(|(_, entry)| recovered(entry));
        let keys = found.map(|(key, _)| key).collect();
        let next = looked.next().map(|(key, _)| key);
        drop(looked);
        self.recovery_cursor = next;
        Some(keys)
    }
}

/// What an entry counts for in the indexes and sums.
#[derive(Default, PartialEq, Eq)]
struct Account {
    memory: Memory,
    group: Option<GroupNo>,
    whole: bool,
    reservations: u32,
    unlogged: bool,
}

impl Account {
    fn of(entry: &Entry) -> Account {
        let (memory, reservations) = (Memory::of(entry), entry.reservations());
        let (whole, unlogged) = (entry.is_whole(), entry.is_unlogged());
        Account { memory, group: entry.group(), whole, reservations, unlogged }
    }
}

/// Splits bytes from `offset` on at page ends: (page, position in the page, range of the bytes).
pub(crate) fn pages_of(offset: u64, len: usize) -> impl Iterator<Item = (PageNo, usize, Range<usize>)> {
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

/// Pages of one object. Boxed, so that a page that comes or goes moves the pointers beside it and not whole entries.
type OfObject = BTreeMap<PageNo, Box<Entry>>;

/// Pages by object: what lies behind some page of an object can be taken out in one piece.
#[derive(Default)]
struct Table {
    /// None of them is empty.
    objects: BTreeMap<ObjectId, OfObject>,
    len: usize,
}

impl Table {
    /// A table of pages that come in the order of their keys, each once: this costs much less than one by one.
    fn of(pages: impl Iterator<Item = (Key, Box<Entry>)>) -> Table {
        let mut len = 0;
        let mut objects: Vec<(ObjectId, OfObject)> = Vec::new();
        let mut pages = pages.peekable();
        while let Some(&(Key { object, .. }, _)) = pages.peek() {
            let mine = std::iter::from_fn(|| pages.next_if(|(key, _)| key.object == object));
            let mine: OfObject = mine.map(|(key, entry)| (key.page, entry)).collect();
            len += mine.len();
            objects.push((object, mine));
        }
        Table { objects: objects.into_iter().collect(), len }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn get(&self, key: &Key) -> Option<&Entry> {
        self.objects.get(&key.object)?.get(&key.page).map(|entry| &**entry)
    }

    fn get_mut(&mut self, key: &Key) -> Option<&mut Entry> {
        self.objects.get_mut(&key.object)?.get_mut(&key.page).map(|entry| &mut **entry)
    }

    fn contains_key(&self, key: &Key) -> bool {
        self.get(key).is_some()
    }

    /// The entry of a page, and whether it was there; if not, it is made.
    fn get_or_insert_with(&mut self, key: Key, new: impl FnOnce() -> Entry) -> (&mut Entry, bool) {
        match self.objects.entry(key.object).or_default().entry(key.page) {
            Place::Occupied(place) => (place.into_mut(), true),
            Place::Vacant(place) => {
                self.len += 1;
                (place.insert(Box::new(new())), false)
            }
        }
    }

    /// Puts in a page that is not there.
    fn insert(&mut self, key: Key, entry: Box<Entry>) {
        let before = self.objects.entry(key.object).or_default().insert(key.page, entry);
        self.len += usize::from(before.is_none());
    }

    fn remove(&mut self, key: &Key) -> Option<Box<Entry>> {
        let pages = self.objects.get_mut(&key.object)?;
        let entry = pages.remove(&key.page)?;
        self.len -= 1;
        if pages.is_empty() {
            self.objects.remove(&key.object);
        }
        Some(entry)
    }

    /// Pages of one object, in their order.
    fn range(
        &self,
        object: ObjectId,
        pages: impl RangeBounds<PageNo>,
    ) -> impl Iterator<Item = (Key, &Entry)> {
        let found = self
            .objects
            .get(&object)
            .into_iter()
            .flat_map(move |all| all.range((pages.start_bound().cloned(), pages.end_bound().cloned())));
        found.map(move |(&page, entry)| (Key { object, page }, &**entry))
    }

    /// All pages from `key` on, in the order of their keys.
    fn from(&self, key: Key) -> impl Iterator<Item = (Key, &Entry)> {
        let later = (Bound::Excluded(key.object), Bound::Unbounded);
        let later = self
            .objects
            .range(later)
            .flat_map(|(&object, pages)| pages.iter().map(move |page| (object, page)));
        let later = later.map(|(object, (&page, entry))| (Key { object, page }, &**entry));
        self.range(key.object, key.page..).chain(later)
    }

    fn iter(&self) -> impl Iterator<Item = (Key, &Entry)> {
        let pages =
            self.objects.iter().flat_map(|(&object, pages)| pages.iter().map(move |page| (object, page)));
        pages.map(|(object, (&page, entry))| (Key { object, page }, &**entry))
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (Key, &mut Entry)> {
        let pages = self
            .objects
            .iter_mut()
            .flat_map(|(&object, pages)| pages.iter_mut().map(move |page| (object, page)));
        pages.map(|(object, (&page, entry))| (Key { object, page }, &mut **entry))
    }

    /// Takes out the pages of an object from `from` up to, not including, `to`: all behind `from` in a time that hardly
    /// depends on how many they are, others one by one.
    fn take(&mut self, object: ObjectId, from: PageNo, to: PageNo) -> OfObject {
        let Some(pages) = self.objects.get_mut(&object) else { return OfObject::new() };
        let taken = match pages.last_key_value() {
            Some((&last, _)) if last >= to => {
                let some: Vec<PageNo> = pages.range(from..to).map(|(&page, _)| page).collect();
                some.iter().filter_map(|page| pages.remove_entry(page)).collect()
            }
            _ => pages.split_off(&from),
        };
        self.len -= taken.len();
        if pages.is_empty() {
            self.objects.remove(&object);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_asked_about_each_recovered_page_once_and_about_no_other() {
        let mut pages = Pages::default();
        let mut recovered = Vec::new();
        for number in 0..3 * LOOK_PAGES as u64 {
            let object = VolumeId::MAIN.object(number % 3, 7);
            let key = Key { object, page: PageNo(number) };
            let was_found = number % 5 != 0;
            pages.change(key, |entry| {
                entry.write(0, b"weir");
                entry.note(0..4, Lsn(1), GroupNo(1), || {
                    Dirt::first(Lsn(1), GroupNo(1), Duration::ZERO, was_found)
                });
            });
            recovered.extend(was_found.then_some(key));
        }
        assert_eq!(pages.next_recovered(), None, "nothing was found in the buffer");
        pages.begin_to_ask();
        let asked: Vec<Vec<Key>> = std::iter::from_fn(|| pages.next_recovered()).collect();
        recovered.sort();
        assert_eq!(asked.concat(), recovered);
        assert_eq!(asked.len(), 3, "a bounded piece at a time");
    }
}
