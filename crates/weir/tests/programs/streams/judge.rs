//! Compares the files with the promise of semantics.md: a prefix of all steps, except for pages that may have
//! bypassed the buffer.

use crate::streams::content::{Content, PAGE_BYTES, describe};
use crate::streams::history::{Event, FileHistory, History, Known, NAMES, NEVER, Names, Path, Tick};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

const PAGE: u64 = PAGE_BYTES as u64;
/// Pages that are read at once.
const READ_PAGES: u64 = 256;

/// The kind of volume that is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// A volume after a crash: pages that bypassed the buffer may be missing.
    Crash,
    /// A clone, which is a point in time.
    Clone,
}

/// The smallest and the largest number of a writer's steps that the files show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Steps {
    pub least: usize,
    pub most: usize,
}

impl Steps {
    fn both(self, other: Steps) -> Steps {
        Steps { least: self.least.max(other.least), most: self.most.min(other.most) }
    }

    fn either(self, other: Steps) -> Steps {
        Steps { least: self.least.min(other.least), most: self.most.max(other.most) }
    }

    fn is_empty(self) -> bool {
        self.least > self.most
    }

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
    /// Pages that are older than a write which may have bypassed the buffer.
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
    pub names: Names,
    pub files: BTreeMap<u32, Known>,
}

/// Judges a writer's directory: its names must be in one of their states in the history, with files that fit.
/// The error describes the mismatches.
pub(super) fn judge(history: &History, dir: &std::path::Path, after: After) -> Result<Judged, String> {
    let found = NAMES.map(|name| match File::open(dir.join(name.text())) {
        Ok(file) => Some(file),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => panic!("{}: {error}", dir.join(name.text()).display()),
    });
    let states = history.names();
    // A clone may be older than the last sync.
    let least = if after == After::Crash { history.durable() } else { 0 };
    let all = Steps { least, most: history.ops.len() };
    let (mut files, mut wrong) = (BTreeMap::new(), Vec::new());
    let mut best: Option<Judged> = None;
    for (index, &(least, names)) in states.iter().enumerate().rev() {
        let most = states.get(index + 1).map_or(all.most, |next| next.0 - 1);
        let mut steps = Steps { least, most }.both(all);
        if steps.is_empty() || [0, 1].iter().any(|&at| names[at].is_some() != found[at].is_some()) {
            continue;
        }
        let mut known = BTreeMap::new();
        let there = [0, 1].into_iter().filter_map(|at| Some((at, names[at]?, found[at].as_ref()?)));
        for (at, file, found) in there {
            match files.entry((at, file)).or_insert_with(|| judge_file(history, file, found, after)) {
                Ok((of_file, pages)) => {
                    steps = steps.both(*of_file);
                    known.insert(file, pages.clone());
                }
                Err(why) => {
                    wrong.push(format!("names {names:x?} after {least} steps: {why}"));
                    steps = Steps { least: 1, most: 0 };
                }
            }
        }
        if steps.is_empty() {
            wrong.push(format!(
                "names {names:x?} after {least} to {most} steps: files are of {files:?}",
                files = of(&files)
            ));
            continue;
        }
        best = Some(match best {
            None => Judged { steps, names, files: known },
            // More than one state fits: keep the bounds that cover both.
            Some(better) => Judged { steps: better.steps.either(steps), ..better },
        });
    }
    let exist = found.each_ref().map(Option::is_some);
    let lost = || format!("nothing fits; new and data: {exist:?}, steps {all:?}:\n{}", wrong.join("\n"));
    best.ok_or_else(lost)
}

/// Counts the pages and files that would differ if all data were logged and all steps that ended before
/// `moment` had survived.
pub(super) fn seen(history: &History, judged: &Judged, moment: Tick) -> Seen {
    let mut seen = Seen::default();
    let least = history.ops.iter().take_while(|op| op.ended < moment).count().max(judged.steps.least);
    for (&file, known) in &judged.files {
        let past = history.file(file);
        let size = past.sizes.iter().rev().find(|(steps, _)| *steps <= least);
        seen.cut_files += u64::from(size.is_some_and(|&(_, size)| size > known.size));
        for (content, events) in known.pages.iter().zip(&past.pages) {
            let newest = events.iter().rev().find(|event| event.steps <= least);
            seen.old_pages += u64::from(newest.is_some_and(|newest| newest.content != *content));
        }
    }
    seen
}

type FileJudged = Result<(Steps, Known), String>;

