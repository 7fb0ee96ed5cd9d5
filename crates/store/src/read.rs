//! Reading pages and nodes. No lock is held while the device works.

use crate::coalesce::{GAP_BLOCKS_MAX, gap_blocks_max_at_start};
use crate::counters::count;
use crate::error::StoreError;
use crate::format::sum;
use crate::map::{Body, Missing, NodeEntry, NodeId, PageEntry, Peeked, Purpose, decode_node};
use crate::store::Store;
use crate::volume::VolumeId;
use device::{Block, Lsn, ObjectId, Page, PageNo, Read};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// What the store holds for a page.
#[derive(Debug)]
pub enum Found {
    /// Nothing: the page is zeros.
    Hole,
    /// Its bytes, and the highest LSN they contain.
    Page {
        /// The bytes, verified.
        bytes: Box<Page>,
        /// Their page LSN.
        page_lsn: Lsn,
    },
}

/// One page wanted from [`Store::read`].
#[derive(Debug)]
pub struct Want {
    /// The object.
    pub object: ObjectId,
    /// The page.
    pub page: PageNo,
    /// The answer, once `read` has returned.
    pub found: Result<Found, StoreError>,
}

impl Want {
    /// A wish for a page of an object.
    pub fn new(object: ObjectId, page: PageNo) -> Want {
        Want { object, page, found: Ok(Found::Hole) }
    }
}

/// Blocks in one read of the device: 4 MiB, which only readers of much ask for.
const RUN_BLOCKS_MAX: u64 = 1024;

/// A want whose page is known, and its segment pinned.
pub(crate) struct Placed {
    pub(crate) want: usize,
    pub(crate) entry: PageEntry,
}

impl Store {
    /// Reads many pages with many reads in flight; each gets its own answer. Bytes that are not what was written
    /// are never returned: the answer is [`StoreError::Corrupt`] with the object, the page and the place.
    ///
    /// Waits for reads of its own only, never for a write, a flush or a checkpoint.
    pub fn read(&self, wants: &mut [Want]) {
        self.read_from(VolumeId::MAIN, wants);
    }

    /// As [`read`](Store::read), from any volume; what a volume does not have, or one that does not exist, is holes.
    pub fn read_from(&self, volume: VolumeId, wants: &mut [Want]) {
        let mut placed = self.lookup(volume, wants);
        placed.sort_by_key(|placed| placed.entry.place);
        count(&self.counting.page_reads, placed.len() as u64);
        let mut runs: Vec<Read> = Vec::new();
        for one in &placed {
            let place = one.entry.place;
            match runs.last_mut() {
                Some(run) if run.at.0 + run.pages.len() as u64 > place.0 => {}
                Some(run)
                    if run.at.plus(run.pages.len() as u64) == place
                        && (run.pages.len() as u64) < RUN_BLOCKS_MAX =>
                {
                    run.pages.push(Page::ZERO);
                }
                _ => runs.push(Read::new(place, 1)),
            }
        }
        count(&self.counting.device_reads, runs.len() as u64);
        self.device.read_batch(&mut runs);
        for one in &placed {
            let place = one.entry.place;
            let run = runs.partition_point(|run| run.at <= place) - 1;
            let want = &mut wants[one.want];
            want.found = self.answer(want, &one.entry, &runs[run]);
        }
        let map = self.map();
        placed.iter().for_each(|placed| map.segments.unpin(placed.entry.place));
    }

    fn answer(&self, want: &Want, entry: &PageEntry, run: &Read) -> Result<Found, StoreError> {
        run.result.clone()?;
        let bytes = &run.pages[(entry.place.0 - run.at.0) as usize];
        self.intact(want.object, want.page, entry, bytes)?;
        let mut copy = Page::zeroed();
        copy.0.copy_from_slice(&bytes.0);
        Ok(Found::Page { bytes: copy, page_lsn: entry.page_lsn })
    }

