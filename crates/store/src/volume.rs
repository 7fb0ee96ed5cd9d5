//! The public types of volumes: numbers, names, modes.

use crate::error::StoreError;
use device::{Lsn, PageNo};

pub use device::VolumeId;

/// Whether a volume may be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum VolumeMode {
    /// It may.
    #[default]
    Writable,
    /// It may only be read, cloned and deleted.
    ReadOnly,
}

/// The name of the volume that `weir format` makes, and `weir mount` mounts by default.
pub const MAIN_VOLUME_NAME: &str = "main";

/// Most bytes of a name, as in other volume managers.
pub const VOLUME_NAME_BYTES_MAX: usize = 127;

/// Most volumes. A start reads a node for each 16 of them, and all of them are in memory, about 200 bytes
/// each. Their nodes count as reserved, too.
pub(crate) const VOLUMES_MAX: usize = 65_536;

/// A volume to be made.
#[derive(Debug, Clone, Copy, Default)]
pub struct NewVolume<'a> {
    /// Its name: see [`check_volume_name`].
    pub name: &'a str,
    /// Whether it may be changed.
    pub mode: VolumeMode,
    /// When it was made, in nanoseconds since 1970.
    pub created: u64,
}

/// Gives a volume's name to a writable clone of a snapshot. The volume stays, under another name.
///
/// The snapshot must be a clone of the volume or of one of its ancestors, which are the volume that it was
/// cloned from, that one's source, and so on. A rollback makes the volume before it an ancestor of the new
/// one, so snapshots from before an earlier rollback are accepted. An ancestor is accepted as well: that undoes
/// a rollback. A deleted ancestor hides its own ancestors.
#[derive(Debug, Clone, Copy)]
pub struct VolumeRollback<'a> {
    /// The volume that loses its name.
    pub volume: VolumeId,
    /// The snapshot, which may be writable.
    pub snapshot: VolumeId,
    /// The new name of `volume`.
    pub kept_name: &'a str,
    /// When the clone was made, in nanoseconds since 1970.
    pub created: u64,
}

/// What becomes of a volume whose newest changes are lost with the buffer: see
/// [`StoreVolumes::restore_before_begin`](crate::StoreVolumes::restore_before_begin).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeRestoration {
    /// The volume, whose pages may be of different points in time.
    pub volume: VolumeId,
    /// Its new name.
    pub kept_name: String,
    /// The snapshot of which a writable clone gets the volume's name. `None`: no volume has that name any more.
    pub snapshot: Option<RestoredSnapshot>,
}

/// The snapshot that a volume is restored from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestoredSnapshot {
    /// As for a [rollback](VolumeRollback::snapshot).
    pub id: VolumeId,
    /// When its state was that of the volume, in nanoseconds since 1970.
    pub created: u64,
}

/// A volume's properties.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its number.
    pub id: VolumeId,
    /// Whether it may be changed.
    pub mode: VolumeMode,
    /// Its name; `#` and its number if it was not given one.
    pub name: String,
    /// When it was made, in nanoseconds since 1970; 0 if unknown.
    pub created: u64,
    /// The volume that it was cloned from, which may be deleted; `None` if it is no clone.
    pub from: Option<VolumeId>,
}

/// A part of an object's pages, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPages {
    /// The pages, each with its page LSN: the highest LSN whose change its bytes contain.
    pub pages: Vec<(PageNo, Lsn)>,
    /// The first page that was not looked at: below it the list is complete.
    pub until: PageNo,
}

/// Checks a volume's name. It has letters, digits and `. _ - + : @` of ASCII, at most 127, and begins with a
/// letter or a digit, so that no shell and no option parser takes it for something else.
///
/// # Errors
/// [`StoreError::BadName`].
pub fn check_volume_name(name: &str) -> Result<(), StoreError> {
    let bad = |why: &str| Err(StoreError::BadName { name: name.to_owned(), why: why.to_owned() });
    if name.is_empty() {
        return bad("it is empty");
    }
    if name.len() > VOLUME_NAME_BYTES_MAX {
        return bad("it has more than 127 characters");
    }
    if !name.chars().all(|one| one.is_ascii_alphanumeric() || "._-+:@".contains(one)) {
        return bad("letters, digits and . _ - + : @ are what it may have");
    }
    if !name.starts_with(|one: char| one.is_ascii_alphanumeric()) {
        return bad("it begins with neither a letter nor a digit");
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::store::Store;

    /// Makes volume 0, as `weir format` does.
    pub(crate) fn make_main(store: &Store) {
        let main = NewVolume { name: MAIN_VOLUME_NAME, ..NewVolume::default() };
        store.volumes().create(&main, &[], Lsn(0)).expect("space");
    }
}
