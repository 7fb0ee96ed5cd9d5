//! Space: what is live, what is free, what is reserved, and which use of it may have the last.

use crate::entry::LogEntry;
use crate::error::StoreError;
use crate::format::{LEAF_OBJECTS, LEAF_PAGES, TABLE_NODES};
use crate::map::{Map, ObjectEntry, Pages};
use crate::policy::{self, Class, NodeUse};
use crate::store::Store;
use crate::stretch::Stretches;
use crate::volume::VolumeId;
use device::ObjectId;
use std::collections::BTreeSet;

/// Blocks by what they are to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Space {
    /// All blocks in segments, without those for which the file system below has no space.
    pub total: u64,
    /// Blocks that a map entry, a node or a root needs: an upper bound.
    pub live: u64,
    /// Of these, nodes of the map: exact.
    pub nodes: u64,
    /// Blocks in free segments and the unwritten rest of the log's open one.
    pub free: u64,
    /// Blocks in segments that are free as soon as the file system below gives them space, which it has.
    pub bare: u64,
    /// Free blocks reserved for writers.
    pub reserved: u64,
    /// Free blocks that are kept from writers: for deletions, checkpoints and cleaning.
    pub kept: u64,
}

impl Space {
    /// Blocks that can still be written without anything being deleted or cleaned: what a user calls free.
    pub fn available(&self) -> u64 {
        (self.free + self.bare).saturating_sub(self.reserved + self.kept)
    }
}

/// Nodes that one page being written back may change: its page leaf, its object leaf, and one above each, which a clone may
/// have made shared. Those further up are shared by 256 times as many pages.
const NODES_PER_PAGE: u64 = 4;
/// Where there are clones, the leaves that it shared, too: their entries say from then on that their blocks have other references.
const SHARED_PER_PAGE: u64 = 2;
/// The same for another change: an object leaf, two page leaves, and those above them.
const NODES_PER_CHANGE: u64 = 6;
const SHARED_PER_CHANGE: u64 = 3;
/// Blocks that one page being written back may cost until the next checkpoint but one, beside the node table's pages, where there are
/// no clones: itself, a log entry of its own, its nodes.
pub(crate) const BLOCKS_PER_PAGE: u64 = 2 + NODES_PER_PAGE;

impl Map {
    /// What the segments of nodes hold, and the next checkpoint writes to them.
    pub(crate) fn node_use(&self) -> NodeUse {
        let table = self.table.pages.len() as u64;
        let segment_blocks = self.segments.geometry.segment_blocks;
        NodeUse {
            segment_blocks,
            dirty: self.dirty,
            nodes: self.table.used(),
            tables: table + self.stream_blocks(table as usize + 1),
            live: self.segments.of_nodes.live,
            held: self.segments.of_nodes.segments * segment_blocks,
        }
    }

    /// Free segments that `class` must leave alone.
    pub(crate) fn floor(&self, class: Class) -> u64 {
        self.floor_after(class, 0)
    }

    /// The same, once so many more nodes are dirty, each of which may be new.
    pub(crate) fn floor_after(&self, class: Class, dirtied: u64) -> u64 {
        self.floor_with(class, dirtied, dirtied)
    }

    /// The same, if so many of them are new.
    pub(crate) fn floor_with(&self, class: Class, dirtied: u64, new: u64) -> u64 {
        let now = self.node_use();
        let (dirty, nodes) = (now.dirty + dirtied, now.nodes + new);
        policy::floor(class, &NodeUse { dirty, nodes, tables: now.tables + new.div_ceil(TABLE_NODES), ..now })
    }

    fn nodes_per_page(&self) -> u64 {
        NODES_PER_PAGE + if self.shares_nodes() { SHARED_PER_PAGE } else { 0 }
    }

    /// What is reserved for a page.
    fn blocks_per_page(&self) -> u64 {
        2 + self.nodes_per_page()
    }

    /// What is reserved for all pages that have a reservation.
    fn reserved_blocks(&self) -> u64 {
        self.segments.reserved_pages * self.blocks_per_page()
    }

