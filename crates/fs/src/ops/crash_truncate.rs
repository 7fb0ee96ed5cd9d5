//! After a crash, truncates files that had grown by bypassed pages which the store did not get: such a file
//! ends before the first lost page, as if the write of the bytes behind it had not happened yet.

use crate::arena::FsTransaction;
use crate::cost;
use crate::error::FsError;
use crate::format::InodeSlot;
use crate::fs::{Fs, FsCore, step_until};
use crate::types::FileKind;
use cache::{Cache, CacheError};
use device::{Clock, ObjectId, PageNo, VolumeId};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

impl FsTransaction<'_> {
    /// Truncates the file that has `object`, if it exists, before a page.
    fn truncate_before(&mut self, object: ObjectId, page: PageNo) -> Result<(), FsError> {
        let Ok(slot) = u32::try_from(object.slot).map(InodeSlot) else { return Ok(()) };
        match self.used_inode(slot) {
            Ok((inode, FileKind::File))
                if self.data_object(slot, &inode) == object && inode.size() > page.offset() =>
            {
                self.truncate(slot, page.offset())
            }
            // The file was deleted since, or is short enough.
            _ => Ok(()),
        }
    }
}

impl FsCore {
    /// Truncates files of this volume before their lost pages. Each loss is forgotten once its truncation is
    /// durable, and remembered if its file cannot be changed now.
    pub(crate) fn truncate_lost(self: &Arc<FsCore>, volume: VolumeId) -> Result<(), FsError> {
        let lost = self.cache.lost_tails().into_iter().filter(|(object, _)| object.volume == volume);
        let mut outcome = Ok(());
        for (object, page) in lost {
            if let Err(error) = self.truncate_before(object, page) {
                outcome = Err(error);
            }
        }
        outcome
    }

    fn truncate_before(self: &Arc<FsCore>, object: ObjectId, page: PageNo) -> Result<(), FsError> {
        let outcome = Arc::new(Mutex::new(None));
        let outcome_of_work = outcome.clone();
        let cache = Arc::clone(&self.cache);
        // Done even if the wait below gives up: the log keeps the loss until it is forgotten.
        let set = move |done: Result<(), FsError>| {
            if done.is_ok() {
                let forgetful = cache.clone();
                cache.sync_logged(Box::new(move |synced| {
                    if synced.is_ok() {
                        forgetful.forget_lost_tail(object);
                    }
                }));
            }
            *outcome_of_work.lock().expect("nobody panics holding an outcome") = Some(done);
        };
        self.run_transaction(
            cost::attributes(true),
            move |tx| tx.truncate_before(object, page),
            Box::new(set),
        );
        let done = || outcome.lock().expect("nobody panics holding an outcome").take();
        step_until(&self.cache, done).ok_or(FsError::NoSpace)?
    }
}

impl Fs {
    /// Truncates files before the pages that a crash took, in all volumes with such files.
    ///
    /// For volumes that are not opened; [`open`](Fs::open) does it for its own volume, and must come first.
    /// Returns the volumes in which it failed, with the reason, as damage. The cache
    /// [remembers](Cache::lost_tails) the losses there, and `open` fails for these volumes.
    #[must_use = "files of these volumes still have bytes that a crash took"]
    pub fn truncate_lost(cache: &Arc<Cache>, clock: &Arc<dyn Clock>) -> Vec<(VolumeId, FsError)> {
        let volumes: BTreeSet<VolumeId> =
            cache.lost_tails().into_iter().map(|(object, _)| object.volume).collect();
        let end = |volume| match FsCore::open(cache.clone(), volume, clock.clone()) {
            Err(FsError::Cache(CacheError::InUse { .. })) => None,
            outcome => Some((volume, outcome.err()?)),
        };
        volumes.into_iter().filter_map(end).collect()
    }
}
