//! After a crash: files that had grown with pages which were written directly, and which the store did not get, end before the first of
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
    /// Lets files of this volume end where their bytes do. What is lost is forgotten once that is durable.
    pub(crate) fn end_lost(self: &Arc<Core>, volume: VolumeId) -> Result<(), FsError> {
        let lost: Vec<_> =
            self.cache.lost().into_iter().filter(|(object, _)| object.volume == volume).collect();
        for &(object, page) in &lost {
            let outcome = Arc::new(Mutex::new(None));
            let told = outcome.clone();
            let set = move |done| *told.lock().expect("nobody panics holding an outcome") = Some(done);
            self.enter(cost::attributes(true), move |tx| tx.end_before(object, page), Box::new(set));
            let done = || outcome.lock().expect("nobody panics holding an outcome").take();
            step_until(&self.cache, done).ok_or(FsError::NoSpace)??;
        }
        if !lost.is_empty() {
            let cache = Cache::clone(&self.cache);
            self.cache.sync_logged(Box::new(move |synced| {
                if synced.is_ok() {
                    lost.iter().for_each(|&(object, _)| cache.forget_lost(object));
                }
            }));
        }
        Ok(())
    }
}

impl Fs {
    /// Lets files end where their bytes do after a crash, in volumes that are not opened, but were in use then: [`open`](Fs::open) does it
    /// for its own, and comes first. A volume that is damaged stays as it is.
    ///
    /// # Errors
    /// What keeps it from being changed.
    pub fn end_lost(cache: &Arc<Cache>, clock: &Arc<dyn Clock>) -> Result<(), FsError> {
        let volumes: BTreeSet<VolumeId> = cache.lost().into_iter().map(|(object, _)| object.volume).collect();
        for volume in volumes {
            match Core::open(None, cache.clone(), volume, clock.clone()) {
                Err(FsError::Corrupt { .. }) => cache
                    .lost()
                    .into_iter()
                    .filter(|(object, _)| object.volume == volume)
                    .for_each(|(object, _)| cache.forget_lost(object)),
                opened => drop(opened?),
            }
        }
        Ok(())
    }
}
