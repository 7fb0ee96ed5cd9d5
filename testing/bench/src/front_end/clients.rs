//! Clients that repeat one operation.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use device::SeededRng;
use rustix::fs::{AtFlags, Mode, OFlags, RawDir, SeekFrom, StatxFlags};
use serde::Serialize;

use super::super::device_speed::AlignedBuffer;
use super::super::error::BenchError;
use super::super::workload::{PAGE_BYTES, lay_out};
use super::mounted::KernelCacheMode;

/// Size of a client's file. Both systems hold it in memory, and it is larger than any processor's L2 cache.
const FILE_PAGES: u64 = 2048;
/// Names in a client's directory.
const NAMES: u64 = 1000;
/// Buffer size that the C library passes to `getdents`.
const LISTING_BYTES: usize = 32 << 10;
/// Shortest operation for whose times memory is allocated in advance, in microseconds.
const FASTEST_MICROS: usize = 1;

/// The measured operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ClientOperation {
    /// pwrite of 512 B at a random place in a file of 8 MiB.
    Write512,
    /// pwrite of 4 KiB at a random page.
    Write4k,
    /// pread of 512 B with O_DIRECT.
    Read512,
    /// pread of 4 KiB with O_DIRECT.
    Read4k,
    /// Creates a file, closes it and removes its name.
    CreateUnlink,
    /// fstat of an open file.
    Fstat,
    /// stat of one of 1000 names.
    Stat,
    /// Lookup of one of 1000 names, without its attributes.
    Lookup,
    /// Listing 1000 names.
    Readdir,
}

impl ClientOperation {
    pub(super) const ALL: [ClientOperation; 9] = [
        ClientOperation::Write512,
        ClientOperation::Write4k,
        ClientOperation::Read512,
        ClientOperation::Read4k,
        ClientOperation::CreateUnlink,
        ClientOperation::Fstat,
        ClientOperation::Stat,
        ClientOperation::Lookup,
        ClientOperation::Readdir,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            ClientOperation::Write512 => "write 512 B",
            ClientOperation::Write4k => "write 4 KiB",
            ClientOperation::Read512 => "read 512 B, O_DIRECT",
            ClientOperation::Read4k => "read 4 KiB, O_DIRECT",
            ClientOperation::CreateUnlink => "create + unlink",
            ClientOperation::Fstat => "fstat",
            ClientOperation::Stat => "stat",
            ClientOperation::Lookup => "lookup",
            ClientOperation::Readdir => "readdir of 1000 names",
        }
    }

    /// The kernel cache to measure with: none if the kernel would answer from it.
    pub(super) fn kernel_cache(self) -> KernelCacheMode {
        match self {
            ClientOperation::Fstat
            | ClientOperation::Stat
            | ClientOperation::Lookup
            | ClientOperation::Readdir => KernelCacheMode::None,
            _ => KernelCacheMode::Full,
        }
    }
}

/// Result of one turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct TurnResult {
    pub(super) operations: u64,
    pub(super) elapsed: Duration,
    /// Median latency of the operations.
    pub(super) p50: Duration,
}

/// A client's files.
pub(super) struct ClientFiles {
    directory: PathBuf,
    number: u8,
}

impl ClientFiles {
    /// Makes the files in `directory`.
    pub(super) fn prepare(directory: &Path, client: u8) -> Result<ClientFiles, BenchError> {
        let make = || -> io::Result<()> {
            fs::create_dir_all(directory.join("names"))?;
            (0..NAMES)
                .try_for_each(|name| File::create(directory.join("names").join(name_of(name))).map(drop))
        };
        make().map_err(|error| BenchError::io("cannot make files in", directory, error))?;
        lay_out(&directory.join("data"), FILE_PAGES)?;
        Ok(ClientFiles { directory: directory.into(), number: client })
    }

    fn client(&self, operation: ClientOperation) -> io::Result<LoadClient> {
        let data = self.directory.join("data");
        let mut open = OpenOptions::new();
        match operation {
            // O_DIRECT, to bypass the page cache.
            ClientOperation::Read512 | ClientOperation::Read4k => {
                open.read(true).custom_flags(OFlags::DIRECT.bits() as i32)
            }
            _ => open.write(true),
        };
        Ok(LoadClient {
            file: open.open(&data)?,
            directory: File::open(&self.directory)?,
            names: File::open(self.directory.join("names"))?,
            memory: AlignedBuffer::new(PAGE_BYTES as usize),
            listing: Vec::with_capacity(LISTING_BYTES),
            random: SeededRng::new(u64::from(self.number)),
        })
    }
}

fn name_of(number: u64) -> String {
    format!("file-{number:06}")
}

