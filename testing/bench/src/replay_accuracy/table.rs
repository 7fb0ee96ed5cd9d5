//! Accuracy figures from the runs: errors, and the noise of the programs themselves, below which no error
//! means much. Pure.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use super::super::quantile::quantile;
use super::super::report::{BenchReport, ReportCell, ReportTable};
use super::plan::{ExperimentKind, MODE, ReplayExperiment, ReplayPace, ReplayVariant, VARIANTS};
use super::results::{ReplayFigures, RunOutcome};

/// The whole result.
#[derive(Debug, Serialize)]
pub(super) struct AccuracyTable {
    pub(super) mode: ReplayPace,
    pub(super) targets: Vec<TargetAccuracy>,
    pub(super) summaries: Vec<AccuracySummary>,
}

/// An experiment on a target.
#[derive(Debug, Serialize)]
pub(super) struct TargetAccuracy {
    experiment: &'static str,
    kind: ExperimentKind,
    target: &'static str,
    device: &'static str,
    /// Times of the program itself without a tracer, in seconds.
    originals: Vec<f64>,
    original: f64,
    /// Mean distance of a run of the program from the median, as a share of the median.
    noise: f64,
    replays: Vec<SourceAccuracy>,
}

/// A source's trace on a target.
#[derive(Debug, Serialize)]
pub(super) struct SourceAccuracy {
    source: &'static str,
    variant: ReplayVariant,
    runs: Vec<f64>,
    /// (Median replay − median original) / median original.
    error: f64,
    /// Median concurrency of the replays, as a share of the program's on this target. `None` until a replay
    /// of the trace recorded here has reported that concurrency.
    concurrency: Option<f64>,
    /// Lateness of actions as a share of the elapsed time, over all runs.
    late: f64,
    differences: u64,
}

/// Errors of one variant over all pairs of source and target.
#[derive(Debug, Serialize)]
pub(super) struct AccuracySummary {
    kind: ExperimentKind,
    variant: ReplayVariant,
    pairs: usize,
    mean: f64,
    median: f64,
    /// The mean of the worst tenth.
    worst_decile: f64,
    /// Mean over the pairs that have one.
    concurrency: Option<f64>,
    noise: f64,
}

impl AccuracyTable {
    /// Computes the table. Pairs without a run are left out.
    pub(super) fn new(experiments: &[ReplayExperiment], outcomes: &[RunOutcome]) -> AccuracyTable {
        let mut targets = Vec::new();
        for experiment in experiments {
            for target in &experiment.configurations {
                let own = |outcome: &&RunOutcome| outcome.key.experiment == experiment.name;
                let own: Vec<&RunOutcome> = outcomes.iter().filter(own).collect();
                targets.extend(TargetAccuracy::new(experiment, (target.name, target.device.text()), &own));
            }
        }
        let kinds = [ExperimentKind::Micro, ExperimentKind::Macro];
        let summary = |kind| {
            VARIANTS.into_iter().filter_map(|variant| AccuracySummary::new(kind, variant, &targets)).collect()
        };
        let summaries = kinds.into_iter().flat_map(|kind| -> Vec<_> { summary(kind) }).collect();
        AccuracyTable { mode: MODE, targets, summaries }
    }
}

impl TargetAccuracy {
    fn new(
        experiment: &ReplayExperiment,
        (target, device): (&'static str, &'static str),
        own: &[&RunOutcome],
    ) -> Option<TargetAccuracy> {
        let here: Vec<&RunOutcome> =
            own.iter().filter(|outcome| outcome.key.target == target).copied().collect();
        let originals: Vec<f64> = here
            .iter()
            .filter(|outcome| outcome.key.replay.is_none())
            .map(|outcome| seconds(outcome))
            .collect();
        let original = median(&originals)?;
        let away = originals.iter().map(|one| (one - original).abs()).sum::<f64>();
        let noise = away / originals.len() as f64 / original;
        // The trace recorded here has the program's concurrency here. Any of its replays reports it.
        let mut of_here = own
            .iter()
            .filter(|outcome| outcome.key.replay.as_ref().is_some_and(|(source, _)| source == target));
        let recorded = of_here.find_map(|outcome| Some(outcome.replayed?.recorded_concurrency));
        let mut replays = Vec::new();
        for source in &experiment.configurations {
            for variant in VARIANTS {
                let is_it = |outcome: &&&RunOutcome| {
                    outcome
                        .key
                        .replay
                        .as_ref()
                        .is_some_and(|(from, how)| from == source.name && *how == variant)
                };
                let mine: Vec<&RunOutcome> = here.iter().filter(is_it).copied().collect();
                replays.extend(SourceAccuracy::new(source.name, variant, &mine, original, recorded));
            }
        }
        let (experiment, kind) = (experiment.name, experiment.kind);
        Some(TargetAccuracy { experiment, kind, target, device, originals, original, noise, replays })
    }
}

