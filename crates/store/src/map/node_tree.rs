//! Radix trees over leaves of a fixed span: volumes by number, objects by slot, pages by number.
//!
//! A parent holds its children's ids. A node with more than one reference is shared. A change of a shared
//! tree first copies each shared node on the path from the root. The children of a copied node get one
//! reference more.

use super::node::{MissingNodes, NodeBody, NodeId, NodeTree};
use super::nodes::MapNodes;
use super::object_leaf::ObjectPageEntries;
use super::page_leaf::PageMapEntry;
use crate::bug::{StoreBug, is_planted};
use crate::format::{INNER_CHILDREN, LEAF_PAGES};
use device::PageNo;
use std::ops::Range;

/// A leaf found in a tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeafRef {
    pub(crate) index: u64,
    pub(crate) id: NodeId,
}

/// 256^7 leaves of 128 pages are 2^63 pages; no 64-bit key needs more.
const HEIGHT_MAX: u8 = 8;

/// The leaves below a node at `height`.
fn leaves_below(height: u8) -> u64 {
    INNER_CHILDREN.checked_pow(u32::from(height)).unwrap_or(u64::MAX)
}

/// The pages below a node at `height`.
pub(super) fn pages_below(height: u8) -> u64 {
    leaves_below(height).saturating_mul(LEAF_PAGES)
}

/// Which child of an inner node at `height` leads to a leaf.
fn child_slot(index: u64, height: u8) -> usize {
    (index / leaves_below(height - 1) % INNER_CHILDREN) as usize
}

/// The leaves below one child of an inner node at `height` whose first leaf is `first`; `None` if the indexes
/// overflow.
pub(super) fn leaves_below_child(first: u64, child: u64, height: u8) -> Option<Range<u64>> {
    let step = leaves_below(height - 1);
    let start = step.checked_mul(child)?.checked_add(first)?;
    Some(start..start.saturating_add(step))
}

impl NodeTree {
    /// A new tree with these pages.
    pub(super) fn of(nodes: &mut MapNodes, pages: &[(PageNo, PageMapEntry)]) -> NodeTree {
        let mut tree = NodeTree::default();
        for (page, entry) in pages {
            let leaf = tree.leaf_for_change(nodes, page.0 / LEAF_PAGES, NodeBody::pages);
            let NodeBody::Pages(leaf) = &mut nodes.node_mut(leaf).body else {
                unreachable!("a leaf of pages")
            };
            leaf.set((page.0 % LEAF_PAGES) as usize, *entry);
        }
        tree
    }

    /// The leaf with this index.
    pub(crate) fn leaf(self, nodes: &MapNodes, index: u64) -> Result<Option<LeafRef>, MissingNodes> {
        if !self.root.is_some() || index >= leaves_below(self.height) {
            return Ok(None);
        }
        let mut id = self.root;
        for height in (1..=self.height).rev() {
            let NodeBody::Inner(children) = &nodes.node(id)?.body else { return Ok(None) };
            id = children[child_slot(index, height)];
            if !id.is_some() {
                return Ok(None);
            }
        }
        nodes.node(id)?;
        Ok(Some(LeafRef { index, id }))
    }

    /// Whether the leaf with this index exists and is shared: the leaf or a node above it has more than one
    /// reference.
    pub(crate) fn is_shared(self, nodes: &MapNodes, index: u64) -> Result<bool, MissingNodes> {
        if self.leaf(nodes, index)?.is_none() {
            return Ok(false);
        }
        let mut id = self.root;
        let mut shared = nodes.table.references(self.root) > 1;
        for height in (1..=self.height).rev() {
            let NodeBody::Inner(children) = &nodes.node(id)?.body else { return Ok(shared) };
            id = children[child_slot(index, height)];
            shared |= nodes.table.references(id) > 1;
        }
        Ok(shared)
    }

    /// The leaves with these indexes, in order. All of them are in memory; otherwise returns all missing
    /// nodes that are known so far.
    pub(crate) fn leaves(self, nodes: &MapNodes, range: Range<u64>) -> Result<Vec<LeafRef>, MissingNodes> {
        let mut found = Vec::new();
        let mut missing = Vec::new();
        if self.root.is_some() {
            collect_leaves(
                nodes,
                LeafRef { index: 0, id: self.root },
                self.height,
                &range,
                &mut found,
                &mut missing,
            );
        }
        if missing.is_empty() { Ok(found) } else { Err(MissingNodes(missing)) }
    }

    /// The leaf with this index, for a change: created if it did not exist, copied if it was shared. The
    /// nodes on the path must be in memory.
    pub(crate) fn leaf_for_change(
        &mut self,
        nodes: &mut MapNodes,
        index: u64,
        empty: fn() -> NodeBody,
    ) -> NodeId {
        self.grow(nodes, index, 0);
        self.root = own_node(nodes, self.root, self.height, empty);
        let mut id = self.root;
        for height in (1..=self.height).rev() {
            let slot = child_slot(index, height);
            let NodeBody::Inner(children) = nodes.cached(id) else { unreachable!("above a leaf") };
            let child = children[slot];
            let own = own_node(nodes, child, height - 1, empty);
            if own != child {
                set_child(nodes, id, slot, own);
            }
            id = own;
        }
        nodes.node_mut(id);
        id
    }

    /// Grows the tree to at least height `least`, and high enough for the leaf `index`.
    fn grow(&mut self, nodes: &mut MapNodes, index: u64, least: u8) {
        if !self.root.is_some() {
            let fits = |&height: &u8| index < leaves_below(height) && height >= least;
            self.height = (0..HEIGHT_MAX).find(fits).unwrap_or(HEIGHT_MAX);
        }
        while (index >= leaves_below(self.height) || self.height < least) && self.height < HEIGHT_MAX {
            let below = self.root;
            self.root = nodes.add_node(NodeBody::inner());
            self.height += 1;
            set_child(nodes, self.root, 0, below);
        }
    }

