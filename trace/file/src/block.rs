//! Blocks of a compiled trace: some thousand consecutive actions with their waits. The file is written and
//! read block by block.

use crate::action::{Action, Rule};
use crate::contents::CompiledTrace;
use crate::op::Op;
use crate::order::{Order, Wait};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Weight of a full block: actions plus the elements of their lists. Enough to compress well, and small
/// beside the rest of the memory.
const BLOCK_WEIGHT: usize = 1 << 14;

/// Consecutive actions with their waits.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ActionBlock {
    /// The actions.
    pub actions: Vec<Action>,
    /// The waits of the actions, for each order.
    pub waits: Vec<BlockWaits>,
}

/// The waits of a block's actions in one order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockWaits {
    /// For each action, how many of `waits` belong to it.
    pub counts: Vec<u32>,
    /// All waits, by waiting action.
    pub waits: Vec<Wait>,
}

/// The part of the file after the last block.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FileTail {
    /// The rest of the compiled trace, without actions. Its orders have only names.
    pub rest: CompiledTrace,
    /// For each order, how many edges each rule asked for.
    pub asked: Vec<BTreeMap<Rule, u64>>,
}

impl BlockWaits {
    /// The waits of each action.
    pub fn each(&self) -> impl Iterator<Item = &[Wait]> {
        let mut left = &self.waits[..];
        self.counts.iter().map(move |count| {
            let (own, rest) = left.split_at((*count as usize).min(left.len()));
            left = rest;
            own
        })
    }
}

impl ActionBlock {
    /// Adds an action.
    pub fn push<'a>(&mut self, action: Action, waits: impl Iterator<Item = &'a [Wait]>) {
        self.actions.push(action);
        for (order, own) in waits.enumerate() {
            if self.waits.len() <= order {
                self.waits.push(BlockWaits::default());
            }
            self.waits[order].counts.push(own.len() as u32);
            self.waits[order].waits.extend_from_slice(own);
        }
    }
}

/// Cuts consecutive actions into blocks. Only the actions decide where, so the same actions give the same
/// bytes.
#[derive(Debug, Default)]
pub struct BlockCutter {
    block: ActionBlock,
    weight: usize,
}

impl BlockCutter {
    /// Adds an action; returns a block when it is full.
    pub fn push<'a>(
        &mut self,
        action: Action,
        waits: impl Iterator<Item = &'a [Wait]>,
    ) -> Option<ActionBlock> {
        self.weight += 1 + parts(&action.op);
        self.block.push(action, waits);
        (self.weight >= BLOCK_WEIGHT).then(|| {
            self.weight = 0;
            std::mem::take(&mut self.block)
        })
    }

    /// The remaining actions as a last block, if any are left.
    pub fn finish(self) -> Option<ActionBlock> {
        (!self.block.actions.is_empty()).then_some(self.block)
    }
}

fn parts(op: &Op<u32>) -> usize {
    match op {
        Op::Close { all, unlocked } => all.len() + unlocked.len(),
        Op::Submit { requests, .. } => requests.len(),
        Op::Collect { requests, .. } => requests.len(),
        _ => 0,
    }
}

impl CompiledTrace {
    /// Appends a block's actions, and their waits to its orders.
    pub fn append(&mut self, block: ActionBlock) {
        self.actions.extend(block.actions);
        self.orders.resize_with(self.orders.len().max(block.waits.len()), || Order {
            begins: vec![0],
            ..Order::default()
        });
        for (order, BlockWaits { counts, waits }) in self.orders.iter_mut().zip(block.waits) {
            let mut end = order.waits.len();
            order.waits.extend(waits);
            for count in counts {
                end += count as usize;
                order.begins.push(u32::try_from(end).expect("fewer than 2^32 edges"));
            }
        }
    }

    /// The whole compiled trace, made of the appended blocks and the tail.
    pub fn complete(self, tail: FileTail) -> CompiledTrace {
        let CompiledTrace { about, names, tree, inherited, orders, .. } = tail.rest;
        let begun = self.orders.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        let orders = begun.zip(orders).zip(tail.asked).map(|((begun, head), asked)| {
            let empty = || Order { begins: vec![0], ..Order::default() };
            Order { name: head.name, asked, ..begun.unwrap_or_else(empty) }
        });
        CompiledTrace { about, names, tree, inherited, actions: self.actions, orders: orders.collect() }
    }
}
