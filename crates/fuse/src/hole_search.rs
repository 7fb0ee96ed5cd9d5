//! SEEK_DATA and SEEK_HOLE in files that programs may have mapped.
//!
//! A store into a shared mapping arrives here when the kernel writes the page back, up to 30 s later. Until
//! then the page may be a hole here, and `cp` and `tar -S` would leave its bytes out. The kernel does not say
//! which files are mapped. So before a range is called a hole, the kernel's pages of the range are
//! invalidated, for which the kernel writes back dirty ones, and the search is repeated. Without such pages
//! this is one short system call.

use crate::page_invalidation::PageInvalidator;
use fs::{Fs, FsCompletion, FsError, Ino, SeekWhence};
use std::ops::Range;

/// One LSEEK request.
pub(crate) struct HoleSearch {
    pub(crate) fs: Fs,
    pub(crate) page_invalidator: PageInvalidator,
    pub(crate) ino: Ino,
    pub(crate) offset: u64,
    pub(crate) target: SeekWhence,
}

impl HoleSearch {
    /// Like [`Fs::seek`], but a hole is also one in the kernel's page cache.
    pub(crate) fn find(self, done: FsCompletion<u64>) {
        if self.page_invalidator.is_started() {
            self.search(0..0, done);
        } else {
            self.fs.seek(self.ino, self.offset, self.target, done);
        }
    }

    fn size(&self) -> u64 {
        self.fs.attributes(self.ino).map_or(0, |found| found.size)
    }

    /// Searches once; the kernel has written back the range `written`.
    fn search(self, written: Range<u64>, done: FsCompletion<u64>) {
        let fs = self.fs.clone();
        let ino = self.ino;
        let offset = self.offset;
        let what = self.target;
        let looked = move |found: Result<u64, FsError>| {
            let size = self.size();
            match (found, what) {
                (Ok(data), SeekWhence::Data) if covers(&written, offset..data) => done(Ok(data)),
                (Ok(data), SeekWhence::Data) => self.write_back(offset..data, done),
                (Err(FsError::PastEnd), SeekWhence::Data) if covers(&written, offset..size) => {
                    done(Err(FsError::PastEnd));
                }
                (Err(FsError::PastEnd), SeekWhence::Data) => self.write_back(offset..size, done),
                (Ok(hole), SeekWhence::Hole) if written.contains(&hole) || hole >= size => done(Ok(hole)),
                (Ok(hole), SeekWhence::Hole) => self.write_back_from(hole, done),
                (found, _) => done(found),
            }
        };
        fs.seek(ino, offset, what, Box::new(looked));
    }

    /// Has the kernel write back a whole hole, so that nearly always one more search is enough.
    fn write_back_from(self, hole: u64, done: FsCompletion<u64>) {
        let fs = self.fs.clone();
        let ino = self.ino;
        let ended = move |data: Result<u64, FsError>| {
            let end = data.unwrap_or_else(|_| self.size());
            self.write_back(hole..end.max(hole + 1), done);
        };
        fs.seek(ino, hole, SeekWhence::Data, Box::new(ended));
    }

    /// Has the kernel write back a range, then searches again.
    ///
    /// If writes are refused, the range is reported as data instead, which is always allowed: invalidating it
    /// would lose dirty pages that the kernel cannot write back, and programs that map them would see that.
    fn write_back(self, range: Range<u64>, done: FsCompletion<u64>) {
        let fs = self.fs.clone();
        fs.wait_for_write_space(move |are_taken| {
            if !are_taken {
                return done(Ok(match self.target {
                    SeekWhence::Data => self.offset,
                    SeekWhence::Hole => self.size(),
                }));
            }
            let page_invalidator = self.page_invalidator.clone();
            let written = range.clone();
            page_invalidator.invalidate(self.ino, range, move || self.search(written, done));
        });
    }
}

/// Whether all of `range` was written back.
fn covers(written: &Range<u64>, range: Range<u64>) -> bool {
    range.is_empty() || (written.start <= range.start && range.end <= written.end)
}
