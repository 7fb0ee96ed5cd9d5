//! Ranges of pages that go from one object to another, or go altogether: what lies wholly inside a range is taken as whole
//! subtrees, where source and target agree modulo their span, and only nodes at its edges are looked into.

use super::leaf::{Gone, PageEntry};
use super::map::Map;
use super::node::{Body, Missing, NodeId, Tree};
use super::nodes::Nodes;
use super::object::{ObjectEntry, Pages};
use super::tree::{Source, own, pages_below, set_child};
use crate::format::{INNER_CHILDREN, LEAF_PAGES};
use device::{Lsn, ObjectId, PageNo, PageTransfer};
use std::ops::Range;

/// A part of what a transfer takes.
enum Piece {
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
struct At {
    id: NodeId,
    height: u8,
    first: u64,
}

/// How a node lies to a range.
enum Lies {
    Outside,
    Inside,
    Across,
}

impl At {
    fn lies_to(self, range: &Range<PageNo>) -> Lies {
        let end = self.first.saturating_add(pages_below(self.height));
        if !self.id.is_some() || end <= range.start.0 || range.end.0 <= self.first {
            Lies::Outside
        } else if range.start.0 <= self.first && end <= range.end.0 {
            Lies::Inside
        } else {
            Lies::Across
        }
    }

    /// The children of an inner node, with their slots.
    fn children(self, nodes: &Nodes) -> Vec<(usize, At)> {
        let Body::Inner(children) = nodes.cached(self.id) else { return Vec::new() };
        below(self, children)
    }

    /// The entries of a leaf within a range.
    fn entries(self, range: &Range<PageNo>) -> Range<usize> {
        let within = |page: u64| page.saturating_sub(self.first).min(LEAF_PAGES) as usize;
        within(range.start.0)..within(range.end.0)
    }
}

fn below(at: At, children: &[NodeId; INNER_CHILDREN as usize]) -> Vec<(usize, At)> {
    let step = pages_below(at.height - 1);
    let child = |(slot, &id): (usize, &NodeId)| {
        let first = step.checked_mul(slot as u64)?.checked_add(at.first)?;
        id.is_some().then_some((slot, At { id, height: at.height - 1, first }))
    };
    children.iter().enumerate().filter_map(child).collect()
}

/// Whether a transfer can take a node at this height as a whole.
pub(super) fn agrees(transfer: &PageTransfer, height: u8) -> bool {
    let (first, at, span) = (transfer.first.0, transfer.at.0, pages_below(height));
    first.abs_diff(at).is_multiple_of(span)
}

impl Tree {
    fn top(self) -> At {
        At { id: self.root, height: self.height, first: 0 }
    }

    /// The nodes that a range looks into must be in memory: those across its edges, and those inside it that are not taken as
    /// a whole. Returns how many they are.
    fn prepare_range(
        self,
        nodes: &Nodes,
        range: &Range<PageNo>,
        whole: &dyn Fn(u8) -> bool,
    ) -> Result<u64, Missing> {
        let (mut todo, mut missing, mut looked) = (vec![self.top()], Vec::new(), 0);
        while let Some(at) = todo.pop() {
            match at.lies_to(range) {
                Lies::Outside => continue,
                Lies::Inside if whole(at.height) => continue,
                Lies::Inside | Lies::Across => looked += 1,
            }
            match nodes.node(at.id) {
                Err(Missing(ids)) => missing.extend(ids),
                Ok(node) => {
                    if let Body::Inner(children) = &node.body {
                        todo.extend(below(at, children).into_iter().map(|(_, child)| child));
                    }
                }
            }
        }
        if missing.is_empty() { Ok(looked) } else { Err(Missing(missing)) }
    }

    /// Makes holes of a range. The references to the subtrees that go are the caller's.
    fn remove_range(&mut self, nodes: &mut Nodes, range: &Range<PageNo>) -> Vec<NodeId> {
        let mut gone = Vec::new();
        self.root = remove_range(nodes, self.top(), range, &mut gone);
        if !self.root.is_some() {
            self.height = 0;
        }
        gone
    }

