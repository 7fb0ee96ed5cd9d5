//! Decisions about space: which segments to clean, when, and how many free segments each class must leave
//! alone. Pure.
//!
//! Victims are chosen by cost and benefit (*LFS*, SOSP'91, section 3.6): the space that cleaning a segment
//! frees, times how long it will stay free, over the cost of reading the segment and writing its live blocks.

use crate::bug::{StoreBug, is_planted};
use crate::format::SUMMARY_BLOCKS_MAX;

/// The classes of users of free segments. Each class leaves alone the segments that the classes after it
/// need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SpaceClass {
    /// A vector that writes, and takes segments for the log.
    Writer,
    /// A vector that writes only to the log's open segment.
    OpenSegment,
    /// The cleaner.
    Cleaner,
    /// A vector that only frees space; and the nodes that the cleaner makes dirty.
    Frees,
    /// The cleaner, in a round in which each step empties a segment.
    EmptiesAtOnce,
    /// The deletion of a volume.
    DeletesVolume,
}

/// The blocks that node segments hold, and the blocks that the next checkpoint writes to them. All are
/// [mirrored](METADATA_COPIES): here each block and each pair of segments counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeSpaceUse {
    /// Blocks of a segment.
    pub segment_blocks: u64,
    /// Nodes that the next checkpoint writes.
    pub dirty: u64,
    /// Most nodes that a checkpoint may have to write: [`dirty_max`].
    pub dirty_max: u64,
    /// All nodes, also those that no checkpoint has written yet.
    pub nodes: u64,
    /// All pages of the node table, and the tables' stream: a checkpoint may write all of them.
    pub tables: u64,
    /// Live blocks in node segments.
    pub live: u64,
    /// All blocks of node segments.
    pub held: u64,
}

impl NodeSpaceUse {
    /// Blocks that node segments may still take before the emptiest are compacted. Segments that are about to
    /// be free count as held. The larger of two numbers: now, and when the next checkpoint has written what
    /// is dirty. New nodes make the second larger: what is live then may lie in segments that are two thirds
    /// live.
    fn until_compacted(&self) -> u64 {
        let then = NodeSpaceUse {
            live: self.live.max(self.nodes + self.tables),
            held: self.held + self.dirty,
            ..*self
        };
        let left = |one: &NodeSpaceUse| one.held_max(true).saturating_sub(one.held);
        left(self).max(left(&then))
    }

    /// Blocks that node segments may have before the emptiest are compacted.
    ///
    /// The open segment does not matter: where the others hold more than this, one of them has at most
    /// [`compactable_up_to`](NodeSpaceUse::compactable_up_to) live blocks.
    pub(crate) fn held_max(&self, short: bool) -> u64 {
        if short {
            self.live + self.live / 2 + self.segment_blocks
        } else {
            2 * self.live + 4 * self.segment_blocks
        }
    }

    /// Whether a checkpoint should compact one more node segment. `dying` blocks are in segments in which
    /// nothing stays, and are free soon: while they are enough, compacting another would be wasted writing.
    pub(crate) fn is_sparse(&self, short: bool, dying: u64) -> bool {
        self.held > self.held_max(short) + dying
    }

    /// Most live blocks of a node segment that may be compacted.
    pub(crate) fn compactable_up_to(&self, short: bool) -> u64 {
        if short { self.segment_blocks * 3 / 4 } else { self.segment_blocks / 2 }
    }

    /// The node segments that a checkpoint compacts. `staying` has the closed segments, each with the blocks
    /// that would stay there.
    ///
    /// It takes the emptiest, as many as needed; and where space is short, each segment of which at most a
    /// quarter stays, since nothing frees space at a lower price. The nodes that it writes again are no more
    /// than those of two segments that are as full as may be, and fit into [`NodeCompaction::blocks`].
    ///
    /// Without space to [spare](NodeCompaction::spare) it takes only what [`free_segments_floor`] counts on:
    /// at most two, none because it is cheap, and segments that are about to be free count as held.
    pub(crate) fn segments_to_compact(&self, compaction: NodeCompaction, staying: &[(u32, u64)]) -> Vec<u32> {
        let NodeCompaction { short, spare, .. } = compaction;
        let (mut emptiest, dead): (Vec<_>, Vec<_>) = staying.iter().partition(|(_, blocks)| *blocks > 0);
        emptiest.sort_by_key(|&(number, blocks)| (blocks, number));
        let most = self.compactable_up_to(short);
        let mut written = 0;
        let mut dying = if spare { dead.len() as u64 * self.segment_blocks } else { 0 };
        let mut chosen = Vec::new();
        for (number, blocks) in emptiest {
            written += blocks;
            let is_cheap = short && spare && blocks <= self.segment_blocks / 4;
            let is_wanted = is_cheap || blocks <= most && self.is_sparse(short, dying);
            let is_enough = written > (2 * most).min(compaction.blocks) || !spare && chosen.len() == 2;
            if !is_wanted || is_enough {
                break;
            }
            dying += self.segment_blocks;
            chosen.push(number);
        }
        chosen
    }

