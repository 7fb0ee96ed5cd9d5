//! The kernel as a target: open files by handle, and the threads that make asynchronous requests.

use super::aio::{Requests, depth};
use super::calls;
use super::syncs::FsyncMeaning;
use super::target::{CallBuffer, Target};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use trace_file::{
    CompiledTrace, Handle, LockKind, NO_HANDLE, Name, Names, Op, Outcome, Place, Request, RequestKind,
    SyncKind, TraceError,
};

/// Maximum number of threads that make asynchronous requests. No device has deeper queues.
const POOL_MAX: usize = 1024;

/// Executes operations with real system calls, below this process's root directory.
pub(super) struct ReplayKernel<'a> {
    names: &'a Names,
    files: Arc<OpenFiles>,
    requests: Arc<Requests>,
    submit: Option<SyncSender<(u32, Request<Handle>)>>,
    syncs: FsyncMeaning,
}

/// Open files by handle. An entry is `None` before its file is opened and after it is closed.
pub(super) struct OpenFiles(Vec<Mutex<Option<Arc<OwnedFd>>>>);

impl OpenFiles {
    pub(super) fn get(&self, handle: Handle) -> Result<Arc<OwnedFd>, Errno> {
        let entry = self.0.get(handle as usize).ok_or(Errno::BADF)?;
        entry.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Errno::BADF)
    }

    fn put(&self, handle: Handle, file: Option<OwnedFd>) -> Option<Arc<OwnedFd>> {
        let entry = self.0.get(handle as usize)?;
        std::mem::replace(&mut *entry.lock().unwrap_or_else(PoisonError::into_inner), file.map(Arc::new))
    }
}

impl<'a> ReplayKernel<'a> {
    /// Makes the target, and opens the files that were open before the trace began.
    pub(super) fn new(
        compiled: &'a CompiledTrace,
        syncs: FsyncMeaning,
    ) -> Result<ReplayKernel<'a>, TraceError> {
        let files = (0..compiled.about.handles).map(|_| Mutex::new(None)).collect();
        let files = Arc::new(OpenFiles(files));
        for inherited in &compiled.inherited {
            let path = compiled.names.bytes(inherited.path);
            let open = |flags| rustix::fs::openat(CWD, path, flags | OFlags::CLOEXEC, Mode::empty());
            // Directories cannot be opened for writing.
            if let Ok(file) = open(OFlags::RDWR).or_else(|_| open(OFlags::RDONLY)) {
                files.put(inherited.handle, Some(file));
            }
        }
        let requests = Arc::new(Requests::default());
        let threads = depth(compiled.actions.iter().map(|action| &action.op)).min(POOL_MAX);
        let submit = (threads > 0).then(|| pool(threads, &files, &requests, syncs));
        Ok(ReplayKernel { names: &compiled.names, files, requests, submit, syncs })
    }

    pub(super) fn name(&self, name: Name) -> &[u8] {
        self.names.bytes(name)
    }

    /// The directory of a place; `None` for absolute paths.
    pub(super) fn dir(&self, at: &Place<Handle>) -> Result<Option<Arc<OwnedFd>>, Errno> {
        (at.dir != NO_HANDLE).then(|| self.files.get(at.dir)).transpose()
    }

    pub(super) fn file(&self, handle: Handle) -> Result<Arc<OwnedFd>, Errno> {
        self.files.get(handle)
    }

    pub(super) fn sync(&self, handle: Handle, kind: SyncKind) -> Result<(), Errno> {
        self.syncs.file(self.file(handle)?.as_fd(), kind)
    }

    /// Syncs all files.
    pub(super) fn sync_all(&self) {
        if !matches!(self.syncs, FsyncMeaning::Nothing) {
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

impl Target for ReplayKernel<'_> {
    fn execute(&self, op: &Op<Handle>, buffer: &mut CallBuffer) -> Outcome {
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

/// Starts threads for asynchronous requests. When the kernel is dropped, they finish their requests and end.
fn pool(
    threads: usize,
    files: &Arc<OpenFiles>,
    requests: &Arc<Requests>,
    syncs: FsyncMeaning,
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
    files: &OpenFiles,
    requests: &Requests,
    receiver: &Mutex<Receiver<(u32, Request<Handle>)>>,
    syncs: FsyncMeaning,
) {
    let mut buffer = CallBuffer::default();
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
