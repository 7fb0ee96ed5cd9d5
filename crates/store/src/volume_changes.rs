//! Creating, cloning, renaming, rolling back and deleting volumes.
//!
//! A new volume, its name and its first pages of metadata are one batch: a crash leaves all or nothing. So are
//! all clones of one call with their names, and both names of a rollback with its clone.
//!
//! A clone shares all nodes with its source, from the root on: it costs a reference and a log entry, whatever
//! the source holds. The first write to either copies the nodes on its way down.
//!
//! The root of a deleted volume goes on the dying list, which is durable with the next checkpoint. Steps of
//! background work then free the nodes and blocks that nothing else refers to. After a crash, some steps are
//! repeated.

use crate::counters::count;
use crate::error::StoreError;
use crate::log_entry::{BatchOrigin, LogEntry, NAME_PART_BYTES};
use crate::policy::SpaceClass;
use crate::shared::StoreShared;
use crate::volume::{NewVolume, VolumeId, VolumeMode, VolumeRestoration, VolumeRollback, check_volume_name};
use crate::writer::{StoreWriter, WriterLock};
use device::{Lsn, ObjectId, PageNo, SharedPage};
use std::collections::BTreeSet;

/// Nodes that a step frees: it reads at most a MiB.
const NODES_PER_STEP: usize = 256;

/// See [`StoreVolumes::create`](crate::StoreVolumes::create).
pub(crate) fn create_volume(
    shared: &StoreShared,
    writer: &mut StoreWriter,
    new: &NewVolume<'_>,
    pages: &[(PageNo, SharedPage)],
    lsn: Lsn,
) -> Result<VolumeId, StoreError> {
    writer.make_ready(shared)?;
    check_name(shared, new.name)?;
    shared.map().volumes.ensure_may_add(1)?;
    let volume = shared.map().volumes.next_id();
    let (mode, created) = (new.mode, new.created);
    let mut entries = vec![LogEntry::CreateVolume { volume, mode, lsn, created, size: 0 }];
    entries.extend(name_entries(volume, new.name));
    let mut data = vec![None; entries.len()];
    for (page, bytes) in pages {
        entries.push(LogEntry::write(volume.object(ObjectId::METADATA_SLOT, 0), *page, bytes, lsn));
        data.push(Some(&***bytes));
    }
    writer.append(shared, entries, &data, SpaceClass::Writer, BatchOrigin::Logged)?;
    Ok(volume)
}

/// See [`StoreVolumes::rename`](crate::StoreVolumes::rename).
pub(crate) fn rename_volume(
    shared: &StoreShared,
    writer: &mut StoreWriter,
    volume: VolumeId,
    name: &str,
) -> Result<(), StoreError> {
    writer.make_ready(shared)?;
    shared.map().volumes.get(volume).ok_or(StoreError::NoSuchVolume { volume })?;
    check_name(shared, name)?;
    writer.append_entries(shared, name_entries(volume, name).collect(), SpaceClass::Writer)
}

/// The log entries of a volume's new name.
fn name_entries(volume: VolumeId, name: &str) -> impl Iterator<Item = LogEntry> + '_ {
    let parts = name.as_bytes().chunks(NAME_PART_BYTES).enumerate();
    parts.map(move |(index, part)| LogEntry::NameVolume { volume, part: part.to_vec(), begins: index == 0 })
}

/// See [`StoreVolumes::clone_volumes`](crate::StoreVolumes::clone_volumes).
pub(crate) fn clone_volumes(
    shared: &StoreShared,
    writer: &mut StoreWriter,
    clones: &[(VolumeId, NewVolume<'_>)],
    lsn: Lsn,
) -> Result<Vec<VolumeId>, StoreError> {
    writer.make_ready(shared)?;
    check_clones(shared, clones)?;
    // Not the numbers of deleted volumes: the buffer may have records of them.
    let first = shared.map().volumes.next_id();
    let made: Vec<VolumeId> = (first.0..).map(VolumeId).take(clones.len()).collect();
    let mut entries = Vec::new();
    for (&to, (from, new)) in made.iter().zip(clones) {
        entries.extend(clone_entries(*from, to, new, lsn));
    }
    writer.append_entries(shared, entries, SpaceClass::Writer)?;
    Ok(made)
}

/// The log entries of a clone and its name.
fn clone_entries<'a>(
    from: VolumeId,
    to: VolumeId,
    new: &NewVolume<'a>,
    lsn: Lsn,
) -> impl Iterator<Item = LogEntry> + use<'a> {
    let clone = LogEntry::CloneVolume { from, to, mode: new.mode, lsn, created: new.created };
    std::iter::once(clone).chain(name_entries(to, new.name))
}

