//! Volumes: address spaces of objects in one store, and instant copies of them.
//!
//! A clone shares all nodes with its source from the root on: making one costs a reference and a log entry, whatever it
//! holds. Whichever of the two is written to first takes copies of the nodes on the way down. A deleted volume's
//! root goes on the dying list, which is durable with the next checkpoint, and what nothing else refers to is freed
//! from there a step at a time; a crash only means that some of it is freed again.

use crate::counters::count;
use crate::entry::LogEntry;
use crate::error::StoreError;
use crate::label::Label;
use crate::map::{Body, Map, NodeId, Pages, Tree};
use crate::policy::Class;
use crate::store::Store;
use device::Lsn;
use std::collections::BTreeMap;
use std::fmt;

/// A volume's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VolumeId(pub u32);

impl VolumeId {
    /// The volume that every store has: the file system.
    pub const MAIN: VolumeId = VolumeId(0);
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Whether a volume may be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VolumeMode {
    /// It may.
    #[default]
    Writable,
    /// It may only be read, cloned and deleted.
    ReadOnly,
}

/// A volume in the map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Volume {
    pub(crate) objects: Tree,
    pub(crate) mode: VolumeMode,
}

/// Volumes at most: the volume table is written with every checkpoint, 32 bytes for each.
const VOLUMES_MAX: usize = 4096;
/// Nodes that a step frees: one read of a MiB at most.
const NODES_PER_STEP: usize = 256;

impl Store {
    /// Makes `to` what `from` is now, whatever that holds, in one durable log entry. `lsn` is the clone's place in
    /// the one order.
    ///
    /// # Errors
    /// [`StoreError::NoSuchVolume`], [`StoreError::VolumeExists`], [`StoreError::TooManyVolumes`], or those of
    /// [`apply`](Store::apply).
    pub fn clone_volume(
        &self,
        from: VolumeId,
        to: VolumeId,
        mode: VolumeMode,
        lsn: Lsn,
    ) -> Result<(), StoreError> {
        let mut writer = self.lock_writer();
        self.make_ready(&mut writer)?;
        {
            let map = self.map();
            map.volumes.get(&from).ok_or(StoreError::NoSuchVolume { volume: from })?;
            if map.volumes.contains_key(&to) {
                return Err(StoreError::VolumeExists { volume: to });
            }
            map.space_for_volume()?;
        }
        self.append_entries(
            &mut writer,
            from,
            vec![LogEntry::CloneVolume { to, mode, lsn, created: 0 }],
            Class::Writer,
        )
    }

    /// Deletes a volume. Its space comes back by [`free_step`](Store::free_step).
    ///
    /// # Errors
    /// [`StoreError::NoSuchVolume`], [`StoreError::MainVolume`], or those of [`apply`](Store::apply).
    pub fn delete_volume(&self, volume: VolumeId, lsn: Lsn) -> Result<(), StoreError> {
        let mut writer = self.lock_writer();
        self.make_ready(&mut writer)?;
        if volume == VolumeId::MAIN {
            return Err(StoreError::MainVolume);
        }
        self.map().volumes.get(&volume).ok_or(StoreError::NoSuchVolume { volume })?;
        self.append_entries(&mut writer, volume, vec![LogEntry::DeleteVolume { lsn }], Class::Frees)
    }

    /// All volumes.
    pub fn volumes(&self) -> Vec<(VolumeId, VolumeMode)> {
        self.map().volumes.iter().map(|(&id, volume)| (id, volume.mode)).collect()
    }

    /// Frees some of what deleted volumes held: at most 256 nodes. Returns whether there was anything to free. The
    /// blocks are free after two checkpoints.
    ///
    /// # Errors
    /// The device's, or [`StoreError::Corrupt`]: a node that cannot be read stays on the list, with what is below.
    pub fn free_step(&self) -> Result<bool, StoreError> {
        self.make_ready(&mut self.lock_writer())?;
        self.holding_nodes(|| {
            let ids = self.map().dying.iter().rev().take(NODES_PER_STEP).copied().collect::<Vec<_>>();
            if ids.is_empty() {
                return Ok(false);
            }
            let needed = ids.iter().filter(|&&id| self.map().table.references(id) == 1);
            let failed = self.load(needed.copied().collect());
            let freed = self.free_loaded(NODES_PER_STEP);
            match failed.into_values().next() {
                Some(error) if freed == 0 => Err(error),
                _ => Ok(true),
            }
        })
    }

