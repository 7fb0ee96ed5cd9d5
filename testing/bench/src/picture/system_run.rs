//! The run of one system: the client, the bulk writer and the kill.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use device::SeededRng;
use rustix::process::{Pid, Signal, kill_process};

use super::super::cleanup;
use super::super::error::BenchError;
use super::super::run_args::RunSize;
use super::super::slow_device::DeviceSpec;
use super::super::system::{ComparedSystem, MountedSystem, SystemKind, weir_status};
use super::super::workload::{PAGE_BYTES, lay_out, shuffled};
use super::client::{ClientRecord, PacedClient, WriteKind};
use super::limits::DirtyLimit;

/// Bytes of each write of the bulk writer.
const PIECE_BYTES: usize = 16 << 10;
/// Time between two checks of whether the buffer is full.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// Sizes, rates and moments of a run.
#[derive(Debug)]
pub(super) struct PictureScale {
    /// Pages of each of the client's two files.
    client_pages: u64,
    pub(super) synced_per_s: u32,
    pub(super) plain_per_s: u32,
    /// Size of the bulk writer's file.
    bulk_bytes: u64,
    /// Bytes that the bulk writer writes before it syncs.
    checkpoint_bytes: u64,
    /// Size of weir's buffer, and ext4's limit of dirty data.
    pub(super) buffer_bytes: u64,
    checkpoint_at: Duration,
    bulk_at: Duration,
    /// How long the bulk writer then writes without a pause.
    bulk_for: Duration,
    kill_at: Duration,
    pub(super) end: Duration,
}

impl PictureScale {
    pub(super) fn new(size: RunSize) -> PictureScale {
        let seconds = Duration::from_secs;
        let real = PictureScale {
            client_pages: 8192,
            synced_per_s: 50,
            plain_per_s: 500,
            bulk_bytes: 512 << 20,
            checkpoint_bytes: 96 << 20,
            buffer_bytes: 256 << 20,
            checkpoint_at: seconds(4),
            bulk_at: seconds(10),
            bulk_for: seconds(8),
            kill_at: seconds(24),
            end: seconds(30),
        };
        match size {
            RunSize::Real => real,
            RunSize::Small => PictureScale {
                client_pages: 64,
                bulk_bytes: 32 << 20,
                checkpoint_bytes: 4 << 20,
                buffer_bytes: 16 << 20,
                checkpoint_at: Duration::from_millis(300),
                bulk_at: Duration::from_millis(800),
                bulk_for: Duration::from_millis(700),
                kill_at: seconds(2),
                end: seconds(4),
                ..real
            },
        }
    }
}

/// A moment, in seconds since the start of the run.
#[derive(Debug)]
pub(super) struct RunEvent {
    pub(super) at: f64,
    pub(super) label: String,
}

/// A span between two moments.
#[derive(Debug)]
pub(super) struct RunPhase {
    pub(super) name: &'static str,
    pub(super) from: f64,
    pub(super) to: f64,
}

/// What was measured on one system.
#[derive(Debug)]
pub(super) struct SystemRun {
    pub(super) name: &'static str,
    synced: ClientRecord,
    plain: ClientRecord,
    pub(super) events: Vec<RunEvent>,
    /// Spans that follow one another, from the start to the end of the run.
    pub(super) phases: Vec<RunPhase>,
}

