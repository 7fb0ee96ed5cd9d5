//! The public interface: [`Cache`] puts the parts together. `transact.rs` has the methods for changes.

use crate::admission::AdmissionControl;
use crate::apply::TransactionApplier;
use crate::bypass_recovery::LostTail;
use crate::commit::{Committer, SyncScope};
use crate::dirty_scan::DirtyScan;
use crate::error::CacheError;
use crate::maintenance::StoreMaintainer;
use crate::planted_bug::{CacheBug, is_planted};
use crate::read::fetcher::Fetcher;
use crate::read::seek::{CountEffort, SeekTarget};
use crate::read::synchronous;
use crate::recover::RecoveredBuffer;
use crate::request_wait::{RequestWaits, TaskLoan};
use crate::rescue::{Rescuer, delete_unfinished};
use crate::rule_shares::RuleShare;
use crate::settings::{CacheSettings, FetchMode};
use crate::state::{CacheShared, CacheState};
use crate::status::{CacheCounters, CacheStatus};
use crate::task::{BackgroundTask, CacheCompletion, DeferredCompletions, StepProgress};
use crate::used_volumes::{UsedVolumes, VolumeInUse};
use crate::volumes::VolumeManager;
use crate::write_back::{WriteBack, WriteBackReason};
use buffer::{Buffer, BufferError, GroupNo};
use device::{Clock, Device, Incarnation, ObjectId, PageNo, SharedPage};
use request::{LendingLevel, Origin, RuleSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::{NewVolume, Store, VolumeId, VolumeRollback};

/// The pause between two looks at work that is due and cannot be done.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Pages and deltas above a store and a buffer. Cheap to clone: all clones are one cache.
#[derive(Clone)]
pub struct Cache {
    pub(crate) parts: Arc<CacheParts>,
}

/// The parts. Each knows those before it.
pub(crate) struct CacheParts {
    pub(crate) shared: Arc<CacheShared>,
    pub(crate) admission: AdmissionControl,
    pub(crate) committer: Arc<Committer>,
    pub(crate) applier: TransactionApplier,
    fetcher: Arc<Fetcher>,
    write_back: Arc<WriteBack>,
    maintainer: Arc<StoreMaintainer>,
    volumes: VolumeManager,
    rescuer: Rescuer,
}

impl CacheParts {
    fn of(shared: CacheShared) -> CacheParts {
        let shared = Arc::new(shared);
        let admission = AdmissionControl::new(shared.clone());
        let committer = Arc::new(Committer::new(shared.clone(), admission.clone()));
        let applier = TransactionApplier::new(shared.clone(), admission.clone(), committer.clone());
        let fetcher = Arc::new(Fetcher::new(shared.clone()));
        let write_back = WriteBack::new(shared.clone(), admission.clone(), committer.clone());
        let write_back = Arc::new(write_back);
        let used = UsedVolumes::new();
        let maintainer =
            StoreMaintainer::new(shared.clone(), admission.clone(), write_back.clone(), used.clone());
        let maintainer = Arc::new(maintainer);
        let volumes = VolumeManager::new(
            shared.clone(),
            committer.clone(),
            write_back.clone(),
            maintainer.clone(),
            used,
        );
        let rescuer = Rescuer::new(shared.clone(), write_back.clone(), maintainer.clone());
        CacheParts {
            shared,
            admission,
            committer,
            applier,
            fetcher,
            write_back,
            maintainer,
            volumes,
            rescuer,
        }
    }

    fn has_work(&self, state: &CacheState, task: BackgroundTask) -> bool {
        match task {
            BackgroundTask::Commit => self.committer.is_due(&state.pages, &state.log),
            BackgroundTask::Fetch => Fetcher::has_work(state),
            BackgroundTask::WriteBack => {
                let due = self.write_back.is_due(state) || self.write_back.range_ops_are_due(state);
                due || self.rescuer.is_due(state)
            }
            BackgroundTask::Checkpoint => self.maintainer.is_due(state),
        }
    }

    /// Releases reservations that nothing needs now, and gives the store the estimate for the others.
    fn release_spare(&self) {
        let CacheState { space, pages, .. } = &mut *self.shared.state();
        space.settle(pages);
    }

    fn write_back_step(&self) -> StepProgress {
        let state = self.shared.state();
        let has_failed = state.log.failed().is_some();
        // Readers wait for range operations, so those do not wait for cleaning.
        let is_due = self.write_back.is_due(&state) && !self.write_back.range_ops_are_due(&state);
        drop(state);
        if has_failed {
            return self.rescuer.step(WriteBackReason::Due);
        }
        let progress = if is_due && self.maintainer.clean_before_write_back() {
            StepProgress::Worked
        } else {
            self.write_back.step().unwrap_or(StepProgress::Idle)
        };
        self.write_back.wake_waiters(progress);
        progress
    }
}

impl Cache {
    /// Opens the stack above `store`: makes deltas of the records in the buffer, then makes a new incarnation
    /// durable on both media. Writes nothing before all of the buffer was read and found sound.
    ///
    /// # Errors
    /// Those of [`RecoveredBuffer::read`] and [`begin`](Cache::begin).
    pub fn open(
        store: Arc<Store>,
        buffer_device: Arc<dyn Device>,
        clock: Arc<dyn Clock>,
        settings: CacheSettings,
    ) -> Result<Cache, CacheError> {
        let recovered = RecoveredBuffer::read(buffer_device, store.id(), &*clock)?;
        Cache::begin(store, recovered, clock, settings)
    }

    /// Puts a recovered buffer above its store, and makes a new incarnation durable on both media.
    /// `recover.rs` lists the steps, with the reason for their order.
    ///
    /// # Errors
    /// Those of [`ensure_fits`](RecoveredBuffer::ensure_fits), before anything is written; those of the media
    /// when they are written to.
    ///
    /// # Panics
    /// If the buffer is another store's.
    pub fn begin(
        store: Arc<Store>,
        mut recovered: RecoveredBuffer,
        clock: Arc<dyn Clock>,
        settings: CacheSettings,
    ) -> Result<Cache, CacheError> {
        recovered.ensure_fits(&store)?;
        recovered.forget_deleted(&store);
        let overtaken = recovered.resolve_bypassed(&store)?;
        let (buffer, mut state, reserved) = recovered.into_parts(store.clone());
        let newest_of_store = store.data().newest_lsn();
        let newest_of_buffer = buffer.newest_lsn();
        // Space was reserved before the crash. If some is missing now (the log begins in another segment, the
        // cleaner's last one is hardly filled), no operation can reserve any before it is there again.
        store.space().reserve_unchecked(reserved);
        state.space.settle(&state.pages);
        store.maintenance().set_checkpoint_blocks(settings.checkpoint_blocks);
        let incarnation = Incarnation(store.incarnation().max(buffer.incarnation()).0 + 1);
        store.begin_after(incarnation, buffer.store_batch())?;
        buffer.begin_incarnation(incarnation, newest_of_buffer.max(newest_of_store))?;
        delete_unfinished(&store, newest_of_buffer);
        let parts = CacheParts::of(CacheShared::new(store, buffer, clock, settings, state));
        match parts.write_back.log_reverted(&overtaken) {
            Err(CacheError::Buffer(BufferError::Full)) => parts.maintainer.write_all_back()?,
            outcome => outcome?,
        }
        parts.write_back.store_recovered_range_ops();
        // Pages that recovery found stored do not need the buffer, and no write-back follows that would
        // release it.
        parts.shared.state().release_groups();
        Ok(Cache { parts: Arc::new(parts) })
    }

    /// Bytes of a file that must be written in order before its next whole pages
    /// [bypass the buffer](crate::ObjectChange::FileWrite). `u64::MAX`: never.
    pub fn bypass_after(&self) -> u64 {
        self.parts.shared.bypass_after()
    }

    /// Sets [`bypass_after`](Cache::bypass_after) for later writes. Bypassed pages stay so until they are
    /// stored or [synced](Cache::sync); after `u64::MAX` was set, one such sync covers every page that ever
    /// bypassed.
    pub fn set_bypass_after(&self, bytes: u64) {
        self.parts.shared.set_bypass_after(bytes);
    }

    /// Sets [`sync_log_bytes_max`](CacheSettings::sync_log_bytes_max) for later syncs.
    pub fn set_sync_log_bytes_max(&self, bytes: u64) {
        self.parts.shared.set_sync_log_bytes_max(bytes);
    }

    /// See [`follows_classes`](CacheSettings::follows_classes).
    pub fn follows_classes(&self) -> bool {
        self.parts.shared.follows_classes()
    }

    /// Sets [`follows_classes`](CacheSettings::follows_classes) for later writes.
    pub fn set_follows_classes(&self, follows: bool) {
        self.parts.shared.set_follows_classes(follows);
    }

    /// Counts the bytes in the buffer of the rules that have a [share](request::ClassRule::share_percent), and tells
    /// these rules which of them are beyond it. What is in the buffer already counts for none.
    pub fn set_rules(&self, rules: Arc<RuleSet>) {
        self.parts.shared.state().log.shares.set_rules(rules);
    }

    /// The rules that have a share of the buffer, in their order.
    pub fn rule_shares(&self) -> Vec<RuleShare> {
        self.parts.shared.state().log.shares.all()
    }

    /// Reads `len` bytes from `offset` on. Holes read as zeros. At once if the bytes are in memory; otherwise
    /// page by page, so that a concurrent write may be seen in some pages and not in others. If an object is
    /// read in order, what follows is read ahead, up to `end`, where its data ends. Returns whether all bytes
    /// were in memory.
    pub fn read(
        &self,
        object: ObjectId,
        offset: u64,
        len: usize,
        end: u64,
        then: CacheCompletion<Vec<u8>>,
    ) -> bool {
        self.read_for(Origin::UNMATCHED, (object, offset, len), end, then)
    }

    /// [`read`](Cache::read) of `(object, offset, len)` for this origin. Pages for which critical reads wait are
    /// fetched before others.
    pub fn read_for(
        &self,
        origin: Origin,
        (object, offset, len): (ObjectId, u64, usize),
        end: u64,
        then: CacheCompletion<Vec<u8>>,
    ) -> bool {
        self.parts.fetcher.read(origin, object, offset, len, end, then)
    }

    /// [`read`](Cache::read) of as many bytes as `into` has, if all are in memory, and at most 64 KiB; else `false`, and
    /// the content of `into` is undefined. Allocates nothing and calls no completion.
    pub fn try_read(&self, object: ObjectId, offset: u64, into: &mut [u8], end: u64) -> bool {
        self.parts.fetcher.try_read(object, offset, into, end)
    }

    /// Fetches objects that will be read soon, given with their sizes in bytes, after everything that a
    /// reader waits for. Leaves out objects for which no memory can be spared. Errors are left to the
    /// readers.
    pub fn fetch_ahead(&self, objects: &[(ObjectId, u64)]) {
        self.parts.fetcher.fetch_ahead(objects);
    }

    /// Finds the first page of `pages` that is data, or a hole. `None` if there is none. Each 32 MiB are seen
    /// at one point in time. A worker that fetches calls `then`. Writes nothing and fetches no page.
    pub fn seek(
        &self,
        object: ObjectId,
        pages: Range<PageNo>,
        wanted: SeekTarget,
        then: CacheCompletion<Option<PageNo>>,
    ) {
        self.parts.fetcher.seeker().seek(object, pages, wanted, then);
    }

    /// Counts the pages of `pages` that are data. `None` if that takes more than `effort`.
    pub fn count(
        &self,
        object: ObjectId,
        pages: Range<PageNo>,
        effort: CountEffort,
        then: CacheCompletion<Option<u64>>,
    ) {
        self.parts.fetcher.seeker().count(object, pages, effort, then);
    }

    /// Counts the pages of `pages` with changes in memory that are not stored: these are data. Does no I/O.
    pub fn dirty_pages(&self, object: ObjectId, pages: Range<PageNo>) -> u64 {
        let state = self.parts.shared.state();
        state.pages.range(object, pages).filter(|(_, entry)| entry.oldest_group().is_some()).count() as u64
    }

    /// In `FetchMode::Blocking`, completes when every page that this range covers only in part is in memory;
    /// otherwise at once. For callers of [`admit`](Cache::admit); [`transact`](Cache::transact) does this by
    /// itself.
    pub fn prepare_write(&self, object: ObjectId, offset: u64, len: usize, then: CacheCompletion<()>) {
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

    /// Completes when every change applied before the call is durable. Causes no store I/O, unless many
    /// pages [bypassed the buffer](crate::ObjectChange::FileWrite): see
    /// [`sync_log_bytes_max`](CacheSettings::sync_log_bytes_max).
    pub fn sync(&self, then: CacheCompletion<()>) {
        self.sync_for(Origin::UNMATCHED, SyncScope::All, then);
    }

    /// [`sync`](Cache::sync) without the [bypassed](crate::ObjectChange::FileWrite) pages of other objects.
    pub fn sync_object(&self, object: ObjectId, then: CacheCompletion<()>) {
        self.sync_for(Origin::UNMATCHED, SyncScope::Object(object), then);
    }

    /// [`sync`](Cache::sync) without bypassed pages.
    pub fn sync_logged(&self, then: CacheCompletion<()>) {
        self.sync_for(Origin::UNMATCHED, SyncScope::Logged, then);
    }

    /// [`sync`](Cache::sync) for this origin. Pages that bypassed are logged for a critical one, and stored
    /// for any other.
    pub fn sync_for(&self, origin: Origin, scope: SyncScope, then: CacheCompletion<()>) {
        self.parts.committer.sync(origin, scope, then);
    }

    /// Lends the priority of a critical task to what of a background task waits now, because the first waits for
    /// it: its operations are admitted as critical ones, its reads go first, and with `AdmissionAndSync` the
    /// pages that its syncs wait for are logged. Returns whether something waited. Later requests of the
    /// task are background again; otherwise it could fill the buffer.
    pub fn lend(&self, loan: TaskLoan, level: LendingLevel) -> bool {
        self.parts.committer.lend(loan, level)
    }

    /// Does a bounded piece of background work in the caller's thread.
    pub fn step(&self, task: BackgroundTask) -> StepProgress {
        match task {
            BackgroundTask::Commit => self.parts.committer.step(),
            BackgroundTask::Fetch => self.parts.fetcher.step(),
            BackgroundTask::WriteBack => self.parts.write_back_step(),
            BackgroundTask::Checkpoint => self.parts.maintainer.step(),
        }
    }

    /// Waits until there may be work of this kind, at most `timeout`.
    pub fn wait(&self, task: BackgroundTask, timeout: Duration) {
        let state = self.parts.shared.state();
        let pause = match (self.parts.has_work(&state, task), task) {
            // Nothing wakes the committer for the first change: every synced write would cost two switches of
            // threads. The committer looks often enough to see it in time.
            (false, BackgroundTask::Commit) => {
                let nap = self.parts.shared.settings().commit_interval / 4;
                self.parts.committer.due_in(&state.pages, &state.log).unwrap_or(nap).min(timeout)
            }
            (false, BackgroundTask::WriteBack) => {
                self.parts.shared.bypassed_due_in(&state.pages).unwrap_or(timeout).min(timeout)
            }
            (false, _) => timeout,
            (true, BackgroundTask::Commit | BackgroundTask::Fetch) => return,
            // Due, yet the last step could do nothing: a device fails, or only another thread can help.
            (true, BackgroundTask::WriteBack | BackgroundTask::Checkpoint) => timeout.min(RETRY_PAUSE),
        };
        if !state.log.is_stopping() {
            self.parts.shared.wait(task, state, pause);
        }
    }

    /// Refuses changes of all volumes from now on, with [`CacheError::ReadOnlyVolume`].
    pub fn refuse_changes(&self) {
        self.parts.shared.state().refuses_changes = true;
    }

    /// Refuses new operations and wakes every worker, so that they can end.
    pub fn stop(&self) {
        let mut completions = DeferredCompletions::default();
        let mut state = self.parts.shared.state();
        let CacheState { pages, log, space, reads, seeks, .. } = &mut *state;
        log.stop();
        reads.stop();
        if log.syncs.any_waiting_for_store() {
            // No thread may be left that stores what they wait for.
            log.log_all_late(pages);
        }
        space.admission.refuse_all(&CacheError::Stopping, &mut completions);
        seeks.refuse_all(&mut completions);
        space.release_spare();
        drop(state);
        completions.deliver();
        self.parts.shared.wake_all();
    }

    /// Writes everything back and checkpoints, in the caller's thread: for a clean unmount. Each page is
    /// tried once. After an error, everything that could not be written back is durable in the buffer, unless
    /// the buffer failed.
    pub fn drain(&self) -> Result<(), CacheError> {
        self.parts.release_spare();
        let outcome = self.write_all_back();
        let kept = self.parts.committer.make_all_durable();
        if kept.is_err() {
            self.parts.rescuer.step(WriteBackReason::All);
        }
        self.parts.release_spare();
        kept.and(outcome)
    }

    /// Notes in the store that it has every change, if it has: [`Store::note_complete`]. For the end of a store's use, after
    /// [`stop`](Cache::stop) and [`drain`](Cache::drain). From then on all changes are refused, also those that were admitted
    /// before the stop.
    ///
    /// # Errors
    /// Those of the store. A lost buffer then counts as one with changes.
    pub fn note_complete(&self) -> Result<(), CacheError> {
        let mut state = self.parts.shared.state();
        let is_complete = !state.pages.is_dirty() && state.pages.lost_tails().next().is_none();
        if !is_complete && !is_planted(CacheBug::CompleteTooEarly) {
            return Ok(());
        }
        state.refuses_changes = true;
        drop(state);
        Ok(self.store().note_complete()?)
    }

    fn write_all_back(&self) -> Result<(), CacheError> {
        let CacheParts { shared, committer, fetcher, write_back, maintainer, rescuer, .. } = &*self.parts;
        if let Err(error) = committer.commit_now() {
            rescuer.step(WriteBackReason::All);
            return Err(rescuer.rescued().unwrap_or(error));
        }
        // Before fetches and dirty pages, which may wait for these. If one cannot be stored, the end of this
        // function reports it.
        let _ = write_back.store_range_ops(&|_| true);
        // A page with a queued fetch waits for that fetch; the workers that would make it may have ended.
        while fetcher.step() == StepProgress::Worked {}
        maintainer.write_all_back()?;
        committer.commit_now()?;
        shared.store_io().maintenance().checkpoint()?;
        let state = shared.state();
        match state.space.retries.first_error() {
            Some(error) if state.pages.is_dirty() => Err(error.clone().into()),
            _ => Ok(()),
        }
    }

    /// [`read_now`](Cache::read_now) for several ranges (offset, length). They are read in the order in which
    /// they lie in the store.
    pub fn read_all_now(
        &self,
        object: ObjectId,
        ranges: &[(u64, usize)],
    ) -> Result<Vec<Vec<u8>>, CacheError> {
        let CacheParts { maintainer, write_back, .. } = &*self.parts;
        maintainer.with_space(|| write_back.store_range_ops(&|what| what.touches(object)))?;
        synchronous::read_all_now(&self.parts.shared, object, ranges)
    }

    /// Keeps `volume` from being used by others, deleted, renamed and rolled back until the result is dropped.
    ///
    /// # Errors
    /// [`CacheError::InUse`]: two users, each with what it knows of the volume in memory, would damage it.
    pub fn use_volume(&self, volume: VolumeId) -> Result<VolumeInUse, CacheError> {
        self.parts.volumes.use_volume(volume)
    }

    /// Whether a result of [`use_volume`](Cache::use_volume) for `volume` exists.
    pub fn is_volume_in_use(&self, volume: VolumeId) -> bool {
        self.parts.volumes.is_used(volume)
    }

    /// Makes a new volume, durable on return, with `pages` as the first ones of its metadata.
    ///
    /// # Errors
    /// Those of [`StoreVolumes::create`](store::StoreVolumes::create). There is no new volume then, unless the
    /// write to the store's log failed: that is not known until the next start.
    pub fn create_volume(
        &self,
        new: &NewVolume<'_>,
        pages: &[(PageNo, SharedPage)],
    ) -> Result<VolumeId, CacheError> {
        self.parts.volumes.create(new, pages)
    }

    /// Renames a volume that is not [in use](Cache::use_volume), durably on return.
    ///
    /// # Errors
    /// [`CacheError::InUse`], or those of [`StoreVolumes::rename`](store::StoreVolumes::rename). The name is the
    /// old one then, unless the write to the store's log failed: that is not known until the next start.
    pub fn rename_volume(&self, volume: VolumeId, name: &str) -> Result<(), CacheError> {
        self.parts.volumes.rename(volume, name)
    }

    /// Makes clones of volumes, all as of one point in time during the call: the clones have every change that
    /// was applied before the call, and with each change every one before it in any of the volumes. Each pair
    /// is a source and its clone; a source may have several. Returns the clones' numbers in that order.
    /// Durable on return; a crash before leaves all the clones or none. Works in the caller's thread. Other
    /// threads go on; what they write during the call needs memory once more.
    ///
    /// # Errors
    /// Those of [`StoreVolumes::check_clones`](store::StoreVolumes::check_clones), before anything is done;
    /// [`StoreError::Full`](store::StoreError::Full); and those of writing back. There is no new volume then,
    /// unless the last write to the store's log failed: that is not known until the next start.
    pub fn clone_volumes(&self, clones: &[(VolumeId, NewVolume<'_>)]) -> Result<Vec<VolumeId>, CacheError> {
        self.parts.volumes.make_clones(clones)
    }

    /// [`clone_volumes`](Cache::clone_volumes) of one volume.
    pub fn clone_volume(&self, from: VolumeId, new: &NewVolume<'_>) -> Result<VolumeId, CacheError> {
        self.clone_volumes(&[(from, *new)]).map(|made| made[0])
    }

    /// [`clone_volumes`](Cache::clone_volumes), where the clones are
    /// [expendable](Cache::set_expendable_volumes) as soon as they exist.
    pub fn clone_expendable(
        &self,
        clones: &[(VolumeId, NewVolume<'_>)],
    ) -> Result<Vec<VolumeId>, CacheError> {
        self.parts.volumes.make_expendable_clones(clones)
    }

    /// Rolls a volume that is not [in use](Cache::use_volume) back to a snapshot. A writable clone of `snapshot`
    /// gets the volume's name; `volume` keeps all that was written to it, under the name `kept_name`. Returns
    /// the clone's number. Durable on return; a crash before leaves all of that or nothing.
    /// [`VolumeRollback`] says which snapshots are accepted. A snapshot that is written to meanwhile is cloned
    /// as of some point in time during the call.
    ///
    /// # Errors
    /// [`CacheError::InUse`], and those of [`StoreVolumes::check_rollback`](store::StoreVolumes::check_rollback),
    /// before anything is done; [`StoreError::Full`](store::StoreError::Full); and those of writing back.
    /// Nothing has changed then, unless the last write to the store's log failed: that is not known until the
    /// next start.
    pub fn roll_back(
        &self,
        volume: VolumeId,
        snapshot: VolumeId,
        kept_name: &str,
        created: u64,
    ) -> Result<VolumeId, CacheError> {
        self.parts.volumes.roll_back(&VolumeRollback { volume, snapshot, kept_name, created })
    }

    /// Deletes a volume that is not [in use](Cache::use_volume), with what was written to it. Its space is
    /// freed in the background.
    ///
    /// # Errors
    /// [`CacheError::InUse`], or those of [`StoreVolumes::delete`](store::StoreVolumes::delete).
    pub fn delete_volume(&self, volume: VolumeId) -> Result<(), CacheError> {
        self.parts.volumes.delete(volume)
    }

    /// Sets the expendable volumes: they are unused, and are deleted before an operation is told that the
    /// store is full.
    pub fn set_expendable_volumes(&self, volumes: Vec<VolumeId>) {
        self.parts.maintainer.set_expendable_volumes(volumes);
    }

    /// Makes the store as large as fits into `blocks` blocks, or into its device. Returns its new size.
    /// Operations that wait for space go on.
    ///
    /// # Errors
    /// Those of [`Store::grow`](store::Store::grow).
    pub fn grow_store(&self, blocks: Option<u64>) -> Result<u64, CacheError> {
        self.parts.maintainer.grow(blocks)
    }

    /// Makes the buffer `blocks` blocks long, or as long as its device. Then writes back until its log is in
    /// one piece, so that all of it is used. Returns its new length. Operations that wait for space in it go
    /// on.
    ///
    /// # Errors
    /// Those of [`Buffer::grow`]; and those of writing back: then the buffer has grown, and its new part is
    /// used later.
    pub fn grow_buffer(&self, blocks: Option<u64>) -> Result<u64, CacheError> {
        let CacheParts { shared, committer, admission, write_back, maintainer, .. } = &*self.parts;
        let buffer = shared.buffer();
        let grown = committer.grow_buffer(blocks)?;
        let mut end = GroupNo::default();
        let mut scan = DirtyScan::default();
        while buffer.is_growing() {
            // Writes back what the log has by now, the oldest first. When that is released, the log is in one
            // piece, unless it has come around since; then the next round goes on. Other writers do not keep
            // a round from its end.
            let oldest = shared.state().pages.oldest_group();
            if oldest.is_none_or(|oldest| oldest >= end) {
                end = buffer.unreleased_groups().end;
                scan = DirtyScan::once(shared.state().space.retries.failures());
            }
            let progress =
                maintainer.with_space(|| write_back.drain_step(WriteBackReason::All, &mut scan))?;
            shared.state().release_groups();
            buffer.record_store_batch(shared.store().data().durable_batch());
            committer.commit_now()?;
            let stuck = shared.state().space.retries.first_error().cloned();
            match stuck.filter(|_| progress == StepProgress::Idle && buffer.is_growing()) {
                Some(error) if error.is_full() => maintainer.write_all_back()?,
                Some(error) => return Err(error.into()),
                // A lost tail is relogged before the log comes around; then all of the buffer is used.
                None if progress == StepProgress::Idle && shared.state().pages.has_lost_tails() => break,
                None => {}
            }
        }
        let mut completions = DeferredCompletions::default();
        admission.admit_waiting(shared.state().for_admission(), &mut completions);
        completions.deliver();
        Ok(grown)
    }

    /// Objects that grew with [bypassed](crate::ObjectChange::FileWrite) pages which a crash took, and their
    /// first lost pages. The crate that knows the objects' sizes ends them there, makes that durable, and
    /// then calls [`forget_lost_tail`](Cache::forget_lost_tail). Until then, or until their volume is
    /// deleted, the buffer keeps the records that tell of them.
    pub fn lost_tails(&self) -> Vec<(ObjectId, PageNo)> {
        self.parts.shared.state().pages.lost_tails().collect()
    }

    /// Drops an object's [lost tail](Cache::lost_tails): it is durable that the object ends before it, or is
    /// gone.
    pub fn forget_lost_tail(&self, object: ObjectId) {
        let mut state = self.parts.shared.state();
        state.pages.forget_lost_tail(object);
        state.release_groups();
    }

    /// Keeps [lost tails](Cache::lost_tails) of another buffer, which this one replaces. Durable on return.
    pub fn take_over_lost_tails(&self, lost: &[(ObjectId, PageNo)]) -> Result<(), CacheError> {
        let CacheParts { shared, committer, .. } = &*self.parts;
        let mut state = shared.state();
        let buffer = shared.buffer();
        for &(object, from) in lost {
            let mut one = LostTail { from, lsn: buffer.appended_lsn(), group: GroupNo(0), is_punched: false };
            one.group = state.log.append_again(one.lsn, &[one.record(object)])?;
            state.pages.take_over_lost_tail(object, one);
        }
        drop(state);
        committer.commit_now().map(drop)
    }

    /// The store, for its counters.
    pub fn store(&self) -> &Arc<Store> {
        self.parts.shared.store()
    }

    /// The store, for its space: unused reservations are released first.
    pub fn store_without_spare(&self) -> &Arc<Store> {
        self.parts.release_spare();
        self.store()
    }

    /// The buffer, for its counters.
    pub fn buffer(&self) -> &Buffer {
        self.parts.shared.buffer()
    }

    /// The settings with which it was opened.
    pub fn settings(&self) -> &CacheSettings {
        self.parts.shared.settings()
    }

    /// The largest transaction, in bytes of records as [`buffer::footprint`] counts them.
    pub fn transaction_bytes_max(&self) -> u64 {
        self.parts.shared.buffer().transaction_bytes_max()
    }

    /// The requests that wait, and the waits of a millisecond and more that have ended.
    pub fn waits(&self) -> RequestWaits {
        let state = self.parts.shared.state();
        let waiting = state.space.admission.waits().chain(state.log.syncs.waits()).chain(state.reads.waits());
        RequestWaits {
            now: self.parts.shared.now(),
            waiting: waiting.copied().collect(),
            ended: state.waits.ended(),
            by_cause: state.waits.by_cause(),
        }
    }

    /// The current state, for reports.
    pub fn status(&self) -> CacheStatus {
        let CacheParts { shared, rescuer, .. } = &*self.parts;
        let now = shared.now();
        let buffer = shared.buffer();
        let rescue = rescuer.outcome().clone();
        let state = shared.state();
        let pages = &state.pages;
        let reads = &state.reads;
        let (admissions_parked, cleaned_while_parked) = state.space.admission.counts();
        let (stuck_count, stuck) = state.space.retries.report_stuck();
        CacheStatus {
            counters: CacheCounters {
                store_io_for_syncs: shared.store_io_for_syncs(),
                pages_logged_late: state.log.pages_logged_late(),
                appended: state.log.appended_bytes(),
                admissions_parked,
                cleaned_while_parked,
                ..state.counters
            },
            applied: buffer.appended_lsn(),
            durable: buffer.durable_lsn(),
            dirty_pages: pages.dirty_pages() as u64,
            dirty_bytes: pages.memory().dirty,
            deltas: pages.memory().delta_count,
            delta_bytes: pages.memory().deltas,
            dirty_age: pages.oldest_since().map_or(Duration::ZERO, |since| now.saturating_sub(since)),
            pending_punches: pages.punches_pending() as u64,
            pending_transfers: pages.range_ops().len() as u64,
            pages: pages.len() as u64,
            memory_bytes: pages.memory().all,
            parked_reads: reads.waiting_count(),
            parked_syncs: state.log.syncs.waiting_count(),
            parked_admissions: state.space.admission.waiting_count(),
            fetching: reads.fetching_count(),
            buffer_bytes: buffer.capacity_bytes(),
            buffer_free_bytes: buffer.free_bytes(),
            failed: state.log.failed().map(ToString::to_string),
            rescued: rescue.volume().map(str::to_owned),
            left_out: rescue.left_out(),
            not_rescued: rescue.error().map(ToString::to_string),
            stalled: state.space.retries.describe_stall(now),
            stuck_count,
            stuck,
        }
    }
}

#[cfg(feature = "planted-bugs")]
impl Cache {
    /// Whether a step of this kind would find every lock free that is held over device calls. The simulator
    /// has one thread, and runs steps inside each other's device calls, as other threads would run them
    /// there.
    pub fn may_step(&self, task: BackgroundTask) -> bool {
        let CacheParts { shared, maintainer, .. } = &*self.parts;
        let store = shared.store();
        match task {
            BackgroundTask::Fetch => true,
            BackgroundTask::Commit => shared.buffer().is_idle(),
            BackgroundTask::WriteBack => self.parts.may_write_back(),
            BackgroundTask::Checkpoint => {
                let makes_space = shared.state().space.admission.wants_space();
                let may_make_space = maintainer.is_not_making_space() && self.parts.may_write_back();
                store.writer_is_idle() && store.cleaner_is_idle() && (!makes_space || may_make_space)
            }
        }
    }
}

#[cfg(feature = "planted-bugs")]
impl CacheParts {
    /// Write-back cleans where that is due, and otherwise leaves the cleaner alone.
    fn may_write_back(&self) -> bool {
        let store = self.shared.store();
        let buffer = self.shared.buffer();
        let alone = self.write_back.is_idle() && buffer.is_idle() && store.writer_is_idle();
        // A rescue gains space by cleaning.
        let may_clean = store.maintenance().cleaning_is_owed() || self.shared.state().log.failed().is_some();
        alone && (store.cleaner_is_idle() || !may_clean)
    }
}
