//! Builds the initial tree. Call this code in the confined process: the tree's links may point anywhere.

mod delta;

use crate::confine::Confined;
use rustix::fs::{FileType, Mode};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::io::{self, Seek, Write};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use trace_file::{CompiledTrace, Device, InitialFile, InitialKind, TraceError};

/// Bytes written at a time.
const CHUNK: usize = 1 << 20;
/// Space that file systems need besides the contents of files, in bytes.
const RESERVE: u64 = 16 << 20;
/// The kernel's limit on an extended attribute.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;
/// Threads that write files: enough to keep a slow device busy.
const THREADS: usize = 8;
/// How often progress is reported.
const TELL: Duration = Duration::from_millis(100);
/// The mode of directories until everything below is built: open for the owner.
const OPEN_DIRECTORY: u32 = 0o700;

/// The initial tree that was built, in numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuiltTree {
    /// Files, directories and links in the tree.
    pub files: u64,
    /// Bytes in files. All are written except known holes, because holes are faster to read than data.
    pub bytes: u64,
    /// Bytes that had to be written, of the above.
    pub written: u64,
    /// Devices that could not be made and became files.
    pub stand_ins: u64,
    /// Extended attributes that could not be set.
    pub refused_attributes: u64,
}

/// Builds the initial tree of `compiled` in the root directory of this process, which belongs to the replay.
/// Files that are not in the tree are removed. Files that already match are kept, so another build after a
/// replay costs only what the replay changed.
///
/// `tell` is called from time to time with the number of finished files and of all files. If it answers with a break, the tree
/// stays as it is, and `None` is returned.
pub fn initialise(
    _: &Confined,
    compiled: &CompiledTrace,
    tell: &(dyn Fn(usize, usize) -> ControlFlow<()> + Sync),
) -> Result<Option<BuiltTree>, TraceError> {
    build(compiled, Path::new("/"), tell)
}

fn build(
    compiled: &CompiledTrace,
    root: &Path,
    tell: &(dyn Fn(usize, usize) -> ControlFlow<()> + Sync),
) -> Result<Option<BuiltTree>, TraceError> {
    let builder = Builder {
        compiled,
        root,
        tell,
        told: Mutex::new(Instant::now()),
        finished: AtomicUsize::new(0),
        is_stopped: AtomicBool::new(false),
        written: AtomicU64::new(0),
        stand_ins: AtomicU64::new(0),
        refused: AtomicU64::new(0),
    };
    let wanted: BTreeMap<PathBuf, &InitialFile> =
        compiled.tree.iter().map(|initial| (builder.path(initial), initial)).collect();
    delta::remove_others(&wanted, compiled, root)?;
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
    // Some file systems have no size: they report zero blocks.
    if space.f_blocks > 0 && needed > free {
        return Err(TraceError::Space { path: root.into(), needed, free });
    }
    if builder.build()?.is_break() {
        return Ok(None);
    }
    let bytes = compiled.tree.iter().map(|initial| match initial.kind {
        InitialKind::File(bytes) => bytes,
        _ => 0,
    });
    Ok(Some(BuiltTree {
        files: compiled.tree.len() as u64,
        bytes: bytes.fold(0, u64::saturating_add),
        written: builder.written.into_inner(),
        stand_ins: builder.stand_ins.into_inner(),
        refused_attributes: builder.refused.into_inner(),
    }))
}

struct Builder<'a> {
    compiled: &'a CompiledTrace,
    root: &'a Path,
    tell: &'a (dyn Fn(usize, usize) -> ControlFlow<()> + Sync),
    /// When the progress was reported last.
    told: Mutex<Instant>,
    /// Files that are finished.
    finished: AtomicUsize,
    is_stopped: AtomicBool,
    written: AtomicU64,
    stand_ins: AtomicU64,
    refused: AtomicU64,
}

