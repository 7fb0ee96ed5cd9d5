//! `weir trace replay`: as many runs as asked for, a run of one thread to compare with, and the report.

use super::args::{OrderArg, ReplayArgs};
use super::one_run;
use crate::error::WeirError;
use ::trace::{Benchmark, Report, Run};
use std::process::ExitCode;

/// Results differ because of the order.
const ORDER_DIFFERS: u8 = 3;

pub(super) fn run(args: &ReplayArgs) -> Result<ExitCode, WeirError> {
    if let Some(root) = &args.inside {
        return one_run::inside(args, root);
    }
    let benchmark = Benchmark::read(&args.benchmark)?;
    let runs = (0..args.runs).map(|_| one_run::outside(args, args.order)).collect::<Result<Vec<_>, _>>()?;
    let mut reports: Vec<_> = runs.iter().map(|run| report(args, &benchmark, run, None)).collect();
    let wants_single = !args.no_single && args.order != OrderArg::Single;
    if wants_single && reports.iter().any(|report| !report.causes.is_empty()) {
        let single = one_run::outside(args, OrderArg::Single)?;
        reports = runs.iter().map(|run| report(args, &benchmark, run, Some(&single))).collect();
    }
    let ordered = reports.iter().all(|report| report.order_differences() == 0);
    let median = median(&reports);
    if let Some(path) = &args.time_line {
        ::trace::write_time_line(&benchmark, &runs[median], path)?;
    }
    let summaries = reports.iter().flat_map(|report| report.runs.clone()).collect();
    let report = Report { runs: summaries, ..reports.swap_remove(median) };
    match args.json {
        true => println!("{:#}", serde_json::json!(report)),
        false => print!("{report}"),
    }
    Ok(if args.strict && !ordered { ExitCode::from(ORDER_DIFFERS) } else { ExitCode::SUCCESS })
}

fn report(args: &ReplayArgs, benchmark: &Benchmark, run: &Run, single: Option<&Run>) -> Report {
    Report::new(benchmark, one_run::name(args.order), run, single)
}

/// Which run took as long as half of them at most; of an even number, the faster of the two in the middle.
fn median(reports: &[Report]) -> usize {
    let mut by_time: Vec<_> = (0..reports.len()).collect();
    by_time.sort_by_key(|at| reports[*at].elapsed_ns);
    by_time[(by_time.len() - 1) / 2]
}
