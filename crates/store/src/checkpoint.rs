//! Checkpoints: writes the changed nodes, then the tables, then a root that names them.
//!
//! Nodes go to segments of their own, which are mirrored, so that these die as a whole. Everything that a
//! root names is durable before the root is written, over the older of the two roots. After an error the
//! nodes are still dirty and the newer root still stands, so trying again is always right:
//!
//! | it fails | what the medium has | its segments |
//! | --- | --- | --- |
//! | before its root is written | blocks that no root names | are free again at once |
//! | while its root is written | the root, or not | the next checkpoint writes this root first |
//!
//! So no number of failures uses up segments.

use crate::bug::{StoreBug, is_planted};
use crate::checkpoint_root::{CheckpointRoot, LogCursor, STREAM_EXTENTS_MAX, StreamExtent, TablesStream};
use crate::checkpoint_tables::encode_tables;
use crate::counters::count;
use crate::error::StoreError;
use crate::format::ROOTS;
use crate::log_progress::LogLength;
use crate::map::{MapNodes, NodeId, NodeTable, PageMap};
use crate::policy::NodeCompaction;
use crate::segments::{SegmentState, SegmentUse};
use crate::shared::StoreShared;
use crate::superblock::StoreGeometry;
use crate::tables_stream;
use device::{Block, Page, StoreId};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes encoded under one hold of the map's lock: half a millisecond.
const NODES_PER_HOLD: usize = 128;

/// Most runs of consecutive blocks of the node table, before a checkpoint writes the table anew in one run:
/// each run is a read at the next start.
const TABLE_RUNS_MAX: usize = 8;
/// Large tables may have more runs, as writing them is expensive: one for each MiB.
const TABLE_RUN_PAGES: usize = 256;

/// The progress of an attempt at a checkpoint.
#[derive(Default)]
struct CheckpointInProgress {
    /// Nodes that it has written to new places.
    nodes: Vec<NodeId>,
    /// Pages of the node table that it has written to new places.
    pages: Vec<usize>,
    /// Whether `StoreCheckpointer::tables` is its stream.
    stream: bool,
    /// Segments that it opened, without their mirrors.
    taken: Vec<u32>,
    /// Segments in which nothing was live when the tables were made.
    dead: Vec<u32>,
}

/// A root to be written. Everything that it names is durable.
struct PendingRoot {
    generation: u64,
    page: Box<Page>,
    /// The part of the log that recovery no longer reads once the root is durable.
    log: LogLength,
    in_progress: CheckpointInProgress,
}

impl PendingRoot {
    /// A root that is on the medium already, to be written to the other slot, too.
    fn copy(root: &CheckpointRoot, id: StoreId) -> PendingRoot {
        let generation = root.generation;
        let page = root.encode(id);
        PendingRoot {
            generation,
            page,
            log: LogLength::default(),
            in_progress: CheckpointInProgress::default(),
        }
    }
}

/// The occasion of a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckpointOccasion {
    /// The store is in use.
    Running,
    /// The log starts anew, while a caller waits: the checkpoint does no more than it must.
    Restart,
}

/// Writes roots, and everything that they name. Owned by the writer, under its lock. After a crash it begins
/// from the newest root.
pub(crate) struct StoreCheckpointer {
    /// The generation of the newest attempt to write a root.
    generation: u64,
    /// Which of the two roots was last made durable.
    root_slot: usize,
    /// The open segment for nodes, and the next block in it.
    nodes_at: Option<(u32, u64)>,
    /// The newest tables' stream, whose blocks count as live.
    tables: TablesStream,
    /// A root that may be on the medium or not.
    pending: Option<PendingRoot>,
}

impl StoreCheckpointer {
    /// Continues after `root`, which lies in `slot`.
    pub(crate) fn after(root: &CheckpointRoot, slot: usize) -> StoreCheckpointer {
        let generation = root.generation;
        let tables = root.tables.clone();
        StoreCheckpointer { generation, root_slot: slot, nodes_at: None, tables, pending: None }
    }

