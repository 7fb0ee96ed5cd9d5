//! What a device can do: 4 KiB random reads one at a time and 32 at a time, and sequential reading.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use device::SeededRng;
use rustix::fs::OFlags;
use serde::Serialize;

use super::error::BenchError;

const SEQUENTIAL_BYTES: usize = 1 << 20;
const RANDOM_BYTES: usize = 4096;
/// What O_DIRECT asks of memory and offsets, on every device that we know.
const ALIGN: usize = 4096;

/// What a device measured.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Measured {
    /// 4 KiB random reads per second, one at a time.
    pub(super) reads_per_s_depth_1: f64,
    /// 4 KiB random reads per second, 32 at a time.
    pub(super) reads_per_s_depth_32: f64,
    /// Sequential reading in requests of 1 MiB.
    pub(super) sequential_mib_per_s: f64,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} reads/s of 4 KiB one at a time, {:.0} at depth 32, {:.0} MiB/s sequential",
            self.reads_per_s_depth_1, self.reads_per_s_depth_32, self.sequential_mib_per_s
        )
    }
}

/// Measures the first `bytes` bytes of `path`, for `each` per figure, past the page cache.
pub(super) fn measure(path: &Path, bytes: u64, each: Duration) -> Result<Measured, BenchError> {
    let failed = |error| BenchError::io("cannot measure", path, error);
    let flags = OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    Ok(Measured {
        reads_per_s_depth_1: random_reads(&file, bytes, 1, each).map_err(failed)?,
        reads_per_s_depth_32: random_reads(&file, bytes, 32, each).map_err(failed)?,
        sequential_mib_per_s: sequential(&file, bytes, each).map_err(failed)?,
    })
}

fn random_reads(file: &File, bytes: u64, depth: u64, limit: Duration) -> std::io::Result<f64> {
    let count = AtomicU64::new(0);
    let start = Instant::now();
    let reader = |seed: u64| -> std::io::Result<()> {
        let mut memory = Aligned::new(RANDOM_BYTES);
        let mut random = SeededRng::new(seed);
        while start.elapsed() < limit {
            let offset = random.below(bytes / RANDOM_BYTES as u64) * RANDOM_BYTES as u64;
            file.read_exact_at(memory.bytes(), offset)?;
            count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..depth).map(|seed| scope.spawn(move || reader(seed))).collect();
        readers.into_iter().try_for_each(|reader| reader.join().expect("a reader does not panic"))
    })?;
    Ok(count.into_inner() as f64 / start.elapsed().as_secs_f64())
}

fn sequential(file: &File, bytes: u64, limit: Duration) -> std::io::Result<f64> {
    let mut memory = Aligned::new(SEQUENTIAL_BYTES);
    let steps = bytes / SEQUENTIAL_BYTES as u64;
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed() < limit {
        file.read_exact_at(memory.bytes(), done % steps * SEQUENTIAL_BYTES as u64)?;
        done += 1;
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

/// Memory that O_DIRECT accepts, cut out of a larger piece.
pub(super) struct Aligned {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    pub(super) fn new(len: usize) -> Aligned {
        let memory = vec![0; len + ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN);
        Aligned { memory, start, len }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}
