//! The bytes of the arena, as FORMAT.md describes them.

use crate::types::FileKind;
use device::{BLOCK_BYTES, ObjectId, VolumeId};
use zerocopy::little_endian::{I64, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The largest file: 128 TiB. 48 bits hold it, and its pages' numbers fit the store's map in 35 bits.
pub const FILE_BYTES_MAX: u64 = 1 << 47;

/// Inodes of one file system. Their 64 bytes each are resident, so this many take 16 GiB of memory.
pub const INODES_MAX: u32 = 1 << 28;

/// Names of one file, and subdirectories of a directory plus two: programs keep link counts in a signed
/// 32-bit number.
pub const LINKS_MAX: u32 = i32::MAX as u32;

/// Bytes of a name: POSIX's NAME_MAX on Linux.
pub const NAME_BYTES_MAX: usize = 255;

/// Bytes of a symbolic link's target: PATH_MAX without its end mark; one heap block.
pub const LINK_BYTES_MAX: usize = 4095;

/// The bytes of a page.
pub(crate) const PAGE_BYTES: u64 = BLOCK_BYTES as u64;

/// The object that holds the arena.
pub(crate) const fn arena_object(volume: VolumeId) -> ObjectId {
    volume.object(0, 0)
}

pub(crate) const MAGIC: [u8; 8] = *b"weir-fs\0";
pub(crate) const VERSION: u32 = 1;
/// Incompatible features that this version supports: none yet.
pub(crate) const INCOMPATIBLE_KNOWN: u32 = 0;

/// The distance of two regions: more than a region can fill. The gaps cost nothing.
pub(crate) const REGION_BYTES: u64 = 1 << 40;

/// A part of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArenaRegion {
    Header,
    Owners,
    Orphans,
    Inodes,
    Times,
    Heap,
}

impl ArenaRegion {
    pub(crate) const ALL: [ArenaRegion; 6] = [
        ArenaRegion::Header,
        ArenaRegion::Owners,
        ArenaRegion::Orphans,
        ArenaRegion::Inodes,
        ArenaRegion::Times,
        ArenaRegion::Heap,
    ];

    /// The arena offset of its first byte.
    pub(crate) const fn base(self) -> u64 {
        self as u64 * REGION_BYTES
    }

    /// The arena offset of its record `index` of type `T`.
    pub(crate) const fn at<T>(self, index: u32) -> u64 {
        self.base() + index as u64 * size_of::<T>() as u64
    }
}

/// The logarithms of the smallest and the largest heap block's bytes.
pub(crate) const HEAP_LOG2_MIN: u32 = 5;
pub(crate) const HEAP_LOG2_MAX: u32 = 12;
pub(crate) const HEAP_CLASSES: usize = (HEAP_LOG2_MAX - HEAP_LOG2_MIN + 1) as usize;
/// Blocks of the smallest class in a page. References to heap blocks count in these units.
pub(crate) const HEAP_UNITS_PER_PAGE: u32 = 1 << (HEAP_LOG2_MAX - HEAP_LOG2_MIN);

/// The root directory's slot. Slot 0 is never used.
pub(crate) const ROOT: InodeSlot = InodeSlot(1);

/// An inode's index in the regions of inodes and of times; 0 is never used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct InodeSlot(pub(crate) u32);

/// A block of the heap, in units of 32 bytes from the heap's base; 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HeapBlock(pub(crate) u32);

impl HeapBlock {
    pub(crate) const NONE: HeapBlock = HeapBlock(0);

    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn offset(self) -> u64 {
        ArenaRegion::Heap.base() + (u64::from(self.0) << HEAP_LOG2_MIN)
    }
}

/// The first bytes of the arena's first page.
#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct ArenaHeader {
    pub(crate) magic: [u8; 8],
    pub(crate) version: U32,
    /// Features that a version without them may ignore.
    pub(crate) compatible: U32,
    /// Features that a version without them must refuse.
    pub(crate) incompatible: U32,
    pub(crate) reserved: U32,
    pub(crate) secret: [u8; 16],
    /// The highest slot ever used.
    pub(crate) slots_used: U32,
    /// The first free slot, or 0.
    pub(crate) slot_free: U32,
    /// Inodes in use.
    pub(crate) inodes: U32,
    /// Entries of the owner table that were ever used.
    pub(crate) owners_used: U32,
    /// Entries of the orphan list.
    pub(crate) orphans: U32,
    /// Heap units that were ever used; a multiple of those of a page.
    pub(crate) heap_used: U32,
    /// The first free block of each class, smallest class first.
    pub(crate) heap_free: [U32; HEAP_CLASSES],
}

