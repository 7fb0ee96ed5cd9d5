//! `weir-trace replay`: the requested runs, a run with one thread for comparison, and the report. A signal stops the runs; the
//! report is then about what was replayed.

use crate::args::{OrderArg, ReplayArgs};
use crate::error::ProgramError;
use crate::one_run;
use crate::replayed_traces::ReplayedTraces;
use crate::stop_request::StopRequest;
use progress::{exit_code_of_interrupt, held_signal};
use serde_json::json;
use std::process::ExitCode;
use trace_file::CompiledTrace;
use trace_replay::{ReplayReport, ReplayRun};

/// Exit code if results differ because of the order.
const ORDER_DIFFERS: u8 = 3;

pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode, ProgramError> {
    let together = ReplayedTraces::read(&args.compiled)?;
    together.tell_what_was_adapted();
    let stop = StopRequest::on_signals()
        .map_err(|source| ProgramError::Start { target: args.on.clone(), source })?;
    let runs = match runs_until_signal(args, &together, &stop)? {
        runs if runs.is_empty() => {
            return Ok(ExitCode::from(exit_code_of_interrupt(
                "nothing was replayed. The replay cleaned up as at its end",
            )));
        }
        runs => runs,
    };
    let mut left_out = left_out(args, &runs);
    let mut whole = reports(args, together.whole(), &runs, None);
    let wants_single = !args.no_single && args.order != OrderArg::Single;
    let mut single = None;
    if left_out.is_none() && wants_single && whole.iter().any(|report| !report.causes.is_empty()) {
        single = run_until_signal(args, &together, OrderArg::Single, &stop)?.filter(ReplayRun::is_complete);
        whole = reports(args, together.whole(), &runs, single.as_ref());
        if single.is_none() {
            let what = "the replay is complete, but not the check of its differences with one thread";
            left_out = Some(what.to_owned());
        }
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
    if let Some(what) = left_out {
        return Ok(ExitCode::from(exit_code_of_interrupt(&format!(
            "{what}. The replay cleaned up as at its end"
        ))));
    }
    Ok(if args.strict && !ordered { ExitCode::from(ORDER_DIFFERS) } else { ExitCode::SUCCESS })
}

/// Makes the requested runs, until a signal comes. If runs are complete then, the one that is not is dropped.
fn runs_until_signal(
    args: &ReplayArgs,
    together: &ReplayedTraces,
    stop: &StopRequest,
) -> Result<Vec<ReplayRun>, ProgramError> {
    let mut runs: Vec<ReplayRun> = Vec::new();
    for _ in 0..args.runs {
        let run = run_until_signal(args, together, args.order, stop)?;
        runs.extend(run.filter(|run| run.reached() > 0 && (runs.is_empty() || run.is_complete())));
        if held_signal().is_some() {
            break;
        }
    }
    Ok(runs)
}

/// Makes one run. `None` if a signal has ended it without results.
fn run_until_signal(
    args: &ReplayArgs,
    together: &ReplayedTraces,
    order: OrderArg,
    stop: &StopRequest,
) -> Result<Option<ReplayRun>, ProgramError> {
    match one_run::run(args, together, order, stop) {
        // The same signal may have reached the other processes, too.
        Err(ProgramError::ReplayFailed { .. }) if held_signal().is_some() => Ok(None),
        run => run.map(Some),
    }
}

/// What a signal has kept from being replayed, as the user reads it.
fn left_out(args: &ReplayArgs, runs: &[ReplayRun]) -> Option<String> {
    match runs {
        [run] if !run.is_complete() => Some(format!(
            "{} of {} actions were replayed, and the report is about these",
            run.reached(),
            run.samples.len()
        )),
        _ if runs.len() < args.runs as usize => {
            Some(format!("{} of {} runs are complete, and the report is about these", runs.len(), args.runs))
        }
        _ => None,
    }
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
