//! From what actions touch to what they wait for. Each order reads the model's steps as they come and keeps the edges.

mod edges;
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

/// An order under construction.
pub trait Orderer {
    /// Takes the next action. Edges only ever run from earlier actions to this one, so there is no cycle.
    fn add(&mut self, step: &Step);
    /// The finished order.
    fn finish(self: Box<Self>) -> Order;
}

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
