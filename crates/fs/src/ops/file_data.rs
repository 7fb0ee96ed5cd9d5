//! A file's data. The bytes are in the file's object; the inode has only its size and the number of charged
//! pages.

use crate::arena::{FsState, FsTransaction};
use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, Inode, InodeSlot, PAGE_BYTES};
use crate::planted_bug::{FsBug, is_planted};
use crate::types::Ino;
use cache::{ObjectChange, TransactionCost};
use device::ObjectId;
use std::ops::Range;

impl FsState {
    /// Clips a read to the file's size. Returns the file's object, the bytes to read, and the file's size.
    pub(crate) fn clip(&self, ino: Ino, offset: u64, len: usize) -> Result<(ObjectId, usize, u64), FsError> {
        let (slot, inode) = self.find_file(ino)?;
        let left = inode.size().saturating_sub(offset);
        Ok((
            self.data_object(slot, &inode),
            len.min(usize::try_from(left).unwrap_or(usize::MAX)),
            inode.size(),
        ))
    }

    /// The object that a write changes.
    pub(crate) fn written_object(&self, ino: Ino, offset: u64, len: usize) -> Result<ObjectId, FsError> {
        let (slot, inode) = self.find_file(ino)?;
        self.object_within_limit(slot, &inode, offset, len)
    }

    /// The object of a file in which a write of these bytes at the time `now` changes nothing but them, if they
    /// replace bytes of a page that is not stored yet: the file is as long already, and the times of its last
    /// change are `now`. The charge counts such a page already.
    pub(crate) fn object_changed_in_place(&self, ino: Ino, bytes: Range<u64>, now: i64) -> Option<ObjectId> {
        let (slot, inode) = self.find_file(ino).ok()?;
        let times = self.inode_times(slot).ok()?;
        let has_times = [times.modified, times.changed].into_iter().all(|time| time.get() == now);
        let is_unchanged = bytes.end <= inode.size()
            && inode.is_written()
            && (has_times || is_planted(FsBug::OverwriteOfAnotherTick));
        is_unchanged.then(|| self.data_object(slot, &inode))
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

/// The most that a write of `len` bytes needs: its pages, of which the first and the last may be partial, and
/// the inode.
pub(crate) fn write_cost(offset: u64, len: usize) -> TransactionCost {
    debug_assert!(offset <= FILE_BYTES_MAX);
    let len = len as u64;
    let pages = len / PAGE_BYTES + 2;
    TransactionCost {
        pages: 3 + pages,
        bytes: 96 + len,
        records: 6 + pages,
        run: pages,
        ..TransactionCost::NONE
    }
}

impl FsTransaction<'_> {
    /// Changes size and times for a write of `len` bytes, and returns the object to write them into in the same
    /// transaction, so that a size never covers bytes that are not durable. `known` of the written pages are
    /// charged already.
    pub(crate) fn note_write(
        &mut self,
        slot: InodeSlot,
        before: Inode,
        offset: u64,
        len: usize,
        known: u64,
    ) -> Result<ObjectId, FsError> {
        let mut inode = before;
        let object = self.object_within_limit(slot, &inode, offset, len)?;
        inode.set_size(inode.size().max(offset + len as u64));
        inode.set_written();
        self.charge(slot, &before, &mut inode, offset..offset + len as u64, known);
        self.set_inode(slot, &inode);
        self.touch_modified(slot)?;
        Ok(object)
    }

    /// Sets a file's size. Bytes past it are removed; if the file grows, it has a hole there.
    pub(crate) fn truncate(&mut self, slot: InodeSlot, size: u64) -> Result<(), FsError> {
        let (mut inode, _) = self.used_inode(slot)?;
        if size > FILE_BYTES_MAX {
            return Err(FsError::TooLarge);
        }
        if size < inode.size() && inode.is_written() {
            self.add_data_change(ObjectChange::Zero {
                object: self.data_object(slot, &inode),
                offset: size,
                len: FILE_BYTES_MAX - size,
            });
            let end = inode.size().next_multiple_of(PAGE_BYTES);
            self.uncharge(slot, &mut inode, size..end);
        }
        inode.set_size(size);
        inode.cap_charge(size.div_ceil(PAGE_BYTES));
        self.set_inode(slot, &inode);
        Ok(())
    }
}