    /// The blocks of the newest tables' stream.
    pub(crate) fn table_blocks(&self) -> impl Iterator<Item = Block> + '_ {
        tables_stream::stream_places(&self.tables.extents).map(|(at, _)| at)
    }

    /// The newest tables' stream.
    pub(crate) fn tables(&self) -> &TablesStream {
        &self.tables
    }

    /// Prepares for a recovery that begins at `root`, as the tables of the newest root, of generation
    /// `newest`, could not be read.
    ///
    /// The newest tables may become readable later. By then the older root counts segments as free that these
    /// tables name, and they are used again. So before anything else is written, a copy of the older root
    /// replaces the newest root. No generation has two roots.
    pub(crate) fn supersede_newest_root(&mut self, newest: u64, root: &CheckpointRoot, id: StoreId) {
        if root.generation < newest {
            self.generation = newest;
            self.pending = Some(PendingRoot::copy(root, id));
        }
    }

    /// Makes the pending root durable. Returns whether there was one.
    pub(crate) fn write_pending_root(&mut self, shared: &StoreShared) -> Result<bool, StoreError> {
        let was_pending = self.pending.is_some();
        self.write_root(shared, CheckpointOccasion::Running)?;
        Ok(was_pending)
    }

    /// Makes one checkpoint, with the log at `log`. After an error before its root is written, it frees what
    /// it took.
    pub(crate) fn checkpoint(
        &mut self,
        shared: &StoreShared,
        log: LogCursor,
        occasion: CheckpointOccasion,
    ) -> Result<(), StoreError> {
        if self.pending.is_some() {
            self.write_root(shared, occasion)?;
        }
        self.generation += 1;
        #[cfg(feature = "planted-bugs")]
        do_what_is_delayed(shared)?;
        let mut in_progress = CheckpointInProgress::default();
        match self.write_map(shared, log, occasion, &mut in_progress) {
            Ok(pending) => self.pending = Some(pending),
            Err(error) => {
                self.undo_attempt(&mut shared.map_mut(), in_progress);
                return Err(error);
            }
        }
        self.write_root(shared, occasion)
    }

    /// Writes everything that the root names, makes it durable, and encodes the root.
    fn write_map(
        &mut self,
        shared: &StoreShared,
        log: LogCursor,
        occasion: CheckpointOccasion,
        in_progress: &mut CheckpointInProgress,
    ) -> Result<PendingRoot, StoreError> {
        let since = shared.medium.failed_flushes();
        self.compact_nodes(shared, occasion);
        self.write_nodes(shared, in_progress)?;
        self.write_table(shared, in_progress)?;
        let tables = self.write_tables(shared, in_progress)?;
        shared.medium.flush_since(since)?;
        let generation = self.generation;
        let incarnation = shared.incarnation();
        let newest = shared.map().newest();
        let StoreGeometry { id, total_blocks, .. } = shared.medium.geometry();
        let page = CheckpointRoot { total_blocks, generation, incarnation, newest, log, tables }.encode(id);
        let log = shared.progress.length();
        Ok(PendingRoot { generation, page, log, in_progress: std::mem::take(in_progress) })
    }

    /// Makes the pending root durable. While that fails, the medium may have the root or not, so the next
    /// checkpoint begins with it.
    fn write_root(&mut self, shared: &StoreShared, occasion: CheckpointOccasion) -> Result<(), StoreError> {
        let since = shared.medium.failed_flushes();
        let slot = if is_planted(StoreBug::OneRoot) { 0 } else { 1 - self.root_slot };
        let Some(pending) = &self.pending else { return Ok(()) };
        shared.medium.write(ROOTS[slot], &[Page::clone(&pending.page)])?;
        shared.medium.flush_since(since)?;
        self.root_slot = slot;
        let Some(pending) = self.pending.take() else { return Ok(()) };
        shared.progress.subtract(pending.log);
        let counting = shared.medium.counting();
        count(&counting.checkpoints, 1);
        let CheckpointInProgress { nodes, pages, .. } = &pending.in_progress;
        count(&counting.nodes_written, (nodes.len() + pages.len()) as u64);
        free_dead_segments(shared, &pending, occasion);
        Ok(())
    }

    /// Writes all dirty nodes to new places; they stay dirty until the root is durable.
    fn write_nodes(
        &mut self,
        shared: &StoreShared,
        in_progress: &mut CheckpointInProgress,
    ) -> Result<(), StoreError> {
        let mut last = NodeId::NONE;
        loop {
            let mut map = shared.map_mut();
            let dirty = map.nodes.dirty_after(last);
            let some: Vec<NodeId> = dirty.take(NODES_PER_HOLD).collect();
            let Some(&highest) = some.last() else { return Ok(()) };
            let mut blocks = Vec::new();
            for &id in &some {
                let place = self.place_node(&mut map, in_progress)?;
                let page = map.nodes.write_to(id, place, shared.medium.geometry().id);
                in_progress.nodes.push(id);
                blocks.push((place, page));
            }
            let copies = mirror_blocks(&map, &blocks);
            drop(map);
            shared.medium.write_blocks(&blocks)?;
            shared.medium.write_blocks(&copies)?;
            last = highest;
        }
    }

    /// Writes the dirty pages of the node table to new places.
    fn write_table(
        &mut self,
        shared: &StoreShared,
        in_progress: &mut CheckpointInProgress,
    ) -> Result<(), StoreError> {
        let dirty: Vec<usize> = {
            let mut map = shared.map_mut();
            map.nodes.table.shrink().into_iter().for_each(|place| map.nodes.segments.dec_live(place));
            let runs = TABLE_RUNS_MAX.max(map.nodes.table.pages().len() / TABLE_RUN_PAGES);
            map.nodes.table.rewrite_if_scattered(runs);
            let pages = map.nodes.table.pages().iter().enumerate();
            pages.filter(|(_, page)| page.dirty).map(|(number, _)| number).collect()
        };
        for numbers in dirty.chunks(NODES_PER_HOLD) {
            let mut map = shared.map_mut();
            let mut blocks = Vec::new();
            for &number in numbers {
                let place = self.place_node(&mut map, in_progress)?;
                let (page, old) = map.nodes.table.write_page_to(number, place, shared.medium.geometry().id);
                in_progress.pages.push(number);
                old.into_iter().for_each(|old| map.nodes.segments.dec_live(old));
                map.nodes.segments.inc_live(place);
                blocks.push((place, page));
            }
            let copies = mirror_blocks(&map, &blocks);
            drop(map);
            shared.medium.write_blocks(&blocks)?;
            shared.medium.write_blocks(&copies)?;
        }
        Ok(())
    }

    /// Writes the tables' stream.
    fn write_tables(
        &mut self,
        shared: &StoreShared,
        in_progress: &mut CheckpointInProgress,
    ) -> Result<TablesStream, StoreError> {
        let mut map = shared.map_mut();
        let blocks = map.stream_blocks(map.nodes.table.pages().len());
        let mut places = Vec::new();
        for _ in 0..blocks {
            places.push(self.place_node(&mut map, in_progress)?);
        }
        let extents = extents(&places, &map);
        if extents.len() > STREAM_EXTENTS_MAX {
            return Err(StoreError::Full);
        }
        self.drop_tables(&mut map);
        let mut next = places.iter().copied();
        let (bytes, _) = encode_tables(&mut map, |_| next.next().expect("one for each"));
        in_progress.stream = true;
        in_progress.dead = map.nodes.segments.dead();
        drop(map);
        let (pages, crc) = tables_stream::encode_stream(&bytes);
        self.tables = TablesStream { bytes: bytes.len() as u64, crc, extents };
        let mut rest = &pages[..];
        for extent in &self.tables.extents {
            let (now, later) = rest.split_at(extent.count as usize);
            shared.medium.write(extent.at, now)?;
            shared.medium.write(extent.copy, now)?;
            rest = later;
        }
        Ok(self.tables.clone())
    }

    /// Counts the newest tables' stream as dead.
    fn drop_tables(&mut self, map: &mut PageMap) {
        let gone = std::mem::take(&mut self.tables);
        tables_stream::stream_places(&gone.extents).for_each(|(at, _)| map.nodes.segments.dec_live(at));
    }

    /// Keeps node segments dense. Nodes that rarely change would keep whole segments alive.
    ///
    /// While node segments are less than half live (two thirds where space is short), the nodes of the
    /// emptiest ones are made dirty, so that this checkpoint writes them elsewhere and these segments die.
    /// Where space is short it takes more of them: see
    /// [`NodeSpaceUse::segments_to_compact`](crate::policy::NodeSpaceUse::segments_to_compact).
    fn compact_nodes(&self, shared: &StoreShared, occasion: CheckpointOccasion) {
        for (number, nodes) in self.choose_nodes_to_compact(shared, occasion) {
            // One segment at a time, as dirty nodes stay in memory.
            let failed = shared.load_nodes(nodes.clone());
            let mut map = shared.map_mut();
            if !failed.is_empty() {
                // A node that cannot be read stays where it is, and so does its segment.
                map.nodes.segments.mark_stuck(number);
            }
            for id in nodes.into_iter().filter(|id| !failed.contains_key(id)) {
                if map.nodes.is_cached(id) {
                    map.nodes.node_mut(id);
                }
            }
            let geometry = shared.medium.geometry();
            map.nodes.table.rewrite_pages(|place| geometry.segment_of(place) == Some(number));
        }
    }

    /// The segments to compact, with their live nodes. At a start it takes only the necessary ones, as it
    /// must read these nodes first.
    fn choose_nodes_to_compact(
        &self,
        shared: &StoreShared,
        occasion: CheckpointOccasion,
    ) -> BTreeMap<u32, Vec<NodeId>> {
        let map = shared.map();
        let nodes = map.node_use();
        let chosen = match nodes.compaction(map.nodes.segments.free_count(), map.is_short_of_space()) {
            Some(compaction) => {
                let spare = compaction.spare && occasion == CheckpointOccasion::Running;
                let staying = blocks_staying(&map.nodes, self.table_blocks());
                nodes.segments_to_compact(NodeCompaction { spare, ..compaction }, &staying)
            }
            None => Vec::new(),
        };
        let mut inside: BTreeMap<u32, Vec<NodeId>> =
            chosen.into_iter().map(|number| (number, Vec::new())).collect();
        if inside.is_empty() {
            return inside;
        }
        for (id, entry) in map.nodes.table.iter() {
            let nodes =
                shared.medium.geometry().segment_of(entry.place).and_then(|number| inside.get_mut(&number));
            nodes.into_iter().for_each(|nodes| nodes.push(id));
        }
        inside
    }

    /// Takes the next block for a node.
    fn place_node(
        &mut self,
        map: &mut PageMap,
        in_progress: &mut CheckpointInProgress,
    ) -> Result<Block, StoreError> {
        let segment_blocks = map.nodes.segments.geometry().segment_blocks;
        let (segment, offset) = match self.nodes_at {
            Some((segment, offset)) if offset < segment_blocks => (segment, offset),
            full => {
                let fresh =
                    map.nodes.segments.take_mirrored_pair(SegmentUse::Nodes).ok_or(StoreError::Full)?;
                if let Some((segment, _)) = full {
                    map.nodes.segments.close(segment);
                }
                in_progress.taken.push(fresh);
                (fresh, 0)
            }
        };
        let blocks = if is_planted(StoreBug::CopiesInOneSegment) { 2 } else { 1 };
        self.nodes_at = Some((segment, offset + blocks));
        Ok(map.nodes.segments.geometry().segment_start(segment).plus(offset))
    }

    /// Undoes an attempt that failed before its root was written. Its nodes and pages lose their places, as
    /// if they were new. The next attempt writes them elsewhere.
    fn undo_attempt(&mut self, map: &mut PageMap, in_progress: CheckpointInProgress) {
        in_progress.nodes.into_iter().for_each(|id| map.nodes.mark_unwritten(id));
        for number in in_progress.pages {
            let place = map.nodes.table.mark_page_unwritten(number);
            map.nodes.segments.dec_live(place);
        }
        if in_progress.stream {
            self.drop_tables(map);
        }
        if let Some((segment, _)) = self.nodes_at.take() {
            map.nodes.segments.close(segment);
        }
        in_progress.taken.into_iter().for_each(|segment| map.nodes.segments.give_back(segment));
    }
}

