//! Invalidates pages of files in the kernel's page cache, where stale or unknown pages would do harm.
//!
//! To invalidate a page, the kernel waits for processes that read or write it, and writes it back if it is
//! dirty. The call returns when weir has answered these requests. So a thread that reads requests must not
//! make it: the threads here do.

use fs::Ino;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

/// Threads that wait for the kernel. A thread works for one file at a time, so a file whose pages are in use
/// does not delay others.
const THREADS: usize = 4;

/// Invalidates pages of files in the kernel's page cache. Before `start` it does
/// nothing: in a read-only mount no page can be stale.
#[derive(Clone, Default)]
pub struct PageInvalidator {
    queue: Arc<InvalidationQueue>,
}

/// A range to invalidate, and a callback for afterwards.
struct Invalidation {
    range: Range<u64>,
    then: Box<dyn FnOnce() + Send>,
}

#[derive(Default)]
struct InvalidationQueue {
    waiting: Mutex<QueuedInvalidations>,
    has_more: Condvar,
}

/// The queue under its lock. The lock is never held during a call to the kernel.
#[derive(Default)]
struct QueuedInvalidations {
    is_started: bool,
    /// Ranges to invalidate, by file. A file for which a thread works has an entry, too, which may be empty.
    files: HashMap<Ino, VecDeque<Invalidation>>,
    /// Files with ranges to invalidate for which no thread works.
    ready: VecDeque<Ino>,
    /// Requested invalidations that are not finished.
    unfinished: usize,
}

impl QueuedInvalidations {
    /// Takes the first range of a file for which no thread works, if there is one.
    fn take(&mut self) -> Option<(Ino, Invalidation)> {
        let ino = self.ready.pop_front()?;
        let first = self.files.get_mut(&ino).and_then(VecDeque::pop_front);
        Some((ino, first.expect("a ready file has a range to invalidate")))
    }

    /// Notes that the thread for this file has finished an invalidation.
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
        self.waiting.lock().expect("no panic while holding the queue")
    }

    /// Invalidates queued ranges, for ever.
    fn work(&self, invalidate_pages: impl Fn(Ino, Range<u64>)) {
        let mut waiting = self.waiting();
        loop {
            let Some((ino, Invalidation { range, then })) = waiting.take() else {
                waiting = self.has_more.wait(waiting).expect("no panic while holding the queue");
                continue;
            };
            drop(waiting);
            invalidate_pages(ino, range);
            then();
            waiting = self.waiting();
            waiting.done(ino);
        }
    }
}

impl PageInvalidator {
    /// Starts the threads. `invalidate_pages` makes the kernel invalidate a range of a file, and returns
    /// afterwards.
    pub(crate) fn start(
        &self,
        invalidate_pages: impl Fn(Ino, Range<u64>) + Clone + Send + 'static,
    ) -> io::Result<()> {
        for _ in 0..THREADS {
            let queue = self.queue.clone();
            let invalidate_pages = invalidate_pages.clone();
            thread::Builder::new().name("kernel-pages".into()).spawn(move || queue.work(invalidate_pages))?;
        }
        self.queue.waiting().is_started = true;
        Ok(())
    }

    /// Whether the threads run, which they do in every mount that takes writes.
    pub(crate) fn is_started(&self) -> bool {
        self.queue.waiting().is_started
    }

    /// How many invalidations are not finished.
    pub(crate) fn unfinished(&self) -> usize {
        self.queue.waiting().unfinished
    }

    /// Makes the kernel forget the pages of a range, and the attributes of the file, then calls `then`: the range was not
    /// changed through the kernel, or is shared by now. An end of `u64::MAX` means to the end of the file. Call it without a
    /// lock, and from no thread that answers the kernel.
    pub fn invalidate(&self, ino: Ino, range: Range<u64>, then: impl FnOnce() + Send + 'static) {
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
        let invalidate_pages = move |ino, _| {
            if ino == Ino(1) {
                let _ = used.lock().expect("no panic").recv();
            }
        };
        pages.start(invalidate_pages).expect("threads");
        let (tell, told) = channel();
        for number in 0..2 * THREADS as u64 {
            let tell = tell.clone();
            pages.invalidate(Ino(1), number..number + 1, move || tell.send(number).expect("it listens"));
        }
        let other = tell;
        pages.invalidate(Ino(2), 0..1, move || other.send(100).expect("it listens"));
        assert_eq!(told.recv(), Ok(100));
        drop(in_use);
        let all: Vec<u64> = told.iter().take(2 * THREADS).collect();
        assert_eq!(all, (0..2 * THREADS as u64).collect::<Vec<_>>(), "in order");
    }
}
