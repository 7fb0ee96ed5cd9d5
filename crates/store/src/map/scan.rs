//! Walking all nodes in steps while the map changes: what is live, and who holds the blocks of chosen segments.
//!
//! Each node is visited once, however many volumes, objects or clones share it. It is the marking of a garbage
//! collector with three colours: *white* nodes have not been met, *grey* ones are to be visited, *black* ones have
//! been. Code that makes a node, or another reference to one, makes it grey if it is white; so nothing that is live
//! when the walk ends can have been missed, however the map changed meanwhile (Dijkstra's insertion barrier).
//!
//! Gone after a crash, as everything that it is for.

use super::node::{NodeBody, NodeId};
use super::object_leaf::ObjectPages;
use super::page_leaf::BlockEntry;
use crate::segments::Segments;
use device::Block;
use std::collections::{BTreeMap, BTreeSet};

/// An entry that refers to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockHolder {
    /// The page leaf, or the leaf of objects for a page inline.
    pub(crate) node: NodeId,
    /// The checksum of the block.
    pub(crate) crc: u32,
    /// The entry's number in the node; behind the last page's for a block of deltas.
    pub(crate) index: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum NodeColour {
    #[default]
    White,
    Grey,
    Black,
}

/// Whose holders are wanted.
#[derive(Debug)]
pub(crate) enum ScanTarget {
    /// Those of blocks in these segments.
    Segments(BTreeSet<u32>),
    /// All.
    All,
}

/// What a walk is for. There is at most one for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanPurpose {
    Clean,
    Scrub,
}

/// A walk under way.
#[derive(Debug)]
pub(crate) struct MapScan {
    /// By the node's id. An id that is used again is white again.
    colours: Vec<NodeColour>,
    /// At least all grey nodes.
    grey: Vec<NodeId>,
    pub(crate) target: ScanTarget,
    /// What was found and not yet taken out.
    pub(crate) holders: BTreeMap<Block, Vec<BlockHolder>>,
    /// Holders in it.
    pub(crate) holder_count: usize,
    /// Nodes visited.
    pub(crate) visited: u64,
    /// Nodes that could not be read: what is below them is not known.
    pub(crate) lost: Vec<NodeId>,
    /// Pages met of which nothing is left.
    pub(crate) pages_gone: u64,
    /// Whether it is a walk at all: what it wants may be looked up instead, which meets nothing.
    is_scan: bool,
    /// What is left to look up, as work.
    pub(crate) to_look_up: u64,
}

impl MapScan {
    pub(super) fn new(target: ScanTarget) -> MapScan {
        let (colours, grey, holders, lost) = (Vec::new(), Vec::new(), BTreeMap::new(), Vec::new());
        let (is_scan, to_look_up) = (true, 0);
        MapScan {
            colours,
            grey,
            target,
            holders,
            holder_count: 0,
            visited: 0,
            lost,
            pages_gone: 0,
            is_scan,
            to_look_up,
        }
    }

    /// Of these segments' blocks the holders are looked up, which is so much work.
    pub(super) fn for_lookups(segments: BTreeSet<u32>, to_look_up: u64) -> MapScan {
        MapScan { is_scan: false, to_look_up, ..MapScan::new(ScanTarget::Segments(segments)) }
    }

    /// Whether it is a walk.
    pub(crate) fn is_scan(&self) -> bool {
        self.is_scan
    }

    /// The holders of a segment's blocks were looked up.
    pub(crate) fn add_looked_up(&mut self, found: Vec<(Block, BlockHolder)>) {
        self.holder_count += found.len();
        found.into_iter().for_each(|(at, holder)| self.holders.entry(at).or_default().push(holder));
    }

    /// Whether all nodes have been visited, for now.
    pub(crate) fn is_complete(&self) -> bool {
        self.grey.is_empty()
    }

    pub(super) fn colour(&mut self, id: NodeId) -> &mut NodeColour {
        let index = id.0 as usize;
        if index >= self.colours.len() {
            self.colours.resize(index + 1, NodeColour::White);
        }
        &mut self.colours[index]
    }