const _: () = assert!(size_of::<ArenaHeader>() == 96 && size_of::<ArenaHeader>() < BLOCK_BYTES);

/// An inode without its times: the part that look-ups and reads need. Two fit in a cache line (the
/// dissertation's DenseFS2 inode).
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Inode {
    /// Bits 0..48: size in bytes. 48..51: kind. 51: data was written. 63: the lock bit, 0 on media.
    size_and_kind: U64,
    pub(crate) links: U32,
    /// The entry of the owner table.
    pub(crate) owner: U32,
    /// Raised when the slot is allocated.
    pub(crate) generation: U32,
    /// A directory's tree of names, a symbolic link's target, a device's number, or the pages that a file is
    /// charged for.
    root: U32,
    /// A directory's parent, an orphan's index in the orphan list, or a free slot's successor.
    pub(crate) next: U32,
    /// The first block of the extended attributes.
    xattrs: U32,
}

const _: () = assert!(size_of::<Inode>() == 32);

const SIZE_MASK: u64 = (1 << 48) - 1;
const KIND_SHIFT: u32 = 48;
const KIND_MASK: u8 = 7;
const WRITTEN: u64 = 1 << 51;
/// Bits that are 0 in version 1.
const WORD_RESERVED: u64 = !0 << 52;

impl Inode {
    /// The inode of a free slot.
    pub(crate) fn free(generation: u32, next: u32) -> Inode {
        let zero = U32::new(0);
        Inode {
            size_and_kind: U64::new(0),
            links: zero,
            owner: zero,
            generation: U32::new(generation),
            root: zero,
            next: U32::new(next),
            xattrs: zero,
        }
    }

    /// The inode of a new, empty file without links.
    pub(crate) fn new(kind: FileKind, generation: u32, owner: u32) -> Inode {
        let mut inode = Inode::free(generation, 0);
        inode.size_and_kind = U64::new(u64::from(kind_number(kind)) << KIND_SHIFT);
        inode.owner = U32::new(owner);
        inode
    }

    /// The file's kind; `None` if the slot is free.
    pub(crate) fn kind(&self) -> Option<FileKind> {
        kind_of((self.size_and_kind.get() >> KIND_SHIFT) as u8 & KIND_MASK)
    }

    pub(crate) fn size(&self) -> u64 {
        self.size_and_kind.get() & SIZE_MASK
    }

    pub(crate) fn set_size(&mut self, size: u64) {
        assert!(size <= SIZE_MASK, "48 bits hold a size");
        self.size_and_kind = U64::new(self.size_and_kind.get() & !SIZE_MASK | size);
    }

    /// Whether the file's object may have pages. An object that was never written needs no deletion.
    pub(crate) fn is_written(&self) -> bool {
        self.size_and_kind.get() & WRITTEN != 0
    }

    pub(crate) fn set_written(&mut self) {
        self.size_and_kind = U64::new(self.size_and_kind.get() | WRITTEN);
    }

    pub(crate) fn reserved_bits(&self) -> u64 {
        self.size_and_kind.get() & WORD_RESERVED
    }

    pub(crate) fn root(&self) -> HeapBlock {
        HeapBlock(self.root.get())
    }

    /// Pages that a file is charged for.
    pub(crate) fn charged_pages(&self) -> u64 {
        u64::from(self.root.get())
    }

    pub(crate) fn set_charged_pages(&mut self, pages: u64) {
        self.root = U32::new(u32::try_from(pages).unwrap_or(u32::MAX));
    }

    pub(crate) fn set_root(&mut self, root: HeapBlock) {
        self.root = U32::new(root.0);
    }

    /// A device's number, in the field that is other kinds' root.
    pub(crate) fn device(&self) -> u32 {
        match self.kind() {
            Some(FileKind::CharDevice | FileKind::BlockDevice) => self.root.get(),
            _ => 0,
        }
    }

