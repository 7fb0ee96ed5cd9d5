//! Ranges of a file: `fallocate`, and `lseek` to data and holes.
//!
//! A store that writes to a log cannot set space aside for a page before it is written, and needs new space
//! whenever the page is written again. So allocating checks, before anything changes, that there is space for
//! the whole range now. It reserves none.

use crate::arena::FsTransaction;
use crate::cost;
use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, Inode, PAGE_BYTES};
use crate::fs::{Fs, FsCore};
use crate::types::{FsCompletion, Ino};
use cache::{CacheError, ObjectChange, SeekTarget};
use device::{ObjectId, PageNo};
use std::ops::Range;
use std::sync::Arc;

/// The change that `fallocate` makes to a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallocateMode {
    /// Fails unless there is space for the whole range. Keeps its content.
    Allocate,
    /// The range reads as zeros; its whole pages become holes.
    ZeroRange,
    /// Like `ZeroRange`, but never changes the file's size.
    PunchHole,
}

/// Whether `fallocate` may make a file larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SizePolicy {
    /// A file that ends within or before the range then ends with it.
    Grow,
    /// The size stays.
    Keep,
}

/// The kind of place that `lseek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekWhence {
    /// Whole pages that were, or may have been, written.
    Data,
    /// Pages that were never written, or punched out. The end of the file counts as one.
    Hole,
}

/// Whether a range begins and ends with pages.
pub(crate) fn is_whole_pages(offset: u64, len: u64) -> bool {
    offset.is_multiple_of(PAGE_BYTES) && len.is_multiple_of(PAGE_BYTES)
}

/// The pages that hold a range.
fn pages(range: Range<u64>) -> Range<PageNo> {
    PageNo(range.start / PAGE_BYTES)..PageNo(range.end.div_ceil(PAGE_BYTES))
}

/// The end of a range, which must lie within the largest file.
fn checked_end(offset: u64, len: u64) -> Result<u64, FsError> {
    match offset.checked_add(len) {
        _ if len == 0 => Err(FsError::Invalid),
        Some(end) if end <= FILE_BYTES_MAX => Ok(end),
        _ => Err(FsError::TooLarge),
    }
}

/// The end of the zeros that a change of a range up to `end` writes. Bytes behind the file's end are zeros
/// already, so its last page can be removed as a whole.
fn zeros_end(inode: &Inode, end: u64) -> u64 {
    if end >= inode.size() { inode.size().next_multiple_of(PAGE_BYTES) } else { end }
}

impl FsTransaction<'_> {
    /// Changes a range, with size and times.
    pub(crate) fn allocate(
        &mut self,
        ino: Ino,
        what: FallocateMode,
        range: (u64, u64),
        size: SizePolicy,
    ) -> Result<(), FsError> {
        let offset = range.0;
        let end = checked_end(range.0, range.1)?;
        let (slot, mut inode) = self.find_file(ino)?;
        let last = zeros_end(&inode, end);
        if what != FallocateMode::Allocate && inode.is_written() && offset < last {
            self.add_data_change(ObjectChange::Zero {
                object: self.data_object(slot, &inode),
                offset,
                len: last - offset,
            });
            self.uncharge(slot, &mut inode, offset..last);
        }
        if size == SizePolicy::Grow && what != FallocateMode::PunchHole {
            inode.set_size(inode.size().max(end));
        }
        self.set_inode(slot, &inode);
        self.touch_modified(slot)
    }
}

/// Counts the holes of a range until they need more space than there is.
struct HoleCount {
    core: Arc<FsCore>,
    object: ObjectId,
    left: Range<PageNo>,
    /// Free pages that the holes counted so far leave.
    space: u64,
    done: FsCompletion<()>,
}

impl HoleCount {
    /// Finds the next hole. Each answer comes from a worker thread, so the calls do not nest.
    fn find_next_hole(self) {
        let core = self.core.clone();
        let object = self.object;
        let left = self.left.clone();
        let then = move |hole: Result<Option<PageNo>, CacheError>| match hole {
            Err(error) => (self.done)(Err(error.into())),
            Ok(None) => (self.done)(Ok(())),
            Ok(Some(hole)) => self.count_hole(hole),
        };
        core.cache.seek(object, left, SeekTarget::Hole, Box::new(then));
    }

