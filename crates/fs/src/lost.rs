//! After a crash: files that had grown with pages which bypassed the buffer, and which the store did not get, end before the first of
//! these, as if what came behind had not been written yet.

use crate::arena::Transaction;
use crate::cost;
use crate::error::FsError;
use crate::format::Slot;
use crate::fs::{Core, Fs, step_until};
use crate::types::Kind;
use cache::Cache;
use device::{Clock, ObjectId, PageNo, VolumeId};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

impl Transaction<'_> {
    /// Lets the file that has an object end before a page, if it is there.
    fn end_before(&mut self, object: ObjectId, page: PageNo) -> Result<(), FsError> {
        let Ok(slot) = u32::try_from(object.slot).map(Slot) else { return Ok(()) };
        match self.used(slot) {
            Ok((hot, Kind::File)) if self.object(slot, &hot) == object && hot.size() > page.offset() => {
                self.truncate(slot, page.offset())
            }
            // It was deleted since.
            _ => Ok(()),
        }
    }
}

impl Core {
    /// Lets files of this volume end where their bytes do. What is lost is forgotten once that is durable; of files that cannot be
    /// changed now it stays known.
    pub(crate) fn end_lost(self: &Arc<Core>, volume: VolumeId) -> Result<(), FsError> {
        let lost = self.cache.lost_tails().into_iter().filter(|(object, _)| object.volume == volume);
        let mut outcome = Ok(());
        for (object, page) in lost {
            if let Err(error) = self.end_before(object, page) {
                outcome = Err(error);
            }
        }
        outcome
    }

    fn end_before(self: &Arc<Core>, object: ObjectId, page: PageNo) -> Result<(), FsError> {
        let outcome = Arc::new(Mutex::new(None));
        let (told, cache) = (outcome.clone(), Arc::clone(&self.cache));
        // Also where nobody waits for it any more: until it is forgotten, the log keeps the loss.
        let set = move |done: Result<(), FsError>| {
            if done.is_ok() {
                let forgetful = cache.clone();
                cache.sync_logged(Box::new(move |synced| {
                    if synced.is_ok() {
                        forgetful.forget_lost_tail(object);
                    }
                }));
            }
            *told.lock().expect("nobody panics holding an outcome") = Some(done);
        };
        self.enter(cost::attributes(true), move |tx| tx.end_before(object, page), Box::new(set));
        let done = || outcome.lock().expect("nobody panics holding an outcome").take();
        step_until(&self.cache, done).ok_or(FsError::NoSpace)?
    }
}

impl Fs {
    /// Lets files end where their bytes do after a crash, in volumes that are not opened, but were in use then: [`open`](Fs::open) does it
    /// for its own, and comes first. Returns the volumes that keep files from that, with the reason, as damage: the cache
    /// [remembers](Cache::lost) what is lost there, and `open` fails for them.
    #[must_use = "files of these volumes still have bytes that a crash took"]
    pub fn end_lost(cache: &Arc<Cache>, clock: &Arc<dyn Clock>) -> Vec<(VolumeId, FsError)> {
        let volumes: BTreeSet<VolumeId> =
            cache.lost_tails().into_iter().map(|(object, _)| object.volume).collect();
        let end = |volume| Core::open(None, cache.clone(), volume, clock.clone());
        volumes.into_iter().filter_map(|volume| Some((volume, end(volume).err()?))).collect()
    }
}
