//! Copies ranges of files by sharing their pages. A copy of any length reads and writes no page, until one
//! side changes.

use crate::arena::{FsState, FsTransaction};
use crate::charge_tracker::ChargeNote;
use crate::cost;
use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, PAGE_BYTES};
use crate::fs::Fs;
use crate::types::{FsCompletion, Ino};
use cache::{ObjectChange, TRANSFER_PAGES_MAX};
use device::{ObjectId, PageNo, PageTransfer, TransferKind};

/// The data of a file that is copied, perhaps of another volume.
#[derive(Debug, Clone, Copy)]
pub struct CopySource {
    pub(crate) object: ObjectId,
    pub(crate) size: u64,
    is_written: bool,
    is_sparse: bool,
}

impl FsState {
    pub(crate) fn copy_source(&self, ino: Ino) -> Result<CopySource, FsError> {
        let (slot, inode) = self.find_file(ino)?;
        Ok(CopySource {
            object: self.data_object(slot, &inode),
            size: inode.size(),
            is_written: inode.is_written(),
            is_sparse: inode.is_sparse(),
        })
    }
}

/// A range of one file, and the offset in another to which it is copied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RangeCopy {
    from: Ino,
    offset: u64,
    len: u64,
    to: Ino,
    at: u64,
}

impl RangeCopy {
    /// Checks that the copy is of whole pages to whole pages. Shortens it, if whole subtrees of the store's
    /// map cannot be shared.
    fn new(from: Ino, (offset, len): (u64, u64), to: Ino, at: u64) -> Result<RangeCopy, FsError> {
        if !(offset | at).is_multiple_of(PAGE_BYTES) {
            return Err(FsError::Unsupported);
        }
        let Some(most) = FILE_BYTES_MAX.checked_sub(offset.max(at)).filter(|&most| most > 0) else {
            return Err(FsError::TooLarge);
        };
        let len = len.min(most);
        if from == to && offset.abs_diff(at) < len {
            return Err(FsError::Invalid);
        }
        let aligned = (offset / PAGE_BYTES).abs_diff(at / PAGE_BYTES).is_multiple_of(128);
        let len = if aligned { len } else { len.min(TRANSFER_PAGES_MAX * PAGE_BYTES) };
        Ok(RangeCopy { from, offset, len, to, at })
    }
}

impl FsTransaction<'_> {
    /// Copies a range, with size and times. Returns how many bytes were copied: no more than the source has.
    pub(crate) fn copy_range(&mut self, copied: RangeCopy) -> Result<u64, FsError> {
        let RangeCopy { from, offset, len, to, at } = copied;
        let source = self.copy_source(from)?;
        let (_, target) = self.find_file(to)?;
        let len = len.min(source.size.saturating_sub(offset));
        if len == 0 {
            return Ok(0);
        }
        // Bytes behind the source's end are zeros, so its last page can be shared as a whole, unless the
        // target is longer.
        let ends = offset + len == source.size && at + len >= target.size();
        if !len.is_multiple_of(PAGE_BYTES) && !ends {
            return Err(FsError::Unsupported);
        }
        self.share_range(TransferKind::Clone, source, (offset, len), to, at)?;
        Ok(len)
    }

    /// Copies or moves the pages of a range of `source`, with size and times of the target. The caller of a move changes the
    /// inode of the source.
    pub(crate) fn share_range(
        &mut self,
        kind: TransferKind,
        source: CopySource,
        (offset, len): (u64, u64),
        to: Ino,
        at: u64,
    ) -> Result<(), FsError> {
        let (slot, before) = self.find_file(to)?;
        let mut inode = before;
        let pages = len.div_ceil(PAGE_BYTES);
        if source.is_written {
            let first = offset / PAGE_BYTES;
            let to = self.data_object(slot, &inode);
            let cloned = PageNo(first)..PageNo(first + pages);
            let transfer = PageTransfer::clone_range(source.object, cloned, to, PageNo(at / PAGE_BYTES));
            self.add_data_change(ObjectChange::Transfer(PageTransfer { kind, ..transfer }));
            inode.set_size(inode.size().max(at + len));
            inode.set_written();
            self.charge(slot, &before, &mut inode, at..at + len, 0);
            self.note_charge(ChargeNote::Removed(slot));
            if source.is_sparse {
                let charge = inode.charged_pages();
                self.note_charge(ChargeNote::Charged { slot, pages: 0, unsure: pages, charge });
            }
        } else {
            if inode.is_written() {
                self.add_data_change(ObjectChange::Zero {
                    object: self.data_object(slot, &inode),
                    offset: at,
                    len: pages * PAGE_BYTES,
                });
                // The target was never charged for pages behind its end.
                let end = (at + pages * PAGE_BYTES).min(inode.size().next_multiple_of(PAGE_BYTES));
                if at < end {
                    self.uncharge(slot, &mut inode, at..end);
                }
            }
            inode.set_size(inode.size().max(at + len));
        }
        self.set_inode(slot, &inode);
        self.touch_modified(slot)
    }

    /// Fills the last page of a file with zeros behind the file's end. The page was shared with a source that may have
    /// grown since its size was looked up, and bytes behind an end must be zeros when the file grows.
    pub(crate) fn zero_after_end(&mut self, ino: Ino) -> Result<(), FsError> {
        let (slot, inode) = self.find_file(ino)?;
        let rest = inode.size().next_multiple_of(PAGE_BYTES) - inode.size();
        if inode.is_written() && rest > 0 {
            let object = self.data_object(slot, &inode);
            self.add_data_change(ObjectChange::Zero { object, offset: inode.size(), len: rest });
        }
        Ok(())
    }
}

impl Fs {
    /// Copies a range of a file to another file, or within the same one, as one transaction with size and
    /// times. Returns how many bytes were copied: no more than the source has, and maybe fewer than asked
    /// for.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] unless both offsets are at page boundaries and the range ends at one, or with
    /// both files; [`FsError::Invalid`] if the ranges overlap; [`FsError::TooLarge`].
    pub fn copy_range(&self, from: Ino, range: (u64, u64), to: Ino, at: u64, done: FsCompletion<u64>) {
        match RangeCopy::new(from, range, to, at) {
            Ok(copied) => {
                let cost = cost::copy_range(
                    copied.len.div_ceil(PAGE_BYTES),
                    copied.offset / PAGE_BYTES,
                    at / PAGE_BYTES,
                );
                self.run(cost, move |tx| tx.copy_range(copied), done);
            }
            Err(error) => done(Err(error)),
        }
    }

    /// The data of a file, for a [batch](crate::BatchSource) of the file system of another volume. The caller holds the file.
    ///
    /// # Errors
    /// [`FsError::IsDirectory`], [`FsError::Invalid`] for other inodes without data, [`FsError::Stale`].
    pub fn copy_source(&self, ino: Ino) -> Result<CopySource, FsError> {
        // The file may be written before the batch takes effect.
        self.core().read_state().copy_source(ino).map(|source| CopySource { is_written: true, ..source })
    }
}
