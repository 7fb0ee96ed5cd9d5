//! Recovery: deltas in memory are made again of what the buffer has and the store lacks.
//!
//! [`RecoveredBuffer::read`] replays the log into a page table, and asks the store nothing.
//! [`Cache::begin`](crate::Cache::begin) then puts the table above the store.
//! Nothing is written before step 5, and a crash in any step leaves a state from which recovery can run
//! again.
//!
//! 1. [`ensure_fits`](RecoveredBuffer::ensure_fits) compares the newest LSNs, incarnations and batches of
//!    both media. First, because any write would make a wrong pair look like a right one.
//! 2. [`forget_deleted`](RecoveredBuffer::forget_deleted) drops what is about volumes that the store has
//!    deleted. Before 3, since the store cannot be asked about their pages, and before 4, since they need no
//!    space.
//! 3. [`resolve_bypassed`](RecoveredBuffer::resolve_bypassed) asks the store which bypassed pages it has.
//!    Before any write: the answer must be about the store as the crash left it, and an error ends the start
//!    with nothing changed.
//! 4. `StoreSpaceAccount::reserve_unchecked` reserves space for every recovered page and range operation.
//!    After 2 and 3, which drop some; before the first write to the store, so that nothing else takes the
//!    space (invariant 6).
//! 5. `Store::begin_after` makes a new incarnation durable in the store. Before 6: a buffer that knows of a
//!    mount which its store does not know is refused by step 1 as the buffer of a newer store (invariant 8).
//! 6. `Buffer::begin_incarnation` makes the same incarnation durable in the buffer. New LSNs begin above the
//!    newest ones of both media. From here on both accept changes.
//! 7. `delete_unfinished` deletes the volumes of rescues that a crash cut off. After 5, since it writes to
//!    the store.
//! 8. `log_reverted` logs pages again that lost their bypassed bytes in the crash. After 6, since it appends;
//!    before 9 and before any client, since the log must have the bytes of such a page before the page changes
//!    again. If the buffer is full, everything is written back instead.
//! 9. `store_recovered_range_ops` stores clones and moves. After 5 and 6, since it writes to both media;
//!    before any client, since reads of their targets wait for them.
//! 10. `release_groups` frees the groups of all that was found stored. No write-back will do it for them.
//!
//! Then the mount is ready. Step by step, write-back asks the store about the other recovered pages
//! ([`clean_stored_pages`]), and `fs` ends objects with [lost tails](crate::Cache::lost_tails).

use crate::bypass_recovery::BypassRecovery;
use crate::error::CacheError;
use crate::page::{CachedPage, DirtyState};
use crate::page_table::{PageChange, PageKey, PageTable, PendingPunch};
use crate::planted_bug::{CacheBug, is_planted};
use crate::range_ops::{OlderChangePlace, PendingRangeOp, RangeOp, reserved_pages};
use crate::state::{CacheShared, CacheState};
use buffer::{Buffer, GroupNo, LogRecord, ReplayedTransaction};
use device::{BLOCK_BYTES, BufferId, Clock, Device, Lsn, ObjectId, PageNo, PageTransfer, StoreId};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::{Store, VolumeId};

/// The contents of a buffer, in memory. The store was not asked anything yet.
pub struct RecoveredBuffer {
    buffer: Buffer,
    pages: PageTable,
    /// Bypassed pages.
    bypasses: BypassRecovery,
    /// Number of transactions found.
    replayed: u64,
    /// Pages for which the store has to keep space.
    reserved: u64,
}

