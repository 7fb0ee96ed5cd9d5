//! The store's volumes.

use crate::error::StoreError;
use crate::shared::StoreShared;
use crate::volume::{NewVolume, VolumeId, VolumeInfo, VolumeMode, VolumeRestoration, VolumeRollback};
use crate::volume_changes;
use crate::volume_usage::{self, StoreUsage};
use crate::writer::WriterLock;
use device::{Lsn, PageNo, SharedPage};

/// Lists, creates, clones, renames, rolls back and deletes the volumes of a [`Store`](crate::Store).
#[derive(Clone, Copy)]
pub struct StoreVolumes<'a> {
    shared: &'a StoreShared,
    writer: &'a WriterLock,
}

impl<'a> StoreVolumes<'a> {
    pub(crate) fn new(shared: &'a StoreShared, writer: &'a WriterLock) -> StoreVolumes<'a> {
        StoreVolumes { shared, writer }
    }

    /// The numbers and modes of all volumes.
    pub fn all(&self) -> Vec<(VolumeId, VolumeMode)> {
        self.shared.map().volumes.iter().map(|(id, volume)| (id, volume.mode)).collect()
    }

    /// Whether a volume may be changed; `None` if it does not exist.
    pub fn mode(&self, volume: VolumeId) -> Option<VolumeMode> {
        self.shared.map().volumes.get(volume).map(|volume| volume.mode)
    }

    /// All volumes, ordered by number.
    pub fn describe(&self) -> Vec<VolumeInfo> {
        self.shared.map().volumes.describe_all()
    }

    /// The volume of this name. A volume without a name is called `#` and its number.
    pub fn named(&self, name: &str) -> Option<VolumeInfo> {
        self.shared.map().volumes.find_by_name(name)
    }

    /// Makes a new named volume, in one durable batch with `pages`, the first ones of its metadata. Returns
    /// its number, which no volume ever had. `lsn` is its place in the one order, and the pages' page LSN.
    ///
    /// # Errors
    /// [`StoreError::BadName`], [`StoreError::NameTaken`], [`StoreError::TooManyVolumes`]; those of
    /// [`apply`](crate::StoreData::apply).
    pub fn create(
        &self,
        new: &NewVolume<'_>,
        pages: &[(PageNo, SharedPage)],
        lsn: Lsn,
    ) -> Result<VolumeId, StoreError> {
        volume_changes::create_volume(self.shared, &mut self.writer.lock(), new, pages, lsn)
    }

    /// Gives a volume another name, in one durable batch.
    ///
    /// # Errors
    /// [`StoreError::NoSuchVolume`], [`StoreError::BadName`], [`StoreError::NameTaken`]; those of
    /// [`apply`](crate::StoreData::apply).
    pub fn rename(&self, volume: VolumeId, name: &str) -> Result<(), StoreError> {
        volume_changes::rename_volume(self.shared, &mut self.writer.lock(), volume, name)
    }

    /// Checks that these clones, each with its source, can be made, before costly work begins.
    ///
    /// # Errors
    /// [`StoreError::BadName`], also for a name that two of the clones have; [`StoreError::NameTaken`],
    /// [`StoreError::NoSuchVolume`], [`StoreError::TooManyVolumes`].
    pub fn check_clones(&self, clones: &[(VolumeId, NewVolume<'_>)]) -> Result<(), StoreError> {
        volume_changes::check_clones(self.shared, clones)
    }

    /// Makes clones, each of the volume before it in its pair, in one durable batch, whatever the volumes hold.
    /// Returns their numbers, in the order of `clones`. `lsn` is the clones' place in the one order.
    ///
    /// # Errors
    /// Those of [`check_clones`](StoreVolumes::check_clones) and [`apply`](crate::StoreData::apply).
    pub fn clone_volumes(
        &self,
        clones: &[(VolumeId, NewVolume<'_>)],
        lsn: Lsn,
    ) -> Result<Vec<VolumeId>, StoreError> {
        volume_changes::clone_volumes(self.shared, &mut self.writer.lock(), clones, lsn)
    }

    /// [`clone_volumes`](StoreVolumes::clone_volumes) of one volume.
    pub fn clone_named(&self, from: VolumeId, new: &NewVolume<'_>, lsn: Lsn) -> Result<VolumeId, StoreError> {
        self.clone_volumes(&[(from, *new)], lsn).map(|made| made[0])
    }

    /// Checks that a volume can be rolled back, before costly work begins.
    ///
    /// # Errors
    /// [`StoreError::NoSuchVolume`], [`StoreError::NotASnapshot`], [`StoreError::BadName`],
    /// [`StoreError::NameTaken`], [`StoreError::TooManyVolumes`].
    pub fn check_rollback(&self, rollback: &VolumeRollback<'_>) -> Result<(), StoreError> {
        volume_changes::check_rollback(self.shared, rollback)
    }

    /// Rolls a volume back, in one durable batch. Returns the number of the clone that has its name now. `lsn`
    /// is the clone's place in the one order.
    ///
    /// # Errors
    /// Those of [`check_rollback`](StoreVolumes::check_rollback) and [`apply`](crate::StoreData::apply).
    pub fn roll_back(&self, rollback: &VolumeRollback<'_>, lsn: Lsn) -> Result<VolumeId, StoreError> {
        volume_changes::roll_back(self.shared, &mut self.writer.lock(), rollback, lsn)
    }

    /// Renames volumes that a lost buffer may have damaged, and gives their names to clones of snapshots, before the store
    /// [begins](crate::Store::begin_after). That makes all of it durable together with the store's
    /// [settings](crate::Store::set_settings), or nothing. `lsn` is the clones' place in the one order.
    ///
    /// # Errors
    /// [`StoreError::NoSuchVolume`], [`StoreError::NotASnapshot`], [`StoreError::BadName`],
    /// [`StoreError::NameTaken`], [`StoreError::TooManyVolumes`]: then nothing has changed. A map node that cannot be
    /// read: the store must be opened again.
    ///
    /// # Panics
    /// If the store has begun.
    pub fn restore_before_begin(
        &self,
        restorations: &[VolumeRestoration],
        lsn: Lsn,
    ) -> Result<(), StoreError> {
        volume_changes::restore_before_begin(self.shared, &mut self.writer.lock(), restorations, lsn)
    }

    /// Deletes a volume. [`free_deleted_step`](crate::StoreMaintenance::free_deleted_step) frees its space.
    ///
    /// # Errors
    /// [`StoreError::NoSuchVolume`], or those of [`apply`](crate::StoreData::apply).
    pub fn delete(&self, volume: VolumeId, lsn: Lsn) -> Result<(), StoreError> {
        volume_changes::delete_volume(self.shared, &mut self.writer.lock(), volume, lsn)
    }

    /// Counts the blocks that each volume has alone and shares. Reads every node of the map, and keeps about
    /// 50 bytes for each meanwhile. Changes of the store wait until it is done; reads do not.
    ///
    /// # Errors
    /// A node that cannot be read, or is damaged.
    pub fn usage(&self) -> Result<StoreUsage, StoreError> {
        let _writer = self.writer.lock();
        volume_usage::usage(self.shared)
    }
}