impl SourceAccuracy {
    fn new(
        source: &'static str,
        variant: ReplayVariant,
        outcomes: &[&RunOutcome],
        original: f64,
        recorded: Option<f64>,
    ) -> Option<SourceAccuracy> {
        let runs: Vec<f64> = outcomes.iter().map(|outcome| seconds(outcome)).collect();
        let error = (median(&runs)? - original) / original;
        let replayed = |of: fn(&ReplayFigures) -> f64| -> Vec<f64> {
            outcomes.iter().filter_map(|outcome| outcome.replayed.as_ref().map(of)).collect()
        };
        let concurrency = median(&replayed(|replayed| replayed.concurrency))?;
        let concurrency = recorded.filter(|recorded| *recorded > 0.0).map(|recorded| concurrency / recorded);
        let late =
            replayed(|replayed| replayed.late_ns as f64 / 1e9).iter().sum::<f64>() / runs.iter().sum::<f64>();
        let differences =
            outcomes.iter().filter_map(|outcome| Some(outcome.replayed?.differences)).max().unwrap_or(0);
        Some(SourceAccuracy { source, variant, runs, error, concurrency, late, differences })
    }
}

impl AccuracySummary {
    fn new(
        kind: ExperimentKind,
        variant: ReplayVariant,
        targets: &[TargetAccuracy],
    ) -> Option<AccuracySummary> {
        let of_kind = || targets.iter().filter(|target| target.kind == kind);
        let replays: Vec<&SourceAccuracy> =
            of_kind().flat_map(|target| &target.replays).filter(|replay| replay.variant == variant).collect();
        let mut errors: Vec<f64> = replays.iter().map(|replay| replay.error.abs()).collect();
        errors.sort_by(f64::total_cmp);
        let worst = &errors[errors.len() - errors.len().div_ceil(10)..];
        let concurrency: Vec<f64> = replays.iter().filter_map(|replay| replay.concurrency).collect();
        Some(AccuracySummary {
            kind,
            variant,
            pairs: errors.len(),
            mean: mean(&errors)?,
            median: median(&errors)?,
            worst_decile: mean(worst)?,
            concurrency: mean(&concurrency),
            noise: mean(&of_kind().map(|target| target.noise).collect::<Vec<_>>())?,
        })
    }
}

fn seconds(outcome: &RunOutcome) -> f64 {
    outcome.elapsed_ns as f64 / 1e9
}

fn mean(figures: &[f64]) -> Option<f64> {
    (!figures.is_empty()).then(|| figures.iter().sum::<f64>() / figures.len() as f64)
}

fn median(figures: &[f64]) -> Option<f64> {
    (!figures.is_empty()).then(|| quantile(figures, 0.5))
}

/// Adds the tables to the text of a report: errors in percent, with a plus for replays that took too long.
pub(super) fn add_text(report: &mut BenchReport, table: &AccuracyTable, edges: &[(String, String, Value)]) {
    report.line(format!(
        "Errors in per cent of the program's own time; {} speed unless said otherwise",
        table.mode.name()
    ));
    table.targets.iter().for_each(|target| add_target(report, target));
    add_summaries(report, table);
    add_edges(report, edges);
}

fn add_target(report: &mut BenchReport, target: &TargetAccuracy) {
    let TargetAccuracy { experiment, target: name, device, original, noise, originals, .. } = target;
    let (runs, noise) = (originals.len(), noise * 100.0);
    report
        .line(format!("\n{experiment} on {name} ({device}): {original:.3} s, {runs} runs, noise {noise:.1}"));
    let heads = VARIANTS.map(|variant| match variant.speed {
        MODE => variant.order.name().to_owned(),
        other => format!("{} {}", variant.order.name(), other.name()),
    });
    let mut table = ReportTable::default();
    let sources: BTreeSet<_> = target.replays.iter().map(|replay| replay.source).collect();
    for source in sources {
        let of = |variant: ReplayVariant| {
            target.replays.iter().find(|replay| replay.source == source && replay.variant == variant)
        };
        let error = |replay: &SourceAccuracy| {
            ReportCell::from(replay.error).shown_as(format!("{:+.1}", replay.error * 100.0))
        };
        let ours = of(VARIANTS[0]);
        let mut cells = vec![("", "trace of", source.into())];
        let errors = VARIANTS.map(|variant| of(variant).map(error).into());
        cells.extend(heads.iter().zip(errors).map(|(head, error)| ("", head.as_str(), error)));
        cells.extend([
            ("", "concurrency %", ours.and_then(|replay| replay.concurrency).map(percent).into()),
            ("", "late %", ours.map(|replay| percent(replay.late)).into()),
            ("", "differences", ours.map(|replay| replay.differences).into()),
        ]);
        table.row(cells);
    }
    report.line(&table);
}

/// A share in percent, without the sign.
fn percent(share: f64) -> f64 {
    share * 100.0
}

