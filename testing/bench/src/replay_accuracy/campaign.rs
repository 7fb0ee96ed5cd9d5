//! Makes the missing runs: traces first, then programs and replays in turns.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::cpu_affinity::ProcessorSplit;
use super::super::error::BenchError;
use super::super::program::run;
use super::super::system::weir;
use super::place::ReplayPlace;
use super::plan::{ReplayExperiment, ReplayPace, ReplayVariant, RunKey, StorageConfig, runs};
use super::programs::{benchmark, data_note};
use super::results::{ReplayFigures, RunOutcome, RunResults};

/// A set of experiments, and the place for their traces and results.
pub(super) struct ReplayCampaign<'a> {
    pub(super) experiments: &'a [ReplayExperiment],
    pub(super) rounds: u32,
    pub(super) baselines: u32,
    pub(super) directory: &'a Path,
    pub(super) device_bytes: u64,
    pub(super) processors: Option<ProcessorSplit>,
    /// Deadline.
    pub(super) until: Option<Instant>,
}

/// Whether the campaign is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CampaignProgress {
    Complete,
    OutOfTime,
}

impl ReplayCampaign<'_> {
    /// Makes runs until none is missing or the time is over.
    pub(super) fn run(&self, results: &mut RunResults) -> Result<CampaignProgress, BenchError> {
        for experiment in self.experiments {
            experiment.program.make_input(&self.input(experiment))?;
            for source in &experiment.configurations {
                if benchmark(self.directory, experiment.name, source.name).exists() {
                    continue;
                }
                if self.is_over(Duration::ZERO) {
                    return Ok(CampaignProgress::OutOfTime);
                }
                self.session(experiment, source)?.record()?;
            }
            for target in &experiment.configurations {
                let mut missing = runs(experiment, target, self.rounds, self.baselines);
                missing.retain(|key| !results.has(key));
                if missing.is_empty() {
                    continue;
                }
                if self.is_over(Duration::ZERO) {
                    return Ok(CampaignProgress::OutOfTime);
                }
                if self.measure(experiment, target, &missing, results)? == CampaignProgress::OutOfTime {
                    return Ok(CampaignProgress::OutOfTime);
                }
            }
        }
        Ok(CampaignProgress::Complete)
    }

    fn measure(
        &self,
        experiment: &ReplayExperiment,
        target: &StorageConfig,
        missing: &[RunKey],
        results: &mut RunResults,
    ) -> Result<CampaignProgress, BenchError> {
        let session = self.session(experiment, target)?;
        let mut longest = Duration::ZERO;
        for key in missing {
            if self.is_over(longest) {
                return Ok(CampaignProgress::OutOfTime);
            }
            let began = Instant::now();
            let outcome = match &key.replay {
                None => session.original()?,
                Some((source, variant)) => session.replay(source, *variant)?,
            };
            let (elapsed_ns, replayed) = outcome;
            let what = key.replay.as_ref().map_or("the program itself".into(), |(source, variant)| {
                format!("the trace of {source}, {} {}", variant.order.name(), variant.speed.name())
            });
            let seconds = elapsed_ns as f64 / 1e9;
            eprintln!("{} on {}: {what}: {seconds:.3} s", experiment.name, target.name);
            results.add(RunOutcome { key: key.clone(), elapsed_ns, replayed })?;
            longest = longest.max(began.elapsed());
        }
        Ok(CampaignProgress::Complete)
    }

    /// Whether a run of this duration would end after the deadline.
    fn is_over(&self, takes: Duration) -> bool {
        self.until.is_some_and(|until| Instant::now() + takes >= until)
    }

    fn input(&self, experiment: &ReplayExperiment) -> PathBuf {
        self.directory.join(format!("{}.input", experiment.name))
    }

    fn session<'a>(
        &'a self,
        experiment: &'a ReplayExperiment,
        configuration: &StorageConfig,
    ) -> Result<ReplaySession<'a>, BenchError> {
        let place = self.directory.join("place");
        let place = ReplayPlace::up(configuration, self.device_bytes, &place, self.processors)?;
        let data = place.mount_point.join("data");
        let input = self.input(experiment);
        let source = configuration.name;
        Ok(ReplaySession { experiment, source, input, data, directory: self.directory, place })
    }
}

/// An experiment on a configuration that is set up.
struct ReplaySession<'a> {
    experiment: &'a ReplayExperiment,
    source: &'static str,
    input: PathBuf,
    data: PathBuf,
    directory: &'a Path,
    place: ReplayPlace,
}

