//! Space for deltas in page leaves, and the search for deltas to merge.

use super::node::{MissingNodes, NodeBody};
use super::node_tree::LeafRef;
use super::object_leaf::{ObjectEntry, ObjectPageEntries};
use super::page_leaf::{LEAF_DELTAS_SHORT_OF_SPACE, PageMapEntry};
use super::page_map::PageMap;
use super::transfer::is_aligned;
use crate::format::{LEAF_DELTAS, LEAF_OBJECTS, LEAF_PAGES};
use crate::log_entry::LogEntry;
use device::{ObjectId, PageNo, PageTransfer, VolumeId};
use std::collections::{BTreeMap, BTreeSet};

/// Leaves examined in one step of the search: 256 KiB of nodes.
const LEAVES_PER_SEARCH: usize = 64;

/// If this many pages of a leaf have deltas, half of them, the whole leaf is rewritten.
const DELTA_PAGES_FOR_WHOLE_LEAF: usize = (LEAF_PAGES / 2) as usize;

/// Whether pages are merged whose blocks a clone may share. Their blocks then stay live beside the merged pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedDeltas {
    Merge,
    Keep,
}

/// How far a search for leaves with deltas has come: a volume, a slot, and a leaf of the object in that slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct MergeCursor {
    volume: VolumeId,
    slot: u64,
    leaf: u64,
}

/// Result of one step of the search.
#[derive(Debug, Default)]
pub(crate) struct MergeSearch {
    /// A leaf to merge, by its object and first page.
    pub(crate) found: Option<(ObjectId, PageNo)>,
    /// Where the search continues; `None` at its end.
    pub(crate) next: Option<MergeCursor>,
}

impl PageMap {
    /// The first leaf in a vector that has no space for its delta blocks, or where a page has too many
    /// deltas. The nodes must be in memory.
    pub(crate) fn find_full_leaf(&self, entries: &[LogEntry]) -> Option<(ObjectId, PageNo)> {
        // For each leaf its new delta blocks, and the pages that they have deltas for.
        let mut added: BTreeMap<(ObjectId, PageNo), (usize, u128)> = BTreeMap::new();
        for entry in entries {
            if let LogEntry::Deltas { object, first, pages, .. } = entry {
                let (blocks, all_pages) = added.entry((*object, *first)).or_default();
                *blocks += 1;
                *all_pages |= pages;
            }
        }
        for ((object, first), (blocks, pages)) in added {
            let fits = self.has_space_for_deltas(object, first, blocks, pages, LEAF_DELTAS);
            if !fits.unwrap_or(false) {
                return Some((object, first));
            }
        }
        None
    }

    /// Whether the leaf that starts at `first` should get `blocks` more delta blocks, with deltas for
    /// `pages`.
    ///
    /// While space is short a leaf gets few of them, as they take space until they are merged. An object with
    /// inline pages gets none, as it would need a leaf from then on.
    pub(crate) fn takes_deltas(
        &self,
        object: ObjectId,
        first: PageNo,
        blocks: usize,
        pages: u128,
    ) -> Result<bool, MissingNodes> {
        if let Some(ObjectEntry { pages: ObjectPageEntries::Inline(pages), .. }) = self.object(object)?
            && !pages.is_empty()
        {
            return Ok(false);
        }
        let most = if self.is_tight(false) { LEAF_DELTAS_SHORT_OF_SPACE } else { LEAF_DELTAS };
        self.has_space_for_deltas(object, first, blocks, pages, most)
    }

    /// Whether a leaf that may have `most` delta blocks has space for `blocks` more.
    fn has_space_for_deltas(
        &self,
        object: ObjectId,
        first: PageNo,
        blocks: usize,
        pages: u128,
        most: usize,
    ) -> Result<bool, MissingNodes> {
        let Some(ObjectEntry { pages: ObjectPageEntries::Tree(tree), .. }) = self.object(object)? else {
            return Ok(blocks <= most);
        };
        let Some(leaf) = tree.leaf(&self.nodes, first.0 / LEAF_PAGES)? else {
            return Ok(blocks <= most);
        };
        let NodeBody::Pages(leaf) = &self.nodes.node(leaf.id)?.body else { return Ok(false) };
        Ok(leaf.has_space_for_deltas(blocks, most, pages))
    }

    /// The pages with deltas in the source of a transfer. Without `all` only those in leaves that the
    /// transfer does not take as a whole.
    pub(crate) fn delta_pages_taken(
        &self,
        transfer: &PageTransfer,
        all: bool,
    ) -> Result<Vec<PageNo>, MissingNodes> {
        let Some(ObjectEntry { pages: ObjectPageEntries::Tree(tree), .. }) = self.object(transfer.from)?
        else {
            return Ok(Vec::new());
        };
        let range = transfer.source();
        let leaves = if all || !is_aligned(transfer, 0) {
            tree.leaves(&self.nodes, range.start.0 / LEAF_PAGES..range.end.0.div_ceil(LEAF_PAGES))?
        } else {
            let ends = [range.start.0, range.end.0].into_iter().filter(|end| !end.is_multiple_of(LEAF_PAGES));
            let leaf = |end: u64| tree.leaf(&self.nodes, end / LEAF_PAGES).transpose();
            let mut leaves: Vec<LeafRef> = ends.filter_map(leaf).collect::<Result<_, MissingNodes>>()?;
            leaves.dedup_by_key(|leaf| leaf.index);
            leaves
        };
        let deltas = leaves.iter().flat_map(|&leaf| self.delta_pages_in(leaf, false));
        Ok(deltas.filter(|page| range.contains(page)).collect())
    }

