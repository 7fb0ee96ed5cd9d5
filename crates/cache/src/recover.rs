//! Opening: what the buffer holds and the store does not becomes deltas again.

use crate::commit::Committer;
use crate::error::CacheError;
use crate::gather::Gathered;
use crate::named::Named;
use crate::page::{Dirt, Entry};
use crate::pages::{Key, PageChange, Pages, PendingCut};
use crate::plant::{PlantedBug, is_planted};
use crate::shared::{Shared, State};
use crate::transfers::{Belongs, Ordered, Pending, pages_reserved};
use buffer::{Buffer, GroupNo, LogRecord, ReplayedTransaction};
use device::{BLOCK_BYTES, BufferId, Clock, Device, Lsn, ObjectId, PageNo, PageTransfer, StoreId};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::{Store, VolumeId};

/// What a buffer holds, in memory. The store below it was not looked at yet: both may be read at the same time.
pub struct Recovered {
    buffer: Buffer,
    pages: Pages,
    /// Pages that bypassed the buffer.
    named: Named,
    /// Transactions that were found.
    replayed: u64,
    /// Pages for which the store has to keep space.
    reserved: u64,
}

impl Recovered {
    /// Turns the records in the buffer of the store `id` into deltas, as old as `clock` says it is now. Writes nothing.
    ///
    /// # Errors
    /// What [`Buffer::open`] says of one that is missing, damaged, newer or another store's.
    pub fn read(device: Arc<dyn Device>, id: StoreId, clock: &dyn Clock) -> Result<Recovered, CacheError> {
        Recovered::read_through(&*device.clone(), device, id, clock)
    }

