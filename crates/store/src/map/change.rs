//! What each log entry does to the map. The same code runs after an append and at recovery.

use super::Map;
use super::node::{Body, Missing, PageEntry};
use super::object::{ObjectEntry, Pages, fits_inline};
use super::tree::{Leaf, Tree};
use crate::entry::LogEntry;
use crate::format::{LEAF_OBJECTS, LEAF_PAGES};
use crate::volume::VolumeId;
use device::{Lsn, ObjectId, PageNo};
use std::ops::Range;

impl Map {
    /// Whether every node that [`change`](Map::change) would need for this log entry is in memory.
    pub(crate) fn prepare(&self, volume: VolumeId, log_entry: &LogEntry) -> Result<(), Missing> {
        match log_entry {
            LogEntry::Write { object, page, .. } => match self.slot(volume, object.slot)? {
                Some(entry) if entry.generation < object.generation => self.prepare_all(entry),
                Some(ObjectEntry { generation, pages: Pages::Tree(tree) })
                    if *generation == object.generation =>
                {
                    self.leaf(*tree, page.0 / LEAF_PAGES).map(drop)
                }
                _ => Ok(()),
            },
            LogEntry::Cut { object, pages, .. } => match self.object(volume, *object)? {
                Some(ObjectEntry { pages: Pages::Tree(tree), .. }) => {
                    self.leaves(*tree, leaf_range(pages)).map(drop)
                }
                _ => Ok(()),
            },
            LogEntry::Delete { object, .. } => {
                self.object(volume, *object)?.map_or(Ok(()), |e| self.prepare_all(e))
            }
            LogEntry::Clone { from, to, .. } => {
                self.slot(volume, from.slot)?;
                self.slot(volume, to.slot)?.map_or(Ok(()), |entry| self.prepare_all(entry))
            }
            LogEntry::CloneVolume { .. } | LogEntry::NameVolume { .. } | LogEntry::DeleteVolume { .. } => {
                Ok(())
            }
        }
    }

    fn prepare_all(&self, entry: &ObjectEntry) -> Result<(), Missing> {
        match &entry.pages {
            Pages::Tree(tree) => self.leaves(*tree, 0..u64::MAX).map(drop),
            Pages::Inline(_) => Ok(()),
        }
    }

    /// Does what a log entry says. Its nodes must be in memory.
    pub(crate) fn change(&mut self, volume: VolumeId, log_entry: &LogEntry) {
        match log_entry {
            LogEntry::Write { object, page, page_lsn, place, crc } => {
                let entry = PageEntry { place: *place, page_lsn: *page_lsn, crc: *crc, shared: false };
                self.write(volume, *object, *page, entry);
            }
            LogEntry::Cut { object, pages, lsn } => self.cut(volume, *object, pages, *lsn),
            LogEntry::Delete { object, lsn } => self.delete(volume, *object, *lsn),
            LogEntry::Clone { from, to, .. } => self.clone_object(volume, *from, *to),
            LogEntry::CloneVolume { to, mode, created, .. } => {
                self.clone_volume(volume, *to, *mode, *created)
            }
            LogEntry::NameVolume { volume, part } => self.name_volume(*volume, part),
            LogEntry::DeleteVolume { .. } => self.delete_volume(volume),
        }
    }

    fn write(&mut self, volume: VolumeId, object: ObjectId, page: PageNo, new: PageEntry) {
        self.unshare(volume, object.slot);
        let old = self.here(volume, object.slot);
        let mut pages = match &old {
            Some(entry) if entry.generation > object.generation => return,
            Some(entry) if entry.generation < object.generation => {
                self.drop_pages(&entry.pages);
                Pages::Inline(Vec::new())
            }
            Some(entry) => entry.pages.clone(),
            None => Pages::Inline(Vec::new()),
        };
        self.set_page(&mut pages, page, new);
        self.put(volume, object.slot, old, Some(ObjectEntry { generation: object.generation, pages }));
    }

