//! Taking pages home: which, when, in what order, and what may be forgotten afterwards.
//!
//! The order is the promise: (1) a partly written page gets its base, (2) the page is frozen, (3) everything frozen is
//! durable in the buffer, (4) the store has it durably, (5) the buffer forgets it.

use crate::cache::{Core, Progress, Task};
use crate::commit::Completions;
use crate::delta::{Piece, Ranges};
use crate::error::CacheError;
use crate::page::{Body, Entry};
use crate::read::{land, retry_ready, take_off_for_write_back};
use crate::state::{Key, PendingCut, State};
use buffer::{GroupNo, Record};
use device::{ObjectId, Page, Sequence};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use store::{Change, StoreError};

/// Pages of one step: a MiB, so that a step is short on any device and its notes are shared by many pages.
const STEP_PAGES: usize = 256;
/// How far from a page that goes home its dirty neighbours go with it: with those on the other side, half a MiB, read and
/// written at the speed of a long transfer.
const NEIGHBOURS: u64 = 64;
/// Cuts that may wait before they alone are reason enough to go home: looking them up stays cheap.
const CUTS_MAX: usize = 512;
/// How long a page whose base could not be read, or a store that could not write, is left alone.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What one thread at a time remembers between write-backs.
#[derive(Default)]
pub(crate) struct WriteBack {
    /// Pages that could not go home, and when to try again.
    shunned: BTreeMap<Key, Duration>,
    /// When the store may be written to again.
    not_before: Duration,
}

/// Why pages go home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Only what limits and ages ask for.
    Due,
    /// Everything, because the mount ends or somebody waits for space.
    All,
}

/// Pages and cuts frozen on their way home.
#[derive(Default)]
struct Frozen {
    pages: Vec<FrozenPage>,
    cuts: Vec<(ObjectId, PendingCut)>,
}

struct FrozenPage {
    key: Key,
    page: Arc<Page>,
    newest: Sequence,
    reserved: bool,
}

impl Core {
    /// One bounded piece of write-back. `Err` if pages stay dirty because a device failed.
    pub(crate) fn write_back(self: &Arc<Core>, why: Why) -> Result<Progress, CacheError> {
        let mut turn = self.write_back_turn.lock().expect("no panic while writing back");
        let now = self.clock.monotonic();
        if why == Why::Due && now < turn.not_before {
            return Ok(Progress::Idle);
        }
        turn.shunned.retain(|_, until| why == Why::Due && now < *until);
        let relogged = self.relog_pages(&turn, why)?;
        let Some(victims) = self.victims(&turn, why) else {
            return Ok(if relogged { Progress::Worked } else { Progress::Idle });
        };
        let unreadable = self.fetch_bases(&victims);
        turn.shunned.extend(unreadable.iter().map(|&key| (key, now + RETRY_AFTER)));
        let frozen = self.freeze(&victims);
        if frozen.pages.is_empty() && frozen.cuts.is_empty() {
            return Ok(if relogged { Progress::Worked } else { Progress::Idle });
        }
        if let Err(error) = self.take_home(frozen) {
            turn.not_before = now + RETRY_AFTER;
            return Err(error);
        }
        Ok(Progress::Worked)
    }

    /// True if limits or ages ask for pages to go home.
    pub(crate) fn write_back_due(&self, state: &State) -> bool {
        let age = |since| self.clock.monotonic() >= since + self.settings.dirty_age_max;
        state.failed.is_none()
            && (self.buffer_is_half_full()
                || state.dirty_bytes > self.settings.dirty_bytes_max / 2
                || state.cuts.values().map(Vec::len).sum::<usize>() > CUTS_MAX
                || (state.gate.is_waiting() && (state.dirty_pages() > 0 || !state.cuts.is_empty()))
                || state.oldest_since().is_some_and(age))
    }

    fn buffer_is_half_full(&self) -> bool {
        self.buffer.room_bytes() < self.buffer.capacity_bytes() / 2
    }

    /// The pages to take home now; `None` if there is no reason to. Least recently written first, but for the sake
    /// of the buffer or of age those that need its oldest groups, and each with its dirty neighbours: on a disk a run
    /// of pages costs as much as one.
    fn victims(&self, turn: &WriteBack, why: Why) -> Option<Vec<Key>> {
        let state = self.state();
        if state.dirty_pages() == 0 && state.cuts.is_empty() {
            return None;
        }
        if why == Why::Due && !self.write_back_due(&state) {
            return None;
        }
        let crowded = state.dirty_bytes > self.settings.dirty_bytes_max / 2;
        let mut victims = BTreeSet::new();
        let mut take = |seed: Key| {
            let free = |key: &Key| !turn.shunned.contains_key(key);
            victims.extend(state.dirty_around(seed, NEIGHBOURS).filter(free));
            victims.len() < STEP_PAGES
        };
        if crowded && !self.buffer_is_half_full() && why == Why::Due {
            state.by_write().all(&mut take);
        } else {
            state.by_group().all(|(_, key)| take(key));
        }
        Some(victims.into_iter().collect())
    }

