//! Bodies of replies, and the header before each.

use zerocopy::{Immutable, IntoBytes};

/// What every reply begins with.
#[repr(C)]
#[derive(Debug, IntoBytes, Immutable)]
pub(crate) struct ReplyHeader {
    /// Bytes of the whole reply.
    pub(crate) len: u32,
    /// 0, or a negated errno.
    pub(crate) error: i32,
    /// The request that is answered.
    pub(crate) unique: u64,
}

/// A file's attributes. Seconds are signed: before 1970 the nanoseconds still count forwards.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, IntoBytes, Immutable)]
pub(crate) struct WireAttributes {
    pub(crate) node: u64,
    pub(crate) size: u64,
    /// Of 512 bytes.
    pub(crate) blocks: u64,
    pub(crate) accessed: i64,
    pub(crate) modified: i64,
    pub(crate) changed: i64,
    pub(crate) accessed_nanos: u32,
    pub(crate) modified_nanos: u32,
    pub(crate) changed_nanos: u32,
    /// With the kind of the file.
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) device: u32,
    pub(crate) block_bytes: u32,
    pub(crate) flags: u32,
}

/// A name and what it leads to: inode 0 is "there is no such name".
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
pub(crate) struct EntryReply {
    pub(crate) node: u64,
    pub(crate) generation: u64,
    /// How long the kernel may believe in the name and in the attributes.
    pub(crate) name_valid_seconds: u64,
    pub(crate) attributes_valid_seconds: u64,
    pub(crate) name_valid_nanos: u32,
    pub(crate) attributes_valid_nanos: u32,
    pub(crate) attributes: WireAttributes,
}

#[repr(C)]
#[derive(Debug, Default, IntoBytes, Immutable)]
pub(crate) struct AttrReply {
    pub(crate) valid_seconds: u64,
    pub(crate) valid_nanos: u32,
    pub(crate) padding: u32,
    pub(crate) attributes: WireAttributes,
}

#[repr(C)]
#[derive(Debug, Default, IntoBytes, Immutable)]
pub(crate) struct OpenReply {
    pub(crate) handle: u64,
    pub(crate) flags: u32,
    pub(crate) backing: u32,
}

impl OpenReply {
    /// What the kernel has cached of the file stays.
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
}

#[repr(C)]
#[derive(Debug, Default, IntoBytes, Immutable)]
pub(crate) struct CreateReply {
    pub(crate) entry: EntryReply,
    pub(crate) open: OpenReply,
}

#[repr(C)]
#[derive(Debug, Default, IntoBytes, Immutable)]
pub(crate) struct WriteReply {
    pub(crate) bytes: u32,
    pub(crate) padding: u32,
}

/// To FUSE_COPY_FILE_RANGE_64; the older request is answered like a write.
#[repr(C)]
#[derive(Debug, Default, IntoBytes, Immutable)]
pub(crate) struct CopyReply {
    pub(crate) bytes: u64,
}

#[repr(C)]
#[derive(Debug, Default, IntoBytes, Immutable)]
pub(crate) struct StatfsReply {
    pub(crate) blocks: u64,
    pub(crate) blocks_free: u64,
    pub(crate) blocks_available: u64,
    pub(crate) inodes: u64,
    pub(crate) inodes_free: u64,
    pub(crate) block_bytes: u32,
    pub(crate) name_bytes_max: u32,
    pub(crate) fragment_bytes: u32,
    pub(crate) padding: u32,
    pub(crate) spare: [u32; 6],
}

#[repr(C)]
#[derive(Debug, Default, IntoBytes, Immutable)]
pub(crate) struct XattrSizeReply {
    pub(crate) bytes: u32,
    pub(crate) padding: u32,
}

#[repr(C)]
#[derive(Debug, Default, IntoBytes, Immutable)]
pub(crate) struct LseekReply {
    pub(crate) offset: u64,
}

#[repr(C)]
#[derive(IntoBytes, Immutable)]
struct ListedEntryHead {
    node: u64,
    /// Where a listing goes on after this entry.
    offset: u64,
    name_bytes: u32,
    /// The kind of a file as in the upper four bits of a mode.
    kind: u32,
}

/// The entries of a directory in a reply of at most so many bytes.
pub(crate) struct ListingReply {
    bytes: Vec<u8>,
    bytes_max: usize,
}

/// Every entry begins at a multiple of this.
const LISTED_ALIGN: usize = 8;

impl ListingReply {
    pub(crate) fn new(bytes_max: u32) -> ListingReply {
        ListingReply { bytes: Vec::new(), bytes_max: bytes_max as usize }
    }

    /// Adds an entry of the inode `node`, whose kind is that of `mode`. Returns whether there was space.
    pub(crate) fn add(&mut self, node: u64, offset: u64, mode: u32, name: &[u8]) -> bool {
        self.push(&[], node, offset, mode, name)
    }

    /// The same, with attributes, for FUSE_READDIRPLUS.
    pub(crate) fn add_with(&mut self, entry: &EntryReply, offset: u64, name: &[u8]) -> bool {
        self.push(entry.as_bytes(), entry.node, offset, entry.attributes.mode, name)
    }

    fn push(&mut self, before: &[u8], node: u64, offset: u64, mode: u32, name: &[u8]) -> bool {
        let head = ListedEntryHead {
            node,
            offset,
            name_bytes: name.len() as u32,
            kind: (mode & libc::S_IFMT) >> 12,
        };
        let bytes = before.len() + size_of::<ListedEntryHead>() + name.len();
        let end = self.bytes.len() + bytes.next_multiple_of(LISTED_ALIGN);
        if end > self.bytes_max {
            return false;
        }
        for part in [before, head.as_bytes(), name] {
            self.bytes.extend_from_slice(part);
        }
        self.bytes.resize(end, 0);
        true
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
