//! The pages of files that the kernel keeps: dropped where what they hold, or lack, counts.
//!
//! To drop a page the kernel waits for whoever reads or writes it, and writes it back where it is dirty. It returns when we have
//! answered these requests. So no thread that takes requests may tell it to: others here do.

use fs::Ino;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

/// Threads that wait for the kernel. One works for one file at a time, so that a file whose pages are in use does not hold up others.
const THREADS: usize = 4;

/// Has the kernel drop its pages. Without [`start`](KernelPages::start) it keeps none that matter: the mount is read-only.
#[derive(Clone, Default)]
pub(crate) struct PageInvalidator {
    queue: Arc<InvalidationQueue>,
}

/// Pages to be dropped.
struct Invalidation {
    range: Range<u64>,
    then: Box<dyn FnOnce() + Send>,
}

#[derive(Default)]
struct InvalidationQueue {
    waiting: Mutex<QueuedInvalidations>,
    has_more: Condvar,
}

/// Under its lock, which nobody holds while the kernel is told anything.
#[derive(Default)]
struct QueuedInvalidations {
    is_started: bool,
    /// What is to be dropped of each file. A file for which a thread works is there, too, maybe with nothing more.
    files: HashMap<Ino, VecDeque<Invalidation>>,
    /// Files for which no thread works.
    ready: VecDeque<Ino>,
    /// Drops that were asked for and are not done.
    unfinished: usize,
}

impl QueuedInvalidations {
    /// The first drop of a file for which no thread works, if there is one.
    fn take(&mut self) -> Option<(Ino, Invalidation)> {
        let ino = self.ready.pop_front()?;
        let first = self.files.get_mut(&ino).and_then(VecDeque::pop_front);
        Some((ino, first.expect("a file that is ready has drops")))
    }

    /// The thread that worked for a file is done.
    fn done(&mut self, ino: Ino) {
        self.unfinished -= 1;
        if self.files.get(&ino).is_some_and(VecDeque::is_empty) {
            self.files.remove(&ino);
        } else {
            self.ready.push_back(ino);
        }
    }
}

impl InvalidationQueue {
    fn waiting(&self) -> MutexGuard<'_, QueuedInvalidations> {
        self.waiting.lock().expect("no panic while holding what waits")
    }

    /// Does what waits, for ever.
    fn work(&self, drop_pages: impl Fn(Ino, Range<u64>)) {
        let mut waiting = self.waiting();
        loop {
            let Some((ino, Invalidation { range, then })) = waiting.take() else {
                waiting = self.has_more.wait(waiting).expect("no panic while holding what waits");
                continue;
            };
            drop(waiting);
            drop_pages(ino, range);
            then();
            waiting = self.waiting();
            waiting.done(ino);
        }
    }
}

impl PageInvalidator {
    /// Starts the threads. `drop_pages` has the kernel drop its pages of a range of a file, and returns when that is done.
    pub(crate) fn start(
        &self,
        drop_pages: impl Fn(Ino, Range<u64>) + Clone + Send + 'static,
    ) -> io::Result<()> {
        for _ in 0..THREADS {
            let (queue, drop_pages) = (self.queue.clone(), drop_pages.clone());
            thread::Builder::new().name("kernel-pages".into()).spawn(move || queue.work(drop_pages))?;
        }
        self.queue.waiting().is_started = true;
        Ok(())
    }

    /// Whether there are pages to drop at all.
    pub(crate) fn is_started(&self) -> bool {
        self.queue.waiting().is_started
    }

    /// How many drops are not done yet.
    pub(crate) fn unfinished(&self) -> usize {
        self.queue.waiting().unfinished
    }

    /// Calls `then` when the kernel has dropped its pages of the range; up to `u64::MAX`, all from its start on.
    pub(crate) fn invalidate(&self, ino: Ino, range: Range<u64>, then: impl FnOnce() + Send + 'static) {
        let mut waiting = self.queue.waiting();
        if !waiting.is_started {
            drop(waiting);
            return then();
        }
        waiting.unfinished += 1;
        let is_new = !waiting.files.contains_key(&ino);
        waiting.files.entry(ino).or_default().push_back(Invalidation { range, then: Box::new(then) });
        if is_new {
            waiting.ready.push_back(ino);
            self.queue.has_more.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_file_whose_pages_are_in_use_does_not_hold_up_others() {
        let pages = PageInvalidator::default();
        let (in_use, used) = channel::<()>();
        let used = Arc::new(Mutex::new(used));
        let drop_pages = move |ino, _| {
            if ino == Ino(1) {
                let _ = used.lock().expect("no panic").recv();
            }
        };
        pages.start(drop_pages).expect("threads");
        let (tell, told) = channel();
        for number in 0..2 * THREADS as u64 {
            let tell = tell.clone();
            pages.invalidate(Ino(1), number..number + 1, move || tell.send(number).expect("it listens"));
        }
        let other = tell.clone();
        pages.invalidate(Ino(2), 0..1, move || other.send(100).expect("it listens"));
        assert_eq!(told.recv(), Ok(100));
        drop(in_use);
        let all: Vec<u64> = told.iter().take(2 * THREADS).collect();
        assert_eq!(all, (0..2 * THREADS as u64).collect::<Vec<_>>(), "in order");
    }
}
