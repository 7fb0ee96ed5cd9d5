//! The volumes of a map: what each is called and where its tree of objects begins; and the nodes that deleted volumes and files left.
//!
//! They lie in a tree of nodes by number, which is copied where it is changed and shared, as any other: another reference to its root
//! is a clone of all volumes. A leaf of volumes has a reference to the root of each tree of objects that it names. All volumes
//! are in memory, too, so no look-up waits for this tree; a change of one changes both.

use super::node::{Body, Missing, NodeId, Tree};
use super::nodes::Nodes;
use super::tree::Leaf;
use super::volume::Volume;
use crate::bug::{StoreBug, is_planted};
use crate::error::StoreError;
use crate::format::{INNER_CHILDREN, LEAF_VOLUMES};
use crate::volume::{MAIN_VOLUME_NAME, VOLUME_NAME_BYTES_MAX, VOLUMES_MAX, VolumeId, VolumeInfo};
use std::collections::{BTreeMap, BTreeSet};

/// All volumes. Owned by the map, under its lock. After a crash: those of the newest root, and the log entries after it.
#[derive(Debug, Default)]
pub(crate) struct Volumes {
    /// Leaves of volumes by number. The main volume may be missing there as long as nothing is known of it.
    tree: Tree,
    all: BTreeMap<VolumeId, Volume>,
    /// Leaves in which `all` lie.
    leaves: u64,
    /// The number that the next one gets: higher than any that there ever was, because the buffer may have records of a
    /// deleted one.
    next: VolumeId,
    /// Roots of deleted volumes and files, and then what these referred to: each has one reference from here.
    dying: Vec<NodeId>,
}

impl Volumes {
    /// Those of a new store.
    pub(crate) fn main_only() -> Volumes {
        let mut volumes = Volumes::unread(Tree::default(), VolumeId(1), Vec::new());
        volumes.found(BTreeMap::new());
        volumes
    }

    /// Those of a tree that was not looked into yet.
    pub(crate) fn unread(tree: Tree, next: VolumeId, dying: Vec<NodeId>) -> Volumes {
        Volumes { tree, next, dying, ..Volumes::default() }
    }

    /// What the tree says.
    pub(crate) fn found(&mut self, mut all: BTreeMap<VolumeId, Volume>) {
        all.entry(VolumeId::MAIN).or_default();
        self.leaves = all.keys().map(|&id| index(id)).collect::<BTreeSet<_>>().len() as u64;
        self.all = all;
    }

    /// All volumes, as the nodes of the tree have them; `None` if they cannot be.
    pub(crate) fn stored(&self, nodes: &Nodes) -> Result<Option<BTreeMap<VolumeId, Volume>>, Missing> {
        let leaves = self.tree.leaves(nodes, 0..u64::MAX)?;
        Ok(leaves
            .into_iter()
            .flat_map(|leaf| volumes_in(nodes, leaf))
            .collect::<Option<BTreeMap<_, _>>>()
            .filter(|all| all.keys().all(|&volume| volume < self.next)))
    }

    /// Their tree.
    pub(crate) fn tree(&self) -> Tree {
        self.tree
    }

    /// Whether changes of objects leave the root of the volume's tree as it is: neither it nor its leaf here is shared.
    pub(crate) fn is_settled(&self, nodes: &Nodes, volume: VolumeId) -> bool {
        let alone = |volume: &Volume| nodes.table.references(volume.objects.root) == 1;
        self.get(volume).is_some_and(alone)
            && self.tree.is_shared(nodes, index(volume)).is_ok_and(|shared| !shared)
    }

    /// The nodes that a change of a volume may make dirty, each by its height and its first leaf.
    pub(crate) fn path(&self, volume: VolumeId) -> impl Iterator<Item = (u8, u64)> + use<> {
        let leaf = index(volume);
        (0..=self.tree.height.max(height_for(leaf))).map(move |height| (height, leaf >> (8 * height)))
    }

