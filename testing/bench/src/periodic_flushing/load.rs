//! The servers: what each does over and over, as filebench's profiles of these names have it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use device::SeededRng;

use super::super::error::BenchError;
use super::super::undo;
use super::super::workload::Done;
use super::files::{Files, Presence, write};

/// Of a read or a write, at most.
const IO_BYTES: usize = 1 << 20;
/// An append is of any length up to this.
const APPEND_BYTES_MAX: u64 = 16 << 10;
/// A log that has this length is written anew from its start: a run may be long and fast, and devices are small.
pub(super) const LOG_BYTES_MAX: u64 = 256 << 20;

/// What the load is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Server {
    Varmail,
    Fileserver,
    Webserver,
    Proxy,
}

/// A part of what a server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Delete,
    Stat,
    /// Creates a file, does that with it, and closes it.
    Create(&'static [Action]),
    /// The same with a file that is there.
    Open(&'static [Action]),
    /// Appends to a log that all threads share.
    Log,
}

/// What is done with an open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Action {
    ReadAll,
    /// As much as a file of the set is long.
    WriteAll,
    Append,
    Sync,
}

/// A server's files.
#[derive(Debug, Clone, Copy)]
struct Profile {
    files: u64,
    mean_bytes: u64,
    /// Files of a directory.
    width: u64,
    /// How many of them are there at first.
    present_percent: u64,
    steps: &'static [Step],
}

const READ: Step = Step::Open(&[Action::ReadAll]);
const VARMAIL: [Step; 4] = [
    Step::Delete,
    Step::Create(&[Action::Append, Action::Sync]),
    Step::Open(&[Action::ReadAll, Action::Append, Action::Sync]),
    READ,
];
const FILESERVER: [Step; 5] =
    [Step::Create(&[Action::WriteAll]), Step::Open(&[Action::Append]), READ, Step::Delete, Step::Stat];
const WEBSERVER: [Step; 11] = [READ, READ, READ, READ, READ, READ, READ, READ, READ, READ, Step::Log];
const PROXY: [Step; 8] =
    [Step::Delete, Step::Create(&[Action::Append]), READ, READ, READ, READ, READ, Step::Log];

impl Server {
    pub(super) fn name(self) -> String {
        self.to_possible_value().expect("every server can be typed").get_name().to_owned()
    }

    /// As `varmail.f`, `fileserver.f`, `webserver.f` and `webproxy.f` of filebench 1.4.9 have them.
    fn profile(self) -> Profile {
        let all = Profile {
            files: 1_000,
            mean_bytes: 16 << 10,
            width: 1_000_000,
            present_percent: 80,
            steps: &VARMAIL,
        };
        match self {
            Server::Varmail => all,
            Server::Fileserver => {
                Profile { files: 10_000, mean_bytes: 128 << 10, width: 20, steps: &FILESERVER, ..all }
            }
            Server::Webserver => Profile { width: 20, present_percent: 100, steps: &WEBSERVER, ..all },
            Server::Proxy => Profile { files: 10_000, steps: &PROXY, ..all },
        }
    }

    /// How many files there are, of which so many per cent of the published number are asked for.
    fn files(self, percent: u64) -> u64 {
        (self.profile().files * percent / 100).max(20)
    }

    /// Of all files that there can be.
    pub(super) fn bytes(self, percent: u64) -> u64 {
        self.files(percent) * self.profile().mean_bytes
    }
}

/// A server at work in a directory.
pub(super) struct Load {
    server: Server,
    files: Files,
    log: PathBuf,
    log_bytes: AtomicU64,
    directory: PathBuf,
    seed: u64,
}

impl Load {
    pub(super) fn new(server: Server, directory: &Path, percent: u64, seed: u64) -> Load {
        let Profile { mean_bytes, width, present_percent, .. } = server.profile();
        let files =
            Files::new(&directory.join("files"), server.files(percent), width, mean_bytes, present_percent);
        let (log, directory) = (directory.join("log"), directory.to_path_buf());
        Load { server, files, log, log_bytes: AtomicU64::new(0), directory, seed }
    }

    /// Makes the files.
    pub(super) fn make(&self) -> Result<(), BenchError> {
        let make = || {
            File::create(&self.log)?;
            self.files.make(&mut SeededRng::new(self.seed), &vec![0x5a; IO_BYTES])
        };
        make().map_err(|error| self.failed(error))
    }

