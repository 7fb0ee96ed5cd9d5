//! Cleanup of mounts, loop devices, programs and directories that a benchmark set up.
//!
//! Each of these has a [`CleanupGuard`]; dropping the guard takes it down. A panic, Ctrl-C or a termination
//! signal takes down all that are left, newest first. The release profile aborts on panic, so the panic hook
//! does this, not unwinding.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::error::BenchError;

type CleanupAction = Box<dyn FnOnce() + Send>;

/// All pending cleanup actions, oldest first. The lock is held only to push or take an entry, never during an
/// action.
static PENDING: Mutex<Vec<(u64, CleanupAction)>> = Mutex::new(Vec::new());
/// True while a signal's or a panic's thread cleans up. Meanwhile other threads set nothing up and do not end
/// the process. After a signal it stays true to the end.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// A pending cleanup action. Dropping the guard runs the action.
#[must_use = "dropping this takes the thing down at once"]
pub(super) struct CleanupGuard(u64);

impl CleanupGuard {
    /// Registers a cleanup action.
    ///
    /// Call this *before* the setup, so that a signal at any moment cleans up. So `action` must do no harm if
    /// the setup has not happened yet. `action` must not drop a younger `CleanupGuard`.
    pub(super) fn new(action: impl FnOnce() + Send + 'static) -> CleanupGuard {
        wait_while_stopping();
        let mut pending = pending();
        let id = pending.last().map_or(0, |(id, _)| id + 1);
        pending.push((id, Box::new(action)));
        CleanupGuard(id)
    }

    /// Replaces the pending action, unless it was taken already.
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
        // A stop during the action waits for its end before the stop runs older actions.
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

/// A lock to hold during some work, and an action that waits until the lock is free.
fn running() -> (Arc<Mutex<()>>, CleanupAction) {
    let running = Arc::new(Mutex::new(()));
    let waited_for = Arc::clone(&running);
    (running, Box::new(move || drop(waited_for.lock())))
}

/// Runs a setup, or other work, that a stop must not interrupt. `up` must not panic.
///
/// A stop waits until `up` returns. Otherwise the stop could find nothing to clean up, and the setup would
/// complete later. The same holds for work on files that could not be cleaned up meanwhile.
pub(super) fn uninterrupted<T>(up: impl FnOnce() -> T) -> T {
    let (running, wait) = running();
    let guard = running.lock().unwrap_or_else(PoisonError::into_inner);
    let wait = CleanupGuard::new(wait);
    let result = up();
    drop(guard);
    drop(wait);
    result
}

/// Whether the benchmark is being stopped. Long work inside [`uninterrupted`] must end then.
pub(super) fn is_stopping() -> bool {
    STOPPING.load(Ordering::SeqCst)
}

fn wait_while_stopping() {
    while is_stopping() {
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn pending() -> MutexGuard<'static, Vec<(u64, CleanupAction)>> {
    // A panic under the lock can at worst lose a whole entry. The list itself stays sound.
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

/// Makes a panic, SIGINT, SIGTERM and SIGHUP clean up. The signals then end the process with 128 + the
/// signal.
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
