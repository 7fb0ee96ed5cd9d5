//! The thread that answers requests for which /proc is read: about [hints](crate::thread_hints), and writes of programs that
//! may have been killed.
//!
//! To look a thread up in /proc takes the lock of a directory there. Another program may hold that lock while it waits
//! for a page of this file system. So a thread that reads requests must not look threads up: the thread here does.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

type ProcWork = Box<dyn FnOnce() + Send>;

/// Does the work of such requests, in their order. The thread starts at the first one, and ends after this is
/// dropped.
#[derive(Default)]
pub(crate) struct ProcReader {
    work: OnceLock<Sender<ProcWork>>,
}

impl ProcReader {
    /// Does `work` later. Drops `work` if no thread can be started.
    pub(crate) fn run(&self, work: impl FnOnce() + Send + 'static) {
        let sender = self.work.get_or_init(|| {
            let (sender, queued) = channel::<ProcWork>();
            let work = move || queued.into_iter().for_each(|work| work());
            // Without the thread nobody receives, so that the next line drops the work.
            let _ = thread::Builder::new().name("proc-reader".into()).spawn(work);
            sender
        });
        let _ = sender.send(Box::new(work));
    }
}
