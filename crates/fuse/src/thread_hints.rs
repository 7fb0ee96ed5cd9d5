//! The classes that threads gave themselves.
//!
//! A thread sets its class as the extended attribute [`CLASS_ATTRIBUTE`] of any file. The attribute is the thread's,
//! not the file's, and is never stored. Without rules in force hints are kept, but have no effect.

use crate::sync::{Mutex, MutexGuard};
use request::RequestClass;
use std::collections::HashMap;
use std::sync::PoisonError;

/// The extended attribute with which a thread sets its class.
pub(crate) const CLASS_ATTRIBUTE: &[u8] = b"user.weir.class";

/// As few hints as are kept without looking for threads that ended.
const KEPT_MIN: usize = 64;

/// The hints, and the lock of all writers of a [`TaskTable`](crate::TaskTable): so a table has no class that is
/// older than a hint.
#[derive(Debug, Default)]
pub struct LockedHints(Mutex<ThreadHints>);

impl LockedHints {
    pub(crate) fn lock(&self) -> MutexGuard<'_, ThreadHints> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The hints of threads, by thread id.
#[derive(Debug, Default)]
pub(crate) struct ThreadHints {
    hints: HashMap<u32, ThreadHint>,
    /// As many hints as make it worth while to look for threads that ended.
    kept_max: usize,
}

/// The class of a thread with this start. A later one with the same id has no hint.
#[derive(Debug, Clone, Copy)]
struct ThreadHint {
    start_ticks: u64,
    class: RequestClass,
}

impl ThreadHints {
    /// Sets the hint of the thread that started then, or takes it back. `is_thread` tells whether a thread still
    /// exists.
    pub(crate) fn set(
        &mut self,
        thread: u32,
        start_ticks: u64,
        class: Option<RequestClass>,
        is_thread: impl Fn(u32) -> bool,
    ) {
        match class {
            Some(class) => self.hints.insert(thread, ThreadHint { start_ticks, class }),
            None => self.hints.remove(&thread),
        };
        if self.hints.len() > self.kept_max.max(KEPT_MIN) {
            self.hints.retain(|&thread, _| is_thread(thread));
            self.kept_max = 2 * self.hints.len();
        }
    }

    /// The hint of the thread that has this id, or of an earlier one whose end was not noticed yet.
    pub(crate) fn class_of(&self, thread: u32) -> Option<RequestClass> {
        self.hints.get(&thread).map(|hint| hint.class)
    }

    /// Drops the hint of a thread with this id that started before `start_ticks`.
    pub(crate) fn drop_earlier(&mut self, thread: u32, start_ticks: u64) {
        if self.hints.get(&thread).is_some_and(|hint| hint.start_ticks < start_ticks) {
            self.hints.remove(&thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_thread_with_the_same_id_has_no_hint() {
        let mut hints = ThreadHints::default();
        hints.set(7, 100, Some(RequestClass::Background), |_| true);
        hints.drop_earlier(7, 99);
        hints.drop_earlier(7, 100);
        assert_eq!(hints.class_of(7), Some(RequestClass::Background));
        hints.drop_earlier(7, 101);
        assert_eq!(hints.class_of(7), None);
    }

    #[test]
    fn hints_of_ended_threads_take_no_space() {
        let mut hints = ThreadHints::default();
        let is_running = |thread: u32| thread.is_multiple_of(100);
        for thread in 0..10_000 {
            hints.set(thread, 1, Some(RequestClass::Critical), is_running);
            assert!(hints.hints.len() <= 300, "{}", hints.hints.len());
        }
        assert!((0..10_000).step_by(100).all(|thread| hints.class_of(thread).is_some()));
    }
}
