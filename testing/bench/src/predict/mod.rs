//! What the store's policy should cost: its segments, its choice of victims and its checkpoints, without any I/O.
//!
//! It decides with the store's own `policy`, lays chunks out as its log does, and knows nothing of how the store does what was
//! decided. So where both agree, the store moves what its policy says and no more.

#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, VecDeque};
use std::ops::Sub;
use store::decide::{self, ChunkPlan, GcPacer, LogPosition, plan_writes};
use store::policy::{self, CleaningBudget, CleaningCandidate, NodeSpaceUse, SpaceClass};

const LEAF_PAGES: u64 = 128;
const TABLE_NODES: u64 = 128;
/// Those above the leaves of pages, about: of one object, and of all objects.
const NODES_ABOVE_LEAVES: usize = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    Data,
    Nodes,
}

#[derive(Debug, Clone)]
struct Segment {
    usage: Use,
    open: bool,
    live: u64,
    written: u64,
    dead_since: Option<u64>,
    stuck_at: Option<u64>,
    /// Of nodes, the segment that holds their copies, of which nothing else is known here.
    twin: Option<u32>,
    /// What was written there, by its offset; some of it elsewhere by now.
    holds: Vec<Unit>,
}

/// Something that has a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Unit {
    Page(u64),
    Leaf(u64),
    Table(u64),
    Stream(u64),
    /// Log entries, copies of heads, and lists of owners: dead once written.
    LogEntry,
}

impl Unit {
    /// Which of the places is its own.
    fn placed(self) -> Option<(usize, usize)> {
        match self {
            Unit::Page(number) => Some((0, number as usize)),
            Unit::Leaf(number) => Some((1, number as usize)),
            Unit::Table(number) => Some((2, number as usize)),
            Unit::Stream(number) => Some((3, number as usize)),
            Unit::LogEntry => None,
        }
    }
}

/// Blocks written, by what they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Written {
    /// Pages that the caller wrote.
    pub(crate) user: u64,
    /// Log entries of these, and copies of heads.
    pub(crate) entries: u64,
    /// Pages that the cleaner moved.
    pub(crate) moved: u64,
    /// Lists of the owners of these.
    pub(crate) lists: u64,
    /// Nodes, tables and roots.
    pub(crate) nodes: u64,
}

impl Written {
    /// All of them.
    pub(crate) fn all(&self) -> u64 {
        self.user + self.entries + self.moved + self.lists + self.nodes
    }
}

impl Sub for Written {
    type Output = Written;

    fn sub(self, before: Written) -> Written {
        Written {
            user: self.user - before.user,
            entries: self.entries - before.entries,
            moved: self.moved - before.moved,
            lists: self.lists - before.lists,
            nodes: self.nodes - before.nodes,
        }
    }
}

/// A round of cleaning under way.
struct Round {
    /// Segments that are not empty yet.
    victims: VecDeque<u32>,
    /// Nodes to visit before, or what looking up the victims' owners is worth.
    nodes: u64,
    /// Of that, what the first victim is to be looked up for before it is moved; `None` in a round that walks.
    ahead: Option<u64>,
    pace: GcPacer,
    checkpointed: bool,
}

/// Where the log goes on.
#[derive(Default)]
struct OpenLog {
    segment: u32,
    position: LogPosition,
    next: u32,
}

/// A store of one object of `pages` pages.
pub(crate) struct Predicted {
    segment_blocks: u64,
    segments: Vec<Segment>,
    free: VecDeque<u32>,
    places: [Vec<Option<(u32, u64)>>; 4],
    dirty: BTreeSet<u64>,
    log: OpenLog,
    nodes_at: Option<(u32, u64)>,
    moved_at: Option<(u32, u64)>,
    /// Pages that the last list names, and that were not moved yet: the next places are theirs.
    listed: VecDeque<u64>,
    clock: u64,
    generation: u64,
    log_blocks: u64,
    /// Of the nodes above the leaves, those that are dirty.
    dirty_above: u64,
    round: Option<Round>,
    written: Written,
}

