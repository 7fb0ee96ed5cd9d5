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

/// A point in the one order of all visible changes. 0 is before the first change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// A volume of a store: a name space of objects. Its number is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct VolumeId(pub u32);

/// An object: a sparse array of pages in a volume. Never used again once the object is deleted, because whoever reuses a
/// slot raises the generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectId {
    /// The volume.
    pub volume: VolumeId,
    /// The place in the volume's object table; below 2^48.
    pub slot: u64,
    /// Which of the objects that have lived in this slot.
    pub generation: u32,
}

/// Pages of an object that become pages of another one, or of another place in the same one: what a clone copies and a move
/// moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageTransfer {
    /// Whose pages.
    pub from: ObjectId,
    /// The first of them.
    pub first: PageNo,
    /// The page after the last.
    pub end: PageNo,
    /// Whose they become.
    pub to: ObjectId,
    /// Where the first comes to lie.
    pub at: PageNo,
}

/// One mount of a store. Every mount makes a higher one durable on both media before it acknowledges anything,
/// so that what an earlier mount left behind half-written is never taken for new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Incarnation(pub u64);

/// Which store media belong to: drawn at random when the store is formatted, and written on all of them.
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
    /// The volume that every store has: the file system that was formatted.
    pub const MAIN: VolumeId = VolumeId(0);

    /// An object of this volume.
    pub const fn object(self, slot: u64, generation: u32) -> ObjectId {
        ObjectId { volume: self, slot, generation }
    }
}

impl ObjectId {
    /// The slot of what is metadata.
    pub const METADATA_SLOT: u64 = 0;

    /// Whether its pages are metadata, which the store writes twice: those in slot 0 of each volume, where a file system keeps its
    /// arena.
    pub const fn is_metadata(self) -> bool {
        self.slot == ObjectId::METADATA_SLOT
    }

    /// What is in the same slot of another volume.
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
    /// All pages of an object.
    pub fn whole_object(from: ObjectId, to: ObjectId) -> PageTransfer {
        PageTransfer { from, first: PageNo(0), end: PageNo(u64::MAX), to, at: PageNo(0) }
    }

    /// The pages of the source.
    pub fn source(&self) -> Range<PageNo> {
        self.first..self.end
    }

    /// The pages of the target.
    pub fn target(&self) -> Range<PageNo> {
        self.at..PageNo(self.at.0.saturating_add(self.end.0.saturating_sub(self.first.0)))
    }

    /// Whether it goes forward, not past the last page, and from one place to another.
    pub fn is_valid(&self) -> bool {
        let (source, target) = (self.source(), self.target());
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
