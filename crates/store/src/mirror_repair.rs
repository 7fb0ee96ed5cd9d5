//! Repair of mirrored metadata (map nodes, tables, pages of arenas): damaged and unreadable blocks are read
//! from their copies, and written again.
//!
//! Repair overwrites the damaged block in place with the intact bytes. Nothing else is written there
//! meanwhile: blocks never change while their segment is in use, and the segment is pinned or the writer's
//! lock held. The copy lies in another segment and is not touched. Repair waits for no flush: if a power cut
//! loses it, the next reader repairs again. Before an incarnation has begun nothing is written, so repairs
//! wait until then.

use crate::bug::{StoreBug, is_planted};
use crate::checkpoint_root::TablesStream;
use crate::checkpoint_tables::verify_table_page;
use crate::counters::count;
use crate::error::StoreError;
use crate::log_entry::MirroredBlock;
use crate::map::{BlockEntry, NodeBody, NodeEntry, NodeId, PageMap, TablePage};
use crate::shared::StoreShared;
use crate::sync::Mutex;
use crate::tables_stream;
use device::{Block, BlockRead, Page};
use std::collections::{BTreeMap, BTreeSet};

/// Blocks whose copies are compared at once: 8 MiB.
const PAIRS_AT_ONCE: usize = 1024;

/// Repairs that wait until an incarnation begins; `None` once one has.
pub(crate) struct MetadataRepairs(Mutex<Option<PendingRepairs>>);

#[derive(Default)]
struct PendingRepairs {
    /// Nodes of which one copy is damaged.
    nodes: BTreeSet<NodeId>,
    /// Pages of which one copy is damaged, by their places.
    pages: BTreeMap<Block, MirroredBlock>,
    /// Damaged blocks that the checkpoint writes elsewhere with which the incarnation begins.
    others: u64,
}

/// A node to read from the medium, and both of its places. Its segment is pinned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeRead {
    pub(crate) id: NodeId,
    pub(crate) entry: NodeEntry,
    mirror: Option<Block>,
}

/// The place of a block of metadata, and that of its copy.
pub(crate) type PlaceAndMirror = (Block, Option<Block>);

/// The result of comparing two copies.
#[derive(Debug)]
pub(crate) enum MirrorComparison {
    Whole,
    /// One copy is damaged or could not be read. It was repaired, or will be later.
    Damaged {
        place: Block,
        error: StoreError,
        repaired: bool,
    },
    /// Both copies are damaged; the error is that of the first.
    BothDamaged {
        place: Block,
        error: StoreError,
    },
}

impl MetadataRepairs {
    /// Begins before an incarnation does, with `others` damaged blocks that its first checkpoint writes
    /// elsewhere.
    pub(crate) fn new(others: u64) -> MetadataRepairs {
        MetadataRepairs(Mutex::new(Some(PendingRepairs { others, ..PendingRepairs::default() })))
    }

    /// Whether a block may be repaired now. If not, `remember` notes it for later.
    fn may_write(&self, remember: impl FnOnce(&mut PendingRepairs)) -> bool {
        match &mut *self.0.lock().expect("no panic while remembering") {
            None => true,
            Some(waiting) => {
                remember(waiting);
                false
            }
        }
    }
}

impl NodeRead {
    pub(crate) fn of(map: &PageMap, id: NodeId, entry: NodeEntry) -> NodeRead {
        NodeRead { id, entry, mirror: map.nodes.segments.mirror_of(entry.place) }
    }

    pub(crate) fn place_and_mirror(&self) -> PlaceAndMirror {
        (self.entry.place, self.mirror)
    }
}

impl PageMap {
    /// Both places of a page that is mirrored.
    pub(crate) fn mirrored_page(&self, entry: &BlockEntry) -> Option<MirroredBlock> {
        let copy = self.nodes.segments.mirror_of(entry.place)?;
        Some(MirroredBlock { at: entry.place, copy, crc: entry.crc })
    }
}

