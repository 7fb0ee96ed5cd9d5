#![doc = include_str!("../README.md")]

mod attributes;
mod content;
mod judge;
mod locks;
mod names;
mod schedule;
mod sim;
mod tree;

use judge::{Change, Judge, Seen};
use std::collections::BTreeMap;
use std::fmt;
use trace_file::{ActionId, CompiledTrace, Order, Outcome, TraceError};
use trace_replay::show;

/// The most examples in each list. Hostile compiled traces must not fill memory with them.
const EXAMPLES_MAX: usize = 100;

/// The outcome of a verification.
#[derive(Debug, Clone)]
pub struct Verification {
    /// The order's name.
    pub order: String,
    /// The number of random orders that ran.
    pub orders: u64,
    /// The number of different orders among them, by a 64-bit digest.
    pub distinct: u64,
    /// The number of actions whose result was compared in each order.
    pub judged: u64,
    /// Results that the simulation does not reproduce even in the order of the trace. Races are among them.
    pub unjudged: Vec<Unjudged>,
    /// The number of such results, by call.
    pub unjudged_calls: BTreeMap<String, u64>,
    /// Actions that in some order gave another result than the trace shows.
    pub results: Vec<Deviation>,
    /// Actions that gave the recorded result, but saw other bytes, sizes, attributes or names than in the
    /// order of the trace.
    pub views: Vec<Deviation>,
}

/// A result that the simulation does not reproduce.
#[derive(Debug, Clone)]
pub struct Unjudged {
    /// The action.
    pub action: ActionId,
    /// The action's line in the trace.
    pub line: u64,
    /// The action's call.
    pub call: String,
    /// The result that the program got.
    pub recorded: String,
    /// The result of the simulation.
    pub simulated: String,
}

/// An action that some order changes.
#[derive(Debug, Clone)]
pub struct Deviation {
    /// The action and its results.
    pub what: Unjudged,
    /// The number of orders that change the action.
    pub orders: u64,
    /// The seed of the first of these orders.
    pub seed: u64,
}

/// Runs `orders` random orders that `order` allows, on all processors. The first has the given seed, each
/// next one the next number.
pub fn verify(
    compiled: &CompiledTrace,
    order: &str,
    orders: u64,
    seed: u64,
) -> Result<Verification, TraceError> {
    let order = compiled.order(order)?;
    let (judge, mut result) = Judge::new(compiled, order);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let Seen { changed, digests } = judge.run_all(orders, seed, processors as u64);
    (result.orders, result.distinct) = (orders, digests.len() as u64);
    for ((kept, id), Change { orders, first, outcome }) in changed {
        let what = Unjudged::new(compiled, id, outcome);
        let list = if kept { &mut result.views } else { &mut result.results };
        list.push(Deviation { what, orders, seed: seed.wrapping_add(first) });
    }
    Ok(result)
}

impl Verification {
    fn new(order: &Order) -> Verification {
        Verification {
            order: order.name.clone(),
            orders: 0,
            distinct: 0,
            judged: 0,
            unjudged: Vec::new(),
            unjudged_calls: BTreeMap::new(),
            results: Vec::new(),
            views: Vec::new(),
        }
    }

    fn leave_out(&mut self, compiled: &CompiledTrace, id: usize, outcome: Outcome) {
        let what = Unjudged::new(compiled, id, outcome);
        *self.unjudged_calls.entry(what.call.clone()).or_default() += 1;
        if self.unjudged.len() < EXAMPLES_MAX {
            self.unjudged.push(what);
        }
    }

    /// Whether every judged action gave the recorded result, and saw the same, in every order.
    pub fn holds(&self) -> bool {
        self.results.is_empty() && self.views.is_empty()
    }
}

impl Unjudged {
    fn new(compiled: &CompiledTrace, id: usize, outcome: Outcome) -> Unjudged {
        let action = &compiled.actions[id];
        Unjudged {
            action: id as ActionId,
            line: action.line,
            call: compiled.names.show(action.name),
            recorded: show(action.recorded),
            simulated: show(outcome),
        }
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verification { order, orders, distinct, judged, .. } = self;
        writeln!(
            f,
            "order {order}: {orders} random orders, {distinct} different; {judged} results judged in each"
        )?;
        for (call, count) in &self.unjudged_calls {
            writeln!(f, "not judged  {count:>9}  {call}: the simulation does not give the recorded result")?;
        }
        for one in &self.unjudged {
            writeln!(f, "            action {}, {one}", one.action)?;
        }
        for (kind, list) in [("result", &self.results), ("view", &self.views)] {
            for one in list.iter().take(EXAMPLES_MAX) {
                let Deviation { what, orders, seed } = one;
                writeln!(
                    f,
                    "{kind} changes: action {}, {what}; in {orders} orders, first with --seed {seed}",
                    what.action
                )?;
            }
        }
        let (results, views) = (self.results.len(), self.views.len());
        writeln!(f, "{results} actions change their result, {views} see something else")
    }
}

impl fmt::Display for Unjudged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unjudged { line, call, recorded, simulated, .. } = self;
        write!(f, "line {line}, {call}: recorded {recorded}, simulated {simulated}")
    }
}

#[cfg(test)]
mod tests;
