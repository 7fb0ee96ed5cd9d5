//! Clones and moves of page ranges, and holes made of ranges.
//!
//! A subtree inside the range is taken by one reference, without looking into it, if its place in the target
//! is *aligned*: the distance between the first pages of source and target is a multiple of the pages below
//! its root. Only nodes across the edges of the range, and nodes that are not aligned, are looked into.

use super::node::{MissingNodes, NodeBody, NodeId, NodeTree};
use super::node_tree::{own_node, pages_below, set_child};
use super::nodes::MapNodes;
use super::object_leaf::{ObjectEntry, ObjectPageEntries};
use super::page_leaf::{DroppedBlocks, PageMapEntry};
use super::page_map::PageMap;
use crate::format::{INNER_CHILDREN, LEAF_PAGES};
use device::{Lsn, ObjectId, PageNo, PageTransfer, TransferKind};
use std::ops::Range;

/// A part of the source of a transfer.
enum TransferPiece {
    /// A subtree, with a reference that the target takes over, and the page of the target where the subtree
    /// begins.
    Subtree {
        height: u8,
        first: PageNo,
        id: NodeId,
    },
    Page(PageNo, PageMapEntry),
}

/// A node, with its height and the first page below it.
#[derive(Clone, Copy)]
struct NodePosition {
    id: NodeId,
    height: u8,
    first: u64,
}

/// How the pages below a node lie relative to a range.
enum RangeOverlap {
    Outside,
    Inside,
    Partial,
}

impl NodePosition {
    fn overlap_with(self, range: &Range<PageNo>) -> RangeOverlap {
        let end = self.first.saturating_add(pages_below(self.height));
        if !self.id.is_some() || end <= range.start.0 || range.end.0 <= self.first {
            RangeOverlap::Outside
        } else if range.start.0 <= self.first && end <= range.end.0 {
            RangeOverlap::Inside
        } else {
            RangeOverlap::Partial
        }
    }

    /// The children of an inner node, with their slots.
    fn children(self, nodes: &MapNodes) -> Vec<(usize, NodePosition)> {
        let NodeBody::Inner(children) = nodes.cached(self.id) else { return Vec::new() };
        children_of(self, children)
    }

    /// The entries of a leaf within a range.
    fn entries(self, range: &Range<PageNo>) -> Range<usize> {
        let within = |page: u64| page.saturating_sub(self.first).min(LEAF_PAGES) as usize;
        within(range.start.0)..within(range.end.0)
    }
}

fn children_of(at: NodePosition, children: &[NodeId; INNER_CHILDREN as usize]) -> Vec<(usize, NodePosition)> {
    let step = pages_below(at.height - 1);
    let child = |(slot, &id): (usize, &NodeId)| {
        let first = step.checked_mul(slot as u64)?.checked_add(at.first)?;
        id.is_some().then_some((slot, NodePosition { id, height: at.height - 1, first }))
    };
    children.iter().enumerate().filter_map(child).collect()
}

/// Whether a transfer can take a node at this height as a whole; see the module's documentation.
pub(super) fn is_aligned(transfer: &PageTransfer, height: u8) -> bool {
    transfer.first.0.abs_diff(transfer.at.0).is_multiple_of(pages_below(height))
}

impl NodeTree {
    fn top(self) -> NodePosition {
        NodePosition { id: self.root, height: self.height, first: 0 }
    }

    /// Checks that the nodes that a range looks into are in memory: the nodes across its edges, and the nodes
    /// inside it that are not `whole`. Returns their number.
    fn prepare_range(
        self,
        nodes: &MapNodes,
        range: &Range<PageNo>,
        whole: &dyn Fn(u8) -> bool,
    ) -> Result<u64, MissingNodes> {
        let mut todo = vec![self.top()];
        let mut missing = Vec::new();
        let mut looked = 0;
        while let Some(at) = todo.pop() {
            match at.overlap_with(range) {
                RangeOverlap::Outside => continue,
                RangeOverlap::Inside if whole(at.height) => continue,
                RangeOverlap::Inside | RangeOverlap::Partial => looked += 1,
            }
            match nodes.node(at.id) {
                Err(MissingNodes(ids)) => missing.extend(ids),
                Ok(node) => {
                    if let NodeBody::Inner(children) = &node.body {
                        todo.extend(children_of(at, children).into_iter().map(|(_, child)| child));
                    }
                }
            }
        }
        if missing.is_empty() { Ok(looked) } else { Err(MissingNodes(missing)) }
    }

