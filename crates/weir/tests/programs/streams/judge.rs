//! Compares the files with the promise of semantics.md: a prefix of all steps, except for pages that may have
//! bypassed the buffer.

use crate::streams::content::{Content, Version, describe, fill};
use crate::streams::files::{StreamedFile, WriterFiles};
use crate::streams::history::{After, History, NAMES, NEVER, Name, Tick, What};
use crash_oracle::PAGE_BYTES;
use std::io::ErrorKind;

/// The smallest and the largest number of a writer's steps that the files show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Steps {
    pub least: usize,
    pub most: usize,
}

impl Steps {
    /// The moments at which this many steps had been done.
    pub(super) fn moments(self, history: &History) -> Moments {
        let from = self.least.checked_sub(1).map_or(0, |last| history.ops[last].begun);
        let to = history.ops.get(self.most).map_or(NEVER, |first_missing| first_missing.ended);
        Moments { from, to }
    }
}

/// The moments that a state may come from: the state has all steps that had ended by then, and none that
/// began later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moments {
    pub from: Tick,
    pub to: Tick,
}

impl Moments {
    pub(super) const ANY: Moments = Moments { from: 0, to: NEVER };

    pub(super) fn both(self, other: Moments) -> Moments {
        Moments { from: self.from.max(other.from), to: self.to.min(other.to) }
    }
}

/// Effects that only bypassed writes may have.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Seen {
    /// Pages that bypassed the buffer.
    pub bypassed: u64,
    /// Pages that are older than a write of the prefix that may have bypassed the buffer.
    pub old_pages: u64,
    /// Files that end before a missing page.
    pub cut_files: u64,
}

impl Seen {
    pub(super) fn add(&mut self, more: Seen) {
        self.bypassed += more.bypassed;
        self.old_pages += more.old_pages;
        self.cut_files += more.cut_files;
    }
}

/// A writer's directory, judged.
pub(super) struct Judged {
    pub steps: Steps,
    pub files: WriterFiles,
    pub seen: Seen,
}

/// Judges a writer's directory: it must be in one of its states in the history. The error describes how the
/// directory differs from each of them.
pub(super) fn judge(history: &History, dir: &std::path::Path, after: After) -> Result<Judged, String> {
    let mut found = [None, None];
    for (name, found) in NAMES.into_iter().zip(&mut found) {
        *found = FoundFile::read(&dir.join(name.text()))?;
    }
    let difference = |files: &WriterFiles| {
        NAMES.into_iter().zip(&mut found).find_map(|(name, found)| {
            let what = match (files.names[name as usize], found) {
                (None, None) => None,
                (None, Some(_)) => Some("should not be there".to_owned()),
                (Some(_), None) => Some("is missing".to_owned()),
                (Some(file), Some(found)) => found.difference(&files.files[&file]),
            };
            what.map(|what| format!("{}: {what}", name.text()))
        })
    };
    let (shortest, longest) = history.states(after).find_both(difference)?;
    let steps = Steps { least: shortest.moment.changes() as usize, most: longest.moment.changes() as usize };
    let (mut files, mut seen) = (WriterFiles::default(), Seen::default());
    files.names = longest.model.names;
    for (file, found) in files.names.into_iter().zip(found).filter_map(|(file, found)| Some((file?, found?)))
    {
        let newest = &longest.model.files[&file];
        let known = found.known(newest);
        seen.cut_files += u64::from(known.size < newest.size);
        let pages = known.pages.iter().zip(&newest.pages);
        seen.old_pages += pages.filter(|(known, newest)| known != newest).count() as u64;
        files.files.insert(file, known);
    }
    Ok(Judged { steps, files, seen })
}

/// A file that was found.
struct FoundFile {
    bytes: Vec<u8>,
    /// The page that differed last. The next comparison begins there.
    suspect: usize,
}

impl FoundFile {
    /// `None` if there is no file.
    fn read(path: &std::path::Path) -> Result<Option<FoundFile>, String> {
        match std::fs::read(path) {
            Ok(bytes) => Ok(Some(FoundFile { bytes, suspect: 0 })),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(format!("reading {}: {error}", path.display())),
        }
    }

