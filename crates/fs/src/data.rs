//! A file's own bytes: they lie in its object; here only its size is known.

use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, Hot, Slot};
use crate::inode::object;
use crate::transaction::{DataChange, State, Transaction};
use crate::types::Ino;
use device::{BLOCK_BYTES, ObjectId};

impl State {
    /// Where the bytes of a read are, clipped to the file's size, and this.
    pub(crate) fn clip(&self, ino: Ino, offset: u64, len: usize) -> Result<(ObjectId, usize, u64), FsError> {
        let (slot, hot) = self.find_file(ino)?;
        let left = hot.size().saturating_sub(offset);
        Ok((object(slot, &hot), len.min(usize::try_from(left).unwrap_or(usize::MAX)), hot.size()))
    }

    /// The object that a write goes to.
    pub(crate) fn written_object(&self, ino: Ino, offset: u64, len: usize) -> Result<ObjectId, FsError> {
        let (slot, hot) = self.find_file(ino)?;
        object_within_limit(slot, &hot, offset, len)
    }
}

fn object_within_limit(slot: Slot, hot: &Hot, offset: u64, len: usize) -> Result<ObjectId, FsError> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= FILE_BYTES_MAX => Ok(object(slot, hot)),
        _ => Err(FsError::TooLarge),
    }
}

impl Transaction<'_> {
    /// The `len` bytes of the operation, size and times in one: a size never covers bytes that are not there.
    pub(crate) fn write_data(&mut self, ino: Ino, offset: u64, len: usize) -> Result<(), FsError> {
        let (slot, mut hot) = self.find_file(ino)?;
        let object = object_within_limit(slot, &hot, offset, len)?;
        hot.set_size(hot.size().max(offset + len as u64));
        hot.set_written();
        hot.charge(offset, len);
        self.set_hot(slot, &hot);
        self.touch_modified(slot)?;
        self.also(DataChange::Write { object, offset });
        Ok(())
    }

    /// Bytes past `size` go; if the file grows, they are holes already.
    pub(crate) fn truncate(&mut self, slot: Slot, size: u64) -> Result<(), FsError> {
        let (mut hot, _) = self.used(slot)?;
        if size > FILE_BYTES_MAX {
            return Err(FsError::TooLarge);
        }
        if size < hot.size() && hot.is_written() {
            self.also(DataChange::Zero {
                object: object(slot, &hot),
                offset: size,
                len: FILE_BYTES_MAX - size,
            });
            hot.charge_without(size, hot.size().next_multiple_of(BLOCK_BYTES as u64));
        }
        hot.set_size(size);
        hot.charge_at_most(size.div_ceil(BLOCK_BYTES as u64));
        self.set_hot(slot, &hot);
        Ok(())
    }
}
