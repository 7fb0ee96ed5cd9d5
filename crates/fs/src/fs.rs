//! The handle that front ends hold, [`Fs`], and the one way in which metadata change:
//! [`FsCore::run_transaction`].
//!
//! An operation states its cost, changes everything as one transaction of the cache, and completes. Where the
//! cache has no space, the change is undone, and made again when there is some.

use crate::arena::{Arena, FsState, FsTransaction, is_within_cost};
use crate::charge_tracker::{CountedRange, touched_pages};
use crate::cost;
use crate::deferred_free::{DeferredFrees, free_orphans};
use crate::directory::NameTree;
use crate::error::FsError;
use crate::file_rules::FileRuleTable;
use crate::format::{FILE_BYTES_MAX, INODES_MAX, Inode, InodeSlot, PAGE_BYTES, arena_object};
use crate::ops::attributes::{GROUP_EXECUTE, SETUID};
use crate::ops::create::{NewInode, SETGID};
use crate::ops::file_data;
use crate::small_file_readahead::{SMALL_BYTES_MAX, SmallFileReadahead};
use crate::types::{
    CallerCredentials, DirectoryEntry, FileAttributes, FileKind, FsCompletion, FsUsage, Ino, PrivilegeChange,
    SetAttributes, SetXattrMode,
};
use crate::xattr::{CAPABILITY, XattrChange, XattrKey, XattrOutcome};
use cache::{
    BackgroundTask, Cache, CacheError, CacheTransaction, ObjectChange, SyncScope, TransactionCost,
    VolumeInUse,
};
use device::{Clock, Lsn, ObjectId, PageNo, SharedPage, VolumeId};
use request::Origin;
use std::ops::Range;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;
use store::VolumeMode;

/// Bytes of the largest `write`; all of them are in memory. Linux has a limit, too (2 GiB), and a FUSE
/// request carries 1 MiB.
const WRITE_BYTES_MAX: usize = 64 << 20;

/// Bytes of the largest piece of a write that is one transaction: as many as a FUSE request carries. A longer
/// write is several transactions, in order.
const TRANSACTION_BYTES_MAX: u64 = 1 << 20;

/// Steps of background work that [`step_until`] does at most, before threads exist that do them.
const BACKGROUND_STEPS_MAX: u32 = 1000;

/// The file system: a handle, cheap to clone.
///
/// Every operation is one transaction; a `write` of more than 1 MiB is several, in order. After a crash a
/// transaction is there as a whole or not at all, and only if every transaction before it is. Reading does
/// not change access times (`noatime`): they are those of creation or of
/// [`set_attributes`](Fs::set_attributes).
#[derive(Clone)]
pub struct Fs {
    core: Arc<FsCore>,
    deferred_frees: Arc<DeferredFrees>,
    /// The task for which this handle makes operations, with its class.
    origin: Origin,
}

impl Fs {
    /// The first pages of the metadata of an empty file system, with which its
    /// [volume is created](Cache::create_volume).
    ///
    /// The root belongs to `owner`. `secret` is the key of inode numbers and name hashes.
    pub fn create(
        clock: &dyn Clock,
        owner: CallerCredentials,
        secret: [u8; 16],
    ) -> Result<Vec<(PageNo, SharedPage)>, FsError> {
        let mut state = FsState::blank(VolumeId::MAIN, secret)?;
        let mut tx = FsTransaction::begin(&mut state, clock.wall_nanos(), &[]);
        tx.format_volume(owner, secret)?;
        Ok(tx.written_pages())
    }

    /// Opens the file system in `volume` of the cache's store, and reads all its metadata.
    ///
    /// Deletes files that were unlinked but open when the file system was last in use: in the background, if
    /// there is no space at once. In a read-only volume nothing is deleted, and changes are refused with
    /// [`CacheError::ReadOnlyVolume`].
    ///
    /// # Errors
    /// [`FsError::Corrupt`] if the volume holds no file system, a newer one, or a damaged one. Nothing is
    /// changed then. [`CacheError::InUse`] if the volume is open, or operations from when it was still wait.
    pub fn open(cache: Arc<Cache>, volume: VolumeId, clock: Arc<dyn Clock>) -> Result<Fs, FsError> {
        let is_read_only = cache.store().volumes().mode(volume) == Some(VolumeMode::ReadOnly);
        let core = FsCore::open(cache, volume, clock)?;
        let orphans = if is_read_only { Vec::new() } else { core.read_state().orphans()? };
        for orphan in orphans {
            free_orphans(&core, vec![orphan]);
        }
        Ok(Fs { core, deferred_frees: Arc::default(), origin: Origin::UNMATCHED })
    }