    /// Frees what is in memory; returns how many.
    fn free_loaded(&self, max: usize) -> u64 {
        let _writer = self.lock_writer();
        let mut map = self.map_mut();
        let mut freed = 0;
        let mut stays = Vec::new();
        for _ in 0..max {
            let Some(id) = map.dying.pop() else { break };
            let alone = map.table.references(id) == 1;
            if alone && !map.nodes.contains_key(&id) {
                stays.push(id);
            } else {
                map.let_die(id);
                freed += 1;
            }
        }
        map.dying.splice(0..0, stays);
        count(&self.counting.nodes_freed, freed);
        freed
    }
}

impl Map {
    /// Whether there may be one more.
    pub(crate) fn space_for_volume(&self) -> Result<(), StoreError> {
        if self.volumes.len() >= VOLUMES_MAX {
            return Err(StoreError::TooManyVolumes { limit: VOLUMES_MAX });
        }
        Ok(())
    }

    /// Does what a log entry about a volume says. `volume` is the one that it is about.
    pub(crate) fn clone_volume(&mut self, volume: VolumeId, to: VolumeId, mode: VolumeMode, created: u64) {
        let Some(source) = self.volumes.get(&volume).copied().filter(|_| !self.volumes.contains_key(&to))
        else {
            return;
        };
        self.volumes.insert(to, Volume { objects: source.objects, mode });
        self.labels.insert(to, Label { name: String::new(), created, from: volume });
        if source.objects.root.is_some() {
            self.refer(source.objects.root);
        }
    }

    pub(crate) fn delete_volume(&mut self, volume: VolumeId) {
        let Some(gone) = self.volumes.remove(&volume) else { return };
        self.labels.remove(&volume);
        self.dying.extend(Some(gone.objects.root).filter(|root| root.is_some()));
    }

    /// Gives up the dying list's reference to a node. With the last one it goes, and the list gets its references.
    pub(crate) fn let_die(&mut self, id: NodeId) {
        if self.table.references(id) > 1 {
            self.table.drop_reference(id);
            #[cfg(feature = "planted-bugs")]
            self.drop_once_too_often(id);
            return;
        }
        match self.remove_node(id) {
            Body::Inner(children) => {
                children.iter().filter(|child| child.is_some()).for_each(|&child| self.condemn(child));
            }
            Body::Pages(entries) => entries.iter().for_each(|entry| self.forget(entry)),
            Body::Objects(objects) => {
                for object in objects.iter().flatten() {
                    match &object.pages {
                        Pages::Inline(pages) => pages.iter().for_each(|(_, entry)| self.forget(entry)),
                        Pages::Tree(tree) => self.condemn(tree.root),
                    }
                }
            }
        }
    }

    /// The dying list takes over a reference from a node that goes. A walk may have meant to find it there.
    fn condemn(&mut self, id: NodeId) {
        #[cfg(feature = "planted-bugs")]
        if self.plant_leaked_node && id.0.is_multiple_of(3) {
            return;
        }
        self.dying.push(id);
        self.still_referred(id);
    }

    #[cfg(feature = "planted-bugs")]
    fn drop_once_too_often(&mut self, id: NodeId) {
        if self.plant_freed_twice && self.table.references(id) > 1 {
            self.table.drop_reference(id);
        }
    }
}

/// The volumes of a new store.
pub(crate) fn main_only(objects: Tree) -> BTreeMap<VolumeId, Volume> {
    BTreeMap::from([(VolumeId::MAIN, Volume { objects, mode: VolumeMode::Writable })])
}
