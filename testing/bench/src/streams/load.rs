//! The large writes. No two pages that are written are equal.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use device::SeededRng;
use rustix::fs::OFlags;

use super::super::cleanup;
use super::super::device_speed::AlignedBuffer;
use super::super::error::BenchError;
use super::super::workload::{PAGE_BYTES, PageOverwriter, SyncMode, WorkDone, sync};
use super::StreamScale;

/// Size of a stream's writes.
pub(super) const WRITE_BYTES: u64 = 1 << 20;
/// Interval between two checks for a stop.
const SLICE: Duration = Duration::from_millis(100);

/// The loads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamLoad {
    New,
    Overwrite,
    Direct,
    Synced,
    Random,
}

impl StreamLoad {
    pub(super) const ALL: [StreamLoad; 5] =
        [StreamLoad::New, StreamLoad::Overwrite, StreamLoad::Direct, StreamLoad::Synced, StreamLoad::Random];

    pub(super) fn name(self) -> &'static str {
        match self {
            StreamLoad::New => "new file, 1 MiB in order",
            StreamLoad::Overwrite => "overwrite, 1 MiB in order",
            StreamLoad::Direct => "overwrite, 1 MiB in order, O_DIRECT",
            StreamLoad::Synced => "overwrite, 1 MiB in order + fdatasync",
            StreamLoad::Random => "overwrite, 4 KiB at random",
        }
    }

    pub(super) fn write_bytes(self) -> u64 {
        match self {
            StreamLoad::Random => PAGE_BYTES,
            _ => WRITE_BYTES,
        }
    }

    /// Writes to `path`, with an fsync at the end. The file must exist, except for `New`. A stop ends the
    /// load early.
    pub(super) fn run(self, path: &Path, scale: &StreamScale, seed: u64) -> Result<WorkDone, BenchError> {
        let begun = Instant::now();
        let stream = |through, sync| {
            let goes_on =
                || !cleanup::is_stopping() && (sync == SyncMode::Never || begun.elapsed() < scale.limit);
            StreamWriter::open(path, through, seed)?.run(scale.file_bytes, sync, goes_on)
        };
        cleanup::uninterrupted(|| match self {
            StreamLoad::New | StreamLoad::Overwrite => stream(LoadPath::Cache, SyncMode::Never),
            StreamLoad::Direct => stream(LoadPath::Nothing, SyncMode::Never),
            StreamLoad::Synced => stream(LoadPath::Cache, SyncMode::EachWrite),
            StreamLoad::Random => at_random(path, scale, seed),
        })
    }
}

/// Overwrites whole pages in random order, each once.
fn at_random(path: &Path, scale: &StreamScale, seed: u64) -> Result<WorkDone, BenchError> {
    let mut load = PageOverwriter::open(path, scale.file_bytes / PAGE_BYTES, PAGE_BYTES, seed)?;
    let (start, mut writes) = (Instant::now(), 0);
    while start.elapsed() < scale.limit && !cleanup::is_stopping() {
        let done = load.run(u64::MAX, SLICE, SyncMode::Never)?;
        if done.writes == 0 {
            break;
        }
        writes += done.writes;
    }
    sync(path)?;
    Ok(WorkDone { writes, elapsed: start.elapsed() })
}

/// Whether writes go through the kernel's cache or use O_DIRECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LoadPath {
    Cache,
    Nothing,
}

/// A sequential writer. Its pages are random bytes after a number that differs in each.
pub(super) struct StreamWriter {
    file: File,
    path: PathBuf,
    memory: AlignedBuffer,
    number: u64,
}

impl StreamWriter {
    pub(super) fn open(path: &Path, through: LoadPath, seed: u64) -> Result<StreamWriter, BenchError> {
        let flags = if through == LoadPath::Nothing { OFlags::DIRECT.bits() as i32 } else { 0 };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).custom_flags(flags);
        let file = options.open(path).map_err(|error| BenchError::io("cannot open", path, error))?;
        let mut random = SeededRng::new(seed);
        let mut memory = AlignedBuffer::new(WRITE_BYTES as usize);
        memory.bytes().fill_with(|| random.next_u64() as u8);
        Ok(StreamWriter { file, path: path.to_path_buf(), memory, number: seed << 48 })
    }

    /// Writes `bytes` bytes from the file's start, or fewer if `goes_on` returns false, and ends with an
    /// fsync.
    pub(super) fn run(
        &mut self,
        bytes: u64,
        sync: SyncMode,
        goes_on: impl Fn() -> bool,
    ) -> Result<WorkDone, BenchError> {
        let start = Instant::now();
        let mut done = WorkDone::default();
        while done.writes < bytes / WRITE_BYTES && goes_on() {
            self.write(done.writes * WRITE_BYTES, sync)?;
            done.writes += 1;
        }
        self.file.sync_all().map_err(|error| BenchError::io("cannot sync", &self.path, error))?;
        done.elapsed = start.elapsed();
        Ok(done)
    }

    fn write(&mut self, offset: u64, sync: SyncMode) -> Result<(), BenchError> {
        for page in self.memory.bytes().chunks_exact_mut(PAGE_BYTES as usize) {
            page[..8].copy_from_slice(&self.number.to_le_bytes());
            self.number += 1;
        }
        let written = self.file.write_all_at(self.memory.bytes(), offset).and_then(|()| match sync {
            SyncMode::Never => Ok(()),
            SyncMode::EachWrite => self.file.sync_data(),
        });
        written.map_err(|error| BenchError::io("cannot write", &self.path, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_stream_is_as_long_as_asked_for_and_no_two_pages_of_it_are_equal() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        let mut stream = StreamWriter::open(&path, LoadPath::Cache, 1).expect("open");
        let done = stream.run(3 * WRITE_BYTES, SyncMode::Never, || true).expect("writes");
        assert_eq!(done.writes, 3);
        let bytes = std::fs::read(&path).expect("read");
        assert_eq!(bytes.len() as u64, 3 * WRITE_BYTES);
        let pages: HashSet<_> = bytes.chunks(PAGE_BYTES as usize).collect();
        assert_eq!(pages.len() as u64, 3 * WRITE_BYTES / PAGE_BYTES);
    }
}
