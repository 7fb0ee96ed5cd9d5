//! The handle that front ends hold: each operation states its cost, enters, and completes; and the one way in which anything changes.

use crate::arena::{State, Transaction, within};
use crate::attributes::{GROUP_EXECUTE, SETUID};
use crate::cost;
use crate::counts::touched;
use crate::create::{New, SETGID};
use crate::data;
use crate::directory::Tree;
use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, Hot, INODES_MAX, Slot};
use crate::gone::Gone;
use crate::nearby::{Nearby, SMALL_BYTES_MAX};
use crate::preload::{self, PreloadedArena};
use crate::streams::Streams;
use crate::types::{
    Attributes, Caller, Completion, Entry, Ino, Kind, Privileges, SetAttributes, SetXattr, Usage,
};
use crate::xattr::{CAPABILITY, Key, Outcome, XattrChange};
use cache::{BackgroundTask, Cache, CacheError, SpaceReservation, TransactionCost, VolumeInUse};
use device::{BLOCK_BYTES, Clock, Lsn, VolumeId};
use std::ops::Range;
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

/// Bytes of one `write`: Linux gives programs no more either (2 GiB) and FUSE 1 MiB; all of it is in memory.
const WRITE_BYTES_MAX: usize = 64 << 20;

/// The largest piece of a write that is one transaction; longer ones are several, in order. What one FUSE request
/// carries at most.
const TRANSACTION_BYTES_MAX: u64 = 1 << 20;

/// Steps of background work that are made to get space for a transaction before there are threads that make them.
const STEPS_MAX: u32 = 1000;

/// The file system: a handle, cheap to clone.
///
/// Every operation is one transaction (a `write` of more than 1 MiB several, in order): after a crash it is there as a
/// whole or not at all, and only if every operation before it is. Access times are those of creation or of
/// [`set_attributes`](Fs::set_attributes): reading does not change them (`noatime`).
#[derive(Clone)]
pub struct Fs {
    core: Arc<Core>,
    gone: Arc<Gone>,
}

impl Fs {
    /// Makes an empty file system whose root belongs to `owner`; `secret` mixes inode numbers and name hashes.
    /// Whatever object 0 held is written over, so the volume must be new. Durable on return.
    pub fn create(
        cache: &Arc<Cache>,
        volume: VolumeId,
        clock: &dyn Clock,
        owner: Caller,
        secret: [u8; 16],
    ) -> Result<(), FsError> {
        let mut state = State::blank(volume, secret)?;
        let mut tx = Transaction::begin(&mut state, clock.wall_nanos(), &[]);
        tx.create(owner, secret)?;
        let changes = tx.changes();
        let reservation = Arc::new(Mutex::new(None));
        let slot = reservation.clone();
        let set = move |admitted| *slot.lock().expect("nobody panics holding a reservation") = Some(admitted);
        cache.admit(TransactionCost::of(&changes), Box::new(set));
        let take = || reservation.lock().expect("nobody panics holding a reservation").take();
        let mut reservation = step_until(cache, take).ok_or(FsError::NoSpace)??;
        cache.apply(&mut reservation, &changes)?;
        drop(reservation);
        Ok(cache.drain()?)
    }

    /// Opens the file system that `volume` of the store below `cache` is, reading all its metadata; deletes what was unlinked but open at the last
    /// stop, in the background where there is no space at once.
    ///
    /// # Errors
    /// [`FsError::Corrupt`] where the volume holds no file system, a newer one, or a damaged one; nothing is changed
    /// then.
    pub fn open(cache: Arc<Cache>, volume: VolumeId, clock: Arc<dyn Clock>) -> Result<Fs, FsError> {
        Fs::open_over(None, cache, volume, clock)
    }

