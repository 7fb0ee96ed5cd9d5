//! Making things durable: syncs, commits, and which callers are told.

use crate::admission::Admission;
use crate::bypass;
use crate::error::CacheError;
use crate::pages::{Key, Pages};
use crate::plant::{PlantedBug, is_planted};
use crate::shared::{ForSync, Shared, State};
use crate::sync::{AtomicU64, Ordering};
use crate::task::{Completion, Completions, Progress, Task};
use buffer::{Buffer, BufferError, GROUP_BYTES, GroupNo};
use device::{BLOCK_BYTES, Lsn, ObjectId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// Who syncs one thing after the other has the next one within this.
const SYNCED_LATELY: Duration = Duration::from_millis(5);

/// Bypassed pages that one commit logs at most: 4 MiB, milliseconds under the lock. What is left is for the next one, at once.
const LOGGED_LATE_PAGES: usize = 1024;

/// Who waits for durability.
#[derive(Default)]
pub(crate) struct Syncs {
    waiting: VecDeque<(Target, Completion<()>)>,
    /// For these, pages that bypassed the buffer are stored first, at least as of these changes.
    waiting_for_store: Vec<(BTreeMap<Key, Lsn>, Completion<()>)>,
    /// The newest group in which pages are that bypassed the buffer.
    logged_again: GroupNo,
    /// The store's newest batch with such pages. Syncs rely on it where the log has no more than that they were written.
    stored_bypassing: u64,
    /// When a sync was last asked for that needs nothing but the log.
    for_log: Option<Duration>,
    /// When the oldest change that is not durable was made.
    uncommitted_since: Option<Duration>,
    /// Something needs a commit soon: a write-back, or released space.
    commit_wanted: bool,
    /// A commit is under way.
    committing: u32,
}

/// What must be durable for a sync.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    newest: Lsn,
    /// What was logged again has no LSN of its own.
    group: GroupNo,
    /// The buffer says that the store has this batch, or else nobody would miss it.
    store_batch: u64,
    /// The sync has waited for the store before.
    was_for_store: bool,
}

impl Target {
    fn is_durable(&self, buffer: &Buffer) -> bool {
        buffer.durable_lsn() >= self.newest
            && (self.group == GroupNo(0) || buffer.durable_group() >= self.group)
            && (self.store_batch == 0 || buffer.durable_store_batch() >= self.store_batch)
    }
}

impl Syncs {
    /// What bypassed the buffer stands in `group`, too.
    pub(crate) fn logged_again(&mut self, group: GroupNo) {
        self.logged_again = group;
    }

    /// Whether a commit has nothing to make durable: no change, no page that was logged again, no batch of the store to name.
    fn is_committed(&self, buffer: &Buffer) -> bool {
        self.target(buffer.appended_lsn()).is_durable(buffer)
    }

    /// Bypassed pages are stored, in this batch. Until the buffer names it, nothing would tell if the store lost it.
    pub(crate) fn stored_bypassing(&mut self, store_batch: u64) {
        self.stored_bypassing = store_batch;
    }

    /// Everything up to a change, and what was logged again or stored by now.
    pub(crate) fn target(&self, newest: Lsn) -> Target {
        let store_batch = self.stored_bypassing;
        Target { newest, group: self.logged_again, store_batch, was_for_store: false }
    }

    /// Parks `then` until `target` is durable. True if no other thread waits or commits.
    pub(crate) fn park(&mut self, target: Target, then: Completion<()>) -> bool {
        let alone = self.committing == 0 && self.waiting.is_empty();
        self.waiting.push_back((target, then));
        alone
    }

    /// How many wait.
    pub(crate) fn parked(&self) -> u64 {
        (self.waiting.len() + self.waiting_for_store.len()) as u64
    }

    /// Whether one waits for the store.
    pub(crate) fn wait_for_store(&self) -> bool {
        !self.waiting_for_store.is_empty()
    }

    /// Whether somebody syncs who needs nothing but the log.
    pub(crate) fn need_log(&self, now: Duration) -> bool {
        let needs_nothing_else = |(target, _): &(Target, _)| !target.was_for_store;
        self.waiting.iter().any(needs_nothing_else)
            || self.for_log.is_some_and(|last| now < last + SYNCED_LATELY)
    }

