//! The client of the picture: it writes pages at fixed times, and notes how long each write took.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use device::SeededRng;

use super::super::cleanup;
use super::super::error::BenchError;
use super::super::workload::PAGE_BYTES;

/// Pause before a failed write is repeated.
const RETRY_AFTER: Duration = Duration::from_millis(1);
/// A client that is refused for so long gives up.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Whether the client waits until each page is durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteKind {
    /// A write and an fsync.
    Synced,
    /// A write alone.
    Plain,
}

impl WriteKind {
    /// The name in the report and in the picture.
    pub(super) fn name(self) -> &'static str {
        match self {
            WriteKind::Synced => "write + fsync",
            WriteKind::Plain => "write",
        }
    }
}

/// One write of the client, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct WriteSample {
    /// When the write was due, since the start of the run.
    pub(super) due: f64,
    /// From that moment until the write had succeeded.
    pub(super) took: f64,
}

/// The writes of a client.
#[derive(Debug)]
pub(super) struct ClientRecord {
    pub(super) samples: Vec<WriteSample>,
    /// Attempts that failed, because the daemon was gone, and were repeated.
    pub(super) failed_attempts: u64,
    /// For each page, the number of its last write that succeeded.
    written: Vec<u64>,
}

/// A client that overwrites whole pages of a file, at random, one each `every`.
#[derive(Debug)]
pub(super) struct PacedClient {
    pub(super) path: PathBuf,
    pub(super) pages: u64,
    pub(super) kind: WriteKind,
    pub(super) every: Duration,
}

impl PacedClient {
    /// Writes from `start` on, for `length`.
    ///
    /// A write that is due while an earlier one is still under way counts from the moment at which it was due: a client
    /// that is held up for a second is late with all writes of that second, not with one.
    pub(super) fn run(&self, start: Instant, length: Duration) -> Result<ClientRecord, BenchError> {
        let mut random = SeededRng::new(self.every.as_nanos() as u64);
        let mut record =
            ClientRecord { samples: Vec::new(), failed_attempts: 0, written: vec![0; self.pages as usize] };
        let mut file = Some(self.open()?);
        let mut page_bytes = [0; PAGE_BYTES as usize];
        let mut due = start;
        for number in 1.. {
            if due.duration_since(start) >= length || cleanup::is_stopping() {
                break;
            }
            let now = Instant::now();
            let began = if now < due {
                std::thread::sleep(due - now);
                Instant::now()
            } else {
                due
            };
            let page = random.below(self.pages);
            page_bytes.fill(number as u8);
            page_bytes[..8].copy_from_slice(&u64::to_le_bytes(number));
            record.failed_attempts += self.write_until_done(&mut file, page, &page_bytes)?;
            record.written[page as usize] = number;
            record.samples.push(WriteSample {
                due: due.duration_since(start).as_secs_f64(),
                took: began.elapsed().as_secs_f64(),
            });
            due += self.every;
        }
        Ok(record)
    }

    /// Writes one page, again and again until that succeeds. Returns how many attempts failed.
    fn write_until_done(&self, file: &mut Option<File>, page: u64, bytes: &[u8]) -> Result<u64, BenchError> {
        let began = Instant::now();
        let mut failed = 0;
        loop {
            match self.write(file, page, bytes) {
                Ok(()) => return Ok(failed),
                Err(error) if began.elapsed() > RETRY_MAX || cleanup::is_stopping() => return Err(error),
                Err(_) => {
                    // The file of a daemon that is gone stays unusable.
                    *file = None;
                    failed += 1;
                    std::thread::sleep(RETRY_AFTER);
                }
            }
        }
    }

    fn write(&self, file: &mut Option<File>, page: u64, bytes: &[u8]) -> Result<(), BenchError> {
        let file = match file {
            Some(file) => file,
            None => file.insert(self.open()?),
        };
        let written = file.write_all_at(bytes, page * PAGE_BYTES).and_then(|()| match self.kind {
            WriteKind::Synced => file.sync_all(),
            WriteKind::Plain => Ok(()),
        });
        written.map_err(|error| BenchError::io("cannot write", &self.path, error))
    }

    fn open(&self) -> Result<File, BenchError> {
        OpenOptions::new()
            .write(true)
            .open(&self.path)
            .map_err(|error| BenchError::io("cannot open", &self.path, error))
    }
}

impl ClientRecord {
    /// Fails if a page of `path` does not hold its last write.
    pub(super) fn check(&self, path: &Path) -> Result<(), BenchError> {
        let bytes = std::fs::read(path).map_err(|error| BenchError::io("cannot read", path, error))?;
        for (page, number) in self.written.iter().enumerate().filter(|(_, number)| **number > 0) {
            let at = page * PAGE_BYTES as usize;
            if bytes.get(at..at + 8) != Some(&number.to_le_bytes()) {
                return Err(BenchError::WrongPage { path: path.into(), page });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::workload::lay_out;
    use super::*;

    fn client_of(path: PathBuf) -> PacedClient {
        PacedClient { path, pages: 4, kind: WriteKind::Synced, every: Duration::from_millis(10) }
    }

    #[test]
    fn a_lost_page_is_found() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        lay_out(&path, 4).expect("layout");
        let client = client_of(path.clone());
        let record = client.run(Instant::now(), Duration::from_millis(100)).expect("writes");
        assert_eq!(record.samples.len(), 10);
        assert_eq!(record.failed_attempts, 0);
        record.check(&path).expect("nothing was lost");
        lay_out(&path, 4).expect("the old bytes");
        assert!(matches!(record.check(&path), Err(BenchError::WrongPage { .. })));
    }

    #[test]
    fn a_missing_file_delays_the_writes_that_were_due_meanwhile() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        let away = directory.path().join("away");
        lay_out(&path, 4).expect("layout");
        let client = client_of(path.clone());
        let start = Instant::now();
        let mut file = Some(client.open().expect("open"));
        std::fs::rename(&path, &away).expect("rename");
        file.take();
        let failed = std::thread::scope(|scope| {
            let writes = scope.spawn(|| client.write_until_done(&mut file, 0, &[7; PAGE_BYTES as usize]));
            std::thread::sleep(Duration::from_millis(50));
            std::fs::rename(&away, &path).expect("rename");
            writes.join().expect("no panic").expect("it is back")
        });
        assert!(failed > 0);
        assert!(start.elapsed() >= Duration::from_millis(50));
    }
}
