//! Looking pages up.

use super::Map;
use super::node::{Body, Missing, PageEntry};
use super::object::{ObjectEntry, Pages};
use super::tree::Leaf;
use crate::format::{LEAF_OBJECTS, LEAF_PAGES};
use crate::volume::VolumeId;
use device::{ObjectId, PageNo};

impl Map {
    /// The object that lives in this slot now, whatever its generation.
    pub(crate) fn slot(&self, volume: VolumeId, slot: u64) -> Result<Option<&ObjectEntry>, Missing> {
        let Some(volume) = self.volumes.get(&volume) else { return Ok(None) };
        let Some(leaf) = self.leaf(volume.objects, slot / LEAF_OBJECTS)? else { return Ok(None) };
        let Body::Objects(entries) = &self.node(leaf.id)?.body else { return Ok(None) };
        Ok(entries[(slot % LEAF_OBJECTS) as usize].as_ref())
    }

    /// The object, if it is the one that lives in its slot.
    pub(crate) fn object(&self, volume: VolumeId, object: ObjectId) -> Result<Option<&ObjectEntry>, Missing> {
        Ok(self.slot(volume, object.slot)?.filter(|entry| entry.generation == object.generation))
    }

    /// Where a page is; `None` for a hole.
    pub(crate) fn lookup(
        &self,
        volume: VolumeId,
        object: ObjectId,
        page: PageNo,
    ) -> Result<Option<PageEntry>, Missing> {
        let Some(entry) = self.object(volume, object)? else { return Ok(None) };
        let found = match &entry.pages {
            Pages::Inline(pages) => match pages.binary_search_by_key(&page, |(page, _)| *page) {
                Ok(found) => pages[found].1,
                Err(_) => return Ok(None),
            },
            Pages::Tree(tree) => {
                let Some(leaf) = self.leaf(*tree, page.0 / LEAF_PAGES)? else { return Ok(None) };
                let Body::Pages(entries) = &self.node(leaf.id)?.body else { return Ok(None) };
                entries[(page.0 % LEAF_PAGES) as usize]
            }
        };
        Ok((!found.is_hole()).then_some(found))
    }

    /// The pages in a leaf, without its holes.
    pub(crate) fn pages_in(&self, leaf: Leaf) -> impl Iterator<Item = (PageNo, &PageEntry)> {
        let entries: &[PageEntry] = match self.nodes.get(&leaf.id).map(|node| &node.body) {
            Some(Body::Pages(entries)) => &**entries,
            _ => &[],
        };
        let first = leaf.index * LEAF_PAGES;
        let numbered = entries.iter().enumerate();
        numbered
            .filter(|(_, entry)| !entry.is_hole())
            .map(move |(index, entry)| (PageNo(first + index as u64), entry))
    }
}
