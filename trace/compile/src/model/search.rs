//! Searches for another order of overlapping calls when the order so far contradicts a result.
//!
//! Several orders of overlapping calls may explain their own results, and only a later result (a size, a
//! position, a name) shows which was right. So calls since a checkpoint can be undone. When a result is
//! contradicted, the search reverses pairs of overlapping calls that do not commute, beginning with pairs
//! that touch the resources of the contradicted call. The order with the fewest contradictions wins. The work
//! is bounded; a result that stays contradicted is a race.

use super::linearise::{Applied, Lineariser, changes};
use super::waiting::EffectMoment;
use super::world::World;
use crate::step::{Resource, Step, Touch, TouchMode};
use std::collections::{HashMap, HashSet, VecDeque};

/// Minimum number of calls between two checkpoints. A wrong choice shows soon or never.
const CHECKPOINT_CALLS_MIN: usize = 256;
/// Maximum number of calls between two checkpoints. Twice as many stay in memory.
const CHECKPOINT_CALLS_MAX: usize = 1 << 14;
/// Parts (files, tasks, tables) of the model that cost as much to copy as one call costs to apply.
const PARTS_PER_CALL: usize = 16;
/// Calls after the contradicted one that also judge a choice.
const HORIZON: usize = 24;
/// Choices changed for one contradicted call.
const DEPTH_MAX: usize = 4;
/// Orders tried for one contradicted call.
const TRIES_MAX: usize = 400;
/// Pairs of calls tried after each order.
const PAIRS_MAX: usize = 64;
/// Calls before a call that are searched for an overlap with it.
const REACH: usize = 64;
/// The search applies at most `WORK_PER_CALL` calls for each call of the trace, and `WORK_MIN` calls in any
/// trace.
const WORK_PER_CALL: u64 = 8;
const WORK_MIN: u64 = 1 << 20;

/// Calls moved before calls that would come first by default.
#[derive(Debug, Clone, Default)]
pub(super) struct Moves(HashMap<usize, Vec<usize>>);

impl Moves {
    pub(super) fn before(&self, at: usize) -> Vec<usize> {
        self.0.get(&at).cloned().unwrap_or_default()
    }

    fn with(&self, (first, then): (usize, usize)) -> Moves {
        let mut moves = self.clone();
        if let Some(before) = moves.0.get_mut(&first) {
            before.retain(|other| *other != then);
        }
        moves.0.entry(then).or_default().push(first);
        moves
    }
}

/// A copy of the model at an earlier point.
#[derive(Debug)]
pub(super) struct Checkpoint {
    world: World,
    /// Calls of `past` that were applied at the checkpoint.
    past: usize,
    contradicted: usize,
}

/// An order that was tried.
struct Tried {
    races: u64,
    depth: usize,
    moves: Moves,
    pairs: VecDeque<(usize, usize)>,
}

