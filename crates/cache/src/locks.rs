//! The cache's locks and their order. Debug builds assert the order.

use crate::sync::{Mutex, MutexGuard, thread_local};
use std::cell::Cell;
use std::ops::{Deref, DerefMut};

/// The locks, in the order in which a thread takes them: one that holds a lock takes only later ones. The
/// locks of the buffer and of the store come after all of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum CacheLock {
    /// One thread at a time makes space. Held over device I/O.
    SpaceAttempt,
    /// One thread at a time writes back, clones or deletes volumes (except expendable ones, under
    /// `SpaceAttempt`), or rescues. Held over device I/O.
    WriteBack,
    /// [`CacheState`](crate::state::CacheState). Held for moments, never over device I/O or a completion.
    State,
    /// Volumes that may be deleted for space. Held for moments.
    ExpendableVolumes,
    /// Volumes in use. Held for moments.
    VolumesInUse,
    /// The outcome of a rescue. Held for moments.
    RescueOutcome,
}

thread_local! {
    /// The locks that this thread holds, one bit each.
    static HELD: Cell<u32> = const { Cell::new(0) };
}

/// A mutex with its place in the order.
pub(crate) struct OrderedMutex<T> {
    lock: CacheLock,
    inner: Mutex<T>,
}

impl<T> OrderedMutex<T> {
    pub(crate) fn new(lock: CacheLock, value: T) -> OrderedMutex<T> {
        OrderedMutex { lock, inner: Mutex::new(value) }
    }

    /// Waits for the lock.
    ///
    /// # Panics
    /// In debug builds, if the thread holds this lock or a later one. In all builds, if a thread panicked
    /// while it held the lock.
    pub(crate) fn lock(&self) -> OrderedGuard<'_, T> {
        // Before the wait, which may never end if the order is wrong.
        let held = LockMark::note(self.lock);
        OrderedGuard { inner: self.inner.lock().expect("no panic while holding a lock of the cache"), held }
    }

    /// Whether no thread holds it.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn is_free(&self) -> bool {
        self.inner.try_lock().is_ok()
    }
}

/// The value of a locked [`OrderedMutex`].
pub(crate) struct OrderedGuard<'a, T> {
    inner: MutexGuard<'a, T>,
    held: LockMark,
}

impl<'a, T> OrderedGuard<'a, T> {
    /// The guard for a condition variable, whose wait releases the lock.
    pub(crate) fn for_wait(self) -> MutexGuard<'a, T> {
        drop(self.held);
        self.inner
    }
}

impl<T> Deref for OrderedGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for OrderedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// The thread's note that it holds a lock; debug builds keep it.
struct LockMark(CacheLock);

impl LockMark {
    fn note(lock: CacheLock) -> LockMark {
        if cfg!(debug_assertions) {
            let held = HELD.with(Cell::get);
            assert!(held >> lock as u32 == 0, "{lock:?} is taken by a thread that holds {held:#b}");
            HELD.with(|all| all.set(held | 1 << lock as u32));
        }
        LockMark(lock)
    }
}

impl Drop for LockMark {
    fn drop(&mut self) {
        if cfg!(debug_assertions) {
            HELD.with(|all| all.set(all.get() & !(1 << self.0 as u32)));
        }
    }
}
