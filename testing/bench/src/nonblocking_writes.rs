//! `weir-bench nonblocking-writes`: small overwrites of un-cached pages, on weir and on ext4.
//!
//! The systems take turns in one run, on modelled devices of the same kinds.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::cleanup::{self, CleanupGuard};
use super::cpu_affinity::{self, CpuAffinity, ProcessorSplit};
use super::device_speed::{DeviceSpeed, measure_speed};
use super::error::BenchError;
use super::overwrite_rows::{BySize, DeviceOverwrites, OverwriteRow, TargetRatio};
use super::program::{check_machine, command, run};
use super::quantile::median;
use super::report::BenchReport;
use super::run_args::{RunArgs, RunSize};
use super::slow_device::{ComparedDevice, DeviceSpec, SlowDevice, remove_on_drop, unmount_on_drop};
use super::system::{ComparedSystem, FetchChoice, SystemKind};
use super::workload::{BareLoop, PageOverwriter, SyncMode, WorkDone};

/// Size of a write in the targets.
const WRITE_BYTES: u64 = 512;
const TABLE_BYTES: [u64; 7] = [64, 128, 256, 512, 1024, 2048, 4096];

const OVERWRITE: &str = "overwrite";
const OVERWRITE_SYNC: &str = "overwrite + fdatasync";
const EXT4: &str = "ext4";
const EXT4_JOURNAL_TMPFS: &str = "ext4 data=journal, journal on tmpfs";
const EXT4_JOURNAL_DISK: &str = "ext4 data=journal, journal on disk";
const WEIR_BLOCKING: &str = "weir blocking, buffer on disk";
const WEIR_DISK: &str = "weir lazy, buffer on disk";
const WEIR_TMPFS: &str = "weir lazy, buffer on tmpfs";
const BARE: &str = "bare pwrite + fdatasync on the disk";

/// Options of `weir-bench nonblocking-writes`.
#[derive(Debug, Args)]
pub(super) struct NonblockingWritesArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Measure writes of 64 to 4096 bytes, in one short run each, and print a table by size.
    #[arg(long)]
    table: bool,
    /// Give the modelled devices their own processors (`apart`), and all other programs the first; or leave
    /// all to the kernel (`free`).
    #[arg(long, value_enum, default_value_t = CpuAffinity::Apart)]
    cpu_affinity: CpuAffinity,
    /// Seed of the random order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A load, a system and how the load syncs.
type OverwriteTurn = (&'static str, &'static str, SyncMode);

/// Every load, in the order in which the systems take turns.
const TURNS: [OverwriteTurn; 8] = [
    (OVERWRITE, EXT4, SyncMode::Never),
    (OVERWRITE, WEIR_DISK, SyncMode::Never),
    (OVERWRITE, WEIR_BLOCKING, SyncMode::Never),
    (OVERWRITE_SYNC, EXT4, SyncMode::EachWrite),
    (OVERWRITE_SYNC, EXT4_JOURNAL_TMPFS, SyncMode::EachWrite),
    (OVERWRITE_SYNC, WEIR_TMPFS, SyncMode::EachWrite),
    (OVERWRITE_SYNC, EXT4_JOURNAL_DISK, SyncMode::EachWrite),
    (OVERWRITE_SYNC, WEIR_DISK, SyncMode::EachWrite),
];
/// The turns that the ratios to ext4 need.
const TURNS_FOR_RATIOS: [OverwriteTurn; 4] = [TURNS[0], TURNS[1], TURNS[3], TURNS[5]];

/// Sizes, times and rounds that `--size` selects.
#[derive(Debug, Clone)]
struct OverwriteScale {
    pages: u64,
    /// Most overwrites of a run.
    writes_max: u64,
    device_bytes: u64,
    /// Size of weir's buffer, and of ext4's external journal.
    buffer_bytes: u64,
    /// Most time of a run. For all pages, the slow systems would take a quarter of an hour; a rate counts the
    /// writes made.
    limit: Duration,
    /// Length of the turns of weir and the bare loop.
    slice: Duration,
    runs: u32,
    sizes: &'static [u64],
    turns: &'static [OverwriteTurn],
}

