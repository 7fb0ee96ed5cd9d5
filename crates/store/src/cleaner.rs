//! The cleaner: a copying garbage collector for segments, one bounded step at a time.
//!
//! **Why.** The log only writes to free segments. Overwrites, punches and deletions leave dead blocks behind,
//! and a segment is free only when nothing in it is live. So the cleaner copies the live blocks of mostly
//! dead segments, its *victims*, to a segment of its own, repoints the map to the copies, and lets the
//! victims die.
//!
//! **The reserve.** Cleaning takes free segments before it frees any. So each class leaves some alone
//! ([`free_segments_floor`](policy::free_segments_floor)): writers leave eight for the cleaner; the cleaner
//! leaves two for vectors that only free space; these leave one for rounds that empty a segment with each step,
//! and those by which the next checkpoint may go below their floor; all leave those for deletions of volumes,
//! checkpoints and recoveries. In blocks this is 14 % of a store of 256 MiB, 6 % of 4 GiB and 4 % of 1 TiB
//! ([`reserve_blocks`](policy::reserve_blocks)).
//!
//! **A full store.** New data is refused first:
//! [`StoreSpaceAccount::reserve`](crate::StoreSpaceAccount::reserve) fails as full when live and reserved
//! blocks would reach the reserve, so all acknowledged data can still be written. Names and attributes may
//! take a little more. Deletions always proceed. Below that limit a store only gets slower as its free
//! segments sink:
//!
//! | free segments | effect on a writer |
//! | --- | --- |
//! | above where cleaning starts | none |
//! | fewer | the writer pays in steps of cleaning ([`gc_pacer`](crate::gc_pacer)): as much as they gain, up to twice as much near the floor |
//! | at the writers' floor | the writer's vector makes checkpoints, which free emptied segments; if they free none, the vector fails as full, and is retried after more cleaning |
//! | at the cleaner's floor | rounds take only victims that one step empties, so that each step frees a segment |
//!
//! **How victims are found.** Each segment has a count of its live blocks in memory, so no search is needed.
//! [`choose_victims`] weighs the blocks that a segment frees, and how long they stay free, against the cost.
//! A victim must free one block in 64 at least. A round has as many victims as a 64th of the store (4 to
//! 256).
//!
//! **How references are found.** The map says where a page lies, but not which entries refer to a block. A
//! victim's own summary names the page that each block was written for
//! ([`segment_summary`](crate::segment_summary)): these pages are [looked up](crate::reverse_map). Where that
//! cannot tell, as with clones, a walk of the whole map notes all references.
//!
//! | stage of a round | what a step does | held meanwhile |
//! | --- | --- | --- |
//! | none | chooses victims, and pins them | the map's lock |
//! | looking up | reads a victim's summary, and looks up the pages that it names | nothing during reads |
//! | walking | visits some nodes, and notes their references to victims | nothing during reads |
//! | reading the summary | after a walk: reads a victim's summary, which its copies need | nothing |
//! | moving | copies some blocks, makes the copies durable, repoints the references | the writer's lock for repointing only |
//! | finishing | a victim without references is dead | the map's lock |
//!
//! Blocks of a mirrored segment go to a mirrored pair of the cleaner's, and are copied to both of its
//! segments.
//!
//! **Crashes.** A node is visited and repointed once, under its id, however many nodes share it. Repointing
//! is conditional: an entry that was changed since is left alone. Repointing is durable with the next
//! checkpoint. A victim is trimmed and used again only when two checkpoints do without it and no reader pins
//! it. So a crash at any moment finds either the block that was moved or its copy, and no log entry is
//! needed.
//!
//! Copies get summaries, too: each lies in front of the blocks that it names, and is durable with them or
//! before. A summary names more blocks than a step moves, so that it is one block in a hundred: the victim's
//! next blocks, which are promised the places behind it. The place of a block that died before its turn stays
//! empty.

use crate::bug::{StoreBug, is_planted};
use crate::counters::count;
use crate::error::StoreError;
use crate::format::SUMMARY_BLOCKS_MAX;
use crate::log_entry::MirroredBlock;
use crate::map::{BlockHolder, MovedBlock, NodeId, PageMap, ScanPurpose, ScanTarget};
use crate::mirrored::{OpenMirroredPair, write_mirrored};
use crate::policy::{
    self, CleaningBudget, CleaningCandidate, SpaceClass, blocks_per_step, blocks_per_summary, choose_victims,
    fit_with_summaries, segments_per_round,
};
use crate::reverse_map::{self, LookupProgress, ReverseLookup};
use crate::segment_summary::{SummaryBlock, SummaryEntry, SummaryScan};
use crate::segments::SegmentUse;
use crate::shared::StoreShared;
use crate::writer::WriterLock;
use device::{Block, Page};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Map nodes that a step visits: a quarter of a MiB of reads, and 50 us under the map's lock.
const NODES_PER_STEP: usize = 64;
/// References that a step repoints, unless a single block has more: 4 MiB of leaves in memory at once.
const HOLDERS_PER_STEP: usize = 1024;
/// References that a round remembers, 48 bytes each, before it drops victims. The last victim stays.
const HOLDERS_MAX: usize = 1 << 20;

