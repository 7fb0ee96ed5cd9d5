//! Checking a whole store: every checksum, every count.

use crate::block_set::BlockSet;
use crate::checkpoint_root::CheckpointRoot;
use crate::checkpoint_tables::read_settings;
use crate::error::StoreError;
use crate::format::ROOTS;
use crate::log_entry::MirroredBlock;
use crate::map::{BlockEntry, NodeId};
use crate::map_walk::{FirstHolder, WalkItem, node_blocks, walk_map};
use crate::mirror_repair::{MirrorComparison, NodeRead};
use crate::segment_summary::{SummaryEntry, segment_summary_entries};
use crate::segments::SegmentUse;
use crate::shared::StoreShared;
use crate::volume::VolumeId;
use crate::writer::StoreWriter;
use device::{Block, BlockRead, ObjectId, PageNo};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Something wrong that a check or a scrub has found in a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreFinding {
    /// The volume that it concerns, if it is one volume; clones may share the damage.
    pub volume: Option<VolumeId>,
    /// The object that it concerns, if it is one object.
    pub object: Option<ObjectId>,
    /// The page that it concerns, if it is one page.
    pub page: Option<PageNo>,
    /// The block that it concerns, if it is one block.
    pub place: Option<Block>,
    /// The problem.
    pub what: String,
}

