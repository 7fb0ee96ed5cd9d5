//! The code and the data that a run has touched, by function, in lines of the processor's caches.

use std::collections::{BTreeMap, BTreeSet};

use super::lackey::{MemoryRange, TraceStep};
use super::symbols::FunctionId;

/// Bytes of a line of the processor's caches.
pub(super) const LINE_BYTES: u64 = 64;

/// A bit for each byte of a line.
pub(super) type LineMask = u64;

/// The bytes of one line of data that were read, and those that were written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct DataLine {
    pub(super) read: LineMask,
    pub(super) written: LineMask,
}

/// The code that one function has executed, and the data that it has accessed.
#[derive(Debug, Clone, Default)]
pub(super) struct FunctionTouches {
    /// Executed bytes of its code, by line.
    pub(super) code: BTreeMap<u64, LineMask>,
    pub(super) data: BTreeMap<u64, DataLine>,
    pub(super) instructions: u64,
}

/// The lines that a run has touched.
#[derive(Debug, Clone, Default)]
pub(super) struct TouchedLines {
    pub(super) functions: BTreeMap<FunctionId, FunctionTouches>,
    /// The function whose instruction was added last.
    running: Option<FunctionId>,
}

/// Totals of several functions. A line that two of them share counts once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LineTotals {
    pub(super) code_lines: u64,
    /// Bytes of code that were executed.
    pub(super) executed_bytes: u64,
    pub(super) data_lines: u64,
    pub(super) data_lines_written: u64,
    pub(super) instructions: u64,
}

impl TouchedLines {
    /// Adds an instruction of `function`.
    pub(super) fn execute(&mut self, instruction: MemoryRange, function: FunctionId) {
        self.running = Some(function);
        let touches = self.functions.entry(function).or_default();
        touches.instructions += 1;
        for (line, mask) in lines(instruction) {
            *touches.code.entry(line).or_default() |= mask;
        }
    }

    /// Adds an access to memory by the last instruction.
    pub(super) fn access(&mut self, step: TraceStep) {
        let (range, is_read, is_written) = match step {
            TraceStep::Instruction(_) => return,
            TraceStep::Load(range) => (range, true, false),
            TraceStep::Store(range) => (range, false, true),
            TraceStep::Modify(range) => (range, true, true),
        };
        let Some(running) = self.running else { return };
        let touches = self.functions.entry(running).or_default();
        for (line, mask) in lines(range) {
            let data = touches.data.entry(line).or_default();
            data.read |= if is_read { mask } else { 0 };
            data.written |= if is_written { mask } else { 0 };
        }
    }

    /// Totals of the functions that `counts` selects.
    pub(super) fn totals(&self, counts: impl Fn(FunctionId) -> bool) -> LineTotals {
        let mut code: BTreeMap<u64, LineMask> = BTreeMap::new();
        let mut data: BTreeMap<u64, DataLine> = BTreeMap::new();
        let mut instructions = 0;
        for (_, touches) in self.functions.iter().filter(|(id, _)| counts(**id)) {
            instructions += touches.instructions;
            for (line, mask) in &touches.code {
                *code.entry(*line).or_default() |= mask;
            }
            for (line, bytes) in &touches.data {
                data.entry(*line).or_default().written |= bytes.written;
            }
        }
        LineTotals {
            code_lines: code.len() as u64,
            executed_bytes: code.values().map(|mask| u64::from(mask.count_ones())).sum(),
            data_lines: data.len() as u64,
            data_lines_written: data.values().filter(|line| line.written != 0).count() as u64,
            instructions,
        }
    }

    /// Totals by group of functions, the group with the most code first. A function without a group is left out.
    pub(super) fn groups(
        &self,
        group_of: impl Fn(FunctionId) -> Option<String>,
    ) -> Vec<(String, LineTotals)> {
        let names: BTreeSet<String> = self.functions.keys().filter_map(|id| group_of(*id)).collect();
        let totals = |name: String| {
            let totals = self.totals(|id| group_of(id).as_ref() == Some(&name));
            (name, totals)
        };
        let mut all: Vec<(String, LineTotals)> = names.into_iter().map(totals).collect();
        all.sort_by_key(|(_, totals)| std::cmp::Reverse(totals.code_lines));
        all
    }
}

/// The lines of a range, each with a mask of its bytes in the range.
fn lines(range: MemoryRange) -> impl Iterator<Item = (u64, LineMask)> {
    let end = range.address + range.bytes.max(1);
    (range.address / LINE_BYTES..end.div_ceil(LINE_BYTES)).map(move |line| {
        let begin = line * LINE_BYTES;
        let first = range.address.max(begin) - begin;
        let count = end.min(begin + LINE_BYTES) - begin - first;
        (line, (u64::MAX >> (LINE_BYTES - count)) << first)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(address: u64, bytes: u64) -> MemoryRange {
        MemoryRange { address, bytes }
    }

    #[test]
    fn a_range_is_in_each_line_that_it_touches() {
        let of = |address, bytes| lines(range(address, bytes)).collect::<Vec<_>>();
        assert_eq!(of(0, 64), [(0, u64::MAX)]);
        assert_eq!(of(62, 4), [(0, 0b11 << 62), (1, 0b11)]);
        assert_eq!(of(130, 3), [(2, 0b11100)]);
    }

    #[test]
    fn a_line_of_two_functions_counts_once_in_their_total() {
        let (one, other) = (FunctionId(0), FunctionId(1));
        let mut touched = TouchedLines::default();
        touched.execute(range(0, 4), one);
        touched.access(TraceStep::Load(range(1000, 8)));
        touched.execute(range(4, 3), one);
        touched.execute(range(32, 4), other);
        touched.access(TraceStep::Modify(range(1000, 8)));
        touched.access(TraceStep::Store(range(2000, 8)));
        let all = touched.totals(|_| true);
        let expected = LineTotals {
            code_lines: 1,
            executed_bytes: 11,
            data_lines: 2,
            data_lines_written: 2,
            instructions: 3,
        };
        assert_eq!(all, expected);
        let by_function = touched.groups(|id| Some(if id == one { "one" } else { "other" }.to_owned()));
        assert_eq!(by_function[0].1.data_lines_written, 0);
        assert_eq!(by_function[1].1.data_lines_written, 2);
        assert_eq!(by_function[1].1.instructions, 1);
    }
}
