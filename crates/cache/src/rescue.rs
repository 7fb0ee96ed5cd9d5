//! What a buffer that fails takes with it: everything that is in memory and nowhere else becomes a volume of its own.
//!
//! Nothing changes after the failure, and nothing is written back, so what is in memory is one moment: after every change that
//! anybody was told of, synced or not. It is written over a clone of each volume of which there is something, which itself stays as it was, so that the buffer still fits it
//! should its device come back. Pages, and cuts that are not durable, get the LSN after the last durable change: above every page LSN
//! that the clone has, and one more than the buffer knows, which a start allows for.
//!
//! After a crash in the middle there is a volume `rescuing-…` with some of the pages, which is no file system; the next start
//! deletes it. The one that is whole is called `rescued-…`, which one log entry in the store makes.

use crate::delta::Delta;
use crate::error::CacheError;
use crate::page::{Body, Entry};
use crate::pages::{Key, Pages};
use crate::plant::{PlantedBug, is_planted};
use crate::retry::RETRY_AFTER;
use crate::shared::{Shared, State};
use crate::sync::{Mutex, MutexGuard};
use crate::task::Progress;
use crate::write_back::{STEP_PAGES, Why, WriteBack, cut_change};
use device::{Lsn, Page, SharedPage};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
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

/// How far a rescue is. After a crash a rescue begins anew, if there is anything to rescue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    /// The volume that has everything.
    volume: Option<String>,
    /// Changes that the store could not take, because what it has there is damaged.
    left_out: u64,
    /// Why the last attempt failed.
    error: Option<CacheError>,
    /// When the next one may be made.
    not_before: Duration,
}

impl Outcome {
    pub(crate) fn volume(&self) -> Option<&str> {
        self.volume.as_deref()
    }

    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }

    pub(crate) fn error(&self) -> Option<&CacheError> {
        self.error.as_ref()
    }
}

/// Saves what only memory has.
pub(crate) struct Rescuer {
    shared: Arc<Shared>,
    write_back: Arc<WriteBack>,
    /// Held for moments, and no other lock is taken meanwhile.
    outcome: Mutex<Outcome>,
}

/// A dirty page as it is in memory.
enum Content {
    Whole(SharedPage),
    Patch(Delta),
}

impl Rescuer {
    pub(crate) fn new(shared: Arc<Shared>, write_back: Arc<WriteBack>) -> Rescuer {
        Rescuer { shared, write_back, outcome: Mutex::default() }
    }