fn of(files: &BTreeMap<(usize, u32), FileJudged>) -> Vec<(u32, Steps)> {
    files.iter().filter_map(|(key, judged)| Some((key.1, judged.as_ref().ok()?.0))).collect()
}

/// Judges a file. Returns the steps that its content shows, and the content.
fn judge_file(history: &History, number: u32, file: &File, after: After) -> FileJudged {
    let past = history.file(number);
    let all = history.ops.len();
    let size = file.metadata().expect("a size").len();
    let judge = FileJudge { past: &past, after, all, synced: history.synced_by_command() };
    let (mut steps, mut from) = (judge.size(size)?, format!("size {size}"));
    let mut pages = Vec::new();
    let mut bytes = vec![0; (READ_PAGES * PAGE) as usize];
    for first in (0..size.div_ceil(PAGE)).step_by(READ_PAGES as usize) {
        let len = (size - first * PAGE).min(READ_PAGES * PAGE) as usize;
        let read = file.read_exact_at(&mut bytes[..len], first * PAGE);
        read.map_err(|error| format!("file {number:#x}: reading from page {first} on: {error}"))?;
        for (page, bytes) in (first..).zip(bytes[..len].chunks(PAGE_BYTES)) {
            let (of_page, content) =
                judge.page(page, bytes).map_err(|why| format!("file {number:#x}: {why}"))?;
            let both = steps.both(of_page);
            if both.is_empty() {
                return Err(format!(
                    "file {number:#x}: page {page} is of steps {of_page:?}, {from} of {steps:?}"
                ));
            }
            if both != steps {
                from = format!("{from}, page {page}");
            }
            steps = both;
            pages.push(content);
        }
    }
    Ok((steps, Known { size, pages }))
}

struct FileJudge<'a> {
    past: &'a FileHistory,
    after: After,
    all: usize,
    /// Steps that a command made durable.
    synced: usize,
}

impl FileJudge<'_> {
    /// The number of steps from which on an event must have happened.
    fn due(&self, event: &Event) -> usize {
        if event.path == Path::Logged || self.after == After::Clone {
            return event.steps;
        }
        // An acknowledged sync always survives.
        if event.steps <= self.synced || self.past.syncs.iter().any(|&sync| sync > event.steps) {
            return event.steps;
        }
        self.past.settles.iter().copied().find(|&settle| settle > event.steps).unwrap_or(NEVER as usize)
    }

    /// The most steps that are possible if none of `events` is seen.
    fn most_without(&self, events: &[Event]) -> usize {
        events.iter().map(|event| self.due(event) - 1).min().unwrap_or(self.all).min(self.all)
    }

    fn size(&self, found: u64) -> Result<Steps, String> {
        let sizes = &self.past.sizes;
        let mut fits = Vec::new();
        for (index, &(least, _)) in sizes.iter().enumerate().filter(|(_, (_, size))| *size == found) {
            fits.push(Steps { least, most: sizes.get(index + 1).map_or(self.all, |next| next.0 - 1) });
        }
        // The file may end before a missing page.
        if self.after == After::Crash && found.is_multiple_of(PAGE) {
            let events = self.past.pages.get((found / PAGE) as usize).map_or(&[][..], |events| events);
            for (index, next) in events.iter().enumerate().skip(1) {
                if events[index - 1].content == Content::Absent && next.path == Path::MaybeBypassing {
                    fits.push(Steps { least: next.steps, most: self.most_without(&events[index..]) });
                }
            }
        }
        let fits = fits.into_iter().filter(|steps| !steps.is_empty());
        fits.reduce(Steps::either).ok_or_else(|| format!("size {found} can not be, of {:?}", self.past.sizes))
    }

    fn page(&self, page: u64, bytes: &[u8]) -> Result<(Steps, Content), String> {
        let events = self.past.pages.get(page as usize).map_or(&[][..], |events| events);
        let Some(content) =
            events.iter().rev().map(|event| event.content).find(|content| content.is(page, bytes))
        else {
            let found = describe(page, bytes);
            let tail: Vec<_> = events.iter().rev().take(8).collect();
            return Err(format!("page {page} is {found}; it was, the last first, {tail:?}"));
        };
        let fits =
            events.iter().enumerate().filter(|(_, event)| event.content == content).map(|(index, event)| {
                Steps { least: event.steps, most: self.most_without(&events[index + 1..]) }
            });
        let steps = fits.filter(|steps| !steps.is_empty()).reduce(Steps::either);
        let lost = || format!("page {page} is {content:?}, but it became {:?}", events[events.len() - 1]);
        Ok((steps.ok_or_else(lost)?, content))
    }
}
