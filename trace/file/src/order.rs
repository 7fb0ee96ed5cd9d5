//! A finished order of a compiled trace.

use crate::action::{ActionId, Moment, Rule};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A finished order: the waits of each action.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Its name: `weir`, `root`.
    pub name: String,
    /// The waits of action `i` are `waits[begins[i]..begins[i + 1]]`.
    pub begins: Vec<u32>,
    /// All waits, by waiting action.
    pub waits: Vec<Wait>,
    /// Number of edges that each rule asked for, before the reduction. Thread order is not included.
    pub asked: BTreeMap<Rule, u64>,
}

/// One wait for a moment of an earlier action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// The action waited for.
    pub on: ActionId,
    /// The moment of that action.
    pub moment: Moment,
    /// The rule that asks for the wait.
    pub rule: Rule,
}

/// An edge, for reports and tests.
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
    /// The waits of an action.
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

    /// Number of edges kept, by rule.
    pub fn kept(&self) -> BTreeMap<Rule, u64> {
        let mut kept = BTreeMap::new();
        for wait in &self.waits {
            *kept.entry(wait.rule).or_default() += 1;
        }
        kept
    }

    /// Whether every edge runs forward in the order of the actions, which every thread keeps, too. Then there
    /// is no cycle.
    pub fn is_acyclic(&self, actions: usize) -> bool {
        let shape = self.begins.len() == actions + 1
            && self.begins.windows(2).all(|pair| pair[0] <= pair[1])
            && self.begins.last().is_some_and(|end| *end as usize == self.waits.len());
        shape && self.edges().all(|edge| edge.from < edge.to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_to_a_later_action_is_a_cycle() {
        let wait = |on| Wait { on, moment: Moment::End, rule: Rule::Bytes };
        let order = |on| Order { begins: vec![0, 0, 1], waits: vec![wait(on)], ..Order::default() };
        assert!(order(0).is_acyclic(2) && !order(0).is_acyclic(3) && !order(1).is_acyclic(2));
    }
}
