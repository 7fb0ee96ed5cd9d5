//! The cache's handle: opening, applying, stepping.

use crate::admit::Reservation;
use crate::checkpoint::MakingSpace;
use crate::commit::{CommitTime, Completions};
use crate::cut::PendingCut;
use crate::error::CacheError;
use crate::plant::is_refused;
use crate::records::records;
use crate::recover::{Recovered, dirt};
use crate::rescue::delete_unfinished;
use crate::seek::Wanted;
use crate::settings::{Change, Cost, Settings};
use crate::state::{Key, State};
use crate::status::{Counters, Status};
use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
use crate::write_back::{Why, WriteBack};
use buffer::{Appended, Buffer, BufferError, Record};
use device::{BLOCK_BYTES, Clock, Device, Incarnation, Lsn, ObjectId, PageNo};
use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::{Store, StoreError, VolumeId};

/// Between two looks at work that is due and cannot be done.
const PAUSE: Duration = Duration::from_millis(5);

/// A completion. Called once, maybe on the caller's own thread before the call returns, and never while the state is locked.
/// Its caller may be in the middle of writing pages back, and no other thread writes any until it returns: it must not call
/// [`Cache::step`], [`Cache::drain`] or [`Cache::clone_volume`], nor wait for a thread that does.
pub type Completion<T, E = CacheError> = Box<dyn FnOnce(Result<T, E>) + Send>;

/// Background work. `Fetch` may be stepped by several threads at once, the others by one each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Makes what was appended durable and completes syncs.
    Commit,
    /// Reads pages that a reader waits for or will come to, and gives back the memory of those that were cut.
    Fetch,
    /// Writes pages back, and with them cuts and deletions.
    WriteBack,
    /// Keeps recovery short, and frees space.
    Checkpoint,
}

impl Task {
    /// Every kind.
    pub const ALL: [Task; 4] = [Task::Commit, Task::Fetch, Task::WriteBack, Task::Checkpoint];
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Something: call again.
    Worked,
    /// Nothing to do now.
    Idle,
}

/// Pages and deltas. Cheap to clone: all clones are one cache.
#[derive(Clone)]
pub struct Cache {
    pub(crate) core: Arc<Core>,
}

/// What all clones of a `Cache`, reservations and steps share.
pub(crate) struct Core {
    pub(crate) store: Arc<Store>,
    pub(crate) buffer: Buffer,
    /// The volume that is cached: the one whose records the buffer holds.
    pub(crate) volume: VolumeId,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) settings: Settings,
    pub(crate) commit_time: CommitTime,
    pub(crate) store_io_for_syncs: AtomicU64,
    /// Held for a whole write-back, over device I/O; taken before `state`, never while holding it.
    pub(crate) write_back_turn: Mutex<WriteBack>,
    /// Held for a step of the checkpointer; taken before `write_back_turn`.
    pub(crate) making_space: Mutex<Option<MakingSpace>>,
    /// The store's batches when there was nothing to clean.
    pub(crate) clean_as_of: AtomicU64,
    /// The store's batches when what was dead was last given back to the file system below, because that was full.
    pub(crate) given_back_as_of: AtomicU64,
    state: Mutex<State>,
    work: [Condvar; Task::ALL.len()],
}

