//! Copies of a volume as of one moment, while everybody goes on. Writing back while writers wait would take too long; and if they
//! went on writing to the pages that are written back, some pages would have newer changes than others.
//!
//! 1. Ordinary write-back, until little is dirty or as much was written back as was dirty at the beginning.
//! 2. The moment: under one hold of the lock, every dirty page and every cut is frozen as it is. What is written from
//!    here on is newer than the copy.
//! 3. What is frozen becomes durable in the buffer, then is written back; nothing newer is meanwhile, as no other thread has
//!    the turn to write back.
//! 4. One log entry in the store makes the copy.
//!
//! After a crash before that entry there is no copy, and what was written back was on its way anyway.

use crate::checkpoint::Checkpointer;
use crate::commit::Committer;
use crate::error::CacheError;
use crate::pages::Key;
use crate::plant::{PlantedBug, is_planted};
use crate::rescue::{RESCUED, UNFINISHED};
use crate::scan::Scan;
use crate::shared::Shared;
use crate::sync::{Mutex, MutexGuard};
use crate::task::{Progress, Task};
use crate::transfers::Ordered;
use crate::write_back::{Frozen, FrozenPage, STEP_PAGES, Why, WriteBack};
use device::Lsn;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use store::{NewVolume, StoreError, VolumeId};

/// Dirty pages that may be frozen under one hold of the lock: some milliseconds of it.
const FEW_PAGES: usize = 4096;

/// Makes volumes of others, and deletes them.
pub(crate) struct Volumes {
    /// Those that are in use, and by how many. Taken for moments, and no other lock meanwhile.
    used: Arc<Mutex<BTreeMap<VolumeId, u64>>>,
    shared: Arc<Shared>,
    committer: Arc<Committer>,
    write_back: Arc<WriteBack>,
    checkpointer: Arc<Checkpointer>,
}

impl Volumes {
    pub(crate) fn new(
        shared: Arc<Shared>,
        committer: Arc<Committer>,
        write_back: Arc<WriteBack>,
        checkpointer: Arc<Checkpointer>,
    ) -> Volumes {
        Volumes { used: Arc::default(), shared, committer, write_back, checkpointer }
    }

    pub(crate) fn use_volume(&self, volume: VolumeId) -> VolumeInUse {
        *lock(&self.used).entry(volume).or_default() += 1;
        VolumeInUse { used: self.used.clone(), volume }
    }

    pub(crate) fn delete(&self, volume: VolumeId) -> Result<(), CacheError> {
        if lock(&self.used).contains_key(&volume) {
            return Err(CacheError::InUse { volume });
        }
        let _turn = self.write_back.turn();
        // What other volumes get of it, or it of them.
        let of_others = |what: &Ordered| what.volumes().contains(&volume) && what.volumes() != [volume; 2];
        self.checkpointer.with_space(|| self.write_back.store_transfers_in_turn(&of_others))?;
        // Not what was appended: the store may name no change that the buffer may still lose.
        let durable = || self.shared.buffer().durable_lsn();
        let delete = || Ok(self.shared.store_io().delete_volume(volume, durable())?);
        self.checkpointer.with_space(delete)?;
        self.witness_store();
        let mut state = self.shared.state();
        let (reservations, waiters) = state.pages.drop_volume(volume);
        self.shared.store().release(reservations);
        state.reads.look_behind();
        state.seeks.look_behind();
        state.reads.look_again(waiters);
        state.admission.may_have_space();
        self.committer.release_groups(&mut state);
        drop(state);
        self.shared.wake(Task::Commit);
        self.shared.wake(Task::Fetch);
        self.shared.wake(Task::Checkpoint);
        Ok(())
    }

    /// Makes a clone. Where segments are short, cleaning wins some first; others go on meanwhile.
    pub(crate) fn make_clone(&self, from: VolumeId, new: &NewVolume<'_>) -> Result<VolumeId, CacheError> {
        self.checkpointer.with_space(|| self.try_to_clone(from, new, false))
    }

    /// The same, of which the clone is expendable from the moment on at which it is there.
    pub(crate) fn make_expendable_clone(
        &self,
        from: VolumeId,
        new: &NewVolume<'_>,
    ) -> Result<VolumeId, CacheError> {
        self.checkpointer.with_space(|| self.try_to_clone(from, new, true))
    }

