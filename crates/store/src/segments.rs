//! Segments: what each holds, how much of it is live, and when it may be used again.
//!
//! | state | becomes | when |
//! | --- | --- | --- |
//! | free | open | the log or a checkpoint takes it |
//! | unbacked | free | the host file system has allocated it |
//! | open | closed | it is full, or the log starts anew elsewhere, or its end is unknown, as after a crash |
//! | closed | dead | a checkpoint becomes durable in which nothing in it is live |
//! | dead | free | the next checkpoint is durable, too, no reader pins it, and it is trimmed, if it should be |
//! | dead | unbacked | the same, where the store is a sparse file and the trim gives the space back |
//!
//! Two checkpoints are needed, because neither root may need the segment. A segment that was closed before
//! the older root's checkpoint neither holds log entries after that root nor is named by them. A segment
//! without live blocks in both checkpoints is named by neither root.
//!
//! Metadata lies in **mirrored pairs**: two segments, of which the second, the *mirror*, holds the same block
//! at each offset. A place names the block in the first segment. Both are taken, filled, counted, closed,
//! dead and free together; whatever counts or chooses segments looks at the first one only. A pair holds
//! nodes or pages of the arena. Arena pages are data: like those of the log, they have places that log
//! entries name.
//!
//! A root does not say which pair was open. Recovery takes all pairs for closed. Where log entries after the
//! root name a pair that was free or dead at the root, it was [taken
//! since](SegmentTable::recover_mirrored_pair).

use crate::block_set::BlockSet;
use crate::bug::{StoreBug, is_planted};
use crate::policy::{CleaningCandidate, METADATA_COPIES};
use crate::superblock::StoreGeometry;
use crate::sync::{AtomicU32, Ordering};
use device::Block;
use std::collections::VecDeque;
use std::ops::Range;

/// The content of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum SegmentUse {
    #[default]
    Free,
    /// Log entries and data.
    Log,
    /// Data that the cleaner moved. The segment table on the medium calls it log.
    Moved,
    /// Map nodes, pages of the node table, and the tables' stream.
    Nodes,
    /// Data that is metadata to the caller: the pages of arenas.
    Arena,
    /// The mirror of a segment of nodes or arenas.
    Mirror,
}

impl SegmentUse {
    /// Whether it holds pages to which entries of the map refer.
    pub(crate) fn is_data(self) -> bool {
        matches!(self, SegmentUse::Log | SegmentUse::Moved | SegmentUse::Arena)
    }
}

#[derive(Debug, Default)]
pub(crate) struct SegmentState {
    pub(crate) usage: SegmentUse,
    /// More may be written to it, or the log may go on in it.
    pub(crate) open: bool,
    /// Blocks to which the map or the newest tables refer. An upper bound where blocks are shared.
    pub(crate) live: u32,
    /// The other segment of a mirrored pair.
    pub(crate) mirror: Option<u32>,
    /// When the newest of its data was written, in segments of log. Unknown for arenas written before this
    /// start.
    pub(crate) newest_data_at: u64,
    /// The first durable checkpoint in which it was dead.
    pub(crate) dead_since: Option<u64>,
    /// Its live blocks when cleaning or compacting it did not help.
    stuck_at: Option<u32>,
    /// The cleaner emptied it.
    emptied: bool,
    /// The host file system has not allocated all of it. Once it is empty, it is unbacked.
    pub(crate) has_holes: bool,
    pins: AtomicU32,
}

impl SegmentState {
    /// Emptying it did not help, and no more of it has died since.
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck_at.is_some_and(|live| self.live >= live)
    }
}

/// A segment's entry in the segment table on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SegmentEntry {
    pub(crate) usage: SegmentUse,
    pub(crate) live: u32,
    /// Segments of log that were written since its newest data, as far as that is known.
    pub(crate) age: u32,
    /// The other segment of a mirrored pair.
    pub(crate) mirror: Option<u32>,
}

/// Ages have 32 bits: older than this counts as this old.
pub(crate) const AGE_MAX: u32 = u32::MAX;

/// The node segments, without their mirrors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NodeSegments {
    pub(crate) segments: u64,
    /// Live blocks in them.
    pub(crate) live: u64,
}

