//! Radix trees over leaves of a fixed span: objects by slot, pages by number.
//!
//! A parent holds its children's ids. A node with more than one reference is shared and never changed: a change that
//! changes a shared tree first takes a copy of each node on the way down, whose children then have one reference
//! more.

use super::Map;
use super::node::{Body, Missing, NodeId};
use super::object::Pages;
use crate::format::INNER_CHILDREN;
use std::ops::Range;

/// A tree. `height` counts the inner nodes above a leaf; a root of [`NodeId::NONE`] is an empty tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tree {
    pub(crate) root: NodeId,
    pub(crate) height: u8,
}

/// A leaf that was looked up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leaf {
    pub(crate) index: u64,
    pub(crate) id: NodeId,
}

/// 256^7 leaves of 128 pages are 2^63 pages; no 64-bit key needs more.
const HEIGHT_MAX: u8 = 8;

/// The leaves below a node at `height`.
fn span(height: u8) -> u64 {
    INNER_CHILDREN.checked_pow(u32::from(height)).unwrap_or(u64::MAX)
}

/// Which child of an inner node at `height` leads to a leaf.
fn slot(index: u64, height: u8) -> usize {
    (index / span(height - 1) % INNER_CHILDREN) as usize
}

/// The leaves below one child of an inner node at `height` whose first leaf is `first`; `None` past all numbers.
pub(super) fn below(first: u64, child: u64, height: u8) -> Option<Range<u64>> {
    let step = span(height - 1);
    let start = step.checked_mul(child)?.checked_add(first)?;
    Some(start..start.saturating_add(step))
}

impl Map {
    /// The leaf with this index.
    pub(crate) fn leaf(&self, tree: Tree, index: u64) -> Result<Option<Leaf>, Missing> {
        if !tree.root.is_some() || index >= span(tree.height) {
            return Ok(None);
        }
        let mut id = tree.root;
        for height in (1..=tree.height).rev() {
            let Body::Inner(children) = &self.node(id)?.body else { return Ok(None) };
            id = children[slot(index, height)];
            if !id.is_some() {
                return Ok(None);
            }
        }
        self.node(id)?;
        Ok(Some(Leaf { index, id }))
    }

    /// Whether the leaf with this index exists, and it or a node above it has other references.
    pub(crate) fn is_shared(&self, tree: Tree, index: u64) -> Result<bool, Missing> {
        if self.leaf(tree, index)?.is_none() {
            return Ok(false);
        }
        let (mut id, mut shared) = (tree.root, self.table.references(tree.root) > 1);
        for height in (1..=tree.height).rev() {
            let Body::Inner(children) = &self.node(id)?.body else { return Ok(shared) };
            id = children[slot(index, height)];
            shared |= self.table.references(id) > 1;
        }
        Ok(shared)
    }

    /// The leaves with these indexes, in order, all in memory; or all nodes that can be read at once to get on.
    pub(crate) fn leaves(&self, tree: Tree, range: Range<u64>) -> Result<Vec<Leaf>, Missing> {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        if tree.root.is_some() {
            self.collect(Leaf { index: 0, id: tree.root }, tree.height, &range, &mut found, &mut missing);
        }
        if missing.is_empty() { Ok(found) } else { Err(Missing(missing)) }
    }

    fn collect(
        &self,
        at: Leaf,
        height: u8,
        range: &Range<u64>,
        found: &mut Vec<Leaf>,
        missing: &mut Vec<NodeId>,
    ) {
        let node = match self.node(at.id) {
            Ok(node) => node,
            Err(Missing(ids)) => return missing.extend(ids),
        };
        if height == 0 {
            return found.push(at);
        }
        let Body::Inner(children) = &node.body else { return };
        let step = span(height - 1);
        for (child, number) in children.iter().zip(0..) {
            let Some(index) = step.checked_mul(number).and_then(|more| at.index.checked_add(more)) else {
                break;
            };
            let outside = index >= range.end || index.saturating_add(step) <= range.start;
            if child.is_some() && !outside {
                self.collect(Leaf { index, id: *child }, height - 1, range, found, missing);
            }
        }
    }

    /// The leaf with this index, for changing: made if it did not exist, copied if it was shared. The nodes on
    /// the way must be in memory.
    pub(crate) fn leaf_for_change(&mut self, tree: &mut Tree, index: u64, empty: fn() -> Body) -> NodeId {
        if !tree.root.is_some() {
            tree.height = (0..HEIGHT_MAX).find(|&height| index < span(height)).unwrap_or(HEIGHT_MAX);
        }
        while index >= span(tree.height) && tree.height < HEIGHT_MAX {
            let below = tree.root;
            tree.root = self.add(Body::inner());
            tree.height += 1;
            self.set_child(tree.root, 0, below);
        }
        tree.root = self.own(tree.root, tree.height, empty);
        let mut id = tree.root;
        for height in (1..=tree.height).rev() {
            let slot = slot(index, height);
            let Body::Inner(children) = &self.nodes[&id].body else { unreachable!("above a leaf") };
            let child = children[slot];
            let own = self.own(child, height - 1, empty);
            if own != child {
                self.set_child(id, slot, own);
            }
            id = own;
        }
        self.node_mut(id);
        id
    }

    /// Takes the leaf with this index out of the tree, and with it every inner node that becomes empty.
    pub(crate) fn remove_leaf(&mut self, tree: &mut Tree, index: u64) {
        tree.root = self.without(tree.root, tree.height, index);
        if !tree.root.is_some() {
            tree.height = 0;
        }
    }

    /// What is left of a subtree without a leaf: the node, its own copy of it, or none.
    fn without(&mut self, id: NodeId, height: u8, index: u64) -> NodeId {
        if height == 0 {
            self.release(id);
            return NodeId::NONE;
        }
        let id = self.own(id, height, Body::inner);
        let slot = slot(index, height);
        let Body::Inner(children) = &self.nodes[&id].body else { unreachable!("above a leaf") };
        let rest = self.without(children[slot], height - 1, index);
        self.set_child(id, slot, rest);
        if self.nodes[&id].body.is_empty() {
            self.release(id);
            return NodeId::NONE;
        }
        id
    }

    fn set_child(&mut self, parent: NodeId, slot: usize, child: NodeId) {
        let Body::Inner(children) = &mut self.node_mut(parent).body else { unreachable!("above a leaf") };
        children[slot] = child;
    }

    /// A node that only this parent holds: the one it has, a copy of a shared one, or a new one.
    fn own(&mut self, id: NodeId, height: u8, empty: fn() -> Body) -> NodeId {
        if !id.is_some() {
            return self.add(if height == 0 { empty() } else { Body::inner() });
        }
        if self.table.references(id) == 1 {
            return id;
        }
        let mut copy = self.nodes.get(&id).expect("a change loads its nodes first").body.clone();
        match &mut copy {
            Body::Inner(children) => {
                children.iter().filter(|child| child.is_some()).for_each(|&child| self.refer(child));
            }
            Body::Pages(entries) => {
                entries.iter_mut().for_each(|entry| entry.shared = !entry.is_hole());
                self.node_mut(id).body = copy.clone();
            }
            Body::Objects(entries) => {
                for entry in entries.iter_mut().flatten() {
                    match &mut entry.pages {
                        Pages::Tree(tree) => self.refer(tree.root),
                        Pages::Inline(pages) => pages.iter_mut().for_each(|(_, page)| page.shared = true),
                    }
                }
                self.node_mut(id).body = copy.clone();
            }
        }
        self.table.drop_reference(id);
        self.add(copy)
    }
}