fn add_summaries(report: &mut BenchReport, table: &AccuracyTable) {
    let mut summaries = ReportTable::default();
    for of in &table.summaries {
        let programs = if of.kind == ExperimentKind::Micro { "micro" } else { "macro" };
        summaries.row([
            ("", "programs", programs.into()),
            ("", "order", of.variant.order.name().into()),
            ("", "speed", of.variant.speed.name().into()),
            ("", "pairs", (of.pairs as u64).into()),
            ("", "mean", percent(of.mean).into()),
            ("", "median", percent(of.median).into()),
            ("", "worst decile", percent(of.worst_decile).into()),
            ("", "concurrency %", of.concurrency.map(percent).into()),
            ("", "noise", percent(of.noise).into()),
        ]);
    }
    report.line(&summaries);
}

fn add_edges(report: &mut BenchReport, edges: &[(String, String, Value)]) {
    let mut table = ReportTable::default();
    for (experiment, source, orders) in edges {
        for order in orders.as_array().into_iter().flatten() {
            let length = order["mean_length_ns"].as_u64().map(|nanos| nanos as f64 / 1e6);
            table.row([
                ("", "trace of", experiment.as_str().into()),
                ("", "on", source.as_str().into()),
                ("", "order", order["name"].as_str().unwrap_or_default().into()),
                ("", "edges", order["edges"].as_u64().into()),
                ("", "mean length ms", length.into()),
            ]);
        }
    }
    report.line(&table);
}

#[cfg(test)]
mod tests {
    use super::super::plan::{CampaignSize, ReplayOrder, RunKey, experiments};
    use super::*;

    fn outcome(replay: Option<(&str, ReplayVariant)>, round: u32, elapsed_ns: u64) -> RunOutcome {
        let replay = replay.map(|(source, variant)| (source.to_owned(), variant));
        let replayed = replay.is_some().then_some(ReplayFigures {
            concurrency: 1.5,
            recorded_concurrency: 2.0,
            late_ns: 0,
            late_p99_ns: 0,
            differences: 0,
        });
        let key = RunKey { experiment: "readers-1".into(), target: "disk".into(), replay, round };
        RunOutcome { key, elapsed_ns, replayed }
    }

    fn text(table: &AccuracyTable) -> String {
        let mut report = BenchReport::default();
        add_text(&mut report, table, &[]);
        report.text().to_owned()
    }

    #[test]
    fn an_error_is_that_of_the_medians_and_the_noise_that_of_the_originals() {
        let ours = VARIANTS[0];
        let single = ReplayVariant { order: ReplayOrder::Single, ..ours };
        let mut outcomes: Vec<_> =
            [100, 90, 120].into_iter().zip(0..).map(|(ns, round)| outcome(None, round, ns)).collect();
        outcomes.extend(
            [107, 300, 95].into_iter().zip(0..).map(|(ns, round)| outcome(Some(("disk", ours)), round, ns)),
        );
        outcomes.push(outcome(Some(("flash", ours)), 0, 80));
        outcomes.push(outcome(Some(("disk", single)), 0, 200));
        let table = AccuracyTable::new(&experiments(CampaignSize::Small), &outcomes);
        let close = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one} is not {other}");
        assert_eq!(table.targets.len(), 1);
        close(table.targets[0].noise, 0.1);
        let errors: Vec<f64> = table.targets[0].replays.iter().map(|replay| replay.error).collect();
        [0.07, 1.0, -0.2].into_iter().zip(errors).for_each(|(wanted, error)| close(error, wanted));
        let summary = &table.summaries[0];
        assert_eq!((summary.kind, summary.variant, summary.pairs), (ExperimentKind::Micro, ours, 2));
        close(summary.mean, 0.135);
        close(summary.worst_decile, 0.2);
        close(summary.concurrency.expect("it is known"), 0.75);
        assert!(text(&table).contains("+7.0"));
    }

    #[test]
    fn a_share_that_is_not_known_yet_is_no_number_and_spoils_no_mean() {
        let ours = VARIANTS[0];
        let of = |source: &str, target: &str| {
            let mut outcome = outcome(Some((source, ours)), 0, 100);
            outcome.key.target = target.into();
            outcome
        };
        let original = |target: &str| RunOutcome {
            key: RunKey { target: target.into(), ..outcome(None, 0, 100).key },
            ..outcome(None, 0, 100)
        };
        // The program's concurrency on the disk is unknown: no trace from there was replayed.
        let mut outcomes = vec![original("disk"), original("flash"), of("flash", "disk")];
        let table = AccuracyTable::new(&experiments(CampaignSize::Small), &outcomes);
        assert_eq!(table.targets[0].replays[0].concurrency, None);
        assert_eq!(table.summaries[0].concurrency, None);
        let shown = text(&table);
        assert!(!shown.contains("NaN") && shown.replace(' ', "").contains("|-|0|0|"), "{shown}");
        // Any replay of a trace from there reports it.
        outcomes.push(of("disk", "flash"));
        let table = AccuracyTable::new(&experiments(CampaignSize::Small), &outcomes);
        assert_eq!(table.targets[0].replays[0].concurrency, Some(0.75));
    }
}
