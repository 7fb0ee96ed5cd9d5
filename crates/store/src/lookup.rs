//! Finding out who holds the blocks of a segment without a walk over the map: by the owners that the segment itself names, which are
//! looked up.
//!
//! What is found is never taken for all there is: a segment is dead when its live count says so, and an entry that others may share is
//! left to a walk. So somebody who takes a block over meanwhile, as a clone does, costs a walk and no more.

use crate::map::{Holder, Map, Missing, NodeId};
use crate::owners::{OwnerScan, Unreadable};
use crate::shared::Shared;
use device::{Block, ObjectId, PageNo};
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
pub fn price(segment_blocks: u64) -> u64 {
    segment_blocks / 8
}

/// Whether looking up the owners of so many segments is worth it in a map of so many nodes. Otherwise a walk is.
pub fn is_worth_it(nodes: u64, segments: usize) -> bool {
    nodes > NODES_LEAST * segments as u64
}

/// A leaf of pages, or what an object has of it inline.
type LeafOf = (ObjectId, u64);

/// What is known of who holds a segment's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looked {
    /// There is more to look up.
    Working,
    /// At least as many holders were found as blocks are live, and none of them shares its block.
    Found,
    /// Only a walk can tell.
    Unknown,
}

/// A look-up under way, of one segment. Gone after a crash.
#[derive(Debug)]
pub(crate) struct Lookup {
    segment: u32,
    /// The most leaves that it may look into.
    leaves_max: u64,
    /// Those that it has still to look into, once it is known which.
    leaves: Option<Vec<LeafOf>>,
    pub(crate) found: Vec<(Block, Holder)>,
}

impl Lookup {
    /// Of one of `segments` segments that would be walked for together.
    pub(crate) fn new(segment: u32, segments: usize, map: &Map) -> Lookup {
        let leaves_max = (map.nodes.table.used() / segments.max(1) as u64).max(LEAVES_LEAST);
        Lookup { segment, leaves_max, leaves: None, found: Vec::new() }
    }

    /// A bounded step. `owners` are those of the segment, and are read by it.
    pub(crate) fn step(&mut self, owners: &mut OwnerScan, shared: &Shared) -> Looked {
        let Some(leaves) = &mut self.leaves else {
            let is_pair = shared.map().nodes.segments.get(self.segment).twin.is_some();
            let leaves = match is_pair {
                true => self.leaves_of_metadata(shared),
                false => match self.read_owners(owners, shared) {
                    Ok(false) => return Looked::Working,
                    Ok(true) => Some(owners.leaves().into_iter().collect()),
                    Err(Unreadable) => None,
                },
            };
            self.leaves = leaves.filter(|leaves| leaves.len() as u64 <= self.leaves_max);
            return if self.leaves.is_some() { Looked::Working } else { Looked::Unknown };
        };
        let some = leaves.split_off(leaves.len().saturating_sub(LEAVES_PER_STEP));
        if some.is_empty() {
            let live = shared.map().nodes.segments.get(self.segment).live;
            return if self.found.len() as u64 >= u64::from(live) { Looked::Found } else { Looked::Unknown };
        }
        match shared.holding_nodes(|| look_into(&some, self.segment, shared)) {
            Some(found) => self.found.extend(found),
            None => return Looked::Unknown,
        }
        Looked::Working
    }

    /// What is left to do after a step, as work: half of it was reading the owners.
    pub(crate) fn left(&self, looked: Looked, owners: &OwnerScan, shared: &Shared) -> u64 {
        let segment_blocks = shared.medium.geometry().segment_blocks;
        match looked {
            Looked::Working => price(2 * segment_blocks - owners.offset().min(segment_blocks)) / 2,
            Looked::Found | Looked::Unknown => 0,
        }
    }

    /// Reads some of what the segment says of its owners; whether that was all.
    fn read_owners(&self, owners: &mut OwnerScan, shared: &Shared) -> Result<bool, Unreadable> {
        let geometry = shared.medium.geometry();
        let last = geometry.start(self.segment).plus(geometry.segment_blocks - 1);
        owners.read_some(shared.medium.device(), geometry, last)
    }

    /// All leaves of metadata, if they are few.
    fn leaves_of_metadata(&self, shared: &Shared) -> Option<Vec<LeafOf>> {
        let most = self.leaves_max as usize;
        shared.holding_nodes(|| shared.resolve(|map| map.leaves_of_metadata(VOLUMES_MAX, most))).ok()?
    }
}

/// The holders in some leaves of a segment's blocks; `None` if one shares its block, or a node cannot be read.
fn look_into(some: &[LeafOf], segment: u32, shared: &Shared) -> Option<Vec<(Block, Holder)>> {
    loop {
        let (mut found, mut missing): (Vec<_>, Vec<NodeId>) = (Vec::new(), Vec::new());
        {
            let map = shared.map();
            for &(object, leaf) in some {
                match map.holders_in(object, leaf, segment) {
                    Ok(Some(holders)) => found.extend(holders),
                    Ok(None) => return None,
                    Err(Missing(ids)) => missing.extend(ids),
                }
            }
        }
        if missing.is_empty() {
            return Some(found);
        }
        if !shared.load(missing).is_empty() {
            return None;
        }
    }
}

impl Map {
    /// The blocks of a segment to which an object's leaf refers, or what it has of that inline, and that no others share; `None` if one
    /// of them may be shared.
    fn holders_in(
        &self,
        object: ObjectId,
        leaf: u64,
        segment: u32,
    ) -> Result<Option<Vec<(Block, Holder)>>, Missing> {
        let mut found = Some(Vec::new());
        self.blocks_in(object, leaf, &mut |block, node, index| {
            if self.nodes.segments.geometry().segment(block.place) == Some(segment) {
                let holder = Holder { node, crc: block.crc, index: index as u16 };
                match &mut found {
                    Some(found) if !block.shared => found.push((block.place, holder)),
                    _ => found = None,
                }
            }
        })?;
        Ok(found)
    }

    /// The leaves of the metadata of all volumes, if neither these nor they are more than so many.
    fn leaves_of_metadata(&self, volumes_max: usize, most: usize) -> Result<Option<Vec<LeafOf>>, Missing> {
        let volumes: Vec<_> = self.volumes.iter().map(|(id, _)| id).take(volumes_max + 1).collect();
        if volumes.len() > volumes_max {
            return Ok(None);
        }
        let mut all = Vec::new();
        for volume in volumes {
            let Some(entry) = self.slot(volume, ObjectId::METADATA_SLOT)? else { continue };
            let object = volume.object(ObjectId::METADATA_SLOT, entry.generation);
            all.extend(self.leaves_of(entry, most)?.into_iter().map(|leaf| (object, leaf)));
            if all.len() > most {
                return Ok(None);
            }
        }
        Ok(Some(all))
    }
}

impl OwnerScan {
    /// The leaves of all owners.
    fn leaves(&self) -> BTreeSet<LeafOf> {
        let leaf = |page: PageNo| page.0 / crate::format::LEAF_PAGES;
        self.found().map(|owner| (owner.object, leaf(owner.page))).collect()
    }
}
