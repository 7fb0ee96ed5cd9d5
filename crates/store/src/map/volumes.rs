//! The volumes of the map, and the dying list.
//!
//! The volumes lie in a tree of nodes by number, which is copied on write like any other: another reference
//! to its root is a clone of all volumes. A volume leaf has a reference to the root of each tree of objects
//! that it names. All volumes are in memory, too, so no look-up waits for this tree; a change of a volume
//! changes both.
//!
//! The *dying list* has the roots of trees that deleted volumes and files left, and then the children of
//! these nodes. Each node on it has one reference from the list.

use super::node::{MissingNodes, NodeBody, NodeId, NodeTree};
use super::node_tree::LeafRef;
use super::nodes::MapNodes;
use super::volume_leaf::VolumeEntry;
use crate::bug::{StoreBug, is_planted};
use crate::error::StoreError;
use crate::format::{INNER_CHILDREN, LEAF_VOLUMES};
use crate::volume::{MAIN_VOLUME_NAME, VOLUME_NAME_BYTES_MAX, VOLUMES_MAX, VolumeId, VolumeInfo};
use std::collections::{BTreeMap, BTreeSet};

/// All volumes. Owned by the map, under its lock. After a crash: the volumes of the newest root, and the log
/// entries after it.
#[derive(Debug, Default)]
pub(crate) struct MapVolumes {
    /// The tree of volume leaves.
    tree: NodeTree,
    all: BTreeMap<VolumeId, VolumeEntry>,
    /// Number of leaves in which `all` lie.
    leaves: u64,
    /// The number of the next volume: higher than any ever used, because the buffer may have records of a
    /// deleted volume.
    next: VolumeId,
    /// The dying list; the nodes at the end are freed first.
    dying: Vec<NodeId>,
}

impl MapVolumes {
    /// Volumes whose tree was not read yet.
    pub(crate) fn unread(tree: NodeTree, next: VolumeId, dying: Vec<NodeId>) -> MapVolumes {
        MapVolumes { tree, next, dying, ..MapVolumes::default() }
    }

    /// Sets the volumes that were read from the tree.
    pub(crate) fn set_volumes(&mut self, all: BTreeMap<VolumeId, VolumeEntry>) {
        self.leaves = all.keys().map(|&id| leaf_index(id)).collect::<BTreeSet<_>>().len() as u64;
        self.all = all;
    }

    /// Adds what a store of [`DRAFT_BEFORE`](crate::format::DRAFT_BEFORE) has without saying so: volume 0,
    /// and its name. The path to its leaf is in memory.
    pub(crate) fn add_implied_main(&mut self, nodes: &mut MapNodes) {
        let main = self.all.get(&VolumeId::MAIN).cloned().unwrap_or_default();
        self.insert(nodes, VolumeId::MAIN, VolumeEntry { name: MAIN_VOLUME_NAME.to_owned(), ..main });
    }

    /// All volumes, as the nodes of the tree have them; `None` if the tree makes no sense.
    pub(crate) fn read_tree(
        &self,
        nodes: &MapNodes,
    ) -> Result<Option<BTreeMap<VolumeId, VolumeEntry>>, MissingNodes> {
        let leaves = self.tree.leaves(nodes, 0..u64::MAX)?;
        Ok(leaves
            .into_iter()
            .flat_map(|leaf| volumes_in(nodes, leaf))
            .collect::<Option<BTreeMap<_, _>>>()
            .filter(|all| all.keys().all(|&volume| volume < self.next)))
    }

    /// The tree of volume leaves.
    pub(crate) fn tree(&self) -> NodeTree {
        self.tree
    }

    /// Whether neither the root of the volume's tree nor its volume leaf is shared. Changes of objects then
    /// leave the root's id as it is.
    pub(crate) fn is_unshared(&self, nodes: &MapNodes, volume: VolumeId) -> bool {
        let alone = |volume: &VolumeEntry| nodes.table.references(volume.objects.root) == 1;
        self.get(volume).is_some_and(alone)
            && self.tree.is_shared(nodes, leaf_index(volume)).is_ok_and(|shared| !shared)
    }

    /// The nodes that a change of a volume may make dirty, each by its height and its first leaf.
    pub(crate) fn path(&self, volume: VolumeId) -> impl Iterator<Item = (u8, u64)> + use<> {
        let leaf = leaf_index(volume);
        (0..=self.tree.height.max(height_for(leaf))).map(move |height| (height, leaf >> (8 * height)))
    }

    /// Whether the nodes on the path to a volume are in memory.
    pub(super) fn prepare(&self, nodes: &MapNodes, volume: VolumeId) -> Result<(), MissingNodes> {
        self.tree.leaf(nodes, leaf_index(volume)).map(drop)
    }

