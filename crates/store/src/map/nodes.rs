//! The nodes of the map: which are in memory, where each lies, how many refer to it, and what that makes live.
//!
//! A node is added with one reference. With the last one it goes, and with it what it refers to: so the blocks that are live, the
//! references and the walks under way are always changed together, here.

use super::leaf::{BlockEntry, Gone};
use super::node::{Body, Missing, Node, NodeId, encode};
use super::scan::{Colour, Peeked, Purpose, Scan, Wanted};
use super::table::NodeTable;
use crate::bug::{StoreBug, is_planted};
use crate::error::StoreError;
use crate::segments::SegmentTable;
use device::{Block, Page, StoreId};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::Ordering;

/// The nodes, the table that says where each lies, the segments in which they and the data do, and the walks over them. Owned by the
/// map, under its lock. After a crash: the nodes of the newest root.
pub(crate) struct Nodes {
    /// Those in memory: all dirty ones, and some clean ones.
    cached: BTreeMap<NodeId, Node>,
    /// How many of them are dirty.
    dirty: u64,
    /// Clean nodes to keep in memory.
    clean_max: usize,
    /// Where eviction goes on.
    hand: NodeId,
    /// How many rely on nodes to stay in memory now.
    held: u32,
    pub(crate) table: NodeTable,
    pub(crate) segments: SegmentTable,
    /// Nodes that recovery needed and could not read. They are not read again: as what they were then, nobody needs them.
    pub(crate) lost: BTreeMap<NodeId, StoreError>,
    /// The cleaner's walk.
    cleaning: Option<Scan>,
    /// The scrubber's walk.
    scrubbing: Option<Scan>,
}

/// 16,384 nodes, 64 MiB: the leaves of 8 GiB of pages.
const CLEAN_MAX_DEFAULT: usize = 16_384;
/// So that a look-up can keep its own.
const CLEAN_MAX_LEAST: usize = 64;

impl Nodes {
    pub(crate) fn new(table: NodeTable, segments: SegmentTable) -> Nodes {
        Nodes {
            cached: BTreeMap::new(),
            dirty: 0,
            clean_max: CLEAN_MAX_DEFAULT,
            hand: NodeId::NONE,
            held: 0,
            table,
            segments,
            lost: BTreeMap::new(),
            cleaning: None,
            scrubbing: None,
        }
    }

    /// How many clean nodes to keep in memory; a few at least.
    pub(crate) fn keep(&mut self, nodes: usize) {
        self.clean_max = nodes.max(CLEAN_MAX_LEAST);
    }

