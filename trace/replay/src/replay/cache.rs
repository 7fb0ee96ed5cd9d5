//! The page cache at the beginning of a replay.

use rustix::fs::{Advice, CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use trace_file::{CompiledTrace, InitialKind, TraceError};

const DROP: &str = "/proc/sys/vm/drop_caches";
/// Bytes read at a time.
const CHUNK: u64 = 1 << 20;

/// The state of the page cache before the first action. The built tree is on the device in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StartCache {
    /// As building the tree left it.
    AsBuilt,
    /// Empty of the tree's files.
    Cold,
    /// Filled with the tree's files, each read once, as far as there is space.
    Warm,
}

/// Empties or fills the page cache. Create it before the process is confined, because it opens the kernel's
/// drop_caches file.
#[derive(Debug)]
pub struct CacheControl {
    wanted: StartCache,
    switch: Option<File>,
    cold_below: Option<PathBuf>,
}

impl CacheControl {
    /// A control for the wanted state. Without root, single files are dropped instead of all caches.
    pub fn new(wanted: StartCache) -> CacheControl {
        let switch =
            (wanted == StartCache::Cold).then(|| File::options().write(true).open(DROP).ok()).flatten();
        CacheControl { wanted, switch, cold_below: None }
    }

    /// Makes a cold cache apply only below this directory of the tree. Other files, such as a program's
    /// libraries, are read into memory again.
    pub fn cold_below(self, directory: Option<PathBuf>) -> CacheControl {
        CacheControl { cold_below: directory, ..self }
    }

    /// Brings the cache into the wanted state after the tree was built. Returns a text that says what was
    /// done.
    pub fn apply(mut self, compiled: &CompiledTrace) -> Result<String, TraceError> {
        let root = open(b"/").map_err(|error| TraceError::io("opening", "/")(error.into()))?;
        rustix::fs::syncfs(&root).map_err(|error| TraceError::io("syncing", "/")(error.into()))?;
        let dropped = self.switch.as_mut().is_some_and(|switch| switch.write_all(b"3\n").is_ok());
        let files = compiled.tree.iter().filter(|initial| matches!(initial.kind, InitialKind::File(_)));
        let files = files.map(|initial| compiled.names.bytes(initial.path));
        let done = match (self.wanted, dropped) {
            (StartCache::AsBuilt, _) => "as building the tree left it",
            (StartCache::Cold, true) => "cold: the whole machine's caches were dropped",
            (StartCache::Cold, false) => {
                for file in files.filter_map(|path| open(path).ok()) {
                    // This is advice: a file system that ignores it keeps its pages.
                    let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
                }
                "cold: each file's pages were dropped; names and attributes may be in memory"
            }
            (StartCache::Warm, _) => {
                read_all(files);
                "warm: every file was read"
            }
        };
        Ok(match (self.wanted, &self.cold_below) {
            (StartCache::Cold, Some(directory)) => format!("{done}; {}", warm_others(compiled, directory)),
            _ => done.into(),
        })
    }
}

fn read_all<'a>(files: impl Iterator<Item = &'a [u8]>) {
    let mut buffer = vec![0; CHUNK as usize];
    for file in files.filter_map(|path| open(path).ok()) {
        while rustix::io::read(&file, &mut buffer).is_ok_and(|got| got > 0) {}
    }
}

/// Reads the tree's files outside of `directory` into memory, and directories with their entries.
fn warm_others(compiled: &CompiledTrace, directory: &Path) -> String {
    let elsewhere = compiled.tree.iter().filter(|initial| {
        !Path::new(OsStr::from_bytes(compiled.names.bytes(initial.path))).starts_with(directory)
    });
    let mut files = Vec::new();
    for initial in elsewhere {
        let path = compiled.names.bytes(initial.path);
        match initial.kind {
            InitialKind::Directory => {
                // A program without access to a directory has none of its entries in memory.
                let listed = std::fs::read_dir(OsStr::from_bytes(path));
                listed.into_iter().flatten().flatten().for_each(|entry| drop(entry.metadata()));
            }
            InitialKind::File(_) => files.push(path),
            _ => {}
        }
    }
    read_all(files.into_iter());
    format!("what is not below {} was read again", directory.display())
}

fn open(path: &[u8]) -> Result<rustix::fd::OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
}