    fn set_page(&mut self, pages: &mut Pages, page: PageNo, new: PageEntry) {
        self.segments.inc_live(new.place);
        match pages {
            Pages::Tree(tree) => {
                let old = self.set_in_tree(tree, page, new);
                self.forget(&old);
            }
            Pages::Inline(inline) => {
                match inline.binary_search_by_key(&page, |(page, _)| *page) {
                    Ok(at) => {
                        let old = std::mem::replace(&mut inline[at].1, new);
                        self.forget(&old);
                    }
                    Err(at) => inline.insert(at, (page, new)),
                }
                if !fits_inline(inline) {
                    *pages = Pages::Tree(self.tree_of(inline));
                }
            }
        }
    }

    /// Returns the entry that was there.
    fn set_in_tree(&mut self, tree: &mut Tree, page: PageNo, new: PageEntry) -> PageEntry {
        let leaf = self.leaf_for_change(tree, page.0 / LEAF_PAGES, Body::pages);
        let Body::Pages(entries) = &mut self.node_mut(leaf).body else { unreachable!("a leaf of pages") };
        std::mem::replace(&mut entries[(page.0 % LEAF_PAGES) as usize], new)
    }

    fn cut(&mut self, volume: VolumeId, object: ObjectId, range: &Range<PageNo>, lsn: Lsn) {
        self.unshare(volume, object.slot);
        let Some(old) = self.here(volume, object.slot).filter(|old| old.generation == object.generation)
        else {
            return;
        };
        let goes = |page: PageNo, entry: &PageEntry| {
            range.contains(&page) && (entry.page_lsn < lsn || self.cut_ignores_page_lsn())
        };
        let mut pages = old.pages.clone();
        match &mut pages {
            Pages::Inline(inline) => {
                let (gone, rest) = inline.drain(..).partition(|(page, entry)| goes(*page, entry));
                *inline = rest;
                let gone: Vec<(PageNo, PageEntry)> = gone;
                gone.iter().for_each(|(_, entry)| self.forget(entry));
            }
            Pages::Tree(tree) => {
                let leaves = self.leaves(*tree, leaf_range(range)).expect("prepared");
                let all: Vec<(Leaf, Vec<PageNo>, usize)> = leaves
                    .into_iter()
                    .map(|leaf| {
                        let gone = self.pages_in(leaf).filter(|(page, entry)| goes(*page, entry));
                        (leaf, gone.map(|(page, _)| page).collect(), self.pages_in(leaf).count())
                    })
                    .collect();
                for (leaf, gone, held) in all {
                    self.cut_leaf(tree, leaf, &gone, held);
                }
                if !tree.root.is_some() {
                    pages = Pages::Inline(Vec::new());
                }
            }
        }
        let new = ObjectEntry { generation: object.generation, pages };
        self.put(volume, object.slot, Some(old), Some(new));
    }

    /// Makes holes of some pages in a leaf that holds `held`.
    fn cut_leaf(&mut self, tree: &mut Tree, leaf: Leaf, gone: &[PageNo], held: usize) {
        if gone.len() == held {
            self.remove_leaf(tree, leaf.index);
            return;
        }
        for page in gone {
            let old = self.set_in_tree(tree, *page, PageEntry::default());
            self.forget(&old);
        }
    }

    fn delete(&mut self, volume: VolumeId, object: ObjectId, lsn: Lsn) {
        self.unshare(volume, object.slot);
        let Some(old) = self.here(volume, object.slot).filter(|old| old.generation == object.generation)
        else {
            return;
        };
        let all_older = match &old.pages {
            Pages::Inline(pages) => pages.iter().all(|(_, entry)| entry.page_lsn < lsn),
            Pages::Tree(tree) => {
                let leaves = self.leaves(*tree, 0..u64::MAX).expect("prepared");
                leaves.iter().all(|leaf| self.pages_in(*leaf).all(|(_, entry)| entry.page_lsn < lsn))
            }
        };
        if all_older {
            self.drop_pages(&old.pages);
            self.put(volume, object.slot, Some(old), None);
        } else {
            self.cut(volume, object, &(PageNo(0)..PageNo(u64::MAX)), lsn);
        }
    }