/// The outcome of a step of the cleaner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CleaningOutcome {
    /// Nothing is worth cleaning.
    Idle,
    /// There is more to do.
    Working,
    /// A round has ended, or was given up for lack of space. This many segments died, or held less than was
    /// counted. Dead ones are free after two checkpoints.
    RoundEnded(u64),
}

/// The cleaner's state between steps. Lost in a crash, which does no harm.
#[derive(Default)]
pub(crate) struct SegmentCleaner {
    round: Option<CleaningRound>,
    targets: CopyTargets,
}

/// Where moved blocks go: blocks of mirrored segments to a mirrored pair, other blocks to a segment.
#[derive(Default)]
struct CopyTargets {
    plain: CopySegment,
    mirrored: OpenMirroredPair,
}

/// The segment to which the cleaner moves unmirrored blocks.
#[derive(Default)]
struct CopySegment {
    /// The open segment, and the next block in it.
    open: Option<(u32, u64)>,
    /// Segments that were opened so far.
    segments: u64,
    /// Blocks of a victim that the last summary names and that were not moved yet: the next places are
    /// theirs, in order.
    promised: VecDeque<Block>,
}

/// Places for moved blocks.
#[derive(Default)]
struct CopyPlacement {
    places: Vec<Block>,
    /// The summaries that begin between them.
    summaries: Vec<(Block, Box<Page>)>,
    /// Segments that are full then, to be closed.
    filled: Vec<u32>,
}

/// Blocks that are moved next, with their summary entries where these are known.
type UpcomingBlocks = BTreeMap<Block, Option<SummaryEntry>>;

struct CleaningRound {
    /// Whether each step empties a segment. The round may then take more of the free segments.
    empties_at_once: bool,
    /// Victims that are not finished yet, in order.
    victims: Vec<u32>,
    stage: RoundStage,
    /// Victims of which look-ups did not find all references: a walk must.
    unknown: Vec<u32>,
    /// The summary of the victim that is worked on.
    summary: Option<SummaryScan>,
    /// Blocks that cannot be moved, because they, or the nodes that refer to them, cannot be read.
    stuck: BTreeSet<Block>,
    /// Segments that died, or held less than was counted.
    emptied: u64,
}

/// How far the references to the victims' blocks are known.
enum RoundStage {
    /// References to the first victim are being looked up.
    LookingUp(Option<ReverseLookup>),
    /// References to the first victim are known.
    LookedUp,
    /// A walk looks for references to all victims.
    Walking,
    /// The walk has been complete once, and the live counts are exact.
    Counted,
}

/// A block that is being moved.
struct MovingBlock {
    from: Block,
    crc: u32,
    holders: Vec<BlockHolder>,
    /// Other entries may refer to the block, too.
    is_shared: bool,
}

impl SegmentCleaner {
    /// One bounded step: see [`StoreMaintenance::clean_step`](crate::StoreMaintenance::clean_step).
    pub(crate) fn step(
        &mut self,
        shared: &StoreShared,
        writer: &WriterLock,
    ) -> Result<CleaningOutcome, StoreError> {
        if let Some(outcome) = self.try_step(shared, writer)? {
            return Ok(outcome);
        }
        writer.lock().checkpoint_twice(shared)?;
        if let Some(outcome) = self.try_step(shared, writer)? {
            return Ok(outcome);
        }
        Ok(CleaningOutcome::RoundEnded(self.give_up_round(shared)))
    }

    /// A step. `None` if moving needs a free segment above the reserve for deletions, or space for the nodes
    /// that it changes: two checkpoints may free it.
    fn try_step(
        &mut self,
        shared: &StoreShared,
        writer: &WriterLock,
    ) -> Result<Option<CleaningOutcome>, StoreError> {
        writer.lock().make_ready(shared)?;
        let SegmentCleaner { round, targets: to } = self;
        let Some(current) = round else {
            *round = CleaningRound::begin(shared);
            return Ok(Some(if round.is_some() { CleaningOutcome::Working } else { CleaningOutcome::Idle }));
        };
        if current.find_holders(shared) {
            return Ok(Some(CleaningOutcome::Working));
        }
        if let Some(&victim) = current.victims.first() {
            return current.clean_victim(victim, shared, writer, to);
        }
        let mut map = shared.map_mut();
        map.nodes.end_scan(ScanPurpose::Clean);
        let emptied = current.emptied;
        *round = None;
        to.plain.abandon_summary();
        Ok(Some(CleaningOutcome::RoundEnded(emptied)))
    }

