//! The kernel as a target: open files by handle, and who makes asynchronous requests.

use super::aio::{Requests, depth};
use super::calls;
use super::syncs::Syncs;
use super::target::{Buffer, Target};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use trace_file::{
    Benchmark, Handle, LockKind, NO_HANDLE, Name, Names, Op, Outcome, Place, Request, RequestKind, SyncKind,
    TraceError,
};

/// Threads that make asynchronous requests; deeper queues than this no device has.
const POOL_MAX: usize = 1024;

/// Executes operations for real, below this process's root directory.
pub(super) struct Kernel<'a> {
    names: &'a Names,
    files: Arc<Files>,
    requests: Arc<Requests>,
    submit: Option<SyncSender<(u32, Request<Handle>)>>,
    syncs: Syncs,
}

/// Open files by handle. An entry is empty before its file is opened and after it is closed.
pub(super) struct Files(Vec<Mutex<Option<Arc<OwnedFd>>>>);

impl Files {
    pub(super) fn get(&self, handle: Handle) -> Result<Arc<OwnedFd>, Errno> {
        let entry = self.0.get(handle as usize).ok_or(Errno::BADF)?;
        entry.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Errno::BADF)
    }

    fn put(&self, handle: Handle, file: Option<OwnedFd>) -> Option<Arc<OwnedFd>> {
        let entry = self.0.get(handle as usize)?;
        std::mem::replace(&mut *entry.lock().unwrap_or_else(PoisonError::into_inner), file.map(Arc::new))
    }
}

impl<'a> Kernel<'a> {
    /// Opens what was open before the trace began.
    pub(super) fn new(benchmark: &'a Benchmark, syncs: Syncs) -> Result<Kernel<'a>, TraceError> {
        let files = (0..benchmark.about.handles).map(|_| Mutex::new(None)).collect();
        let files = Arc::new(Files(files));
        for inherited in &benchmark.inherited {
            let path = benchmark.names.bytes(inherited.path);
            let open = |flags| rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty());
            // Directories cannot be opened for writing.
            if let Ok(file) = open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY)) {
                files.put(inherited.handle, Some(file));
            }
        }
        let requests = Arc::new(Requests::default());
        let threads = depth(benchmark.actions.iter().map(|action| &action.op)).min(POOL_MAX);
        let submit = (threads > 0).then(|| pool(threads, &files, &requests, syncs));
        Ok(Kernel { names: &benchmark.names, files, requests, submit, syncs })
    }

    pub(super) fn name(&self, name: Name) -> &[u8] {
        self.names.bytes(name)
    }

    /// The directory of a place; nothing for absolute paths.
    pub(super) fn dir(&self, at: &Place<Handle>) -> Result<Option<Arc<OwnedFd>>, Errno> {
        (at.dir != NO_HANDLE).then(|| self.files.get(at.dir)).transpose()
    }

    pub(super) fn file(&self, handle: Handle) -> Result<Arc<OwnedFd>, Errno> {
        self.files.get(handle)
    }

    pub(super) fn sync(&self, handle: Handle, kind: SyncKind) -> Result<(), Errno> {
        self.syncs.file(self.file(handle)?.as_fd(), kind)
    }

    /// sync, for all files.
    pub(super) fn sync_all(&self) {
        if !matches!(self.syncs, Syncs::Nothing) {
            rustix::fs::sync();
        }
    }

    pub(super) fn opened(&self, made: Handle, file: OwnedFd) {
        drop(self.files.put(made, Some(file)));
    }

    fn close(&self, all: &[Handle], unlocked: &[Handle]) -> Result<i64, Errno> {
        for handle in unlocked {
            calls::lock(&*self.file(*handle)?, LockKind::Unlock, 0, 0)?;
        }
        let closed = all.iter().filter_map(|handle| self.files.put(*handle, None)).count();
        if closed == all.len() { Ok(0) } else { Err(Errno::BADF) }
    }

    fn send(&self, first: u32, requests: &[Request<Handle>]) -> Result<i64, Errno> {
        let submit = self.submit.as_ref().ok_or(Errno::INVAL)?;
        for (number, request) in (first..).zip(requests) {
            self.requests.submitted(number);
            submit.send((number, *request)).map_err(|_| Errno::IO)?;
        }
        Ok(requests.len() as i64)
    }
}

impl Target for Kernel<'_> {
    fn execute(&self, op: &Op<Handle>, buffer: &mut Buffer) -> Outcome {
        let result = match op {
            Op::Close { all, unlocked } => self.close(all, unlocked),
            Op::Submit { first, requests, .. } => self.send(*first, requests),
            Op::Collect { requests, .. } => return self.requests.collect(requests),
            _ => calls::call(self, op, buffer),
        };
        outcome(result)
    }
}

pub(super) fn outcome(result: Result<i64, Errno>) -> Outcome {
    match result {
        Ok(value) => Outcome::Value(value),
        Err(errno) => Outcome::Error(errno.raw_os_error()),
    }
}

/// Threads that end when the kernel is dropped, once their requests are done.
fn pool(
    threads: usize,
    files: &Arc<Files>,
    requests: &Arc<Requests>,
    syncs: Syncs,
) -> SyncSender<(u32, Request<Handle>)> {
    let (sender, receiver) = sync_channel(POOL_MAX);
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..threads {
        let (files, requests, receiver) = (files.clone(), requests.clone(), receiver.clone());
        std::thread::spawn(move || work(&files, &requests, &receiver, syncs));
    }
    sender
}

fn work(
    files: &Files,
    requests: &Requests,
    receiver: &Mutex<Receiver<(u32, Request<Handle>)>>,
    syncs: Syncs,
) {
    let mut buffer = Buffer::default();
    loop {
        let next = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((number, request)) = next else { return };
        let result = files.get(request.on).and_then(|file| match request.kind {
            RequestKind::Read => rustix::io::pread(&*file, buffer.take(request.bytes), request.start),
            RequestKind::Write => rustix::io::pwrite(&*file, buffer.take(request.bytes), request.start),
            RequestKind::Sync => syncs.file(file.as_fd(), SyncKind::File).map(|()| 0),
        });
        requests.done(number, outcome(result.map(|moved| moved as i64)));
    }
}
