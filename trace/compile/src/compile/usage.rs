//! Counts how much of a trace a compiled trace uses, and decides whether that is enough.

use crate::coverage::Coverage;
use std::path::Path;
use trace_file::{Action, Fate, Skipped, TraceError};

/// Maximum number of reasons in an error; the most frequent come first.
const REASONS_NAMED_MAX: usize = 5;

/// Counts of calls that a compiled trace holds without a replay of them.
#[derive(Debug, Default)]
pub(super) struct Usage {
    actions: u64,
    unsupported: u64,
    /// Number of calls on a descriptor whose opening the trace does not show, and the line of the first.
    unknown_descriptor: (u64, u64),
}

impl Usage {
    /// Counts one action.
    pub(super) fn add(&mut self, action: &Action) {
        self.actions += 1;
        match action.fate {
            Fate::Skipped(Skipped::Unsupported) => self.unsupported += 1,
            Fate::Skipped(Skipped::UnknownDescriptor) => {
                let (count, first) = &mut self.unknown_descriptor;
                *first = if *count == 0 { action.line } else { *first };
                *count += 1;
            }
            _ => {}
        }
    }

    /// Refuses a compiled trace that uses too little of its trace. A line that cannot be read counts as a
    /// call, because it is one or half of one. A call that never returned counts as used, because no trace
    /// can say more about it.
    pub(super) fn check(&self, trace: &Path, coverage: &Coverage, percent_min: u8) -> Result<(), TraceError> {
        let unread = coverage.lines.saturating_sub(coverage.used);
        let all = self.actions + unread;
        let used = self.actions - self.unsupported - self.unknown_descriptor.0;
        if used.saturating_mul(100) >= all.saturating_mul(percent_min.into()) {
            return Ok(());
        }
        Err(TraceError::LittleUsed {
            path: trace.into(),
            used,
            all,
            percent: used * 100 / all,
            percent_min,
            why: self.why(coverage),
        })
    }

    /// The reasons for unused calls, with the first line of each kind.
    pub(super) fn why(&self, coverage: &Coverage) -> String {
        let kinds = coverage.problems.iter();
        let mut reasons: Vec<(u64, &str, u64)> =
            kinds.map(|(kind, problem)| (problem.count, kind.as_str(), problem.line)).collect();
        let (count, line) = self.unknown_descriptor;
        if count > 0 {
            reasons.push((count, "descriptor that the trace does not show being opened", line));
        }
        reasons.sort_by_key(|(count, _, line)| (std::cmp::Reverse(*count), *line));
        let more = reasons.len().saturating_sub(REASONS_NAMED_MAX);
        let named = reasons.iter().take(REASONS_NAMED_MAX);
        let mut named: Vec<String> =
            named.map(|(count, kind, line)| format!("{count}: {kind} (first: line {line})")).collect();
        if more > 0 {
            named.push(format!("{more} more reasons"));
        }
        named.join("; ")
    }
}
