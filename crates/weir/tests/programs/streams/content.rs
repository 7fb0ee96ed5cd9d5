//! The content of a page. The file, the write and the page's number determine every byte, so each page can be
//! judged alone.

use crash_oracle::PAGE_BYTES;

/// The range of a patch in its page. The truncations of these tests never cut its sectors.
const PATCH: std::ops::Range<usize> = 3072..3584;
/// A truncation leaves fewer bytes of a page than this, or all.
pub(super) const KEPT_MAX: u64 = 3000;

/// A write. Its number is unique among the writes to all files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    pub file: u32,
    pub number: u32,
}

/// A page of a file: the first `kept` bytes of a write of the whole page, zeros behind them, and a patch over
/// both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    whole: Option<Version>,
    kept: u16,
    patch: Option<Version>,
}

impl Content {
    pub(super) const ZEROS: Content = Content { whole: None, kept: 0, patch: None };

    pub(super) fn written(version: Version) -> Content {
        Content { whole: Some(version), kept: PAGE_BYTES as u16, patch: None }
    }

    pub(super) fn patched(self, version: Version) -> Content {
        Content { patch: Some(version), ..self }
    }

    /// The content after the file was cut at this byte of the page.
    pub(super) fn cut(self, bytes: u64) -> Content {
        assert!(bytes < KEPT_MAX, "a patch would be cut in two");
        Content { kept: self.kept.min(bytes as u16), patch: None, ..self }
    }

    /// Whether `bytes`, the first bytes of a page, match this content.
    pub(super) fn is(self, page: u64, bytes: &[u8]) -> bool {
        let mut expected = [0; PAGE_BYTES];
        if let Some(version) = self.whole {
            fill(version, page, &mut expected);
            expected[self.kept.into()..].fill(0);
        }
        if let Some(version) = self.patch {
            fill_patch(version, page, &mut expected[PATCH]);
        }
        bytes == &expected[..bytes.len()]
    }
}

fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// Fills `into` with two words that identify the content, and with words that follow from these. No word
/// repeats.
fn fill_words(first: u64, second: u64, into: &mut [u8]) {
    let mut next = mix(first ^ mix(second));
    for (at, word) in into.chunks_exact_mut(8).enumerate() {
        next = next.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let value = match at {
            0 => first,
            1 => second,
            _ => next ^ (next >> 29),
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
}

/// A whole page of a write.
pub(super) fn fill(version: Version, page: u64, into: &mut [u8]) {
    fill_words(u64::from(version.file) << 32 | u64::from(version.number), page, into);
}

fn fill_patch(version: Version, page: u64, into: &mut [u8]) {
    fill_words(u64::from(version.file) << 32 | u64::from(version.number), page | 1 << 63, into);
}

/// The bytes of a patch, and where in its page they begin.
pub(super) fn patch(version: Version, page: u64) -> (usize, Vec<u8>) {
    let mut bytes = vec![0; PATCH.len()];
    fill_patch(version, page, &mut bytes);
    (PATCH.start, bytes)
}

/// Describes unexpected bytes: the page and write that they seem to come from.
pub(super) fn describe(page: u64, bytes: &[u8]) -> String {
    if bytes.iter().all(|&byte| byte == 0) {
        return "zeros".into();
    }
    if bytes.len() < 16 {
        return format!("{bytes:02x?}");
    }
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let version = Version { file: (word(0) >> 32) as u32, number: word(0) as u32 };
    let mut expected = [0; PAGE_BYTES];
    fill(version, word(8), &mut expected);
    let differs = bytes.iter().zip(expected).position(|(&found, expected)| found != expected);
    let rest_is_zeros = differs.is_some_and(|at| bytes[at..].iter().all(|&byte| byte == 0));
    let whose = format!("page {} of file {:#x} by write {}", word(8), version.file, version.number);
    match differs {
        None if word(8) == page => whose,
        None => format!("{whose}, in another place"),
        Some(at) if rest_is_zeros => format!("{whose}, and zeros from byte {at} on"),
        Some(at) => format!("by its first words {whose}, and something else from byte {at} on"),
    }
}

#[test]
fn a_page_is_told_from_any_other() {
    let (one, other) = (Version { file: 1, number: 7 }, Version { file: 1, number: 8 });
    let mut bytes = [0; PAGE_BYTES];
    fill(one, 3, &mut bytes);
    let content = Content::written(one);
    assert!(content.is(3, &bytes) && content.is(3, &bytes[..100]));
    assert!(
        !content.is(4, &bytes) && !Content::written(other).is(3, &bytes) && !Content::ZEROS.is(3, &bytes)
    );
    let (at, part) = patch(other, 3);
    bytes[at..at + part.len()].copy_from_slice(&part);
    assert!(content.patched(other).is(3, &bytes) && !content.is(3, &bytes));
    bytes[2000..].fill(0);
    assert!(content.patched(other).cut(2000).is(3, &bytes) && !content.cut(1999).is(3, &bytes));
    assert_eq!(describe(3, &bytes), "page 3 of file 0x1 by write 7, and zeros from byte 2000 on");
}
