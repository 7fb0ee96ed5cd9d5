//! Space accounting: which blocks are live, free or reserved, and how much each class of writer may still
//! take.

use crate::bug::{StoreBug, is_planted};
use crate::error::StoreError;
use crate::format::{LEAF_OBJECTS, LEAF_PAGES, TABLE_NODES};
use crate::gc_pacer::{GcPacer, GcRound};
use crate::log_entry::LogEntry;
use crate::map::{ObjectEntry, ObjectPageEntries, PageMap};
use crate::policy::{self, METADATA_COPIES, NodeSpaceUse, SpaceClass, low_mark, segments_ahead};
use crate::volume::VolumeId;
use device::ObjectId;
use std::collections::BTreeSet;
use std::ops::{Add, Sub};

/// The store's blocks, by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreSpace {
    /// Blocks in segments, without the segments for which the host file system has no space.
    pub total: u64,
    /// Blocks to which a map entry, a node or a root refers: an upper bound.
    pub live: u64,
    /// Of the live blocks, map nodes and their mirrors: exact.
    pub nodes: u64,
    /// Blocks in free segments, and the unwritten rest of the log's open segment.
    pub free: u64,
    /// Blocks in segments that are free as soon as the host file system allocates them, for which it has
    /// space.
    pub unbacked: u64,
    /// Blocks reserved for dirty pages: the most that these can take. The blocks are free, or dead and not
    /// cleaned yet.
    pub reserved: u64,
    /// Blocks that can still be reserved for data.
    pub reservable: u64,
    /// Estimate of the blocks that the reserved pages will take.
    pub expected: u64,
    /// Blocks that data can never have: kept for names, deletions, checkpoints and cleaning.
    pub kept: u64,
}

/// The work of a round of cleaning, in blocks to move and map nodes to visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CleaningWork {
    /// Work until the end of the round.
    pub left: u64,
    /// The part of it that is owed for blocks already written: the GC debt.
    pub debt: u64,
}

/// Most changes that are applied together.
pub(crate) const APPLY_TOGETHER_MAX: usize = 1024;

/// Space is tight when less than one block in this many can be written.
const TIGHT_FRACTION: u64 = 8;

impl StoreSpace {
    /// Blocks that data can use.
    pub fn usable(&self) -> u64 {
        self.total.saturating_sub(self.kept)
    }

    /// Usable blocks in use: live blocks (mirrors and the map included), and the estimate for pages that are
    /// still dirty.
    pub fn used(&self) -> u64 {
        self.live + self.expected
    }

    /// Usable blocks that are not in use. Some may be dead: cleaning frees them when they are needed.
    pub fn available(&self) -> u64 {
        self.usable().saturating_sub(self.used())
    }
}

/// Nodes that writing back one page may change: its page leaf, its object leaf, and the node above each,
/// which a clone may have made shared. Nodes further up are shared by 256 times as many pages.
const NODES_PER_PAGE: u64 = 4;
/// With clones, also the two shared leaves that the page's own leaves are copied from: their entries are
/// marked then as having other references.
const SHARED_LEAVES_PER_PAGE: u64 = 2;
/// As [`NODES_PER_PAGE`], for any other change: an object leaf, two page leaves, and the node above each.
const NODES_PER_CHANGE: u64 = 6;
const SHARED_LEAVES_PER_CHANGE: u64 = 3;
/// Blocks that the first page of a leaf may make live, beside the page: new nodes with their mirrors, and
/// half as much again, which may be dead among nodes before these are compacted.
const BLOCKS_PER_LEAF: u64 = METADATA_COPIES * NODES_PER_PAGE * 3 / 2;
/// Pages for which one block of nodes is expected: a node has the entries of sixteen small files, and is
/// mirrored.
const PAGES_PER_NODE_BLOCK: u64 = 8;
/// Blocks reserved for a page of which nothing is known: it may be metadata, which is mirrored, and the first
/// page of its leaf.
pub const RESERVED_BLOCKS_PER_PAGE: u64 = METADATA_COPIES + BLOCKS_PER_LEAF;

/// Facts about the pages that have a reservation. They lower the charge for a page below
/// [`RESERVED_BLOCKS_PER_PAGE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReservationEstimate {
    /// Pages of data, which are written once.
    pub data_pages: u64,
    /// Pages in a map leaf (128 pages of an object) in which another page has a reservation.
    pub pages_in_same_leaf: u64,
}