    fn pages(&self) -> std::slice::Chunks<'_, u8> {
        self.bytes.chunks(PAGE_BYTES)
    }

    /// Describes how the file differs from all that `expected` allows.
    fn difference(&mut self, expected: &StreamedFile) -> Option<String> {
        let size = self.bytes.len() as u64;
        if !expected.allows_size(size) {
            return Some(format!("{size} bytes, expected {}", expected.size));
        }
        let pages = self.pages().enumerate();
        let mut from_suspect = pages.clone().skip(self.suspect).chain(pages.take(self.suspect));
        let (page, bytes) = from_suspect.find(|(page, bytes)| expected.content(*page, bytes).is_none())?;
        let possible: Vec<Content> = expected.possible(page).collect();
        let is = describe(page as u64, bytes);
        self.suspect = page;
        Some(format!("page {page} is {is}, expected one of {possible:?}"))
    }

    /// The content of this file, which has no difference from `expected`.
    fn known(&self, expected: &StreamedFile) -> StreamedFile {
        let content = |(page, bytes)| expected.content(page, bytes).expect("no difference");
        StreamedFile::known(self.bytes.len() as u64, self.pages().enumerate().map(content).collect())
    }
}

#[test]
fn a_bypassed_page_is_old_or_new_until_its_file_is_synced_or_renamed() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = 1;
    let bypassing = |page, pages, number| What::Write { file, page, pages, number, bypasses: true };
    let mut history = History::default();
    let steps = [
        What::Create { file, name: Name::New },
        bypassing(0, 3, 1),
        What::Sync { file },
        bypassing(1, 3, 2),
        What::Replace { file },
    ];
    for (what, begun) in steps.into_iter().zip((1..).step_by(2)) {
        history.begin(what, begun);
        history.end(begun + 1);
    }
    // A file whose pages are of these writes.
    let judge = |name: Option<Name>, writes: &[u32], after| {
        for name in NAMES {
            let _ = std::fs::remove_file(directory.path().join(name.text()));
        }
        if let Some(name) = name {
            let mut bytes = vec![0; writes.len() * PAGE_BYTES];
            for ((&number, page), bytes) in writes.iter().zip(0..).zip(bytes.chunks_exact_mut(PAGE_BYTES)) {
                fill(Version { file, number }, page, bytes);
            }
            std::fs::write(directory.path().join(name.text()), bytes).expect("a file");
        }
        let judged = judge(&history, directory.path(), after).ok()?;
        let known = judged.files.files.get(&file);
        assert!(known.is_none_or(|known| known.pages.len() == writes.len()));
        Some((judged.steps.least, judged.steps.most))
    };
    for (writes, steps) in [(&[1, 1, 1][..], (2, 4)), (&[1, 1, 2], (4, 4)), (&[1, 2, 2, 2], (4, 4))] {
        assert_eq!(judge(Some(Name::New), writes, After::Crash), Some(steps), "{writes:?}");
    }
    for writes in [&[1, 1][..], &[2, 1, 1], &[1, 1, 1, 1]] {
        assert_eq!(judge(Some(Name::New), writes, After::Crash), None, "{writes:?}");
    }
    assert_eq!(judge(None, &[], After::Crash), None, "the name was synced");
    assert_eq!(judge(Some(Name::Data), &[1, 2, 2, 2], After::Crash), Some((5, 5)));
    assert_eq!(judge(Some(Name::Data), &[1, 1, 2, 2], After::Crash), None, "its name is as new as its bytes");
    assert_eq!(judge(Some(Name::New), &[1, 1, 1], After::Clone), Some((2, 3)));
    assert_eq!(judge(Some(Name::New), &[1, 1, 2, 2], After::Clone), None, "a clone has all bytes");
    assert_eq!(judge(None, &[], After::Clone), Some((0, 0)), "a clone may be older than the sync");
}
