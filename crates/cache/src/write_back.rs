//! Writing pages back: which, when, in what order, and what may be forgotten afterwards.
//!
//! The order is the promise: (1) the page is frozen, as it is, (2) everything frozen is durable in the buffer, (3) the store has it
//! durably, (4) the buffer forgets it.
//!
//! A partly written page is stored as a delta (`deltas.rs`): nothing is fetched for it.
//!
//! Clones and moves go first, each after what it is newer than and before what is newer than it (`transfers.rs`).

use crate::admission::Admission;
use crate::bypass;
use crate::commit::Committer;
use crate::delta::Delta;
use crate::deltas::{Plan, ToStore};
use crate::error::CacheError;
use crate::page::{Body, Entry};
use crate::pages::{Key, Pages, PendingCut};
use crate::plant::{PlantedBug, is_planted};
use crate::recover::ask_the_store;
use crate::relog::Relogger;
use crate::retry::{RETRY_AFTER, Victim};
use crate::scan::{LOOKS_MAX, Scan};
use crate::shared::{Shared, State};
use crate::sync::{Mutex, MutexGuard};
use crate::task::{Completions, Progress, Task};
use crate::transfers::{Ordered, Pending};
use buffer::GroupNo;
use device::{Lsn, ObjectId, Page, PageNo, SharedPage};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use store::{Change, PageRead, Store, StoreError, StoredPage};

/// Pages that are looked at for more deltas behind one that is written back, and behind how many of a step.
const DELTA_LOOKS: usize = 1024;
const DELTA_RUNS: usize = 4;
/// Pages of one step: a MiB, so that a step is short on any device and its log entries are shared by many pages.
pub(crate) const STEP_PAGES: usize = 256;
/// The same for pages that bypassed the buffer: most follow each other, and who writes them waits for their flushes.
const BYPASS_STEP_PAGES: usize = 1024;
/// How far from a page that is written back its dirty neighbours go with it: with those on the other side, half a MiB, read and
/// written at the speed of a long transfer.
const NEIGHBOURS: u64 = 64;
/// Attempts to store a clone or a move that was found in the buffer before the mount goes on without.
const ATTEMPTS_AT_START: usize = 3;
/// Leaves of the store's map (128 pages each) of which a cut makes holes at once: a MiB to read, a millisecond under its lock.
const CUT_LEAVES: usize = 256;
/// While somebody syncs what is logged one after the other, the devices and processors are his for seven eighths of the time: so many
/// times longer than a step that stores what bypassed the buffer nothing more of it is stored.
const LEFT_TO_SYNCS: u32 = 7;
const LEFT_TO_SYNCS_MAX: Duration = Duration::from_millis(200);
/// Files that were removed and ranges that were punched are stored after this: then `df` shows their space.
const CUTS_STORED_AFTER: Duration = Duration::from_secs(1);
/// Between two looks for something to write back where all that there is was tried a moment ago and failed.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// Writes pages back.
pub(crate) struct WriteBack {
    shared: Arc<Shared>,
    admission: Admission,
    committer: Arc<Committer>,
    relogger: Relogger,
    /// Held for a whole write-back, over device I/O; taken before the state, never while holding it.
    turn: Mutex<Turn>,
}

/// What one thread at a time remembers between write-backs.
#[derive(Default)]
pub(crate) struct Turn {
    /// When the store may be written to again.
    not_before: Duration,
    /// When what is stuck was last compared with what there is.
    swept: Duration,
    /// How far the dirty pages were looked through for some that are due.
    due: Scan,
    /// The last of the pages that bypassed the buffer and had their turn.
    bypassed: Option<Key>,
    /// The newest group when their round began: what was written since has its turn in the next.
    bypass_until: GroupNo,
    /// The last vector had such pages: others that are due go before more of them.
    was_bypassed: bool,
    /// Until then the devices are left to syncs of what is logged, as long as there are some.
    bypass_not_before: Duration,
}

/// Why pages are written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Only what limits and ages ask for.
    Due,
    /// Everything, because an operation waits for space.
    Space,
    /// Everything, because the mount ends or a copy is made.
    All,
}

/// Pages to write back.
struct Victims {
    pages: Vec<Key>,
    /// Whether there are none behind them.
    reached_newest: bool,
}

/// Pages and cuts frozen to be written back.
#[derive(Default)]
pub(crate) struct Frozen {
    pub(crate) pages: Vec<FrozenPage>,
    pub(crate) cuts: Vec<(ObjectId, PendingCut)>,
}

impl Frozen {
    fn len(&self) -> usize {
        self.cuts.len() + self.pages.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Neighbours next to each other; cuts in the one order.
    pub(crate) fn sort(&mut self) {
        self.pages.sort_by_key(|page| page.key);
        self.cuts.sort_by_key(|(_, cut)| cut.lsn);
    }

    /// What stands at `index` of the vector.
    fn victim(&self, index: usize) -> Victim {
        match self.cuts.get(index) {
            Some((object, cut)) => Victim::Cut(*object, cut.lsn),
            None => Victim::Page(self.pages[index - self.cuts.len()].key),
        }
    }
}

pub(crate) struct FrozenPage {
    key: Key,
    content: Content,
    newest: Lsn,
    reserved: bool,
    /// The newest cut that covers it and is not stored: an older page that the store has is zeros.
    cut: Option<Lsn>,
}

impl FrozenPage {
    /// Freezes a dirty page that is not being written back.
    pub(crate) fn begin(pages: &mut Pages, key: Key) -> Option<FrozenPage> {
        pages.get(&key)?;
        let cut = pages.cut_of(key);
        pages.change(key, |entry| {
            let content = Content::of(entry);
            let dirt = entry.begin_writing()?;
            Some(FrozenPage { key, content, newest: dirt.newest, reserved: dirt.reserved, cut })
        })
    }
}

/// Wrong ways, for planted bugs.
impl FrozenPage {
    /// Whether it was written to since.
    pub(crate) fn is_newer(&self, pages: &Pages) -> bool {
        pages.get(&self.key).is_some_and(Entry::is_dirty)
    }