impl fmt::Display for StoreFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(volume) = self.volume.filter(|&volume| volume != VolumeId::MAIN) {
            write!(f, "volume {volume}: ")?;
        }
        if let Some(object) = self.object {
            write!(f, "object {object}: ")?;
        }
        if let Some(page) = self.page {
            write!(f, "page {page}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// The corrections by [`StoreMaintenance::repair`](crate::StoreMaintenance::repair).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RepairedCounts {
    /// Nodes whose number of references was wrong, unreferenced nodes included.
    pub references: u64,
    /// Segments that hold more than was counted.
    pub segments: u64,
}

/// The result of a walk of the whole map.
struct CheckWalk {
    /// Blocks of data to which something refers.
    data: BlockSet,
    /// For each segment, the [sum](summary_sum) of what the map says of its live data.
    summary_sums: Vec<u64>,
    /// The number of references to each node.
    references: BTreeMap<NodeId, u32>,
    /// Why the first unreadable node could not be read.
    lost: Option<String>,
}

/// Data blocks read at once: 4 MiB.
const BLOCKS_AT_ONCE: usize = 1024;
/// Most blocks whose summary entries are compared one by one, or one segment: 20 MB of memory. Of segments
/// beyond that, only the numbers are reported.
const SUMMARY_BLOCKS_NAMED: u64 = 1 << 18;

type CheckedBlock = (FirstHolder, PageNo, BlockEntry);

impl StoreFinding {
    /// A finding about no volume in particular.
    pub(crate) fn about(what: String) -> StoreFinding {
        StoreFinding { volume: None, object: None, page: None, place: None, what }
    }

    fn of(owner: Option<FirstHolder>, what: String) -> StoreFinding {
        let volume = owner.map(|owner| owner.volume);
        let object = owner.map(|owner| owner.object);
        StoreFinding { volume, object, ..StoreFinding::about(what) }
    }

    /// A page that was lost earlier.
    pub(crate) fn lost_page(shared: &StoreShared, owner: FirstHolder, page: PageNo) -> StoreFinding {
        let device = shared.medium.device().name().to_owned();
        let error = StoreError::Lost { device, object: owner.object, page };
        StoreFinding { page: Some(page), ..StoreFinding::of(Some(owner), error.to_string()) }
    }
}

impl StoreFinding {
    /// The finding about a mirrored block, if anything is wrong with it.
    pub(crate) fn of_comparison(compared: &MirrorComparison) -> Option<StoreFinding> {
        let (place, what) = match compared {
            MirrorComparison::Whole => return None,
            MirrorComparison::Damaged { place, error, repaired: true } => {
                (Some(*place), format!("{error}; it was written again from its copy"))
            }
            MirrorComparison::Damaged { place, error, repaired: false } => {
                (Some(*place), format!("{error}; its copy is whole"))
            }
            MirrorComparison::BothDamaged { place, error } => {
                (Some(*place), format!("{error}; its copy is damaged, too"))
            }
        };
        Some(StoreFinding { place, ..StoreFinding::about(what) })
    }
}

/// Checks all of a store: see [`StoreMaintenance::check`](crate::StoreMaintenance::check).
pub(crate) fn check(shared: &StoreShared, writer: &StoreWriter, report: &mut dyn FnMut(StoreFinding)) {
    let copy = shared.medium.geometry().copy_damage(shared.medium.device());
    copy.into_iter().for_each(|what| {
        let place = Some(shared.medium.geometry().copy_at());
        report(StoreFinding {
            place,
            ..StoreFinding::about(format!("{what}; `weir check --repair` writes it again"))
        });
    });
    check_roots(shared, report);
    let audit = walk_and_verify(shared, writer, report);
    check_summaries(shared, &audit, report);
    // The descendants of an unreadable node cannot be counted.
    if audit.lost.is_none() {
        check_references(shared, &audit.references, report);
        check_live(shared, writer, &audit.data, report);
        check_volumes(shared, report);
    }
}

/// Checks that the leaves of volumes match the volumes in memory.
fn check_volumes(shared: &StoreShared, report: &mut dyn FnMut(StoreFinding)) {
    let stored = shared.holding_nodes(|| shared.resolve(|map| map.volumes.read_tree(&map.nodes)));
    let Ok(Some(stored)) = stored else {
        return report(StoreFinding::about("the tree of volumes cannot be one".to_owned()));
    };
    let map = shared.map();
    let known: BTreeSet<VolumeId> =
        stored.keys().copied().chain(map.volumes.iter().map(|(id, _)| id)).collect();
    for volume in known.into_iter().filter(|volume| stored.get(volume) != map.volumes.get(*volume)) {
        let what = "its leaf in the tree of volumes says something else than memory".to_owned();
        report(StoreFinding { volume: Some(volume), ..StoreFinding::about(what) });
    }
}

/// Repairs the counts of a store: see [`StoreMaintenance::repair`](crate::StoreMaintenance::repair).
pub(crate) fn repair(
    shared: &StoreShared,
    writer: &mut StoreWriter,
    report: &mut dyn FnMut(StoreFinding),
) -> Result<RepairedCounts, StoreError> {
    writer.make_ready(shared)?;
    let audit = walk_and_verify(shared, writer, report);
    if let Some(what) = audit.lost {
        return Err(StoreError::CannotCount { device: shared.medium.name(), what });
    }
    check_references(shared, &audit.references, report);
    check_live(shared, writer, &audit.data, report);
    let mut repaired = RepairedCounts::default();
    {
        let mut map = shared.map_mut();
        repaired.references = map.nodes.set_references(&audit.references);
        let nodes = node_blocks(&map, writer);
        for (number, segment) in map.nodes.segments.iter_mut() {
            let live = audit.data.count_in_segment(shared.medium.geometry(), number)
                + nodes.count_in_segment(shared.medium.geometry(), number);
            repaired.segments += u64::from(live > segment.live);
            segment.live = live;
        }
        map.nodes.segments.count_live();
    }
    writer.checkpoint_twice(shared)?;
    Ok(repaired)
}

/// Reports a root whose tables are lost in both copies.
///
/// The start skips such a root, as it skips a root that was being written at a power cut: the log from the
/// other root reaches as far. But after one more loss no root is left.
fn check_roots(shared: &StoreShared, report: &mut dyn FnMut(StoreFinding)) {
    let device = shared.medium.device();
    let geometry = shared.medium.geometry();
    for (at, page) in ROOTS.into_iter().zip(shared.medium.read_blocks(&ROOTS)) {
        let tables = match page.map(|page| CheckpointRoot::decode(&page, geometry.id)) {
            Err(error) => Err(error),
            Ok(None) => continue,
            Ok(Some(root)) => read_settings(device, geometry, &root).map(drop),
        };
        if let Err(error) = tables {
            let what = format!("the checkpoint root in block {at}: {error}");
            report(StoreFinding { place: Some(at), ..StoreFinding::about(what) });
        }
    }
}

/// Walks the whole map, and compares every checksum.
fn walk_and_verify(
    shared: &StoreShared,
    writer: &StoreWriter,
    report: &mut dyn FnMut(StoreFinding),
) -> CheckWalk {
    check_metadata_mirrors(shared, writer, report);
    let mut data = BlockSet::empty(shared.medium.geometry());
    let mut batch: Vec<CheckedBlock> = Vec::new();
    let mut owners = vec![0; shared.medium.geometry().segments as usize];
    let mut lost = None;
    let references = walk_map(shared, &mut |met| match met {
        WalkItem::UnreadableNode(owner, error) => {
            lost.get_or_insert(error.to_string());
            report(StoreFinding::of(owner, error.to_string()));
        }
        WalkItem::LostPage(owner, page) => report(StoreFinding::lost_page(shared, owner, page)),
        WalkItem::Block(owner, page, entry) => {
            let misplaced = misplaced(shared, entry.place, SegmentUse::is_data);
            let in_pair = |at| shared.map().nodes.segments.get(at).usage == SegmentUse::Arena;
            let is_mirrored = shared.medium.geometry().segment_of(entry.place).is_some_and(in_pair);
            let without_copy = || misplaced_copy(shared, entry.place).filter(|_| is_mirrored);
            if let Some(what) = misplaced.or_else(without_copy) {
                let page = Some(page);
                let place = Some(entry.place);
                report(StoreFinding { page, place, ..StoreFinding::of(Some(owner), what) });
            } else if data.add(entry.place) {
                match shared.map().nodes.segments.mirror_of(entry.place) {
                    Some(copy) => drop(data.add(copy)),
                    None => {
                        let segment =
                            shared.medium.geometry().segment_of(entry.place).expect("it lies in one");
                        let sum = &mut owners[segment as usize];
                        *sum = summary_sum(*sum, entry.place, entry.crc);
                    }
                }
                batch.push((owner, page, entry));
            }
            if batch.len() == BLOCKS_AT_ONCE {
                check_data(shared, writer, &mut batch, report);
            }
        }
    });
    check_data(shared, writer, &mut batch, report);
    check_places(shared, report);
    CheckWalk { data, summary_sums: owners, references, lost }
}

/// Why a block cannot lie where it does, if it cannot.
fn misplaced(shared: &StoreShared, place: Block, right: impl Fn(SegmentUse) -> bool) -> Option<String> {
    let Some(segment) = shared.medium.geometry().segment_of(place) else {
        return Some(format!("block {place} is outside all segments"));
    };
    let usage = shared.map().nodes.segments.get(segment).usage;
    (!right(usage)).then(|| format!("block {place} is in segment {segment}, which is for {usage:?}"))
}

/// Compares both copies of all metadata. The walk reports nodes of which both are damaged, unless memory has
/// them.
fn check_metadata_mirrors(shared: &StoreShared, writer: &StoreWriter, report: &mut dyn FnMut(StoreFinding)) {
    shared
        .compare_table_mirrors(writer.tables())
        .iter()
        .filter_map(StoreFinding::of_comparison)
        .for_each(&mut *report);
    let nodes: Vec<NodeRead> = {
        let map = shared.map();
        let written = map.nodes.table.iter().filter(|(_, entry)| entry.place != Block(0));
        written.map(|(id, &entry)| NodeRead::of(&map, id, entry)).collect()
    };
    for (node, compared) in nodes.iter().zip(shared.compare_node_mirrors(&nodes)) {
        let is_told = matches!(compared, MirrorComparison::BothDamaged { .. })
            && !shared.map().nodes.is_cached(node.id);
        StoreFinding::of_comparison(&compared).filter(|_| !is_told).into_iter().for_each(&mut *report);
    }
}

/// Checks that nodes and pages of their table lie in node segments, each in a block of its own, and their
/// copies in the mirrors.
fn check_places(shared: &StoreShared, report: &mut dyn FnMut(StoreFinding)) {
    let nodes: Vec<(String, Block)> = {
        let map = shared.map();
        let nodes = map.nodes.table.iter().map(|(id, entry)| (format!("node {}", id.0), entry.place));
        let pages = map.nodes.table.pages().iter().enumerate();
        let pages = pages.map(|(number, page)| (format!("page {number} of the node table"), page.place));
        nodes.chain(pages).filter(|(_, place)| *place != Block(0)).collect()
    };
    let mut taken = BlockSet::empty(shared.medium.geometry());
    for (name, place) in nodes {
        let twice = (!taken.add(place)).then(|| format!("block {place} is another's, too"));
        let copy = misplaced_copy(shared, place);
        if let Some(what) = misplaced(shared, place, |usage| usage == SegmentUse::Nodes).or(twice).or(copy) {
            report(StoreFinding { place: Some(place), ..StoreFinding::about(format!("{name}: {what}")) });
        }
    }
}

/// Why the copy of a block cannot lie where it does, if it cannot.
fn misplaced_copy(shared: &StoreShared, place: Block) -> Option<String> {
    let Some(copy) = shared.map().nodes.segments.mirror_of(place) else {
        return Some(format!("block {place} has no copy"));
    };
    misplaced(shared, copy, |usage| usage == SegmentUse::Mirror)
}

fn check_data(
    shared: &StoreShared,
    writer: &StoreWriter,
    batch: &mut Vec<CheckedBlock>,
    report: &mut dyn FnMut(StoreFinding),
) {
    batch.sort_by_key(|(_, _, entry)| entry.place);
    let (twice, mut batch): (Vec<CheckedBlock>, Vec<CheckedBlock>) =
        batch.drain(..).partition(|(_, _, entry)| shared.map().mirrored_page(entry).is_some());
    check_page_mirrors(shared, writer, &twice, report);
    let mut reads: Vec<BlockRead> =
        batch.iter().map(|(_, _, entry)| BlockRead::new(entry.place, 1)).collect();
    shared.medium.device().read_batch(&mut reads);
    for ((owner, page, entry), read) in batch.drain(..).zip(reads) {
        let found = crc32c::crc32c(&read.pages[0].0);
        let error = match read.result {
            Err(error) => StoreError::from(error),
            Ok(()) if found == entry.crc => continue,
            Ok(()) => shared.medium.corrupt(entry.place, "data".to_owned(), entry.crc, found),
        };
        let place = Some(entry.place);
        let what = error.to_string();
        report(StoreFinding { page: Some(page), place, ..StoreFinding::of(Some(owner), what) });
    }
}

/// Adds a block and its checksum to a sum. Two sums are the same if the same blocks were added, in whatever
/// order. So one walk compares all summaries with the map, with eight bytes for a segment.
fn summary_sum(sum: u64, at: Block, crc: u32) -> u64 {
    let mut hasher = DefaultHasher::new();
    (at.0, crc).hash(&mut hasher);
    sum.wrapping_add(hasher.finish())
}

/// Checks that each block of data has an entry in its segment's summary, with the checksum that the map has.
/// The page and the page LSN may differ: the block may have been cloned or moved since, and the map's page
/// LSN includes later deltas.
fn check_summaries(shared: &StoreShared, audit: &CheckWalk, report: &mut dyn FnMut(StoreFinding)) {
    let device = shared.medium.device();
    let geometry = shared.medium.geometry();
    let found = |segment: u32| match audit.data.last_in_segment(geometry, segment) {
        Some(last) => segment_summary_entries(device, geometry, segment, last),
        None => BTreeMap::new(),
    };
    let is_wrong = |&segment: &u32| {
        if !matches!(shared.map().nodes.segments.get(segment).usage, SegmentUse::Log | SegmentUse::Moved) {
            return false;
        }
        let live = found(segment).into_iter().filter(|(at, _)| audit.data.has(*at));
        let sum = live.fold(0, |sum, (at, owner)| summary_sum(sum, at, owner.crc));
        sum != audit.summary_sums[segment as usize]
    };
    let wrong: Vec<u32> = (0..geometry.segments).filter(is_wrong).collect();
    let named = (SUMMARY_BLOCKS_NAMED / geometry.segment_blocks).max(1) as usize;
    let (named, others) = wrong.split_at(named.min(wrong.len()));
    report_summary_blocks(shared, &named.iter().map(|&segment| (segment, found(segment))).collect(), report);
    for segment in others {
        let what = format!("segment {segment}: it does not say whose all of its live blocks are");
        report(StoreFinding { place: Some(geometry.segment_start(*segment)), ..StoreFinding::about(what) });
    }
}

/// Reports the live blocks of these segments whose summary entries differ from the map.
fn report_summary_blocks(
    shared: &StoreShared,
    segments: &BTreeMap<u32, BTreeMap<Block, SummaryEntry>>,
    report: &mut dyn FnMut(StoreFinding),
) {
    if segments.is_empty() {
        return;
    }
    let mut told = BlockSet::empty(shared.medium.geometry());
    walk_map(shared, &mut |met| {
        let WalkItem::Block(_, _, BlockEntry { place, crc, .. }) = met else { return };
        let Some(segment) = shared.medium.geometry().segment_of(place) else { return };
        let Some(found) = segments.get(&segment).filter(|_| told.add(place)) else { return };
        let what = match found.get(&place) {
            Some(owner) if owner.crc == crc => return,
            Some(owner) => format!("its owner there has checksum {:08x}, the map has {crc:08x}", owner.crc),
            None => "it does not say whose it is: the head that would is damaged, or not there".to_owned(),
        };
        let what = format!("block {place}, in segment {segment}: {what}");
        report(StoreFinding { place: Some(place), ..StoreFinding::about(what) });
    });
}

/// Compares both copies of pages of metadata. A missing copy of the last batch is no damage: it may never
/// have been written.
fn check_page_mirrors(
    shared: &StoreShared,
    writer: &StoreWriter,
    entries: &[CheckedBlock],
    report: &mut dyn FnMut(StoreFinding),
) {
    let pairs: Vec<MirroredBlock> =
        entries.iter().filter_map(|(_, _, entry)| shared.map().mirrored_page(entry)).collect();
    for ((owner, page, _), compared) in entries.iter().zip(shared.compare_page_mirrors(&pairs)) {
        let is_unwritten =
            matches!(compared, MirrorComparison::Damaged { place, .. } if writer.log().will_rewrite(place));
        if let Some(finding) = StoreFinding::of_comparison(&compared).filter(|_| !is_unwritten) {
            let StoreFinding { volume, object, .. } = StoreFinding::of(Some(*owner), String::new());
            report(StoreFinding { volume, object, page: Some(*page), ..finding });
        }
    }
}

fn check_references(
    shared: &StoreShared,
    counted: &BTreeMap<NodeId, u32>,
    report: &mut dyn FnMut(StoreFinding),
) {
    let map = shared.map();
    for (id, entry) in map.nodes.table.iter() {
        let found = counted.get(&id).copied().unwrap_or(0);
        if found != entry.references {
            let what = format!("node {}: {found} references, the table says {}", id.0, entry.references);
            report(StoreFinding::about(what));
        }
    }
}

fn check_live(
    shared: &StoreShared,
    writer: &StoreWriter,
    data: &BlockSet,
    report: &mut dyn FnMut(StoreFinding),
) {
    let map = shared.map();
    let nodes = node_blocks(&map, writer);
    for (number, segment) in map.nodes.segments.iter() {
        let found = data.count_in_segment(shared.medium.geometry(), number)
            + nodes.count_in_segment(shared.medium.geometry(), number);
        // Shared blocks that were overwritten still count until the next recount.
        let of_pair = |twin| map.nodes.segments.get(twin).usage == SegmentUse::Arena;
        let too_high_is_right = segment.usage.is_data() || segment.mirror.is_some_and(of_pair);
        if found > segment.live || found < segment.live && !too_high_is_right {
            let what = format!("segment {number}: {found} live blocks, the table says {}", segment.live);
            report(StoreFinding::about(what));
        }
    }
}
