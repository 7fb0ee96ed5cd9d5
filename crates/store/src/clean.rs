//! The cleaner: empties segments that are worth it, a bounded step at a time.
//!
//! | stage of a round | what a step does | held meanwhile |
//! | --- | --- | --- |
//! | none | chooses victims, and pins them | the map's lock |
//! | walking | visits some nodes, and notes who holds the victims' blocks | nothing during reads |
//! | moving | copies some blocks, makes the copies durable, repoints their holders | the writer's lock for the repointing only |
//! | settling | a victim whose holders are all gone is dead | the map's lock |
//!
//! A node is visited and repointed once, under its id, however many share it. Repointing is conditional: an entry
//! that was changed since is left alone. It is durable with the next checkpoint, and a victim is trimmed and used
//! again only when two checkpoints do without it and no reader pins it; so a crash at any moment finds either the
//! block that was moved or its copy. No log entry is written for any of this.

use crate::bug::{PlantedBug, is_planted};
use crate::counters::count;
use crate::error::StoreError;
use crate::map::{Holder, Move, NodeId, Purpose, Wanted};
use crate::policy::{Budget, Class, blocks_per_step, choose, segments_per_round};
use crate::segments::Use;
use crate::store::Store;
use device::{Block, Page};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes that a step visits: a quarter of a MiB of reads, and 50 us under the map's lock.
const NODES_PER_STEP: usize = 64;
/// Holders that a step repoints, but for a single block that has more: 4 MiB of leaves in memory at once.
const HOLDERS_PER_STEP: usize = 1024;
/// Holders that a round remembers before it lets victims go again, 48 bytes each; the last victim stays.
const HOLDERS_MAX: usize = 1 << 20;

/// What a step of the cleaner did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cleaning {
    /// Nothing is worth cleaning.
    Idle,
    /// There is more to do.
    Working,
    /// A round has ended, in which this many segments died, or held less than was thought. Dead ones are free after
    /// two checkpoints.
    Emptied(u64),
    /// Moving needs a free segment above the reserve for deletions, or space for the nodes that it changes. Two checkpoints may
    /// give it; if nothing was moved since they were last asked for, they did not.
    NeedsCheckpoint,
}

/// What the cleaner remembers between steps. Nothing of it survives a crash, nor has to.
#[derive(Default)]
pub(crate) struct Cleaner {
    round: Option<Round>,
    /// Where moved blocks go: a segment that is open for them, and the next block in it.
    at: Option<(u32, u64)>,
}

struct Round {
    /// What is not settled yet, in order.
    victims: Vec<u32>,
    /// The walk has been complete once, and the counts are exact.
    counted: bool,
    /// Blocks that cannot be moved, because they or their holders cannot be read.
    stuck: BTreeSet<Block>,
    /// Segments that died, or held less than was thought.
    emptied: u64,
}

/// A block on its way.
struct Moving {
    from: Block,
    crc: u32,
    holders: Vec<Holder>,
}

impl Store {
    /// Cleans until a round has ended, and checkpoints where that is what it takes. Others may use the store
    /// meanwhile: each step takes its locks anew.
    ///
    /// Returns whether segments died, or held less than was thought. Dead ones are free after two checkpoints.
    ///
    /// # Errors
    /// Those of [`clean_step`](Store::clean_step), and of [`checkpoint`](Store::checkpoint).
    pub fn clean(&self) -> Result<bool, StoreError> {
        // What had been moved when two checkpoints were asked for.
        let mut asked = None;
        loop {
            match self.clean_step()? {
                Cleaning::Idle => return Ok(false),
                Cleaning::Working => {}
                Cleaning::Emptied(segments) => return Ok(segments > 0),
                Cleaning::NeedsCheckpoint => {
                    if asked.replace(self.counters().pages_cleaned) == Some(self.counters().pages_cleaned) {
                        self.end_round();
                        return Ok(false);
                    }
                    self.checkpoint_twice()?;
                }
            }
        }
    }

    /// One bounded step of cleaning: it visits 64 nodes of the map, or moves an eighth of a segment, at most a MiB. No operation waits
    /// for more than the repointing of what one step moved; no I/O is done while a lock is held that readers or writers need.
    ///
    /// # Errors
    /// [`StoreError::NotBegun`], [`StoreError::Stopped`], or the device's: the step may be tried again. A block
    /// that cannot be read stays where it is, its segment with it, and is no error here.
    pub fn clean_step(&self) -> Result<Cleaning, StoreError> {
        self.step(&mut self.lock_cleaner())
    }

