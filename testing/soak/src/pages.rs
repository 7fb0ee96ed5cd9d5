//! One file that is changed at random places.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{FallocateFlags, OFlags};

use crate::random::Random;
use crate::replay::Client;

const PAGE: u64 = 4096;
/// The file never becomes longer.
const PAGES: u64 = 16384;
/// The most pages of one write. weir makes a write of up to 1 MiB that begins at a page as a whole.
const RUN: u64 = 32;

/// Each change is made as a whole.
enum Change {
    Write { offset: u64, length: u64 },
    Punch { page: u64, pages: u64 },
    SetLength(u64),
}

/// The file, as it was written and as it was found.
pub(crate) struct Pages {
    seed: u64,
    direct: bool,
    step: u64,
    file: Option<File>,
    written: Vec<u8>,
    found: Vec<u8>,
    /// Memory for writes, which `O_DIRECT` wants to begin at a page.
    scratch: Vec<u8>,
}

impl Pages {
    pub(crate) fn buffered(seed: u64) -> Pages {
        Pages::new(seed, false)
    }

    pub(crate) fn direct(seed: u64) -> Pages {
        Pages::new(seed, true)
    }

    fn new(seed: u64, direct: bool) -> Pages {
        let scratch = vec![0; ((RUN + 1) * PAGE) as usize];
        Pages { seed, direct, step: 0, file: None, written: Vec::new(), found: Vec::new(), scratch }
    }

    fn next(&self) -> (Change, Random) {
        let mut random = Random::new(self.seed, self.step + 1);
        let page = random.below(PAGES);
        let pages = 1 + random.below(RUN.min(PAGES - page));
        let change = match random.below(100) {
            0..2 => Change::SetLength((PAGES / 2 + random.below(PAGES / 2)) * PAGE),
            2..8 => Change::Punch { page, pages },
            8..60 if !self.direct => {
                let start = random.below(PAGE - 1);
                Change::Write { offset: page * PAGE + start, length: 1 + random.below(PAGE - start) }
            }
            _ => Change::Write { offset: page * PAGE, length: pages * PAGE },
        };
        (change, random)
    }

    fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::Error::other("the file is not open"))
    }
}

impl Client for Pages {
    fn create(&mut self, directory: &Path) -> io::Result<()> {
        std::fs::create_dir_all(directory)?;
        let flags = if self.direct { OFlags::DIRECT.bits() as i32 } else { 0 };
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).custom_flags(flags);
        self.file = Some(options.open(directory.join("pages"))?);
        self.sync()
    }

    fn remember(&mut self) {
        let (change, mut random) = self.next();
        match change {
            Change::Write { offset, length } => {
                let end = (offset + length) as usize;
                if self.written.len() < end {
                    self.written.resize(end, 0);
                }
                random.fill(&mut self.written[offset as usize..end]);
            }
            Change::Punch { page, pages } => {
                let length = self.written.len();
                let bytes = (page * PAGE) as usize..((page + pages) * PAGE) as usize;
                self.written[bytes.start.min(length)..bytes.end.min(length)].fill(0);
            }
            Change::SetLength(length) => self.written.resize(length as usize, 0),
        }
        self.step += 1;
    }

    fn change(&mut self) -> io::Result<()> {
        let (change, mut random) = self.next();
        match change {
            Change::Write { offset, length } => {
                let aligned = self.scratch.as_ptr().align_offset(PAGE as usize);
                random.fill(&mut self.scratch[aligned..][..length as usize]);
                let bytes = &self.scratch[aligned..][..length as usize];
                match self.file()?.write_at(bytes, offset)? {
                    written if written == bytes.len() => Ok(()),
                    written => {
                        Err(io::Error::other(format!("wrote {written} of {length} bytes at {offset}")))
                    }
                }
            }
            Change::Punch { page, pages } => {
                let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                Ok(rustix::fs::fallocate(self.file()?, punch, page * PAGE, pages * PAGE)?)
            }
            Change::SetLength(length) => self.file()?.set_len(length),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file()?.sync_data()
    }

    fn read(&mut self, directory: &Path) -> io::Result<()> {
        self.found = std::fs::read(directory.join("pages"))?;
        Ok(())
    }

    fn is_equal(&self) -> bool {
        self.written == self.found
    }

    fn difference(&self) -> String {
        let (written, found) = (&self.written, &self.found);
        let pages = written.chunks(PAGE as usize).zip(found.chunks(PAGE as usize));
        let different = pages.enumerate().filter(|(_, (written, found))| written != found);
        let different: Vec<usize> = different.map(|(page, _)| page).collect();
        let (differ, first) = (different.len(), different.first());
        let (is, was) = (found.len(), written.len());
        format!("{differ} pages differ, first {first:?}; the length is {is} instead of {was}")
    }
}

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use super::*;
    use crate::replay;

    /// A directory with the state after 100 steps.
    fn hundred_steps(direct: bool) -> tempfile::TempDir {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let mut client = Pages::new(7, direct);
        client.create(directory.path()).unwrap();
        for _ in 0..100 {
            client.change().unwrap();
            client.remember();
        }
        directory
    }

    fn verify(
        directory: &tempfile::TempDir,
        direct: bool,
        steps: RangeInclusive<u64>,
    ) -> Result<u64, String> {
        replay::verify(&mut Pages::new(7, direct), directory.path(), steps)
    }

    #[test]
    fn finds_the_step() {
        for direct in [false, true] {
            let directory = hundred_steps(direct);
            assert_eq!(verify(&directory, direct, 90..=90), Ok(100));
        }
    }

    #[test]
    fn a_lost_step_an_invented_one_and_a_torn_byte_are_found() {
        let directory = hundred_steps(false);
        assert!(verify(&directory, false, 101..=101).is_err());
        assert!(verify(&directory, false, 60..=60).is_err());
        let file = OpenOptions::new().write(true).open(directory.path().join("pages")).unwrap();
        file.write_all_at(b"?", 12345).unwrap();
        assert!(verify(&directory, false, 60..=90).is_err());
    }
}
