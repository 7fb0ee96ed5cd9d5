//! The directory in which a replay builds its tree and runs. This code makes the directory and chooses its
//! name.
//!
//! ```text
//! TARGET/weir-replay-PID-N/    owned by the user, mode 0700; "weir-replay-tree" if kept for the next replay,
//! │                            "weir-replay-kept-PID-N" if kept for the user
//! ├── lock                     held as long as a process of the replay lives
//! └── tree/                    becomes the replay's root directory
//! ```
//!
//! Directories are removed or emptied through descriptors that were checked when opened. A process that may
//! rename files in the target can put other directories in their places, but those are never touched.

use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, FileType, FlockOperation, Mode, OFlags, flock, fstat, mkdirat, openat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use std::io;
use std::path::{Path, PathBuf};
use trace_file::TraceError;

/// The beginning of the names of replay directories.
const PREFIX: &str = "weir-replay-";
/// The name of the directory that is kept for the next replay.
const REUSED: &str = "weir-replay-tree";
const LOCK: &str = "lock";
const TREE: &str = "tree";

/// The fate of a replay's directory after the replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterReplay {
    /// Removed after the replay.
    Removed,
    /// Kept for the user to inspect.
    Kept,
    /// Kept for the next replay.
    Reused,
}

/// A replay's directory.
#[derive(Debug)]
pub struct ReplaySandbox {
    path: PathBuf,
    home: OwnedFd,
    tree: OwnedFd,
    /// Held while this replay lives, so that other replays leave the directory alone.
    _lock: OwnedFd,
    stay: AfterReplay,
}

impl ReplaySandbox {
    /// Makes a directory below `target`, or takes the reusable one of an earlier replay.
    pub fn new(target: &Path, stay: AfterReplay) -> Result<ReplaySandbox, TraceError> {
        match stay {
            AfterReplay::Reused => {
                let path = target.join(REUSED);
                match mkdirat(CWD, &path, Mode::RWXU) {
                    Ok(()) => {
                        ReplaySandbox::make(path.clone(), stay).map_err(TraceError::target("creating", path))
                    }
                    Err(Errno::EXIST) => ReplaySandbox::take(path),
                    Err(errno) => Err(TraceError::target("creating", path)(errno.into())),
                }
            }
            AfterReplay::Removed => ReplaySandbox::with_new_name(target, PREFIX, stay),
            AfterReplay::Kept => ReplaySandbox::with_new_name(target, "weir-replay-kept-", stay),
        }
    }

    fn with_new_name(target: &Path, prefix: &str, stay: AfterReplay) -> Result<ReplaySandbox, TraceError> {
        for number in 0u32.. {
            let path = target.join(format!("{prefix}{}-{number}", std::process::id()));
            let made = mkdirat(CWD, &path, Mode::RWXU).map_err(io::Error::from);
            match made.and_then(|()| ReplaySandbox::make(path.clone(), stay)) {
                Ok(sandbox) => return Ok(sandbox),
                // Another replay has this name, or took the directory for an abandoned one before its lock
                // was taken.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    // A directory that could not be set up is still empty, or not ours.
                    let _ = std::fs::remove_dir(&path);
                    return Err(TraceError::target("creating", path)(error));
                }
            }
        }
        Err(TraceError::target("creating", target)(Errno::EXIST.into()))
    }

    /// Sets up a directory that was just made. The directory must be our own and empty.
    fn make(path: PathBuf, stay: AfterReplay) -> io::Result<ReplaySandbox> {
        let home = open_own(CWD, &path)?;
        if std::fs::read_dir(by_descriptor(&home, ""))?.next().is_some() {
            return Err(Errno::EXIST.into());
        }
        let new = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = openat(&home, LOCK, new, Mode::RUSR | Mode::WUSR)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        mkdirat(&home, TREE, Mode::from_raw_mode(0o755))?;
        let tree = open_own(home.as_fd(), Path::new(TREE))?;
        Ok(ReplaySandbox { path, home, tree, _lock: lock, stay })
    }

    /// Takes the directory that an earlier replay has left.
    fn take(path: PathBuf) -> Result<ReplaySandbox, TraceError> {
        let open = || -> io::Result<ReplaySandbox> {
            let home = open_own(CWD, &path)?;
            let lock = take_lock(&home)?;
            match mkdirat(&home, TREE, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno.into()),
            }
            let tree = open_own(home.as_fd(), Path::new(TREE))?;
            Ok(ReplaySandbox { path: path.clone(), home, tree, _lock: lock, stay: AfterReplay::Reused })
        };
        let not_ours = |why| TraceError::NotOurs { path: path.clone(), why };
        open().map_err(|source| match source.kind() {
            io::ErrorKind::WouldBlock => TraceError::TreeInUse { path: path.clone() },
            io::ErrorKind::NotADirectory => not_ours("it, or what is in it, is no directory".into()),
            io::ErrorKind::NotFound => not_ours("there is no lock of a replay in it".into()),
            _ => not_ours(source.to_string()),
        })
    }

    /// The path of the tree.
    pub fn path(&self) -> PathBuf {
        self.path.join(TREE)
    }

    /// Whether the root directory of this process is that tree.
    pub(super) fn is_root(&self) -> io::Result<bool> {
        let (tree, root) = (fstat(&self.tree)?, rustix::fs::stat("/")?);
        Ok((tree.st_dev, tree.st_ino) == (root.st_dev, root.st_ino))
    }

    /// Removes the directory, unless it is to be kept. A directory that is already removed is no error.
    pub fn remove(&self) -> Result<(), TraceError> {
        match self.stay {
            AfterReplay::Removed => {
                remove(&self.path, &self.home).map_err(TraceError::target("removing", &self.path))
            }
            AfterReplay::Kept | AfterReplay::Reused => Ok(()),
        }
    }

    /// Removes the directories in `target` of replays whose processes were all killed. Returns their paths.
    pub fn remove_left(target: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(target).into_iter().flatten().filter_map(Result::ok);
        let left = |path: &PathBuf| {
            let name =
                path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(PREFIX));
            let numbers = |name: &str| name.split('-').all(|part| part.parse::<u32>().is_ok());
            let is_left = || -> io::Result<()> {
                let home = open_own(CWD, path)?;
                let _lock = take_lock(&home)?;
                remove(path, &home)
            };
            // Directories that are in use or not our own are left alone.
            name.is_some_and(numbers) && is_left().is_ok()
        };
        entries.map(|entry| entry.path()).filter(left).collect()
    }
}

/// Opens a directory that belongs to this user. A link to one is refused.
fn open_own(at: impl AsFd, path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let dir = openat(at, path, flags, Mode::empty())?;
    if fstat(&dir)?.st_uid != geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user's directory"));
    }
    Ok(dir)
}

/// Takes the lock in a replay's directory. A failure means that the directory is in use or not a replay's.
fn take_lock(home: &OwnedFd) -> io::Result<OwnedFd> {
    let lock = openat(home, LOCK, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = fstat(&lock)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile || found.st_uid != geteuid().as_raw() {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "its lock is not a replay's"));
    }
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

/// Removes the tree, then the lock, which marks the directory as a replay's.
fn remove(path: &Path, home: &OwnedFd) -> io::Result<()> {
    let gone = |result: io::Result<()>| match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    };
    gone(std::fs::remove_dir_all(by_descriptor(home, TREE)))?;
    gone(unlinkat(home, LOCK, AtFlags::empty()).map_err(Into::into))?;
    // Another directory may have this name now, but only an empty one is removed.
    gone(std::fs::remove_dir(path))
}

fn by_descriptor(dir: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd())).join(name)
}