/// See [`StoreVolumes::check_clones`](crate::StoreVolumes::check_clones).
pub(crate) fn check_clones(
    shared: &StoreShared,
    clones: &[(VolumeId, NewVolume<'_>)],
) -> Result<(), StoreError> {
    let mut names = BTreeSet::new();
    for (from, new) in clones {
        check_name(shared, new.name)?;
        if !names.insert(new.name) {
            let why = "another of the new volumes is to have it".into();
            return Err(StoreError::BadName { name: new.name.to_owned(), why });
        }
        shared.map().volumes.get(*from).ok_or(StoreError::NoSuchVolume { volume: *from })?;
    }
    shared.map().volumes.ensure_may_add(clones.len())
}

/// See [`StoreVolumes::roll_back`](crate::StoreVolumes::roll_back).
pub(crate) fn roll_back(
    shared: &StoreShared,
    writer: &mut StoreWriter,
    rollback: &VolumeRollback<'_>,
    lsn: Lsn,
) -> Result<VolumeId, StoreError> {
    writer.make_ready(shared)?;
    check_rollback(shared, rollback)?;
    let VolumeRollback { volume, snapshot, kept_name, created } = *rollback;
    let name = shared.map().volumes.describe(volume)?.name;
    let to = shared.map().volumes.next_id();
    let new = NewVolume { name: &name, mode: VolumeMode::Writable, created };
    let mut entries: Vec<LogEntry> = name_entries(volume, kept_name).collect();
    entries.extend(clone_entries(snapshot, to, &new, lsn));
    writer.append_entries(shared, entries, SpaceClass::Writer)?;
    Ok(to)
}

/// See [`StoreVolumes::check_rollback`](crate::StoreVolumes::check_rollback).
pub(crate) fn check_rollback(shared: &StoreShared, rollback: &VolumeRollback<'_>) -> Result<(), StoreError> {
    let VolumeRollback { volume, snapshot, kept_name, .. } = *rollback;
    let map = shared.map();
    let replaced = map.volumes.describe(volume)?;
    let source = map.volumes.describe(snapshot)?;
    if !map.volumes.has_snapshot(volume, snapshot) {
        return Err(StoreError::NotASnapshot { volume: replaced.name, snapshot: source.name });
    }
    map.volumes.ensure_may_add(1)?;
    drop(map);
    check_name(shared, kept_name)
}

/// See [`StoreVolumes::restore_before_begin`](crate::StoreVolumes::restore_before_begin).
pub(crate) fn restore_before_begin(
    shared: &StoreShared,
    writer: &mut StoreWriter,
    restorations: &[VolumeRestoration],
    lsn: Lsn,
) -> Result<(), StoreError> {
    let entries = restoration_entries(shared, restorations, lsn)?;
    writer.extend_recovered(shared, &entries)
}

/// The log entries of restorations, which are checked together.
fn restoration_entries(
    shared: &StoreShared,
    restorations: &[VolumeRestoration],
    lsn: Lsn,
) -> Result<Vec<LogEntry>, StoreError> {
    let mut kept_names = BTreeSet::new();
    let mut next = shared.map().volumes.next_id();
    let mut entries = Vec::new();
    for VolumeRestoration { volume, kept_name, snapshot } in restorations {
        let name = shared.map().volumes.describe(*volume)?.name;
        if !kept_names.insert(kept_name) {
            return Err(StoreError::NameTaken { name: kept_name.clone() });
        }
        check_name(shared, kept_name)?;
        entries.extend(name_entries(*volume, kept_name));
        let Some(snapshot) = snapshot else { continue };
        let (id, created) = (snapshot.id, snapshot.created);
        check_rollback(shared, &VolumeRollback { volume: *volume, snapshot: id, kept_name, created })?;
        let new = NewVolume { name: &name, mode: VolumeMode::Writable, created };
        entries.extend(clone_entries(id, next, &new, lsn));
        next = VolumeId(next.0 + 1);
    }
    shared.map().volumes.ensure_may_add(restorations.len())?;
    Ok(entries)
}

/// Checks that a volume may be given this name.
fn check_name(shared: &StoreShared, name: &str) -> Result<(), StoreError> {
    check_volume_name(name)?;
    match shared.map().volumes.find_by_name(name) {
        Some(_) => Err(StoreError::NameTaken { name: name.to_owned() }),
        None => Ok(()),
    }
}

/// See [`StoreVolumes::delete`](crate::StoreVolumes::delete).
pub(crate) fn delete_volume(
    shared: &StoreShared,
    writer: &mut StoreWriter,
    volume: VolumeId,
    lsn: Lsn,
) -> Result<(), StoreError> {
    writer.make_ready(shared)?;
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
