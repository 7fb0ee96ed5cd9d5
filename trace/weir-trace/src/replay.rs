//! `weir-trace replay`: as many runs as asked for, a run of one thread to compare with, and the report.

use crate::args::{OrderArg, ReplayArgs};
use crate::error::ProgramError;
use crate::one_run;
use crate::together::Together;
use serde_json::json;
use std::process::ExitCode;
use trace_file::Benchmark;
use trace_replay::{Report, Run};

/// Results differ because of the order.
const ORDER_DIFFERS: u8 = 3;

pub(crate) fn run(args: &ReplayArgs) -> Result<ExitCode, ProgramError> {
    let together = Together::read(&args.benchmark)?;
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
    let each: Vec<(&str, Report)> = together
        .each()
        .map(|(name, benchmark, part)| {
            let runs: Vec<Run> = runs.iter().map(&part).collect();
            let single = single.as_ref().map(&part);
            (name, summed_up(reports(args, benchmark, &runs, single.as_ref())))
        })
        .collect();
    print(args, &whole, &each);
    Ok(if args.strict && !ordered { ExitCode::from(ORDER_DIFFERS) } else { ExitCode::SUCCESS })
}

/// One benchmark has one report; several have one each, after that of the whole.
fn print(args: &ReplayArgs, whole: &Report, each: &[(&str, Report)]) {
    let one = |(name, report): &(&str, Report)| json!({"benchmark": name, "report": report});
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

fn reports(args: &ReplayArgs, benchmark: &Benchmark, runs: &[Run], single: Option<&Run>) -> Vec<Report> {
    runs.iter().map(|run| Report::new(benchmark, one_run::name(args.order), run, single)).collect()
}

/// The median run's report, with what all runs took.
fn summed_up(mut reports: Vec<Report>) -> Report {
    let summaries = reports.iter().flat_map(|report| report.runs.clone()).collect();
    let median = median(&reports);
    Report { runs: summaries, ..reports.swap_remove(median) }
}

/// Which run took as long as half of them at most; of an even number, the faster of the two in the middle.
fn median(reports: &[Report]) -> usize {
    let mut by_time: Vec<_> = (0..reports.len()).collect();
    by_time.sort_by_key(|at| reports[*at].elapsed_ns);
    by_time[(by_time.len() - 1) / 2]
}
