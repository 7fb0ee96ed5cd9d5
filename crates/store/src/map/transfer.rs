//! Ranges of pages that go from one object to another, or go altogether: what lies wholly inside a range is taken as whole
//! subtrees, where source and target agree modulo their span, and only nodes at its edges are looked into.

use super::node::{MissingNodes, NodeBody, NodeId, NodeTree};
use super::node_tree::{TransferKind, own_node, pages_below, set_child};
use super::nodes::MapNodes;
use super::object_leaf::{ObjectEntry, ObjectPages};
use super::page_leaf::{DroppedBlocks, PageEntry};
use super::page_map::PageMap;
use crate::format::{INNER_CHILDREN, LEAF_PAGES};
use device::{Lsn, ObjectId, PageNo, Transfer};
use std::ops::Range;

/// A part of what a transfer takes.
enum TransferPiece {
    /// A subtree with a reference that is the target's, and the first page of the target that it is for.
    Subtree {
        height: u8,
        first: PageNo,
        id: NodeId,
    },
    Page(PageNo, PageEntry),
}

/// A node that a range reaches, with its height and the first page below it.
#[derive(Clone, Copy)]
struct NodePosition {
    id: NodeId,
    height: u8,
    first: u64,
}

/// How a node lies to a range.
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

/// Whether a transfer can take a node at this height as a whole.
pub(super) fn is_aligned(transfer: &Transfer, height: u8) -> bool {
    let (first, at, span) = (transfer.first.0, transfer.at.0, pages_below(height));
    first.abs_diff(at).is_multiple_of(span)
}

impl NodeTree {
    fn top(self) -> NodePosition {
        NodePosition { id: self.root, height: self.height, first: 0 }
    }

    /// The nodes that a range looks into must be in memory: those across its edges, and those inside it that are not taken as
    /// a whole. Returns how many they are.
    fn prepare_range(
        self,
        nodes: &MapNodes,
        range: &Range<PageNo>,
        whole: &dyn Fn(u8) -> bool,
    ) -> Result<u64, MissingNodes> {
        let (mut todo, mut missing, mut looked) = (vec![self.top()], Vec::new(), 0);
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

    /// Makes holes of a range. The references to the subtrees that go are the caller's.
    fn remove_range(&mut self, nodes: &mut MapNodes, range: &Range<PageNo>) -> Vec<NodeId> {
        let mut gone = Vec::new();
        self.root = remove_range(nodes, self.top(), range, &mut gone);
        if !self.root.is_some() {
            self.height = 0;
        }
        gone
    }

    /// Takes what a transfer wants of its source.
    fn take_range(
        &mut self,
        nodes: &mut MapNodes,
        transfer: &Transfer,
        kind: TransferKind,
    ) -> Vec<TransferPiece> {
        let mut pieces = Vec::new();
        self.root = take_range(nodes, self.top(), transfer, kind, &mut pieces);
        if !self.root.is_some() {
            self.height = 0;
        }
        pieces
    }
}

/// What is left of a subtree.
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
            at.entries(range).map(|index| leaf.set(index, PageEntry::default())).collect();
        gone.iter().for_each(|gone| nodes.drop_block_references(gone));
    }
    release_if_empty(nodes, at.id)
}

/// What is left of a subtree of the source.
fn take_range(
    nodes: &mut MapNodes,
    at: NodePosition,
    transfer: &Transfer,
    kind: TransferKind,
    pieces: &mut Vec<TransferPiece>,
) -> NodeId {
    let range = transfer.source();
    match at.overlap_with(&range) {
        RangeOverlap::Outside => return at.id,
        RangeOverlap::Inside if is_aligned(transfer, at.height) => {
            let first = transfer.target_of(PageNo(at.first));
            pieces.push(TransferPiece::Subtree { height: at.height, first, id: at.id });
            if kind == TransferKind::Clone {
                nodes.add_reference(at.id);
                return at.id;
            }
            return NodeId::NONE;
        }
        RangeOverlap::Inside | RangeOverlap::Partial => {}
    }
    let at = match kind {
        TransferKind::Move => NodePosition { id: own_node(nodes, at.id, at.height, NodeBody::inner), ..at },
        TransferKind::Clone => at,
    };
    for (slot, child) in at.children(nodes) {
        let left = take_range(nodes, child, transfer, kind, pieces);
        if left != child.id {
            set_child(nodes, at.id, slot, left);
        }
    }
    take_entries(nodes, at, transfer, kind, pieces);
    if kind == TransferKind::Clone { at.id } else { release_if_empty(nodes, at.id) }
}