impl ReservationEstimate {
    /// Blocks to reserve for `pages` pages, of which this is known.
    fn blocks_for(&self, pages: u64) -> u64 {
        let saved = self.data_pages * (METADATA_COPIES - 1) + self.pages_in_same_leaf * BLOCKS_PER_LEAF;
        pages.saturating_mul(RESERVED_BLOCKS_PER_PAGE).saturating_sub(saved)
    }

    /// The estimate after `pages` reservations were released. Which pages they were is unknown, so assume the
    /// cheapest.
    fn after_release(&self, pages: u64) -> ReservationEstimate {
        let data = self.data_pages.saturating_sub(pages);
        let in_same_leaf = self.pages_in_same_leaf.saturating_sub(pages);
        ReservationEstimate { data_pages: data, pages_in_same_leaf: in_same_leaf }
    }
}

impl Add for ReservationEstimate {
    type Output = ReservationEstimate;

    fn add(self, other: ReservationEstimate) -> ReservationEstimate {
        ReservationEstimate {
            data_pages: self.data_pages + other.data_pages,
            pages_in_same_leaf: self.pages_in_same_leaf + other.pages_in_same_leaf,
        }
    }
}

impl Sub for ReservationEstimate {
    type Output = ReservationEstimate;

    fn sub(self, other: ReservationEstimate) -> ReservationEstimate {
        ReservationEstimate {
            data_pages: self.data_pages - other.data_pages,
            pages_in_same_leaf: self.pages_in_same_leaf - other.pages_in_same_leaf,
        }
    }
}

/// Reservations of pages that will be written back, and the pacer of the cleaning round under way. Owned by
/// the map, under its lock. Lost in a crash: the caller reserves anew.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    /// Pages that have a reservation.
    pages: u64,
    estimate: ReservationEstimate,
    /// Blocks that a merge of shared pages may be making live at this moment.
    merge_blocks: u64,
    pacer: Option<GcPacer>,
}

impl PageMap {
    /// The blocks that node segments hold, and the blocks that the next checkpoint writes to them. A block
    /// and its mirror count once.
    pub(crate) fn node_use(&self) -> NodeSpaceUse {
        let table = self.nodes.table.pages().len() as u64;
        let segment_blocks = self.nodes.segments.geometry().segment_blocks;
        NodeSpaceUse {
            segment_blocks,
            dirty: self.nodes.dirty(),
            dirty_max: self.dirty_max(),
            nodes: self.nodes.table.used_count(),
            tables: table + self.stream_blocks(table as usize + 1),
            live: self.nodes.segments.node_segments().live,
            held: self.nodes.segments.node_segments().segments * segment_blocks,
        }
    }

    /// Most nodes that may be dirty at once.
    pub(crate) fn dirty_max(&self) -> u64 {
        let segment_blocks = self.nodes.segments.geometry().segment_blocks;
        policy::dirty_max(self.nodes.segments.backed_count() * segment_blocks, segment_blocks)
    }

    /// Whether `nodes` more nodes may become dirty before the next checkpoint. While no node is dirty, any
    /// number may.
    pub(crate) fn may_dirty(&self, nodes: u64) -> bool {
        let dirty = self.nodes.dirty();
        dirty == 0 || dirty + nodes <= self.dirty_max()
    }

    /// Whether at least half of the allowed nodes are dirty: then a checkpoint is due.
    pub(crate) fn has_many_dirty(&self) -> bool {
        2 * self.nodes.dirty() >= self.dirty_max()
    }

    /// Free segments that `class` must leave alone.
    pub(crate) fn floor(&self, class: SpaceClass) -> u64 {
        self.floor_with(class, 0, 0)
    }

    /// As [`floor`](PageMap::floor), once `dirtied` more nodes are dirty, of which `new` may be new.
    pub(crate) fn floor_with(&self, class: SpaceClass, dirtied: u64, new: u64) -> u64 {
        let now = self.node_use();
        let dirty = now.dirty + dirtied;
        let nodes = now.nodes + new;
        policy::free_segments_floor(
            class,
            &NodeSpaceUse { dirty, nodes, tables: now.tables + new.div_ceil(TABLE_NODES), ..now },
        )
    }

