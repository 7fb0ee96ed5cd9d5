//! Bodies of replies, and the header before each.

use zerocopy::{Immutable, IntoBytes};

/// The header of every reply.
#[repr(C)]
#[derive(Debug, IntoBytes, Immutable)]
pub(crate) struct ReplyHeader {
    /// Bytes of the whole reply.
    pub(crate) len: u32,
    /// 0, or a negated errno.
    pub(crate) error: i32,
    /// The number of the request.
    pub(crate) unique: u64,
}

/// A file's attributes. Seconds are signed; nanoseconds count forwards even before 1970.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, IntoBytes, Immutable)]
pub(crate) struct WireAttributes {
    pub(crate) node: u64,
    pub(crate) size: u64,
    /// In units of 512 bytes.
    pub(crate) blocks: u64,
    pub(crate) accessed: i64,
    pub(crate) modified: i64,
    pub(crate) changed: i64,
    pub(crate) accessed_nanos: u32,
    pub(crate) modified_nanos: u32,
    pub(crate) changed_nanos: u32,
    /// Including the file type bits.
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) device: u32,
    pub(crate) block_bytes: u32,
    pub(crate) flags: u32,
}

/// A name's inode; inode 0 means "no such name".
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, IntoBytes, Immutable)]
pub(crate) struct EntryReply {
    pub(crate) node: u64,
    pub(crate) generation: u64,
    /// How long the kernel may cache the name, and the attributes.
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
    /// The kernel passes each read and write on as it is, around its page cache.
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    /// The kernel keeps its cached pages of the file.
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;

    /// An open file. If it has pages of `page_bytes` that must stay whole, the kernel passes writes on as they are, and
    /// names the size as the handle in each.
    pub(crate) fn of_file(page_bytes: Option<u32>) -> OpenReply {
        let direct_io = if page_bytes.is_some() { OpenReply::DIRECT_IO } else { 0 };
        let handle = page_bytes.unwrap_or(0).into();
        OpenReply { handle, flags: OpenReply::KEEP_CACHE | direct_io, ..OpenReply::default() }
    }
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

/// The reply to FUSE_COPY_FILE_RANGE_64. The older request gets a [`WriteReply`].
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
    /// The offset from which a listing continues after this entry.
    offset: u64,
    name_bytes: u32,
    /// The file type, as in the upper four bits of a mode.
    kind: u32,
}

/// A reply with directory entries, of limited size.
pub(crate) struct ListingReply {
    bytes: Vec<u8>,
    bytes_max: usize,
}

/// Each entry begins at a multiple of this.
const LISTED_ALIGN: usize = 8;

impl ListingReply {
    pub(crate) fn new(bytes_max: u32) -> ListingReply {
        ListingReply { bytes: Vec::new(), bytes_max: bytes_max as usize }
    }

    /// Adds an entry for the inode `node`, with the file type of `mode`. Returns whether there was space.
    pub(crate) fn add(&mut self, node: u64, offset: u64, mode: u32, name: &[u8]) -> bool {
        self.push(&[], node, offset, mode, name)
    }

    /// Adds an entry with attributes, for FUSE_READDIRPLUS. Returns whether there was space.
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