    pub(crate) fn get(&self, volume: VolumeId) -> Option<&VolumeEntry> {
        self.all.get(&volume)
    }

    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (VolumeId, &VolumeEntry)> {
        self.all.iter().map(|(&id, volume)| (id, volume))
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// A number that no volume ever had.
    pub(crate) fn next_id(&self) -> VolumeId {
        if is_planted(StoreBug::VolumeNumberUsedAgain) {
            return self.all.keys().next_back().map_or(VolumeId(0), |last| VolumeId(last.0 + 1));
        }
        self.next
    }

    /// The root of the volumes' tree, and the nodes on the dying list.
    pub(crate) fn roots(&self) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::once(self.tree.root).chain(self.dying())
    }

    /// The root of each volume's tree, and the nodes on the dying list.
    pub(crate) fn roots_of_data(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.all.values().map(|volume| volume.objects.root).chain(self.dying())
    }

    /// Whether a volume can be rolled back to this one: see [`VolumeRollback`](crate::VolumeRollback).
    pub(crate) fn has_snapshot(&self, volume: VolumeId, snapshot: VolumeId) -> bool {
        let source = |volume: VolumeId| self.get(volume).map(|entry| entry.from);
        // A clone has a higher number than its source. A volume that is no clone is its own source.
        let older_source = |&volume: &VolumeId| source(volume).filter(|&from| from < volume);
        let mut ancestors = std::iter::successors(Some(volume), older_source);
        snapshot != volume && ancestors.any(|one| one == snapshot || source(snapshot) == Some(one))
    }

    /// An error if there may not be `count` more volumes.
    pub(crate) fn ensure_may_add(&self, count: usize) -> Result<(), StoreError> {
        if self.all.len() + count > VOLUMES_MAX {
            return Err(StoreError::TooManyVolumes { limit: VOLUMES_MAX });
        }
        Ok(())
    }

    /// Copies the leaf of a volume if it is shared, so that the volume can change. Each tree of objects in
    /// the leaf gets one reference more.
    pub(super) fn unshare(&mut self, nodes: &mut MapNodes, volume: VolumeId) {
        let index = leaf_index(volume);
        if self.tree.is_shared(nodes, index).expect("prepared") {
            self.tree.leaf_for_change(nodes, index, NodeBody::volumes);
        }
    }

    /// Sets the tree of a volume, which is not shared.
    pub(super) fn set_objects(&mut self, nodes: &mut MapNodes, volume: VolumeId, objects: NodeTree) {
        let Some(entry) = self.all.get_mut(&volume).filter(|entry| entry.objects != objects) else { return };
        entry.objects = objects;
        if !is_planted(StoreBug::VolumeLeafForgotten) {
            self.write_entry(nodes, volume);
        }
    }

    /// Writes a volume's entry in memory to its leaf.
    fn write_entry(&mut self, nodes: &mut MapNodes, volume: VolumeId) {
        let leaf = self.tree.leaf_for_change(nodes, leaf_index(volume), NodeBody::volumes);
        let body = &mut nodes.node_mut(leaf).body;
        let NodeBody::Volumes(entries) = body else { unreachable!("a leaf of volumes") };
        entries[leaf_slot(volume)] = self.all.get(&volume).cloned();
        if body.is_empty() {
            self.tree.remove_leaf(nodes, leaf_index(volume));
            self.tree.reduce_height(nodes);
        }
    }

    fn insert(&mut self, nodes: &mut MapNodes, volume: VolumeId, new: VolumeEntry) {
        self.leaves += u64::from(!self.has_leaf(volume));
        self.all.insert(volume, new);
        self.next = self.next.max(VolumeId(volume.0.saturating_add(1)));
        self.write_entry(nodes, volume);
    }

    /// Adds an empty volume if it does not exist.
    pub(super) fn create(&mut self, nodes: &mut MapNodes, volume: VolumeId, new: VolumeEntry) {
        if !self.all.contains_key(&volume) {
            self.insert(nodes, volume, new);
        }
    }

    /// Adds `to`, a clone of `volume`, if it does not exist: the root of the tree gets one reference more.
    pub(super) fn clone_volume(
        &mut self,
        nodes: &mut MapNodes,
        volume: VolumeId,
        to: VolumeId,
        new: VolumeEntry,
    ) {
        let source = self.all.get(&volume).filter(|_| !self.all.contains_key(&to));
        let Some(&VolumeEntry { objects, size, .. }) = source else { return };
        self.insert(nodes, to, VolumeEntry { objects, size, from: volume, ..new });
        if objects.root.is_some() {
            nodes.add_reference(objects.root);
        }
    }