    /// How many of a vector's first changes may be applied together: half of the nodes that may be dirty at
    /// once suffice for them, and there are free segments for them. At least one.
    pub(crate) fn changes_that_fit(&self, log_entries: &[LogEntry]) -> usize {
        let segment_blocks = self.nodes.segments.geometry().segment_blocks;
        let only_free = log_entries.iter().all(LogEntry::frees);
        let class = if only_free { SpaceClass::Frees } else { SpaceClass::Writer };
        let free = self.nodes.segments.free_count().saturating_sub(self.floor(class));
        let fits = |some: &[LogEntry]| {
            let paired = some.iter().filter(|entry| entry.is_mirrored()).count() as u64;
            // An entry takes less than a block, and its page, unless it is mirrored, follows it.
            let logged = (2 * some.len() as u64 - paired).saturating_sub(self.nodes.segments.log_rest());
            logged.div_ceil(segment_blocks) + METADATA_COPIES * paired.div_ceil(segment_blocks) <= free
                && self.nodes_dirtied_by(some) <= self.dirty_max() / 2
        };
        let mut count = log_entries.len().min(APPLY_TOGETHER_MAX);
        while count > 1 && !fits(&log_entries[..count]) {
            count /= 2;
        }
        count
    }

    /// Live blocks, with those that the next checkpoint makes live: a new node has no place before.
    fn live_blocks(&self) -> u64 {
        let NodeSpaceUse { nodes, tables, live, .. } = self.node_use();
        self.nodes.segments.live_blocks() + METADATA_COPIES * (nodes + tables).saturating_sub(live)
    }

    /// Blocks reserved for all pages that have a reservation.
    pub(crate) fn reserved_blocks(&self) -> u64 {
        self.reservations.estimate.blocks_for(self.reservations.pages)
    }

    /// Estimate of the blocks that the reserved pages will take: data once, metadata twice, and an eighth
    /// more for nodes. Small files need as many nodes as that, others fewer.
    fn expected_blocks(&self) -> u64 {
        let Reservations { pages, estimate: known, .. } = self.reservations;
        let metadata = pages.saturating_sub(known.data_pages);
        (pages + metadata + pages.div_ceil(PAGES_PER_NODE_BLOCK)).min(self.reserved_blocks())
    }

    /// Nodes that a vector may make dirty: at most as many as a reservation counts, and all those of the
    /// volumes' tree.
    ///
    /// A punch that keeps newer pages in leaves between its ends changes more nodes. The newer pages were
    /// written back before the punch, and their leaves were counted then.
    pub(crate) fn nodes_dirtied_by(&self, log_entries: &[LogEntry]) -> u64 {
        let mut nodes = BTreeSet::new();
        let mut path = |of: (VolumeId, Option<u64>), leaf: u64, height: u8| {
            let level = |level: u8| leaf.checked_shr(8 * u32::from(level)).unwrap_or(0);
            let heights = (0..=8).take_while(|&at| at <= height || level(at) > 0);
            nodes.extend(heights.map(|at| (of, at, level(at))));
        };
        let mut pages = 0;
        let mut ranges = 0;
        let mut of_volumes = BTreeSet::new();
        for log_entry in log_entries {
            let of_objects = !matches!(
                log_entry,
                LogEntry::CreateVolume { .. }
                    | LogEntry::CloneVolume { .. }
                    | LogEntry::NameVolume { .. }
                    | LogEntry::DeleteVolume { .. }
            );
            let settled = |volume: &VolumeId| of_objects && self.volumes.is_unshared(&self.nodes, *volume);
            let changed = log_entry.changed_volumes().filter(|volume| !settled(volume));
            of_volumes.extend(changed.flat_map(|volume| self.volumes.path(volume)));
            let mut object = |ObjectId { volume, slot, .. }: &ObjectId| {
                let objects = self.volumes.get(*volume).map_or(0, |volume| volume.objects.height);
                path((*volume, None), slot / LEAF_OBJECTS, objects);
                match self.slot(*volume, *slot) {
                    Ok(Some(ObjectEntry { pages: ObjectPageEntries::Tree(tree), .. })) => tree.height,
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
                    ranges += self.nodes_if_tree(of);
                    pages += 1;
                }
                LogEntry::Punch { object: of, pages, .. } => {
                    let height = object(of);
                    ranges += self.nodes_if_outgrown(of);
                    path((of.volume, Some(of.slot)), pages.start.0 / LEAF_PAGES, height);
                    let last = pages.end.0.saturating_sub(1) / LEAF_PAGES;
                    if last.checked_shr(8 * u32::from(height)).unwrap_or(0) == 0 {
                        path((of.volume, Some(of.slot)), last, height);
                    }
                }
                LogEntry::Delete { object: of, .. } => drop(object(of)),
                LogEntry::Transfer { transfer, .. } => {
                    object(&transfer.from);
                    object(&transfer.to);
                    ranges += self.nodes_for_transfer(transfer);
                }
                LogEntry::CreateVolume { .. }
                | LogEntry::CloneVolume { .. }
                | LogEntry::NameVolume { .. }
                | LogEntry::DeleteVolume { .. } => {}
            }
        }
        let others = log_entries.len() as u64 - pages;
        let own = ranges + (nodes.len() as u64).min(NODES_PER_PAGE * pages + NODES_PER_CHANGE * others);
        let own = own + of_volumes.len() as u64;
        if !self.nodes.table.has_shared() {
            return own;
        }
        let leaves = nodes.iter().filter(|&&(_, level, _)| level == 0).count() as u64;
        own + leaves.min(SHARED_LEAVES_PER_PAGE * pages + SHARED_LEAVES_PER_CHANGE * others)
    }

