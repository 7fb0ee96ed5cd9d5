//! A block volume that clients use as a network block device.

use block::{BlockExtentKind, BlockVolume, BlockVolumeError};
use cache::CacheError;
use fuse::RequestCounter;
use nbd::{Disk, DiskCompletion, DiskError, Durability, ExportServer, Extent, ExtentKind, Listener};
use rustix::io::Errno;
use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use store::{VolumeInfo, VolumeMode};

/// A block volume that clients use as a network block device.
pub(crate) struct ExportedVolume {
    pub(crate) volume: VolumeInfo,
    /// The place where clients connect, for messages.
    pub(crate) at: String,
    /// The connection of the `weir export` for which the daemon serves the volume; `None` if it is this process.
    requester: Option<UnixStream>,
    /// `None` while the export ends.
    server: Option<ExportServer>,
}

impl ExportedVolume {
    /// Begins to serve the clients of `listener`. They may change nothing if the store is open read-only, or the volume is
    /// read-only.
    pub(crate) fn start(
        volume: VolumeInfo,
        (disk, is_store_read_only): (BlockVolume, bool),
        traffic: Arc<RequestCounter>,
        listener: Listener,
        (at, requester): (String, Option<UnixStream>),
    ) -> io::Result<ExportedVolume> {
        let is_read_only = is_store_read_only || disk.mode() == VolumeMode::ReadOnly;
        let disk = VolumeDisk { volume: Arc::new(disk), traffic, is_read_only };
        let server = ExportServer::start(listener, &volume.name, Arc::new(disk))?;
        Ok(ExportedVolume { volume, at, requester, server: Some(server) })
    }

    /// Takes the server, for the thread that stops it. `None` if another thread did that before.
    pub(crate) fn take_server(&mut self) -> Option<ExportServer> {
        self.server.take()
    }

    /// Whether a `weir export` is to be told how the export ends.
    pub(crate) fn has_requester(&self) -> bool {
        self.requester.is_some()
    }

    /// Ends the wait for further requests of the `weir export`, whose thread then answers for the last time.
    pub(crate) fn wake_requester(&self) {
        if let Some(requester) = &self.requester {
            // Fails if the command has gone.
            let _ = requester.shutdown(Shutdown::Read);
        }
    }
}

/// A block volume as the NBD server sees it.
struct VolumeDisk {
    volume: Arc<BlockVolume>,
    /// Counts the requests of all clients of the daemon, so that processors stay awake while they come.
    traffic: Arc<RequestCounter>,
    is_read_only: bool,
}

impl VolumeDisk {
    /// Passes the outcome of a change to `done`: at once, or once the change is durable.
    fn end_change(
        &self,
        durability: Durability,
        done: DiskCompletion<()>,
    ) -> impl FnOnce(Result<(), BlockVolumeError>) + Send + use<> {
        let volume = self.volume.clone();
        move |changed| match (changed, durability) {
            (Ok(()), Durability::Now) => volume.sync(Box::new(|synced| done(synced.map_err(disk_error)))),
            (changed, _) => done(changed.map_err(disk_error)),
        }
    }
}

impl Disk for VolumeDisk {
    fn size(&self) -> u64 {
        self.volume.size()
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn read(&self, offset: u64, len: usize, done: DiskCompletion<Vec<u8>>) {
        self.traffic.note();
        self.volume.read(offset, len, Box::new(|read| done(read.map_err(disk_error))));
    }

    fn write(&self, offset: u64, bytes: Vec<u8>, durability: Durability, done: DiskCompletion<()>) {
        self.traffic.note();
        self.volume.write(offset, bytes, Box::new(self.end_change(durability, done)));
    }

    fn zero(&self, offset: u64, len: u64, durability: Durability, done: DiskCompletion<()>) {
        self.traffic.note();
        self.volume.zero(offset, len, Box::new(self.end_change(durability, done)));
    }

    fn flush(&self, done: DiskCompletion<()>) {
        self.traffic.note();
        self.volume.sync(Box::new(|synced| done(synced.map_err(disk_error))));
    }

    fn extents(&self, offset: u64, len: u64, max: usize, done: DiskCompletion<Vec<Extent>>) {
        self.traffic.note();
        let kind_of = |kind| match kind {
            BlockExtentKind::Data => ExtentKind::Data,
            BlockExtentKind::Hole => ExtentKind::Hole,
        };
        let answer = move |found: Result<Vec<block::BlockExtent>, BlockVolumeError>| {
            let found = found.map_err(disk_error);
            done(found.map(|extents| {
                extents.into_iter().map(|one| Extent { len: one.len, kind: kind_of(one.kind) }).collect()
            }));
        };
        self.volume.extents(offset, len, max, Box::new(answer));
    }
}

/// The error that a client gets. The log of the daemon has the whole story of a failing device.
fn disk_error(error: BlockVolumeError) -> DiskError {
    if matches!(error, BlockVolumeError::Cache(CacheError::Stopping)) {
        return DiskError::ShuttingDown;
    }
    match error.errno() {
        Errno::NOSPC => DiskError::NoSpace,
        Errno::ROFS => DiskError::ReadOnly,
        Errno::INVAL => DiskError::Invalid,
        _ => DiskError::Io,
    }
}
