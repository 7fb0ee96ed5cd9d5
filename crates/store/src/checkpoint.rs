//! Checkpoints: the changed nodes, the tables, then a root that names them.
//!
//! Nodes go to segments of their own, so that these die as wholes. Everything that a root names is durable before
//! the root is written, over the older one. After an error the nodes are still dirty and the newer root still
//! stands, so trying again is always right.

use crate::bug::{PlantedBug, is_planted};
use crate::counters::count;
use crate::error::StoreError;
use crate::format::ROOTS;
use crate::in_progress::{CheckpointInProgress, Pending};
use crate::log::to_pages;
use crate::map::{Map, NodeId, NodeTable, TablePage, encode_node};
use crate::policy::Compaction;
use crate::root::{Cursor, EXTENTS_MAX, Extent, Root, Stream};
use crate::segments::{Segment, Use};
use crate::store::{Health, Store, Writer};
use device::{Block, Lsn, Page};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::Ordering;

/// Nodes encoded under one hold of the map's lock: half a millisecond.
const NODES_PER_HOLD: usize = 128;

/// Runs of consecutive blocks that the node table may lie in, before a checkpoint writes all of it in one: each is a read at
/// the next start.
const TABLE_RUNS_MAX: usize = 8;
/// More in large tables, which it costs much to write: as many as it has MiB.
const TABLE_RUN_PAGES: usize = 256;

