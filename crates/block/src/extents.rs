//! Which parts of a block volume hold data, and which are holes.

use crate::error::BlockVolumeError;
use crate::planted_bug::{BlockBug, is_planted};
use crate::volume::BlockCompletion;
use cache::{Cache, CacheError, SeekTarget};
use device::{BLOCK_BYTES, ObjectId, PageNo};
use std::ops::Range;

/// A part of a block volume that is all data or all a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockExtent {
    /// Its length in bytes.
    pub len: u64,
    /// Its kind.
    pub kind: BlockExtentKind,
}

/// The kind of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockExtentKind {
    /// Pages that were written. They may hold zeros.
    Data,
    /// Pages that were never written, or were discarded. They read as zeros and take no space.
    Hole,
}

/// A search for the extents of a range, from its start on.
pub(crate) struct ExtentSearch {
    pub(crate) cache: Cache,
    pub(crate) object: ObjectId,
    /// The bytes that no extent covers yet.
    pub(crate) left: Range<u64>,
    /// The most extents to find.
    pub(crate) count_max: usize,
    pub(crate) found: Vec<BlockExtent>,
    pub(crate) done: BlockCompletion<Vec<BlockExtent>>,
}

impl ExtentSearch {
    /// Finds the next extent, and all that follow. The first page of the rest is data, or begins a hole.
    pub(crate) fn go_on(self) {
        if self.left.is_empty() || self.found.len() >= self.count_max {
            return (self.done)(Ok(self.found));
        }
        let first = PageNo::of(self.left.start);
        self.seek(SeekTarget::Data, move |mut search, data| match data {
            Some(page) if page == first => {
                search.seek(SeekTarget::Hole, |mut search, hole| {
                    search.note(BlockExtentKind::Data, hole);
                    search.go_on();
                });
            }
            page => {
                search.note(BlockExtentKind::Hole, page);
                search.go_on();
            }
        });
    }

    /// Looks for the first page of a kind in the rest of the range.
    fn seek(self, wanted: SeekTarget, then: impl FnOnce(ExtentSearch, Option<PageNo>) + Send + 'static) {
        let mut pages = PageNo::of(self.left.start)..PageNo(self.left.end.div_ceil(BLOCK_BYTES as u64));
        if is_planted(BlockBug::LastPageIsHole) {
            pages.end = PageNo::of(self.left.end);
        }
        let (cache, object) = (self.cache.clone(), self.object);
        let found = move |found: Result<Option<PageNo>, CacheError>| match found {
            Ok(found) => then(self, found),
            Err(error) => (self.done)(Err(BlockVolumeError::from(error))),
        };
        cache.seek(object, pages, wanted, Box::new(found));
    }

    /// Adds an extent up to the page `next`, or to the end of the range.
    fn note(&mut self, kind: BlockExtentKind, next: Option<PageNo>) {
        // The first page may have become a hole since it was found to be data. It then ends the extent.
        let second = PageNo(PageNo::of(self.left.start).0 + 1);
        let end = next.map_or(self.left.end, |page| page.max(second).offset().min(self.left.end));
        self.found.push(BlockExtent { len: end - self.left.start, kind });
        self.left.start = end;
    }
}
