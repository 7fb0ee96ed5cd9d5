//! The page map: which block holds which page of which object of which volume.
//!
//! One lock protects it. The lock is held for look-ups and changes, never for I/O. Only the writer changes
//! the meaning of the map; readers add clean nodes that they have read. After a crash the map consists of the
//! nodes of the newest root and the log entries after it, which recovery applies with the same code as an
//! append.

use super::node::{MissingNodes, NodeBody, NodeId, NodeTree};
use super::node_tree::{LeafRef, leaves_below_child};
use super::nodes::MapNodes;
use super::object_leaf::{ObjectEntry, ObjectPageEntries, fits_inline};
use super::page_leaf::{BlockEntry, DeltaEntry, DroppedBlocks, PageMapEntry};
use super::scan::{MapScan, ScanPurpose, ScanTarget};
use super::volume_leaf::VolumeEntry;
use super::volumes::MapVolumes;
use crate::bug::{StoreBug, is_planted};
use crate::checkpoint_root::NewestLsns;
use crate::error::StoreError;
use crate::format::{
    DIRECTORY_BYTES, DYING_BYTES, INNER_CHILDREN, LEAF_OBJECTS, LEAF_PAGES, SEGMENT_BYTES, STREAM_HEAD_BYTES,
};
use crate::log_entry::{BatchOrigin, LogEntry};
use crate::settings::StoreSettings;
use crate::space::Reservations;
use crate::tables_stream::stream_blocks;
use crate::volume::{ListedPages, VolumeId};
use device::{Lsn, ObjectId, PageNo};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The map of all volumes, and the space reserved for changes of it.
pub(crate) struct PageMap {
    pub(crate) nodes: MapNodes,
    pub(crate) volumes: MapVolumes,
    pub(crate) reservations: Reservations,
    /// Every checkpoint writes them.
    pub(crate) settings: StoreSettings,
    /// The highest LSNs of the log entries so far.
    newest: NewestLsns,
    /// The object of the first log entry that recovery had to skip, and the unreadable node.
    first_skipped: Option<(ObjectId, NodeId)>,
    /// Slots whose content is unknown because a log entry was skipped, each with the unreadable node.
    unapplied: BTreeMap<(VolumeId, u64), NodeId>,
    #[cfg(feature = "planted-bugs")]
    planted: Option<StoreBug>,
}

/// The base of a page and the blocks of its deltas.
#[derive(Debug, Clone)]
pub(crate) struct PageLocation {
    pub(crate) page: PageMapEntry,
    /// The blocks with its deltas, the oldest first.
    pub(crate) deltas: SmallVec<[BlockEntry; 1]>,
}

impl PageLocation {
    /// Whether the page is its base and nothing else.
    pub(crate) fn is_base_alone(&self) -> bool {
        self.deltas.is_empty() && !self.page.is_lost()
    }
}

/// A search for leaves under way.
struct LeafSearch {
    leaves: Vec<LeafRef>,
    leaves_max: usize,
    /// Nodes that must be read before the search can go on.
    missing: Vec<super::NodeId>,
}

impl LeafSearch {
    fn is_full(&self) -> bool {
        self.leaves.len() + self.missing.len() >= self.leaves_max
    }
}

