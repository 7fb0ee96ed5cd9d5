//! Finding out who holds the blocks of a segment without a walk over the map: by the owners that the segment itself names, which are
//! looked up.
//!
//! What is found is never taken for all there is: a segment is dead when its live count says so, and an entry that others may share is
//! left to a walk. So somebody who takes a block over meanwhile, as a clone does, costs a walk and no more.

use crate::map::{BlockHolder, MissingNodes, NodeId, PageMap};
use crate::segment_summary::{SummaryScan, SummaryUnreadable};
use crate::shared::StoreShared;
use device::{Block, ObjectId, PageNo, VolumeId};
use std::collections::BTreeSet;

/// Leaves that a step looks into: as many nodes as a step of a walk visits.
const LEAVES_PER_STEP: usize = 64;
/// Leaves that are looked into in any case, rather than to walk.
const LEAVES_LEAST: u64 = 64;
/// Volumes whose metadata is looked through for who holds a block of a pair, which names no owners.
const VOLUMES_MAX: usize = 8;
/// Where the map has no more nodes for each segment to clean, a walk is as good.
const NODES_LEAST: u64 = 2;

/// The work that looking one segment up counts as, in blocks moved.
pub fn lookup_work(segment_blocks: u64) -> u64 {
    segment_blocks / 8
}

/// Whether looking up the owners of so many segments is worth it in a map of so many nodes. Otherwise a walk is.
pub fn lookup_is_worth_it(nodes: u64, segments: usize) -> bool {
    nodes > NODES_LEAST * segments as u64
}

/// A leaf of pages, or what an object has of it inline.
type ObjectLeaf = (ObjectId, u64);
/// And from where on there may be more.
type LeafBatch = (Vec<ObjectLeaf>, Option<(VolumeId, u64)>);

/// What is known of who holds a segment's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LookupProgress {
    /// There is more to look up.
    Working,
    /// At least as many holders were found as blocks are live, and none of them shares its block.
    Found,
    /// Only a walk can tell.
    Unknown,
}

/// A look-up under way, of one segment. Gone after a crash.
#[derive(Debug)]
pub(crate) struct ReverseLookup {
    segment: u32,
    /// The most leaves that it may look into.
    leaves_max: usize,
    todo: LookupWork,
    pub(crate) found: Vec<(Block, BlockHolder)>,
}

/// What a look-up has still to do.
#[derive(Debug)]
enum LookupWork {
    /// To read the segment's owners.
    ReadSummary,
    /// To look into these leaves.
    LookIntoLeaves(Vec<ObjectLeaf>),
    /// To look into the leaves of the volumes' metadata from here on, and into how many it has looked: for a pair, which names no owners.
    LookIntoMetadata(VolumeId, u64, usize),
    Nothing,
}

impl ReverseLookup {
    /// Of one of `segments` segments that would be walked for together.
    pub(crate) fn new(segment: u32, segments: usize, map: &PageMap) -> ReverseLookup {
        let leaves_max = (map.nodes.table.used_count() / segments.max(1) as u64).max(LEAVES_LEAST) as usize;
        let ahead = match map.nodes.segments.get(segment).mirror {
            Some(_) => LookupWork::LookIntoMetadata(VolumeId::MAIN, 0, 0),
            None => LookupWork::ReadSummary,
        };
        ReverseLookup { segment, leaves_max, todo: ahead, found: Vec::new() }
    }

    /// A bounded step. `owners` are those of the segment, and are read by it.
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

    /// What is left to do after a step, as work: half of it was reading the owners.
    pub(crate) fn left(&self, looked: LookupProgress, owners: &SummaryScan, shared: &StoreShared) -> u64 {
        let segment_blocks = shared.medium.geometry().segment_blocks;
        match looked {
            LookupProgress::Working => {
                lookup_work(2 * segment_blocks - owners.offset().min(segment_blocks)) / 2
            }
            LookupProgress::Found | LookupProgress::Unknown => 0,
        }
    }

    /// Reads some of what the segment says of its owners; whether that was all.
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

/// The holders in some leaves of a segment's blocks; `None` if one shares its block, or a node cannot be read.
fn visit_body(some: &[ObjectLeaf], segment: u32, shared: &StoreShared) -> Option<Vec<(Block, BlockHolder)>> {
    loop {
        let (mut found, mut missing): (Vec<_>, Vec<NodeId>) = (Vec::new(), Vec::new());
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
    /// The blocks of a segment to which an object's leaf refers, or what it has of that inline, and that no others share; `None` if one
    /// of them may be shared.
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

    /// Some leaves of the volumes' metadata, from one of a volume on, and where to go on; `None` if there are too many volumes.
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
    /// The leaves of all owners.
    fn leaves(&self) -> BTreeSet<ObjectLeaf> {
        let leaf = |page: PageNo| page.0 / crate::format::LEAF_PAGES;
        self.entries().map(|owner| (owner.object, leaf(owner.page))).collect()
    }
}
