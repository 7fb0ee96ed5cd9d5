//! The page table: pages and deltas in memory, by object, with indexes and sums; and the punches and range
//! operations that are not stored.
//!
//! Punched pages leave the table at once. The store hears of the punch later, and their memory is freed in
//! bounded pieces: a file of a gigabyte has a quarter of a million pages.

use crate::bypass_recovery::LostTail;
use crate::bypassed_pages::BypassedPages;
use crate::page::{CachedPage, DirtyState, FetchNumber, PageBody};
use crate::planted_bug::{CacheBug, is_planted};
use crate::range_ops::{OlderChangePlace, PendingRangeOp, PendingRangeOps, RangeOp, reserved_pages};
use crate::reservation_estimate::ReservedPages;
use buffer::GroupNo;
use device::{BLOCK_BYTES, Lsn, ObjectId, Page, PageNo, TransferKind, VolumeId};
use std::collections::btree_map::Entry as Place;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Bound, Range, RangeBounds};
use std::time::Duration;
use store::ReservationEstimate;

/// Pages looked at per eviction: more than an operation usually adds, so that memory shrinks, and few enough
/// for one hold of the lock.
const EVICTION_LOOKS: usize = 512;

/// Pages about which the store is asked at once: their map nodes are read together.
pub(crate) const STORE_CHECK_PAGES: usize = 4096;

/// Identifies a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PageKey {
    pub(crate) object: ObjectId,
    pub(crate) page: PageNo,
}

/// Pages of an object that became holes and that the store may still have. A fetched page with a page LSN
/// below `lsn` is zeros.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PendingPunch {
    pub(crate) from: PageNo,
    pub(crate) to: PageNo,
    pub(crate) lsn: Lsn,
    /// The oldest group that the buffer must keep until the punch is stored: its own, or that of a change
    /// that it removed from memory. If a commit that fails lost the punch, that change would be the newest
    /// again.
    pub(crate) group: GroupNo,
    pub(crate) whole_object: bool,
    pub(crate) since: Duration,
    /// Recovery found it relogged: the store may have it, and also what a later clone brought.
    pub(crate) is_relogged: bool,
}

/// The page table and its indexes. Under the cache's lock; after a crash rebuilt from the buffer's records.
#[derive(Default)]
pub(crate) struct PageTable {
    table: ObjectTable,
    /// Pages that need the buffer, by the oldest group that they need.
    by_group: BTreeSet<(GroupNo, PageKey)>,
    /// Dirty pages, roughly in the order of their last writes. Entries may be stale.
    write_queue: VecDeque<PageKey>,
    /// Whole pages, in the order of the CLOCK algorithm. Entries may be stale.
    eviction_queue: VecDeque<PageKey>,
    /// Punched pages whose memory is not freed yet. They are neither dirty nor waited for, and no look-up
    /// finds them.
    discarded: VecDeque<PagesOfObject>,
    /// The oldest first within each object.
    punches: BTreeMap<ObjectId, Vec<PendingPunch>>,
    /// Number of punches of all objects.
    punches_pending: usize,
    /// Clones and moves that are not stored.
    range_ops: PendingRangeOps,
    /// The first recovered page about which the store was not asked whether it has it. `None` once it was
    /// asked about all.
    store_check_cursor: Option<PageKey>,
    memory: PageMemory,
    reserved_pages: ReservedPages,
    /// Bypassed pages: the buffer lacks their bytes.
    unlogged: BypassedPages,
    /// Objects that a crash made shorter than their sizes say, until the new size is logged.
    lost_tails: BTreeMap<ObjectId, LostTail>,
    fetches: u64,
}

/// Memory of pages, in bytes, approximately.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PageMemory {
    /// All pages.
    pub(crate) all: u64,
    /// Dirty pages.
    pub(crate) dirty: u64,
    /// Dirty pages of which not all bytes are in memory.
    pub(crate) deltas: u64,
    /// Number of those.
    pub(crate) delta_count: u64,
}

impl PageMemory {
    /// The memory of one page.
    pub(crate) fn of(entry: &CachedPage) -> PageMemory {
        let all = entry.memory_bytes() as u64;
        let is_dirty = entry.oldest_group().is_some();
        let is_delta = is_dirty && !entry.is_whole();
        PageMemory {
            all,
            dirty: if is_dirty { all } else { 0 },
            deltas: if is_delta { all } else { 0 },
            delta_count: u64::from(is_delta),
        }
    }

    /// Replaces the share of one page.
    pub(crate) fn replace(&mut self, before: &PageMemory, after: &PageMemory) {
        self.all = self.all + after.all - before.all;
        self.dirty = self.dirty + after.dirty - before.dirty;
        self.deltas = self.deltas + after.deltas - before.deltas;
        self.delta_count = self.delta_count + after.delta_count - before.delta_count;
    }
}

/// A change of one page's bytes, as the log has it.
pub(crate) struct PageChange<'a> {
    pub(crate) key: PageKey,
    pub(crate) range: Range<usize>,
    /// `None`: zeros.
    pub(crate) bytes: Option<&'a [u8]>,
    pub(crate) newest: Lsn,
    pub(crate) group: GroupNo,
    /// The whole page changes, and its bytes bypass the buffer.
    pub(crate) is_bypassing: bool,
}

impl PageChange<'_> {
    /// Makes the change. `first` makes the dirty state of a clean page.
    pub(crate) fn make(self, entry: &mut CachedPage, first: impl FnOnce() -> DirtyState) {
        match self.bytes {
            Some(bytes) => entry.write(self.range.start, bytes),
            None => entry.zero(self.range.start, self.range.len()),
        }
        entry.mark_dirty(self.range, self.newest, self.group, first);
        if self.is_bypassing { entry.mark_bypassed() } else { entry.mark_logged() }
    }
}