impl StoreShared {
    /// Reads the copies of damaged nodes, and repairs these. Returns the first error of a node where the copy
    /// is damaged, too. With `repairs` false nothing is written.
    pub(crate) fn read_node_mirrors(
        &self,
        damaged: Vec<(NodeRead, StoreError)>,
        repairs: bool,
    ) -> Vec<(NodeRead, Result<NodeBody, StoreError>)> {
        let copies = damaged.iter().map(|(node, _)| node.mirror.unwrap_or(node.entry.place));
        let mut reads: Vec<BlockRead> = copies.map(|copy| BlockRead::new(copy, 1)).collect();
        self.medium.device().read_batch(&mut reads);
        let mut found = Vec::new();
        for ((node, error), read) in damaged.into_iter().zip(reads) {
            let page = &read.pages[0];
            let body = match &read.result {
                Ok(()) => self.verify_node(page, node.id, &node.entry).map_err(|_| error),
                Err(_) => Err(error),
            };
            if body.is_ok() && repairs && self.repairs.may_write(|waiting| waiting.nodes.extend([node.id])) {
                self.repair_block(node.entry.place, read.at, page);
            }
            found.push((node, body));
        }
        found
    }

    /// Reads the copies of damaged pages, repairs these, and passes each to `take` with its index in the
    /// list; or its error, where the copy is damaged, too. Their segments are pinned.
    pub(crate) fn read_page_mirrors(
        &self,
        damaged: &[(MirroredBlock, StoreError)],
        take: &mut dyn FnMut(usize, Result<&Page, StoreError>),
    ) {
        for (group, damaged) in damaged.chunks(PAIRS_AT_ONCE).enumerate() {
            // A block that could not be read with others may be readable by itself.
            let places = damaged.iter().flat_map(|(one, _)| [one.at, one.copy]);
            let mut reads: Vec<BlockRead> = places.map(|at| BlockRead::new(at, 1)).collect();
            self.medium.device().read_batch(&mut reads);
            for (index, ((one, error), both)) in damaged.iter().zip(reads.chunks(2)).enumerate() {
                let whole = both.iter().find(|read| read.result.is_ok() && one.is(&read.pages[0]));
                let page = whole.map(|read| &read.pages[0]);
                if let Some(page) = page.filter(|_| whole.is_some_and(|read| read.at != one.at))
                    && self.repairs.may_write(|waiting| waiting.pages.extend([(one.at, *one)]))
                {
                    self.repair_block(one.at, one.copy, page);
                }
                let alone = both[0].result.clone().err().map_or_else(|| error.clone(), StoreError::from);
                take(group * PAIRS_AT_ONCE + index, page.ok_or(alone));
            }
        }
    }

    /// As [`compare_mirrors`](StoreShared::compare_mirrors), for mirrored pages.
    pub(crate) fn compare_page_mirrors(&self, pages: &[MirroredBlock]) -> Vec<MirrorComparison> {
        let pairs: Vec<PlaceAndMirror> = pages.iter().map(|one| (one.at, Some(one.copy))).collect();
        self.compare_mirrors(&pairs, &|number, place, page| {
            let expected = pages[number].crc;
            let found = crc32c::crc32c(&page.0);
            let error = || self.medium.corrupt(place, "data".to_owned(), expected, found);
            if found == expected { Ok(()) } else { Err(error()) }
        })
    }

    /// Compares both copies of blocks of metadata, and repairs where one is damaged. The blocks stay where
    /// they are meanwhile. `intact` gets each one's index, place and bytes.
    pub(crate) fn compare_mirrors(
        &self,
        pairs: &[PlaceAndMirror],
        intact: &dyn Fn(usize, Block, &Page) -> Result<(), StoreError>,
    ) -> Vec<MirrorComparison> {
        let mut compared = Vec::new();
        for pairs in pairs.chunks(PAIRS_AT_ONCE) {
            let places = pairs.iter().flat_map(|&(at, copy)| [at, copy.unwrap_or(at)]);
            let mut reads: Vec<BlockRead> = places.map(|at| BlockRead::new(at, 1)).collect();
            self.medium.device().read_batch(&mut reads);
            for both in reads.chunks(2) {
                let number = compared.len();
                let state = |read: &BlockRead| {
                    read.result.clone()?;
                    intact(number, read.at, &read.pages[0])
                };
                let first = &both[0];
                let second = &both[1];
                let damaged = |bad: &BlockRead, good: &BlockRead, error| {
                    let repaired =
                        self.repairs.may_write(|_| {}) && self.repair_block(bad.at, good.at, &good.pages[0]);
                    MirrorComparison::Damaged { place: bad.at, error, repaired }
                };
                compared.push(match (state(first), state(second)) {
                    (Ok(()), Ok(())) => MirrorComparison::Whole,
                    (Err(error), Ok(())) => damaged(first, second, error),
                    (Ok(()), Err(error)) => damaged(second, first, error),
                    (Err(error), Err(_)) => MirrorComparison::BothDamaged { place: first.at, error },
                });
            }
        }
        compared
    }

