//! What is in memory when a replay begins.

use rustix::fs::{Advice, CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use trace_file::{Benchmark, InitialKind, TraceError};

const DROP: &str = "/proc/sys/vm/drop_caches";
/// Bytes read at a time.
const CHUNK: u64 = 1 << 20;

/// What should be in memory when the first action begins. Everything built is on the device in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cache {
    /// What building the tree left there.
    AsBuilt,
    /// Nothing of the tree.
    Cold,
    /// The tree's files, each read once, as far as there is space.
    Warm,
}

/// Empties or fills the cache. It is made before the process is confined, because only then can it open the kernel's switch.
#[derive(Debug)]
pub struct CacheControl {
    wanted: Cache,
    switch: Option<File>,
    cold_below: Option<PathBuf>,
}

impl CacheControl {
    /// For that state; without root, single files are dropped instead of everything.
    pub fn new(wanted: Cache) -> CacheControl {
        let switch = (wanted == Cache::Cold).then(|| File::options().write(true).open(DROP).ok()).flatten();
        CacheControl { wanted, switch, cold_below: None }
    }

    /// A cold cache is one that holds nothing below that directory of the tree; what lies elsewhere, such as a program's
    /// libraries, is read again.
    pub fn cold_below(self, directory: Option<PathBuf>) -> CacheControl {
        CacheControl { cold_below: directory, ..self }
    }

    /// Brings the cache into that state, after the tree was built, and says what was done.
    pub fn apply(mut self, benchmark: &Benchmark) -> Result<String, TraceError> {
        let root = open(b"/").map_err(|error| TraceError::io("opening", "/")(error.into()))?;
        rustix::fs::syncfs(&root).map_err(|error| TraceError::io("syncing", "/")(error.into()))?;
        let dropped = self.switch.as_mut().is_some_and(|switch| switch.write_all(b"3\n").is_ok());
        let files = benchmark.tree.iter().filter(|initial| matches!(initial.kind, InitialKind::File(_)));
        let files = files.map(|initial| benchmark.names.bytes(initial.path));
        let done = match (self.wanted, dropped) {
            (Cache::AsBuilt, _) => "as building the tree left it",
            (Cache::Cold, true) => "cold: the whole machine's caches were dropped",
            (Cache::Cold, false) => {
                for file in files.filter_map(|path| open(path).ok()) {
                    // Advice: a file system that takes none keeps its pages.
                    let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
                }
                "cold: each file's pages were dropped; names and attributes may be in memory"
            }
            (Cache::Warm, _) => {
                read_all(files);
                "warm: every file was read"
            }
        };
        Ok(match (self.wanted, &self.cold_below) {
            (Cache::Cold, Some(directory)) => format!("{done}; {}", warm_others(benchmark, directory)),
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

/// Reads what does not lie below `directory`: files, and directories with their entries.
fn warm_others(benchmark: &Benchmark, directory: &Path) -> String {
    let elsewhere = benchmark.tree.iter().filter(|initial| {
        !Path::new(OsStr::from_bytes(benchmark.names.bytes(initial.path))).starts_with(directory)
    });
    let mut files = Vec::new();
    for initial in elsewhere {
        let path = benchmark.names.bytes(initial.path);
        match initial.kind {
            InitialKind::Directory => {
                // Who may not look into a directory has nothing of it in memory.
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