impl OverwriteScale {
    fn new(size: RunSize, with_table: bool) -> OverwriteScale {
        let sizes: &'static [u64] = if with_table { &TABLE_BYTES } else { &[WRITE_BYTES] };
        match size {
            RunSize::Small => OverwriteScale {
                pages: 2_000,
                writes_max: 2_000,
                device_bytes: 256 << 20,
                buffer_bytes: 64 << 20,
                limit: Duration::from_millis(300),
                slice: Duration::from_millis(50),
                runs: 1,
                sizes,
                turns: &TURNS,
            },
            RunSize::Real => OverwriteScale {
                pages: 100_000,
                writes_max: 100_000,
                device_bytes: 4 << 30,
                buffer_bytes: 512 << 20,
                limit: Duration::from_secs(if with_table { 3 } else { 10 }),
                slice: Duration::from_millis(500),
                runs: if with_table { 1 } else { 3 },
                sizes,
                turns: &TURNS,
            },
        }
    }

    /// The scale for the ratios to ext4 alone, in `runs` short runs; `real` ones take some minutes.
    ///
    /// After each turn weir writes its data back, on the disk model at 8 ms a page.
    fn for_ratios(size: RunSize, model: ComparedDevice, runs: u32) -> OverwriteScale {
        let all = OverwriteScale { runs, turns: &TURNS_FOR_RATIOS, ..OverwriteScale::new(size, false) };
        match (size, model) {
            (RunSize::Small, ComparedDevice::Hdd) => OverwriteScale { writes_max: 200, ..all },
            (RunSize::Small, _) => all,
            (RunSize::Real, model) => {
                let writes_max = if model == ComparedDevice::Hdd { 2_000 } else { 20_000 };
                OverwriteScale { pages: 20_000, writes_max, limit: Duration::from_secs(3), ..all }
            }
        }
    }
}

/// Directories for buffers and journals. Fields are dropped, and so taken down, from the top.
struct BufferPlaces {
    /// A tmpfs of this benchmark.
    memory: PathBuf,
    /// A directory on the machine's disk.
    disk: PathBuf,
    _unmount: CleanupGuard,
    _files: CleanupGuard,
}

impl BufferPlaces {
    fn new(root: &Path, scale: &OverwriteScale) -> Result<BufferPlaces, BenchError> {
        let files = remove_on_drop(root);
        let (memory, disk) = (root.join("memory"), root.join("disk"));
        for directory in [&memory, &disk] {
            fs::create_dir_all(directory)
                .map_err(|error| BenchError::io("cannot create", directory, error))?;
        }
        let unmount = unmount_on_drop(&memory);
        // Space for a buffer, a journal and their metadata.
        let option = format!("size={}", scale.buffer_bytes * 3);
        run(command("mount", ["-t", "tmpfs", "-o", &option, "weir-bench"]).arg(&memory))?;
        Ok(BufferPlaces { memory, disk, _unmount: unmount, _files: files })
    }
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &NonblockingWritesArgs) -> Result<(), BenchError> {
    check_machine()?;
    cleanup::install()?;
    let mut report = BenchReport::new("nonblocking-writes");
    let processors = ProcessorSplit::claim(args.cpu_affinity)?;
    let scale = OverwriteScale::new(args.run.size, args.table);
    let root = std::env::temp_dir().join(format!("weir-bench-{}", std::process::id()));
    let places = BufferPlaces::new(&root, &scale)?;
    let disk = file_system_of(&places.disk);
    report.line(format!("{}; temporary files on {disk}", cpu_affinity::text(processors)));
    report.line(format!(
        "first {} overwrites of un-cached pages, each page once, random order, one thread, at most {:?} per run",
        scale.pages, scale.limit
    ));
    report.fact("cpu_affinity", cpu_affinity::text(processors));
    report.fact("disk", disk);
    report.fact("pages", scale.pages);
    report.fact("seconds_max", scale.limit.as_secs_f64());
    let by_size = if args.table { BySize::Yes } else { BySize::No };
    for &model in args.run.model.list() {
        let design = DeviceSpec { device: model.device(), bytes: scale.device_bytes, processors };
        report.part("models", run_model(model, &design, &scale, &places, args.seed)?.report(by_size));
    }
    report.print(args.run.json);
    Ok(())
}

/// Overwrites on one device model, in writes per second, run by run.
pub(super) struct BesideExt4 {
    pub(super) model: ComparedDevice,
    pub(super) measured: DeviceSpeed,
    pub(super) sync: SyncMode,
    pub(super) weir: Vec<f64>,
    pub(super) ext4: Vec<f64>,
}

