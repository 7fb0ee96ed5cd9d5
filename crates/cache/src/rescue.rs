//! What a buffer that fails takes with it: everything that is in memory and nowhere else becomes a volume of its own.
//!
//! Nothing changes after the failure, and nothing is written back, so what is in memory is one moment: after every change that
//! anybody was told of, synced or not. It is written over a clone of the cached volume, which itself stays as it was, so that the buffer still fits it
//! should its device come back. Pages, and cuts that are not durable, get the LSN after the last durable change: above every page LSN
//! that the clone has, and one more than the buffer knows, which a start allows for.
//!
//! After a crash in the middle there is a volume `rescuing-…` with some of the pages, which is no file system; the next start
//! deletes it. The one that is whole is called `rescued-…`, which one note in the store makes.

use crate::cache::{Core, Progress};
use crate::delta::Delta;
use crate::error::CacheError;
use crate::page::Body;
use crate::plant::{PlantedBug, is_planted};
use crate::retry::RETRY_AFTER;
use crate::state::{Key, State};
use crate::write_back::{STEP_PAGES, Why, cut_change};
use device::{Lsn, Page, SharedPage};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{Change, Found, NewVolume, Store, StoreError, VolumeId, VolumeMode, Want};

/// How the names of volumes begin that are not whole yet. Users may not choose them.
pub const UNFINISHED: &str = "rescuing-";

/// How those begin that are whole. Users may not choose them either: one that was there already would count as what was rescued.
pub(crate) const RESCUED: &str = "rescued-";

/// Deletes what crashes have left of rescues. What a device keeps from going now goes with the next start.
pub(crate) fn delete_unfinished(store: &Store, newest: Lsn) {
    for volume in store.describe_volumes().iter().filter(|volume| volume.name.starts_with(UNFINISHED)) {
        let _ = store.delete_volume(volume.id, newest);
    }
}

/// How far a rescue is. Under the cache's lock; after a crash a rescue begins anew, if there is anything to rescue.
#[derive(Debug, Default)]
pub(crate) struct Rescue {
    /// The volume that gets everything.
    pub(crate) volume: Option<String>,
    /// Changes that the store could not take, because what it has there is damaged.
    pub(crate) left_out: u64,
    /// Why the last attempt failed.
    pub(crate) error: Option<CacheError>,
}

/// A dirty page as it is in memory.
enum Content {
    Whole(SharedPage),
    Patch(Delta),
}

impl Core {
    /// True if the buffer has failed and something is in memory alone.
    pub(crate) fn rescue_due(&self, state: &State) -> bool {
        let alone = state.dirty_pages() > 0 || !state.cuts.is_empty();
        state.failed.is_some() && state.rescue.volume.is_none() && alone
    }

    /// Refuses what would write something back after the buffer failed: a volume that a rescue has begun would not have it, and what
    /// is left in memory would no longer be all of one moment. The caller has the turn to write back.
    pub(crate) fn ensure_works(&self) -> Result<(), CacheError> {
        self.state().failed.clone().map_or(Ok(()), |why| Err(CacheError::ReadOnly { why }))
    }

    /// What to say of a failed buffer when everything is in a volume.
    pub(crate) fn rescued(&self) -> Option<CacheError> {
        let state = self.state();
        Some(CacheError::Rescued { why: state.failed.clone()?, volume: state.rescue.volume.clone()? })
    }

    /// Makes the volume, if it is due; not if that was just tried in vain, unless the mount ends.
    pub(crate) fn rescue_step(self: &Arc<Core>, why: Why) -> Progress {
        let mut turn = self.write_back_turn.lock().expect("no panic while writing back");
        let now = self.clock.monotonic();
        let may_try = why == Why::All || now >= turn.rescue_not_before;
        if !may_try || !self.rescue_due(&self.state()) {
            return Progress::Idle;
        }
        turn.rescue_not_before = now + RETRY_AFTER;
        let rescued = self.rescue();
        let mut state = self.state();
        match rescued {
            Ok(name) => {
                state.rescue.volume = Some(name);
                state.rescue.error = None;
            }
            Err(error) => state.rescue.error = Some(error),
        }
        Progress::Worked
    }

    /// Returns the volume's name. What an attempt that failed has written is written again, which does no harm.
    fn rescue(&self) -> Result<String, CacheError> {
        let (store, durable, number) = (self.store_io(), self.buffer.durable(), self.store.incarnation().0);
        let (unfinished, name) = (format!("{UNFINISHED}{number}"), format!("{RESCUED}{number}"));
        let created = u64::try_from(self.clock.wall_nanos()).unwrap_or(0);
        let new = |name| NewVolume { name, mode: VolumeMode::Writable, created };
        if store.volume_named(&name).is_none() {
            let volume = match store.volume_named(&unfinished) {
                Some(begun) => begun.id,
                None => store.clone_named(self.volume, &new(&unfinished), durable)?,
            };
            let mut left_out = self.rescue_cuts(volume, durable.plus(1))?;
            let keys: Vec<Key> = self.state().by_group().map(|(_, key)| key).collect();
            for some in keys.chunks(STEP_PAGES) {
                left_out += self.rescue_pages(volume, some, durable.plus(1))?;
            }
            self.state().rescue.left_out = left_out;
            store.clone_named(volume, &new(&name), durable)?;
        }
        // It shares everything with the one that is whole.
        if let Some(done) = store.volume_named(&unfinished) {
            store.delete_volume(done.id, durable)?;
        }
        Ok(name)
    }