    /// Nodes that a vector may make dirty, at most as many as a reservation counts. A cut that leaves newer pages in leaves
    /// between its ends changes more: such pages have been written back before it, and their leaves have been counted then.
    pub(crate) fn nodes_for(&self, volume: VolumeId, log_entries: &[LogEntry]) -> u64 {
        let mut nodes = BTreeSet::new();
        let mut path = |slot: Option<u64>, leaf: u64, height: u8| {
            let level = |level: u8| leaf.checked_shr(8 * u32::from(level)).unwrap_or(0);
            let heights = (0..=8).take_while(|&at| at <= height || level(at) > 0);
            nodes.extend(heights.map(|at| (slot, at, level(at))));
        };
        let mut pages = 0;
        let objects = self.volumes.get(&volume).map_or(0, |volume| volume.objects.height);
        for log_entry in log_entries {
            let mut object = |slot: u64| {
                path(None, slot / LEAF_OBJECTS, objects);
                match self.slot(volume, slot) {
                    Ok(Some(ObjectEntry { pages: Pages::Tree(tree), .. })) => tree.height,
                    _ => 0,
                }
            };
            match log_entry {
                LogEntry::Write { object: ObjectId { slot, .. }, page, .. } => {
                    let height = object(*slot);
                    path(Some(*slot), page.0 / LEAF_PAGES, height);
                    pages += 1;
                }
                LogEntry::Cut { object: ObjectId { slot, .. }, pages, .. } => {
                    let height = object(*slot);
                    path(Some(*slot), pages.start.0 / LEAF_PAGES, height);
                    let last = pages.end.0.saturating_sub(1) / LEAF_PAGES;
                    if last.checked_shr(8 * u32::from(height)).unwrap_or(0) == 0 {
                        path(Some(*slot), last, height);
                    }
                }
                LogEntry::Delete { object: ObjectId { slot, .. }, .. } => drop(object(*slot)),
                LogEntry::Clone { from, to, .. } => drop((object(from.slot), object(to.slot))),
                LogEntry::CloneVolume { .. }
                | LogEntry::NameVolume { .. }
                | LogEntry::DeleteVolume { .. } => {}
            }
        }
        let others = log_entries.len() as u64 - pages;
        let own = (nodes.len() as u64).min(NODES_PER_PAGE * pages + NODES_PER_CHANGE * others);
        if !self.shares_nodes() {
            return own;
        }
        let leaves = nodes.iter().filter(|&&(_, level, _)| level == 0).count() as u64;
        own + leaves.min(SHARED_PER_PAGE * pages + SHARED_PER_CHANGE * others)
    }

    pub(crate) fn reserved_segments(&self) -> u64 {
        self.reserved_blocks().div_ceil(self.segments.geometry.segment_blocks)
    }

    /// Whether nodes have several references, or are about to.
    fn shares_nodes(&self) -> bool {
        self.table.has_shared() || self.expects_sharing
    }

    /// Counts nodes as shared from now on, as a clone will make them, if there is space for what that adds to the reservations.
    pub(crate) fn expect_sharing(&mut self) -> Result<(), StoreError> {
        if !self.shares_nodes() && self.segments.reserved_pages * SHARED_PER_PAGE > self.reservable() {
            return Err(StoreError::Full);
        }
        self.expects_sharing = true;
        Ok(())
    }

    /// Blocks that a new reservation may count on.
    fn reservable(&self) -> u64 {
        let free = self.segments.free_count() + self.segments.pending_free.coming();
        let Some(free) = free.checked_sub(self.floor(Class::Reservation)) else { return 0 };
        let blocks = free * self.segments.geometry.segment_blocks + self.segments.log_rest;
        // A 16th for the copies of heads, a 32nd of each stretch at most, and its last block.
        let has_copies = Stretches::of(self.segments.geometry.segment_blocks).has_copies();
        let blocks = blocks - if has_copies { blocks / 16 } else { 0 };
        let reserved = self.segments.reserved_pages;
        // Pages of the node table that their nodes may change: all there are, and those for new nodes.
        let nodes = self.nodes_per_page() * reserved;
        let table = nodes.min(self.table.pages.len() as u64 + nodes / TABLE_NODES + 1);
        blocks.saturating_sub(self.reserved_blocks() + table)
    }