    pub(crate) fn step(&self, cleaner: &mut Cleaner) -> Result<Cleaning, StoreError> {
        self.make_ready(&mut self.lock_writer())?;
        let Cleaner { round, at } = cleaner;
        let Some(current) = round else {
            *round = self.begin_round();
            return Ok(if round.is_some() { Cleaning::Working } else { Cleaning::Idle });
        };
        let walks = !(current.counted && is_planted(PlantedBug::SettledEarly));
        if walks && !self.visit_some(Purpose::Clean, NODES_PER_STEP).is_empty() {
            self.bound_holders(current);
            return Ok(Cleaning::Working);
        }
        if !current.counted {
            if let Some(lower) = self.believe_walk() {
                current.emptied += lower;
                current.counted = true;
            }
            return Ok(Cleaning::Working);
        }
        if let Some(&victim) = current.victims.first() {
            return self.work_on(victim, current, at);
        }
        let mut map = self.map_mut();
        map.end_scan(Purpose::Clean);
        map.segments.end_turn();
        let emptied = current.emptied;
        *round = None;
        Ok(Cleaning::Emptied(emptied))
    }

    /// Ends a round that needs more space than two checkpoints have made: its victims are left alone until more of them
    /// has died.
    pub fn end_round(&self) {
        self.lock_cleaner().give_up(self);
    }

    /// Chooses victims, and begins the walk that finds their holders; without any, if counts may be too high, just
    /// the walk that makes them exact.
    fn begin_round(&self) -> Option<Round> {
        let mut map = self.map_mut();
        let geometry = self.geometry;
        let free = map.segments.free_count().saturating_sub(map.floor(Class::Cleaner));
        let budget = Budget {
            segment_blocks: geometry.segment_blocks,
            segments: segments_per_round(map.segments.held()),
            blocks: free * geometry.segment_blocks,
        };
        let victims = choose(&map.segments.candidates(), &budget);
        if victims.is_empty() && !map.segments.unsure {
            return None;
        }
        map.segments.unsure = false;
        victims.iter().for_each(|&victim| map.segments.pin(geometry.start(victim)));
        map.begin_scan(Purpose::Clean, Wanted::In(victims.iter().copied().collect()));
        map.begin_pace(&victims);
        Some(Round { victims, counted: false, stuck: BTreeSet::new(), emptied: 0 })
    }

    /// Lets the last victims go while there are more holders than fit.
    fn bound_holders(&self, round: &mut Round) {
        let mut map = self.map_mut();
        let Some(scan) = map.scan(Purpose::Clean) else { return };
        let mut gone = Vec::new();
        while scan.holders > HOLDERS_MAX && round.victims.len() > 1 {
            let victim = round.victims.pop().expect("more than one");
            scan.unwant(victim, self.blocks_of(victim));
            gone.push(victim);
        }
        gone.into_iter().for_each(|victim| map.segments.unpin(self.geometry.start(victim)));
    }

    /// If the walk has met everything: how many segments hold less than was thought.
    fn believe_walk(&self) -> Option<u64> {
        let mut map = self.map_mut();
        let scan = map.scan(Purpose::Clean).as_ref()?;
        // A change may have made a node grey since the last visit.
        if !scan.is_complete() {
            return None;
        }
        if !scan.lost.is_empty() {
            return Some(0);
        }
        count(&self.counting.walks, 1);
        Some(map.segments.believe_marks())
    }

    /// Moves some of a victim's blocks, or settles it if there are none left.
    fn work_on(
        &self,
        victim: u32,
        round: &mut Round,
        at: &mut Option<(u32, u64)>,
    ) -> Result<Cleaning, StoreError> {
        let some = self.some_held(victim, &round.stuck);
        if some.is_empty() {
            return Ok(self.settle(victim, round));
        }
        self.holding_nodes(|| {
            let failed = self.load(self.existing(some.values().flatten()));
            let reachable = |(_, holders): &(&Block, &Vec<Holder>)| {
                !holders.iter().any(|holder| failed.contains_key(&holder.node))
            };
            round.stuck.extend(some.iter().filter(|one| !reachable(one)).map(|(&from, _)| from));
            let moving = self.still_held(some.iter().filter(reachable));
            self.move_blocks(victim, moving, round, at)
        })
    }