/// Groups, reservations and waiters of pages that were removed from the table.
#[derive(Debug, Default)]
struct TakenPages {
    /// The oldest group that they needed.
    oldest: Option<GroupNo>,
    /// Their reservations in the store, in pages.
    reservations: u64,
    /// Reads that waited for them.
    waiters: Vec<u64>,
}

/// The result of changing a page.
pub(crate) struct PageChangeOutcome {
    /// Not all bytes of the page were in memory.
    pub(crate) was_absent: bool,
    /// Reads that waited for a fetch which is not needed any more. The caller tells them; nothing else would.
    pub(crate) waiters: Vec<u64>,
}

impl PageTable {
    pub(crate) fn get(&self, key: &PageKey) -> Option<&CachedPage> {
        self.table.get(key)
    }

    /// A page for a read of `range`, if those bytes are in memory.
    pub(crate) fn read(&mut self, key: &PageKey, range: Range<usize>) -> Option<&CachedPage> {
        let entry = self.table.get_mut(key).filter(|entry| entry.covers(range))?;
        entry.mark_used();
        Some(entry)
    }

    /// Number of pages.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The estimate for the pages for which the store counts space.
    pub(crate) fn reservation_estimate(&self) -> ReservationEstimate {
        self.reserved_pages.estimate()
    }

    /// The memory of all pages.
    pub(crate) fn memory(&self) -> &PageMemory {
        &self.memory
    }

    /// Pages of an object, in order.
    pub(crate) fn range(
        &self,
        object: ObjectId,
        pages: impl RangeBounds<PageNo>,
    ) -> impl Iterator<Item = (PageKey, &CachedPage)> {
        self.table.range(object, pages)
    }

    /// Changes one page. `first` makes its dirty state if it is clean.
    pub(crate) fn write(
        &mut self,
        change: PageChange<'_>,
        first: impl FnOnce() -> DirtyState,
    ) -> PageChangeOutcome {
        let key = change.key;
        if let Some(entry) = self.table.get_mut(&key)
            && entry.is_whole_and_dirty()
            && entry.is_unlogged() == change.is_bypassing
        {
            // Neither its memory, nor its oldest group, nor whether the buffer has its bytes changes.
            change.make(entry, first);
            entry.mark_used();
            return PageChangeOutcome { was_absent: false, waiters: Vec::new() };
        }
        self.change(key, |entry| {
            let was_absent = !entry.covers(0..BLOCK_BYTES);
            change.make(entry, first);
            entry.mark_used();
            let waiters = if entry.fetch().is_none() { entry.take_waiters() } else { Vec::new() };
            PageChangeOutcome { was_absent, waiters }
        })
    }

    /// Changes an entry, made if it is absent, and keeps indexes and sums right.
    pub(crate) fn change<T>(&mut self, key: PageKey, with: impl FnOnce(&mut CachedPage) -> T) -> T {
        let new = || CachedPage::new(PageBody::Patch(Default::default()));
        let (entry, was_there) = self.table.get_or_insert_with(key, new);
        let before = if was_there { PageAccount::of(entry) } else { PageAccount::default() };
        let result = with(entry);
        let after = PageAccount::of(entry);
        if entry.is_dirty() && !entry.is_queued() {
            entry.queue();
            self.write_queue.push_back(key);
        }
        self.account(key, before, after);
        result
    }

    /// Removes an entry. The caller tells its waiters.
    pub(crate) fn remove(&mut self, key: PageKey) -> Option<CachedPage> {
        let entry = *self.table.remove(&key)?;
        self.account(key, PageAccount::of(&entry), PageAccount::default());
        Some(entry)
    }

    fn account(&mut self, key: PageKey, before: PageAccount, after: PageAccount) {
        self.memory.replace(&before.memory, &after.memory);
        self.reserved_pages.replace(&key, before.reservations, after.reservations);
        if before.group != after.group {
            before.group.map(|group| self.by_group.remove(&(group, key)));
            after.group.map(|group| self.by_group.insert((group, key)));
        }
        if after.unlogged != before.unlogged {
            if after.unlogged { self.unlogged.insert(key) } else { self.unlogged.remove(&key) }
        }
        if after.whole && !before.whole {
            self.eviction_queue.push_back(key);
            self.rebuild_eviction_queue();
        }
        if self.write_queue.len() > 2 * self.table.len() + 64 {
            self.rebuild_write_queue();
        }
    }

    /// Pages that were punched and came back are in the queue twice. Rebuilds it before that adds up.
    fn rebuild_eviction_queue(&mut self) {
        if self.eviction_queue.len() > 2 * self.table.len() + 64 {
            let whole = self.table.iter().filter(|(_, entry)| entry.is_whole());
            self.eviction_queue = whole.map(|(key, _)| key).collect();
        }
    }

    /// Rebuilds the queue: pages that were removed and came back are in it twice.
    fn rebuild_write_queue(&mut self) {
        let dirty = self.table.iter_mut().filter_map(|(key, entry)| Some((entry.queue()?, key)));
        let mut dirty: Vec<(Lsn, PageKey)> = dirty.collect();
        dirty.sort_unstable();
        self.write_queue = dirty.into_iter().map(|(_, key)| key).collect();
    }

    /// The dirty page that was written least recently (*DF-LRW*, section 3.3), roughly. A page that was
    /// written again moves to the end only when it reaches the front, so that a write to a dirty page costs
    /// nothing here. The returned page moves to the end, too. `looks` is counted down to 0 and bounds the
    /// search over several calls.
    pub(crate) fn least_recently_written(&mut self, looks: &mut usize) -> Option<PageKey> {
        while *looks > 0 {
            *looks -= 1;
            let key = self.write_queue.pop_front()?;
            let Some(entry) = self.table.get_mut(&key) else { continue };
            let was_written_again = entry.was_written_since_queued();
            if entry.queue().is_none() {
                continue;
            }
            self.write_queue.push_back(key);
            if !was_written_again {
                return Some(key);
            }
        }
        None
    }

