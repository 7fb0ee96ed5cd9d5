//! `weir-trace replay`: the requested runs, a run with one thread for comparison, and the report.

use crate::args::{OrderArg, ReplayArgs};
use crate::error::ProgramError;
use crate::one_run;
use crate::replayed_traces::ReplayedTraces;
use serde_json::json;
use std::process::ExitCode;
use trace_file::CompiledTrace;
use trace_replay::{ReplayReport, ReplayRun};

/// Exit code if results differ because of the order.
const ORDER_DIFFERS: u8 = 3;

pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode, ProgramError> {
    let together = ReplayedTraces::read(&args.compiled)?;
    together.tell_what_was_adapted();
    let runs =
        (0..args.runs).map(|_| one_run::run(args, &together, args.order)).collect::<Result<Vec<_>, _>>()?;
    let mut whole = reports(args, together.whole(), &runs, None);
    let wants_single = !args.no_single && args.order != OrderArg::Single;
    let mut single = None;
    if wants_single && whole.iter().any(|report| !report.causes.is_empty()) {
        single = Some(one_run::run(args, &together, OrderArg::Single)?);
        whole = reports(args, together.whole(), &runs, single.as_ref());
    }
    let ordered = whole.iter().all(|report| report.order_differences() == 0);
    if let Some(path) = &args.time_line {
        trace_replay::write_time_line(together.whole(), &runs[median(&whole)], path)?;
    }
    let whole = summed_up(whole);
    let each: Vec<(&str, ReplayReport)> = together
        .each()
        .map(|(name, compiled, part)| {
            let runs: Vec<ReplayRun> = runs.iter().map(&part).collect();
            let single = single.as_ref().map(&part);
            (name, summed_up(reports(args, compiled, &runs, single.as_ref())))
        })
        .collect();
    print(args, &whole, &each);
    Ok(if args.strict && !ordered { ExitCode::from(ORDER_DIFFERS) } else { ExitCode::SUCCESS })
}

/// Prints the report. Several compiled traces also have one each, after the report of the whole.
fn print(args: &ReplayArgs, whole: &ReplayReport, each: &[(&str, ReplayReport)]) {
    let one = |(name, report): &(&str, ReplayReport)| json!({"compiled": name, "report": report});
    match (args.json, each.is_empty()) {
        (true, true) => println!("{:#}", json!(whole)),
        (true, false) => {
            let each: Vec<_> = each.iter().map(one).collect();
            println!("{:#}", json!({"whole": whole, "each": each}));
        }
        (false, _) => {
            print!("{whole}");
            each.iter().for_each(|(name, report)| print!("\n{name}, of the above:\n{report}"));
        }
    }
}

fn reports(
    args: &ReplayArgs,
    compiled: &CompiledTrace,
    runs: &[ReplayRun],
    single: Option<&ReplayRun>,
) -> Vec<ReplayReport> {
    runs.iter().map(|run| ReplayReport::new(compiled, one_run::name(args.order), run, single)).collect()
}

/// The median run's report, with the summaries of all runs.
fn summed_up(mut reports: Vec<ReplayReport>) -> ReplayReport {
    let summaries = reports.iter().flat_map(|report| report.runs.clone()).collect();
    let median = median(&reports);
    ReplayReport { runs: summaries, ..reports.swap_remove(median) }
}

/// The place of the median run. For an even number of runs, the faster of the two in the middle.
fn median(reports: &[ReplayReport]) -> usize {
    let mut by_time: Vec<_> = (0..reports.len()).collect();
    by_time.sort_by_key(|at| reports[*at].elapsed_ns);
    by_time[(by_time.len() - 1) / 2]
}