    /// Takes what was written to it since, too.
    pub(crate) fn freeze_again(&mut self, pages: &Pages) {
        if let Some(entry) = pages.get(&self.key) {
            self.content = Content::of(entry);
        }
    }
}

/// What became of frozen pages and cuts, by their places in [`Frozen`].
#[derive(Default)]
struct Stored {
    /// What could not be stored.
    refused: BTreeMap<usize, StoreError>,
    /// All bytes of pages of which only some were in memory, where the others are zeros or were read.
    whole: BTreeMap<usize, SharedPage>,
    pages_read: u64,
}

impl WriteBack {
    pub(crate) fn new(shared: Arc<Shared>, admission: Admission, committer: Arc<Committer>) -> WriteBack {
        let relogger = Relogger::new(shared.clone(), committer.clone());
        WriteBack { shared, admission, committer, relogger, turn: Mutex::default() }
    }

    /// The turn to write back: while it is held no other thread writes anything back.
    pub(crate) fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().expect("no panic while writing back")
    }

    /// Whether no thread has the turn.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn is_idle(&self) -> bool {
        self.turn.try_lock().is_ok()
    }

    /// One bounded piece of what limits and ages ask for. `Err` if pages stay dirty because a device failed.
    pub(crate) fn step(&self) -> Result<Progress, CacheError> {
        let mut turn = self.turn();
        let mut scan = turn.due;
        let outcome = self.write_back(&mut turn, Why::Due, &mut scan);
        turn.due = scan;
        outcome
    }

    /// One bounded piece of everything; what failed since `scan` began is left alone, so this ends.
    pub(crate) fn everything(&self, why: Why, scan: &mut Scan) -> Result<Progress, CacheError> {
        let mut turn = self.turn();
        self.write_back(&mut turn, why, scan)
    }

    fn write_back(&self, turn: &mut Turn, why: Why, scan: &mut Scan) -> Result<Progress, CacheError> {
        self.shared.ensure_works()?;
        let now = self.shared.now();
        if why == Why::Due && now < turn.not_before {
            return Ok(Progress::Idle);
        }
        self.sweep(turn, now);
        if ask_the_store(&self.shared, &self.committer) {
            return Ok(Progress::Worked);
        }
        if let Some(progress) = self.transfer_in_turn(turn, scan, now)? {
            return Ok(progress);
        }
        let idle =
            if why == Why::Due && self.relogger.step(now)? { Progress::Worked } else { Progress::Idle };
        let mut victims = None;
        if turn.was_bypassed || why != Why::Due {
            let found = self.victims(why, scan, now);
            // What is stuck does not take the turn of those that bypassed the buffer.
            victims = found.filter(|found| why != Why::Due || !found.pages.is_empty());
        }
        turn.was_bypassed = false;
        if victims.is_none() && why == Why::Due {
            victims = self.bypassed_victims(turn, scan, now);
            turn.was_bypassed = victims.is_some();
            victims = victims.or_else(|| self.victims(why, scan, now));
        }
        let Some(Victims { pages, reached_newest }) = victims else { return Ok(idle) };
        let frozen = self.freeze(&pages, scan, now);
        let is_over = scan.is_over(reached_newest, !frozen.is_empty());
        if frozen.is_empty() {
            // Where nothing is stuck, a look at more of the queue of dirty pages finds some.
            if is_over && pages.is_empty() && self.shared.state().retries.first().is_some() {
                turn.not_before = now + LOOK_AGAIN;
            }
            return Ok(if is_over { idle } else { Progress::Worked });
        }
        let tried = frozen.len();
        let stuck = self.write_frozen(frozen).inspect_err(|error| self.failed(turn, scan, error, now))?;
        let mut state = self.shared.state();
        if turn.was_bypassed {
            let ended = self.shared.now();
            turn.bypass_not_before = ended + (LEFT_TO_SYNCS * (ended - now)).min(LEFT_TO_SYNCS_MAX);
        }
        if stuck.len() == tried
            && let Some((_, error)) = stuck.first()
        {
            state.retries.failed(error.clone().into(), now);
        }
        let lacks_space = stuck.iter().any(|(_, error)| error.is_full());
        stuck.into_iter().for_each(|(victim, error)| state.retries.back_off(victim, error, now));
        if lacks_space && state.admission.ask_for_space() {
            self.shared.wake(Task::Checkpoint);
        }
        drop(state);
        if why != Why::All {
            // An error is for the reads and writes to tell that meet it, too.
            let _ = self.shared.store_io().merge_due_deltas();
        }
        Ok(Progress::Worked)
    }

    /// Nothing could be written back.
    fn failed(&self, turn: &mut Turn, scan: &mut Scan, error: &CacheError, now: Duration) {
        turn.not_before = now + RETRY_AFTER;
        scan.begin_anew();
        let mut state = self.shared.state();
        state.retries.failed(error.clone(), now);
        // No more is owed of the cleaning when nothing can be written.
        self.ask_for_space_if_needed(&mut state);
        // Who waits for a clone or a move is told after a while.
        if !state.pages.transfers().is_empty() {
            self.shared.wake(Task::Fetch);
        }
    }

    /// Stores the clones and moves that were found in the buffer, before anybody asks for what they brought: a mount that only looks
    /// writes nothing back later. Those that are stuck are tried again, where it does.
    pub(crate) fn store_recovered(&self) {
        let mut turn = self.turn();
        let now = self.shared.now();
        // Who reads what they brought would be told of an error that came only once.
        for _ in 0..ATTEMPTS_AT_START {
            let mut scan = Scan::once(self.shared.state().retries.failures());
            while let Ok(Some(_)) = self.transfer_in_turn(&mut turn, &mut scan, now) {}
            if self.shared.state().pages.transfers().is_empty() {
                break;
            }
        }
        turn.not_before = Duration::ZERO;
        self.forget_stored_cuts();
    }

    /// Logs again what a start found of pages that bypassed the buffer since, and which the store has not got then: after the next crash
    /// nothing else would tell that these bytes are newer than that.
    pub(crate) fn log_overtaken(&self, pages: &[Key]) -> Result<(), CacheError> {
        let state = self.shared.state();
        pages.iter().try_for_each(|key| self.relogger.append_page(&state, *key))
    }

    /// The log may begin behind a clone or a move, and before an older cut that was logged again: what the store has is newer than that.
    fn forget_stored_cuts(&self) {
        let cuts: Vec<_> = self.shared.state().pages.cuts().filter(|(_, cut)| cut.logged_again).collect();
        for (object, cut) in cuts {
            if matches!(self.shared.store_io().has_applied_later_transfer(object, cut.lsn), Ok(true)) {
                self.shared.state().pages.cut_is_stored(object, cut.lsn);
            }
        }
    }

    /// A step towards storing the oldest clone or move that has its turn; `None` if there is none.
    fn transfer_in_turn(
        &self,
        turn: &mut Turn,
        scan: &mut Scan,
        now: Duration,
    ) -> Result<Option<Progress>, CacheError> {
        let what = {
            let state = self.shared.state();
            let free = |one: &&Pending| !scan.leaves_alone(&state.retries, Victim::of(&one.what), now);
            state.pages.transfers().first().find(free).map(|one| one.what)
        };
        let Some(what) = what else { return Ok(None) };
        let stuck = match self.transfer_step(&what) {
            // Others may find space, and can be read.
            Err(CacheError::Store(error)) if error.is_full() || error.is_read_failure() => Some(error),
            outcome => outcome.inspect_err(|error| self.failed(turn, scan, error, now))?,
        };
        if let Some(error) = stuck {
            let mut state = self.shared.state();
            state.retries.failed(error.clone().into(), now);
            state.retries.back_off(Victim::of(&what), error, now);
            self.ask_for_space_if_needed(&mut state);
            // Those who wait for it are told.
            state.seeks.look_behind();
            drop(state);
            self.shared.wake(Task::Fetch);
        }
        Ok(Some(Progress::Worked))
    }

    /// There is more space than when something was refused for lack of it.
    pub(crate) fn try_again(&self) {
        if self.shared.state().retries.needs_space() {
            self.turn().not_before = Duration::ZERO;
            self.shared.wake(Task::WriteBack);
        }
    }

    fn ask_for_space_if_needed(&self, state: &mut State) {
        if state.retries.needs_space() && state.admission.ask_for_space() {
            self.shared.wake(Task::Checkpoint);
        }
    }

    /// One bounded piece of storing a clone or a move that waits for no other: what it is newer than, then itself. Returns why it
    /// cannot be stored, if that is so.
    fn transfer_step(&self, what: &Ordered) -> Result<Option<StoreError>, CacheError> {
        if let Some(error) = self.ask_about_transfers(what) {
            return Ok(Some(error));
        }
        if self.shared.state().pages.transfers().get(what.lsn).is_none() {
            return Ok(None);
        }
        let mut cuts = self.shared.state().pages.cuts_before(what);
        if !cuts.is_empty() {
            cuts.sort_by_key(|(_, cut)| cut.lsn);
            let refused = self.write_frozen(Frozen { pages: Vec::new(), cuts })?;
            return Ok(refused.into_iter().next().map(|(_, error)| error));
        }
        let beside: Vec<Dirty> = {
            let state = self.shared.state();
            let pending = state.pages.transfers().get(what.lsn).into_iter();
            pending.flat_map(Pending::before).take(STEP_PAGES).filter_map(Dirty::of).collect()
        };
        self.commit_up_to(what.lsn)?;
        match beside.is_empty() {
            false => self.store_beside(what, &beside),
            true => {
                // A page at its edges that cannot be read holds up this clone, and nothing else; one that stays damaged is lost.
                if let Err(error) = self.shared.store_io().merge_deltas_for_transfer(&what.transfer)
                    && !(error.is_damage() && self.has_failed_for_long(what))
                {
                    return Ok(Some(error));
                }
                let refused = self.apply_all(&[what.change()])?;
                if refused.is_empty() {
                    self.shared.state().counters.transfers_stored += 1;
                    self.transfer_is_done(what);
                }
                Ok(refused.into_values().next())
            }
        }
    }

    fn has_failed_for_long(&self, what: &Ordered) -> bool {
        let since = self.shared.state().retries.failing_since(Victim::of(what));
        since.is_some_and(|since| self.shared.now() >= since + self.shared.settings().store_patience)
    }

    /// Asks the store which of the clones and moves that were found in the buffer it has, before it gets any. They are stored in their
    /// order, so it has those, too, that come before one that it has and share an object's slot with it; if both objects of one are gone,
    /// nothing else tells. Returns why it cannot tell of `what`, if that is so.
    fn ask_about_transfers(&self, what: &Ordered) -> Option<StoreError> {
        let recovered: Vec<Ordered> = {
            let state = self.shared.state();
            let recovered = state.pages.transfers().iter().filter(|one| one.recovered);
            recovered.map(|one| one.what).collect()
        };
        let (mut had, mut unknown): (Vec<Ordered>, Vec<(Ordered, StoreError)>) = (Vec::new(), Vec::new());
        for one in recovered.into_iter().rev() {
            if had.iter().any(|later| later.shares_slot(&one)) {
                had.push(one);
                continue;
            }
            let stored = self.shared.store_io().has_applied_transfer(&one.transfer, one.lsn);
            if stored == Ok(true) && !is_planted(PlantedBug::TransferRepeated) {
                had.push(one);
                continue;
            }
            let later = || unknown.iter().find(|(later, _)| later.shares_slot(&one));
            match stored.err().or_else(|| later().map(|(_, error)| error.clone())) {
                Some(error) => unknown.push((one, error)),
                None => self.shared.state().pages.transfer_is_new(one.lsn),
            }
        }
        had.iter().rev().for_each(|one| self.transfer_is_done(one));
        unknown.into_iter().find(|(one, _)| one == what).map(|(_, error)| error)
    }

    /// Makes everything up to a change durable in the buffer.
    fn commit_up_to(&self, newest: Lsn) -> Result<(), CacheError> {
        let is_durable =
            self.shared.buffer().durable() >= newest || is_planted(PlantedBug::StoredBeforeDurable);
        if is_durable { Ok(()) } else { self.committer.commit_now().map(drop) }
    }

    /// Stores pages that are older than a clone or a move of them. Returns why they cannot be, if that is so.
    fn store_beside(&self, what: &Ordered, beside: &[Dirty]) -> Result<Option<StoreError>, CacheError> {
        let source = what.transfer.from;
        let pages = beside.iter().map(|one| {
            let key = Key { object: source, page: one.page };
            ToStore { key, content: &one.content, newest: one.newest, cut: None }
        });
        let mut plan = Plan::of(self.shared.store_io(), pages);
        let pages_read = plan.pages_read;
        if let Some((index, error)) = plan.refused.pop_first() {
            let page = beside[index].page;
            // Where its leaf is there, it is the page that is damaged, and stays so.
            let is_known = || self.shared.store_io().page_lsn(source, page).is_ok();
            if !error.is_damage() || !self.has_failed_for_long(what) || !is_known() {
                return Ok(Some(error));
            }
            let was_reserved = self.shared.state().pages.beside_is_stored(what.lsn, page);
            self.shared.store().release(u64::from(was_reserved));
            return Ok(None);
        }
        let of_vector = self.apply_all(&plan.vector)?;
        let refused = plan.by_page(of_vector);
        let mut state = self.shared.state();
        let stored = beside.iter().enumerate().filter(|(index, _)| !refused.contains_key(index));
        let spare = stored.filter(|(_, one)| state.pages.beside_is_stored(what.lsn, one.page)).count();
        self.shared.store().release(spare as u64);
        state.counters.fetched_for_write_back += pages_read;
        state.counters.pages_stored += (beside.len() - refused.len()) as u64;
        Ok(refused.into_values().next())
    }

    /// The store has a clone or a move, or had it before.
    fn transfer_is_done(&self, what: &Ordered) {
        let mut completions = Completions::default();
        let mut state = self.shared.state();
        // After a start: the store has what came before it, too, and would have it take away what it brought.
        for (object, cut) in state.pages.cuts_before(what) {
            state.pages.cut_is_stored(object, cut.lsn);
        }
        let reserved = state.pages.drop_transfer(what.lsn);
        self.shared.store().release(reserved);
        state.retries.stored(Victim::of(what));
        state.retries.worked();
        state.reads.look_behind();
        state.seeks.look_behind();
        state.admission.may_have_space();
        self.committer.release_groups(&mut state);
        self.admission.admit_waiting(&mut state, &mut completions);
        drop(state);
        completions.deliver();
        self.shared.wake(Task::Fetch);
        self.shared.wake(Task::Commit);
    }

    /// Stores all clones and moves that are wanted, with those that are older.
    pub(crate) fn store_transfers(&self, is_wanted: &dyn Fn(&Ordered) -> bool) -> Result<(), CacheError> {
        if !self.shared.state().pages.transfers().iter().any(|one| is_wanted(&one.what)) {
            return Ok(());
        }
        let _turn = self.turn();
        self.store_transfers_in_turn(is_wanted)
    }

    /// The same for a caller who has the turn to write back.
    pub(crate) fn store_transfers_in_turn(
        &self,
        is_wanted: &dyn Fn(&Ordered) -> bool,
    ) -> Result<(), CacheError> {
        loop {
            self.shared.ensure_works()?;
            let first = {
                let state = self.shared.state();
                let transfers = state.pages.transfers();
                let last = transfers.iter().filter(|one| is_wanted(&one.what)).map(|one| one.what.lsn).last();
                let Some(last) = last else { return Ok(()) };
                transfers.first().map(|one| one.what).find(|what| what.lsn <= last)
            };
            let what = first.expect("the oldest of all waits for no other");
            if let Some(error) = self.transfer_step(&what)? {
                return Err(error.into());
            }
        }
    }

    /// True if a clone or a move may be stored now: others wait for it.
    pub(crate) fn transfers_are_due(&self, state: &State) -> bool {
        let now = self.shared.now();
        let free = |one: &Pending| !state.retries.is_backed_off(Victim::of(&one.what), now);
        state.failed().is_none() && state.pages.transfers().first().any(free)
    }

    /// Forgets what was stuck and is no more, now and then.
    fn sweep(&self, turn: &mut Turn, now: Duration) {
        if now < turn.swept + RETRY_AFTER {
            return;
        }
        turn.swept = now;
        let mut state = self.shared.state();
        let State { retries, pages, .. } = &mut *state;
        retries.keep(|victim| victim.is_there(pages));
    }

    /// True if limits or ages ask for pages to be written back.
    pub(crate) fn is_due(&self, state: &State) -> bool {
        self.admission.bypassed_pages_press(state) || self.is_due_otherwise(state)
    }

    /// The same for any but those that bypassed the buffer.
    fn is_due_otherwise(&self, state: &State) -> bool {
        self.logged_pages_are_due(state) || self.cuts_are_due(state)
    }

    fn logged_pages_are_due(&self, state: &State) -> bool {
        let age = |since| self.shared.now() >= since + self.shared.settings().dirty_age_max;
        let is_old = || state.failed().is_none() && state.pages.oldest_since().is_some_and(age);
        self.admission.logged_writes_press(state) || is_old()
    }

    /// Whether a cut that may be tried is so old that a person who asks for the free space misses it there.
    fn cuts_are_due(&self, state: &State) -> bool {
        if state.failed().is_some() || state.pages.cuts_pending() == 0 {
            return false;
        }
        let now = self.shared.now();
        state.pages.cuts().any(|(object, cut)| {
            let is_held = || state.pages.transfers().hold_back_range(object, cut.lsn);
            let is_stuck = || state.retries.is_backed_off(Victim::Cut(object, cut.lsn), now);
            now >= cut.since + CUTS_STORED_AFTER && !is_stuck() && !is_held()
        })
    }

    /// The pages to write back now; `None` if there is no reason to. Least recently written first, but for the sake
    /// of the buffer or of age those that need its oldest groups, and each with its dirty neighbours: on a disk a run
    /// of pages costs as much as one.
    fn victims(&self, why: Why, scan: &mut Scan, now: Duration) -> Option<Victims> {
        let mut state = self.shared.state();
        if !state.pages.is_dirty() {
            return None;
        }
        if why == Why::Due && !self.logged_pages_are_due(&state) {
            // All cuts go with any page, or alone.
            let alone = Victims { pages: Vec::new(), reached_newest: true };
            return self.cuts_are_due(&state).then_some(alone);
        }
        let crowded = self.shared.settings().crowding(state.pages.memory()) > 0.5;
        let limit = self.step_pages(why);
        scan.begin_anew_now_and_then(now, state.retries.count());
        let filter = *scan;
        let free = |state: &State, key: &Key| {
            let held = state.pages.holds_back(key);
            !held && !filter.leaves_alone(&state.retries, Victim::Page(*key), now)
        };
        let mut pages = BTreeSet::new();
        // False once there are enough.
        let mut take = |near: &mut dyn Iterator<Item = Key>, state: &State| {
            let is_new = |key: &Key| free(state, key) && !pages.contains(key);
            let new: Vec<Key> = near.filter(is_new).take(limit - pages.len()).collect();
            pages.extend(new);
            pages.len() < limit
        };
        let distance = NEIGHBOURS.min(limit as u64 / 2);
        let mut reached_newest = true;
        if crowded && !self.shared.buffer_is_half_full() && why == Why::Due {
            let (mut looks, mut runs) = (state.pages.queued().min(LOOKS_MAX), DELTA_RUNS);
            while let Some(key) = state.pages.least_recently_written(&mut looks) {
                if !free(&state, &key) {
                    continue;
                }
                if !take(&mut state.pages.dirty_around(key, distance), &state) {
                    break;
                }
                // Deltas of many leaves, so that what will be folded together lies together.
                if runs > 0 && !take(&mut state.pages.deltas_behind(key, DELTA_LOOKS), &state) {
                    break;
                }
                runs = runs.saturating_sub(1);
            }
        } else {
            reached_newest = scan.look(&state.pages, |key| {
                !free(&state, &key) || take(&mut state.pages.dirty_around(key, distance), &state)
            });
        }
        Some(Victims { pages: pages.into_iter().collect(), reached_newest })
    }

    /// Bypassed pages, if they are to be stored now. Those that cannot be are logged by the committer in a moment, and are then written back
    /// like any other.
    fn bypassed_victims(&self, turn: &mut Turn, scan: &Scan, now: Duration) -> Option<Victims> {
        let mut state = self.shared.state();
        if state.syncs.wait_for_store() {
            // For pages that were logged or cut meanwhile.
            self.committer.settle_stored(&mut state, &[]);
            self.shared.wake(Task::Commit);
        }
        let is_left_to_syncs = now < turn.bypass_not_before
            && state.syncs.need_log(now)
            && self.admission.bypassed_pages_can_wait(&state);
        if is_left_to_syncs || !self.admission.bypassed_pages_press(&state) {
            return None;
        }
        let limit =
            self.shared.store().pages_between_cleaning_checks().min(BYPASS_STEP_PAGES as u64) as usize;
        // In rounds, so that a file that is written over and over, or grows and grows, keeps no other waiting.
        let last = turn.bypassed.map_or(Bound::Unbounded, Bound::Excluded);
        let group = |key: &Key| state.pages.get(key).and_then(Entry::group);
        let is_of_round = |key: &Key| group(key).is_some_and(|group| group <= turn.bypass_until);
        let behind = state.pages.unlogged_in((last, Bound::Unbounded)).filter(is_of_round);
        let mut pages: BTreeSet<Key> = behind.take(limit).collect();
        turn.bypassed = pages.last().copied();
        if pages.len() < limit {
            turn.bypass_until = self.shared.buffer().groups().end;
            for key in state.pages.unlogged_in(bypass::ALL) {
                if pages.len() == limit {
                    break;
                }
                if pages.insert(key) {
                    turn.bypassed = Some(key);
                }
            }
        }
        let is_stuck = |key: &Key| {
            state.pages.holds_back(key) || scan.leaves_alone(&state.retries, Victim::Page(*key), now)
        };
        pages.retain(|key| !is_stuck(key));
        let pages: Vec<Key> = pages.into_iter().collect();
        if pages.is_empty() { None } else { Some(Victims { pages, reached_newest: false }) }
    }

    /// Pages of one step: no more than are paid for with less than a segment's cleaning, where a writer may wait for them.
    fn step_pages(&self, why: Why) -> usize {
        match why {
            Why::Due | Why::Space => {
                self.shared.store().pages_between_cleaning_checks().min(STEP_PAGES as u64) as usize
            }
            Why::All => STEP_PAGES,
        }
    }

    /// Freezes the victims, and all pending cuts but those that just failed, as they are now.
    fn freeze(&self, victims: &[Key], scan: &Scan, now: Duration) -> Frozen {
        let mut state = self.shared.state();
        let pages = victims.iter().filter_map(|&key| {
            let held = state.pages.holds_back(&key);
            if held { None } else { FrozenPage::begin(&mut state.pages, key) }
        });
        let pages = pages.collect();
        let free = |&(object, cut): &(ObjectId, PendingCut)| {
            let held = state.pages.transfers().hold_back_range(object, cut.lsn);
            !held && !scan.leaves_alone(&state.retries, Victim::Cut(object, cut.lsn), now)
        };
        let mut frozen = Frozen { pages, cuts: state.pages.cuts().filter(free).collect() };
        frozen.sort();
        frozen
    }

    /// Makes what is frozen durable in the buffer, then in the store, forgets what is not needed any more, and lets in those that
    /// waited for that. Returns what the store could not take.
    pub(crate) fn write_frozen(&self, frozen: Frozen) -> Result<Vec<(Victim, StoreError)>, CacheError> {
        let pages = frozen.pages.iter().map(|page| page.newest);
        let newest = pages.chain(frozen.cuts.iter().map(|(_, cut)| cut.lsn)).max().unwrap_or_default();
        let outcome = self.commit_up_to(newest).and_then(|()| Ok(self.store_frozen(&frozen)?));

        let mut state = self.shared.state();
        self.settle(&mut state, &frozen, outcome.as_ref().ok());
        let refused = match outcome {
            Ok(stored) => {
                state.counters.fetched_for_write_back += stored.pages_read;
                stored.refused
            }
            Err(error) => {
                state.counters.write_back_errors += 1;
                return Err(error);
            }
        };
        if refused.len() < frozen.len() {
            state.retries.worked();
        }
        self.forget(&mut state, &frozen, &refused);
        state.evict(self.shared.settings());
        // Under the same hold of the lock: another thread that let them in might be kept from telling them, for as long as it has
        // no processor, while this one made more space, and had more cleaned for it.
        let mut completions = Completions::default();
        self.admission.admit_waiting(&mut state, &mut completions);
        drop(state);
        completions.deliver();
        self.shared.wake(Task::Commit);
        self.shared.wake(Task::Checkpoint);
        Ok(refused.into_iter().map(|(index, error)| (frozen.victim(index), error)).collect())
    }

    /// Frozen pages will not be written back: they are dirty again.
    pub(crate) fn abandon(&self, frozen: &Frozen) {
        self.settle(&mut self.shared.state(), frozen, None);
    }

    /// Ends the write-back of frozen pages: those that are stored are clean, the others dirty again.
    fn settle(&self, state: &mut State, frozen: &Frozen, stored: Option<&Stored>) {
        let mut spare = 0;
        let mut done = Vec::new();
        if stored.is_some() && frozen.pages.iter().any(|page| state.pages.is_unlogged(&page.key)) {
            // What is logged or told from here on may rely on the store having them.
            let batch = self.shared.store().durable_batch();
            self.shared.buffer().witness(batch);
            state.syncs.stored_bypassing(batch);
        }
        for (index, page) in (frozen.cuts.len()..).zip(&frozen.pages) {
            let is_stored = stored.is_some_and(|stored| !stored.refused.contains_key(&index));
            let whole = stored.and_then(|stored| stored.whole.get(&index));
            let ended = state.pages.change_written(page.key, page.newest, |entry| match is_stored {
                true => {
                    entry.end_writing();
                    if let Some(whole) = whole.filter(|_| entry.fetch().is_none()) {
                        entry.become_whole(Box::new(Page::clone(whole)));
                    }
                    0
                }
                false => entry.abandon_writing(),
            });
            if is_stored {
                done.push((page.key, page.newest));
            }
            // One that was cut while it was on its way: its reservation has no owner any more.
            spare += u64::from(page.reserved && (ended.is_none() || is_stored));
            let Some(more) = ended else { continue };
            spare += more;
            if is_planted(PlantedBug::NewerBytesLostAtMerge) {
                let dirt = state.pages.change(page.key, Entry::take_dirt);
                spare += u64::from(dirt.is_some_and(|dirt| dirt.reserved));
            }
        }
        self.shared.store().release(spare);
        if state.syncs.wait_for_store() {
            self.committer.settle_stored(state, &done);
        }
    }

    /// In one vector. Where that does not fit, what gives space back goes first, from the reserve that it has; it may
    /// go again with the next vector without harm. Returns what alone could not go, by its place in the vector.
    fn store_frozen(&self, frozen: &Frozen) -> Result<Stored, StoreError> {
        let cuts: Vec<Change> = frozen.cuts.iter().map(|&(object, cut)| cut_change(object, cut)).collect();
        let pages = frozen.pages.iter().map(|page| {
            let FrozenPage { key, ref content, newest, cut, .. } = *page;
            ToStore { key, content, newest, cut }
        });
        let mut plan = Plan::of(self.shared.store_io(), pages);
        // Cuts first, in the one order. A page that was cut after it was frozen has a page LSN below its cut, so the cut, which is
        // written back later, takes it out again.
        let vector: Vec<Change> = cuts.into_iter().chain(std::mem::take(&mut plan.vector)).collect();
        let mut applied = Applied::default();
        let at = frozen.cuts.len();
        let mut outcome = self.apply_rest(&vector, &mut applied);
        if outcome.as_ref().is_err_and(StoreError::is_full) && applied.count < at && at < vector.len() {
            outcome = self.apply_rest(&vector[..at], &mut applied);
            outcome = outcome.and_then(|()| self.apply_rest(&vector, &mut applied));
        }
        match outcome {
            // What was applied is stored.
            Err(error) if error.is_full() && applied.count > 0 => applied.refuse_rest(&vector, &error),
            outcome => outcome?,
        }
        let mut refused = applied.refused;
        let mut stored = Stored { pages_read: plan.pages_read, ..Stored::default() };
        let of_pages = refused.split_off(&at).into_iter().map(|(index, error)| (index - at, error)).collect();
        stored.whole =
            std::mem::take(&mut plan.whole).into_iter().map(|(page, bytes)| (at + page, bytes)).collect();
        stored.refused = plan.by_page(of_pages).into_iter().map(|(page, error)| (at + page, error)).collect();
        stored.refused.append(&mut refused);
        Ok(stored)
    }

    /// Applies a vector; returns what alone could not be, by its place.
    fn apply_all(&self, vector: &[Change]) -> Result<BTreeMap<usize, StoreError>, StoreError> {
        let mut applied = Applied::default();
        self.apply_rest(vector, &mut applied)?;
        Ok(applied.refused)
    }

    fn apply_rest(&self, vector: &[Change], applied: &mut Applied) -> Result<(), StoreError> {
        let store = self.shared.store_io();
        let apply = |part: &[Change]| match self.shared.settings().buffer_is_given_up {
            true => store.apply_bypassed(part),
            false => store.apply(part),
        };
        applied.apply_rest(store, &apply, vector)
    }

    /// What is stored does not need its place in the buffer.
    fn forget(&self, state: &mut State, frozen: &Frozen, refused: &BTreeMap<usize, StoreError>) {
        let mut cuts = 0;
        let is_stored = |index: &usize| !refused.contains_key(index);
        (0..frozen.len()).filter(is_stored).for_each(|index| state.retries.stored(frozen.victim(index)));
        for (index, (object, cut)) in frozen.cuts.iter().enumerate() {
            if !is_stored(&index) {
                continue;
            }
            cuts += 1;
            state.pages.cut_is_stored(*object, cut.lsn);
        }
        state.counters.cuts_stored += cuts;
        state.counters.pages_stored += (frozen.len() - refused.len()) as u64 - cuts;
        state.admission.may_have_space();
        self.committer.release_groups(state);
    }

    /// Writers get the space that was made; or, where none comes because nothing is written back, the error after a while.
    pub(crate) fn tell_those_who_wait(&self, progress: Progress) {
        let mut completions = Completions::default();
        let mut state = self.shared.state();
        let (now, patience) = (self.shared.now(), self.shared.settings().store_patience);
        let worked = progress == Progress::Worked;
        let is_waiting = state.admission.is_waiting() || state.admission.is_waiting_to_bypass();
        if is_waiting && (worked || state.retries.no_space(now, patience).is_some()) {
            self.admission.admit_waiting(&mut state, &mut completions);
        }
        drop(state);
        completions.deliver();
    }
}