    /// So many threads work until the time is up, and make as many operations each second, all together, as they are paced to.
    pub(super) fn run(
        &self,
        threads: u32,
        limit: Duration,
        paced_to: Option<u32>,
    ) -> Result<Done, BenchError> {
        let began = Instant::now();
        let goes_on = |operations: u64| {
            let due = paced_to.map_or(0.0, |all| operations as f64 * f64::from(threads) / f64::from(all));
            wait_until(began, Duration::from_secs_f64(due).min(limit));
            began.elapsed() < limit && !undo::is_stopping()
        };
        let operations: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = (1..=threads)
                .map(|thread| scope.spawn(move || Worker::new(self, thread)?.run(goes_on)))
                .collect();
            let joined = threads.into_iter().map(|thread| thread.join().expect("a thread does not panic"));
            joined.collect::<io::Result<_>>()
        })
        .map_err(|error| self.failed(error))?;
        Ok(Done { writes: operations.iter().sum(), elapsed: began.elapsed() })
    }

    fn failed(&self, error: io::Error) -> BenchError {
        BenchError::io("cannot work in", &self.directory, error)
    }
}

/// One thread of a server.
struct Worker<'a> {
    load: &'a Load,
    random: SeededRng,
    log: File,
    memory: Vec<u8>,
    /// Calls, an open and a close being one each, and the reading or writing of a file.
    operations: u64,
}

impl Worker<'_> {
    fn new(load: &Load, thread: u32) -> io::Result<Worker<'_>> {
        let log = OpenOptions::new().write(true).open(&load.log)?;
        let random = SeededRng::new(load.seed << 16 | u64::from(thread));
        Ok(Worker { load, random, log, memory: vec![0xa5; IO_BYTES], operations: 0 })
    }

    /// `goes_on` is asked with the number of operations so far, and may take its time.
    fn run(mut self, goes_on: impl Fn(u64) -> bool) -> io::Result<u64> {
        for &step in self.load.server.profile().steps.iter().cycle() {
            if !goes_on(self.operations) {
                break;
            }
            self.step(step)?;
        }
        Ok(self.operations)
    }

    /// A step for which there is no file is left out.
    fn step(&mut self, step: Step) -> io::Result<()> {
        let (from, to) = match step {
            Step::Delete => (Presence::Present, Presence::Absent),
            Step::Create(_) => (Presence::Absent, Presence::Present),
            Step::Stat | Step::Open(_) => (Presence::Present, Presence::Present),
            Step::Log => return self.log(),
        };
        let Some(number) = self.load.files.take(from, &mut self.random) else { return Ok(()) };
        let path = self.load.files.path(number);
        match step {
            Step::Delete => fs::remove_file(&path)?,
            Step::Stat => {
                fs::metadata(&path)?;
            }
            Step::Create(actions) => {
                self.work(&mut OpenOptions::new().append(true).create_new(true).open(&path)?, actions)?;
            }
            Step::Open(actions) => {
                let append = actions.contains(&Action::Append);
                self.work(&mut OpenOptions::new().read(true).append(append).open(&path)?, actions)?;
            }
            Step::Log => unreachable!("has no file of the set"),
        }
        self.load.files.put(number, to);
        self.operations += 1;
        Ok(())
    }

    /// The close that follows counts as an operation, too.
    fn work(&mut self, file: &mut File, actions: &[Action]) -> io::Result<()> {
        for action in actions {
            match action {
                Action::ReadAll => while file.read(&mut self.memory)? > 0 {},
                Action::WriteAll => write(file, &self.memory, self.load.files.size(&mut self.random))?,
                Action::Append => write(file, &self.memory, append_bytes(&mut self.random))?,
                Action::Sync => file.sync_all()?,
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

/// Until so long after a moment, unless the benchmark is stopped meanwhile.
fn wait_until(began: Instant, due: Duration) {
    while !undo::is_stopping()
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
        let load = Load::new(Server::Webserver, directory.path(), 1, 1);
        load.make().expect("files");
        let done = load.run(2, Duration::from_millis(200), Some(100)).expect("operations");
        // A thread waits once it made as many as are due: at most a step more than that.
        assert!((2..=20 + 2 * 3).contains(&done.writes), "{done:?}");
    }

    #[test]
    fn every_server_works_by_several_threads_and_keeps_about_as_many_files() {
        for &server in Server::value_variants() {
            let directory = tempfile::tempdir().expect("a temporary directory");
            let load = Load::new(server, directory.path(), 1, 1);
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
