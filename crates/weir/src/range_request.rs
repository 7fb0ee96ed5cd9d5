//! A request to change ranges of files together: the daemon's side of [`client::RangeVector`].
//!
//! The client sends open files along. The kernel checked the client's rights when it opened them, so the daemon looks only at how
//! they are open. All changed files are of one mounted volume. Files that are only read may be of others.

use crate::mounted_volume::MountedVolume;
use crate::store_daemon::{RequestRefusal, StoreDaemon};
use client::{FilePlace, RangeChange, RangesReply};
use fs::{
    BATCH_BYTES_MAX, BATCH_CHANGES_MAX, BATCH_COMPARED_BYTES_MAX, BatchChange, BatchPlace, BatchSource, Fs,
    FsCompletion, FsError, Ino,
};
use rustix::fs::{AtFlags, FileType, OFlags, SealFlags, StatxFlags, fcntl_get_seals, fcntl_getfl, statx};
use serde_json::Value;
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::mpsc::channel;
use store::VolumeMode;

/// Changes the ranges of a request, and answers when they are durable.
pub(crate) fn answer(
    daemon: &StoreDaemon,
    request: &Value,
    descriptors: Vec<OwnedFd>,
) -> Result<Value, RequestRefusal> {
    let not_ranges = |error| refused(&format!("not a list of ranges: {error}"));
    let changes: Vec<RangeChange> = serde_json::from_value(request["ranges"].clone()).map_err(not_ranges)?;
    let files = OpenFiles::of(daemon, &changes, descriptors)?;
    let Some(target) = files.target(&changes) else { return Ok(reply(RangesReply::Changed)) };
    let changed = files.changed_ranges(&changes, target)?;
    let batch = files.batch(&changes, target)?;
    let fs = &target.fs;
    for (file, _) in &changed {
        if fs.is_privileged(file.ino) {
            wait(|done| fs.drop_privileges(file.ino, done))?.map_err(refusal)?;
            // Before anybody could run the new content with the old rights. Any range takes the attributes with it.
            file.mounted.forget_in_kernel(file.ino, 0..1);
        }
    }
    match wait(|done| fs.apply_batch_within_sizes(batch, done))? {
        Ok(()) => {}
        Err(FsError::Differs { part }) => return Ok(reply(RangesReply::Differs { range: part })),
        Err(FsError::Busy) => return Ok(reply(RangesReply::Busy)),
        Err(error) => return Err(refusal(error)),
    }
    for (file, range) in changed {
        file.mounted.forget_in_kernel(file.ino, range);
    }
    // No part of a batch bypasses the buffer.
    wait(|done| fs.sync_names(done))?.map_err(refusal)?;
    Ok(reply(RangesReply::Changed))
}

/// A file of a mounted volume that a client has open.
struct OpenFile {
    mounted: Arc<MountedVolume>,
    fs: Fs,
    ino: Ino,
    is_readable: bool,
    is_writable: bool,
    /// Keeps the kernel from forgetting the file, whose number another one could get then.
    _descriptor: OwnedFd,
}

impl OpenFile {
    /// The file behind a descriptor. Asks no file system: the descriptor may be of one that never answers.
    fn of(descriptor: OwnedFd, daemon: &StoreDaemon) -> Result<OpenFile, RequestRefusal> {
        let unusable = |_| refused("a descriptor that cannot be used");
        let flags = fcntl_getfl(&descriptor).map_err(unusable)?;
        let mode = flags & OFlags::RWMODE;
        let is_open = !flags.contains(OFlags::PATH);
        let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(&descriptor, c"", at, StatxFlags::INO | StatxFlags::TYPE).map_err(unusable)?;
        let device = (found.stx_dev_major, found.stx_dev_minor);
        let mounted = daemon.mounts().into_iter().find(|mounted| mounted.device == device);
        let is_file = FileType::from_raw_mode(found.stx_mode.into()) == FileType::RegularFile;
        let open = mounted.filter(|_| is_file).and_then(|mounted| Some((mounted.fs()?, mounted)));
        let Some((fs, mounted)) = open else {
            let help = "all files must be on mounts of one store; to copy a file from elsewhere, use `cp`";
            let why = "not a file of a volume that this daemon has mounted";
            return Err(RequestRefusal::new(&why, Some(help.into())));
        };
        Ok(OpenFile {
            mounted,
            fs,
            ino: Ino(found.stx_ino),
            is_readable: is_open && mode != OFlags::WRONLY,
            is_writable: is_open && mode != OFlags::RDONLY,
            _descriptor: descriptor,
        })
    }

    fn is_of_volume_of(&self, other: &OpenFile) -> bool {
        self.mounted.volume.id == other.mounted.volume.id
    }

