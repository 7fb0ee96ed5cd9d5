//! The steps of one writer in order, and the content of each page of its files after each step.

use crate::streams::content::{Content, PAGE_BYTES, Version};
use std::collections::BTreeMap;

const PAGE: u64 = PAGE_BYTES as u64;

/// A moment of the clock that all writers share.
pub(super) type Tick = u64;

/// The end of a step that has not ended.
pub(super) const NEVER: Tick = Tick::MAX;

/// The names in a writer's directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Name {
    /// The file that is being written.
    New,
    /// The file that it replaces.
    Data,
}

pub(super) const NAMES: [Name; 2] = [Name::New, Name::Data];

impl Name {
    pub(super) fn text(self) -> &'static str {
        match self {
            Name::New => "new",
            Name::Data => "data",
        }
    }
}

/// Which files the names lead to.
pub(super) type Names = [Option<u32>; 2];

#[derive(Debug, Clone, Copy)]
pub(super) enum What {
    Create {
        file: u32,
        name: Name,
    },
    /// Whole pages.
    Write {
        file: u32,
        page: u64,
        pages: u64,
        number: u32,
        path: Path,
    },
    /// A part of a page.
    Patch {
        file: u32,
        page: u64,
        number: u32,
    },
    Truncate {
        file: u32,
        size: u64,
    },
    /// Whole pages within the file become holes.
    Punch {
        file: u32,
        page: u64,
        pages: u64,
    },
    Sync {
        file: u32,
    },
    /// `New` is renamed over `Data`.
    Replace {
        file: u32,
    },
    /// All pages of a file become those of another.
    Copy {
        from: u32,
        to: u32,
    },
    Remove {
        name: Name,
        is_durable: bool,
    },
}

/// The ways in which bytes may be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Path {
    Logged,
    /// To the store, unless there was no space for that.
    MaybeBypassing,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Op {
    pub begun: Tick,
    pub ended: Tick,
    pub what: What,
}

impl Op {
    pub(super) fn is_done(&self) -> bool {
        self.ended != NEVER
    }
}

/// The known state of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Known {
    pub size: u64,
    pub pages: Vec<Content>,
}

/// The known state of a writer's directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Baseline {
    pub names: Names,
    pub files: BTreeMap<u32, Known>,
}

/// A writer's steps since its directory was last known.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    pub baseline: Baseline,
    pub ops: Vec<Op>,
    /// The begin of the last command that made everything durable.
    pub all_synced: Tick,
}

/// The content of a page after `steps` steps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Event {
    pub steps: usize,
    pub content: Content,
    pub path: Path,
}

/// The states of one file after each step.
#[derive(Debug, Default)]
pub(super) struct FileHistory {
    /// Sizes, each with the number of steps before it.
    pub sizes: Vec<(usize, u64)>,
    pub pages: Vec<Vec<Event>>,
    /// Steps that completed a sync of the file.
    pub syncs: Vec<usize>,
    /// Steps that gave the file a name, or cloned it.
    pub settles: Vec<usize>,
}

impl FileHistory {
    fn of(known: Option<&Known>) -> FileHistory {
        let mut history = FileHistory::default();
        history.sizes.push((0, known.map_or(0, |known| known.size)));
        let event = |&content| vec![Event { steps: 0, content, path: Path::Logged }];
        history.pages = known.map_or(Vec::new(), |known| known.pages.iter().map(event).collect());
        history
    }

    pub(super) fn size(&self) -> u64 {
        self.sizes.last().expect("every file has a size").1
    }

    fn set_size(&mut self, steps: usize, size: u64) {
        if size != self.size() {
            self.sizes.push((steps, size));
        }
    }

    pub(super) fn content(&self, page: u64) -> Content {
        self.pages
            .get(page as usize)
            .and_then(|events| events.last())
            .map_or(Content::Absent, |event| event.content)
    }

    fn set(&mut self, steps: usize, page: u64, content: Content, path: Path) {
        while self.pages.len() <= page as usize {
            self.pages.push(vec![Event { steps: 0, content: Content::Absent, path: Path::Logged }]);
        }
        self.pages[page as usize].push(Event { steps, content, path });
    }

