//! The thread that answers requests for which /proc is read: about [hints](crate::thread_hints), and writes of programs that
//! may have been killed.
//!
//! To look a thread up in /proc takes the lock of a directory there. Another program may hold that lock while it waits
//! for a page of this file system. So a thread that reads requests must not look threads up: the thread here does.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

type ProcWork = Box<dyn FnOnce() + Send>;

/// Does the work of such requests, in their order. The thread starts at the first one, and ends after this is
/// dropped.
#[derive(Default)]
pub(crate) struct ProcReader {
    work: Mutex<Option<Sender<ProcWork>>>,
}

impl ProcReader {
    /// Does `work` later. Drops `work` if no thread can be started.
    pub(crate) fn run(&self, work: impl FnOnce() + Send + 'static) {
        let mut sender = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        if sender.is_none() {
            *sender = start_thread();
        }
        let _ = sender.as_ref().map(|sender| sender.send(Box::new(work)));
    }
}

/// `None` if no thread can be started: the next request tries again.
fn start_thread() -> Option<Sender<ProcWork>> {
    let (sender, queued) = channel::<ProcWork>();
    let work = move || queued.into_iter().for_each(|work| work());
    thread::Builder::new().name("proc-reader".into()).spawn(work).ok().map(|_| sender)
}

/// How long the first look may take before another thread looks, too. A look takes some 20 µs. Each further look may take twice as
/// long, because a busy machine may be slow.
const LOOK_TIME_MAX: Duration = Duration::from_millis(20);

/// The most looks for one answer. They take at most two and a half seconds.
const LOOKS_MAX: u32 = 7;

/// Finds out whether the task of an unanswered write was killed.
///
/// A look at a task in /proc holds the memory of its process for a moment. If the process ends meanwhile, the look is the last
/// to release the memory, and the kernel has it wait for the process's asynchronous writes (`exit_aio`): these must be
/// answered without it. So a thread of its own looks. If it does not return, the task has no memory any more, and the look
/// of another thread holds none.
#[derive(Default)]
pub(crate) struct KillDetector {
    /// The thread that looked last, if it returned.
    looker: Mutex<Option<Looker>>,
}

impl KillDetector {
    /// Whether the task was killed, or is gone. True if that cannot be found out.
    pub(crate) fn is_killed(&self, task: u32) -> bool {
        let mut looker = self.looker.lock().unwrap_or_else(PoisonError::into_inner);
        for look in 0..LOOKS_MAX {
            let Some(current) = looker.take().or_else(Looker::start) else { return true };
            if let Some(is_killed) = current.look(task, LOOK_TIME_MAX * 2_u32.pow(look)) {
                *looker = Some(current);
                return is_killed;
            }
        }
        true
    }
}

/// A thread that looks at tasks. It ends after this is dropped, once its look has returned.
struct Looker {
    tasks: Sender<u32>,
    answers: Receiver<bool>,
}

impl Looker {
    /// `None` if no thread can be started.
    fn start() -> Option<Looker> {
        let (tasks, asked) = channel();
        let (answer, answers) = channel();
        let look = move || asked.into_iter().all(|task| answer.send(host::is_killed(task)).is_ok());
        thread::Builder::new().name("kill-detector".into()).spawn(look).ok()?;
        Some(Looker { tasks, answers })
    }

    /// Whether the task was killed; `None` if the look takes longer than `time_max`.
    fn look(&self, task: u32, time_max: Duration) -> Option<bool> {
        self.tasks.send(task).ok()?;
        self.answers.recv_timeout(time_max).ok()
    }
}