impl Predicted {
    /// An empty one.
    pub(crate) fn new(segments: u32, segment_blocks: u64, pages: u64) -> Predicted {
        let leaves = pages.div_ceil(LEAF_PAGES);
        let tables = (leaves + NODES_ABOVE_LEAVES as u64).div_ceil(TABLE_NODES);
        let stream = (64 + 16 * tables + 12 * u64::from(segments) + 32).div_ceil(4092);
        let none = |count: u64| vec![None; count as usize];
        let mut this = Predicted {
            segment_blocks,
            segments: vec![empty(); segments as usize],
            free: (0..segments).collect(),
            places: [none(pages), none(leaves), none(tables), none(stream)],
            dirty: BTreeSet::new(),
            log: OpenLog::default(),
            nodes_at: None,
            moved_at: None,
            listed: VecDeque::new(),
            clock: 0,
            generation: 0,
            log_blocks: 0,
            dirty_above: 0,
            round: None,
            written: Written::default(),
        };
        let (segment, next) = (this.take(Use::Data, true), this.take(Use::Data, true));
        this.log = OpenLog { segment, next, ..OpenLog::default() };
        this
    }

    fn take(&mut self, usage: Use, log: bool) -> u32 {
        let number = self.free.pop_front().expect("the policy leaves some");
        self.clock += u64::from(log);
        let written = if log { self.clock } else { 0 };
        self.segments[number as usize] = Segment { usage, open: true, written, ..empty() };
        number
    }

    fn put(&mut self, unit: Unit, segment: u32) {
        let offset = self.segments[segment as usize].holds.len() as u64;
        self.segments[segment as usize].holds.push(unit);
        let Some((kind, number)) = unit.placed() else { return };
        let old = self.places[kind][number].replace((segment, offset));
        self.segments[segment as usize].live += 1;
        if let Some((old, _)) = old {
            self.segments[old as usize].live -= 1;
        }
    }

    fn lives(&self, segment: u32) -> Vec<Unit> {
        let here = |&(offset, unit): &(u64, &Unit)| {
            unit.placed().is_some_and(|(kind, number)| self.places[kind][number] == Some((segment, offset)))
        };
        let holds = &self.segments[segment as usize].holds;
        (0..).zip(holds).filter(here).map(|(_, &unit)| unit).collect()
    }

    /// A vector of writes.
    pub(crate) fn write(&mut self, pages: &[u64]) {
        let leaves: BTreeSet<u64> = pages.iter().map(|page| page / LEAF_PAGES).collect();
        let nodes = (leaves.len() as u64 + self.nodes_above()).min(4 * pages.len() as u64);
        if !self.may_dirty(nodes) {
            self.checkpoint();
        }
        self.dirty_above = self.nodes_above();
        let pieces = plan_writes(pages.len(), self.log.position, self.segment_blocks);
        let blocks = pieces.iter().map(ChunkPlan::blocks).sum();
        self.pay_for(blocks);
        self.log_blocks += blocks;
        for piece in pieces {
            if piece.starts_segment {
                self.segments[self.log.segment as usize].open = false;
                let next = self.take(Use::Data, true);
                self.log = OpenLog { segment: self.log.next, next, ..self.log };
            }
            let (segment, entries) = (self.log.segment, piece.entry_blocks + piece.index_blocks);
            (0..entries).for_each(|_| self.put(Unit::LogEntry, segment));
            for &page in &pages[piece.entries] {
                self.put(Unit::Page(page), segment);
                self.dirty.insert(page / LEAF_PAGES);
            }
            (self.written.entries, self.written.user) =
                (self.written.entries + entries, self.written.user + piece.page_blocks);
            self.log.position = piece.next_position;
        }
    }

    fn pay_for(&mut self, blocks: u64) {
        let Some(mut round) = self.round.take() else { return };
        round.pace.charge(blocks, self.left(&round));
        self.round = Some(round);
    }

    fn tables_dirty(&self) -> BTreeSet<u64> {
        self.dirty.iter().map(|leaf| (leaf + 3) / TABLE_NODES).collect()
    }

