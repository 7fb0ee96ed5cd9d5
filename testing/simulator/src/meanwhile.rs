//! What happens while a device works: a request comes in, other background work takes its steps, and time passes.

use device::SeededRng;
use sim_disk::SimClock;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// Where other threads get their turns in production, and here: at the beginning and at the end of each device operation.
#[derive(Default)]
pub(crate) struct Meanwhile(Mutex<State>);

#[derive(Default)]
struct State {
    request: Option<Due>,
    /// Each counts from the one before it on, so that it may happen during that one.
    steps: VecDeque<Due>,
    slow: Option<Slow>,
}

/// What happens at the turn after so many others.
struct Due(u64, Box<dyn FnOnce() + Send>);

impl Due {
    fn is_now(&mut self) -> bool {
        self.0 = self.0.saturating_sub(1);
        self.0 == 0
    }
}

/// Devices that take their time.
struct Slow {
    random: SeededRng,
    clock: Arc<SimClock>,
    nanos_max: u64,
}

/// Of so many turns, time passes at one.
const TIME_PASSES_ONE_IN: u64 = 4;

impl Meanwhile {
    /// Lets `request` come in at the turn after the next `turns`.
    pub(crate) fn comes_after(&self, turns: u64, request: Box<dyn FnOnce() + Send>) {
        self.state().request = Some(Due(turns + 1, request));
    }

    /// Lets `step` be taken at the turn after the `turns` that come once all steps before it have begun.
    pub(crate) fn steps_after(&self, turns: u64, step: Box<dyn FnOnce() + Send>) {
        self.state().steps.push_back(Due(turns + 1, step));
    }

    /// From now on, operations may take so long.
    pub(crate) fn slow_down(&self, random: SeededRng, clock: &Arc<SimClock>, nanos_max: u64) {
        let clock = clock.clone();
        self.state().slow = (nanos_max > 0).then_some(Slow { random, clock, nanos_max });
    }

    /// Whether operations take time.
    pub(crate) fn is_slow(&self) -> bool {
        self.state().slow.is_some()
    }

    /// A device operation begins or ends.
    pub(crate) fn turn(&self) {
        let mut state = self.state();
        if let Some(Slow { random, clock, nanos_max }) = &mut state.slow
            && random.once_in(TIME_PASSES_ONE_IN)
        {
            clock.advance(Duration::from_nanos(random.below(*nanos_max)));
        }
        let due = state.request.as_mut().is_some_and(Due::is_now);
        let request = if due { state.request.take() } else { None };
        drop(state);
        if let Some(Due(_, request)) = request {
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
        // The next one may be due at once.
        step.map(|Due(_, step)| step)
    }

    /// Whether a request has not come in yet.
    pub(crate) fn waits(&self) -> bool {
        self.state().request.is_some()
    }

    /// Whether steps have not been taken yet.
    pub(crate) fn has_steps(&self) -> bool {
        !self.state().steps.is_empty()
    }

    /// A request that has not come in yet does so now.
    pub(crate) fn comes_now(&self) {
        let late = self.state().request.take();
        if let Some(Due(_, request)) = late {
            request();
        }
    }

    /// A request that has not come in yet never will, since its client is gone; nor are steps taken.
    pub(crate) fn never_comes(&self) {
        let mut state = self.state();
        state.steps.clear();
        state.request = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("nobody panics with what happens meanwhile")
    }
}
