//! A file's own bytes: they lie in its object; here only its size is known, and how many pages it is charged for.

use crate::arena::{FsState, FsTransaction};
use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, Inode, InodeSlot};
use crate::types::Ino;
use cache::{Change, Cost};
use device::{BLOCK_BYTES, ObjectId};

/// A page as a number of bytes.
const PAGE: u64 = BLOCK_BYTES as u64;

impl FsState {
    /// Where the bytes of a read are, clipped to the file's size, and this.
    pub(crate) fn clip(&self, ino: Ino, offset: u64, len: usize) -> Result<(ObjectId, usize, u64), FsError> {
        let (slot, inode) = self.find_file(ino)?;
        let left = inode.size().saturating_sub(offset);
        Ok((
            self.data_object(slot, &inode),
            len.min(usize::try_from(left).unwrap_or(usize::MAX)),
            inode.size(),
        ))
    }

    /// The object that a write goes to.
    pub(crate) fn written_object(&self, ino: Ino, offset: u64, len: usize) -> Result<ObjectId, FsError> {
        let (slot, inode) = self.find_file(ino)?;
        self.object_within_limit(slot, &inode, offset, len)
    }

    fn object_within_limit(
        &self,
        slot: InodeSlot,
        inode: &Inode,
        offset: u64,
        len: usize,
    ) -> Result<ObjectId, FsError> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= FILE_BYTES_MAX => Ok(self.data_object(slot, inode)),
            _ => Err(FsError::TooLarge),
        }
    }
}

/// What `len` bytes written into a file may need at most: its pages, one of them at each end in part, and its inode.
pub(crate) fn write_cost(offset: u64, len: usize) -> Cost {
    debug_assert!(offset <= FILE_BYTES_MAX);
    let len = len as u64;
    let pages = len / PAGE + 2;
    Cost { pages: 3 + pages, bytes: 96 + len, records: 6 + pages, run: pages, ..Cost::NONE }
}

impl FsTransaction<'_> {
    /// The bytes of the operation, size and times in one: a size never covers bytes that are not there.
    /// Those of a stream may bypass the buffer. `known` of the pages that are written are there already.
    pub(crate) fn write_data(
        &mut self,
        ino: Ino,
        offset: u64,
        is_stream: bool,
        known: u64,
    ) -> Result<(), FsError> {
        let bytes = self.file_bytes();
        let len = bytes.len();
        let (slot, before) = self.find_file(ino)?;
        let mut inode = before;
        let object = self.object_within_limit(slot, &inode, offset, len)?;
        let size = inode.size();
        inode.set_size(inode.size().max(offset + len as u64));
        inode.set_written();
        self.charge(slot, &before, &mut inode, offset..offset + len as u64, known);
        self.set_inode(slot, &inode);
        self.touch_modified(slot)?;
        if is_stream && offset <= size && (offset + len as u64 <= size || size.is_multiple_of(PAGE)) {
            // A crash takes pages as wholes: what lies behind the old end goes with it, or stays.
            let (within, behind) = bytes.split_at(len.min((size - offset) as usize));
            for (offset, bytes, grows) in [(offset, within, false), (size, behind, true)] {
                if !bytes.is_empty() {
                    self.add_data_change(Change::BypassWrite { object, offset, bytes, grows });
                }
            }
        } else {
            self.add_data_change(Change::Write { object, offset, bytes });
        }
        Ok(())
    }

    /// Bytes past `size` go; if the file grows, they are holes already.
    pub(crate) fn truncate(&mut self, slot: InodeSlot, size: u64) -> Result<(), FsError> {
        let (mut inode, _) = self.used_inode(slot)?;
        if size > FILE_BYTES_MAX {
            return Err(FsError::TooLarge);
        }
        if size < inode.size() && inode.is_written() {
            self.add_data_change(Change::Zero {
                object: self.data_object(slot, &inode),
                offset: size,
                len: FILE_BYTES_MAX - size,
            });
            let end = inode.size().next_multiple_of(BLOCK_BYTES as u64);
            self.uncharge(slot, &mut inode, size..end);
        }
        inode.set_size(size);
        inode.cap_charge(size.div_ceil(BLOCK_BYTES as u64));
        self.set_inode(slot, &inode);
        Ok(())
    }
}
