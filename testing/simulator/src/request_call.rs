//! A request to the file system, and its reply.

use crate::change::ModelChange;
use crate::model::{CALLER, FsModel, ModelId};
use crate::stack::OpenVolume;
use block::BlockExtent;
use cache::Cache;
use crash_oracle::HistoryMoment;
use device::{Clock, TransferKind};
use fs::{
    BatchChange, BatchPlace, BatchSource, FallocateMode, FileAttributes, Fs, FsCompletion, FsError, Ino,
    SeekWhence, SetAttributes, SetTime,
};
use request::Origin;
use std::sync::{Arc, Mutex};
use store::RESERVED_BLOCKS_PER_PAGE;

/// The number of a request, in order of issue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct RequestNumber(pub(crate) u64);

/// Replies, in the order of their completion.
pub(crate) type ReplyInbox = Arc<Mutex<Vec<ReplyArrival>>>;

/// A reply, and the state of the stack when it came.
pub(crate) struct ReplyArrival {
    pub(crate) ticket: RequestNumber,
    pub(crate) result: Result<FsReply, FsError>,
    /// The time of the reply, in nanoseconds.
    pub(crate) at: i64,
    /// The number of pages for which the store could still reserve space.
    pub(crate) reservable: u64,
    /// Whether the reply is ENOSPC while a clone or a move waits for the host file system to have space.
    pub(crate) transfer_waits: bool,
}

/// The reply to an operation that succeeds.
#[derive(Debug)]
pub(crate) enum FsReply {
    Done,
    Attributes(FileAttributes),
    Bytes(Vec<u8>),
    Place(u64),
    Extents(Vec<BlockExtent>),
}

/// A request whose client waits for the reply.
pub(crate) enum IssuedRequest {
    Change(ModelChange),
    /// A read, with every answer that was right at some moment since it was issued.
    Read {
        file: ModelId,
        offset: u64,
        len: usize,
        right: Vec<Vec<u8>>,
    },
    /// A search for the first data or hole in a file from an offset on.
    Seek {
        file: ModelId,
        offset: u64,
        what: SeekWhence,
        version: u64,
    },
    /// A search for the extents of a block volume.
    Extents {
        file: ModelId,
        offset: u64,
        len: u64,
        count_max: usize,
        version: u64,
    },
    Sync(HistoryMoment),
    /// A sync of one file, or of one block volume.
    SyncFile(ModelId, HistoryMoment),
}

/// The inode number in the file system.
pub(crate) fn number(model: &FsModel, id: ModelId) -> Ino {
    model.get(id).ino.expect("whoever made it was told its number")
}

/// The inputs of a request to the file system.
pub(crate) struct RequestCall<'a> {
    pub(crate) model: &'a FsModel,
    pub(crate) arrivals: &'a ReplyInbox,
    pub(crate) ticket: RequestNumber,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) cache: &'a Arc<Cache>,
}

/// A request, ready to be issued at any moment.
pub(crate) type PreparedRequest = Box<dyn FnOnce() + Send>;

/// A request to a file system, ready to be issued at any moment.
type PreparedFsRequest = Box<dyn FnOnce(&Fs) + Send>;

