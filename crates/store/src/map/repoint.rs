//! Pointing entries at where the cleaner moved their blocks. What a node says does not change by that, only where
//! it lies: so a node that many share is repointed once, under its id, for all of them.

use super::leaf::{BlockEntry, PageEntry};
use super::map::Map;
use super::node::{Body, NodeId, Tree};
use super::nodes::Nodes;
use super::object::{INLINE_EXTENTS_MAX, ObjectEntry, Pages, fits_inline};
use super::scan::Holder;
use crate::format::LEAF_PAGES;
use crate::policy::SpaceClass;
use device::{Block, PageNo};
use std::collections::BTreeSet;

/// A block that was moved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move {
    pub(crate) from: Block,
    pub(crate) to: Block,
    /// The checksum of the bytes that were moved.
    pub(crate) crc: u32,
    /// No other entry refers to the block, whatever the shared flag says.
    pub(crate) sole: bool,
}

impl Nodes {
    /// The entry that a holder was found to be, if it refers to `from` still; the node's id may have been used again
    /// for anything. The node must be in memory.
    pub(crate) fn held_entry(&self, holder: Holder, from: Block) -> Option<BlockEntry> {
        match self.peek(holder.node)? {
            Body::Pages(leaf) => leaf.block(usize::from(holder.index), from),
            Body::Objects(objects) => match &objects.get(usize::from(holder.index))?.as_ref()?.pages {
                Pages::Inline(pages) => {
                    pages.iter().filter_map(|(_, entry)| entry.base()).find(|base| base.place == from)
                }
                Pages::Tree(_) => None,
            },
            Body::Inner(_) | Body::Volumes(_) => None,
        }
    }

    /// Points what is still at `from` to where it was moved, if its bytes are those that were moved. Returns
    /// whether anything was.
    pub(crate) fn repoint(&mut self, moved: &Move, holder: Holder) -> bool {
        let Some(old) = self.held_entry(holder, moved.from).filter(|entry| entry.crc == moved.crc) else {
            return false;
        };
        let index = usize::from(holder.index);
        match &mut self.node_mut(holder.node).body {
            Body::Pages(leaf) => {
                let found = leaf.found(index, moved.from).expect("found just now");
                found.moved(moved.to, old.shared && !moved.sole);
            }
            Body::Objects(objects) => {
                let pages = objects[index].as_mut().map(|object| &mut object.pages);
                let Some(Pages::Inline(pages)) = pages else { unreachable!("the entry was found inline") };
                let held = |(_, entry): &&mut (PageNo, PageEntry)| entry.place == moved.from;
                // An object may have a block twice, as a part of it that was copied.
                let shared = old.shared && (!moved.sole || pages.iter_mut().filter(held).count() > 1);
                for (_, entry) in pages.iter_mut().filter(held) {
                    (entry.place, entry.shared) = (moved.to, shared);
                }
                if !fits_inline(pages) {
                    self.outgrow(holder.node, index);
                }
            }
            Body::Inner(_) | Body::Volumes(_) => unreachable!("the entry was found in a leaf"),
        }
        if !old.shared {
            self.segments.dec_live(moved.from);
        }
        true
    }

    /// Pages that moved apart no longer fit into the object's entry.
    fn outgrow(&mut self, leaf: NodeId, index: usize) {
        let pages = |nodes: &mut Nodes| {
            let Body::Objects(objects) = &mut nodes.node_mut(leaf).body else { unreachable!("found in one") };
            let object = objects[index].as_mut().expect("found there");
            std::mem::replace(&mut object.pages, Pages::Inline(Vec::new()))
        };
        let Pages::Inline(inline) = pages(self) else { unreachable!("found inline") };
        let tree = Tree::of(self, &inline);
        let Body::Objects(objects) = &mut self.node_mut(leaf).body else { unreachable!("found in one") };
        objects[index].as_mut().expect("found there").pages = Pages::Tree(tree);
    }
}

impl Map {
    /// How many of some blocks, of each of which these are the holders, can be moved and leave the space that everybody must find
    /// (decision 0018): a checkpoint writes the node of each holder, and blocks that many clones share have many.
    /// `taken` segments are used for the copies, and those that `class` leaves alone stay. The nodes are in memory.
    pub(crate) fn moves_that_fit<'a>(
        &self,
        blocks: impl Iterator<Item = &'a [Holder]>,
        taken: u64,
        class: SpaceClass,
    ) -> usize {
        let free = self.nodes.segments.free_count().saturating_sub(taken);
        let (mut touched, mut outgrowing, mut new) = (BTreeSet::new(), BTreeSet::new(), 0);
        let has_space = |holders: &&[Holder]| {
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

impl Body {
    /// Nodes that an object may need when its pages no longer fit into its entry of this leaf: a leaf for each stretch of them, and
    /// one above.
    fn nodes_if_outgrown(&self, index: usize) -> u64 {
        let Body::Objects(objects) = self else { return 0 };
        objects.get(index).and_then(|object| object.as_ref()).map_or(0, ObjectEntry::nodes_if_outgrown)
    }
}

impl ObjectEntry {
    /// Nodes that it may need when its pages no longer fit into it.
    pub(crate) fn nodes_if_outgrown(&self) -> u64 {
        match &self.pages {
            Pages::Inline(pages) if pages.len() > INLINE_EXTENTS_MAX => {
                let leaves: BTreeSet<u64> = pages.iter().map(|(page, _)| page.0 / LEAF_PAGES).collect();
                leaves.len() as u64 + 1
            }
            _ => 0,
        }
    }
}