impl SystemRun {
    /// Sets the system up, runs the load, and takes the system down.
    pub(super) fn measure(
        name: &'static str,
        kind: SystemKind,
        device: &DeviceSpec,
        root: &Path,
        scale: &PictureScale,
    ) -> Result<SystemRun, BenchError> {
        let is_weir = kind != SystemKind::Ext4;
        let system = ComparedSystem::set_up(name, kind, device, root, 0)?;
        let mounted = system.mount()?;
        let [synced, plain, bulk] = ["synced", "plain", "bulk"].map(|file| mounted.file.with_file_name(file));
        let client = |path: &PathBuf, kind, per_s| PacedClient {
            path: path.clone(),
            pages: scale.client_pages,
            kind,
            every: Duration::from_secs(1) / per_s,
        };
        let synced = client(&synced, WriteKind::Synced, scale.synced_per_s);
        let plain = client(&plain, WriteKind::Plain, scale.plain_per_s);
        lay_out(&synced.path, scale.client_pages)?;
        lay_out(&plain.path, scale.client_pages)?;
        lay_out(&bulk, scale.bulk_bytes / PAGE_BYTES)?;
        // Everything is stored, and nothing is in memory.
        drop(mounted);
        let mounted = system.mount()?;
        let fill = if is_weir {
            FillWatch::Weir { mount_point: mount_point(&mounted).to_path_buf() }
        } else {
            let counts = root.join(format!("{name}.counts"));
            FillWatch::Ext4 { limit: DirtyLimit::set(system.device(), scale.buffer_bytes, &counts)? }
        };
        let start = Instant::now();
        let (synced_record, plain_record, story) = std::thread::scope(|scope| {
            let synced = scope.spawn(|| synced.run(start, scale.end));
            let plain = scope.spawn(|| plain.run(start, scale.end));
            let story = RunStory { start, scale, bulk: &bulk, events: Vec::new(), phases: Vec::new() };
            let story = story.play(&system, mounted, &fill);
            let [synced, plain] =
                [synced, plain].map(|client| client.join().expect("a client does not panic"));
            Ok::<_, BenchError>((synced?, plain?, story?))
        })?;
        let (events, phases, mounted) = story;
        synced_record.check(&synced.path)?;
        // The limit is on the device of a file system that is still mounted.
        drop(fill);
        drop(mounted);
        Ok(SystemRun { name, synced: synced_record, plain: plain_record, events, phases })
    }

    /// The writes of one kind.
    pub(super) fn client(&self, kind: WriteKind) -> &ClientRecord {
        match kind {
            WriteKind::Synced => &self.synced,
            WriteKind::Plain => &self.plain,
        }
    }
}

fn mount_point(mounted: &MountedSystem) -> &Path {
    mounted.file.parent().unwrap_or(&mounted.file)
}

/// Tells when a system holds writers back, because its buffer, or its share of memory, is full.
enum FillWatch {
    Weir { mount_point: PathBuf },
    Ext4 { limit: DirtyLimit },
}

impl FillWatch {
    /// The event's name.
    fn label(&self) -> &'static str {
        match self {
            FillWatch::Weir { .. } => "buffer full: writers wait",
            FillWatch::Ext4 { .. } => "dirty limit: writers wait",
        }
    }

    /// Operations of weir that had to wait for space so far; always 0 on ext4.
    fn waits_before(&self) -> Result<u64, BenchError> {
        match self {
            FillWatch::Weir { mount_point } => Ok(weir_status(mount_point)?.counters.admissions_parked),
            FillWatch::Ext4 { .. } => Ok(0),
        }
    }

    fn is_full(&self, waits_before: u64) -> Result<bool, BenchError> {
        match self {
            FillWatch::Weir { .. } => Ok(self.waits_before()? > waits_before),
            FillWatch::Ext4 { limit } => limit.is_reached(),
        }
    }

    /// Waits until writers are held back, or `over`. Returns that moment.
    fn wait_until_full(&self, over: &AtomicBool) -> Result<Option<Instant>, BenchError> {
        let waits_before = self.waits_before()?;
        while !over.load(Ordering::Acquire) {
            if self.is_full(waits_before)? {
                return Ok(Some(Instant::now()));
            }
            std::thread::sleep(CHECK_EVERY);
        }
        Ok(None)
    }
}

/// What happens beside the client.
struct RunStory<'a> {
    start: Instant,
    scale: &'a PictureScale,
    bulk: &'a Path,
    events: Vec<RunEvent>,
    phases: Vec<RunPhase>,
}