    /// Makes a hole of a range. The caller gets the references to the subtrees that were removed.
    fn remove_range(&mut self, nodes: &mut MapNodes, range: &Range<PageNo>) -> Vec<NodeId> {
        let mut gone = Vec::new();
        self.root = remove_range(nodes, self.top(), range, &mut gone);
        if !self.root.is_some() {
            self.height = 0;
        }
        gone
    }

    /// Takes the source pages of a transfer out of this tree.
    fn take_range(&mut self, nodes: &mut MapNodes, transfer: &PageTransfer) -> Vec<TransferPiece> {
        let mut pieces = Vec::new();
        self.root = take_range(nodes, self.top(), transfer, &mut pieces);
        if !self.root.is_some() {
            self.height = 0;
        }
        pieces
    }
}

/// Removes a range from a subtree. Returns the root of the rest.
fn remove_range(
    nodes: &mut MapNodes,
    at: NodePosition,
    range: &Range<PageNo>,
    gone: &mut Vec<NodeId>,
) -> NodeId {
    match at.overlap_with(range) {
        RangeOverlap::Outside => return at.id,
        RangeOverlap::Inside => {
            gone.push(at.id);
            return NodeId::NONE;
        }
        RangeOverlap::Partial => {}
    }
    let at = NodePosition { id: own_node(nodes, at.id, at.height, NodeBody::inner), ..at };
    for (slot, child) in at.children(nodes) {
        let left = remove_range(nodes, child, range, gone);
        if left != child.id {
            set_child(nodes, at.id, slot, left);
        }
    }
    if let NodeBody::Pages(leaf) = &mut nodes.node_mut(at.id).body {
        let gone: Vec<DroppedBlocks> =
            at.entries(range).map(|index| leaf.set(index, PageMapEntry::default())).collect();
        gone.iter().for_each(|gone| nodes.drop_block_references(gone));
    }
    release_if_empty(nodes, at.id)
}

/// Takes the source pages of a transfer out of a subtree. Returns the root of the rest.
fn take_range(
    nodes: &mut MapNodes,
    at: NodePosition,
    transfer: &PageTransfer,
    pieces: &mut Vec<TransferPiece>,
) -> NodeId {
    let range = transfer.source();
    match at.overlap_with(&range) {
        RangeOverlap::Outside => return at.id,
        RangeOverlap::Inside if is_aligned(transfer, at.height) => {
            let first = transfer.target_of(PageNo(at.first));
            pieces.push(TransferPiece::Subtree { height: at.height, first, id: at.id });
            if transfer.kind == TransferKind::Clone {
                nodes.add_reference(at.id);
                return at.id;
            }
            return NodeId::NONE;
        }
        RangeOverlap::Inside | RangeOverlap::Partial => {}
    }
    let mut at = at;
    if transfer.kind == TransferKind::Move {
        at.id = own_node(nodes, at.id, at.height, NodeBody::inner);
    }
    for (slot, child) in at.children(nodes) {
        let left = take_range(nodes, child, transfer, pieces);
        if left != child.id {
            set_child(nodes, at.id, slot, left);
        }
    }
    take_entries(nodes, at, transfer, pieces);
    if transfer.kind == TransferKind::Clone { at.id } else { release_if_empty(nodes, at.id) }
}

/// Takes entries out of a leaf. A clone marks source and target entries as shared. In a shared leaf that mark
/// counts for all its parents, so the leaf is changed in place.
fn take_entries(
    nodes: &mut MapNodes,
    at: NodePosition,
    transfer: &PageTransfer,
    pieces: &mut Vec<TransferPiece>,
) {
    let within = at.entries(&transfer.source());
    let NodeBody::Pages(leaf) = nodes.cached(at.id) else { return };
    let taken: Vec<usize> = within.filter(|&index| !leaf.pages()[index].is_hole()).collect();
    if taken.is_empty() {
        return;
    }
    let NodeBody::Pages(leaf) = &mut nodes.node_mut(at.id).body else { unreachable!("a leaf of pages") };
    let mut all_gone = Vec::new();
    for index in taken {
        let page = transfer.target_of(PageNo(at.first + index as u64));
        let entry = match transfer.kind {
            TransferKind::Move => {
                let (entry, gone) = leaf.take(index);
                all_gone.push(gone);
                entry
            }
            TransferKind::Clone => leaf.share(index),
        };
        pieces.push(TransferPiece::Page(page, entry));
    }
    all_gone.iter().for_each(|gone| nodes.drop_block_references(gone));
}

