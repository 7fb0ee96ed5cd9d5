//! Addresses and identities. An address is never a bare integer.

use std::fmt;

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

/// An object: a sparse array of pages. Never used again once the object is deleted, because whoever reuses a
/// slot raises the generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ObjectId {
    /// The place in the volume's object table; below 2^48.
    pub slot: u64,
    /// Which of the objects that have lived in this slot.
    pub generation: u32,
}

/// One mount of a store. Every mount makes a higher one durable on both media before it acknowledges anything,
/// so that what an earlier mount left behind half-written is never taken for new.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Incarnation(pub u64);

/// Which store media belong to: drawn at random when the store is formatted, and written on all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StoreId(pub [u8; 16]);

impl Block {
    /// The block `count` further on.
    pub fn plus(self, count: u64) -> Block {
        Block(self.0 + count)
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

impl Lsn {
    /// The LSN `count` changes later.
    pub fn plus(self, count: u64) -> Lsn {
        Lsn(self.0 + count)
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
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