    /// The file grows to at least this size.
    fn grow(&mut self, steps: usize, size: u64) {
        if size > self.size() {
            for page in self.size().div_ceil(PAGE)..size.div_ceil(PAGE) {
                self.set(steps, page, Content::ZEROS, Path::Logged);
            }
            self.set_size(steps, size);
        }
    }

    fn write(&mut self, steps: usize, pages: std::ops::Range<u64>, version: Version, path: Path) {
        self.grow(steps, pages.start * PAGE);
        for page in pages.clone() {
            self.set(steps, page, Content::written(version), path);
        }
        self.set_size(steps, self.size().max(pages.end * PAGE));
    }

    fn truncate(&mut self, steps: usize, size: u64) {
        if size >= self.size() {
            return self.grow(steps, size);
        }
        if !size.is_multiple_of(PAGE) {
            let page = size / PAGE;
            self.set(steps, page, self.content(page).cut(size % PAGE), Path::Logged);
        }
        for page in size.div_ceil(PAGE)..self.size().div_ceil(PAGE) {
            self.set(steps, page, Content::Absent, Path::Logged);
        }
        self.set_size(steps, size);
    }
}

impl History {
    /// The states of the names, each with the number of steps before it.
    pub(super) fn names(&self) -> Vec<(usize, Names)> {
        let mut all = vec![(0, self.baseline.names)];
        for (steps, op) in (1..).zip(&self.ops) {
            let mut names = all[all.len() - 1].1;
            match op.what {
                What::Create { file, name } => names[name as usize] = Some(file),
                What::Replace { .. } => names = [None, names[Name::New as usize]],
                What::Remove { name, .. } => names[name as usize] = None,
                _ => continue,
            }
            all.push((steps, names));
        }
        all
    }

    /// The states of a file.
    pub(super) fn file(&self, file: u32) -> FileHistory {
        self.file_within(file, self.ops.len())
    }

    /// The states of a file in the first `steps` steps.
    fn file_within(&self, file: u32, steps: usize) -> FileHistory {
        let mut history = FileHistory::of(self.baseline.files.get(&file));
        for (steps, op) in (1..).zip(&self.ops[..steps]) {
            match op.what {
                What::Write { file: of, page, pages, number, path } if of == file => {
                    history.write(steps, page..page + pages, Version { file, number }, path);
                }
                What::Patch { file: of, page, number } if of == file => {
                    let content = history.content(page).patched(Version { file, number });
                    history.set(steps, page, content, Path::Logged);
                }
                What::Truncate { file: of, size } if of == file => history.truncate(steps, size),
                What::Punch { file: of, page, pages } if of == file => {
                    for page in page..page + pages {
                        history.set(steps, page, Content::ZEROS, Path::Logged);
                    }
                }
                What::Sync { file: of } if of == file && op.is_done() => history.syncs.push(steps),
                What::Replace { file: of } if of == file => history.settles.push(steps),
                What::Copy { from, .. } if from == file => history.settles.push(steps),
                What::Copy { from, to } if to == file => {
                    let source = self.file_within(from, steps - 1);
                    for page in 0..source.size().div_ceil(PAGE) {
                        history.set(steps, page, source.content(page), Path::Logged);
                    }
                    history.set_size(steps, source.size());
                }
                _ => {}
            }
        }
        history
    }

    /// The number of steps that must survive, because a later sync, or a removal of a synced file, was
    /// acknowledged.
    pub(super) fn durable(&self) -> usize {
        let durable = |(steps, op): (usize, &Op)| match op.what {
            What::Sync { .. } if op.is_done() => Some(steps - 1),
            What::Remove { is_durable: true, .. } | What::Copy { .. } if op.is_done() => Some(steps),
            _ => None,
        };
        let of_this = (1..).zip(&self.ops).filter_map(durable).max().unwrap_or(0);
        of_this.max(self.synced_by_command())
    }

    /// The steps that a command made durable, with all bytes.
    pub(super) fn synced_by_command(&self) -> usize {
        self.ops.iter().take_while(|op| op.ended < self.all_synced).count()
    }
}