    /// Length of the queue of [`least_recently_written`](PageTable::least_recently_written).
    pub(crate) fn queued(&self) -> usize {
        self.write_queue.len()
    }

    /// The oldest group that anything needs.
    pub(crate) fn oldest_group(&self) -> Option<GroupNo> {
        let pages = self.by_group.first().map(|&(group, _)| group);
        let punches = self.punches.values().flatten().map(|punch| punch.group).min();
        let transfers = self.range_ops.iter().map(|one| one.oldest_group).min();
        let lost = self.lost_tails.values().map(|lost| lost.group).min();
        pages.into_iter().chain(punches).chain(transfers).chain(lost).min()
    }

    /// Pages that need the buffer, by their oldest groups.
    pub(crate) fn by_group(&self) -> impl Iterator<Item = (GroupNo, PageKey)> + '_ {
        self.by_group.iter().copied()
    }

    /// [`by_group`](PageTable::by_group) from one of them on.
    pub(crate) fn by_group_from(
        &self,
        from: (GroupNo, PageKey),
    ) -> impl Iterator<Item = (GroupNo, PageKey)> + '_ {
        self.by_group.range(from..).copied()
    }

    /// Sets what recovery found lost.
    pub(crate) fn set_lost_tails(&mut self, lost: BTreeMap<ObjectId, LostTail>) {
        self.lost_tails = lost;
    }

    /// Objects that a crash made shorter than their sizes say, and their first lost pages.
    pub(crate) fn lost_tails(&self) -> impl Iterator<Item = (ObjectId, PageNo)> + '_ {
        self.lost_tails.iter().map(|(&object, lost)| (object, lost.from))
    }

    /// Whether lost tails need the log.
    pub(crate) fn has_lost_tails(&self) -> bool {
        !self.lost_tails.is_empty()
    }

    /// Lost tails that the log names in a group before `limit`, and that no newer punch resolves.
    pub(crate) fn lost_tails_before(
        &self,
        limit: GroupNo,
    ) -> impl Iterator<Item = (ObjectId, LostTail)> + '_ {
        let stays = move |lost: &LostTail| !lost.is_punched && lost.group < limit;
        self.lost_tails.iter().map(|(&object, &lost)| (object, lost)).filter(move |(_, lost)| stays(lost))
    }

    /// Notes that a lost tail is durable in a newer group.
    pub(crate) fn mark_lost_tail_relogged(&mut self, object: ObjectId, group: GroupNo) {
        if let Some(lost) = self.lost_tails.get_mut(&object) {
            lost.group = group;
        }
    }

    /// Adds a lost tail that another buffer recorded.
    pub(crate) fn take_over_lost_tail(&mut self, object: ObjectId, lost: LostTail) {
        self.lost_tails.insert(object, lost);
    }

    /// Drops a lost tail: it is durable that the object is shorter, or gone.
    pub(crate) fn forget_lost_tail(&mut self, object: ObjectId) {
        self.lost_tails.remove(&object);
    }

    /// Number of bypassed pages: the buffer lacks their bytes.
    pub(crate) fn unlogged(&self) -> usize {
        self.unlogged.len()
    }

    /// Whether a page is bypassed.
    pub(crate) fn is_unlogged(&self, key: &PageKey) -> bool {
        self.unlogged.contains(key)
    }

    /// Bypassed pages in a range of keys.
    pub(crate) fn unlogged_in(&self, keys: impl RangeBounds<PageKey>) -> impl Iterator<Item = PageKey> + '_ {
        self.unlogged.range(keys)
    }

    /// Bypassed pages, with their ages.
    pub(crate) fn bypassed(&self) -> &BypassedPages {
        &self.unlogged
    }

    /// Notes that a commit begins: it makes durable what replaced bypassed pages until now.
    pub(crate) fn note_commit_begun(&mut self) {
        self.unlogged.note_commit_begun();
    }

    /// Notes that one write has just bypassed these pages.
    pub(crate) fn note_bypassed_write(&mut self, at: Duration, object: ObjectId, pages: Range<PageNo>) {
        self.unlogged.note_write(at, object, pages);
    }

    /// Notes that the buffer has the bytes of a page. Returns whether it lacked them.
    pub(crate) fn mark_page_logged(&mut self, key: PageKey) -> bool {
        let is_new = self.is_unlogged(&key);
        if is_new {
            self.change(key, CachedPage::mark_logged);
        }
        is_new
    }

    /// Dirty pages of an object at most `distance` pages from `key`, with `key` itself.
    pub(crate) fn dirty_around(&self, key: PageKey, distance: u64) -> impl Iterator<Item = PageKey> + '_ {
        let first = key.page.0.saturating_sub(distance);
        let last = key.page.0.saturating_add(distance);
        let near = self.table.range(key.object, PageNo(first)..=PageNo(last));
        near.filter(|(_, entry)| entry.is_dirty()).map(|(key, _)| key)
    }

    /// Dirty deltas among the `looks` pages of the object from `key` on. Returns none if the page `key` is whole.
    pub(crate) fn deltas_after(&self, key: PageKey, looks: usize) -> impl Iterator<Item = PageKey> + '_ {
        let is_dirty_delta = |entry: &CachedPage| entry.is_dirty() && !entry.is_whole();
        let looks = if self.get(&key).is_some_and(is_dirty_delta) { looks } else { 0 };
        let behind = self.table.range(key.object, key.page..).take(looks);
        behind.filter(move |(_, entry)| is_dirty_delta(entry)).map(|(key, _)| key)
    }

    /// Whether anything is not stored.
    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty_pages() > 0 || !self.punches.is_empty() || !self.range_ops.is_empty()
    }

    /// Number of pages with changes that are not stored, with the dependencies of range operations.
    pub(crate) fn dirty_pages(&self) -> usize {
        self.by_group.len() + self.range_ops.iter().map(|one| one.dependencies().count()).sum::<usize>()
    }

    /// When the oldest change that is not stored was made, roughly: of all pages, that which needs the oldest
    /// group counts.
    pub(crate) fn oldest_since(&self) -> Option<Duration> {
        let page = self.by_group.first().and_then(|(_, key)| self.table.get(key));
        let page = page.and_then(CachedPage::since);
        let punch = self.punches.values().flatten().map(|punch| punch.since).min();
        let transfer = self.range_ops.iter().map(|one| one.since).min();
        page.into_iter().chain(punch).chain(transfer).min()
    }

    /// Drops clean pages that were not used lately while memory is over `bytes_max`: a bounded piece of work.
    /// Returns how many.
    pub(crate) fn evict(&mut self, bytes_max: u64) -> u64 {
        let mut looks = EVICTION_LOOKS;
        let mut evicted = 0;
        if self.memory.all > bytes_max {
            looks -= self.take_discarded(looks).len();
        }
        while self.memory.all > bytes_max && looks > 0 {
            looks -= 1;
            let Some(key) = self.eviction_queue.pop_front() else { break };
            let Some(entry) = self.table.get_mut(&key) else { continue };
            if !entry.is_whole() {
                continue;
            }
            if entry.is_busy() || entry.take_used() {
                self.eviction_queue.push_back(key);
            } else {
                self.remove(key);
                evicted += 1;
            }
        }
        evicted
    }

    /// A number for a new fetch.
    pub(crate) fn next_fetch(&mut self) -> FetchNumber {
        self.fetches += 1;
        FetchNumber(self.fetches)
    }

    /// Pending punches of an object, the oldest first.
    pub(crate) fn punches_of(&self, object: ObjectId) -> &[PendingPunch] {
        self.punches.get(&object).map_or(&[], Vec::as_slice)
    }

    /// All pending punches.
    pub(crate) fn punches(&self) -> impl Iterator<Item = (ObjectId, PendingPunch)> + '_ {
        self.punches.iter().flat_map(|(&object, punches)| punches.iter().map(move |&punch| (object, punch)))
    }

    /// Number of pending punches.
    pub(crate) fn punches_pending(&self) -> usize {
        self.punches_pending
    }

    /// Whether a punch is not stored.
    pub(crate) fn is_punch_pending(&self, object: ObjectId, punch: Lsn) -> bool {
        self.punches_of(object).iter().any(|one| one.lsn == punch)
    }

    /// Drops a punch that the store has.
    pub(crate) fn forget_punch(&mut self, object: ObjectId, punch: Lsn) {
        let Some(pending) = self.punches.get_mut(&object) else { return };
        let before = pending.len();
        pending.retain(|one| one.lsn != punch);
        self.punches_pending -= before - pending.len();
        if pending.is_empty() {
            self.punches.remove(&object);
        }
    }

    /// Notes that a page's changes are durable in a newer group, too.
    pub(crate) fn mark_page_relogged(&mut self, key: PageKey, group: GroupNo) {
        if self.table.contains_key(&key) {
            self.change(key, |entry| entry.mark_relogged(group));
        }
    }

    /// Notes that a punch is durable in a newer group, too.
    pub(crate) fn mark_punch_relogged(&mut self, object: ObjectId, punch: Lsn, group: GroupNo) {
        let pending = self.punches.get_mut(&object).into_iter().flatten();
        pending.filter(|one| one.lsn == punch).for_each(|one| one.group = group);
    }

    /// Whether punched pages still take memory.
    pub(crate) fn has_discarded(&self) -> bool {
        !self.discarded.is_empty()
    }

    /// Removes a range of pages and keeps the punch until the store has it. Returns how many of the store's
    /// reservations the pages had, and the reads that waited for them, which must be retried.
    pub(crate) fn punch(&mut self, object: ObjectId, mut punch: PendingPunch) -> (u64, Vec<u64>) {
        let TakenPages { oldest, reservations, waiters } = self.take_range(object, punch.from, punch.to);
        let taken = oldest.filter(|_| !is_planted(CacheBug::CutWithoutGroups));
        punch.group = taken.map_or(punch.group, |group| group.min(punch.group));
        let pending = self.punches.entry(object).or_default();
        let before = pending.len();
        let transfers = &self.range_ops;
        pending.retain(|old| {
            // A range operation between the two needs the older punch.
            let parted = transfers.any_between(object, old.lsn..punch.lsn);
            let stays = old.from < punch.from || old.to > punch.to || parted;
            punch.group = if stays { punch.group } else { punch.group.min(old.group) };
            stays
        });
        pending.push(punch);
        self.punches_pending = self.punches_pending + pending.len() - before;
        // Relogged behind this punch, the loss would come back with it.
        let lost =
            self.lost_tails.get_mut(&object).filter(|lost| (punch.from..punch.to).contains(&lost.from));
        if let Some(lost) = lost {
            lost.is_punched = true;
        }
        (reservations, waiters)
    }

    /// Removes a range of pages.
    fn take_range(&mut self, object: ObjectId, from: PageNo, to: PageNo) -> TakenPages {
        let mut taken = TakenPages::default();
        let mut pages = self.table.take(object, from, to);
        for (&page, entry) in pages.iter_mut().filter(|(_, entry)| entry.is_busy()) {
            let before = PageAccount::of(entry);
            taken.oldest = taken.oldest.into_iter().chain(before.group).min();
            // A write-back in progress keeps its own reservation until it ends.
            let discarded = entry.discard();
            taken.reservations += u64::from(discarded.was_reserved);
            taken.waiters.extend(discarded.waiters);
            self.account(PageKey { object, page }, before, PageAccount::of(entry));
        }
        if !pages.is_empty() {
            self.discarded.push_back(pages);
        }
        taken
    }

    /// Volumes with pages, punches or range operations.
    pub(crate) fn volumes(&self) -> BTreeSet<VolumeId> {
        let objects = self.table.objects.keys().chain(self.punches.keys()).map(|object| object.volume);
        objects.chain(self.range_ops.iter().flat_map(|one| one.op.volumes())).collect()
    }

    /// Volumes with changes that are not stored.
    pub(crate) fn dirty_volumes(&self) -> BTreeSet<VolumeId> {
        let pages = self.by_group.iter().map(|(_, key)| key.object.volume);
        let punches = self.punches.keys().map(|object| object.volume);
        pages.chain(punches).chain(self.range_ops.iter().flat_map(|one| one.op.volumes())).collect()
    }

    /// Removes everything of a volume that the store has deleted. Returns what [`punch`](PageTable::punch)
    /// does.
    pub(crate) fn drop_volume(&mut self, volume: VolumeId) -> (u64, Vec<u64>) {
        let mut reservations = 0;
        let mut waiters = Vec::new();
        let all = volume.object(0, 0)..=volume.object(u64::MAX, u32::MAX);
        let objects: Vec<ObjectId> =
            self.table.objects.range(all.clone()).map(|(&object, _)| object).collect();
        for object in objects {
            let taken = self.take_range(object, PageNo(0), PageNo(u64::MAX));
            reservations += taken.reservations;
            waiters.extend(taken.waiters);
        }
        let punched: Vec<ObjectId> = self.punches.range(all).map(|(&object, _)| object).collect();
        for object in punched {
            self.punches_pending -= self.punches.remove(&object).map_or(0, |punches| punches.len());
        }
        self.lost_tails.retain(|object, _| object.volume != volume);
        let about = self.range_ops.iter().filter(|one| one.op.volumes().contains(&volume));
        let about: Vec<Lsn> = about.map(|one| one.op.lsn).collect();
        reservations += about.into_iter().map(|lsn| self.drop_range_op(lsn)).sum::<u64>();
        (reservations, waiters)
    }

    /// Whether a pending range operation must be stored before this page.
    pub(crate) fn is_blocked(&self, key: &PageKey) -> bool {
        self.range_ops.blocks_page(key.object, key.page) && !is_planted(CacheBug::TransferOvertaken)
    }

    /// Clones and moves that are not stored.
    pub(crate) fn range_ops(&self) -> &PendingRangeOps {
        &self.range_ops
    }

    /// Begins a clone or a move: removes its target's pages, and makes its dirty source pages dependencies.
    /// Returns what [`punch`](PageTable::punch) does. The operation has reservations of its own.
    pub(crate) fn begin_range_op(&mut self, mut pending: PendingRangeOp) -> (u64, Vec<u64>) {
        let transfer = pending.op.transfer;
        let source = transfer.source();
        let target = transfer.target();
        let mut taken = self.take_range(transfer.to, target.start, target.end);
        for key in self.newer_than_store(transfer.from, source.clone()) {
            let Some(mut entry) = self.table.remove(&key) else { continue };
            let before = PageAccount::of(&entry);
            self.account(key, before, PageAccount::default());
            taken.waiters.extend(entry.take_waiters());
            entry.end_fetch();
            if transfer.kind == TransferKind::Clone {
                self.keep_clean_copy(key, &entry);
            }
            self.account_dependency(&PageAccount::default(), &PageAccount::of(&entry));
            pending.add_dependency(key.page, entry);
        }
        if transfer.kind == TransferKind::Move {
            let gone = self.take_range(transfer.from, source.start, source.end);
            taken.waiters.extend(gone.waiters);
        }
        pending.oldest_group = taken.oldest.into_iter().fold(pending.oldest_group, GroupNo::min);
        self.range_ops.insert(pending);
        (taken.reservations, taken.waiters)
    }

    /// The pages of a range whose changes the store lacks. Looks through the range or through all such pages, whichever are
    /// fewer: a clone of a large file that is in memory must not hold the lock for each of its pages.
    fn newer_than_store(&self, object: ObjectId, pages: Range<PageNo>) -> Vec<PageKey> {
        let entries_max = self.table.len_of(object).min((pages.end.0 - pages.start.0) as usize);
        if entries_max <= self.by_group.len() {
            let entries = self.table.range(object, pages);
            return entries.filter(|(_, entry)| entry.oldest_group().is_some()).map(|(key, _)| key).collect();
        }
        let is_in_range = |key: &PageKey| key.object == object && pages.contains(&key.page);
        self.by_group.iter().map(|&(_, key)| key).filter(is_in_range).collect()
    }

    /// Adds a relogged range operation. The pages in the table are newer than the operation, and stay.
    pub(crate) fn insert_relogged_range_op(&mut self, pending: PendingRangeOp) {
        self.range_ops.insert(pending);
    }

    /// Keeps a clean copy of a page whose changes became a dependency, if all its bytes are in memory.
    fn keep_clean_copy(&mut self, key: PageKey, entry: &CachedPage) {
        if let PageBody::Whole(page) = entry.body() {
            let copy = CachedPage::new(PageBody::Whole(page.clone()));
            let account = PageAccount::of(&copy);
            self.table.insert(key, Box::new(copy));
            self.account(key, PageAccount::default(), account);
        }
    }

    /// Accounts for a dependency, which is in no index.
    fn account_dependency(&mut self, before: &PageAccount, after: &PageAccount) {
        self.memory.replace(&before.memory, &after.memory);
    }

    /// Where a recovered change belongs if a later range operation covers its page. `None`: into the table.
    pub(crate) fn older_change_place(&self, key: PageKey, lsn: Lsn) -> Option<OlderChangePlace> {
        self.range_ops.older_change_place(key.object, key.page, lsn)
    }

    /// Changes a dependency of a range operation.
    pub(crate) fn change_dependency<T>(
        &mut self,
        lsn: Lsn,
        page: PageNo,
        with: impl FnOnce(&mut CachedPage) -> T,
    ) -> Option<T> {
        let pending = self.range_ops.get_mut(lsn)?;
        let is_there = pending.has_dependency(page);
        let entry = pending.dependency_mut(page, || CachedPage::new(PageBody::Patch(Default::default())));
        let before = if is_there { PageAccount::of(entry) } else { PageAccount::default() };
        let result = with(entry);
        let after = PageAccount::of(entry);
        pending.oldest_group = after.group.into_iter().fold(pending.oldest_group, GroupNo::min);
        self.account_dependency(&before, &after);
        Some(result)
    }

    /// Changes the page whose change `newest` is being written back, in the table or among dependencies.
    /// `None` if it is gone.
    pub(crate) fn change_page_in_write_back<T>(
        &mut self,
        key: PageKey,
        newest: Lsn,
        with: impl FnOnce(&mut CachedPage) -> T,
    ) -> Option<T> {
        let is_it = |entry: &CachedPage| entry.writing().is_some_and(|writing| writing.newest == newest);
        if self.get(&key).is_some_and(is_it) {
            let result = self.change(key, with);
            self.drop_redundant(key);
            return Some(result);
        }
        let lsn = self.range_ops.with_dependency_in_write_back(key.object, key.page, newest)?;
        let (result, is_stored) = self.change_dependency(lsn, key.page, |entry| {
            let result = with(entry);
            (result, entry.oldest_group().is_none())
        })?;
        if is_stored {
            self.drop_stored_dependency(lsn, key.page);
        }
        Some(result)
    }

    /// Drops a dependency that the store has. Returns whether space was reserved for it.
    pub(crate) fn drop_stored_dependency(&mut self, lsn: Lsn, page: PageNo) -> bool {
        let Some(mut entry) = self.range_ops.get_mut(lsn).and_then(|pending| pending.take_dependency(page))
        else {
            return false;
        };
        self.account_dependency(&PageAccount::of(&entry), &PageAccount::default());
        entry.take_dirty_state().is_some_and(|dirt| dirt.reserved)
    }

    /// Drops a range operation that is stored or not needed. Returns its reservations with those of its
    /// dependencies.
    pub(crate) fn drop_range_op(&mut self, lsn: Lsn) -> u64 {
        let Some(pending) = self.range_ops.get(lsn) else { return 0 };
        let reserved = reserved_pages(&pending.op.transfer);
        let dependencies: Vec<PageNo> = pending.dependencies().map(|(page, _)| page).collect();
        let pages = dependencies.into_iter().filter(|&page| self.drop_stored_dependency(lsn, page)).count();
        self.range_ops.remove(lsn);
        reserved + pages as u64
    }

    /// Notes that the store lacks a recovered range operation.
    pub(crate) fn mark_range_op_new(&mut self, lsn: Lsn) {
        self.range_ops.get_mut(lsn).into_iter().for_each(|one| one.recovered = false);
    }

    /// Notes that a range operation is durable in a newer group, too.
    pub(crate) fn mark_range_op_relogged(&mut self, lsn: Lsn, group: GroupNo) {
        self.range_ops.get_mut(lsn).into_iter().for_each(|one| one.mark_relogged(group));
    }

    /// Punches of the operation's objects that are older than the operation.
    pub(crate) fn punches_before(&self, op: &RangeOp) -> Vec<(ObjectId, PendingPunch)> {
        let older = |(object, punch): &(ObjectId, PendingPunch)| punch.lsn < op.lsn && op.touches(*object);
        self.punches().filter(older).collect()
    }

    /// Adds a relogged punch. Changes that are newer than the punch stay. Returns how many of the store's
    /// reservations the removed pages had.
    pub(crate) fn insert_relogged_punch(&mut self, object: ObjectId, punch: PendingPunch) -> u64 {
        let is_older = |entry: &CachedPage| {
            let older = entry.dirty_state().is_none_or(|dirt| dirt.newest < punch.lsn);
            older || is_planted(CacheBug::MergedCutKills)
        };
        let older = self.table.range(object, punch.from..punch.to).filter(|(_, entry)| is_older(entry));
        let older: Vec<PageKey> = older.map(|(key, _)| key).collect();
        let dropped = older.into_iter().filter_map(|key| self.remove(key));
        let reservations =
            dropped.filter(|entry| entry.dirty_state().is_some_and(|dirt| dirt.reserved)).count();
        let pending = self.punches.entry(object).or_default();
        let before = pending.len();
        pending.retain(|old| old.lsn != punch.lsn);
        let at = pending.partition_point(|old| old.lsn < punch.lsn);
        pending.insert(at, punch);
        self.punches_pending = self.punches_pending + pending.len() - before;
        reservations as u64
    }

    /// The newest pending punch that covers a page.
    pub(crate) fn newest_punch_of(&self, key: PageKey) -> Option<Lsn> {
        let punches = self.punches.get(&key.object)?;
        punches
            .iter()
            .filter(|punch| punch.from <= key.page && key.page < punch.to)
            .map(|punch| punch.lsn)
            .max()
    }

    /// The bytes of a page of which the log has all bytes, whatever the store has.
    pub(crate) fn logged_page(&self, key: PageKey) -> Option<&Page> {
        self.get(&key)?.logged_bytes()
    }

    /// A page that can be overwritten with nothing but a record in the log: all its bytes are in memory, it waits
    /// to be stored, and the log has the changes for which it waits.
    pub(crate) fn overwritable(&mut self, key: &PageKey) -> Option<&mut CachedPage> {
        if is_planted(CacheBug::OverwriteBesideClone) {
            let clones = self.range_ops.touching(key.object);
            let of_page: Vec<Lsn> =
                clones.filter(|one| one.has_dependency(key.page)).map(|one| one.op.lsn).collect();
            if let Some(clone) = of_page.first().and_then(|&lsn| self.range_ops.get_mut(lsn)) {
                return Some(clone.dependency_mut(key.page, || unreachable!("it has the page")));
            }
        }
        let is_being_written =
            |entry: &CachedPage| is_planted(CacheBug::OverwriteBesideWriteBack) && entry.writing().is_some();
        let waits = |entry: &CachedPage| entry.is_dirty() || is_being_written(entry);
        self.table.get_mut(key).filter(|entry| entry.is_whole() && waits(entry) && !entry.is_unlogged())
    }

    /// Takes at most this many punched pages out of the sums. The caller frees them, best without the lock.
    pub(crate) fn take_discarded(&mut self, most: usize) -> Vec<(PageNo, Box<CachedPage>)> {
        let mut cleared = Vec::new();
        while cleared.len() < most
            && let Some(pages) = self.discarded.front_mut()
        {
            match pages.pop_first() {
                Some((page, entry)) => {
                    self.memory.replace(&PageMemory::of(&entry), &PageMemory::default());
                    cleared.push((page, entry));
                }
                None => drop(self.discarded.pop_front()),
            }
        }
        cleared
    }

    /// Whether the store was not asked yet about all recovered pages.
    pub(crate) fn has_unchecked_pages(&self) -> bool {
        self.store_check_cursor.is_some()
    }

    /// Lets the store be asked about every page of the table.
    pub(crate) fn begin_store_check(&mut self) {
        self.store_check_cursor = self.table.iter().next().map(|(key, _)| key);
    }

    /// Makes a recovered page clean if the store has its newest change. Returns whether its reservation is to
    /// be released.
    pub(crate) fn forget_if_stored(&mut self, key: PageKey, page_lsn: Lsn) -> bool {
        let dirt = self.get(&key).and_then(|entry| entry.dirty_state());
        if dirt.is_none_or(|dirt| !dirt.recovered || dirt.newest > page_lsn) {
            return false;
        }
        let was_reserved =
            self.change(key, |entry| entry.take_dirty_state().is_some_and(|dirt| dirt.reserved));
        self.drop_redundant(key);
        was_reserved
    }

    /// Removes a page of which memory has only a part, and the store all.
    fn drop_redundant(&mut self, key: PageKey) {
        if self.get(&key).is_some_and(CachedPage::is_redundant) {
            self.remove(key);
        }
    }

    /// The next recovered pages about which the store was not asked. `None` when there are no more. They are
    /// sorted, so those of one call lie near each other in the store's map.
    pub(crate) fn next_unchecked(&mut self) -> Option<Vec<PageKey>> {
        let mut looked = self.table.from(self.store_check_cursor?);
        let recovered = |entry: &CachedPage| entry.dirty_state().is_some_and(|dirt| dirt.recovered);
        let found = looked.by_ref().take(STORE_CHECK_PAGES).filter(|(_, entry)| recovered(entry));
        let keys = found.map(|(key, _)| key).collect();
        let next = looked.next().map(|(key, _)| key);
        drop(looked);
        self.store_check_cursor = next;
        Some(keys)
    }
}

