//! Random executions that an order allows. Each action begins, and later takes effect; another may wait for either.

use super::random::Random;
use crate::action::{ActionId, Moment};
use crate::benchmark::Benchmark;
use crate::order::Order;

/// Changes of priority in one execution. Bugs that need more than a few switches at the right moment are rare; the executions
/// that pick a thread at random for each step find those.
const CHANGES_MAX: usize = 16;

/// What an order allows, ready to be walked again and again.
pub(super) struct Schedule<'a> {
    order: &'a Order,
    /// Of each thread, its actions.
    threads: Vec<Vec<ActionId>>,
    /// Of each action, its thread and its number there.
    place: Vec<(u32, u32)>,
}

/// How a thread is chosen.
enum Choice {
    /// Any that can go on.
    Any,
    /// The first in this list that can go on. The list is changed now and then, so that some threads run far ahead.
    First { priorities: Vec<usize>, changes: Vec<usize> },
}

impl<'a> Schedule<'a> {
    pub(super) fn new(benchmark: &Benchmark, order: &'a Order) -> Schedule<'a> {
        let mut threads = vec![Vec::new(); benchmark.about.threads as usize];
        let mut place = Vec::with_capacity(benchmark.actions.len());
        for (id, action) in benchmark.actions.iter().enumerate() {
            let own: &mut Vec<ActionId> = &mut threads[action.thread as usize];
            place.push((action.thread, own.len() as u32));
            own.push(id as ActionId);
        }
        Schedule { order, threads, place }
    }

    /// Walks one random execution; `each` gets the actions as they take effect.
    pub(super) fn run(&self, random: &mut Random, mut each: impl FnMut(ActionId)) {
        // Twice the number of the thread's next action, plus one once that has begun.
        let mut progress = vec![0u32; self.threads.len()];
        let mut alive: Vec<usize> =
            (0..self.threads.len()).filter(|at| !self.threads[*at].is_empty()).collect();
        let mut choice = self.choice(random, &alive);
        let mut step = 0;
        while !alive.is_empty() {
            if let Choice::First { priorities, changes } = &mut choice
                && changes.last() == Some(&step)
            {
                changes.pop();
                let (from, to) = (random.below(priorities.len()), random.below(priorities.len()));
                priorities.swap(from, to);
            }
            let next = match &choice {
                Choice::Any => {
                    let first = random.below(alive.len());
                    let mut turn = alive[first..].iter().chain(&alive[..first]).copied();
                    turn.find(|thread| self.can_go_on(*thread, &progress))
                }
                Choice::First { priorities, .. } => {
                    priorities.iter().copied().find(|thread| self.can_go_on(*thread, &progress))
                }
            };
            let thread = next.expect("an order without a cycle always lets some thread go on");
            let action = self.threads[thread][(progress[thread] / 2) as usize];
            progress[thread] += 1;
            if progress[thread].is_multiple_of(2) {
                each(action);
            }
            if progress[thread] as usize == 2 * self.threads[thread].len() {
                alive.retain(|other| *other != thread);
            }
            step += 1;
        }
    }

    fn choice(&self, random: &mut Random, alive: &[usize]) -> Choice {
        if random.below(2) == 0 || alive.is_empty() {
            return Choice::Any;
        }
        let mut priorities = alive.to_vec();
        for at in (1..priorities.len()).rev() {
            priorities.swap(at, random.below(at + 1));
        }
        let steps = 2 * self.place.len();
        let mut changes: Vec<usize> =
            (0..random.below(CHANGES_MAX + 1)).map(|_| random.below(steps)).collect();
        changes.sort_unstable_by(|a, b| b.cmp(a));
        changes.dedup();
        Choice::First { priorities, changes }
    }

    /// An action that has begun can take effect; one that has not begins once all that it waits for has happened.
    fn can_go_on(&self, thread: usize, progress: &[u32]) -> bool {
        let own = &self.threads[thread];
        let Some(action) = own.get((progress[thread] / 2) as usize) else { return false };
        progress[thread] % 2 == 1
            || self.order.of(*action).iter().all(|wait| {
                let (other, number) = self.place[wait.on as usize];
                let needed = 2 * number + if wait.moment == Moment::Start { 1 } else { 2 };
                progress[other as usize] >= needed
            })
    }
}
