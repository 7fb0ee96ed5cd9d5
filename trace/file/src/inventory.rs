//! The counts of a compiled trace, taken block by block.

use crate::action::{Fate, Rule};
use crate::contents::TraceOrigin;
use crate::error::TraceError;
use crate::format;
use std::collections::BTreeMap;
use std::path::Path;

/// The counts of a compiled trace.
#[derive(Debug, Clone, Default)]
pub struct TraceInventory {
    /// The origin of the trace.
    pub about: TraceOrigin,
    /// Number of actions.
    pub actions: u64,
    /// Number of actions with each fate.
    pub fates: BTreeMap<Fate, u64>,
    /// The counts of each order.
    pub orders: Vec<OrderInventory>,
    /// Number of files before the first action.
    pub initial_files: usize,
    /// Number of open descriptions before the first action.
    pub inherited: usize,
}

/// The counts of an order.
#[derive(Debug, Clone, Default)]
pub struct OrderInventory {
    /// Its name.
    pub name: String,
    /// Number of edges that each rule asked for.
    pub asked: BTreeMap<Rule, u64>,
    /// Number of edges kept, by rule.
    pub kept: BTreeMap<Rule, u64>,
    /// Mean time between the two ends of an edge in the trace, in nanoseconds.
    pub mean_length_ns: u64,
}

impl OrderInventory {
    /// Number of edges kept.
    pub fn edges(&self) -> u64 {
        self.kept.values().sum()
    }
}

impl TraceInventory {
    /// Reads and checks a whole compiled trace, and keeps only the counts.
    pub fn read(path: &Path) -> Result<TraceInventory, TraceError> {
        let mut inventory = TraceInventory::default();
        // Time of return of each action, because edges may come from far back.
        let mut ends = Vec::new();
        let mut lengths = Vec::new();
        let tail = format::read(&mut format::open(path)?, path, |_, block| {
            ends.extend(block.actions.iter().map(|action| action.end));
            inventory.actions += block.actions.len() as u64;
            for action in &block.actions {
                *inventory.fates.entry(action.fate).or_default() += 1;
            }
            inventory.orders.resize_with(block.waits.len(), OrderInventory::default);
            lengths.resize(block.waits.len(), 0u64);
            for (at, waits) in block.waits.iter().enumerate() {
                for (action, waits) in block.actions.iter().zip(waits.each()) {
                    for wait in waits {
                        *inventory.orders[at].kept.entry(wait.rule).or_default() += 1;
                        lengths[at] += action.start.saturating_sub(ends[wait.on as usize]);
                    }
                }
            }
        })?;
        inventory.orders.resize_with(tail.asked.len(), OrderInventory::default);
        lengths.resize(tail.asked.len(), 0);
        let heads = tail.rest.orders.into_iter().zip(tail.asked).zip(lengths);
        for (order, ((head, asked), length)) in inventory.orders.iter_mut().zip(heads) {
            (order.name, order.asked) = (head.name, asked);
            order.mean_length_ns = length / order.edges().max(1);
        }
        (inventory.initial_files, inventory.inherited) = (tail.rest.tree.len(), tail.rest.inherited.len());
        inventory.about = tail.rest.about;
        Ok(inventory)
    }
}