    /// The pages with deltas in the leaf of `page`, with or without those that may be shared. If there are many,
    /// also all unshared pages of an unshared leaf: they then lie next to each other again, and are read as fast
    /// as a file written from start to end.
    pub(crate) fn mergeable_pages(
        &self,
        object: ObjectId,
        page: PageNo,
        shared: SharedDeltas,
    ) -> Result<Vec<PageNo>, MissingNodes> {
        let Some(ObjectEntry { pages: ObjectPageEntries::Tree(tree), .. }) = self.object(object)? else {
            return Ok(Vec::new());
        };
        let leaf = tree.leaf(&self.nodes, page.0 / LEAF_PAGES)?;
        let is_shared = self.is_entry_shared(object)? || tree.is_shared(&self.nodes, page.0 / LEAF_PAGES)?;
        let keeps_shared = shared == SharedDeltas::Keep;
        let Some(leaf) = leaf.filter(|_| !(is_shared && keeps_shared)) else { return Ok(Vec::new()) };
        let deltas = self.delta_pages_in(leaf, keeps_shared);
        // In a shared leaf no page says that it is shared.
        if is_shared || deltas.len() < DELTA_PAGES_FOR_WHOLE_LEAF {
            return Ok(deltas);
        }
        let is_alone = |(_, entry): &(PageNo, &PageMapEntry)| entry.base().is_some_and(|base| !base.shared);
        let whole = self.pages_in(leaf).filter(is_alone).map(|(page, _)| page);
        Ok(deltas.into_iter().chain(whole).collect::<BTreeSet<_>>().into_iter().collect())
    }

    /// Whether a clone of the volume shares the entry of this object, and so everything below it.
    fn is_entry_shared(&self, object: ObjectId) -> Result<bool, MissingNodes> {
        let Some(volume) = self.volumes.get(object.volume) else { return Ok(false) };
        volume.objects.is_shared(&self.nodes, object.slot / LEAF_OBJECTS)
    }

    /// The pages with deltas in a leaf that is in memory. With `unshared` only those of which no block is
    /// marked as shared.
    fn delta_pages_in(&self, leaf: LeafRef, unshared: bool) -> Vec<PageNo> {
        let NodeBody::Pages(pages) = self.nodes.cached(leaf.id) else { return Vec::new() };
        let is_wanted = |index: &usize| {
            let mut deltas = pages.deltas_of(*index).peekable();
            let base = pages.pages()[*index].base();
            deltas.peek().is_some() && !(unshared && base.into_iter().chain(deltas).any(|block| block.shared))
        };
        let first = leaf.index * LEAF_PAGES;
        (0..LEAF_PAGES as usize).filter(is_wanted).map(|index| PageNo(first + index as u64)).collect()
    }

    /// One bounded step, from a cursor on, of the search for a leaf with unshared deltas.
    pub(crate) fn next_leaf_to_merge(&self, from: MergeCursor) -> Result<MergeSearch, MissingNodes> {
        let Some((volume, entry)) = self.volumes.iter().find(|(id, _)| *id >= from.volume) else {
            return Ok(MergeSearch::default());
        };
        let continues_at = |next: MergeCursor| Ok(MergeSearch { found: None, next: Some(next) });
        let from = from.max(MergeCursor { volume, slot: 0, leaf: 0 });
        let objects = entry.objects;
        let Some(object_leaf) = self.first_leaves(objects, from.slot / LEAF_OBJECTS..u64::MAX, 1)?.pop()
        else {
            return continues_at(MergeCursor { volume: VolumeId(volume.0 + 1), slot: 0, leaf: 0 });
        };
        let first_slot = object_leaf.index * LEAF_OBJECTS;
        let next_object_leaf = MergeCursor { volume, slot: first_slot + LEAF_OBJECTS, leaf: 0 };
        if objects.is_shared(&self.nodes, object_leaf.index)? {
            return continues_at(next_object_leaf);
        }
        let NodeBody::Objects(entries) = &self.nodes.node(object_leaf.id)?.body else {
            return Ok(MergeSearch::default());
        };
        for (entry, slot) in entries.iter().zip(first_slot..).filter(|(_, slot)| *slot >= from.slot) {
            let Some(ObjectEntry { generation, pages: ObjectPageEntries::Tree(tree), .. }) = entry else {
                continue;
            };
            let first_leaf = if slot == from.slot { from.leaf } else { 0 };
            let leaves = self.first_leaves(*tree, first_leaf..u64::MAX, LEAVES_PER_SEARCH)?;
            for leaf in &leaves {
                let is_shared = tree.is_shared(&self.nodes, leaf.index)?;
                if !is_shared && !self.delta_pages_in(*leaf, true).is_empty() {
                    let found = (volume.object(slot, *generation), PageNo(leaf.index * LEAF_PAGES));
                    let next = MergeCursor { volume, slot, leaf: leaf.index + 1 };
                    return Ok(MergeSearch { found: Some(found), next: Some(next) });
                }
            }
            if leaves.len() == LEAVES_PER_SEARCH
                && let Some(last) = leaves.last()
            {
                return continues_at(MergeCursor { volume, slot, leaf: last.index + 1 });
            }
        }
        continues_at(next_object_leaf)
    }
}
