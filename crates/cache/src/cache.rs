//! The public interface: it composes the parts, and applies changes.

use crate::admission::{Admission, Reservation};
use crate::bulk;
use crate::bypass;
use crate::change::{self, Change, Claim, Cost};
use crate::checkpoint::Checkpointer;
use crate::commit::{Committer, Synced};
use crate::error::CacheError;
use crate::fetch::Fetcher;
use crate::named::Lost;
use crate::page::Dirt;
use crate::pages::{Key, PageChange, PendingCut};
use crate::plant::is_refused;
use crate::recover::Recovered;
use crate::rescue::{Rescuer, delete_unfinished};
use crate::scan::Scan;
use crate::seek::{CountEffort, Wanted};
use crate::settings::{FetchMode, Settings};
use crate::shared::{Shared, State};
use crate::status::{Counters, Status};
use crate::sync::Ordering;
use crate::task::{Completion, Completions, Progress, Task};
use crate::transfers::{Kind, Ordered, Pending, TRANSFER_PAGES_MAX, pages_reserved};
use crate::volume::{VolumeInUse, Volumes};
use crate::write_back::{Why, WriteBack};
use buffer::{Buffer, BufferError, GroupNo, Record};
use device::{BLOCK_BYTES, Clock, Device, Incarnation, Lsn, ObjectId, PageNo};
use std::cell::OnceCell;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::{NewVolume, Store, StoreError, VolumeId};

/// Between two looks at work that is due and cannot be done.
const PAUSE: Duration = Duration::from_millis(5);

/// Pages and deltas. Cheap to clone: all clones are one cache.
#[derive(Clone)]
pub struct Cache {
    pub(crate) parts: Arc<Parts>,
}

/// The parts, each of which knows those before it.
pub(crate) struct Parts {
    pub(crate) shared: Arc<Shared>,
    admission: Admission,
    pub(crate) committer: Arc<Committer>,
    fetcher: Arc<Fetcher>,
    write_back: Arc<WriteBack>,
    checkpointer: Arc<Checkpointer>,
    volumes: Volumes,
    rescuer: Rescuer,
}

impl Parts {
    fn of(shared: Shared) -> Parts {
        let shared = Arc::new(shared);
        let admission = Admission::new(shared.clone());
        let committer = Arc::new(Committer::new(shared.clone(), admission.clone()));
        let fetcher = Arc::new(Fetcher::new(shared.clone()));
        let write_back = WriteBack::new(shared.clone(), admission.clone(), committer.clone());
        let write_back = Arc::new(write_back);
        let checkpointer = Checkpointer::new(shared.clone(), admission.clone(), write_back.clone());
        let checkpointer = Arc::new(checkpointer);
        let volumes =
            Volumes::new(shared.clone(), committer.clone(), write_back.clone(), checkpointer.clone());
        let rescuer = Rescuer::new(shared.clone(), write_back.clone(), checkpointer.clone());
        Parts { shared, admission, committer, fetcher, write_back, checkpointer, volumes, rescuer }
    }

    fn has_work(&self, state: &State, task: Task) -> bool {
        match task {
            Task::Commit => self.committer.is_due(state),
            Task::Fetch => Fetcher::has_work(state),
            Task::WriteBack => {
                let due = self.write_back.is_due(state) || self.write_back.transfers_are_due(state);
                due || self.rescuer.is_due(state)
            }
            Task::Checkpoint => self.checkpointer.is_due(state),
        }
    }

