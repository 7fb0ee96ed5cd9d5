//! Repointing: the entries of a block that the cleaner moved get its new place. The meaning of a node does
//! not change by that, so a shared node is repointed once, under its id, for all its parents.

use super::node::{NodeBody, NodeId, NodeTree};
use super::nodes::MapNodes;
use super::object_leaf::{INLINE_EXTENTS_MAX, ObjectEntry, ObjectPageEntries, fits_inline};
use super::page_leaf::{BlockEntry, PageMapEntry};
use super::page_map::PageMap;
use super::scan::BlockHolder;
use crate::format::LEAF_PAGES;
use crate::policy::SpaceClass;
use device::{Block, PageNo};
use std::collections::BTreeSet;

/// A block that the cleaner moved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MovedBlock {
    pub(crate) from: Block,
    pub(crate) to: Block,
    /// The checksum of the moved bytes.
    pub(crate) crc: u32,
    /// The holder is the only entry that refers to the block, whatever its shared flag says.
    pub(crate) sole: bool,
}

impl MapNodes {
    /// The entry that a holder stands for, if it still refers to `from`. Since the holder was found, the
    /// node's id may have been used again for any other node. The node must be in memory.
    pub(crate) fn entry_of_holder(&self, holder: BlockHolder, from: Block) -> Option<BlockEntry> {
        match self.peek(holder.node)? {
            NodeBody::Pages(leaf) => leaf.block_at(usize::from(holder.index), from),
            NodeBody::Objects(objects) => match &objects.get(usize::from(holder.index))?.as_ref()?.pages {
                ObjectPageEntries::Inline(pages) => {
                    pages.iter().filter_map(|(_, entry)| entry.base()).find(|base| base.place == from)
                }
                ObjectPageEntries::Tree(_) => None,
            },
            NodeBody::Inner(_) | NodeBody::Volumes(_) => None,
        }
    }

    /// Repoints the entry of a holder, if it still refers to `from` and to the moved bytes. Returns whether
    /// it did.
    pub(crate) fn repoint(&mut self, moved: &MovedBlock, holder: BlockHolder) -> bool {
        let Some(old) = self.entry_of_holder(holder, moved.from).filter(|entry| entry.crc == moved.crc)
        else {
            return false;
        };
        let index = usize::from(holder.index);
        match &mut self.node_mut(holder.node).body {
            NodeBody::Pages(leaf) => {
                let found = leaf.block_mut(index, moved.from).expect("found just now");
                found.repoint(moved.to, old.shared && !moved.sole);
            }
            NodeBody::Objects(objects) => {
                let pages = objects[index].as_mut().map(|object| &mut object.pages);
                let Some(ObjectPageEntries::Inline(pages)) = pages else {
                    unreachable!("the entry was found inline")
                };
                let held = |(_, entry): &&mut (PageNo, PageMapEntry)| entry.place == moved.from;
                // One object may refer to a block twice, after a clone of a part of it onto itself.
                let shared = old.shared && (!moved.sole || pages.iter_mut().filter(held).count() > 1);
                for (_, entry) in pages.iter_mut().filter(held) {
                    entry.place = moved.to;
                    entry.shared = shared;
                }
                if !fits_inline(pages) {
                    self.move_inline_pages_to_tree(holder.node, index);
                }
            }
            NodeBody::Inner(_) | NodeBody::Volumes(_) => unreachable!("the entry was found in a leaf"),
        }
        if !old.shared {
            self.segments.dec_live(moved.from);
        }
        true
    }

    /// Moves the pages of an object from its entry to a tree, because they need too many extents since they
    /// were moved.
    fn move_inline_pages_to_tree(&mut self, leaf: NodeId, index: usize) {
        let pages = |nodes: &mut MapNodes| {
            let NodeBody::Objects(objects) = &mut nodes.node_mut(leaf).body else {
                unreachable!("found in one")
            };
            let object = objects[index].as_mut().expect("found there");
            std::mem::replace(&mut object.pages, ObjectPageEntries::Inline(Vec::new()))
        };
        let ObjectPageEntries::Inline(inline) = pages(self) else { unreachable!("found inline") };
        let tree = NodeTree::of(self, &inline);
        let NodeBody::Objects(objects) = &mut self.node_mut(leaf).body else { unreachable!("found in one") };
        objects[index].as_mut().expect("found there").pages = ObjectPageEntries::Tree(tree);
    }
}

impl PageMap {
    /// How many of some blocks can be moved and leave the reserve that every user of the store must find
    /// (decision 0018). Each block is given by its holders: a checkpoint writes the node of each holder, and
    /// a block that many clones share has many.
    ///
    /// `taken` segments are used for the copies. The segments that `class` may not use stay free. The nodes
    /// are in memory.
    pub(crate) fn moves_that_fit<'a>(
        &self,
        blocks: impl Iterator<Item = &'a [BlockHolder]>,
        taken: u64,
        class: SpaceClass,
    ) -> usize {
        let free = self.nodes.segments.free_count().saturating_sub(taken);
        let mut touched = BTreeSet::new();
        let mut outgrowing = BTreeSet::new();
        let mut new = 0;
        let has_space = |holders: &&[BlockHolder]| {
            for holder in *holders {
                let Some(body) = self.nodes.peek(holder.node) else { continue };
                touched.extend(self.nodes.is_clean(holder.node).then_some(holder.node));
                if outgrowing.insert((holder.node, holder.index)) {
                    new += body.nodes_if_outgrown(usize::from(holder.index));
                }
            }
            let dirtied = touched.len() as u64 + new;
            self.may_dirty(dirtied) && free >= self.floor_with(class, dirtied, new)
        };
        blocks.take_while(has_space).count()
    }
}

impl NodeBody {
    /// Nodes that an object of this leaf may need when its pages no longer fit into its entry: their leaves,
    /// and one node above.
    fn nodes_if_outgrown(&self, index: usize) -> u64 {
        let NodeBody::Objects(objects) = self else { return 0 };
        objects.get(index).and_then(|object| object.as_ref()).map_or(0, ObjectEntry::nodes_if_outgrown)
    }
}

impl ObjectEntry {
    /// Nodes that the object may need when its pages no longer fit into its entry: their leaves, and one node
    /// above.
    pub(crate) fn nodes_if_outgrown(&self) -> u64 {
        match &self.pages {
            ObjectPageEntries::Inline(pages) if pages.len() > INLINE_EXTENTS_MAX => {
                let leaves: BTreeSet<u64> = pages.iter().map(|(page, _)| page.0 / LEAF_PAGES).collect();
                leaves.len() as u64 + 1
            }
            _ => 0,
        }
    }
}
