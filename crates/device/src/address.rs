//! Addresses and identities. An address is never a bare integer.

use std::fmt;
use std::ops::Range;

/// Bytes of a block on media and of a page in memory.
///
/// 4 KiB is the page of every machine that we run on and the largest size that current disks write without a
/// read of their own.
pub const BLOCK_BYTES: usize = 4096;

/// A block's address on one device, in units of [`BLOCK_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Block(pub u64);

/// The number of a page within its object: its byte offset divided by [`BLOCK_BYTES`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PageNo(pub u64);

/// A log sequence number: a point in the one order of all visible changes. 0 is before the first change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// A volume of a store: a name space of objects. A volume's number is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VolumeId(pub u32);

/// An object: a sparse array of pages in a volume.
///
/// An id is never used again after its object was deleted: reusing a slot raises the generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectId {
    /// The volume.
    pub volume: VolumeId,
    /// The place in the volume's object table; below 2^48.
    pub slot: u64,
    /// Counts the objects that have used this slot.
    pub generation: u32,
}

/// What becomes of the source of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransferKind {
    /// The source stays as it is.
    Clone,
    /// The pages of the source become holes.
    Move,
}

/// A range of pages to clone or move: to another object, or to another place in the same object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageTransfer {
    /// Whether the pages are cloned or moved.
    pub kind: TransferKind,
    /// The source object.
    pub from: ObjectId,
    /// The first page of the source.
    pub first: PageNo,
    /// The page after the last page of the source.
    pub end: PageNo,
    /// The target object.
    pub to: ObjectId,
    /// The page of the target that the first page of the source becomes.
    pub at: PageNo,
}

/// One mount of a store.
///
/// Every mount makes a higher number durable on both media before it acknowledges anything. So nothing that
/// an earlier mount left half-written is taken for new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Incarnation(pub u64);

/// The identity of a store: drawn at random when the store is formatted, and written on all of its media.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StoreId(pub [u8; 16]);

/// The identity of a buffer, chosen at random when it is formatted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BufferId(pub [u8; 16]);

impl Block {
    /// The block `count` further on.
    pub fn plus(self, count: u64) -> Block {
        Block(self.0 + count)
    }
}

impl VolumeId {
    /// The number of a store's first volume: that which `weir format` makes, and calls `main`.
    pub const MAIN: VolumeId = VolumeId(0);

    /// An object of this volume.
    pub const fn object(self, slot: u64, generation: u32) -> ObjectId {
        ObjectId { volume: self, slot, generation }
    }
}

impl ObjectId {
    /// The slot of each volume's metadata object.
    pub const METADATA_SLOT: u64 = 0;

    /// Whether the object is metadata, which the store mirrors: slot 0 of each volume, where the file system
    /// keeps its arena.
    pub const fn is_metadata(self) -> bool {
        self.slot == ObjectId::METADATA_SLOT
    }

    /// The object with the same slot and generation in another volume.
    pub fn in_volume(self, volume: VolumeId) -> ObjectId {
        ObjectId { volume, ..self }
    }
}

impl PageNo {
    /// The page that holds the byte at `offset`.
    pub fn of(offset: u64) -> PageNo {
        PageNo(offset / BLOCK_BYTES as u64)
    }

    /// The offset of the page's first byte.
    pub fn offset(self) -> u64 {
        self.0 * BLOCK_BYTES as u64
    }
}

impl PageTransfer {
    /// A clone of all pages of an object.
    pub const fn clone_of(from: ObjectId, to: ObjectId) -> PageTransfer {
        PageTransfer::clone_range(from, PageNo(0)..PageNo(u64::MAX), to, PageNo(0))
    }

    /// A clone of a range of pages, the first of which becomes the target's page `at`.
    pub const fn clone_range(from: ObjectId, pages: Range<PageNo>, to: ObjectId, at: PageNo) -> PageTransfer {
        PageTransfer { kind: TransferKind::Clone, from, first: pages.start, end: pages.end, to, at }
    }

    /// The pages of the source.
    pub fn source(&self) -> Range<PageNo> {
        self.first..self.end
    }

    /// The pages of the target.
    pub fn target(&self) -> Range<PageNo> {
        self.at..PageNo(self.at.0.saturating_add(self.end.0.saturating_sub(self.first.0)))
    }

    /// Whether the source is not empty, the target ends within the page numbers, and the two do not overlap.
    pub fn is_valid(&self) -> bool {
        let source = self.source();
        let target = self.target();
        let apart = self.from != self.to || source.end <= target.start || target.end <= source.start;
        let len = self.end.0.checked_sub(self.first.0).filter(|&len| len > 0);
        apart && len.is_some_and(|len| self.at.0.checked_add(len).is_some())
    }

    /// The page of the target that a page of the source becomes.
    pub fn target_of(&self, page: PageNo) -> PageNo {
        PageNo(page.0 - self.first.0 + self.at.0)
    }

    /// The page of the source that a page of the target is.
    pub fn source_of(&self, page: PageNo) -> PageNo {
        PageNo(page.0 - self.at.0 + self.first.0)
    }
}

impl Lsn {
    /// The LSN `count` changes later.
    pub fn plus(self, count: u64) -> Lsn {
        Lsn(self.0 + count)
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for PageNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.volume != VolumeId::MAIN {
            write!(f, "{}/", self.volume)?;
        }
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Display for BufferId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