    /// How a checkpoint compacts while `free` segments are free, if it should.
    ///
    /// Compaction leaves the segments for recoveries that are cut off, and the segments for the log. It may
    /// take all other segments, even those for deletions of volumes: nothing else frees the space that
    /// punches and recoveries have used up.
    pub(crate) fn compaction(&self, free: u64, short: bool) -> Option<NodeCompaction> {
        // Compaction may write every page of the node table, too.
        let spare = free
            >= free_segments_floor(SpaceClass::Writer, self)
                + METADATA_COPIES * (1 + self.tables.div_ceil(self.segment_blocks));
        let kept = LOG_SEGMENTS + METADATA_COPIES * RECOVERIES * self.tables.div_ceil(self.segment_blocks);
        let kept = if is_planted(StoreBug::DeletionsWithoutClass) {
            free_segments_floor(SpaceClass::Frees, self)
        } else {
            kept
        };
        let left = free.saturating_sub(kept) / METADATA_COPIES * self.segment_blocks;
        let blocks = left.saturating_sub(self.dirty + self.tables);
        let is_wanted = short && spare || self.is_sparse(short, 0);
        (is_wanted && blocks > 0).then_some(NodeCompaction { short, spare, blocks })
    }
}

/// How a checkpoint compacts node segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NodeCompaction {
    /// Free space is short.
    pub short: bool,
    /// There is space to write more than [`free_segments_floor`] counts on.
    pub spare: bool,
    /// Most blocks that it may write.
    pub blocks: u64,
}

/// Copies of each block of metadata: a segment of nodes or arenas has a mirror.
pub(crate) const METADATA_COPIES: u64 = 2;

/// Segments that the log takes when it starts anew.
const LOG_SEGMENTS: u64 = 2;

/// Recoveries in a row that are cut off after they wrote a root. Each leaves as many pairs as the tables
/// fill. The fourth finds those of the first dead in both roots.
const RECOVERIES: u64 = 3;

/// Pairs of segments that compacting two pairs takes before it frees two.
const COMPACTION_PAIRS: u64 = 2;

/// Segments for vectors that only free space. A segment of such vectors is dead when it is full, and free two
/// checkpoints later.
const FREEING_SEGMENTS: u64 = 2;

/// The segment to which the cleaner moves blocks while each of its steps [empties a
/// segment](may_empty_at_once). So no crash, however early, takes a segment without freeing one.
const EMPTYING_SEGMENTS: u64 = 1;

/// Segments for deletions of volumes: one that the log moves on to, and a pair for each segment that the
/// tables fill. The next checkpoint takes these pairs even where the one before has used up its own, so that
/// [compaction](NodeSpaceUse::compaction) may begin.
fn deletion_segments(table_pairs: u64) -> u64 {
    if is_planted(StoreBug::DeletionsWithoutClass) { 0 } else { 1 + METADATA_COPIES * table_pairs }
}

/// Segments by which a checkpoint may go below the floor to which the changes before it kept. Once node segments
/// may grow no more, the tables' next place is a pair for each segment that they fill. Cuts leave these, so that
/// the emptying segment and those for deletions are still free after the cuts' last checkpoint.
fn undercut_segments(table_pairs: u64) -> u64 {
    if is_planted(StoreBug::DeletionsWithoutClass) { 0 } else { METADATA_COPIES * table_pairs }
}

/// Segments for the cleaner, above the emptying one. The cleaner must be able to empty some segments when the
/// other classes have used up theirs. Each crash may leave a hardly filled segment and pair of the cleaner's,
/// as it may leave those of the log and the nodes.
const CLEANER_SEGMENTS: u64 = 6 + METADATA_COPIES;

/// Those of [`CLEANER_SEGMENTS`] that even a vector in the log's open segment leaves alone: each mount writes
/// the first page of a new log.
const KEPT_FROM_OPEN_SEGMENT: u64 = 4 + METADATA_COPIES;

/// Segments that are neither free nor may be cleaned: the log's open one and the one after it, the cleaner's
/// and its pair, and the pair of arenas; and those that a vector takes, a segment of log and a pair.
const OPEN_SEGMENTS: u64 = 2 + 1 + 2 * METADATA_COPIES + 1 + METADATA_COPIES;