/// How far a vector of changes that need not be applied together has been applied.
#[derive(Default)]
pub(crate) struct Applied {
    /// So many of them.
    count: usize,
    /// Of these, what alone could not be, by its place in the vector.
    pub(crate) refused: BTreeMap<usize, StoreError>,
}

impl Applied {
    /// Applies the rest, as much together as the store takes at once. After an error it may go on from there: each delta that is
    /// applied again takes a block more.
    pub(crate) fn apply_rest(
        &mut self,
        store: &Store,
        apply: &dyn Fn(&[Change]) -> Result<(), StoreError>,
        vector: &[Change],
    ) -> Result<(), StoreError> {
        while self.count < vector.len() {
            let rest = &vector[self.count..];
            let part = &rest[..store.changes_that_fit(rest)];
            let long = part.iter().position(|change| !matches!(piece_of(store, change), Ok(None)));
            match long {
                Some(0) => self.apply_in_pieces(store, apply, &rest[0])?,
                before => self.apply_halves(apply, &part[..before.unwrap_or(part.len())])?,
            }
        }
        Ok(())
    }

    /// Applies the next change, a long cut. A crash between two pieces loses nothing: the buffer has the cut until all of it is stored.
    fn apply_in_pieces(
        &mut self,
        store: &Store,
        apply: &dyn Fn(&[Change]) -> Result<(), StoreError>,
        cut: &Change,
    ) -> Result<(), StoreError> {
        let mut left = cut.clone();
        let outcome = loop {
            match piece_of(store, &left) {
                Ok(Some((piece, rest))) => match apply(&[piece]) {
                    Ok(()) => left = rest,
                    outcome => break outcome,
                },
                Ok(None) => break apply(&[left]),
                Err(error) => break Err(error),
            }
        };
        match outcome {
            Err(error @ StoreError::Corrupt { .. }) => drop(self.refused.insert(self.count, error)),
            outcome => outcome?,
        }
        self.count += 1;
        Ok(())
    }

