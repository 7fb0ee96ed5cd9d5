//! Deltas that a leaf has space for, and those to fold.

use super::fold_cursor::{FoldCursor, FoldLook};
use super::leaf::{LEAF_DELTAS_TIGHT, PageEntry};
use super::map::Map;
use super::node::{Body, Missing};
use super::object::{ObjectEntry, Pages};
use super::ranges::agrees;
use super::tree::Leaf;
use crate::entry::LogEntry;
use crate::format::{LEAF_DELTAS, LEAF_OBJECTS, LEAF_PAGES};
use device::{ObjectId, PageNo, PageTransfer, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

/// Leaves looked at for deltas in one step: 256 KiB of nodes.
const LEAVES_PER_LOOK: usize = 64;

/// Pages of a leaf with deltas from which on all of it is written anew: half of them.
const MANY_DELTAS: usize = (LEAF_PAGES / 2) as usize;

impl Map {
    /// The first block of deltas in a vector for which a leaf has no space, or one of its pages no place. Its nodes are in memory.
    pub(crate) fn deltas_that_do_not_fit(&self, entries: &[LogEntry]) -> Option<(ObjectId, PageNo)> {
        let mut wanted: BTreeMap<(ObjectId, PageNo), (usize, u128)> = BTreeMap::new();
        for entry in entries {
            if let LogEntry::Deltas { object, first, pages, .. } = entry {
                let (blocks, all) = wanted.entry((*object, *first)).or_default();
                (*blocks, *all) = (*blocks + 1, *all | pages);
            }
        }
        let fits = |(object, first): (ObjectId, PageNo), (blocks, pages): (usize, u128)| {
            self.has_space_for_deltas(object, first, (blocks, LEAF_DELTAS), pages).unwrap_or(false)
        };
        wanted.into_iter().find(|&(leaf, what)| !fits(leaf, what)).map(|(leaf, _)| leaf)
    }

    /// Whether a leaf, by its first page, should get so many blocks of deltas for these of its pages. Few, where space is short: they take
    /// some until they are folded. None, where the object is so small that it has no leaf: it would need one from then on.
    pub(crate) fn takes_deltas(
        &self,
        object: ObjectId,
        first: PageNo,
        blocks: usize,
        pages: u128,
    ) -> Result<bool, Missing> {
        if matches!(self.object(object)?, Some(ObjectEntry { pages: Pages::Inline(pages), .. }) if !pages.is_empty())
        {
            return Ok(false);
        }
        let most = if self.is_tight() { LEAF_DELTAS_TIGHT } else { LEAF_DELTAS };
        self.has_space_for_deltas(object, first, (blocks, most), pages)
    }

    /// Whether a leaf has space for so many blocks of deltas, where it may have so many.
    fn has_space_for_deltas(
        &self,
        object: ObjectId,
        first: PageNo,
        (blocks, most): (usize, usize),
        pages: u128,
    ) -> Result<bool, Missing> {
        let Some(ObjectEntry { pages: Pages::Tree(tree), .. }) = self.object(object)? else {
            return Ok(blocks <= most);
        };
        let Some(leaf) = tree.leaf(&self.nodes, first.0 / LEAF_PAGES)? else {
            return Ok(blocks <= most);
        };
        let Body::Pages(leaf) = &self.nodes.node(leaf.id)?.body else { return Ok(false) };
        Ok(leaf.takes_deltas(blocks, most, pages))
    }

    /// The pages with deltas that a clone or a move takes out of leaves which it does not take whole, or all that it takes.
    pub(crate) fn deltas_taken(&self, transfer: &PageTransfer, all: bool) -> Result<Vec<PageNo>, Missing> {
        let Some(ObjectEntry { pages: Pages::Tree(tree), .. }) = self.object(transfer.from)? else {
            return Ok(Vec::new());
        };
        let range = transfer.source();
        let leaves = if all || !agrees(transfer, 0) {
            tree.leaves(&self.nodes, range.start.0 / LEAF_PAGES..range.end.0.div_ceil(LEAF_PAGES))?
        } else {
            let ends = [range.start.0, range.end.0].into_iter().filter(|end| !end.is_multiple_of(LEAF_PAGES));
            let leaf = |end: u64| tree.leaf(&self.nodes, end / LEAF_PAGES).transpose();
            let mut leaves: Vec<Leaf> = ends.filter_map(leaf).collect::<Result<_, Missing>>()?;
            leaves.dedup_by_key(|leaf| leaf.index);
            leaves
        };
        let deltas = leaves.iter().flat_map(|&leaf| self.deltas_in(leaf, false));
        Ok(deltas.filter(|page| range.contains(page)).collect())
    }

    /// The pages of the leaf in which `page` lies that have deltas, but those that others may share. Where they are many, all pages of the
    /// leaf that nobody shares: so they lie behind each other again, and are read as a file that was written from start to end.
    pub(crate) fn foldable(&self, object: ObjectId, page: PageNo) -> Result<Vec<PageNo>, Missing> {
        let Some(ObjectEntry { pages: Pages::Tree(tree), .. }) = self.object(object)? else {
            return Ok(Vec::new());
        };
        let leaf = tree.leaf(&self.nodes, page.0 / LEAF_PAGES)?;
        let is_shared = self.is_entry_shared(object)? || tree.is_shared(&self.nodes, page.0 / LEAF_PAGES)?;
        let Some(leaf) = leaf.filter(|_| !is_shared) else { return Ok(Vec::new()) };
        let deltas = self.deltas_in(leaf, true);
        if deltas.len() < MANY_DELTAS {
            return Ok(deltas);
        }
        let is_alone = |(_, entry): &(PageNo, &PageEntry)| entry.base().is_some_and(|base| !base.shared);
        let whole = self.pages_in(leaf).filter(is_alone).map(|(page, _)| page);
        Ok(deltas.into_iter().chain(whole).collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Whether a clone of the volume has the object's entry, too, and so all below it.
    fn is_entry_shared(&self, object: ObjectId) -> Result<bool, Missing> {
        let Some(volume) = self.volumes.get(object.volume) else { return Ok(false) };
        volume.objects.is_shared(&self.nodes, object.slot / LEAF_OBJECTS)
    }

    /// The pages with deltas in a leaf that is in memory; all, or those that are marked as shared nowhere.
    fn deltas_in(&self, leaf: Leaf, unshared: bool) -> Vec<PageNo> {
        let Body::Pages(pages) = self.nodes.cached(leaf.id) else { return Vec::new() };
        let takes = |index: &usize| {
            let mut deltas = pages.deltas_of(*index).peekable();
            let base = pages.pages()[*index].base();
            deltas.peek().is_some() && !(unshared && base.into_iter().chain(deltas).any(|block| block.shared))
        };
        let first = leaf.index * LEAF_PAGES;
        (0..LEAF_PAGES as usize).filter(takes).map(|index| PageNo(first + index as u64)).collect()
    }

    /// From a cursor on, a bounded piece of the search for a leaf with deltas that nobody shares.
    pub(crate) fn next_to_fold(&self, from: FoldCursor) -> Result<FoldLook, Missing> {
        let Some((volume, objects)) = self.volumes.iter().find(|(id, _)| *id >= from.volume) else {
            return Ok(FoldLook::default());
        };
        let start = FoldCursor { volume, ..FoldCursor::default() };
        let at = from.max(start);
        let next_volume = FoldCursor { volume: VolumeId(volume.0 + 1), ..FoldCursor::default() };
        let Some(leaf) = self.some_leaves(objects.objects, at.slot / LEAF_OBJECTS..u64::MAX, 1)?.pop() else {
            return Ok(FoldLook { found: None, next: Some(next_volume) });
        };
        if objects.objects.is_shared(&self.nodes, leaf.index)? {
            let next = FoldCursor { volume, slot: (leaf.index + 1) * LEAF_OBJECTS, leaf: 0 };
            return Ok(FoldLook { found: None, next: Some(next) });
        }
        let Body::Objects(entries) = &self.nodes.node(leaf.id)?.body else { return Ok(FoldLook::default()) };
        let first = leaf.index * LEAF_OBJECTS;
        let behind = |slot: u64| FoldCursor { volume, slot, leaf: 0 };
        let here = entries.iter().zip(first..).filter(|(_, slot)| *slot >= at.slot);
        for (entry, slot) in here {
            let Some(ObjectEntry { generation, pages: Pages::Tree(tree), .. }) = entry else { continue };
            let begin = if slot == at.slot { at.leaf } else { 0 };
            let leaves = self.some_leaves(*tree, begin..u64::MAX, LEAVES_PER_LOOK)?;
            for leaf in &leaves {
                let is_shared = tree.is_shared(&self.nodes, leaf.index)?;
                if !is_shared && !self.deltas_in(*leaf, true).is_empty() {
                    let found = (volume.object(slot, *generation), PageNo(leaf.index * LEAF_PAGES));
                    let next = Some(FoldCursor { volume, slot, leaf: leaf.index + 1 });
                    return Ok(FoldLook { found: Some(found), next });
                }
            }
            if leaves.len() == LEAVES_PER_LOOK
                && let Some(last) = leaves.last()
            {
                return Ok(FoldLook {
                    found: None,
                    next: Some(FoldCursor { volume, slot, leaf: last.index + 1 }),
                });
            }
        }
        Ok(FoldLook { found: None, next: Some(behind(first + LEAF_OBJECTS)) })
    }
}
