//! What a benchmark put up and must take down again: mounts, loop devices, programs, directories.
//!
//! Every such thing is an [`CleanupGuard`]. Dropping it takes the thing down; a panic, Ctrl-C or a termination signal takes
//! down all that are left, newest first. The release profile aborts on panic, so the panic hook does it, not unwinding.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::error::BenchError;

type CleanupAction = Box<dyn FnOnce() + Send>;

/// Everything that is up, oldest first. Held only to push or take an entry, never while an action runs.
static PENDING: Mutex<Vec<(u64, CleanupAction)>> = Mutex::new(Vec::new());
/// True while a signal's or a panic's thread takes everything down: meanwhile the others put nothing up and do not
/// end the process. After a signal it stays true to the end.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// One thing that is up, taken down by dropping this.
#[must_use = "dropping this takes the thing down at once"]
pub(super) struct CleanupGuard(u64);

impl CleanupGuard {
    /// Remembers how to take a thing down. Call it *before* putting the thing up, so that no moment lies between in
    /// which a signal would leave it; `action` therefore has to do no harm when the thing is not there yet,
    /// and drops no younger `CleanupGuard`.
    pub(super) fn new(action: impl FnOnce() + Send + 'static) -> CleanupGuard {
        wait_while_stopping();
        let mut pending = pending();
        let id = pending.last().map_or(0, |(id, _)| id + 1);
        pending.push((id, Box::new(action)));
        CleanupGuard(id)
    }

    /// Puts an action in the place of the one that is pending, if it still is.
    fn replace(&self, with: CleanupAction) -> Option<CleanupAction> {
        let mut pending = pending();
        let entry = pending.iter_mut().find(|(id, _)| *id == self.0)?;
        Some(std::mem::replace(&mut entry.1, with))
    }
}

impl Drop for CleanupGuard {
    fn drop(&mut self) {
        let (running, wait) = running();
        let guard = running.lock().unwrap_or_else(PoisonError::into_inner);
        // A stop that comes while the action runs waits for it before it goes on to what lies below.
        if let Some(action) = self.replace(wait) {
            action();
        }
        drop(guard);
        let mut pending = pending();
        let index = pending.iter().position(|(id, _)| *id == self.0);
        let found = index.map(|index| pending.remove(index));
        drop(pending);
        if found.is_none() {
            wait_while_stopping();
        }
    }
}

/// What is locked while something goes on, and an action that waits for that.
fn running() -> (Arc<Mutex<()>>, CleanupAction) {
    let running = Arc::new(Mutex::new(()));
    let waited_for = Arc::clone(&running);
    (running, Box::new(move || drop(waited_for.lock())))
}

/// Puts something up with a program that takes a moment: a stop that comes meanwhile first waits for it, so as not to find
/// nothing to take down and leave what comes up later. Or works with something that cannot be taken down meanwhile. `up` must
/// not panic.
pub(super) fn uninterrupted<T>(up: impl FnOnce() -> T) -> T {
    let (running, wait) = running();
    let guard = running.lock().unwrap_or_else(PoisonError::into_inner);
    let wait = CleanupGuard::new(wait);
    let result = up();
    drop(guard);
    drop(wait);
    result
}

/// Whether everything is being taken down: who works inside [`uninterrupted`] for long gives up then.
pub(super) fn is_stopping() -> bool {
    STOPPING.load(Ordering::SeqCst)
}

fn wait_while_stopping() {
    while is_stopping() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn pending() -> MutexGuard<'static, Vec<(u64, CleanupAction)>> {
    // A panic while the lock was held left at worst a whole entry too few: the list itself is sound.
    PENDING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take_down_everything() {
    STOPPING.store(true, Ordering::SeqCst);
    loop {
        let newest = pending().pop();
        let Some((_, action)) = newest else { return };
        action();
    }
}

/// Takes everything down on a panic, and on SIGINT, SIGTERM and SIGHUP, which end the process with 128 + the signal.
pub(super) fn install() -> Result<(), BenchError> {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        take_down_everything();
        STOPPING.store(false, Ordering::SeqCst);
    }));
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM])
        .map_err(|source| BenchError::io("cannot listen for signals", "", source))?;
    std::thread::spawn(move || {
        if let Some(signal) = signals.forever().next() {
            eprintln!("stopping: taking down devices and mounts");
            take_down_everything();
            std::process::exit(128 + signal);
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn dropping_takes_the_thing_down_once() {
        let (tell, told) = mpsc::channel();
        let cleanup = CleanupGuard::new(move || tell.send(()).expect("the receiver lives"));
        assert!(told.try_recv().is_err(), "taken down too early");
        drop(cleanup);
        assert!(told.recv().is_ok(), "not taken down");
        assert!(told.recv().is_err(), "taken down twice");
    }
}
