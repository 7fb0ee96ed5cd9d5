//! The map: which block holds which page of which object of which volume.
//!
//! Behind one lock that is held for look-ups and changes, never for I/O. Only the writer changes what it says; readers add clean nodes
//! that they have read. After a crash: the nodes of the newest root, and the log entries after it, for which the same code runs as
//! after an append.

use super::leaf::{BlockEntry, DeltaEntry, Gone, PageEntry};
use super::node::{Body, Missing, NodeId, Tree};
use super::nodes::Nodes;
use super::object::{ObjectEntry, Pages, fits_inline};
use super::scan::{Purpose, Scan, Wanted};
use super::tree::{Leaf, Source, below};
use super::volume::Volume;
use super::volumes::Volumes;
use crate::bug::{StoreBug, is_planted};
use crate::entry::{LogEntry, Origin};
use crate::error::StoreError;
use crate::format::{
    DIRECTORY_BYTES, DYING_BYTES, INNER_CHILDREN, LEAF_OBJECTS, LEAF_PAGES, SEGMENT_BYTES, STREAM_HEAD_BYTES,
};
use crate::root::Newest;
use crate::settings::StoreSettings;
use crate::space::Reservations;
use crate::tables_stream::stream_blocks;
use crate::volume::{ListedPages, VolumeId};
use device::{Lsn, ObjectId, PageNo};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The map of all volumes, and what is reserved for changes of it.
pub(crate) struct Map {
    pub(crate) nodes: Nodes,
    pub(crate) volumes: Volumes,
    pub(crate) reservations: Reservations,
    /// Written with every checkpoint.
    pub(crate) settings: StoreSettings,
    /// Of the log entries so far.
    newest: Newest,
    /// The first object of which recovery could not apply a log entry, and the node that it lacked.
    left_out: Option<(ObjectId, NodeId)>,
    /// Slots of objects of which nobody knows any more what is in them, each with the node that recovery lacked.
    unapplied: BTreeMap<(VolumeId, u64), NodeId>,
    #[cfg(feature = "planted-bugs")]
    planted: Option<StoreBug>,
}

/// Where a page is.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    pub(crate) page: PageEntry,
    /// The blocks that have its deltas, the oldest first.
    pub(crate) deltas: SmallVec<[BlockEntry; 1]>,
}

