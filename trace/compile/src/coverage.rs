//! How much of a trace could be used, and the first line of each kind of problem.

use serde::Serialize;
use std::collections::BTreeMap;

/// Kinds of problems that are kept. The limit keeps hostile input from filling memory.
const KINDS_MAX: usize = 256;
/// Bytes of an example line that are kept.
const EXAMPLE_BYTES_MAX: usize = 200;

/// How much of a trace could be used.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Coverage {
    /// Lines read.
    pub lines: u64,
    /// Lines that became part of an event, or that contain none (signals, empty lines).
    pub used: u64,
    /// Calls that began and never ended in the trace.
    pub unfinished: u64,
    /// Unusable lines and calls, by kind.
    pub problems: BTreeMap<String, Problem>,
}

/// One kind of problem.
#[derive(Debug, Clone, Serialize)]
pub struct Problem {
    /// How often the problem occurred.
    pub count: u64,
    /// The first line of that kind, from 1.
    pub line: u64,
    /// The beginning of that line.
    pub example: String,
}

impl Coverage {
    /// Counts a problem. The first of each kind is kept as an example.
    pub fn problem(&mut self, kind: &str, line: u64, text: &[u8]) {
        let kind = if self.problems.len() < KINDS_MAX || self.problems.contains_key(kind) {
            kind
        } else {
            "other kinds"
        };
        let first = || Problem {
            count: 0,
            line,
            example: String::from_utf8_lossy(&text[..text.len().min(EXAMPLE_BYTES_MAX)]).into_owned(),
        };
        self.problems.entry(kind.to_owned()).or_insert_with(first).count += 1;
    }

    /// Adds the counts of another file.
    pub(super) fn add(&mut self, other: &Coverage) {
        self.lines += other.lines;
        self.used += other.used;
        self.unfinished += other.unfinished;
        for (kind, problem) in &other.problems {
            let known = self.problems.len() < KINDS_MAX || self.problems.contains_key(kind);
            let kind = if known { kind.as_str() } else { "other kinds" };
            let count = problem.count;
            let first = || Problem { count: 0, ..problem.clone() };
            self.problems.entry(kind.to_owned()).or_insert_with(first).count += count;
        }
    }
}