impl RunStory<'_> {
    /// Lets all happen at its time. Returns the events, the phases and the mount at the end.
    fn play(
        mut self,
        system: &ComparedSystem,
        mut mounted: MountedSystem,
        fill: &FillWatch,
    ) -> Result<(Vec<RunEvent>, Vec<RunPhase>, MountedSystem), BenchError> {
        let scale = self.scale;
        let bulk = BulkWriter::open(self.bulk, scale.bulk_bytes)?;
        self.sleep_until(scale.checkpoint_at);
        self.begin_phase("calm", format!("checkpoint: {} MiB, synced", scale.checkpoint_bytes >> 20));
        bulk.write(|written, _| written < scale.checkpoint_bytes)?;
        bulk.sync()?;
        self.begin_phase("checkpoint", "its sync is done".to_owned());

        self.sleep_until(scale.bulk_at);
        self.begin_phase("after it", "bulk writer, no pause".to_owned());
        let over = AtomicBool::new(false);
        let (full, written) = std::thread::scope(|scope| {
            let watch = scope.spawn(|| fill.wait_until_full(&over));
            let written = bulk.write(|_, elapsed| elapsed < scale.bulk_for);
            over.store(true, Ordering::Release);
            let full = watch.join().expect("a watch does not panic");
            Ok::<_, BenchError>((full?, written?))
        })?;
        if let Some(full) = full {
            self.begin_phase_at(full, "bulk writer", fill.label().to_owned());
        }
        let name = if full.is_some() { "full" } else { "bulk writer" };
        self.begin_phase(name, format!("it ends, after {} MiB", written >> 20));
        drop(bulk);

        if let FillWatch::Weir { mount_point } = fill {
            self.sleep_until(scale.kill_at);
            let pid =
                Pid::from_raw(weir_status(mount_point)?.pid.cast_signed()).expect("a daemon has a number");
            self.begin_phase("after it", "kill -9 of the daemon".to_owned());
            kill_process(pid, Signal::KILL)
                .map_err(|errno| BenchError::io("cannot kill the daemon of", mount_point, errno.into()))?;
            // Removes the dead mount.
            drop(mounted);
            mounted = system.mount()?;
            self.begin_phase("kill and restart", "mounted again".to_owned());
        }
        self.sleep_until(scale.end);
        let from = self.phases.last().map_or(0.0, |phase| phase.to);
        self.phases.push(RunPhase { name: "after it", from, to: scale.end.as_secs_f64() });
        Ok((self.events, self.phases, mounted))
    }

    fn sleep_until(&self, moment: Duration) {
        std::thread::sleep((self.start + moment).saturating_duration_since(Instant::now()));
    }

    /// Ends the phase `ended` now, with an event.
    fn begin_phase(&mut self, ended: &'static str, event: String) {
        self.begin_phase_at(Instant::now(), ended, event);
    }

    fn begin_phase_at(&mut self, moment: Instant, ended: &'static str, event: String) {
        let at = moment.duration_since(self.start).as_secs_f64();
        let from = self.phases.last().map_or(0.0, |phase| phase.to);
        self.phases.push(RunPhase { name: ended, from, to: at });
        self.events.push(RunEvent { at, label: event });
    }
}

/// Overwrites pieces of a file in random order, as a database's checkpoint does.
struct BulkWriter {
    file: File,
    path: PathBuf,
    order: Vec<u64>,
}

impl BulkWriter {
    fn open(path: &Path, bytes: u64) -> Result<BulkWriter, BenchError> {
        let file = OpenOptions::new()
            .write(true)
            .open(path)
            .map_err(|error| BenchError::io("cannot open", path, error))?;
        let order = shuffled(bytes / PIECE_BYTES as u64, &mut SeededRng::new(1));
        Ok(BulkWriter { file, path: path.to_path_buf(), order })
    }

    /// Writes while `goes_on` allows, which is asked with the bytes and the time so far. Returns the bytes.
    fn write(&self, goes_on: impl Fn(u64, Duration) -> bool) -> Result<u64, BenchError> {
        let start = Instant::now();
        let mut written = 0;
        for (number, piece) in self.order.iter().cycle().enumerate() {
            if !goes_on(written, start.elapsed()) || cleanup::is_stopping() {
                break;
            }
            let bytes = [number as u8; PIECE_BYTES];
            self.file
                .write_all_at(&bytes, piece * PIECE_BYTES as u64)
                .map_err(|error| BenchError::io("cannot write", &self.path, error))?;
            written += PIECE_BYTES as u64;
        }
        Ok(written)
    }

    fn sync(&self) -> Result<(), BenchError> {
        self.file.sync_all().map_err(|error| BenchError::io("cannot sync", &self.path, error))
    }
}