    /// Inserts a subtree with this height where there is a hole; its first leaf gets this index. The tree
    /// takes over the reference to the subtree.
    pub(super) fn put_subtree(&mut self, nodes: &mut MapNodes, height: u8, index: u64, subtree: NodeId) {
        self.grow(nodes, index, height);
        if self.height == height {
            self.root = subtree;
            return;
        }
        self.root = own_node(nodes, self.root, self.height, NodeBody::inner);
        let mut id = self.root;
        for above in (height + 1..=self.height).rev() {
            let slot = child_slot(index, above);
            if above == height + 1 {
                set_child(nodes, id, slot, subtree);
                return;
            }
            let NodeBody::Inner(children) = nodes.cached(id) else { unreachable!("above a leaf") };
            let child = children[slot];
            let own = own_node(nodes, child, above - 1, NodeBody::inner);
            if own != child {
                set_child(nodes, id, slot, own);
            }
            id = own;
        }
    }

    /// Removes roots whose only child is the first, as far as nodes are in memory. The roots must not be
    /// shared.
    pub(super) fn reduce_height(&mut self, nodes: &mut MapNodes) {
        while let Some(NodeBody::Inner(children)) = nodes.peek(self.root) {
            let first = children[0];
            if !first.is_some() || children[1..].iter().any(|child| child.is_some()) {
                break;
            }
            nodes.remove_node(self.root);
            nodes.shade(first);
            self.root = first;
            self.height -= 1;
        }
    }

    /// Removes a leaf, and every inner node that becomes empty.
    pub(crate) fn remove_leaf(&mut self, nodes: &mut MapNodes, index: u64) {
        self.root = remove_leaf_below(nodes, self.root, self.height, index);
        if !self.root.is_some() {
            self.height = 0;
        }
    }
}

fn collect_leaves(
    nodes: &MapNodes,
    at: LeafRef,
    height: u8,
    range: &Range<u64>,
    found: &mut Vec<LeafRef>,
    missing: &mut Vec<NodeId>,
) {
    let node = match nodes.node(at.id) {
        Ok(node) => node,
        Err(MissingNodes(ids)) => return missing.extend(ids),
    };
    if height == 0 {
        return found.push(at);
    }
    let NodeBody::Inner(children) = &node.body else { return };
    let step = leaves_below(height - 1);
    for (child, number) in children.iter().zip(0..) {
        let Some(index) = step.checked_mul(number).and_then(|more| at.index.checked_add(more)) else {
            break;
        };
        let outside = index >= range.end || index.saturating_add(step) <= range.start;
        if child.is_some() && !outside {
            collect_leaves(nodes, LeafRef { index, id: *child }, height - 1, range, found, missing);
        }
    }
}

/// Removes a leaf from a subtree. Returns the root of the rest: the node, its copy if it was shared, or none.
fn remove_leaf_below(nodes: &mut MapNodes, id: NodeId, height: u8, index: u64) -> NodeId {
    if height == 0 {
        nodes.release(id);
        return NodeId::NONE;
    }
    let id = own_node(nodes, id, height, NodeBody::inner);
    let slot = child_slot(index, height);
    let NodeBody::Inner(children) = nodes.cached(id) else { unreachable!("above a leaf") };
    let rest = remove_leaf_below(nodes, children[slot], height - 1, index);
    set_child(nodes, id, slot, rest);
    if nodes.cached(id).is_empty() {
        nodes.release(id);
        return NodeId::NONE;
    }
    id
}

pub(super) fn set_child(nodes: &mut MapNodes, parent: NodeId, slot: usize, child: NodeId) {
    let NodeBody::Inner(children) = &mut nodes.node_mut(parent).body else { unreachable!("above a leaf") };
    children[slot] = child;
}

/// A node that only this parent refers to: the same one, a copy if it was shared, or a new one if there was
/// none.
pub(super) fn own_node(nodes: &mut MapNodes, id: NodeId, height: u8, empty: fn() -> NodeBody) -> NodeId {
    if !id.is_some() {
        return nodes.add_node(if height == 0 { empty() } else { NodeBody::inner() });
    }
    if nodes.table.references(id) == 1 {
        return id;
    }
    if is_planted(StoreBug::SharedLeafChanged) && matches!(nodes.cached(id), NodeBody::Pages(_)) {
        return id;
    }
    let mut copy = nodes.cached(id).clone();
    match &mut copy {
        NodeBody::Inner(children) => {
            children.iter().filter(|child| child.is_some()).for_each(|&child| nodes.add_reference(child));
        }
        NodeBody::Pages(leaf) => {
            leaf.mark_all_shared();
            nodes.node_mut(id).body = copy.clone();
        }
        NodeBody::Objects(entries) => {
            for entry in entries.iter_mut().flatten() {
                match &mut entry.pages {
                    ObjectPageEntries::Tree(tree) => nodes.add_reference(tree.root),
                    ObjectPageEntries::Inline(pages) => {
                        pages.iter_mut().for_each(|(_, page)| page.shared = true)
                    }
                }
            }
            nodes.node_mut(id).body = copy.clone();
        }
        NodeBody::Volumes(entries) => {
            let roots = entries.iter().flatten().map(|volume| volume.objects.root);
            roots.filter(|root| root.is_some()).for_each(|root| nodes.add_reference(root));
        }
    }
    nodes.table.drop_reference(id);
    nodes.add_node(copy)
}