    /// Reads what partly written victims lack. Returns the pages that could not be read.
    fn fetch_bases(self: &Arc<Core>, victims: &[Key]) -> Vec<Key> {
        let mut state = self.state();
        let patched = |state: &State, key: &Key| {
            state.table.get(key).is_some_and(|entry| matches!(entry.body, Body::Patch(_)))
        };
        let mut needed: Vec<Key> = victims.iter().filter(|key| patched(&state, key)).copied().collect();
        needed.sort();
        let flights: Vec<_> =
            needed.into_iter().filter_map(|key| take_off_for_write_back(&mut state, key)).collect();
        drop(state);
        if flights.is_empty() {
            return Vec::new();
        }
        let wants = self.fetch(&flights);
        let mut completions = Completions::default();
        let mut state = self.state();
        let unreadable = land(&mut state, flights, wants);
        retry_ready(&mut state, &mut completions);
        drop(state);
        completions.deliver();
        unreadable
    }

    /// Freezes those of the victims that are whole, and all pending cuts, as they are now.
    fn freeze(&self, victims: &[Key]) -> Frozen {
        let mut state = self.state();
        let mut frozen = Frozen::default();
        for &key in victims {
            if !state.table.contains_key(&key) {
                continue;
            }
            let begun = state.change(key, |entry| {
                let (page, newest) = entry.begin_writing()?;
                Some((page, newest, entry.writing.as_ref().is_some_and(|dirt| dirt.reserved)))
            });
            if let Some((page, newest, reserved)) = begun {
                frozen.pages.push(FrozenPage { key, page, newest, reserved });
            }
        }
        let cuts = state.cuts.iter().flat_map(|(&object, cuts)| cuts.iter().map(move |&cut| (object, cut)));
        frozen.cuts = cuts.collect();
        // Neighbours go next to each other; cuts in the one order.
        frozen.pages.sort_by_key(|page| page.key);
        frozen.cuts.sort_by_key(|(_, cut)| cut.sequence);
        frozen
    }

    /// Makes what is frozen durable in the buffer, then in the store, and forgets what nobody needs any more.
    fn take_home(self: &Arc<Core>, frozen: Frozen) -> Result<(), CacheError> {
        let pages = frozen.pages.iter().map(|page| page.newest);
        let newest = pages.chain(frozen.cuts.iter().map(|(_, cut)| cut.sequence)).max().unwrap_or_default();
        let durable = if self.buffer.durable() < newest { self.commit_now().map(drop) } else { Ok(()) };
        let outcome = durable.and_then(|()| Ok(self.apply_home(&frozen)?));

        let mut state = self.state();
        let mut spare = 0;
        for page in &frozen.pages {
            let mine =
                |entry: &Entry| entry.writing.as_ref().is_some_and(|writing| writing.newest == page.newest);
            if !state.table.get(&page.key).is_some_and(mine) {
                // Cut while it was on its way: its promise has no owner any more.
                spare += u64::from(page.reserved);
                continue;
            }
            spare += state.change(page.key, |entry| match outcome {
                Ok(()) => {
                    entry.writing = None;
                    0
                }
                Err(_) => entry.abandon_writing(),
            });
            #[cfg(feature = "planted-bugs")]
            self.lose_newer_bytes(&mut state, page.key);
        }
        if let Err(error) = outcome {
            self.store.release(spare);
            state.counters.write_back_errors += 1;
            return Err(error);
        }
        self.forget(&mut state, &frozen);
        state.evict(&self.settings);
        drop(state);
        self.wake(Task::Commit);
        self.wake(Task::Checkpoint);
        Ok(())
    }

    /// In one vector. Where that does not fit, what gives space back goes first, from the reserve that it has; it may
    /// go again with the next vector without harm.
    fn apply_home(&self, frozen: &Frozen) -> Result<(), StoreError> {
        let vector = vector(frozen);
        let (cuts, pages) = vector.split_at(frozen.cuts.len());
        match self.store_io().apply(&vector) {
            Err(StoreError::Full) if !cuts.is_empty() && !pages.is_empty() => {
                self.store_io().apply(cuts)?;
                self.store_io().apply(pages)
            }
            outcome => outcome,
        }
    }

    /// What is home needs neither its promise nor its place in the buffer.
    fn forget(&self, state: &mut State, frozen: &Frozen) {
        self.store.release(frozen.pages.iter().filter(|page| page.reserved).count() as u64);
        for (object, cut) in &frozen.cuts {
            if let Some(pending) = state.cuts.get_mut(object) {
                pending.retain(|one| one.sequence != cut.sequence);
                if pending.is_empty() {
                    state.cuts.remove(object);
                }
            }
        }
        state.counters.pages_home += frozen.pages.len() as u64;
        state.counters.cuts_home += frozen.cuts.len() as u64;
        state.gate.exhausted = false;
        self.release_groups(state);
    }

