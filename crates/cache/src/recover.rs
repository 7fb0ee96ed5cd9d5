//! Opening: what the buffer holds and the store does not becomes deltas again.

use crate::cache::Core;
use crate::error::CacheError;
use crate::page::Dirt;
use crate::state::{Key, PendingCut, State};
use buffer::{GroupNo, Record, Replayed};
use device::{BLOCK_BYTES, ObjectId, PageNo, Sequence};
use std::time::Duration;
use store::{Store, StoreError, VolumeId};

/// Puts the buffer's transactions, in the order of the log, into a state that is not shared yet.
pub(crate) struct Recovery<'a> {
    pub(crate) state: State,
    pub(crate) store: &'a Store,
    pub(crate) now: Duration,
    /// Whose records the buffer holds.
    pub(crate) volume: VolumeId,
    /// The first thing that went wrong: the mount is refused, nothing has been written.
    pub(crate) error: Option<CacheError>,
}

impl<'a> Recovery<'a> {
    pub(crate) fn new(store: &'a Store, now: Duration) -> Recovery<'a> {
        Recovery { state: State::new(), store, now, volume: VolumeId::MAIN, error: None }
    }
}

impl Recovery<'_> {
    pub(crate) fn replay(&mut self, transaction: Replayed<'_>) {
        if self.error.is_some() {
            return;
        }
        self.state.counters.replayed += 1;
        self.volume = VolumeId(transaction.volume);
        for (index, record) in transaction.records.iter().enumerate() {
            let (first, group) = (transaction.first, transaction.group);
            let outcome = match transaction.merged {
                true => self.merged_record(record, first, group),
                false => self.record(record, first.plus(index as u64), group),
            };
            if let Err(error) = outcome {
                self.error = Some(error);
                return;
            }
        }
    }

    fn record(&mut self, record: &Record<'_>, at: Sequence, group: GroupNo) -> Result<(), CacheError> {
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
            // Nobody writes these in version 1; a store that has them says so in its feature flags.
            Record::Clone { .. } => Ok(()),
        }
    }

    /// One that was written to the log again, for lack of a way home: newer ones may stand before it.
    fn merged_record(&mut self, record: &Record<'_>, at: Sequence, group: GroupNo) -> Result<(), CacheError> {
        let (object, from, to, whole_object) = match *record {
            Record::Cut { object, from, to } => (object, from, to, false),
            Record::Delete { object } => (object, PageNo(0), PageNo(u64::MAX), true),
            _ => return self.record(record, at, group),
        };
        let cut = PendingCut { from, to, sequence: at, group, whole_object, since: self.now };
        let promises = self.state.cut_again(object, cut);
        self.store.release(promises);
        Ok(())
    }

    /// A change of one page: skipped if the store has it already.
    fn page(
        &mut self,
        key: Key,
        range: std::ops::Range<usize>,
        at: Sequence,
        group: GroupNo,
        bytes: Option<&[u8]>,
    ) -> Result<(), CacheError> {
        match self.store.home_in(self.volume, key.object, key.page) {
            Ok(home) if home.is_some_and(|home| at <= home) => return Ok(()),
            // Where it lies is lost, so nobody reads a base that has the change already; and had it, the log would
            // have every later one, too.
            Ok(_) | Err(StoreError::Corrupt { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let fresh = self.state.table.get(&key).is_none_or(|entry| entry.dirt.is_none());
        // Room was promised before the crash. Should it be missing now, the page goes home from the last reserve.
        let reserved = fresh && self.store.reserve(1).is_ok();
        let now = self.now;
        self.state.change(key, |entry| {
            match bytes {
                Some(bytes) => entry.write(range.start, bytes),
                None => entry.zero(range.start, range.len()),
            }
            entry.note(range, at, group, || dirt(at, group, now, reserved));
        });
        Ok(())
    }

    fn cut(
        &mut self,
        object: ObjectId,
        from: PageNo,
        to: PageNo,
        whole_object: bool,
        at: Sequence,
        group: GroupNo,
    ) -> Result<(), CacheError> {
        let cut = PendingCut { from, to, sequence: at, group, whole_object, since: self.now };
        let (promises, _) = self.state.cut(object, cut);
        self.store.release(promises);
        Ok(())
    }
}

/// The first change of a page.
pub(crate) fn dirt(newest: Sequence, group: GroupNo, since: Duration, reserved: bool) -> Dirt {
    Dirt { newest, group, latest: group, ranges: Default::default(), since, reserved }
}

impl Core {
    /// Reads in the caller's thread, waiting for the device.
    pub(crate) fn read_now(
        self: &std::sync::Arc<Core>,
        object: ObjectId,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, CacheError> {
        let mut bytes = Vec::with_capacity(len);
        // In pieces, so that a big read does not push itself out of memory before it is finished.
        while bytes.len() < len {
            let (sender, receiver) = std::sync::mpsc::channel();
            let take = (len - bytes.len()).min(256 * BLOCK_BYTES);
            let then = Box::new(move |outcome| drop(sender.send(outcome)));
            self.read(object, offset + bytes.len() as u64, take, then);
            let piece = loop {
                match receiver.try_recv() {
                    Ok(outcome) => break outcome?,
                    // A worker may have taken the fetch; then there is nothing to do but wait for it.
                    Err(_) if self.fetch_step() == crate::cache::Progress::Idle => std::thread::yield_now(),
                    Err(_) => {}
                }
            };
            bytes.extend_from_slice(&piece);
        }
        Ok(bytes)
    }
}