/// Measures overwrites of 512 B beside ext4 on each device model, the fastest first, with and without
/// fdatasync.
///
/// One thread makes the writes, and nothing is pinned to processors. All files are below `root`.
pub(super) fn beside_ext4(root: &Path, size: RunSize, runs: u32) -> Result<Vec<BesideExt4>, BenchError> {
    let mut found = Vec::new();
    for model in ComparedDevice::ALL.into_iter().rev() {
        let scale = OverwriteScale::for_ratios(size, model, runs);
        let places = BufferPlaces::new(root, &scale)?;
        let design = DeviceSpec { device: model.device(), bytes: scale.device_bytes, processors: None };
        let found_here = run_model(model, &design, &scale, &places, 1)?;
        let rates = |load, system| -> Vec<f64> {
            let row = found_here.rows.iter().find(|row| (row.load, row.system) == (load, system));
            row.map(OverwriteRow::rates).unwrap_or_default()
        };
        for (load, system, sync) in [TURNS[1], TURNS[5]] {
            let (weir, ext4) = (rates(load, system), rates(load, EXT4));
            found.push(BesideExt4 { model, measured: found_here.measured, sync, weir, ext4 });
        }
    }
    Ok(found)
}

/// Type and source of the file system that holds `path`.
pub(super) fn file_system_of(path: &Path) -> String {
    let arguments = ["--noheadings", "--output", "FSTYPE,SOURCE", "--target"];
    match run(command("findmnt", arguments).arg(path)) {
        Ok(found) => found.split_whitespace().collect::<Vec<_>>().join(" "),
        Err(_) => "an unknown file system".to_owned(),
    }
}

