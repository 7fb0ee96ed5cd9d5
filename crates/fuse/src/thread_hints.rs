//! Hints: the classes that threads set for themselves.
//!
//! A thread sets its class as the extended attribute [`CLASS_ATTRIBUTE`] of any file. The attribute belongs to the
//! thread, not to the file, and is never stored. Hints outlast rules: without rules they have no effect.

use crate::sync::{Mutex, MutexGuard};
use request::RequestClass;
use std::collections::HashMap;
use std::sync::PoisonError;

/// The extended attribute with which a thread sets its class.
pub(crate) const CLASS_ATTRIBUTE: &[u8] = b"user.weir.class";

/// At most this many hints are no crowd.
const KEPT_MIN: usize = 64;

/// The hints, behind the lock that all writers of a [`TaskTable`](crate::TaskTable) hold. So a table has no class
/// that is older than a hint.
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
    /// With more hints there is a crowd.
    kept_max: usize,
}

/// The class of a thread, which its start tells apart from later ones with the same id.
#[derive(Debug, Clone, Copy)]
struct ThreadHint {
    start_ticks: u64,
    class: RequestClass,
}

impl ThreadHints {
    /// Sets the hint of a thread that started at `start_ticks`, or removes it.
    pub(crate) fn set(&mut self, thread: u32, start_ticks: u64, class: Option<RequestClass>) {
        match class {
            Some(class) => self.hints.insert(thread, ThreadHint { start_ticks, class }),
            None => self.hints.remove(&thread),
        };
    }

    /// The threads with hints if there are many, so that the ended ones can be
    /// [dropped](ThreadHints::drop_ended); else none.
    pub(crate) fn crowd(&self) -> Vec<u32> {
        let is_crowded = self.hints.len() > self.kept_max.max(KEPT_MIN);
        if is_crowded { self.hints.keys().copied().collect() } else { Vec::new() }
    }

    /// Drops the hints of threads that have ended.
    pub(crate) fn drop_ended(&mut self, ended: &[u32]) {
        for thread in ended {
            self.hints.remove(thread);
        }
        self.kept_max = 2 * self.hints.len();
    }

    /// The hint of the thread with this id, or of an earlier one whose end was not noticed yet.
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
    fn reused_thread_ids_have_none() {
        let mut hints = ThreadHints::default();
        hints.set(7, 100, Some(RequestClass::Background));
        hints.drop_earlier(7, 99);
        hints.drop_earlier(7, 100);
        assert_eq!(hints.class_of(7), Some(RequestClass::Background));
        hints.drop_earlier(7, 101);
        assert_eq!(hints.class_of(7), None);
    }

    #[test]
    fn ended_threads_take_no_space() {
        let mut hints = ThreadHints::default();
        let is_running = |thread: u32| thread.is_multiple_of(100);
        let mut looks = 0;
        for thread in 0..10_000 {
            hints.set(thread, 1, Some(RequestClass::Critical));
            let mut crowd = hints.crowd();
            if !crowd.is_empty() {
                looks += crowd.len();
                crowd.retain(|&thread| !is_running(thread));
                hints.drop_ended(&crowd);
            }
            assert!(hints.hints.len() <= 300, "{}", hints.hints.len());
        }
        assert!((0..10_000).step_by(100).all(|thread| hints.class_of(thread).is_some()));
        assert!(looks < 4 * 10_000, "{looks}");
    }
}
