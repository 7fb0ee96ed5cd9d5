//! A file's own bytes: they lie in its object; here only its size is known, and what a file with holes is charged for: what `du`
//! counts, and what makes programs look for holes.
//!
//! Only the store knows which pages it holds, and nobody asks it at each `stat`. So each write adds the pages that it
//! touches, and whatever takes pages away bounds the sum: never less than the file has, and as much, unless pages of a
//! file with holes are written again.

use crate::arena::{State, Transaction};
use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, Hot, Slot};
use crate::types::Ino;
use cache::{Change, Cost};
use device::{BLOCK_BYTES, ObjectId};

/// A page as a number of bytes.
const PAGE: u64 = BLOCK_BYTES as u64;

impl Hot {
    /// Charges a file, whose size is set already, for a write.
    pub(crate) fn charge(&mut self, offset: u64, len: usize) {
        let touched = (offset + len as u64).div_ceil(PAGE) - offset / PAGE;
        self.set_charged_pages((self.charged_pages() + touched).min(self.size().div_ceil(PAGE)));
    }

    /// The file has at most so many pages.
    pub(crate) fn charge_at_most(&mut self, pages: u64) {
        self.set_charged_pages(self.charged_pages().min(pages));
    }

    /// The whole pages between `offset` and `end` became holes.
    pub(crate) fn charge_without(&mut self, offset: u64, end: u64) {
        let holes = (end / PAGE).saturating_sub(offset.div_ceil(PAGE));
        self.charge_at_most(self.size().div_ceil(PAGE).saturating_sub(holes));
        // Its edges may be pages now that were none before.
        let edges = [offset, end].into_iter().filter(|edge| !edge.is_multiple_of(PAGE)).count() as u64;
        self.set_charged_pages((self.charged_pages() + edges).min(self.size().div_ceil(PAGE)));
    }
}

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
pub(crate) fn write_cost(offset: u64, len: usize) -> Cost {
    debug_assert!(offset <= FILE_BYTES_MAX);
    let len = len as u64;
    let pages = len / PAGE + 2;
    Cost { pages: 3 + pages, bytes: 96 + len, records: 6 + pages, run: pages, ..Cost::NONE }
}

impl Transaction<'_> {
    /// The bytes of the operation, size and times in one: a size never covers bytes that are not there.
    /// Those of a stream may go to the store directly.
    pub(crate) fn write_data(&mut self, ino: Ino, offset: u64, is_stream: bool) -> Result<(), FsError> {
        let bytes = self.bytes_to_write();
        let len = bytes.len();
        let (slot, mut hot) = self.find_file(ino)?;
        let object = self.object_within_limit(slot, &hot, offset, len)?;
        let size = hot.size();
        hot.set_size(hot.size().max(offset + len as u64));
        hot.set_written();
        hot.charge(offset, len);
        self.set_hot(slot, &hot);
        self.touch_modified(slot)?;
        if is_stream && offset <= size && (offset + len as u64 <= size || size.is_multiple_of(PAGE)) {
            // A crash takes pages as wholes: what lies behind the old end goes with it, or stays.
            let (within, behind) = bytes.split_at(len.min((size - offset) as usize));
            for (offset, bytes, grows) in [(offset, within, false), (size, behind, true)] {
                if !bytes.is_empty() {
                    self.also(Change::WriteDirect { object, offset, bytes, grows });
                }
            }
        } else {
            self.also(Change::Write { object, offset, bytes });
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
            self.also(Change::Zero {
                object: self.object(slot, &hot),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Kind;

    fn file(size: u64) -> Hot {
        let mut hot = Hot::new(Kind::File, 1, 0);
        hot.set_size(size);
        hot
    }

    #[test]
    fn a_file_that_is_written_once_is_charged_for_what_it_has() {
        let mut hot = file(0);
        for at in 0..100 {
            hot.set_size((at + 1) * 1000);
            hot.charge(at * 1000, 1000);
        }
        assert_eq!(hot.charged_pages(), 100_000_u64.div_ceil(PAGE));
        let mut sparse = file(1 << 40);
        sparse.charge(1 << 30, 10_000);
        assert_eq!(sparse.charged_pages(), 3);
        sparse.charge((1 << 40) - 1, 1);
        assert_eq!(sparse.charged_pages(), 4);
    }

    #[test]
    fn what_becomes_a_hole_is_not_charged_for() {
        let mut hot = file(100 * PAGE);
        hot.charge(0, 100 * PAGE as usize);
        hot.charge_without(10 * PAGE, 60 * PAGE);
        assert_eq!(hot.charged_pages(), 50);
        hot.charge_without(10 * PAGE, 60 * PAGE);
        assert_eq!(hot.charged_pages(), 50, "the same hole again");
        hot.charge_without(0, 100 * PAGE);
        assert_eq!(hot.charged_pages(), 0);
        hot.charge_without(PAGE + 1, 3 * PAGE + 1);
        assert_eq!(hot.charged_pages(), 2, "two pages zeroed in part");
    }

    #[test]
    fn what_does_not_fit_into_32_bits_is_charged_for_as_the_most_that_does() {
        let mut hot = file(1 << 47);
        hot.charge(0, usize::MAX >> 17);
        assert_eq!(hot.charged_pages(), u64::from(u32::MAX));
    }
}
