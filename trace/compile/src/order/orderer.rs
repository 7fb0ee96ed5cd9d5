//! What all orders have in common.

use crate::step::Step;
use std::collections::BTreeMap;
use trace_file::{Rule, Wait};

/// An order under construction. It keeps what later actions may have to wait for, and nothing of what is gone for good.
pub(crate) trait Orderer {
    /// Its name.
    fn name(&self) -> &'static str;
    /// Takes the next action, the last of `threads`, and says what it waits for. Edges only ever run from earlier actions to
    /// this one, so there is no cycle.
    fn add(&mut self, step: &Step, threads: &[u32]) -> &[Wait];
    /// How many edges each rule asked for.
    fn finish(self: Box<Self>) -> BTreeMap<Rule, u64>;
}