/// Takes entries of a leaf. Those of a clone say on both sides that they are shared; a leaf that others share says so for all of them, in
/// its place.
fn take_entries(
    nodes: &mut MapNodes,
    at: NodePosition,
    transfer: &Transfer,
    kind: TransferKind,
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
        let entry = match kind {
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

/// The node; none where nothing is left in it, which takes it away.
fn release_if_empty(nodes: &mut MapNodes, id: NodeId) -> NodeId {
    if nodes.cached(id).is_empty() {
        nodes.release(id);
        return NodeId::NONE;
    }
    id
}

impl PageMap {
    /// Whether the nodes are in memory that [`transfer`](Map::transfer) changes.
    pub(super) fn prepare_transfer(&self, transfer: &Transfer) -> Result<(), MissingNodes> {
        match self.slot(transfer.from.volume, transfer.from.slot)? {
            Some(old) if old.generation < transfer.from.generation => self.prepare_drop(old)?,
            Some(ObjectEntry { generation, pages: ObjectPages::Tree(tree), .. })
                if *generation == transfer.from.generation =>
            {
                tree.prepare_range(&self.nodes, &transfer.source(), &|height| is_aligned(transfer, height))?;
            }
            _ => {}
        }
        match self.slot(transfer.to.volume, transfer.to.slot)? {
            Some(old) if old.generation < transfer.to.generation => self.prepare_drop(old),
            Some(ObjectEntry { pages: ObjectPages::Tree(tree), .. }) => {
                tree.prepare_range(&self.nodes, &transfer.target(), &|_| true).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// A clone or a move, unless one of its objects has had it: both remember it, in one batch of the log.
    pub(super) fn transfer(&mut self, transfer: &Transfer, lsn: Lsn, kind: TransferKind) {
        let Transfer { from, to, .. } = *transfer;
        self.unshare(from.volume, from.slot);
        self.unshare(to.volume, to.slot);
        if [from, to].iter().any(|&object| self.has_applied_transfer(object, lsn).expect("prepared")) {
            return;
        }
        let newer =
            self.object_in_memory(to.volume, to.slot).is_some_and(|there| there.generation > to.generation);
        let pieces = self.take_from(transfer, lsn, kind, newer);
        if newer {
            return;
        }
        let old = self.object_in_memory(to.volume, to.slot);
        let mut pages = match &old {
            Some(same) if same.generation == to.generation => same.pages.clone(),
            Some(older) => {
                self.drop_pages(&older.pages);
                ObjectPages::Inline(Vec::new())
            }
            None => ObjectPages::Inline(Vec::new()),
        };
        self.punch_pages(&mut pages, &transfer.target());
        self.insert_pieces(&mut pages, pieces);
        let new = ObjectEntry { generation: to.generation, transfer_lsn: lsn, pages };
        self.put_object(to.volume, to.slot, old, Some(new));
        self.revisit_object(to);
    }

    /// Takes what the source has, or makes a hole of it where nobody gets what a move takes. It remembers the clone or move also where
    /// it had nothing: with the target gone nothing else would tell, and what it got later would go, too.
    fn take_from(
        &mut self,
        transfer: &Transfer,
        lsn: Lsn,
        kind: TransferKind,
        is_lost: bool,
    ) -> Vec<TransferPiece> {
        let from = transfer.from;
        let old = self.object_in_memory(from.volume, from.slot);
        let mut pages = match &old {
            Some(newer) if newer.generation > from.generation => return Vec::new(),
            Some(same) if same.generation == from.generation => same.pages.clone(),
            Some(older) => {
                self.drop_pages(&older.pages);
                ObjectPages::Inline(Vec::new())
            }
            None => ObjectPages::Inline(Vec::new()),
        };
        let pieces = match (is_lost, kind) {
            (false, _) => self.take_pieces(&mut pages, transfer, kind),
            (true, TransferKind::Move) => {
                self.punch_pages(&mut pages, &transfer.source());
                Vec::new()
            }
            (true, TransferKind::Clone) => Vec::new(),
        };
        let new = ObjectEntry { generation: from.generation, transfer_lsn: lsn, pages };
        self.put_object(from.volume, from.slot, old, Some(new));
        pieces
    }

    /// Whether an object has had the clone or move with this LSN, or a later one.
    pub(crate) fn has_applied_transfer(&self, object: ObjectId, lsn: Lsn) -> Result<bool, MissingNodes> {
        let had = |entry: &ObjectEntry| entry.transfer_lsn >= lsn && !self.repeats_ranges();
        Ok(self.object(object)?.is_some_and(had))
    }

    fn take_pieces(
        &mut self,
        pages: &mut ObjectPages,
        transfer: &Transfer,
        kind: TransferKind,
    ) -> Vec<TransferPiece> {
        let inline = match pages {
            ObjectPages::Tree(tree) => {
                let pieces = tree.take_range(&mut self.nodes, transfer, kind);
                if !tree.root.is_some() {
                    *pages = ObjectPages::Inline(Vec::new());
                }
                return pieces;
            }
            ObjectPages::Inline(inline) => inline,
        };
        let range = transfer.source();
        let piece =
            |&(page, entry): &(PageNo, PageEntry)| TransferPiece::Page(transfer.target_of(page), entry);
        let within = inline.iter_mut().filter(|(page, _)| range.contains(page));
        if kind == TransferKind::Clone {
            within.for_each(|(_, entry)| entry.shared = entry.base().is_some());
        }
        let pieces = inline.iter().filter(|(page, _)| range.contains(page)).map(piece).collect();
        if kind == TransferKind::Move {
            inline.retain(|(page, _)| !range.contains(page));
        }
        pieces
    }

    /// What goes from a tree is freed from the dying list, whatever is below it.
    fn punch_pages(&mut self, pages: &mut ObjectPages, range: &Range<PageNo>) {
        match pages {
            ObjectPages::Inline(inline) => {
                let gone = inline.iter().filter(|(page, _)| range.contains(page));
                gone.filter_map(|(_, entry)| entry.base())
                    .for_each(|base| self.nodes.drop_block_reference(&base));
                inline.retain(|(page, _)| !range.contains(page));
            }
            ObjectPages::Tree(tree) => {
                let gone = tree.remove_range(&mut self.nodes, range);
                if !tree.root.is_some() {
                    *pages = ObjectPages::Inline(Vec::new());
                }
                gone.into_iter().for_each(|id| self.add_dying(id));
            }
        }
    }

    /// Puts into holes what was taken.
    fn insert_pieces(&mut self, pages: &mut ObjectPages, pieces: Vec<TransferPiece>) {
        for piece in pieces {
            match piece {
                TransferPiece::Page(page, entry) => {
                    self.put_page(pages, page, entry);
                    // A walk may have been there, and not where the entry was.
                    if let ObjectPages::Tree(tree) = &*pages {
                        let leaf = tree.leaf(&self.nodes, page.0 / LEAF_PAGES).expect("just put there");
                        leaf.into_iter().for_each(|leaf| self.nodes.revisit(leaf.id));
                    }
                }
                TransferPiece::Subtree { height, first, id } => {
                    let mut tree = match &*pages {
                        ObjectPages::Tree(tree) => *tree,
                        ObjectPages::Inline(inline) => NodeTree::of(&mut self.nodes, inline),
                    };
                    tree.put_subtree(&mut self.nodes, height, first.0 / LEAF_PAGES, id);
                    self.nodes.shade(id);
                    *pages = ObjectPages::Tree(tree);
                }
            }
        }
    }
}

/// Nodes that pages inline may need in a tree of another object: a leaf for each and one above.
const INLINE_NODES: u64 = 32;

impl PageMap {
    /// Nodes that a transfer may make dirty, at most: those that it looks into, on both sides, and those on the way to where it puts
    /// what it takes. They are in memory.
    pub(crate) fn nodes_for_transfer(&self, transfer: &Transfer) -> u64 {
        let tree = |object: &ObjectId| match self.object(*object) {
            Ok(Some(ObjectEntry { pages: ObjectPages::Tree(tree), .. })) => *tree,
            _ => NodeTree::default(),
        };
        let (from, to) = (tree(&transfer.from), tree(&transfer.to));
        let whole = |height| is_aligned(transfer, height);
        let looked = from.prepare_range(&self.nodes, &transfer.source(), &whole).unwrap_or(u64::MAX / 8);
        // What lies in one node of the source may lie in two of the target.
        3 * looked + 2 * (u64::from(from.height) + u64::from(to.height) + 2) + INLINE_NODES
    }
}
