//! The weights of events in a life of the stack.

use crate::stack::{RandomPick, TASKS};
use cache::BackgroundTask;
use device::SeededRng;

/// An event in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SwarmEvent {
    Request,
    /// An operation on volumes.
    Volumes,
    Step(BackgroundTask),
    /// Time passes.
    Time,
}

/// How often each event happens for a while. Extreme weights produce rare combinations.
pub(crate) struct SwarmWeights {
    requests: u64,
    tasks: [u64; TASKS.len()],
    volumes: u64,
    time: u64,
    /// The most steps that are taken inside another step.
    pub(crate) crowd: u64,
    /// The longest time of a device operation, in nanoseconds.
    pub(crate) slow: u64,
    /// One in this many changes is refused for space after it was admitted. 0 means none.
    pub(crate) refusals: u64,
}

impl SwarmWeights {
    pub(crate) fn draw(random: &mut SeededRng) -> SwarmWeights {
        let mut weight = || random.pick(&[0, 1, 4, 16]);
        let tasks = [weight(), weight(), weight(), weight() / 2];
        let time = weight() / 4;
        // Rare, because many operations on volumes write everything back. Half of the lives have none.
        let volumes = random.pick(&[0, 0, 1, 3]);
        let crowd = random.pick(&[0, 4, 16]);
        // The largest value is longer than a commit interval.
        let slow = random.pick(&[0, 0, 0, 100_000, 50_000_000, 3_000_000_000]);
        SwarmWeights { requests: 20, tasks, volumes, time, crowd, slow, refusals: random.pick(&[0, 0, 30]) }
    }

    /// Draws the next event by weight.
    pub(crate) fn next(&self, random: &mut SeededRng) -> SwarmEvent {
        let total = self.requests + self.volumes + self.tasks.iter().sum::<u64>() + self.time;
        let mut dice = random.below(total);
        let volumes = (self.volumes, SwarmEvent::Volumes);
        let tasks = TASKS.into_iter().zip(self.tasks).map(|(task, weight)| (weight, SwarmEvent::Step(task)));
        for (weight, happening) in [(self.requests, SwarmEvent::Request), volumes].into_iter().chain(tasks) {
            if dice < weight {
                return happening;
            }
            dice -= weight;
        }
        SwarmEvent::Time
    }
}