    /// Nodes that an object needs once its pages no longer fit into its entry.
    fn nodes_if_outgrown(&self, object: &ObjectId) -> u64 {
        match self.object(*object) {
            Ok(Some(entry)) => entry.nodes_if_outgrown(),
            _ => 0,
        }
    }

    /// Nodes that an object needs once its pages may no longer be inline in its entry.
    fn nodes_if_tree(&self, object: &ObjectId) -> u64 {
        match self.object(*object) {
            Ok(Some(ObjectEntry { pages: ObjectPageEntries::Inline(pages), .. })) => {
                let leaves: BTreeSet<u64> = pages.iter().map(|(page, _)| page.0 / LEAF_PAGES).collect();
                let heights = leaves
                    .last()
                    .map_or(0, |&last| u64::from((u64::BITS - last.leading_zeros()).div_ceil(8)));
                leaves.len() as u64 * (1 + heights)
            }
            _ => 0,
        }
    }

    /// Blocks that no reservation can have.
    fn reserve_blocks(&self) -> u64 {
        policy::reserve_blocks(&self.node_use(), self.nodes.segments.backed_count())
    }

    /// Blocks that data can never have.
    fn kept_from_data(&self) -> u64 {
        self.reserve_blocks() + policy::names_reserve_blocks(self.backed_blocks())
    }

    /// Blocks that a new reservation may count on: backed blocks that are neither live nor kept nor reserved.
    /// Some may be dead, and must be cleaned before they can be written.
    pub(crate) fn reservable(&self) -> u64 {
        self.spare_for_data().saturating_sub(self.reserved_blocks())
    }

    /// Backed blocks that are neither live nor kept from data, reserved or not.
    fn spare_for_data(&self) -> u64 {
        self.backed_blocks().saturating_sub(self.soon_live_blocks() + self.kept_from_data())
    }

    /// Backed blocks that are neither live nor kept from names and attributes, reserved or not.
    fn spare_for_names(&self) -> u64 {
        self.backed_blocks().saturating_sub(self.soon_live_blocks() + self.reserve_blocks())
    }

    /// Live blocks, with those that a merge may be making live.
    fn soon_live_blocks(&self) -> u64 {
        self.live_blocks() + self.reservations.merge_blocks
    }

    /// Sets space aside for a merge of `pages` pages in `leaves` leaves that clones share: their blocks stay live
    /// beside the merged pages. `false`, and nothing set aside, if space is tight or none can be reserved. Ends
    /// with [`end_shared_merge`](PageMap::end_shared_merge).
    pub(crate) fn begin_shared_merge(&mut self, pages: u64, leaves: u64) -> bool {
        let blocks = pages + leaves * BLOCKS_PER_LEAF;
        let has_space = !self.is_tight(false) && blocks <= self.reservable();
        self.reservations.merge_blocks = if has_space { blocks } else { 0 };
        has_space
    }

    /// Ends what [`begin_shared_merge`](PageMap::begin_shared_merge) began: what was merged is live now.
    pub(crate) fn end_shared_merge(&mut self) {
        self.reservations.merge_blocks = 0;
    }

    fn backed_blocks(&self) -> u64 {
        let segments = &self.nodes.segments;
        segments.backed_count() * segments.geometry().segment_blocks
    }