    /// As [`compare_mirrors`](StoreShared::compare_mirrors), for nodes.
    pub(crate) fn compare_node_mirrors(&self, nodes: &[NodeRead]) -> Vec<MirrorComparison> {
        let pairs: Vec<PlaceAndMirror> = nodes.iter().map(NodeRead::place_and_mirror).collect();
        self.compare_mirrors(&pairs, &|number, place, page| {
            let NodeRead { id, entry, .. } = nodes[number];
            self.verify_node(page, id, &NodeEntry { place, ..entry }).map(drop)
        })
    }

    /// As [`compare_mirrors`](StoreShared::compare_mirrors), for the newest tables' `stream` and the pages of
    /// the node table. The caller holds the writer's lock.
    pub(crate) fn compare_table_mirrors(&self, stream: &TablesStream) -> Vec<MirrorComparison> {
        let pairs: Vec<PlaceAndMirror> =
            tables_stream::stream_places(&stream.extents).map(|(at, copy)| (at, Some(copy))).collect();
        let device = self.medium.device();
        let mut compared = self.compare_mirrors(&pairs, &|number, place, page| {
            tables_stream::verify_stream_block(device, place, page, stream.crc, number as u64)
        });
        let pages: Vec<(usize, TablePage, PlaceAndMirror)> = {
            let map = self.map();
            let pages = map.nodes.table.pages().iter().copied().enumerate();
            let written = pages.filter(|(_, page)| page.place != Block(0));
            let pair = |page: &TablePage| (page.place, map.nodes.segments.mirror_of(page.place));
            written.map(|(number, page)| (number, page, pair(&page))).collect()
        };
        let pairs: Vec<PlaceAndMirror> = pages.iter().map(|(.., pair)| *pair).collect();
        compared.extend(self.compare_mirrors(&pairs, &|index, place, page| {
            let (number, entry, _) = pages[index];
            verify_table_page(device, self.medium.geometry(), number, TablePage { place, ..entry }, page)
                .map(drop)
        }));
        compared
    }

    /// Writes `page`, which was read at `good`, over the damaged block at `bad`. Returns whether that worked.
    fn repair_block(&self, bad: Block, good: Block, page: &Page) -> bool {
        if is_planted(StoreBug::RepairFromWrongCopy) {
            let mut damaged = Page::zeroed();
            let _ = self.medium.device().read(bad, std::slice::from_mut(&mut *damaged));
            return self.medium.write(good, std::slice::from_ref(&damaged)).is_ok();
        }
        // If it fails, the next reader tries again.
        let written = self.medium.write(bad, std::slice::from_ref(page)).is_ok();
        count(&self.medium.counting().metadata_repaired, u64::from(written));
        written
    }

    /// Writes the superblock's copy again, durably. Returns whether that worked.
    pub(crate) fn repair_superblock_copy(&self) -> bool {
        let geometry = self.medium.geometry();
        let since = self.medium.failed_flushes();
        self.repairs.may_write(|_| {})
            && self.medium.write(geometry.copy_at(), &[*geometry.encode()]).is_ok()
            && self.medium.flush_since(since).is_ok()
    }

    /// Begins repairs, as an incarnation has begun. Known damage is repaired now, and later damage when it is
    /// found. The caller holds the writer's lock.
    pub(crate) fn begin_repairs(&self) {
        let Some(waiting) = self.repairs.0.lock().expect("no panic while remembering").take() else { return };
        let nodes: Vec<NodeRead> = {
            let map = self.map();
            let read = |&id: &NodeId| map.nodes.table.get(id).map(|&entry| NodeRead::of(&map, id, entry));
            waiting.nodes.iter().filter_map(read).collect()
        };
        // These pages have not moved.
        self.compare_page_mirrors(&waiting.pages.into_values().collect::<Vec<_>>());
        // Nodes that are whole by now were written to new places.
        let whole = self
            .compare_node_mirrors(&nodes)
            .iter()
            .filter(|one| matches!(one, MirrorComparison::Whole))
            .count();
        count(&self.medium.counting().metadata_repaired, whole as u64 + waiting.others);
    }
}
