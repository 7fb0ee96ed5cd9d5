//! From what actions touch to what they wait for. Each order reads the model's steps as they come and keeps the edges.

mod edges;
mod paths;
mod ranges;
mod root;
mod switches;
mod weir;

pub use edges::{Order, Wait};
pub use root::Root;
pub use switches::Switches;
pub use weir::Weir;

use crate::action::{Moment, Need, Rule, Step};
use edges::EdgeList;
use std::collections::BTreeMap;

/// An order under construction. It keeps what later actions may have to wait for, and nothing of what is gone for good.
pub trait Orderer {
    /// Its name.
    fn name(&self) -> &'static str;
    /// Takes the next action, the last of `threads`, and says what it waits for. Edges only ever run from earlier actions to
    /// this one, so there is no cycle.
    fn add(&mut self, step: &Step, threads: &[u32]) -> &[Wait];
    /// How many edges each rule asked for.
    fn finish(self: Box<Self>) -> BTreeMap<Rule, u64>;
}

/// Where actions of more threads than these come before what follows, the first action that follows stands for them to the others,
/// which wait for that one alone. Otherwise each of a thousand threads that list a directory would wait for each of a thousand that
/// made names in it. Edges that are not needed follow, and none is lost.
const THREADS_MAX: usize = 256;

fn add_needs(edges: &mut EdgeList, needs: &[Need]) {
    for need in needs {
        edges.add(need.on, need.moment, need.rule);
    }
}

fn add_all(edges: &mut EdgeList, earlier: impl IntoIterator<Item = u32>, rule: Rule) {
    for action in earlier {
        edges.add(action, Moment::End, rule);
    }
}
