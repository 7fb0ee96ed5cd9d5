//! Runs orders and compares their results. The steps before the first moment at which two threads can
//! continue are the same in every order, and run once. Each order begins with a copy of that state. All
//! processors share the orders. The result does not depend on the number of processors.

use super::Verification;
use super::schedule::{Progress, Schedule};
use super::sim::{Result, Simulation, mix};
use device::SeededRng;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use trace_file::{ActionId, CompiledTrace, Fate, Order, Outcome};
use trace_replay::same;

/// The expected results, and the state from which orders run.
pub(super) struct Judge<'a> {
    compiled: &'a CompiledTrace,
    schedule: Schedule,
    /// For each action, its result in the order of the trace, or `None` if the action cannot be judged.
    expected: Vec<Option<Result>>,
    /// The state at which orders begin to differ.
    simulation: Simulation,
    progress: Progress,
}

/// The differences in some orders.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// Changed actions, by whether they gave the recorded result, and by number.
    pub(super) changed: BTreeMap<(bool, usize), Change>,
    /// The digests of the orders.
    pub(super) digests: HashSet<u64>,
}

/// An action that some orders change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Change {
    /// The number of orders that change the action.
    pub(super) orders: u64,
    /// The number of the first such order.
    pub(super) first: u64,
    /// The action's result in that order.
    pub(super) outcome: Outcome,
}

impl<'a> Judge<'a> {
    /// Runs the order of the trace. Actions that do not reproduce their results are left out of judgement,
    /// and listed.
    pub(super) fn new(compiled: &'a CompiledTrace, order: &Order) -> (Judge<'a>, Verification) {
        let mut start = Simulation::new(compiled);
        let races: BTreeSet<u64> = compiled.about.races.iter().copied().collect();
        let mut expected: Vec<Option<Result>> = Vec::with_capacity(compiled.actions.len());
        let mut result = Verification::new(order);
        let mut simulation = start.clone();
        for (id, action) in compiled.actions.iter().enumerate() {
            if action.fate != Fate::Executed {
                expected.push(None);
                continue;
            }
            let simulated = simulation.execute(id as ActionId, &action.op);
            let judged = same(action, simulated.outcome) && !races.contains(&action.line);
            expected.push(judged.then_some(simulated));
            if judged { result.judged += 1 } else { result.leave_out(compiled, id, simulated.outcome) }
        }
        start.make_space(&simulation);
        let schedule = Schedule::new(compiled, order);
        // The first action that is not done can always continue. If only one thread can, that action is its
        // next. So these steps come in the order of the trace, and give the expected results.
        let mut progress = schedule.start();
        schedule.run_forced(&mut progress, |id| {
            start.execute(id, &compiled.actions[id as usize].op);
        });
        (Judge { compiled, schedule, expected, simulation: start, progress }, result)
    }

    /// Runs `orders` orders on `processors` processors.
    pub(super) fn run_all(&self, orders: u64, seed: u64, processors: u64) -> Seen {
        let next = AtomicU64::new(0);
        let work = || {
            let (mut seen, mut simulation) = (Seen::default(), self.simulation.clone());
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= orders {
                    return seen;
                }
                simulation.begin_again(&self.simulation);
                self.run(&mut simulation, number, seed.wrapping_add(number), &mut seen);
            }
        };
        let mut seen = Seen::default();
        thread::scope(|scope| {
            let others: Vec<_> = (1..processors.min(orders)).map(|_| scope.spawn(work)).collect();
            seen.merge(work());
            others.into_iter().for_each(|other| seen.merge(other.join().expect("it does not panic")));
        });
        seen
    }

    fn run(&self, simulation: &mut Simulation, number: u64, seed: u64, seen: &mut Seen) {
        let mut digest = 0;
        self.schedule.run(self.progress.clone(), &mut SeededRng::new(seed), |id| {
            digest = mix(digest, id.into());
            self.execute(simulation, id, number, seen);
        });
        seen.digests.insert(digest);
    }

    fn execute(&self, simulation: &mut Simulation, id: ActionId, number: u64, seen: &mut Seen) {
        let action = &self.compiled.actions[id as usize];
        let simulated = simulation.execute(id, &action.op);
        let Some(expected) = self.expected[id as usize] else { return };
        if simulated == expected {
            return;
        }
        let kept = same(action, simulated.outcome);
        if !kept || simulated.view != expected.view {
            let change = Change { orders: 1, first: number, outcome: simulated.outcome };
            seen.add((kept, id as usize), change);
        }
    }
}

impl Seen {
    fn add(&mut self, on: (bool, usize), change: Change) {
        let known = self.changed.entry(on).or_insert(Change { orders: 0, ..change });
        known.orders += change.orders;
        if change.first < known.first {
            (known.first, known.outcome) = (change.first, change.outcome);
        }
    }

    fn merge(&mut self, other: Seen) {
        other.changed.into_iter().for_each(|(on, change)| self.add(on, change));
        self.digests.extend(other.digests);
    }
}
