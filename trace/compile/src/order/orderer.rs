//! The interface of all orders.

use crate::step::Step;
use std::collections::BTreeMap;
use trace_file::{Rule, Wait};

/// An order under construction. It keeps the actions for which later actions may have to wait, and forgets
/// resources that no longer exist.
pub(crate) trait Orderer {
    /// Its name.
    fn name(&self) -> &'static str;
    /// Adds the next action, made by the last of `threads`. Returns its waits. Edges only run from earlier
    /// actions to this one, so there is no cycle.
    fn add(&mut self, step: &Step, threads: &[u32]) -> &[Wait];
    /// The number of edges that each rule asked for.
    fn finish(self: Box<Self>) -> BTreeMap<Rule, u64>;
}
