//! The thread that answers requests about [hints](crate::thread_hints).
//!
//! To look a thread up in /proc takes the lock of a directory there. Another program may hold that lock while it waits
//! for a page of this file system. So a thread that reads requests must not look threads up: the thread here does.

use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

type HintWork = Box<dyn FnOnce() + Send>;

/// Does the work of requests about hints, in their order. The thread starts at the first one, and ends after this is
/// dropped.
#[derive(Default)]
pub(crate) struct HintThread {
    work: OnceLock<Sender<HintWork>>,
}

impl HintThread {
    /// Does `work` later. Drops `work` if no thread can be started.
    pub(crate) fn run(&self, work: impl FnOnce() + Send + 'static) {
        let sender = self.work.get_or_init(|| {
            let (sender, queued) = channel::<HintWork>();
            let work = move || queued.into_iter().for_each(|work| work());
            // Without the thread nobody receives, so that the next line drops the work.
            let _ = thread::Builder::new().name("hints".into()).spawn(work);
            sender
        });
        let _ = sender.send(Box::new(work));
    }
}