    /// [`open`](Fs::open), with the longest part of it, reading, done before.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open_over(
        preloaded: Option<PreloadedArena>,
        cache: Arc<Cache>,
        volume: VolumeId,
        clock: Arc<dyn Clock>,
    ) -> Result<Fs, FsError> {
        let core = Core::open(preloaded, cache, volume, clock)?;
        let orphans = core.read().orphans()?;
        for (slot, generation) in orphans {
            // One that fails stays in the list, for the next opening.
            core.enter(cost::free(1), move |tx| tx.free_unheld(slot, generation), Box::new(|_| {}));
        }
        Ok(Fs { core, gone: Arc::default() })
    }

    /// The file that `name` names. Adds nothing to its open count.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attributes, FsError> {
        let state = self.core.read();
        let found = state.found(parent, name)?;
        state.attributes(found.slot)
    }

    /// The same, and [holds](Fs::hold) it once.
    pub fn lookup_and_hold(&self, parent: Ino, name: &[u8]) -> Result<Attributes, FsError> {
        let state = self.core.read();
        let found = state.found(parent, name)?;
        let attributes = state.attributes(found.slot)?;
        state.hold(found.slot);
        Ok(attributes)
    }

    /// A file's attributes.
    pub fn attributes(&self, ino: Ino) -> Result<Attributes, FsError> {
        let state = self.core.read();
        let (slot, ..) = state.find(ino)?;
        state.attributes(slot)
    }

    /// The same, for somebody who has nothing but the number, and [holds](Fs::hold) it once: as a handle leads to a file that
    /// the kernel has forgotten.
    ///
    /// # Errors
    /// [`FsError::Stale`] also for a file without a name: nobody who did not hold it all the time comes back to it.
    pub fn find_and_hold(&self, ino: Ino) -> Result<Attributes, FsError> {
        let state = self.core.read();
        let (slot, hot, _) = state.find(ino)?;
        if hot.links == 0 {
            return Err(FsError::Stale);
        }
        let attributes = state.attributes(slot)?;
        state.hold(slot);
        Ok(attributes)
    }

    /// Sets attributes, as one transaction. A new owner or group takes its powers from a file; a write does not: that is
    /// for the front end to ask for, by [`Privileges::Drop`]. An access ACL follows the mode.
    pub fn set_attributes(&self, ino: Ino, set: SetAttributes, done: Completion<Attributes>) {
        let size = self.core.read().find(ino).map_or(0, |(_, hot, _)| hot.size());
        let after = set.size.unwrap_or(size);
        let core = self.core.clone();
        let enter = move |counted| {
            let change = move |tx: &mut Transaction<'_>| {
                tx.know(counted);
                tx.set_attributes(ino, &set)
            };
            core.enter(cost::attributes(after < size), change, done);
        };
        match after > 0 && after < size {
            true => {
                self.core.count_before(ino, after..size.next_multiple_of(BLOCK_BYTES as u64), enter);
            }
            false => enter(None),
        }
    }

    /// Makes a file, a directory, a FIFO or a socket. In a directory with setgid it gets the directory's group, and a
    /// directory the bit too. In one with a default ACL it gets an access ACL and a mode from it, and a directory the
    /// default ACL too; else the caller's umask applies.
    pub fn make(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        kind: Kind,
        mode: u16,
        done: Completion<Attributes>,
    ) {
        let new = match kind {
            Kind::Directory => New::Directory { mode },
            kind => New::Node { kind, mode, device: 0 },
        };
        self.make_new(caller, parent, name, new, done);
    }

    /// Makes a device node for the device `number` (as the kernel encodes it); `kind` is one of the two of devices.
    pub fn make_device(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        (kind, number): (Kind, u32),
        mode: u16,
        done: Completion<Attributes>,
    ) {
        self.make_new(caller, parent, name, New::Node { kind, mode, device: number }, done);
    }

    fn make_new(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        new: New<'static>,
        done: Completion<Attributes>,
    ) {
        let name = name.to_vec();
        let cost = cost::make(self.levels(parent), 0);
        self.core.enter(cost, move |tx| tx.make(caller, parent, &name, new), done);
    }

    /// Makes a symbolic link to `target`, of 1 to 4095 bytes.
    pub fn symlink(
        &self,
        caller: Caller,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        done: Completion<Attributes>,
    ) {
        let (name, target) = (name.to_vec(), target.to_vec());
        self.core.enter(
            cost::make(self.levels(parent), target.len()),
            move |tx| tx.make(caller, parent, &name, New::Symlink { target: &target }),
            done,
        );
    }

    /// A symbolic link's target.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        let state = self.core.read();
        match state.find(ino)? {
            (_, hot, Kind::Symlink) => Ok(state.link_target(&hot)?.to_vec()),
            _ => Err(FsError::Invalid),
        }
    }

    /// Gives a file another name.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8], done: Completion<Attributes>) {
        let name = name.to_vec();
        self.core.enter(cost::add(self.levels(parent), 0), move |tx| tx.link(ino, parent, &name), done);
    }

    /// Takes a name from a file; the file goes with its last name and its last opener.
    ///
    /// Where the file was synced while it was held, its removal is durable on completion, too: to databases with a
    /// rollback journal, deleting the journal is the commit, and they do not sync the directory.
    pub fn unlink(&self, parent: Ino, name: &[u8], done: Completion<()>) {
        let done = if self.was_synced(parent, name) { self.then_sync(done) } else { done };
        let name = name.to_vec();
        self.core.enter(cost::remove(self.levels(parent)), move |tx| tx.unlink(parent, &name), done);
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, parent: Ino, name: &[u8], done: Completion<()>) {
        let name = name.to_vec();
        self.core.enter(
            cost::remove(self.levels(parent)),
            move |tx| tx.remove_directory(parent, &name),
            done,
        );
    }

    /// An extended attribute's value, by its whole name.
    ///
    /// # Errors
    /// [`FsError::NoXattr`] where it is not there, [`FsError::Unsupported`] where no such can be.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let key = Key::parse(name)?;
        let state = self.core.read();
        let (_, hot, _) = state.find(ino)?;
        state.xattr(&hot, key)?.ok_or(FsError::NoXattr)
    }

    /// The names of all extended attributes, in no particular order.
    pub fn xattr_names(&self, ino: Ino) -> Result<Vec<Vec<u8>>, FsError> {
        let state = self.core.read();
        let (_, hot, _) = state.find(ino)?;
        state.xattr_names(&hot)
    }

    /// Sets an extended attribute, as one transaction: after a crash it has the old value or the new one, as a whole.
    /// An access ACL changes the mode with it, and is kept only where it says more than the mode.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] past [`XATTR_LIST_BYTES_MAX`](crate::XATTR_LIST_BYTES_MAX) or
    /// [`XATTRS_BYTES_MAX`](crate::XATTRS_BYTES_MAX), and as its parts say; [`FsError::Invalid`] for an ACL that is none.
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattr, done: Completion<()>) {
        self.change_xattr(ino, name.to_vec(), XattrChange::Set { value: value.to_vec(), how }, done);
    }

    /// Removes an extended attribute. This works on a full store. An ACL that is not there is removed without a word.
    pub fn remove_xattr(&self, ino: Ino, name: &[u8], done: Completion<()>) {
        self.change_xattr(ino, name.to_vec(), XattrChange::Remove, done);
    }

    fn change_xattr(&self, ino: Ino, name: Vec<u8>, change: XattrChange, done: Completion<()>) {
        if let Err(error) = Key::parse(&name) {
            return done(Err(error));
        }
        let (cost, stated) = match &change {
            XattrChange::Remove => (cost::remove_xattr(), usize::MAX),
            XattrChange::Set { value, .. } => {
                let present = self.xattr_bytes(ino);
                (cost::set_xattr(present, value.len()), present)
            }
        };
        let (fs, work, again) = (self.clone(), (name.clone(), change.clone()), (name, change));
        let then = move |outcome| match outcome {
            Ok(Outcome::Done) => done(Ok(())),
            // Somebody else's change came first, so this cannot go on for ever without anything happening.
            Ok(Outcome::Grown) => fs.change_xattr(ino, again.0, again.1, done),
            Err(error) => done(Err(error)),
        };
        let work = move |tx: &mut Transaction<'_>| {
            let key = Key::parse(&work.0)?;
            tx.change_xattr(ino, key, &work.1, stated)
        };
        self.core.enter(cost, work, Box::new(then));
    }

    /// Bytes of all extended attributes, to state a cost; what is wrong with them is found by the operation.
    fn xattr_bytes(&self, ino: Ino) -> usize {
        let state = self.core.read();
        state.find(ino).and_then(|(_, hot, _)| state.xattrs(&hot)).map_or(0, |string| string.len())
    }

    /// Whether a write by somebody without powers of his own would have to take powers from the file: then
    /// [`set_attributes`](Fs::set_attributes) with [`Privileges::Drop`] comes before it.
    pub fn is_privileged(&self, ino: Ino) -> bool {
        let state = self.core.read();
        let found = state.find(ino).and_then(|(_, hot, _)| Ok((hot, state.owner(&hot)?.mode)));
        found.is_ok_and(|(hot, mode)| {
            let capable = || state.xattr(&hot, CAPABILITY).is_ok_and(|found| found.is_some());
            mode & SETUID != 0 || mode & (SETGID | GROUP_EXECUTE) == SETGID | GROUP_EXECUTE || capable()
        })
    }

    /// Drops a file's powers, as what makes its content unworthy of them does.
    pub fn drop_privileges(&self, ino: Ino, done: Completion<Attributes>) {
        self.set_attributes(ino, SetAttributes { privileges: Privileges::Drop, ..Default::default() }, done);
    }

    /// Counts an opener (a handle, or the kernel's memory of the inode): an unlinked file lives until the last one is
    /// closed, or until the next opening of the file system.
    pub fn hold(&self, ino: Ino) -> Result<(), FsError> {
        let state = self.core.read();
        let (slot, ..) = state.find(ino)?;
        state.hold(slot);
        Ok(())
    }

    /// Takes back `times` of [`hold`](Fs::hold).
    pub fn unhold(&self, ino: Ino, times: u64) {
        self.forget(ino, times);
        self.gone.free(&self.core);
    }

    /// Like [`unhold`](Fs::unhold), but a small file that goes with its last opener may wait for up to 15 others, to
    /// be freed in one transaction with them. [`usage`](Fs::usage) and `unhold` free all that wait.
    pub fn forget(&self, ino: Ino, times: u64) {
        if let Some((slot, hot)) = self.let_go(ino, times) {
            self.gone.add(&self.core, slot, &hot);
        }
    }

    /// The inode, if it has neither names nor openers now.
    fn let_go(&self, ino: Ino, times: u64) -> Option<(Slot, Hot)> {
        let state = self.core.read();
        let (slot, hot, _) = state.find(ino).ok()?;
        let mut opens = state.opens.lock().expect("no panic while holding the open counts");
        let open = opens.get_mut(&slot.0)?;
        open.count = open.count.saturating_sub(times);
        if open.count > 0 {
            return None;
        }
        opens.remove(&slot.0);
        (hot.links == 0).then_some((slot, hot))
    }

    /// What all handles share, for the parts of it in other files.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Reads at most `len` bytes from `offset` on; fewer at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, len: usize, done: Completion<Vec<u8>>) {
        self.core.read_data(ino, offset, len, done);
    }

    /// [`write`](Fs::write) of at most half a transaction where nothing has to be waited for, or `None`.
    pub fn write_at_once(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Option<Result<(), FsError>> {
        self.core.write_at_once(ino, offset, bytes)
    }

    /// Writes all of `bytes`, at most 64 MiB, at `offset`, as one transaction with size and times; more than 1 MiB as
    /// several, in order. Completes when visible; durable after a later `sync`, or `commit_interval`.
    pub fn write(&self, ino: Ino, offset: u64, bytes: Vec<u8>, done: Completion<()>) {
        let found = self.core.read().written_object(ino, offset, bytes.len());
        match found {
            Err(error) => done(Err(error)),
            Ok(_) if bytes.is_empty() => done(Ok(())),
            Ok(_) if bytes.len() > WRITE_BYTES_MAX => done(Err(FsError::Invalid)),
            Ok(_) => self.core.write_from(ino, offset, bytes, done),
        }
    }

    /// Calls `each` with the entries after `cookie` (0: from the start), in an order that does not change, until
    /// it returns `false`. Entries that come or go meanwhile are listed or not; all others exactly once. Cookies are
    /// at least 16 and below 2^63; the order is that of a keyed hash. `each` is called while the file system's lock is
    /// shared, for at most a page of names at a time: it must not call back.
    pub fn read_directory(
        &self,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<(), FsError> {
        let mut after = Some(cookie);
        while let Some(cookie) = after {
            let state = self.core.read();
            let (_, hot) = state.find_directory(ino)?;
            after = Tree::of(&hot).list(&state, cookie, &mut |name| each(state.entry(name)))?;
        }
        Ok(())
    }

    /// Like [`read_directory`](Fs::read_directory), with each entry's attributes. Every entry for which `take`
    /// returns `true` is [held](Fs::hold) once.
    ///
    /// # Errors
    /// An error that comes after the first entry was taken is told by the call that goes on from there: the caller
    /// can hand on what it took, and need not give it back.
    pub fn take_directory(
        &self,
        ino: Ino,
        cookie: u64,
        take: &mut dyn FnMut(Entry<'_>, &Attributes) -> bool,
    ) -> Result<(), FsError> {
        let (mut after, mut taken) = (Some(cookie), 0);
        while let Some(cookie) = after {
            let listed = self.core.read().take_names(ino, cookie, &mut taken, take);
            after = match listed {
                Err(_) if taken > 0 => None,
                listed => listed?,
            };
        }
        Ok(())
    }

    /// The directory that holds this directory; the root's is the root.
    pub fn parent(&self, ino: Ino) -> Result<Ino, FsError> {
        let state = self.core.read();
        let (_, hot) = state.find_directory(ino)?;
        Ok(state.numbers.ino(crate::format::Slot(hot.next.get())))
    }

    /// Completes when every operation completed before the call is durable. One for all files: the order is one.
    pub fn sync(&self, done: Completion<()>) {
        self.core.cache.sync(Box::new(move |synced| done(synced.map_err(FsError::from))));
    }

    /// Like [`sync`](Fs::sync), except bypassed pages of other files. For a client that asked for one file: remembers that it was
    /// synced, as long as it is held.
    pub fn sync_file(&self, ino: Ino, done: Completion<()>) {
        let state = self.core.read();
        if let Ok((slot, ..)) = state.find(ino) {
            let mut opens = state.opens.lock().expect("no panic while holding the open counts");
            opens.entry(slot.0).and_modify(|open| open.synced = true);
        }
        drop(state);
        self.sync_bytes(ino, done);
    }

    /// The same, and does not remember it: for a write that is durable when it returns.
    pub fn sync_bytes(&self, ino: Ino, done: Completion<()>) {
        let state = self.core.read();
        let object = state.find(ino).map(|(slot, hot, _)| state.object(slot, &hot));
        drop(state);
        let done = Box::new(move |synced: Result<(), CacheError>| done(synced.map_err(FsError::from)));
        match object {
            Ok(object) => self.core.cache.sync_object(object, done),
            Err(_) => self.core.cache.sync(done),
        }
    }

    /// Like [`sync`](Fs::sync), except bypassed pages. For a client that asked for a directory.
    pub fn sync_names(&self, done: Completion<()>) {
        self.core.cache.sync_logged(Box::new(move |synced| done(synced.map_err(FsError::from))));
    }

    fn was_synced(&self, parent: Ino, name: &[u8]) -> bool {
        let state = self.core.read();
        let Ok(found) = state.found(parent, name) else { return false };
        let opens = state.opens.lock().expect("no panic while holding the open counts");
        opens.get(&found.slot.0).is_some_and(|open| open.synced)
    }

    fn then_sync(&self, done: Completion<()>) -> Completion<()> {
        let fs = self.clone();
        Box::new(move |removed| match removed {
            Ok(()) => fs.sync_names(done),
            Err(error) => done(Err(error)),
        })
    }

    /// Waits as a write of a MiB would for space, and says whether that write would be taken then.
    pub fn wait_to_take_writes(&self, then: impl FnOnce(bool) + Send + 'static) {
        let cost = data::write_cost(0, 1 << 20);
        self.core.cache.admit(cost, Box::new(move |admitted| then(admitted.is_ok())));
    }

    /// How full it is.
    pub fn usage(&self) -> Usage {
        self.gone.free(&self.core);
        let space = self.core.cache.store_without_spare().space();
        let available = space.available();
        let inodes = u64::from(self.core.read().header().inodes.get());
        // An inode takes 64 bytes, so blocks are what runs out first on small stores.
        let left = (u64::from(INODES_MAX) - inodes).min(available.saturating_mul(64));
        Usage { blocks: space.usable(), available, inodes: inodes + left, inodes_free: left }
    }

    /// The newest LSN, for tests.
    pub fn newest(&self) -> Lsn {
        self.core.cache.status().applied
    }

    /// Checks all metadata in memory against its rules and reports what breaks them. Changes wait meanwhile.
    pub fn check(&self, report: &mut dyn FnMut(crate::Finding)) {
        let mut findings = Vec::new();
        crate::check::check(&self.core.read(), &mut |finding| findings.push(finding));
        findings.into_iter().for_each(report);
    }

    /// Inner levels of a directory's tree, to state a cost; what is wrong with it is found by the operation.
    pub(crate) fn levels(&self, ino: Ino) -> u8 {
        let state = self.core.read();
        let found = state.find_directory(ino);
        found.and_then(|(_, hot)| Tree::of(&hot).levels(state.arena())).unwrap_or(0)
    }
}

/// The file system behind its handle.
pub(crate) struct Core {
    /// As long as the file system is there.
    _in_use: VolumeInUse,
    pub(crate) cache: Arc<Cache>,
    clock: Arc<dyn Clock>,
    /// Look-ups share it, changes take it alone. Never held while anything is waited for or called back: it covers
    /// the change in memory and `Cache::apply`, so the order in memory is the order of the log.
    state: RwLock<State>,
    nearby: Nearby,
    streams: Streams,
}

/// Does background work until there is an answer; `None`: there is none after a while.
pub(crate) fn step_until<T>(cache: &Cache, answer: impl Fn() -> Option<T>) -> Option<T> {
    (0..STEPS_MAX).find_map(|_| {
        answer().or_else(|| {
            for task in [BackgroundTask::Commit, BackgroundTask::WriteBack, BackgroundTask::Checkpoint] {
                cache.step(task);
            }
            None
        })
    })
}

impl From<CacheError> for FsError {
    fn from(error: CacheError) -> FsError {
        match error {
            error if error.is_full() => FsError::NoSpace,
            other => FsError::Cache(other),
        }
    }
}

impl Core {
    /// Reads a volume's metadata, and lets its files end where their bytes do after a crash.
    pub(crate) fn open(
        preloaded: Option<PreloadedArena>,
        cache: Arc<Cache>,
        volume: VolumeId,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<Core>, FsError> {
        let in_use = cache.use_volume(volume);
        let state = State::new(volume, preload::load(preloaded, &cache, volume)?)?;
        let (state, nearby) = (RwLock::new(state), Nearby::default());
        let core =
            Arc::new(Core { _in_use: in_use, cache, clock, state, nearby, streams: Streams::default() });
        core.end_lost(volume)?;
        Ok(core)
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().expect("no panic while holding the file system's state")
    }

    pub(crate) fn change(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("no panic while holding the file system's state")
    }

    /// Lets `work` in when there is space for `cost`, makes its change visible as one transaction, and tells `done`.
    /// An error of `work` or of the cache leaves everything as it was.
    pub(crate) fn enter<T: Send + 'static>(
        self: &Arc<Core>,
        cost: TransactionCost,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, FsError> + Send + 'static,
        done: Completion<T>,
    ) {
        self.enter_with(Vec::new(), cost, work, done);
    }

    /// The same, with the bytes that `work` writes into a file.
    fn enter_with<T: Send + 'static>(
        self: &Arc<Core>,
        bytes: Vec<u8>,
        cost: TransactionCost,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, FsError> + Send + 'static,
        done: Completion<T>,
    ) {
        match self.cache.admit_at_once(cost) {
            Ok(Some(reservation)) => return done(self.commit(reservation, &bytes, cost, work)),
            Ok(None) => {}
            Err(error) => return done(Err(error.into())),
        }
        let core = self.clone();
        let enter = move |reservation: Result<SpaceReservation, CacheError>| {
            done(
                reservation
                    .map_err(FsError::from)
                    .and_then(|reservation| core.commit(reservation, &bytes, cost, work)),
            );
        };
        self.cache.admit(cost, Box::new(enter));
    }

    /// Makes the change of `work` visible. What the reservation did not use is given back on return.
    fn commit<T>(
        self: &Arc<Core>,
        mut reservation: SpaceReservation,
        bytes: &[u8],
        cost: TransactionCost,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let now = self.clock.wall_nanos();
        let mut state = self.change();
        let mut tx = Transaction::begin(&mut state, now, bytes);
        let value = work(&mut tx)?;
        let changes = tx.changes();
        debug_assert!(within(&changes, cost), "{changes:?} are more than {cost:?}");
        if !changes.is_empty() {
            self.cache.apply(&mut reservation, &changes)?;
        }
        drop(changes);
        tx.keep();
        drop(tx);
        let due = state.counts.take_due();
        drop(state);
        due.into_iter().for_each(|slot| self.count_anew(slot));
        Ok(value)
    }

    /// The time since some fixed point.
    pub(crate) fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Reads `len` bytes of a file; a small one that has to be fetched may bring those that were made with it.
    pub(crate) fn read_data(&self, ino: Ino, offset: u64, len: usize, done: Completion<Vec<u8>>) {
        // Its own statement: `done` must not be called while the lock is held.
        let clipped = self.read().clip(ino, offset, len);
        let (object, len, size) = match clipped {
            Ok((_, 0, _)) => return done(Ok(Vec::new())),
            Ok(clipped) => clipped,
            Err(error) => return done(Err(error)),
        };
        let then = move |read: Result<_, CacheError>| done(read.map_err(FsError::from));
        let was_held = self.cache.read(object, offset, len, size, Box::new(then));
        if !was_held && offset == 0 && size <= SMALL_BYTES_MAX {
            // An object's number is its inode's slot.
            self.nearby
                .missed(Slot(object.slot as u32))
                .into_iter()
                .for_each(|slots| self.fetch_small(slots));
        }
    }

    /// Fetches the small files whose inodes have these slots.
    fn fetch_small(&self, slots: Range<u32>) {
        let state = self.read();
        let used = slots.start..slots.end.min(state.header().slots_used.get().saturating_add(1));
        let small = used.filter_map(|slot| {
            let hot = state.hot(Slot(slot)).ok()?;
            let is_small = hot.kind() == Some(Kind::File) && (1..=SMALL_BYTES_MAX).contains(&hot.size());
            is_small.then(|| (state.object(Slot(slot), &hot), hot.size()))
        });
        let small: Vec<_> = small.collect();
        drop(state);
        self.cache.fetch_ahead(&small);
    }

    /// How much of a write is one transaction: half of what the cache takes, since records have headers; whole pages.
    pub(crate) fn piece_bytes(&self) -> usize {
        let half = self.cache.transaction_bytes_max() / 2;
        let bytes = half.min(TRANSACTION_BYTES_MAX) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        bytes.max(BLOCK_BYTES as u64) as usize
    }
}

impl Core {
    /// Writes the first piece of `bytes`, then goes on with the rest.
    pub(crate) fn write_from(self: &Arc<Core>, ino: Ino, offset: u64, bytes: Vec<u8>, done: Completion<()>) {
        let mut bytes = bytes;
        // Pieces end at page ends, so that no page is in two of them.
        let within = (offset % BLOCK_BYTES as u64) as usize;
        let rest = bytes.split_off(bytes.len().min(self.piece_bytes() - within));
        let done = if rest.is_empty() {
            done
        } else {
            self.then_write(ino, offset + bytes.len() as u64, rest, done)
        };
        // Its own statement: `done` must not be called while the lock is held.
        let found = self.read().written_object(ino, offset, bytes.len());
        let object = match found {
            Ok(object) => object,
            Err(error) => return done(Err(error)),
        };
        let core = self.clone();
        let cost = self.write_cost(ino, offset, bytes.len());
        let (len, is_stream) = (bytes.len(), cost.bypass_pages > 0);
        let prepared = move |prepared: Result<(), CacheError>| match prepared {
            Err(error) => done(Err(error.into())),
            Ok(()) => {
                let of = core.clone();
                let write = move |tx: &mut Transaction<'_>| of.write_data(tx, ino, offset, is_stream);
                core.enter_with(bytes, cost, write, done);
            }
        };
        self.cache.prepare_write(object, offset, len, Box::new(prepared));
    }

    /// Writes the transaction's bytes into a file. Of one with holes, pages that are dirty in memory were charged before.
    fn write_data(
        &self,
        tx: &mut Transaction<'_>,
        ino: Ino,
        offset: u64,
        is_stream: bool,
    ) -> Result<(), FsError> {
        let pages = touched(offset..offset + tx.bytes_to_write().len() as u64);
        let sparse = tx.find_file(ino).ok().filter(|(_, hot)| hot.is_sparse() && offset < hot.size());
        let known = sparse.map_or(0, |(slot, hot)| self.cache.dirty_pages(tx.object(slot, &hot), pages));
        tx.write_data(ino, offset, is_stream, known)
    }

    /// What a write may need, which may be one of a stream.
    fn write_cost(&self, ino: Ino, offset: u64, len: usize) -> TransactionCost {
        let is_bypassing = self.streams.write(ino, offset, len, self.cache.bypass_after());
        let bypass_pages = if is_bypassing { (len / BLOCK_BYTES) as u64 } else { 0 };
        TransactionCost { bypass_pages, ..data::write_cost(offset, len) }
    }

    /// A write of one piece where nothing has to be waited for: no copy of `bytes`, no completion. `None` where `write_from`
    /// must do it.
    pub(crate) fn write_at_once(
        self: &Arc<Core>,
        ino: Ino,
        offset: u64,
        bytes: &[u8],
    ) -> Option<Result<(), FsError>> {
        let within = (offset % BLOCK_BYTES as u64) as usize;
        if bytes.is_empty() || bytes.len() > self.piece_bytes() - within || !self.cache.writes_at_once() {
            return None;
        }
        if offset > FILE_BYTES_MAX {
            return Some(Err(FsError::TooLarge));
        }
        let cost = self.write_cost(ino, offset, bytes.len());
        match self.cache.admit_at_once(cost) {
            Ok(reservation) => {
                let write =
                    |tx: &mut Transaction<'_>| self.write_data(tx, ino, offset, cost.bypass_pages > 0);
                Some(self.commit(reservation?, bytes, cost, write))
            }
            Err(error) => Some(Err(error.into())),
        }
    }

    fn then_write(
        self: &Arc<Core>,
        ino: Ino,
        offset: u64,
        rest: Vec<u8>,
        done: Completion<()>,
    ) -> Completion<()> {
        let core = self.clone();
        Box::new(move |written| match written {
            Ok(()) => core.write_from(ino, offset, rest, done),
            Err(error) => done(Err(error)),
        })
    }
}
