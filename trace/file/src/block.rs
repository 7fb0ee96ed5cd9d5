//! Some thousand actions in a row, with what they wait for: the unit in which a benchmark is written and read.

use crate::action::{Action, Rule};
use crate::contents::Benchmark;
use crate::op::Op;
use crate::order::{Order, Wait};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Actions of a block, and parts of actions that are lists: enough to compress well, and little beside everything else.
const BLOCK_WEIGHT: usize = 1 << 14;

/// Actions in a row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Block {
    /// The actions.
    pub actions: Vec<Action>,
    /// What they wait for, in each order.
    pub waits: Vec<Waits>,
}

/// What the actions of a block wait for in one order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Waits {
    /// Of each action, how many of `waits` are its own.
    pub counts: Vec<u32>,
    /// All waits, by waiting action.
    pub waits: Vec<Wait>,
}

/// What comes after the last block.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tail {
    /// Everything else of the benchmark; without actions, and with orders that have a name only.
    pub rest: Benchmark,
    /// Of each order, how many edges each rule asked for.
    pub asked: Vec<BTreeMap<Rule, u64>>,
}

impl Waits {
    /// Of each action, what it waits for.
    pub fn each(&self) -> impl Iterator<Item = &[Wait]> {
        let mut left = &self.waits[..];
        self.counts.iter().map(move |count| {
            let (own, rest) = left.split_at((*count as usize).min(left.len()));
            left = rest;
            own
        })
    }
}

impl Block {
    /// Adds an action.
    pub fn push<'a>(&mut self, action: Action, waits: impl Iterator<Item = &'a [Wait]>) {
        self.actions.push(action);
        for (order, own) in waits.enumerate() {
            if self.waits.len() <= order {
                self.waits.push(Waits::default());
            }
            self.waits[order].counts.push(own.len() as u32);
            self.waits[order].waits.extend_from_slice(own);
        }
    }
}

/// Cuts a row of actions into blocks. Where it cuts depends on the actions alone, so the same actions give the same bytes.
#[derive(Debug, Default)]
pub struct Cutter {
    block: Block,
    weight: usize,
}

impl Cutter {
    /// Adds an action; returns a block when it is full.
    pub fn push<'a>(&mut self, action: Action, waits: impl Iterator<Item = &'a [Wait]>) -> Option<Block> {
        self.weight += 1 + parts(&action.op);
        self.block.push(action, waits);
        (self.weight >= BLOCK_WEIGHT).then(|| {
            self.weight = 0;
            std::mem::take(&mut self.block)
        })
    }

    /// What is left, unless that is nothing.
    pub fn finish(self) -> Option<Block> {
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

impl Benchmark {
    /// Adds a block's actions behind those that are there, and what they wait for in its orders.
    pub fn append(&mut self, block: Block) {
        self.actions.extend(block.actions);
        self.orders.resize_with(self.orders.len().max(block.waits.len()), || Order {
            begins: vec![0],
            ..Order::default()
        });
        for (order, Waits { counts, waits }) in self.orders.iter_mut().zip(block.waits) {
            let mut end = order.waits.len();
            order.waits.extend(waits);
            for count in counts {
                end += count as usize;
                order.begins.push(u32::try_from(end).expect("fewer than 2^32 edges"));
            }
        }
    }

    /// The whole benchmark, of the blocks that were appended and of what came after them.
    pub fn complete(self, tail: Tail) -> Benchmark {
        let Benchmark { about, names, tree, inherited, orders, .. } = tail.rest;
        let begun = self.orders.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        let orders = begun.zip(orders).zip(tail.asked).map(|((begun, head), asked)| {
            let empty = || Order { begins: vec![0], ..Order::default() };
            Order { name: head.name, asked, ..begun.unwrap_or_else(empty) }
        });
        Benchmark { about, names, tree, inherited, actions: self.actions, orders: orders.collect() }
    }
}