impl PageMap {
    /// A map that contains the log entries up to `newest`.
    pub(crate) fn new(nodes: MapNodes, volumes: MapVolumes, newest: NewestLsns) -> PageMap {
        PageMap {
            nodes,
            volumes,
            reservations: Reservations::default(),
            settings: StoreSettings::default(),
            newest,
            first_skipped: None,
            unapplied: BTreeMap::new(),
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }

    /// The highest LSNs of the log entries so far, or of a [fence](PageMap::fence).
    pub(crate) fn newest(&self) -> NewestLsns {
        self.newest
    }

    /// Counts every change up to `lsn` as seen.
    pub(crate) fn fence(&mut self, lsn: Lsn) {
        self.newest.any = self.newest.any.max(lsn);
        self.newest.logged = self.newest.logged.max(lsn);
    }

    /// Notes a batch that was applied. `origin` says whether the buffer had a record of its changes.
    pub(crate) fn note_batch(&mut self, batch: &[LogEntry], origin: BatchOrigin) {
        if origin == BatchOrigin::Logged {
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

    /// Blocks of a checkpoint's tables, for a node table of `table_pages` pages.
    pub(crate) fn stream_blocks(&self, table_pages: usize) -> u64 {
        let segments = SEGMENT_BYTES * self.nodes.segments.geometry().segments as usize;
        let dying = DYING_BYTES * self.volumes.dying().len();
        let tables = DIRECTORY_BYTES * table_pages + segments + dying;
        stream_blocks(STREAM_HEAD_BYTES + tables + self.settings.encoded_bytes())
    }

    /// Begins a cleaning round that looks up the holders of these segments' blocks instead of scanning for
    /// them. `work` is the amount of work that the look-ups are.
    pub(crate) fn begin_lookups(&mut self, segments: BTreeSet<u32>, work: u64) {
        *self.nodes.scan_mut(ScanPurpose::Clean) = Some(MapScan::for_lookups(segments, work));
    }

    /// Begins a scan at all roots. The cleaner's does not visit the volume leaves, as their content is in
    /// memory.
    pub(crate) fn begin_scan(&mut self, purpose: ScanPurpose, target: ScanTarget) {
        match purpose {
            ScanPurpose::Clean => self.nodes.begin_scan(purpose, target, self.volumes.roots_of_data()),
            ScanPurpose::StoreScrub => self.nodes.begin_scan(purpose, target, self.volumes.roots()),
        }
    }

    /// Skips a log entry that recovery cannot apply because nodes that it needs are unreadable. From now on a
    /// read of what the entry changes is an error, as its content is unknown.
    ///
    /// A page written below an unreadable node cannot be read anyway. Of any other entry the whole object
    /// becomes unreadable, as the entry may also change pages elsewhere.
    pub(crate) fn skip_entry(&mut self, entry: &LogEntry, failed: BTreeMap<NodeId, StoreError>) {
        self.newest.any = self.newest.any.max(entry.lsn());
        let objects = entry.changed_objects();
        let first = *objects.first().expect("an entry for a volume needs no nodes");
        let Some((&node, _)) = failed.first_key_value() else { return };
        self.nodes.lost.extend(failed);
        self.first_skipped.get_or_insert((first, node));
        if !self.is_below_lost_node(entry) {
            self.unapplied.extend(objects.into_iter().map(|object| ((object.volume, object.slot), node)));
        }
    }

    /// Whether a log entry writes pages that cannot be looked up, because a node above them is unreadable.
    fn is_below_lost_node(&self, entry: &LogEntry) -> bool {
        match entry {
            LogEntry::Write { object, page, .. } | LogEntry::Deltas { object, first: page, .. } => {
                let is_lost =
                    |MissingNodes(ids): MissingNodes| ids.iter().all(|id| self.nodes.lost.contains_key(id));
                self.lookup(*object, *page).is_err_and(is_lost)
            }
            _ => false,
        }
    }

    /// The error of the first [skipped](PageMap::skip_entry) log entry. A root must not say that the map
    /// contains the log up to here.
    pub(crate) fn skipped_entry_error(&self) -> Option<StoreError> {
        let (object, id) = self.first_skipped?;
        let node = self.nodes.lost.get(&id)?.clone();
        Some(StoreError::ChangeBelowDamage { object, node: Box::new(node) })
    }

    /// The object in this slot, whatever its generation.
    pub(crate) fn slot(&self, volume: VolumeId, slot: u64) -> Result<Option<&ObjectEntry>, MissingNodes> {
        if let Some(&node) = self.unapplied.get(&(volume, slot)) {
            return Err(MissingNodes(vec![node]));
        }
        let Some(volume) = self.volumes.get(volume) else { return Ok(None) };
        let Some(leaf) = volume.objects.leaf(&self.nodes, slot / LEAF_OBJECTS)? else { return Ok(None) };
        let NodeBody::Objects(entries) = &self.nodes.node(leaf.id)?.body else { return Ok(None) };
        Ok(entries[(slot % LEAF_OBJECTS) as usize].as_ref())
    }

    /// The object, if its generation is the one in the slot.
    pub(crate) fn object(&self, object: ObjectId) -> Result<Option<&ObjectEntry>, MissingNodes> {
        Ok(self.slot(object.volume, object.slot)?.filter(|entry| entry.generation == object.generation))
    }

    /// Where a page lies; `None` for a hole.
    pub(crate) fn lookup(
        &self,
        object: ObjectId,
        page: PageNo,
    ) -> Result<Option<PageLocation>, MissingNodes> {
        let Some(entry) = self.object(object)? else { return Ok(None) };
        let found = match &entry.pages {
            ObjectPageEntries::Inline(pages) => match pages.binary_search_by_key(&page, |(page, _)| *page) {
                Ok(found) => PageLocation { page: pages[found].1, deltas: SmallVec::new() },
                Err(_) => return Ok(None),
            },
            ObjectPageEntries::Tree(tree) => {
                let Some(leaf) = tree.leaf(&self.nodes, page.0 / LEAF_PAGES)? else { return Ok(None) };
                let NodeBody::Pages(leaf) = &self.nodes.node(leaf.id)?.body else { return Ok(None) };
                let index = (page.0 % LEAF_PAGES) as usize;
                PageLocation { page: leaf.pages()[index], deltas: leaf.deltas_of(index).collect() }
            }
        };
        Ok((!found.page.is_hole()).then_some(found))
    }

    /// Calls `take` with each block that a page leaf refers to, or that would lie in this leaf if the
    /// object's pages were not inline. Also passes the node that holds the reference, and the entry's number
    /// in the node.
    pub(crate) fn blocks_in(
        &self,
        object: ObjectId,
        leaf: u64,
        take: &mut dyn FnMut(BlockEntry, NodeId, usize),
    ) -> Result<(), MissingNodes> {
        match self.object(object)?.map(|entry| &entry.pages) {
            None => {}
            Some(ObjectPageEntries::Inline(pages)) => {
                let objects =
                    self.volumes.get(object.volume).map_or(NodeTree::default(), |volume| volume.objects);
                let Some(holder) = objects.leaf(&self.nodes, object.slot / LEAF_OBJECTS)? else {
                    return Ok(());
                };
                let within = pages.iter().filter(|(page, _)| page.0 / LEAF_PAGES == leaf);
                let index = (object.slot % LEAF_OBJECTS) as usize;
                within.filter_map(|(_, page)| page.base()).for_each(|base| take(base, holder.id, index));
            }
            Some(ObjectPageEntries::Tree(tree)) => {
                let Some(found) = tree.leaf(&self.nodes, leaf)? else { return Ok(()) };
                if let NodeBody::Pages(pages) = &self.nodes.node(found.id)?.body {
                    pages.blocks().for_each(|(index, block)| take(block, found.id, index));
                }
            }
        }
        Ok(())
    }

    /// Indexes of the leaves that the object's pages lie in, or would lie in if they were not inline: from
    /// `from` on, at most `most`.
    pub(crate) fn leaves_of(
        &self,
        entry: &ObjectEntry,
        from: u64,
        most: usize,
    ) -> Result<Vec<u64>, MissingNodes> {
        match &entry.pages {
            ObjectPageEntries::Inline(pages) => {
                let mut leaves: Vec<u64> = pages.iter().map(|(page, _)| page.0 / LEAF_PAGES).collect();
                leaves.dedup();
                leaves.retain(|&leaf| leaf >= from);
                Ok(leaves)
            }
            ObjectPageEntries::Tree(tree) => {
                let leaves = self.first_leaves(*tree, from..u64::MAX, most)?;
                Ok(leaves.into_iter().map(|leaf| leaf.index).collect())
            }
        }
    }

    /// The pages in a leaf, without its holes.
    pub(crate) fn pages_in(&self, leaf: LeafRef) -> impl Iterator<Item = (PageNo, &PageMapEntry)> {
        let entries: &[PageMapEntry] = match self.nodes.node(leaf.id).ok().map(|node| &node.body) {
            Some(NodeBody::Pages(leaf)) => leaf.pages(),
            _ => &[],
        };
        let first = leaf.index * LEAF_PAGES;
        let numbered = entries.iter().enumerate();
        numbered
            .filter(|(_, entry)| !entry.is_hole())
            .map(move |(index, entry)| (PageNo(first + index as u64), entry))
    }

    /// Whether every node that [`apply_entry`](PageMap::apply_entry) needs for this log entry is in memory.
    pub(crate) fn prepare(&self, log_entry: &LogEntry) -> Result<(), MissingNodes> {
        log_entry.changed_volumes().try_for_each(|volume| self.volumes.prepare(&self.nodes, volume))?;
        match log_entry {
            LogEntry::Write { object, page, .. } | LogEntry::Deltas { object, first: page, .. } => {
                match self.slot(object.volume, object.slot)? {
                    Some(entry) if entry.generation < object.generation => self.prepare_drop(entry),
                    Some(ObjectEntry { generation, pages: ObjectPageEntries::Tree(tree), .. })
                        if *generation == object.generation =>
                    {
                        tree.leaf(&self.nodes, page.0 / LEAF_PAGES).map(drop)
                    }
                    _ => Ok(()),
                }
            }
            LogEntry::Punch { object, pages, .. } => match self.object(*object)? {
                Some(ObjectEntry { pages: ObjectPageEntries::Tree(tree), .. }) => {
                    tree.leaves(&self.nodes, leaf_range(pages)).map(drop)
                }
                _ => Ok(()),
            },
            LogEntry::Delete { object, .. } => self.object(*object)?.map_or(Ok(()), |e| self.prepare_drop(e)),
            LogEntry::Transfer { transfer, .. } => self.prepare_transfer(transfer),
            LogEntry::CreateVolume { .. }
            | LogEntry::CloneVolume { .. }
            | LogEntry::NameVolume { .. }
            | LogEntry::DeleteVolume { .. } => Ok(()),
        }
    }

    /// Whether the nodes that [`drop_pages`](PageMap::drop_pages) looks into are in memory.
    pub(super) fn prepare_drop(&self, entry: &ObjectEntry) -> Result<(), MissingNodes> {
        match &entry.pages {
            ObjectPageEntries::Tree(tree) if tree.height == 0 => self.nodes.node(tree.root).map(drop),
            _ => Ok(()),
        }
    }

    fn prepare_all(&self, entry: &ObjectEntry) -> Result<(), MissingNodes> {
        match &entry.pages {
            ObjectPageEntries::Tree(tree) => tree.leaves(&self.nodes, 0..u64::MAX).map(drop),
            ObjectPageEntries::Inline(_) => Ok(()),
        }
    }

    /// Whether all nodes below the pages of a transfer are in memory. A later entry of the same vector may
    /// need them.
    pub(crate) fn prepare_below(&self, log_entry: &LogEntry) -> Result<(), MissingNodes> {
        let Some(transfer) = log_entry.transfer() else { return Ok(()) };
        for object in [transfer.from, transfer.to] {
            self.object(object)?.map_or(Ok(()), |entry| self.prepare_all(entry))?;
        }
        Ok(())
    }

    /// Applies a log entry. The nodes that it needs must be in memory.
    pub(crate) fn apply_entry(&mut self, log_entry: &LogEntry) {
        self.newest.any = self.newest.any.max(log_entry.lsn());
        match log_entry {
            LogEntry::Write { object, page, page_lsn, place, crc, .. } => {
                let entry = PageMapEntry { place: *place, page_lsn: *page_lsn, crc: *crc, shared: false };
                self.write(*object, *page, entry);
            }
            LogEntry::Deltas { object, first, pages, page_lsn, place, crc } => {
                let block = BlockEntry { place: *place, crc: *crc, shared: false };
                self.write_deltas(*object, *first, DeltaEntry { block, pages: *pages }, *page_lsn);
            }
            LogEntry::Punch { object, pages, lsn } => self.punch(*object, pages, *lsn),
            LogEntry::Delete { object, lsn } => self.delete(*object, *lsn),
            LogEntry::Transfer { transfer, lsn } => self.transfer(transfer, *lsn),
            LogEntry::CreateVolume { volume, mode, created, size, .. } => {
                let name = String::new();
                let objects = NodeTree::default();
                let new =
                    VolumeEntry { objects, mode: *mode, name, created: *created, from: *volume, size: *size };
                self.volumes.create(&mut self.nodes, *volume, new);
            }
            LogEntry::CloneVolume { from, to, mode, created, .. } => {
                let new = VolumeEntry { mode: *mode, created: *created, ..VolumeEntry::default() };
                self.volumes.clone_volume(&mut self.nodes, *from, *to, new);
                let unapplied = self.unapplied.range((*from, 0)..=(*from, u64::MAX));
                let same: Vec<_> = unapplied.map(|(&(_, slot), &node)| ((*to, slot), node)).collect();
                self.unapplied.extend(same);
            }
            LogEntry::NameVolume { volume, part, begins } => {
                self.volumes.add_to_name(&mut self.nodes, *volume, part, *begins)
            }
            LogEntry::DeleteVolume { volume, .. } => self.volumes.delete(&mut self.nodes, *volume),
        }
    }

    fn write(&mut self, object: ObjectId, page: PageNo, new: PageMapEntry) {
        self.change_pages(object, |map, pages| {
            map.nodes.segments.inc_live(new.place);
            map.put_page(pages, page, new);
        });
    }

    /// Changes pages of an object. A newer generation replaces the object in the slot, an older one changes
    /// nothing.
    fn change_pages(&mut self, object: ObjectId, change: impl FnOnce(&mut PageMap, &mut ObjectPageEntries)) {
        self.unshare(object.volume, object.slot);
        let old = self.object_in_memory(object.volume, object.slot);
        let (mut pages, transfer_lsn) = match &old {
            Some(entry) if entry.generation > object.generation => return,
            Some(entry) if entry.generation < object.generation => {
                self.drop_pages(&entry.pages);
                (ObjectPageEntries::Inline(Vec::new()), Lsn(0))
            }
            Some(entry) => (entry.pages.clone(), entry.transfer_lsn),
            None => (ObjectPageEntries::Inline(Vec::new()), Lsn(0)),
        };
        change(self, &mut pages);
        let new = ObjectEntry { generation: object.generation, transfer_lsn, pages };
        self.put_object(object.volume, object.slot, old, Some(new));
    }

    /// Adds a delta block to a leaf. An object with deltas has a tree, however few its pages are.
    fn write_deltas(&mut self, object: ObjectId, first: PageNo, new: DeltaEntry, page_lsn: Lsn) {
        self.change_pages(object, |map, pages| {
            map.nodes.segments.inc_live(new.block.place);
            let mut tree = match &*pages {
                ObjectPageEntries::Tree(tree) => *tree,
                ObjectPageEntries::Inline(inline) => NodeTree::of(&mut map.nodes, inline),
            };
            let leaf = tree.leaf_for_change(&mut map.nodes, first.0 / LEAF_PAGES, NodeBody::pages);
            let NodeBody::Pages(leaf) = &mut map.nodes.node_mut(leaf).body else {
                unreachable!("a leaf of pages")
            };
            leaf.add_delta(new, page_lsn);
            if is_planted(StoreBug::BaseFreedEarly) {
                let bases: Vec<_> = leaf.bases().filter(|(index, _)| new.covers(*index)).collect();
                bases.iter().for_each(|&(index, _)| {
                    leaf.share(index);
                });
                bases.iter().for_each(|(_, base)| map.nodes.drop_block_reference(base));
            }
            *pages = ObjectPageEntries::Tree(tree);
        });
    }

    /// Sets the entry of a page whose block is counted as live already.
    pub(super) fn put_page(&mut self, pages: &mut ObjectPageEntries, page: PageNo, new: PageMapEntry) {
        match pages {
            ObjectPageEntries::Tree(tree) => {
                let gone = self.set_in_tree(tree, page, new);
                self.nodes.drop_block_references(&gone);
            }
            ObjectPageEntries::Inline(inline) => {
                match inline.binary_search_by_key(&page, |(page, _)| *page) {
                    Ok(at) => {
                        let old = std::mem::replace(&mut inline[at].1, new);
                        old.base().iter().for_each(|base| self.nodes.drop_block_reference(base));
                    }
                    Err(at) => inline.insert(at, (page, new)),
                }
                if !fits_inline(inline) {
                    *pages = ObjectPageEntries::Tree(NodeTree::of(&mut self.nodes, inline));
                }
            }
        }
    }

    /// Sets a page's entry in a tree. Returns the blocks that were dropped.
    fn set_in_tree(&mut self, tree: &mut NodeTree, page: PageNo, new: PageMapEntry) -> DroppedBlocks {
        let leaf = tree.leaf_for_change(&mut self.nodes, page.0 / LEAF_PAGES, NodeBody::pages);
        let NodeBody::Pages(leaf) = &mut self.nodes.node_mut(leaf).body else {
            unreachable!("a leaf of pages")
        };
        leaf.set((page.0 % LEAF_PAGES) as usize, new)
    }

    fn punch(&mut self, object: ObjectId, range: &Range<PageNo>, lsn: Lsn) {
        self.unshare(object.volume, object.slot);
        let Some(old) = self
            .object_in_memory(object.volume, object.slot)
            .filter(|old| old.generation == object.generation)
        else {
            return;
        };
        if lsn < old.transfer_lsn && !self.repeats_ranges() {
            return;
        }
        let is_punched = |page: PageNo, entry: &PageMapEntry| {
            range.contains(&page) && (entry.page_lsn < lsn || self.is_planted(StoreBug::CutIgnoresPageLsn))
        };
        let mut pages = old.pages.clone();
        match &mut pages {
            ObjectPageEntries::Inline(inline) => {
                let (punched, rest): (Vec<_>, Vec<_>) =
                    inline.drain(..).partition(|(page, entry)| is_punched(*page, entry));
                *inline = rest;
                for base in punched.iter().filter_map(|(_, entry)| entry.base()) {
                    self.nodes.drop_block_reference(&base);
                }
            }
            ObjectPageEntries::Tree(tree) => {
                let leaves = tree.leaves(&self.nodes, leaf_range(range)).expect("prepared");
                let all: Vec<(LeafRef, Vec<PageNo>, usize)> = leaves
                    .into_iter()
                    .map(|leaf| {
                        let punched = self.pages_in(leaf).filter(|(page, entry)| is_punched(*page, entry));
                        (leaf, punched.map(|(page, _)| page).collect(), self.pages_in(leaf).count())
                    })
                    .collect();
                for (leaf, punched, held) in all {
                    self.punch_leaf(tree, leaf, &punched, held);
                }
                if !tree.root.is_some() {
                    pages = ObjectPageEntries::Inline(Vec::new());
                }
            }
        }
        let new = ObjectEntry { pages, ..old };
        self.put_object(object.volume, object.slot, Some(old), Some(new));
    }

    /// Makes holes of the pages `punched` in a leaf with `held` pages.
    fn punch_leaf(&mut self, tree: &mut NodeTree, leaf: LeafRef, punched: &[PageNo], held: usize) {
        if punched.len() == held {
            tree.remove_leaf(&mut self.nodes, leaf.index);
            return;
        }
        for page in punched {
            let dropped = self.set_in_tree(tree, *page, PageMapEntry::default());
            self.nodes.drop_block_references(&dropped);
        }
    }

    fn delete(&mut self, object: ObjectId, lsn: Lsn) {
        self.unshare(object.volume, object.slot);
        let Some(old) = self
            .object_in_memory(object.volume, object.slot)
            .filter(|old| old.generation == object.generation)
        else {
            return;
        };
        if lsn < old.transfer_lsn && !self.repeats_ranges() {
            return;
        }
        self.drop_pages(&old.pages);
        self.put_object(object.volume, object.slot, Some(old), None);
    }

    /// A transfer brought inline pages into an object: scans under way visit the leaf of the object's entry
    /// again.
    pub(super) fn revisit_object(&mut self, object: ObjectId) {
        let objects = self.volumes.get(object.volume).map_or(NodeTree::default(), |volume| volume.objects);
        let leaf = objects.leaf(&self.nodes, object.slot / LEAF_OBJECTS).expect("prepared");
        leaf.into_iter().for_each(|leaf| self.nodes.revisit(leaf.id));
    }

    /// Planted bug: a clone or move that an object has had is applied once more.
    pub(super) fn repeats_ranges(&self) -> bool {
        self.is_planted(StoreBug::RangeRepeated)
    }

    /// Drops all pages of an object. A tree of one leaf, as small files have, is released at once. A larger
    /// one goes to the dying list and is freed in steps.
    pub(super) fn drop_pages(&mut self, pages: &ObjectPageEntries) {
        match pages {
            ObjectPageEntries::Inline(inline) => {
                inline
                    .iter()
                    .filter_map(|(_, entry)| entry.base())
                    .for_each(|base| self.nodes.drop_block_reference(&base));
            }
            ObjectPageEntries::Tree(tree) if tree.height == 0 => self.nodes.release(tree.root),
            ObjectPageEntries::Tree(tree) => {
                self.add_dying(tree.root);
                if is_planted(StoreBug::DyingTwice) && self.nodes.table.references(tree.root) > 1 {
                    self.add_dying(tree.root);
                }
            }
        }
    }

    /// Copies the leaf that holds a slot, and the nodes above it, if they are shared. The copy has references
    /// of its own to the trees of its objects. While the leaf is shared there is one reference for all, which
    /// a change must not drop.
    pub(super) fn unshare(&mut self, volume: VolumeId, slot: u64) {
        self.volumes.unshare(&mut self.nodes, volume);
        let Some(mut tree) = self.volumes.get(volume).map(|volume| volume.objects) else { return };
        let index = slot / LEAF_OBJECTS;
        if !tree.is_shared(&self.nodes, index).expect("prepared") {
            return;
        }
        tree.leaf_for_change(&mut self.nodes, index, NodeBody::objects);
        self.volumes.set_objects(&mut self.nodes, volume, tree);
    }

    /// A copy of the entry in a slot, whose leaf is in memory.
    pub(super) fn object_in_memory(&self, volume: VolumeId, slot: u64) -> Option<ObjectEntry> {
        self.slot(volume, slot).expect("prepared").cloned()
    }

    /// Moves inline pages to a tree if they need more extents than an entry has, after a punch or because
    /// some are shared.
    fn with_pages_that_fit(&mut self, mut entry: ObjectEntry) -> ObjectEntry {
        if let ObjectPageEntries::Inline(inline) = &entry.pages
            && !fits_inline(inline)
        {
            entry.pages = ObjectPageEntries::Tree(NodeTree::of(&mut self.nodes, inline));
        }
        entry
    }

    /// Replaces the entry in a slot.
    pub(super) fn put_object(
        &mut self,
        volume: VolumeId,
        slot: u64,
        old: Option<ObjectEntry>,
        new: Option<ObjectEntry>,
    ) {
        if old == new {
            return;
        }
        let new = new.map(|new| self.with_pages_that_fit(new));
        let index = slot / LEAF_OBJECTS;
        let Some(mut tree) = self.volumes.get(volume).map(|volume| volume.objects) else { return };
        let leaf = tree.leaf_for_change(&mut self.nodes, index, NodeBody::objects);
        let body = &mut self.nodes.node_mut(leaf).body;
        let NodeBody::Objects(entries) = body else { unreachable!("a leaf of objects") };
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
    ) -> Result<ListedPages, MissingNodes> {
        let nothing = ListedPages { pages: Vec::new(), until: range.end };
        if range.is_empty() {
            return Ok(nothing);
        }
        match self.object(object)?.map(|entry| &entry.pages) {
            None => Ok(nothing),
            Some(ObjectPageEntries::Inline(pages)) => {
                let within = pages.iter().filter(|(page, _)| range.contains(page));
                Ok(ListedPages {
                    pages: within.map(|(page, entry)| (*page, entry.page_lsn)).collect(),
                    ..nothing
                })
            }
            Some(ObjectPageEntries::Tree(tree)) => self.list_tree(*tree, range, leaves_max),
        }
    }

    fn list_tree(
        &self,
        tree: NodeTree,
        range: Range<PageNo>,
        leaves_max: usize,
    ) -> Result<ListedPages, MissingNodes> {
        let wanted = range.start.0 / LEAF_PAGES..range.end.0.div_ceil(LEAF_PAGES);
        let leaves = self.first_leaves(tree, wanted, leaves_max)?;
        let until = match leaves.last() {
            Some(last) if leaves.len() >= leaves_max => PageNo((last.index + 1) * LEAF_PAGES).min(range.end),
            _ => range.end,
        };
        let all = leaves.iter().flat_map(|&leaf| self.pages_in(leaf));
        let within = all.filter(|(page, _)| range.contains(page));
        Ok(ListedPages { pages: within.map(|(page, entry)| (page, entry.page_lsn)).collect(), until })
    }

    /// The first leaves of a tree whose indexes are in `wanted`, at most `leaves_max`.
    pub(super) fn first_leaves(
        &self,
        tree: NodeTree,
        wanted: Range<u64>,
        leaves_max: usize,
    ) -> Result<Vec<LeafRef>, MissingNodes> {
        let mut found = LeafSearch { leaves: Vec::new(), leaves_max, missing: Vec::new() };
        if tree.root.is_some() {
            self.find_leaves(LeafRef { index: 0, id: tree.root }, tree.height, &wanted, &mut found);
        }
        if !found.missing.is_empty() {
            return Err(MissingNodes(found.missing));
        }
        // A tree of one leaf returns it wherever the search begins.
        found.leaves.retain(|leaf| wanted.contains(&leaf.index));
        Ok(found.leaves)
    }

    /// Collects leaves in order, until there are enough.
    fn find_leaves(&self, at: LeafRef, height: u8, wanted: &Range<u64>, found: &mut LeafSearch) {
        let node = match self.nodes.node(at.id) {
            Ok(node) => node,
            Err(MissingNodes(ids)) => return found.missing.extend(ids),
        };
        if height == 0 {
            return found.leaves.push(at);
        }
        let NodeBody::Inner(children) = &node.body else { return };
        for (slot, &id) in children.iter().enumerate().filter(|(_, id)| id.is_some()) {
            let Some(below) = leaves_below_child(at.index, slot as u64, height) else { break };
            if below.start >= wanted.end || found.is_full() {
                break;
            }
            if below.end > wanted.start {
                self.find_leaves(LeafRef { index: below.start, id }, height - 1, wanted, found);
            }
        }
    }

    /// Drops the dying list's references to some of the `most` nodes at its end, those that are in memory or
    /// shared. Returns how many.
    ///
    /// When the last reference to a node is dropped, the node is removed and its children join the list. The
    /// list, which each checkpoint writes, grows by no more than twice the children of a node, so that it
    /// stays short.
    pub(crate) fn free_dying(&mut self, most: usize) -> u64 {
        let mut first = self.volumes.take_dying(most);
        let mut freed = 0;
        let mut stays = Vec::new();
        let below = self.volumes.dying().len();
        while self.volumes.dying().len() <= below + INNER_CHILDREN as usize
            && let Some(id) = first.pop()
        {
            if self.nodes.table.references(id) == 1 && !self.nodes.is_cached(id) {
                stays.push(id);
            } else {
                self.free_dying_node(id);
                freed += 1;
            }
        }
        self.volumes.put_back_dying(below, first, stays);
        freed
    }

    pub(super) fn free_dying_node(&mut self, id: NodeId) {
        if self.nodes.table.references(id) > 1 {
            self.nodes.table.drop_reference(id);
            if self.is_planted(StoreBug::FreedOnceTooOften) && self.nodes.table.references(id) > 1 {
                self.nodes.table.drop_reference(id);
            }
            return;
        }
        match self.nodes.remove_node(id) {
            NodeBody::Inner(children) => {
                children.iter().filter(|child| child.is_some()).for_each(|&child| self.add_dying(child));
            }
            NodeBody::Pages(leaf) => {
                leaf.blocks().for_each(|(_, block)| self.nodes.drop_block_reference(&block))
            }
            NodeBody::Volumes(volumes) => {
                let roots = volumes.iter().flatten().map(|volume| volume.objects.root);
                roots.filter(|root| root.is_some()).for_each(|root| self.add_dying(root));
            }
            NodeBody::Objects(objects) => {
                for object in objects.iter().flatten() {
                    match &object.pages {
                        ObjectPageEntries::Inline(pages) => {
                            let bases = pages.iter().filter_map(|(_, entry)| entry.base());
                            bases.for_each(|base| self.nodes.drop_block_reference(&base));
                        }
                        ObjectPageEntries::Tree(tree) => self.add_dying(tree.root),
                    }
                }
            }
        }
    }

    /// The dying list takes over a reference from a node that is removed. A scan may have expected to find
    /// the reference there.
    pub(super) fn add_dying(&mut self, id: NodeId) {
        if self.is_planted(StoreBug::LeakedNode) && id.0.is_multiple_of(3) {
            return;
        }
        self.volumes.push_dying(id);
        self.nodes.shade(id);
    }
}

/// The leaves that hold these pages.
fn leaf_range(pages: &Range<PageNo>) -> Range<u64> {
    pages.start.0 / LEAF_PAGES..pages.end.0.div_ceil(LEAF_PAGES)
}
