//! What volumes are to callers: numbers, names, modes.

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

/// The name of the volume that every store has.
pub const MAIN_VOLUME_NAME: &str = "main";

/// Bytes of a name at most, as other volume managers have it.
pub(crate) const VOLUME_NAME_BYTES_MAX: usize = 127;

/// Volumes at most: a start reads a node for each 16 of them, and all of them are in memory, about 200 bytes each. Their nodes are
/// counted as reserved, too.
pub(crate) const VOLUMES_MAX: usize = 65_536;

/// A volume to be made.
#[derive(Debug, Clone, Copy)]
pub struct NewVolume<'a> {
    /// What it is to be called: see [`check_name`].
    pub name: &'a str,
    /// Whether it may be changed.
    pub mode: VolumeMode,
    /// When, in nanoseconds since 1970.
    pub created: u64,
}

/// What is known of a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its number.
    pub id: VolumeId,
    /// Whether it may be changed.
    pub mode: VolumeMode,
    /// What it is called; `#` and its number if nobody gave it a name.
    pub name: String,
    /// When it was made, in nanoseconds since 1970; 0 if nobody said.
    pub created: u64,
    /// What it was cloned from, which may be gone; `None` for the volume that every store has.
    pub from: Option<VolumeId>,
}

/// Pages of an object that the store holds, from some page on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedPages {
    /// The pages, in order, each with its page LSN: the highest one whose change its bytes contain.
    pub pages: Vec<(PageNo, Lsn)>,
    /// The first page that was not looked at: nothing below it was left out.
    pub until: PageNo,
}

/// Why a name cannot be a volume's, if it cannot: it is letters, digits and `. _ - + : @` of ASCII, at most 127, and
/// begins with a letter or a digit, so that no shell and no option parser takes it for something else.
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
