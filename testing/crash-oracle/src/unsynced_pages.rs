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

/// Which writes may bypass the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BypassScope {
    /// No write.
    Nothing,
    /// Writes of whole pages alone.
    WritesOfWholePages,
    /// The whole pages of every write.
    WholePages,
}

impl BypassScope {
    /// The bytes of a write that may bypass the log: whole pages, within the file or from its end on.
    pub fn bypassing(self, offset: u64, len: u64, size: u64) -> Option<Range<u64>> {
        let start = offset.next_multiple_of(PAGE);
        let end = (offset + len) / PAGE * PAGE;
        let is_in_scope = match self {
            BypassScope::Nothing => false,
            BypassScope::WritesOfWholePages => start == offset && end == offset + len,
            BypassScope::WholePages => true,
        };
        let leaves_no_hole = offset <= size && (end <= size || size <= start || size.is_multiple_of(PAGE));
        (is_in_scope && start < end && leaves_no_hole).then_some(start..end)
    }
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
        let goes = |offset, len, size| {
            BypassScope::WritesOfWholePages.bypassing(offset, len, size) == Some(offset..offset + len)
        };
        assert!(
            goes(0, PAGE, 0)
                && goes(PAGE, PAGE, 2 * PAGE)
                && goes(0, 4 * PAGE, 2 * PAGE)
                && goes(0, PAGE, 5000)
        );
        assert!(!goes(0, 0, PAGE) && !goes(1, PAGE, PAGE) && !goes(0, 100, PAGE));
        assert!(!goes(PAGE, PAGE, 0), "it would leave a hole");
        assert!(!goes(0, 2 * PAGE, 5000), "the end is within a page");
        assert_eq!(BypassScope::Nothing.bypassing(0, PAGE, 0), None);
    }

    #[test]
    fn the_pages_between_the_ends_of_a_write_bypass() {
        let goes = |offset, len, size| BypassScope::WholePages.bypassing(offset, len, size);
        assert_eq!(goes(100, 3 * PAGE, 100), Some(PAGE..3 * PAGE), "the old end is in the first part");
        assert_eq!(goes(100, 3 * PAGE, 5000), None, "the old end is between");
        assert_eq!(goes(100, 3 * PAGE, 2 * PAGE), Some(PAGE..3 * PAGE));
        assert_eq!(goes(100, 3 * PAGE, 3 * PAGE + 50), Some(PAGE..3 * PAGE), "it is in the last part");
        assert_eq!(goes(100, PAGE, 9 * PAGE), None, "no page is whole");
        assert_eq!(goes(100, 3 * PAGE, 99), None, "it would leave a hole");
    }
}