    /// The holders' nodes, without those that went since they were met.
    fn existing<'a>(&self, holders: impl Iterator<Item = &'a Holder>) -> Vec<NodeId> {
        let map = self.map();
        holders.map(|holder| holder.node).filter(|&id| map.table.get(id).is_some()).collect()
    }

    /// Some blocks of a victim with their holders.
    fn some_held(&self, victim: u32, stuck: &BTreeSet<Block>) -> BTreeMap<Block, Vec<Holder>> {
        let mut map = self.map_mut();
        let Some(scan) = map.scan(Purpose::Clean) else { return BTreeMap::new() };
        let (mut some, mut holders) = (BTreeMap::new(), 0);
        let blocks = blocks_per_step(self.geometry.segment_blocks);
        for (&from, held) in scan.held.range(self.blocks_of(victim)) {
            if stuck.contains(&from) {
                continue;
            }
            if some.len() == blocks || (holders + held.len() > HOLDERS_PER_STEP && holders > 0) {
                break;
            }
            let mut held = held.clone();
            held.sort();
            held.dedup();
            holders += held.len();
            some.insert(from, held);
        }
        some
    }

    /// Those of the blocks to which an entry refers still; the others are done with.
    fn still_held<'a>(&self, some: impl Iterator<Item = (&'a Block, &'a Vec<Holder>)>) -> Vec<Moving> {
        let mut map = self.map_mut();
        let mut moving = Vec::new();
        for (&from, holders) in some {
            match holders.iter().find_map(|&holder| map.held_entry(holder, from)) {
                Some(entry) => moving.push(Moving { from, crc: entry.crc, holders: holders.clone() }),
                None => {
                    if let Some(scan) = map.scan(Purpose::Clean) {
                        scan.resolved(from);
                    }
                }
            }
        }
        moving
    }

    fn move_blocks(
        &self,
        victim: u32,
        moving: Vec<Moving>,
        round: &mut Round,
        at: &mut Option<(u32, u64)>,
    ) -> Result<Cleaning, StoreError> {
        let mut pages = self.read_moving(moving, &mut round.stuck);
        if pages.is_empty() {
            return Ok(Cleaning::Working);
        }
        let blocks_left = at.map_or(0, |(_, offset)| self.geometry.segment_blocks - offset);
        let taken = u64::from(blocks_left < pages.len() as u64);
        let holders = pages.iter().map(|(one, _)| &one.holders[..]);
        pages.truncate(self.map().moves_that_fit(holders, taken));
        let Some((places, filled)) = self.places_for_moved(victim, pages.len(), at) else {
            return Ok(Cleaning::NeedsCheckpoint);
        };
        let since = self.failed_flushes();
        let (moving, pages): (Vec<Moving>, Vec<Page>) = pages.into_iter().unzip();
        let copied = self.copy(&places, pages).and_then(|()| self.flush_since(since));
        let repointed = match &copied {
            Ok(()) => self.repoint(&moving, &places),
            Err(_) => {
                // It is not known what of it is on the medium: it is copied again, elsewhere.
                at.take().into_iter().for_each(|(segment, _)| self.map_mut().segments.close(segment));
                false
            }
        };
        // Not before: a closed segment in which nothing is live yet would be given to others.
        filled.into_iter().for_each(|segment| self.map_mut().segments.close(segment));
        copied?;
        if !repointed {
            return Ok(Cleaning::NeedsCheckpoint);
        }
        count(&self.counting.pages_cleaned, places.len() as u64);
        Ok(Cleaning::Working)
    }

    /// Reads blocks, and finds out which are not what was written.
    fn read_moving(&self, moving: Vec<Moving>, stuck: &mut BTreeSet<Block>) -> Vec<(Moving, Page)> {
        let places: Vec<Block> = moving.iter().map(|one| one.from).collect();
        let mut pages = Vec::new();
        for (one, page) in moving.into_iter().zip(self.read_blocks(&places)) {
            match page.ok().filter(|page| crc32c::crc32c(&page.0) == one.crc) {
                Some(page) => pages.push((one, page)),
                None => drop(stuck.insert(one.from)),
            }
        }
        pages
    }

    /// Where blocks of `victim` may go, and the segments that are full then, to be closed; `None` where there is no
    /// segment.
    fn places_for_moved(
        &self,
        victim: u32,
        wanted: usize,
        at: &mut Option<(u32, u64)>,
    ) -> Option<(Vec<Block>, Vec<u32>)> {
        let mut map = self.map_mut();
        let segment_blocks = self.geometry.segment_blocks;
        let (mut places, mut filled) = (Vec::new(), Vec::new());
        while places.len() < wanted {
            let (segment, offset) = match *at {
                Some((segment, offset)) if offset < segment_blocks => (segment, offset),
                full => {
                    if map.segments.free_count() <= map.floor(Class::Cleaner) {
                        break;
                    }
                    filled.extend(full.map(|(segment, _)| segment));
                    *at = None;
                    (map.segments.take(Use::Moved)?, 0)
                }
            };
            *at = Some((segment, offset + 1));
            places.push(self.geometry.start(segment).plus(offset));
            map.segments.inherit_age(victim, segment);
        }
        (!places.is_empty()).then_some((places, filled))
    }

    fn copy(&self, places: &[Block], pages: Vec<Page>) -> Result<(), StoreError> {
        let boxed = places.iter().zip(pages).map(|(&at, page)| (at, Box::new(page))).collect();
        #[cfg(feature = "planted-bugs")]
        let Some(boxed) = self.planted.copy_later(boxed) else { return Ok(()) };
        self.write_blocks(boxed)
    }

    /// Points all holders at the copies, which are durable; none of them, and `false`, if others have used the space for the nodes
    /// meanwhile.
    fn repoint(&self, moving: &[Moving], places: &[Block]) -> bool {
        // No checkpoint may be under way: it would take for clean what is changed now.
        let _writer = self.lock_writer();
        let mut map = self.map_mut();
        if map.moves_that_fit(moving.iter().map(|one| &one.holders[..]), 0) < places.len() {
            return false;
        }
        let scan = map.scan(Purpose::Clean).as_ref();
        let all_known = scan.is_some_and(|scan| scan.is_complete() && scan.lost.is_empty());
        for (one, &to) in moving.iter().zip(places) {
            let moved = Move { from: one.from, to, crc: one.crc, sole: all_known && one.holders.len() == 1 };
            let mut repointed = 0;
            for &holder in &one.holders {
                repointed += u64::from(map.repoint(&moved, holder));
            }
            if repointed > 0 {
                map.segments.inc_live(to);
            }
            if let Some(scan) = map.scan(Purpose::Clean) {
                scan.resolved(one.from);
            }
            count(&self.counting.entries_repointed, repointed);
        }
        true
    }

    /// Nothing is left to move in a victim: it is dead, but for what is stuck.
    fn settle(&self, victim: u32, round: &mut Round) -> Cleaning {
        let blocks = self.blocks_of(victim);
        let stuck = round.stuck.range(blocks.clone()).count() as u32;
        let mut map = self.map_mut();
        let Some(scan) = map.scan(Purpose::Clean) else { return Cleaning::Working };
        let held = scan.held.range(blocks.clone()).any(|(at, _)| !round.stuck.contains(at));
        if held || !(scan.is_complete() || is_planted(PlantedBug::SettledEarly)) {
            return Cleaning::Working;
        }
        let all_known = scan.lost.is_empty();
        scan.unwant(victim, blocks);
        round.victims.remove(0);
        if all_known {
            map.segments.settle(victim, stuck);
        }
        map.segments.unpin(self.geometry.start(victim));
        if map.segments.get(victim).live == 0 {
            round.emptied += 1;
            map.segments.emptied(victim);
            count(&self.counting.segments_cleaned, 1);
        } else {
            map.segments.stuck(victim);
        }
        Cleaning::Working
    }

    fn blocks_of(&self, segment: u32) -> std::ops::Range<Block> {
        let start = self.geometry.start(segment);
        start..start.plus(self.geometry.segment_blocks)
    }
}

impl Cleaner {
    /// Ends a round for which there is no space: its victims are left alone until more of them has died.
    pub(crate) fn give_up(&mut self, store: &Store) {
        let Some(round) = self.round.take() else { return };
        let mut map = store.map_mut();
        map.end_scan(Purpose::Clean);
        map.segments.end_turn();
        for victim in round.victims {
            map.segments.unpin(store.geometry.start(victim));
            map.segments.stuck(victim);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