    fn count_hole(mut self, hole: PageNo) {
        let core = self.core.clone();
        let object = self.object;
        let left = hole..self.left.end;
        let then = move |data: Result<Option<PageNo>, CacheError>| match data {
            Err(error) => (self.done)(Err(error.into())),
            Ok(data) => {
                let end = data.unwrap_or(self.left.end);
                match self.space.checked_sub(end.0 - hole.0) {
                    None => (self.done)(Err(FsError::NoSpace)),
                    Some(_) if end == self.left.end => (self.done)(Ok(())),
                    Some(space) => {
                        (self.space, self.left.start) = (space, end);
                        self.find_next_hole();
                    }
                }
            }
        };
        core.cache.seek(object, left, SeekTarget::Data, Box::new(then));
    }
}

impl Fs {
    /// Changes the space of a range of at least one byte, as one transaction with size and times.
    ///
    /// `FallocateMode::Allocate` fails with [`FsError::NoSpace`], and changes nothing, if the pages that the
    /// file lacks in the range do not fit into the store now. It reserves no space: a later write there may
    /// still find the store full.
    pub fn allocate(
        &self,
        ino: Ino,
        what: FallocateMode,
        range: (u64, u64),
        size: SizePolicy,
        done: FsCompletion<()>,
    ) {
        let (offset, len) = range;
        let found = checked_end(offset, len).and_then(|end| {
            let state = self.core().read_state();
            let (slot, inode) = state.find_file(ino)?;
            Ok((state.data_object(slot, &inode), pages(offset..end), zeros_end(&inode, end)))
        });
        let (object, pages, last) = match found {
            Ok(found) => found,
            Err(error) => return done(Err(error)),
        };
        let cost = cost::allocate(what != FallocateMode::Allocate && is_whole_pages(offset, len));
        let fs = self.clone();
        if what != FallocateMode::Allocate {
            return self.core().count_before_removal(ino, offset..last.max(offset), move |counted| {
                let change = move |tx: &mut FsTransaction<'_>| {
                    tx.set_removed_pages(counted.clone());
                    tx.allocate(ino, what, range, size)
                };
                fs.run(cost, change, done);
            });
        }
        let change = move |space: Result<(), FsError>| match space {
            Ok(()) => fs.run(cost, move |tx| tx.allocate(ino, what, range, size), done),
            Err(error) => done(Err(error)),
        };
        let space = self.core().cache.store_without_spare().space().now().available();
        // If the whole range fits, the holes need not be counted.
        if pages.end.0 - pages.start.0 <= space {
            return change(Ok(()));
        }
        let core = self.core().clone();
        HoleCount { core, object, left: pages, space, done: Box::new(change) }.find_next_hole();
    }

    /// The first data, or the first hole, at or after `offset`; exact to the page. A page that was zeroed in
    /// part is data.
    ///
    /// # Errors
    /// [`FsError::PastEnd`] if the file ends at or before `offset`, or has no data after it.
    pub fn seek(&self, ino: Ino, offset: u64, what: SeekWhence, done: FsCompletion<u64>) {
        let state = self.core().read_state();
        let found = state
            .find_file(ino)
            .map(|(slot, inode)| (state.data_object(slot, &inode), inode.size(), inode.is_written()));
        drop(state);
        let (object, size, is_written) = match found {
            Ok(found) => found,
            Err(error) => return done(Err(error)),
        };
        if offset >= size {
            return done(Err(FsError::PastEnd));
        }
        let answer = move |page: Option<PageNo>| match (page, what) {
            (Some(page), _) => Ok(offset.max(page.offset())),
            (None, SeekWhence::Hole) => Ok(size),
            (None, SeekWhence::Data) => Err(FsError::PastEnd),
        };
        if !is_written {
            return done(answer(Some(PageNo::of(offset)).filter(|_| what == SeekWhence::Hole)));
        }
        let wanted = match what {
            SeekWhence::Data => SeekTarget::Data,
            SeekWhence::Hole => SeekTarget::Hole,
        };
        let then = move |page: Result<_, CacheError>| done(page.map_err(FsError::from).and_then(answer));
        self.core().cache.seek(object, pages(offset..size), wanted, Box::new(then));
    }
}
