//! A scrub: reads everything that is live, to find damage while a copy elsewhere can still restore it. Works
//! in bounded steps on a store in use; the caller sets the pace.
//!
//! A scrub reads both superblocks and both roots; both copies of the tables' stream, of every page of the
//! node table, of every node and of every page of metadata; and every other live block of data once, however
//! many pages share it. It does not read what is changed meanwhile, as that was written just now.

use crate::check::StoreFinding;
use crate::checkpoint_root::CheckpointRoot;
use crate::error::StoreError;
use crate::format::{ROOTS, SUPERBLOCK};
use crate::log_entry::MirroredBlock;
use crate::map::{BlockEntry, BlockHolder, NodeId, ScanPurpose, ScanTarget};
use crate::map_walk::{WalkItem, walk_map};
use crate::mirror_repair::{MirrorComparison, NodeRead};
use crate::shared::StoreShared;
use crate::superblock::StoreGeometry;
use crate::writer::WriterLock;
use device::Block;
use std::collections::BTreeMap;

/// Nodes that a step visits: four leaves refer to at most 2 MiB of data.
const NODES_PER_STEP: usize = 4;

/// How far a scrub has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ScrubProgress {
    /// Blocks read so far.
    pub blocks: u64,
    /// Blocks that were live when it began: it will read about as many.
    pub blocks_expected: u64,
    /// Blocks that were damaged or could not be read. Before the scrub is [done](ScrubProgress::done), also those of data that a
    /// change may make unused: only the last step reports damaged data.
    pub damaged: u64,
    /// Damaged blocks of metadata that were repaired from their whole copy, including the superblock's copy.
    pub repaired: u64,
    /// Map nodes of which both copies were damaged, but which are in memory: the next checkpoint writes them
    /// elsewhere.
    pub rewritten_from_memory: u64,
    /// It has read everything; the next step begins a new scrub.
    pub done: bool,
}

/// A scrub under way. Lost in a crash, which does no harm.
#[derive(Debug, Default)]
pub(crate) struct StoreScrub {
    so_far: ScrubProgress,
    /// Damaged data, by its place.
    damaged: BTreeMap<Block, StoreError>,
}

impl StoreScrub {
    /// Makes one bounded step of `scrub`. The first step creates the scrub, the last removes it: see
    /// [`StoreMaintenance::scrub_step`](crate::StoreMaintenance::scrub_step).
    pub(crate) fn step(
        scrub: &mut Option<StoreScrub>,
        shared: &StoreShared,
        writer: &WriterLock,
        report: &mut dyn FnMut(StoreFinding),
    ) -> ScrubProgress {
        let Some(current) = scrub else {
            let mut begun = StoreScrub::default();
            begun.so_far.blocks_expected = shared.space().live;
            shared.map_mut().begin_scan(ScanPurpose::StoreScrub, ScanTarget::All);
            begun.scrub_fixed(shared, writer, report);
            let so_far = begun.so_far;
            *scrub = Some(begun);
            return so_far;
        };
        let visited = shared.visit_nodes(ScanPurpose::StoreScrub, NODES_PER_STEP);
        if !visited.is_empty() {
            current.scrub_nodes(&visited, shared, writer, report);
            current.scrub_data(shared, report);
            let damaged = current.so_far.damaged + current.damaged.len() as u64;
            return ScrubProgress { damaged, ..current.so_far };
        }
        let gone = shared
            .map_mut()
            .nodes
            .scan_mut(ScanPurpose::StoreScrub)
            .as_ref()
            .map_or(0, |scan| scan.pages_gone);
        shared.map_mut().nodes.end_scan(ScanPurpose::StoreScrub);
        if gone > 0 || !current.damaged.is_empty() {
            current.report_damaged_data(shared, writer, report);
        }
        let done = ScrubProgress { done: true, ..current.so_far };
        *scrub = None;
        done
    }

    /// Reads the superblocks, the roots, the tables' stream and the node table.
    fn scrub_fixed(
        &mut self,
        shared: &StoreShared,
        writer: &WriterLock,
        report: &mut dyn FnMut(StoreFinding),
    ) {
        let mut bad = |place: Block, what: String| {
            self.so_far.damaged += 1;
            report(StoreFinding { place: Some(place), ..StoreFinding::about(what) });
        };
        // The writer's lock keeps roots from being written, and the store from growing.
        let writer = writer.lock();
        let geometry = shared.medium.geometry();
        let first = StoreGeometry::read(shared.medium.device());
        match &first {
            Ok((found, _)) if *found == geometry => {}
            // Growing failed at its last flush.
            Ok((found, _)) if found.id == geometry.id && found.total_blocks > geometry.total_blocks => {}
            Ok(_) => bad(SUPERBLOCK, "the superblock is another store's".to_owned()),
            Err(error) => bad(SUPERBLOCK, error.to_string()),
        }
        let copy = geometry.copy_damage(shared.medium.device());
        if let Some(what) = &copy {
            bad(geometry.copy_at(), what.clone());
        }
        let mends = copy.is_some()
            && first.is_ok_and(|(found, _)| found == geometry)
            && shared.repair_superblock_copy();
        for (at, page) in ROOTS.into_iter().zip(shared.medium.read_blocks(&ROOTS)) {
            match page {
                Ok(page) if CheckpointRoot::decode(&page, shared.medium.geometry().id).is_some() => {}
                Ok(_) => bad(at, format!("block {at}: a checkpoint root is not what was written")),
                Err(error) => bad(at, error.to_string()),
            }
        }
        let tables = shared.compare_table_mirrors(writer.tables());
        drop(writer);
        self.so_far.repaired += u64::from(mends);
        self.so_far.blocks += 4 + 2 * tables.len() as u64;
        tables.into_iter().for_each(|compared| self.report_comparison(compared, report));
    }

