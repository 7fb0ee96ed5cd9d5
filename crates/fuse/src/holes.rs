//! Seeking data and holes in files that programs may have mapped.
//!
//! A store into a shared mapping reaches us when the kernel writes the page back, up to 30 s later; until then the page may be a hole
//! here, and `cp` and `tar -S` would leave its bytes out. Nothing tells us which files are mapped. So before a range is called a hole,
//! the kernel is told to drop its pages of that range, for which it writes dirty ones back; then we look again. Where there are no
//! such pages this is one short system call.

use crate::kernel_pages::KernelPages;
use fs::{Completion, Fs, FsError, Ino, Seek};
use std::ops::Range;
use std::sync::Arc;

/// What a request asks for.
pub(crate) struct Sought {
    pub(crate) fs: Arc<Fs>,
    pub(crate) kernel_pages: KernelPages,
    pub(crate) ino: Ino,
    pub(crate) offset: u64,
    pub(crate) what: Seek,
}

impl Sought {
    /// [`Fs::seek`], where a hole is one in the kernel's memory, too.
    pub(crate) fn find(self, done: Completion<u64>) {
        if self.kernel_pages.may_be_dropped() {
            self.look(0..0, done);
        } else {
            self.fs.seek(self.ino, self.offset, self.what, done);
        }
    }

    fn size(&self) -> u64 {
        self.fs.attributes(self.ino).map_or(0, |found| found.size)
    }

    /// Looks once; `written` has been written back.
    fn look(self, written: Range<u64>, done: Completion<u64>) {
        let (fs, ino, offset, what) = (self.fs.clone(), self.ino, self.offset, self.what);
        let looked = move |found: Result<u64, FsError>| {
            let size = self.size();
            match (found, what) {
                (Ok(data), Seek::Data) if covers(&written, offset..data) => done(Ok(data)),
                (Ok(data), Seek::Data) => self.write_back(offset..data, done),
                (Err(FsError::PastEnd), Seek::Data) if covers(&written, offset..size) => {
                    done(Err(FsError::PastEnd));
                }
                (Err(FsError::PastEnd), Seek::Data) => self.write_back(offset..size, done),
                (Ok(hole), Seek::Hole) if written.contains(&hole) || hole >= size => done(Ok(hole)),
                (Ok(hole), Seek::Hole) => self.write_back_from(hole, done),
                (found, _) => done(found),
            }
        };
        fs.seek(ino, offset, what, Box::new(looked));
    }

    /// Has all of a hole written back, so that one look more is enough, nearly always.
    fn write_back_from(self, hole: u64, done: Completion<u64>) {
        let (fs, ino) = (self.fs.clone(), self.ino);
        let ended = move |data: Result<u64, FsError>| {
            let end = data.unwrap_or_else(|_| self.size());
            self.write_back(hole..end.max(hole + 1), done);
        };
        fs.seek(ino, hole, Seek::Data, Box::new(ended));
    }

    /// Where writes are refused, the range counts as data instead, which is always right: the kernel would drop what it cannot write
    /// back, and with it what the program that maps it sees.
    fn write_back(self, range: Range<u64>, done: Completion<u64>) {
        let fs = self.fs.clone();
        fs.wait_to_take_writes(move |are_taken| {
            if !are_taken {
                return done(Ok(match self.what {
                    Seek::Data => self.offset,
                    Seek::Hole => self.size(),
                }));
            }
            let (kernel_pages, written) = (self.kernel_pages.clone(), range.clone());
            kernel_pages.drop_range(self.ino, range, move || self.look(written, done));
        });
    }
}

/// Whether all of `range` was written back.
fn covers(written: &Range<u64>, range: Range<u64>) -> bool {
    range.is_empty() || (written.start <= range.start && range.end <= written.end)
}