impl Core {
    /// The lock. Never held over device I/O or a completion.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while holding the cache's state")
    }

    /// Tells workers of a kind to look for work.
    pub(crate) fn wake(&self, task: Task) {
        self.work[task as usize].notify_one();
    }

    fn has_work(&self, state: &State, task: Task) -> bool {
        match task {
            Task::Commit => self.commit_due(state),
            Task::Fetch => state.reads.has_work() || state.seeks.has_work() || !state.discarded.is_empty(),
            Task::WriteBack => self.write_back_due(state) || self.rescue_due(state),
            Task::Checkpoint => self.checkpoint_due(state),
        }
    }

    /// Appends and applies one transaction. Calls no completion: a reader that waits for a changed page looks again later.
    fn apply(&self, reservation: &mut Reservation, changes: &[Change<'_>]) -> Result<Lsn, CacheError> {
        let records = records(changes);
        let mut state = self.state();
        if let Some(why) = state.failed.clone() {
            return Err(CacheError::ReadOnly { why });
        }
        if !reservation.frees && is_refused() {
            return Err(StoreError::Full.into());
        }
        let more = Cost::of(changes).pages.saturating_sub(reservation.pages);
        if more > 0 {
            self.reserve(more, reservation.frees)?;
            reservation.pages += more;
        }
        let appended = match self.buffer.append(&records) {
            Ok(appended) => appended,
            Err(why @ BufferError::Device(_)) => {
                self.fail(&mut state, &why);
                return Err(CacheError::ReadOnly { why });
            }
            Err(error) => return Err(error.into()),
        };
        let now = Now::new(&*self.clock);
        state.counters.transactions += 1;
        state.syncs.uncommitted_since.get_or_insert_with(|| now.get());
        for (index, record) in records.iter().enumerate() {
            self.apply_record(&mut state, reservation, record, index as u64, &appended, &now);
        }
        let awaited = reservation.settle(&mut state);
        let wakes = [
            (Task::Commit, awaited || self.commit_pressed(&state)),
            (Task::Fetch, state.reads.has_work() || !state.discarded.is_empty()),
            (Task::WriteBack, self.write_back_pressed(&state)),
        ];
        state.evict(&self.settings);
        drop(state);
        wakes.iter().filter(|(_, work)| *work).for_each(|&(task, _)| self.wake(task));
        Ok(appended.last)
    }

    fn apply_record(
        &self,
        state: &mut State,
        reservation: &mut Reservation,
        record: &Record<'_>,
        index: u64,
        appended: &Appended,
        now: &Now<'_>,
    ) {
        let (lsn, group) = (appended.first.plus(index), appended.group);
        let (key, start, len, bytes) = match *record {
            Record::Write { object, page, start, bytes } => {
                (Key { object, page }, usize::from(start), bytes.len(), Some(bytes))
            }
            Record::Zero { object, page, start, len } => {
                (Key { object, page }, usize::from(start), usize::from(len), None)
            }
            Record::Cut { object, from, to } => {
                let cut = PendingCut { from, to, lsn, group, whole_object: false, since: now.get() };
                return self.cut(state, object, cut);
            }
            Record::Delete { object } => {
                let (from, to) = (PageNo(0), PageNo(u64::MAX));
                let cut = PendingCut { from, to, lsn, group, whole_object: true, since: now.get() };
                return self.cut(state, object, cut);
            }
            Record::Clone { .. } => unreachable!("no change becomes a clone record in version 1"),
        };
        let (absent, waiters) = state.change(key, |entry| {
            let absent = !entry.covers(0..BLOCK_BYTES);
            match bytes {
                Some(bytes) => entry.write(start, bytes),
                None => entry.zero(start, len),
            }
            entry.note(start..start + len, lsn, group, || {
                reservation.pages -= 1;
                dirt(lsn, group, now.get(), false)
            });
            entry.used = true;
            // Covered now: nothing will be fetched, so nothing else would tell them.
            let waiters = if entry.fetch.is_none() { std::mem::take(&mut entry.waiters) } else { Vec::new() };
            (absent, waiters)
        });
        state.counters.writes_to_absent_pages += u64::from(absent);
        state.reads.ready.extend(waiters);
    }

    fn cut(&self, state: &mut State, object: ObjectId, cut: PendingCut) {
        let (reservations, waiters) = state.cut(object, cut);
        self.store.release(reservations);
        // There may be space in it: worth another attempt for the next writer.
        state.admission.exhausted = false;
        state.reads.ready.extend(waiters);
    }
}

/// The time, read when it is first asked for: most writes go to pages that are dirty already and never ask.
struct Now<'a> {
    clock: &'a dyn Clock,
    read: OnceCell<Duration>,
}

impl Now<'_> {
    fn new(clock: &dyn Clock) -> Now<'_> {
        Now { clock, read: OnceCell::new() }
    }

    fn get(&self) -> Duration {
        *self.read.get_or_init(|| self.clock.monotonic())
    }
}