/// Most nodes that may be dirty at once in a store of `blocks` blocks. A checkpoint writes them, so there
/// must be space for them at any time.
///
/// One for 512 blocks of the store; all its leaves are one for 128. At least two segments, and 64; at most
/// 64 MiB, as dirty nodes stay in memory.
pub(crate) fn dirty_max(blocks: u64, segment_blocks: u64) -> u64 {
    (blocks / 512).max(2 * segment_blocks).clamp(64, 16_384)
}

/// Blocks that writers can never have. Writers may reserve blocks that are neither live nor in this reserve,
/// so there are always free segments for what was reserved, or segments that can be cleaned. Why: decision
/// 0018.
///
/// The reserve grows with the map, by half a block for each node and half a block for its mirror. It leaves
/// 58 % of a store of 64 MiB, 86 % of 256 MiB, 94 % of 4 GiB and 96 % of 1 TiB.
pub(crate) fn reserve_blocks(nodes: &NodeSpaceUse, segments: u64) -> u64 {
    let segment = nodes.segment_blocks;
    let tables = nodes.tables;
    // As [`free_segments_floor`] counts, each rounded up by less than a segment.
    let checkpoints = nodes.dirty_max + tables + segment + RECOVERIES * (tables + segment);
    let compaction = COMPACTION_PAIRS * segment + tables;
    let sparse = (nodes.nodes + tables) / 2 + 2 * segment;
    let others = LOG_SEGMENTS
        + deletion_segments(0)
        + EMPTYING_SEGMENTS
        + FREEING_SEGMENTS
        + CLEANER_SEGMENTS
        + OPEN_SEGMENTS;
    let deletions = tables + segment;
    let undercut = tables + segment;
    METADATA_COPIES * (checkpoints + compaction + sparse + deletions + undercut)
        + others * segment
        + segments * dead_blocks_max(segment)
}

/// Blocks that data leaves to names and attributes, in a store of `blocks` blocks. A rename states 53 pages
/// in small directories, each of which may be alone in a leaf of the map: 742 blocks. It releases most of
/// these at once, and the blocks that it writes replace others.
pub(crate) fn names_reserve_blocks(blocks: u64) -> u64 {
    (blocks / 64).min(2048)
}

/// Free segments that `class` must leave alone. Why it is enough: decision 0018.
pub(crate) fn free_segments_floor(class: SpaceClass, nodes: &NodeSpaceUse) -> u64 {
    let pairs = |blocks: u64| blocks.div_ceil(nodes.segment_blocks);
    let tables = pairs(nodes.tables);
    // Writers leave space for as many dirty nodes as there may ever be.
    let dirty = match class {
        SpaceClass::Writer | SpaceClass::OpenSegment => nodes.dirty.max(nodes.dirty_max),
        SpaceClass::Cleaner | SpaceClass::Frees | SpaceClass::EmptiesAtOnce | SpaceClass::DeletesVolume => {
            nodes.dirty
        }
    };
    let checkpoints = pairs(dirty + nodes.tables) + RECOVERIES * tables;
    let sparse = pairs(nodes.until_compacted());
    let least = LOG_SEGMENTS + METADATA_COPIES * (checkpoints + COMPACTION_PAIRS.max(tables) + sparse);
    let empties = least + deletion_segments(tables);
    let frees = empties + EMPTYING_SEGMENTS + undercut_segments(tables);
    match class {
        SpaceClass::DeletesVolume => least,
        SpaceClass::EmptiesAtOnce => empties,
        SpaceClass::Frees => frees,
        SpaceClass::Cleaner => frees + FREEING_SEGMENTS,
        SpaceClass::OpenSegment => frees + FREEING_SEGMENTS + KEPT_FROM_OPEN_SEGMENT,
        SpaceClass::Writer => frees + FREEING_SEGMENTS + CLEANER_SEGMENTS,
    }
}

/// A segment that may be cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CleaningCandidate {
    /// Its number.
    pub segment: u32,
    /// Its live blocks or an upper bound of them; not 0.
    pub live: u64,
    /// How often each block is written: those of arenas twice.
    pub copies: u64,
    /// Segments of log that were written since its newest data.
    pub age: u64,
}

impl CleaningCandidate {
    /// Most blocks that moving it takes.
    fn moved_blocks(&self) -> u64 {
        // Mirrored segments have no summaries.
        if self.copies > 1 { self.copies * self.live } else { with_summaries(self.live) }
    }
}

/// The limits of one round of cleaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CleaningBudget {
    /// Blocks of a segment.
    pub segment_blocks: u64,
    /// Most segments.
    pub segments: usize,
    /// Most blocks to move; the first segment may exceed it.
    pub blocks: u64,
}