/// An entry's share in indexes and sums.
#[derive(Default, PartialEq, Eq)]
struct PageAccount {
    memory: PageMemory,
    group: Option<GroupNo>,
    whole: bool,
    reservations: u32,
    unlogged: bool,
}

impl PageAccount {
    fn of(entry: &CachedPage) -> PageAccount {
        let memory = PageMemory::of(entry);
        let reservations = entry.reservations();
        let whole = entry.is_whole();
        let unlogged = entry.is_unlogged();
        PageAccount { memory, group: entry.oldest_group(), whole, reservations, unlogged }
    }
}

/// Splits bytes from `offset` on at page boundaries: (page, position in the page, range of the bytes).
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

/// Pages of one object. Boxed, so that inserting and removing moves pointers and not whole entries.
type PagesOfObject = BTreeMap<PageNo, Box<CachedPage>>;

/// Pages by object. All behind some page of an object can be removed in one piece.
#[derive(Default)]
struct ObjectTable {
    /// None of the maps is empty.
    objects: BTreeMap<ObjectId, PagesOfObject>,
    len: usize,
}

impl ObjectTable {
    fn len(&self) -> usize {
        self.len
    }

    /// The number of an object's pages.
    fn len_of(&self, object: ObjectId) -> usize {
        self.objects.get(&object).map_or(0, BTreeMap::len)
    }