    /// Something needs a commit soon: a write-back, or released space.
    pub(crate) fn ask_for_commit(&mut self) {
        self.commit_wanted = true;
    }

    /// Something was appended. `now` is asked only if all before it is durable.
    pub(crate) fn appended(&mut self, now: impl FnOnce() -> Duration) {
        self.uncommitted_since.get_or_insert_with(now);
    }
}

/// What a sync is of.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Synced {
    /// All that is logged.
    Logged,
    /// That, and the bypassed pages of one object.
    Object(ObjectId),
    /// Everything.
    All,
}

/// How long a commit takes on this buffer, as a running mean, in nanoseconds. Starts as "for ever", so that the
/// first one is made by the committer.
struct CommitTime(AtomicU64);

impl CommitTime {
    fn new() -> CommitTime {
        CommitTime(AtomicU64::new(u64::MAX))
    }

    fn saw(&self, took: Duration) {
        let took = took.as_nanos() as u64;
        let mean = self.0.load(Ordering::Relaxed);
        let next = if mean == u64::MAX { took } else { mean - mean / 8 + took / 8 };
        self.0.store(next, Ordering::Relaxed);
    }

    fn is_below(&self, limit: Duration) -> bool {
        self.0.load(Ordering::Relaxed) < limit.as_nanos() as u64
    }
}

/// Makes things durable.
pub(crate) struct Committer {
    shared: Arc<Shared>,
    admission: Admission,
    commit_time: CommitTime,
}

impl Committer {
    pub(crate) fn new(shared: Arc<Shared>, admission: Admission) -> Committer {
        Committer { shared, admission, commit_time: CommitTime::new() }
    }

    /// Of everything that is logged, and of one object all that was written to it, or of everything.
    pub(crate) fn sync(&self, what: Synced, then: Completion<()>) {
        let mut state = self.shared.state();
        state.counters.syncs += 1;
        if state.failed().is_none() {
            match self.log_for_sync(&mut state, what) {
                Ok(pages) if pages.is_empty() => {}
                Ok(pages) => {
                    state.syncs.waiting_for_store.push((pages, then));
                    drop(state);
                    return self.shared.wake(Task::WriteBack);
                }
                Err(why) => state.fail(&why),
            }
        }
        if let Some(error) = state.failed().cloned() {
            drop(state);
            return then(Err(error.into()));
        }
        let target = state.syncs.target(self.shared.buffer().appended_lsn());
        if target.is_durable(self.shared.buffer()) {
            drop(state);
            return then(Ok(()));
        }
        let alone = state.syncs.park(target, then);
        let quick = alone && self.commit_time.is_below(self.shared.settings().commit_inline_below);
        // Once it stops, the committer may have ended.
        if quick || state.is_stopping() {
            drop(state);
            // Handing over to the committer and back takes longer than this buffer takes to commit.
            let _ = self.commit_now();
        } else {
            drop(state);
            self.shared.wake(Task::Commit);
        }
    }

    /// Logs what bypassed the buffer, or tells what must be stored for the sync, if that is much.
    fn log_for_sync(&self, state: &mut State, what: Synced) -> Result<BTreeMap<Key, Lsn>, BufferError> {
        let range = match what {
            _ if is_planted(PlantedBug::SyncWithoutBytes) => return Ok(BTreeMap::new()),
            Synced::Logged => None,
            Synced::Object(object) => Some(bypass::of_object(object)),
            Synced::All => Some(bypass::ALL),
        };
        let pages = range.into_iter().flat_map(|range| state.pages.unlogged_in(range));
        let pages: BTreeMap<Key, Lsn> =
            pages.filter_map(|key| Some((key, state.pages.get(&key)?.newest()?))).collect();
        if pages.is_empty() {
            state.syncs.for_log = Some(self.shared.now());
            return Ok(pages);
        }
        let bytes = (pages.len() * BLOCK_BYTES) as u64;
        // Once it stops, nobody may be there who stores them.
        if bytes > self.shared.settings().sync_logs_max && !state.is_stopping() {
            return Ok(pages);
        }
        let logged = bypass::log(self.shared.buffer(), &mut state.pages, pages.into_keys())?;
        state.logged_late(logged);
        Ok(BTreeMap::new())
    }

