//! Cloning and deleting volumes.
//!
//! A clone shares all nodes with its source, from the root on: it costs a reference and a log entry, whatever
//! the source holds. The first write to either copies the nodes on its way down. The log entries of a clone's
//! name follow in the same batch: a crash leaves both or neither.
//!
//! The root of a deleted volume goes on the dying list, which is durable with the next checkpoint. Steps of
//! background work then free the nodes and blocks that nothing else refers to. After a crash, some steps are
//! repeated.

use crate::counters::count;
use crate::error::StoreError;
use crate::log_entry::{LogEntry, NAME_PART_BYTES};
use crate::policy::SpaceClass;
use crate::shared::StoreShared;
use crate::volume::{NewVolume, VolumeId, check_volume_name};
use crate::writer::{StoreWriter, WriterLock};
use device::Lsn;

/// Nodes that a step frees: it reads at most a MiB.
const NODES_PER_STEP: usize = 256;

/// See [`StoreVolumes::clone_named`](crate::StoreVolumes::clone_named).
pub(crate) fn clone_named(
    shared: &StoreShared,
    writer: &mut StoreWriter,
    from: VolumeId,
    new: &NewVolume<'_>,
    lsn: Lsn,
) -> Result<VolumeId, StoreError> {
    writer.make_ready(shared)?;
    check_clone(shared, from, new.name)?;
    // Not the number of a deleted volume: the buffer may have records of it.
    let to = shared.map().volumes.next_id();
    let mut entries = vec![LogEntry::CloneVolume { from, to, mode: new.mode, lsn, created: new.created }];
    let parts = new.name.as_bytes().chunks(NAME_PART_BYTES);
    entries.extend(parts.map(|part| LogEntry::NameVolume { volume: to, part: part.to_vec() }));
    writer.append_entries(shared, entries, SpaceClass::Writer)?;
    Ok(to)
}

/// See [`StoreVolumes::check_clone`](crate::StoreVolumes::check_clone).
pub(crate) fn check_clone(shared: &StoreShared, from: VolumeId, name: &str) -> Result<(), StoreError> {
    check_volume_name(name)?;
    let map = shared.map();
    if map.volumes.find_by_name(name).is_some() {
        return Err(StoreError::NameTaken { name: name.to_owned() });
    }
    map.volumes.get(from).ok_or(StoreError::NoSuchVolume { volume: from })?;
    map.volumes.ensure_below_max()
}

/// See [`StoreVolumes::delete`](crate::StoreVolumes::delete).
pub(crate) fn delete_volume(
    shared: &StoreShared,
    writer: &mut StoreWriter,
    volume: VolumeId,
    lsn: Lsn,
) -> Result<(), StoreError> {
    writer.make_ready(shared)?;
    if volume == VolumeId::MAIN {
        return Err(StoreError::MainVolume);
    }
    shared.map().volumes.get(volume).ok_or(StoreError::NoSuchVolume { volume })?;
    writer.append_entries(shared, vec![LogEntry::DeleteVolume { volume, lsn }], SpaceClass::DeletesVolume)
}

/// See [`StoreMaintenance::free_deleted_step`](crate::StoreMaintenance::free_deleted_step).
pub(crate) fn free_deleted_step(shared: &StoreShared, writer: &WriterLock) -> Result<bool, StoreError> {
    writer.lock().make_ready(shared)?;
    shared.holding_nodes(|| {
        let needed = {
            let map = shared.map();
            let ids: Vec<_> = map.volumes.dying().rev().take(NODES_PER_STEP).collect();
            if ids.is_empty() {
                return Ok(false);
            }
            ids.into_iter().filter(|&id| map.nodes.table.references(id) == 1).collect()
        };
        let failed = shared.load_nodes(needed);
        let _writer = writer.lock();
        let freed = shared.map_mut().free_dying(NODES_PER_STEP);
        count(&shared.medium.counting().nodes_freed, freed);
        match failed.into_values().next() {
            Some(error) if freed == 0 => Err(error),
            _ => Ok(true),
        }
    })
}

#[cfg(test)]
mod tests;
