//! Speed of a device: random reads of 4 KiB at depths 1 and 32, and sequential reads.

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
/// Alignment of memory and offsets that O_DIRECT needs on every known device.
const ALIGN: usize = 4096;

/// Measured speed of a device.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct DeviceSpeed {
    /// 4 KiB random reads per second, one at a time.
    pub(super) reads_per_s_depth_1: f64,
    /// 4 KiB random reads per second, 32 at a time.
    pub(super) reads_per_s_depth_32: f64,
    /// Sequential reads of 1 MiB each.
    pub(super) sequential_mib_per_s: f64,
}

impl fmt::Display for DeviceSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} reads/s of 4 KiB one at a time, {:.0} at depth 32, {:.0} MiB/s sequential",
            self.reads_per_s_depth_1, self.reads_per_s_depth_32, self.sequential_mib_per_s
        )
    }
}

/// Measures the first `bytes` bytes of `path` with O_DIRECT, for `each` per figure.
pub(super) fn measure_speed(path: &Path, bytes: u64, each: Duration) -> Result<DeviceSpeed, BenchError> {
    let failed = |error| BenchError::io("cannot measure", path, error);
    let flags = OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    Ok(DeviceSpeed {
        reads_per_s_depth_1: random_reads(&file, bytes, 1, each).map_err(failed)?,
        reads_per_s_depth_32: random_reads(&file, bytes, 32, each).map_err(failed)?,
        sequential_mib_per_s: sequential(&file, bytes, each).map_err(failed)?,
    })
}

fn random_reads(file: &File, bytes: u64, depth: u64, limit: Duration) -> std::io::Result<f64> {
    let count = AtomicU64::new(0);
    let start = Instant::now();
    let reader = |seed: u64| -> std::io::Result<()> {
        let mut memory = AlignedBuffer::new(RANDOM_BYTES);
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
    let mut memory = AlignedBuffer::new(SEQUENTIAL_BYTES);
    let steps = bytes / SEQUENTIAL_BYTES as u64;
    let start = Instant::now();
    let mut done = 0;
    while start.elapsed() < limit {
        file.read_exact_at(memory.bytes(), done % steps * SEQUENTIAL_BYTES as u64)?;
        done += 1;
    }
    Ok(done as f64 / start.elapsed().as_secs_f64())
}

/// Memory aligned for O_DIRECT, cut out of a larger piece.
pub(super) struct AlignedBuffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuffer {
    pub(super) fn new(len: usize) -> AlignedBuffer {
        let memory = vec![0; len + ALIGN];
        let start = memory.as_ptr().align_offset(ALIGN);
        AlignedBuffer { memory, start, len }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}