    /// Takes what a transfer wants of its source.
    fn take_range(&mut self, nodes: &mut Nodes, transfer: &PageTransfer, source: Source) -> Vec<Piece> {
        let mut pieces = Vec::new();
        self.root = take_range(nodes, self.top(), transfer, source, &mut pieces);
        if !self.root.is_some() {
            self.height = 0;
        }
        pieces
    }
}

/// What is left of a subtree.
fn remove_range(nodes: &mut Nodes, at: At, range: &Range<PageNo>, gone: &mut Vec<NodeId>) -> NodeId {
    match at.lies_to(range) {
        Lies::Outside => return at.id,
        Lies::Inside => {
            gone.push(at.id);
            return NodeId::NONE;
        }
        Lies::Across => {}
    }
    let at = At { id: own(nodes, at.id, at.height, Body::inner), ..at };
    for (slot, child) in at.children(nodes) {
        let left = remove_range(nodes, child, range, gone);
        if left != child.id {
            set_child(nodes, at.id, slot, left);
        }
    }
    if let Body::Pages(leaf) = &mut nodes.node_mut(at.id).body {
        let gone: Vec<Gone> = at.entries(range).map(|index| leaf.set(index, PageEntry::default())).collect();
        gone.iter().for_each(|gone| nodes.forget_all(gone));
    }
    unless_empty(nodes, at.id)
}

/// What is left of a subtree of the source.
fn take_range(
    nodes: &mut Nodes,
    at: At,
    transfer: &PageTransfer,
    source: Source,
    pieces: &mut Vec<Piece>,
) -> NodeId {
    let range = transfer.source();
    match at.lies_to(&range) {
        Lies::Outside => return at.id,
        Lies::Inside if agrees(transfer, at.height) => {
            let first = transfer.target_of(PageNo(at.first));
            pieces.push(Piece::Subtree { height: at.height, first, id: at.id });
            if source == Source::Stays {
                nodes.refer(at.id);
                return at.id;
            }
            return NodeId::NONE;
        }
        Lies::Inside | Lies::Across => {}
    }
    let at = match source {
        Source::Goes => At { id: own(nodes, at.id, at.height, Body::inner), ..at },
        Source::Stays => at,
    };
    for (slot, child) in at.children(nodes) {
        let left = take_range(nodes, child, transfer, source, pieces);
        if left != child.id {
            set_child(nodes, at.id, slot, left);
        }
    }
    take_entries(nodes, at, transfer, source, pieces);
    if source == Source::Stays { at.id } else { unless_empty(nodes, at.id) }
}

/// Takes entries of a leaf. Those of a clone say on both sides that they are shared; a leaf that others share says so for all of them, in
/// its place.
fn take_entries(nodes: &mut Nodes, at: At, transfer: &PageTransfer, source: Source, pieces: &mut Vec<Piece>) {
    let within = at.entries(&transfer.source());
    let Body::Pages(leaf) = nodes.cached(at.id) else { return };
    let taken: Vec<usize> = within.filter(|&index| !leaf.pages()[index].is_hole()).collect();
    if taken.is_empty() {
        return;
    }
    let Body::Pages(leaf) = &mut nodes.node_mut(at.id).body else { unreachable!("a leaf of pages") };
    let mut all_gone = Vec::new();
    for index in taken {
        let page = transfer.target_of(PageNo(at.first + index as u64));
        let entry = match source {
            Source::Goes => {
                let (entry, gone) = leaf.take(index);
                all_gone.push(gone);
                entry
            }
            Source::Stays => leaf.share(index),
        };
        pieces.push(Piece::Page(page, entry));
    }
    all_gone.iter().for_each(|gone| nodes.forget_all(gone));
}

/// The node; none where nothing is left in it, which takes it away.
fn unless_empty(nodes: &mut Nodes, id: NodeId) -> NodeId {
    if nodes.cached(id).is_empty() {
        nodes.release(id);
        return NodeId::NONE;
    }
    id
}

impl Map {
    /// Whether the nodes are in memory that [`transfer`](Map::transfer) changes.
    pub(super) fn prepare_transfer(&self, transfer: &PageTransfer) -> Result<(), Missing> {
        match self.slot(transfer.from.volume, transfer.from.slot)? {
            Some(old) if old.generation < transfer.from.generation => self.prepare_drop(old)?,
            Some(ObjectEntry { generation, pages: Pages::Tree(tree), .. })
                if *generation == transfer.from.generation =>
            {
                tree.prepare_range(&self.nodes, &transfer.source(), &|height| agrees(transfer, height))?;
            }
            _ => {}
        }
        match self.slot(transfer.to.volume, transfer.to.slot)? {
            Some(old) if old.generation < transfer.to.generation => self.prepare_drop(old),
            Some(ObjectEntry { pages: Pages::Tree(tree), .. }) => {
                tree.prepare_range(&self.nodes, &transfer.target(), &|_| true).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// A clone or a move, unless one of its objects has had it: both remember it, in one batch of the log.
    pub(super) fn transfer(&mut self, transfer: &PageTransfer, lsn: Lsn, source: Source) {
        let PageTransfer { from, to, .. } = *transfer;
        self.unshare(from.volume, from.slot);
        self.unshare(to.volume, to.slot);
        if [from, to].iter().any(|&object| self.has_had(object, lsn).expect("prepared")) {
            return;
        }
        let newer = self.here(to.volume, to.slot).is_some_and(|there| there.generation > to.generation);
        let pieces = self.take_from(transfer, lsn, source, newer);
        if newer {
            return;
        }
        let old = self.here(to.volume, to.slot);
        let mut pages = match &old {
            Some(same) if same.generation == to.generation => same.pages.clone(),
            Some(older) => {
                self.drop_pages(&older.pages);
                Pages::Inline(Vec::new())
            }
            None => Pages::Inline(Vec::new()),
        };
        self.make_hole(&mut pages, &transfer.target());
        self.put_pieces(&mut pages, pieces);
        let new = ObjectEntry { generation: to.generation, transfer_lsn: lsn, pages };
        self.put(to.volume, to.slot, old, Some(new));
        self.revisit_object(to);
    }

    /// Takes what the source has, or makes a hole of it where nobody gets what a move takes. It remembers the clone or move also where
    /// it had nothing: with the target gone nothing else would tell, and what it got later would go, too.
    fn take_from(&mut self, transfer: &PageTransfer, lsn: Lsn, source: Source, is_lost: bool) -> Vec<Piece> {
        let from = transfer.from;
        let old = self.here(from.volume, from.slot);
        let mut pages = match &old {
            Some(newer) if newer.generation > from.generation => return Vec::new(),
            Some(same) if same.generation == from.generation => same.pages.clone(),
            Some(older) => {
                self.drop_pages(&older.pages);
                Pages::Inline(Vec::new())
            }
            None => Pages::Inline(Vec::new()),
        };
        let pieces = match (is_lost, source) {
            (false, _) => self.take(&mut pages, transfer, source),
            (true, Source::Goes) => {
                self.make_hole(&mut pages, &transfer.source());
                Vec::new()
            }
            (true, Source::Stays) => Vec::new(),
        };
        let new = ObjectEntry { generation: from.generation, transfer_lsn: lsn, pages };
        self.put(from.volume, from.slot, old, Some(new));
        pieces
    }

    /// Whether an object has had the clone or move with this LSN, or a later one.
    pub(crate) fn has_had(&self, object: ObjectId, lsn: Lsn) -> Result<bool, Missing> {
        let had = |entry: &ObjectEntry| entry.transfer_lsn >= lsn && !self.repeats_ranges();
        Ok(self.object(object)?.is_some_and(had))
    }

    fn take(&mut self, pages: &mut Pages, transfer: &PageTransfer, source: Source) -> Vec<Piece> {
        let inline = match pages {
            Pages::Tree(tree) => {
                let pieces = tree.take_range(&mut self.nodes, transfer, source);
                if !tree.root.is_some() {
                    *pages = Pages::Inline(Vec::new());
                }
                return pieces;
            }
            Pages::Inline(inline) => inline,
        };
        let range = transfer.source();
        let piece = |&(page, entry): &(PageNo, PageEntry)| Piece::Page(transfer.target_of(page), entry);
        let within = inline.iter_mut().filter(|(page, _)| range.contains(page));
        if source == Source::Stays {
            within.for_each(|(_, entry)| entry.shared = entry.base().is_some());
        }
        let pieces = inline.iter().filter(|(page, _)| range.contains(page)).map(piece).collect();
        if source == Source::Goes {
            inline.retain(|(page, _)| !range.contains(page));
        }
        pieces
    }

    /// What goes from a tree is freed from the dying list, whatever is below it.
    fn make_hole(&mut self, pages: &mut Pages, range: &Range<PageNo>) {
        match pages {
            Pages::Inline(inline) => {
                let gone = inline.iter().filter(|(page, _)| range.contains(page));
                gone.filter_map(|(_, entry)| entry.base()).for_each(|base| self.nodes.forget(&base));
                inline.retain(|(page, _)| !range.contains(page));
            }
            Pages::Tree(tree) => {
                let gone = tree.remove_range(&mut self.nodes, range);
                if !tree.root.is_some() {
                    *pages = Pages::Inline(Vec::new());
                }
                gone.into_iter().for_each(|id| self.condemn(id));
            }
        }
    }

    /// Puts into holes what was taken.
    fn put_pieces(&mut self, pages: &mut Pages, pieces: Vec<Piece>) {
        for piece in pieces {
            match piece {
                Piece::Page(page, entry) => {
                    self.put_page(pages, page, entry);
                    // A walk may have been there, and not where the entry was.
                    if let Pages::Tree(tree) = &*pages {
                        let leaf = tree.leaf(&self.nodes, page.0 / LEAF_PAGES).expect("just put there");
                        leaf.into_iter().for_each(|leaf| self.nodes.revisit(leaf.id));
                    }
                }
                Piece::Subtree { height, first, id } => {
                    let mut tree = match &*pages {
                        Pages::Tree(tree) => *tree,
                        Pages::Inline(inline) => Tree::of(&mut self.nodes, inline),
                    };
                    tree.put_subtree(&mut self.nodes, height, first.0 / LEAF_PAGES, id);
                    self.nodes.still_referred(id);
                    *pages = Pages::Tree(tree);
                }
            }
        }
    }
}

/// Nodes that pages inline may need in a tree of another object: a leaf for each and one above.
const INLINE_NODES: u64 = 32;

impl Map {
    /// Nodes that a transfer may make dirty, at most: those that it looks into, on both sides, and those on the way to where it puts
    /// what it takes. They are in memory.
    pub(crate) fn nodes_for_transfer(&self, transfer: &PageTransfer) -> u64 {
        let tree = |object: &ObjectId| match self.object(*object) {
            Ok(Some(ObjectEntry { pages: Pages::Tree(tree), .. })) => *tree,
            _ => Tree::default(),
        };
        let (from, to) = (tree(&transfer.from), tree(&transfer.to));
        let whole = |height| agrees(transfer, height);
        let looked = from.prepare_range(&self.nodes, &transfer.source(), &whole).unwrap_or(u64::MAX / 8);
        // What lies in one node of the source may lie in two of the target.
        3 * looked + 2 * (u64::from(from.height) + u64::from(to.height) + 2) + INLINE_NODES
    }
}