/// Finishes a durable checkpoint. Its nodes are clean, except those that changed since; segments that were
/// dead twice are free.
///
/// A start trims no more segments than it needs: a file system takes 20 ms and more to trim a segment of 128
/// MiB. The others stay dead until the next checkpoint.
fn free_dead_segments(shared: &StoreShared, pending: &PendingRoot, occasion: CheckpointOccasion) {
    let mut map = shared.map_mut();
    pending.in_progress.clean(&mut map);
    let mut free = map.nodes.segments.reclaim(pending.generation, &pending.in_progress.dead);
    if occasion == CheckpointOccasion::Restart {
        let missing = map.cleaning_starts_below().saturating_sub(map.nodes.segments.free_count());
        free.truncate(missing as usize);
    }
    map.nodes.evict();
    let kept = map.kept_from_trims();
    let trimmed = map.nodes.segments.choose_trims(&free, kept);
    drop(map);
    if shared.medium.trim(&trimmed).is_err() {
        free.retain(|number| !trimmed.contains(number));
    }
    shared.map_mut().nodes.segments.add_free(&free);
    count(&shared.medium.counting().segments_freed, free.len() as u64);
}

impl CheckpointInProgress {
    /// Marks what the attempt wrote as clean, unless it changed since.
    fn clean(&self, map: &mut PageMap) {
        self.nodes.iter().for_each(|&id| map.nodes.mark_written(id));
        self.pages.iter().for_each(|&number| map.nodes.table.mark_page_written(number));
    }
}