    /// An error unless the bytes are those that were written.
    pub(crate) fn intact(
        &self,
        object: ObjectId,
        page: PageNo,
        entry: &PageEntry,
        bytes: &Page,
    ) -> Result<(), StoreError> {
        let found = crc32c::crc32c(&bytes.0);
        if found != entry.crc {
            let what = format!("page {page} of object {object}");
            return Err(self.corrupt(entry.place, what, entry.crc, found));
        }
        Ok(())
    }

    /// Finds and pins the places of all wants that are no holes, and answers the others.
    pub(crate) fn lookup(&self, volume: VolumeId, wants: &mut [Want]) -> Vec<Placed> {
        let (mut placed, mut failed) = (Vec::new(), BTreeMap::new());
        let mut open: Vec<usize> = (0..wants.len()).collect();
        while !open.is_empty() {
            let mut missing = Vec::new();
            let map = self.map();
            open.retain(|&index| {
                let want = &mut wants[index];
                match map.lookup(volume, want.object, want.page) {
                    Ok(None) => want.found = Ok(Found::Hole),
                    Ok(Some(entry)) => {
                        map.segments.pin(entry.place);
                        placed.push(Placed { want: index, entry });
                    }
                    Err(Missing(ids)) => match ids.iter().find_map(|id| failed.get(id)) {
                        Some(error) => want.found = Err(StoreError::clone(error)),
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
                failed.extend(self.load(missing));
            }
        }
        placed
    }

    /// The page LSN of a page; `None` for a hole. May read map nodes.
    pub fn page_lsn(&self, object: ObjectId, page: PageNo) -> Result<Option<Lsn>, StoreError> {
        self.page_lsn_in(VolumeId::MAIN, object, page)
    }

    /// As [`page_lsn`](Store::page_lsn), in any volume.
    pub fn page_lsn_in(
        &self,
        volume: VolumeId,
        object: ObjectId,
        page: PageNo,
    ) -> Result<Option<Lsn>, StoreError> {
        let entry = self.resolve(|map| map.lookup(volume, object, page))?;
        Ok(entry.map(|entry| entry.page_lsn))
    }

    /// The page LSN of each of many pages, with many reads of map nodes in flight.
    pub fn page_lsns_in(
        &self,
        volume: VolumeId,
        pages: &[(ObjectId, PageNo)],
    ) -> Vec<Result<Option<Lsn>, StoreError>> {
        let mut wants: Vec<Want> = pages.iter().map(|&(object, page)| Want::new(object, page)).collect();
        let placed = self.lookup(volume, &mut wants);
        let mut page_lsns: Vec<_> = wants.into_iter().map(|want| want.found.map(|_| None)).collect();
        let map = self.map();
        for Placed { want, entry } in placed {
            map.segments.unpin(entry.place);
            page_lsns[want] = Ok(Some(entry.page_lsn));
        }
        page_lsns
    }

    /// Whether a load of nodes is one of the first, a start's: it goes down one tree after the other, waits for each level, and
    /// no node is in memory.
    fn is_first_load(&self) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        self.first_loads.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    /// Reads nodes into memory, and says which could not be read.
    pub(crate) fn load(&self, mut ids: Vec<NodeId>) -> BTreeMap<NodeId, StoreError> {
        ids.sort();
        ids.dedup();
        let mut failed = BTreeMap::new();
        let mut wanted: Vec<(NodeId, NodeEntry)> = Vec::new();
        let starts = self.is_first_load();
        let also;
        {
            let map = self.map();
            also = if starts { map.neighbours(&ids, gap_blocks_max_at_start(ids.len())) } else { Vec::new() };
            for id in ids.into_iter().chain(also.iter().copied()).filter(|id| !map.nodes.contains_key(id)) {
                match map.table.get(id) {
                    Some(entry) => {
                        map.segments.pin(entry.place);
                        wanted.push((id, *entry));
                    }
                    None => {
                        let what = format!("node {} of the map, which the node table lacks", id.0);
                        failed.insert(id, self.corrupt(Block(0), what, 0, 0));
                    }
                }
            }
        }
        count(&self.counting.node_reads, wanted.len() as u64);
        // Those of one checkpoint lie together.
        wanted.sort_by_key(|(_, entry)| entry.place);
        let places: Vec<Block> = wanted.iter().map(|(_, entry)| entry.place).collect();
        let gap = if starts { gap_blocks_max_at_start(places.len()) } else { GAP_BLOCKS_MAX };
        self.read_coalesced(&places, gap, &mut |index, found| {
            let (id, entry) = wanted[index];
            let found = found.map_err(StoreError::from).and_then(|page| self.node_in(page, id, &entry));
            let mut map = self.map_mut();
            map.segments.unpin(entry.place);
            match found {
                // While it was read, it may have been written elsewhere, or its id used again.
                Ok(body) if map.table.get(id).is_some_and(|now| now.place == entry.place) => {
                    map.loaded(id, body);
                }
                Ok(_) => {}
                // It was not asked for yet.
                Err(_) if also.contains(&id) => {}
                Err(error) => drop(failed.insert(id, error)),
            }
        });
        failed
    }

    /// Reads blocks, consecutive ones together, each with its own result. No place may come twice.
    pub(crate) fn read_blocks(&self, places: &[Block]) -> Vec<Result<Page, StoreError>> {
        let mut runs: Vec<Read> = places
            .chunk_by(|at, next| at.0 + 1 == next.0)
            .flat_map(|run| run.chunks(RUN_BLOCKS_MAX as usize))
            .map(|run| Read::new(run[0], run.len()))
            .collect();
        count(&self.counting.device_reads, runs.len() as u64);
        self.device.read_batch(&mut runs);
        let pages = |run: Read| {
            let result = run.result;
            run.pages.into_iter().map(move |page| result.clone().map(|()| page).map_err(StoreError::from))
        };
        runs.into_iter().flat_map(pages).collect()
    }

    /// Visits some nodes of a walk; returns which, none if there were none to visit. Nodes that are not in memory
    /// are read, and do not come there: a walk of all must not drive out what is used.
    pub(crate) fn visit_some(&self, purpose: Purpose, max: usize) -> Vec<NodeId> {
        let (ids, wanted) = {
            let mut map = self.map_mut();
            let ids = map.take_grey(purpose, max);
            let absent = ids.iter().filter(|id| !map.nodes.contains_key(id));
            let entries = absent.filter_map(|&id| map.table.get(id).map(|entry| (id, *entry)));
            let wanted: Vec<(NodeId, NodeEntry)> = entries.collect();
            wanted.iter().for_each(|(_, entry)| map.segments.pin(entry.place));
            (ids, wanted)
        };
        count(&self.counting.node_reads, wanted.len() as u64);
        let mut reads: Vec<Read> = wanted.iter().map(|(_, entry)| Read::new(entry.place, 1)).collect();
        self.device.read_batch(&mut reads);
        let mut peeked: BTreeMap<NodeId, Peeked> = BTreeMap::new();
        for ((id, entry), read) in wanted.iter().zip(&reads) {
            let page = read.result.is_ok().then(|| &read.pages[0]);
            let body = page.and_then(|page| self.node_in(page, *id, entry).ok());
            peeked.insert(*id, (entry.place, body));
        }
        let mut map = self.map_mut();
        wanted.iter().for_each(|(_, entry)| map.segments.unpin(entry.place));
        for &id in &ids {
            map.visit(purpose, id, peeked.remove(&id));
        }
        count(&self.counting.nodes_visited, ids.len() as u64);
        ids
    }

    /// The node that a page is, if it is that one.
    pub(crate) fn node_in(&self, page: &Page, id: NodeId, entry: &NodeEntry) -> Result<Body, StoreError> {
        let found = sum(&page.0);
        let intact = (found == entry.crc).then(|| decode_node(page, id, self.geometry.id));
        let what = || format!("node {} of the map", id.0);
        intact.flatten().ok_or_else(|| self.corrupt(entry.place, what(), entry.crc, found))
    }

    pub(crate) fn corrupt(&self, place: Block, what: String, expected: u32, found: u32) -> StoreError {
        StoreError::Corrupt { device: self.device.name().to_owned(), place, what, expected, found }
    }
}
