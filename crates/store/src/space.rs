//! Room: what is live, what is free, what is promised, and who may use the last of it.

use crate::error::StoreError;
use crate::format::TABLE_NODES;
use crate::map::Map;
use crate::policy::{self, Class};
use crate::segments::Use;
use crate::store::Store;

/// Blocks by what they are to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// All blocks in segments.
    pub total: u64,
    /// Blocks that a map entry, a node or a root needs: an upper bound.
    pub live: u64,
    /// Of these, nodes of the map: exact.
    pub nodes: u64,
    /// Blocks in free segments and the unwritten rest of the log's open one.
    pub free: u64,
    /// Free blocks promised to writers.
    pub reserved: u64,
}

/// Nodes that one page going home may change: its page leaf, its object leaf, and one above each, which a clone may
/// have made shared. Those further up are shared by 256 times as many pages.
const NODES_PER_PAGE: u64 = 4;
/// Blocks that one page going home may cost until the next checkpoint but one, beside the node table's pages: itself,
/// a note of its own, its nodes.
const BLOCKS_PER_PAGE: u64 = 2 + NODES_PER_PAGE;

impl Map {
    /// Blocks that the next two checkpoints may need. Two, because only the second gives dead segments back.
    fn checkpoint_blocks(&self) -> u64 {
        // All of the node table, as one of them may gather it.
        let table = self.table.pages.len() as u64;
        let stream = self.stream_blocks(table as usize + 1);
        // What a checkpoint moves to keep the node segments dense is at most two segments, half live.
        self.dirty + 2 * (table + stream) + self.segments.geometry.segment_blocks
    }

    /// Free segments that `class` must leave alone.
    pub(crate) fn floor(&self, class: Class) -> u64 {
        policy::floor(class, self.checkpoint_blocks(), self.segments.geometry.segment_blocks)
    }

    /// Blocks that a new promise may count on.
    fn promisable(&self) -> u64 {
        let free = self.segments.free_count().saturating_sub(self.floor(Class::Promise));
        let blocks = free * self.segments.geometry.segment_blocks + self.segments.log_rest;
        let promised = self.segments.promised_pages;
        // Pages of the node table that their nodes may change: all there are, and those for new nodes.
        let table = (NODES_PER_PAGE * promised)
            .min(self.table.pages.len() as u64 + NODES_PER_PAGE * promised / TABLE_NODES + 1);
        blocks.saturating_sub(promised * BLOCKS_PER_PAGE + table)
    }

    /// Blocks that can be written once dead space is given back, above the reserves and what is promised.
    pub(crate) fn room(&self) -> u64 {
        let space = self.space();
        let kept = self.floor(Class::Promise) * self.segments.geometry.segment_blocks;
        space.total.saturating_sub(space.live + space.reserved + kept)
    }

    pub(crate) fn is_short_of_space(&self) -> bool {
        let low = policy::low_mark(u64::from(self.segments.geometry.segments));
        self.segments.free_count() < self.floor(Class::Promise) + low
    }

    pub(crate) fn space(&self) -> Space {
        let geometry = &self.segments.geometry;
        Space {
            total: u64::from(geometry.segments) * geometry.segment_blocks,
            live: self.segments.iter().map(|(_, segment)| u64::from(segment.live)).sum(),
            nodes: self.table.used(),
            free: self.segments.free_count() * geometry.segment_blocks + self.segments.log_rest,
            reserved: self.segments.promised_pages * BLOCKS_PER_PAGE,
        }
    }

    /// Blocks of node segments, and how many of them are live.
    pub(crate) fn node_usage(&self) -> (u64, u64) {
        let nodes = self.segments.iter().filter(|(_, segment)| segment.usage == Use::Nodes);
        nodes.fold((0, 0), |(blocks, live), (_, segment)| {
            (blocks + self.segments.geometry.segment_blocks, live + u64::from(segment.live))
        })
    }
}

impl Store {
    /// Promises room for `pages` more pages going home, map nodes included. Does no I/O.
    ///
    /// # Errors
    /// [`StoreError::Full`] while room is left for checkpoints, cleaning and deletions. There may be more after
    /// [`clean`](Store::clean) and two checkpoints.
    pub fn reserve(&self, pages: u64) -> Result<(), StoreError> {
        let mut map = self.map_mut();
        if pages.saturating_mul(BLOCKS_PER_PAGE) > map.promisable() {
            return Err(StoreError::Full);
        }
        #[cfg(feature = "planted-bugs")]
        if map.plant_forgotten_promise {
            return Ok(());
        }
        map.segments.promised_pages += pages;
        Ok(())
    }

    /// Blocks that can still be promised: a page takes six of them.
    pub fn promisable_blocks(&self) -> u64 {
        self.map().promisable()
    }

    /// Gives back a promise for `pages` pages: used, or not needed after all.
    pub fn release(&self, pages: u64) {
        let mut map = self.map_mut();
        let promised = map.segments.promised_pages;
        assert!(pages <= promised, "{pages} pages given back, {promised} promised");
        map.segments.promised_pages -= pages;
    }

    /// Whether free space is low, so that checkpoints and [`clean`](Store::clean) should find some.
    pub fn is_short_of_space(&self) -> bool {
        self.map().is_short_of_space()
    }
}