/// The closed node segments, each with the blocks that a checkpoint leaves there: those that are neither
/// dirty nor in the tables' `stream`. Leaves out segments that could not be read in part, until more of them
/// has died.
fn blocks_staying(nodes: &MapNodes, stream: impl Iterator<Item = Block>) -> Vec<(u32, u64)> {
    let fits = |(_, segment): &(u32, &SegmentState)| {
        segment.usage == SegmentUse::Nodes && !segment.open && !segment.is_stuck()
    };
    let closed = nodes.segments.iter().filter(fits);
    let mut staying: BTreeMap<u32, u64> =
        closed.map(|(number, segment)| (number, u64::from(segment.live))).collect();
    let dirty: Vec<NodeId> = nodes.dirty_after(NodeId::NONE).collect();
    let written: BTreeSet<usize> = dirty.iter().map(|&id| NodeTable::page_of(id)).collect();
    let moved = dirty.iter().filter_map(|&id| nodes.table.get(id)).map(|entry| entry.place);
    let pages = nodes.table.pages().iter().enumerate();
    let pages =
        pages.filter(|(number, page)| page.dirty || written.contains(number)).map(|(_, page)| page.place);
    for place in moved.chain(pages).chain(stream) {
        let blocks = nodes.segments.geometry().segment_of(place).and_then(|number| staying.get_mut(&number));
        blocks.into_iter().for_each(|blocks| *blocks = blocks.saturating_sub(1));
    }
    staying.into_iter().collect()
}