    /// Gives back the part of the buffer that nothing needs any more.
    pub(crate) fn release_groups(&self, state: &mut State) {
        let needed = state.oldest_group().unwrap_or(self.buffer.groups().end);
        self.buffer.release(needed);
        // The space is used again after the next commit only; somebody may be waiting for it.
        state.syncs.commit_wanted |= state.gate.is_waiting() || self.buffer_is_half_full();
    }

    /// Writes the deltas of pages that need the buffer's oldest groups to the buffer again, so that the groups can
    /// go: of those that are still being written, which need not go home over and over, and of those that cannot go
    /// home because their base is damaged, which would hold up everybody else.
    fn relog_pages(self: &Arc<Core>, turn: &WriteBack, why: Why) -> Result<bool, CacheError> {
        if why == Why::All || !self.buffer_is_half_full() {
            return Ok(false);
        }
        let mut state = self.state();
        let groups = self.buffer.groups();
        let span = groups.end.0 - groups.start.0;
        let stays = |key: &Key, entry: &Entry| {
            let dirt = entry.dirt.as_ref().filter(|_| entry.writing.is_none());
            // Written again in the last eighth of the log, and first written in its older half.
            dirt.is_some_and(|dirt| {
                let hot = dirt.latest.0 >= groups.end.0 - span / 8;
                (hot || turn.shunned.contains_key(key)) && dirt.group.0 < groups.start.0 + span / 2
            })
        };
        let oldest = state.by_group().take(STEP_PAGES).map(|(_, key)| key);
        let staying: Vec<Key> =
            oldest.filter(|key| state.table.get(key).is_some_and(|entry| stays(key, entry))).collect();
        let mut relogged = Vec::new();
        for key in staying {
            if let Some(group) = self.relog(&state, key)? {
                relogged.push((key, group));
            }
        }
        if relogged.is_empty() {
            return Ok(false);
        }
        state.counters.pages_relogged += relogged.len() as u64;
        drop(state);
        // Only now is the new copy as good as the old one.
        self.commit_now()?;
        let mut state = self.state();
        for (key, group) in relogged {
            if state.table.contains_key(&key) {
                state.change(key, |entry| {
                    if let Some(dirt) = &mut entry.dirt {
                        dirt.group = dirt.group.max(group);
                    }
                });
            }
        }
        self.release_groups(&mut state);
        Ok(true)
    }

    /// Appends one page's surviving delta; `None` where there is no room for that.
    fn relog(&self, state: &State, key: Key) -> Result<Option<GroupNo>, CacheError> {
        let Some(entry) = state.table.get(&key) else { return Ok(None) };
        let Some(dirt) = &entry.dirt else { return Ok(None) };
        let records = records(entry, key, &dirt.ranges);
        let bytes = records.iter().map(|record| match record {
            Record::Write { bytes, .. } => bytes.len() as u64,
            _ => 0,
        });
        let footprint = buffer::footprint(records.len() as u64, bytes.sum());
        let kept = state.gate.promised_bytes() + self.buffer.capacity_bytes() / 16;
        if self.buffer.room_bytes() < footprint + kept {
            return Ok(None);
        }
        Ok(Some(self.buffer.append_merged(dirt.newest, &records)?))
    }

    #[cfg(feature = "planted-bugs")]
    fn lose_newer_bytes(&self, state: &mut State, key: Key) {
        if state.planted == Some(crate::page::PlantedBug::NewerBytesLostAtMerge) {
            let dirt = state.change(key, |entry| entry.dirt.take());
            self.store.release(u64::from(dirt.is_some_and(|dirt| dirt.reserved)));
        }
    }

    pub(crate) fn write_back_step(self: &Arc<Core>) -> Progress {
        self.write_back(Why::Due).unwrap_or(Progress::Idle)
    }
}

/// What the store is asked for: cuts first, in the one order. A page that was cut after it was frozen has a home below
/// its cut, so the cut, which goes home later, takes it out again.
fn vector(frozen: &Frozen) -> Vec<Change> {
    let cuts = frozen.cuts.iter().map(|&(object, cut)| match cut.whole_object {
        true => Change::Delete { object, sequence: cut.sequence },
        false => Change::Cut { object, pages: cut.from..cut.to, sequence: cut.sequence },
    });
    let pages = frozen.pages.iter().map(|frozen| Change::Write {
        object: frozen.key.object,
        page: frozen.key.page,
        bytes: frozen.page.clone(),
        home: frozen.newest,
    });
    cuts.chain(pages).collect()
}

/// A page's surviving delta as records.
fn records<'a>(entry: &'a Entry, key: Key, ranges: &Ranges) -> Vec<Record<'a>> {
    let Key { object, page } = key;
    match &entry.body {
        Body::Patch(delta) => delta
            .pieces()
            .map(|piece| match piece {
                Piece::Bytes(start, bytes) => Record::Write { object, page, start, bytes },
                Piece::Zeros(start, len) => Record::Zero { object, page, start, len },
            })
            .collect(),
        Body::Whole(bytes) => ranges
            .iter()
            .map(|range| Record::Write { object, page, start: range.start as u16, bytes: &bytes.0[range] })
            .collect(),
    }
}
