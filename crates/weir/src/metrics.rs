//! `weir metrics`: the state of this machine's mounts for Prometheus, as text, in a file, or over HTTP on this machine.
//!
//! The names are a promise, as those of `weir status --json` are: a test compares them with `docs/metrics.md`.

use crate::cli::MetricsArgs;
use crate::error::WeirError;
use crate::mount_list::{ListedMount, list};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tiny_http::{Header, Response, Server};
use weir_status::{LatencyReport, StatusReport};

/// The type of the text, as scrapers want to see it.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper ends of the latencies that are counted together, in microseconds.
const LATENCY_ENDS_US: [f64; 13] = [
    10.0,
    30.0,
    100.0,
    300.0,
    1_000.0,
    3_000.0,
    10_000.0,
    30_000.0,
    100_000.0,
    300_000.0,
    1_000_000.0,
    3_000_000.0,
    10_000_000.0,
];

pub(crate) fn run(args: &MetricsArgs) -> Result<(), WeirError> {
    if let Some(path) = &args.textfile {
        return replace_file(path, &metrics()?);
    }
    let Some(address) = args.listen else {
        print!("{}", metrics()?);
        return Ok(());
    };
    let failed = |source: io::Error| WeirError::Listen { address, source };
    if !address.ip().is_loopback() {
        return Err(failed(io::Error::other(
            "other machines can reach this address, and there is no password",
        )));
    }
    let server = Server::http(address).map_err(|why| failed(io::Error::other(why)))?;
    let address = server.server_addr();
    tracing::info!("metrics at http://{address}/metrics; press ^C to end");
    let content_type = Header::from_bytes("Content-Type", CONTENT_TYPE).expect("it is ASCII");
    for request in server.incoming_requests() {
        let answer = match metrics() {
            Ok(text) => Response::from_string(text).with_header(content_type.clone()),
            Err(error) => Response::from_string(error.to_string()).with_status_code(500),
        };
        // The client may be gone.
        let _ = request.respond(answer);
    }
    Ok(())
}

/// The metrics of all mounts, as text.
fn metrics() -> Result<String, WeirError> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(MetricTable::of(&list()?)));
    let mut text = String::new();
    text::encode(&mut text, &registry).expect("a string takes everything");
    Ok(in_first_format(&text))
}

/// The text in the first format of Prometheus, which the text file collector of the node exporter reads, too. In the library's format,
/// OpenMetrics, help and type of a counter have its name without `_total`, and there is a last line.
fn in_first_format(text: &str) -> String {
    let of_counter = |line: &&str| line.starts_with("# TYPE ") && line.ends_with(" counter");
    let counters: Vec<&str> =
        text.lines().filter(of_counter).filter_map(|line| line.split(' ').nth(2)).collect();
    let mut all = String::new();
    for line in text.lines().filter(|&line| line != "# EOF") {
        match &line.splitn(4, ' ').collect::<Vec<_>>()[..] {
            ["#", what, name, rest] if counters.contains(name) => {
                all.push_str(&format!("# {what} {name}_total {rest}"));
            }
            _ => all.push_str(line),
        }
        all.push('\n');
    }
    all
}

/// Gives the file at `path` this content, so that a reader sees all of it or what was there before.
fn replace_file(path: &Path, text: &str) -> Result<(), WeirError> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
    let mut name = path.file_name().unwrap_or_default().to_owned();
    // Collectors of text files read `*.prom`.
    name.push(format!(".{}", std::process::id()));
    let beside = directory.unwrap_or(Path::new(".")).join(name);
    // The collector is another user.
    let for_all = Permissions::from_mode(0o644);
    let written = fs::write(&beside, text).and_then(|()| fs::set_permissions(&beside, for_all));
    written.and_then(|()| fs::rename(&beside, path)).map_err(|source| {
        let _ = fs::remove_file(&beside);
        WeirError::io("writing the metrics", path)(source)
    })
}

