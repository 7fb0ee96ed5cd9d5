//! The loops of the servers, as in filebench's profiles of these names.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use device::SeededRng;

use super::super::cleanup;
use super::super::error::BenchError;
use super::super::workload::WorkDone;
use super::files::{FilePresence, FileSet, write};

/// Largest read or write.
const IO_BYTES: usize = 1 << 20;
/// Largest append; lengths are uniform.
const APPEND_BYTES_MAX: u64 = 16 << 10;
/// At this length a log is overwritten from its start, because a run may be long and fast, and devices are
/// small.
pub(super) const LOG_BYTES_MAX: u64 = 256 << 20;

/// The server that is imitated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ServerKind {
    Varmail,
    Fileserver,
    Webserver,
    Proxy,
}

/// A step of a server's loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerStep {
    Delete,
    Stat,
    /// Creates a file, performs the actions and closes it.
    Create(&'static [FileAction]),
    /// Opens an existing file, performs the actions and closes it.
    Open(&'static [FileAction]),
    /// Appends to a log that all threads share.
    Log,
}

/// An action on an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileAction {
    ReadAll,
    /// Writes as many bytes as a new file of the set has.
    WriteAll,
    Append,
    Sync,
}

/// The files and the loop of a server.
#[derive(Debug, Clone, Copy)]
struct ServerProfile {
    files: u64,
    mean_bytes: u64,
    /// Files in each directory.
    width: u64,
    /// Share of the files that are present at first.
    present_percent: u64,
    steps: &'static [ServerStep],
}

const READ: ServerStep = ServerStep::Open(&[FileAction::ReadAll]);
const VARMAIL: [ServerStep; 4] = [
    ServerStep::Delete,
    ServerStep::Create(&[FileAction::Append, FileAction::Sync]),
    ServerStep::Open(&[FileAction::ReadAll, FileAction::Append, FileAction::Sync]),
    READ,
];
const FILESERVER: [ServerStep; 5] = [
    ServerStep::Create(&[FileAction::WriteAll]),
    ServerStep::Open(&[FileAction::Append]),
    READ,
    ServerStep::Delete,
    ServerStep::Stat,
];
const WEBSERVER: [ServerStep; 11] =
    [READ, READ, READ, READ, READ, READ, READ, READ, READ, READ, ServerStep::Log];
const PROXY: [ServerStep; 8] = [
    ServerStep::Delete,
    ServerStep::Create(&[FileAction::Append]),
    READ,
    READ,
    READ,
    READ,
    READ,
    ServerStep::Log,
];

impl ServerKind {
    pub(super) fn name(self) -> String {
        self.to_possible_value().expect("every server can be typed").get_name().to_owned()
    }

    /// The profile, from `varmail.f`, `fileserver.f`, `webserver.f` and `webproxy.f` of filebench 1.4.9.
    fn profile(self) -> ServerProfile {
        let all = ServerProfile {
            files: 1_000,
            mean_bytes: 16 << 10,
            width: 1_000_000,
            present_percent: 80,
            steps: &VARMAIL,
        };
        match self {
            ServerKind::Varmail => all,
            ServerKind::Fileserver => {
                ServerProfile { files: 10_000, mean_bytes: 128 << 10, width: 20, steps: &FILESERVER, ..all }
            }
            ServerKind::Webserver => {
                ServerProfile { width: 20, present_percent: 100, steps: &WEBSERVER, ..all }
            }
            ServerKind::Proxy => ServerProfile { files: 10_000, steps: &PROXY, ..all },
        }
    }

    /// Number of files: `percent` of the published number, at least 20.
    fn files(self, percent: u64) -> u64 {
        (self.profile().files * percent / 100).max(20)
    }

    /// Mean size of the whole set if all files are present.
    pub(super) fn bytes(self, percent: u64) -> u64 {
        self.files(percent) * self.profile().mean_bytes
    }
}

/// A server at work in a directory.
pub(super) struct ServerLoad {
    server: ServerKind,
    files: FileSet,
    log: PathBuf,
    log_bytes: AtomicU64,
    directory: PathBuf,
    seed: u64,
}

impl ServerLoad {
    pub(super) fn new(server: ServerKind, directory: &Path, percent: u64, seed: u64) -> ServerLoad {
        let ServerProfile { mean_bytes, width, present_percent, .. } = server.profile();
        let files =
            FileSet::new(&directory.join("files"), server.files(percent), width, mean_bytes, present_percent);
        let (log, directory) = (directory.join("log"), directory.to_path_buf());
        ServerLoad { server, files, log, log_bytes: AtomicU64::new(0), directory, seed }
    }

    /// Makes the files.
    pub(super) fn make(&self) -> Result<(), BenchError> {
        let make = || {
            File::create(&self.log)?;
            self.files.make(&mut SeededRng::new(self.seed), &vec![0x5a; IO_BYTES])
        };
        make().map_err(|error| self.failed(error))
    }

    /// Works in `threads` threads for `limit`, at `paced_to` operations per second in all, or as fast as
    /// possible.
    pub(super) fn run(
        &self,
        threads: u32,
        limit: Duration,
        paced_to: Option<u32>,
    ) -> Result<WorkDone, BenchError> {
        let began = Instant::now();
        let goes_on = |operations: u64| {
            let due = paced_to.map_or(0.0, |all| operations as f64 * f64::from(threads) / f64::from(all));
            wait_until(began, Duration::from_secs_f64(due).min(limit));
            began.elapsed() < limit && !cleanup::is_stopping()
        };
        let operations: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=threads)
                .map(|thread| scope.spawn(move || ServerThread::new(self, thread)?.run(goes_on)))
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join().expect("a thread does not panic"));
            joined.collect::<io::Result<_>>()
        })
        .map_err(|error| self.failed(error))?;
        Ok(WorkDone { writes: operations.iter().sum(), elapsed: began.elapsed() })
    }

    fn failed(&self, error: io::Error) -> BenchError {
        BenchError::io("cannot work in", &self.directory, error)
    }
}