impl Store {
    /// Makes the map durable so that recovery starts here, and frees segments that no root needs any more: those
    /// in which nothing was live at the checkpoint before this one either.
    ///
    /// # Errors
    /// The device's: the store goes on as before, and the next checkpoint does it all again.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        let mut writer = self.lock_writer();
        match writer.health {
            Health::Good => self.checkpoint_once(&mut writer),
            _ => self.make_ready(&mut writer),
        }
    }

    /// Two [checkpoints](Store::checkpoint) with nothing between them: what died before is free afterwards. The second writes
    /// little, since no other thread can make the nodes dirty again that the first has written.
    ///
    /// # Errors
    /// As [`checkpoint`](Store::checkpoint).
    pub fn checkpoint_twice(&self) -> Result<(), StoreError> {
        let mut writer = self.lock_writer();
        match writer.health {
            Health::Good => {
                self.checkpoint_once(&mut writer)?;
                self.checkpoint_once(&mut writer)
            }
            _ => self.make_ready(&mut writer),
        }
    }

    /// Counts every change up to `lsn` as seen, durably on return: a buffer that does not know of it is behind this
    /// store from then on. Nothing is applied.
    ///
    /// # Errors
    /// As [`checkpoint`](Store::checkpoint).
    pub fn fence(&self, lsn: Lsn) -> Result<(), StoreError> {
        {
            let mut map = self.map_mut();
            map.newest = map.newest.max(lsn);
        }
        self.checkpoint()
    }

    /// Lets the log start anew in a segment that holds nothing of it, and says so in both roots: whichever of them is
    /// found later, it never leads to the log that ended.
    pub(crate) fn restart_log(&self, writer: &mut Writer) -> Result<(), StoreError> {
        if !writer.log_is_fresh {
            let mut map = self.map_mut();
            if map.segments.free_count() < 2 {
                return Err(self.full(&map));
            }
            let mut take = || map.segments.take(Use::Log).expect("counted just now");
            let (segment, next) = (take(), take());
            let old = map.segments.iter().filter(|(_, segment)| segment.usage == Use::Log && segment.open);
            let old: Vec<u32> =
                old.map(|(number, _)| number).filter(|&n| n != segment && n != next).collect();
            old.into_iter().for_each(|number| map.segments.close(number));
            map.segments.log_rest = self.geometry.segment_blocks;
            writer.log = Cursor { segment, offset: 0, next, chain: 0, ..writer.log };
            writer.chunk_index.clear();
            writer.log_is_fresh = true;
        }
        self.checkpoint_once(writer)?;
        self.checkpoint_once(writer)?;
        writer.health = Health::Good;
        Ok(())
    }

    /// One checkpoint, by the holder of the writer's lock. What it took before an error, it gives back.
    pub(crate) fn checkpoint_once(&self, writer: &mut Writer) -> Result<(), StoreError> {
        if writer.pending.is_some() {
            self.write_root(writer)?;
        }
        writer.generation += 1;
        #[cfg(feature = "planted-bugs")]
        self.do_what_is_delayed()?;
        let mut in_progress = CheckpointInProgress::default();
        match self.write_map(writer, &mut in_progress) {
            Ok(pending) => writer.pending = Some(pending),
            Err(error) => {
                self.map_mut().give_back(writer, in_progress);
                return Err(error);
            }
        }
        self.write_root(writer)
    }

    /// Everything that a root names, durable; and the root.
    fn write_map(
        &self,
        writer: &mut Writer,
        in_progress: &mut CheckpointInProgress,
    ) -> Result<Pending, StoreError> {
        let since = self.failed_flushes();
        self.keep_nodes_dense(writer);
        self.write_nodes(writer, in_progress)?;
        self.write_table(writer, in_progress)?;
        let tables = self.write_tables(writer, in_progress)?;
        self.flush_since(since)?;
        let generation = writer.generation;
        let (incarnation, newest) = (self.incarnation(), self.map().newest);
        let root = Root { generation, incarnation, newest, log: writer.log, tables };
        let log_blocks = self.log_blocks.load(Ordering::Relaxed);
        let log_reads = self.log_reads.load(Ordering::Relaxed);
        let page = root.encode(self.geometry.id);
        Ok(Pending { generation, page, log_blocks, log_reads, in_progress: std::mem::take(in_progress) })
    }

    /// Makes the pending root durable. As long as that fails, it is not known whether the medium has it, so the next
    /// checkpoint begins with it.
    fn write_root(&self, writer: &mut Writer) -> Result<(), StoreError> {
        let since = self.failed_flushes();
        let slot = if is_planted(PlantedBug::OneRoot) { 0 } else { 1 - writer.root_slot };
        let Some(pending) = &writer.pending else { return Ok(()) };
        self.write(ROOTS[slot], &[Page::clone(&pending.page)])?;
        self.flush_since(since)?;
        writer.root_slot = slot;
        let Some(pending) = writer.pending.take() else { return Ok(()) };
        self.log_blocks.fetch_sub(pending.log_blocks, Ordering::Relaxed);
        self.log_reads.fetch_sub(pending.log_reads, Ordering::Relaxed);
        count(&self.counting.checkpoints, 1);
        let CheckpointInProgress { nodes, pages, .. } = &pending.in_progress;
        count(&self.counting.nodes_written, (nodes.len() + pages.len()) as u64);
        self.checkpointed(&pending, writer.health);
        Ok(())
    }

    /// The checkpoint is durable: its nodes are clean, but for those that changed since, and what was dead twice is
    /// free. A start waits for no more trims than it needs: a file system takes 20 ms and more for that of a segment of 128 MiB.
    /// Others stay dead until the next checkpoint.
    fn checkpointed(&self, pending: &Pending, health: Health) {
        let mut map = self.map_mut();
        map.cleaned(&pending.in_progress);
        let mut free = map.segments.reclaim(pending.generation, &pending.in_progress.dead);
        if health != Health::Good {
            let missing = map.cleaning_starts_below().saturating_sub(map.segments.free_count());
            free.truncate(missing as usize);
        }
        if map.held == 0 {
            map.evict();
        }
        let most = map.kept_from_trims();
        let trimmed = map.segments.choose_trims(&free, most);
        drop(map);
        if self.trim(&trimmed).is_err() {
            free.retain(|number| !trimmed.contains(number));
        }
        self.map_mut().segments.freed(&free);
        count(&self.counting.segments_freed, free.len() as u64);
    }

    /// Trims segments, and waits until that is durable: a trim that came late would take what is written next.
    /// A device that fails a trim is asked for none any more: what a segment held does no harm to what comes next. After a
    /// failed flush they stay dead, and the next checkpoint tries again.
    fn trim(&self, segments: &[u32]) -> Result<(), StoreError> {
        let fails = || self.counting.trims_failed.load(Ordering::Relaxed) > 0;
        if segments.is_empty() || fails() {
            return Ok(());
        }
        #[cfg(feature = "planted-bugs")]
        if self.planted.trim_later(segments) {
            return Ok(());
        }
        let since = self.failed_flushes();
        for &segment in segments {
            if self.device.trim(self.geometry.start(segment), self.geometry.segment_blocks).is_err() {
                count(&self.counting.trims_failed, 1);
                break;
            }
        }
        self.flush_since(since)
    }

    /// Writes all dirty nodes to new places; they stay dirty until the root is durable.
    fn write_nodes(
        &self,
        writer: &mut Writer,
        in_progress: &mut CheckpointInProgress,
    ) -> Result<(), StoreError> {
        let mut last = NodeId::NONE;
        loop {
            let mut map = self.map_mut();
            let above = (Bound::Excluded(last), Bound::Unbounded);
            let dirty = map.nodes.range(above).filter(|(_, node)| node.dirty).map(|(&id, _)| id);
            let some: Vec<NodeId> = dirty.take(NODES_PER_HOLD).collect();
            let Some(&highest) = some.last() else { return Ok(()) };
            let mut blocks = Vec::new();
            for &id in &some {
                let place = map.place_node(&mut writer.nodes_at, in_progress)?;
                let node = map.nodes.get_mut(&id).expect("dirty nodes stay in memory");
                node.changed = false;
                let (page, crc) = encode_node(&node.body, id, writer.generation, self.geometry.id);
                in_progress.nodes.push(id);
                if let Some(old) = map.table.moved(id, place, crc, writer.generation) {
                    map.segments.dec_live(old);
                }
                map.segments.inc_live(place);
                blocks.push((place, page));
            }
            drop(map);
            self.write_blocks(blocks)?;
            last = highest;
        }
    }

    /// Writes the dirty pages of the node table to new places.
    fn write_table(
        &self,
        writer: &mut Writer,
        in_progress: &mut CheckpointInProgress,
    ) -> Result<(), StoreError> {
        let dirty: Vec<usize> = {
            let mut map = self.map_mut();
            map.table.shrink().into_iter().for_each(|place| map.segments.dec_live(place));
            let runs = TABLE_RUNS_MAX.max(map.table.pages.len() / TABLE_RUN_PAGES);
            map.table.gather(runs);
            let pages = map.table.pages.iter().enumerate();
            pages.filter(|(_, page)| page.dirty).map(|(number, _)| number).collect()
        };
        for numbers in dirty.chunks(NODES_PER_HOLD) {
            let mut map = self.map_mut();
            let mut blocks = Vec::new();
            for &number in numbers {
                let place = map.place_node(&mut writer.nodes_at, in_progress)?;
                let (page, crc) = map.table.encode(number, self.geometry.id);
                let entry = &mut map.table.pages[number];
                (entry.crc, entry.changed) = (crc, false);
                in_progress.pages.push(number);
                let old = std::mem::replace(&mut entry.place, place);
                if old != Block(0) {
                    map.segments.dec_live(old);
                }
                map.segments.inc_live(place);
                blocks.push((place, page));
            }
            drop(map);
            self.write_blocks(blocks)?;
        }
        Ok(())
    }

    /// Writes the tables' stream.
    fn write_tables(
        &self,
        writer: &mut Writer,
        in_progress: &mut CheckpointInProgress,
    ) -> Result<Stream, StoreError> {
        let mut map = self.map_mut();
        let blocks = map.stream_blocks(map.table.pages.len());
        let mut places = Vec::new();
        for _ in 0..blocks {
            places.push(map.place_node(&mut writer.nodes_at, in_progress)?);
        }
        let extents = extents(&places);
        if extents.len() > EXTENTS_MAX {
            return Err(StoreError::Full);
        }
        for extent in std::mem::replace(&mut writer.tables, extents.clone()) {
            (0..extent.count).for_each(|index| map.segments.dec_live(extent.at.plus(index)));
        }
        let mut next = places.iter().copied();
        let (bytes, _) = map.encode_tables(|_| next.next().expect("one for each"));
        in_progress.stream = true;
        in_progress.dead = map.segments.dead();
        drop(map);
        let pages: Vec<Page> = to_pages(&bytes);
        let mut rest = &pages[..];
        for extent in &extents {
            let (now, later) = rest.split_at(extent.count as usize);
            self.write(extent.at, now)?;
            rest = later;
        }
        Ok(Stream { bytes: bytes.len() as u64, crc: crc32c::crc32c(&bytes), extents })
    }

    /// Nodes that rarely change would keep whole segments alive. While the node segments are less than half live, or two thirds
    /// where space is short, the nodes of the emptiest ones are written again with this checkpoint, so that these die; where space
    /// is short also those of others of which little lives ([`NodeUse::nodes_to_compact`](crate::policy::NodeUse::nodes_to_compact)).
    fn keep_nodes_dense(&self, writer: &Writer) {
        for (number, nodes) in self.nodes_to_compact(writer) {
            // A segment at a time: what is dirty stays in memory.
            let failed = self.load(nodes.clone());
            let mut map = self.map_mut();
            if !failed.is_empty() {
                // A node that cannot be read stays where it is, and its segment with it.
                map.segments.stuck(number);
            }
            for id in nodes.into_iter().filter(|id| !failed.contains_key(id)) {
                if map.nodes.contains_key(&id) {
                    map.node_mut(id);
                }
            }
            let inside = |page: &&mut TablePage| self.geometry.segment(page.place) == Some(number);
            map.table.pages.iter_mut().filter(inside).for_each(|page| page.dirty = true);
        }
    }

    /// The segments whose nodes are to be compacted, with the nodes that live there. A start waits for no more of it than must be: it would have to read
    /// these nodes first.
    fn nodes_to_compact(&self, writer: &Writer) -> BTreeMap<u32, Vec<NodeId>> {
        let map = self.map();
        let nodes = map.node_use();
        let chosen = match nodes.compaction(map.segments.free_count(), map.is_short_of_space()) {
            Some(Compaction { short, spare }) => {
                let spare = spare && writer.health == Health::Good;
                nodes.nodes_to_compact(Compaction { short, spare }, &map.staying(&writer.tables))
            }
            None => Vec::new(),
        };
        let mut inside: BTreeMap<u32, Vec<NodeId>> =
            chosen.into_iter().map(|number| (number, Vec::new())).collect();
        if inside.is_empty() {
            return inside;
        }
        for (id, entry) in map.table.iter() {
            let nodes = self.geometry.segment(entry.place).and_then(|number| inside.get_mut(&number));
            nodes.into_iter().for_each(|nodes| nodes.push(id));
        }
        inside
    }
}