/// A label's value as the text has it. The library leaves it to its callers to escape it.
fn label_value(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

type Labels = Vec<(&'static str, String)>;

/// A metric with its values, one for each mount and label.
#[derive(Debug)]
struct Metric {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    samples: Vec<(Labels, Sample)>,
}

#[derive(Debug)]
enum Sample {
    Gauge(f64),
    Count(u64),
    Latencies(LatencyReport),
}

impl Sample {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Sample::Gauge(value) => encoder.encode_gauge(value),
            Sample::Count(count) => encoder.encode_counter::<NoLabelSet, _, u64>(count, None),
            Sample::Latencies(latencies) => {
                let (sum, buckets) = buckets_of(latencies);
                encoder.encode_histogram::<NoLabelSet>(sum, latencies.count, &buckets, None)
            }
        }
    }
}

/// The sum of the latencies in seconds, at most, and how many are up to each end and above the one before.
fn buckets_of(latencies: &LatencyReport) -> (f64, Vec<(f64, u64)>) {
    let mut buckets: Vec<(f64, u64)> = LATENCY_ENDS_US.map(|end| (end / 1e6, 0)).to_vec();
    buckets.push((f64::MAX, 0));
    let mut sum = 0.0;
    for &(at_most_us, count) in &latencies.buckets_us {
        let index =
            LATENCY_ENDS_US.iter().position(|&end| at_most_us <= end).unwrap_or(LATENCY_ENDS_US.len());
        buckets[index].1 += count;
        sum += at_most_us / 1e6 * count as f64;
    }
    (sum, buckets)
}

/// All metrics.
#[derive(Debug)]
struct MetricTable(Vec<Metric>);

impl Collector for MetricTable {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for metric in &self.0 {
            let mut family = encoder.encode_descriptor(metric.name, metric.help, None, metric.kind)?;
            for (labels, sample) in &metric.samples {
                sample.encode(family.encode_family(labels)?)?;
            }
        }
        Ok(())
    }
}

impl MetricTable {
    fn of(mounts: &[ListedMount]) -> MetricTable {
        let mut table = MetricTable(Vec::new());
        for mount in mounts {
            let report = mount.report();
            let mut labels = vec![
                ("store", label_value(&mount.store().to_string_lossy())),
                ("mount", label_value(&mount.dir().to_string_lossy())),
            ];
            let mut labels_and_health = labels.clone();
            labels_and_health.push(("health", mount.health()));
            let is_up = Sample::Gauge(f64::from(mount.has_daemon()));
            table.add("weir_up", "Whether the daemon of the mount answers", &labels, is_up);
            let help = "Always 1; the label health has the state of the mount in one word, which is ok if all is well";
            table.add("weir_health", help, &labels_and_health, Sample::Gauge(1.0));
            if let Some(report) = report {
                labels.push(("volume", label_value(&report.volume)));
                table.add_report(&report, &labels);
            }
        }
        table
    }

    fn add(&mut self, name: &'static str, help: &'static str, labels: &Labels, sample: Sample) {
        let at = self.0.iter().position(|metric| metric.name == name).unwrap_or_else(|| {
            let kind = match sample {
                Sample::Gauge(_) => MetricType::Gauge,
                Sample::Count(_) => MetricType::Counter,
                Sample::Latencies(_) => MetricType::Histogram,
            };
            self.0.push(Metric { name, help, kind, samples: Vec::new() });
            self.0.len() - 1
        });
        self.0[at].samples.push((labels.clone(), sample));
    }

