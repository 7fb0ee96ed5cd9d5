//! Space: what is live, what is free, what is reserved, and who may use the last of it.

use crate::bug::PlantedBug;
use crate::entry::LogEntry;
use crate::error::StoreError;
use crate::format::{LEAF_OBJECTS, LEAF_PAGES, TABLE_NODES};
use crate::map::{Map, ObjectEntry, Pages};
use crate::pace::{Pace, Round};
use crate::policy::{self, COPIES, Class, NodeUse, ahead, low_mark};
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
    /// Of these, nodes of the map and their copies: exact.
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

/// Space is tight where less than one block in so many can be written.
const TIGHT: u64 = 8;

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
/// What it may cost itself: a log entry of its own, and two blocks, as it may be metadata.
const BLOCKS_OF_PAGE: u64 = 1 + COPIES;
/// Blocks that one page being written back may cost until the next checkpoint but one, beside the node table's pages, where there are
/// no clones: itself, its nodes and their copies.
pub const BLOCKS_PER_PAGE: u64 = BLOCKS_OF_PAGE + COPIES * NODES_PER_PAGE;

/// What is reserved for pages that will be written back, and how fast the round of cleaning under way goes. Owned by the map, under its
/// lock. Gone after a crash: the caller reserves anew.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    /// Pages that writers have a reservation for.
    pages: u64,
    /// A clone is on its way to the log.
    expects_sharing: u64,
    pace: Option<Pace>,
}