/// The systems that are compared on one model, by name.
struct OverwriteSystems(Vec<(&'static str, ComparedSystem)>);

impl OverwriteSystems {
    /// Sets up the systems that take turns.
    fn set_up(
        device: &DeviceSpec,
        scale: &OverwriteScale,
        places: &BufferPlaces,
    ) -> Result<OverwriteSystems, BenchError> {
        let weir = |fetch, place: &Path| SystemKind::Weir {
            fetch,
            buffer_in: place.to_path_buf(),
            buffer_bytes: scale.buffer_bytes,
            memory_bytes: None,
            options: Vec::new(),
        };
        let journal = |place: &Path| SystemKind::Ext4DataJournal {
            journal_in: place.to_path_buf(),
            journal_bytes: scale.buffer_bytes,
        };
        let all = [
            (EXT4, "ext4", SystemKind::Ext4),
            (EXT4_JOURNAL_TMPFS, "ext4-journal-tmpfs", journal(&places.memory)),
            (EXT4_JOURNAL_DISK, "ext4-journal-disk", journal(&places.disk)),
            (WEIR_BLOCKING, "weir-blocking", weir(FetchChoice::Blocking, &places.disk)),
            (WEIR_DISK, "weir-disk", weir(FetchChoice::Lazy, &places.disk)),
            (WEIR_TMPFS, "weir-tmpfs", weir(FetchChoice::Lazy, &places.memory)),
        ];
        let takes_turns = |name| scale.turns.iter().any(|&(_, system, _)| system == name);
        let set_up = |(name, file_name, kind)| {
            eprintln!("{}: setting up {name}", device.device.name());
            Ok((name, ComparedSystem::set_up(file_name, kind, device, &places.disk, scale.pages)?))
        };
        all.into_iter()
            .filter(|&(name, ..)| takes_turns(name))
            .map(set_up)
            .collect::<Result<_, _>>()
            .map(OverwriteSystems)
    }

    fn named(&self, name: &str) -> &ComparedSystem {
        let found = self.0.iter().find(|(system, _)| *system == name);
        &found.expect("what takes turns was set up").1
    }
}

/// The runs with one size of writes.
#[derive(Default)]
struct SizeFigures {
    /// The runs of each load, in the order of the turns.
    runs: Vec<Vec<WorkDone>>,
    bare: Vec<WorkDone>,
    /// weir's rate with its buffer on the disk, over that of the bare loop, slice by slice.
    disk_to_bare: Vec<f64>,
}

fn run_model(
    model: ComparedDevice,
    design: &DeviceSpec,
    scale: &OverwriteScale,
    places: &BufferPlaces,
    seed: u64,
) -> Result<DeviceOverwrites, BenchError> {
    let measured = {
        let device = SlowDevice::up(design, &places.disk.join("measured"))?;
        measure_speed(device.path(), scale.device_bytes, scale.limit / 5)?
    };
    let systems = OverwriteSystems::set_up(design, scale, places)?;
    let mut all = DeviceOverwrites { model, measured, rows: Vec::new(), ratios: Vec::new() };
    for &bytes in scale.sizes {
        let mut found = SizeFigures { runs: vec![Vec::new(); scale.turns.len()], ..SizeFigures::default() };
        for turn in 0..scale.runs {
            eprintln!("{}: {bytes} B, run {} of {}", model.name(), turn + 1, scale.runs);
            take_turns(&systems, scale, places, bytes, seed + u64::from(turn), &mut found)?;
        }
        let names = scale.turns.iter().map(|&(load, system, _)| (load, system));
        let runs = found.runs.into_iter().chain([found.bare]);
        let rows: Vec<OverwriteRow> = names
            .chain([(OVERWRITE_SYNC, BARE)])
            .zip(runs)
            .map(|((load, system), runs)| OverwriteRow { load, system, write_bytes: bytes, runs })
            .collect();
        if bytes == WRITE_BYTES {
            all.ratios = ratios(model, &rows, median(&found.disk_to_bare));
        }
        all.rows.extend(rows);
    }
    Ok(all)
}

fn take_turns(
    systems: &OverwriteSystems,
    scale: &OverwriteScale,
    places: &BufferPlaces,
    bytes: u64,
    seed: u64,
    found: &mut SizeFigures,
) -> Result<(), BenchError> {
    for (index, &(_, name, sync)) in scale.turns.iter().enumerate() {
        let mounted = systems.named(name).mount()?;
        let mut load = PageOverwriter::open(&mounted.file, scale.pages, bytes, seed)?;
        let done = if (name, sync) == (WEIR_DISK, SyncMode::EachWrite) {
            beside_the_bare_loop(&mut load, scale, places, bytes, found)?
        } else {
            load.run(scale.writes_max, scale.limit, sync)?
        };
        found.runs[index].push(done);
    }
    Ok(())
}

/// Runs the load and the bare loop on one disk in turns, so that both meet the same conditions.
fn beside_the_bare_loop(
    load: &mut PageOverwriter,
    scale: &OverwriteScale,
    places: &BufferPlaces,
    bytes: u64,
    found: &mut SizeFigures,
) -> Result<WorkDone, BenchError> {
    let mut bare_loop = BareLoop::create(&places.disk.join("bare"), bytes)?;
    let (mut sum, mut bare_sum) = (WorkDone::default(), WorkDone::default());
    while sum.elapsed < scale.limit {
        let bare = bare_loop.run(scale.slice)?;
        let done = load.run(scale.pages, scale.slice, SyncMode::EachWrite)?;
        if done.elapsed < scale.slice {
            break; // No page is left: a slice cut short says nothing.
        }
        found.disk_to_bare.push(done.rate() / bare.rate());
        sum += done;
        bare_sum += bare;
    }
    found.bare.push(bare_sum);
    Ok(sum)
}

fn ratios(model: ComparedDevice, rows: &[OverwriteRow], disk_to_bare: f64) -> Vec<TargetRatio> {
    let rate = |load, system| {
        let row = rows.iter().find(|row| (row.load, row.system) == (load, system));
        row.map_or(f64::NAN, |row| median(&row.rates()))
    };
    let (lazy_target, sync_target) = match model {
        ComparedDevice::Hdd => (200.0, 300.0),
        ComparedDevice::Cloud => (40.0, 60.0),
        ComparedDevice::Ssd => (4.0, 8.0),
    };
    let lazy = rate(OVERWRITE, WEIR_DISK) / rate(OVERWRITE, EXT4);
    let sync = rate(OVERWRITE_SYNC, WEIR_TMPFS) / rate(OVERWRITE_SYNC, EXT4);
    let all = [
        ("overwrite, weir lazy to ext4", lazy, lazy_target),
        ("overwrite + fdatasync, weir with its buffer on tmpfs to ext4", sync, sync_target),
        ("overwrite + fdatasync, weir with its buffer on disk to the bare loop", disk_to_bare, 0.6),
    ];
    all.into_iter().map(|(what, ratio, target)| TargetRatio { what, ratio, target }).collect()
}
