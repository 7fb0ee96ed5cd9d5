//! The errors of the store, with texts from which an operator knows the next step.

use crate::format::{DRAFT, VERSION};
use crate::volume::VolumeId;
use device::{Block, DeviceError, DeviceOperation, Incarnation, ObjectId, PageNo};
use std::borrow::Cow;

/// Why an operation of the store failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No space. Nothing was changed. A checkpoint may free some, or cleaning and two checkpoints.
    #[error("the store is full")]
    Full,
    /// A page has as many deltas as it may have, or its leaf has no space for more. Nothing was changed: the
    /// page must be written whole.
    #[error("pages from {page} of object {object} on have as many deltas as they may have")]
    DeltasFull {
        /// Which object.
        object: ObjectId,
        /// The first page of the leaf.
        page: PageNo,
    },
    /// No space, because the host file system is full. Nothing was changed.
    #[error("{device}: the file system that holds the store is full")]
    HostFsFull {
        /// Which device.
        device: String,
    },
    /// Bytes on the medium differ from the written bytes.
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
    /// A node of the map is damaged, and the log changes an object below it. That change cannot be made, so
    /// no checkpoint may end that log.
    #[error("{node}; below it the log has a change of object {object}, so the store can only be read")]
    ChangeBelowDamage {
        /// Which object.
        object: ObjectId,
        /// Why the node cannot be read, and where it is.
        node: Box<StoreError>,
    },
    /// A page was damaged when a clone or a move took it to where it is.
    #[error(
        "{device}: page {page} of object {object} was damaged already when it was cloned or moved to there"
    )]
    Lost {
        /// Which device.
        device: String,
        /// Whose.
        object: ObjectId,
        /// Which page.
        page: PageNo,
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
    /// A weir before this format wrote this store.
    #[error(
        "{device}: a store of format {found}, which weir 0.1 made; this weir knows format {VERSION} only; nothing was changed"
    )]
    OldVersion {
        /// Which device.
        device: String,
        /// The version of the store.
        found: u32,
    },
    /// Another build of this weir, of a version not yet released, wrote this store.
    #[error(
        "{device}: a store of draft {found} of format {VERSION}, which another build of weir made; this one has draft {DRAFT}"
    )]
    OtherDraft {
        /// Which device.
        device: String,
        /// The draft of the store.
        found: u32,
    },
    /// The superblock is damaged or cannot be read; the roots say that there was one.
    #[error("{device}: block 0: the superblock is damaged{why}; nothing was changed")]
    SuperblockDamaged {
        /// Which device.
        device: String,
        /// Why it cannot be read, if that is it.
        why: String,
    },
    /// The superblock is damaged, and cannot be restored from its copy in the store's last block.
    #[error("{device}: block {place}: {why}; nothing was changed")]
    NoGoodCopy {
        /// Which device.
        device: String,
        /// Where the copy is, or what should say so.
        place: Block,
        /// The problem with the block.
        why: String,
    },
    /// The log or all checkpoint roots are damaged. Nothing was changed.
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
    /// The store cannot be made as large as asked.
    #[error("{device}: {why}")]
    CannotGrow {
        /// Which device.
        device: String,
        /// Why.
        why: String,
        /// The user's next step.
        help: String,
    },
    /// The counts cannot be repaired.
    #[error("{device}: {what}: the blocks below it cannot be counted, so no count was changed")]
    CannotCount {
        /// Which device.
        device: String,
        /// The unreadable part.
        what: String,
    },
    /// There is no such volume.
    #[error("there is no volume {volume}")]
    NoSuchVolume {
        /// Which.
        volume: VolumeId,
    },
    /// A volume cannot be rolled back to another volume: see [`VolumeRollback`](crate::VolumeRollback).
    #[error("volume {snapshot} is not a snapshot of volume {volume}")]
    NotASnapshot {
        /// The volume's name.
        volume: String,
        /// The name of the other volume.
        snapshot: String,
    },
    /// A volume's name that is not allowed.
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
    /// The volume may not be changed.
    #[error("volume {volume} is read-only")]
    ReadOnlyVolume {
        /// Which.
        volume: VolumeId,
    },
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
    /// After an earlier error, the map in memory differs from the log. The medium is intact.
    #[error("{device}: the store has stopped after an earlier error")]
    Stopped {
        /// Which device.
        device: String,
    },
}