    /// The same, where the records are read from `reader`: the same medium, maybe read ahead. It is needed no more on return.
    ///
    /// # Errors
    /// Those of `read`.
    pub fn read_through(
        reader: &dyn Device,
        device: Arc<dyn Device>,
        id: StoreId,
        clock: &dyn Clock,
    ) -> Result<Recovered, CacheError> {
        let mut recovery = Recovery::new(clock.monotonic());
        let replay = &mut |transactions: &[ReplayedTransaction<'_>]| recovery.replay(transactions);
        let buffer = Buffer::open_through(reader, device, id, replay)?;
        Ok(recovery.finish(buffer))
    }

    #[cfg(feature = "planted-bugs")]
    /// [`read`](Recovered::read) with a buffer that breaks a rule when it recovers.
    pub fn read_with_bug(
        device: Arc<dyn Device>,
        id: StoreId,
        clock: &dyn Clock,
        bug: buffer::BufferBug,
    ) -> Result<Recovered, CacheError> {
        let mut recovery = Recovery::new(clock.monotonic());
        let replay = &mut |transactions: &[ReplayedTransaction<'_>]| recovery.replay(transactions);
        let buffer = Buffer::open_with_bug(device, id, replay, bug)?;
        Ok(recovery.finish(buffer))
    }

    /// Whether `store` is as new as this buffer, and this buffer as new as the store. A daemon that writes to a store above which there is a
    /// buffer asks first: afterwards it would look newer than it is.
    ///
    /// # Errors
    /// A store that is [ahead](CacheError::StaleBuffer) of the buffer, or an [older
    /// copy](CacheError::StaleStore).
    ///
    /// # Panics
    /// If the buffer is another store's.
    pub fn ensure_fits(&self, store: &Store) -> Result<(), CacheError> {
        assert_eq!(self.buffer.store_id(), store.id(), "a buffer above a store that is not its own");
        // A page is written back when its changes are durable in the buffer, never before.
        let (of_store, of_buffer) = (store.newest_logged_lsn(), self.buffer.newest_lsn());
        if of_buffer < of_store {
            return Err(CacheError::StaleBuffer { buffer: of_buffer, store: of_store });
        }
        // Each mount is durable in the store first; and within one, what was let go names the batch of the store that had it.
        let pairs = [
            ("mount", store.incarnation().0, self.buffer.incarnation().0),
            ("batch", store.durable_batch(), self.buffer.store_batch()),
        ];
        match pairs.into_iter().find(|&(_, store, buffer)| store < buffer) {
            Some((what, store, buffer)) => Err(CacheError::StaleStore { what, store, buffer }),
            None => Ok(()),
        }
    }

    /// Forgets what is about volumes that the store does not have: they were deleted.
    pub(crate) fn forget_deleted(&mut self, store: &Store) {
        let there: Vec<VolumeId> = store.volumes().into_iter().map(|(volume, _)| volume).collect();
        for volume in self.pages.volumes().into_iter().filter(|volume| !there.contains(volume)) {
            self.reserved -= self.pages.drop_volume(volume).0;
        }
        self.named.keep(|volume| there.contains(&volume));
    }

    /// Asks the store about pages that bypassed the buffer: what older records make of them is dropped, where it has something newer,
    /// and objects that grew with pages which it does not have are [lost](crate::Cache::lost) behind that. Returns pages that are what
    /// older records make of them: before they change again, the log must say so.
    pub(crate) fn settle_bypassed(&mut self, store: &Store) -> Result<Vec<Key>, CacheError> {
        for key in self.named.stale(store)?.into_iter().filter(|_| !is_planted(PlantedBug::OlderOverBypassed))
        {
            self.reserved -= drop_page(&mut self.pages, key);
        }
        self.pages.set_lost(self.named.lost(store)?);
        let named = std::mem::take(&mut self.named);
        Ok(named.overtaken().filter(|key| self.pages.get(key).is_some_and(Entry::is_dirty)).collect())
    }

    /// The buffer, what was in it, and for how many pages the store has to keep space.
    pub(crate) fn into_parts(self) -> (Buffer, State, u64) {
        (self.buffer, State::recovered(self.pages, self.replayed), self.reserved)
    }

    /// Which buffer it is.
    pub fn buffer_id(&self) -> BufferId {
        self.buffer.buffer_id()
    }

    /// The last batch of the store of which the buffer knows that it was durable.
    pub fn store_batch(&self) -> u64 {
        self.buffer.store_batch()
    }
}

/// Puts the buffer's transactions, in the order of the log, into a page table that is not shared yet.
struct Recovery {
    pages: Pages,
    /// Pages that are on their way into the table.
    gathered: Gathered,
    named: Named,
    replayed: u64,
    /// Pages that are to be written back. Space was reserved for each before the crash.
    reserved: u64,
    now: Duration,
}

impl Recovery {
    fn new(now: Duration) -> Recovery {
        let (pages, gathered, named) = Default::default();
        Recovery { pages, gathered, named, replayed: 0, reserved: 0, now }
    }

    /// Once the whole log was replayed.
    fn finish(mut self, buffer: Buffer) -> Recovered {
        self.gathered.settle(&mut self.pages);
        self.pages.begin_to_ask();
        let Recovery { pages, named, replayed, reserved, .. } = self;
        Recovered { buffer, pages, named, replayed, reserved }
    }

    /// Takes the transactions of one group.
    fn replay(&mut self, transactions: &[ReplayedTransaction<'_>]) {
        transactions.iter().for_each(|transaction| self.transaction(transaction));
    }

    fn transaction(&mut self, transaction: &ReplayedTransaction<'_>) {
        self.replayed += 1;
        let (first, group) = (transaction.first_lsn, transaction.group);
        if let [LogRecord::Clone(_) | LogRecord::Move(_), pages @ ..] = transaction.records
            && transaction.relogged
            && !pages.is_empty()
        {
            // Older pages of the source. Where the log begins behind what they belong to, the store has that, and them.
            if self.pages.transfers().get(first).is_some() {
                pages.iter().for_each(|record| self.record(record, Lsn(first.0 - 1), group));
            }
            return;
        }
        for (record, index) in transaction.records.iter().zip(0..) {
            match transaction.relogged {
                true => self.merged_record(record, first, group),
                false => self.record(record, first.plus(index), group),
            }
        }
    }

    fn record(&mut self, record: &LogRecord<'_>, at: Lsn, group: GroupNo) {
        match *record {
            LogRecord::Write { object, page, start, bytes } => {
                let start = usize::from(start);
                self.page(Key { object, page }, start..start + bytes.len(), at, group, Some(bytes))
            }
            LogRecord::Zero { object, page, start, len } => {
                let start = usize::from(start);
                self.page(Key { object, page }, start..start + usize::from(len), at, group, None)
            }
            LogRecord::Punch { object, from, to } => self.cut(object, from, to, false, at, group),
            LogRecord::Delete { object } => self.cut(object, PageNo(0), PageNo(u64::MAX), true, at, group),
            LogRecord::Clone(_) | LogRecord::Move(_) => self.transfer(record, at, group),
            LogRecord::Bypassed { object, from, to, extends_file: grows } => {
                self.bypassed(object, from..to, grows, at, group)
            }
        }
    }

    /// One that was written to the log again, as it could not be written back: newer ones may stand before it.
    fn merged_record(&mut self, record: &LogRecord<'_>, at: Lsn, group: GroupNo) {
        let (object, from, to, whole_object) = match *record {
            LogRecord::Punch { object, from, to } => (object, from, to, false),
            LogRecord::Delete { object } => (object, PageNo(0), PageNo(u64::MAX), true),
            // The first copy of it counts, and the groups that it needs.
            LogRecord::Clone(_) | LogRecord::Move(_) if self.pages.transfers().get(at).is_some() => return,
            LogRecord::Clone(_) | LogRecord::Move(_) => return self.merged_transfer(record, at, group),
            _ => return self.record(record, at, group),
        };
        let cut = PendingCut { from, to, lsn: at, group, whole_object, since: self.now, logged_again: true };
        self.gathered.settle(&mut self.pages);
        self.named.cut(object, from..to, at);
        self.reserved -= self.pages.cut_again(object, cut);
    }

    /// A change of one page. The store may have it already, and is not asked now, which would be a read for each page that
    /// the log names; it is once the mount is ready. Until then the change is laid over what the store has,
    /// which is right either way: every later change of the page is in the log, too, but for those that bypassed the buffer.
    fn page(
        &mut self,
        key: Key,
        range: std::ops::Range<usize>,
        at: Lsn,
        group: GroupNo,
        bytes: Option<&[u8]>,
    ) {
        let place = self.pages.place_of(key, at).filter(|_| !is_planted(PlantedBug::MergedByPlace));
        let is_newest = place.is_none() && !self.named.is_empty();
        if is_newest && self.named.was_written(key) && range.len() < BLOCK_BYTES {
            self.gathered.settle(&mut self.pages);
            self.reserved -= drop_page(&mut self.pages, key);
        }
        let (reserved, now) = (&mut self.reserved, self.now);
        let change = |entry: &mut Entry| {
            PageChange { key, range, bytes, newest: at, group, is_bypassing: false }.make(entry, || {
                *reserved += 1;
                Dirt::first(at, group, now, true)
            });
        };
        match place {
            Some(Belongs::Before(transfer)) => {
                self.pages.change_beside(transfer, key.page, change);
                return;
            }
            Some(Belongs::Nowhere) => return,
            None => {}
        }
        if self.gathered.contains(key) || self.pages.get(&key).is_none() {
            self.gathered.change(key, at, group, change);
        } else {
            self.pages.change(key, change);
        }
    }

    /// Pages whose bytes are not here.
    fn bypassed(&mut self, object: ObjectId, pages: Range<PageNo>, grows: bool, at: Lsn, group: GroupNo) {
        if grows {
            self.named.grew(object, pages.clone(), at, group);
        }
        for page in (pages.start.0..pages.end.0).map(PageNo) {
            let key = Key { object, page };
            if self.gathered.contains(key) || self.pages.get(&key).is_some() {
                self.named.overtook(key, at);
            }
        }
    }

    /// Once the store can be asked, it is, whether it has it.
    fn transfer(&mut self, record: &LogRecord<'_>, at: Lsn, group: GroupNo) {
        let Some(what) = Ordered::of(record, at) else { return };
        self.gathered.settle(&mut self.pages);
        let PageTransfer { from, to, .. } = what.transfer;
        for key in self.named.were_shared(from, what.transfer.source(), at) {
            self.reserved -= drop_page(&mut self.pages, key);
        }
        self.named.cut(to, what.transfer.target(), at);
        self.reserved += pages_reserved(&what.transfer);
        let (reservations, _) = self.pages.transfer(Pending::new(what, group, self.now, true));
        self.reserved -= reservations;
    }

    /// One that was written to the log again: what it is newer than comes behind it, and what stands before it is newer.
    fn merged_transfer(&mut self, record: &LogRecord<'_>, at: Lsn, group: GroupNo) {
        let Some(what) = Ordered::of(record, at) else { return };
        if is_planted(PlantedBug::MergedByPlace) {
            return self.transfer(record, at, group);
        }
        self.gathered.settle(&mut self.pages);
        self.reserved += pages_reserved(&what.transfer);
        self.pages.transfer_again(Pending::new(what, group, self.now, true));
    }

    fn cut(
        &mut self,
        object: ObjectId,
        from: PageNo,
        to: PageNo,
        whole_object: bool,
        at: Lsn,
        group: GroupNo,
    ) {
        let cut = PendingCut { from, to, lsn: at, group, whole_object, since: self.now, logged_again: false };
        self.gathered.settle(&mut self.pages);
        self.named.cut(object, from..to, at);
        let (reservations, _) = self.pages.cut(object, cut);
        self.reserved -= reservations;
    }
}

/// Returns how many of the store's reservations it had.
fn drop_page(pages: &mut Pages, key: Key) -> u64 {
    let entry = pages.remove(key);
    u64::from(entry.is_some_and(|entry| entry.dirt().is_some_and(|dirt| dirt.reserved)))
}

/// Asks the store about some of the pages that were found in the buffer, and makes those clean that are stored; `false`
/// if none are left. Each is asked about once: one about which the store cannot tell is written back like any other.
pub(crate) fn ask_the_store(shared: &Shared, committer: &Committer) -> bool {
    let Some(keys) = shared.state().pages.next_recovered() else { return false };
    let asked: Vec<(ObjectId, PageNo)> = keys.iter().map(|key| (key.object, key.page)).collect();
    let page_lsns = shared.store_io().page_lsns(&asked);
    let mut state = shared.state();
    for (key, page_lsn) in keys.into_iter().zip(page_lsns) {
        if let Ok(Some(page_lsn)) = page_lsn {
            let was_reserved = state.pages.forget_if_stored(key, page_lsn);
            shared.store().release(u64::from(was_reserved));
        }
    }
    committer.release_groups(&mut state);
    true
}
