//! Copies of the cached volume as of one moment, while everybody goes on.
//!
//! 1. Ordinary write-back, until little is dirty or as much was written back as was dirty at the beginning.
//! 2. The moment: under one hold of the lock, every dirty page and every cut is frozen as it is. What is written from
//!    here on is newer than the copy.
//! 3. What is frozen becomes durable in the buffer, then is written back; nothing newer is meanwhile, as no other thread has
//!    the turn to write back.
//! 4. One note in the store makes the copy.
//!
//! After a crash before the note there is no copy, and what was written back was on its way anyway.

use crate::cache::{Cache, Core, Progress, Task};
use crate::delta::Delta;
use crate::error::CacheError;
use crate::page::Body;
use crate::plant::{PlantedBug, is_planted};
use crate::rescue::{RESCUED, UNFINISHED};
use crate::scan::Scan;
use crate::state::{Key, State};
use crate::write_back::{Frozen, FrozenPage, STEP_PAGES, Why};
use device::{Lsn, Page};
use std::sync::Arc;
use store::{Change, Found, NewVolume, StoreError, VolumeId, Want};

/// Dirty pages that may be frozen under one hold of the lock: some milliseconds of it.
const FEW_PAGES: usize = 4096;

/// Everything that was newer than the store at one moment.
struct Moment {
    /// The newest change then.
    lsn: Lsn,
    whole: Frozen,
    patches: Vec<FrozenPatch>,
}

/// A page of which only some bytes are in memory.
struct FrozenPatch {
    key: Key,
    delta: Delta,
    newest: Lsn,
}

impl Cache {
    /// Makes a new volume that is what the cached one is at some moment during the call: with every change that was
    /// applied before it, and after each that it has, every one before that. Durable on return. In the caller's
    /// thread; others go on, and what they write during the call needs memory once more.
    ///
    /// # Errors
    /// Those of [`Store::check_clone`](store::Store::check_clone), before anything is done; [`StoreError::Full`]; and
    /// what kept something from being written back. There is no new volume then, unless the last write to the store's log
    /// failed: that is not known until the next start.
    pub fn clone_volume(&self, new: &NewVolume<'_>) -> Result<VolumeId, CacheError> {
        self.core.clone_volume(new)
    }

    /// Deletes a volume that is not cached. Its space comes back in the background.
    ///
    /// # Errors
    /// [`CacheError::InUse`], or those of [`Store::delete_volume`](store::Store::delete_volume).
    pub fn delete_volume(&self, volume: VolumeId) -> Result<(), CacheError> {
        if volume == self.core.volume {
            return Err(CacheError::InUse { volume });
        }
        // Not what was appended: the store may name no change that the buffer may still lose.
        self.core.store_io().delete_volume(volume, self.core.buffer.durable())?;
        self.core.witness_store();
        self.core.wake(Task::Checkpoint);
        Ok(())
    }

    /// Writes everything back and gives the buffer to another volume; this cache is of no use afterwards. After a crash
    /// in between the buffer is still this volume's, or already the other's, with nothing in it.
    ///
    /// # Errors
    /// Those of [`drain`](Cache::drain): what cannot be written back keeps the buffer.
    pub fn hand_over(&self, volume: VolumeId) -> Result<(), CacheError> {
        self.drain()?;
        self.core.release_groups(&mut self.core.state());
        Ok(self.core.buffer.hand_over(volume.0)?)
    }
}

impl Core {
    fn clone_volume(self: &Arc<Core>, new: &NewVolume<'_>) -> Result<VolumeId, CacheError> {
        self.store.check_clone(self.volume, new.name)?;
        if let Some(prefix) = [UNFINISHED, RESCUED].into_iter().find(|&prefix| new.name.starts_with(prefix)) {
            let why = format!("names that begin with {prefix} are for what is saved when a buffer fails");
            return Err(StoreError::BadName { name: new.name.into(), why }.into());
        }
        self.approach()?;
        let _turn = self.write_back_turn.lock().expect("no panic while writing back");
        self.ensure_works()?;
        let Moment { lsn, whole, mut patches } = self.freeze_all()?;
        let reserved = patches.len() as u64;
        let written = self.write_back_whole(whole).and_then(|()| {
            if self.buffer.durable() < lsn {
                self.commit_now()?;
            }
            if is_planted(PlantedBug::CloneTooEarly) {
                patches.retain(|patch| patch.is_unchanged(&self.state()));
            }
            patches.chunks(STEP_PAGES).try_for_each(|some| self.write_back_patches(some))
        });
        self.store.release(reserved);
        written?;
        let volume = loop {
            match self.store_io().clone_beside_writers(self.volume, new, lsn) {
                Err(error) if error.is_full() && self.allocate_more() => {}
                outcome => break outcome?,
            }
        };
        self.witness_store();
        Ok(volume)
    }

    /// Has the buffer name the store's newest batch, which changed a volume: were its block unreadable at the next start, the log
    /// would seem to end before it. It is durable either way, and a buffer that fails here says so to everybody.
    fn witness_store(self: &Arc<Core>) {
        self.buffer.witness(self.store.durable_batch());
        let _ = self.commit_now();
    }

