//! Joins a call that a signal interrupts with its restart by the kernel into one call, with the first entry
//! and the last result.

use crate::event::{EventKind, Recorded, TraceEvent};
use std::collections::{BTreeMap, VecDeque};

/// Interrupted calls, by task. Each task has at most one, because it has one call under way.
#[derive(Default)]
pub(super) struct Restarts(BTreeMap<u32, TraceEvent>);

/// Maximum number of tasks with an interrupted call. With more, the trace is garbage, and calls are no longer
/// joined.
const HELD_MAX: usize = 1 << 16;

impl Restarts {
    /// Joins an event with the interrupted call that it continues. Complete events go to `ready`.
    pub(super) fn pass(&mut self, mut event: TraceEvent, ready: &mut VecDeque<TraceEvent>) {
        if let EventKind::Call { name, .. } = &event.what
            && name == "rt_sigreturn"
        {
            // The signal handler has ended; the interrupted call comes next.
            return ready.push_back(event);
        }
        if let Some(held) = self.0.remove(&event.task) {
            if goes_on(&held, &event) { join(held, &mut event) } else { ready.push_back(give_up(held)) }
        }
        match &event.what {
            EventKind::Call { result: Recorded::Restarts, .. } if self.0.len() < HELD_MAX => {
                self.0.insert(event.task, event);
            }
            _ => ready.push_back(event),
        }
    }

    /// Ends the trace: interrupted calls never continued.
    pub(super) fn finish(&mut self, ready: &mut VecDeque<TraceEvent>) {
        ready.extend(std::mem::take(&mut self.0).into_values().map(give_up));
    }
}

fn goes_on(held: &TraceEvent, event: &TraceEvent) -> bool {
    match (&held.what, &event.what) {
        (EventKind::Call { name: held, .. }, EventKind::Call { name, .. }) => {
            held == name || name == "restart_syscall"
        }
        _ => false,
    }
}

/// Joins two events: entry and arguments of the first, return and result of the last.
fn join(held: TraceEvent, event: &mut TraceEvent) {
    (event.start, event.line) = (held.start, held.line);
    if let (EventKind::Call { name, args, .. }, EventKind::Call { name: last, args: last_args, .. }) =
        (held.what, &mut event.what)
        && last == "restart_syscall"
    {
        (*last, *last_args) = (name, args);
    }
}

fn give_up(mut held: TraceEvent) -> TraceEvent {
    if let EventKind::Call { result, .. } = &mut held.what {
        *result = Recorded::Unknown;
    }
    held
}
