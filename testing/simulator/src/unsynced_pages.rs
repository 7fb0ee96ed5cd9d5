//! The contents that a file may have after a crash, beside the one that programs see, because of bypassed
//! pages. Each page as a whole has its old or its new bytes. The file may also end before any page by which
//! it grew.

use device::BLOCK_BYTES;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// An older version of a page.
#[derive(Debug, Clone)]
struct OlderPage {
    bytes: Arc<Vec<u8>>,
    /// The number of the change that overwrote this version.
    until: u64,
}

/// The unsynced pages of one file.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnsyncedPages {
    pages: BTreeMap<u64, Vec<OlderPage>>,
    /// Pages by which the file grew, each with the number of the change that added it.
    grown: BTreeMap<u64, u64>,
}

/// The pages that a range of bytes touches.
fn pages_of(bytes: Range<u64>) -> Range<u64> {
    bytes.start / BLOCK_BYTES as u64..bytes.end.div_ceil(BLOCK_BYTES as u64)
}

fn page_bytes(page: u64) -> Range<usize> {
    let start = page as usize * BLOCK_BYTES;
    start..start + BLOCK_BYTES
}

/// Whether a write bypasses the buffer, if bypassing is on.
pub(crate) fn bypasses_buffer(offset: u64, len: u64, size: u64) -> bool {
    let is_whole = |at: u64| at.is_multiple_of(BLOCK_BYTES as u64);
    len > 0 && is_whole(offset | len) && offset <= size && (offset + len <= size || is_whole(size))
}

impl UnsyncedPages {
    /// Records that change `number` wrote `range` over `content`, past the buffer.
    pub(crate) fn write(&mut self, content: &[u8], range: Range<u64>, number: u64) {
        for page in pages_of(range) {
            if page as usize * BLOCK_BYTES >= content.len() {
                self.pages.remove(&page);
                self.grown.insert(page, number);
                continue;
            }
            let mut bytes =
                content[page as usize * BLOCK_BYTES..content.len().min(page_bytes(page).end)].to_vec();
            bytes.resize(BLOCK_BYTES, 0);
            self.pages.entry(page).or_default().push(OlderPage { bytes: Arc::new(bytes), until: number });
        }
    }

    /// Makes the pages of a range certain: only their present content is possible.
    pub(crate) fn settle(&mut self, range: Range<u64>) {
        for page in pages_of(range) {
            self.pages.remove(&page);
            self.grown.remove(&page);
        }
    }

    /// Records that the file was truncated to `size`.
    pub(crate) fn end(&mut self, size: u64) {
        if !size.is_multiple_of(BLOCK_BYTES as u64) {
            self.settle(size..size + 1);
        }
        let first = size.div_ceil(BLOCK_BYTES as u64);
        self.pages.split_off(&first);
        self.grown.split_off(&first);
    }

    /// Drops the page versions that changes before `number` overwrote.
    pub(crate) fn settle_before(&mut self, number: u64) {
        self.pages.values_mut().for_each(|older| older.retain(|one| one.until >= number));
        self.pages.retain(|_, older| !older.is_empty());
        self.grown.retain(|_, grown| *grown >= number);
    }

    /// Describes how `seen` differs from every possible content.
    pub(crate) fn difference(&self, content: &[u8], seen: &[u8]) -> Option<String> {
        let ends = seen.len().is_multiple_of(BLOCK_BYTES)
            && self.grown.contains_key(&((seen.len() / BLOCK_BYTES) as u64));
        if seen.len() != content.len() && !ends {
            return bytes_difference(content, seen);
        }
        for (page, found) in seen.chunks(BLOCK_BYTES).enumerate() {
            let at = page * BLOCK_BYTES;
            let is_now = content.get(at..at + found.len()) == Some(found);
            let was = self.pages.get(&(page as u64)).into_iter().flatten();
            if !is_now && !was.into_iter().any(|one| one.bytes[..found.len()] == *found) {
                let expected = &content[at.min(content.len())..content.len().min(at + found.len())];
                let older = self.pages.get(&(page as u64)).map_or(0, Vec::len);
                let what = bytes_difference(expected, found).unwrap_or_default();
                return Some(format!("page {page}, or one of {older} older ones: {what}"));
            }
        }
        None
    }
}

/// Describes the first difference between two contents.
pub(crate) fn bytes_difference(expected: &[u8], found: &[u8]) -> Option<String> {
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
        same / BLOCK_BYTES,
        show(found),
        show(expected)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = BLOCK_BYTES as u64;

    fn content(pages: &[u8]) -> Vec<u8> {
        pages.iter().flat_map(|&byte| [byte; BLOCK_BYTES]).collect()
    }

    #[test]
    fn each_page_may_be_what_it_was_or_what_it_became_and_nothing_else() {
        let mut loose = UnsyncedPages::default();
        loose.write(&content(&[1, 2, 3]), 0..2 * PAGE, 10);
        let now = content(&[4, 5, 3]);
        for seen in [[4, 5, 3], [1, 5, 3], [4, 2, 3], [1, 2, 3]] {
            assert_eq!(loose.difference(&now, &content(&seen)), None, "{seen:?}");
        }
        for seen in [[1, 1, 3], [4, 5, 4], [2, 5, 3]] {
            assert!(loose.difference(&now, &content(&seen)).is_some(), "{seen:?}");
        }
        assert!(loose.difference(&now, &content(&[4, 5])).is_some(), "too short");
        let mut torn = content(&[4, 5, 3]);
        torn[100] = 1;
        assert!(loose.difference(&now, &torn).is_some(), "a page of both");
        loose.settle_before(11);
        assert!(loose.difference(&now, &content(&[1, 5, 3])).is_some(), "it was synced");
    }

    #[test]
    fn a_file_may_end_before_a_page_that_it_grew_with() {
        let mut loose = UnsyncedPages::default();
        loose.write(&content(&[1]), PAGE..3 * PAGE, 10);
        let now = content(&[1, 2, 3]);
        for len in 1..=3 {
            assert_eq!(loose.difference(&now, &content(&[1, 2, 3][..len])), None, "{len} pages");
        }
        assert!(loose.difference(&now, &content(&[1, 0, 3])).is_some(), "zeros");
        assert!(loose.difference(&now, &content(&[1, 2])[..5000]).is_some(), "a part of a page");
        loose.settle(PAGE..PAGE + 10);
        assert!(loose.difference(&now, &content(&[1])).is_some(), "a part of it is logged");
        assert_eq!(loose.difference(&now, &content(&[1, 2])), None);
        loose.end(2 * PAGE);
        assert!(loose.difference(&content(&[1, 2]), &content(&[1])).is_some(), "what is left is certain");
    }

    #[test]
    fn writes_go_directly_within_a_file_or_from_its_end_on() {
        let goes = |offset, len, size| bypasses_buffer(offset, len, size);
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