    /// Ends a round for which there is no space. Its victims are left alone until more of them has died.
    /// Returns the number of segments that it has emptied.
    pub(crate) fn give_up_round(&mut self, shared: &StoreShared) -> u64 {
        let Some(round) = self.round.take() else { return 0 };
        self.targets.plain.abandon_summary();
        let mut map = shared.map_mut();
        map.nodes.end_scan(ScanPurpose::Clean);
        // Other threads have made many nodes dirty since the last checkpoint, so it is not the victims'
        // fault.
        let is_crowded = map.has_many_dirty();
        for victim in round.victims.into_iter().chain(round.unknown) {
            map.nodes.segments.unpin(shared.medium.geometry().segment_start(victim));
            if !is_crowded {
                map.nodes.segments.mark_stuck(victim);
            }
        }
        round.emptied
    }
}

impl CleaningRound {
    /// Chooses victims, and begins the look-ups or the walk that find their references. Without victims, if
    /// live counts may be too high, begins just the walk that makes them exact.
    fn begin(shared: &StoreShared) -> Option<CleaningRound> {
        let mut map = shared.map_mut();
        let geometry = shared.medium.geometry();
        let free = map.nodes.segments.free_count().saturating_sub(map.floor(SpaceClass::Cleaner));
        let mut candidates = map.nodes.segments.candidates();
        let emptied_at_once =
            |one: &CleaningCandidate| policy::may_empty_at_once(one, geometry.segment_blocks);
        let empties_at_once = free == 0 && candidates.iter().any(emptied_at_once);
        if empties_at_once {
            candidates.retain(emptied_at_once);
        }
        // A round that empties a segment with each step fits all that it moves into one.
        let free = if empties_at_once { 1 } else { free };
        let budget = CleaningBudget {
            segment_blocks: geometry.segment_blocks,
            segments: segments_per_round(map.nodes.segments.backed_count()),
            blocks: free * geometry.segment_blocks,
        };
        let victims = choose_victims(&candidates, &budget);
        if victims.is_empty() && !map.nodes.segments.counts_may_be_high() {
            return None;
        }
        victims.iter().for_each(|&victim| map.nodes.segments.pin(geometry.segment_start(victim)));
        let looks_up = !map.nodes.segments.counts_may_be_high()
            && reverse_map::lookup_is_worth_it(map.nodes.table.used_count(), victims.len());
        let stage = RoundStage::LookingUp(None);
        let unknown = Vec::new();
        let owners = None;
        let stuck = BTreeSet::new();
        let mut round =
            CleaningRound { empties_at_once, victims, stage, unknown, summary: owners, stuck, emptied: 0 };
        if looks_up {
            let work = round.victims.len() as u64 * reverse_map::lookup_work(geometry.segment_blocks);
            map.begin_lookups(round.victims.iter().copied().collect(), work);
            map.begin_gc_pacing(&round.victims);
        } else {
            round.begin_walk(&mut map)
        }
        Some(round)
    }

    /// The class by which the round takes free segments.
    fn takes_segments_as(&self) -> SpaceClass {
        if self.empties_at_once { SpaceClass::EmptiesAtOnce } else { SpaceClass::Cleaner }
    }

    /// The class by which the round makes nodes dirty.
    fn dirties_nodes_as(&self) -> SpaceClass {
        if self.empties_at_once { SpaceClass::EmptiesAtOnce } else { SpaceClass::Frees }
    }

    fn begin_walk(&mut self, map: &mut PageMap) {
        self.stage = RoundStage::Walking;
        map.nodes.segments.begin_recount();
        map.begin_scan(ScanPurpose::Clean, ScanTarget::Segments(self.victims.iter().copied().collect()));
        map.begin_gc_pacing(&self.victims);
    }

    /// Finds more of the references to the victims' blocks. `false` once they are known for the first victim,
    /// or no victim is left.
    fn find_holders(&mut self, shared: &StoreShared) -> bool {
        match self.stage {
            RoundStage::LookedUp => false,
            RoundStage::LookingUp(_) => match self.victims.first() {
                Some(&victim) => {
                    self.look_up_holders(victim, shared);
                    true
                }
                None => self.begin_walk_for_unknown(shared),
            },
            RoundStage::Counted if is_planted(StoreBug::SettledEarly) => false,
            RoundStage::Walking | RoundStage::Counted => {
                if !shared.visit_nodes(ScanPurpose::Clean, NODES_PER_STEP).is_empty() {
                    self.bound_holder_memory(shared);
                    return true;
                }
                if matches!(self.stage, RoundStage::Counted) {
                    return false;
                }
                if let Some(lower) = apply_walk_recount(shared) {
                    (self.emptied, self.stage) = (self.emptied + lower, RoundStage::Counted);
                }
                true
            }
        }
    }