/// All segments. Part of the map and under its lock, because every change of the map changes what is live.
#[derive(Debug)]
pub(crate) struct SegmentTable {
    geometry: StoreGeometry,
    list: Vec<SegmentState>,
    /// Segments that may be written at once. Oldest first, so that wear spreads.
    free: VecDeque<u32>,
    /// The store is a sparse file: a trim gives space back to the host file system.
    is_sparse: bool,
    /// Segments that are free, but that the host file system must allocate before they are written. All
    /// counts of free space ignore them.
    unbacked: VecDeque<u32>,
    /// Shared blocks lost references since the last recount: some live counts may be too high.
    counts_unsure: bool,
    /// Live counts may have been too high when the walk under way began, which may not be completed.
    recount_under_way: bool,
    /// Unwritten blocks of the log's open segment. The segment after it, which the log has already, does not
    /// count: to enter that, the log takes another.
    log_rest: u64,
    /// All live blocks.
    live: u64,
    /// Node segments, and their live blocks.
    node_segments: NodeSegments,
    /// Segments that the cleaner emptied and that are not free yet.
    emptied: u64,
    /// Segments of log ever taken, plus [`AGE_MAX`], so that nothing is older than the count.
    clock: u64,
    /// The blocks that a walk under way found to be live, and those that became live since it began.
    marks: Option<BlockSet>,
    #[cfg(feature = "planted-bugs")]
    reuse_at_once: bool,
}

impl SegmentTable {
    /// The segments of a store, with what the table on the medium says of each.
    pub(crate) fn new(geometry: StoreGeometry, used: Vec<SegmentEntry>) -> SegmentTable {
        assert_eq!(used.len(), geometry.segments as usize, "one entry for each segment");
        let clock = u64::from(AGE_MAX);
        let segment = |SegmentEntry { usage, live, age, mirror: twin }| {
            let written = clock.saturating_sub(u64::from(age));
            SegmentState { usage, live, newest_data_at: written, mirror: twin, ..SegmentState::default() }
        };
        let list: Vec<SegmentState> = used.into_iter().map(segment).collect();
        let free = |(_, segment): &(u32, &SegmentState)| segment.usage == SegmentUse::Free;
        let free = (0..).zip(&list).filter(free).map(|(number, _)| number).collect();
        SegmentTable {
            geometry,
            list,
            free,
            is_sparse: false,
            unbacked: VecDeque::new(),
            counts_unsure: false,
            recount_under_way: false,
            log_rest: 0,
            live: 0,
            node_segments: NodeSegments::default(),
            emptied: 0,
            clock,
            marks: None,
            #[cfg(feature = "planted-bugs")]
            reuse_at_once: false,
        }
        .counted()
    }

    fn counted(mut self) -> SegmentTable {
        self.count_live();
        self
    }

    /// Counts node segments and live blocks.
    pub(crate) fn count_live(&mut self) {
        self.live = self.list.iter().map(|segment| u64::from(segment.live)).sum();
        let nodes = self.list.iter().filter(|segment| segment.usage == SegmentUse::Nodes);
        self.node_segments = nodes.fold(NodeSegments::default(), |sum, segment| NodeSegments {
            segments: sum.segments + 1,
            live: sum.live + u64::from(segment.live),
        });
    }

    pub(crate) fn geometry(&self) -> StoreGeometry {
        self.geometry
    }

    /// Unwritten blocks of the log's open segment.
    pub(crate) fn log_rest(&self) -> u64 {
        self.log_rest
    }

    pub(crate) fn set_log_rest(&mut self, blocks: u64) {
        self.log_rest = blocks;
    }

    /// All live blocks, mirrors included.
    pub(crate) fn live_blocks(&self) -> u64 {
        self.live
    }

    /// The node segments, and their live blocks.
    pub(crate) fn node_segments(&self) -> NodeSegments {
        self.node_segments
    }

    /// Segments that the cleaner emptied and that two checkpoints will free.
    pub(crate) fn emptied_count(&self) -> u64 {
        self.emptied
    }

    /// Whether shared blocks lost references since the last recount began: then some live counts may be too
    /// high.
    pub(crate) fn counts_may_be_high(&self) -> bool {
        self.counts_unsure
    }

    /// Notes that a shared block lost a reference, perhaps the last one.
    pub(crate) fn mark_counts_unsure(&mut self) {
        self.counts_unsure = true;
    }

