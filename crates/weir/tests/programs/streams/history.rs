//! The steps of one writer in order, and the states of its files that they allow.

use crate::streams::files::WriterFiles;
use crash_oracle::{CrashHistory, CrashModel, SyncedBytes, WritePath};

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
        /// Whether the bytes may go past the log, to the store.
        bypasses: bool,
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

/// The kind of volume that is judged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum After {
    /// A volume after a crash: pages that bypassed the buffer may be missing.
    Crash,
    /// A clone, which is a point in time.
    Clone,
}

/// A writer's steps since its directory was last known.
#[derive(Debug, Clone, Default)]
pub(super) struct History {
    baseline: WriterFiles,
    pub ops: Vec<Op>,
    /// The files after all steps.
    pub now: WriterFiles,
    /// The begin of the last command that made everything durable.
    pub all_synced: Tick,
}

impl History {
    pub(super) fn new(baseline: WriterFiles) -> History {
        History { now: baseline.clone(), baseline, ops: Vec::new(), all_synced: 0 }
    }

    pub(super) fn begin(&mut self, what: What, begun: Tick) {
        let Ok(()) = self.now.apply(&what, WritePath::Logged);
        self.ops.push(Op { begun, ended: NEVER, what });
    }

    pub(super) fn end(&mut self, ended: Tick) {
        self.ops.last_mut().expect("a step was begun").ended = ended;
    }

    /// The states that the files may have.
    pub(super) fn states(&self, after: After) -> CrashHistory<WriterFiles> {
        let mut states = CrashHistory::new(self.baseline.clone());
        if after == After::Crash {
            states.allow_bypassing();
        }
        for op in &self.ops {
            let issued = states.moment();
            let Ok(()) = states.record(op.what);
            if after == After::Clone || !op.is_done() {
                // A clone may be older than the last sync.
                continue;
            }
            match op.what {
                What::Sync { file } => states.synced(issued, SyncedBytes::File(file)),
                What::Remove { is_durable: true, .. } | What::Copy { .. } => {
                    states.synced(states.moment(), SyncedBytes::Logged);
                }
                _ => {}
            }
            if op.ended < self.all_synced {
                states.synced(states.moment(), SyncedBytes::All);
            }
        }
        states
    }
}