    /// A node that has another reference now.
    pub(super) fn shade(&mut self, id: NodeId) {
        if self.is_scan && id.is_some() && *self.colour(id) == NodeColour::White {
            self.revisit(id);
        }
    }

    /// A node to visit, whether it was or not.
    pub(super) fn revisit(&mut self, id: NodeId) {
        if !self.is_scan {
            return;
        }
        *self.colour(id) = NodeColour::Grey;
        self.grey.push(id);
    }

    pub(super) fn unmark(&mut self, id: NodeId) {
        if self.is_scan {
            *self.colour(id) = NodeColour::White;
        }
    }

    /// Takes grey nodes, to visit them now.
    pub(super) fn take_grey(&mut self, max: usize) -> Vec<NodeId> {
        let mut taken = Vec::new();
        while let Some(id) = self.grey.pop() {
            if *self.colour(id) == NodeColour::Grey {
                taken.push(id);
                if taken.len() == max {
                    break;
                }
            }
        }
        taken
    }

    fn wants(&self, segment: Option<u32>) -> bool {
        match &self.target {
            ScanTarget::Segments(segments) => segment.is_some_and(|segment| segments.contains(&segment)),
            ScanTarget::All => true,
        }
    }

    /// The segments that are wanted, but where all are.
    pub(crate) fn victims(&self) -> impl Iterator<Item = u32> {
        let victims = match &self.target {
            ScanTarget::Segments(segments) => Some(segments),
            ScanTarget::All => None,
        };
        victims.into_iter().flatten().copied()
    }

    /// Forgets the holders of blocks in a segment, and wants no more.
    pub(crate) fn drop_segment(&mut self, segment: u32, blocks: std::ops::Range<Block>) {
        if let ScanTarget::Segments(segments) = &mut self.target {
            segments.remove(&segment);
        }
        let gone: Vec<Block> = self.holders.range(blocks).map(|(&at, _)| at).collect();
        gone.into_iter().for_each(|at| self.drop_block(at));
    }

    /// Forgets the holders of a block.
    pub(crate) fn drop_block(&mut self, at: Block) {
        self.holder_count -= self.holders.remove(&at).map_or(0, |holders| holders.len());
    }

    /// Notes what a node refers to.
    pub(super) fn visit_body(
        &mut self,
        purpose: ScanPurpose,
        id: NodeId,
        body: &NodeBody,
        segments: &mut Segments,
    ) {
        self.visited += 1;
        let mut entry = |scan: &mut MapScan, BlockEntry { place, crc, .. }: BlockEntry, index: usize| {
            if purpose == ScanPurpose::Clean {
                segments.mark(place);
            }
            if scan.wants(segments.geometry().segment_of(place)) {
                scan.holders.entry(place).or_default().push(BlockHolder {
                    node: id,
                    crc,
                    index: index as u16,
                });
                scan.holder_count += 1;
            }
        };
        match body {
            NodeBody::Inner(children) => children.iter().for_each(|&child| self.shade(child)),
            NodeBody::Pages(leaf) => {
                leaf.blocks().for_each(|(index, block)| entry(self, block, index));
                self.pages_gone += leaf.lost_pages().count() as u64;
            }
            NodeBody::Objects(objects) => {
                for (index, object) in objects.iter().enumerate() {
                    match object.as_ref().map(|object| &object.pages) {
                        Some(ObjectPages::Inline(pages)) => {
                            let bases = pages.iter().filter_map(|(_, page)| page.base());
                            bases.for_each(|base| entry(self, base, index));
                            self.pages_gone += pages.iter().filter(|(_, page)| page.is_lost()).count() as u64;
                        }
                        Some(ObjectPages::Tree(tree)) => self.shade(tree.root),
                        None => {}
                    }
                }
            }
            NodeBody::Volumes(volumes) => {
                volumes.iter().flatten().for_each(|volume| self.shade(volume.objects.root));
            }
        }
    }
}

/// A node read for a visit: where it was read, and what it says.
pub(crate) type PeekedNode = (Block, Option<NodeBody>);