    /// How far it is.
    pub(crate) fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().expect("no panic while holding a rescue's outcome")
    }

    /// True if the buffer has failed and something is in memory alone.
    pub(crate) fn is_due(&self, state: &State) -> bool {
        state.failed().is_some() && state.pages.is_dirty() && self.outcome().volume.is_none()
    }

    /// What to say of a failed buffer when everything is in a volume.
    pub(crate) fn rescued(&self) -> Option<CacheError> {
        let why = self.shared.state().failed().cloned()?;
        Some(CacheError::Rescued { why, volume: self.outcome().volume.clone()? })
    }

    /// Makes the volume, if it is due; not if that was just tried in vain, unless the mount ends.
    pub(crate) fn step(&self, why: Why) -> Progress {
        let _turn = self.write_back.turn();
        let now = self.shared.now();
        let may_try = why == Why::All || now >= self.outcome().not_before;
        if !may_try || !self.is_due(&self.shared.state()) {
            return Progress::Idle;
        }
        self.outcome().not_before = now + RETRY_AFTER;
        let rescued = self.rescue();
        let mut outcome = self.outcome();
        match rescued {
            Ok(name) => {
                outcome.volume = Some(name);
                outcome.error = None;
            }
            Err(error) => outcome.error = Some(error),
        }
        Progress::Worked
    }

    /// Returns the names of the volumes. What an attempt that failed has written is written again, which does no harm.
    fn rescue(&self) -> Result<String, CacheError> {
        let number = self.shared.store().incarnation().0;
        let volumes = self.shared.state().pages.dirty_volumes();
        let (mut names, mut left_out) = (Vec::new(), 0);
        for &of in &volumes {
            let suffix = if volumes.len() == 1 { format!("{number}") } else { format!("{number}-{of}") };
            left_out += self.rescue_one(of, &suffix)?;
            names.push(format!("{RESCUED}{suffix}"));
        }
        self.outcome().left_out = left_out;
        Ok(names.join(", "))
    }

    /// Makes a volume of what is in memory of one. Returns how many changes the store could not take.
    fn rescue_one(&self, of: VolumeId, suffix: &str) -> Result<u64, CacheError> {
        let (store, durable) = (self.shared.store_io(), self.shared.buffer().durable());
        let (unfinished, name) = (format!("{UNFINISHED}{suffix}"), format!("{RESCUED}{suffix}"));
        let mut left_out = 0;
        let created = u64::try_from(self.shared.clock().wall_nanos()).unwrap_or(0);
        let new = |name| NewVolume { name, mode: VolumeMode::Writable, created };
        if store.volume_named(&name).is_none() {
            let volume = match store.volume_named(&unfinished) {
                Some(begun) => begun.id,
                None => store.clone_named(of, &new(&unfinished), durable)?,
            };
            left_out = self.rescue_cuts(of, volume, durable.plus(1))?;
            let keys: Vec<Key> = {
                let state = self.shared.state();
                let keys = state.pages.by_group().map(|(_, key)| key);
                keys.filter(|key| key.object.volume == of).collect()
            };
            for some in keys.chunks(STEP_PAGES) {
                left_out += self.rescue_pages(volume, some, durable.plus(1))?;
            }
            store.clone_named(volume, &new(&name), durable)?;
        }
        // It shares everything with the one that is whole.
        if let Some(done) = store.volume_named(&unfinished) {
            store.delete_volume(done.id, durable)?;
        }
        Ok(left_out)
    }

    /// Returns how many objects could not be deleted, which no name leads to any more. A cut that cannot be made would let what it
    /// took away be read again, so without it nothing is whole.
    fn rescue_cuts(&self, of: VolumeId, volume: VolumeId, lsn: Lsn) -> Result<u64, CacheError> {
        let all = self.shared.state().pages.cuts().collect::<Vec<_>>().into_iter();
        let mut cuts: Vec<_> = all.filter(|(object, _)| object.volume == of).collect();
        cuts.sort_by_key(|(_, cut)| cut.lsn);
        // Its own place in the order: what was written after it, and is in the store already, stays.
        for (_, cut) in &mut cuts {
            let is_late = is_planted(PlantedBug::RescueCutsLate);
            cut.lsn = if is_late { lsn } else { cut.lsn.min(lsn) };
        }
        let vector: Vec<Change> =
            cuts.iter().map(|&(object, cut)| cut_change(object.in_volume(volume), cut)).collect();
        let mut refused = BTreeMap::new();
        for (number, some) in vector.chunks(STEP_PAGES).enumerate() {
            self.write_back.apply_part(number * STEP_PAGES, some, &mut refused)?;
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
            let state = self.shared.state();
            keys.iter().filter_map(|&key| Some((key, Content::of(&state.pages, key)?))).collect()
        };
        let patches = contents.iter().filter(|(_, content)| matches!(content, Content::Patch(_)));
        let mut wants: Vec<Want> =
            patches.map(|(key, _)| Want::new(key.object.in_volume(volume), key.page)).collect();
        self.shared.store_io().read(&mut wants);
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
            vector.push(Change::Write { object: object.in_volume(volume), page, bytes, page_lsn });
        }
        let mut refused = BTreeMap::new();
        self.write_back.apply_part(0, &vector, &mut refused)?;
        left_out += refused.len() as u64;
        self.ensure_unreadable(&vector, refused)?;
        let mut state = self.shared.state();
        let mut was_reserved = |key: &&Key| state.pages.change(**key, Entry::take_reservation);
        let reserved = keys.iter().filter(|key| was_reserved(key)).count();
        self.shared.store().release(reserved as u64);
        Ok(left_out)
    }

    /// What was refused because something is damaged must be an error to its readers, not what was there before.
    fn ensure_unreadable(
        &self,
        vector: &[Change],
        refused: BTreeMap<usize, StoreError>,
    ) -> Result<(), CacheError> {
        for (index, error) in refused {
            let Change::Write { object, page, .. } = vector[index] else { continue };
            let mut wants = [Want::new(object, page)];
            self.shared.store_io().read(&mut wants);
            if !matches!(wants[0].found, Err(StoreError::Corrupt { .. })) {
                return Err(error.into());
            }
        }
        Ok(())
    }
}

impl Content {
    fn of(pages: &Pages, key: Key) -> Option<Content> {
        Some(match pages.get(&key)?.body() {
            Body::Whole(page) => Content::Whole(page.clone()),
            Body::Patch(delta) => Content::Patch(delta.clone()),
        })
    }
}