    pub(crate) fn set_device(&mut self, device: u32) {
        self.root = U32::new(device);
    }

    /// The first block of the extended attributes.
    pub(crate) fn xattrs(&self) -> HeapBlock {
        HeapBlock(self.xattrs.get())
    }

    pub(crate) fn set_xattrs(&mut self, first: HeapBlock) {
        self.xattrs = U32::new(first.0);
    }
}

/// A kind's number in inodes and directory entries; 0 stands for a free slot or a removed name.
pub(crate) fn kind_number(kind: FileKind) -> u8 {
    match kind {
        FileKind::File => 1,
        FileKind::Directory => 2,
        FileKind::Symlink => 3,
        FileKind::Fifo => 4,
        FileKind::Socket => 5,
        FileKind::CharDevice => 6,
        FileKind::BlockDevice => 7,
    }
}

/// The kind with this number.
pub(crate) fn kind_of(number: u8) -> Option<FileKind> {
    match number {
        1 => Some(FileKind::File),
        2 => Some(FileKind::Directory),
        3 => Some(FileKind::Symlink),
        4 => Some(FileKind::Fifo),
        5 => Some(FileKind::Socket),
        6 => Some(FileKind::CharDevice),
        7 => Some(FileKind::BlockDevice),
        _ => None,
    }
}

/// An inode's times, which only `stat` needs: nanoseconds since 1970-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct InodeTimes {
    pub(crate) accessed: I64,
    pub(crate) modified: I64,
    pub(crate) changed: I64,
    pub(crate) created: I64,
}

const _: () = assert!(size_of::<InodeTimes>() == 32);

/// An entry of the owner table: owner, group and mode. Few combinations serve many inodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct OwnerRecord {
    pub(crate) uid: U32,
    pub(crate) gid: U32,
    pub(crate) mode: U16,
    pub(crate) reserved: U16,
    /// Inodes that refer to the entry; 0 if it is free.
    pub(crate) references: U32,
}

const _: () = assert!(size_of::<OwnerRecord>() == 16);

/// The head of every block of a directory's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DirBlockHead {
    /// 0 for a leaf, which holds names.
    pub(crate) level: u8,
    /// The block's size is 2 to this.
    pub(crate) size_log2: u8,
    /// Bytes in use, this head included.
    pub(crate) used: U16,
    /// Names that were not removed, or children.
    pub(crate) live: U16,
    /// Bytes of removed names.
    pub(crate) dead: U16,
}

const _: () = assert!(size_of::<DirBlockHead>() == 8);

/// The head of each name in a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DirNameHead {
    pub(crate) key: U64,
    pub(crate) slot: U32,
    /// 0 if the name was removed.
    pub(crate) kind: u8,
    pub(crate) len: u8,
}

const _: () = assert!(size_of::<DirNameHead>() == 14);

/// A child of an inner node. Children are in the order of their keys; the first one's key is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DirChild {
    /// No key below the child is less.
    pub(crate) key: U64,
    pub(crate) block: U32,
}

const _: () = assert!(size_of::<DirChild>() == 12);

/// The head of every block of extended attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct XattrBlockHead {
    /// The next block, or 0 in the last one. A free block has its successor in the same place.
    pub(crate) next: U32,
    /// Bytes of the attributes' records in this block.
    pub(crate) used: U16,
    /// The block's size is 2 to this.
    pub(crate) size_log2: u8,
    pub(crate) reserved: u8,
}

const _: () = assert!(size_of::<XattrBlockHead>() == 8);

/// The head of each extended attribute's record, before its name and value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct XattrRecordHead {
    pub(crate) value_len: U32,
    /// The name's namespace; 0 if the attribute was removed.
    pub(crate) space: u8,
    /// Bytes of the name without its namespace's prefix.
    pub(crate) name_len: u8,
}

const _: () = assert!(size_of::<XattrRecordHead>() == 6);

/// The head of an access control list, as in Linux's system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct AclHead {
    pub(crate) version: U32,
}

/// One entry of an access control list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct AclEntry {
    pub(crate) tag: U16,
    pub(crate) permissions: U16,
    /// The user or group of an entry that names one.
    pub(crate) id: U32,
}

const _: () = assert!(size_of::<AclEntry>() == 8);