    fn node_use(&self) -> NodeSpaceUse {
        let nodes = || self.segments.iter().filter(|segment| segment.usage == Use::Nodes);
        NodeSpaceUse {
            segment_blocks: self.segment_blocks,
            dirty: self.dirty.len() as u64,
            dirty_max: self.dirty_max(),
            nodes: self.places[1].len() as u64,
            tables: (self.places[2].len() + self.places[3].len()) as u64,
            live: nodes().map(|segment| segment.live).sum(),
            held: nodes().count() as u64 * self.segment_blocks,
        }
    }

    /// Nodes above the leaves, and the leaf of objects.
    fn nodes_above(&self) -> u64 {
        let leaves = self.places[1].len() as u64;
        1 + leaves.div_ceil(256) + u64::from(leaves > 256)
    }

    fn dirty_max(&self) -> u64 {
        policy::dirty_max(self.segments.len() as u64 * self.segment_blocks, self.segment_blocks)
    }

    /// Whether so many more nodes may be dirty before the next checkpoint.
    fn may_dirty(&self, nodes: u64) -> bool {
        let dirty = self.dirty.len() as u64 + self.dirty_above;
        dirty == 0 || dirty + nodes <= self.dirty_max()
    }

    fn floor(&self, class: SpaceClass) -> u64 {
        policy::free_segments_floor(class, &self.node_use())
    }

    /// What it wrote until now.
    pub(crate) fn written(&self) -> Written {
        self.written
    }

    /// Cleans as much as is owed for what was written.
    pub(crate) fn keep_up(&mut self) {
        loop {
            match self.round.take() {
                Some(round) if !round.pace.is_due(self.left(&round)) => {
                    self.round = Some(round);
                    return;
                }
                Some(round) => self.round = self.clean_some(round),
                None if self.free.len() as u64 >= self.cleaning_starts_below() => return,
                None => {
                    if !self.begin_round() {
                        (0..2).for_each(|_| self.checkpoint());
                        return;
                    }
                }
            }
        }
    }

    /// Pages that are written back together at most, as in [`pages_together`](store::Store::pages_together).
    pub(crate) fn together(&self) -> u64 {
        self.round.as_ref().map_or(u64::MAX, |round| round.pace.pages_per_payment())
    }

    /// Blocks written to the log since the last checkpoint.
    pub(crate) fn blocks_since_checkpoint(&self) -> u64 {
        self.log_blocks
    }

    fn cleaning_starts_below(&self) -> u64 {
        self.floor(SpaceClass::Writer) + policy::low_mark(self.segments.len() as u64)
    }

    fn is_short_of_space(&self) -> bool {
        (self.free.len() as u64) < self.cleaning_starts_below()
    }

    fn put_node(&mut self, unit: Unit) {
        let segment = match self.nodes_at {
            Some((segment, offset)) if offset < self.segment_blocks => segment,
            full => {
                full.iter().for_each(|(segment, _)| self.segments[*segment as usize].open = false);
                let fresh = self.take(Use::Nodes, false);
                self.segments[fresh as usize].twin = self.free.pop_front();
                self.nodes_at = Some((fresh, 0));
                fresh
            }
        };
        self.nodes_at = self.nodes_at.map(|(segment, offset)| (segment, offset + 1));
        self.put(unit, segment);
        self.written.nodes += policy::METADATA_COPIES;
    }

    /// What a checkpoint writes, and frees.
    pub(crate) fn checkpoint(&mut self) {
        (self.generation, self.log_blocks, self.dirty_above) = (self.generation + 1, 0, 0);
        let mut tables = BTreeSet::new();
        self.compact_nodes(&mut tables);
        tables.extend(self.tables_dirty());
        for leaf in std::mem::take(&mut self.dirty) {
            self.put_node(Unit::Leaf(leaf));
        }
        tables.into_iter().for_each(|table| self.put_node(Unit::Table(table)));
        (0..self.places[3].len() as u64).for_each(|block| self.put_node(Unit::Stream(block)));
        // The root.
        self.written.nodes += 1;
        for number in 0..self.segments.len() {
            let generation = self.generation;
            let segment = &mut self.segments[number];
            if segment.usage == Use::Free || segment.open || segment.live > 0 {
                continue;
            }
            if *segment.dead_since.get_or_insert(generation) < generation {
                let both = [Some(number as u32), segment.twin];
                *segment = empty();
                self.free.extend(both.into_iter().flatten());
            }
        }
    }

