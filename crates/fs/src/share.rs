//! Copies of ranges of files that share their pages: nothing is read or written, however long they are, until one side changes.

use crate::arena::Transaction;
use crate::cost;
use crate::error::FsError;
use crate::format::FILE_BYTES_MAX;
use crate::fs::Fs;
use crate::types::{Completion, Ino};
use cache::{Change, TRANSFER_PAGES_MAX};
use device::{BLOCK_BYTES, PageNo, PageTransfer};

/// A page as a number of bytes.
const PAGE: u64 = BLOCK_BYTES as u64;

/// Bytes of one file, and where they go in another.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copied {
    from: Ino,
    offset: u64,
    len: u64,
    to: Ino,
    at: u64,
}

impl Copied {
    /// Refuses what is no copy of whole pages to whole pages. One whose pages cannot be shared by whole subtrees of the store's map is
    /// made shorter.
    fn new(from: Ino, (offset, len): (u64, u64), to: Ino, at: u64) -> Result<Copied, FsError> {
        if !(offset | at).is_multiple_of(PAGE) {
            return Err(FsError::Unsupported);
        }
        let Some(most) = FILE_BYTES_MAX.checked_sub(offset.max(at)).filter(|&most| most > 0) else {
            return Err(FsError::TooLarge);
        };
        let len = len.min(most);
        if from == to && offset.abs_diff(at) < len {
            return Err(FsError::Invalid);
        }
        let aligned = (offset / PAGE).abs_diff(at / PAGE).is_multiple_of(128);
        let len = if aligned { len } else { len.min(TRANSFER_PAGES_MAX * PAGE) };
        Ok(Copied { from, offset, len, to, at })
    }
}

impl Transaction<'_> {
    /// Pages, size and times in one. Returns how many bytes were copied: no more than the source has.
    pub(crate) fn copy_range(&mut self, copied: Copied) -> Result<u64, FsError> {
        let Copied { from, offset, len, to, at } = copied;
        let (source, source_hot) = self.find_file(from)?;
        let (slot, before) = self.find_file(to)?;
        let mut hot = before;
        let len = len.min(source_hot.size().saturating_sub(offset));
        if len == 0 {
            return Ok(0);
        }
        // What lies behind a file's end is zeros, so its last page can go as a whole, unless the target goes on there.
        let ends = offset + len == source_hot.size() && at + len >= hot.size();
        if !len.is_multiple_of(PAGE) && !ends {
            return Err(FsError::Unsupported);
        }
        let pages = len.div_ceil(PAGE);
        if source_hot.is_written() {
            let (first, end) = (PageNo(offset / PAGE), PageNo(offset / PAGE + pages));
            let (from, to) = (self.object(source, &source_hot), self.object(slot, &hot));
            self.also(Change::Clone {
                transfer: PageTransfer { from, first, end, to, at: PageNo(at / PAGE) },
            });
            hot.set_size(hot.size().max(at + len));
            hot.set_written();
            self.charge(slot, &before, &mut hot, at..at + len, 0);
            self.counts_mut().removed(slot);
            if source_hot.is_sparse() {
                self.counts_mut().doubt(slot, pages, hot.charged_pages());
            }
        } else {
            if hot.is_written() {
                self.also(Change::Zero { object: self.object(slot, &hot), offset: at, len: pages * PAGE });
                // What is behind its end it was never charged for.
                let end = (at + pages * PAGE).min(hot.size().next_multiple_of(PAGE));
                if at < end {
                    self.charge_without(slot, &mut hot, at..end);
                }
            }
            hot.set_size(hot.size().max(at + len));
        }
        self.set_hot(slot, &hot);
        self.touch_modified(slot)?;
        Ok(len)
    }
}

impl Fs {
    /// Lets a range of a file hold what a range of another one does, or of the same one elsewhere, as one transaction with size and
    /// times. Returns how many bytes were copied: no more than the source has, and maybe fewer.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] unless both begin with a page and the range ends with one, or with both files;
    /// [`FsError::Invalid`] where they overlap; [`FsError::TooLarge`].
    pub fn copy_range(&self, from: Ino, range: (u64, u64), to: Ino, at: u64, done: Completion<u64>) {
        match Copied::new(from, range, to, at) {
            Ok(copied) => {
                let cost = cost::copy_range(copied.len.div_ceil(PAGE), copied.offset / PAGE, at / PAGE);
                self.core().enter(cost, move |tx| tx.copy_range(copied), done);
            }
            Err(error) => done(Err(error)),
        }
    }
}