/// Releases a node if nothing is left in it. Returns the node, or none if it was released.
fn release_if_empty(nodes: &mut MapNodes, id: NodeId) -> NodeId {
    if nodes.cached(id).is_empty() {
        nodes.release(id);
        return NodeId::NONE;
    }
    id
}

impl PageMap {
    /// Whether the nodes that [`transfer`](PageMap::transfer) changes are in memory.
    pub(super) fn prepare_transfer(&self, transfer: &PageTransfer) -> Result<(), MissingNodes> {
        match self.slot(transfer.from.volume, transfer.from.slot)? {
            Some(old) if old.generation < transfer.from.generation => self.prepare_drop(old)?,
            Some(ObjectEntry { generation, pages: ObjectPageEntries::Tree(tree), .. })
                if *generation == transfer.from.generation =>
            {
                tree.prepare_range(&self.nodes, &transfer.source(), &|height| is_aligned(transfer, height))?;
            }
            _ => {}
        }
        match self.slot(transfer.to.volume, transfer.to.slot)? {
            Some(old) if old.generation < transfer.to.generation => self.prepare_drop(old),
            Some(ObjectEntry { pages: ObjectPageEntries::Tree(tree), .. }) => {
                tree.prepare_range(&self.nodes, &transfer.target(), &|_| true).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Applies a clone or a move, unless one of its objects has had it already. Both objects record its LSN,
    /// in one batch of the log.
    pub(super) fn transfer(&mut self, transfer: &PageTransfer, lsn: Lsn) {
        let PageTransfer { from, to, .. } = *transfer;
        self.unshare(from.volume, from.slot);
        self.unshare(to.volume, to.slot);
        if [from, to].iter().any(|&object| self.has_applied_transfer(object, lsn).expect("prepared")) {
            return;
        }
        let target = self.object_in_memory(to.volume, to.slot);
        let is_target_replaced = target.is_some_and(|target| target.generation > to.generation);
        let pieces = self.take_from(transfer, lsn, is_target_replaced);
        if is_target_replaced {
            return;
        }
        // Read again: source and target may be one object.
        let old = self.object_in_memory(to.volume, to.slot);
        let mut pages = match &old {
            Some(same) if same.generation == to.generation => same.pages.clone(),
            Some(older) => {
                self.drop_pages(&older.pages);
                ObjectPageEntries::Inline(Vec::new())
            }
            None => ObjectPageEntries::Inline(Vec::new()),
        };
        self.punch_pages(&mut pages, &transfer.target());
        self.insert_pieces(&mut pages, pieces);
        let new = ObjectEntry { generation: to.generation, transfer_lsn: lsn, pages };
        self.put_object(to.volume, to.slot, old, Some(new));
        self.revisit_object(to);
    }

    /// Takes the pages of the source. If a newer object has replaced the target, a move makes a hole of them,
    /// and a clone takes nothing.
    ///
    /// The source records the LSN even if it had no pages: without the target no other object records it, and
    /// a replay would move pages that the source got later.
    fn take_from(
        &mut self,
        transfer: &PageTransfer,
        lsn: Lsn,
        is_target_replaced: bool,
    ) -> Vec<TransferPiece> {
        let from = transfer.from;
        let old = self.object_in_memory(from.volume, from.slot);
        let mut pages = match &old {
            Some(newer) if newer.generation > from.generation => return Vec::new(),
            Some(same) if same.generation == from.generation => same.pages.clone(),
            Some(older) => {
                self.drop_pages(&older.pages);
                ObjectPageEntries::Inline(Vec::new())
            }
            None => ObjectPageEntries::Inline(Vec::new()),
        };
        let mut pieces = Vec::new();
        if !is_target_replaced {
            pieces = self.take_pieces(&mut pages, transfer);
        } else if transfer.kind == TransferKind::Move {
            self.punch_pages(&mut pages, &transfer.source());
        }
        let new = ObjectEntry { generation: from.generation, transfer_lsn: lsn, pages };
        self.put_object(from.volume, from.slot, old, Some(new));
        pieces
    }

    /// Whether an object has had the clone or move with this LSN, or a later one.
    pub(crate) fn has_applied_transfer(&self, object: ObjectId, lsn: Lsn) -> Result<bool, MissingNodes> {
        let had = |entry: &ObjectEntry| entry.transfer_lsn >= lsn && !self.repeats_ranges();
        Ok(self.object(object)?.is_some_and(had))
    }

    fn take_pieces(&mut self, pages: &mut ObjectPageEntries, transfer: &PageTransfer) -> Vec<TransferPiece> {
        let inline = match pages {
            ObjectPageEntries::Tree(tree) => {
                let pieces = tree.take_range(&mut self.nodes, transfer);
                if !tree.root.is_some() {
                    *pages = ObjectPageEntries::Inline(Vec::new());
                }
                return pieces;
            }
            ObjectPageEntries::Inline(inline) => inline,
        };
        let range = transfer.source();
        let mut pieces = Vec::new();
        for (page, entry) in inline.iter_mut().filter(|(page, _)| range.contains(page)) {
            if transfer.kind == TransferKind::Clone {
                entry.shared = entry.base().is_some();
            }
            pieces.push(TransferPiece::Page(transfer.target_of(*page), *entry));
        }
        if transfer.kind == TransferKind::Move {
            inline.retain(|(page, _)| !range.contains(page));
        }
        pieces
    }

    /// Makes a hole of a range. Subtrees that are removed go to the dying list.
    fn punch_pages(&mut self, pages: &mut ObjectPageEntries, range: &Range<PageNo>) {
        match pages {
            ObjectPageEntries::Inline(inline) => {
                let gone = inline.iter().filter(|(page, _)| range.contains(page));
                gone.filter_map(|(_, entry)| entry.base())
                    .for_each(|base| self.nodes.drop_block_reference(&base));
                inline.retain(|(page, _)| !range.contains(page));
            }
            ObjectPageEntries::Tree(tree) => {
                let gone = tree.remove_range(&mut self.nodes, range);
                if !tree.root.is_some() {
                    *pages = ObjectPageEntries::Inline(Vec::new());
                }
                gone.into_iter().for_each(|id| self.add_dying(id));
            }
        }
    }

    /// Puts the pieces of a transfer into holes of the target.
    fn insert_pieces(&mut self, pages: &mut ObjectPageEntries, pieces: Vec<TransferPiece>) {
        for piece in pieces {
            match piece {
                TransferPiece::Page(page, entry) => {
                    self.put_page(pages, page, entry);
                    // A scan may have visited this leaf already, but not yet the leaf that the entry came
                    // from.
                    if let ObjectPageEntries::Tree(tree) = &*pages {
                        let leaf = tree.leaf(&self.nodes, page.0 / LEAF_PAGES).expect("just put there");
                        leaf.into_iter().for_each(|leaf| self.nodes.revisit(leaf.id));
                    }
                }
                TransferPiece::Subtree { height, first, id } => {
                    let mut tree = match &*pages {
                        ObjectPageEntries::Tree(tree) => *tree,
                        ObjectPageEntries::Inline(inline) => NodeTree::of(&mut self.nodes, inline),
                    };
                    tree.put_subtree(&mut self.nodes, height, first.0 / LEAF_PAGES, id);
                    self.nodes.shade(id);
                    *pages = ObjectPageEntries::Tree(tree);
                }
            }
        }
    }
}

/// Nodes that inline pages may need in a tree of another object: a leaf for each page and one above.
const INLINE_NODES: u64 = 32;

impl PageMap {
    /// Upper bound of the nodes that a transfer makes dirty: the nodes that it looks into, on both sides, and
    /// the nodes on the path to the places of the pieces. All must be in memory.
    pub(crate) fn nodes_for_transfer(&self, transfer: &PageTransfer) -> u64 {
        let tree = |object: &ObjectId| match self.object(*object) {
            Ok(Some(ObjectEntry { pages: ObjectPageEntries::Tree(tree), .. })) => *tree,
            _ => NodeTree::default(),
        };
        let from = tree(&transfer.from);
        let to = tree(&transfer.to);
        let whole = |height| is_aligned(transfer, height);
        let looked = from.prepare_range(&self.nodes, &transfer.source(), &whole).unwrap_or(u64::MAX / 8);
        // The pages of one source node may lie in two target nodes.
        3 * looked + 2 * (u64::from(from.height) + u64::from(to.height) + 2) + INLINE_NODES
    }
}
