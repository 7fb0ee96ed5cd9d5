//! The state that all parts of the store share: the medium, and the map above it, whose nodes are read on
//! demand. No lock is held while the device works.

use crate::bug::{StoreBug, is_planted};
use crate::coalesce::GAP_BLOCKS_MAX;
use crate::counters::count;
use crate::delta_block::overlay_delta;
use crate::error::StoreError;
use crate::format::{LEAF_PAGES, checksum};
use crate::log_entry::{LogEntry, MirroredBlock};
use crate::log_progress::LogProgress;
use crate::map::{
    BlockEntry, MissingNodes, NodeBody, NodeEntry, NodeId, PageLocation, PageMap, PeekedNode, ScanPurpose,
    decode_node,
};
use crate::medium::{RUN_BLOCKS_MAX, StoreMedium};
use crate::mirror_repair::{MetadataRepairs, NodeRead};
use crate::space::StoreSpace;
use crate::sync::{AtomicU64, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard};
use crate::volume::ListedPages;
use device::{Block, BlockRead, Incarnation, Lsn, ObjectId, Page, PageNo};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The bytes that the store holds for a page.
#[derive(Debug)]
pub enum StoredPage {
    /// The page is a hole: zeros.
    Hole,
    /// A page, and the highest LSN whose change it contains.
    Page {
        /// The bytes, verified.
        bytes: Box<Page>,
        /// Their page LSN.
        page_lsn: Lsn,
    },
}

/// One page to read with [`StoreData::read`](crate::StoreData::read).
#[derive(Debug)]
pub struct PageRead {
    /// The object.
    pub object: ObjectId,
    /// The page.
    pub page: PageNo,
    /// The result, once `read` has returned.
    pub result: Result<StoredPage, StoreError>,
}

impl PageRead {
    /// A read of a page of an object.
    pub fn new(object: ObjectId, page: PageNo) -> PageRead {
        PageRead { object, page, result: Ok(StoredPage::Hole) }
    }
}

/// The result of reading a page: its bytes and its page LSN, or `None` for a hole.
pub type PageResult<'a> = Result<Option<(&'a Page, Lsn)>, StoreError>;

/// A page that is located in the map, and whose blocks are pinned.
pub(crate) struct PinnedPage {
    pub(crate) request: usize,
    pub(crate) located: PageLocation,
    /// Both places of its base, if that is mirrored.
    pub(crate) mirrored: Option<MirroredBlock>,
}

impl PinnedPage {
    /// Its blocks: the base, and those of its deltas.
    fn blocks(&self) -> impl Iterator<Item = BlockEntry> + '_ {
        self.located.page.base().into_iter().chain(self.located.deltas.iter().copied())
    }

    /// The first of its blocks, to sort by.
    fn first_block(&self) -> Block {
        self.blocks().next().map_or(Block(0), |block| block.place)
    }
}

/// The medium and the map. Owned by the store. Only a thread that holds the writer's lock changes the map,
/// under the map's write lock.
pub(crate) struct StoreShared {
    pub(crate) medium: StoreMedium,
    map: RwLock<PageMap>,
    pub(crate) progress: LogProgress,
    pub(crate) repairs: MetadataRepairs,
    incarnation: AtomicU64,
}

impl StoreShared {
    /// Begins with the map of a root, whose log begins after batch `durable`.
    pub(crate) fn new(
        medium: StoreMedium,
        map: PageMap,
        incarnation: Incarnation,
        durable: u64,
        repairs: MetadataRepairs,
    ) -> StoreShared {
        let incarnation = AtomicU64::new(incarnation.0);
        StoreShared {
            medium,
            map: RwLock::new(map),
            progress: LogProgress::new(durable),
            repairs,
            incarnation,
        }
    }

