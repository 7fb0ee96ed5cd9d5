//! `weir-bench footprint`: the distinct lines of code and data that operations of weir, or any program, touch.
//!
//! valgrind prints each instruction and each access of a program, and this module counts the lines of 64 bytes. The counts
//! are the same on a busy machine. valgrind counts each byte that `rep movsb` or `rep stosb` moves as an instruction.

mod bounds;
mod lackey;
mod operations;
mod page;
mod symbols;
mod touched;

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use clap::Args;

use super::cleanup;
use super::error::BenchError;
use super::quantile::median;
use super::report::{BenchReport, ReportCell, ReportTable};
use bounds::{BOUNDS, BoundedFigure};
use lackey::{TraceStep, TracedProgram};
use operations::{OPERATIONS, TURNS};
use page::PageSection;
use symbols::{FunctionId, OperationMark, ProcessSymbols};
use touched::{LINE_BYTES, LineTotals, TouchedLines};

/// The crate of this program: its own code between two marks is not weir's.
const OWN_CRATE: &str = "weir_bench";
/// The verb of this program that runs the operations.
const OPERATIONS_VERB: &str = "footprint-operations";
/// Rust's calls for new memory.
const ALLOCATING: [&str; 3] = ["__rust_alloc", "__rust_alloc_zeroed", "__rust_realloc"];
/// Functions that the text has of a whole program.
const FUNCTIONS_MAX: usize = 40;

/// Options of `weir-bench footprint`.
#[derive(Debug, Args)]
pub(super) struct FootprintArgs {
    /// Write a page that draws each function's lines of code and data
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
    /// Measure this program from its start to its end, without the programs that it starts [default: the
    /// operations of weir]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &FootprintArgs) -> Result<(), BenchError> {
    cleanup::install()?;
    let mut report = BenchReport::new("footprint");
    let page = match args.command.split_first() {
        Some((program, arguments)) => measure_program(program, arguments, &mut report)?,
        None => measure_operations(&mut report)?,
    };
    if let Some(path) = &args.html {
        fs::write(path, page).map_err(|error| BenchError::io("cannot write", path, error))?;
    }
    report.print(args.json);
    Ok(())
}

/// Runs the operations, for [`run_benchmark`].
pub(super) fn run_operations() {
    operations::run();
}

/// The lines that one turn of an operation has touched.
struct OperationTurn {
    touched: TouchedLines,
    /// Calls of Rust's allocator by weir.
    allocations: u64,
}

/// Figures of an operation: the median of its turns, each by itself.
struct OperationFigures {
    totals: LineTotals,
    allocations: u64,
}

impl OperationFigures {
    fn of(turns: &[OperationTurn], symbols: &ProcessSymbols) -> OperationFigures {
        let totals: Vec<LineTotals> = turns
            .iter()
            .map(|turn| turn.touched.totals(|id| symbols.function(id).component != OWN_CRATE))
            .collect();
        let median_of = |figure: fn(&LineTotals) -> u64| {
            let values: Vec<f64> = totals.iter().map(|of| figure(of) as f64).collect();
            median(&values) as u64
        };
        let allocations: Vec<f64> = turns.iter().map(|turn| turn.allocations as f64).collect();
        OperationFigures {
            totals: LineTotals {
                code_lines: median_of(|of| of.code_lines),
                executed_bytes: median_of(|of| of.executed_bytes),
                data_lines: median_of(|of| of.data_lines),
                data_lines_written: median_of(|of| of.data_lines_written),
                instructions: median_of(|of| of.instructions),
            },
            allocations: median(&allocations) as u64,
        }
    }

    fn figure(&self, which: BoundedFigure) -> u64 {
        match which {
            BoundedFigure::CodeBytes => self.totals.code_lines * LINE_BYTES,
            BoundedFigure::DataLines => self.totals.data_lines,
            BoundedFigure::Instructions => self.totals.instructions,
            BoundedFigure::Allocations => self.allocations,
        }
    }
}

/// Measures the operations of weir, and returns the page about the median turn of each.
fn measure_operations(report: &mut BenchReport) -> Result<String, BenchError> {
    // Not by the link in /proc, which would be valgrind's.
    let own =
        std::env::current_exe().map_err(|error| BenchError::io("cannot find", "/proc/self/exe", error))?;
    let mut program = TracedProgram::start(own, [OPERATIONS_VERB])?;
    let mut symbols = ProcessSymbols::new(program.process());
    let mut turns = read_turns(&mut program, &mut symbols)?;
    let says = program.finish(true)?;
    if turns.len() as u64 != OPERATIONS.len() as u64 * TURNS {
        return Err(BenchError::Command {
            command: OPERATIONS_VERB.to_owned(),
            says: format!("{} turns were traced. {}", turns.len(), says.join("\n")),
        });
    }
    report.line(format!(
        "medians of {TURNS} turns on {} pages and {} names, without the benchmark's own code",
        operations::PAGES,
        operations::NAMES
    ));
    report.fact("turns", TURNS);
    report.fact("debug_assertions", cfg!(debug_assertions));
    if cfg!(debug_assertions) {
        report.line("this build checks its own assertions, as tests do: a release build touches less");
    }
    let (mut figures, mut bounded, mut by_component) =
        (ReportTable::default(), ReportTable::default(), ReportTable::default());
    let mut medians = Vec::new();
    for (name, _) in OPERATIONS {
        let mut own: Vec<OperationTurn> = turns.drain(..TURNS as usize).collect();
        let of = OperationFigures::of(&own, &symbols);
        let mut cells = vec![("operation", "operation", name.into())];
        cells.extend(cells_of(&of.totals));
        cells.push(("allocations", "allocations", of.allocations.into()));
        figures.row(cells);
        for bound in BOUNDS.iter().filter(|bound| bound.operation == name) {
            let figure = of.figure(bound.figure);
            bounded.row([
                ("operation", "operation", name.into()),
                ("figure", "figure", bound.figure.name().into()),
                ("value", "value", figure.into()),
                ("target", "target", bound.target.into()),
                ("met", "verdict", ReportCell::verdict(figure <= bound.target)),
                ("gate", "gate in the tests", bound.gate.into()),
            ]);
        }
        own.sort_by_key(|turn| turn.touched.totals(|_| true).instructions);
        let median_turn = own.swap_remove(own.len() / 2).touched;
        for (component, totals) in median_turn.groups(|id| component_of(&symbols, id)) {
            let mut cells =
                vec![("operation", "operation", name.into()), ("component", "component", component.into())];
            cells.extend(cells_of(&totals));
            by_component.row(cells);
        }
        medians.push((name, median_turn));
    }
    report.table("operations", &figures);
    report.line("\nbounds");
    report.table("bounds", &bounded);
    report.line("\nby crate, of the median turn; a line of two crates counts in both");
    report.table("components", &by_component);
    let sections: Vec<PageSection<'_>> =
        medians.iter().map(|(heading, touched)| PageSection { heading, touched }).collect();
    Ok(page::page(&sections, &symbols, OWN_CRATE))
}

