//! Walking all nodes in steps while the map changes: what is live, and who holds the blocks of chosen segments.
//!
//! Each node is visited once, however many volumes, objects or clones share it. It is the marking of a garbage
//! collector with three colours: *white* nodes have not been met, *grey* ones are to be visited, *black* ones have
//! been. Code that makes a node, or another reference to one, makes it grey if it is white; so nothing that is live
//! when the walk ends can have been missed, however the map changed meanwhile (Dijkstra's insertion barrier).
//!
//! Gone after a crash, as everything that it is for.

use super::leaf::BlockEntry;
use super::node::{Body, NodeId};
use super::object::Pages;
use crate::segments::SegmentTable;
use device::Block;
use std::collections::{BTreeMap, BTreeSet};

/// An entry that refers to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    /// The page leaf, or the leaf of objects for a page inline.
    pub(crate) node: NodeId,
    /// The checksum of the block.
    pub(crate) crc: u32,
    /// The entry's number in the node; behind the last page's for a block of deltas.
    pub(crate) index: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Colour {
    #[default]
    White,
    Grey,
    Black,
}

/// Whose holders are wanted.
#[derive(Debug)]
pub(crate) enum Wanted {
    /// Those of blocks in these segments.
    In(BTreeSet<u32>),
    /// All.
    Every,
}

/// What a walk is for. There is at most one for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Clean,
    StoreScrub,
}

/// A walk under way.
#[derive(Debug)]
pub(crate) struct Scan {
    /// By the node's id. An id that is used again is white again.
    colours: Vec<Colour>,
    /// At least all grey nodes.
    grey: Vec<NodeId>,
    pub(crate) wanted: Wanted,
    /// What was found and not yet taken out.
    pub(crate) held: BTreeMap<Block, Vec<Holder>>,
    /// Holders in it.
    pub(crate) holders: usize,
    /// Nodes visited.
    pub(crate) visited: u64,
    /// Nodes that could not be read: what is below them is not known.
    pub(crate) lost: Vec<NodeId>,
    /// Pages met of which nothing is left.
    pub(crate) pages_gone: u64,
    /// Whether it is a walk at all: what it wants may be looked up instead, which meets nothing.
    walks: bool,
    /// What is left to look up, as work.
    pub(crate) to_look_up: u64,
}

impl Scan {
    pub(super) fn new(wanted: Wanted) -> Scan {
        let (colours, grey, held, lost) = (Vec::new(), Vec::new(), BTreeMap::new(), Vec::new());
        let (walks, to_look_up) = (true, 0);
        Scan { colours, grey, wanted, held, holders: 0, visited: 0, lost, pages_gone: 0, walks, to_look_up }
    }

    /// Of these segments' blocks the holders are looked up, which is so much work.
    pub(super) fn of_lookups(segments: BTreeSet<u32>, to_look_up: u64) -> Scan {
        Scan { walks: false, to_look_up, ..Scan::new(Wanted::In(segments)) }
    }

    /// Whether it is a walk.
    pub(crate) fn walks(&self) -> bool {
        self.walks
    }

    /// The holders of a segment's blocks were looked up.
    pub(crate) fn looked_up(&mut self, found: Vec<(Block, Holder)>) {
        self.holders += found.len();
        found.into_iter().for_each(|(at, holder)| self.held.entry(at).or_default().push(holder));
    }

    /// Whether all nodes have been visited, for now.
    pub(crate) fn is_complete(&self) -> bool {
        self.grey.is_empty()
    }

    pub(super) fn colour(&mut self, id: NodeId) -> &mut Colour {
        let index = id.0 as usize;
        if index >= self.colours.len() {
            self.colours.resize(index + 1, Colour::White);
        }
        &mut self.colours[index]
    }

    /// A node that has another reference now.
    pub(super) fn met(&mut self, id: NodeId) {
        if self.walks && id.is_some() && *self.colour(id) == Colour::White {
            self.again(id);
        }
    }

    /// A node to visit, whether it was or not.
    pub(super) fn again(&mut self, id: NodeId) {
        if !self.walks {
            return;
        }
        *self.colour(id) = Colour::Grey;
        self.grey.push(id);
    }

    pub(super) fn gone(&mut self, id: NodeId) {
        if self.walks {
            *self.colour(id) = Colour::White;
        }
    }

    /// Takes grey nodes, to visit them now.
    pub(super) fn take(&mut self, max: usize) -> Vec<NodeId> {
        let mut taken = Vec::new();
        while let Some(id) = self.grey.pop() {
            if *self.colour(id) == Colour::Grey {
                taken.push(id);
                if taken.len() == max {
                    break;
                }
            }
        }
        taken
    }

    fn wants(&self, segment: Option<u32>) -> bool {
        match &self.wanted {
            Wanted::In(segments) => segment.is_some_and(|segment| segments.contains(&segment)),
            Wanted::Every => true,
        }
    }

    /// The segments that are wanted, but where all are.
    pub(crate) fn victims(&self) -> impl Iterator<Item = u32> {
        let victims = match &self.wanted {
            Wanted::In(segments) => Some(segments),
            Wanted::Every => None,
        };
        victims.into_iter().flatten().copied()
    }

    /// Forgets the holders of blocks in a segment, and wants no more.
    pub(crate) fn unwant(&mut self, segment: u32, blocks: std::ops::Range<Block>) {
        if let Wanted::In(segments) = &mut self.wanted {
            segments.remove(&segment);
        }
        let gone: Vec<Block> = self.held.range(blocks).map(|(&at, _)| at).collect();
        gone.into_iter().for_each(|at| self.resolved(at));
    }

    /// Forgets the holders of a block.
    pub(crate) fn resolved(&mut self, at: Block) {
        self.holders -= self.held.remove(&at).map_or(0, |holders| holders.len());
    }

    /// Notes what a node refers to.
    pub(super) fn look_into(
        &mut self,
        purpose: Purpose,
        id: NodeId,
        body: &Body,
        segments: &mut SegmentTable,
    ) {
        self.visited += 1;
        let mut entry = |scan: &mut Scan, BlockEntry { place, crc, .. }: BlockEntry, index: usize| {
            if purpose == Purpose::Clean {
                segments.mark(place);
            }
            if scan.wants(segments.geometry().segment(place)) {
                scan.held.entry(place).or_default().push(Holder { node: id, crc, index: index as u16 });
                scan.holders += 1;
            }
        };
        match body {
            Body::Inner(children) => children.iter().for_each(|&child| self.met(child)),
            Body::Pages(leaf) => {
                leaf.blocks().for_each(|(index, block)| entry(self, block, index));
                self.pages_gone += leaf.lost().count() as u64;
            }
            Body::Objects(objects) => {
                for (index, object) in objects.iter().enumerate() {
                    match object.as_ref().map(|object| &object.pages) {
                        Some(Pages::Inline(pages)) => {
                            let bases = pages.iter().filter_map(|(_, page)| page.base());
                            bases.for_each(|base| entry(self, base, index));
                            self.pages_gone += pages.iter().filter(|(_, page)| page.is_lost()).count() as u64;
                        }
                        Some(Pages::Tree(tree)) => self.met(tree.root),
                        None => {}
                    }
                }
            }
            Body::Volumes(volumes) => {
                volumes.iter().flatten().for_each(|volume| self.met(volume.objects.root));
            }
        }
    }
}

/// A node read for a visit: where it was read, and what it says.
pub(crate) type Peeked = (Block, Option<Body>);