    /// Thins segments of nodes where they hold too much: some pages of the table are to be written, too.
    fn compact_nodes(&mut self, tables: &mut BTreeSet<u64>) {
        let (free, nodes) = (self.free.len() as u64, self.node_use());
        let Some(compaction) = nodes.compaction(free, self.is_short_of_space()) else { return };
        let written = self.tables_dirty();
        let stays = |unit: &Unit| match unit {
            Unit::Leaf(leaf) => !self.dirty.contains(leaf),
            Unit::Table(table) => !written.contains(table),
            _ => false,
        };
        let closed = (0..).zip(&self.segments).filter(|(_, one)| one.usage == Use::Nodes && !one.open);
        let staying = |number| (number, self.lives(number).into_iter().filter(stays).count() as u64);
        let staying: Vec<(u32, u64)> = closed.map(|(number, _)| staying(number)).collect();
        let chosen = nodes.segments_to_compact(compaction, &staying);
        let again: Vec<Unit> = chosen.into_iter().flat_map(|number| self.lives(number)).collect();
        for unit in again {
            match unit {
                Unit::Leaf(leaf) => drop(self.dirty.insert(leaf)),
                Unit::Table(table) => drop(tables.insert(table)),
                _ => {}
            }
        }
    }

    /// Begins a round; false where there is nothing to clean.
    fn begin_round(&mut self) -> bool {
        let fits = |segment: &Segment| {
            let stuck = segment.stuck_at.is_some_and(|live| segment.live >= live);
            segment.usage == Use::Data && !segment.open && !stuck && segment.live > 0
        };
        let candidate = |(number, segment): (u32, &Segment)| CleaningCandidate {
            segment: number,
            live: segment.live,
            copies: 1,
            age: self.clock - segment.written,
        };
        let all = (0..).zip(&self.segments).filter(|(_, segment)| fits(segment));
        let candidates: Vec<CleaningCandidate> = all.map(candidate).collect();
        let (free, segments) = (self.free.len() as u64, self.segments.len() as u64);
        let budget = CleaningBudget {
            segment_blocks: self.segment_blocks,
            segments: policy::segments_per_round(segments),
            blocks: free.saturating_sub(self.floor(SpaceClass::Cleaner)) * self.segment_blocks,
        };
        let victims = policy::choose_victims(&candidates, &budget);
        if victims.is_empty() {
            return false;
        }
        let all_nodes = (self.places[1].len() + NODES_ABOVE_LEAVES) as u64;
        let price = decide::price_of_lookup(self.segment_blocks);
        let looks_up = decide::lookups_are_worth_it(all_nodes, victims.len());
        let (nodes, ahead) = match looks_up {
            true => (victims.len() as u64 * price, Some(price)),
            false => (all_nodes, None),
        };
        let live = |&victim: &u32| self.segments[victim as usize].live;
        let pace = GcPacer::new(&decide::GcRound {
            segment_blocks: self.segment_blocks,
            victims: victims.len() as u64,
            live: victims.iter().map(live).sum(),
            copies: victims.iter().map(|victim| policy::with_summaries(live(victim))).sum(),
            nodes,
            segments,
            missing: self.cleaning_starts_below().saturating_sub(free),
        });
        self.round = Some(Round { victims: victims.into(), nodes, ahead, pace, checkpointed: false });
        true
    }

    /// Work that is left in a round.
    fn left(&self, round: &Round) -> u64 {
        round.nodes + round.victims.iter().map(|&victim| self.segments[victim as usize].live).sum::<u64>()
    }

