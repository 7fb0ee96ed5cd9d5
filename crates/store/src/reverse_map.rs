//! The reverse map: finds the map entries that refer to a segment's blocks, without a walk of the whole map.
//! It reads the segment's own summary, and looks up the pages that the summary names.
//!
//! Callers never take the found references for complete. A segment is dead only when its live count says so,
//! and an entry that other nodes may share is left to a walk. So a reference that a clone takes over
//! meanwhile costs a walk and no more.

use crate::map::{BlockHolder, MissingNodes, NodeId, PageMap};
use crate::segment_summary::{SummaryScan, SummaryUnreadable};
use crate::shared::StoreShared;
use device::{Block, ObjectId, PageNo, VolumeId};
use std::collections::BTreeSet;

/// Leaves that a step reads: as many nodes as a step of a walk visits.
const LEAVES_PER_STEP: usize = 64;
/// Leaves that are read in any case, rather than to walk.
const LEAVES_LEAST: u64 = 64;
/// Most volumes whose metadata is searched for references to a mirrored segment, which has no summary.
const VOLUMES_MAX: usize = 8;
/// If the map has no more nodes than this for each segment to clean, a walk costs as little.
const NODES_LEAST: u64 = 2;

/// The work that looking up one segment counts as, in blocks moved.
pub(crate) fn lookup_work(segment_blocks: u64) -> u64 {
    segment_blocks / 8
}

/// Whether looking up `segments` segments is cheaper than a walk of a map of `nodes` nodes.
pub(crate) fn lookup_is_worth_it(nodes: u64, segments: usize) -> bool {
    nodes > NODES_LEAST * segments as u64
}

/// A leaf of an object's pages, or those of its pages there that are inline.
type ObjectLeaf = (ObjectId, u64);
/// Some leaves, and where more may begin.
type LeafBatch = (Vec<ObjectLeaf>, Option<(VolumeId, u64)>);

/// How far a look-up has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupProgress {
    /// There is more to look up.
    Working,
    /// At least as many references were found as blocks are live, and none shares its block.
    Found,
    /// Only a walk can tell.
    Unknown,
}

/// A look-up of one segment, under way. Lost in a crash.
#[derive(Debug)]
pub(crate) struct ReverseLookup {
    segment: u32,
    /// Most leaves that it may read.
    leaves_max: usize,
    todo: LookupWork,
    pub(crate) found: Vec<(Block, BlockHolder)>,
}

/// The next work of a look-up.
#[derive(Debug)]
enum LookupWork {
    /// Read the segment's summary.
    ReadSummary,
    /// Read these leaves.
    LookIntoLeaves(Vec<ObjectLeaf>),
    /// For a mirrored segment, which has no summary: read the leaves of the volumes' metadata from this
    /// volume and leaf on. The last number counts the leaves read so far.
    LookIntoMetadata(VolumeId, u64, usize),
    Nothing,
}

impl ReverseLookup {
    /// A look-up of `segment`, one of `segments` that a walk would search for together.
    pub(crate) fn new(segment: u32, segments: usize, map: &PageMap) -> ReverseLookup {
        let leaves_max = (map.nodes.table.used_count() / segments.max(1) as u64).max(LEAVES_LEAST) as usize;
        let ahead = match map.nodes.segments.get(segment).mirror {
            Some(_) => LookupWork::LookIntoMetadata(VolumeId::MAIN, 0, 0),
            None => LookupWork::ReadSummary,
        };
        ReverseLookup { segment, leaves_max, todo: ahead, found: Vec::new() }
    }

    /// A bounded step. Reads some of the segment's summary into `summary`, or some leaves.
    pub(crate) fn step(&mut self, owners: &mut SummaryScan, shared: &StoreShared) -> LookupProgress {
        let some = match &mut self.todo {
            LookupWork::ReadSummary => match self.read_summary(owners, shared) {
                Ok(false) => return LookupProgress::Working,
                Ok(true) => {
                    let leaves: Vec<ObjectLeaf> = owners.leaves().into_iter().collect();
                    if leaves.len() > self.leaves_max {
                        return LookupProgress::Unknown;
                    }
                    self.todo = LookupWork::LookIntoLeaves(leaves);
                    return LookupProgress::Working;
                }
                Err(SummaryUnreadable) => return LookupProgress::Unknown,
            },
            LookupWork::LookIntoLeaves(leaves) => {
                let some = leaves.split_off(leaves.len().saturating_sub(LEAVES_PER_STEP));
                if leaves.is_empty() {
                    self.todo = LookupWork::Nothing;
                }
                some
            }
            LookupWork::LookIntoMetadata(volume, leaf, looked) => {
                let from = (*volume, *leaf);
                let some = shared.holding_nodes(|| shared.resolve(|map| map.leaves_of_metadata(from)));
                let Ok(Some((some, next))) = some else { return LookupProgress::Unknown };
                let looked = *looked + some.len();
                if looked > self.leaves_max {
                    return LookupProgress::Unknown;
                }
                self.todo = next.map_or(LookupWork::Nothing, |(volume, leaf)| {
                    LookupWork::LookIntoMetadata(volume, leaf, looked)
                });
                some
            }
            LookupWork::Nothing => {
                let live = shared.map().nodes.segments.get(self.segment).live;
                return if self.found.len() as u64 >= u64::from(live) {
                    LookupProgress::Found
                } else {
                    LookupProgress::Unknown
                };
            }
        };
        match shared.holding_nodes(|| visit_body(&some, self.segment, shared)) {
            Some(found) => self.found.extend(found),
            None => return LookupProgress::Unknown,
        }
        LookupProgress::Working
    }