impl<Each: FnMut(Step)> Lineariser<'_, Each> {
    /// Keeps two checkpoints, and passes on the steps before the older one.
    pub(super) fn settle(&mut self) {
        let spacing = self.world.size() / PARTS_PER_CALL;
        let spacing = spacing.clamp(CHECKPOINT_CALLS_MIN, CHECKPOINT_CALLS_MAX);
        if self.checkpoints.last().is_some_and(|newest| self.past.len() < newest.past + spacing) {
            return;
        }
        if self.checkpoints.len() == 2 {
            self.checkpoints.remove(0);
            let newer = &mut self.checkpoints[0];
            for applied in self.past.drain(..std::mem::take(&mut newer.past)) {
                self.moves.0.remove(&applied.one.at);
                self.given_up.remove(&applied.one.at);
                (self.each)(applied.step);
            }
            self.contradicted.drain(..std::mem::take(&mut newer.contradicted));
        }
        let world = self.world.copy();
        self.checkpoints.push(Checkpoint {
            world,
            past: self.past.len(),
            contradicted: self.contradicted.len(),
        });
    }

    /// Searches for an order that explains newly contradicted calls.
    pub(super) fn explain_again(&mut self) {
        while let Some(target) = self.target() {
            let allowed = WORK_MIN.max(WORK_PER_CALL * self.world.applied());
            self.given_up.insert(target);
            if self.checkpoints.is_empty() || self.applied > allowed + self.world.applied() {
                return;
            }
            self.search(target);
        }
    }

    fn target(&self) -> Option<usize> {
        self.contradicted.iter().copied().find(|at| !self.given_up.contains(at))
    }

    fn search(&mut self, target: usize) {
        let floor = self.contradictions().saturating_sub(1);
        let horizon = self.waiting.later(HORIZON).unwrap_or((u64::MAX, 0, 0));
        let moves = self.moves.clone();
        let races = self.run_again(&moves, horizon);
        let mut best = (races, moves.clone());
        let mut open = vec![Tried { races, depth: 0, moves, pairs: self.pairs(target) }];
        for _ in 0..TRIES_MAX {
            let left = open.iter_mut().filter(|tried| !tried.pairs.is_empty());
            // A single choice is likelier than several that only look better.
            let rank = |tried: &&mut Tried| (tried.depth > 0, tried.races, tried.depth);
            let Some(tried) = left.min_by_key(rank) else { break };
            let pair = tried.pairs.pop_front().expect("some are left");
            let (moves, depth) = (tried.moves.with(pair), tried.depth + 1);
            let races = self.run_again(&moves, horizon);
            if races < best.0 {
                best = (races, moves.clone());
            }
            if races <= floor {
                break;
            }
            if depth < DEPTH_MAX {
                let next = self.target().unwrap_or(target);
                open.push(Tried { races, depth, moves, pairs: self.pairs(next) });
            }
        }
        self.run_again(&best.1, horizon);
    }

    /// Applies all calls since the older checkpoint again, up to a moment. Returns the number of races.
    fn run_again(&mut self, moves: &Moves, horizon: EffectMoment) -> u64 {
        for Applied { one, .. } in self.past.drain(..).rev() {
            self.waiting.put_back(one);
        }
        self.contradicted.clear();
        self.checkpoints.truncate(1);
        self.world.go_back(&self.checkpoints[0].world);
        self.moves = moves.clone();
        while self.waiting.first().is_some_and(|(moment, _)| moment <= horizon) && self.advance() {}
        self.contradictions()
    }

    fn contradictions(&self) -> u64 {
        self.world.repairs.races + self.world.repairs.outside
    }

    /// Pairs of overlapping calls that do not commute. The first of each pair is the later call, which may
    /// move before the second.
    fn pairs(&self, target: usize) -> VecDeque<(usize, usize)> {
        let Some(place) = self.past.iter().position(|applied| applied.one.at == target) else {
            return VecDeque::new();
        };
        let near = self.near(place);
        let mut found = Vec::new();
        for (at, later) in self.past.iter().enumerate() {
            for (before, earlier) in self.past.iter().enumerate().take(at).skip(at.saturating_sub(REACH)) {
                let apart = earlier.one.call.task != later.one.call.task;
                if !apart || later.one.opens > earlier.one.closes {
                    continue;
                }
                // The resources of a contradicted call are a guess: any change may have caused its result.
                let own =
                    at == place && changes(&earlier.one.call) || before == place && changes(&later.one.call);
                let rank = match meets(&earlier.step, &later.step) {
                    Some(_) if own => 0,
                    Some(on) => near.get(&whole(on)).copied().unwrap_or(2),
                    None if own => 1,
                    None => continue,
                };
                found.push((
                    rank,
                    place.abs_diff(at) + place.abs_diff(before),
                    (later.one.at, earlier.one.at),
                ));
            }
        }
        for late in self.waiting.under_way(self.past[place].one.closes).filter(|late| changes(&late.call)) {
            for (at, earlier) in
                self.past.iter().enumerate().rev().take(REACH).filter(|(_, one)| one.one.closes >= late.opens)
            {
                let near = earlier.step.touches.iter().filter_map(|touch| near.get(&whole(touch.on))).min();
                let rank = if at == place { 0 } else { near.copied().unwrap_or(2) };
                found.push((rank, place.abs_diff(at), (late.at, earlier.one.at)));
            }
        }
        found.sort_unstable();
        found.into_iter().take(PAIRS_MAX).map(|(.., pair)| pair).collect()
    }

    /// Distances of resources: 0 if the call touches them, 1 if a call that touches the former touches them.
    fn near(&self, place: usize) -> HashMap<Resource, u32> {
        let own: HashSet<Resource> =
            self.past[place].step.touches.iter().map(|touch| whole(touch.on)).collect();
        let mut near: HashMap<Resource, u32> = HashMap::new();
        for applied in &self.past {
            if applied.step.touches.iter().any(|touch| own.contains(&whole(touch.on))) {
                near.extend(applied.step.touches.iter().map(|touch| (whole(touch.on), 1)));
            }
        }
        near.extend(own.into_iter().map(|on| (on, 0)));
        near
    }
}

/// Treats the bytes and size of a file as one resource, because each affects the other.
fn whole(on: Resource) -> Resource {
    match on {
        Resource::Bytes(node) => Resource::Size(node),
        other => other,
    }
}

/// The first resource on which two steps do not commute.
fn meets(one: &Step, other: &Step) -> Option<Resource> {
    let commute = |a: &Touch, b: &Touch| a.how == b.how && a.how != TouchMode::Write;
    let meet = |a: &Touch, b: &Touch| {
        a.on == b.on && a.range.0 < b.range.1 && b.range.0 < a.range.1 && !commute(a, b)
    };
    let touches = one.touches.iter();
    touches
        .flat_map(|a| other.touches.iter().map(move |b| (a, b)))
        .find(|(a, b)| meet(a, b))
        .map(|(a, _)| a.on)
}