impl Map {
    /// What the segments of nodes hold, and the next checkpoint writes to them, each block counted once.
    pub(crate) fn node_use(&self) -> NodeUse {
        let table = self.nodes.table.pages().len() as u64;
        let segment_blocks = self.nodes.segments.geometry().segment_blocks;
        NodeUse {
            segment_blocks,
            dirty: self.nodes.dirty(),
            nodes: self.nodes.table.used(),
            tables: table + self.stream_blocks(table as usize + 1),
            live: self.nodes.segments.of_nodes().live,
            held: self.nodes.segments.of_nodes().segments * segment_blocks,
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
        // Volumes whose objects are shared, or that were empty, change with their first page.
        let volumes = if class == Class::Reservation { self.volumes.nodes_max() } else { 0 };
        let (dirty, nodes) = (now.dirty + dirtied + volumes, now.nodes + new);
        policy::floor(class, &NodeUse { dirty, nodes, tables: now.tables + new.div_ceil(TABLE_NODES), ..now })
    }

    fn nodes_per_page(&self) -> u64 {
        NODES_PER_PAGE + if self.shares_nodes() { SHARED_PER_PAGE } else { 0 }
    }

    /// What is reserved for a page.
    pub(crate) fn blocks_per_page(&self) -> u64 {
        BLOCKS_OF_PAGE + COPIES * self.nodes_per_page()
    }

    /// What is reserved for all pages that have a reservation.
    fn reserved_blocks(&self) -> u64 {
        self.reservations.pages * self.blocks_per_page()
    }

    /// Nodes that a vector may make dirty, at most as many as a reservation counts: those of the volumes' tree it counts as a whole. A cut that leaves newer pages in leaves
    /// between its ends changes more: such pages have been written back before it, and their leaves have been counted then.
    pub(crate) fn nodes_for(&self, log_entries: &[LogEntry]) -> u64 {
        let mut nodes = BTreeSet::new();
        let mut path = |of: (VolumeId, Option<u64>), leaf: u64, height: u8| {
            let level = |level: u8| leaf.checked_shr(8 * u32::from(level)).unwrap_or(0);
            let heights = (0..=8).take_while(|&at| at <= height || level(at) > 0);
            nodes.extend(heights.map(|at| (of, at, level(at))));
        };
        let (mut pages, mut ranges, mut of_volumes) = (0, 0, BTreeSet::new());
        for log_entry in log_entries {
            let of_objects = !matches!(
                log_entry,
                LogEntry::CloneVolume { .. } | LogEntry::NameVolume { .. } | LogEntry::DeleteVolume { .. }
            );
            let settled = |volume: &VolumeId| of_objects && self.volumes.is_settled(&self.nodes, *volume);
            let changed = log_entry.changed_volumes().filter(|volume| !settled(volume));
            of_volumes.extend(changed.flat_map(|volume| self.volumes.path(volume)));
            let mut object = |ObjectId { volume, slot, .. }: &ObjectId| {
                let objects = self.volumes.get(*volume).map_or(0, |volume| volume.objects.height);
                path((*volume, None), slot / LEAF_OBJECTS, objects);
                match self.slot(*volume, *slot) {
                    Ok(Some(ObjectEntry { pages: Pages::Tree(tree), .. })) => tree.height,
                    _ => 0,
                }
            };
            match log_entry {
                LogEntry::Write { object: of, page, .. } => {
                    let height = object(of);
                    path((of.volume, Some(of.slot)), page.0 / LEAF_PAGES, height);
                    pages += 1;
                }
                LogEntry::Deltas { object: of, first, .. } => {
                    let height = object(of);
                    path((of.volume, Some(of.slot)), first.0 / LEAF_PAGES, height);
                    ranges += self.nodes_as_tree(of);
                    pages += 1;
                }
                LogEntry::Cut { object: of, pages, .. } => {
                    let height = object(of);
                    ranges += self.nodes_if_apart(of);
                    path((of.volume, Some(of.slot)), pages.start.0 / LEAF_PAGES, height);
                    let last = pages.end.0.saturating_sub(1) / LEAF_PAGES;
                    if last.checked_shr(8 * u32::from(height)).unwrap_or(0) == 0 {
                        path((of.volume, Some(of.slot)), last, height);
                    }
                }
                LogEntry::Delete { object: of, .. } => drop(object(of)),
                LogEntry::Clone { transfer, .. } | LogEntry::Move { transfer, .. } => {
                    object(&transfer.from);
                    object(&transfer.to);
                    ranges += self.nodes_for_transfer(transfer);
                }
                LogEntry::CloneVolume { .. }
                | LogEntry::NameVolume { .. }
                | LogEntry::DeleteVolume { .. } => {}
            }
        }
        let others = log_entries.len() as u64 - pages;
        let own = ranges + (nodes.len() as u64).min(NODES_PER_PAGE * pages + NODES_PER_CHANGE * others);
        let own = own + of_volumes.len() as u64;
        if !self.shares_nodes() {
            return own;
        }
        let leaves = nodes.iter().filter(|&&(_, level, _)| level == 0).count() as u64;
        own + leaves.min(SHARED_PER_PAGE * pages + SHARED_PER_CHANGE * others)
    }

    /// Nodes that an object needs when its pages do not fit into its entry any more.
    fn nodes_if_apart(&self, object: &ObjectId) -> u64 {
        match self.object(*object) {
            Ok(Some(entry)) => entry.nodes_if_outgrown(),
            _ => 0,
        }
    }

    /// Nodes that an object needs when its pages may not lie in its entry any more.
    fn nodes_as_tree(&self, object: &ObjectId) -> u64 {
        match self.object(*object) {
            Ok(Some(ObjectEntry { pages: Pages::Inline(pages), .. })) => {
                let leaves: BTreeSet<u64> = pages.iter().map(|(page, _)| page.0 / LEAF_PAGES).collect();
                let heights = leaves
                    .last()
                    .map_or(0, |&last| u64::from((u64::BITS - last.leading_zeros()).div_ceil(8)));
                leaves.len() as u64 * (1 + heights)
            }
            _ => 0,
        }
    }

    pub(crate) fn reserved_segments(&self) -> u64 {
        self.reserved_blocks().div_ceil(self.nodes.segments.geometry().segment_blocks)
    }

    /// Whether nodes have several references, or are about to.
    fn shares_nodes(&self) -> bool {
        self.nodes.table.has_shared() || self.reservations.expects_sharing > 0
    }

    /// Counts nodes as shared from now on, as a clone will make them, if there is space for what that adds to the reservations.
    pub(crate) fn expect_sharing(&mut self) -> Result<(), StoreError> {
        if !self.shares_nodes() && self.reservations.pages * COPIES * SHARED_PER_PAGE > self.reservable() {
            return Err(StoreError::Full);
        }
        self.reservations.expects_sharing += 1;
        Ok(())
    }

    /// Blocks that a new reservation may count on.
    pub(crate) fn reservable(&self) -> u64 {
        let free = self.nodes.segments.free_count() + self.nodes.segments.pending_free().coming();
        let Some(free) = free.checked_sub(self.floor(Class::Reservation)) else { return 0 };
        let blocks = free * self.nodes.segments.geometry().segment_blocks + self.nodes.segments.log_rest();
        // A 16th for the copies of heads, a 32nd of each stretch at most, and its last block.
        let has_copies = Stretches::of(self.nodes.segments.geometry().segment_blocks).has_copies();
        let blocks = blocks - if has_copies { blocks / 16 } else { 0 };
        let reserved = self.reservations.pages;
        // Pages of the node table that their nodes may change: all there are, and those for new nodes; and copies.
        let nodes = self.nodes_per_page() * reserved;
        let table = nodes.min(self.nodes.table.pages().len() as u64 + nodes / TABLE_NODES + 1);
        blocks.saturating_sub(self.reserved_blocks() + COPIES * table)
    }

    /// Blocks that can be written once dead space is given back, above the reserves and what is reserved.
    pub(crate) fn writable_blocks(&self, spare: Option<u64>) -> u64 {
        let space = self.space(spare);
        space.total.saturating_sub(space.live + space.reserved + space.kept)
    }

    /// Whether less than an eighth of the blocks are neither live nor kept. What is reserved for pages that are dirty now does not count, as
    /// most of it is given back.
    pub(crate) fn is_tight(&self) -> bool {
        let Space { total, live, kept, .. } = self.space(None);
        total.saturating_sub(live + kept) < total / TIGHT
    }

    pub(crate) fn is_short_of_space(&self) -> bool {
        let low = policy::low_mark(self.nodes.segments.held());
        self.nodes.segments.free_count() < self.floor(Class::Reservation) + low
    }

    /// Free segments below which cleaning starts.
    pub(crate) fn cleaning_starts_below(&self) -> u64 {
        self.floor(Class::Reservation)
            + policy::starts_below(self.nodes.segments.held(), self.reserved_segments())
    }

    /// Free segments that are missing where cleaning starts. Those that a round emptied count as free: two checkpoints, which are
    /// asked for when it ends, give them back. Else whoever comes between would begin the next one too early, and in haste. As
    /// many count as cleaning keeps in hand, so that it never starts later than where the reserve begins.
    pub(crate) fn missing(&self) -> u64 {
        let low = policy::low_mark(self.nodes.segments.held());
        let free = self.nodes.segments.free_count() + self.nodes.segments.pending_free().emptied().min(low);
        self.cleaning_starts_below().saturating_sub(free)
    }

    /// Where the file system below has `spare` blocks left.
    pub(crate) fn space(&self, spare: Option<u64>) -> Space {
        let geometry = &self.nodes.segments.geometry();
        let bare = self.nodes.segments.bare_count();
        let bare = spare.map_or(bare, |spare| bare.min(spare / geometry.segment_blocks));
        Space {
            total: (self.nodes.segments.held() + bare) * geometry.segment_blocks,
            bare: bare * geometry.segment_blocks,
            kept: self.floor(Class::Reservation) * geometry.segment_blocks,
            live: self.nodes.segments.iter().map(|(_, segment)| u64::from(segment.live)).sum(),
            nodes: COPIES * self.nodes.table.used(),
            free: self.nodes.segments.free_count() * geometry.segment_blocks + self.nodes.segments.log_rest(),
            reserved: self.reserved_blocks(),
        }
    }

    /// Reserves space for `pages` more pages: see [`Store::reserve`](crate::Store::reserve).
    pub(crate) fn reserve(&mut self, pages: u64) -> Result<(), StoreError> {
        if pages.saturating_mul(self.blocks_per_page()) > self.reservable() {
            return Err(StoreError::Full);
        }
        if !self.is_planted(PlantedBug::ForgottenReservation) {
            self.reservations.pages += pages;
        }
        Ok(())
    }

    /// Counts `pages` pages as reserved whether there is space for them or not.
    pub(crate) fn reserve_in_any_case(&mut self, pages: u64) {
        self.reservations.pages += pages;
    }

    /// Gives back a reservation for `pages` pages.
    pub(crate) fn release(&mut self, pages: u64) {
        if self.is_planted(PlantedBug::ForgottenReservation) {
            return;
        }
        let reserved = self.reservations.pages;
        assert!(pages <= reserved, "{pages} pages given back, {reserved} reserved");
        self.reservations.pages -= pages;
    }

    /// The same for a clone that was acknowledged already, before a crash.
    pub(crate) fn expect_sharing_in_any_case(&mut self) {
        self.reservations.expects_sharing += 1;
    }

    /// A clone that was expected is there, or will not be.
    pub(crate) fn end_expecting_sharing(&mut self) {
        self.reservations.expects_sharing -= 1;
    }

    /// Pages that may be written back before the next look at whether cleaning is due.
    pub(crate) fn pages_together(&self) -> u64 {
        match (self.nodes.cleaning(), self.reservations.pace) {
            (Some(_), Some(pace)) => pace.together(),
            _ => u64::MAX,
        }
    }

    /// Free segments that the store should have: the reserves, what is reserved, and what cleaning keeps in hand.
    pub(crate) fn wanted_below(&self) -> u64 {
        self.floor(Class::Reservation) + low_mark(self.nodes.segments.held()) + self.reserved_segments()
    }

    pub(crate) fn ahead(&self) -> u64 {
        ahead(self.nodes.segments.held(), self.nodes.segments.geometry().segment_blocks)
    }

    /// Free segments beyond which dead ones are trimmed.
    pub(crate) fn kept_from_trims(&self) -> u64 {
        self.wanted_below() + 4 * self.ahead()
    }

    /// Sets the pace for a round that empties `victims`.
    pub(crate) fn begin_pace(&mut self, victims: &[u32]) {
        let geometry = self.nodes.segments.geometry();
        let segments = self.nodes.segments.held();
        let live = |&victim: &u32| u64::from(self.nodes.segments.get(victim).live);
        self.reservations.pace = Some(Pace::new(&Round {
            segment_blocks: geometry.segment_blocks,
            victims: victims.len() as u64,
            live: victims.iter().map(live).sum(),
            copies: victims.iter().map(|victim| policy::with_lists(live(victim))).sum(),
            nodes: self.nodes.table.used(),
            segments,
            missing: self.missing(),
        }));
    }

    /// So many blocks were written to the log.
    pub(crate) fn pay_for(&mut self, blocks: u64) {
        let left = self.cleaning_left();
        if let (Some(left), Some(pace)) = (left, &mut self.reservations.pace) {
            pace.wrote(blocks, left);
        }
    }

    /// What is left to do in the round under way.
    fn cleaning_left(&self) -> Option<u64> {
        let scan = self.nodes.cleaning()?;
        let nodes = if scan.is_complete() { 0 } else { self.nodes.table.used().saturating_sub(scan.visited) };
        Some(
            nodes + scan.victims().map(|victim| u64::from(self.nodes.segments.get(victim).live)).sum::<u64>(),
        )
    }

    /// Whether a step of cleaning is due for what was written.
    pub(crate) fn cleaning_is_due(&self) -> bool {
        match (self.cleaning_left(), self.reservations.pace) {
            (Some(left), Some(pace)) => pace.is_due(left),
            _ if self.missing() == 0 => false,
            _ => self.nodes.segments.counts_may_be_high() || !self.nodes.segments.candidates().is_empty(),
        }
    }
}

#[cfg(test)]
mod tests;