impl Builder<'_> {
    fn path(&self, initial: &InitialFile) -> PathBuf {
        below(self.root, self.compiled.names.bytes(initial.path))
    }

    /// Builds directories first, parents before children, then files in parallel, then links. Modes of
    /// directories come last, because some deny access.
    fn build(&self) -> Result<ControlFlow<()>, TraceError> {
        let of = |wanted: fn(&InitialKind) -> bool| {
            self.compiled.tree.iter().filter(move |initial| wanted(&initial.kind))
        };
        let is_directory = |kind: &InitialKind| matches!(kind, InitialKind::Directory);
        for initial in of(is_directory) {
            self.one(initial, make_directory)?;
        }
        let files: Vec<_> =
            of(|kind| matches!(kind, InitialKind::File(_) | InitialKind::Special(_))).collect();
        self.in_parallel(&files)?;
        if self.is_stopped.load(Ordering::Relaxed) {
            return Ok(ControlFlow::Break(()));
        }
        for initial in of(|kind| matches!(kind, InitialKind::Link(_) | InitialKind::HardLink(_))) {
            self.one(initial, |path| self.link(initial, path))?;
        }
        for initial in of(is_directory) {
            let mode = Permissions::from_mode(initial.mode & 0o7777);
            self.attributes(initial, &self.path(initial));
            self.one(initial, |path| std::fs::set_permissions(path, mode))?;
        }
        Ok(ControlFlow::Continue(()))
    }

    fn one(
        &self,
        initial: &InitialFile,
        make: impl FnOnce(&Path) -> io::Result<()>,
    ) -> Result<(), TraceError> {
        let path = self.path(initial);
        make(&path).map_err(TraceError::target("building", &path))
    }

    fn in_parallel(&self, files: &[&InitialFile]) -> Result<(), TraceError> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<(), TraceError> {
            let content = vec![0x57u8; CHUNK];
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(initial) = files.get(at) else { return Ok(()) };
                // After one failure, the other threads stop.
                self.one(initial, |path| self.file(initial, path, &content))
                    .inspect_err(|_| next.store(files.len(), Ordering::Relaxed))?;
                self.finished.fetch_add(1, Ordering::Relaxed);
                if self.is_told_to_stop() {
                    return Ok(());
                }
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS.min(files.len())).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("building does not panic"))
        })
    }

    /// Reports the progress now and then. Returns whether the build must stop.
    fn is_told_to_stop(&self) -> bool {
        if let Ok(mut told) = self.told.try_lock()
            && told.elapsed() > TELL
        {
            *told = Instant::now();
            let finished = self.finished.load(Ordering::Relaxed);
            if (self.tell)(finished, self.compiled.tree.len()).is_break() {
                self.is_stopped.store(true, Ordering::Relaxed);
            }
        }
        self.is_stopped.load(Ordering::Relaxed)
    }

    fn file(&self, initial: &InitialFile, path: &Path, content: &[u8]) -> io::Result<()> {
        match initial.kind {
            InitialKind::File(bytes) => self.fill(initial, path, bytes, content)?,
            InitialKind::Special(device) if path.symlink_metadata().is_err() => {
                // Without the permission to make devices, a regular file stands for the device.
                if make_device(path, device).is_ok() {
                    return Ok(());
                }
                self.stand_ins.fetch_add(1, Ordering::Relaxed);
                self.fill(initial, path, 0, content)?;
            }
            _ => return Ok(()),
        }
        self.attributes(initial, path);
        // Makes the files as accessible as they were to the program. If the trace does not show the mode, it
        // is a usual one.
        std::fs::set_permissions(path, Permissions::from_mode(initial.mode & 0o7777))
    }

    /// Keeps the existing file, unless it has holes or should have some.
    fn fill(&self, initial: &InitialFile, path: &Path, bytes: u64, content: &[u8]) -> io::Result<()> {
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
                if self.is_told_to_stop() {
                    return Ok(());
                }
            }
            self.written.fetch_add(to - from, Ordering::Relaxed);
        }
        if !whole {
            file.set_len(bytes)?;
        }
        Ok(())
    }

    /// Sets extended attributes. Those that this user or file system does not allow are missing in the
    /// replay, and their results differ.
    fn attributes(&self, initial: &InitialFile, path: &Path) {
        for (name, bytes) in &initial.attributes {
            let value = vec![0x57u8; (*bytes as usize).min(ATTRIBUTE_BYTES_MAX)];
            let name = self.compiled.names.bytes(*name);
            let set = rustix::fs::lsetxattr(path, name, &value, rustix::fs::XattrFlags::empty());
            self.refused.fetch_add(u64::from(set.is_err()), Ordering::Relaxed);
        }
    }

    fn link(&self, initial: &InitialFile, path: &Path) -> io::Result<()> {
        match initial.kind {
            _ if path.symlink_metadata().is_ok() => Ok(()),
            InitialKind::Link(target) => symlink(OsStr::from_bytes(self.compiled.names.bytes(target)), path),
            InitialKind::HardLink(first) => {
                std::fs::hard_link(below(self.root, self.compiled.names.bytes(first)), path)
            }
            _ => Ok(()),
        }
    }
}

/// The parts of a file that are not holes: starts and ends. A hostile trace may have holes out of order.
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

/// Makes a device with the kernel's fixed numbers. Random bytes come from /dev/urandom, which never blocks.
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
