//! Finds the task of a line. On standard error, strace numbers lines only while it follows several tasks.
//! Lines before the first fork, and those after all tasks but one have ended, have no number.

use std::collections::BTreeSet;

/// The number for the task whose number was not printed when it began.
pub(super) const UNNUMBERED: u32 = 0;

/// The tasks of a trace, as far as needed to find the task of a line without a number.
#[derive(Default)]
pub(super) struct TaskNumbering {
    /// Whether lines came without a number while none was known.
    has_unnumbered: bool,
    /// The real number of [`UNNUMBERED`], once known.
    first: Option<u32>,
    /// Numbers of tasks that others made, until `first` is known.
    made: BTreeSet<u32>,
    /// Tasks that strace follows now.
    alive: BTreeSet<u32>,
}

impl TaskNumbering {
    /// The task of a line that begins, continues or ends a call, or ends a task. `forking` means that
    /// [`UNNUMBERED`] is making a task, and that this line does not complete the call.
    pub(super) fn task(&mut self, pid: Option<u32>, forking: bool) -> u32 {
        let Some(pid) = pid else { return self.only_task() };
        if self.has_unnumbered && self.first.is_none() && !self.made.contains(&pid) && !forking {
            // No call made this task, so it was there from the beginning.
            self.first = Some(pid);
            self.made.clear();
        }
        let task = self.known_as(pid);
        self.alive.insert(task);
        task
    }

    /// The task of a line without a number: all tasks but one have ended, even if the trace does not say so.
    fn only_task(&mut self) -> u32 {
        let only = self.alive.first().copied().unwrap_or(UNNUMBERED);
        self.has_unnumbered |= only == UNNUMBERED;
        self.alive = BTreeSet::from([only]);
        only
    }

    /// Whether a task has been seen and its end has not.
    pub(super) fn is_alive(&self, pid: Option<u32>) -> bool {
        pid.is_none_or(|pid| self.alive.contains(&self.known_as(pid)))
    }

    /// The number of a task in events.
    pub(super) fn known_as(&self, pid: u32) -> u32 {
        if self.first == Some(pid) { UNNUMBERED } else { pid }
    }

    /// Notes that strace follows another task.
    pub(super) fn attached(&mut self, pid: u32) {
        self.made(pid);
        let task = self.known_as(pid);
        self.alive.insert(task);
    }

    /// Notes that a call returned a new task's number.
    pub(super) fn made(&mut self, pid: u32) {
        if self.has_unnumbered && self.first.is_none() {
            self.made.insert(pid);
        }
    }

    /// Notes that strace no longer follows a task.
    pub(super) fn ended(&mut self, task: u32) {
        self.alive.remove(&task);
    }
}