/// One thread of a server.
struct ServerThread<'a> {
    load: &'a ServerLoad,
    random: SeededRng,
    log: File,
    memory: Vec<u8>,
    /// Calls. An open, a close and the reading or writing of a file count as one each.
    operations: u64,
}

impl ServerThread<'_> {
    fn new(load: &ServerLoad, thread: u32) -> io::Result<ServerThread<'_>> {
        let log = OpenOptions::new().write(true).open(&load.log)?;
        let random = SeededRng::new(load.seed << 16 | u64::from(thread));
        Ok(ServerThread { load, random, log, memory: vec![0xa5; IO_BYTES], operations: 0 })
    }

    /// Repeats the loop while `goes_on` returns true. `goes_on` gets the number of operations so far and may
    /// block.
    fn run(mut self, goes_on: impl Fn(u64) -> bool) -> io::Result<u64> {
        for &step in self.load.server.profile().steps.iter().cycle() {
            if !goes_on(self.operations) {
                break;
            }
            self.step(step)?;
        }
        Ok(self.operations)
    }

    /// Performs a step. A step without a suitable file is skipped.
    fn step(&mut self, step: ServerStep) -> io::Result<()> {
        let (from, to) = match step {
            ServerStep::Delete => (FilePresence::Present, FilePresence::Absent),
            ServerStep::Create(_) => (FilePresence::Absent, FilePresence::Present),
            ServerStep::Stat | ServerStep::Open(_) => (FilePresence::Present, FilePresence::Present),
            ServerStep::Log => return self.log(),
        };
        let Some(number) = self.load.files.take(from, &mut self.random) else { return Ok(()) };
        let path = self.load.files.path(number);
        match step {
            ServerStep::Delete => fs::remove_file(&path)?,
            ServerStep::Stat => {
                fs::metadata(&path)?;
            }
            ServerStep::Create(actions) => {
                self.work(&mut OpenOptions::new().append(true).create_new(true).open(&path)?, actions)?;
            }
            ServerStep::Open(actions) => {
                let append = actions.contains(&FileAction::Append);
                self.work(&mut OpenOptions::new().read(true).append(append).open(&path)?, actions)?;
            }
            ServerStep::Log => unreachable!("has no file of the set"),
        }
        self.load.files.put(number, to);
        self.operations += 1;
        Ok(())
    }

    /// Performs the actions. The close that follows counts as an operation, too.
    fn work(&mut self, file: &mut File, actions: &[FileAction]) -> io::Result<()> {
        for action in actions {
            match action {
                FileAction::ReadAll => while file.read(&mut self.memory)? > 0 {},
                FileAction::WriteAll => write(file, &self.memory, self.load.files.size(&mut self.random))?,
                FileAction::Append => write(file, &self.memory, append_bytes(&mut self.random))?,
                FileAction::Sync => file.sync_all()?,
            }
        }
        self.operations += actions.len() as u64 + 1;
        Ok(())
    }

    fn log(&mut self) -> io::Result<()> {
        let bytes = append_bytes(&mut self.random);
        let at = self.load.log_bytes.fetch_add(bytes, Ordering::Relaxed) % LOG_BYTES_MAX;
        self.log.write_all_at(&self.memory[..bytes as usize], at)?;
        self.operations += 1;
        Ok(())
    }
}

/// Waits until `due` after `began`, unless the benchmark is stopped.
fn wait_until(began: Instant, due: Duration) {
    while !cleanup::is_stopping()
        && let Some(left) = due.checked_sub(began.elapsed())
        && !left.is_zero()
    {
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}

fn append_bytes(random: &mut SeededRng) -> u64 {
    1 + random.below(APPEND_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paced_load_makes_as_many_operations_as_asked_for_at_most() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let load = ServerLoad::new(ServerKind::Webserver, directory.path(), 1, 1);
        load.make().expect("files");
        let done = load.run(2, Duration::from_millis(200), Some(100)).expect("operations");
        // A thread waits once it has made all operations that are due, so each exceeds them by one step at
        // most.
        assert!((2..=20 + 2 * 3).contains(&done.writes), "{done:?}");
    }

    #[test]
    fn every_server_works_by_several_threads_and_keeps_about_as_many_files() {
        for &server in ServerKind::value_variants() {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let load = ServerLoad::new(server, directory.path(), 1, 1);
            load.make().expect("files");
            let done = load.run(3, Duration::from_millis(100), None).expect("operations");
            assert!(done.writes > 20, "{server:?}: {done:?}");
            let directories = fs::read_dir(directory.path().join("files")).expect("directories");
            let of = |directory: fs::DirEntry| fs::read_dir(directory.path()).expect("files").count();
            let count: usize = directories.map(|directory| of(directory.expect("a directory"))).sum();
            let at_first = (server.files(1) * server.profile().present_percent / 100) as usize;
            assert!(count.abs_diff(at_first) <= 3, "{server:?}: {count}");
        }
    }
}