/// The planted bugs' late work: copies at the next checkpoint but one, trims at the first one after the
/// segment is used again.
#[cfg(feature = "planted-bugs")]
fn do_what_is_delayed(shared: &StoreShared) -> Result<(), StoreError> {
    let planted = shared.medium.planted();
    for delayed in planted.take_delayed() {
        match delayed {
            crate::bug::DelayedWrite::Copy(blocks, false) => {
                planted.delay(crate::bug::DelayedWrite::Copy(blocks, true))
            }
            crate::bug::DelayedWrite::Copy(blocks, true) => shared.medium.write_blocks(&blocks)?,
            crate::bug::DelayedWrite::Trim(segments) => {
                let (reused, waiting): (Vec<u32>, Vec<u32>) = segments
                    .into_iter()
                    .partition(|&segment| shared.map().nodes.segments.get(segment).usage != SegmentUse::Free);
                let geometry = shared.medium.geometry();
                for segment in reused {
                    shared.medium.device().trim(geometry.segment_start(segment), geometry.segment_blocks)?;
                }
                planted.trim_later(&waiting);
            }
        }
    }
    Ok(())
}

/// The blocks, at their places in the mirrors.
fn mirror_blocks(map: &PageMap, blocks: &[(Block, Box<Page>)]) -> Vec<(Block, Box<Page>)> {
    let copy = |at: &Block| map.nodes.segments.mirror_of(*at).expect("nodes go to pairs");
    blocks.iter().map(|(at, page)| (copy(at), page.clone())).collect()
}

/// Joins consecutive blocks into extents, where their mirrors are consecutive, too.
fn extents(places: &[Block], map: &PageMap) -> Vec<StreamExtent> {
    let copy = |at: &Block| map.nodes.segments.mirror_of(*at).expect("the stream goes to pairs");
    let follows = |at: &Block, next: &Block| at.0 + 1 == next.0 && copy(at).0 + 1 == copy(next).0;
    let runs = places.chunk_by(follows);
    runs.map(|run| StreamExtent { at: run[0], copy: copy(&run[0]), count: run.len() as u64 }).collect()
}

#[cfg(test)]
mod tests;