    /// Whether the nodes on the way to a volume are in memory.
    pub(super) fn prepare(&self, nodes: &Nodes, volume: VolumeId) -> Result<(), Missing> {
        self.tree.leaf(nodes, index(volume)).map(drop)
    }

    pub(crate) fn get(&self, volume: VolumeId) -> Option<&Volume> {
        self.all.get(&volume)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (VolumeId, &Volume)> {
        self.all.iter().map(|(&id, volume)| (id, volume))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// A number that none ever had.
    pub(crate) fn next_id(&self) -> VolumeId {
        match is_planted(StoreBug::VolumeNumberUsedAgain) {
            true => VolumeId(self.all.keys().next_back().map_or(0, |last| last.0) + 1),
            false => self.next,
        }
    }

    /// The roots of all that there is: the volumes' tree, and what is dying.
    pub(crate) fn roots(&self) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::once(self.tree.root).chain(self.dying())
    }

    /// The roots of all that has data: each volume's, and what is dying.
    pub(crate) fn roots_of_data(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.all.values().map(|volume| volume.objects.root).chain(self.dying())
    }

    /// Whether there may be one more.
    pub(crate) fn ensure_one_more(&self) -> Result<(), StoreError> {
        if self.all.len() >= VOLUMES_MAX {
            return Err(StoreError::TooManyVolumes { limit: VOLUMES_MAX });
        }
        Ok(())
    }

    /// Lets a volume change: its leaf, if others share it, is copied, which gives each tree of objects there another reference.
    pub(super) fn unshare(&mut self, nodes: &mut Nodes, volume: VolumeId) {
        let index = index(volume);
        if self.tree.is_shared(nodes, index).expect("prepared") {
            self.tree.leaf_for_change(nodes, index, Body::volumes);
        }
    }

    /// The tree of a volume that is not shared any more has changed.
    pub(super) fn set_objects(&mut self, nodes: &mut Nodes, volume: VolumeId, objects: Tree) {
        let Some(entry) = self.all.get_mut(&volume).filter(|entry| entry.objects != objects) else { return };
        entry.objects = objects;
        if !is_planted(StoreBug::VolumeLeafForgotten) {
            self.store(nodes, volume);
        }
    }

    /// Lets the leaf say of a volume what memory does.
    fn store(&mut self, nodes: &mut Nodes, volume: VolumeId) {
        let leaf = self.tree.leaf_for_change(nodes, index(volume), Body::volumes);
        let body = &mut nodes.node_mut(leaf).body;
        let Body::Volumes(entries) = body else { unreachable!("a leaf of volumes") };
        entries[slot(volume)] = self.all.get(&volume).cloned();
        if body.is_empty() {
            self.tree.remove_leaf(nodes, index(volume));
            self.tree.lower(nodes);
        }
    }

    /// Adds `to`, a clone of `volume`, if there is none: the root of its tree has one more reference by that.
    pub(super) fn clone_volume(&mut self, nodes: &mut Nodes, volume: VolumeId, to: VolumeId, new: Volume) {
        let source = self.all.get(&volume).filter(|_| !self.all.contains_key(&to));
        let Some(objects) = source.map(|source| source.objects) else { return };
        self.leaves += u64::from(!self.has_leaf(to));
        self.all.insert(to, Volume { objects, from: volume, ..new });
        self.next = self.next.max(VolumeId(to.0.saturating_add(1)));
        self.store(nodes, to);
        if objects.root.is_some() {
            nodes.refer(objects.root);
        }
    }

    /// Deletes a volume: its root is dying.
    pub(super) fn delete(&mut self, nodes: &mut Nodes, volume: VolumeId) {
        self.unshare(nodes, volume);
        let Some(gone) = self.all.remove(&volume) else { return };
        self.leaves -= u64::from(!self.has_leaf(volume));
        self.store(nodes, volume);
        if gone.objects.root.is_some() {
            self.push_dying(gone.objects.root);
            // A walk may have meant to find it in the leaf.
            nodes.still_referred(gone.objects.root);
        }
    }

    fn has_leaf(&self, volume: VolumeId) -> bool {
        let first = VolumeId(volume.0 - slot(volume) as u32);
        let last = VolumeId(first.0 + (LEAF_VOLUMES as u32 - 1));
        self.all.range(first..=last).next().is_some()
    }

    /// The nodes that deleted volumes and files left, those that go first at the end.
    pub(crate) fn dying(&self) -> impl DoubleEndedIterator<Item = NodeId> + ExactSizeIterator + '_ {
        self.dying.iter().copied()
    }