    fn add_report(&mut self, report: &StatusReport, labels: &Labels) {
        let gauges: [(&str, &str, f64); 22] = [
            ("weir_dirty_bytes", "Changes in memory that are not in the store", report.dirty.bytes as f64),
            (
                "weir_dirty_limit_bytes",
                "What weir_dirty_bytes may reach",
                report.settings.dirty_bytes_max as f64,
            ),
            (
                "weir_dirty_age_seconds",
                "The age of the oldest change that is not in the store",
                seconds(report.dirty.age_ms),
            ),
            (
                "weir_unsynced_changes",
                "Changes that a crash now would lose",
                (report.lsns.applied - report.lsns.durable.min(report.lsns.applied)) as f64,
            ),
            ("weir_memory_bytes", "Pages in memory", report.memory.bytes as f64),
            ("weir_buffer_bytes", "The size of the buffer's log", report.buffer_log.bytes as f64),
            (
                "weir_buffer_free_bytes",
                "How much of the buffer's log is free",
                report.buffer_log.free_bytes as f64,
            ),
            ("weir_store_usable_bytes", "Space that volumes can use", report.space.usable_bytes as f64),
            (
                "weir_store_available_bytes",
                "Usable space that is not used",
                report.space.available_bytes as f64,
            ),
            (
                "weir_epoch_age_seconds",
                "The age of the copy that is kept in case the buffer is lost",
                report.epoch.age_ms.map_or(f64::NAN, seconds),
            ),
            (
                "weir_epoch_interval_seconds",
                "The time between two such copies",
                report.epoch.every_ms.map_or(f64::NAN, seconds),
            ),
            (
                "weir_epoch_behind_seconds",
                "What a lost buffer would cost: the age of the oldest change that no epoch has",
                report.epoch.behind_ms.map_or(f64::NAN, seconds),
            ),
            (
                "weir_restored",
                "Whether the volume with the state before its buffer was lost is still there",
                f64::from(report.damaged_state.is_some()),
            ),
            ("weir_stuck_changes", "Changes that cannot be written back", report.stuck.count as f64),
            (
                "weir_stalled",
                "Whether nothing can be written back at present",
                f64::from(report.stalled.is_some()),
            ),
            (
                "weir_failed",
                "Whether the mount is read-only because changes cannot be made durable",
                f64::from(report.failed.is_some()),
            ),
            ("weir_waiting_reads", "Reads that wait for a page", report.in_flight.reads as f64),
            ("weir_waiting_syncs", "Syncs that wait for a commit", report.in_flight.syncs as f64),
            ("weir_waiting_for_space", "Operations that wait for space", report.in_flight.admissions as f64),
            ("weir_uptime_seconds", "Since the mount", seconds(report.uptime_ms)),
            (
                "weir_store_slowest_flush_seconds",
                "The longest flush of the store since the daemon began",
                report.slowest_ms.store.flush / 1e3,
            ),
            (
                "weir_buffer_slowest_flush_seconds",
                "The longest flush of the buffer since the daemon began",
                report.slowest_ms.buffer.flush / 1e3,
            ),
        ];
        for (name, help, value) in gauges {
            self.add(name, help, labels, Sample::Gauge(value));
        }
        let counters = &report.counters;
        let page = 4096;
        let counts: [(&str, &str, u64); 14] = [
            ("weir_transactions", "Changes applied", counters.transactions),
            ("weir_commits", "Commits written to the buffer", counters.commits),
            ("weir_syncs", "Syncs requested", counters.syncs),
            ("weir_reads_at_once", "Reads answered without waiting", counters.reads_at_once),
            ("weir_reads_waited", "Reads that waited for a page", counters.reads_parked),
            (
                "weir_writes_to_absent_pages",
                "Writes to pages that were not in memory",
                counters.writes_to_absent_pages,
            ),
            ("weir_waits_for_space", "Operations that had to wait for space", counters.admissions_parked),
            ("weir_buffer_written_bytes", "Bytes written to the buffer", counters.buffer_bytes_written),
            (
                "weir_bypassed_bytes",
                "Bytes that went to the store without the buffer",
                counters.pages_bypassed * page,
            ),
            (
                "weir_store_written_bytes",
                "Bytes written to the store, whatever they are",
                counters.store.blocks_written * page,
            ),
            ("weir_store_cleaned_bytes", "Bytes that the cleaner moved", counters.store.pages_cleaned * page),
            ("weir_store_flushes", "Flushes of the store", counters.store.flushes),
            ("weir_buffer_flushes", "Flushes of the buffer", counters.buffer_flushes),
            (
                "weir_background_errors",
                "Background work that failed and is tried again",
                counters.errors.fetch + counters.errors.write_back + counters.errors.checkpoint,
            ),
        ];
        for (name, help, count) in counts {
            self.add(name, help, labels, Sample::Count(count));
        }
        for (request, latencies) in &report.latency {
            let mut labels = labels.clone();
            labels.push(("request", request.clone()));
            let help = "Latencies of requests since the mount";
            self.add("weir_request_seconds", help, &labels, Sample::Latencies(latencies.clone()));
        }
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1e3
}
