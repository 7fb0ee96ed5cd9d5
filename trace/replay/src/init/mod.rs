//! Builds the initial tree. It must be called in the confined process: the tree's links may point anywhere.

mod delta;

use crate::confine::Confined;
use rustix::fs::{FileType, Mode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use trace_file::{Benchmark, Device, Initial, InitialKind, TraceError};

/// Bytes written at a time.
const CHUNK: usize = 1 << 20;
/// What file systems need besides the bytes of files.
const RESERVE: u64 = 16 << 20;
/// The kernel's limit on an extended attribute.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;
/// Files are written by so many threads: enough to keep a device busy that is slow to answer.
const THREADS: usize = 8;
/// Progress is told that often.
const TELL: Duration = Duration::from_secs(1);
/// A mode that lets its owner in, until everything below is built.
const OPEN_DIRECTORY: u32 = 0o700;

/// What was built.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Built {
    /// Files, directories and links in the tree.
    pub files: u64,
    /// Bytes in files, all written but for known holes: a hole is read faster than what it would stand for.
    pub bytes: u64,
    /// Of these bytes, those that had to be written.
    pub written: u64,
    /// Devices that could not be made and became files.
    pub stand_ins: u64,
    /// Extended attributes that could not be set.
    pub refused_attributes: u64,
}

/// Builds the initial tree of `benchmark` in the root directory of this process, which is a replay's own. What is there already and is not in the tree is removed; files that
/// are as they should be are kept, so building again after a replay costs what the replay changed.
///
/// `tell` hears from time to time how many of how many files are done.
pub fn initialise(
    _: &Confined,
    benchmark: &Benchmark,
    tell: &(dyn Fn(usize, usize) + Sync),
) -> Result<Built, TraceError> {
    build(benchmark, Path::new("/"), tell)
}

fn build(
    benchmark: &Benchmark,
    root: &Path,
    tell: &(dyn Fn(usize, usize) + Sync),
) -> Result<Built, TraceError> {
    let builder = Builder {
        benchmark,
        root,
        tell,
        written: AtomicU64::new(0),
        stand_ins: AtomicU64::new(0),
        refused: AtomicU64::new(0),
    };
    let wanted: BTreeMap<PathBuf, &Initial> =
        benchmark.tree.iter().map(|initial| (builder.path(initial), initial)).collect();
    delta::remove_others(&wanted, benchmark, root)?;
    let missing = wanted.iter().map(|(path, initial)| match initial.kind {
        InitialKind::File(bytes) => {
            bytes.saturating_sub(path.symlink_metadata().map_or(0, |found| found.len()))
        }
        _ => 0,
    });
    let needed = missing.fold(RESERVE, u64::saturating_add);
    let space = rustix::fs::statvfs(root)
        .map_err(|error| TraceError::target("asking for space", root)(error.into()))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    // Some file systems have no size: what they report is nothing at all.
    if space.f_blocks > 0 && needed > free {
        return Err(TraceError::Space { path: root.into(), needed, free });
    }
    builder.build()?;
    let bytes = benchmark.tree.iter().map(|initial| match initial.kind {
        InitialKind::File(bytes) => bytes,
        _ => 0,
    });
    Ok(Built {
        files: benchmark.tree.len() as u64,
        bytes: bytes.fold(0, u64::saturating_add),
        written: builder.written.into_inner(),
        stand_ins: builder.stand_ins.into_inner(),
        refused_attributes: builder.refused.into_inner(),
    })
}

struct Builder<'a> {
    benchmark: &'a Benchmark,
    root: &'a Path,
    tell: &'a (dyn Fn(usize, usize) + Sync),
    written: AtomicU64,
    stand_ins: AtomicU64,
    refused: AtomicU64,
}

