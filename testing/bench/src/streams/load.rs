//! The streams. Of what is written, each page is another one.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use device::SeededRng;
use rustix::fs::OFlags;

use super::super::error::BenchError;
use super::super::measure::Aligned;
use super::super::undo;
use super::super::workload::{Done, Overwriter, PAGE_BYTES, Sync, sync};
use super::Scale;

/// Of a stream's writes.
pub(super) const WRITE_BYTES: u64 = 1 << 20;
/// A stop is noticed after this.
const SLICE: Duration = Duration::from_millis(100);

/// What is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Load {
    New,
    Overwrite,
    Direct,
    Synced,
    Random,
}

impl Load {
    pub(super) const ALL: [Load; 5] = [Load::New, Load::Overwrite, Load::Direct, Load::Synced, Load::Random];

    pub(super) fn name(self) -> &'static str {
        match self {
            Load::New => "new file, 1 MiB in order",
            Load::Overwrite => "overwrite, 1 MiB in order",
            Load::Direct => "overwrite, 1 MiB in order, O_DIRECT",
            Load::Synced => "overwrite, 1 MiB in order + fdatasync",
            Load::Random => "overwrite, 4 KiB at random",
        }
    }

    pub(super) fn write_bytes(self) -> u64 {
        match self {
            Load::Random => PAGE_BYTES,
            _ => WRITE_BYTES,
        }
    }

    /// Writes to `path`, up to an fsync at the end. The file is there unless it is to be new. A stop ends it early.
    pub(super) fn run(self, path: &Path, scale: &Scale, seed: u64) -> Result<Done, BenchError> {
        let begun = Instant::now();
        let stream = |through, sync| {
            let goes_on = || !undo::is_stopping() && (sync == Sync::Never || begun.elapsed() < scale.limit);
            Stream::open(path, through, seed)?.run(scale.file_bytes, sync, goes_on)
        };
        undo::uninterrupted(|| match self {
            Load::New | Load::Overwrite => stream(Through::Cache, Sync::Never),
            Load::Direct => stream(Through::Nothing, Sync::Never),
            Load::Synced => stream(Through::Cache, Sync::EachWrite),
            Load::Random => at_random(path, scale, seed),
        })
    }
}

/// Whole pages at random, each once.
fn at_random(path: &Path, scale: &Scale, seed: u64) -> Result<Done, BenchError> {
    let mut load = Overwriter::open(path, scale.file_bytes / PAGE_BYTES, PAGE_BYTES, seed)?;
    let (start, mut writes) = (Instant::now(), 0);
    while start.elapsed() < scale.limit && !undo::is_stopping() {
        let done = load.run(u64::MAX, SLICE, Sync::Never)?;
        if done.writes == 0 {
            break;
        }
        writes += done.writes;
    }
    sync(path)?;
    Ok(Done { writes, elapsed: start.elapsed() })
}

/// Whether writes pass through the kernel's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Through {
    Cache,
    Nothing,
}

/// A writer in order. Its pages are of random bytes, and each begins with its own number.
pub(super) struct Stream {
    file: File,
    path: PathBuf,
    memory: Aligned,
    number: u64,
}

impl Stream {
    pub(super) fn open(path: &Path, through: Through, seed: u64) -> Result<Stream, BenchError> {
        let flags = if through == Through::Nothing { OFlags::DIRECT.bits() as i32 } else { 0 };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).custom_flags(flags);
        let file = options.open(path).map_err(|error| BenchError::io("cannot open", path, error))?;
        let mut random = SeededRng::new(seed);
        let mut memory = Aligned::new(WRITE_BYTES as usize);
        memory.bytes().fill_with(|| random.next_u64() as u8);
        Ok(Stream { file, path: path.to_path_buf(), memory, number: seed << 48 })
    }

    /// From the file's start, for so many bytes or for as long as it is to go on, up to an fsync at the end.
    pub(super) fn run(
        &mut self,
        bytes: u64,
        sync: Sync,
        goes_on: impl Fn() -> bool,
    ) -> Result<Done, BenchError> {
        let start = Instant::now();
        let mut done = Done::default();
        while done.writes < bytes / WRITE_BYTES && goes_on() {
            self.write(done.writes * WRITE_BYTES, sync)?;
            done.writes += 1;
        }
        self.file.sync_all().map_err(|error| BenchError::io("cannot sync", &self.path, error))?;
        done.elapsed = start.elapsed();
        Ok(done)
    }

    fn write(&mut self, offset: u64, sync: Sync) -> Result<(), BenchError> {
        for page in self.memory.bytes().chunks_exact_mut(PAGE_BYTES as usize) {
            page[..8].copy_from_slice(&self.number.to_le_bytes());
            self.number += 1;
        }
        let written = self.file.write_all_at(self.memory.bytes(), offset).and_then(|()| match sync {
            Sync::Never => Ok(()),
            Sync::EachWrite => self.file.sync_data(),
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
        let mut stream = Stream::open(&path, Through::Cache, 1).expect("open");
        let done = stream.run(3 * WRITE_BYTES, Sync::Never, || true).expect("writes");
        assert_eq!(done.writes, 3);
        let bytes = std::fs::read(&path).expect("read");
        assert_eq!(bytes.len() as u64, 3 * WRITE_BYTES);
        let pages: HashSet<_> = bytes.chunks(PAGE_BYTES as usize).collect();
        assert_eq!(pages.len() as u64, 3 * WRITE_BYTES / PAGE_BYTES);
    }
}
