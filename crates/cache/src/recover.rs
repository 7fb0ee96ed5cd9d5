//! Opening: what the buffer holds and the store does not becomes deltas again.

use crate::cache::Core;
use crate::cut::PendingCut;
use crate::error::CacheError;
use crate::gather::Gathered;
use crate::page::{Body, Dirt, Entry};
use crate::state::{Key, State};
use buffer::{Buffer, GroupNo, Record, Replayed};
use device::{Clock, Device, Lsn, ObjectId, PageNo, StoreId};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use store::{Store, StoreError, VolumeId};

/// What a buffer holds, in memory. The store below it was not looked at yet: both may be read at the same time.
pub struct Recovered {
    pub(crate) buffer: Buffer,
    pub(crate) state: State,
    /// Pages for which the store has to keep space.
    pub(crate) reserved: u64,
}

impl Recovered {
    /// Turns the records in the buffer of the store `id` into deltas, as old as `clock` says it is now. Writes nothing.
    ///
    /// # Errors
    /// What [`Buffer::open`] says of one that is missing, damaged, newer or another store's.
    pub fn read(device: Arc<dyn Device>, id: StoreId, clock: &dyn Clock) -> Result<Recovered, CacheError> {
        let mut recovery = Recovery::new(clock.monotonic());
        let buffer = Buffer::open(device, id, &mut |transactions| recovery.replay(transactions))?;
        Ok(recovery.finish(buffer))
    }