/// Runs `operation` for `slice` in one thread for each of `loads`.
pub(super) fn run(
    loads: &[ClientFiles],
    operation: ClientOperation,
    slice: Duration,
) -> Result<TurnResult, BenchError> {
    let barrier = Barrier::new(loads.len());
    let work = |load: &ClientFiles| -> io::Result<(Vec<u32>, Duration)> {
        let client = load.client(operation);
        let mut nanos = Vec::with_capacity(slice.as_micros() as usize / FASTEST_MICROS);
        barrier.wait();
        let (mut client, start) = (client?, Instant::now());
        let mut elapsed = Duration::ZERO;
        while elapsed < slice {
            client.once(operation)?;
            let now = start.elapsed();
            nanos.push(u32::try_from((now - elapsed).as_nanos()).unwrap_or(u32::MAX));
            elapsed = now;
        }
        Ok((nanos, elapsed))
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = loads.iter().map(|load| scope.spawn(|| work(load))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a client does not panic")).collect()
    });
    let (mut nanos, mut elapsed) = (Vec::new(), Duration::ZERO);
    for (result, load) in results.into_iter().zip(loads) {
        let (own, took) = result.map_err(|error| BenchError::io("cannot work in", &load.directory, error))?;
        nanos.extend(own);
        elapsed = elapsed.max(took);
    }
    let operations = nanos.len() as u64;
    let middle = nanos.len() / 2;
    let p50 = Duration::from_nanos((*nanos.select_nth_unstable(middle).1).into());
    Ok(TurnResult { operations, elapsed, p50 })
}

/// A client with its open files.
struct LoadClient {
    file: File,
    directory: File,
    names: File,
    memory: AlignedBuffer,
    listing: Vec<u8>,
    random: SeededRng,
}

impl LoadClient {
    fn once(&mut self, operation: ClientOperation) -> io::Result<()> {
        match operation {
            ClientOperation::Write512 => self.write(512),
            ClientOperation::Write4k => self.write(PAGE_BYTES as usize),
            ClientOperation::Read512 => self.read(512),
            ClientOperation::Read4k => self.read(PAGE_BYTES as usize),
            ClientOperation::CreateUnlink => self.create_and_unlink(),
            ClientOperation::Fstat => rustix::fs::fstat(&self.file).map(drop).map_err(io::Error::from),
            ClientOperation::Stat => {
                let name = self.name();
                Ok(rustix::fs::statat(&self.names, name, AtFlags::empty()).map(drop)?)
            }
            ClientOperation::Lookup => {
                let (name, flags) = (self.name(), AtFlags::STATX_DONT_SYNC);
                Ok(rustix::fs::statx(&self.names, name, flags, StatxFlags::TYPE).map(drop)?)
            }
            ClientOperation::Readdir => self.list(),
        }
    }

    fn name(&mut self) -> String {
        name_of(self.random.below(NAMES))
    }

    fn offset(&mut self, bytes: usize) -> u64 {
        self.random.below(FILE_PAGES * PAGE_BYTES / bytes as u64) * bytes as u64
    }

    fn write(&mut self, bytes: usize) -> io::Result<()> {
        let offset = self.offset(bytes);
        // Different bytes each time, so that no system can skip the write.
        let stamp = self.random.next_u64().to_le_bytes();
        let memory = &mut self.memory.bytes()[..bytes];
        memory[..8].copy_from_slice(&stamp);
        self.file.write_all_at(memory, offset)
    }

    fn read(&mut self, bytes: usize) -> io::Result<()> {
        let offset = self.offset(bytes);
        self.file.read_exact_at(&mut self.memory.bytes()[..bytes], offset)
    }

    fn create_and_unlink(&mut self) -> io::Result<()> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, "new", flags, Mode::from_raw_mode(0o644))?;
        drop(file);
        Ok(rustix::fs::unlinkat(&self.directory, "new", AtFlags::empty())?)
    }

    fn list(&mut self) -> io::Result<()> {
        rustix::fs::seek(&self.names, SeekFrom::Start(0))?;
        let mut entries = RawDir::new(&self.names, self.listing.spare_capacity_mut());
        let mut count = 0;
        while let Some(entry) = entries.next() {
            entry?;
            count += 1;
        }
        // `.` and `..` are listed, too.
        if count == NAMES + 2 { Ok(()) } else { Err(io::Error::other(format!("{count} entries are listed"))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_works_on_any_file_system_and_leaves_its_files() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let loads = [0, 1].map(|client| {
            let own = directory.path().join(client.to_string());
            ClientFiles::prepare(&own, client).expect("files can be made")
        });
        for operation in ClientOperation::ALL {
            let done = run(&loads, operation, Duration::from_millis(5)).expect("it works");
            assert!(done.operations >= 2 && done.p50 > Duration::ZERO, "{operation:?}: {done:?}");
            assert!(done.p50 <= done.elapsed, "one of them took longer than all: {operation:?}: {done:?}");
        }
        for load in &loads {
            let left = fs::read_dir(&load.directory).expect("it is listed").count();
            assert_eq!(left, 2, "data and names are left");
            let bytes = fs::metadata(load.directory.join("data")).expect("it is there").len();
            assert_eq!(bytes, FILE_PAGES * PAGE_BYTES, "overwritten, not extended");
        }
    }
}