impl ReplaySession<'_> {
    /// Puts the program's input in place. Warms the program's file and libraries, but no data on the device.
    fn make_ready(&self) -> Result<(), BenchError> {
        let mounted = self.place.mount()?;
        self.experiment.program.prepare(&self.input, &self.data)?;
        drop(mounted);
        self.experiment.program.warm(&self.directory.join("scratch"))
    }

    fn original(&self) -> Result<(u64, Option<ReplayFigures>), BenchError> {
        self.make_ready()?;
        let _mounted = self.place.mount()?;
        let (_, took) = self.place.run(&mut self.experiment.program.command(&self.data))?;
        Ok((took.as_nanos() as u64, None))
    }

    /// Traces one run of the program, and compiles the trace.
    fn record(&self) -> Result<(), BenchError> {
        self.make_ready()?;
        let done = benchmark(self.directory, self.experiment.name, self.source);
        let trace = done.with_extension("strace");
        {
            let _mounted = self.place.mount()?;
            let program = self.experiment.program.command(&self.data);
            let mut record = weir("trace");
            record.args(["record", "-o"]).arg(&trace).arg("--tree").arg(&self.data).arg("--");
            record.arg(absolute(program.get_program())).args(program.get_args());
            self.place.run(&mut record)?;
        }
        let unfinished = done.with_extension("unfinished");
        let mut compile = weir("trace");
        compile.arg("compile").arg(&trace).arg("--snapshot").arg(trace.with_added_extension("snapshot"));
        run(compile.arg("-o").arg(&unfinished))?;
        let note = data_note(&done);
        fs::write(&note, self.data.as_os_str().as_bytes())
            .map_err(|error| BenchError::io("cannot write", &note, error))?;
        fs::rename(&unfinished, &done).map_err(|error| BenchError::io("cannot rename", &unfinished, error))
    }

    fn replay(
        &self,
        source: &str,
        variant: ReplayVariant,
    ) -> Result<(u64, Option<ReplayFigures>), BenchError> {
        let _mounted = self.place.mount()?;
        let benchmark = benchmark(self.directory, self.experiment.name, source);
        let note = data_note(&benchmark);
        let data = fs::read(&note).map_err(|error| BenchError::io("cannot read", &note, error))?;
        let mut replay = weir("trace");
        replay.arg("replay").arg(benchmark);
        replay.arg("--on").arg(&self.place.mount_point);
        replay.args(["--reuse", "--no-single", "--json", "--order", variant.order.name()]);
        replay.args(["--cache", "cold", "--cold-only"]).arg(OsStr::from_bytes(&data));
        if variant.speed == ReplayPace::Natural {
            replay.arg("--natural");
        }
        let (report, _) = self.place.run(&mut replay)?;
        let report: Value = serde_json::from_slice(&report).unwrap_or_default();
        let count = |pointer: &str| report.pointer(pointer).and_then(Value::as_u64);
        let share = |pointer: &str| report.pointer(pointer).and_then(Value::as_f64).unwrap_or_default();
        let elapsed = count("/elapsed_ns").ok_or_else(|| BenchError::Command {
            command: "weir trace replay".into(),
            says: "no elapsed time in its report".into(),
        })?;
        let differences =
            report["causes"].as_object().map_or(0, |causes| causes.values().filter_map(Value::as_u64).sum());
        let replayed = ReplayFigures {
            concurrency: share("/concurrency/0"),
            recorded_concurrency: share("/concurrency/1"),
            late_ns: count("/lag/total_ns").unwrap_or_default(),
            late_p99_ns: count("/lag/p99_ns").unwrap_or_default(),
            differences,
        };
        Ok((elapsed, Some(replayed)))
    }
}

/// Resolves the link `/proc/self/exe`, which every other process would resolve to itself.
fn absolute(program: &OsStr) -> PathBuf {
    fs::read_link(program).unwrap_or_else(|_| program.into())
}

/// The dependency edges of each order of a trace: their number and mean length.
pub(super) fn edges(directory: &Path, experiment: &str, source: &str) -> Result<Value, BenchError> {
    let mut info: Command = weir("trace");
    let text = run(info.args(["info", "--json"]).arg(benchmark(directory, experiment, source)))?;
    let info: Value = serde_json::from_str(&text).unwrap_or_default();
    Ok(info["orders"].clone())
}
