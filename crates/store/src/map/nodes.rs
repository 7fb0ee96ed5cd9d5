//! The nodes of the map: which are in memory, where each lies, how many references it has, and which blocks
//! are live through it.
//!
//! A node is added with one reference. When its last reference is dropped, the node and its references are
//! removed. Live blocks, references and scans under way always change together, so all of that is here.

use super::node::{MapNode, MissingNodes, NodeBody, NodeId, encode};
use super::node_table::NodeTable;
use super::page_leaf::{BlockEntry, DroppedBlocks};
use super::scan::{MapScan, NodeColour, PeekedNode, ScanPurpose, ScanTarget};
use crate::bug::{StoreBug, is_planted};
use crate::error::StoreError;
use crate::segments::SegmentTable;
use device::{Block, Page, StoreId};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::Ordering;

/// The nodes, the node table, the segments in which nodes and data lie, and the scans under way. Owned by the
/// map, under its lock. After a crash: the nodes of the newest root.
pub(crate) struct MapNodes {
    /// Nodes in memory: all dirty ones, and some clean ones.
    cached: BTreeMap<NodeId, MapNode>,
    /// How many of the nodes in memory are dirty.
    dirty: u64,
    /// Clean nodes to keep in memory.
    clean_max: usize,
    /// Where eviction continues.
    hand: NodeId,
    /// Number of callers that need all nodes to stay in memory now.
    pins: u32,
    pub(crate) table: NodeTable,
    pub(crate) segments: SegmentTable,
    /// Nodes that recovery needed and could not read. They are not read again: the version on the medium
    /// lacks the log entries that were skipped.
    pub(crate) lost: BTreeMap<NodeId, StoreError>,
    /// The cleaner's scan.
    cleaning_scan: Option<MapScan>,
    /// The scrubber's scan.
    scrubbing_scan: Option<MapScan>,
}

/// 16,384 nodes, 64 MiB: the leaves of 8 GiB of pages.
const CLEAN_MAX_DEFAULT: usize = 16_384;
/// A look-up needs all nodes on its path at once.
const CLEAN_MAX_MIN: usize = 64;

impl MapNodes {
    pub(crate) fn new(table: NodeTable, segments: SegmentTable) -> MapNodes {
        MapNodes {
            cached: BTreeMap::new(),
            dirty: 0,
            clean_max: CLEAN_MAX_DEFAULT,
            hand: NodeId::NONE,
            pins: 0,
            table,
            segments,
            lost: BTreeMap::new(),
            cleaning_scan: None,
            scrubbing_scan: None,
        }
    }

    /// Sets how many clean nodes to keep in memory; a minimum applies.
    pub(crate) fn set_clean_max(&mut self, nodes: usize) {
        self.clean_max = nodes.max(CLEAN_MAX_MIN);
    }