    fn get(&self, key: &PageKey) -> Option<&CachedPage> {
        self.objects.get(&key.object)?.get(&key.page).map(|entry| &**entry)
    }

    fn get_mut(&mut self, key: &PageKey) -> Option<&mut CachedPage> {
        self.objects.get_mut(&key.object)?.get_mut(&key.page).map(|entry| &mut **entry)
    }

    fn contains_key(&self, key: &PageKey) -> bool {
        self.get(key).is_some()
    }

    /// The entry of a page, made if it is absent, and whether it existed.
    fn get_or_insert_with(
        &mut self,
        key: PageKey,
        new: impl FnOnce() -> CachedPage,
    ) -> (&mut CachedPage, bool) {
        match self.objects.entry(key.object).or_default().entry(key.page) {
            Place::Occupied(place) => (place.into_mut(), true),
            Place::Vacant(place) => {
                self.len += 1;
                (place.insert(Box::new(new())), false)
            }
        }
    }

    /// Inserts a page that is absent.
    fn insert(&mut self, key: PageKey, entry: Box<CachedPage>) {
        let before = self.objects.entry(key.object).or_default().insert(key.page, entry);
        self.len += usize::from(before.is_none());
    }

    fn remove(&mut self, key: &PageKey) -> Option<Box<CachedPage>> {
        let pages = self.objects.get_mut(&key.object)?;
        let entry = pages.remove(&key.page)?;
        self.len -= 1;
        if pages.is_empty() {
            self.objects.remove(&key.object);
        }
        Some(entry)
    }