    /// Pages have been stored as of these changes, or logged, or are there no more: syncs that waited for the last of them need a commit.
    pub(crate) fn settle_stored(&self, state: &mut State, stored: &[(Key, Lsn)]) {
        let State { syncs, pages, .. } = state;
        let target = Target { was_for_store: true, ..syncs.target(self.shared.buffer().appended_lsn()) };
        for (wanted, _) in &mut syncs.waiting_for_store {
            for (key, lsn) in stored {
                if wanted.get(key).is_some_and(|wanted| wanted <= lsn) {
                    wanted.remove(key);
                }
            }
            wanted.retain(|key, _| pages.is_unlogged(key));
        }
        let done = syncs.waiting_for_store.extract_if(.., |(wanted, _)| wanted.is_empty());
        let done: Vec<_> = done.map(|(_, then)| (target, then)).collect();
        syncs.commit_wanted |= !done.is_empty();
        syncs.waiting.extend(done);
    }

    /// The mount ends, and nobody may be there who stores what syncs wait for.
    pub(crate) fn log_what_syncs_wait_for(&self, state: &mut State) {
        if state.syncs.wait_for_store() {
            self.log_late(state, |pages| pages.unlogged_in(bypass::ALL).collect());
        }
    }

    /// The mount ends: bypassed pages that could not be stored are logged, and everything that is logged becomes durable.
    pub(crate) fn keep_in_buffer(&self) -> Result<(), CacheError> {
        let mut state = self.shared.state();
        if !is_planted(PlantedBug::EndWithoutCommit) {
            self.log_late(&mut state, |pages| pages.unlogged_in(bypass::ALL).collect());
        }
        drop(state);
        self.commit_now().map(drop)
    }

    /// Logs bypassed pages that the store does not have after a commit interval, some of them if they are many.
    fn log_overdue(&self, state: &mut State) {
        if is_planted(PlantedBug::OverdueNotLogged) {
            return;
        }
        let Some(until) = self.shared.now().checked_sub(self.shared.bypassed_interval()) else {
            return;
        };
        self.log_late(state, |pages| pages.bypassed().written_until(until, LOGGED_LATE_PAGES));
    }

    /// Logs bypassed pages, which the buffer keeps space for, and answers syncs that waited for the store to have them.
    fn log_late(&self, state: &mut State, chosen: impl FnOnce(&Pages) -> Vec<Key>) {
        if state.failed().is_some() {
            return;
        }
        let pages = chosen(&state.pages);
        match bypass::log(self.shared.buffer(), &mut state.pages, pages) {
            Ok(logged) => state.logged_late(logged),
            Err(why) => state.fail(&why),
        }
        if state.syncs.wait_for_store() {
            self.settle_stored(state, &[]);
        }
    }

    /// Makes everything appended so far durable, in this thread, with bypassed pages whose time is over, and tells the callers that
    /// waited for it.
    pub(crate) fn commit_now(&self) -> Result<Lsn, CacheError> {
        let mut state = self.shared.state();
        self.log_overdue(&mut state);
        state.pages.settled_bypassed_are_committed();
        state.syncs.committing += 1;
        state.syncs.commit_wanted = false;
        drop(state);
        let (before, was_durable) = (self.shared.now(), self.shared.buffer().durable_lsn());
        let for_sync = ForSync::begin();
        let outcome = self.shared.buffer().commit();
        if outcome.as_ref().is_ok_and(|&durable| durable > was_durable) {
            // Only those count that had something to do: the others would make any device look fast.
            self.commit_time.saw(self.shared.now().saturating_sub(before));
        }

        let mut completions = Completions::default();
        let mut state = self.shared.state();
        drop(for_sync);
        state.syncs.committing -= 1;
        let result = match outcome {
            Ok(durable) => {
                self.settle_syncs(&mut state, before, &mut completions);
                self.admission.admit_waiting(&mut state, &mut completions);
                Ok(durable)
            }
            Err(why) => {
                state.fail(&why);
                let for_store = std::mem::take(&mut state.syncs.waiting_for_store).into_iter();
                let waiting = std::mem::take(&mut state.syncs.waiting).into_iter();
                for then in waiting.map(|(_, then)| then).chain(for_store.map(|(_, then)| then)) {
                    let error = why.clone().into();
                    completions.push(move || then(Err(error)));
                }
                let error = why.clone().into();
                self.admission.refuse_all(&mut state, &CacheError::ReadOnly { why }, &mut completions);
                Err(error)
            }
        };
        drop(state);
        if result.is_err() {
            // Everything that is in memory alone is to be rescued.
            self.shared.wake(Task::WriteBack);
        }
        completions.deliver();
        result
    }