    /// Blocks that can be written once dead space is given back, above the reserves and what is reserved.
    pub(crate) fn writable_blocks(&self, spare: Option<u64>) -> u64 {
        let space = self.space(spare);
        space.total.saturating_sub(space.live + space.reserved + space.kept)
    }

    pub(crate) fn is_short_of_space(&self) -> bool {
        let low = policy::low_mark(self.segments.held());
        self.segments.free_count() < self.floor(Class::Reservation) + low
    }

    /// Free segments below which cleaning starts.
    pub(crate) fn cleaning_starts_below(&self) -> u64 {
        self.floor(Class::Reservation) + policy::starts_below(self.segments.held(), self.reserved_segments())
    }

    /// Free segments that are missing where cleaning starts. Those that a round emptied count as free: two checkpoints, which are
    /// asked for when it ends, give them back. Else an operation that comes between would begin the next one too early, and too urgently. As
    /// many count as cleaning keeps in hand, so that it never starts later than where the reserve begins.
    pub(crate) fn missing(&self) -> u64 {
        let low = policy::low_mark(self.segments.held());
        let free = self.segments.free_count() + self.segments.pending_free.emptied().min(low);
        self.cleaning_starts_below().saturating_sub(free)
    }

    /// Where the file system below has `spare` blocks left.
    pub(crate) fn space(&self, spare: Option<u64>) -> Space {
        let geometry = &self.segments.geometry;
        let bare = self.segments.bare_count();
        let bare = spare.map_or(bare, |spare| bare.min(spare / geometry.segment_blocks));
        Space {
            total: (self.segments.held() + bare) * geometry.segment_blocks,
            bare: bare * geometry.segment_blocks,
            kept: self.floor(Class::Reservation) * geometry.segment_blocks,
            live: self.segments.iter().map(|(_, segment)| u64::from(segment.live)).sum(),
            nodes: self.table.used(),
            free: self.segments.free_count() * geometry.segment_blocks + self.segments.log_rest,
            reserved: self.reserved_blocks(),
        }
    }
}

impl Store {
    /// Reserves space for `pages` more pages to be written back, map nodes included. Does no I/O.
    ///
    /// # Errors
    /// [`StoreError::Full`] while space is left for checkpoints, cleaning and deletions. There may be more after
    /// [`clean`](Store::clean) and two checkpoints.
    pub fn reserve(&self, pages: u64) -> Result<(), StoreError> {
        let mut map = self.map_mut();
        if pages.saturating_mul(map.blocks_per_page()) > map.reservable() {
            return Err(StoreError::Full);
        }
        #[cfg(feature = "planted-bugs")]
        if map.plant_forgotten_reservation {
            return Ok(());
        }
        map.segments.reserved_pages += pages;
        Ok(())
    }

    /// Counts `pages` pages as reserved, whether there is space for them or not: they were acknowledged already, or go with
    /// something that gives space back, and will be written back. No other operation can reserve anything before there is space for these.
    pub fn reserve_unchecked(&self, pages: u64) {
        self.map_mut().segments.reserved_pages += pages;
    }

    /// Blocks that can still be reserved.
    pub fn reservable_blocks(&self) -> u64 {
        self.map().reservable()
    }

    /// Blocks that are reserved for a page: six, or eight where something was cloned.
    pub fn blocks_per_page(&self) -> u64 {
        self.map().blocks_per_page()
    }

    /// Gives back a reservation for `pages` pages: used, or not needed after all.
    pub fn release(&self, pages: u64) {
        let mut map = self.map_mut();
        #[cfg(feature = "planted-bugs")]
        if map.plant_forgotten_reservation {
            return;
        }
        let reserved = map.segments.reserved_pages;
        assert!(pages <= reserved, "{pages} pages given back, {reserved} reserved");
        map.segments.reserved_pages -= pages;
    }

    /// Whether free space is low, so that checkpoints and [`clean`](Store::clean) should find some.
    pub fn is_short_of_space(&self) -> bool {
        self.map().is_short_of_space()
    }
}

#[cfg(test)]
mod tests;
