//! A file's own bytes: they lie in its object; here only its size is known, and how many pages it is charged for.

use crate::arena::{State, Transaction};
use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, Hot, Slot};
use crate::types::Ino;
use cache::{ObjectChange, TransactionCost};
use device::{BLOCK_BYTES, ObjectId};

/// A page as a number of bytes.
const PAGE: u64 = BLOCK_BYTES as u64;

impl State {
    /// Where the bytes of a read are, clipped to the file's size, and this.
    pub(crate) fn clip(&self, ino: Ino, offset: u64, len: usize) -> Result<(ObjectId, usize, u64), FsError> {
        let (slot, hot) = self.find_file(ino)?;
        let left = hot.size().saturating_sub(offset);
        Ok((self.object(slot, &hot), len.min(usize::try_from(left).unwrap_or(usize::MAX)), hot.size()))
    }

    /// The object that a write goes to.
    pub(crate) fn written_object(&self, ino: Ino, offset: u64, len: usize) -> Result<ObjectId, FsError> {
        let (slot, hot) = self.find_file(ino)?;
        self.object_within_limit(slot, &hot, offset, len)
    }

    fn object_within_limit(
        &self,
        slot: Slot,
        hot: &Hot,
        offset: u64,
        len: usize,
    ) -> Result<ObjectId, FsError> {
        match offset.checked_add(len as u64) {
            Some(end) if end <= FILE_BYTES_MAX => Ok(self.object(slot, hot)),
            _ => Err(FsError::TooLarge),
        }
    }
}

/// What `len` bytes written into a file may need at most: its pages, one of them at each end in part, and its inode.
pub(crate) fn write_cost(offset: u64, len: usize) -> TransactionCost {
    debug_assert!(offset <= FILE_BYTES_MAX);
    let len = len as u64;
    let pages = len / PAGE + 2;
    TransactionCost {
        pages: 3 + pages,
        bytes: 96 + len,
        records: 6 + pages,
        run: pages,
        ..TransactionCost::NONE
    }
}

impl Transaction<'_> {
    /// The bytes of the operation, size and times in one: a size never covers bytes that are not there.
    /// Those of a stream may bypass the buffer. `known` of the pages that are written are there already.
    pub(crate) fn write_data(
        &mut self,
        ino: Ino,
        offset: u64,
        is_stream: bool,
        known: u64,
    ) -> Result<(), FsError> {
        let bytes = self.bytes_to_write();
        let len = bytes.len();
        let (slot, before) = self.find_file(ino)?;
        let mut hot = before;
        let object = self.object_within_limit(slot, &hot, offset, len)?;
        let size = hot.size();
        hot.set_size(hot.size().max(offset + len as u64));
        hot.set_written();
        self.charge(slot, &before, &mut hot, offset..offset + len as u64, known);
        self.set_hot(slot, &hot);
        self.touch_modified(slot)?;
        if is_stream && offset <= size && (offset + len as u64 <= size || size.is_multiple_of(PAGE)) {
            // A crash takes pages as wholes: what lies behind the old end goes with it, or stays.
            let (within, behind) = bytes.split_at(len.min((size - offset) as usize));
            for (offset, bytes, grows) in [(offset, within, false), (size, behind, true)] {
                if !bytes.is_empty() {
                    self.also(ObjectChange::BypassWrite { object, offset, bytes, grows });
                }
            }
        } else {
            self.also(ObjectChange::Write { object, offset, bytes });
        }
        Ok(())
    }

    /// Bytes past `size` go; if the file grows, they are holes already.
    pub(crate) fn truncate(&mut self, slot: Slot, size: u64) -> Result<(), FsError> {
        let (mut hot, _) = self.used(slot)?;
        if size > FILE_BYTES_MAX {
            return Err(FsError::TooLarge);
        }
        if size < hot.size() && hot.is_written() {
            self.also(ObjectChange::Zero {
                object: self.object(slot, &hot),
                offset: size,
                len: FILE_BYTES_MAX - size,
            });
            let end = hot.size().next_multiple_of(BLOCK_BYTES as u64);
            self.charge_without(slot, &mut hot, size..end);
        }
        hot.set_size(size);
        hot.charge_at_most(size.div_ceil(BLOCK_BYTES as u64));
        self.set_hot(slot, &hot);
        Ok(())
    }
}
