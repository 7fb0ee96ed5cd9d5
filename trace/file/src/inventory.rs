//! What a benchmark holds, counted block by block.

use crate::action::{Fate, Rule};
use crate::contents::About;
use crate::error::TraceError;
use crate::format;
use std::collections::BTreeMap;
use std::path::Path;

/// What a benchmark holds.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    /// Where it comes from.
    pub about: About,
    /// How many actions there are.
    pub actions: u64,
    /// How many of them have each fate.
    pub fates: BTreeMap<Fate, u64>,
    /// Each order.
    pub orders: Vec<OrderInventory>,
    /// How many files are there before the first action.
    pub initial_files: usize,
    /// How many descriptions are open before the first action.
    pub inherited: usize,
}

/// What an order holds.
#[derive(Debug, Clone, Default)]
pub struct OrderInventory {
    /// Its name.
    pub name: String,
    /// How many edges each rule asked for.
    pub asked: BTreeMap<Rule, u64>,
    /// How many of them were kept.
    pub kept: BTreeMap<Rule, u64>,
    /// Nanoseconds of the trace between the two ends of an edge, on average.
    pub mean_length_ns: u64,
}

impl OrderInventory {
    /// How many edges were kept.
    pub fn edges(&self) -> u64 {
        self.kept.values().sum()
    }
}

impl Inventory {
    /// Reads all of a benchmark, checks it, and keeps the counts.
    pub fn read(path: &Path) -> Result<Inventory, TraceError> {
        let mut inventory = Inventory::default();
        // When each action returned: edges may come from far back.
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