impl Cache {
    /// Opens the stack above `store`: turns the records in the buffer into deltas, then makes a new incarnation
    /// durable on both media. Writes nothing before all of the buffer was read and found good.
    ///
    /// # Errors
    /// What [`Recovered::read`] and [`begin`](Cache::begin) say.
    pub fn open(
        store: Arc<Store>,
        buffer_device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Result<Cache, CacheError> {
        let recovered = Recovered::read(buffer_device, store.id(), &*clock)?;
        Cache::begin(store, recovered, clock, settings)
    }

    /// Puts what was recovered from a buffer above its store, and makes a new incarnation durable on both media.
    ///
    /// # Errors
    /// Those of [`ensure_fits`](Recovered::ensure_fits), before anything is written; those of the media when they are written to.
    ///
    /// # Panics
    /// If the buffer is another store's.
    pub fn begin(
        store: Arc<Store>,
        recovered: Recovered,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Result<Cache, CacheError> {
        recovered.ensure_fits(&store)?;
        let volume = recovered.volume();
        let Recovered { buffer, state, reserved } = recovered;
        let (newest_of_store, newest_of_buffer) = (store.newest_lsn(), buffer.newest_lsn());
        // Space was reserved before the crash. Should some be missing now (the log begins in another segment, the cleaner's last one
        // is hardly filled), no operation can reserve any before it is there again.
        store.reserve_unchecked(reserved);
        let incarnation = Incarnation(store.incarnation().max(buffer.incarnation()).0 + 1);
        store.begin_after(incarnation, buffer.store_batch())?;
        buffer.begin(incarnation, newest_of_buffer.max(newest_of_store))?;
        delete_unfinished(&store, newest_of_buffer);
        let core = Core {
            store,
            buffer,
            volume,
            clock,
            settings,
            commit_time: CommitTime::new(),
            store_io_for_syncs: AtomicU64::new(0),
            write_back_turn: Mutex::default(),
            making_space: Mutex::default(),
            clean_as_of: AtomicU64::new(u64::MAX),
            given_back_as_of: AtomicU64::new(0),
            state: Mutex::new(state),
            work: Default::default(),
        };
        // What recovery found stored already needs the buffer no more, and no write-back will come to say so.
        core.release_groups(&mut core.state());
        Ok(Cache { core: Arc::new(core) })
    }

    /// Asks for space; `then` gets it at once where there is space, else when there is. Refused at once, or after an
    /// attempt to free space, where the store is full.
    pub fn admit(&self, cost: Cost, then: Completion<Reservation>) {
        self.core.admit(cost, then);
    }

    /// [`admit`](Cache::admit) where there is space at once and no other operation waits; `None` where one has to wait.
    pub fn admit_at_once(&self, cost: Cost) -> Result<Option<Reservation>, CacheError> {
        self.core.admit_at_once(cost)
    }

    /// True if a write may be made at once: in `FetchMode::Blocking` [`prepare_write`](Cache::prepare_write) comes first.
    pub fn writes_at_once(&self) -> bool {
        self.core.settings.fetch == crate::FetchMode::Lazy
    }

    /// Makes all of `changes` visible, in order, as one transaction: after a crash it is there as a whole or not
    /// at all, and only if every transaction before it is. Never waits, and calls no completion. The caller orders
    /// its own calls. On success what the reservation did not use is given back: it is good for one transaction.
    pub fn apply(&self, reservation: &mut Reservation, changes: &[Change<'_>]) -> Result<Lsn, CacheError> {
        self.core.apply(reservation, changes)
    }

    /// Reads `len` bytes from `offset` on: holes read as zeros. At once if they are in memory; else page by page, so
    /// that a write meanwhile may be seen in some pages and not in others. Who reads an object in order finds what comes
    /// next in memory: it is fetched ahead, up to `end`, where the object's data ends. Returns whether all was in memory.
    pub fn read(
        &self,
        object: ObjectId,
        offset: u64,
        len: usize,
        end: u64,
        then: Completion<Vec<u8>>,
    ) -> bool {
        self.core.read(object, offset, len, end, then)
    }

    /// Fetches objects that will be read soon, by their bytes, behind everything that a reader waits for. Those for which there is
    /// no memory to spare are left out. An error is left to their readers.
    pub fn fetch_ahead(&self, objects: &[(ObjectId, u64)]) {
        self.core.fetch_ahead(objects);
    }

    /// Finds the first page of `pages` that is what is wanted; `None`: there is none. Exact as of one moment for each
    /// 32 MiB; `then` is called by a worker that fetches. Writes nothing and fetches no page.
    pub fn seek(
        &self,
        object: ObjectId,
        pages: Range<PageNo>,
        wanted: Wanted,
        then: Completion<Option<PageNo>>,
    ) {
        self.core.seek(object, pages, wanted, then);
    }

    /// In `FetchMode::Blocking`, completes once every page that this range covers only in part is in memory; in
    /// lazy mode at once.
    pub fn prepare_write(&self, object: ObjectId, offset: u64, len: usize, then: Completion<()>) {
        match self.core.settings.fetch {
            crate::FetchMode::Lazy => then(Ok(())),
            crate::FetchMode::Blocking => self.core.prepare_write(object, offset, len, then),
        }
    }

    /// Reads in the caller's thread, waiting for the device: for opening and checking, not for requests.
    pub fn read_now(&self, object: ObjectId, offset: u64, len: usize) -> Result<Vec<u8>, CacheError> {
        let mut found = self.core.read_all_now(object, &[(offset, len)])?;
        Ok(found.pop().expect("as many as were asked for"))
    }

    /// Completes when every change applied before the call is durable. Causes no store I/O.
    pub fn sync(&self, then: Completion<()>) {
        self.core.sync(then);
    }

    /// Does a bounded piece of background work in the caller's thread.
    pub fn step(&self, task: Task) -> Progress {
        match task {
            Task::Commit => self.core.commit_step(),
            Task::Fetch => self.core.fetch_step(),
            Task::WriteBack => self.core.write_back_step(),
            Task::Checkpoint => self.core.checkpoint_step(),
        }
    }

    /// Waits until there may be work of this kind, at most `timeout`.
    pub fn wait(&self, task: Task, timeout: Duration) {
        let state = self.core.state();
        let pause = match (self.core.has_work(&state, task), task) {
            // Nothing wakes the committer for the first change, which would cost every synced write two switches of
            // threads: it looks often enough to see it in time.
            (false, Task::Commit) => {
                let nap = self.core.settings.commit_interval / 4;
                self.core.commit_due_in(&state).unwrap_or(nap).min(timeout)
            }
            (false, _) => timeout,
            (true, Task::Commit | Task::Fetch) => return,
            // Due, yet the last step could do nothing: a device fails, or only others can help.
            (true, Task::WriteBack | Task::Checkpoint) => timeout.min(PAUSE),
        };
        if !state.stopping {
            drop(self.core.work[task as usize].wait_timeout(state, pause));
        }
    }

    /// Refuses new operations and wakes every worker, so that they can end.
    pub fn stop(&self) {
        let mut completions = Completions::default();
        let mut state = self.core.state();
        state.stopping = true;
        state.reads.ahead.stop();
        self.core.refuse_all(&mut state, &CacheError::Stopping, &mut completions);
        self.core.refuse_seeks(&mut state, &mut completions);
        drop(state);
        completions.deliver();
        self.core.work.iter().for_each(Condvar::notify_all);
    }

    /// Writes everything back and checkpoints, in the caller's thread: for a clean unmount. Each page is tried once. On an error
    /// what could not be written back stays in the buffer, durable.
    pub fn drain(&self) -> Result<(), CacheError> {
        if let Err(error) = self.core.commit_now() {
            self.core.rescue_step(Why::All);
            return Err(self.core.rescued().unwrap_or(error));
        }
        // A page that a fetch is queued for waits for that; the workers that would do it may have ended.
        while self.core.fetch_step() == Progress::Worked {}
        self.core.write_all_back()?;
        self.core.commit_now()?;
        self.core.store_io().checkpoint()?;
        let state = self.core.state();
        match state.retries.first() {
            Some(error) if state.dirty_pages() > 0 || !state.cuts.is_empty() => Err(error.clone().into()),
            _ => Ok(()),
        }
    }

    /// The volume that is cached.
    pub fn volume(&self) -> VolumeId {
        self.core.volume
    }

    /// The store below: for its counters and space.
    pub fn store(&self) -> &Arc<Store> {
        &self.core.store
    }

    /// The buffer beside it: for its counters.
    pub fn buffer(&self) -> &Buffer {
        &self.core.buffer
    }

    /// What it was opened with.
    pub fn settings(&self) -> &Settings {
        &self.core.settings
    }

    /// The largest transaction, in bytes of records as [`buffer::footprint`] counts them.
    pub fn transaction_bytes_max(&self) -> u64 {
        self.core.buffer.transaction_bytes_max()
    }

    /// How things stand.
    pub fn status(&self) -> Status {
        let state = self.core.state();
        let now = self.core.clock.monotonic();
        let (stuck_count, stuck) = state.retries.stuck();
        Status {
            counters: Counters {
                store_io_for_syncs: self.core.store_io_for_syncs.load(Ordering::Relaxed),
                ..state.counters
            },
            applied: self.core.buffer.appended(),
            durable: self.core.buffer.durable(),
            dirty_pages: state.dirty_pages() as u64,
            dirty_bytes: state.dirty_bytes,
            dirty_age: state.oldest_since().map_or(Duration::ZERO, |since| now.saturating_sub(since)),
            pending_cuts: state.cuts.values().map(|cuts| cuts.len() as u64).sum(),
            pages: state.table.len() as u64,
            memory_bytes: state.memory_bytes,
            parked_reads: state.reads.parked(),
            parked_syncs: state.syncs.parked(),
            parked_admissions: state.admission.parked(),
            fetching: state.reads.fetching(),
            buffer_bytes: self.core.buffer.capacity_bytes(),
            buffer_free_bytes: self.core.buffer.free_bytes(),
            failed: state.failed.as_ref().map(ToString::to_string),
            rescued: state.rescue.volume.clone(),
            left_out: state.rescue.left_out,
            not_rescued: state.rescue.error.as_ref().map(ToString::to_string),
            stalled: state.retries.stalled(now),
            stuck_count,
            stuck,
        }
    }
}