    /// Pages of an object, in order.
    fn range(
        &self,
        object: ObjectId,
        pages: impl RangeBounds<PageNo>,
    ) -> impl Iterator<Item = (PageKey, &CachedPage)> {
        let found = self
            .objects
            .get(&object)
            .into_iter()
            .flat_map(move |all| all.range((pages.start_bound().cloned(), pages.end_bound().cloned())));
        found.map(move |(&page, entry)| (PageKey { object, page }, &**entry))
    }

    /// All pages from `key` on, in order.
    fn from(&self, key: PageKey) -> impl Iterator<Item = (PageKey, &CachedPage)> {
        let later = (Bound::Excluded(key.object), Bound::Unbounded);
        let later = self
            .objects
            .range(later)
            .flat_map(|(&object, pages)| pages.iter().map(move |page| (object, page)));
        let later = later.map(|(object, (&page, entry))| (PageKey { object, page }, &**entry));
        self.range(key.object, key.page..).chain(later)
    }

    fn iter(&self) -> impl Iterator<Item = (PageKey, &CachedPage)> {
        let pages =
            self.objects.iter().flat_map(|(&object, pages)| pages.iter().map(move |page| (object, page)));
        pages.map(|(object, (&page, entry))| (PageKey { object, page }, &**entry))
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (PageKey, &mut CachedPage)> {
        let pages = self
            .objects
            .iter_mut()
            .flat_map(|(&object, pages)| pages.iter_mut().map(move |page| (object, page)));
        pages.map(|(object, (&page, entry))| (PageKey { object, page }, &mut **entry))
    }

    /// Removes the pages of an object from `from` up to, not including, `to`. If none lies behind, that takes
    /// hardly longer for more pages; otherwise they are removed one by one.
    fn take(&mut self, object: ObjectId, from: PageNo, to: PageNo) -> PagesOfObject {
        let Some(pages) = self.objects.get_mut(&object) else { return PagesOfObject::new() };
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
        let mut pages = PageTable::default();
        let mut recovered = Vec::new();
        for number in 0..3 * STORE_CHECK_PAGES as u64 {
            let object = VolumeId::MAIN.object(number % 3, 7);
            let key = PageKey { object, page: PageNo(number) };
            let was_found = number % 5 != 0;
            pages.change(key, |entry| {
                entry.write(0, b"weir");
                entry.mark_dirty(0..4, Lsn(1), GroupNo(1), || {
                    DirtyState::new(Lsn(1), GroupNo(1), Duration::ZERO, was_found)
                });
            });
            recovered.extend(was_found.then_some(key));
        }
        assert_eq!(pages.next_unchecked(), None, "nothing was found in the buffer");
        pages.begin_store_check();
        let asked: Vec<Vec<PageKey>> = std::iter::from_fn(|| pages.next_unchecked()).collect();
        recovered.sort();
        assert_eq!(asked.concat(), recovered);
        assert_eq!(asked.len(), 3, "a bounded piece at a time");
    }

    #[test]
    fn pages_newer_than_the_store_are_found_whichever_way_is_shorter() {
        let mut pages = PageTable::default();
        let object = VolumeId::MAIN.object(1, 1);
        let other = VolumeId::MAIN.object(2, 1);
        let dirty = |pages: &mut PageTable, object, page| {
            pages.change(PageKey { object, page: PageNo(page) }, |entry| {
                entry.write(0, b"weir");
                let first = || DirtyState::new(Lsn(1), GroupNo(1), Duration::ZERO, false);
                entry.mark_dirty(0..4, Lsn(1), GroupNo(1), first);
            });
        };
        for page in 0..40 {
            let clean = CachedPage::new(PageBody::Whole(std::sync::Arc::new(device::Page::zeroed())));
            pages.table.insert(PageKey { object, page: PageNo(page) }, Box::new(clean));
        }
        [3, 7, 30].into_iter().for_each(|page| dirty(&mut pages, object, page));
        let found = |pages: &PageTable, range: Range<u64>| {
            let mut found = pages.newer_than_store(object, PageNo(range.start)..PageNo(range.end));
            found.sort();
            found.into_iter().map(|key| key.page.0).collect::<Vec<_>>()
        };
        for others in [0, 100] {
            (0..others).for_each(|page| dirty(&mut pages, other, page));
            assert_eq!(found(&pages, 0..u64::MAX), [3, 7, 30]);
            assert_eq!(found(&pages, 3..30), [3, 7]);
            assert_eq!(found(&pages, 8..10), []);
        }
    }
}