impl RecoveredBuffer {
    /// Makes deltas of the records in the buffer of the store `id`. They are as old as the time of `clock`.
    /// Writes nothing.
    ///
    /// # Errors
    /// Those of [`Buffer::open`]: the buffer is missing, damaged, newer or another store's.
    pub fn read(
        device: Arc<dyn Device>,
        id: StoreId,
        clock: &dyn Clock,
    ) -> Result<RecoveredBuffer, CacheError> {
        let mut recovery = BufferReplay::new(clock.monotonic());
        if is_planted(CacheBug::VolumesOfTwoMoments) {
            Buffer::open(device.clone(), id, &mut |transactions| {
                recovery.of_one_volume = transactions.first().map(|transaction| transaction.group);
            })?;
        }
        let replay = &mut |transactions: &[ReplayedTransaction<'_>]| recovery.replay(transactions);
        let buffer = Buffer::open(device, id, replay)?;
        Ok(recovery.finish(buffer))
    }

    #[cfg(feature = "planted-bugs")]
    /// [`read`](RecoveredBuffer::read) with a buffer that breaks a rule when it recovers.
    pub fn read_with_bug(
        device: Arc<dyn Device>,
        id: StoreId,
        clock: &dyn Clock,
        bug: buffer::BufferBug,
    ) -> Result<RecoveredBuffer, CacheError> {
        let mut recovery = BufferReplay::new(clock.monotonic());
        let replay = &mut |transactions: &[ReplayedTransaction<'_>]| recovery.replay(transactions);
        let buffer = Buffer::open_with_bug(device, id, replay, bug)?;
        Ok(recovery.finish(buffer))
    }

    /// Checks that `store` is as new as this buffer, and this buffer as new as the store. A daemon that
    /// writes to a store with a buffer asks first: afterwards the store would look newer than it is.
    ///
    /// # Errors
    /// A store that is [ahead](CacheError::StaleBuffer) of the buffer, or an [older
    /// copy](CacheError::StaleStore).
    ///
    /// # Panics
    /// If the buffer is another store's.
    pub fn ensure_fits(&self, store: &Store) -> Result<(), CacheError> {
        assert_eq!(self.buffer.store_id(), store.id(), "a buffer above a store that is not its own");
        // A page is written back only when its changes are durable in the buffer.
        let of_store = store.data().newest_logged_lsn();
        let of_buffer = self.buffer.newest_lsn();
        if of_buffer < of_store {
            return Err(CacheError::StaleBuffer { buffer: of_buffer, store: of_store });
        }
        // Each mount is durable in the store first. Within a mount, what the buffer released names the
        // store's batch that had it.
        let pairs = [
            ("mount", store.incarnation().0, self.buffer.incarnation().0),
            ("batch", store.data().durable_batch(), self.buffer.store_batch()),
        ];
        match pairs.into_iter().find(|&(_, store, buffer)| store < buffer) {
            Some((what, store, buffer)) => Err(CacheError::StaleStore { what, store, buffer }),
            None => Ok(()),
        }
    }

    /// Drops what is about volumes that the store has deleted.
    pub(crate) fn forget_deleted(&mut self, store: &Store) {
        if is_planted(CacheBug::DeletedVolumeReplayed) {
            return;
        }
        let there: Vec<VolumeId> = store.volumes().all().into_iter().map(|(volume, _)| volume).collect();
        for volume in self.pages.volumes().into_iter().filter(|volume| !there.contains(volume)) {
            self.reserved -= self.pages.drop_volume(volume).0;
        }
        self.bypasses.retain_volumes(|volume| there.contains(&volume));
    }

    /// Asks the store about bypassed pages. If it has something newer than older records make of a page,
    /// drops those. Sets [lost tails](crate::Cache::lost_tails) of objects that grew with pages which the
    /// store lacks. Returns reverted pages: the log must say what they are before they change again.
    pub(crate) fn resolve_bypassed(&mut self, store: &Store) -> Result<Vec<PageKey>, CacheError> {
        for key in self
            .bypasses
            .newer_in_store(store)?
            .into_iter()
            .filter(|_| !is_planted(CacheBug::OlderOverBypassed))
        {
            self.reserved -= drop_page(&mut self.pages, key);
        }
        self.pages.set_lost_tails(self.bypasses.lost_tails(store)?);
        let named = std::mem::take(&mut self.bypasses);
        Ok(named
            .over_older_records()
            .filter(|key| self.pages.get(key).is_some_and(CachedPage::is_dirty))
            .collect())
    }

    /// The buffer, the state, and the number of pages for which the store has to keep space.
    pub(crate) fn into_parts(self, store: Arc<Store>) -> (Arc<Buffer>, CacheState, u64) {
        let buffer = Arc::new(self.buffer);
        (buffer.clone(), CacheState::new(store, buffer, self.pages, self.replayed), self.reserved)
    }

    /// Identifies the buffer.
    pub fn buffer_id(&self) -> BufferId {
        self.buffer.buffer_id()
    }

    /// The highest LSN in the buffer.
    pub fn newest_lsn(&self) -> Lsn {
        self.buffer.newest_lsn()
    }

    /// The store's last batch that the buffer knows to be durable.
    pub fn store_batch(&self) -> u64 {
        self.buffer.store_batch()
    }
}

/// Replays the buffer's transactions, in the order of the log, into a page table that is not shared yet.
struct BufferReplay {
    pages: PageTable,
    bypasses: BypassRecovery,
    replayed: u64,
    /// Pages to be written back. Space was reserved for each before the crash.
    reserved: u64,
    now: Duration,
    /// Planted: the group of which only one volume's new changes are replayed.
    of_one_volume: Option<GroupNo>,
}

impl BufferReplay {
    fn new(now: Duration) -> BufferReplay {
        BufferReplay {
            pages: PageTable::default(),
            bypasses: BypassRecovery::default(),
            replayed: 0,
            reserved: 0,
            now,
            of_one_volume: None,
        }
    }

    /// Ends the replay of the log.
    fn finish(mut self, buffer: Buffer) -> RecoveredBuffer {
        self.pages.begin_store_check();
        let BufferReplay { pages, bypasses: named, replayed, reserved, .. } = self;
        RecoveredBuffer { buffer, pages, bypasses: named, replayed, reserved }
    }

    /// Replays the transactions of one group.
    fn replay(&mut self, transactions: &[ReplayedTransaction<'_>]) {
        let planted = |one: &&ReplayedTransaction<'_>| Some(one.group) == self.of_one_volume && !one.relogged;
        let volume = transactions.iter().find(planted).map(volume_of);
        for transaction in transactions {
            if volume.is_none_or(|volume| transaction.relogged || volume_of(transaction) == volume) {
                self.transaction(transaction);
            }
        }
    }

    fn transaction(&mut self, transaction: &ReplayedTransaction<'_>) {
        self.replayed += 1;
        let first = transaction.first_lsn;
        let group = transaction.group;
        if let [LogRecord::Transfer(_), pages @ ..] = transaction.records
            && transaction.relogged
            && !pages.is_empty()
        {
            // Older pages of the source. If the log begins behind their range operation, the store has both.
            if self.pages.range_ops().get(first).is_some() {
                pages.iter().for_each(|record| self.record(record, Lsn(first.0 - 1), group));
            }
            return;
        }
        for (record, index) in transaction.records.iter().zip(0..) {
            if transaction.relogged {
                self.relogged_record(record, first, group)
            } else {
                self.record(record, first.plus(index), group)
            }
        }
    }

    fn record(&mut self, record: &LogRecord<'_>, at: Lsn, group: GroupNo) {
        match *record {
            LogRecord::Write { object, page, start, bytes } => {
                let start = usize::from(start);
                self.page(PageKey { object, page }, start..start + bytes.len(), at, group, Some(bytes))
            }
            LogRecord::Zero { object, page, start, len } => {
                let start = usize::from(start);
                self.page(PageKey { object, page }, start..start + usize::from(len), at, group, None)
            }
            LogRecord::Punch { object, from, to } => self.punch(object, from, to, false, at, group),
            LogRecord::Delete { object } => self.punch(object, PageNo(0), PageNo(u64::MAX), true, at, group),
            LogRecord::Transfer(_) => self.range_op(record, at, group),
            LogRecord::Bypassed { object, from, to, extends_file: grows } => {
                self.bypassed(object, from..to, grows, at, group)
            }
        }
    }

    /// A relogged record: it could not be written back, so newer records may stand before it.
    fn relogged_record(&mut self, record: &LogRecord<'_>, at: Lsn, group: GroupNo) {
        let (object, from, to, whole_object) = match *record {
            LogRecord::Punch { object, from, to } => (object, from, to, false),
            LogRecord::Delete { object } => (object, PageNo(0), PageNo(u64::MAX), true),
            // The first copy counts, with the groups that it needs.
            LogRecord::Transfer(_) if self.pages.range_ops().get(at).is_some() => return,
            LogRecord::Transfer(_) => return self.relogged_range_op(record, at, group),
            _ => return self.record(record, at, group),
        };
        let punch =
            PendingPunch { from, to, lsn: at, group, whole_object, since: self.now, is_relogged: true };
        self.bypasses.note_punch(object, from..to, at);
        self.reserved -= self.pages.insert_relogged_punch(object, punch);
    }

    /// A change of one page. The store may have it already, but is not asked now: that would be one read for
    /// each page that the log names. It is asked when the mount is ready. Until then the change is laid over
    /// what the store has, which is right either way: every later change of the page is in the log, too,
    /// except bypassed ones.
    fn page(
        &mut self,
        key: PageKey,
        range: std::ops::Range<usize>,
        at: Lsn,
        group: GroupNo,
        bytes: Option<&[u8]>,
    ) {
        let place = self.pages.older_change_place(key, at).filter(|_| !is_planted(CacheBug::MergedByPlace));
        let is_newest = place.is_none() && !self.bypasses.is_empty();
        if is_newest && self.bypasses.note_logged_write(key) && range.len() < BLOCK_BYTES {
            self.reserved -= drop_page(&mut self.pages, key);
        }
        let reserved = &mut self.reserved;
        let now = self.now;
        let change = |entry: &mut CachedPage| {
            PageChange { key, range, bytes, newest: at, group, is_bypassing: false }.make(entry, || {
                *reserved += 1;
                DirtyState::new(at, group, now, true)
            });
        };
        match place {
            Some(OlderChangePlace::DependencyOf(transfer)) => {
                self.pages.change_dependency(transfer, key.page, change);
                return;
            }
            Some(OlderChangePlace::Overwritten) => return,
            None => {}
        }
        self.pages.change(key, change);
    }

    /// Bypassed pages, whose bytes are not in the log.
    fn bypassed(&mut self, object: ObjectId, pages: Range<PageNo>, grows: bool, at: Lsn, group: GroupNo) {
        if grows {
            self.bypasses.note_growth(object, pages.clone(), at, group);
        }
        for page in (pages.start.0..pages.end.0).map(PageNo) {
            let key = PageKey { object, page };
            if self.pages.get(&key).is_some() {
                self.bypasses.note_over_older_records(key, at);
            }
        }
    }

    /// A clone or a move. The store is asked later whether it has it.
    fn range_op(&mut self, record: &LogRecord<'_>, at: Lsn, group: GroupNo) {
        let Some(op) = RangeOp::of(record, at) else { return };
        let PageTransfer { from, to, .. } = op.transfer;
        for key in self.bypasses.note_range_op_source(from, op.transfer.source(), at) {
            self.reserved -= drop_page(&mut self.pages, key);
        }
        self.bypasses.note_punch(to, op.transfer.target(), at);
        self.reserved += reserved_pages(&op.transfer);
        let (reservations, _) = self.pages.begin_range_op(PendingRangeOp::new(op, group, self.now, true));
        self.reserved -= reservations;
    }

    /// A relogged clone or move. The order of the log is not that of the LSNs here: its older changes follow
    /// it, and newer ones may precede it.
    fn relogged_range_op(&mut self, record: &LogRecord<'_>, at: Lsn, group: GroupNo) {
        let Some(op) = RangeOp::of(record, at) else { return };
        if is_planted(CacheBug::MergedByPlace) {
            return self.range_op(record, at, group);
        }
        self.reserved += reserved_pages(&op.transfer);
        self.pages.insert_relogged_range_op(PendingRangeOp::new(op, group, self.now, true));
    }

    fn punch(
        &mut self,
        object: ObjectId,
        from: PageNo,
        to: PageNo,
        whole_object: bool,
        at: Lsn,
        group: GroupNo,
    ) {
        let punch =
            PendingPunch { from, to, lsn: at, group, whole_object, since: self.now, is_relogged: false };
        self.bypasses.note_punch(object, from..to, at);
        let (reservations, _) = self.pages.punch(object, punch);
        self.reserved -= reservations;
    }
}

/// The volume that a transaction changes.
fn volume_of(transaction: &ReplayedTransaction<'_>) -> Option<VolumeId> {
    let object = match *transaction.records.first()? {
        LogRecord::Write { object, .. }
        | LogRecord::Zero { object, .. }
        | LogRecord::Punch { object, .. }
        | LogRecord::Delete { object }
        | LogRecord::Bypassed { object, .. } => object,
        LogRecord::Transfer(transfer) => transfer.to,
    };
    Some(object.volume)
}

/// Removes a page. Returns the number of its reservations in the store.
fn drop_page(pages: &mut PageTable, key: PageKey) -> u64 {
    let entry = pages.remove(key);
    u64::from(entry.is_some_and(|entry| entry.dirty_state().is_some_and(|dirt| dirt.reserved)))
}

/// Asks the store about some recovered pages, and makes those clean that it has. `false` if none are left.
/// Each page is asked about once: if the store cannot tell, the page is written back like any other.
pub(crate) fn clean_stored_pages(shared: &CacheShared) -> bool {
    let Some(keys) = shared.state().pages.next_unchecked() else { return false };
    let asked: Vec<(ObjectId, PageNo)> = keys.iter().map(|key| (key.object, key.page)).collect();
    let page_lsns = shared.store_io().data().page_lsns(&asked);
    let mut state = shared.state();
    for (key, page_lsn) in keys.into_iter().zip(page_lsns) {
        if let Ok(Some(page_lsn)) = page_lsn {
            let was_reserved = state.pages.forget_if_stored(key, page_lsn);
            state.space.release(u64::from(was_reserved));
        }
    }
    state.release_groups();
    true
}