    /// Returns how many objects could not be deleted, which no name leads to any more. A cut that cannot be made would let what it
    /// took away be read again, so without it nothing is whole.
    fn rescue_cuts(&self, volume: VolumeId, lsn: Lsn) -> Result<u64, CacheError> {
        let state = self.state();
        let mut cuts: Vec<_> = state
            .cuts
            .iter()
            .flat_map(|(&object, cuts)| cuts.iter().map(move |&cut| (object, cut)))
            .collect();
        drop(state);
        cuts.sort_by_key(|(_, cut)| cut.lsn);
        // Its own place in the order: what was written after it, and is in the store already, stays.
        for (_, cut) in &mut cuts {
            let is_late = is_planted(PlantedBug::RescueCutsLate);
            cut.lsn = if is_late { lsn } else { cut.lsn.min(lsn) };
        }
        let vector: Vec<Change> = cuts.iter().map(|&(object, cut)| cut_change(object, cut)).collect();
        let mut refused = BTreeMap::new();
        for (number, some) in vector.chunks(STEP_PAGES).enumerate() {
            self.apply_part(volume, number * STEP_PAGES, some, &mut refused)?;
        }
        let left = refused.len() as u64;
        match refused.into_iter().find(|(index, _)| !cuts[*index].1.whole_object) {
            Some((_, error)) => Err(error.into()),
            None => Ok(left),
        }
    }

    /// Pages whole, or what the store has with the changes over it. Those that are written have nothing reserved any more. Returns how
    /// many could not be: what is damaged stays damaged there, and is an error to its readers.
    fn rescue_pages(&self, volume: VolumeId, keys: &[Key], page_lsn: Lsn) -> Result<u64, CacheError> {
        let contents: Vec<(Key, Content)> = {
            let state = self.state();
            keys.iter().filter_map(|&key| Some((key, Content::of(&state, key)?))).collect()
        };
        let patches = contents.iter().filter(|(_, content)| matches!(content, Content::Patch(_)));
        let mut wants: Vec<Want> = patches.map(|(key, _)| Want::new(key.object, key.page)).collect();
        self.store_io().read_from(volume, &mut wants);
        let mut bases = wants.into_iter().map(|want| want.found);
        let (mut vector, mut left_out) = (Vec::new(), 0);
        for (Key { object, page }, content) in contents {
            let bytes = match content {
                Content::Whole(page) => page,
                Content::Patch(delta) => {
                    let mut bytes = match bases.next().expect("one for each patch") {
                        Ok(Found::Hole) => Page::zeroed(),
                        Ok(Found::Page { bytes, .. }) => bytes,
                        Err(StoreError::Corrupt { .. }) => {
                            left_out += 1;
                            continue;
                        }
                        Err(error) => return Err(error.into()),
                    };
                    delta.apply(&mut bytes);
                    Arc::from(bytes)
                }
            };
            vector.push(Change::Write { object, page, bytes, page_lsn });
        }
        let mut refused = BTreeMap::new();
        self.apply_part(volume, 0, &vector, &mut refused)?;
        left_out += refused.len() as u64;
        self.ensure_unreadable(volume, &vector, refused)?;
        let mut state = self.state();
        let mut was_reserved = |key: &&Key| {
            state.change(**key, |entry| {
                entry.dirt.as_mut().is_some_and(|dirt| std::mem::take(&mut dirt.reserved))
            })
        };
        let reserved = keys.iter().filter(|key| was_reserved(key)).count();
        self.store.release(reserved as u64);
        Ok(left_out)
    }

    /// What was refused because something is damaged must be an error to its readers, not what was there before.
    fn ensure_unreadable(
        &self,
        volume: VolumeId,
        vector: &[Change],
        refused: BTreeMap<usize, StoreError>,
    ) -> Result<(), CacheError> {
        for (index, error) in refused {
            let Change::Write { object, page, .. } = vector[index] else { continue };
            let mut wants = [Want::new(object, page)];
            self.store_io().read_from(volume, &mut wants);
            if !matches!(wants[0].found, Err(StoreError::Corrupt { .. })) {
                return Err(error.into());
            }
        }
        Ok(())
    }
}

impl Content {
    fn of(state: &State, key: Key) -> Option<Content> {
        Some(match &state.table.get(&key)?.body {
            Body::Whole(page) => Content::Whole(page.clone()),
            Body::Patch(delta) => Content::Patch(delta.clone()),
        })
    }
}