    fn try_to_clone(
        &self,
        from: VolumeId,
        new: &NewVolume<'_>,
        is_expendable: bool,
    ) -> Result<VolumeId, CacheError> {
        self.shared.store().check_clone(from, new.name)?;
        if let Some(prefix) = [UNFINISHED, RESCUED].into_iter().find(|&prefix| new.name.starts_with(prefix)) {
            let why = format!("names that begin with {prefix} are for what is saved when a buffer fails");
            return Err(StoreError::BadName { name: new.name.into(), why }.into());
        }
        self.approach()?;
        let _turn = self.write_back.turn();
        self.shared.ensure_works()?;
        let (lsn, frozen) = self.freeze_all(from);
        let before = |what: &Ordered| what.lsn <= lsn && what.volumes().contains(&from);
        let written = self.write_back.store_transfers_in_turn(&before);
        written.inspect_err(|_| self.write_back.abandon(&frozen)).and_then(|()| {
            self.write_back_frozen(frozen)?;
            if self.shared.buffer().durable_lsn() < lsn {
                self.committer.commit_now().map(drop)
            } else {
                Ok(())
            }
        })?;
        let volume = self.shared.store_io().clone_named(from, new, lsn)?;
        if is_expendable {
            self.checkpointer.may_give_up_too(volume);
        }
        self.witness_store();
        Ok(volume)
    }

    /// Has the buffer name the store's newest batch, which changed a volume: were its block unreadable at the next start, the log
    /// would seem to end before it. It is durable either way, and a buffer that fails here says so to everybody.
    fn witness_store(&self) {
        self.shared.buffer().record_store_batch(self.shared.store().durable_batch());
        let _ = self.committer.commit_now();
    }

    /// Writes back what is dirty now, about, so that the moment is short.
    fn approach(&self) -> Result<(), CacheError> {
        // Writers make more meanwhile: this ends all the same.
        let steps = self.shared.state().pages.dirty_pages() / STEP_PAGES + 1;
        let mut scan = Scan::once(self.shared.state().retries.failures());
        for _ in 0..steps {
            if self.shared.state().pages.dirty_pages() <= FEW_PAGES
                || self.write_back.everything(Why::All, &mut scan)? == Progress::Idle
            {
                break;
            }
        }
        Ok(())
    }

    /// The moment of a volume: its newest change, and what is newer than the store. The caller has the turn to write back, so nothing is
    /// being written back.
    fn freeze_all(&self, volume: VolumeId) -> (Lsn, Frozen) {
        let mut state = self.shared.state();
        let keys: Vec<Key> =
            state.pages.by_group().map(|(_, key)| key).filter(|key| key.object.volume == volume).collect();
        let pages = keys.into_iter().filter_map(|key| FrozenPage::begin(&mut state.pages, key)).collect();
        let cuts = state.pages.cuts().filter(|(object, _)| object.volume == volume).collect();
        let mut frozen = Frozen { pages, cuts };
        frozen.sort();
        (self.shared.buffer().appended_lsn(), frozen)
    }

    /// Writes back what is frozen in pieces, cuts first.
    fn write_back_frozen(&self, mut frozen: Frozen) -> Result<(), CacheError> {
        if is_planted(PlantedBug::CloneTooEarly) {
            let (pages, newer) =
                frozen.pages.into_iter().partition(|page| !page.is_newer(&self.shared.state().pages));
            self.write_back.abandon(&Frozen { pages: newer, cuts: Vec::new() });
            frozen.pages = pages;
        }
        let mut pages = std::mem::take(&mut frozen.pages);
        let mut piece = frozen;
        loop {
            let rest = pages.split_off(pages.len().min(STEP_PAGES));
            piece.pages = pages;
            pages = rest;
            if piece.is_empty() {
                return Ok(());
            }
            if is_planted(PlantedBug::CloneTooLate) {
                // Others get on meanwhile.
                let _ = self.committer.commit_now();
                piece.pages.iter_mut().for_each(|page| page.freeze_again(&self.shared.state().pages));
            }
            let taken =
                self.write_back.write_frozen(piece).and_then(|refused| match refused.into_iter().next() {
                    Some((_, error)) => Err(error.into()),
                    None => Ok(()),
                });
            if let Err(error) = taken {
                self.write_back.abandon(&Frozen { pages, cuts: Vec::new() });
                return Err(error);
            }
            piece = Frozen::default();
        }
    }
}

/// A volume that somebody uses, until this is dropped: it cannot be deleted.
pub struct VolumeInUse {
    used: Arc<Mutex<BTreeMap<VolumeId, u64>>>,
    volume: VolumeId,
}

impl Drop for VolumeInUse {
    fn drop(&mut self) {
        let mut used = lock(&self.used);
        if let Entry::Occupied(mut users) = used.entry(self.volume) {
            *users.get_mut() -= 1;
            if *users.get() == 0 {
                users.remove();
            }
        }
    }
}

fn lock(used: &Mutex<BTreeMap<VolumeId, u64>>) -> MutexGuard<'_, BTreeMap<VolumeId, u64>> {
    used.lock().expect("no panic while counting users")
}
