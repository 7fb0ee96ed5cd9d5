//! The map in memory: which block holds which page of which object.
//!
//! Owned by the `Store`, behind one lock that is held for look-ups and changes, never for I/O. Only the thread that holds
//! the writer's lock changes what the map says; readers may add clean nodes that they have read. After a crash
//! none of this exists: recovery takes the nodes of the newest root and applies the log entries after it.

mod change;
mod list;
mod node;
mod object;
mod repoint;
mod scan;
mod table;
#[cfg(test)]
mod tests;
mod tree;
mod walk;

pub(crate) use node::{Body, Missing, Node, NodeId, PageEntry, decode as decode_node, encode as encode_node};
pub(crate) use object::{ObjectEntry, Pages};
pub(crate) use repoint::Move;
pub(crate) use scan::{Holder, Peeked, Purpose, Scan, Wanted};
pub(crate) use table::{NodeEntry, NodeTable, TablePage, decode as decode_table_page};
pub(crate) use tree::Tree;

use crate::label::Label;
use crate::pace::Pace;
use crate::segments::Segments;
use crate::volume::{Volume, VolumeId};
use device::Lsn;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// The map.
pub(crate) struct Map {
    /// The nodes in memory: all dirty ones, and some clean ones.
    pub(crate) nodes: BTreeMap<NodeId, Node>,
    /// How many of them are dirty.
    pub(crate) dirty: u64,
    pub(crate) table: NodeTable,
    pub(crate) volumes: BTreeMap<VolumeId, Volume>,
    /// What volumes are called.
    pub(crate) labels: BTreeMap<VolumeId, Label>,
    /// Nodes that deleted volumes referred to, and what these did: each has one reference from here.
    pub(crate) dying: Vec<NodeId>,
    pub(crate) segments: Segments,
    /// The highest LSN of any log entry so far.
    pub(crate) newest: Lsn,
    /// A clone is on its way to the log.
    pub(crate) expects_sharing: bool,
    /// How many rely on nodes to stay in memory now.
    pub(crate) held: u32,
    /// The cleaner's walk.
    cleaning: Option<Scan>,
    /// How fast its round goes.
    pub(crate) pace: Option<Pace>,
    /// The scrubber's walk.
    scrubbing: Option<Scan>,
    /// Clean nodes to keep in memory.
    pub(crate) nodes_max: usize,
    /// Where eviction goes on.
    hand: NodeId,
    #[cfg(feature = "planted-bugs")]
    pub(crate) plant_cut_ignores_page_lsn: bool,
    #[cfg(feature = "planted-bugs")]
    pub(crate) plant_freed_twice: bool,
    #[cfg(feature = "planted-bugs")]
    pub(crate) plant_leaked_node: bool,
    #[cfg(feature = "planted-bugs")]
    pub(crate) plant_forgotten_reservation: bool,
}

/// 16,384 nodes, 64 MiB: the leaves of 8 GiB of pages.
const NODES_MAX_DEFAULT: usize = 16_384;

/// Nodes whose neighbours are looked for at once, and neighbours at most: 16 MiB, what one read gives.
const NEIGHBOURED_MAX: usize = 1024;
const NEIGHBOURS_MAX: usize = 4096;
/// Nodes of a table that is looked through for them, under the map's lock: some milliseconds' work; the leaves of 128 GiB of
/// pages.
const NEIGHBOURS_AMONG_MAX: u64 = 1 << 18;

impl Map {
    pub(crate) fn new(table: NodeTable, volumes: BTreeMap<VolumeId, Volume>, segments: Segments) -> Map {
        Map {
            nodes: BTreeMap::new(),
            dirty: 0,
            table,
            volumes,
            labels: BTreeMap::new(),
            dying: Vec::new(),
            segments,
            newest: Lsn(0),
            expects_sharing: false,
            held: 0,
            cleaning: None,
            pace: None,
            scrubbing: None,
            nodes_max: NODES_MAX_DEFAULT,
            hand: NodeId::NONE,
            #[cfg(feature = "planted-bugs")]
            plant_cut_ignores_page_lsn: false,
            #[cfg(feature = "planted-bugs")]
            plant_freed_twice: false,
            #[cfg(feature = "planted-bugs")]
            plant_leaked_node: false,
            #[cfg(feature = "planted-bugs")]
            plant_forgotten_reservation: false,
        }
    }

