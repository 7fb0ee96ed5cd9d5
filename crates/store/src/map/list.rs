//! Listing the pages of an object, some leaves at a time.

use super::Map;
use super::node::{Body, Missing};
use super::object::Pages;
use super::tree::{Leaf, Tree};
use crate::format::LEAF_PAGES;
use crate::list::Listed;
use crate::volume::VolumeId;
use device::{ObjectId, PageNo};
use std::ops::Range;

/// A listing under way.
struct Found {
    leaves: Vec<Leaf>,
    leaves_max: usize,
    /// What must be read before it can go on.
    missing: Vec<super::NodeId>,
}

impl Found {
    fn is_full(&self) -> bool {
        self.leaves.len() + self.missing.len() >= self.leaves_max
    }
}

impl Map {
    /// The pages of `object` within `range`, of at most `leaves_max` leaves.
    pub(crate) fn list(
        &self,
        volume: VolumeId,
        object: ObjectId,
        range: Range<PageNo>,
        leaves_max: usize,
    ) -> Result<Listed, Missing> {
        let nothing = Listed { pages: Vec::new(), until: range.end };
        if range.is_empty() {
            return Ok(nothing);
        }
        match self.object(volume, object)?.map(|entry| &entry.pages) {
            None => Ok(nothing),
            Some(Pages::Inline(pages)) => {
                let within = pages.iter().filter(|(page, _)| range.contains(page));
                Ok(Listed { pages: within.map(|(page, entry)| (*page, entry.page_lsn)).collect(), ..nothing })
            }
            Some(Pages::Tree(tree)) => self.list_tree(*tree, range, leaves_max),
        }
    }

    fn list_tree(&self, tree: Tree, range: Range<PageNo>, leaves_max: usize) -> Result<Listed, Missing> {
        let wanted = range.start.0 / LEAF_PAGES..range.end.0.div_ceil(LEAF_PAGES);
        let mut found = Found { leaves: Vec::new(), leaves_max, missing: Vec::new() };
        if tree.root.is_some() {
            self.find_leaves(Leaf { index: 0, id: tree.root }, tree.height, &wanted, &mut found);
        }
        if !found.missing.is_empty() {
            return Err(Missing(found.missing));
        }
        let until = match found.leaves.last() {
            Some(last) if found.is_full() => PageNo((last.index + 1) * LEAF_PAGES).min(range.end),
            _ => range.end,
        };
        let all = found.leaves.iter().flat_map(|&leaf| self.pages_in(leaf));
        let within = all.filter(|(page, _)| range.contains(page));
        Ok(Listed { pages: within.map(|(page, entry)| (page, entry.page_lsn)).collect(), until })
    }

    /// Gathers leaves in order, until there are enough.
    fn find_leaves(&self, at: Leaf, height: u8, wanted: &Range<u64>, found: &mut Found) {
        let node = match self.node(at.id) {
            Ok(node) => node,
            Err(Missing(ids)) => return found.missing.extend(ids),
        };
        if height == 0 {
            return found.leaves.push(at);
        }
        let Body::Inner(children) = &node.body else { return };
        for (slot, &id) in children.iter().enumerate().filter(|(_, id)| id.is_some()) {
            let Some(below) = super::tree::below(at.index, slot as u64, height) else { break };
            if below.start >= wanted.end || found.is_full() {
                break;
            }
            if below.end > wanted.start {
                self.find_leaves(Leaf { index: below.start, id }, height - 1, wanted, found);
            }
        }
    }
}
