//! Which task a line belongs to. To standard error, strace numbers lines only while it follows several tasks: lines before the
//! first fork, and those after all tasks but one have ended, have no number.

use std::collections::BTreeSet;

/// How the task is called whose number was not printed when it began.
pub(super) const UNNUMBERED: u32 = 0;

/// The tasks of a trace, as far as that takes to say whose a line without a number is.
#[derive(Default)]
pub(super) struct Numbering {
    /// Whether lines had no number when none was known.
    has_unnumbered: bool,
    /// The number that [`UNNUMBERED`] turned out to have.
    first: Option<u32>,
    /// Numbers of tasks that others made, until `first` is known.
    made: BTreeSet<u32>,
    /// Tasks that strace follows now.
    alive: BTreeSet<u32>,
}

impl Numbering {
    /// The task of a line that begins, continues or ends a call, or ends a task. `forking` says whether [`UNNUMBERED`] is just
    /// making a task, and this is not the line on which that ends.
    pub(super) fn task(&mut self, pid: Option<u32>, forking: bool) -> u32 {
        let Some(pid) = pid else { return self.only_task() };
        if self.has_unnumbered && self.first.is_none() && !self.made.contains(&pid) && !forking {
            // Nobody made it: it was there before.
            self.first = Some(pid);
            self.made.clear();
        }
        let task = self.known_as(pid);
        self.alive.insert(task);
        task
    }

    /// Whose a line without a number is: all tasks but one have ended, even where the trace does not say so.
    fn only_task(&mut self) -> u32 {
        let only = self.alive.first().copied().unwrap_or(UNNUMBERED);
        self.has_unnumbered |= only == UNNUMBERED;
        self.alive = BTreeSet::from([only]);
        only
    }

    /// Whether a task has been seen, and not its end.
    pub(super) fn is_alive(&self, pid: Option<u32>) -> bool {
        pid.is_none_or(|pid| self.alive.contains(&self.known_as(pid)))
    }

    /// What a task is called in events.
    pub(super) fn known_as(&self, pid: u32) -> u32 {
        if self.first == Some(pid) { UNNUMBERED } else { pid }
    }

    /// strace follows one more task.
    pub(super) fn attached(&mut self, pid: u32) {
        self.made(pid);
        let task = self.known_as(pid);
        self.alive.insert(task);
    }

    /// A call returned a new task's number.
    pub(super) fn made(&mut self, pid: u32) {
        if self.has_unnumbered && self.first.is_none() {
            self.made.insert(pid);
        }
    }

    /// strace no longer follows a task.
    pub(super) fn ended(&mut self, task: u32) {
        self.alive.remove(&task);
    }
}
