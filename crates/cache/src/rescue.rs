//! What a buffer that fails takes with it: everything that is in memory and nowhere else becomes a volume of its own.
//!
//! Nothing changes after the failure, so what is in memory is one moment: after every change that anybody was told of, synced
//! or not. It is written over a clone of the cached volume, which itself stays as it was, so that the buffer still fits it
//! should its device come back. All of it gets the sequence after the last durable change: above every home that the
//! clone has, and one more than the buffer knows, which a start allows for.
//!
//! After a crash in the middle there is a volume `rescuing-…` with some of the pages; the one that is whole is called
//! `rescued-…`, which one note in the store makes.

use crate::cache::{Core, Progress};
use crate::delta::Delta;
use crate::error::CacheError;
use crate::page::Body;
use crate::state::{Key, State};
use crate::trouble::RETRY_AFTER;
use crate::write_back::{STEP_PAGES, Why, cut_change};
use device::{Page, Sequence, SharedPage};
use std::sync::Arc;
use store::{Change, Found, NewVolume, VolumeId, VolumeMode, Want};

/// How far a rescue is. Under the cache's lock; after a crash a rescue begins anew, if there is anything to rescue.
#[derive(Debug, Default)]
pub(crate) struct Rescue {
    /// The volume that gets everything.
    pub(crate) volume: Option<String>,
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
            Ok(name) => state.rescue = Rescue { volume: Some(name), error: None },
            Err(error) => state.rescue.error = Some(error),
        }
        Progress::Worked
    }

    /// Returns the volume's name. What an attempt that failed has written is written again, which does no harm.
    fn rescue(&self) -> Result<String, CacheError> {
        let (store, durable, number) = (self.store_io(), self.buffer.durable(), self.store.incarnation().0);
        let (unfinished, name) = (format!("rescuing-{number}"), format!("rescued-{number}"));
        let created = u64::try_from(self.clock.wall_nanos()).unwrap_or(0);
        let new = |name| NewVolume { name, mode: VolumeMode::Writable, created };
        if store.volume_named(&name).is_none() {
            let volume = match store.volume_named(&unfinished) {
                Some(begun) => begun.id,
                None => store.clone_named(self.volume, &new(&unfinished), durable)?,
            };
            self.rescue_cuts(volume, durable.plus(1))?;
            let keys: Vec<Key> = self.state().by_group().map(|(_, key)| key).collect();
            keys.chunks(STEP_PAGES).try_for_each(|some| self.rescue_pages(volume, some, durable.plus(1)))?;
            store.clone_named(volume, &new(&name), durable)?;
        }
        // It shares everything with the one that is whole; a crash here leaves it to whoever deletes it by hand.
        if let Some(done) = store.volume_named(&unfinished) {
            store.delete_volume(done.id, durable)?;
        }
        Ok(name)
    }

    fn rescue_cuts(&self, volume: VolumeId, sequence: Sequence) -> Result<(), CacheError> {
        let state = self.state();
        let mut cuts: Vec<_> = state
            .cuts
            .iter()
            .flat_map(|(&object, cuts)| cuts.iter().map(move |&cut| (object, cut)))
            .collect();
        drop(state);
        cuts.sort_by_key(|(_, cut)| cut.sequence);
        for (_, cut) in &mut cuts {
            cut.sequence = sequence;
        }
        let vector: Vec<Change> = cuts.iter().map(|&(object, cut)| cut_change(object, cut)).collect();
        Ok(vector.chunks(STEP_PAGES).try_for_each(|some| self.store_io().apply_to(volume, some))?)
    }

    /// Pages whole, or what the store has with the changes over it. Those that are written are promised nothing more.
    fn rescue_pages(&self, volume: VolumeId, keys: &[Key], home: Sequence) -> Result<(), CacheError> {
        let contents: Vec<(Key, Content)> = {
            let state = self.state();
            keys.iter().filter_map(|&key| Some((key, Content::of(&state, key)?))).collect()
        };
        let patches = contents.iter().filter(|(_, content)| matches!(content, Content::Patch(_)));
        let mut wants: Vec<Want> = patches.map(|(key, _)| Want::new(key.object, key.page)).collect();
        self.store_io().read_from(volume, &mut wants);
        let mut bases = wants.into_iter().map(|want| want.found);
        let mut vector = Vec::new();
        for (Key { object, page }, content) in contents {
            let bytes = match content {
                Content::Whole(page) => page,
                Content::Patch(delta) => {
                    let mut bytes = match bases.next().expect("one for each patch")? {
                        Found::Hole => Page::zeroed(),
                        Found::Page { bytes, .. } => bytes,
                    };
                    delta.apply(&mut bytes);
                    Arc::from(bytes)
                }
            };
            vector.push(Change::Write { object, page, bytes, home });
        }
        self.store_io().apply_to(volume, &vector)?;
        let mut state = self.state();
        let mut was_promised = |key: &&Key| {
            state.change(**key, |entry| {
                entry.dirt.as_mut().is_some_and(|dirt| std::mem::take(&mut dirt.reserved))
            })
        };
        let promised = keys.iter().filter(|key| was_promised(key)).count();
        self.store.release(promised as u64);
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
