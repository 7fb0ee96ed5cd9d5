//! The pages of one file that were written past the log and are not synced. After a crash each page as a
//! whole has its newest content or an older one. The file may also end before any page by which it grew.

use std::collections::BTreeMap;
use std::ops::Range;

/// The bytes of a page.
pub const PAGE_BYTES: usize = 4096;

const PAGE: u64 = PAGE_BYTES as u64;

/// An older content of a page.
#[derive(Debug, Clone)]
struct OlderPage<P> {
    content: P,
    /// The number of the change that overwrote this content.
    until: u64,
}

/// The unsynced pages of one file, with contents of type `P`.
#[derive(Debug, Clone)]
pub struct UnsyncedPages<P> {
    overwritten: BTreeMap<u64, Vec<OlderPage<P>>>,
    /// Pages by which the file grew, each with the number of the change that added it.
    grown: BTreeMap<u64, u64>,
}

impl<P> Default for UnsyncedPages<P> {
    fn default() -> UnsyncedPages<P> {
        UnsyncedPages { overwritten: BTreeMap::new(), grown: BTreeMap::new() }
    }
}

/// Whether a write may bypass the log: whole pages, within the file or from its end on.
pub fn may_bypass(offset: u64, len: u64, size: u64) -> bool {
    let is_whole = |at: u64| at.is_multiple_of(PAGE);
    len > 0 && is_whole(offset | len) && offset <= size && (offset + len <= size || is_whole(size))
}

impl<P> UnsyncedPages<P> {
    /// Records that change `number` overwrote a page past the log.
    pub fn overwrite(&mut self, page: u64, older: P, number: u64) {
        self.overwritten.entry(page).or_default().push(OlderPage { content: older, until: number });
    }

    /// Records that change `number` added a page to the file, past the log.
    pub fn grow(&mut self, page: u64, number: u64) {
        self.overwritten.remove(&page);
        self.grown.insert(page, number);
    }

    /// Makes pages certain: only their present content is possible.
    pub fn settle(&mut self, pages: Range<u64>) {
        for page in pages {
            self.overwritten.remove(&page);
            self.grown.remove(&page);
        }
    }

    /// Records that the file was truncated to `size`.
    pub fn truncate(&mut self, size: u64) {
        if !size.is_multiple_of(PAGE) {
            self.settle(size / PAGE..size / PAGE + 1);
        }
        let first = size.div_ceil(PAGE);
        self.overwritten.split_off(&first);
        self.grown.split_off(&first);
    }

    /// Drops the contents that changes before `number` overwrote.
    pub fn settle_before(&mut self, number: u64) {
        self.overwritten.values_mut().for_each(|older| older.retain(|one| one.until >= number));
        self.overwritten.retain(|_, older| !older.is_empty());
        self.grown.retain(|_, grown| *grown >= number);
    }

    /// Whether a file of `size` bytes may have `found` bytes.
    pub fn allow_size(&self, size: u64, found: u64) -> bool {
        found == size || found.is_multiple_of(PAGE) && self.grown.contains_key(&(found / PAGE))
    }

    /// The contents that a page may have beside its newest, oldest first.
    pub fn older(&self, page: u64) -> impl Iterator<Item = &P> {
        self.overwritten.get(&page).into_iter().flatten().map(|older| &older.content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_bypasses_within_a_file_or_from_its_end_on() {
        let goes = may_bypass;
        assert!(
            goes(0, PAGE, 0)
                && goes(PAGE, PAGE, 2 * PAGE)
                && goes(0, 4 * PAGE, 2 * PAGE)
                && goes(0, PAGE, 5000)
        );
        assert!(!goes(0, 0, PAGE) && !goes(1, PAGE, PAGE) && !goes(0, 100, PAGE));
        assert!(!goes(PAGE, PAGE, 0), "it would leave a hole");
        assert!(!goes(0, 2 * PAGE, 5000), "the end is within a page");
    }
}