    /// Appends and applies one transaction. Calls no completion: a reader that waits for a changed page looks again later.
    fn apply(&self, reservation: &mut Reservation, changes: &[Change<'_>]) -> Result<Lsn, CacheError> {
        let mut records = change::records(changes, reservation.is_bypassing());
        if !changes.iter().all(Change::is_sensible) {
            return Err(CacheError::BadTransfer);
        }
        if let Some(pages) = changes.iter().find_map(Change::too_many) {
            return Err(CacheError::TransferTooLong { pages, limit: TRANSFER_PAGES_MAX });
        }
        let mut state = self.shared.state();
        if let Some(why) = state.failed().cloned() {
            return Err(CacheError::ReadOnly { why });
        }
        if reservation.claim() != Claim::Frees && is_refused() {
            return Err(StoreError::Full.into());
        }
        if reservation.is_bypassing() && self.shared.bypass_after().load(Ordering::Relaxed) == u64::MAX {
            // It entered before nothing was to bypass the buffer any more, which a sync may rely on.
            records = change::records(changes, false);
        }
        reservation.grow_to(changes.iter().map(Change::pages).sum(), &mut state)?;
        let logged = bypass::log_before(self.shared.buffer(), &mut state.pages, changes);
        let appended = match logged
            .map(|logged| state.logged_late(logged))
            .and_then(|()| self.shared.buffer().append(&records))
        {
            Ok(appended) => appended,
            Err(why @ BufferError::Device(_)) => {
                state.fail(&why);
                return Err(CacheError::ReadOnly { why });
            }
            Err(error) => return Err(error.into()),
        };
        let now = Now::new(self.shared.clock());
        state.counters.transactions += 1;
        state.syncs.appended(|| now.get());
        let mut readers_may_go_on = false;
        let mut bypass_bytes = changes.iter().filter_map(Change::bypass_bytes);
        for (index, record) in records.iter().enumerate() {
            let place = Place { lsn: appended.first.plus(index as u64), group: appended.group, now: &now };
            let waiters = match *record {
                Record::Bypassed { object, from, .. } => {
                    let bytes = bypass_bytes.next().expect("as many as there are records");
                    self.write_bypassing(&mut state, reservation, (object, from), bytes, &place)
                }
                _ => self.apply_record(&mut state, reservation, record, &place),
            };
            if !waiters.is_empty() {
                readers_may_go_on = true;
                state.reads.look_again(waiters);
            }
        }
        if reservation.claim() == Claim::Names {
            // To write it back releases most of what it reserved.
            state.admission.may_have_space();
        }
        let awaited = reservation.settle(&mut state);
        let transfers =
            changes.iter().any(|change| matches!(change, Change::Clone { .. } | Change::Move { .. }));
        let wakes = [
            (Task::Commit, awaited || self.committer.is_pressed(&state)),
            (Task::Fetch, readers_may_go_on || state.reads.has_background() || state.pages.has_discarded()),
            (Task::WriteBack, transfers || self.admission.presses_for_write_back(&state)),
        ];
        state.evict(self.shared.settings());
        drop(state);
        wakes.iter().filter(|(_, work)| *work).for_each(|&(task, _)| self.shared.wake(task));
        Ok(appended.last)
    }

    /// Returns reads that must look again.
    fn apply_record(
        &self,
        state: &mut State,
        reservation: &mut Reservation,
        record: &Record<'_>,
        place: &Place<'_>,
    ) -> Vec<u64> {
        let &Place { lsn: newest, group, now } = place;
        let (key, start, len, bytes) = match *record {
            Record::Write { object, page, start, bytes } => {
                (Key { object, page }, usize::from(start), bytes.len(), Some(bytes))
            }
            Record::Zero { object, page, start, len } => {
                (Key { object, page }, usize::from(start), usize::from(len), None)
            }
            Record::Cut { object, from, to } => {
                let cut = PendingCut {
                    from,
                    to,
                    lsn: newest,
                    group,
                    whole_object: false,
                    since: now.get(),
                    logged_again: false,
                };
                return self.cut(state, object, cut);
            }
            Record::Delete { object } => {
                let (from, to) = (PageNo(0), PageNo(u64::MAX));
                let cut = PendingCut {
                    from,
                    to,
                    lsn: newest,
                    group,
                    whole_object: true,
                    since: now.get(),
                    logged_again: false,
                };
                return self.cut(state, object, cut);
            }
            Record::Clone(transfer) | Record::Move(transfer) => {
                let what = Ordered::of(record, newest).expect("it is one");
                reservation.take_pages(pages_reserved(&transfer));
                return self.transfer(state, Pending::new(what, group, now.get(), false));
            }
            Record::Bypassed { .. } => unreachable!("its bytes are not in it"),
        };
        let change = PageChange { key, range: start..start + len, bytes, newest, group, is_bypassing: false };
        self.change_page(state, reservation, change, now)
    }

    /// Whole pages whose bytes the buffer does not have.
    fn write_bypassing(
        &self,
        state: &mut State,
        reservation: &mut Reservation,
        (object, from): (ObjectId, PageNo),
        bytes: &[u8],
        place: &Place<'_>,
    ) -> Vec<u64> {
        let &Place { lsn: newest, group, now } = place;
        let mut waiters = Vec::new();
        for (page, bytes) in (from.0..).map(PageNo).zip(bytes.chunks(BLOCK_BYTES)) {
            let (key, range, bytes) = (Key { object, page }, 0..BLOCK_BYTES, Some(bytes));
            let change = PageChange { key, range, bytes, newest, group, is_bypassing: true };
            waiters.append(&mut self.change_page(state, reservation, change, now));
            state.counters.pages_bypassed += 1;
        }
        let end = PageNo(from.0 + (bytes.len() / BLOCK_BYTES) as u64);
        state.pages.note_bypassed_write(now.get(), object, from..end);
        waiters
    }

    fn change_page(
        &self,
        state: &mut State,
        reservation: &mut Reservation,
        change: PageChange<'_>,
        now: &Now<'_>,
    ) -> Vec<u64> {
        let (newest, group, key) = (change.newest, change.group, change.key);
        let is_part = change.range.len() < BLOCK_BYTES;
        let changed = state.pages.write(change, || {
            reservation.take_pages(1);
            Dirt::first(newest, group, now.get(), false)
        });
        state.counters.writes_to_absent_pages += u64::from(changed.was_absent);
        if changed.was_absent && is_part {
            state.reads.left_partial(self.shared.settings().fetch, key);
        }
        changed.waiters
    }

    fn transfer(&self, state: &mut State, pending: Pending) -> Vec<u64> {
        let Ordered { kind, transfer, .. } = pending.what;
        state.reads.cut(transfer.to, transfer.target());
        if kind == Kind::Move {
            state.reads.cut(transfer.from, transfer.source());
        }
        let taken = state.pages.transfer(pending);
        self.taken_out(state, taken)
    }

    fn cut(&self, state: &mut State, object: ObjectId, cut: PendingCut) -> Vec<u64> {
        state.reads.cut(object, cut.from..cut.to);
        let taken = state.pages.cut(object, cut);
        self.taken_out(state, taken)
    }

    /// Pages were taken out of memory that had so many reservations, and for which these reads waited.
    fn taken_out(&self, state: &mut State, (reservations, waiters): (u64, Vec<u64>)) -> Vec<u64> {
        if reservations > 0 {
            self.shared.store().release(reservations);
        }
        // There may be space in it: worth another attempt for the next writer.
        state.admission.may_have_space();
        waiters
    }

    /// Gives the store back what was reserved and nothing needs now, and tells it what is known of the rest.
    fn give_back_spare(&self) {
        let mut state = self.shared.state();
        state.admission.give_back_spare(self.shared.store());
        self.shared.store().set_reservation_estimate(state.known_to_store());
    }

    fn write_back_step(&self) -> Progress {
        let state = self.shared.state();
        let has_failed = state.failed().is_some();
        // Readers wait for clones and moves.
        let is_due = self.write_back.is_due(&state) && !self.write_back.transfers_are_due(&state);
        drop(state);
        if has_failed {
            return self.rescuer.step(Why::Due);
        }
        let progress = match is_due && self.checkpointer.pay_with_cleaning() {
            true => Progress::Worked,
            false => self.write_back.step().unwrap_or(Progress::Idle),
        };
        self.write_back.tell_those_who_wait(progress);
        progress
    }
}

/// Where a change stands in the one order, and when.
struct Place<'a> {
    lsn: Lsn,
    group: GroupNo,
    now: &'a Now<'a>,
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
        mut recovered: Recovered,
        clock: Arc<dyn Clock>,
        settings: Settings,
    ) -> Result<Cache, CacheError> {
        recovered.ensure_fits(&store)?;
        recovered.forget_deleted(&store);
        let overtaken = recovered.settle_bypassed(&store)?;
        let (buffer, state, reserved) = recovered.into_parts();
        let (newest_of_store, newest_of_buffer) = (store.newest_lsn(), buffer.newest_lsn());
        // Space was reserved before the crash. Should some be missing now (the log begins in another segment, the cleaner's last one
        // is hardly filled), no operation can reserve any before it is there again.
        store.reserve_unchecked(reserved);
        store.set_reservation_estimate(state.known_to_store());
        let incarnation = Incarnation(store.incarnation().max(buffer.incarnation()).0 + 1);
        store.begin_after(incarnation, buffer.store_batch())?;
        buffer.begin(incarnation, newest_of_buffer.max(newest_of_store))?;
        delete_unfinished(&store, newest_of_buffer);
        let parts = Parts::of(Shared::new(store, buffer, clock, settings, state));
        match parts.write_back.log_overtaken(&overtaken) {
            Err(CacheError::Buffer(BufferError::Full)) => parts.checkpointer.write_all_back()?,
            outcome => outcome?,
        }
        parts.write_back.store_recovered();
        // What recovery found stored already needs the buffer no more, and no write-back will come to say so.
        parts.committer.release_groups(&mut parts.shared.state());
        Ok(Cache { parts: Arc::new(parts) })
    }

    /// Asks for space; `then` gets it at once where there is space, else when there is. Refused at once, or after an
    /// attempt to free space, where the store is full.
    pub fn admit(&self, cost: Cost, then: Completion<Reservation>) {
        self.parts.admission.admit(cost, then);
    }

    /// [`admit`](Cache::admit) where there is space at once and no other operation waits; `None` where one has to wait.
    pub fn admit_at_once(&self, cost: Cost) -> Result<Option<Reservation>, CacheError> {
        self.parts.admission.admit_at_once(cost)
    }

    /// Bytes of a file that must be written in order before its next whole pages are written [around the buffer](Change::BypassWrite);
    /// `u64::MAX`: none are.
    pub fn bypass_after(&self) -> u64 {
        self.parts.shared.bypass_after().load(Ordering::Relaxed)
    }

    /// Changes that for writes from now on. What bypassed the buffer before stays so, until it is stored or [synced](Cache::sync): such a
    /// sync after `u64::MAX` was set covers all that ever was.
    pub fn set_bypass_after(&self, bytes: u64) {
        self.parts.shared.bypass_after().store(bytes, Ordering::Relaxed);
    }

    /// True if a write may be made at once: in `FetchMode::Blocking` [`prepare_write`](Cache::prepare_write) comes first.
    pub fn writes_at_once(&self) -> bool {
        self.parts.shared.settings().fetch != FetchMode::Blocking
    }

    /// Makes all of `changes` visible, in order, as one transaction: after a crash it is there as a whole or not
    /// at all, and only if every transaction before it is. Never waits, and calls no completion. The caller orders
    /// its own calls. On success what the reservation did not use is given back: it is good for one transaction.
    pub fn apply(&self, reservation: &mut Reservation, changes: &[Change<'_>]) -> Result<Lsn, CacheError> {
        self.parts.apply(reservation, changes)
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
        self.parts.fetcher.read(object, offset, len, end, then)
    }

    /// Fetches objects that will be read soon, by their bytes, behind everything that a reader waits for. Those for which there is
    /// no memory to spare are left out. An error is left to their readers.
    pub fn fetch_ahead(&self, objects: &[(ObjectId, u64)]) {
        self.parts.fetcher.fetch_ahead(objects);
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
        self.parts.fetcher.seeker().seek(object, pages, wanted, then);
    }

    /// How many of `pages` are data; `None` where that takes more than `effort`.
    pub fn count(
        &self,
        object: ObjectId,
        pages: Range<PageNo>,
        effort: CountEffort,
        then: Completion<Option<u64>>,
    ) {
        self.parts.fetcher.seeker().count(object, pages, effort, then);
    }

    /// How many of `pages` have changes in memory that are not stored: these are data. Does no I/O.
    pub fn dirty_pages(&self, object: ObjectId, pages: Range<PageNo>) -> u64 {
        let state = self.parts.shared.state();
        state.pages.range(object, pages).filter(|(_, entry)| entry.group().is_some()).count() as u64
    }

    /// In `FetchMode::Blocking`, completes once every page that this range covers only in part is in memory; else at once.
    pub fn prepare_write(&self, object: ObjectId, offset: u64, len: usize, then: Completion<()>) {
        match self.parts.shared.settings().fetch {
            FetchMode::Blocking => self.parts.fetcher.prepare_write(object, offset, len, then),
            _ => then(Ok(())),
        }
    }

    /// Reads in the caller's thread, waiting for the device: for opening and checking, not for requests.
    pub fn read_now(&self, object: ObjectId, offset: u64, len: usize) -> Result<Vec<u8>, CacheError> {
        let mut found = self.read_all_now(object, &[(offset, len)])?;
        Ok(found.pop().expect("as many as were asked for"))
    }

    /// Completes when every change applied before the call is durable. Causes no store I/O, unless much was written
    /// [around the buffer](Change::BypassWrite): see [`sync_logs_max`](Settings::sync_logs_max).
    pub fn sync(&self, then: Completion<()>) {
        self.parts.committer.sync(Synced::All, then);
    }

    /// The same for every change but what was written [around the buffer](Change::BypassWrite) to other objects.
    pub fn sync_object(&self, object: ObjectId, then: Completion<()>) {
        self.parts.committer.sync(Synced::Object(object), then);
    }

    /// The same for every change, except bypassed pages.
    pub fn sync_logged(&self, then: Completion<()>) {
        self.parts.committer.sync(Synced::Logged, then);
    }

    /// Does a bounded piece of background work in the caller's thread.
    pub fn step(&self, task: Task) -> Progress {
        match task {
            Task::Commit => self.parts.committer.step(),
            Task::Fetch => self.parts.fetcher.step(),
            Task::WriteBack => self.parts.write_back_step(),
            Task::Checkpoint => self.parts.checkpointer.step(),
        }
    }

    /// Waits until there may be work of this kind, at most `timeout`.
    pub fn wait(&self, task: Task, timeout: Duration) {
        let state = self.parts.shared.state();
        let pause = match (self.parts.has_work(&state, task), task) {
            // Nothing wakes the committer for the first change, which would cost every synced write two switches of
            // threads: it looks often enough to see it in time.
            (false, Task::Commit) => {
                let nap = self.parts.shared.settings().commit_interval / 4;
                self.parts.committer.due_in(&state).unwrap_or(nap).min(timeout)
            }
            (false, Task::WriteBack) => {
                self.parts.shared.bypassed_due_in(&state.pages).unwrap_or(timeout).min(timeout)
            }
            (false, _) => timeout,
            (true, Task::Commit | Task::Fetch) => return,
            // Due, yet the last step could do nothing: a device fails, or only others can help.
            (true, Task::WriteBack | Task::Checkpoint) => timeout.min(PAUSE),
        };
        if !state.is_stopping() {
            self.parts.shared.wait(task, state, pause);
        }
    }

    /// Refuses new operations and wakes every worker, so that they can end.
    pub fn stop(&self) {
        let mut completions = Completions::default();
        let mut state = self.parts.shared.state();
        state.stop();
        state.reads.stop();
        self.parts.committer.log_what_syncs_wait_for(&mut state);
        self.parts.admission.refuse_all(&mut state, &CacheError::Stopping, &mut completions);
        state.seeks.refuse_all(&mut completions);
        state.admission.give_back_spare(self.parts.shared.store());
        drop(state);
        completions.deliver();
        self.parts.shared.wake_all();
    }

    /// Writes everything back and checkpoints, in the caller's thread: for a clean unmount. Each page is tried once. On an error
    /// everything that could not be written back is in the buffer, durable, unless the buffer failed.
    pub fn drain(&self) -> Result<(), CacheError> {
        self.parts.give_back_spare();
        let outcome = self.write_all_back();
        let kept = self.parts.committer.keep_in_buffer();
        if kept.is_err() {
            self.parts.rescuer.step(Why::All);
        }
        self.parts.give_back_spare();
        kept.and(outcome)
    }

    fn write_all_back(&self) -> Result<(), CacheError> {
        let Parts { shared, committer, fetcher, write_back, checkpointer, rescuer, .. } = &*self.parts;
        if let Err(error) = committer.commit_now() {
            rescuer.step(Why::All);
            return Err(rescuer.rescued().unwrap_or(error));
        }
        // What they hide is fetched, and dirty pages of it stored, after that. One that cannot be stored is told of below.
        let _ = write_back.store_transfers(&|_| true);
        // A page that a fetch is queued for waits for that; the workers that would do it may have ended.
        while fetcher.step() == Progress::Worked {}
        checkpointer.write_all_back()?;
        committer.commit_now()?;
        shared.store_io().checkpoint()?;
        let state = shared.state();
        match state.retries.first() {
            Some(error) if state.pages.is_dirty() => Err(error.clone().into()),
            _ => Ok(()),
        }
    }

    /// [`read_now`](Cache::read_now) for several ranges (offset, length), which are read in the order in which they lie in the
    /// store.
    pub fn read_all_now(
        &self,
        object: ObjectId,
        ranges: &[(u64, usize)],
    ) -> Result<Vec<Vec<u8>>, CacheError> {
        let Parts { checkpointer, write_back, .. } = &*self.parts;
        checkpointer.with_space(|| write_back.store_transfers(&|what| what.is_about(object)))?;
        bulk::read_all_now(&self.parts.shared, object, ranges)
    }

    /// Lays what is in memory over `bytes`, which are an object's from `offset` on and were [read](crate::read_stored) from the store
    /// after the last that was written back. `false`, and some may have been laid or none, where some of the object was cut and the
    /// store does not know yet: then these bytes are worth nothing.
    pub fn lay_over(&self, object: ObjectId, offset: u64, bytes: &mut [u8]) -> bool {
        bulk::lay_over(&self.parts.shared.state().pages, object, offset, bytes)
    }

    /// From now on `volume` cannot be deleted, until what is returned is dropped.
    pub fn use_volume(&self, volume: VolumeId) -> VolumeInUse {
        self.parts.volumes.use_volume(volume)
    }

    /// Makes a new volume that is what `from` is at some moment during the call: with every change that was
    /// applied before it, and after each that it has, every one before that. Durable on return. In the caller's
    /// thread; others go on, and what they write during the call needs memory once more.
    ///
    /// # Errors
    /// Those of [`Store::check_clone`](store::Store::check_clone), before anything is done; [`StoreError::Full`]; and
    /// what kept something from being written back. There is no new volume then, unless the last write to the store's log
    /// failed: that is not known until the next start.
    pub fn clone_volume(&self, from: VolumeId, new: &NewVolume<'_>) -> Result<VolumeId, CacheError> {
        self.parts.volumes.make_clone(from, new)
    }

    /// [`clone_volume`](Cache::clone_volume) of a volume that [may be given up](Cache::may_give_up) from the moment on at which it is there.
    pub fn clone_expendable(&self, from: VolumeId, new: &NewVolume<'_>) -> Result<VolumeId, CacheError> {
        self.parts.volumes.make_expendable_clone(from, new)
    }

    /// Deletes a volume that is not [in use](Cache::use_volume), with what was written to it. Its space comes back in the background.
    ///
    /// # Errors
    /// [`CacheError::InUse`], or those of [`Store::delete_volume`](store::Store::delete_volume).
    pub fn delete_volume(&self, volume: VolumeId) -> Result<(), CacheError> {
        self.parts.volumes.delete(volume)
    }

    /// Volumes that nobody uses, and that go before an operation is told that the store is full; these in place of those named before.
    pub fn may_give_up(&self, volumes: Vec<VolumeId>) {
        self.parts.checkpointer.may_give_up(volumes);
    }

    /// Makes the store as large as fits into `blocks` blocks, or into all that its device has; returns its new size. Who waits for space
    /// goes on.
    ///
    /// # Errors
    /// Those of [`Store::grow`](store::Store::grow).
    pub fn grow_store(&self, blocks: Option<u64>) -> Result<u64, CacheError> {
        self.parts.checkpointer.grow(blocks)
    }

    /// Makes the buffer so many blocks long, or as long as its device is by now, and writes back until its log is in one piece, so that it
    /// is used whole; returns its new length. Who waits for space in it goes on.
    ///
    /// # Errors
    /// Those of [`Buffer::grow`]; and what kept something from being written back: then it has grown, and what is new is used later.
    pub fn grow_buffer(&self, blocks: Option<u64>) -> Result<u64, CacheError> {
        let Parts { shared, committer, admission, write_back, checkpointer, .. } = &*self.parts;
        let buffer = shared.buffer();
        let grown = committer.grow_buffer(blocks)?;
        let (mut end, mut scan) = (GroupNo::default(), Scan::default());
        while buffer.is_growing() {
            // What was in the log by now, the oldest first. Once it is released, the log lies in one piece, unless it has come around
            // since; who writes meanwhile does not keep this from its end.
            let oldest = shared.state().pages.oldest_group();
            if oldest.is_none_or(|oldest| oldest >= end) {
                (end, scan) = (buffer.groups().end, Scan::once(shared.state().retries.failures()));
            }
            let progress = checkpointer.with_space(|| write_back.everything(Why::All, &mut scan))?;
            committer.release_groups(&mut shared.state());
            buffer.witness(shared.store().durable_batch());
            committer.commit_now()?;
            let stuck = shared.state().retries.first().cloned();
            match stuck.filter(|_| progress == Progress::Idle && buffer.is_growing()) {
                Some(error) if error.is_full() => checkpointer.write_all_back()?,
                Some(error) => return Err(error.into()),
                // It is logged again before the log comes around, and then all of the buffer is used.
                None if progress == Progress::Idle && shared.state().pages.has_lost() => break,
                None => {}
            }
        }
        let mut completions = Completions::default();
        admission.admit_waiting(&mut shared.state(), &mut completions);
        completions.deliver();
        Ok(grown)
    }

    /// Objects that grew with pages which were written [around the buffer](Change::BypassWrite) and which a crash took, and their first such
    /// pages: whoever knows how long they are makes them end there, has that made durable, and then
    /// [says so](Cache::forget_lost). The buffer keeps what tells of them until then, or until their volume is deleted.
    pub fn lost(&self) -> Vec<(ObjectId, PageNo)> {
        self.parts.shared.state().pages.lost().collect()
    }

    /// It is durable that an object ends before what is [lost](Cache::lost) of it, or is gone.
    pub fn forget_lost(&self, object: ObjectId) {
        let mut state = self.parts.shared.state();
        state.pages.forget_lost(object);
        self.parts.committer.release_groups(&mut state);
    }

    /// Keeps what is [lost](Cache::lost) by another buffer, whose place this one takes. Durable on return.
    pub fn take_over_lost(&self, lost: &[(ObjectId, PageNo)]) -> Result<(), CacheError> {
        let Parts { shared, committer, .. } = &*self.parts;
        let (mut state, buffer) = (shared.state(), shared.buffer());
        for &(object, from) in lost {
            let mut one = Lost { from, lsn: buffer.appended(), group: GroupNo(0), is_cut: false };
            one.group = buffer.append_merged(one.lsn, &[one.record(object)])?;
            state.pages.take_over_lost(object, one);
        }
        drop(state);
        committer.commit_now().map(drop)
    }

    /// The store below: for its counters.
    pub fn store(&self) -> &Arc<Store> {
        self.parts.shared.store()
    }

    /// The store, which has been given back what operations reserved and did not need: for its space.
    pub fn settled_store(&self) -> &Arc<Store> {
        self.parts.give_back_spare();
        self.store()
    }

    /// The buffer beside it: for its counters.
    pub fn buffer(&self) -> &Buffer {
        self.parts.shared.buffer()
    }

    /// What it was opened with.
    pub fn settings(&self) -> &Settings {
        self.parts.shared.settings()
    }

    /// The largest transaction, in bytes of records as [`buffer::footprint`] counts them.
    pub fn transaction_bytes_max(&self) -> u64 {
        self.parts.shared.buffer().transaction_bytes_max()
    }

    /// How things stand.
    pub fn status(&self) -> Status {
        let Parts { shared, rescuer, .. } = &*self.parts;
        let (now, buffer, rescue) = (shared.now(), shared.buffer(), rescuer.outcome().clone());
        let state = shared.state();
        let (pages, reads) = (&state.pages, &state.reads);
        let (stuck_count, stuck) = state.retries.stuck();
        Status {
            counters: Counters { store_io_for_syncs: shared.store_io_for_syncs(), ..state.counters },
            applied: buffer.appended(),
            durable: buffer.durable(),
            dirty_pages: pages.dirty_pages() as u64,
            dirty_bytes: pages.memory().dirty,
            deltas: pages.memory().delta_count,
            delta_bytes: pages.memory().deltas,
            dirty_age: pages.oldest_since().map_or(Duration::ZERO, |since| now.saturating_sub(since)),
            pending_cuts: pages.cuts_pending() as u64,
            pending_transfers: pages.transfers().len() as u64,
            pages: pages.len() as u64,
            memory_bytes: pages.memory().all,
            parked_reads: reads.parked(),
            parked_syncs: state.syncs.parked(),
            parked_admissions: state.admission.parked(),
            fetching: reads.fetching(),
            buffer_bytes: buffer.capacity_bytes(),
            buffer_free_bytes: buffer.free_bytes(),
            failed: state.failed().map(ToString::to_string),
            rescued: rescue.volume().map(str::to_owned),
            left_out: rescue.left_out(),
            not_rescued: rescue.error().map(ToString::to_string),
            stalled: state.retries.stalled(now),
            stuck_count,
            stuck,
        }
    }
}