    /// Deletes a volume: its root goes to the dying list.
    pub(super) fn delete(&mut self, nodes: &mut MapNodes, volume: VolumeId) {
        self.unshare(nodes, volume);
        let Some(gone) = self.all.remove(&volume) else { return };
        self.leaves -= u64::from(!self.has_leaf(volume));
        self.write_entry(nodes, volume);
        if gone.objects.root.is_some() {
            self.push_dying(gone.objects.root);
            // A scan may have expected to find this root in the leaf.
            nodes.shade(gone.objects.root);
        }
    }

    fn has_leaf(&self, volume: VolumeId) -> bool {
        let first = VolumeId(volume.0 - leaf_slot(volume) as u32);
        let last = VolumeId(first.0 + (LEAF_VOLUMES as u32 - 1));
        self.all.range(first..=last).next().is_some()
    }

    /// The nodes on the dying list; those at the end are freed first.
    pub(crate) fn dying(&self) -> impl DoubleEndedIterator<Item = NodeId> + ExactSizeIterator + '_ {
        self.dying.iter().copied()
    }

    /// Takes the last `most` nodes off the list.
    pub(super) fn take_dying(&mut self, most: usize) -> Vec<NodeId> {
        self.dying.split_off(self.dying.len().saturating_sub(most))
    }

    pub(crate) fn push_dying(&mut self, id: NodeId) {
        self.dying.push(id);
    }

    /// Puts `later` back at position `below`, so that nodes which joined the list since are freed before
    /// them. Puts `last`, which cannot be freed now, at the start, to be freed last.
    pub(super) fn put_back_dying(&mut self, below: usize, later: Vec<NodeId>, last: Vec<NodeId>) {
        self.dying.splice(below..below, later);
        self.dying.splice(0..0, last);
    }

    /// All volumes, as users see them.
    pub(crate) fn describe_all(&self) -> Vec<VolumeInfo> {
        self.all.iter().map(|(&id, volume)| volume.describe(id)).collect()
    }

    /// A volume, as users see it.
    pub(crate) fn describe(&self, volume: VolumeId) -> Result<VolumeInfo, StoreError> {
        match self.get(volume) {
            Some(entry) => Ok(entry.describe(volume)),
            None => Err(StoreError::NoSuchVolume { volume }),
        }
    }

    /// The volume of this name; one without a name is `#` and its number.
    pub(crate) fn find_by_name(&self, name: &str) -> Option<VolumeInfo> {
        let unnamed = name.strip_prefix('#').and_then(|number| number.parse().ok().map(VolumeId));
        let found = self.all.iter().find(|&(&id, volume)| match &*volume.name {
            "" => unnamed == Some(id),
            known => known == name,
        });
        found.map(|(&id, volume)| volume.describe(id)).filter(|volume| volume.name == name)
    }

    /// Begins a volume's name anew with a part, or appends a part to the name.
    pub(super) fn add_to_name(&mut self, nodes: &mut MapNodes, volume: VolumeId, part: &[u8], begins: bool) {
        let Some(entry) = self.all.get_mut(&volume) else { return };
        if begins {
            entry.name.clear();
        }
        let part = String::from_utf8_lossy(part);
        if entry.name.len() + part.len() <= VOLUME_NAME_BYTES_MAX {
            entry.name.push_str(&part);
            self.write_entry(nodes, volume);
        }
    }
}

/// The index of the leaf of a volume.
fn leaf_index(volume: VolumeId) -> u64 {
    u64::from(volume.0) / LEAF_VOLUMES
}

fn leaf_slot(volume: VolumeId) -> usize {
    volume.0 as usize % LEAF_VOLUMES as usize
}

/// The least height of a tree with this leaf.
fn height_for(leaf: u64) -> u8 {
    (0..).find(|&height| leaf < INNER_CHILDREN.pow(u32::from(height))).expect("numbers have 32 bits")
}

/// The volumes in a leaf that is in memory; `None` for an entry whose number is too high.
fn volumes_in(nodes: &MapNodes, leaf: LeafRef) -> Vec<Option<(VolumeId, VolumeEntry)>> {
    let NodeBody::Volumes(entries) = nodes.cached(leaf.id) else { return vec![None] };
    let numbered =
        entries.iter().zip(0..).filter_map(|(entry, slot)| entry.clone().map(|entry| (slot, entry)));
    let number = |slot| leaf.index.checked_mul(LEAF_VOLUMES)?.checked_add(slot);
    let volume = |slot| number(slot).and_then(|number| u32::try_from(number).ok()).map(VolumeId);
    numbered.map(|(slot, entry)| volume(slot).map(|volume| (volume, entry))).collect()
}