impl Map {
    /// The closed segments of nodes, each with the blocks that a checkpoint leaves there: what is neither dirty nor of the tables'
    /// `stream`. Without those of which something could not be read, until more of them has died.
    fn staying(&self, stream: &[Extent]) -> Vec<(u32, u64)> {
        let fits = |(_, segment): &(u32, &Segment)| {
            segment.usage == Use::Nodes && !segment.open && !segment.is_stuck()
        };
        let closed = self.segments.iter().filter(fits);
        let mut staying: BTreeMap<u32, u64> =
            closed.map(|(number, segment)| (number, u64::from(segment.live))).collect();
        let dirty = self.nodes.iter().filter(|(_, node)| node.dirty).map(|(&id, _)| id);
        let dirty: Vec<NodeId> = dirty.collect();
        let written: BTreeSet<usize> = dirty.iter().map(|&id| NodeTable::page_of(id)).collect();
        let nodes = dirty.iter().filter_map(|&id| self.table.get(id)).map(|entry| entry.place);
        let pages = self.table.pages.iter().enumerate();
        let pages =
            pages.filter(|(number, page)| page.dirty || written.contains(number)).map(|(_, page)| page.place);
        let stream = stream.iter().flat_map(|extent| (0..extent.count).map(|index| extent.at.plus(index)));
        for place in nodes.chain(pages).chain(stream) {
            let blocks = self.segments.geometry.segment(place).and_then(|number| staying.get_mut(&number));
            blocks.into_iter().for_each(|blocks| *blocks = blocks.saturating_sub(1));
        }
        staying.into_iter().collect()
    }
}

/// Consecutive blocks put together.
fn extents(places: &[Block]) -> Vec<Extent> {
    let runs = places.chunk_by(|at, next| at.0 + 1 == next.0);
    runs.map(|run| Extent { at: run[0], count: run.len() as u64 }).collect()
}

#[cfg(test)]
mod tests;