    /// Whether less than an eighth of the blocks are neither live nor kept. Reservations of dirty pages do
    /// not count, as most of what they reserve is given back. Blocks that a full host file system would have to
    /// allocate are not there.
    pub(crate) fn is_tight(&self, host_fs_is_full: bool) -> bool {
        let StoreSpace { total, live, kept, .. } = self.space(host_fs_is_full.then_some(0));
        total.saturating_sub(live + kept) < total / TIGHT_FRACTION
    }

    /// Whether fewer segments are free than where cleaning starts.
    pub(crate) fn is_short_of_space(&self) -> bool {
        self.nodes.segments.free_count() < self.cleaning_starts_below()
    }

    /// Free segments below which cleaning starts.
    pub(crate) fn cleaning_starts_below(&self) -> u64 {
        self.floor(SpaceClass::Writer) + low_mark(self.nodes.segments.backed_count())
    }

    /// Free segments that are missing to where cleaning starts.
    ///
    /// Segments that a round emptied count as free: the two checkpoints that are asked for at the round's end
    /// free them. Otherwise the next round would begin too early, and in haste. At most as many count as
    /// cleaning keeps in hand, so that it never starts later than where the reserve begins.
    pub(crate) fn cleaning_shortfall(&self) -> u64 {
        let low = policy::low_mark(self.nodes.segments.backed_count());
        let free = self.nodes.segments.free_count() + self.nodes.segments.emptied_count().min(low);
        self.cleaning_starts_below().saturating_sub(free)
    }

    /// The store's space. `spare` is the free space of the host file system in blocks, where a file holds the
    /// store.
    pub(crate) fn space(&self, spare: Option<u64>) -> StoreSpace {
        let geometry = &self.nodes.segments.geometry();
        let bare = self.nodes.segments.unbacked_count();
        let bare = spare.map_or(bare, |spare| bare.min(spare / geometry.segment_blocks));
        StoreSpace {
            total: (self.nodes.segments.backed_count() + bare) * geometry.segment_blocks,
            unbacked: bare * geometry.segment_blocks,
            kept: self.kept_from_data(),
            live: self.live_blocks(),
            nodes: METADATA_COPIES * self.nodes.table.used_count(),
            free: self.nodes.segments.free_count() * geometry.segment_blocks + self.nodes.segments.log_rest(),
            reserved: self.reserved_blocks(),
            reservable: self.reservable(),
            expected: self.expected_blocks(),
        }
    }

    /// Reserves space for `pages` more pages: see
    /// [`StoreSpaceAccount::reserve`](crate::StoreSpaceAccount::reserve).
    pub(crate) fn reserve(&mut self, pages: u64, known: ReservationEstimate) -> Result<(), StoreError> {
        self.reserve_within(self.spare_for_data(), pages, known)
    }

    /// As [`reserve`](PageMap::reserve), for pages of names and attributes.
    pub(crate) fn reserve_for_names(
        &mut self,
        pages: u64,
        known: ReservationEstimate,
    ) -> Result<(), StoreError> {
        self.reserve_within(self.spare_for_names(), pages, known)
    }

    fn reserve_within(
        &mut self,
        spare: u64,
        pages: u64,
        known: ReservationEstimate,
    ) -> Result<(), StoreError> {
        if known.blocks_for(self.reservations.pages.saturating_add(pages)) > spare {
            return Err(StoreError::Full);
        }
        if !self.is_planted(StoreBug::ForgottenReservation) {
            self.reservations.pages += pages;
            if is_planted(StoreBug::ReservationCountedTwice) {
                self.reservations.pages += pages;
            }
            self.reservations.estimate = known;
        }
        Ok(())
    }

    /// Counts `pages` pages as reserved, even if there is no space for them.
    pub(crate) fn reserve_unchecked(&mut self, pages: u64) {
        self.reservations.pages += pages;
    }

    /// Replaces what is known of the pages that have a reservation.
    pub(crate) fn set_reservation_estimate(&mut self, known: ReservationEstimate) {
        self.reservations.estimate = known;
    }

    /// Releases the reservations of `pages` pages. The caller says which pages they were
    /// [later](PageMap::set_reservation_estimate).
    pub(crate) fn release(&mut self, pages: u64) {
        if self.is_planted(StoreBug::ForgottenReservation) {
            return;
        }
        let reserved = self.reservations.pages;
        assert!(pages <= reserved, "{pages} pages given back, {reserved} reserved");
        self.reservations.pages -= pages;
        self.reservations.estimate = self.reservations.estimate.after_release(pages);
    }

