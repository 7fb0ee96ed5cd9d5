//! An incremental scan of all nodes while the map changes: which blocks are live, and which entries hold the
//! blocks of chosen segments.
//!
//! Each node is visited once, however many volumes, objects or clones share it. The scan is the marking phase
//! of a garbage collector, with three colours: *white* nodes were not reached yet, *grey* ones wait for their
//! visit, *black* ones were visited. Code that adds a node or a reference to a node makes a white node grey
//! (Dijkstra's insertion barrier). So no node that is live when the scan ends was missed, however the map
//! changed meanwhile.
//!
//! A crash loses the scan, together with the cleaning round or scrub that needs it.

use super::node::{NodeBody, NodeId};
use super::object_leaf::ObjectPageEntries;
use super::page_leaf::BlockEntry;
use crate::segments::SegmentTable;
use device::Block;
use std::collections::{BTreeMap, BTreeSet};

/// An entry that refers to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockHolder {
    /// The page leaf; or the object leaf, for an inline page.
    pub(crate) node: NodeId,
    /// The block's checksum.
    pub(crate) crc: u32,
    /// The entry's number in the node. Of a delta block: the number of pages in a leaf.
    pub(crate) index: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum NodeColour {
    #[default]
    White,
    Grey,
    Black,
}

/// The blocks whose holders a scan collects.
#[derive(Debug)]
pub(crate) enum ScanTarget {
    /// The blocks of these segments.
    Segments(BTreeSet<u32>),
    /// All blocks.
    All,
}

/// The user of a scan. Each has at most one under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScanPurpose {
    Clean,
    StoreScrub,
}

/// A scan under way.
#[derive(Debug)]
pub(crate) struct MapScan {
    /// The colours of nodes, by id. An id that is used again is white again.
    colours: Vec<NodeColour>,
    /// All grey nodes, perhaps with some that are no longer grey.
    grey: Vec<NodeId>,
    pub(crate) target: ScanTarget,
    /// Holders that were found and not taken out yet.
    pub(crate) holders: BTreeMap<Block, Vec<BlockHolder>>,
    /// The number of holders in `holders`.
    pub(crate) holder_count: usize,
    /// Nodes visited.
    pub(crate) visited: u64,
    /// Nodes that could not be read. Their descendants are unknown.
    pub(crate) lost: Vec<NodeId>,
    /// Lost pages that were seen.
    pub(crate) pages_gone: u64,
    /// Whether nodes are visited. If not, the holders are looked up segment by segment.
    is_scan: bool,
    /// The look-ups that are left, in units of work.
    pub(crate) to_look_up: u64,
}

impl MapScan {
    pub(super) fn new(target: ScanTarget) -> MapScan {
        MapScan {
            colours: Vec::new(),
            grey: Vec::new(),
            target,
            holders: BTreeMap::new(),
            holder_count: 0,
            visited: 0,
            lost: Vec::new(),
            pages_gone: 0,
            is_scan: true,
            to_look_up: 0,
        }
    }

    /// No scan: a place for the holders of these segments' blocks, which are looked up. `to_look_up` is the
    /// work.
    pub(super) fn for_lookups(segments: BTreeSet<u32>, to_look_up: u64) -> MapScan {
        MapScan { is_scan: false, to_look_up, ..MapScan::new(ScanTarget::Segments(segments)) }
    }

    /// Whether nodes are visited.
    pub(crate) fn is_scan(&self) -> bool {
        self.is_scan
    }

    /// Adds holders that were looked up.
    pub(crate) fn add_looked_up(&mut self, found: Vec<(Block, BlockHolder)>) {
        self.holder_count += found.len();
        found.into_iter().for_each(|(at, holder)| self.holders.entry(at).or_default().push(holder));
    }

    /// Whether no node waits for its visit now.
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

    /// A node has a new reference: makes it grey if it is white.
    pub(super) fn shade(&mut self, id: NodeId) {
        if self.is_scan && id.is_some() && *self.colour(id) == NodeColour::White {
            self.revisit(id);
        }
    }

    /// Makes a node grey, whatever its colour.
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

    /// Takes grey nodes for a visit.
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

    /// The chosen segments; none if all blocks are wanted.
    pub(crate) fn victims(&self) -> impl Iterator<Item = u32> {
        let victims = match &self.target {
            ScanTarget::Segments(segments) => Some(segments),
            ScanTarget::All => None,
        };
        victims.into_iter().flatten().copied()
    }

    /// Forgets the holders of blocks in a segment, and collects no more of them.
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

    /// Notes the blocks and nodes that a node refers to.
    pub(super) fn visit_body(
        &mut self,
        purpose: ScanPurpose,
        id: NodeId,
        body: &NodeBody,
        segments: &mut SegmentTable,
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
                        Some(ObjectPageEntries::Inline(pages)) => {
                            let bases = pages.iter().filter_map(|(_, page)| page.base());
                            bases.for_each(|base| entry(self, base, index));
                            self.pages_gone += pages.iter().filter(|(_, page)| page.is_lost()).count() as u64;
                        }
                        Some(ObjectPageEntries::Tree(tree)) => self.shade(tree.root),
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

/// A node read for a visit: the block it was read from, and its content, if it could be read.
pub(crate) type PeekedNode = (Block, Option<NodeBody>);
