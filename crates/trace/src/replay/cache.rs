//! What is in memory when a replay begins.

use crate::benchmark::{Benchmark, InitialKind};
use crate::error::TraceError;
use rustix::fs::{Advice, CWD, Mode, OFlags};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;

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
    /// The tree's files, each read once, as far as there is room.
    Warm,
}

/// Empties or fills the cache. It is made before the process is confined, because only then can it open the kernel's switch.
#[derive(Debug)]
pub struct CacheControl {
    wanted: Cache,
    switch: Option<File>,
}

impl CacheControl {
    /// For that state; without root, single files are dropped instead of everything.
    pub fn new(wanted: Cache) -> CacheControl {
        let switch = (wanted == Cache::Cold).then(|| File::options().write(true).open(DROP).ok()).flatten();
        CacheControl { wanted, switch }
    }

    /// Brings the cache into that state, after the tree was built, and says what was done.
    pub fn apply(mut self, benchmark: &Benchmark) -> Result<&'static str, TraceError> {
        let root = open(b"/").map_err(|error| TraceError::io("opening", "/")(error.into()))?;
        rustix::fs::syncfs(&root).map_err(|error| TraceError::io("syncing", "/")(error.into()))?;
        let dropped = self.switch.as_mut().is_some_and(|switch| switch.write_all(b"3\n").is_ok());
        let files = benchmark.tree.iter().filter(|initial| matches!(initial.kind, InitialKind::File(_)));
        let files = files.filter_map(|initial| open(benchmark.names.bytes(initial.path)).ok());
        Ok(match (self.wanted, dropped) {
            (Cache::AsBuilt, _) => "as building the tree left it",
            (Cache::Cold, true) => "cold: the whole machine's caches were dropped",
            (Cache::Cold, false) => {
                for file in files {
                    // Advice: a file system that takes none keeps its pages.
                    let _ = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed);
                }
                "cold: each file's pages were dropped; names and attributes may be in memory"
            }
            (Cache::Warm, _) => {
                let mut buffer = vec![0; CHUNK as usize];
                files.for_each(|file| while rustix::io::read(&file, &mut buffer).is_ok_and(|got| got > 0) {});
                "warm: every file was read"
            }
        })
    }
}

fn open(path: &[u8]) -> Result<rustix::fd::OwnedFd, Errno> {
    rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
}