    fn is_same_as(&self, other: &OpenFile) -> bool {
        self.is_of_volume_of(other) && self.ino == other.ino
    }
}

/// The files of a request, and the bytes that it writes.
struct OpenFiles {
    files: Vec<OpenFile>,
    /// The bytes of all writes, one after the other.
    written: Vec<u8>,
}

impl OpenFiles {
    /// Opens what came along, and checks the limits of the request.
    fn of(
        daemon: &StoreDaemon,
        changes: &[RangeChange],
        mut descriptors: Vec<OwnedFd>,
    ) -> Result<OpenFiles, RequestRefusal> {
        if changes.len() > BATCH_CHANGES_MAX {
            return Err(refused(&format!("more than {BATCH_CHANGES_MAX} ranges")));
        }
        let (mut written_bytes, mut compared_bytes) = (0_u64, 0_u64);
        for change in changes {
            match change {
                RangeChange::Write { len, .. } => written_bytes = written_bytes.saturating_add(*len),
                RangeChange::ExpectEqual { len, .. } => compared_bytes = compared_bytes.saturating_add(*len),
                _ => {}
            }
        }
        if written_bytes > BATCH_BYTES_MAX as u64 {
            return Err(refused(&format!("more than {BATCH_BYTES_MAX} bytes are written")));
        }
        if compared_bytes > BATCH_COMPARED_BYTES_MAX {
            return Err(refused(&format!("more than {BATCH_COMPARED_BYTES_MAX} bytes are compared")));
        }
        let has_writes = changes.iter().any(|change| matches!(change, RangeChange::Write { .. }));
        let bytes = if has_writes { descriptors.pop() } else { None };
        let numbers = changes.iter().flat_map(|change| places(change).into_iter().map(|place| place.file));
        if numbers.max().map_or(0, |last| last.saturating_add(1)) != descriptors.len() {
            return Err(refused("not as many open files as the ranges name"));
        }
        let written = bytes.map_or(Ok(Vec::new()), |memfd| read_memfd(memfd, written_bytes))?;
        let files = descriptors.into_iter().map(|descriptor| OpenFile::of(descriptor, daemon));
        Ok(OpenFiles { files: files.collect::<Result<_, _>>()?, written })
    }

    /// A changed file, whose volume is that of the batch; the first file if none is changed.
    fn target(&self, changes: &[RangeChange]) -> Option<&OpenFile> {
        let changed = changes.iter().find_map(|change| changed_ranges(change).next());
        changed.map(|(place, _)| &self.files[place.file]).or(self.files.first())
    }

    fn readable(&self, place: &FilePlace) -> Result<&OpenFile, RequestRefusal> {
        let file = &self.files[place.file];
        if file.is_readable { Ok(file) } else { Err(refused("a file that is not open for reading")) }
    }

    /// The ranges that the request changes. Refuses those that overlap each other or a source, that are not open for
    /// writing, or of another volume than `target`.
    fn changed_ranges(
        &self,
        changes: &[RangeChange],
        target: &OpenFile,
    ) -> Result<Vec<(&OpenFile, Range<u64>)>, RequestRefusal> {
        let range = |place: &FilePlace, len: u64| match place.offset.checked_add(len) {
            Some(end) => Ok((&self.files[place.file], place.offset..end)),
            None => Err(refused("a range that ends behind the largest offset")),
        };
        let changed = changes.iter().flat_map(changed_ranges).map(|(place, len)| range(place, len));
        let changed = changed.collect::<Result<Vec<_>, _>>()?;
        let read = changes.iter().filter_map(|change| match change {
            RangeChange::Clone { from, len, .. } => Some(range(from, *len)),
            _ => None,
        });
        let read = read.collect::<Result<Vec<_>, _>>()?;
        for (index, (file, range)) in changed.iter().enumerate() {
            if !file.is_writable {
                return Err(refused("a file that is not open for writing"));
            }
            if !file.is_of_volume_of(target) {
                return Err(refused("files of several volumes are changed"));
            }
            let overlaps = |(other, of_other): &&(&OpenFile, Range<u64>)| {
                file.is_same_as(other) && range.start < of_other.end && of_other.start < range.end
            };
            if changed[..index].iter().chain(&read).find(overlaps).is_some() {
                return Err(refused("a changed range that overlaps another range of the request"));
            }
        }
        Ok(changed)
    }