    /// Takes those that go first off the list, at most `most`, the first at the end.
    pub(super) fn take_dying(&mut self, most: usize) -> Vec<NodeId> {
        self.dying.split_off(self.dying.len().saturating_sub(most))
    }

    pub(crate) fn push_dying(&mut self, id: NodeId) {
        self.dying.push(id);
    }

    /// Puts back `later`, whose turn has not come, to go after all that has joined the list since it had `below`, and `last`, which cannot go
    /// now, to go last.
    pub(super) fn put_back_dying(&mut self, below: usize, later: Vec<NodeId>, last: Vec<NodeId>) {
        self.dying.splice(below..below, later);
        self.dying.splice(0..0, last);
    }

    /// All volumes, for people.
    pub(crate) fn describe_all(&self) -> Vec<VolumeInfo> {
        self.all.iter().map(|(&id, volume)| volume.describe(id)).collect()
    }

    /// The volume of this name.
    pub(crate) fn named(&self, name: &str) -> Option<VolumeInfo> {
        let unnamed = name.strip_prefix('#').and_then(|number| number.parse().ok().map(VolumeId));
        let found = self.all.iter().find(|&(&id, volume)| match &*volume.name {
            _ if id == VolumeId::MAIN => name == MAIN_VOLUME_NAME,
            "" => unnamed == Some(id),
            known => known == name,
        });
        found.map(|(&id, volume)| volume.describe(id)).filter(|volume| volume.name == name)
    }

    /// A part of a name, after those before it.
    pub(super) fn name(&mut self, nodes: &mut Nodes, volume: VolumeId, part: &[u8]) {
        let Some(entry) = self.all.get_mut(&volume) else { return };
        let part = String::from_utf8_lossy(part);
        if entry.name.len() + part.len() <= VOLUME_NAME_BYTES_MAX {
            entry.name.push_str(&part);
            self.store(nodes, volume);
        }
    }
}

/// The leaf that has a volume.
fn index(volume: VolumeId) -> u64 {
    u64::from(volume.0) / LEAF_VOLUMES
}

fn slot(volume: VolumeId) -> usize {
    volume.0 as usize % LEAF_VOLUMES as usize
}

/// Inner nodes above a leaf, at least.
fn height_for(leaf: u64) -> u8 {
    (0..).find(|&height| leaf < INNER_CHILDREN.pow(u32::from(height))).expect("numbers have 32 bits")
}

/// What a leaf that is in memory says, `None` for each volume that cannot be.
fn volumes_in(nodes: &Nodes, leaf: Leaf) -> Vec<Option<(VolumeId, Volume)>> {
    let Body::Volumes(entries) = nodes.cached(leaf.id) else { return vec![None] };
    let numbered =
        entries.iter().zip(0..).filter_map(|(entry, slot)| entry.clone().map(|entry| (slot, entry)));
    let number = |slot| leaf.index.checked_mul(LEAF_VOLUMES)?.checked_add(slot);
    let volume = |slot| number(slot).and_then(|number| u32::try_from(number).ok()).map(VolumeId);
    numbered.map(|(slot, entry)| volume(slot).map(|volume| (volume, entry))).collect()
}
