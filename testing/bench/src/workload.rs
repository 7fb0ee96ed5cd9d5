//! Loads of small writes: overwrites of un-cached pages, each once, in random order, by one thread; and a
//! bare loop.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::ops::AddAssign;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use device::SeededRng;
use serde::{Serialize, Serializer};
use serde_json::json;

use super::error::BenchError;

/// Bytes of a page.
pub(super) const PAGE_BYTES: u64 = device::BLOCK_BYTES as u64;

/// Size of a write in [`lay_out`], large enough for one long sequential write on every system.
const LAYOUT_BYTES: usize = 1 << 20;

/// Whether each write is made durable before the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SyncMode {
    Never,
    EachWrite,
}

/// Operations done, and the time they took.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct WorkDone {
    pub(super) writes: u64,
    pub(super) elapsed: Duration,
}

/// With the rate, as reports have it.
impl Serialize for WorkDone {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let seconds = self.elapsed.as_secs_f64();
        json!({ "writes": self.writes, "seconds": seconds, "writes_per_s": self.rate() })
            .serialize(serializer)
    }
}

impl AddAssign for WorkDone {
    fn add_assign(&mut self, more: WorkDone) {
        self.writes += more.writes;
        self.elapsed += more.elapsed;
    }
}

impl WorkDone {
    /// Writes per second.
    pub(super) fn rate(self) -> f64 {
        self.writes as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }
}

/// Creates a file of `pages` pages without zeros, durable on return as far as the system's fsync ensures.
pub(super) fn lay_out(path: &Path, pages: u64) -> Result<(), BenchError> {
    let write = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        let chunk: Vec<u8> = (0..LAYOUT_BYTES).map(|index| (index % 251) as u8 | 1).collect();
        let mut left = pages * PAGE_BYTES;
        while left > 0 {
            let count = left.min(chunk.len() as u64);
            file.write_all(&chunk[..count as usize])?;
            left -= count;
        }
        file.sync_all()
    };
    write().map_err(|error| BenchError::io("cannot lay out", path, error))
}

/// Makes a file durable.
pub(super) fn sync(path: &Path) -> Result<(), BenchError> {
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(|error| BenchError::io("cannot sync", path, error))
}

/// The pages `0..pages` in random order.
pub(super) fn shuffled(pages: u64, random: &mut SeededRng) -> Vec<u64> {
    let mut order: Vec<u64> = (0..pages).collect();
    for last in (1..order.len()).rev() {
        order.swap(last, random.below(last as u64 + 1) as usize);
    }
    order
}

/// Overwrites part of each page of a file once.
pub(super) struct PageOverwriter {
    file: File,
    path: std::path::PathBuf,
    order: std::vec::IntoIter<u64>,
    random: SeededRng,
    bytes: Vec<u8>,
}

impl PageOverwriter {
    /// Opens `path` to overwrite `bytes` bytes, a power of two up to a page, in each of its `pages` pages.
    pub(super) fn open(path: &Path, pages: u64, bytes: u64, seed: u64) -> Result<PageOverwriter, BenchError> {
        assert!(bytes.is_power_of_two() && bytes <= PAGE_BYTES, "{bytes} bytes do not divide a page");
        // Write-only, so that no system has a reason to fetch pages.
        let file = OpenOptions::new()
            .write(true)
            .open(path)
            .map_err(|error| BenchError::io("cannot open", path, error))?;
        let mut random = SeededRng::new(seed);
        let order = shuffled(pages, &mut random).into_iter();
        let bytes = (0..bytes).map(|_| random.next_u64() as u8).collect();
        Ok(PageOverwriter { file, path: path.to_path_buf(), order, random, bytes })
    }

    /// Writes for at most `limit` and `writes_max` writes, or until no page is left.
    pub(super) fn run(
        &mut self,
        writes_max: u64,
        limit: Duration,
        sync: SyncMode,
    ) -> Result<WorkDone, BenchError> {
        let start = Instant::now();
        let mut done = WorkDone::default();
        while done.writes < writes_max && done.elapsed < limit {
            let Some(page) = self.order.next() else { break };
            self.write(page, sync).map_err(|error| BenchError::io("cannot write", &self.path, error))?;
            done.writes += 1;
            done.elapsed = start.elapsed();
        }
        Ok(done)
    }

    fn write(&mut self, page: u64, sync: SyncMode) -> std::io::Result<()> {
        let size = self.bytes.len() as u64;
        let offset = page * PAGE_BYTES + self.random.below(PAGE_BYTES / size) * size;
        self.file.write_all_at(&self.bytes, offset)?;
        match sync {
            SyncMode::Never => Ok(()),
            SyncMode::EachWrite => self.file.sync_data(),
        }
    }
}

/// The best that a buffer's disk can do: small writes with fdatasync over one laid-out, cached file.
///
/// The writes go from the file's start to its end, again and again.
pub(super) struct BareLoop {
    file: File,
    path: std::path::PathBuf,
    bytes: Vec<u8>,
    offset: u64,
}

impl BareLoop {
    /// Small enough to stay cached: the bare loop must not fetch.
    const FILE_PAGES: u64 = 1024;

    pub(super) fn create(path: &Path, bytes: u64) -> Result<BareLoop, BenchError> {
        lay_out(path, BareLoop::FILE_PAGES)?;
        let file = OpenOptions::new()
            .write(true)
            .open(path)
            .map_err(|error| BenchError::io("cannot open", path, error))?;
        Ok(BareLoop { file, path: path.to_path_buf(), bytes: vec![0x5a; bytes as usize], offset: 0 })
    }

    pub(super) fn run(&mut self, limit: Duration) -> Result<WorkDone, BenchError> {
        let start = Instant::now();
        let mut done = WorkDone::default();
        while done.elapsed < limit {
            self.file
                .write_all_at(&self.bytes, self.offset)
                .and_then(|()| self.file.sync_data())
                .map_err(|error| BenchError::io("cannot write", &self.path, error))?;
            self.offset = (self.offset + self.bytes.len() as u64) % (BareLoop::FILE_PAGES * PAGE_BYTES);
            done.writes += 1;
            done.elapsed = start.elapsed();
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_comes_once() {
        let mut order = shuffled(1000, &mut SeededRng::new(3));
        assert_ne!(order, (0..1000).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn an_overwriter_changes_only_its_bytes_and_stops_when_no_page_is_left() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        lay_out(&path, 8).expect("layout");
        let before = std::fs::read(&path).expect("read");
        let mut load = PageOverwriter::open(&path, 8, 64, 1).expect("open");
        let done = load.run(100, Duration::from_secs(60), SyncMode::EachWrite).expect("writes");
        assert_eq!(done.writes, 8);
        let after = std::fs::read(&path).expect("read");
        assert_eq!(after.len(), before.len());
        for page in 0..8 {
            let bytes = page * PAGE_BYTES as usize..(page + 1) * PAGE_BYTES as usize;
            let changed =
                before[bytes.clone()].iter().zip(&after[bytes]).filter(|(old, new)| old != new).count();
            assert!((1..=64).contains(&changed), "page {page}: {changed} bytes changed");
        }
    }
}
