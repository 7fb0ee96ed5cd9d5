//! Seeking data and holes in files that programs may have mapped.
//!
//! A store into a shared mapping reaches us when the kernel writes the page back, up to 30 s later; until then the page may be a hole
//! here, and `cp` and `tar -S` would leave its bytes out. Nothing tells us which files are mapped. So before a range is called a hole,
//! the kernel is told to drop its pages of that range, for which it writes dirty ones back; then we look again. Where there are no
//! such pages this is one short system call.
//!
//! The kernel returns from it when we have answered these writes, so no thread that takes requests may make it.

use fs::{Completion, Fs, FsError, Ino, Seek};
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

/// Threads that wait for the kernel: several, so that one file whose writes wait for space does not hold up the others at once.
const THREADS: usize = 4;

/// Parked seeks, and the threads that have the kernel write back for them.
#[derive(Default)]
pub(crate) struct Holes {
    /// Empty where no file can be mapped for writing.
    jobs: OnceLock<Sender<Job>>,
}

/// A range to be written back.
struct Job {
    ino: Ino,
    range: Range<u64>,
    then: Box<dyn FnOnce() + Send>,
}

/// What a request asks for.
struct Sought {
    fs: Arc<Fs>,
    ino: Ino,
    offset: u64,
    what: Seek,
}

impl Sought {
    fn size(&self) -> u64 {
        self.fs.attributes(self.ino).map_or(0, |found| found.size)
    }
}

impl Holes {
    /// Starts the threads. `write_back` has the kernel write back a range of a file, and returns when that is done.
    pub(crate) fn start(
        &self,
        write_back: impl Fn(Ino, Range<u64>) + Clone + Send + 'static,
    ) -> io::Result<()> {
        let (jobs, queue) = channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..THREADS {
            let (queue, write_back) = (queue.clone(), write_back.clone());
            let work = move || {
                while let Some(job) = next(&queue) {
                    write_back(job.ino, job.range);
                    (job.then)();
                }
            };
            thread::Builder::new().name("holes".into()).spawn(work)?;
        }
        let _ = self.jobs.set(jobs);
        Ok(())
    }

    /// [`Fs::seek`], where a hole is one in the kernel's memory, too.
    pub(crate) fn seek(
        self: &Arc<Holes>,
        fs: &Arc<Fs>,
        ino: Ino,
        offset: u64,
        what: Seek,
        done: Completion<u64>,
    ) {
        match self.jobs.get() {
            None => fs.seek(ino, offset, what, done),
            Some(_) => self.look(Sought { fs: fs.clone(), ino, offset, what }, 0..0, done),
        }
    }

    /// Looks once; `written` has been written back.
    fn look(self: &Arc<Holes>, sought: Sought, written: Range<u64>, done: Completion<u64>) {
        let holes = self.clone();
        let (fs, ino, offset, what) = (sought.fs.clone(), sought.ino, sought.offset, sought.what);
        let looked = move |found: Result<u64, FsError>| {
            let size = sought.size();
            match (found, what) {
                (Ok(data), Seek::Data) if covers(&written, offset..data) => done(Ok(data)),
                (Ok(data), Seek::Data) => holes.write_back(sought, offset..data, done),
                (Err(FsError::PastEnd), Seek::Data) if covers(&written, offset..size) => {
                    done(Err(FsError::PastEnd));
                }
                (Err(FsError::PastEnd), Seek::Data) => holes.write_back(sought, offset..size, done),
                (Ok(hole), Seek::Hole) if written.contains(&hole) || hole >= size => done(Ok(hole)),
                (Ok(hole), Seek::Hole) => holes.end_of(sought, hole, done),
                (found, _) => done(found),
            }
        };
        fs.seek(ino, offset, what, Box::new(looked));
    }

    /// Has all of a hole written back, so that one look more is enough, nearly always.
    fn end_of(self: &Arc<Holes>, sought: Sought, hole: u64, done: Completion<u64>) {
        let holes = self.clone();
        let (fs, ino) = (sought.fs.clone(), sought.ino);
        let ended = move |data: Result<u64, FsError>| {
            let end = data.unwrap_or_else(|_| sought.size());
            holes.write_back(sought, hole..end.max(hole + 1), done);
        };
        fs.seek(ino, hole, Seek::Data, Box::new(ended));
    }

    /// Where writes are refused, the range counts as data instead, which is always right: the kernel would drop what it cannot write
    /// back, and with it what the program that maps it sees.
    fn write_back(self: &Arc<Holes>, sought: Sought, range: Range<u64>, done: Completion<u64>) {
        let (holes, fs) = (self.clone(), sought.fs.clone());
        fs.wait_to_take_writes(move |are_taken| {
            if are_taken {
                holes.send(sought, range, done);
            } else {
                done(Ok(match sought.what {
                    Seek::Data => sought.offset,
                    Seek::Hole => sought.size(),
                }));
            }
        });
    }

    fn send(self: &Arc<Holes>, sought: Sought, range: Range<u64>, done: Completion<u64>) {
        let (holes, ino, written) = (self.clone(), sought.ino, range.clone());
        let then = move || holes.look(sought, written, done);
        let job = Job { ino, range, then: Box::new(then) };
        // The threads go on for as long as requests come.
        if let Some(Err(error)) = self.jobs.get().map(|jobs| jobs.send(job)) {
            (error.0.then)();
        }
    }
}

/// The next job; `None` once nobody can send one.
fn next(queue: &Mutex<Receiver<Job>>) -> Option<Job> {
    queue.lock().expect("no panic while a job is taken").recv().ok()
}

/// Whether all of `range` was written back.
fn covers(written: &Range<u64>, range: Range<u64>) -> bool {
    range.is_empty() || (written.start <= range.start && range.end <= written.end)
}