impl StoreError {
    /// Whether there is no space, in the store or in its host file system: ENOSPC to a program.
    pub fn is_full(&self) -> bool {
        match self {
            StoreError::Full | StoreError::HostFsFull { .. } => true,
            StoreError::Device(error) => error.is_no_space(),
            _ => false,
        }
    }

    /// Whether the data is damaged, and will be at the next try, too.
    pub fn is_damage(&self) -> bool {
        matches!(self, StoreError::Corrupt { .. } | StoreError::Lost { .. })
    }

    /// Whether a node of the map is damaged for good, so that its descendants can be neither changed nor
    /// counted.
    pub fn is_damaged_node(&self) -> bool {
        matches!(self, StoreError::ChangeBelowDamage { .. } | StoreError::CannotCount { .. })
    }

    /// Whether a read failed.
    pub fn is_read_failure(&self) -> bool {
        match self {
            StoreError::Device(error) => error.operation == DeviceOperation::Read,
            error => error.is_damage(),
        }
    }

    /// The user's next step.
    pub fn help(&self) -> Option<Cow<'static, str>> {
        let help = match self {
            StoreError::Device(error) => return error.help(),
            StoreError::Full => "delete something, or make the store larger (`weir grow`)",
            StoreError::HostFsFull { .. } => {
                "free some space in that file system; in the store nothing is lost"
            }
            StoreError::CannotGrow { help, .. } => return Some(Cow::Owned(help.clone())),
            StoreError::NotAStore { .. } => "give the directory or device that was formatted",
            StoreError::NewerVersion { .. } => "upgrade weir to use it",
            StoreError::OldVersion { .. } => {
                "mount it with weir 0.1, make a new store elsewhere with this weir's `weir format`, and copy the files: \
                 `rsync -aHAX --sparse OLD/ NEW/`"
            }
            StoreError::OtherDraft { .. } => {
                "mount it with the build of weir that made it, and copy the files with rsync into a new store: format 2 may \
                 change until it is released"
            }
            StoreError::Damaged { .. } => "restore the device from a copy",
            StoreError::SuperblockDamaged { device, .. } => {
                return Some(
                    format!("`weir check --repair {device}` restores it from its copy at the store's end")
                        .into(),
                );
            }
            StoreError::NoGoodCopy { .. } => "restore the first block, or the whole device, from a backup",
            StoreError::Truncated { .. } => {
                "look whether the file or partition was cut off, and restore its end"
            }
            StoreError::CannotCount { .. } => "copy what can still be read",
            StoreError::BadName { .. } => "choose another name, of letters, digits and . _ - + : @",
            StoreError::NameTaken { .. } => "choose another name, or delete that volume first",
            StoreError::NotASnapshot { .. } => {
                "choose a clone of that volume: `weir volume list` shows what each volume was cloned from"
            }
            StoreError::ReadOnlyVolume { .. } => "change a writable clone of it instead",
            StoreError::TooManyVolumes { .. } => "delete some first",
            StoreError::Stopped { .. } => "open the store again: unmount it, and mount it again",
            StoreError::BadSizes { .. } => {
                "use a device or file of another size, or other segments (`weir format --help`)"
            }
            StoreError::ChangeBelowDamage { .. } => {
                "`weir mount --read-only` shows all that is not below it: copy that to a new store"
            }
            StoreError::Corrupt { .. }
            | StoreError::Lost { .. }
            | StoreError::DeltasFull { .. }
            | StoreError::NoSuchVolume { .. }
            | StoreError::NotBegun
            | StoreError::OldIncarnation { .. } => return None,
        };
        Some(help.into())
    }
}