impl Located {
    /// Whether its bytes are those of one block.
    pub(crate) fn is_base_alone(&self) -> bool {
        self.deltas.is_empty() && !self.page.is_lost()
    }
}

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
    /// The map of a store whose log entries up to `newest` are in it.
    pub(crate) fn new(nodes: Nodes, volumes: Volumes, newest: Newest) -> Map {
        Map {
            nodes,
            volumes,
            reservations: Reservations::default(),
            settings: StoreSettings::default(),
            newest,
            left_out: None,
            unapplied: BTreeMap::new(),
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }

    /// The highest LSNs of any log entry so far, or of a [fence](Map::fence).
    pub(crate) fn newest(&self) -> Newest {
        self.newest
    }

    /// Counts every change up to `lsn` as seen.
    pub(crate) fn fence(&mut self, lsn: Lsn) {
        self.newest.any = self.newest.any.max(lsn);
        self.newest.logged = self.newest.logged.max(lsn);
    }

    /// A batch of the log that is in the map from now on: whether the buffer has, or had, records of its changes.
    pub(crate) fn saw(&mut self, batch: &[LogEntry], origin: Origin) {
        if origin == Origin::Logged {
            let newest = batch.iter().map(LogEntry::lsn).max().unwrap_or_default();
            self.newest.logged = self.newest.logged.max(newest);
        }
    }

    /// Breaks a rule from now on.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn plant(&mut self, bug: StoreBug) {
        self.planted = Some(bug);
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn is_planted(&self, bug: StoreBug) -> bool {
        self.planted == Some(bug)
    }

    #[cfg(not(feature = "planted-bugs"))]
    pub(crate) fn is_planted(&self, _bug: StoreBug) -> bool {
        false
    }

    /// Blocks of a checkpoint's tables, for a node table of this many pages.
    pub(crate) fn stream_blocks(&self, table_pages: usize) -> u64 {
        let segments = SEGMENT_BYTES * self.nodes.segments.geometry().segments as usize;
        let dying = DYING_BYTES * self.volumes.dying().len();
        let tables = DIRECTORY_BYTES * table_pages + segments + dying;
        stream_blocks(STREAM_HEAD_BYTES + tables + self.settings.encode().len())
    }

    /// Begins a round of cleaning that looks up who holds the blocks of these segments, which is so much work.
    pub(crate) fn begin_lookups(&mut self, segments: BTreeSet<u32>, work: u64) {
        *self.nodes.scan(Purpose::Clean) = Some(Scan::of_lookups(segments, work));
    }

    /// Begins a walk at all roots; the cleaner's need not visit the volumes' leaves, as memory says what these do.
    pub(crate) fn begin_scan(&mut self, purpose: Purpose, wanted: Wanted) {
        match purpose {
            Purpose::Clean => self.nodes.begin_scan(purpose, wanted, self.volumes.roots_of_data()),
            Purpose::StoreScrub => self.nodes.begin_scan(purpose, wanted, self.volumes.roots()),
        }
    }

    /// Leaves out a log entry that recovery cannot apply, since nodes that it needs are lost. What it is about cannot be read from now
    /// on: nobody knows what it would be. Of what was written to pages below such a node that is so by itself; of another entry the whole
    /// object, as it may be about pages elsewhere, too.
    pub(crate) fn leave_out(&mut self, entry: &LogEntry, failed: BTreeMap<NodeId, StoreError>) {
        self.newest.any = self.newest.any.max(entry.lsn());
        let objects = match entry {
            LogEntry::Write { object, .. }
            | LogEntry::Deltas { object, .. }
            | LogEntry::Cut { object, .. }
            | LogEntry::Delete { object, .. } => vec![object],
            LogEntry::Clone { transfer, .. } => vec![&transfer.to],
            LogEntry::Move { transfer, .. } => vec![&transfer.from, &transfer.to],
            LogEntry::CloneVolume { .. } | LogEntry::NameVolume { .. } | LogEntry::DeleteVolume { .. } => {
                unreachable!("these need no nodes")
            }
        };
        let Some((&node, _)) = failed.first_key_value() else { return };
        self.nodes.lost.extend(failed);
        self.left_out.get_or_insert((*objects[0], node));
        if !self.is_below_lost(entry) {
            self.unapplied.extend(objects.into_iter().map(|object| ((object.volume, object.slot), node)));
        }
    }

    /// Whether a log entry writes pages that cannot be looked up, since a node above them is lost.
    fn is_below_lost(&self, entry: &LogEntry) -> bool {
        match entry {
            LogEntry::Write { object, page, .. } | LogEntry::Deltas { object, first: page, .. } => {
                let is_lost = |Missing(ids): Missing| ids.iter().all(|id| self.nodes.lost.contains_key(id));
                self.lookup(*object, *page).is_err_and(is_lost)
            }
            _ => false,
        }
    }

    /// The first error for which a log entry was [left out](Map::leave_out): a root must not say that the log before it is in the map.
    pub(crate) fn left_out(&self) -> Option<StoreError> {
        let (object, id) = self.left_out?;
        let node = self.nodes.lost.get(&id)?.clone();
        Some(StoreError::ChangeBelowDamage { object, node: Box::new(node) })
    }

    /// The object that lives in this slot now, whatever its generation.
    pub(crate) fn slot(&self, volume: VolumeId, slot: u64) -> Result<Option<&ObjectEntry>, Missing> {
        if let Some(&node) = self.unapplied.get(&(volume, slot)) {
            return Err(Missing(vec![node]));
        }
        let Some(volume) = self.volumes.get(volume) else { return Ok(None) };
        let Some(leaf) = volume.objects.leaf(&self.nodes, slot / LEAF_OBJECTS)? else { return Ok(None) };
        let Body::Objects(entries) = &self.nodes.node(leaf.id)?.body else { return Ok(None) };
        Ok(entries[(slot % LEAF_OBJECTS) as usize].as_ref())
    }

    /// The object, if it is the one that lives in its slot.
    pub(crate) fn object(&self, object: ObjectId) -> Result<Option<&ObjectEntry>, Missing> {
        Ok(self.slot(object.volume, object.slot)?.filter(|entry| entry.generation == object.generation))
    }

    /// Where a page is; `None` for a hole.
    pub(crate) fn lookup(&self, object: ObjectId, page: PageNo) -> Result<Option<Located>, Missing> {
        let Some(entry) = self.object(object)? else { return Ok(None) };
        let found = match &entry.pages {
            Pages::Inline(pages) => match pages.binary_search_by_key(&page, |(page, _)| *page) {
                Ok(found) => Located { page: pages[found].1, deltas: SmallVec::new() },
                Err(_) => return Ok(None),
            },
            Pages::Tree(tree) => {
                let Some(leaf) = tree.leaf(&self.nodes, page.0 / LEAF_PAGES)? else { return Ok(None) };
                let Body::Pages(leaf) = &self.nodes.node(leaf.id)?.body else { return Ok(None) };
                let index = (page.0 % LEAF_PAGES) as usize;
                Located { page: leaf.pages()[index], deltas: leaf.deltas_of(index).collect() }
            }
        };
        Ok((!found.page.is_hole()).then_some(found))
    }

    /// Everything that a leaf of an object's pages refers to, or of what would lie in that leaf what is inline: with the node and the
    /// number by which it is found there.
    pub(crate) fn blocks_in(
        &self,
        object: ObjectId,
        leaf: u64,
        take: &mut dyn FnMut(BlockEntry, NodeId, usize),
    ) -> Result<(), Missing> {
        match self.object(object)?.map(|entry| &entry.pages) {
            None => {}
            Some(Pages::Inline(pages)) => {
                let objects =
                    self.volumes.get(object.volume).map_or(Tree::default(), |volume| volume.objects);
                let Some(holder) = objects.leaf(&self.nodes, object.slot / LEAF_OBJECTS)? else {
                    return Ok(());
                };
                let within = pages.iter().filter(|(page, _)| page.0 / LEAF_PAGES == leaf);
                let index = (object.slot % LEAF_OBJECTS) as usize;
                within.filter_map(|(_, page)| page.base()).for_each(|base| take(base, holder.id, index));
            }
            Some(Pages::Tree(tree)) => {
                let Some(found) = tree.leaf(&self.nodes, leaf)? else { return Ok(()) };
                if let Body::Pages(pages) = &self.nodes.node(found.id)?.body {
                    pages.blocks().for_each(|(index, block)| take(block, found.id, index));
                }
            }
        }
        Ok(())
    }

    /// The leaves that an object's pages lie in, or would lie in, from one on, at most so many.
    pub(crate) fn leaves_of(&self, entry: &ObjectEntry, from: u64, most: usize) -> Result<Vec<u64>, Missing> {
        match &entry.pages {
            Pages::Inline(pages) => {
                let mut leaves: Vec<u64> = pages.iter().map(|(page, _)| page.0 / LEAF_PAGES).collect();
                leaves.dedup();
                leaves.retain(|&leaf| leaf >= from);
                Ok(leaves)
            }
            Pages::Tree(tree) => {
                let leaves = self.some_leaves(*tree, from..u64::MAX, most)?;
                Ok(leaves.into_iter().map(|leaf| leaf.index).collect())
            }
        }
    }

    /// The pages in a leaf, without its holes.
    pub(crate) fn pages_in(&self, leaf: Leaf) -> impl Iterator<Item = (PageNo, &PageEntry)> {
        let entries: &[PageEntry] = match self.nodes.node(leaf.id).ok().map(|node| &node.body) {
            Some(Body::Pages(leaf)) => leaf.pages(),
            _ => &[],
        };
        let first = leaf.index * LEAF_PAGES;
        let numbered = entries.iter().enumerate();
        numbered
            .filter(|(_, entry)| !entry.is_hole())
            .map(move |(index, entry)| (PageNo(first + index as u64), entry))
    }

    /// Whether every node that [`change`](Map::change) would need for this log entry is in memory.
    pub(crate) fn prepare(&self, log_entry: &LogEntry) -> Result<(), Missing> {
        log_entry.changed_volumes().try_for_each(|volume| self.volumes.prepare(&self.nodes, volume))?;
        match log_entry {
            LogEntry::Write { object, page, .. } | LogEntry::Deltas { object, first: page, .. } => {
                match self.slot(object.volume, object.slot)? {
                    Some(entry) if entry.generation < object.generation => self.prepare_drop(entry),
                    Some(ObjectEntry { generation, pages: Pages::Tree(tree), .. })
                        if *generation == object.generation =>
                    {
                        tree.leaf(&self.nodes, page.0 / LEAF_PAGES).map(drop)
                    }
                    _ => Ok(()),
                }
            }
            LogEntry::Cut { object, pages, .. } => match self.object(*object)? {
                Some(ObjectEntry { pages: Pages::Tree(tree), .. }) => {
                    tree.leaves(&self.nodes, leaf_range(pages)).map(drop)
                }
                _ => Ok(()),
            },
            LogEntry::Delete { object, .. } => self.object(*object)?.map_or(Ok(()), |e| self.prepare_drop(e)),
            LogEntry::Clone { transfer, .. } | LogEntry::Move { transfer, .. } => {
                self.prepare_transfer(transfer)
            }
            LogEntry::CloneVolume { .. } | LogEntry::NameVolume { .. } | LogEntry::DeleteVolume { .. } => {
                Ok(())
            }
        }
    }

    /// Whether what [`drop_pages`](Map::drop_pages) looks into is in memory.
    pub(super) fn prepare_drop(&self, entry: &ObjectEntry) -> Result<(), Missing> {
        match &entry.pages {
            Pages::Tree(tree) if tree.height == 0 => self.nodes.node(tree.root).map(drop),
            _ => Ok(()),
        }
    }

    fn prepare_all(&self, entry: &ObjectEntry) -> Result<(), Missing> {
        match &entry.pages {
            Pages::Tree(tree) => tree.leaves(&self.nodes, 0..u64::MAX).map(drop),
            Pages::Inline(_) => Ok(()),
        }
    }

    /// The same for all that is below what a transfer takes: what comes behind it in a vector may need that.
    pub(crate) fn prepare_below(&self, log_entry: &LogEntry) -> Result<(), Missing> {
        let (LogEntry::Clone { transfer, .. } | LogEntry::Move { transfer, .. }) = log_entry else {
            return Ok(());
        };
        for object in [transfer.from, transfer.to] {
            self.object(object)?.map_or(Ok(()), |entry| self.prepare_all(entry))?;
        }
        Ok(())
    }

    /// Does what a log entry says. Its nodes must be in memory.
    pub(crate) fn change(&mut self, log_entry: &LogEntry) {
        self.newest.any = self.newest.any.max(log_entry.lsn());
        match log_entry {
            LogEntry::Write { object, page, page_lsn, place, crc, .. } => {
                let entry = PageEntry { place: *place, page_lsn: *page_lsn, crc: *crc, shared: false };
                self.write(*object, *page, entry);
            }
            LogEntry::Deltas { object, first, pages, page_lsn, place, crc } => {
                let block = BlockEntry { place: *place, crc: *crc, shared: false };
                self.write_deltas(*object, *first, DeltaEntry { block, pages: *pages }, *page_lsn);
            }
            LogEntry::Cut { object, pages, lsn } => self.cut(*object, pages, *lsn),
            LogEntry::Delete { object, lsn } => self.delete(*object, *lsn),
            LogEntry::Clone { transfer, lsn } => self.transfer(transfer, *lsn, Source::Stays),
            LogEntry::Move { transfer, lsn } => self.transfer(transfer, *lsn, Source::Goes),
            LogEntry::CloneVolume { from, to, mode, created, .. } => {
                let new = Volume { mode: *mode, created: *created, ..Volume::default() };
                self.volumes.clone_volume(&mut self.nodes, *from, *to, new);
                let unapplied = self.unapplied.range((*from, 0)..=(*from, u64::MAX));
                let same: Vec<_> = unapplied.map(|(&(_, slot), &node)| ((*to, slot), node)).collect();
                self.unapplied.extend(same);
            }
            LogEntry::NameVolume { volume, part } => self.volumes.name(&mut self.nodes, *volume, part),
            LogEntry::DeleteVolume { volume, .. } => self.volumes.delete(&mut self.nodes, *volume),
        }
    }

    fn write(&mut self, object: ObjectId, page: PageNo, new: PageEntry) {
        self.change_pages(object, |map, pages| {
            map.nodes.segments.inc_live(new.place);
            map.put_page(pages, page, new);
        });
    }

    /// Changes pages of an object, which replaces an older one in its slot; one that is older than that changes nothing.
    fn change_pages(&mut self, object: ObjectId, change: impl FnOnce(&mut Map, &mut Pages)) {
        self.unshare(object.volume, object.slot);
        let old = self.here(object.volume, object.slot);
        let (mut pages, transfer_lsn) = match &old {
            Some(entry) if entry.generation > object.generation => return,
            Some(entry) if entry.generation < object.generation => {
                self.drop_pages(&entry.pages);
                (Pages::Inline(Vec::new()), Lsn(0))
            }
            Some(entry) => (entry.pages.clone(), entry.transfer_lsn),
            None => (Pages::Inline(Vec::new()), Lsn(0)),
        };
        change(self, &mut pages);
        let new = ObjectEntry { generation: object.generation, transfer_lsn, pages };
        self.put(object.volume, object.slot, old, Some(new));
    }

    /// Pages that have deltas lie in a leaf, however few they are.
    fn write_deltas(&mut self, object: ObjectId, first: PageNo, new: DeltaEntry, page_lsn: Lsn) {
        self.change_pages(object, |map, pages| {
            map.nodes.segments.inc_live(new.block.place);
            let mut tree = match &*pages {
                Pages::Tree(tree) => *tree,
                Pages::Inline(inline) => Tree::of(&mut map.nodes, inline),
            };
            let leaf = tree.leaf_for_change(&mut map.nodes, first.0 / LEAF_PAGES, Body::pages);
            let Body::Pages(leaf) = &mut map.nodes.node_mut(leaf).body else {
                unreachable!("a leaf of pages")
            };
            leaf.add_delta(new, page_lsn);
            if is_planted(StoreBug::BaseFreedEarly) {
                let bases: Vec<_> = leaf.bases().filter(|(index, _)| new.has(*index)).collect();
                bases.iter().for_each(|&(index, _)| {
                    leaf.share(index);
                });
                bases.iter().for_each(|(_, base)| map.nodes.forget(base));
            }
            *pages = Pages::Tree(tree);
        });
    }

    /// Its block is live already.
    pub(super) fn put_page(&mut self, pages: &mut Pages, page: PageNo, new: PageEntry) {
        match pages {
            Pages::Tree(tree) => {
                let gone = self.set_in_tree(tree, page, new);
                self.nodes.forget_all(&gone);
            }
            Pages::Inline(inline) => {
                match inline.binary_search_by_key(&page, |(page, _)| *page) {
                    Ok(at) => {
                        let old = std::mem::replace(&mut inline[at].1, new);
                        old.base().iter().for_each(|base| self.nodes.forget(base));
                    }
                    Err(at) => inline.insert(at, (page, new)),
                }
                if !fits_inline(inline) {
                    *pages = Pages::Tree(Tree::of(&mut self.nodes, inline));
                }
            }
        }
    }

    /// Returns what was there.
    fn set_in_tree(&mut self, tree: &mut Tree, page: PageNo, new: PageEntry) -> Gone {
        let leaf = tree.leaf_for_change(&mut self.nodes, page.0 / LEAF_PAGES, Body::pages);
        let Body::Pages(leaf) = &mut self.nodes.node_mut(leaf).body else { unreachable!("a leaf of pages") };
        leaf.set((page.0 % LEAF_PAGES) as usize, new)
    }

    fn cut(&mut self, object: ObjectId, range: &Range<PageNo>, lsn: Lsn) {
        self.unshare(object.volume, object.slot);
        let Some(old) =
            self.here(object.volume, object.slot).filter(|old| old.generation == object.generation)
        else {
            return;
        };
        if lsn < old.transfer_lsn && !self.repeats_ranges() {
            return;
        }
        let goes = |page: PageNo, entry: &PageEntry| {
            range.contains(&page) && (entry.page_lsn < lsn || self.is_planted(StoreBug::CutIgnoresPageLsn))
        };
        let mut pages = old.pages.clone();
        match &mut pages {
            Pages::Inline(inline) => {
                let (gone, rest) = inline.drain(..).partition(|(page, entry)| goes(*page, entry));
                *inline = rest;
                let gone: Vec<(PageNo, PageEntry)> = gone;
                let gone = gone.iter().filter_map(|(_, entry)| entry.base());
                gone.for_each(|base| self.nodes.forget(&base));
            }
            Pages::Tree(tree) => {
                let leaves = tree.leaves(&self.nodes, leaf_range(range)).expect("prepared");
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
        let new = ObjectEntry { pages, ..old };
        self.put(object.volume, object.slot, Some(old), Some(new));
    }

    /// Makes holes of some pages in a leaf that holds `held`.
    fn cut_leaf(&mut self, tree: &mut Tree, leaf: Leaf, gone: &[PageNo], held: usize) {
        if gone.len() == held {
            tree.remove_leaf(&mut self.nodes, leaf.index);
            return;
        }
        for page in gone {
            let gone = self.set_in_tree(tree, *page, PageEntry::default());
            self.nodes.forget_all(&gone);
        }
    }

    fn delete(&mut self, object: ObjectId, lsn: Lsn) {
        self.unshare(object.volume, object.slot);
        let Some(old) =
            self.here(object.volume, object.slot).filter(|old| old.generation == object.generation)
        else {
            return;
        };
        if lsn < old.transfer_lsn && !self.repeats_ranges() {
            return;
        }
        self.drop_pages(&old.pages);
        self.put(object.volume, object.slot, Some(old), None);
    }

    /// The leaf of an object has pages inline that another one had.
    pub(super) fn revisit_object(&mut self, object: ObjectId) {
        let objects = self.volumes.get(object.volume).map_or(Tree::default(), |volume| volume.objects);
        let leaf = objects.leaf(&self.nodes, object.slot / LEAF_OBJECTS).expect("prepared");
        leaf.into_iter().for_each(|leaf| self.nodes.revisit(leaf.id));
    }

    /// Whether a range that an object has had is changed once more: a planted bug.
    pub(super) fn repeats_ranges(&self) -> bool {
        self.is_planted(StoreBug::RangeRepeated)
    }

    /// A tree of one leaf, as small files have, goes at once; of a larger one the dying list takes care, a step at a time.
    pub(super) fn drop_pages(&mut self, pages: &Pages) {
        match pages {
            Pages::Inline(inline) => {
                inline.iter().filter_map(|(_, entry)| entry.base()).for_each(|base| self.nodes.forget(&base));
            }
            Pages::Tree(tree) if tree.height == 0 => self.nodes.release(tree.root),
            Pages::Tree(tree) => {
                self.condemn(tree.root);
                if is_planted(StoreBug::DyingTwice) && self.nodes.table.references(tree.root) > 1 {
                    self.condemn(tree.root);
                }
            }
        }
    }

    /// Takes a copy of the leaf that holds a slot, and of the nodes above it, if others share it: what an object in
    /// it refers to has a reference for each leaf that says so, only then.
    pub(super) fn unshare(&mut self, volume: VolumeId, slot: u64) {
        self.volumes.unshare(&mut self.nodes, volume);
        let Some(mut tree) = self.volumes.get(volume).map(|volume| volume.objects) else { return };
        let index = slot / LEAF_OBJECTS;
        if !tree.is_shared(&self.nodes, index).expect("prepared") {
            return;
        }
        tree.leaf_for_change(&mut self.nodes, index, Body::objects);
        self.volumes.set_objects(&mut self.nodes, volume, tree);
    }

    /// A copy of the entry in a slot, whose leaf is in memory.
    pub(super) fn here(&self, volume: VolumeId, slot: u64) -> Option<ObjectEntry> {
        self.slot(volume, slot).expect("prepared").cloned()
    }

    /// Pages inline that were cut apart, or that are shared in part, may be more extents than an entry has.
    fn fitting(&mut self, mut entry: ObjectEntry) -> ObjectEntry {
        if let Pages::Inline(inline) = &entry.pages
            && !fits_inline(inline)
        {
            entry.pages = Pages::Tree(Tree::of(&mut self.nodes, inline));
        }
        entry
    }

    /// Replaces the entry in a slot.
    pub(super) fn put(
        &mut self,
        volume: VolumeId,
        slot: u64,
        old: Option<ObjectEntry>,
        new: Option<ObjectEntry>,
    ) {
        if old == new {
            return;
        }
        let new = new.map(|new| self.fitting(new));
        let index = slot / LEAF_OBJECTS;
        let Some(mut tree) = self.volumes.get(volume).map(|volume| volume.objects) else { return };
        let leaf = tree.leaf_for_change(&mut self.nodes, index, Body::objects);
        let body = &mut self.nodes.node_mut(leaf).body;
        let Body::Objects(entries) = body else { unreachable!("a leaf of objects") };
        entries[(slot % LEAF_OBJECTS) as usize] = new;
        if body.is_empty() {
            tree.remove_leaf(&mut self.nodes, index);
        }
        self.volumes.set_objects(&mut self.nodes, volume, tree);
    }

    /// The pages of `object` within `range`, of at most `leaves_max` leaves.
    pub(crate) fn list(
        &self,
        object: ObjectId,
        range: Range<PageNo>,
        leaves_max: usize,
    ) -> Result<ListedPages, Missing> {
        let nothing = ListedPages { pages: Vec::new(), until: range.end };
        if range.is_empty() {
            return Ok(nothing);
        }
        match self.object(object)?.map(|entry| &entry.pages) {
            None => Ok(nothing),
            Some(Pages::Inline(pages)) => {
                let within = pages.iter().filter(|(page, _)| range.contains(page));
                Ok(ListedPages {
                    pages: within.map(|(page, entry)| (*page, entry.page_lsn)).collect(),
                    ..nothing
                })
            }
            Some(Pages::Tree(tree)) => self.list_tree(*tree, range, leaves_max),
        }
    }

    fn list_tree(&self, tree: Tree, range: Range<PageNo>, leaves_max: usize) -> Result<ListedPages, Missing> {
        let wanted = range.start.0 / LEAF_PAGES..range.end.0.div_ceil(LEAF_PAGES);
        let leaves = self.some_leaves(tree, wanted, leaves_max)?;
        let until = match leaves.last() {
            Some(last) if leaves.len() >= leaves_max => PageNo((last.index + 1) * LEAF_PAGES).min(range.end),
            _ => range.end,
        };
        let all = leaves.iter().flat_map(|&leaf| self.pages_in(leaf));
        let within = all.filter(|(page, _)| range.contains(page));
        Ok(ListedPages { pages: within.map(|(page, entry)| (page, entry.page_lsn)).collect(), until })
    }

    /// The first leaves of a tree with these indexes, at most so many.
    pub(super) fn some_leaves(
        &self,
        tree: Tree,
        wanted: Range<u64>,
        leaves_max: usize,
    ) -> Result<Vec<Leaf>, Missing> {
        let mut found = Found { leaves: Vec::new(), leaves_max, missing: Vec::new() };
        if tree.root.is_some() {
            self.find_leaves(Leaf { index: 0, id: tree.root }, tree.height, &wanted, &mut found);
        }
        if !found.missing.is_empty() {
            return Err(Missing(found.missing));
        }
        // A tree of one leaf has it wherever the search begins.
        found.leaves.retain(|leaf| wanted.contains(&leaf.index));
        Ok(found.leaves)
    }

    /// Gathers leaves in order, until there are enough.
    fn find_leaves(&self, at: Leaf, height: u8, wanted: &Range<u64>, found: &mut Found) {
        let node = match self.nodes.node(at.id) {
            Ok(node) => node,
            Err(Missing(ids)) => return found.missing.extend(ids),
        };
        if height == 0 {
            return found.leaves.push(at);
        }
        let Body::Inner(children) = &node.body else { return };
        for (slot, &id) in children.iter().enumerate().filter(|(_, id)| id.is_some()) {
            let Some(below) = below(at.index, slot as u64, height) else { break };
            if below.start >= wanted.end || found.is_full() {
                break;
            }
            if below.end > wanted.start {
                self.find_leaves(Leaf { index: below.start, id }, height - 1, wanted, found);
            }
        }
    }

    /// Gives up the dying list's reference to some of the `most` nodes that go first, those that are in memory or shared. With the last one
    /// a node goes, and the list gets its references: no more than twice a node's children, so that the list, which each checkpoint
    /// writes, stays short. Returns how many.
    pub(crate) fn free_dying(&mut self, most: usize) -> u64 {
        let mut first = self.volumes.take_dying(most);
        let (mut freed, mut stays, below) = (0, Vec::new(), self.volumes.dying().len());
        while self.volumes.dying().len() <= below + INNER_CHILDREN as usize
            && let Some(id) = first.pop()
        {
            if self.nodes.table.references(id) == 1 && !self.nodes.is_cached(id) {
                stays.push(id);
            } else {
                self.let_die(id);
                freed += 1;
            }
        }
        self.volumes.put_back_dying(below, first, stays);
        freed
    }

    pub(super) fn let_die(&mut self, id: NodeId) {
        if self.nodes.table.references(id) > 1 {
            self.nodes.table.drop_reference(id);
            if self.is_planted(StoreBug::FreedOnceTooOften) && self.nodes.table.references(id) > 1 {
                self.nodes.table.drop_reference(id);
            }
            return;
        }
        match self.nodes.remove_node(id) {
            Body::Inner(children) => {
                children.iter().filter(|child| child.is_some()).for_each(|&child| self.condemn(child));
            }
            Body::Pages(leaf) => leaf.blocks().for_each(|(_, block)| self.nodes.forget(&block)),
            Body::Volumes(volumes) => {
                let roots = volumes.iter().flatten().map(|volume| volume.objects.root);
                roots.filter(|root| root.is_some()).for_each(|root| self.condemn(root));
            }
            Body::Objects(objects) => {
                for object in objects.iter().flatten() {
                    match &object.pages {
                        Pages::Inline(pages) => {
                            let bases = pages.iter().filter_map(|(_, entry)| entry.base());
                            bases.for_each(|base| self.nodes.forget(&base));
                        }
                        Pages::Tree(tree) => self.condemn(tree.root),
                    }
                }
            }
        }
    }

    /// The dying list takes over a reference from a node that goes. A walk may have meant to find it there.
    pub(super) fn condemn(&mut self, id: NodeId) {
        if self.is_planted(StoreBug::LeakedNode) && id.0.is_multiple_of(3) {
            return;
        }
        self.volumes.push_dying(id);
        self.nodes.still_referred(id);
    }
}

/// The leaves that hold these pages.
fn leaf_range(pages: &Range<PageNo>) -> Range<u64> {
    pages.start.0 / LEAF_PAGES..pages.end.0.div_ceil(LEAF_PAGES)
}