impl RequestCall<'_> {
    pub(crate) fn done<T: 'static>(&self, reply: fn(T) -> FsReply) -> FsCompletion<T> {
        let (arrivals, ticket, clock) = (self.arrivals.clone(), self.ticket, self.clock.clone());
        let (store, cache) = (self.cache.store().clone(), Arc::downgrade(self.cache));
        Box::new(move |result| {
            let (at, reservable) =
                (clock.wall_nanos(), store.space().now().reservable / RESERVED_BLOCKS_PER_PAGE);
            let transfer_waits = matches!(result, Err(FsError::NoSpace))
                && store.space().host_fs_free_bytes_if_full().is_some()
                && cache.upgrade().is_some_and(|cache| cache.status().pending_transfers > 0);
            let arrival = ReplyArrival { ticket, result: result.map(reply), at, reservable, transfer_waits };
            arrivals.lock().expect("nobody panics with the arrivals").push(arrival);
        })
    }

    /// Prepares a request of `origin`, so that only the call itself remains. A block volume knows no origins.
    pub(crate) fn prepare(
        &self,
        asked: &IssuedRequest,
        volume: &OpenVolume,
        origin: Origin,
    ) -> PreparedRequest {
        match volume {
            OpenVolume::Fs(fs) => {
                let (request, mut fs) = (self.prepare_for_fs(asked), fs.clone());
                fs.set_origin(origin);
                Box::new(move || request(&fs))
            }
            OpenVolume::Block(volume) => self.prepare_for_block_volume(asked, volume),
        }
    }

    fn prepare_for_fs(&self, asked: &IssuedRequest) -> PreparedFsRequest {
        match asked {
            IssuedRequest::Change(change) => self.prepare_change(change.clone()),
            IssuedRequest::Read { file, offset, len, .. } => {
                let (ino, offset, len) = (number(self.model, *file), *offset, *len);
                let done = self.done(FsReply::Bytes);
                Box::new(move |fs| {
                    // About every second read goes into the caller's memory, if it need not wait.
                    let mut bytes = vec![0; len];
                    let wants_at_once = (offset + len as u64).is_multiple_of(2);
                    let read = if wants_at_once { fs.try_read(ino, offset, &mut bytes) } else { None };
                    match read {
                        Some(read) => done(read.map(|count| {
                            bytes.truncate(count);
                            bytes
                        })),
                        None => fs.read(ino, offset, len, done),
                    }
                })
            }
            IssuedRequest::Seek { file, offset, what, .. } => {
                let (ino, offset, what) = (number(self.model, *file), *offset, *what);
                let done = self.done(FsReply::Place);
                Box::new(move |fs| fs.seek(ino, offset, what, done))
            }
            IssuedRequest::Extents { .. } => unreachable!("a file is asked for holes by seeks"),
            IssuedRequest::Sync(_) => {
                let done = self.done(|()| FsReply::Done);
                Box::new(move |fs| fs.sync(done))
            }
            IssuedRequest::SyncFile(file, _) => {
                let (ino, done) = (number(self.model, *file), self.done(|()| FsReply::Done));
                Box::new(move |fs| fs.sync_file(ino, done))
            }
        }
    }

    fn prepare_change(&self, change: ModelChange) -> PreparedFsRequest {
        let (attributes, done) = (self.done(FsReply::Attributes), self.done(|()| FsReply::Done));
        let inode = |id: ModelId| number(self.model, id);
        match change {
            ModelChange::Make { parent, name, kind, mode } => {
                let parent = inode(parent);
                Box::new(move |fs| fs.make(CALLER, parent, &name, kind, mode, attributes))
            }
            ModelChange::MakeDevice { parent, name, kind, number, mode } => {
                let parent = inode(parent);
                Box::new(move |fs| fs.make_device(CALLER, parent, &name, (kind, number), mode, attributes))
            }
            ModelChange::Exchange { one, other } => {
                let parents = (inode(one.0), inode(other.0));
                Box::new(move |fs| fs.exchange((parents.0, &one.1), (parents.1, &other.1), done))
            }
            ModelChange::Symlink { parent, name, target } => {
                let parent = inode(parent);
                Box::new(move |fs| fs.symlink(CALLER, parent, &name, &target, attributes))
            }
            ModelChange::Link { file, parent, name } => {
                let (file, parent) = (inode(file), inode(parent));
                Box::new(move |fs| fs.link(file, parent, &name, attributes))
            }
            ModelChange::Unlink { parent, name } => {
                let parent = inode(parent);
                Box::new(move |fs| fs.unlink(parent, &name, done))
            }
            ModelChange::RemoveDirectory { parent, name } => {
                let parent = inode(parent);
                Box::new(move |fs| fs.remove_directory(parent, &name, done))
            }
            ModelChange::Rename { from, to, if_exists } => {
                let parents = (inode(from.0), inode(to.0));
                Box::new(move |fs| fs.rename((parents.0, &from.1), (parents.1, &to.1), if_exists, done))
            }
            ModelChange::WhiteOut { from, to, if_exists } => {
                let parents = (inode(from.0), inode(to.0));
                let done = self.done(|left: Option<_>| left.map_or(FsReply::Done, FsReply::Attributes));
                Box::new(move |fs| {
                    let (from, to) = ((parents.0, &from.1[..]), (parents.1, &to.1[..]));
                    fs.rename_leaving_whiteout(CALLER, from, to, if_exists, done);
                })
            }
            ModelChange::Batch(parts) => {
                let parts = parts.into_iter().map(|part| self.batch_change(part)).collect();
                Box::new(move |fs| fs.apply_batch(parts, done))
            }
            ModelChange::Forget { .. } => unreachable!("nobody asks to forget"),
            of_one_inode => self.prepare_change_of_inode(of_one_inode),
        }
    }

    fn batch_change(&self, change: ModelChange) -> BatchChange {
        let inode = |id: ModelId| number(self.model, id);
        let place =
            |(file, offset): (ModelId, u64)| BatchPlace { source: BatchSource::Here(inode(file)), offset };
        match change {
            ModelChange::Write { file, offset, bytes, .. } => {
                BatchChange::Write { ino: inode(file), offset, bytes: bytes.to_vec() }
            }
            ModelChange::Rename { from, to, if_exists } => {
                let (from, to) = ((inode(from.0), from.1), (inode(to.0), to.1));
                BatchChange::Rename { from, to, if_exists }
            }
            ModelChange::Unlink { parent, name } => BatchChange::Unlink { parent: inode(parent), name },
            ModelChange::Allocate { file, what: FallocateMode::PunchHole, offset, len, .. } => {
                BatchChange::Punch { ino: inode(file), offset, len }
            }
            ModelChange::Transfer { kind: TransferKind::Move, from, offset, len, to, at } => {
                BatchChange::Move { from: inode(from), offset, len, to: inode(to), at }
            }
            ModelChange::Transfer { kind: TransferKind::Clone, from, offset, len, to, at } => {
                BatchChange::Clone { from: place((from, offset)), len, to: inode(to), at }
            }
            ModelChange::CloneFrom { source, offset, bytes, to, at } => {
                let from = BatchPlace { source: BatchSource::Elsewhere(source), offset };
                BatchChange::Clone { from, len: bytes.len() as u64, to: inode(to), at }
            }
            ModelChange::ExpectEqual { one, other, len } => {
                BatchChange::ExpectEqual { one: place(one), other: place(other), len }
            }
            other => unreachable!("{other:?} is in no batch"),
        }
    }

    /// Prepares a change that neither adds nor removes a name.
    fn prepare_change_of_inode(&self, change: ModelChange) -> PreparedFsRequest {
        let (attributes, done) = (self.done(FsReply::Attributes), self.done(|()| FsReply::Done));
        let inode = |id: ModelId| number(self.model, id);
        let set = SetAttributes::default();
        match change {
            ModelChange::Allocate { file, what, offset, len, size } => {
                let file = inode(file);
                Box::new(move |fs| fs.allocate(file, what, (offset, len), size, done))
            }
            ModelChange::Copy { from, offset, len, to, at } => {
                let (from, to) = (inode(from), inode(to));
                let done = move |copied: Result<u64, FsError>| done(copied.map(drop));
                Box::new(move |fs| fs.copy_range(from, (offset, len), to, at, Box::new(done)))
            }
            ModelChange::DropPowers { inode: id } => {
                let id = inode(id);
                Box::new(move |fs| fs.drop_privileges(id, attributes))
            }
            ModelChange::SetXattr { inode: id, name, value, how } => {
                let id = inode(id);
                Box::new(move |fs| fs.set_xattr(id, &name, &value, how, done))
            }
            ModelChange::RemoveXattr { inode: id, name } => {
                let id = inode(id);
                Box::new(move |fs| fs.remove_xattr(id, &name, done))
            }
            ModelChange::Write { file, offset, bytes, .. } => {
                let (file, at_once) = (inode(file), self.ticket.0.is_multiple_of(2));
                // Like the front end: tries to write without waiting first.
                Box::new(move |fs| match at_once.then(|| fs.try_write(file, offset, &bytes)).flatten() {
                    Some(outcome) => done(outcome),
                    None => fs.write(file, offset, bytes.to_vec(), done),
                })
            }
            ModelChange::SetSize { file, size } => {
                let (file, set) = (inode(file), SetAttributes { size: Some(size), ..set });
                Box::new(move |fs| fs.set_attributes(file, set, attributes))
            }
            ModelChange::SetMode { inode: id, mode } => {
                let (id, set) = (inode(id), SetAttributes { mode: Some(mode), ..set });
                Box::new(move |fs| fs.set_attributes(id, set, attributes))
            }
            ModelChange::SetOwner { inode: id, uid, gid } => {
                let (id, set) = (inode(id), SetAttributes { uid, gid, ..set });
                Box::new(move |fs| fs.set_attributes(id, set, attributes))
            }
            ModelChange::SetTimes { inode: id, accessed, modified } => {
                let (accessed, modified) = (accessed.map(SetTime::To), modified.map(SetTime::To));
                let (id, set) = (inode(id), SetAttributes { accessed, modified, ..set });
                Box::new(move |fs| fs.set_attributes(id, set, attributes))
            }
            other => unreachable!("{other:?} is prepared with the names"),
        }
    }
}
