//! Everything that can go wrong in the store, said so that an operator knows what to do next.

use crate::format::VERSION;
use crate::volume::VolumeId;
use device::{Block, DeviceError, Incarnation};
use std::borrow::Cow;

/// Why the store could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No space. Nothing was changed. A checkpoint, or cleaning and two checkpoints, may find some.
    #[error("the store is full")]
    Full,
    /// No space either, because the file system that holds the store has none to give. Nothing was changed.
    #[error("{device}: the file system that holds the store is full")]
    FullBelow {
        /// Which device.
        device: String,
    },
    /// Bytes on the medium are not what was written.
    #[error("{device}: block {place}: {what}: checksum is {found:08x}, expected {expected:08x}")]
    Corrupt {
        /// Which device.
        device: String,
        /// Where.
        place: Block,
        /// What lies there.
        what: String,
        /// The checksum that was written down.
        expected: u32,
        /// The checksum of what is there.
        found: u32,
    },
    /// The device does not begin with a store.
    #[error("{device}: this is not a weir store")]
    NotAStore {
        /// Which device.
        device: String,
    },
    /// A later weir wrote this store.
    #[error("{device}: format version {found} is newer than {VERSION}")]
    NewerVersion {
        /// Which device.
        device: String,
        /// The version of the store.
        found: u32,
    },
    /// An earlier weir wrote this store.
    #[error("{device}: format version {found} is weir 0.1's, and this weir reads version {VERSION} only")]
    OlderVersion {
        /// Which device.
        device: String,
        /// The version of the store.
        found: u32,
    },
    /// The store uses something that this weir does not know and must not ignore.
    #[error("{device}: the store uses unknown features {flags:#x}")]
    UnknownFeature {
        /// Which device.
        device: String,
        /// The incompatible feature flags that are not known, one bit each.
        flags: u64,
    },
    /// The superblock, or every checkpoint root, or the log is not what was written: nothing was changed.
    #[error("{device}: block {place}: {what} is damaged; nothing was changed")]
    Damaged {
        /// Which device.
        device: String,
        /// Where.
        place: Block,
        /// What lies there.
        what: String,
    },
    /// The device ends before the store does.
    #[error("{device}: the store has {expected} blocks, the device only {found}")]
    Truncated {
        /// Which device.
        device: String,
        /// Blocks of the store.
        expected: u64,
        /// Blocks of the device.
        found: u64,
    },
    /// Sizes that no store can have.
    #[error("{device}: {why}")]
    BadSizes {
        /// Which device.
        device: String,
        /// Which size, and what it may be.
        why: String,
    },
    /// A repair that cannot be made.
    #[error("{device}: {what}: what is below cannot be counted, so nothing was changed")]
    CannotCount {
        /// Which device.
        device: String,
        /// What cannot be read.
        what: String,
    },
    /// There is no such volume.
    #[error("there is no volume {volume}")]
    NoSuchVolume {
        /// Which.
        volume: VolumeId,
    },
    /// A clone needs a number that no volume has.
    #[error("volume {volume} exists already; nothing was changed")]
    VolumeExists {
        /// Which.
        volume: VolumeId,
    },
    /// A volume's name that cannot be one.
    #[error("{name:?} cannot be a volume's name: {why}")]
    BadName {
        /// The name.
        name: String,
        /// Why not.
        why: String,
    },
    /// A volume has this name.
    #[error("there is a volume {name} already")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// The store was formatted when volumes had no names.
    #[error("{device}: this store was made before volumes had names")]
    NamelessStore {
        /// Which device.
        device: String,
    },
    /// The volume may not be changed.
    #[error("volume {volume} is read-only")]
    ReadOnlyVolume {
        /// Which.
        volume: VolumeId,
    },
    /// The volume that a store always has cannot be deleted.
    #[error("volume 0 is the file system itself and cannot be deleted")]
    MainVolume,
    /// The volume table is full.
    #[error("a store has at most {limit} volumes")]
    TooManyVolumes {
        /// How many it may have.
        limit: usize,
    },
    /// [`Store::begin`](crate::Store::begin) was not called, or did not succeed.
    #[error("the store is open for reading only until an incarnation has begun")]
    NotBegun,
    /// The incarnation to begin is not higher than the one found.
    #[error("incarnation {asked} is not higher than {found}, which the store has seen")]
    OldIncarnation {
        /// The one to begin.
        asked: Incarnation,
        /// The one found.
        found: Incarnation,
    },
    /// An earlier error left a map in memory that is not that of the log; what is on the medium is whole.
    #[error("{device}: stopped after an earlier error")]
    Stopped {
        /// Which device.
        device: String,
    },
}

impl StoreError {
    /// Whether there is no space, in the store or in what holds it: to a program, ENOSPC.
    pub fn is_full(&self) -> bool {
        match self {
            StoreError::Full | StoreError::FullBelow { .. } => true,
            StoreError::Device(error) => error.is_no_space(),
            _ => false,
        }
    }

    /// The next step.
    pub fn help(&self) -> Option<Cow<'static, str>> {
        let help = match self {
            StoreError::Device(error) => return error.help(),
            StoreError::Full => "delete something, or use a larger device",
            StoreError::FullBelow { .. } => {
                "free some space in that file system; in the store nothing is lost"
            }
            StoreError::NotAStore { .. } => "give the directory or device that was formatted",
            StoreError::OlderVersion { .. } => {
                "mount it with weir 0.1, format a new store with this one, and copy the files with rsync"
            }
            StoreError::NewerVersion { .. } | StoreError::UnknownFeature { .. } => "upgrade weir to use it",
            StoreError::Damaged { .. } => "restore the device from a copy",
            StoreError::Truncated { .. } => {
                "look whether the file or partition was cut off, and restore its end"
            }
            StoreError::CannotCount { .. } => "copy what can still be read",
            StoreError::VolumeExists { .. } => "delete it first, or choose another number",
            StoreError::BadName { .. } => "a name is made of letters, digits and . _ - + : @",
            StoreError::NameTaken { .. } => "choose another name, or delete that volume first",
            StoreError::NamelessStore { .. } => "copy it into a new one, made by `weir format`",
            StoreError::ReadOnlyVolume { .. } => "change a writable clone of it instead",
            StoreError::TooManyVolumes { .. } => "delete some first",
            StoreError::Stopped { .. } => "open the store again: unmount it, and mount it again",
            StoreError::Corrupt { .. }
            | StoreError::BadSizes { .. }
            | StoreError::NoSuchVolume { .. }
            | StoreError::MainVolume
            | StoreError::NotBegun
            | StoreError::OldIncarnation { .. } => return None,
        };
        Some(help.into())
    }
}