impl Builder<'_> {
    fn path(&self, initial: &Initial) -> PathBuf {
        below(self.root, self.benchmark.names.bytes(initial.path))
    }

    /// Directories, parents first; then files, in parallel; then what points at them; modes of directories last, because
    /// some let nobody in.
    fn build(&self) -> Result<(), TraceError> {
        let of = |wanted: fn(&InitialKind) -> bool| {
            self.benchmark.tree.iter().filter(move |initial| wanted(&initial.kind))
        };
        let is_directory = |kind: &InitialKind| matches!(kind, InitialKind::Directory);
        for initial in of(is_directory) {
            self.one(initial, make_directory)?;
        }
        let files: Vec<_> =
            of(|kind| matches!(kind, InitialKind::File(_) | InitialKind::Special(_))).collect();
        self.in_parallel(&files)?;
        for initial in of(|kind| matches!(kind, InitialKind::Link(_) | InitialKind::HardLink(_))) {
            self.one(initial, |path| self.link(initial, path))?;
        }
        for initial in of(is_directory) {
            let mode = Permissions::from_mode(initial.mode & 0o7777);
            self.attributes(initial, &self.path(initial));
            self.one(initial, |path| std::fs::set_permissions(path, mode))?;
        }
        Ok(())
    }

    fn one(&self, initial: &Initial, make: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), TraceError> {
        let path = self.path(initial);
        make(&path).map_err(TraceError::target("building", &path))
    }

    fn in_parallel(&self, files: &[&Initial]) -> Result<(), TraceError> {
        let (next, told) = (AtomicUsize::new(0), Mutex::new(Instant::now()));
        let work = || -> Result<(), TraceError> {
            let content = vec![0x57u8; CHUNK];
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(initial) = files.get(at) else { return Ok(()) };
                // Whoever fails, the others need not go on.
                self.one(initial, |path| self.file(initial, path, &content))
                    .inspect_err(|_| next.store(files.len(), Ordering::Relaxed))?;
                if let Ok(mut told) = told.try_lock()
                    && told.elapsed() > TELL
                {
                    *told = Instant::now();
                    (self.tell)(at + 1, files.len());
                }
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS.min(files.len())).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("building does not panic"))
        })
    }

    fn file(&self, initial: &Initial, path: &Path, content: &[u8]) -> io::Result<()> {
        match initial.kind {
            InitialKind::File(bytes) => self.fill(initial, path, bytes, content)?,
            InitialKind::Special(device) if path.symlink_metadata().is_err() => {
                // Whoever may not make devices gets a file with that name.
                if make_device(path, device).is_ok() {
                    return Ok(());
                }
                self.stand_ins.fetch_add(1, Ordering::Relaxed);
                self.fill(initial, path, 0, content)?;
            }
            _ => return Ok(()),
        }
        self.attributes(initial, path);
        // Whoever replays must be able to use what the program could: permissions that a trace does not show are usual ones.
        std::fs::set_permissions(path, Permissions::from_mode(initial.mode & 0o7777))
    }

    /// Keeps what is there, unless it has holes or should have some.
    fn fill(&self, initial: &Initial, path: &Path, bytes: u64, content: &[u8]) -> io::Result<()> {
        let found = path.symlink_metadata();
        let whole = initial.holes.is_empty();
        if whole && found.as_ref().is_ok_and(|found| delta::is_as_built(found, bytes)) {
            return Ok(());
        }
        if found.is_ok() {
            std::fs::remove_file(path)?;
        }
        let mut file = File::create(path)?;
        for (from, to) in data(bytes, &initial.holes) {
            file.seek(io::SeekFrom::Start(from))?;
            let mut left = to - from;
            while left > 0 {
                let part = left.min(content.len() as u64);
                file.write_all(&content[..part as usize])?;
                left -= part;
            }
            self.written.fetch_add(to - from, Ordering::Relaxed);
        }
        if !whole {
            file.set_len(bytes)?;
        }
        Ok(())
    }

    /// Attributes that this user or this file system does not allow are missing in the replay, and differ there.
    fn attributes(&self, initial: &Initial, path: &Path) {
        for (name, bytes) in &initial.attributes {
            let value = vec![0x57u8; (*bytes as usize).min(ATTRIBUTE_BYTES_MAX)];
            let name = self.benchmark.names.bytes(*name);
            let set = rustix::fs::lsetxattr(path, name, &value, rustix::fs::XattrFlags::empty());
            self.refused.fetch_add(u64::from(set.is_err()), Ordering::Relaxed);
        }
    }

    fn link(&self, initial: &Initial, path: &Path) -> io::Result<()> {
        match initial.kind {
            _ if path.symlink_metadata().is_ok() => Ok(()),
            InitialKind::Link(target) => symlink(OsStr::from_bytes(self.benchmark.names.bytes(target)), path),
            InitialKind::HardLink(first) => {
                std::fs::hard_link(below(self.root, self.benchmark.names.bytes(first)), path)
            }
            _ => Ok(()),
        }
    }
}

/// What of a file is no hole: starts and ends. Holes are in order, as far as a benchmark's author is to be trusted.
fn data(bytes: u64, holes: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut parts = Vec::new();
    let mut at = 0;
    for (start, length) in holes {
        let (start, end) = (bytes.min(*start), bytes.min(start.saturating_add(*length)));
        if at < start {
            parts.push((at, start));
        }
        at = at.max(end);
    }
    if at < bytes {
        parts.push((at, bytes));
    }
    parts
}

fn make_directory(path: &Path) -> io::Result<()> {
    match std::fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let mode = path.symlink_metadata()?.mode() | OPEN_DIRECTORY;
            std::fs::set_permissions(path, Permissions::from_mode(mode & 0o7777))
        }
        made => made,
    }
}

/// The numbers are the kernel's, fixed for ever. Random bytes never block: /dev/urandom.
fn make_device(path: &Path, device: Device) -> rustix::io::Result<()> {
    let mode = Mode::from_raw_mode(0o666);
    let minor = match device {
        Device::Null => 3,
        Device::Zero => 5,
        Device::Random => 9,
        Device::Socket => return rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Socket, mode, 0),
    };
    rustix::fs::mknodat(rustix::fs::CWD, path, FileType::CharacterDevice, mode, rustix::fs::makedev(1, minor))
}

fn below(root: &Path, path: &[u8]) -> PathBuf {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    root.join(OsStr::from_bytes(path))
}

#[cfg(test)]
mod tests;