    /// Applies the next part. A damaged node of the store's map fails all changes that come with one that needs it, so they go by halves
    /// until it alone is left.
    fn apply_halves(
        &mut self,
        apply: &dyn Fn(&[Change]) -> Result<(), StoreError>,
        part: &[Change],
    ) -> Result<(), StoreError> {
        match apply(part) {
            Err(StoreError::Corrupt { .. }) if part.len() > 1 => {
                let (first, second) = part.split_at(part.len() / 2);
                self.apply_halves(apply, first)?;
                return self.apply_halves(apply, second);
            }
            Err(error @ StoreError::Corrupt { .. }) => drop(self.refused.insert(self.count, error)),
            outcome => outcome?,
        }
        self.count += part.len();
        Ok(())
    }

    /// The rest could not be applied.
    fn refuse_rest(&mut self, vector: &[Change], error: &StoreError) {
        self.refused.extend((self.count..vector.len()).map(|index| (index, error.clone())));
        self.count = vector.len();
    }
}

/// Of a cut that changes more leaves of the store's map than it should at once, what does, and the rest.
fn piece_of(store: &Store, change: &Change) -> Result<Option<(Change, Change)>, StoreError> {
    let &Change::Cut { object, ref pages, lsn } = change else { return Ok(None) };
    let until = store.list(object, pages.clone(), CUT_LEAVES)?.until;
    let cut = |pages| Change::Cut { object, pages, lsn };
    Ok((until < pages.end).then(|| (cut(pages.start..until), cut(until..pages.end))))
}