    /// Sets the task for which this handle makes operations, and its class. Critical operations go first where
    /// space is short, and critical syncs have all pages of the file logged.
    pub fn set_origin(&mut self, origin: Origin) {
        self.origin = origin;
    }

    /// The task for which this handle makes operations, with its class.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Looks up `name` in the directory `parent`. Does not hold the file.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<FileAttributes, FsError> {
        let state = self.core.read_state();
        let found = state.find_name(parent, name)?;
        state.attributes(found.slot)
    }

    /// Looks up `name` in the directory `parent`, and [holds](Fs::hold) the file once.
    pub fn lookup_and_hold(&self, parent: Ino, name: &[u8]) -> Result<FileAttributes, FsError> {
        let state = self.core.read_state();
        let found = state.find_name(parent, name)?;
        let attributes = state.attributes(found.slot)?;
        state.hold(found.slot);
        Ok(attributes)
    }

    /// A file's attributes.
    pub fn attributes(&self, ino: Ino) -> Result<FileAttributes, FsError> {
        let state = self.core.read_state();
        let (slot, ..) = state.find_inode(ino)?;
        state.attributes(slot)
    }

    /// Returns a file's attributes, and [holds](Fs::hold) the file once.
    ///
    /// For a client that has only the number: a handle (`open_by_handle_at`) leads to a file that the kernel
    /// has forgotten.
    ///
    /// # Errors
    /// [`FsError::Stale`] also for a file without a name: only a client that held it all the time may use it
    /// on.
    pub fn find_and_hold(&self, ino: Ino) -> Result<FileAttributes, FsError> {
        let state = self.core.read_state();
        let (slot, inode, _) = state.find_inode(ino)?;
        if inode.links == 0 {
            return Err(FsError::Stale);
        }
        let attributes = state.attributes(slot)?;
        state.hold(slot);
        Ok(attributes)
    }

    /// Sets attributes, as one transaction.
    ///
    /// A new owner or group drops the file's privileges: setuid, setgid and capabilities. A write does not;
    /// the front end asks for it with [`PrivilegeChange::Drop`]. A new mode changes the access ACL with it.
    pub fn set_attributes(&self, ino: Ino, set: SetAttributes, done: FsCompletion<FileAttributes>) {
        let size = self.core.read_state().find_inode(ino).map_or(0, |(_, inode, _)| inode.size());
        let after = set.size.unwrap_or(size);
        let fs = self.clone();
        let enter = move |counted: Option<CountedRange>| {
            let change = move |tx: &mut FsTransaction<'_>| {
                tx.set_removed_pages(counted.clone());
                tx.set_attributes(ino, &set)
            };
            fs.run(cost::attributes(after < size), change, done);
        };
        if after > 0 && after < size {
            self.core.count_before_removal(ino, after..size.next_multiple_of(PAGE_BYTES), enter);
        } else {
            enter(None);
        }
    }

    /// Makes a file, a directory, a FIFO or a socket.
    ///
    /// In a directory with setgid, the new file gets the directory's group, and a new directory gets setgid,
    /// too. In a directory with a default ACL, that ACL limits the mode and gives the access ACL, and a new
    /// directory inherits it. Otherwise the caller's umask applies.
    pub fn make(
        &self,
        caller: CallerCredentials,
        parent: Ino,
        name: &[u8],
        kind: FileKind,
        mode: u16,
        done: FsCompletion<FileAttributes>,
    ) {
        let new = match kind {
            FileKind::Directory => NewInode::Directory { mode },
            kind => NewInode::Node { kind, mode, device: 0 },
        };
        self.make_new(caller, parent, name, new, done);
    }

    /// Makes a device node. `number` is encoded as the kernel does; `kind` is a character or a block device.
    pub fn make_device(
        &self,
        caller: CallerCredentials,
        parent: Ino,
        name: &[u8],
        (kind, number): (FileKind, u32),
        mode: u16,
        done: FsCompletion<FileAttributes>,
    ) {
        self.make_new(caller, parent, name, NewInode::Node { kind, mode, device: number }, done);
    }

    fn make_new(
        &self,
        caller: CallerCredentials,
        parent: Ino,
        name: &[u8],
        new: NewInode<'static>,
        done: FsCompletion<FileAttributes>,
    ) {
        let name = name.to_vec();
        let cost = cost::make(self.levels(parent), 0);
        self.run(cost, move |tx| tx.make(caller, parent, &name, new), done);
    }

    /// Makes a symbolic link to `target`, of 1 to 4095 bytes.
    pub fn symlink(
        &self,
        caller: CallerCredentials,
        parent: Ino,
        name: &[u8],
        target: &[u8],
        done: FsCompletion<FileAttributes>,
    ) {
        let name = name.to_vec();
        let target = target.to_vec();
        self.run(
            cost::make(self.levels(parent), target.len()),
            move |tx| tx.make(caller, parent, &name, NewInode::Symlink { target: &target }),
            done,
        );
    }

    /// A symbolic link's target.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        let state = self.core.read_state();
        match state.find_inode(ino)? {
            (_, inode, FileKind::Symlink) => Ok(state.link_target(&inode)?.to_vec()),
            _ => Err(FsError::Invalid),
        }
    }

    /// Gives a file another name.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8], done: FsCompletion<FileAttributes>) {
        let name = name.to_vec();
        self.run(cost::add(self.levels(parent), 0), move |tx| tx.link(ino, parent, &name), done);
    }

    /// Removes a name of a file. The file is deleted with its last name and its last opener.
    ///
    /// If the file was synced while it was held, its removal is durable on completion, too: databases with a
    /// rollback journal commit by deleting the journal, and do not sync the directory.
    pub fn unlink(&self, parent: Ino, name: &[u8], done: FsCompletion<()>) {
        let name = name.to_vec();
        let done = self.sync_if_asked(done);
        self.run(cost::remove(self.levels(parent)), move |tx| tx.unlink(parent, &name), done);
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, parent: Ino, name: &[u8], done: FsCompletion<()>) {
        let name = name.to_vec();
        self.run(cost::remove(self.levels(parent)), move |tx| tx.remove_directory(parent, &name), done);
    }

    /// An extended attribute's value, by its whole name.
    ///
    /// # Errors
    /// [`FsError::NoXattr`] if the file does not have it, [`FsError::Unsupported`] if no file can have one of
    /// this name.
    pub fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, FsError> {
        let key = XattrKey::parse(name)?;
        let state = self.core.read_state();
        let (_, inode, _) = state.find_inode(ino)?;
        state.xattr(&inode, key)?.ok_or(FsError::NoXattr)
    }

    /// The names of all extended attributes, in no particular order.
    pub fn xattr_names(&self, ino: Ino) -> Result<Vec<Vec<u8>>, FsError> {
        let state = self.core.read_state();
        let (_, inode, _) = state.find_inode(ino)?;
        state.xattr_names(&inode)
    }

    /// Sets an extended attribute, as one transaction.
    ///
    /// After a crash the attribute has the whole old value or the whole new one. Setting an access ACL
    /// changes the mode, too. An ACL that says no more than the mode is not stored.
    ///
    /// # Errors
    /// [`FsError::NoSpace`] if all attributes together would exceed
    /// [`XATTR_LIST_BYTES_MAX`](crate::XATTR_LIST_BYTES_MAX) or
    /// [`XATTRS_BYTES_MAX`](crate::XATTRS_BYTES_MAX); [`FsError::Exists`] and [`FsError::NoXattr`] as `how`
    /// says; [`FsError::Invalid`] for a malformed ACL; for [`ATOMIC_WRITES_MARK`](crate::ATOMIC_WRITES_MARK), [`FsError::Invalid`] for
    /// an unknown value, and [`FsError::Unsupported`] if the root has no mark; and errors of the name or the value.
    pub fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], how: SetXattrMode, done: FsCompletion<()>) {
        self.change_xattr(ino, name.to_vec(), XattrChange::Set { value: value.to_vec(), how }, done);
    }

    /// Removes an extended attribute, but not the root's [`ATOMIC_WRITES_MARK`](crate::ATOMIC_WRITES_MARK). Works on a full store. Removing an ACL that the file does not have
    /// succeeds.
    pub fn remove_xattr(&self, ino: Ino, name: &[u8], done: FsCompletion<()>) {
        self.change_xattr(ino, name.to_vec(), XattrChange::Remove, done);
    }

    fn change_xattr(&self, ino: Ino, name: Vec<u8>, change: XattrChange, done: FsCompletion<()>) {
        if let Err(error) = XattrKey::parse(&name) {
            return done(Err(error));
        }
        let (cost, stated) = match &change {
            XattrChange::Remove => (cost::remove_xattr(), usize::MAX),
            XattrChange::Set { value, .. } => {
                let present = self.xattr_bytes(ino);
                (cost::set_xattr(present, value.len()), present)
            }
        };
        let fs = self.clone();
        let name_copy = name.clone();
        let change_copy = change.clone();
        let work = move |tx: &mut FsTransaction<'_>| {
            let key = XattrKey::parse(&name_copy)?;
            tx.change_xattr(ino, key, &change_copy, stated)
        };
        let then = move |outcome| match outcome {
            Ok(XattrOutcome::Done) => done(Ok(())),
            // Another client's change came first, so one of the two always makes progress.
            Ok(XattrOutcome::Grown) => fs.change_xattr(ino, name, change, done),
            Err(error) => done(Err(error)),
        };
        self.run(cost, work, Box::new(then));
    }

    /// Bytes of all extended attributes, to state a cost. 0 if they cannot be read: the operation reports
    /// why.
    fn xattr_bytes(&self, ino: Ino) -> usize {
        let state = self.core.read_state();
        state.find_inode(ino).and_then(|(_, inode, _)| state.xattrs(&inode)).map_or(0, |string| string.len())
    }

    /// Whether a write by an unprivileged process must drop the file's privileges first, with
    /// [`drop_privileges`](Fs::drop_privileges).
    pub fn is_privileged(&self, ino: Ino) -> bool {
        let state = self.core.read_state();
        let found = state.find_inode(ino).and_then(|(_, inode, _)| Ok((inode, state.owner(&inode)?.mode)));
        found.is_ok_and(|(inode, mode)| {
            let capable = || state.xattr(&inode, CAPABILITY).is_ok_and(|found| found.is_some());
            mode & SETUID != 0 || mode & (SETGID | GROUP_EXECUTE) == SETGID | GROUP_EXECUTE || capable()
        })
    }

    /// Drops a file's setuid, setgid and capabilities, because an unprivileged process changes its content.
    pub fn drop_privileges(&self, ino: Ino, done: FsCompletion<FileAttributes>) {
        self.set_attributes(
            ino,
            SetAttributes { privileges: PrivilegeChange::Drop, ..Default::default() },
            done,
        );
    }

    /// Adds an opener: a handle, or the kernel's memory of the inode.
    ///
    /// An unlinked file lives until its last opener is gone, or until the file system is opened again.
    pub fn hold(&self, ino: Ino) -> Result<(), FsError> {
        let state = self.core.read_state();
        let (slot, ..) = state.find_inode(ino)?;
        state.hold(slot);
        Ok(())
    }

    /// Removes `times` openers that [`hold`](Fs::hold) added.
    pub fn unhold(&self, ino: Ino, times: u64) {
        self.forget(ino, times);
        self.deferred_frees.free_all(&self.core);
    }

    /// Frees files that [`forget`](Fs::forget) left to be freed later.
    pub fn free_forgotten(&self) {
        self.deferred_frees.free_all(&self.core);
    }

    /// Like [`unhold`](Fs::unhold), but an unlinked small file may be freed later, in one transaction with up
    /// to 15 others. [`usage`](Fs::usage) and `unhold` free all of them.
    pub fn forget(&self, ino: Ino, times: u64) {
        if let Some((slot, inode)) = self.drop_holds(ino, times) {
            self.deferred_frees.add(&self.core, slot, &inode);
        }
    }

    /// Removes `times` openers. Returns the inode if it has neither names nor openers now.
    fn drop_holds(&self, ino: Ino, times: u64) -> Option<(InodeSlot, Inode)> {
        let state = self.core.read_state();
        let (slot, inode, _) = state.find_inode(ino).ok()?;
        let mut open_files = state.open_files.lock().expect("no panic while holding the open files");
        let open = open_files.get_mut(&slot.0)?;
        open.count = open.count.saturating_sub(times);
        if open.count > 0 {
            return None;
        }
        open_files.remove(&slot.0);
        (inode.links == 0).then_some((slot, inode))
    }

    /// Runs `work` as one transaction of this handle's origin.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        cost: TransactionCost,
        work: impl FnMut(&mut FsTransaction<'_>) -> Result<T, FsError> + Send + 'static,
        done: FsCompletion<T>,
    ) {
        self.core.run_transaction(cost.by(self.origin), work, done);
    }

    /// The state that all handles share, for the methods of `Fs` in other files.
    pub(crate) fn core(&self) -> &Arc<FsCore> {
        &self.core
    }

    /// Reads at most `len` bytes from `offset` on; fewer at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, len: usize, done: FsCompletion<Vec<u8>>) {
        self.core.read_data(self.origin, ino, offset, len, done);
    }

    /// A [`read`](Fs::read) into `into`, if all bytes are in memory, and at most 64 KiB: returns their number. `None` if
    /// it must wait, or is longer; the content of `into` is then undefined.
    pub fn try_read(&self, ino: Ino, offset: u64, into: &mut [u8]) -> Option<Result<usize, FsError>> {
        let clipped = self.core.read_state().clip(ino, offset, into.len());
        match clipped {
            Ok((_, 0, _)) => Some(Ok(0)),
            Ok((object, len, size)) => {
                self.core.cache.try_read(object, offset, &mut into[..len], size).then_some(Ok(len))
            }
            Err(error) => Some(Err(error)),
        }
    }

    /// A [`write`](Fs::write) of one piece, if it can complete without waiting; else `None`.
    pub fn try_write(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Option<Result<(), FsError>> {
        self.core.try_write(self.origin_of_write(ino, offset, bytes.len()), ino, offset, bytes)
    }

    /// Writes all of `bytes`, at most 64 MiB, at `offset`.
    ///
    /// Bytes, size and times are one transaction; more than 1 MiB are several, in order. Completes when the
    /// bytes are visible. They are durable after a later `sync`, or after the cache's commit interval.
    pub fn write(&self, ino: Ino, offset: u64, bytes: Vec<u8>, done: FsCompletion<()>) {
        let found = self.core.read_state().written_object(ino, offset, bytes.len());
        match found {
            Err(error) => done(Err(error)),
            Ok(_) if bytes.is_empty() => done(Ok(())),
            Ok(_) if bytes.len() > WRITE_BYTES_MAX => done(Err(FsError::Invalid)),
            Ok(_) => {
                let origin = self.origin_of_write(ino, offset, bytes.len());
                self.core.write_pieces(origin, ino, offset, bytes, done);
            }
        }
    }

    /// Calls `each` with the entries after `cookie` (0: from the start), until `each` returns `false`.
    ///
    /// The order is that of a keyed hash, and never changes. Entries that are added or removed meanwhile are
    /// listed or not; all others exactly once. Cookies are at least 16 and below 2^63. `each` is called while
    /// the file system's lock is shared, for at most a page of names at a time: it must not call the file
    /// system.
    pub fn read_directory(
        &self,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(DirectoryEntry<'_>) -> bool,
    ) -> Result<(), FsError> {
        let mut after = Some(cookie);
        while let Some(cookie) = after {
            let state = self.core.read_state();
            let (_, inode) = state.find_directory(ino)?;
            after =
                NameTree::of(&inode).list(&state, cookie, &mut |name| each(state.directory_entry(name)))?;
        }
        Ok(())
    }

    /// Like [`read_directory`](Fs::read_directory), with each entry's attributes. Every entry for which
    /// `take` returns `true` is [held](Fs::hold) once.
    ///
    /// # Errors
    /// An error after the first taken entry is reported by the next call, which goes on from there. So the
    /// caller can deliver the entries that it took, and need not release them.
    pub fn read_directory_and_hold(
        &self,
        ino: Ino,
        cookie: u64,
        take: &mut dyn FnMut(DirectoryEntry<'_>, &FileAttributes) -> bool,
    ) -> Result<(), FsError> {
        let mut after = Some(cookie);
        let mut taken = 0;
        while let Some(cookie) = after {
            let listed = self.core.read_state().hold_leaf_entries(ino, cookie, &mut taken, take);
            after = match listed {
                Err(_) if taken > 0 => None,
                listed => listed?,
            };
        }
        Ok(())
    }

    /// A directory's parent. The root is its own parent.
    pub fn parent(&self, ino: Ino) -> Result<Ino, FsError> {
        let state = self.core.read_state();
        let (_, inode) = state.find_directory(ino)?;
        Ok(state.numbering.ino(InodeSlot(inode.next.get())))
    }

    /// Completes when every operation that completed before the call is durable. Covers all files, because
    /// all changes are in one order.
    pub fn sync(&self, done: FsCompletion<()>) {
        self.sync_scope(SyncScope::All, done);
    }

    fn sync_scope(&self, scope: SyncScope, done: FsCompletion<()>) {
        let then = Box::new(move |synced: Result<(), CacheError>| done(synced.map_err(FsError::from)));
        self.core.cache.sync_for(self.origin, scope, then);
    }

    /// Like [`sync`](Fs::sync), except for bypassed pages of other files. For a client that syncs one file.
    ///
    /// Remembers as long as the file is held that it was synced, for [`unlink`](Fs::unlink).
    pub fn sync_file(&self, ino: Ino, done: FsCompletion<()>) {
        let state = self.core.read_state();
        if let Ok((slot, ..)) = state.find_inode(ino) {
            let mut open_files = state.open_files.lock().expect("no panic while holding the open files");
            open_files.entry(slot.0).and_modify(|open| open.synced = true);
        }
        drop(state);
        self.sync_bytes(ino, done);
    }

    /// Like [`sync_file`](Fs::sync_file), but does not remember the sync. For a write that must be durable
    /// when it returns.
    pub fn sync_bytes(&self, ino: Ino, done: FsCompletion<()>) {
        let state = self.core.read_state();
        let object = state.find_inode(ino).map(|(slot, inode, _)| state.data_object(slot, &inode));
        drop(state);
        self.sync_scope(object.map_or(SyncScope::All, SyncScope::Object), done);
    }

    /// Like [`sync`](Fs::sync), except for bypassed pages. For a client that syncs a directory.
    pub fn sync_names(&self, done: FsCompletion<()>) {
        self.sync_scope(SyncScope::Logged, done);
    }

    /// The completion of a change that says whether it must be synced before it is answered.
    pub(crate) fn sync_if_asked(&self, done: FsCompletion<()>) -> FsCompletion<bool> {
        let fs = self.clone();
        Box::new(move |made| match made {
            Ok(true) => fs.sync_names(done),
            Ok(false) => done(Ok(())),
            Err(error) => done(Err(error)),
        })
    }

    /// Waits for space as a write of 1 MiB would, then says whether that write would be admitted.
    pub fn wait_for_write_space(&self, then: impl FnOnce(bool) + Send + 'static) {
        let cost = file_data::write_cost(0, 1 << 20).by(self.origin);
        self.core.cache.admit(cost, Box::new(move |admitted| then(admitted.is_ok())));
    }

    /// Sizes and free space, for `statfs`.
    pub fn usage(&self) -> FsUsage {
        self.deferred_frees.free_all(&self.core);
        let space = self.core.cache.store_without_spare().space().now();
        let available = space.available();
        let inodes = u64::from(self.core.read_state().header().inodes.get());
        // A block holds 64 inodes of 64 bytes. On a small store blocks run out before inode numbers do.
        let left = (u64::from(INODES_MAX) - inodes).min(available.saturating_mul(64));
        FsUsage { blocks: space.usable(), available, inodes: inodes + left, inodes_free: left }
    }

    /// The newest LSN, for tests.
    pub fn newest_lsn(&self) -> Lsn {
        self.core.cache.status().applied
    }

    /// Checks all metadata in memory against their rules, and reports violations. Changes wait meanwhile.
    pub fn check(&self, report: &mut dyn FnMut(crate::FsFinding)) {
        let mut findings = Vec::new();
        crate::check::check(&self.core.read_state(), &mut |finding| findings.push(finding));
        findings.into_iter().for_each(report);
    }

    /// Inner levels of a directory's tree, to state a cost. 0 if they cannot be read: the operation reports
    /// why.
    pub(crate) fn levels(&self, ino: Ino) -> u8 {
        let state = self.core.read_state();
        let found = state.find_directory(ino);
        found.and_then(|(_, inode)| NameTree::of(&inode).levels(state.arena())).unwrap_or(0)
    }
}

/// The state that all handles of a file system share.
pub(crate) struct FsCore {
    /// Keeps the volume from being opened again or deleted while the file system exists.
    _in_use: VolumeInUse,
    pub(crate) cache: Arc<Cache>,
    clock: Arc<dyn Clock>,
    /// Look-ups share this lock; a change takes it alone, over the change in memory and
    /// `CacheTransaction::apply`, so the order in memory is the order of the log. Never held while a thread
    /// waits or a completion is called.
    state: RwLock<FsState>,
    small_file_readahead: SmallFileReadahead,
    /// The masks of files. Looked up without the state's lock.
    pub(crate) rule_table: Arc<FileRuleTable>,
}

/// Does background work until `answer` returns one. `None` if it still has none after
/// [`BACKGROUND_STEPS_MAX`] steps.
pub(crate) fn step_until<T>(cache: &Cache, answer: impl Fn() -> Option<T>) -> Option<T> {
    for _ in 0..BACKGROUND_STEPS_MAX {
        if let Some(answer) = answer() {
            return Some(answer);
        }
        for task in [BackgroundTask::Commit, BackgroundTask::WriteBack, BackgroundTask::Checkpoint] {
            cache.step(task);
        }
    }
    None
}

impl From<CacheError> for FsError {
    fn from(error: CacheError) -> FsError {
        match error {
            error if error.is_full() => FsError::NoSpace,
            other => FsError::Cache(other),
        }
    }
}

impl FsCore {
    /// Reads a volume's metadata, and truncates files whose last pages a crash took.
    pub(crate) fn open(
        cache: Arc<Cache>,
        volume: VolumeId,
        clock: Arc<dyn Clock>,
    ) -> Result<Arc<FsCore>, FsError> {
        let in_use = cache.use_volume(volume)?;
        let object = arena_object(volume);
        let arena = Arena::load(&mut |ranges| Ok(cache.read_all_now(object, ranges)?))?;
        let state = RwLock::new(FsState::new(volume, arena)?);
        let core = Arc::new(FsCore {
            _in_use: in_use,
            cache,
            clock,
            state,
            small_file_readahead: SmallFileReadahead::default(),
            rule_table: Arc::default(),
        });
        core.truncate_lost(volume)?;
        Ok(core)
    }

    pub(crate) fn read_state(&self) -> RwLockReadGuard<'_, FsState> {
        self.state.read().expect("no panic while holding the file system's state")
    }

    pub(crate) fn write_state(&self) -> RwLockWriteGuard<'_, FsState> {
        self.state.write().expect("no panic while holding the file system's state")
    }

    /// Runs `work` as one transaction, then completes `done`. If there is no space for its changes, undoes
    /// them, and runs `work` again once there is space for `cost`.
    ///
    /// An error of `work` or of the cache leaves everything as it was.
    pub(crate) fn run_transaction<T: Send + 'static>(
        self: &Arc<FsCore>,
        cost: TransactionCost,
        work: impl FnMut(&mut FsTransaction<'_>) -> Result<T, FsError> + Send + 'static,
        done: FsCompletion<T>,
    ) {
        self.run_with_bytes(Vec::new(), cost, work, done);
    }

    /// Like [`run_transaction`](FsCore::run_transaction), with bytes that `work` writes into a file.
    pub(crate) fn run_with_bytes<T: Send + 'static>(
        self: &Arc<FsCore>,
        bytes: Vec<u8>,
        cost: TransactionCost,
        mut work: impl FnMut(&mut FsTransaction<'_>) -> Result<T, FsError> + Send + 'static,
        done: FsCompletion<T>,
    ) {
        let core = self.clone();
        self.cache.transact(cost, move |into| core.apply_transaction(into, &bytes, cost, &mut work), done);
    }

    /// Runs `work`, and applies its changes to the cache.
    pub(crate) fn apply_transaction<T>(
        self: &Arc<FsCore>,
        into: &mut CacheTransaction<'_>,
        bytes: &[u8],
        cost: TransactionCost,
        work: impl FnOnce(&mut FsTransaction<'_>) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let now = self.clock.wall_nanos();
        let mut state = self.write_state();
        let mut tx = FsTransaction::begin(&mut state, now, bytes);
        let value = work(&mut tx)?;
        let changes = tx.changes();
        debug_assert!(is_within_cost(&changes, cost), "{changes:?} are more than {cost:?}");
        if !changes.is_empty() {
            into.apply(&changes)?;
        }
        drop(changes);
        tx.keep();
        drop(tx);
        let due = state.charges.take_recount();
        drop(state);
        if let Some(slot) = due {
            self.recount(slot);
        }
        Ok(value)
    }

    /// The time since some fixed point.
    pub(crate) fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Reads `len` bytes of a file. A miss in a small file may start read-ahead of the small files created
    /// with it.
    pub(crate) fn read_data(
        &self,
        origin: Origin,
        ino: Ino,
        offset: u64,
        len: usize,
        done: FsCompletion<Vec<u8>>,
    ) {
        // A statement of its own, which releases the lock before `done` is called.
        let clipped = self.read_state().clip(ino, offset, len);
        let (object, len, size) = match clipped {
            Ok((_, 0, _)) => return done(Ok(Vec::new())),
            Ok(clipped) => clipped,
            Err(error) => return done(Err(error)),
        };
        let then = move |read: Result<_, CacheError>| done(read.map_err(FsError::from));
        let was_held = self.cache.read_for(origin, (object, offset, len), size, Box::new(then));
        if !was_held && offset == 0 && size <= SMALL_BYTES_MAX {
            // An object's number is its inode's slot.
            let slot = InodeSlot(object.slot as u32);
            if let Some(slots) = self.small_file_readahead.note_miss(slot) {
                self.fetch_small_files(slots);
            }
        }
    }

    /// Fetches the small files whose inodes have these slots.
    fn fetch_small_files(&self, slots: Range<u32>) {
        let state = self.read_state();
        let used = slots.start..slots.end.min(state.header().slots_used.get().saturating_add(1));
        let mut small = Vec::new();
        for slot in used.map(InodeSlot) {
            let Ok(inode) = state.inode(slot) else { continue };
            if inode.kind() == Some(FileKind::File) && (1..=SMALL_BYTES_MAX).contains(&inode.size()) {
                small.push((state.data_object(slot, &inode), inode.size()));
            }
        }
        drop(state);
        self.cache.fetch_ahead(&small);
    }

    /// Bytes of the largest piece of a write that is one transaction: whole pages, at most half of what the
    /// cache takes, since records have headers.
    pub(crate) fn piece_bytes_max(&self) -> usize {
        let half = self.cache.transaction_bytes_max() / 2;
        let bytes = half.min(TRANSACTION_BYTES_MAX) / PAGE_BYTES * PAGE_BYTES;
        bytes.max(PAGE_BYTES) as usize
    }
}

impl FsCore {
    /// Writes the first piece of `bytes`, then goes on with the rest.
    pub(crate) fn write_pieces(
        self: &Arc<FsCore>,
        origin: Origin,
        ino: Ino,
        offset: u64,
        mut bytes: Vec<u8>,
        done: FsCompletion<()>,
    ) {
        // Pieces end at page ends, so that no page is in two of them.
        let within = (offset % PAGE_BYTES) as usize;
        let rest = bytes.split_off(bytes.len().min(self.piece_bytes_max() - within));
        let done = if rest.is_empty() {
            done
        } else {
            self.write_rest(origin, ino, offset + bytes.len() as u64, rest, done)
        };
        let core = self.clone();
        let cost = file_data::write_cost(offset, bytes.len()).by(origin);
        let write = move |tx: &mut FsTransaction<'_>| core.write_data(tx, ino, offset);
        self.run_with_bytes(bytes, cost, write, done);
    }

    /// Writes the transaction's bytes into a file.
    fn write_data(&self, tx: &mut FsTransaction<'_>, ino: Ino, offset: u64) -> Result<(), FsError> {
        let bytes = tx.file_bytes();
        let (object, size) = self.note_write(tx, ino, offset, bytes.len())?;
        tx.add_data_change(ObjectChange::FileWrite { object, offset, bytes, size });
        Ok(())
    }

    /// Writes a range of the transaction's bytes into a file. None of them bypasses the buffer.
    pub(crate) fn write_logged(
        &self,
        tx: &mut FsTransaction<'_>,
        ino: Ino,
        offset: u64,
        range: Range<usize>,
    ) -> Result<(), FsError> {
        let bytes = &tx.file_bytes()[range];
        // A file that grew past the log may be cut off after a crash, and these bytes with it.
        let (slot, _) = tx.find_file(ino)?;
        tx.log_bypassed_pages(slot)?;
        let (object, _) = self.note_write(tx, ino, offset, bytes.len())?;
        tx.add_data_change(ObjectChange::Write { object, offset, bytes });
        Ok(())
    }

    /// Makes a write's changes of the inode. Returns the file's object, and its size before. If the file is sparse,
    /// counts the pages that are dirty in memory: they are charged already.
    fn note_write(
        &self,
        tx: &mut FsTransaction<'_>,
        ino: Ino,
        offset: u64,
        len: usize,
    ) -> Result<(ObjectId, u64), FsError> {
        let (slot, inode) = tx.find_file(ino)?;
        let is_hole_possible = inode.is_sparse() && offset < inode.size();
        let known = if is_hole_possible {
            self.cache.dirty_pages(tx.data_object(slot, &inode), touched_pages(offset..offset + len as u64))
        } else {
            0
        };
        let object = tx.note_write(slot, inode, offset, len, known)?;
        Ok((object, inode.size()))
    }

    /// Writes one piece without waiting, without a copy of `bytes` and without a completion. `None` if that
    /// is impossible: then [`write_pieces`](FsCore::write_pieces) can.
    pub(crate) fn try_write(
        self: &Arc<FsCore>,
        origin: Origin,
        ino: Ino,
        offset: u64,
        bytes: &[u8],
    ) -> Option<Result<(), FsError>> {
        let within = (offset % PAGE_BYTES) as usize;
        if bytes.is_empty() || bytes.len() > self.piece_bytes_max() - within {
            return None;
        }
        if offset > FILE_BYTES_MAX {
            return Some(Err(FsError::TooLarge));
        }
        if self.try_overwrite(origin, ino, offset, bytes) {
            return Some(Ok(()));
        }
        let cost = file_data::write_cost(offset, bytes.len()).by(origin);
        let write = |tx: &mut FsTransaction<'_>| self.write_data(tx, ino, offset);
        self.cache.try_transact(cost, |into| self.apply_transaction(into, bytes, cost, write))
    }

    /// Writes bytes if nothing else changes, not even the file's times. Returns whether they are written.
    fn try_overwrite(&self, origin: Origin, ino: Ino, offset: u64, bytes: &[u8]) -> bool {
        if bytes.len() > PAGE_BYTES as usize {
            return false;
        }
        let now = self.clock.wall_nanos();
        // Held over the change, so that no transaction changes the file meanwhile.
        let state = self.read_state();
        let object = state.object_changed_in_place(ino, offset..offset + bytes.len() as u64, now);
        object.is_some_and(|object| self.cache.try_overwrite(origin, object, offset, bytes))
    }

    fn write_rest(
        self: &Arc<FsCore>,
        origin: Origin,
        ino: Ino,
        offset: u64,
        rest: Vec<u8>,
        done: FsCompletion<()>,
    ) -> FsCompletion<()> {
        let core = self.clone();
        Box::new(move |written| match written {
            Ok(()) => core.write_pieces(origin, ino, offset, rest, done),
            Err(error) => done(Err(error)),
        })
    }
}