/// The component of a function of weir, or of what weir calls.
fn component_of(symbols: &ProcessSymbols, id: FunctionId) -> Option<String> {
    let component = &symbols.function(id).component;
    (component != OWN_CRATE).then(|| component.clone())
}

/// Reads the trace between each pair of marks.
fn read_turns(
    program: &mut TracedProgram,
    symbols: &mut ProcessSymbols,
) -> Result<Vec<OperationTurn>, BenchError> {
    let mut turns = Vec::new();
    let mut turn: Option<OperationTurn> = None;
    let mut caller: Option<FunctionId> = None;
    while let Some(step) = program.next_step()? {
        let TraceStep::Instruction(range) = step else {
            if let Some(turn) = &mut turn {
                turn.touched.access(step);
            }
            continue;
        };
        let id = symbols.find(range.address);
        let function = symbols.function(id);
        if function.range.start == range.address {
            match function.mark() {
                Some(OperationMark::Begin) => {
                    turn = Some(OperationTurn { touched: TouchedLines::default(), allocations: 0 });
                }
                Some(OperationMark::End) => turns.extend(turn.take()),
                None => {}
            }
            let is_by_weir = || caller.is_some_and(|caller| symbols.function(caller).component != OWN_CRATE);
            let allocates = || ALLOCATING.contains(&function.last_name());
            if let Some(turn) = turn.as_mut().filter(|_| allocates() && is_by_weir()) {
                turn.allocations += 1;
            }
        }
        caller = Some(id);
        if let Some(turn) = &mut turn {
            turn.touched.execute(range, id);
        }
    }
    Ok(turns)
}

/// Measures any program, and returns the page about it.
fn measure_program(
    program: &OsString,
    arguments: &[OsString],
    report: &mut BenchReport,
) -> Result<String, BenchError> {
    let mut traced = TracedProgram::start(program, arguments)?;
    let mut symbols = ProcessSymbols::new(traced.process());
    let mut touched = TouchedLines::default();
    while let Some(step) = traced.next_step()? {
        match step {
            TraceStep::Instruction(range) => touched.execute(range, symbols.find(range.address)),
            access => touched.access(access),
        }
    }
    for line in traced.finish(false)? {
        eprintln!("{line}");
    }
    let total = touched.totals(|_| true);
    if total.instructions == 0 {
        return Err(BenchError::Command {
            command: program.to_string_lossy().into_owned(),
            says: "no instruction was traced".to_owned(),
        });
    }
    let mut objects = ReportTable::default();
    let by_object = touched.groups(|id| Some(symbols.function(id).object.clone()));
    for (name, totals) in std::iter::once(("all".to_owned(), total)).chain(by_object) {
        let mut cells = vec![("object", "file", name.into())];
        cells.extend(cells_of(&totals));
        objects.row(cells);
    }
    report.table("objects", &objects);
    let mut functions: Vec<(FunctionId, LineTotals)> =
        touched.functions.keys().map(|&id| (id, touched.totals(|other| other == id))).collect();
    functions.sort_by_key(|(_, totals)| std::cmp::Reverse(totals.code_lines));
    let left_out = functions.len().saturating_sub(FUNCTIONS_MAX);
    functions.truncate(FUNCTIONS_MAX);
    let mut table = ReportTable::default();
    for (id, totals) in functions {
        let function = symbols.function(id);
        let mut cells = vec![
            ("object", "file", function.object.as_str().into()),
            ("function", "function", function.name.as_str().into()),
        ];
        cells.extend(cells_of(&totals));
        table.row(cells);
    }
    report.table("functions", &table);
    report.fact("functions_left_out", left_out);
    report.line(format!("and {left_out} functions with less code"));
    let heading = program.to_string_lossy();
    Ok(page::page(&[PageSection { heading: &heading, touched: &touched }], &symbols, ""))
}

fn cells_of(totals: &LineTotals) -> [(&'static str, &'static str, ReportCell); 6] {
    [
        ("code_bytes", "code B", (totals.code_lines * LINE_BYTES).into()),
        ("code_lines", "code lines", totals.code_lines.into()),
        ("executed_bytes", "executed B", totals.executed_bytes.into()),
        ("data_lines", "data lines", totals.data_lines.into()),
        ("data_lines_written", "written", totals.data_lines_written.into()),
        ("instructions", "instructions", totals.instructions.into()),
    ]
}