/// Blocks that cleaning a segment must free: one in 64.
fn gain_min(segment_blocks: u64) -> u64 {
    (segment_blocks / 64).max(1)
}

/// Whether cleaning a segment with `live` live blocks frees enough.
pub(crate) fn is_worth_cleaning(live: u64, segment_blocks: u64) -> bool {
    with_summaries(live) + gain_min(segment_blocks) <= segment_blocks
}

/// Most dead blocks of a segment that is not worth cleaning.
pub(crate) fn dead_blocks_max(segment_blocks: u64) -> u64 {
    gain_min(segment_blocks) + segment_blocks.div_ceil(SUMMARY_BLOCKS_MAX)
}

/// Most blocks that moving `moved` blocks of one segment takes, with their summaries: one for each hundred,
/// and one block more: where the target segment ends, another summary is needed, or its last block stays
/// empty. A segment that is [worth cleaning](is_worth_cleaning) meets only one such end.
pub(crate) fn with_summaries(moved: u64) -> u64 {
    moved + moved.div_ceil(SUMMARY_BLOCKS_MAX) + 1
}

/// Moved blocks that fit, with their summaries, into the last `blocks` blocks of a segment.
pub(crate) fn fit_with_summaries(blocks: u64) -> u64 {
    blocks - blocks.div_ceil(SUMMARY_BLOCKS_MAX + 1)
}

/// Blocks that one summary names, where `blocks` blocks of a victim are to be moved and `left` blocks of the
/// target segment are left; 0 where nothing fits behind a summary.
pub(crate) fn blocks_per_summary(blocks: u64, left: u64) -> u64 {
    blocks.min(SUMMARY_BLOCKS_MAX).min(left.saturating_sub(1))
}

/// The most victims of one round: enough that many share a walk of the map, if one is needed; few enough that
/// what the walk found is still true when the round ends.
pub(crate) fn segments_per_round(segments: u64) -> usize {
    (segments / 64).clamp(4, 256) as usize
}

/// Whether one step of the cleaner empties the segment.
pub(crate) fn may_empty_at_once(candidate: &CleaningCandidate, segment_blocks: u64) -> bool {
    candidate.copies == 1 && candidate.live <= blocks_per_step(segment_blocks) as u64
}

/// Blocks that a step of the cleaner moves: an eighth of a segment, so that a writer that waits for a step
/// waits for no more; at most a MiB, which is a long transfer.
pub(crate) fn blocks_per_step(segment_blocks: u64) -> usize {
    (segment_blocks / 8).clamp(8, 256) as usize
}

/// Free segments that cleaning keeps in hand above the floor of writers. Below that mark it starts. They last
/// for a round, and for what is written until two checkpoints have freed the round's victims.
pub(crate) fn low_mark(segments: u64) -> u64 {
    segments_per_round(segments) as u64 + 4
}

/// Most blocks of free segments that a sparse store file has allocated ahead of need: 256 MiB, as much as is
/// written between two checkpoints, during which the thread that allocates does something else.
const AHEAD_BLOCKS: u64 = 65_536;

/// The fewest segments that are allocated ahead, unless [`AHEAD_BLOCKS`] are fewer: a sixteenth of a new
/// store is nothing.
const AHEAD_SEGMENTS: u64 = 4;

/// Segments that a sparse store file of `held` segments has allocated ahead of need.
///
/// When fewer than these are free above where cleaning starts, more are allocated, until twice as many are. A
/// trim leaves four times as many, so that the same space is not freed and asked for again and again. The
/// number is a sixteenth of the file, within limits: so a trim leaves about a quarter.
pub(crate) fn segments_ahead(held: u64, segment_blocks: u64) -> u64 {
    let most = (AHEAD_BLOCKS / segment_blocks).max(1);
    (held / 16).clamp(AHEAD_SEGMENTS.min(most), most)
}

/// Chooses the victims of one round, ordered with the oldest data first, so that data of one age ends up
/// together.
pub(crate) fn choose_victims(candidates: &[CleaningCandidate], budget: &CleaningBudget) -> Vec<u32> {
    let mut best: Vec<&CleaningCandidate> =
        candidates.iter().filter(|one| is_worth_cleaning(one.live, budget.segment_blocks)).collect();
    best.sort_by(|one, other| {
        let one_score = cost_benefit(one, budget);
        let other_score = cost_benefit(other, budget);
        other_score.total_cmp(&one_score).then(one.segment.cmp(&other.segment))
    });
    let mut blocks = 0;
    let mut chosen: Vec<&CleaningCandidate> = Vec::new();
    for one in best {
        blocks += one.moved_blocks();
        if chosen.len() == budget.segments || (blocks > budget.blocks && !chosen.is_empty()) {
            break;
        }
        chosen.push(one);
    }
    chosen.sort_by_key(|one| (std::cmp::Reverse(one.age), one.segment));
    chosen.into_iter().map(|one| one.segment).collect()
}