    /// Whether the tables of a root must say that live counts may be too high: also while a recount is under
    /// way.
    pub(crate) fn counts_are_unsure(&self) -> bool {
        self.counts_unsure || self.recount_under_way
    }

    /// Notes that a walk begins that will make the live counts exact.
    pub(crate) fn begin_recount(&mut self) {
        self.recount_under_way |= std::mem::take(&mut self.counts_unsure);
    }

    /// Notes that the walk is complete, though some nodes could not be read: no other walk would find more.
    pub(crate) fn end_recount(&mut self) {
        self.recount_under_way = false;
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn plant_reuse_at_once(&mut self) {
        self.reuse_at_once = true;
    }

    pub(crate) fn get(&self, segment: u32) -> &SegmentState {
        &self.list[segment as usize]
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &SegmentState)> {
        (0..).zip(&self.list)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (u32, &mut SegmentState)> {
        (0..).zip(&mut self.list)
    }

    pub(crate) fn free_count(&self) -> u64 {
        self.free.len() as u64
    }

    /// Backed segments: the size of the store now.
    pub(crate) fn backed_count(&self) -> u64 {
        u64::from(self.geometry.segments) - self.unbacked.len() as u64
    }

    pub(crate) fn unbacked_count(&self) -> u64 {
        self.unbacked.len() as u64
    }

    /// Adds the segments of a store that has grown. In a sparse file they are unbacked.
    pub(crate) fn grow(&mut self, grown: StoreGeometry) {
        let new = self.geometry.segments..grown.segments;
        self.geometry = grown;
        let new_segment = || SegmentState { has_holes: self.is_sparse, ..SegmentState::default() };
        self.list.resize_with(grown.segments as usize, new_segment);
        if self.is_sparse {
            self.unbacked.extend(new)
        } else {
            self.free.extend(new)
        }
        self.marks.iter_mut().for_each(|marks| marks.grow(grown));
    }

    /// Makes this the store of a sparse file, in which only the blocks in `known` are allocated. The ranges
    /// are in order, and no two are adjacent.
    pub(crate) fn set_backed_ranges(&mut self, known: &[Range<Block>]) {
        self.is_sparse = true;
        self.free.clear();
        self.unbacked.clear();
        let mut known = known.iter().peekable();
        for (segment, number) in self.list.iter_mut().zip(0..) {
            let start = self.geometry.segment_start(number);
            let end = start.plus(self.geometry.segment_blocks);
            while known.next_if(|range| range.end < end).is_some() {}
            segment.has_holes = known.peek().is_none_or(|range| range.start > start);
            match (segment.usage, segment.has_holes) {
                (SegmentUse::Free, false) => self.free.push_back(number),
                (SegmentUse::Free, true) => self.unbacked.push_back(number),
                _ => {}
            }
        }
    }

    /// Takes an unbacked segment, to allocate it.
    pub(crate) fn take_unbacked(&mut self) -> Option<u32> {
        self.unbacked.pop_front()
    }

    /// Puts back an unbacked segment that could not be allocated.
    pub(crate) fn put_back_unbacked(&mut self, number: u32) {
        self.unbacked.push_front(number);
    }

    /// Notes that all of a segment is allocated.
    pub(crate) fn set_backed(&mut self, number: u32) {
        let segment = &mut self.list[number as usize];
        segment.has_holes = false;
        if segment.usage == SegmentUse::Free {
            self.free.push_back(number);
        }
    }

    /// Chooses which of the segments from [`reclaim`](SegmentTable::reclaim) to trim.
    ///
    /// Normally all. In a sparse file, the segments that would be free beyond `most`, up to `trims` of them,
    /// and all segments that already have holes. The chosen segments count as having holes from now on,
    /// whether the trim succeeds or not.
    pub(crate) fn choose_trims(&mut self, dead: &[u32], (most, trims): (u64, u64)) -> Vec<u32> {
        if !self.is_sparse {
            return dead.to_vec();
        }
        let mut free = self.free_count();
        let mut trimmed = Vec::new();
        for &number in dead {
            let segment = &mut self.list[number as usize];
            segment.has_holes |= free >= most && (trimmed.len() as u64) < trims;
            if segment.has_holes { trimmed.push(number) } else { free += 1 }
        }
        trimmed
    }

    /// Opens two free segments as a mirrored pair, and returns the first; `None` if there are not two.
    pub(crate) fn take_mirrored_pair(&mut self, usage: SegmentUse) -> Option<u32> {
        if self.free.len() < 2 {
            return None;
        }
        let first = self.take(usage)?;
        let second = self.take(SegmentUse::Mirror)?;
        self.node_segments.segments += u64::from(usage == SegmentUse::Nodes);
        self.join_pair(first, second);
        Some(first)
    }

    fn join_pair(&mut self, first: u32, second: u32) {
        self.list[first as usize].mirror = Some(second);
        self.list[second as usize].mirror = Some(first);
    }

    /// The mirror of a block; the original if the block is in a mirror. `None` if it is not mirrored.
    pub(crate) fn mirror_of(&self, place: Block) -> Option<Block> {
        let number = self.geometry.segment_of(place)?;
        if is_planted(StoreBug::CopiesInOneSegment) && self.get(number).usage == SegmentUse::Nodes {
            return Some(place.plus(1));
        }
        let twin = self.get(number).mirror?;
        Some(self.geometry.segment_start(twin).plus(place.0 - self.geometry.segment_start(number).0))
    }

    /// Opens a free segment; `None` if there is none.
    pub(crate) fn take(&mut self, usage: SegmentUse) -> Option<u32> {
        let number = self.free.pop_front()?;
        self.clock += u64::from(usage == SegmentUse::Log);
        // Moved data is as old as where it came from. For arenas each block says it.
        let written = if matches!(usage, SegmentUse::Moved | SegmentUse::Arena) { 0 } else { self.clock };
        self.list[number as usize] =
            SegmentState { usage, open: true, newest_data_at: written, ..SegmentState::default() };
        Some(number)
    }

    /// Notes that new data is written to this block.
    pub(crate) fn note_new_data(&mut self, place: Block) {
        if let Some(number) = self.geometry.segment_of(place) {
            self.list[number as usize].newest_data_at = self.clock;
        }
    }

    /// The age of a segment's newest data, in segments of log.
    pub(crate) fn age(&self, segment: &SegmentState) -> u64 {
        self.clock.saturating_sub(segment.newest_data_at)
    }

    /// Notes that data of segment `from` was moved to segment `to`.
    pub(crate) fn inherit_age(&mut self, from: u32, to: u32) {
        let written = self.get(from).newest_data_at;
        let target = &mut self.list[to as usize];
        target.newest_data_at = target.newest_data_at.max(written);
    }

    /// The segments of data that cleaning may help.
    pub(crate) fn candidates(&self) -> Vec<CleaningCandidate> {
        let fits = |(_, segment): &(u32, &SegmentState)| {
            segment.usage.is_data() && !segment.open && !segment.is_stuck() && segment.live > 0
        };
        let candidate = |(number, segment): (u32, &SegmentState)| CleaningCandidate {
            segment: number,
            live: u64::from(segment.live),
            copies: if segment.usage == SegmentUse::Arena { METADATA_COPIES } else { 1 },
            age: self.age(segment),
        };
        self.iter().filter(fits).map(candidate).collect()
    }

    /// Notes that cleaning or compaction could not empty a segment: it is no candidate until more of it is
    /// dead.
    pub(crate) fn mark_stuck(&mut self, number: u32) {
        let segment = &mut self.list[number as usize];
        segment.stuck_at = Some(segment.live);
    }

    /// Makes segments of data candidates again that cleaning could not empty.
    pub(crate) fn retry_stuck(&mut self) {
        self.list.iter_mut().filter(|segment| segment.usage.is_data()).for_each(|one| one.stuck_at = None);
    }

    /// Notes that cleaning emptied this segment, and its mirror. Returns how many segments that is.
    pub(crate) fn mark_emptied(&mut self, number: u32) -> u64 {
        let both: Vec<u32> = self.with_mirror(number).collect();
        both.iter().for_each(|&one| self.list[one as usize].emptied = true);
        self.emptied += both.len() as u64;
        both.len() as u64
    }

    /// Notes that a walk begins that will visit everything that is live.
    pub(crate) fn begin_marking(&mut self) {
        self.marks = Some(BlockSet::empty(self.geometry));
    }

    /// Notes that the walk visited a reference to a block.
    pub(crate) fn mark(&mut self, place: Block) {
        if let Some(marks) = &mut self.marks {
            marks.add(place);
        }
    }

    /// Lowers live counts to what a complete walk found. Returns how many were too high.
    pub(crate) fn apply_recount(&mut self) -> u64 {
        self.end_recount();
        let Some(marks) = &self.marks else { return 0 };
        let data = self.iter().filter(|(_, segment)| segment.usage.is_data());
        let found: Vec<_> =
            data.map(|(number, _)| (number, marks.count_in_segment(self.geometry, number))).collect();
        let too_high = found.iter().filter(|&&(number, live)| live < self.get(number).live).count() as u64;
        found.into_iter().for_each(|(number, live)| self.lower_live(number, live));
        too_high
    }

    pub(crate) fn end_marking(&mut self) {
        self.marks = None;
        self.counts_unsure |= std::mem::take(&mut self.recount_under_way);
    }

    /// Lowers a segment's live count to `live`, as all references to it are known.
    pub(crate) fn lower_live(&mut self, number: u32, live: u32) {
        for one in self.with_mirror(number) {
            let segment = &mut self.list[one as usize];
            self.live -= u64::from(segment.live.saturating_sub(live));
            segment.live = segment.live.min(live);
        }
    }

    /// Opens a segment in which the log turned out to go on. It was free or dead at the root where recovery
    /// began.
    pub(crate) fn recover_log_segment(&mut self, number: u32) {
        self.free.retain(|&free| free != number);
        self.split_pair(number);
        let segment = &mut self.list[number as usize];
        self.node_segments.segments -= u64::from(segment.usage == SegmentUse::Nodes);
        (segment.usage, segment.open, segment.dead_since) = (SegmentUse::Log, true, None);
    }

    /// Notes that a log entry after the root names blocks of this mirrored pair of arena pages.
    ///
    /// Either the two are such a pair already, or both were free or dead at the root and become one.
    /// Otherwise returns `false`: then the log entry or the root's tables are damaged. The pair is closed.
    pub(crate) fn recover_mirrored_pair(&mut self, first: u32, second: u32) -> bool {
        let unused = |number| {
            let segment = self.get(number);
            segment.usage == SegmentUse::Free
                || SegmentTable::is_dead(segment) && segment.dead_since.is_some()
        };
        match (unused(first), unused(second)) {
            (false, false) => {
                let segment = self.get(first);
                return segment.usage == SegmentUse::Arena && segment.mirror == Some(second);
            }
            (true, true) => {}
            _ => return false,
        }
        self.free.retain(|&free| free != first && free != second);
        for (number, usage) in [(first, SegmentUse::Arena), (second, SegmentUse::Mirror)] {
            self.reset_segment(number);
            let segment = &mut self.list[number as usize];
            (segment.usage, segment.newest_data_at) = (usage, self.clock);
        }
        self.join_pair(first, second);
        true
    }

    /// Dissolves the pair of a dead segment that is used for something else. The other segment is dead, too,
    /// and waits alone.
    fn split_pair(&mut self, number: u32) {
        if let Some(twin) = self.list[number as usize].mirror.take() {
            self.list[twin as usize].mirror = None;
        }
    }

    /// A segment, and its mirror if it has one.
    fn with_mirror(&self, number: u32) -> impl Iterator<Item = u32> + use<> {
        [Some(number), self.get(number).mirror].into_iter().flatten()
    }

    /// Notes that recovery begins at the root of checkpoint `generation`: what was dead then is free after
    /// the next checkpoint. Without this, a store that crashes soon after each start would never get a
    /// segment back. `log` has the segments where the log goes on after that root, live or not.
    pub(crate) fn set_dead_at_root(&mut self, generation: u64, log: [u32; 2]) {
        let dead = |(number, segment): &(u32, &mut SegmentState)| {
            SegmentTable::is_dead(segment) && !log.contains(number)
        };
        self.iter_mut().filter(dead).for_each(|(_, segment)| segment.dead_since = Some(generation));
    }

    /// Closes a segment, and its mirror.
    pub(crate) fn close(&mut self, number: u32) {
        self.with_mirror(number).for_each(|one| self.list[one as usize].open = false);
        self.reuse_if_planted(number);
    }

    /// Counts a reference to a block.
    pub(crate) fn inc_live(&mut self, place: Block) {
        self.mark(place);
        if let Some(number) = self.geometry.segment_of(place) {
            for one in self.with_mirror(number) {
                self.list[one as usize].live += 1;
                self.live += 1;
            }
            self.node_segments.live += u64::from(self.get(number).usage == SegmentUse::Nodes);
        }
    }

    /// Counts a block as no longer live.
    pub(crate) fn dec_live(&mut self, place: Block) {
        let Some(number) = self.geometry.segment_of(place) else { return };
        for one in self.with_mirror(number) {
            let segment = &mut self.list[one as usize];
            assert!(segment.live > 0, "segment {one}: more blocks went dead than were live");
            segment.live -= 1;
            self.live -= 1;
        }
        self.node_segments.live -= u64::from(self.get(number).usage == SegmentUse::Nodes);
        self.reuse_if_planted(number);
    }

    pub(crate) fn is_dead(segment: &SegmentState) -> bool {
        segment.usage != SegmentUse::Free && !segment.open && segment.live == 0
    }

    /// All closed segments in which no block is live now.
    pub(crate) fn dead(&self) -> Vec<u32> {
        self.iter().filter(|(_, segment)| SegmentTable::is_dead(segment)).map(|(number, _)| number).collect()
    }

    /// Returns the segments that may be freed now that checkpoint `generation` is durable, in which `dead`
    /// were dead: those that were dead in the one before it, too, and are not pinned. The caller trims them,
    /// then calls [`add_free`](SegmentTable::add_free).
    pub(crate) fn reclaim(&mut self, generation: u64, dead: &[u32]) -> Vec<u32> {
        let mut dead_twice = Vec::new();
        for &number in dead {
            // A reader of one segment of a pair may go on to the other.
            let pins =
                self.with_mirror(number).map(|one| self.get(one).pins.load(Ordering::Acquire)).sum::<u32>();
            let segment = &mut self.list[number as usize];
            if !SegmentTable::is_dead(segment) {
                continue;
            }
            let since = *segment.dead_since.get_or_insert(generation);
            let pinned = pins > 0 && !is_planted(StoreBug::PinsIgnored);
            if since < generation && !pinned {
                dead_twice.push(number);
            }
        }
        dead_twice
    }

    /// Frees a segment that was taken and that no root names, nor ever will, and its mirror. They are last in
    /// the list.
    pub(crate) fn give_back(&mut self, number: u32) {
        self.close(number);
        if SegmentTable::is_dead(self.get(number)) {
            let both: Vec<u32> = self.with_mirror(number).collect();
            self.add_free(&both);
        }
    }

    /// Makes segments from [`reclaim`](SegmentTable::reclaim) free, or unbacked if they have holes.
    pub(crate) fn add_free(&mut self, numbers: &[u32]) {
        for &number in numbers {
            let has_holes = self.get(number).has_holes;
            self.reset_segment(number);
            self.list[number as usize].has_holes = has_holes;
            if has_holes { &mut self.unbacked } else { &mut self.free }.push_back(number);
        }
    }

    /// Forgets what a segment held.
    fn reset_segment(&mut self, number: u32) {
        self.split_pair(number);
        let was = std::mem::take(&mut self.list[number as usize]);
        self.live -= u64::from(was.live);
        self.node_segments.segments -= u64::from(was.usage == SegmentUse::Nodes);
        self.emptied -= u64::from(was.emptied);
    }

    /// Pins a block that a reader will read: neither its segment nor the mirror is used again until
    /// [`unpin`](SegmentTable::unpin).
    pub(crate) fn pin(&self, place: Block) {
        if let Some(number) = self.geometry.segment_of(place) {
            self.list[number as usize].pins.fetch_add(1, Ordering::AcqRel);
        }
    }

    pub(crate) fn unpin(&self, place: Block) {
        if let Some(number) = self.geometry.segment_of(place) {
            // A planted bug may have used the segment again meanwhile, and forgotten the pin.
            let less = |pins: u32| Some(pins.saturating_sub(1));
            let _ = self.list[number as usize].pins.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        }
    }

    #[cfg(not(feature = "planted-bugs"))]
    fn reuse_if_planted(&mut self, _number: u32) {}

    /// The planted bug: a segment is used again as soon as nothing in memory refers to it, whatever the roots
    /// and the readers still need.
    #[cfg(feature = "planted-bugs")]
    fn reuse_if_planted(&mut self, number: u32) {
        for one in self.with_mirror(number) {
            if self.reuse_at_once && SegmentTable::is_dead(self.get(one)) {
                self.reset_segment(one);
                self.free.push_front(one);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::DRAFT;
    use device::StoreId;

    /// A table as a root of generation 9 has it, after which the log goes on in segment 0. Segments 0 and 1
    /// are of log, 2 and 3 a pair of nodes, 4 and 5 one of arenas, 6 and 7 a dead pair of nodes, the others
    /// free.
    fn at_root() -> SegmentTable {
        let geometry = StoreGeometry {
            id: StoreId([1; 16]),
            total_blocks: 4 + 48 * 16,
            segment_blocks: 16,
            segments: 48,
            draft: DRAFT,
        };
        let mut used = vec![SegmentEntry::default(); 48];
        let of = |usage, live, twin| SegmentEntry { usage, live, age: 0, mirror: twin };
        (used[0], used[1]) = (of(SegmentUse::Log, 0, None), of(SegmentUse::Log, 3, None));
        (used[2], used[3]) = (of(SegmentUse::Nodes, 2, Some(3)), of(SegmentUse::Mirror, 2, Some(2)));
        (used[4], used[5]) = (of(SegmentUse::Arena, 1, Some(5)), of(SegmentUse::Mirror, 1, Some(4)));
        (used[6], used[7]) = (of(SegmentUse::Nodes, 0, Some(7)), of(SegmentUse::Mirror, 0, Some(6)));
        let mut segments = SegmentTable::new(geometry, used);
        segments.set_dead_at_root(9, [0, 8]);
        segments
    }

    #[test]
    fn what_was_free_or_dead_at_the_root_or_a_pair_already_is_found_to_be_a_pair() {
        for (first, second) in [(4, 5), (6, 7), (7, 6), (9, 10), (10, 9), (7, 9), (12, 6)] {
            let mut segments = at_root();
            for _ in 0..2 {
                assert!(segments.recover_mirrored_pair(first, second), "{first} {second}");
            }
            let place = segments.geometry().segment_start(first).plus(3);
            let copy = segments.geometry().segment_start(second).plus(3);
            segments.inc_live(place);
            assert_eq!(segments.mirror_of(place), Some(copy));
            let live = |number: u32, segments: &SegmentTable| segments.get(number).live;
            assert_eq!(live(first, &segments), live(second, &segments));
            let one = segments.get(first);
            let other = segments.get(second);
            assert_eq!((one.usage, other.usage, one.open), (SegmentUse::Arena, SegmentUse::Mirror, false));
            let free: Vec<u32> = std::iter::from_fn(|| segments.take(SegmentUse::Log)).collect();
            assert!(!free.contains(&first) && !free.contains(&second), "nobody else gets them");
            let gone = u64::from([first, second].contains(&6));
            assert_eq!(segments.node_segments().segments, 2 - gone);
        }
    }

    #[test]
    fn what_was_something_else_is_found_to_be_no_pair() {
        for (first, second) in [(5, 4), (4, 9), (9, 5), (2, 3), (1, 9), (9, 1), (0, 9), (6, 4), (4, 7)] {
            assert!(!at_root().recover_mirrored_pair(first, second), "{first} {second}");
        }
        let mut segments = at_root();
        assert!(segments.recover_mirrored_pair(9, 10));
        for (first, second) in [(9, 11), (11, 10), (10, 9)] {
            assert!(!segments.recover_mirrored_pair(first, second), "{first} {second}");
        }
        segments.recover_log_segment(11);
        assert!(!segments.recover_mirrored_pair(11, 12) && !segments.recover_mirrored_pair(12, 11));
    }

    #[test]
    fn a_pair_that_was_found_is_used_again_after_two_checkpoints_in_which_nothing_of_it_is_live() {
        let mut segments = at_root();
        assert!(segments.recover_mirrored_pair(6, 7));
        let both = [6, 7];
        assert!(both.iter().all(|one| segments.dead().contains(one)));
        assert_eq!(
            segments.reclaim(10, &both),
            [],
            "the root from which it was found names it, with its log"
        );
        assert_eq!(segments.reclaim(11, &both), both);
    }
}