    #[cfg(feature = "planted-bugs")]
    /// [`read`](Recovered::read) with a buffer that breaks a rule when it recovers.
    pub fn read_with_bug(
        device: Arc<dyn Device>,
        id: StoreId,
        clock: &dyn Clock,
        bug: buffer::Bug,
    ) -> Result<Recovered, CacheError> {
        let mut recovery = Recovery::new(clock.monotonic());
        let replay = &mut |transactions: &[Replayed<'_>]| recovery.replay(transactions);
        let buffer = Buffer::open_with_bug(device, id, replay, bug)?;
        Ok(recovery.finish(buffer))
    }

    /// Whether `store` is as new as this buffer, and this buffer as new as the store. A daemon that writes to a store above which there is a
    /// buffer asks first: afterwards it would look newer than it is.
    ///
    /// # Errors
    /// A store that knows nothing of the buffer's volume, is [ahead](CacheError::StaleBuffer) of the buffer, or an [older
    /// copy](CacheError::StaleStore).
    ///
    /// # Panics
    /// If the buffer is another store's.
    pub fn ensure_fits(&self, store: &Store) -> Result<(), CacheError> {
        assert_eq!(self.buffer.store(), store.id(), "a buffer above a store that is not its own");
        let volume = self.volume();
        if !store.volumes().iter().any(|&(id, _)| id == volume) {
            return Err(StoreError::NoSuchVolume { volume }.into());
        }
        // A page is written back when its changes are durable in the buffer, never before. What was rescued when a buffer failed counts
        // as one change after its last.
        let (of_store, of_buffer) = (store.newest_lsn(), self.buffer.newest_lsn());
        if of_buffer.plus(1) < of_store {
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

    /// The last batch of the store of which the buffer knows that it was durable.
    pub fn store_batch(&self) -> u64 {
        self.buffer.store_batch()
    }

    /// The volume whose records the buffer holds.
    pub fn volume(&self) -> VolumeId {
        VolumeId(self.buffer.volume())
    }
}

/// Puts the buffer's transactions, in the order of the log, into a state that is not shared yet.
struct Recovery {
    state: State,
    /// Pages that are on their way into the state.
    gathered: Gathered,
    /// Pages that are to be written back. Space was reserved for each before the crash.
    reserved: u64,
    now: Duration,
}

impl Recovery {
    fn new(now: Duration) -> Recovery {
        Recovery { state: State::new(), gathered: Gathered::default(), reserved: 0, now }
    }

    /// Once the whole log was replayed.
    fn finish(mut self, buffer: Buffer) -> Recovered {
        self.gathered.settle(&mut self.state);
        self.state.recovery_cursor = self.state.table.iter().next().map(|(key, _)| key);
        Recovered { buffer, state: self.state, reserved: self.reserved }
    }

    /// Takes the transactions of one group.
    fn replay(&mut self, transactions: &[Replayed<'_>]) {
        self.warm(transactions);
        transactions.iter().for_each(|transaction| self.transaction(transaction));
    }

    /// Looks for each of the pages that are about to change. What a large file's pages are found by does not fit into the
    /// processor's caches; these looks wait for memory together, and those that come after them do not wait.
    fn warm(&self, transactions: &[Replayed<'_>]) {
        let records = transactions.iter().flat_map(|transaction| transaction.records);
        let known = records.filter(|record| match **record {
            Record::Write { object, page, .. } => self.gathered.contains(Key { object, page }),
            _ => false,
        });
        black_box(known.count());
    }

    fn transaction(&mut self, transaction: &Replayed<'_>) {
        self.state.counters.replayed += 1;
        let (first, group) = (transaction.first, transaction.group);
        for (record, index) in transaction.records.iter().zip(0..) {
            match transaction.merged {
                true => self.merged_record(record, first, group),
                false => self.record(record, first.plus(index), group),
            }
        }
    }

    fn record(&mut self, record: &Record<'_>, at: Lsn, group: GroupNo) {
        match *record {
            Record::Write { object, page, start, bytes } => {
                let start = usize::from(start);
                self.page(Key { object, page }, start..start + bytes.len(), at, group, Some(bytes))
            }
            Record::Zero { object, page, start, len } => {
                let start = usize::from(start);
                self.page(Key { object, page }, start..start + usize::from(len), at, group, None)
            }
            Record::Cut { object, from, to } => self.cut(object, from, to, false, at, group),
            Record::Delete { object } => self.cut(object, PageNo(0), PageNo(u64::MAX), true, at, group),
            // Version 1 does not write these; a store that has them says so in its feature flags.
            Record::Clone { .. } => {}
        }
    }

    /// One that was written to the log again, as it could not be written back: newer ones may stand before it.
    fn merged_record(&mut self, record: &Record<'_>, at: Lsn, group: GroupNo) {
        let (object, from, to, whole_object) = match *record {
            Record::Cut { object, from, to } => (object, from, to, false),
            Record::Delete { object } => (object, PageNo(0), PageNo(u64::MAX), true),
            _ => return self.record(record, at, group),
        };
        let cut = PendingCut { from, to, lsn: at, group, whole_object, since: self.now };
        self.gathered.settle(&mut self.state);
        self.reserved -= self.state.cut_again(object, cut);
    }

    /// A change of one page. The store may have it already, and is not asked now, which would be a read for each page that
    /// the log names; it is once the mount is ready. Until then the change is laid over what the store has,
    /// which is right either way: every later change of the page is in the log, too.
    fn page(
        &mut self,
        key: Key,
        range: std::ops::Range<usize>,
        at: Lsn,
        group: GroupNo,
        bytes: Option<&[u8]>,
    ) {
        let (reserved, now) = (&mut self.reserved, self.now);
        let change = |entry: &mut Entry| {
            match bytes {
                Some(bytes) => entry.write(range.start, bytes),
                None => entry.zero(range.start, range.len()),
            }
            entry.note(range, at, group, || {
                *reserved += 1;
                dirt(at, group, now, true)
            });
        };
        if self.gathered.contains(key) || !self.state.table.contains_key(&key) {
            self.gathered.change(key, at, group, change);
        } else {
            self.state.change(key, change);
        }
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
        let cut = PendingCut { from, to, lsn: at, group, whole_object, since: self.now };
        self.gathered.settle(&mut self.state);
        let (reservations, _) = self.state.cut(object, cut);
        self.reserved -= reservations;
    }
}

/// The first change of a page.
pub(crate) fn dirt(newest: Lsn, group: GroupNo, since: Duration, recovered: bool) -> Dirt {
    Dirt { newest, group, latest: group, ranges: Default::default(), since, reserved: true, recovered }
}

/// Pages of which the store is asked at once: their map nodes are read together.
const LOOK_PAGES: usize = 4096;

impl State {
    /// The next of the pages that were found in the buffer and that the store was not asked about; `None` when there are no more.
    /// The table has them in order, so those that come together lie near each other in the store's map.
    fn next_recovered(&mut self) -> Option<Vec<Key>> {
        let mut looked = self.table.from(self.recovery_cursor?);
        let recovered = |entry: &Entry| entry.dirt.as_ref().is_some_and(|dirt| dirt.recovered);
        let found = looked.by_ref().take(LOOK_PAGES).filter(|(_, entry)| recovered(entry));
        let keys = found.map(|(key, _)| key).collect();
        let next = looked.next().map(|(key, _)| key);
        drop(looked);
        self.recovery_cursor = next;
        Some(keys)
    }
}

impl Core {
    /// Asks the store about some of the pages that were found in the buffer, and makes those clean that are stored; `false`
    /// if none are left. Each is asked about once: one about which the store cannot tell is written back like any other.
    pub(crate) fn look_at_recovered(&self) -> bool {
        let Some(keys) = self.state().next_recovered() else { return false };
        let pages: Vec<(ObjectId, PageNo)> = keys.iter().map(|key| (key.object, key.page)).collect();
        let page_lsns = self.store_io().page_lsns_in(self.volume, &pages);
        let mut state = self.state();
        for (key, page_lsn) in keys.into_iter().zip(page_lsns) {
            if let Ok(page_lsn) = page_lsn {
                self.forget_if_stored(&mut state, key, page_lsn);
            }
        }
        self.release_groups(&mut state);
        true
    }

    fn forget_if_stored(&self, state: &mut State, key: Key, page_lsn: Option<Lsn>) {
        let is_stored = |entry: &Entry| {
            let dirt = entry.dirt.as_ref().filter(|dirt| dirt.recovered);
            dirt.is_some_and(|dirt| page_lsn.is_some_and(|page_lsn| dirt.newest <= page_lsn))
        };
        if !state.table.get(&key).is_some_and(is_stored) {
            return;
        }
        let (reserved, needless) = state.change(key, |entry| {
            let reserved = entry.dirt.take().is_some_and(|dirt| dirt.reserved);
            (reserved, matches!(entry.body, Body::Patch(_)) && entry.fetch.is_none())
        });
        self.store.release(u64::from(reserved));
        if needless {
            state.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_asked_about_each_recovered_page_once_and_about_no_other() {
        let mut state = State::new();
        let mut recovered = Vec::new();
        for number in 0..3 * LOOK_PAGES as u64 {
            let object = ObjectId { slot: number % 3, generation: 7 };
            let key = Key { object, page: PageNo(number) };
            let was_found = number % 5 != 0;
            state.change(key, |entry| {
                entry.write(0, b"weir");
                entry.note(0..4, Lsn(1), GroupNo(1), || dirt(Lsn(1), GroupNo(1), Duration::ZERO, was_found));
            });
            recovered.extend(was_found.then_some(key));
        }
        assert_eq!(state.next_recovered(), None, "nothing was found in the buffer");
        state.recovery_cursor = state.table.iter().next().map(|(key, _)| key);
        let asked: Vec<Vec<Key>> = std::iter::from_fn(|| state.next_recovered()).collect();
        recovered.sort();
        assert_eq!(asked.concat(), recovered);
        assert_eq!(asked.len(), 3, "a bounded piece at a time");
    }
}