/// A page of which something is newer than the store, as it is in memory.
pub(crate) struct Dirty {
    pub(crate) page: PageNo,
    content: Content,
    newest: Lsn,
}

/// A dirty page as it is in memory.
pub(crate) enum Content {
    Whole(SharedPage),
    Patch(Delta),
}

impl Content {
    pub(crate) fn of(entry: &Entry) -> Content {
        match entry.body() {
            Body::Whole(page) => Content::Whole(page.clone()),
            Body::Patch(delta) => Content::Patch(delta.clone()),
        }
    }
}

impl Dirty {
    pub(crate) fn of((page, entry): (PageNo, &Entry)) -> Option<Dirty> {
        let newest = entry.dirt().or(entry.writing())?.newest;
        Some(Dirty { page, content: Content::of(entry), newest })
    }
}

/// Pages of an object whole, and their page LSNs: what the store has, with what is newer over it.
pub(crate) fn with_bases<'a>(
    store: &Store,
    object: ObjectId,
    pages: &'a [Dirty],
) -> impl Iterator<Item = (PageNo, Result<(SharedPage, Lsn), StoreError>)> + use<'a> {
    let patches = pages.iter().filter(|one| matches!(one.content, Content::Patch(_)));
    let mut wants: Vec<PageRead> = patches.map(|one| PageRead::new(object, one.page)).collect();
    store.read(&mut wants);
    let mut bases = wants.into_iter().map(|want| want.result);
    pages.iter().map(move |one| {
        let bytes = match &one.content {
            Content::Whole(page) => Ok(page.clone()),
            Content::Patch(delta) => bases.next().expect("one for each patch").map(|base| {
                let mut bytes = match base {
                    StoredPage::Hole => Page::zeroed(),
                    StoredPage::Page { bytes, .. } => bytes,
                };
                delta.apply(&mut bytes);
                Arc::from(bytes)
            }),
        };
        (one.page, bytes.map(|bytes| (bytes, one.newest)))
    })
}