    /// Counts and reports the result for a mirrored block.
    fn report_comparison(&mut self, compared: MirrorComparison, report: &mut dyn FnMut(StoreFinding)) {
        self.so_far.repaired +=
            u64::from(matches!(compared, MirrorComparison::Damaged { repaired: true, .. }));
        if let Some(finding) = StoreFinding::of_comparison(&compared) {
            self.so_far.damaged += 1;
            report(finding);
        }
    }

    /// Compares both copies of nodes with the node table. Nodes of which both are damaged are written again
    /// if memory has them.
    fn scrub_nodes(
        &mut self,
        ids: &[NodeId],
        shared: &StoreShared,
        writer: &WriterLock,
        report: &mut dyn FnMut(StoreFinding),
    ) {
        let nodes: Vec<NodeRead> = {
            let map = shared.map();
            let clean = |id: &&NodeId| map.nodes.is_clean(**id);
            let read = |&id: &NodeId| map.nodes.table.get(id).map(|&entry| NodeRead::of(&map, id, entry));
            let nodes = ids.iter().filter(clean).filter_map(read);
            let written: Vec<NodeRead> = nodes.filter(|node| node.entry.place != Block(0)).collect();
            written.iter().for_each(|node| map.nodes.segments.pin(node.entry.place));
            written
        };
        self.so_far.blocks += 2 * nodes.len() as u64;
        let compared = shared.compare_node_mirrors(&nodes);
        let _writer = writer.lock();
        let mut map = shared.map_mut();
        for (node, compared) in nodes.iter().zip(compared) {
            map.nodes.segments.unpin(node.entry.place);
            let moved = map.nodes.table.get(node.id).is_none_or(|now| now.place != node.entry.place);
            let is_lost = matches!(compared, MirrorComparison::BothDamaged { .. });
            if is_lost && moved {
                continue;
            }
            self.report_comparison(compared, report);
            if is_lost && map.nodes.is_cached(node.id) {
                map.nodes.node_mut(node.id);
                self.so_far.rewritten_from_memory += 1;
            }
        }
    }

    /// Reads the blocks that the visited nodes refer to; of pages of metadata both copies.
    fn scrub_data(&mut self, shared: &StoreShared, report: &mut dyn FnMut(StoreFinding)) {
        let (held, pairs) = {
            let mut map = shared.map_mut();
            let held = map.nodes.scan_mut(ScanPurpose::StoreScrub).as_mut().map(|scan| {
                scan.holder_count = 0;
                std::mem::take(&mut scan.holders)
            });
            let held: Vec<_> = held.unwrap_or_default().into_iter().collect();
            held.iter().for_each(|(at, _)| map.nodes.segments.pin(*at));
            let is_mirrored =
                |(at, _): &(Block, Vec<BlockHolder>)| map.nodes.segments.mirror_of(*at).is_some();
            let (paired, held): (Vec<_>, Vec<_>) = held.into_iter().partition(is_mirrored);
            let pair = |(at, holders): (Block, Vec<BlockHolder>)| {
                let copy = map.nodes.segments.mirror_of(at)?;
                let crc = holders[0].crc;
                Some(MirroredBlock { at, copy, crc })
            };
            (held, paired.into_iter().filter_map(pair).collect::<Vec<_>>())
        };
        let places: Vec<Block> = held.iter().map(|(at, _)| *at).collect();
        self.so_far.blocks += places.len() as u64 + 2 * pairs.len() as u64;
        for compared in shared.compare_page_mirrors(&pairs) {
            match compared {
                // The last step finds and reports its page.
                MirrorComparison::BothDamaged { place, error } => drop(self.damaged.insert(place, error)),
                other => self.report_comparison(other, report),
            }
        }
        for ((at, holders), page) in held.iter().zip(shared.medium.read_blocks(&places)) {
            let expected = holders[0].crc;
            let error = match page {
                Ok(page) if crc32c::crc32c(&page.0) == expected => continue,
                Ok(page) => shared.medium.corrupt(*at, "data".to_owned(), expected, crc32c::crc32c(&page.0)),
                Err(error) => error,
            };
            self.damaged.insert(*at, error);
        }
        let map = shared.map();
        let pinned = places.iter().copied().chain(pairs.iter().map(|one| one.at));
        pinned.for_each(|at| map.nodes.segments.unpin(at));
    }

    /// Reports the pages of damaged blocks, and pages that were lost earlier. A damaged block to which no
    /// page refers any more was overwritten meanwhile, and is no loss.
    fn report_damaged_data(
        &mut self,
        shared: &StoreShared,
        writer: &WriterLock,
        report: &mut dyn FnMut(StoreFinding),
    ) {
        let _writer = writer.lock();
        walk_map(shared, &mut |met| {
            let (owner, page, place) = match met {
                WalkItem::Block(owner, page, BlockEntry { place, .. }) => (owner, page, place),
                WalkItem::LostPage(owner, page) => {
                    self.so_far.damaged += 1;
                    return report(StoreFinding::lost_page(shared, owner, page));
                }
                WalkItem::UnreadableNode(..) => return,
            };
            let Some(error) = self.damaged.remove(&place) else { return };
            self.so_far.damaged += 1;
            let what = error.to_string();
            let volume = Some(owner.volume);
            let object = Some(owner.object);
            report(StoreFinding { volume, object, page: Some(page), place: Some(place), what });
        });
    }
}
