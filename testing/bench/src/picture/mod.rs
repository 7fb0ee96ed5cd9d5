//! `weir-bench picture`: what one client waits for while others write in bulk and the daemon is killed, as a picture.
//!
//! ext4 and weir have the same load, one after the other, each on its own modelled cloud volume. The picture has only what
//! the run measured.

mod client;
mod drawing;
mod limits;
mod system_run;
mod windows;

use std::fs;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::cleanup;
use super::cpu_affinity::{self, CpuAffinity, ProcessorSplit};
use super::device_model::DeviceKind;
use super::error::BenchError;
use super::machine_info::MachineInfo;
use super::program::{check_machine, command, run};
use super::report::{BenchReport, ReportCell, ReportTable};
use super::run_args::RunSize;
use super::slow_device::{DeviceSpec, work_directory};
use super::system::{FetchChoice, SystemKind};
use client::WriteKind;
use drawing::{LatencyLane, LatencyPicture};
use system_run::{PictureScale, SystemRun};
use windows::LatencyPercentiles;

const DEVICE: DeviceKind = DeviceKind::CloudVolume;
const DEVICE_BYTES: u64 = 4 << 30;

/// Options of `weir-bench picture`.
#[derive(Debug, Args)]
pub(super) struct PictureArgs {
    /// Write the picture to this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Scale: `small` only shows that everything works; `real` gives figures
    #[arg(long, value_enum, default_value_t = RunSize::Real)]
    size: RunSize,
    /// Give the modelled devices their own processors (`apart`), and all other programs the first; or leave
    /// all to the kernel (`free`)
    #[arg(long, value_enum, default_value_t = CpuAffinity::Apart)]
    cpu_affinity: CpuAffinity,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark, prints its report and writes the picture.
pub(super) fn run_benchmark(args: &PictureArgs) -> Result<(), BenchError> {
    check_machine()?;
    cleanup::install()?;
    let scale = PictureScale::new(args.size);
    let mut report = BenchReport::new("picture");
    let machine = MachineInfo::now();
    let date = run(&mut command("date", ["-u", "+%F"]))?;
    let processors = ProcessorSplit::claim(args.cpu_affinity)?;
    let conditions = [
        format!(
            "One client: {} writes of 4 KiB with fsync and {} without each second. Store and ext4 on a modelled cloud volume:",
            scale.synced_per_s, scale.plain_per_s
        ),
        format!(
            "{}. weir's buffer, {} MiB, is on this machine's disk; ext4's dirty limit is as large.",
            DEVICE.text(),
            scale.buffer_bytes >> 20
        ),
        "ext4 has no daemon that could be killed: its lane just goes on.".to_owned(),
        format!("{machine} · {date} · load average before {}", machine.load_average),
        cpu_affinity::text(processors).to_string(),
    ];
    conditions[..3].iter().for_each(|line| report.line(line));
    report.line(cpu_affinity::text(processors));
    report.fact("cpu_affinity", cpu_affinity::text(processors));
    report.fact("date", &date);
    let (root, _files) = work_directory(None)?;
    let device = DeviceSpec { device: DEVICE, bytes: DEVICE_BYTES, processors };
    let weir = SystemKind::Weir {
        fetch: FetchChoice::Adaptive,
        buffer_in: root.clone(),
        buffer_bytes: scale.buffer_bytes,
        memory_bytes: None,
        options: Vec::new(),
    };
    let mut runs = Vec::new();
    for (name, kind) in [("ext4", SystemKind::Ext4), ("weir", weir)] {
        eprintln!("{name}: setting up, then {} s", scale.end.as_secs());
        runs.push(SystemRun::measure(name, kind, &device, &root, &scale)?);
    }
    report.table("phases", &phase_table(&runs));
    for run in &runs {
        report_events(run, &mut report);
    }
    report.print(args.json);
    if let Some(path) = &args.svg {
        let picture = LatencyPicture {
            title: "How long one client waits for each write".to_owned(),
            conditions: conditions.to_vec(),
            seconds: scale.end.as_secs_f64(),
            lanes: runs.iter().map(lane).collect(),
        };
        fs::write(path, picture.to_svg()).map_err(|error| BenchError::io("cannot write", path, error))?;
    }
    Ok(())
}

/// The figures of each phase.
fn phase_table(runs: &[SystemRun]) -> ReportTable {
    let mut table = ReportTable::default();
    for run in runs {
        for phase in &run.phases {
            let [synced, plain] = [WriteKind::Synced, WriteKind::Plain]
                .map(|kind| LatencyPercentiles::within(&run.client(kind).samples, phase.from, phase.to));
            let millis = |of: Option<LatencyPercentiles>, figure: fn(LatencyPercentiles) -> f64| {
                ReportCell::from(of.map(|percentiles| figure(percentiles) * 1e3))
            };
            table.row([
                ("system", "system", run.name.into()),
                ("phase", "phase", phase.name.into()),
                ("from_s", "from s", phase.from.into()),
                ("to_s", "to s", phase.to.into()),
                ("synced.p50_ms", "fsync p50 ms", millis(synced, |found| found.p50)),
                ("synced.p99_ms", "p99", millis(synced, |found| found.p99)),
                ("synced.longest_ms", "max", millis(synced, |found| found.longest)),
                ("plain.p50_ms", "write p50 ms", millis(plain, |found| found.p50)),
                ("plain.p99_ms", "p99", millis(plain, |found| found.p99)),
                ("plain.longest_ms", "max", millis(plain, |found| found.longest)),
            ]);
        }
    }
    table
}

fn report_events(run: &SystemRun, report: &mut BenchReport) {
    let name = run.name;
    report.line(format!("\n{name}:"));
    for event in &run.events {
        report.line(format!("  {:6.2} s  {}", event.at, event.label));
    }
    let [synced, plain] = [WriteKind::Synced, WriteKind::Plain].map(|kind| run.client(kind));
    report.line(format!(
        "  {} synced writes and {} others; {} attempts failed and were repeated; every synced page holds its last write",
        synced.samples.len(),
        plain.samples.len(),
        synced.failed_attempts + plain.failed_attempts
    ));
    let events: Vec<_> =
        run.events.iter().map(|event| json!({ "at_s": event.at, "label": event.label })).collect();
    report.fact(&format!("events.{name}"), events);
    report.fact(&format!("failed_attempts.{name}"), synced.failed_attempts + plain.failed_attempts);
}

fn lane(run: &SystemRun) -> LatencyLane<'_> {
    LatencyLane {
        name: run.name,
        series: [WriteKind::Synced, WriteKind::Plain]
            .map(|kind| (kind.name(), &run.client(kind).samples[..])),
        events: &run.events,
    }
}