    /// Begins a walk for the victims of which look-ups did not find all references, if there are any.
    fn begin_walk_for_unknown(&mut self, shared: &StoreShared) -> bool {
        self.victims = std::mem::take(&mut self.unknown);
        if self.victims.is_empty() {
            return false;
        }
        let mut map = shared.map_mut();
        map.nodes.end_scan(ScanPurpose::Clean);
        self.begin_walk(&mut map);
        true
    }

    /// Looks up some of the pages that the first victim's summary names.
    fn look_up_holders(&mut self, victim: u32, shared: &StoreShared) {
        if self.summary.as_ref().is_none_or(|scan| scan.segment() != victim) {
            self.summary = Some(SummaryScan::new(victim));
        }
        let (RoundStage::LookingUp(lookup), Some(owners)) = (&mut self.stage, &mut self.summary) else {
            return;
        };
        let segments = self.victims.len() + self.unknown.len();
        let lookup = lookup.get_or_insert_with(|| ReverseLookup::new(victim, segments, &shared.map()));
        let looked = lookup.step(owners, shared);
        let left = lookup.left(looked, owners, shared);
        let mut map = shared.map_mut();
        let price = reverse_map::lookup_work(map.nodes.segments.geometry().segment_blocks);
        let Some(scan) = map.nodes.scan_mut(ScanPurpose::Clean) else { return };
        scan.to_look_up = self.victims[1..].len() as u64 * price + left;
        match looked {
            LookupProgress::Working => {}
            LookupProgress::Found => {
                scan.add_looked_up(std::mem::take(&mut lookup.found));
                self.stage = RoundStage::LookedUp;
            }
            LookupProgress::Unknown => {
                // The walk reads the summary anew: what could not be read may be by then.
                (self.stage, self.summary) = (RoundStage::LookingUp(None), None);
                self.victims.remove(0);
                self.unknown.push(victim);
            }
        }
    }

    /// Drops the last victims while there are more references than fit into memory.
    fn bound_holder_memory(&mut self, shared: &StoreShared) {
        let mut map = shared.map_mut();
        let Some(scan) = map.nodes.scan_mut(ScanPurpose::Clean) else { return };
        let mut gone = Vec::new();
        while scan.holder_count > HOLDERS_MAX && self.victims.len() > 1 {
            let victim = self.victims.pop().expect("more than one");
            scan.drop_segment(victim, shared.medium.geometry().blocks_of(victim));
            gone.push(victim);
        }
        gone.into_iter()
            .for_each(|victim| map.nodes.segments.unpin(shared.medium.geometry().segment_start(victim)));
    }

    /// Moves some of a victim's blocks, or finishes the victim if none are left.
    fn clean_victim(
        &mut self,
        victim: u32,
        shared: &StoreShared,
        writer: &WriterLock,
        to: &mut CopyTargets,
    ) -> Result<Option<CleaningOutcome>, StoreError> {
        let some = self.next_held_blocks(victim, shared);
        if some.is_empty() {
            return Ok(Some(self.finish_victim(victim, shared)));
        }
        if !self.read_summary(victim, shared) {
            return Ok(Some(CleaningOutcome::Working));
        }
        shared.holding_nodes(|| {
            let failed = shared.load_nodes(existing_nodes(shared, some.values().flatten()));
            let reachable = |(_, holders): &(&Block, &Vec<BlockHolder>)| {
                !holders.iter().any(|holder| failed.contains_key(&holder.node))
            };
            self.stuck.extend(some.iter().filter(|one| !reachable(one)).map(|(&from, _)| from));
            if self.cannot_empty(victim, shared) {
                return Ok(Some(self.skip_victim(victim, shared)));
            }
            let moving = blocks_still_held(shared, some.iter().filter(reachable));
            if self.may_be_held_by_lost_nodes(victim, &moving, shared) {
                return Ok(Some(self.skip_victim(victim, shared)));
            }
            self.move_blocks(victim, moving, shared, writer, to)
        })
    }