    /// Both become one: the tree gets a second reference, entries inline are marked as shared.
    fn clone_object(&mut self, volume: VolumeId, from: ObjectId, to: ObjectId) {
        self.unshare(volume, from.slot);
        self.unshare(volume, to.slot);
        let target = self.here(volume, to.slot);
        let done = |there: &ObjectEntry| {
            there.generation > to.generation
                || there.generation == to.generation && there.pages != Pages::Inline(Vec::new())
        };
        if from.slot == to.slot || target.as_ref().is_some_and(done) {
            return;
        }
        if let Some(there) = &target {
            self.drop_pages(&there.pages);
        }
        let source = self.here(volume, from.slot).filter(|source| source.generation == from.generation);
        let Some(source) = source else { return self.put(volume, to.slot, target, None) };
        let mut pages = source.pages.clone();
        match &mut pages {
            Pages::Tree(tree) => self.refer(tree.root),
            Pages::Inline(inline) => inline.iter_mut().for_each(|(_, entry)| entry.shared = true),
        }
        let marked = ObjectEntry { generation: from.generation, pages: pages.clone() };
        self.put(volume, from.slot, Some(source), Some(marked));
        self.put(volume, to.slot, target, Some(ObjectEntry { generation: to.generation, pages }));
        let objects = self.volumes.get(&volume).map_or(Tree::default(), |volume| volume.objects);
        let leaf = self.leaf(objects, to.slot / LEAF_OBJECTS).expect("prepared");
        // Pages inline that another leaf had.
        leaf.into_iter().for_each(|leaf| self.revisit(leaf.id));
    }

    fn drop_pages(&mut self, pages: &Pages) {
        match pages {
            Pages::Inline(inline) => inline.iter().for_each(|(_, entry)| self.forget(entry)),
            Pages::Tree(tree) => self.release(tree.root),
        }
    }

    /// Takes a copy of the leaf that holds a slot, and of the nodes above it, if others share it: what an object in
    /// it refers to has a reference for each leaf that says so, only then.
    fn unshare(&mut self, volume: VolumeId, slot: u64) {
        let Some(mut tree) = self.volumes.get(&volume).map(|volume| volume.objects) else { return };
        let index = slot / LEAF_OBJECTS;
        if !self.is_shared(tree, index).expect("prepared") {
            return;
        }
        self.leaf_for_change(&mut tree, index, Body::objects);
        if let Some(volume) = self.volumes.get_mut(&volume) {
            volume.objects = tree;
        }
    }

    /// A copy of the entry in a slot, whose leaf is in memory.
    fn here(&self, volume: VolumeId, slot: u64) -> Option<ObjectEntry> {
        self.slot(volume, slot).expect("prepared").cloned()
    }

    /// Replaces the entry in a slot.
    fn put(&mut self, volume: VolumeId, slot: u64, old: Option<ObjectEntry>, new: Option<ObjectEntry>) {
        if old == new {
            return;
        }
        let index = slot / LEAF_OBJECTS;
        let Some(mut tree) = self.volumes.get(&volume).map(|volume| volume.objects) else { return };
        let leaf = self.leaf_for_change(&mut tree, index, Body::objects);
        let body = &mut self.node_mut(leaf).body;
        let Body::Objects(entries) = body else { unreachable!("a leaf of objects") };
        entries[(slot % LEAF_OBJECTS) as usize] = new;
        if body.is_empty() {
            self.remove_leaf(&mut tree, index);
        }
        if let Some(volume) = self.volumes.get_mut(&volume) {
            volume.objects = tree;
        }
    }

    #[cfg(not(feature = "planted-bugs"))]
    fn cut_ignores_page_lsn(&self) -> bool {
        false
    }

    #[cfg(feature = "planted-bugs")]
    fn cut_ignores_page_lsn(&self) -> bool {
        self.plant_cut_ignores_page_lsn
    }
}

/// The leaves that hold these pages.
fn leaf_range(pages: &Range<PageNo>) -> Range<u64> {
    pages.start.0 / LEAF_PAGES..pages.end.0.div_ceil(LEAF_PAGES)
}
