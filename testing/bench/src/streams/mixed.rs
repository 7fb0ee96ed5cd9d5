//! A synced writer of small records, alone and beside a stream that saturates the disk.
//!
//! The stream overwrites a file again and again, with an fsync at the end of each pass. Without the fsync its
//! data would stay in memory on ext4. weir has a small buffer, which the stream would fill in a moment.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::super::cleanup;
use super::super::error::BenchError;
use super::super::quantile::quantile;
use super::super::workload::{PAGE_BYTES, PageOverwriter, SyncMode, WorkDone, lay_out};
use super::StreamScale;
use super::load::{LoadPath, StreamWriter, WRITE_BYTES};

pub(super) const BUFFER_BYTES: u64 = 32 << 20;
/// Size of the synced writer's writes.
pub(super) const RECORD_BYTES: u64 = 512;

/// Sizes and time of the load.
#[derive(Debug, Clone, Copy)]
pub(super) struct MixedLoad {
    records: u64,
    stream: u64,
    limit: Duration,
}

/// Figures of one file system in one round.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct MixedFigures {
    pub(super) alone_per_s: f64,
    pub(super) beside_per_s: f64,
    /// 99th percentile of a write with its fdatasync.
    pub(super) alone_p99_ms: f64,
    pub(super) beside_p99_ms: f64,
    pub(super) stream_mib_per_s: f64,
}

impl MixedLoad {
    /// Scales the load: the stream's file is a quarter of the other loads' file, the records' file a
    /// sixteenth.
    pub(super) fn of(scale: &StreamScale) -> MixedLoad {
        let part = |of: u64| (scale.file_bytes / of).next_multiple_of(WRITE_BYTES);
        MixedLoad { records: part(16), stream: part(4), limit: scale.mixed }
    }

    pub(super) fn file_bytes(&self) -> u64 {
        self.records + self.stream
    }

    pub(super) fn lay_out(&self, directory: &Path) -> Result<(), BenchError> {
        cleanup::uninterrupted(|| {
            lay_out(&directory.join("records"), self.records / PAGE_BYTES)?;
            lay_out(&directory.join("stream"), self.stream / PAGE_BYTES)
        })
    }

    pub(super) fn run(&self, directory: &Path, seed: u64) -> Result<MixedFigures, BenchError> {
        cleanup::uninterrupted(|| {
            let alone = self.write_records(directory, 2 * seed)?;
            let (beside, stream) = self.beside_a_stream(directory, 2 * seed + 1)?;
            Ok(MixedFigures {
                alone_per_s: alone.rate(),
                beside_per_s: beside.rate(),
                alone_p99_ms: quantile(&alone.took_ms, 0.99),
                beside_p99_ms: quantile(&beside.took_ms, 0.99),
                stream_mib_per_s: stream.rate() * WRITE_BYTES as f64 / f64::from(1 << 20),
            })
        })
    }

    fn beside_a_stream(&self, directory: &Path, seed: u64) -> Result<(RecordWrites, WorkDone), BenchError> {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stream = scope.spawn(|| self.stream(directory, seed, &is_over));
            let records = self.write_records(directory, seed);
            is_over.store(true, Ordering::Relaxed);
            let stream = stream.join().expect("a stream does not panic")?;
            Ok((records?, stream))
        })
    }

    /// Overwrites the stream's file, pass by pass, until `is_over`.
    fn stream(&self, directory: &Path, seed: u64, is_over: &AtomicBool) -> Result<WorkDone, BenchError> {
        let goes_on = || !is_over.load(Ordering::Relaxed);
        let mut stream = StreamWriter::open(&directory.join("stream"), LoadPath::Cache, seed)?;
        let mut done = WorkDone::default();
        while goes_on() {
            done += stream.run(self.stream, SyncMode::Never, goes_on)?;
        }
        Ok(done)
    }

    /// Writes records for the time limit, each with fdatasync.
    fn write_records(&self, directory: &Path, seed: u64) -> Result<RecordWrites, BenchError> {
        let (path, pages) = (directory.join("records"), self.records / PAGE_BYTES);
        let mut records = RecordWrites::default();
        let start = Instant::now();
        for pass in 0.. {
            let mut load = PageOverwriter::open(&path, pages, RECORD_BYTES, seed << 32 | pass)?;
            for _ in 0..pages {
                if start.elapsed() >= self.limit || cleanup::is_stopping() {
                    records.elapsed = start.elapsed();
                    return Ok(records);
                }
                let one = load.run(1, self.limit, SyncMode::EachWrite)?;
                records.took_ms.push(one.elapsed.as_secs_f64() * 1e3);
            }
        }
        unreachable!("time passes")
    }
}

/// Latencies of the synced writer.
#[derive(Debug, Default)]
struct RecordWrites {
    took_ms: Vec<f64>,
    elapsed: Duration,
}

impl RecordWrites {
    fn rate(&self) -> f64 {
        WorkDone { writes: self.took_ms.len() as u64, elapsed: self.elapsed }.rate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_go_on_from_the_start_when_no_page_is_left_and_the_stream_stops_with_them() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mixed =
            MixedLoad { records: 2 * PAGE_BYTES, stream: WRITE_BYTES, limit: Duration::from_millis(100) };
        mixed.lay_out(directory.path()).expect("files");
        let (records, stream) = mixed.beside_a_stream(directory.path(), 1).expect("writes");
        assert!(records.took_ms.len() > 2 && records.elapsed >= mixed.limit, "{records:?}");
        assert!(stream.writes > 0);
        let size = |name: &str| std::fs::metadata(directory.path().join(name)).expect("a file").len();
        assert_eq!([size("records"), size("stream")], [mixed.records, mixed.stream]);
    }
}