    /// Some blocks of a victim, with the references to them.
    fn next_held_blocks(&self, victim: u32, shared: &StoreShared) -> BTreeMap<Block, Vec<BlockHolder>> {
        let mut map = shared.map_mut();
        let Some(scan) = map.nodes.scan_mut(ScanPurpose::Clean) else { return BTreeMap::new() };
        let mut some = BTreeMap::new();
        let mut holders = 0;
        let blocks = blocks_per_step(shared.medium.geometry().segment_blocks);
        for (&from, held) in scan.holders.range(shared.medium.geometry().blocks_of(victim)) {
            if self.stuck.contains(&from) {
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

    /// Reads a victim's summary. Returns whether all of it is known that concerns referenced blocks. Where it
    /// cannot be read, the blocks stay where they are, as it may be readable later.
    fn read_summary(&mut self, victim: u32, shared: &StoreShared) -> bool {
        // Mirrored segments have no summary: their pages are all of the metadata's object.
        if is_mirrored_victim(victim, shared) {
            return true;
        }
        let geometry = shared.medium.geometry();
        let held: Vec<Block> = {
            let mut map = shared.map_mut();
            let scan = map.nodes.scan_mut(ScanPurpose::Clean).as_ref();
            let held = scan.map(|scan| scan.holders.range(geometry.blocks_of(victim)));
            held.into_iter().flatten().map(|(&at, _)| at).collect()
        };
        if self.summary.as_ref().is_none_or(|scan| scan.segment() != victim) {
            self.summary = Some(SummaryScan::new(victim));
        }
        let (Some(owners), Some(&last)) = (&mut self.summary, held.last()) else { return true };
        let known = owners.read_some(shared.medium.device(), geometry, last);
        if known.is_err() {
            self.stuck.extend(held);
        }
        known == Ok(true)
    }

    /// The blocks that are moved now, and the victim's next ones, as many as summaries may name.
    fn upcoming_blocks(
        &self,
        victim: u32,
        now: &[(MovingBlock, Page)],
        shared: &StoreShared,
    ) -> UpcomingBlocks {
        let mut coming: BTreeMap<Block, u32> = now.iter().map(|(one, _)| (one.from, one.crc)).collect();
        if let Some((&last, _)) = coming.last_key_value() {
            let mut map = shared.map_mut();
            let scan = map.nodes.scan_mut(ScanPurpose::Clean).as_ref();
            let held = scan
                .map(|scan| scan.holders.range(last.plus(1)..shared.medium.geometry().blocks_of(victim).end));
            let held = held.into_iter().flatten().filter(|(at, _)| !self.stuck.contains(at));
            coming.extend(held.take(SUMMARY_BLOCKS_MAX as usize).map(|(&at, holders)| (at, holders[0].crc)));
        }
        let owner = |at: Block, crc: u32| self.summary.as_ref().and_then(|scan| scan.entry(at, crc));
        coming.into_iter().map(|(at, crc)| (at, owner(at, crc))).collect()
    }

    fn move_blocks(
        &mut self,
        victim: u32,
        moving: Vec<MovingBlock>,
        shared: &StoreShared,
        writer: &WriterLock,
        to: &mut CopyTargets,
    ) -> Result<Option<CleaningOutcome>, StoreError> {
        let mut pages = self.read_moving(moving, shared);
        if self.cannot_empty(victim, shared) {
            return Ok(Some(self.skip_victim(victim, shared)));
        }
        if pages.is_empty() {
            return Ok(Some(CleaningOutcome::Working));
        }
        let taken = to.segments_for(victim, &pages, shared);
        let holders = pages.iter().map(|(one, _)| &one.holders[..]);
        pages.truncate(shared.map().moves_that_fit(holders, taken, self.dirties_nodes_as()));
        if self.empties_at_once && pages.len() < self.held_count(victim, shared) {
            return Ok(None);
        }
        let coming = self.upcoming_blocks(victim, &pages, shared);
        let Some(CopyPlacement { places, summaries: lists, filled }) =
            to.places(victim, &pages, &coming, self.takes_segments_as(), shared)
        else {
            return Ok(None);
        };
        let since = shared.medium.failed_flushes();
        let (moving, pages): (Vec<MovingBlock>, Vec<Page>) = pages.into_iter().unzip();
        let copied =
            write_copies(shared, lists, &places, pages).and_then(|()| shared.medium.flush_since(since));
        let repointed = match &copied {
            Ok(()) => repoint_holders(shared, writer, &moving, &places, self.dirties_nodes_as()),
            Err(_) => {
                // The copies may be on the medium or not: they are made again, elsewhere.
                to.abandon(victim, shared);
                false
            }
        };
        // Not before: a closed segment in which nothing is live yet would be freed.
        filled.into_iter().for_each(|segment| shared.map_mut().nodes.segments.close(segment));
        copied?;
        if !repointed {
            return Ok(None);
        }
        count(&shared.medium.counting().pages_cleaned, places.len() as u64);
        Ok(Some(CleaningOutcome::Working))
    }

    /// Reads blocks, and finds out which are damaged: those stay where they are, unless a mirror is whole.
    fn read_moving(&mut self, moving: Vec<MovingBlock>, shared: &StoreShared) -> Vec<(MovingBlock, Page)> {
        let places: Vec<Block> = moving.iter().map(|one| one.from).collect();
        let mut pages = Vec::new();
        let mut damaged = Vec::new();
        let mut twice = Vec::new();
        for (one, page) in moving.into_iter().zip(shared.medium.read_blocks(&places)) {
            let found = page.as_ref().map_or(0, |page| crc32c::crc32c(&page.0));
            let error = match page {
                Ok(page) if found == one.crc => {
                    pages.push((one, page));
                    continue;
                }
                Ok(_) => shared.medium.corrupt(one.from, "data".to_owned(), one.crc, found),
                Err(error) => error,
            };
            match shared.map().nodes.segments.mirror_of(one.from) {
                Some(copy) => {
                    damaged.push((MirroredBlock { at: one.from, copy, crc: one.crc }, error));
                    twice.push(Some(one));
                }
                None => drop(self.stuck.insert(one.from)),
            }
        }
        shared.read_page_mirrors(&damaged, &mut |number, page| match (twice[number].take(), page) {
            (Some(one), Ok(page)) => pages.push((one, page.clone())),
            _ => drop(self.stuck.insert(damaged[number].0.at)),
        });
        pages
    }

    /// Whether some block of a victim cannot be moved: then moving the rest would take space, and free none.
    fn cannot_empty(&self, victim: u32, shared: &StoreShared) -> bool {
        self.stuck.range(shared.medium.geometry().blocks_of(victim)).next().is_some()
    }

    /// Whether nodes that could not be read by the walk may refer to a part of a victim, which would stay.
    fn may_be_held_by_lost_nodes(&self, victim: u32, moving: &[MovingBlock], shared: &StoreShared) -> bool {
        let held = self.held_count(victim, shared) as u64;
        let mut map = shared.map_mut();
        let live = u64::from(map.nodes.segments.get(victim).live);
        let scan = map.nodes.scan_mut(ScanPurpose::Clean).as_ref();
        let has_lost = scan.is_some_and(|scan| scan.is_scan() && !scan.lost.is_empty());
        has_lost && (live > held || moving.iter().any(|one| one.is_shared))
    }

    /// Blocks of a victim to which references are known.
    fn held_count(&self, victim: u32, shared: &StoreShared) -> usize {
        let mut map = shared.map_mut();
        let scan = map.nodes.scan_mut(ScanPurpose::Clean).as_ref();
        scan.map_or(0, |scan| scan.holders.range(shared.medium.geometry().blocks_of(victim)).count())
    }

    /// Gives up the first victim until more of it has died.
    fn skip_victim(&mut self, victim: u32, shared: &StoreShared) -> CleaningOutcome {
        let blocks = shared.medium.geometry().blocks_of(victim);
        let mut map = shared.map_mut();
        let Some(scan) = map.nodes.scan_mut(ScanPurpose::Clean) else { return CleaningOutcome::Working };
        if !scan.is_scan() {
            self.stage = RoundStage::LookingUp(None);
        }
        scan.drop_segment(victim, blocks);
        self.victims.remove(0);
        map.nodes.segments.unpin(shared.medium.geometry().segment_start(victim));
        map.nodes.segments.mark_stuck(victim);
        CleaningOutcome::Working
    }

    /// Nothing is left to move in a victim: it is dead, but for blocks that cannot be moved.
    fn finish_victim(&mut self, victim: u32, shared: &StoreShared) -> CleaningOutcome {
        let blocks = shared.medium.geometry().blocks_of(victim);
        let stuck = self.stuck.range(blocks.clone()).count() as u32;
        let mut map = shared.map_mut();
        let Some(scan) = map.nodes.scan_mut(ScanPurpose::Clean) else { return CleaningOutcome::Working };
        let held = scan.holders.range(blocks.clone()).any(|(at, _)| !self.stuck.contains(at));
        let walked = scan.is_scan();
        if held || !(scan.is_complete() || is_planted(StoreBug::SettledEarly)) {
            return CleaningOutcome::Working;
        }
        let all_known = walked && scan.lost.is_empty();
        scan.drop_segment(victim, blocks);
        self.victims.remove(0);
        if !walked {
            self.stage = RoundStage::LookingUp(None);
        }
        if all_known {
            map.nodes.segments.lower_live(victim, stuck);
        }
        let live = map.nodes.segments.get(victim).live;
        if !walked && live > stuck {
            // Another entry refers to some of it by now.
            self.unknown.push(victim);
            return CleaningOutcome::Working;
        }
        map.nodes.segments.unpin(shared.medium.geometry().segment_start(victim));
        if live == 0 {
            let segments = map.nodes.segments.mark_emptied(victim);
            self.emptied += segments;
            count(&shared.medium.counting().segments_cleaned, segments);
        } else {
            map.nodes.segments.mark_stuck(victim);
        }
        CleaningOutcome::Working
    }
}

impl CopyTargets {
    /// Segments that these blocks of `victim` take.
    fn segments_for(&self, victim: u32, pages: &[(MovingBlock, Page)], shared: &StoreShared) -> u64 {
        if is_mirrored_victim(victim, shared) {
            return self.mirrored.segments_for(pages.len() as u64, shared.medium.geometry().segment_blocks);
        }
        u64::from(!self.plain.has_space_for(pages, shared))
    }

    /// Closes the segment to which blocks of `victim` go, so that they go elsewhere.
    fn abandon(&mut self, victim: u32, shared: &StoreShared) {
        if is_mirrored_victim(victim, shared) {
            self.mirrored.abandon(&mut shared.map_mut().nodes.segments);
        } else {
            self.plain.abandon(shared);
        }
    }

    /// Places for these blocks of `victim`; `None` where there is no segment.
    fn places(
        &mut self,
        victim: u32,
        pages: &[(MovingBlock, Page)],
        coming: &UpcomingBlocks,
        class: SpaceClass,
        shared: &StoreShared,
    ) -> Option<CopyPlacement> {
        if !is_mirrored_victim(victim, shared) {
            return self.plain.places(victim, pages, coming, class, shared);
        }
        let mut map = shared.map_mut();
        let floor = map.floor(class);
        let segments = &mut map.nodes.segments;
        let (places, filled) = self.mirrored.allocate_blocks(pages.len(), segments, floor);
        let targets: BTreeSet<u32> =
            places.iter().filter_map(|&at| shared.medium.geometry().segment_of(at)).collect();
        targets.into_iter().for_each(|target| segments.inherit_age(victim, target));
        (!places.is_empty()).then_some(CopyPlacement { places, filled, ..CopyPlacement::default() })
    }
}

fn is_mirrored_victim(victim: u32, shared: &StoreShared) -> bool {
    shared.map().nodes.segments.get(victim).usage == SegmentUse::Arena
}

impl CopySegment {
    /// Whether these blocks of a victim fit into the open segment.
    fn has_space_for(&self, pages: &[(MovingBlock, Page)], shared: &StoreShared) -> bool {
        let promised = pages.iter().filter(|(one, _)| self.promised.contains(&one.from)).count();
        let left = self.open.map_or(0, |(_, offset)| shared.medium.geometry().segment_blocks - offset);
        (pages.len() - promised) as u64 <= fit_with_summaries(left - self.promised.len() as u64)
    }

    /// Closes the open segment, so that blocks go elsewhere.
    fn abandon(&mut self, shared: &StoreShared) {
        self.promised.clear();
        if let Some((segment, _)) = self.open.take() {
            shared.map_mut().nodes.segments.close(segment);
        }
    }

    /// Blocks that the last summary names and that were not moved will not be, or will be named by another.
    /// Also when a round ends: the next one may find other bytes there.
    fn abandon_summary(&mut self) {
        let skipped = std::mem::take(&mut self.promised).len() as u64;
        self.open = self.open.map(|(segment, offset)| (segment, offset + skipped));
    }

    /// Places for these blocks of a victim; `None` where there is no segment.
    fn places(
        &mut self,
        victim: u32,
        pages: &[(MovingBlock, Page)],
        coming: &UpcomingBlocks,
        class: SpaceClass,
        shared: &StoreShared,
    ) -> Option<CopyPlacement> {
        let mut map = shared.map_mut();
        let geometry = shared.medium.geometry();
        let mut placed = CopyPlacement::default();
        for (MovingBlock { from, .. }, _) in pages {
            if !self.promised.contains(from) {
                self.abandon_summary();
                if !self.begin_summary(coming.range(from..), &mut map, class, shared, &mut placed) {
                    break;
                }
            }
            while let Some((segment, offset)) = self.open
                && let Some(next) = self.promised.pop_front()
            {
                self.open = Some((segment, offset + 1));
                if next == *from {
                    placed.places.push(geometry.segment_start(segment).plus(offset));
                    map.nodes.segments.inherit_age(victim, segment);
                    break;
                }
            }
        }
        (!placed.places.is_empty()).then_some(placed)
    }

    /// Begins a summary of the blocks that come next; `false` where there is no segment for it.
    fn begin_summary<'a>(
        &mut self,
        coming: impl Iterator<Item = (&'a Block, &'a Option<SummaryEntry>)>,
        map: &mut PageMap,
        class: SpaceClass,
        shared: &StoreShared,
        placed: &mut CopyPlacement,
    ) -> bool {
        let geometry = shared.medium.geometry();
        let fits = |offset: u64| blocks_per_summary(SUMMARY_BLOCKS_MAX, geometry.segment_blocks - offset);
        let (segment, offset) = match self.open {
            Some((segment, offset)) if fits(offset) > 0 => (segment, offset),
            full => {
                if map.nodes.segments.free_count() <= map.floor(class) {
                    return false;
                }
                placed.filled.extend(full.map(|(segment, _)| segment));
                self.segments += 1;
                (map.nodes.segments.take(SegmentUse::Moved).expect("some are free"), 0)
            }
        };
        let coming = coming.take(fits(offset) as usize).map(|(&at, &owner)| (at, owner));
        let (blocks, owners) = coming.unzip();
        let place = geometry.segment_start(segment).plus(offset);
        let list =
            SummaryBlock { incarnation: shared.incarnation(), number: self.segments, place, entries: owners };
        if !is_planted(StoreBug::OwnerListForgotten) {
            placed.summaries.push((place, list.encode(geometry.id)));
        }
        (self.open, self.promised) = (Some((segment, offset + 1)), blocks);
        true
    }
}

/// If the walk has visited everything, makes the live counts exact. Returns how many segments hold less than
/// was counted.
fn apply_walk_recount(shared: &StoreShared) -> Option<u64> {
    let mut map = shared.map_mut();
    let scan = map.nodes.scan_mut(ScanPurpose::Clean).as_ref()?;
    // Another thread may have made a node grey since the last visit.
    if !scan.is_complete() {
        return None;
    }
    if !scan.lost.is_empty() {
        map.nodes.segments.end_recount();
        return Some(0);
    }
    count(&shared.medium.counting().walks, 1);
    Some(map.nodes.segments.apply_recount())
}

/// The nodes of references, without those that were freed since.
fn existing_nodes<'a>(shared: &StoreShared, holders: impl Iterator<Item = &'a BlockHolder>) -> Vec<NodeId> {
    let map = shared.map();
    holders.map(|holder| holder.node).filter(|&id| map.nodes.table.get(id).is_some()).collect()
}

/// The blocks to which an entry still refers; the others need no move.
fn blocks_still_held<'a>(
    shared: &StoreShared,
    some: impl Iterator<Item = (&'a Block, &'a Vec<BlockHolder>)>,
) -> Vec<MovingBlock> {
    let mut map = shared.map_mut();
    let mut moving = Vec::new();
    for (&from, holders) in some {
        match holders.iter().find_map(|&holder| map.nodes.entry_of_holder(holder, from)) {
            Some(entry) => {
                let crc = entry.crc;
                let is_shared = entry.shared;
                moving.push(MovingBlock { from, crc, holders: holders.clone(), is_shared });
            }
            None => {
                if let Some(scan) = map.nodes.scan_mut(ScanPurpose::Clean) {
                    scan.drop_block(from);
                }
            }
        }
    }
    moving
}

