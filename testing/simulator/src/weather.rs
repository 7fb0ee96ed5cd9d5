//! What a life is like: how much there is of each thing that can happen.

use crate::stack::{Pick, TASKS};
use cache::BackgroundTask;
use device::SeededRng;

/// One thing that happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happening {
    Request,
    /// Something is done to volumes.
    Volumes,
    Step(BackgroundTask),
    /// Time passes.
    Time,
}

/// How often each kind of background work gets its turn for a while: rare combinations come from extremes.
pub(crate) struct Weather {
    requests: u64,
    tasks: [u64; TASKS.len()],
    volumes: u64,
    time: u64,
    /// Steps at most that are taken during another.
    pub(crate) crowd: u64,
    /// How long a device operation may take, in nanoseconds.
    pub(crate) slow: u64,
    /// Of so many changes, one finds no space after it was admitted; 0: none.
    pub(crate) refusals: u64,
}

impl Weather {
    pub(crate) fn draw(random: &mut SeededRng) -> Weather {
        let mut weight = || random.pick(&[0, 1, 4, 16]);
        let tasks = [weight(), weight(), weight(), weight() / 2];
        let time = weight() / 4;
        // Each writes everything back, so not often; and not at all in half of the lives.
        let volumes = random.pick(&[0, 0, 1, 2]);
        let crowd = random.pick(&[0, 4, 16]);
        // In the last one the devices stand still for longer than a commit interval.
        let slow = random.pick(&[0, 0, 0, 100_000, 50_000_000, 3_000_000_000]);
        Weather { requests: 20, tasks, volumes, time, crowd, slow, refusals: random.pick(&[0, 0, 30]) }
    }

    /// What happens next, each as often as it has weight.
    pub(crate) fn next(&self, random: &mut SeededRng) -> Happening {
        let total = self.requests + self.volumes + self.tasks.iter().sum::<u64>() + self.time;
        let mut dice = random.below(total);
        let volumes = (self.volumes, Happening::Volumes);
        let tasks = TASKS.into_iter().zip(self.tasks).map(|(task, weight)| (weight, Happening::Step(task)));
        for (weight, happening) in [(self.requests, Happening::Request), volumes].into_iter().chain(tasks) {
            if dice < weight {
                return happening;
            }
            dice -= weight;
        }
        Happening::Time
    }
}