    pub(crate) fn map(&self) -> RwLockReadGuard<'_, PageMap> {
        self.map.read().expect("no panic while holding the map")
    }

    pub(crate) fn map_mut(&self) -> RwLockWriteGuard<'_, PageMap> {
        self.map.write().expect("no panic while holding the map")
    }

    /// The incarnation found at opening, or the one begun since.
    pub(crate) fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation.load(Ordering::Acquire))
    }

    pub(crate) fn set_incarnation(&self, incarnation: Incarnation) {
        self.incarnation.store(incarnation.0, Ordering::Release);
    }

    /// Asks the map, and reads the nodes that it misses until it can answer.
    pub(crate) fn resolve<T>(
        &self,
        ask: impl Fn(&PageMap) -> Result<T, MissingNodes>,
    ) -> Result<T, StoreError> {
        loop {
            let answer = ask(&self.map());
            match answer {
                Ok(answer) => return Ok(answer),
                Err(MissingNodes(ids)) => {
                    if let Some((_, error)) = self.load_nodes(ids).pop_first() {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Runs `work` while no node leaves memory: what was loaded for a change must still be there for it.
    pub(crate) fn holding_nodes<T>(&self, work: impl FnOnce() -> T) -> T {
        self.map_mut().nodes.pin_nodes();
        let done = work();
        self.map_mut().nodes.unpin_nodes();
        done
    }

    /// Reads the nodes that the log entries of a vector will change, so that no read can fail once they are
    /// logged.
    pub(crate) fn load_for_vector(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
        self.load_nodes_for(&entries.iter().collect::<Vec<_>>())?;
        match entries {
            [_] => Ok(()),
            several => several.iter().try_for_each(|entry| self.resolve(|map| map.prepare_below(entry))),
        }
    }

    /// Reads the nodes that log entries will change, each taken by itself.
    pub(crate) fn load_nodes_for(&self, entries: &[&LogEntry]) -> Result<(), StoreError> {
        self.resolve(|map| {
            let missing = entries.iter().filter_map(|entry| map.prepare(entry).err());
            let missing: Vec<_> = missing.flat_map(|MissingNodes(ids)| ids).collect();
            if missing.is_empty() { Ok(()) } else { Err(MissingNodes(missing)) }
        })
    }

    /// See [`StoreData::read`](crate::StoreData::read).
    pub(crate) fn read(&self, wants: &mut [PageRead]) {
        self.read_with_gaps(wants, 0);
    }

    /// As [`read`](StoreShared::read), but also reads across gaps of at most `gap` blocks.
    pub(crate) fn read_with_gaps(&self, wants: &mut [PageRead], gap: u64) {
        let placed = self.locate_and_pin(wants);
        let mut places: Vec<Block> =
            placed.iter().flat_map(PinnedPage::blocks).map(|block| block.place).collect();
        places.sort();
        count(&self.medium.counting().page_reads, placed.len() as u64);
        let mut runs: Vec<BlockRead> = Vec::new();
        for &place in &places {
            match runs.last_mut() {
                Some(run)
                    if place.0 <= run.at.0 + run.pages.len() as u64 + gap
                        && place.0 - run.at.0 < RUN_BLOCKS_MAX =>
                {
                    let blocks = (place.0 - run.at.0) as usize + 1;
                    if blocks > run.pages.len() {
                        run.pages.resize(blocks, Page::ZERO);
                    }
                }
                _ => runs.push(BlockRead::new(place, 1)),
            }
        }
        count(&self.medium.counting().device_reads, runs.len() as u64);
        self.medium.device().read_batch(&mut runs);
        let runs = self.reread_failed_runs(runs, &places);
        let mut damaged = Vec::new();
        let mut of = Vec::new();
        for one in &placed {
            let want = &mut wants[one.request];
            want.result = self.assemble_page(want, one, &runs);
            if let (Err(error), Some(pair)) = (&want.result, one.mirrored) {
                damaged.push((pair, error.clone()));
                of.push(one);
            }
        }
        self.read_page_mirrors(&damaged, &mut |number, page| {
            let PinnedPage { request: want, located, .. } = of[number];
            let page_lsn = located.page.page_lsn;
            wants[*want].result =
                page.map(|page| StoredPage::Page { bytes: Box::new(page.clone()), page_lsn });
        });
        self.unpin(&placed);
    }

    /// Reads each block of failed reads of several blocks again by itself, so that each has its own result.
    fn reread_failed_runs(&self, runs: Vec<BlockRead>, places: &[Block]) -> Vec<BlockRead> {
        let is_failed = |run: &BlockRead| run.result.is_err() && run.pages.len() > 1;
        if !runs.iter().any(is_failed) {
            return runs;
        }
        let (failed, mut runs): (Vec<BlockRead>, Vec<BlockRead>) = runs.into_iter().partition(is_failed);
        let within = |run: &BlockRead| run.at..run.at.plus(run.pages.len() as u64);
        let wanted: BTreeSet<Block> = failed
            .iter()
            .flat_map(|run| places.iter().filter(|at| within(run).contains(at)))
            .copied()
            .collect();
        let mut alone: Vec<BlockRead> = wanted.into_iter().map(|at| BlockRead::new(at, 1)).collect();
        count(&self.medium.counting().device_reads, alone.len() as u64);
        self.medium.device().read_batch(&mut alone);
        runs.extend(alone);
        runs.sort_by_key(|run| run.at);
        runs
    }

    fn unpin(&self, placed: &[PinnedPage]) {
        let map = self.map();
        placed.iter().flat_map(PinnedPage::blocks).for_each(|block| map.nodes.segments.unpin(block.place));
    }

    /// Assembles a page from what was read: its base, and its deltas laid over it, oldest first.
    fn assemble_page(
        &self,
        want: &PageRead,
        one: &PinnedPage,
        runs: &[BlockRead],
    ) -> Result<StoredPage, StoreError> {
        let block = |entry: &BlockEntry, of: &str| {
            let run = &runs[runs.partition_point(|run| run.at <= entry.place) - 1];
            run.result.clone()?;
            let bytes = &run.pages[(entry.place.0 - run.at.0) as usize];
            self.verify_page((want.object, want.page), of, entry, bytes)?;
            Ok::<&Page, StoreError>(bytes)
        };
        self.ensure_not_lost((want.object, want.page), &one.located)?;
        let mut bytes = match one.located.page.base() {
            Some(base) => Box::new(block(&base, "")?.clone()),
            None => Page::zeroed(),
        };
        let index = (want.page.0 % LEAF_PAGES) as usize;
        let store = self.medium.geometry().id;
        let mut deltas = one.located.deltas.clone();
        if is_planted(StoreBug::DeltasInWrongOrder) {
            deltas.reverse();
        }
        for delta in &deltas {
            let found = block(delta, "a delta of ")?;
            overlay_delta(found, index, store, &mut bytes).ok_or_else(|| {
                let what = format!("no delta of page {} of object {}", want.page, want.object);
                self.medium.corrupt(delta.place, what, delta.crc, delta.crc)
            })?;
        }
        Ok(StoredPage::Page { bytes, page_lsn: one.located.page.page_lsn })
    }

    fn ensure_not_lost(
        &self,
        (object, page): (ObjectId, PageNo),
        located: &PageLocation,
    ) -> Result<(), StoreError> {
        let device = || self.medium.device().name().to_owned();
        if located.page.is_lost() { Err(StoreError::Lost { device: device(), object, page }) } else { Ok(()) }
    }

    /// Fails unless the bytes are those that were written.
    pub(crate) fn verify_page(
        &self,
        (object, page): (ObjectId, PageNo),
        of: &str,
        entry: &BlockEntry,
        bytes: &Page,
    ) -> Result<(), StoreError> {
        let found = crc32c::crc32c(&bytes.0);
        if found != entry.crc {
            let what = format!("{of}page {page} of object {object}");
            return Err(self.medium.corrupt(entry.place, what, entry.crc, found));
        }
        Ok(())
    }

    /// Changes the map as durable log entries say. Holds the lock throughout, unless a log entry makes a
    /// later one need a node that was not needed before, as a clone may.
    ///
    /// # Errors
    /// Where a node cannot be read: then the map is not that of the log.
    pub(crate) fn apply(&self, entries: &[LogEntry]) -> Result<(), StoreError> {
        let mut map = self.map_mut();
        for entry in entries {
            while let Err(MissingNodes(ids)) = map.prepare(entry) {
                drop(map);
                if let Some((_, error)) = self.load_nodes(ids).pop_first() {
                    return Err(error);
                }
                map = self.map_mut();
            }
            map.apply_entry(entry);
        }
        Ok(())
    }

    /// As [`apply`](StoreShared::apply), for recovery. Where a node cannot be read, skips the entries that
    /// need it; what these change cannot be read either.
    pub(crate) fn apply_readable(&self, entries: &[LogEntry]) {
        let mut map = self.map_mut();
        for entry in entries {
            loop {
                let Err(MissingNodes(ids)) = map.prepare(entry) else {
                    map.apply_entry(entry);
                    break;
                };
                drop(map);
                let failed = self.load_nodes(ids);
                map = self.map_mut();
                if !failed.is_empty() {
                    map.skip_entry(entry, failed);
                    break;
                }
            }
        }
    }

    /// Locates and pins all pages that are no holes; sets the result of the others.
    pub(crate) fn locate_and_pin(&self, wants: &mut [PageRead]) -> Vec<PinnedPage> {
        let mut placed = Vec::new();
        let mut failed = BTreeMap::new();
        let mut open: Vec<usize> = (0..wants.len()).collect();
        while !open.is_empty() {
            let mut missing = Vec::new();
            let map = self.map();
            open.retain(|&index| {
                let want = &mut wants[index];
                match map.lookup(want.object, want.page) {
                    Ok(None) => want.result = Ok(StoredPage::Hole),
                    Ok(Some(located)) => {
                        let pair = located.page.base().and_then(|base| map.mirrored_page(&base));
                        let one = PinnedPage { request: index, located, mirrored: pair };
                        one.blocks().for_each(|block| map.nodes.segments.pin(block.place));
                        placed.push(one);
                    }
                    Err(MissingNodes(ids)) => match ids.iter().find_map(|id| failed.get(id)) {
                        Some(error) => want.result = Err(StoreError::clone(error)),
                        None => {
                            missing.extend(ids);
                            return true;
                        }
                    },
                }
                false
            });
            drop(map);
            if !missing.is_empty() {
                failed.extend(self.load_nodes(missing));
            }
        }
        placed
    }

    /// See [`StoreData::page_lsn`](crate::StoreData::page_lsn).
    pub(crate) fn page_lsn(&self, object: ObjectId, page: PageNo) -> Result<Option<Lsn>, StoreError> {
        let located = self.resolve(|map| map.lookup(object, page))?;
        Ok(located.map(|located| located.page.page_lsn))
    }

    /// See [`StoreData::page_lsns`](crate::StoreData::page_lsns).
    pub(crate) fn page_lsns(&self, pages: &[(ObjectId, PageNo)]) -> Vec<Result<Option<Lsn>, StoreError>> {
        let mut wants: Vec<PageRead> =
            pages.iter().map(|&(object, page)| PageRead::new(object, page)).collect();
        let placed = self.locate_and_pin(&mut wants);
        let mut page_lsns: Vec<_> = wants.into_iter().map(|want| want.result.map(|_| None)).collect();
        self.unpin(&placed);
        for PinnedPage { request: want, located, .. } in placed {
            page_lsns[want] = Ok(Some(located.page.page_lsn));
        }
        page_lsns
    }

    /// Reads nodes into memory, and returns the errors of those that could not be read.
    pub(crate) fn load_nodes(&self, mut ids: Vec<NodeId>) -> BTreeMap<NodeId, StoreError> {
        ids.sort();
        ids.dedup();
        let mut failed = BTreeMap::new();
        let mut damaged = Vec::new();
        let mut wanted: Vec<NodeRead> = Vec::new();
        {
            let map = self.map();
            for id in ids.into_iter().filter(|&id| !map.nodes.is_cached(id)) {
                if let Some(error) = map.nodes.lost.get(&id) {
                    failed.insert(id, error.clone());
                    continue;
                }
                match map.nodes.table.get(id) {
                    Some(entry) => {
                        map.nodes.segments.pin(entry.place);
                        wanted.push(NodeRead::of(&map, id, *entry));
                    }
                    None => {
                        let what = format!("node {} of the map, which the node table lacks", id.0);
                        failed.insert(id, self.medium.corrupt(Block(0), what, 0, 0));
                    }
                }
            }
        }
        count(&self.medium.counting().node_reads, wanted.len() as u64);
        // Nodes of one checkpoint lie together.
        wanted.sort_by_key(|node| node.entry.place);
        let places: Vec<Block> = wanted.iter().map(|node| node.entry.place).collect();
        self.medium.read_coalesced(&places, GAP_BLOCKS_MAX, &mut |index, found| {
            let node = wanted[index];
            let found = found.map_err(StoreError::from);
            match found.and_then(|page| self.verify_node(page, node.id, &node.entry)) {
                Ok(body) => self.finish_node_load(&node, Some(body)),
                Err(error) => damaged.push((node, error)),
            }
        });
        for (node, found) in self.read_node_mirrors(damaged, true) {
            match found {
                Ok(body) => self.finish_node_load(&node, Some(body)),
                Err(error) => {
                    self.finish_node_load(&node, None);
                    failed.insert(node.id, error);
                }
            }
        }
        failed
    }

    /// Ends the read of a node, which may have failed.
    fn finish_node_load(&self, node: &NodeRead, body: Option<NodeBody>) {
        let mut map = self.map_mut();
        map.nodes.segments.unpin(node.entry.place);
        // Meanwhile it may have been written elsewhere, or its id may have been reused.
        if let Some(body) = body
            && map.nodes.table.get(node.id).is_some_and(|now| now.place == node.entry.place)
        {
            map.nodes.add_loaded(node.id, body);
        }
    }

    /// Visits some nodes of a walk, and returns them: none at the end. Reads nodes that are not in memory,
    /// but does not keep them: a walk must not drive out the nodes in use.
    pub(crate) fn visit_nodes(&self, purpose: ScanPurpose, max: usize) -> Vec<NodeId> {
        let (ids, wanted) = {
            let mut map = self.map_mut();
            let ids = map.nodes.take_grey(purpose, max);
            let absent = ids.iter().filter(|&&id| !map.nodes.is_cached(id));
            let read = |&id: &NodeId| map.nodes.table.get(id).map(|&entry| NodeRead::of(&map, id, entry));
            let wanted: Vec<NodeRead> = absent.filter_map(read).collect();
            wanted.iter().for_each(|node| map.nodes.segments.pin(node.entry.place));
            (ids, wanted)
        };
        count(&self.medium.counting().node_reads, wanted.len() as u64);
        let mut reads: Vec<BlockRead> =
            wanted.iter().map(|node| BlockRead::new(node.entry.place, 1)).collect();
        self.medium.device().read_batch(&mut reads);
        let mut peeked: BTreeMap<NodeId, PeekedNode> = BTreeMap::new();
        let mut damaged = Vec::new();
        for (node, read) in wanted.iter().zip(&reads) {
            let page = read.result.clone().map(|()| &read.pages[0]).map_err(StoreError::from);
            match page.and_then(|page| self.verify_node(page, node.id, &node.entry)) {
                Ok(body) => drop(peeked.insert(node.id, (node.entry.place, Some(body)))),
                Err(error) => damaged.push((*node, error)),
            }
        }
        // A scrub compares, repairs and reports them next.
        for (node, found) in self.read_node_mirrors(damaged, purpose == ScanPurpose::Clean) {
            peeked.insert(node.id, (node.entry.place, found.ok()));
        }
        let mut map = self.map_mut();
        wanted.iter().for_each(|node| map.nodes.segments.unpin(node.entry.place));
        for &id in &ids {
            map.nodes.visit(purpose, id, peeked.remove(&id));
        }
        count(&self.medium.counting().nodes_visited, ids.len() as u64);
        ids
    }

    /// Decodes a node, if the page is that node as it was written.
    pub(crate) fn verify_node(
        &self,
        page: &Page,
        id: NodeId,
        entry: &NodeEntry,
    ) -> Result<NodeBody, StoreError> {
        let found = checksum(&page.0);
        let intact = (found == entry.crc).then(|| decode_node(page, id, self.medium.geometry().id));
        let what = || format!("node {} of the map", id.0);
        intact.flatten().ok_or_else(|| self.medium.corrupt(entry.place, what(), entry.crc, found))
    }

    /// See [`StoreData::read_in_device_order`](crate::StoreData::read_in_device_order).
    pub(crate) fn read_in_device_order(
        &self,
        pages: &[(ObjectId, PageNo)],
        take: &mut dyn FnMut(usize, PageResult<'_>),
    ) {
        let mut wants: Vec<PageRead> =
            pages.iter().map(|&(object, page)| PageRead::new(object, page)).collect();
        let (mut placed, laid): (Vec<PinnedPage>, Vec<PinnedPage>) =
            self.locate_and_pin(&mut wants).into_iter().partition(|placed| placed.located.is_base_alone());
        placed.sort_by_key(PinnedPage::first_block);
        count(&self.medium.counting().page_reads, placed.len() as u64);
        let places: Vec<Block> = placed.iter().map(PinnedPage::first_block).collect();
        let mut absent = vec![true; pages.len()];
        let mut damaged = Vec::new();
        let mut of = Vec::new();
        self.medium.read_coalesced(&places, GAP_BLOCKS_MAX, &mut |number, found| {
            let PinnedPage { request: want, ref located, mirrored: pair } = placed[number];
            absent[want] = false;
            let base = located.page.base().expect("it is all that there is");
            let intact = |bytes| {
                let intact = self.verify_page(pages[want], "", &base, bytes);
                intact.map(|()| Some((bytes, located.page.page_lsn)))
            };
            match (found.map_err(StoreError::from).and_then(intact), pair) {
                (Err(error), Some(pair)) => {
                    damaged.push((pair, error));
                    of.push(number);
                }
                (found, _) => take(want, found),
            }
        });
        self.read_page_mirrors(&damaged, &mut |number, page| {
            let PinnedPage { request: want, ref located, .. } = placed[of[number]];
            take(want, page.map(|page| Some((page, located.page.page_lsn))));
        });
        self.unpin(&placed);
        self.unpin(&laid);
        // A page with deltas is assembled from several blocks, some of which pages have in common.
        for some in laid.chunks(RUN_BLOCKS_MAX as usize) {
            let mut of_several: Vec<PageRead> =
                some.iter().map(|one| PageRead::new(pages[one.request].0, pages[one.request].1)).collect();
            self.read(&mut of_several);
            for (one, want) in some.iter().zip(&of_several) {
                absent[one.request] = false;
                take(
                    one.request,
                    match &want.result {
                        Ok(StoredPage::Hole) => Ok(None),
                        Ok(StoredPage::Page { bytes, page_lsn }) => Ok(Some((bytes, *page_lsn))),
                        Err(error) => Err(error.clone()),
                    },
                );
            }
        }
        for (index, want) in wants.into_iter().enumerate().filter(|&(index, _)| absent[index]) {
            take(index, want.result.map(|_| None));
        }
    }

    /// How full the store is.
    pub(crate) fn space(&self) -> StoreSpace {
        let spare = self.medium.device().spare_blocks();
        self.map().space(spare)
    }

    /// See [`StoreData::list`](crate::StoreData::list).
    pub(crate) fn list(
        &self,
        object: ObjectId,
        range: Range<PageNo>,
        leaves_max: usize,
    ) -> Result<ListedPages, StoreError> {
        // All these leaves must be in memory at once, even if that is more than it keeps.
        self.holding_nodes(|| self.resolve(|map| map.list(object, range.clone(), leaves_max.max(1))))
    }
}