/// Benefit over cost: `(1 - u) * (age + 1) / (1 + u)`, where `u` is the live share.
fn cost_benefit(candidate: &CleaningCandidate, budget: &CleaningBudget) -> f64 {
    let used = candidate.live as f64 / budget.segment_blocks as f64;
    (1.0 - used) * (candidate.age + 1) as f64 / (1.0 + used)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{LEAF_PAGES, TABLE_NODES};
    use device::SeededRng;

    const SPARE: NodeCompaction = NodeCompaction { short: true, spare: true, blocks: 1000 };
    const BUDGET: CleaningBudget = CleaningBudget { segment_blocks: 64, segments: 4, blocks: 128 };

    fn candidate(segment: u32, live: u64, age: u64) -> CleaningCandidate {
        CleaningCandidate { segment, live, copies: 1, age }
    }

    #[test]
    fn each_class_leaves_the_next_one_s_segments_alone_and_the_least_grows_with_what_checkpoints_write() {
        let nodes = NodeSpaceUse {
            segment_blocks: 16,
            dirty: 20,
            dirty_max: 0,
            nodes: 0,
            tables: 3,
            live: 60,
            held: 160,
        };
        let floors = [
            SpaceClass::DeletesVolume,
            SpaceClass::Frees,
            SpaceClass::Cleaner,
            SpaceClass::OpenSegment,
            SpaceClass::Writer,
        ];
        // 2 for the log; in pairs 2 for 23 blocks, 3 for recoveries cut off, 2 for compaction.
        assert_eq!(floors.map(|class| free_segments_floor(class, &nodes)), [16, 22, 24, 30, 32]);
        let more = NodeSpaceUse { dirty: 36, ..nodes };
        assert_eq!(free_segments_floor(SpaceClass::DeletesVolume, &more), 18);
        // Six pairs hold 60 live nodes; before they are compacted, they may be seven.
        assert_eq!(free_segments_floor(SpaceClass::DeletesVolume, &NodeSpaceUse { held: 96, ..nodes }), 18);
        // As before. The checkpoint leaves 123 live blocks in 180, and 200 are held before they are
        // compacted.
        assert_eq!(free_segments_floor(SpaceClass::DeletesVolume, &NodeSpaceUse { nodes: 120, ..nodes }), 20);
    }

    /// Node segments of `held` blocks; 96 are allowed where space is short.
    fn holding(held: u64) -> NodeSpaceUse {
        NodeSpaceUse { segment_blocks: 32, dirty: 0, dirty_max: 0, nodes: 0, tables: 1, live: 43, held }
    }

    #[test]
    fn a_segment_that_was_compacted_counts_as_gone() {
        assert_eq!(
            [64, 96, 128, 160].map(|held| holding(held).is_sparse(true, 0)),
            [false, false, true, true]
        );
        assert_eq!([96, 128, 160].map(|held| holding(held).is_sparse(true, 32)), [false, false, true]);
    }

    #[test]
    fn the_emptiest_are_compacted_as_many_as_it_takes_at_the_price_of_two_that_are_as_full_as_can_be() {
        // 24 blocks of a segment may be written again.
        let compacted = |held, staying: &[(u32, u64)]| holding(held).segments_to_compact(SPARE, staying);
        assert_eq!(compacted(128, &[(1, 10), (2, 9), (3, 26)]), [2], "one is enough");
        assert_eq!(compacted(160, &[(1, 10), (2, 9), (3, 26)]), [2, 1]);
        assert_eq!(compacted(160, &[(1, 10), (2, 9), (3, 0), (4, 26)]), [2], "one dies by itself");
        assert_eq!(compacted(128, &[(1, 0), (2, 9)]), []);
        assert_eq!(compacted(224, &[(1, 13), (2, 13), (3, 13), (4, 9), (5, 24)]), [4, 1, 2, 3]);
        assert_eq!(compacted(224, &[(1, 24), (2, 24), (3, 24)]), [1, 2]);
        assert_eq!(compacted(224, &[(1, 1), (2, 24), (3, 24)]), [1, 2], "three would be 49 blocks");
        assert_eq!(compacted(224, &[(1, 25), (2, 26)]), []);
    }

    #[test]
    fn where_space_is_short_all_segments_are_compacted_of_which_a_quarter_stays() {
        let nodes = NodeSpaceUse {
            segment_blocks: 32,
            dirty: 0,
            dirty_max: 0,
            nodes: 0,
            tables: 1,
            live: 43,
            held: 64,
        };
        let staying = [(1, 9), (2, 8), (3, 1), (4, 0), (5, 8)];
        assert_eq!(nodes.segments_to_compact(SPARE, &staying), [3, 2, 5]);
        assert_eq!(nodes.segments_to_compact(NodeCompaction { short: false, ..SPARE }, &staying), []);
        let many: Vec<(u32, u64)> = (0..20).map(|number| (number, 8)).collect();
        assert_eq!(nodes.segments_to_compact(SPARE, &many).len(), 6, "48 blocks are the price of two");
    }

    #[test]
    fn without_space_to_spare_two_are_compacted_at_most_none_because_it_is_cheap_and_what_is_dead_counts_as_held()
     {
        let nodes = |held| NodeSpaceUse {
            segment_blocks: 32,
            dirty: 0,
            dirty_max: 0,
            nodes: 0,
            tables: 33,
            live: 43,
            held,
        };
        let scarce = NodeCompaction { spare: false, ..SPARE };
        assert_eq!(nodes(96).segments_to_compact(scarce, &[(1, 1)]), []);
        assert_eq!(nodes(256).segments_to_compact(scarce, &[(1, 1), (2, 1), (3, 1)]), [1, 2]);
        assert_eq!(nodes(128).segments_to_compact(scarce, &[(1, 9), (2, 0)]), [1]);
        assert_eq!(nodes(128).segments_to_compact(SPARE, &[(1, 9), (2, 0)]), []);
        // The table's pages take two pairs.
        let least = free_segments_floor(SpaceClass::DeletesVolume, &nodes(96));
        let writers = free_segments_floor(SpaceClass::Writer, &nodes(96));
        assert!(nodes(96).compaction(writers + 6, true).is_some_and(|one| one.spare));
        assert_eq!(nodes(96).compaction(writers + 5, true), None, "they are dense enough");
        assert_eq!(nodes(96).compaction(writers + 6, false), None, "nor is space short");
        // 22 segments, of which the log has two and recoveries twelve; the checkpoint itself writes 33
        // blocks.
        let blocks = |free: u64| nodes(128).compaction(free, true).map(|one| (one.spare, one.blocks));
        assert_eq!([least, least - 4, least - 5].map(blocks), [Some((false, 95)), Some((false, 31)), None]);
        let few =
            |blocks| nodes(256).segments_to_compact(NodeCompaction { blocks, ..scarce }, &[(1, 5), (2, 5)]);
        assert_eq!([10, 9, 4].map(few), [vec![1, 2], vec![1], vec![]]);
    }

    #[test]
    fn where_nodes_are_to_be_compacted_some_segment_is_empty_enough() {
        for (live, segments) in [(0, 3), (60, 8), (200, 21), (1000, 96)] {
            let nodes = NodeSpaceUse {
                segment_blocks: 16,
                dirty: 0,
                dirty_max: 0,
                nodes: 0,
                tables: 1,
                live,
                held: 16 * segments,
            };
            for short in [false, true] {
                // All but the open one, as even as can be.
                let emptiest = live / (segments - 1);
                let compacts = nodes.is_sparse(short, 0);
                assert!(!compacts || emptiest <= nodes.compactable_up_to(short), "{nodes:?}");
            }
        }
    }

    #[test]
    fn the_emptier_of_two_of_one_age_is_chosen_and_the_older_of_two_as_full() {
        let one = |candidates: &[CleaningCandidate]| {
            choose_victims(candidates, &CleaningBudget { segments: 1, ..BUDGET })
        };
        assert_eq!(one(&[candidate(1, 40, 9), candidate(2, 10, 9)]), [2]);
        assert_eq!(one(&[candidate(1, 40, 9), candidate(2, 40, 90)]), [2]);
        // An old, fuller segment is worth more than a young one that will empty by itself.
        assert_eq!(one(&[candidate(1, 48, 100), candidate(2, 32, 10)]), [1]);
    }

    #[test]
    fn full_segments_are_never_chosen() {
        assert_eq!(choose_victims(&[candidate(1, 64, 1000), candidate(2, 62, 1000)], &BUDGET), []);
        assert_eq!(choose_victims(&[candidate(1, 62, 1)], &BUDGET), []);
        assert_eq!(choose_victims(&[candidate(1, 61, 1)], &BUDGET), [1]);
        assert!(is_worth_cleaning(13, 16) && !is_worth_cleaning(14, 16));
    }

    #[test]
    fn a_round_is_bounded_in_segments_and_in_blocks_but_never_empty() {
        let many: Vec<_> = (0..100).map(|segment| candidate(segment, 8, 5)).collect();
        assert_eq!(choose_victims(&many, &BUDGET).len(), 4);
        let many: Vec<_> = (0..100).map(|segment| candidate(segment, 60, 5)).collect();
        assert_eq!(choose_victims(&many, &BUDGET).len(), 2);
        assert_eq!(choose_victims(&many, &CleaningBudget { blocks: 0, ..BUDGET }).len(), 1);
    }

    #[test]
    fn the_oldest_goes_first() {
        assert_eq!(
            choose_victims(&[candidate(1, 4, 5), candidate(2, 4, 50), candidate(3, 4, 20)], &BUDGET),
            [2, 3, 1]
        );
    }

    #[test]
    fn what_nodes_may_hold_and_how_much_a_round_does_is_what_it_says() {
        let nodes = NodeSpaceUse {
            segment_blocks: 16,
            dirty: 0,
            dirty_max: 0,
            nodes: 0,
            tables: 1,
            live: 60,
            held: 0,
        };
        assert_eq!((nodes.held_max(true), nodes.held_max(false)), (60 + 30 + 16, 120 + 64));
        assert_eq!((nodes.compactable_up_to(true), nodes.compactable_up_to(false)), (12, 8));
        assert_eq!([0, 320, 640, 16_448, 1 << 20].map(segments_per_round), [4, 5, 10, 256, 256]);
        assert_eq!([0, 640].map(low_mark), [8, 14]);
        // A segment of 64 blocks must free one block beside two for summaries, one of 256 four beside four.
        assert_eq!([61, 62].map(|live| is_worth_cleaning(live, 64)), [true, false]);
        assert_eq!([248, 249].map(|live| is_worth_cleaning(live, 256)), [true, false]);
        for segment in [16, 17, 64, 100, 128, 256, 512, 2048, 32_768] {
            assert!(is_worth_cleaning(segment - dead_blocks_max(segment) - 1, segment), "{segment}");
        }
    }

    /// The share of a store of `mib` MiB, with default segments, that is left for data when it is full of
    /// pages.
    fn usable(mib: u64) -> f64 {
        let blocks = mib * 256;
        let segment_blocks = (blocks / 2048).clamp(128, 32_768);
        let segments = blocks / segment_blocks;
        let leaves = blocks.div_ceil(LEAF_PAGES);
        let nodes = leaves + leaves.div_ceil(256) + 3;
        let tables = nodes.div_ceil(TABLE_NODES) + (segments * 16).div_ceil(4096) + 1;
        let dirty_max = dirty_max(blocks, segment_blocks);
        let nodes = NodeSpaceUse { segment_blocks, dirty: 0, dirty_max, nodes, tables, live: 0, held: 0 };
        (blocks - reserve_blocks(&nodes, segments)) as f64 / blocks as f64
    }

    #[test]
    fn a_store_of_4_gib_takes_94_per_cent_and_one_of_256_mib_86() {
        let all = [64, 256, 1024, 4096, 1 << 16, 1 << 20].map(|mib| (usable(mib) * 1000.0) as u64);
        assert_eq!(all, [583, 865, 934, 938, 942, 960]);
    }

    #[test]
    fn writers_find_a_segment_or_one_that_can_be_cleaned_wherever_what_is_not_reserved_lies() {
        let mut random = SeededRng::new(1);
        for _ in 0..20_000 {
            let segment_blocks = [16, 64, 128, 512][random.below(4) as usize];
            let segments = 100 + random.below(2000);
            let nodes = random.below(segments * segment_blocks / 64);
            let tables = 2 + nodes / TABLE_NODES + segments / 256;
            let live = nodes + tables;
            let held = (live + random.below(live / 2 + segment_blocks)).next_multiple_of(segment_blocks);
            let dirty_max = dirty_max(segments * segment_blocks, segment_blocks);
            let node_segments = NodeSpaceUse {
                segment_blocks,
                dirty: random.below(dirty_max),
                dirty_max,
                nodes,
                tables,
                live,
                held,
            };
            let reserve = reserve_blocks(&node_segments, segments);
            // The most blocks that are not available: the free segments that a writer must leave, all dead
            // blocks in node segments and in open segments, and elsewhere the dead blocks that no cleaning
            // frees. If all of them fit into the reserve, every reserved block can be freed.
            let floor = free_segments_floor(SpaceClass::Writer, &node_segments) * segment_blocks;
            let among_nodes = METADATA_COPIES * (held - live);
            let elsewhere = segments * dead_blocks_max(segment_blocks) + OPEN_SEGMENTS * segment_blocks;
            assert!(floor + among_nodes + elsewhere <= reserve, "{node_segments:?}: {reserve}");
        }
    }

    #[test]
    fn three_recoveries_and_compaction_take_a_segment_for_each_of_the_tables_segments() {
        let nodes = NodeSpaceUse {
            segment_blocks: 16,
            dirty: 0,
            dirty_max: 0,
            nodes: 0,
            tables: 40,
            live: 40,
            held: 80,
        };
        // 2 for the log; in pairs 3 for 40 blocks, 3 times as many for recoveries cut off, 3 for compaction.
        assert_eq!(free_segments_floor(SpaceClass::DeletesVolume, &nodes), 2 + 2 * (3 + 9 + 3));
        // One for the log, and a pair for each of the tables' segments.
        assert_eq!(
            free_segments_floor(SpaceClass::EmptiesAtOnce, &nodes)
                - free_segments_floor(SpaceClass::DeletesVolume, &nodes),
            1 + 2 * 3
        );
        // The emptying segment, and as many as the next checkpoint may go below.
        assert_eq!(
            free_segments_floor(SpaceClass::Frees, &nodes)
                - free_segments_floor(SpaceClass::EmptiesAtOnce, &nodes),
            1 + 2 * 3
        );
    }

    #[test]
    fn a_sixteenth_of_what_a_sparse_file_holds_is_asked_for_ahead_of_need_and_256_mib_at_most() {
        assert_eq!(
            [0, 79, 80, 4096, 4112, 1 << 20].map(|held| segments_ahead(held, 256)),
            [4, 4, 5, 256, 256, 256]
        );
        assert_eq!(segments_ahead(8192, 32_768), 2);
    }

    #[test]
    fn the_score_is_benefit_over_cost() {
        assert_eq!(cost_benefit(&candidate(1, 32, 11), &BUDGET), 0.5 * 12.0 / 1.5);
        assert_eq!(cost_benefit(&candidate(1, 16, 0), &BUDGET), 0.75 / 1.25);
    }

    #[test]
    fn a_round_moves_as_many_blocks_as_there_is_space_for_and_not_one_more() {
        let many = [candidate(1, 40, 5), candidate(2, 40, 5), candidate(3, 40, 5)];
        // With two blocks for summaries each.
        assert_eq!(choose_victims(&many, &CleaningBudget { blocks: 84, ..BUDGET }), [1, 2]);
        assert_eq!(choose_victims(&many, &CleaningBudget { blocks: 83, ..BUDGET }), [1]);
    }

    /// The blocks that moving a victim takes, when the cleaner places its blocks from `offset` in a segment
    /// on.
    fn taken(live: u64, offset: u64, segment_blocks: u64) -> u64 {
        let mut rest = live;
        let mut at = offset;
        while rest > 0 {
            let left = segment_blocks - at % segment_blocks;
            let count = blocks_per_summary(rest, left);
            at += if count == 0 { left } else { 1 + count };
            rest -= count;
        }
        at - offset
    }

    #[test]
    fn moving_what_is_worth_it_takes_less_than_it_frees_wherever_it_goes() {
        for segment_blocks in [16, 17, 32, 64, 100, 101, 102, 103, 256, 512, 2048] {
            for live in (1..=segment_blocks).filter(|&live| is_worth_cleaning(live, segment_blocks)) {
                let most = (0..segment_blocks).map(|offset| taken(live, offset, segment_blocks)).max();
                let most = most.expect("some offset");
                assert!(most <= with_summaries(live), "{live} of {segment_blocks}: {most}");
                assert!(most + gain_min(segment_blocks) <= segment_blocks, "{live} of {segment_blocks}");
            }
        }
    }

    #[test]
    fn what_fits_with_lists_is_what_is_placed() {
        for segment_blocks in [16, 100, 101, 102, 202, 203, 256, 512] {
            for offset in 0..segment_blocks {
                let fit = fit_with_summaries(segment_blocks - offset);
                assert!(offset + taken(fit, offset, segment_blocks) <= segment_blocks);
                assert!(offset + taken(fit + 1, offset, segment_blocks) > segment_blocks);
            }
        }
    }

    #[test]
    fn lists_are_a_hundredth_of_what_is_moved() {
        let share = |live: u64| (with_summaries(live) - live) as f64 / live as f64;
        // Half of a segment of 1 MiB, of 8 MiB, of 128 MiB.
        assert_eq!([128, 1024, 16_384].map(|live| (share(live) * 1000.0) as u64), [23, 11, 10]);
    }
}
