//! Where a thread of the program waits.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};

/// Calls its argument once, and does something before and after.
pub type WaitWrapper = fn(&mut (dyn FnMut() + Send));

static WRAPPER: OnceLock<WaitWrapper> = OnceLock::new();

/// Sets a function through which the whole process goes wherever it waits in this library: for a device, for space, or for
/// another thread that waits. Python's interpreter, for example, has a lock: the wrapper releases it during the wait.
///
/// Every lock that the library holds while it waits is itself taken through the wrapper. So the wrapper may wait for the
/// interpreter's lock. Waits may be nested. Later calls change nothing.
pub fn set_wait_wrapper(wrapper: WaitWrapper) {
    let _ = WRAPPER.set(wrapper);
}

/// The result of `wait`, which may take long.
pub(crate) fn waiting<T: Send>(wait: impl FnOnce() -> T + Send) -> T {
    let Some(wrapper) = WRAPPER.get() else { return wait() };
    let (mut wait, mut result) = (Some(wait), None);
    wrapper(&mut || result = wait.take().map(|wait| wait()));
    result.expect("a wrapper calls what it is given")
}

/// Locks a mutex that other threads hold while they wait.
pub(crate) fn lock_waiting<T: Send>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return guard,
            Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
            // The guard cannot go to another thread, so the lock is taken again.
            Err(TryLockError::WouldBlock) => {
                waiting(|| drop(mutex.lock().unwrap_or_else(PoisonError::into_inner)))
            }
        }
    }
}