    /// A step of a round; what is left of it.
    fn clean_some(&mut self, mut round: Round) -> Option<Round> {
        match &mut round.ahead {
            // Its owners, then its leaves.
            Some(ahead @ 1..) => {
                let half = (*ahead).min(decide::price_of_lookup(self.segment_blocks).div_ceil(2));
                (*ahead, round.nodes) = (*ahead - half, round.nodes - half);
                return Some(round);
            }
            None if round.nodes > 0 => {
                round.nodes = round.nodes.saturating_sub(64);
                return Some(round);
            }
            _ => {}
        }
        let Some(&victim) = round.victims.front() else {
            self.leave_list();
            (0..2).for_each(|_| self.checkpoint());
            return None;
        };
        let page = |unit| if let Unit::Page(page) = unit { Some(page) } else { None };
        let pages: Vec<u64> = self.lives(victim).into_iter().filter_map(page).collect();
        if pages.is_empty() {
            round.victims.pop_front();
            let price = decide::price_of_lookup(self.segment_blocks);
            round.ahead = round.ahead.map(|_| if round.victims.is_empty() { 0 } else { price });
        }
        let mut count = pages.len().min(policy::blocks_per_step(self.segment_blocks));
        let touched = |some: &[u64]| {
            let leaves: BTreeSet<u64> = some.iter().map(|page| page / LEAF_PAGES).collect();
            leaves.iter().filter(|leaf| !self.dirty.contains(leaf)).count() as u64
        };
        match (1..=count).take_while(|&count| self.may_dirty(touched(&pages[..count]))).last() {
            Some(fit) => count = fit,
            None if count > 0 => (0..2).for_each(|_| self.checkpoint()),
            None => {}
        }
        for index in 0..count {
            if !self.find_place(&pages[index..]) {
                return self.find_space(round);
            }
            self.move_page(pages[index], victim);
        }
        Some(round)
    }

    /// Two checkpoints may give a round the segment that it needs; where they did not, it is given up.
    fn find_space(&mut self, mut round: Round) -> Option<Round> {
        if !std::mem::replace(&mut round.checkpointed, true) {
            (0..2).for_each(|_| self.checkpoint());
            return Some(round);
        }
        self.leave_list();
        for victim in round.victims {
            let segment = &mut self.segments[victim as usize];
            segment.stuck_at = Some(segment.live);
        }
        None
    }

    /// Goes to where the first of these pages may be moved, behind a list that names it.
    fn find_place(&mut self, coming: &[u64]) -> bool {
        if !self.listed.contains(&coming[0]) {
            self.leave_list();
            return self.begin_list(coming);
        }
        // Written again since they were named.
        while self.listed.pop_front().is_some_and(|page| page != coming[0]) {
            self.put_moved(Unit::LogEntry);
        }
        true
    }

    fn begin_list(&mut self, coming: &[u64]) -> bool {
        let count = coming.len() as u64;
        let left = self.moved_at.map_or(0, |(_, offset)| self.segment_blocks - offset);
        if policy::blocks_per_summary(count, left) == 0 {
            if self.free.len() as u64 <= self.floor(SpaceClass::Cleaner) {
                return false;
            }
            let fresh = self.take(Use::Data, false);
            if let Some((full, _)) = self.moved_at.replace((fresh, 0)) {
                self.segments[full as usize].open = false;
            }
        }
        let left = self.moved_at.map_or(0, |(_, offset)| self.segment_blocks - offset);
        self.listed = coming[1..policy::blocks_per_summary(count, left) as usize].iter().copied().collect();
        self.put_moved(Unit::LogEntry);
        self.written.lists += 1;
        true
    }

    /// The places of pages that the last list names stay empty.
    fn leave_list(&mut self) {
        for _ in std::mem::take(&mut self.listed) {
            self.put_moved(Unit::LogEntry);
        }
    }

    fn put_moved(&mut self, unit: Unit) -> u32 {
        let (segment, offset) = self.moved_at.expect("a list was begun");
        self.moved_at = Some((segment, offset + 1));
        self.put(unit, segment);
        segment
    }

    fn move_page(&mut self, page: u64, victim: u32) {
        let segment = self.put_moved(Unit::Page(page));
        let written = self.segments[victim as usize].written;
        let target = &mut self.segments[segment as usize];
        target.written = target.written.max(written);
        self.dirty.insert(page / LEAF_PAGES);
        self.written.moved += 1;
    }
}

fn empty() -> Segment {
    Segment {
        usage: Use::Free,
        open: false,
        live: 0,
        written: 0,
        dead_since: None,
        stuck_at: None,
        twin: None,
        holds: Vec::new(),
    }
}