    /// Makes the buffer larger. Who syncs meanwhile waits for the committer, and not here for the buffer's device.
    pub(crate) fn grow_buffer(&self, blocks: Option<u64>) -> Result<u64, CacheError> {
        self.shared.state().syncs.committing += 1;
        let grown = self.shared.buffer().grow(blocks);
        self.shared.state().syncs.committing -= 1;
        Ok(grown?)
    }

    /// Tells the callers that waited for what a commit that began at `begun` made durable.
    fn settle_syncs(&self, state: &mut State, begun: Duration, completions: &mut Completions) {
        let buffer = self.shared.buffer();
        while state.syncs.waiting.front().is_some_and(|(target, _)| target.is_durable(buffer)) {
            let Some((_, then)) = state.syncs.waiting.pop_front() else { return };
            completions.push(move || then(Ok(())));
        }
        let clean = state.syncs.is_committed(buffer);
        state.syncs.uncommitted_since = if clean { None } else { Some(begun) };
    }

    /// How long the oldest change that was not synced, or page that was bypassed, may still wait; `None` without one.
    pub(crate) fn due_in(&self, state: &State) -> Option<Duration> {
        if state.failed().is_some() {
            return None;
        }
        let bypassed = state.pages.bypassed();
        let unlogged = bypassed.oldest().filter(|_| !is_planted(PlantedBug::OverdueNotLogged));
        let unlogged = [unlogged, bypassed.settled_since()].into_iter().flatten().min();
        let unlogged = unlogged.map(|since| since + self.shared.bypassed_interval());
        let logged =
            state.syncs.uncommitted_since.map(|since| since + self.shared.settings().commit_interval);
        let due = [logged, unlogged].into_iter().flatten().min()?;
        Some(due.saturating_sub(self.shared.now()))
    }

    /// True if a commit is worth making now.
    pub(crate) fn is_due(&self, state: &State) -> bool {
        self.is_pressed(state) || self.due_in(state) == Some(Duration::ZERO)
    }

    /// The same, but for age, which the committer looks at by itself.
    pub(crate) fn is_pressed(&self, state: &State) -> bool {
        if state.failed().is_some() {
            // Those who wait are told, and not only those for whom a commit failed.
            return state.syncs.parked() > 0;
        }
        let wanted = !state.syncs.waiting.is_empty() || state.syncs.commit_wanted;
        wanted || self.shared.buffer().open_bytes() >= GROUP_BYTES
    }

    pub(crate) fn step(&self) -> Progress {
        let mut state = self.shared.state();
        if self.is_due(&state) {
            drop(state);
            let _ = self.commit_now();
            return Progress::Worked;
        }
        let mut completions = Completions::default();
        self.admission.admit_waiting(&mut state, &mut completions);
        drop(state);
        completions.deliver();
        Progress::Idle
    }

    /// Gives back the part of the buffer that nothing needs any more.
    pub(crate) fn release_groups(&self, state: &mut State) {
        let buffer = self.shared.buffer();
        let needed = state.pages.oldest_group().unwrap_or(buffer.unreleased_groups().end);
        buffer.release(needed, self.shared.store().durable_batch());
        // The space is used again after the next commit only; a writer may be waiting for it.
        if state.admission.is_waiting() || self.shared.buffer_is_half_full() {
            state.syncs.ask_for_commit();
        }
    }
}
