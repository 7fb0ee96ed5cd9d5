//! Interleaves other work with device operations: a request arrives, background work takes steps, and time
//! passes.

use device::SeededRng;
use sim_disk::SimClock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The turns of other threads: at the beginning and at the end of each device operation, as in production.
#[derive(Default)]
pub(crate) struct Interleaving(Mutex<InterleavingState>);

#[derive(Default)]
struct InterleavingState {
    request: Option<DueAction>,
    /// Steps in order. Each step counts its turns from the start of the step before, and may run inside that
    /// step.
    steps: VecDeque<DueAction>,
    slow: Option<SlowDevices>,
}

/// A number of turns, and the action at the last of them.
struct DueAction(u64, Box<dyn FnOnce() + Send>);

impl DueAction {
    fn is_now(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 == 0
    }
}

/// Devices whose operations take time.
struct SlowDevices {
    random: SeededRng,
    clock: Arc<SimClock>,
    nanos_max: u64,
}

/// Time passes at one in this many turns.
const TIME_PASSES_ONE_IN: u64 = 4;

impl Interleaving {
    /// Lets `request` arrive after `turns` turns, at the next one.
    pub(crate) fn comes_after(&self, turns: u64, request: Box<dyn FnOnce() + Send>) {
        self.state().request = Some(DueAction(turns + 1, request));
    }

    /// Takes `step` after `turns` turns, at the next one, counted from the start of the step before it.
    pub(crate) fn steps_after(&self, turns: u64, step: Box<dyn FnOnce() + Send>) {
        self.state().steps.push_back(DueAction(turns + 1, step));
    }

    /// Lets device operations take time from now on, up to `nanos_max` for each advance of the clock.
    pub(crate) fn slow_down(&self, random: SeededRng, clock: &Arc<SimClock>, nanos_max: u64) {
        let clock = clock.clone();
        self.state().slow = (nanos_max > 0).then_some(SlowDevices { random, clock, nanos_max });
    }

    /// Whether operations take time.
    pub(crate) fn is_slow(&self) -> bool {
        self.state().slow.is_some()
    }

    /// Takes a turn, because a device operation begins or ends.
    pub(crate) fn turn(&self) {
        let mut state = self.state();
        if let Some(SlowDevices { random, clock, nanos_max }) = &mut state.slow
            && random.once_in(TIME_PASSES_ONE_IN)
        {
            clock.advance(Duration::from_nanos(random.below(*nanos_max)));
        }
        let due = state.request.as_mut().is_some_and(DueAction::is_now);
        let request = if due { state.request.take() } else { None };
        drop(state);
        if let Some(DueAction(_, request)) = request {
            request();
        }
        while let Some(step) = self.step_due() {
            step();
        }
    }

    fn step_due(&self) -> Option<Box<dyn FnOnce() + Send>> {
        let mut state = self.state();
        if !state.steps.front_mut()?.is_now() {
            return None;
        }
        let step = state.steps.pop_front();
        // The next step may be due at once.
        step.map(|DueAction(_, step)| step)
    }

    /// Whether a request has yet to arrive.
    pub(crate) fn waits(&self) -> bool {
        self.state().request.is_some()
    }

    /// Whether steps have yet to be taken.
    pub(crate) fn has_steps(&self) -> bool {
        !self.state().steps.is_empty()
    }

    /// Lets the pending request arrive now.
    pub(crate) fn comes_now(&self) {
        let late = self.state().request.take();
        if let Some(DueAction(_, request)) = late {
            request();
        }
    }

    /// Drops the pending request, whose client is gone, and all pending steps.
    pub(crate) fn never_comes(&self) {
        let mut state = self.state();
        state.steps.clear();
        state.request = None;
    }

    fn state(&self) -> MutexGuard<'_, InterleavingState> {
        self.0.lock().expect("nobody panics with what happens meanwhile")
    }
}