    /// The work left after a step. Half of a look-up's work is reading the summary.
    pub(crate) fn left(&self, looked: LookupProgress, owners: &SummaryScan, shared: &StoreShared) -> u64 {
        let segment_blocks = shared.medium.geometry().segment_blocks;
        match looked {
            LookupProgress::Working => {
                lookup_work(2 * segment_blocks - owners.offset().min(segment_blocks)) / 2
            }
            LookupProgress::Found | LookupProgress::Unknown => 0,
        }
    }

    /// Reads some of the segment's summary. Returns whether that was all.
    fn read_summary(
        &self,
        owners: &mut SummaryScan,
        shared: &StoreShared,
    ) -> Result<bool, SummaryUnreadable> {
        let geometry = shared.medium.geometry();
        let last = geometry.segment_start(self.segment).plus(geometry.segment_blocks - 1);
        owners.read_some(shared.medium.device(), geometry, last)
    }
}

/// The references to a segment's blocks in some leaves. `None` if a block is shared, or a node cannot be
/// read.
fn visit_body(some: &[ObjectLeaf], segment: u32, shared: &StoreShared) -> Option<Vec<(Block, BlockHolder)>> {
    loop {
        let mut found: Vec<_> = Vec::new();
        let mut missing: Vec<NodeId> = Vec::new();
        {
            let map = shared.map();
            for &(object, leaf) in some {
                match map.holders_in(object, leaf, segment) {
                    Ok(Some(holders)) => found.extend(holders),
                    Ok(None) => return None,
                    Err(MissingNodes(ids)) => missing.extend(ids),
                }
            }
        }
        if missing.is_empty() {
            return Some(found);
        }
        if !shared.load_nodes(missing).is_empty() {
            return None;
        }
    }
}

impl PageMap {
    /// The references in one leaf of an object, or in its inline pages, to blocks of a segment. `None` if one
    /// of these blocks may be shared.
    fn holders_in(
        &self,
        object: ObjectId,
        leaf: u64,
        segment: u32,
    ) -> Result<Option<Vec<(Block, BlockHolder)>>, MissingNodes> {
        let mut found = Some(Vec::new());
        self.blocks_in(object, leaf, &mut |block, node, index| {
            if self.nodes.segments.geometry().segment_of(block.place) == Some(segment) {
                let holder = BlockHolder { node, crc: block.crc, index: index as u16 };
                match &mut found {
                    Some(found) if !block.shared => found.push((block.place, holder)),
                    _ => found = None,
                }
            }
        })?;
        Ok(found)
    }

    /// Some leaves of the volumes' metadata, from a leaf of one volume on, and where to go on. `None` if
    /// there are too many volumes.
    fn leaves_of_metadata(&self, from: (VolumeId, u64)) -> Result<Option<LeafBatch>, MissingNodes> {
        if self.volumes.iter().nth(VOLUMES_MAX).is_some() {
            return Ok(None);
        }
        let (volume, from) = match self.volumes.iter().map(|(id, _)| id).find(|&id| id >= from.0) {
            Some(same) if same == from.0 => from,
            Some(later) => (later, 0),
            None => return Ok(Some((Vec::new(), None))),
        };
        let leaves = match self.slot(volume, ObjectId::METADATA_SLOT)? {
            Some(entry) => {
                let object = volume.object(ObjectId::METADATA_SLOT, entry.generation);
                let leaves = self.leaves_of(entry, from, LEAVES_PER_STEP)?;
                leaves.into_iter().map(|leaf| (object, leaf)).collect()
            }
            None => Vec::new(),
        };
        let next = match leaves.last() {
            Some(&(_, last)) if leaves.len() >= LEAVES_PER_STEP => Some((volume, last + 1)),
            _ => volume.0.checked_add(1).map(|next| (VolumeId(next), 0)),
        };
        Ok(Some((leaves, next)))
    }
}

impl SummaryScan {
    /// The leaves of all pages that the summary names.
    fn leaves(&self) -> BTreeSet<ObjectLeaf> {
        let leaf = |page: PageNo| page.0 / crate::format::LEAF_PAGES;
        self.entries().map(|owner| (owner.object, leaf(owner.page))).collect()
    }
}