    /// Pages that may be written back before it must be checked again whether cleaning is due.
    pub(crate) fn pages_between_cleaning_checks(&self) -> u64 {
        match (self.nodes.cleaning_scan(), self.reservations.pacer) {
            (Some(_), Some(pace)) => pace.pages_per_payment(),
            _ => u64::MAX,
        }
    }

    /// Free segments that a sparse store file should have: `ahead` more than where cleaning starts, and so
    /// many that `ahead` segments of blocks can be reserved.
    pub(crate) fn free_segments_wanted(&self, ahead: u64) -> u64 {
        let segments = &self.nodes.segments;
        let segment_blocks = segments.geometry().segment_blocks;
        let missing = self.blocks_needed(ahead).saturating_sub(segments.backed_count() * segment_blocks);
        let short = missing.div_ceil(segment_blocks - policy::dead_blocks_max(segment_blocks));
        (self.cleaning_starts_below() + ahead).max(segments.free_count() + short)
    }

    /// Blocks that a sparse store file needs in all, so that `ahead` segments of blocks can be reserved.
    fn blocks_needed(&self, ahead: u64) -> u64 {
        let segment_blocks = self.nodes.segments.geometry().segment_blocks;
        self.live_blocks() + self.kept_from_data() + self.reserved_blocks() + ahead * segment_blocks
    }

    pub(crate) fn segments_ahead(&self) -> u64 {
        segments_ahead(self.nodes.segments.backed_count(), self.nodes.segments.geometry().segment_blocks)
    }

    /// For a sparse store file: the number of free segments beyond which dead segments are trimmed, and how
    /// many may be. Reservations count on the others, dead as they may be.
    pub(crate) fn kept_from_trims(&self) -> (u64, u64) {
        let segments = &self.nodes.segments;
        let segment_blocks = segments.geometry().segment_blocks;
        let ahead = 4 * self.segments_ahead();
        let beyond = (segments.backed_count() * segment_blocks).saturating_sub(self.blocks_needed(ahead))
            / segment_blocks;
        (self.free_segments_wanted(ahead), beyond)
    }

    /// Starts the pacer for a round that empties `victims`.
    pub(crate) fn begin_gc_pacing(&mut self, victims: &[u32]) {
        let geometry = self.nodes.segments.geometry();
        let segments = self.nodes.segments.backed_count();
        let live = |&victim: &u32| u64::from(self.nodes.segments.get(victim).live);
        self.reservations.pacer = Some(GcPacer::new(&GcRound {
            segment_blocks: geometry.segment_blocks,
            victims: victims.len() as u64,
            live: victims.iter().map(live).sum(),
            copies: victims.iter().map(|victim| policy::with_summaries(live(victim))).sum(),
            nodes: match self.nodes.cleaning_scan() {
                Some(scan) if !scan.is_scan() => scan.to_look_up,
                _ => self.nodes.table.used_count(),
            },
            segments,
            missing: self.cleaning_shortfall(),
        }));
    }

    /// Charges the pacer for `blocks` blocks that were written to the log.
    pub(crate) fn charge_log_blocks(&mut self, blocks: u64) {
        let left = self.cleaning_left();
        if let (Some(left), Some(pace)) = (left, &mut self.reservations.pacer) {
            pace.charge(blocks, left);
        }
    }

    /// Work left in the round under way.
    fn cleaning_left(&self) -> Option<u64> {
        let scan = self.nodes.cleaning_scan()?;
        let nodes = if scan.is_complete() {
            scan.to_look_up
        } else {
            self.nodes.table.used_count().saturating_sub(scan.visited)
        };
        Some(
            nodes + scan.victims().map(|victim| u64::from(self.nodes.segments.get(victim).live)).sum::<u64>(),
        )
    }

    /// The work of the round under way; `None` if there is none.
    pub(crate) fn cleaning_work(&self) -> Option<CleaningWork> {
        let left = self.cleaning_left()?;
        let debt = self.reservations.pacer.map_or(0, |pacer| pacer.debt(left));
        Some(CleaningWork { left, debt })
    }

    /// Whether a step of cleaning is owed for what was written.
    pub(crate) fn cleaning_is_owed(&self) -> bool {
        match (self.cleaning_left(), self.reservations.pacer) {
            (Some(left), Some(pace)) => pace.is_due(left),
            _ if self.cleaning_shortfall() == 0 => false,
            _ => self.nodes.segments.counts_may_be_high() || !self.nodes.segments.candidates().is_empty(),
        }
    }
}

#[cfg(test)]
mod tests;