    /// How many nodes the next checkpoint writes.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty
    }

    /// Whether a node is in memory.
    pub(crate) fn is_cached(&self, id: NodeId) -> bool {
        self.cached.contains_key(&id)
    }

    /// Whether the medium has it as it is here.
    pub(crate) fn is_clean(&self, id: NodeId) -> bool {
        self.cached.get(&id).is_none_or(|node| !node.dirty)
    }

    /// All dirty nodes behind `last`, in order.
    pub(crate) fn dirty_after(&self, last: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let behind = self.cached.range((Bound::Excluded(last), Bound::Unbounded));
        behind.filter(|(_, node)| node.dirty).map(|(&id, _)| id)
    }

    /// A checkpoint writes a dirty node to `place`; it stays dirty until [`written`](Nodes::written).
    pub(crate) fn write_to(&mut self, id: NodeId, place: Block, store: StoreId) -> Box<Page> {
        let node = self.cached.get_mut(&id).expect("dirty nodes stay in memory");
        node.changed = false;
        let (page, crc) = encode(&node.body, id, store);
        if let Some(old) = self.table.moved(id, place, crc) {
            self.segments.dec_live(old);
        }
        self.segments.inc_live(place);
        page
    }

    /// The checkpoint that wrote a node is durable: it is clean, unless it changed since.
    pub(crate) fn written(&mut self, id: NodeId) {
        if let Some(node) = self.cached.get_mut(&id).filter(|node| node.dirty && !node.changed) {
            node.dirty = false;
            self.dirty -= 1;
        }
    }

    /// The checkpoint that wrote a node failed: it has no place, as if it were new.
    pub(crate) fn not_written(&mut self, id: NodeId) {
        if let Some(place) = self.table.moved(id, Block(0), 0) {
            self.segments.dec_live(place);
        }
    }

    /// From now on no node leaves memory, until as many calls of [`let_go`](Nodes::let_go).
    pub(crate) fn hold(&mut self) {
        self.held += 1;
    }

    /// See [`hold`](Nodes::hold).
    pub(crate) fn let_go(&mut self) {
        self.held -= 1;
        self.evict();
    }

    /// How many nodes are in memory.
    #[cfg(test)]
    pub(crate) fn cached_len(&self) -> usize {
        self.cached.len()
    }

    /// Forgets what a node says.
    #[cfg(test)]
    pub(crate) fn drop_cached(&mut self, id: NodeId) {
        self.cached.remove(&id);
    }

    /// Counts all nodes as written.
    #[cfg(test)]
    pub(crate) fn written_all(&mut self) {
        self.cached.values_mut().for_each(|node| (node.dirty, node.changed) = (false, false));
        self.dirty = 0;
    }

    /// Keeps so many, however few.
    #[cfg(test)]
    pub(crate) fn keep_exactly(&mut self, nodes: usize) {
        self.clean_max = nodes;
    }

    /// What a node says, if it is in memory; its use does not count.
    pub(crate) fn peek(&self, id: NodeId) -> Option<&Body> {
        Some(&self.cached.get(&id)?.body)
    }

    /// What a node says that is in memory.
    pub(crate) fn cached(&self, id: NodeId) -> &Body {
        &self.cached.get(&id).expect("a change loads its nodes first").body
    }

    /// A node that may be missing from memory.
    pub(crate) fn node(&self, id: NodeId) -> Result<&Node, Missing> {
        let node = self.cached.get(&id).ok_or_else(|| Missing(vec![id]))?;
        node.used.store(true, Ordering::Relaxed);
        Ok(node)
    }

    /// A node that is in memory, to change it: it must be written at the next checkpoint.
    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        let node = self.cached.get_mut(&id).expect("a change loads its nodes first");
        node.changed = true;
        if !node.dirty {
            node.dirty = true;
            self.dirty += 1;
        }
        node
    }

    /// Adds a node that did not exist, with one reference.
    pub(crate) fn add(&mut self, body: Body) -> NodeId {
        let id = self.table.add();
        self.cached.insert(id, Node::new(body, true));
        self.dirty += 1;
        self.revisit(id);
        id
    }

    /// Adds a node that was read from the medium, unless it is here already.
    pub(crate) fn loaded(&mut self, id: NodeId, body: Body) {
        self.cached.entry(id).or_insert_with(|| Node::new(body, false));
        self.evict();
    }

    /// Drops clean nodes that were not used since the last round while there are too many. Dirty ones do not
    /// count: a node just read must not make way for those that cannot.
    pub(crate) fn evict(&mut self) {
        if self.held > 0 {
            return;
        }
        // Two rounds at most: the first one may only clear marks.
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

    /// Takes away one reference to a node. With the last one it goes, and what it refers to.
    ///
    /// All nodes below it that go with it must be in memory.
    pub(crate) fn release(&mut self, id: NodeId) {
        if self.table.drop_reference(id) > 0 {
            return;
        }
        match self.remove_unreferenced(id) {
            Body::Inner(children) => {
                children.iter().filter(|child| child.is_some()).for_each(|&child| self.release(child));
            }
            Body::Pages(leaf) => leaf.blocks().for_each(|(_, block)| self.forget(&block)),
            // Empty, when its tree loses it.
            Body::Objects(_) | Body::Volumes(_) => {}
        }
    }

    /// Takes away the last reference to a node, which is in memory. Returns what it said.
    pub(crate) fn remove_node(&mut self, id: NodeId) -> Body {
        let left = self.table.drop_reference(id);
        assert_eq!(left, 0, "node {} is still referred to", id.0);
        self.remove_unreferenced(id)
    }

    fn remove_unreferenced(&mut self, id: NodeId) -> Body {
        let node = self.cached.remove(&id).expect("a change loads its nodes first");
        self.dirty -= u64::from(node.dirty);
        self.unmeet(id);
        if let Some(place) = self.table.remove(id) {
            self.segments.dec_live(place);
        }
        node.body
    }

    /// Makes the references of all nodes what was counted; those that nothing refers to are gone. Returns how many
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

    /// An entry no longer refers to its block. A shared one may have other references: only a recount tells.
    pub(crate) fn forget(&mut self, block: &BlockEntry) {
        match block.shared && !is_planted(StoreBug::FreedWithOneHolder) {
            false => self.segments.dec_live(block.place),
            true => self.segments.mark_counts_unsure(),
        }
    }

    /// The same for what a leaf referred to.
    pub(super) fn forget_all(&mut self, gone: &Gone) {
        gone.blocks().for_each(|block| self.forget(block));
    }

    pub(crate) fn scan(&mut self, purpose: Purpose) -> &mut Option<Scan> {
        match purpose {
            Purpose::Clean => &mut self.cleaning,
            Purpose::StoreScrub => &mut self.scrubbing,
        }
    }

    /// The cleaner's walk, if a round is under way.
    pub(crate) fn cleaning(&self) -> Option<&Scan> {
        self.cleaning.as_ref()
    }

    fn scans(&mut self) -> impl Iterator<Item = &mut Scan> {
        self.cleaning.iter_mut().chain(self.scrubbing.iter_mut())
    }

    /// Begins a walk at all roots.
    pub(crate) fn begin_scan(
        &mut self,
        purpose: Purpose,
        wanted: Wanted,
        roots: impl Iterator<Item = NodeId>,
    ) {
        let mut scan = Scan::new(wanted);
        roots.for_each(|root| scan.met(root));
        if purpose == Purpose::Clean {
            self.segments.begin_marking();
        }
        *self.scan(purpose) = Some(scan);
    }

    /// Ends a walk.
    pub(crate) fn end_scan(&mut self, purpose: Purpose) {
        if purpose == Purpose::Clean {
            self.segments.end_marking();
        }
        *self.scan(purpose) = None;
    }

    /// Nodes to visit next.
    pub(crate) fn take_grey(&mut self, purpose: Purpose, max: usize) -> Vec<NodeId> {
        self.scan(purpose).as_mut().map_or(Vec::new(), |scan| scan.take(max))
    }

    /// Visits a node that was taken; `peeked` is what the medium has, where memory has nothing.
    pub(crate) fn visit(&mut self, purpose: Purpose, id: NodeId, peeked: Option<Peeked>) {
        let Some(mut scan) = self.scan(purpose).take() else { return };
        let entry = self.table.get(id).copied();
        // White: it went while it was read.
        if *scan.colour(id) == Colour::Grey {
            match (self.cached.get(&id), entry, peeked) {
                (Some(node), ..) => {
                    *scan.colour(id) = Colour::Black;
                    scan.look_into(purpose, id, &node.body, &mut self.segments);
                }
                (None, Some(entry), Some((place, body))) if entry.place == place => {
                    *scan.colour(id) = Colour::Black;
                    match body {
                        Some(body) => scan.look_into(purpose, id, &body, &mut self.segments),
                        None => scan.lost.push(id),
                    }
                }
                // Written elsewhere, or dropped from memory, since: once more.
                (None, Some(_), _) => scan.again(id),
                (None, None, _) => scan.lost.push(id),
            }
        }
        *self.scan(purpose) = Some(scan);
    }

    /// A reference more to a node.
    pub(crate) fn refer(&mut self, id: NodeId) {
        self.table.add_reference(id);
        self.still_referred(id);
    }

    /// A reference to a node has moved to where a walk may have been already.
    pub(crate) fn still_referred(&mut self, id: NodeId) {
        self.scans().for_each(|scan| scan.met(id));
    }

    /// A node is new, or got entries that others had.
    pub(crate) fn revisit(&mut self, id: NodeId) {
        self.scans().for_each(|scan| scan.again(id));
    }

    /// A node is no more.
    pub(crate) fn unmeet(&mut self, id: NodeId) {
        self.scans().for_each(|scan| scan.gone(id));
    }
}