#[cfg(feature = "planted-bugs")]
impl Cache {
    /// Whether a step of this kind finds every lock free that it may take and that is held over device calls. The simulator has one
    /// thread, and runs steps inside each other's device calls, as other threads would run them there.
    pub fn may_step(&self, task: Task) -> bool {
        let Parts { shared, checkpointer, .. } = &*self.parts;
        let store = shared.store();
        match task {
            Task::Fetch => true,
            Task::Commit => shared.buffer().is_idle(),
            Task::WriteBack => self.parts.may_write_back(),
            Task::Checkpoint => {
                let makes_space = shared.state().admission.wants_space();
                let may_make_space = checkpointer.makes_no_space() && self.parts.may_write_back();
                store.writer_is_idle() && store.cleaner_is_idle() && (!makes_space || may_make_space)
            }
        }
    }
}

#[cfg(feature = "planted-bugs")]
impl Parts {
    /// It pays with cleaning where that is due, and else leaves the cleaner alone.
    fn may_write_back(&self) -> bool {
        let (store, buffer) = (self.shared.store(), self.shared.buffer());
        let alone = self.write_back.is_idle() && buffer.is_idle() && store.writer_is_idle();
        // A rescue wins space by cleaning.
        let may_clean = store.cleaning_is_due() || self.shared.state().failed().is_some();
        alone && (store.cleaner_is_idle() || !may_clean)
    }
}
