//! Asynchronous requests. A pool of threads executes them, as many at a time as the trace ever had under way.
//! A thread that collects waits for the requests that it got in the trace.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, PoisonError};
use trace_file::{Op, Outcome};

/// Requests under way, and finished requests that are not collected yet.
#[derive(Debug, Default)]
pub(super) struct Requests {
    state: Mutex<HashMap<u32, Option<Outcome>>>,
    changed: Condvar,
}

impl Requests {
    pub(super) fn submitted(&self, request: u32) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).insert(request, None);
    }

    pub(super) fn done(&self, request: u32, outcome: Outcome) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).insert(request, Some(outcome));
        self.changed.notify_all();
    }

    /// Waits for these requests. The result is their number, or an error if one was never submitted.
    pub(super) fn collect(&self, requests: &[u32]) -> Outcome {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for request in requests {
            loop {
                match state.get(request) {
                    None => return Outcome::Error(libc::EINVAL),
                    Some(Some(_)) => break,
                    Some(None) => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                }
            }
        }
        state.retain(|number, _| !requests.contains(number));
        Outcome::Value(requests.len() as i64)
    }
}

/// The largest number of requests under way at once in the trace.
pub(super) fn depth<'a>(ops: impl Iterator<Item = &'a Op<u32>>) -> usize {
    let (mut now, mut most) = (0usize, 0);
    for op in ops {
        match op {
            Op::Submit { requests, .. } => now += requests.len(),
            Op::Collect { requests, .. } => now = now.saturating_sub(requests.len()),
            _ => {}
        }
        most = most.max(now);
    }
    most
}