/// Writes copies, and their summaries.
fn write_copies(
    shared: &StoreShared,
    lists: Vec<(Block, Box<Page>)>,
    places: &[Block],
    pages: Vec<Page>,
) -> Result<(), StoreError> {
    let mut boxed = lists;
    boxed.extend(places.iter().zip(pages).map(|(&at, page)| (at, Box::new(page))));
    // Adjacent blocks go out in one write.
    boxed.sort_by_key(|&(at, _)| at);
    let is_mirrored_victim =
        places.first().is_some_and(|&at| shared.map().nodes.segments.mirror_of(at).is_some());
    if is_mirrored_victim {
        return write_mirrored(shared, &boxed);
    }
    #[cfg(feature = "planted-bugs")]
    let Some(boxed) = shared.medium.planted().copy_later(boxed) else { return Ok(()) };
    shared.medium.write_blocks(&boxed)
}

/// Points all references at the copies, which are durable. Changes none, and returns `false`, if others have
/// used the space for the nodes meanwhile.
fn repoint_holders(
    shared: &StoreShared,
    writer: &WriterLock,
    moving: &[MovingBlock],
    places: &[Block],
    class: SpaceClass,
) -> bool {
    // No checkpoint may be under way: it would take what is changed now for clean.
    let _writer = writer.lock();
    let mut map = shared.map_mut();
    if map.moves_that_fit(moving.iter().map(|one| &one.holders[..]), 0, class) < places.len() {
        return false;
    }
    let scan = map.nodes.scan_mut(ScanPurpose::Clean).as_ref();
    let all_known = scan.is_some_and(|scan| scan.is_scan() && scan.is_complete() && scan.lost.is_empty());
    for (one, &to) in moving.iter().zip(places) {
        let moved =
            MovedBlock { from: one.from, to, crc: one.crc, sole: all_known && one.holders.len() == 1 };
        let mut repointed = 0;
        let missed = usize::from(is_planted(StoreBug::HolderMissed) && one.holders.len() > 1);
        for &holder in &one.holders[missed..] {
            repointed += u64::from(map.nodes.repoint(&moved, holder));
        }
        if repointed > 0 {
            map.nodes.segments.inc_live(to);
        }
        if let Some(scan) = map.nodes.scan_mut(ScanPurpose::Clean) {
            scan.drop_block(one.from);
        }
        count(&shared.medium.counting().entries_repointed, repointed);
    }
    true
}

#[cfg(test)]
pub(crate) mod tests;
