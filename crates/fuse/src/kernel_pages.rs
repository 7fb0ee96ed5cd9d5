//! The pages of files that the kernel keeps: dropped where what they hold, or lack, counts.
//!
//! To drop a page the kernel waits for whoever reads or writes it, and writes it back where it is dirty. It returns when we have
//! answered these requests. So no thread that takes requests may tell it to: others here do.

use fs::Ino;
use std::io;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;

/// Threads that wait for the kernel: several, so that one file whose writes wait for space does not hold up the others at once.
const THREADS: usize = 4;

/// Has the kernel drop its pages. Without [`start`](KernelPages::start) it keeps none that matter: the mount is read-only.
#[derive(Default)]
pub(crate) struct KernelPages {
    jobs: OnceLock<Sender<Job>>,
}

/// Pages to be dropped.
struct Job {
    ino: Ino,
    range: Range<u64>,
    then: Box<dyn FnOnce() + Send>,
}

impl KernelPages {
    /// Starts the threads. `drop_pages` has the kernel drop its pages of a range of a file, and returns when that is done.
    pub(crate) fn start(
        &self,
        drop_pages: impl Fn(Ino, Range<u64>) + Clone + Send + 'static,
    ) -> io::Result<()> {
        let (jobs, queue) = channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for _ in 0..THREADS {
            let (queue, drop_pages) = (queue.clone(), drop_pages.clone());
            let work = move || {
                while let Some(job) = next(&queue) {
                    drop_pages(job.ino, job.range);
                    (job.then)();
                }
            };
            thread::Builder::new().name("kernel-pages".into()).spawn(work)?;
        }
        let _ = self.jobs.set(jobs);
        Ok(())
    }

    /// Whether there are pages to drop at all.
    pub(crate) fn may_be_dropped(&self) -> bool {
        self.jobs.get().is_some()
    }

    /// Calls `then` when the kernel has dropped its pages of the range; up to `u64::MAX`, all from its start on.
    pub(crate) fn drop_range(&self, ino: Ino, range: Range<u64>, then: impl FnOnce() + Send + 'static) {
        let job = Job { ino, range, then: Box::new(then) };
        match self.jobs.get() {
            // The threads go on for as long as requests come.
            Some(jobs) => jobs.send(job).unwrap_or_else(|error| (error.0.then)()),
            None => (job.then)(),
        }
    }
}

/// The next job; `None` once nobody can send one.
fn next(queue: &Mutex<Receiver<Job>>) -> Option<Job> {
    queue.lock().expect("no panic while a job is taken").recv().ok()
}
