//! A modelled device as a file, served by FUSE.
//!
//! The file system has one file, `disk`, in this process's memory, and answers each request at the time that
//! the model sets. A loop device on top makes it a block device.
//!
//! nbdkit behind nbdfuse was no alternative. Its delay filter supports only whole milliseconds and no seeks.
//! Its data lies in the page cache that a cold run empties. On a small machine its two processes cost more
//! CPU time than the measured systems.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyWrite, Request,
    WriteFlags,
};

use super::device_model::{DeviceKind, DeviceModel};
use super::error::BenchError;

/// Name of the file.
pub(super) const FILE: &str = "disk";
const FILE_INODE: u64 = 2;
/// Time for which the kernel may cache the two inodes.
const FOREVER: Duration = Duration::from_secs(3600);
/// Most requests that the kernel sends at once; more than any model serves.
const REQUESTS_MAX: u16 = 256;
/// Timer slack of one nanosecond: the answering thread must not oversleep.
const TIMER_SLACK: Option<NonZeroU64> = NonZeroU64::new(1);

/// Arguments of a device process.
#[derive(Debug, Args)]
pub(super) struct ModelledDeviceArgs {
    directory: PathBuf,
    #[arg(long, value_enum)]
    device: DeviceKind,
    #[arg(long)]
    bytes: u64,
}

/// Serves the device until it is unmounted.
pub(super) fn run_device(args: &ModelledDeviceArgs) -> Result<(), BenchError> {
    // Its own session: a scheduler that shares processors out by session must not group the device with the
    // load.
    let _ = rustix::process::setsid();
    let mut config = fuser::Config::default();
    config.mount_options = vec![MountOption::FSName("weir-bench-device".into())];
    let queue = Arc::new(RequestQueue {
        state: Mutex::new(QueueState {
            model: DeviceModel::new(args.device, args.bytes),
            replies: HashMap::new(),
            next: 0,
        }),
        came: Condvar::new(),
        began: Instant::now(),
    });
    let answers = Arc::clone(&queue);
    std::thread::spawn(move || answers.answer());
    let disk = ModelledDisk { bytes: Mutex::new(vec![0; args.bytes as usize]), size: args.bytes, queue };
    fuser::Session::new(disk, &args.directory, &config)
        .and_then(fuser::Session::run)
        .map_err(|error| BenchError::io("cannot mount a modelled device on", &args.directory, error))
}

/// The reply that is sent once a request is done.
enum HeldReply {
    Read(ReplyData, Vec<u8>),
    Written(ReplyWrite, u32),
    Flushed(ReplyEmpty),
}

struct QueueState {
    model: DeviceModel,
    replies: HashMap<u64, HeldReply>,
    next: u64,
}

struct RequestQueue {
    state: Mutex<QueueState>,
    came: Condvar,
    began: Instant,
}

impl RequestQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn ask(&self, at: u64, bytes: u64, answer: HeldReply) {
        let mut state = self.lock();
        let request = state.next;
        state.next += 1;
        let earliest = state.model.next();
        state.replies.insert(request, answer);
        state.model.arrive(self.now(), request, at, bytes);
        // The answering thread must wake only if its next deadline changed.
        if state.model.next() != earliest {
            self.came.notify_one();
        }
    }

    fn answer(&self) {
        // If this is not permitted, devices are a little slower.
        let _ = rustix::thread::set_current_timer_slack(TIMER_SLACK);
        let mut state = self.lock();
        loop {
            let done = state.model.done(self.now());
            let answers: Vec<_> = done.iter().filter_map(|request| state.replies.remove(request)).collect();
            if !answers.is_empty() {
                drop(state);
                answers.into_iter().for_each(HeldReply::send);
                state = self.lock();
                continue;
            }
            let now = self.now();
            state = match state.model.next() {
                Some(next) if next <= now => continue,
                Some(next) => {
                    let left = Duration::from_nanos(next - now);
                    self.came.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.came.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl HeldReply {
    fn send(self) {
        match self {
            HeldReply::Read(reply, bytes) => reply.data(&bytes),
            HeldReply::Written(reply, bytes) => reply.written(bytes),
            HeldReply::Flushed(reply) => reply.ok(),
        }
    }
}

struct ModelledDisk {
    bytes: Mutex<Vec<u8>>,
    size: u64,
    queue: Arc<RequestQueue>,
}

impl ModelledDisk {
    fn attributes(&self, ino: u64) -> FileAttr {
        let epoch = SystemTime::UNIX_EPOCH;
        let directory = ino != FILE_INODE;
        FileAttr {
            ino: INodeNo(ino),
            size: if directory { 0 } else { self.size },
            blocks: self.size / 512,
            atime: epoch,
            mtime: epoch,
            ctime: epoch,
            crtime: epoch,
            kind: if directory { FileType::Directory } else { FileType::RegularFile },
            perm: if directory { 0o755 } else { 0o600 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// The range in memory, cut at the device's end.
    fn range(&self, offset: u64, bytes: u64) -> std::ops::Range<usize> {
        let end = offset.saturating_add(bytes).min(self.size);
        offset.min(end) as usize..end as usize
    }
}

impl Filesystem for ModelledDisk {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without one of these the device is slower, but no figure here depends on that.
        let _ = config.add_capabilities(InitFlags::FUSE_ASYNC_DIO);
        let _ = config.set_max_background(REQUESTS_MAX);
        let _ = config.set_congestion_threshold(REQUESTS_MAX);
        Ok(())
    }

    fn lookup(&self, _request: &Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == FILE {
            reply.entry(&FOREVER, &self.attributes(FILE_INODE), Generation(0))
        } else {
            reply.error(Errno::ENOENT)
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attributes(ino.0));
    }

    fn read(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let read = bytes[self.range(offset, u64::from(size))].to_vec();
        drop(bytes);
        self.queue.ask(offset, u64::from(size).max(1), HeldReply::Read(reply, read));
    }

    fn write(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let range = self.range(offset, data.len() as u64);
        let taken = range.len();
        bytes[range].copy_from_slice(&data[..taken]);
        drop(bytes);
        self.queue.ask(offset, (taken as u64).max(1), HeldReply::Written(reply, taken as u32));
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.queue.ask(0, 0, HeldReply::Flushed(reply));
    }
}