    /// How many nodes the next checkpoint writes.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty
    }

    /// Whether a node is in memory.
    pub(crate) fn is_cached(&self, id: NodeId) -> bool {
        self.cached.contains_key(&id)
    }

    /// Whether the medium has the node as it is here.
    pub(crate) fn is_clean(&self, id: NodeId) -> bool {
        self.cached.get(&id).is_none_or(|node| !node.dirty)
    }

    /// All dirty nodes after `last`, in order.
    pub(crate) fn dirty_after(&self, last: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let behind = self.cached.range((Bound::Excluded(last), Bound::Unbounded));
        behind.filter(|(_, node)| node.dirty).map(|(&id, _)| id)
    }

    /// A checkpoint writes a dirty node to `place`. The node stays dirty until
    /// [`mark_written`](MapNodes::mark_written).
    pub(crate) fn write_to(&mut self, id: NodeId, place: Block, store: StoreId) -> Box<Page> {
        let node = self.cached.get_mut(&id).expect("dirty nodes stay in memory");
        node.changed = false;
        let (page, crc) = encode(&node.body, id, store);
        if let Some(old) = self.table.set_place(id, place, crc) {
            self.segments.dec_live(old);
        }
        self.segments.inc_live(place);
        page
    }

    /// The checkpoint that wrote a node is durable. The node is clean, unless it changed since.
    pub(crate) fn mark_written(&mut self, id: NodeId) {
        if let Some(node) = self.cached.get_mut(&id).filter(|node| node.dirty && !node.changed) {
            node.dirty = false;
            self.dirty -= 1;
        }
    }

    /// The checkpoint that wrote a node failed. The node has no block, as if it were new.
    pub(crate) fn mark_unwritten(&mut self, id: NodeId) {
        if let Some(place) = self.table.set_place(id, Block(0), 0) {
            self.segments.dec_live(place);
        }
    }

    /// Keeps all nodes in memory, until as many calls of [`unpin_nodes`](MapNodes::unpin_nodes).
    pub(crate) fn pin_nodes(&mut self) {
        self.pins += 1;
    }

    /// See [`pin_nodes`](MapNodes::pin_nodes).
    pub(crate) fn unpin_nodes(&mut self) {
        self.pins -= 1;
        self.evict();
    }

    /// How many nodes are in memory.
    #[cfg(test)]
    pub(crate) fn cached_len(&self) -> usize {
        self.cached.len()
    }

    /// Drops a node from memory.
    #[cfg(test)]
    pub(crate) fn drop_cached(&mut self, id: NodeId) {
        self.cached.remove(&id);
    }

    /// Marks all nodes as clean.
    #[cfg(test)]
    pub(crate) fn mark_all_written(&mut self) {
        self.cached.values_mut().for_each(|node| (node.dirty, node.changed) = (false, false));
        self.dirty = 0;
    }

    /// Sets how many clean nodes to keep, without the minimum.
    #[cfg(test)]
    pub(crate) fn set_clean_max_exactly(&mut self, nodes: usize) {
        self.clean_max = nodes;
    }

    /// The body of a node, if it is in memory. Does not count as a use.
    pub(crate) fn peek(&self, id: NodeId) -> Option<&NodeBody> {
        Some(&self.cached.get(&id)?.body)
    }

    /// The body of a node that is in memory.
    pub(crate) fn cached(&self, id: NodeId) -> &NodeBody {
        &self.cached.get(&id).expect("a change loads its nodes first").body
    }

    /// A node that may be missing from memory.
    pub(crate) fn node(&self, id: NodeId) -> Result<&MapNode, MissingNodes> {
        let node = self.cached.get(&id).ok_or_else(|| MissingNodes(vec![id]))?;
        node.used.store(true, Ordering::Relaxed);
        Ok(node)
    }

    /// A node that is in memory, for a change. The next checkpoint must write it.
    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut MapNode {
        let node = self.cached.get_mut(&id).expect("a change loads its nodes first");
        node.changed = true;
        if !node.dirty {
            node.dirty = true;
            self.dirty += 1;
        }
        node
    }

    /// Adds a new node, with one reference.
    pub(crate) fn add_node(&mut self, body: NodeBody) -> NodeId {
        let id = self.table.add();
        self.cached.insert(id, MapNode::new(body, true));
        self.dirty += 1;
        self.revisit(id);
        id
    }

    /// Adds a node that was read from the medium, unless it is in memory already.
    pub(crate) fn add_loaded(&mut self, id: NodeId, body: NodeBody) {
        self.cached.entry(id).or_insert_with(|| MapNode::new(body, false));
        self.evict();
    }

    /// Drops clean nodes that were not used since the last pass, while there are too many. Dirty nodes do not
    /// count, so that they cannot drive out a node just read.
    pub(crate) fn evict(&mut self) {
        if self.pins > 0 {
            return;
        }
        // Two passes at most: the first may only clear the marks.
        for _ in 0..2 * self.cached.len() {
            if self.cached.len() - self.dirty as usize <= self.clean_max {
                return;
            }
            let next = self.cached.range(self.hand.after()..).next().or_else(|| self.cached.iter().next());
            let Some((&id, node)) = next else { return };
            self.hand = id;
            if !node.dirty && !node.used.swap(false, Ordering::Relaxed) {
                self.cached.remove(&id);
            }
        }
    }

    /// Drops one reference to a node. With the last one the node and its references are removed.
    pub(crate) fn release(&mut self, id: NodeId) {
        if self.table.drop_reference(id) > 0 {
            return;
        }
        match self.remove_unreferenced(id) {
            NodeBody::Inner(children) => {
                children.iter().filter(|child| child.is_some()).for_each(|&child| self.release(child));
            }
            NodeBody::Pages(leaf) => leaf.blocks().for_each(|(_, block)| self.drop_block_reference(&block)),
            // Empty when its tree drops it.
            NodeBody::Objects(_) | NodeBody::Volumes(_) => {}
        }
    }

    /// Drops the last reference to a node, which is in memory. Returns its body.
    pub(crate) fn remove_node(&mut self, id: NodeId) -> NodeBody {
        let left = self.table.drop_reference(id);
        assert_eq!(left, 0, "node {} is still referred to", id.0);
        self.remove_unreferenced(id)
    }

    fn remove_unreferenced(&mut self, id: NodeId) -> NodeBody {
        let node = self.cached.remove(&id).expect("a change loads its nodes first");
        self.dirty -= u64::from(node.dirty);
        self.unmark(id);
        if let Some(place) = self.table.remove(id) {
            self.segments.dec_live(place);
        }
        node.body
    }

    /// Sets the references of all nodes to counted values, and removes nodes without any. Returns how many
    /// were wrong.
    pub(crate) fn set_references(&mut self, counted: &BTreeMap<NodeId, u32>) -> u64 {
        let wrong = self.table.set_references(counted);
        for &(id, references) in &wrong {
            if references == 0
                && let Some(node) = self.cached.remove(&id)
            {
                self.dirty -= u64::from(node.dirty);
            }
        }
        wrong.len() as u64
    }

    /// An entry no longer refers to its block. If the block is marked as shared, other entries may refer to
    /// it, and only a recount tells whether it is live.
    pub(crate) fn drop_block_reference(&mut self, block: &BlockEntry) {
        if block.shared && !is_planted(StoreBug::FreedWithOneHolder) {
            self.segments.mark_counts_unsure();
        } else {
            self.segments.dec_live(block.place);
        }
    }

    /// Drops the references that a leaf entry had.
    pub(super) fn drop_block_references(&mut self, gone: &DroppedBlocks) {
        gone.blocks().for_each(|block| self.drop_block_reference(block));
    }

    pub(crate) fn scan_mut(&mut self, purpose: ScanPurpose) -> &mut Option<MapScan> {
        match purpose {
            ScanPurpose::Clean => &mut self.cleaning_scan,
            ScanPurpose::StoreScrub => &mut self.scrubbing_scan,
        }
    }

    /// The cleaner's scan, if a round is under way.
    pub(crate) fn cleaning_scan(&self) -> Option<&MapScan> {
        self.cleaning_scan.as_ref()
    }

    fn scans_mut(&mut self) -> impl Iterator<Item = &mut MapScan> {
        self.cleaning_scan.iter_mut().chain(self.scrubbing_scan.iter_mut())
    }

    /// Begins a scan at all roots.
    pub(crate) fn begin_scan(
        &mut self,
        purpose: ScanPurpose,
        target: ScanTarget,
        roots: impl Iterator<Item = NodeId>,
    ) {
        let mut scan = MapScan::new(target);
        roots.for_each(|root| scan.shade(root));
        if purpose == ScanPurpose::Clean {
            self.segments.begin_marking();
        }
        *self.scan_mut(purpose) = Some(scan);
    }

    /// Ends a scan.
    pub(crate) fn end_scan(&mut self, purpose: ScanPurpose) {
        if purpose == ScanPurpose::Clean {
            self.segments.end_marking();
        }
        *self.scan_mut(purpose) = None;
    }

    /// Nodes to visit next.
    pub(crate) fn take_grey(&mut self, purpose: ScanPurpose, max: usize) -> Vec<NodeId> {
        self.scan_mut(purpose).as_mut().map_or(Vec::new(), |scan| scan.take_grey(max))
    }

    /// Visits a node that was taken. `peeked` is the node as read from the medium, if it was not in memory.
    pub(crate) fn visit(&mut self, purpose: ScanPurpose, id: NodeId, peeked: Option<PeekedNode>) {
        let Some(mut scan) = self.scan_mut(purpose).take() else { return };
        let entry = self.table.get(id).copied();
        // White: the node was removed while it was read.
        if *scan.colour(id) == NodeColour::Grey {
            match (self.cached.get(&id), entry, peeked) {
                (Some(node), ..) => {
                    *scan.colour(id) = NodeColour::Black;
                    scan.visit_body(purpose, id, &node.body, &mut self.segments);
                }
                (None, Some(entry), Some((place, body))) if entry.place == place => {
                    *scan.colour(id) = NodeColour::Black;
                    match body {
                        Some(body) => scan.visit_body(purpose, id, &body, &mut self.segments),
                        None => scan.lost.push(id),
                    }
                }
                // Written elsewhere, or dropped from memory, since then: visit it again.
                (None, Some(_), _) => scan.revisit(id),
                (None, None, _) => scan.lost.push(id),
            }
        }
        *self.scan_mut(purpose) = Some(scan);
    }

    /// Adds a reference to a node.
    pub(crate) fn add_reference(&mut self, id: NodeId) {
        self.table.add_reference(id);
        self.shade(id);
    }

    /// Tells the scans that a reference to this node has moved, perhaps to where they have been already.
    pub(crate) fn shade(&mut self, id: NodeId) {
        self.scans_mut().for_each(|scan| scan.shade(id));
    }

    /// Tells the scans that this node is new, or got entries of another node.
    pub(crate) fn revisit(&mut self, id: NodeId) {
        self.scans_mut().for_each(|scan| scan.revisit(id));
    }

    /// Tells the scans that this node was removed.
    pub(crate) fn unmark(&mut self, id: NodeId) {
        self.scans_mut().for_each(|scan| scan.unmark(id));
    }
}
