//! A file whose bytes fit into memory, as programs see it and as it may be after a crash.

use crate::unsynced_pages::{PAGE_BYTES, UnsyncedPages};
use std::ops::Range;
use std::sync::Arc;

const PAGE: u64 = PAGE_BYTES as u64;

/// The bytes of a file, and the other bytes that it may have after a crash.
#[derive(Debug, Clone, Default)]
pub struct CrashFile {
    bytes: Arc<Vec<u8>>,
    unsynced: UnsyncedPages<Arc<Vec<u8>>>,
    version: u64,
}

/// The way of a write to the disks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WritePath {
    /// Through the log: its bytes survive if the write does.
    Logged,
    /// Past the log, by the change with this number. Writes only whole pages.
    Bypassing(u64),
}

/// The pages that a range of bytes touches.
fn pages_of(bytes: Range<u64>) -> Range<u64> {
    bytes.start / PAGE..bytes.end.div_ceil(PAGE)
}

impl CrashFile {
    /// A file of `len` zeros.
    pub fn zeros(len: usize) -> CrashFile {
        CrashFile { bytes: Arc::new(vec![0; len]), ..CrashFile::default() }
    }

    /// The bytes that running programs see.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Raised by each change, of the bytes or of the possible ones, so that comparisons can be reused.
    pub fn version(&self) -> u64 {
        self.version
    }

    fn change(&mut self) -> &mut Vec<u8> {
        self.version += 1;
        Arc::make_mut(&mut self.bytes)
    }

    /// Writes `bytes` at `offset`. Zeros fill a gap before them.
    pub fn write(&mut self, offset: u64, bytes: &[u8], path: WritePath) {
        let range = offset..offset + bytes.len() as u64;
        match path {
            WritePath::Logged => self.unsynced.settle(pages_of(range)),
            WritePath::Bypassing(number) => pages_of(range).for_each(|page| self.overwrite(page, number)),
        }
        let start = offset as usize;
        let end = start + bytes.len();
        let content = self.change();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[start..end].copy_from_slice(bytes);
    }

    fn overwrite(&mut self, page: u64, number: u64) {
        let start = page as usize * PAGE_BYTES;
        if start >= self.bytes.len() {
            return self.unsynced.grow(page, number);
        }
        let mut older = self.bytes[start..self.bytes.len().min(start + PAGE_BYTES)].to_vec();
        older.resize(PAGE_BYTES, 0);
        self.unsynced.overwrite(page, Arc::new(older), number);
    }

    /// Fills a range with zeros, as far as the file has it.
    pub fn zero(&mut self, range: Range<u64>) {
        let range = range.start..range.end.min(self.bytes.len() as u64);
        if !range.is_empty() {
            self.change()[range.start as usize..range.end as usize].fill(0);
            self.unsynced.settle(pages_of(range));
        }
    }

    /// Truncates the file, or lets it grow by zeros.
    pub fn set_size(&mut self, size: u64) {
        if size < self.bytes.len() as u64 {
            self.unsynced.truncate(size);
        }
        self.change().resize(size as usize, 0);
    }

    /// Makes the pages of a range certain.
    pub fn settle(&mut self, range: Range<u64>) {
        self.version += 1;
        self.unsynced.settle(pages_of(range));
    }

    /// Makes everything certain that changes before `number` wrote.
    pub fn settle_before(&mut self, number: u64) {
        self.version += 1;
        self.unsynced.settle_before(number);
    }

    /// Takes over the bytes that were found after a crash. No others are possible any more.
    pub fn found(&mut self, bytes: &[u8]) {
        self.settle_before(u64::MAX);
        if self.bytes[..] != *bytes {
            self.bytes = Arc::new(bytes.to_vec());
        }
    }

    /// Describes how `found` differs from every content that the file may have after a crash; `None` if it is
    /// one.
    pub fn difference(&self, found: &[u8]) -> Option<String> {
        if !self.unsynced.allow_size(self.bytes.len() as u64, found.len() as u64) {
            return bytes_difference(&self.bytes, found);
        }
        for (page, (found, newest)) in (0..).zip(found.chunks(PAGE_BYTES).zip(self.bytes.chunks(PAGE_BYTES)))
        {
            let mut older = self.unsynced.older(page);
            if found != newest && !older.any(|older| older[..found.len()] == *found) {
                let count = self.unsynced.older(page).count();
                let what = bytes_difference(newest, found).unwrap_or_default();
                return Some(format!("page {page}, or one of {count} older ones: {what}"));
            }
        }
        None
    }
}

/// Describes the first difference between two contents.
pub fn bytes_difference(expected: &[u8], found: &[u8]) -> Option<String> {
    if expected == found {
        return None;
    }
    let same = expected.iter().zip(found).take_while(|(expected, found)| expected == found).count();
    let differing = expected.iter().zip(found).filter(|(expected, found)| expected != found).count();
    let show = |bytes: &[u8]| format!("{:02x?}", &bytes[same.min(bytes.len())..bytes.len().min(same + 8)]);
    Some(format!(
        "{} bytes, expected {}; {differing} differ, the first at {same} (page {}): {}, expected {}",
        found.len(),
        expected.len(),
        same / PAGE_BYTES,
        show(found),
        show(expected)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(pages: &[u8]) -> Vec<u8> {
        pages.iter().flat_map(|&byte| [byte; PAGE_BYTES]).collect()
    }

    fn file(pages: &[u8]) -> CrashFile {
        let mut file = CrashFile::default();
        file.write(0, &content(pages), WritePath::Logged);
        file
    }

    #[test]
    fn each_bypassing_page_is_old_or_new_until_it_is_synced() {
        let mut file = file(&[1, 2, 3]);
        file.write(0, &content(&[4, 5]), WritePath::Bypassing(10));
        for found in [[4, 5, 3], [1, 5, 3], [4, 2, 3], [1, 2, 3]] {
            assert_eq!(file.difference(&content(&found)), None, "{found:?}");
        }
        for found in [[1, 1, 3], [4, 5, 4], [2, 5, 3]] {
            assert!(file.difference(&content(&found)).is_some(), "{found:?}");
        }
        assert!(file.difference(&content(&[4, 5])).is_some(), "too short");
        let mut torn = content(&[4, 5, 3]);
        torn[100] = 1;
        assert!(file.difference(&torn).is_some(), "a page of both");
        file.settle_before(11);
        assert!(file.difference(&content(&[1, 5, 3])).is_some(), "it was synced");
    }

    #[test]
    fn a_file_may_end_before_a_page_that_it_grew_with() {
        let mut file = file(&[1]);
        file.write(PAGE, &content(&[2, 3]), WritePath::Bypassing(10));
        for len in 1..=3 {
            assert_eq!(file.difference(&content(&[1, 2, 3][..len])), None, "{len} pages");
        }
        assert!(file.difference(&content(&[1, 0, 3])).is_some(), "zeros");
        assert!(file.difference(&content(&[1, 2])[..5000]).is_some(), "a part of a page");
        file.settle(PAGE..PAGE + 10);
        assert!(file.difference(&content(&[1])).is_some(), "a part of it is logged");
        assert_eq!(file.difference(&content(&[1, 2])), None);
        file.set_size(2 * PAGE);
        assert!(file.difference(&content(&[1])).is_some(), "what is left is certain");
    }
}