    /// The changes, as the file system of `target` takes them.
    fn batch(&self, changes: &[RangeChange], target: &OpenFile) -> Result<Vec<BatchChange>, RequestRefusal> {
        let mut written = self.written.as_slice();
        let ino = |place: &FilePlace| self.files[place.file].ino;
        let batch = changes.iter().map(|change| {
            Ok(match *change {
                RangeChange::Write { to, len } => {
                    let (bytes, rest) = written.split_at(len as usize);
                    written = rest;
                    BatchChange::Write { ino: ino(&to), offset: to.offset, bytes: bytes.to_vec() }
                }
                RangeChange::Clone { from, to, len } => {
                    let from = BatchPlace { source: self.source(&from, target)?, offset: from.offset };
                    BatchChange::Clone { from, len, to: ino(&to), at: to.offset }
                }
                RangeChange::Move { from, to, len } => {
                    self.readable(&from)?;
                    let (offset, at) = (from.offset, to.offset);
                    BatchChange::Move { from: ino(&from), offset, len, to: ino(&to), at }
                }
                RangeChange::Delete { at, len } => {
                    BatchChange::Punch { ino: ino(&at), offset: at.offset, len }
                }
                RangeChange::ExpectEqual { one, other, len } => BatchChange::ExpectEqual {
                    one: self.compared(&one, target)?,
                    other: self.compared(&other, target)?,
                    len,
                },
            })
        });
        batch.collect()
    }

    /// A file that is read, as the file system of `target` names it.
    fn source(&self, place: &FilePlace, target: &OpenFile) -> Result<BatchSource, RequestRefusal> {
        let file = self.readable(place)?;
        if file.is_of_volume_of(target) {
            return Ok(BatchSource::Here(file.ino));
        }
        file.fs.copy_source(file.ino).map(BatchSource::Elsewhere).map_err(refusal)
    }

    fn compared(&self, place: &FilePlace, target: &OpenFile) -> Result<BatchPlace, RequestRefusal> {
        let file = self.readable(place)?;
        if !file.is_of_volume_of(target) && file.mounted.volume.mode != VolumeMode::ReadOnly {
            return Err(refused("a compared file of another volume, which is not read-only"));
        }
        Ok(BatchPlace { source: self.source(place, target)?, offset: place.offset })
    }
}

/// The places that a change names.
fn places(change: &RangeChange) -> [FilePlace; 2] {
    match *change {
        RangeChange::Write { to: at, .. } | RangeChange::Delete { at, .. } => [at, at],
        RangeChange::Clone { from, to, .. } | RangeChange::Move { from, to, .. } => [from, to],
        RangeChange::ExpectEqual { one, other, .. } => [one, other],
    }
}

/// The ranges that a change changes: where they begin, and their length.
fn changed_ranges(change: &RangeChange) -> impl Iterator<Item = (&FilePlace, u64)> {
    let (one, other) = match change {
        RangeChange::Write { to: at, len }
        | RangeChange::Delete { at, len }
        | RangeChange::Clone { to: at, len, .. } => (Some((at, *len)), None),
        RangeChange::Move { from, to, len } => (Some((to, *len)), Some((from, *len))),
        RangeChange::ExpectEqual { .. } => (None, None),
    };
    one.into_iter().chain(other)
}

/// The content of a memfd, which nobody can change any more. Reads no other file: that may be of a file system that never
/// answers.
fn read_memfd(descriptor: OwnedFd, len: u64) -> Result<Vec<u8>, RequestRefusal> {
    let is_sealed = |seals: SealFlags| seals.contains(SealFlags::WRITE | SealFlags::SHRINK);
    if !fcntl_get_seals(&descriptor).is_ok_and(is_sealed) {
        return Err(refused("the bytes to be written are not in a sealed memfd"));
    }
    let mut bytes = vec![0; len as usize];
    let short = |_| refused("the memfd has fewer bytes than the ranges");
    File::from(descriptor).read_exact_at(&mut bytes, 0).map_err(short)?;
    Ok(bytes)
}

fn reply(outcome: RangesReply) -> Value {
    serde_json::to_value(outcome).expect("a reply has string keys")
}

fn refused(why: &str) -> RequestRefusal {
    let help = "shared ranges are whole pages of 4096 bytes within their files: see `weir cp --help`";
    RequestRefusal::new(&why, Some(help.into()))
}

fn refusal(error: FsError) -> RequestRefusal {
    match error {
        FsError::BadRange(why) => refused(why),
        other => RequestRefusal::new(&other, other.help()),
    }
}

/// Calls an operation, and waits for its outcome.
fn wait<T: Send + 'static>(
    operation: impl FnOnce(FsCompletion<T>),
) -> Result<Result<T, FsError>, RequestRefusal> {
    let (tell, told) = channel();
    operation(Box::new(move |outcome| drop(tell.send(outcome))));
    told.recv().map_err(|_| refused("the daemon is ending"))
}