    /// The roots of all trees.
    pub(crate) fn roots(&self) -> impl Iterator<Item = NodeId> {
        let volumes = self.volumes.values().map(|volume| volume.objects.root);
        volumes.chain(self.dying.iter().copied())
    }

    /// A node that may be missing from memory.
    pub(crate) fn node(&self, id: NodeId) -> Result<&Node, Missing> {
        let node = self.nodes.get(&id).ok_or_else(|| Missing(vec![id]))?;
        node.used.store(true, Ordering::Relaxed);
        Ok(node)
    }

    /// Nodes that lie at most `distance` blocks from those of `ids`, which ascend, and are not in memory: those of one checkpoint
    /// lie together, so a walk down a tree comes to some of them. None where `ids` are so many that hardly any others can lie
    /// between them, where looking takes longer than reading, and where there are more than there is space for: a level of
    /// which some are missing takes more reads than the whole of it.
    pub(crate) fn neighbours(&self, ids: &[NodeId], distance: u64) -> Vec<NodeId> {
        if ids.len() > NEIGHBOURED_MAX || self.table.used() > NEIGHBOURS_AMONG_MAX {
            return Vec::new();
        }
        let place = |entry: &NodeEntry| Some(entry.place.0).filter(|&place| place > 0);
        let mut places: Vec<u64> = ids.iter().filter_map(|&id| place(self.table.get(id)?)).collect();
        places.sort_unstable();
        let is_near = |at: u64| {
            let first = places.partition_point(|&place| place + distance < at);
            places.get(first).is_some_and(|&place| place <= at + distance)
        };
        let near = self.table.iter().filter(|(_, entry)| place(entry).is_some_and(is_near));
        let absent = near.map(|(id, _)| id);
        let absent = absent.filter(|id| ids.binary_search(id).is_err() && !self.nodes.contains_key(id));
        let most = self.nodes_max.saturating_sub(self.nodes.len()).min(NEIGHBOURS_MAX);
        let found: Vec<NodeId> = absent.take(most + 1).collect();
        if found.len() > most { Vec::new() } else { found }
    }

    /// A node that is in memory, to change it: it must be written at the next checkpoint.
    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        let node = self.nodes.get_mut(&id).expect("a change loads its nodes first");
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
        self.nodes.insert(id, Node::new(body, true));
        self.dirty += 1;
        self.revisit(id);
        id
    }

    /// Adds a node that was read from the medium, unless it is here already.
    pub(crate) fn loaded(&mut self, id: NodeId, body: Body) {
        self.nodes.entry(id).or_insert_with(|| Node::new(body, false));
        if self.held == 0 {
            self.evict();
        }
    }

    /// Drops clean nodes that were not used since the last round while there are too many. Dirty ones do not
    /// count: a node just read must not make way for those that cannot.
    pub(crate) fn evict(&mut self) {
        // Two rounds at most: the first one may only clear marks.
        for _ in 0..2 * self.nodes.len() {
            if self.nodes.len() - self.dirty as usize <= self.nodes_max {
                return;
            }
            let next = self.nodes.range(self.hand.after()..).next().or_else(|| self.nodes.iter().next());
            let Some((&id, node)) = next else { return };
            self.hand = id;
            if !node.dirty && !node.used.swap(false, Ordering::Relaxed) {
                self.nodes.remove(&id);
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
            Body::Pages(entries) => entries.iter().for_each(|entry| self.forget(entry)),
            Body::Objects(_) => {}
        }
    }

    /// Takes away the last reference to a node, which is in memory. Returns what it said.
    pub(crate) fn remove_node(&mut self, id: NodeId) -> Body {
        let left = self.table.drop_reference(id);
        assert_eq!(left, 0, "node {} is still referred to", id.0);
        self.remove_unreferenced(id)
    }

    fn remove_unreferenced(&mut self, id: NodeId) -> Body {
        let node = self.nodes.remove(&id).expect("a change loads its nodes first");
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
                && let Some(node) = self.nodes.remove(&id)
            {
                self.dirty -= u64::from(node.dirty);
            }
        }
        wrong.len() as u64
    }

    /// An entry no longer refers to its block. A shared one may have other references: only a recount tells.
    pub(crate) fn forget(&mut self, entry: &PageEntry) {
        if entry.is_hole() {
            return;
        }
        match entry.shared {
            false => self.segments.dec_live(entry.place),
            true => self.segments.unsure = true,
        }
    }
}