/// What the store is asked for, for one cut.
pub(crate) fn cut_change(object: ObjectId, cut: PendingCut) -> Change {
    match cut.whole_object {
        true => Change::Delete { object, lsn: cut.lsn },
        false => Change::Cut { object, pages: cut.from..cut.to, lsn: cut.lsn },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{BLOCK_BYTES, Device, Incarnation, StoreId};
    use sim_disk::{Power, SimDisk};
    use std::cell::{Cell, RefCell};
    use store::{Layout, VolumeId};

    #[test]
    fn what_was_applied_before_a_part_found_no_space_is_not_applied_again() {
        let disk: Arc<dyn Device> = SimDisk::new("store", 4096, &Power::new(), 1);
        Store::format(&*disk, &Layout { id: StoreId([1; 16]), segment_blocks: Some(16) })
            .expect("large enough");
        let store = Store::open(disk).expect("a new store");
        store.begin(Incarnation(1)).expect("the first");
        // Each page in a leaf of its own.
        let write = |number: u64| Change::Write {
            object: VolumeId::MAIN.object(5, 1),
            page: PageNo(number * 1000),
            bytes: Arc::new(Box::new(Page([1; BLOCK_BYTES]))),
            page_lsn: Lsn(number + 1),
        };
        let vector: Vec<Change> = (0..100).map(write).collect();
        let (has_space, asked) = (Cell::new(2), RefCell::new(Vec::new()));
        let apply = |part: &[Change]| {
            if has_space.get() == 0 {
                return Err(StoreError::Full);
            }
            has_space.set(has_space.get() - 1);
            asked.borrow_mut().extend(part.iter().map(|change| match change {
                Change::Write { page_lsn, .. } => page_lsn.0,
                _ => unreachable!("all are writes"),
            }));
            Ok(())
        };
        let mut applied = Applied::default();
        assert_eq!(applied.apply_rest(&store, &apply, &vector), Err(StoreError::Full));
        assert!((2..100).contains(&applied.count), "{} at once", applied.count);
        has_space.set(1000);
        applied.apply_rest(&store, &apply, &vector).expect("there is space");
        assert_eq!(applied.count, 100);
        assert_eq!(asked.into_inner(), (1..=100).collect::<Vec<u64>>());
    }

    #[test]
    fn a_long_cut_is_applied_in_pieces_and_goes_on_where_one_found_no_space() {
        let disk: Arc<dyn Device> = SimDisk::new("store", 1 << 16, &Power::new(), 1);
        Store::format(&*disk, &Layout { id: StoreId([1; 16]), segment_blocks: Some(16) })
            .expect("large enough");
        let store = Store::open(disk).expect("a new store");
        store.begin(Incarnation(1)).expect("the first");
        let (long, short) = (VolumeId::MAIN.object(5, 1), VolumeId::MAIN.object(6, 1));
        let write = |object, number: u64, page_lsn| Change::Write {
            object,
            page: PageNo(number),
            bytes: Arc::new(Box::new(Page([1; BLOCK_BYTES]))),
            page_lsn: Lsn(page_lsn),
        };
        // A page in each of 600 leaves, of which one is newer than the cut.
        let mut all: Vec<Change> = (0..600).map(|leaf| write(long, leaf * 128, 10)).collect();
        all[300] = write(long, 300 * 128, 20);
        all.push(write(short, 3, 10));
        all.chunks(20).for_each(|some| {
            store.apply(some).expect("space");
            store.checkpoint().expect("space");
        });
        let cut = |object| Change::Cut { object, pages: PageNo(1)..PageNo(u64::MAX), lsn: Lsn(15) };
        let vector = [cut(short), cut(long), cut(short)];
        let (has_space, asked) = (Cell::new(2), RefCell::new(Vec::new()));
        let apply = |part: &[Change]| {
            if has_space.get() == 0 {
                return Err(StoreError::Full);
            }
            has_space.set(has_space.get() - 1);
            asked.borrow_mut().push(part.to_vec());
            store.apply(part)
        };
        let mut applied = Applied::default();
        assert_eq!(applied.apply_rest(&store, &apply, &vector), Err(StoreError::Full));
        assert_eq!(applied.count, 1);
        has_space.set(1000);
        applied.apply_rest(&store, &apply, &vector).expect("there is space");
        assert_eq!((applied.count, applied.refused.len()), (3, 0));
        let leaves = asked.into_inner().into_iter().map(|part| match &part[..] {
            [Change::Cut { pages, .. }] => (pages.start.0.div_ceil(128), pages.end.0.div_ceil(128)),
            other => panic!("{other:?}"),
        });
        let whole = (1, u64::MAX.div_ceil(128));
        // Two of them look into the leaf of page 0.
        let pieces = [whole, (1, 256), (1, 511), (511, whole.1), whole];
        assert_eq!(leaves.collect::<Vec<_>>(), pieces);
        let left = store.list(long, PageNo(0)..PageNo(u64::MAX), 1000).expect("a sound disk");
        assert_eq!(left.pages, [(PageNo(0), Lsn(10)), (PageNo(300 * 128), Lsn(20))]);
    }
}