    /// Writes back what is dirty now, about, so that the moment is short.
    fn approach(self: &Arc<Core>) -> Result<(), CacheError> {
        // Writers make more meanwhile: this ends all the same.
        let steps = self.state().dirty_pages() / STEP_PAGES + 1;
        let mut scan = Scan::once(self.state().retries.failures());
        for _ in 0..steps {
            if self.state().dirty_pages() <= FEW_PAGES
                || self.write_back_everything(Why::All, &mut scan)? == Progress::Idle
            {
                break;
            }
        }
        Ok(())
    }

    /// The moment. The caller has the turn to write back, so nothing is being written back.
    fn freeze_all(&self) -> Result<Moment, CacheError> {
        let mut state = self.state();
        let keys: Vec<Key> = state.by_group().map(|(_, key)| key).collect();
        let is_patch =
            |key: &&Key| state.table.get(key).is_some_and(|entry| matches!(entry.body, Body::Patch(_)));
        // A patch stays dirty if it changes meanwhile, and needs its own reservation then.
        self.store.reserve(keys.iter().filter(is_patch).count() as u64)?;
        let mut moment =
            Moment { lsn: self.buffer.appended(), whole: Frozen::default(), patches: Vec::new() };
        for key in keys {
            if let Some(page) = FrozenPage::begin(&mut state, key) {
                moment.whole.pages.push(page);
            } else if let Some(patch) = FrozenPatch::of(&state, key) {
                moment.patches.push(patch);
            }
        }
        let cuts = state.cuts.iter().flat_map(|(&object, cuts)| cuts.iter().map(move |&cut| (object, cut)));
        moment.whole.cuts = cuts.collect();
        drop(state);
        moment.whole.sort();
        moment.patches.sort_by_key(|patch| patch.key);
        Ok(moment)
    }

    /// Writes back what is frozen in pieces, cuts first.
    fn write_back_whole(self: &Arc<Core>, mut frozen: Frozen) -> Result<(), CacheError> {
        let mut pages = std::mem::take(&mut frozen.pages);
        let mut piece = frozen;
        loop {
            let rest = pages.split_off(pages.len().min(STEP_PAGES));
            piece.pages = pages;
            pages = rest;
            if piece.is_empty() {
                return Ok(());
            }
            let taken = self.write_frozen(piece).and_then(|refused| match refused.into_iter().next() {
                Some((_, error)) => Err(error.into()),
                None => Ok(()),
            });
            if let Err(error) = taken {
                let left = Frozen { pages, cuts: Vec::new() };
                self.settle(&mut self.state(), &left, |_| false);
                return Err(error);
            }
            piece = Frozen::default();
        }
    }

    /// Writes back pages of which only some bytes are in memory: what the store has, with these over it. All cuts that
    /// were before them are stored.
    fn write_back_patches(&self, patches: &[FrozenPatch]) -> Result<(), CacheError> {
        let mut wants: Vec<Want> =
            patches.iter().map(|patch| Want::new(patch.key.object, patch.key.page)).collect();
        self.store_io().read_from(self.volume, &mut wants);
        let mut vector = Vec::new();
        for (patch, want) in patches.iter().zip(wants) {
            let mut bytes = match want.found? {
                Found::Hole => Page::zeroed(),
                Found::Page { bytes, .. } => bytes,
            };
            patch.delta.apply(&mut bytes);
            if is_planted(PlantedBug::CloneTooLate)
                && let Some(now) = FrozenPatch::of(&self.state(), patch.key)
            {
                now.delta.apply(&mut bytes);
            }
            let Key { object, page } = patch.key;
            vector.push(Change::Write { object, page, bytes: Arc::from(bytes), page_lsn: patch.newest });
        }
        self.store_io().apply_to(self.volume, &vector)?;
        let mut state = self.state();
        let mut spare = 0;
        for (patch, change) in patches.iter().zip(&vector) {
            if let Change::Write { bytes, .. } = change
                && patch.is_unchanged(&state)
            {
                spare += state.change(patch.key, |entry| {
                    entry.become_whole(Box::new(Page::clone(bytes)));
                    u64::from(entry.dirt.take().is_some_and(|dirt| dirt.reserved))
                });
            }
        }
        self.store.release(spare);
        state.counters.pages_stored += patches.len() as u64;
        self.release_groups(&mut state);
        state.evict(&self.settings);
        drop(state);
        self.wake(Task::Commit);
        Ok(())
    }
}

impl FrozenPatch {
    fn of(state: &State, key: Key) -> Option<FrozenPatch> {
        let entry = state.table.get(&key)?;
        let Body::Patch(delta) = &entry.body else { return None };
        let newest = entry.dirt.as_ref()?.newest;
        Some(FrozenPatch { key, delta: delta.clone(), newest })
    }

    /// Whether nothing was written to the page since, and no reader waits for it.
    fn is_unchanged(&self, state: &State) -> bool {
        state.table.get(&self.key).is_some_and(|entry| {
            let same = entry.dirt.as_ref().is_some_and(|dirt| dirt.newest == self.newest);
            same && entry.fetch.is_none() && matches!(entry.body, Body::Patch(_))
        })
    }
}
