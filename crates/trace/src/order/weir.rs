//! The default order: an edge only between actions whose effects or results do not commute. Positional reads, writes that
//! neither overlap nor change the size, and names made in one directory have none.

use super::edges::{EdgeList, Order};
use super::ranges::{Last, Ranges};
use super::{Orderer, Switches, add_all, add_needs};
use crate::action::{Resource, Step};
use std::collections::HashMap;

/// Builds the order `weir`.
#[derive(Debug)]
pub struct Weir {
    edges: EdgeList,
    whole: HashMap<Resource, Last>,
    ranges: HashMap<Resource, Ranges>,
}

impl Weir {
    /// An order without actions.
    pub fn new(switches: &Switches) -> Weir {
        Weir { edges: EdgeList::new("weir", switches), whole: HashMap::new(), ranges: HashMap::new() }
    }
}

impl Orderer for Weir {
    fn add(&mut self, step: &Step) {
        let action = self.edges.next();
        let thread = step.action.thread;
        add_needs(&mut self.edges, &step.needs);
        let mut found = Vec::new();
        for touch in &step.touches {
            let mut each = |other| found.push(other);
            match touch.on {
                Resource::Bytes(_) | Resource::Locks(_) => {
                    let ranges = self.ranges.entry(touch.on).or_default();
                    ranges.touch(thread, action, touch.how, touch.range, &mut each);
                }
                _ => self.whole.entry(touch.on).or_default().touch(thread, action, touch.how, &mut each),
            }
            found.retain(|other| *other != action);
            add_all(&mut self.edges, found.drain(..), touch.on.rule());
        }
        self.edges.close(thread);
    }

    fn finish(self: Box<Self>) -> Order {
        self.edges.finish()
    }
}
