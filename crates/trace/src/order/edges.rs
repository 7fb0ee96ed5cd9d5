//! Edges, reduced while they are added. A thread's actions run in order, so of all edges from one thread only the last
//! matters, and none that an earlier action of the waiting thread has waited for already.

use super::Switches;
use crate::action::{ActionId, Moment, Rule};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// A finished order: what each action waits for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Its name: `weir`, `root`.
    pub name: String,
    /// Of action `i`, the waits are `waits[begins[i]..begins[i + 1]]`.
    pub begins: Vec<u32>,
    /// All waits, by waiting action.
    pub waits: Vec<Wait>,
    /// How many edges each rule asked for, before the reduction; thread order is not among them.
    pub asked: BTreeMap<Rule, u64>,
}

/// One wait, as a replay keeps it: until a thread has come so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The action waited for.
    pub on: ActionId,
    /// Which moment of it.
    pub moment: Moment,
    /// Why.
    pub rule: Rule,
}

/// An edge, for people and tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// The earlier action.
    pub from: ActionId,
    /// The later one.
    pub to: ActionId,
    /// How the later one waits.
    pub wait: Wait,
}

impl Order {
    /// What an action waits for.
    pub fn of(&self, action: ActionId) -> &[Wait] {
        let at = action as usize;
        match (self.begins.get(at), self.begins.get(at + 1)) {
            (Some(from), Some(to)) => &self.waits[*from as usize..*to as usize],
            _ => &[],
        }
    }

    /// All edges.
    pub fn edges(&self) -> impl Iterator<Item = Edge> {
        (0..self.begins.len().saturating_sub(1) as u32)
            .flat_map(|to| self.of(to).iter().map(move |wait| Edge { from: wait.on, to, wait: *wait }))
    }

    /// How many edges are kept, by rule.
    pub fn kept(&self) -> BTreeMap<Rule, u64> {
        let mut kept = BTreeMap::new();
        for wait in &self.waits {
            *kept.entry(wait.rule).or_default() += 1;
        }
        kept
    }

    /// Whether every edge runs forward in an order that every thread's actions keep too, so that there is no cycle.
    pub fn is_acyclic(&self, actions: usize) -> bool {
        let shape = self.begins.len() == actions + 1
            && self.begins.windows(2).all(|pair| pair[0] <= pair[1])
            && self.begins.last().is_some_and(|end| *end as usize == self.waits.len());
        shape && self.edges().all(|edge| edge.from < edge.to)
    }
}

/// Edges of an order under construction.
#[derive(Debug, Default)]
pub(super) struct EdgeList {
    order: Order,
    threads: Vec<u32>,
    /// How far one thread has waited for another: waiting, waited for; twice the action, plus one for its end.
    waited: HashMap<(u32, u32), u64>,
    wanted: Vec<Wait>,
    switches: Switches,
}

impl EdgeList {
    pub(super) fn new(name: &str, switches: &Switches) -> EdgeList {
        let order = Order { name: name.into(), begins: vec![0], ..Order::default() };
        EdgeList { order, switches: switches.clone(), ..EdgeList::default() }
    }

    /// The action that edges are being added to.
    pub(super) fn next(&self) -> ActionId {
        self.threads.len() as ActionId
    }

    pub(super) fn add(&mut self, on: ActionId, moment: Moment, rule: Rule) {
        if on < self.next() && self.switches.is_on(rule) {
            self.wanted.push(Wait { on, moment, rule });
        }
    }

    pub(super) fn is_on(&self, rule: Rule) -> bool {
        self.switches.is_on(rule)
    }

    /// Closes the current action, which `thread` makes.
    pub(super) fn close(&mut self, thread: u32) {
        if let Some(before) = self.next().checked_sub(1) {
            self.add(before, Moment::End, Rule::ProgramSequence);
        }
        let mut wanted = std::mem::take(&mut self.wanted);
        wanted.retain(|wait| self.threads[wait.on as usize] != thread);
        wanted.sort_by_key(|wait| std::cmp::Reverse(progress(wait)));
        for wait in wanted.drain(..) {
            *self.order.asked.entry(wait.rule).or_default() += 1;
            let from = self.threads[wait.on as usize];
            let waited = self.waited.entry((thread, from)).or_default();
            if *waited <= progress(&wait) {
                *waited = progress(&wait) + 1;
                self.order.waits.push(wait);
            }
        }
        self.wanted = wanted;
        self.threads.push(thread);
        self.order.begins.push(u32::try_from(self.order.waits.len()).expect("fewer than 2^32 edges"));
    }

    pub(super) fn finish(self) -> Order {
        self.order
    }
}

fn progress(wait: &Wait) -> u64 {
    2 * u64::from(wait.on) + u64::from(wait.moment == Moment::End)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_edges_from_one_thread_only_the_last_is_kept_and_only_once() {
        let mut edges = EdgeList::new("test", &Switches::default());
        (0..3).for_each(|_| edges.close(0));
        edges.add(0, Moment::End, Rule::Name);
        edges.add(2, Moment::Start, Rule::Bytes);
        edges.close(1);
        edges.add(2, Moment::Start, Rule::Bytes);
        edges.close(1);
        edges.add(2, Moment::End, Rule::Bytes);
        edges.close(1);
        let order = edges.finish();
        assert_eq!(order.of(3), [Wait { on: 2, moment: Moment::Start, rule: Rule::Bytes }]);
        assert_eq!((order.of(4), order.of(5).len()), (&[][..], 1));
        assert_eq!((order.asked[&Rule::Name], order.asked[&Rule::Bytes]), (1, 3));
        assert!(order.is_acyclic(6) && !order.is_acyclic(5));
    }
}
