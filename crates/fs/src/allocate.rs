//! Ranges of a file as space: allocated, zeroed, punched out, and sought.
//!
//! A store that writes to a log has no place to keep for a page that is not there yet, and needs a new one each time
//! that a page is written. So allocating looks whether there is space now, as a whole and before anything changes, and
//! keeps none of it back.

use crate::arena::Transaction;
use crate::cost;
use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, Hot};
use crate::fs::Core;
use crate::fs::Fs;
use crate::types::{Completion, Ino};
use cache::{CacheError, ObjectChange, SeekTarget};
use device::{BLOCK_BYTES, ObjectId, PageNo};
use std::ops::Range;
use std::sync::Arc;

/// A page as a number of bytes.
const PAGE: u64 = BLOCK_BYTES as u64;

/// What to do with a range of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocate {
    /// There is space for all of it, or the call fails; what is there stays.
    Space,
    /// It reads as zeros; whole pages of it become holes.
    Zeros,
    /// Like `Zeros`; the file's size never changes.
    Hole,
}

/// Whether a file may grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// It ends where the range ends, if it ended before.
    Grows,
    /// It stays.
    Stays,
}

/// What `lseek` looks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seek {
    /// Bytes that were written, or may have been: whole pages.
    Data,
    /// Pages that were never written, or cut; the end of the file is one.
    Hole,
}

/// Whether a range begins and ends with pages.
fn is_whole_pages(offset: u64, len: u64) -> bool {
    offset.is_multiple_of(PAGE) && len.is_multiple_of(PAGE)
}

/// The pages that hold a range.
fn pages(range: Range<u64>) -> Range<PageNo> {
    PageNo(range.start / PAGE)..PageNo(range.end.div_ceil(PAGE))
}

/// The end of a range within a file.
fn end_of(offset: u64, len: u64) -> Result<u64, FsError> {
    match offset.checked_add(len) {
        _ if len == 0 => Err(FsError::Invalid),
        Some(end) if end <= FILE_BYTES_MAX => Ok(end),
        _ => Err(FsError::TooLarge),
    }
}

/// Where the zeros of a range end: what lies behind the file's end is zeros already, so the last page can go as a whole.
fn last(hot: &Hot, end: u64) -> u64 {
    if end >= hot.size() { hot.size().next_multiple_of(PAGE) } else { end }
}

impl Transaction<'_> {
    /// Zeros, size and times in one.
    pub(crate) fn allocate(
        &mut self,
        ino: Ino,
        what: Allocate,
        range: (u64, u64),
        size: Size,
    ) -> Result<(), FsError> {
        let (offset, end) = (range.0, end_of(range.0, range.1)?);
        let (slot, mut hot) = self.find_file(ino)?;
        let last = last(&hot, end);
        if what != Allocate::Space && hot.is_written() && offset < last {
            self.also(ObjectChange::Zero { object: self.object(slot, &hot), offset, len: last - offset });
            self.charge_without(slot, &mut hot, offset..last);
        }
        if size == Size::Grows && what != Allocate::Hole {
            hot.set_size(hot.size().max(end));
        }
        self.set_hot(slot, &hot);
        self.touch_modified(slot)
    }
}

/// Holes of a range, counted until they are more than there is space for.
struct Count {
    core: Arc<Core>,
    object: ObjectId,
    left: Range<PageNo>,
    /// Pages that may still be missing.
    space: u64,
    done: Completion<()>,
}

impl Count {
    /// Goes on with the next hole. Each answer comes from a worker, so this does not pile up calls.
    fn go_on(self) {
        let (core, object, left) = (self.core.clone(), self.object, self.left.clone());
        let then = move |hole: Result<Option<PageNo>, CacheError>| match hole {
            Err(error) => (self.done)(Err(error.into())),
            Ok(None) => (self.done)(Ok(())),
            Ok(Some(hole)) => self.end_of_hole(hole),
        };
        core.cache.seek(object, left, SeekTarget::Hole, Box::new(then));
    }

    fn end_of_hole(mut self, hole: PageNo) {
        let (core, object, left) = (self.core.clone(), self.object, hole..self.left.end);
        let then = move |data: Result<Option<PageNo>, CacheError>| match data {
            Err(error) => (self.done)(Err(error.into())),
            Ok(data) => {
                let end = data.unwrap_or(self.left.end);
                match self.space.checked_sub(end.0 - hole.0) {
                    None => (self.done)(Err(FsError::NoSpace)),
                    Some(_) if end == self.left.end => (self.done)(Ok(())),
                    Some(space) => {
                        (self.space, self.left.start) = (space, end);
                        self.go_on();
                    }
                }
            }
        };
        core.cache.seek(object, left, SeekTarget::Data, Box::new(then));
    }
}

impl Fs {
    /// Does something with the space of a range of at least one byte, as one transaction with size and times.
    ///
    /// `Allocate::Space` fails with [`FsError::NoSpace`], and changes nothing, if the pages of the range that the file
    /// lacks do not fit into the store now. It keeps no space back: a write there later may still find the store full.
    pub fn allocate(&self, ino: Ino, what: Allocate, range: (u64, u64), size: Size, done: Completion<()>) {
        let (offset, len) = range;
        let found = end_of(offset, len).and_then(|end| {
            let state = self.core().read();
            let (slot, hot) = state.find_file(ino)?;
            Ok((state.object(slot, &hot), pages(offset..end), last(&hot, end)))
        });
        let (object, pages, last) = match found {
            Ok(found) => found,
            Err(error) => return done(Err(error)),
        };
        let cost = cost::allocate(what != Allocate::Space && is_whole_pages(offset, len));
        let core = self.core().clone();
        if what != Allocate::Space {
            let core = core.clone();
            return self.core().count_before(ino, offset..last.max(offset), move |counted| {
                let change = move |tx: &mut Transaction<'_>| {
                    tx.know(counted);
                    tx.allocate(ino, what, range, size)
                };
                core.enter(cost, change, done);
            });
        }
        let change = move |space: Result<(), FsError>| match space {
            Ok(()) => core.enter(cost, move |tx| tx.allocate(ino, what, range, size), done),
            Err(error) => done(Err(error)),
        };
        let space = self.core().cache.store_without_spare().space().available();
        // Where there is space for the whole range nobody need know how much of it is there.
        if pages.end.0 - pages.start.0 <= space {
            return change(Ok(()));
        }
        let core = self.core().clone();
        Count { core, object, left: pages, space, done: Box::new(change) }.go_on();
    }

    /// The first place at or after `offset` that is data, or a hole; exact to the page. A page that was zeroed in part
    /// is data.
    ///
    /// # Errors
    /// [`FsError::PastEnd`] where the file ends at or before `offset`, or has no data after it.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek, done: Completion<u64>) {
        let state = self.core().read();
        let found =
            state.find_file(ino).map(|(slot, hot)| (state.object(slot, &hot), hot.size(), hot.is_written()));
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
            (None, Seek::Hole) => Ok(size),
            (None, Seek::Data) => Err(FsError::PastEnd),
        };
        if !is_written {
            return done(answer(Some(PageNo::of(offset)).filter(|_| what == Seek::Hole)));
        }
        let wanted = match what {
            Seek::Data => SeekTarget::Data,
            Seek::Hole => SeekTarget::Hole,
        };
        let then = move |page: Result<_, CacheError>| done(page.map_err(FsError::from).and_then(answer));
        self.core().cache.seek(object, pages(offset..size), wanted, Box::new(then));
    }
}
