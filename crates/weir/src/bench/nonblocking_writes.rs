//! `weir bench nonblocking-writes`: small overwrites of pages that nobody holds in memory, on weir and on ext4, side by
//! side in one run on the same modelled devices.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::error::BenchError;
use super::measure::measure;
use super::placement::{self, Placement, Processors};
use super::program::{check_machine, command, run};
use super::report::{BySize, ModelReport, Ratio, Report, Row, Run, median, text};
use super::slow_device::{Design, Model, SlowDevice, remove_on_drop, unmount_on_drop};
use super::system::{Fetch, Kind, System};
use super::undo::{self, Undo};
use super::workload::{BareLoop, Overwriter, Sync};

/// The size that the targets speak of.
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

/// What to measure.
#[derive(Debug, Args)]
pub(super) struct NonblockingWritesArgs {
    /// `small` only shows that everything works; `real` gives figures.
    #[arg(long, value_enum, default_value_t = Size::Real)]
    size: Size,
    /// The modelled device: hdd, cloud, ssd or all.
    #[arg(long, value_enum, default_value_t = Models::All)]
    model: Models,
    /// Write the result as JSON.
    #[arg(long)]
    json: bool,
    /// Measure writes of 64 to 4096 bytes, in one short run each, and print a table by size.
    #[arg(long)]
    table: bool,
    /// Whether the modelled devices have processors of their own; the rest of the machine shares the first one.
    #[arg(long, value_enum, default_value_t = Placement::Apart)]
    placement: Placement,
    /// The random order's seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// How much to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Size {
    Small,
    Real,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Models {
    Hdd,
    Cloud,
    Ssd,
    All,
}

impl Models {
    fn list(self) -> &'static [Model] {
        match self {
            Models::Hdd => &[Model::Hdd],
            Models::Cloud => &[Model::Cloud],
            Models::Ssd => &[Model::Ssd],
            Models::All => &Model::ALL,
        }
    }
}

/// The numbers behind `--size`.
#[derive(Debug, Clone)]
struct Scale {
    pages: u64,
    device_bytes: u64,
    /// Of weir's buffer and of ext4's external journal alike.
    buffer_bytes: u64,
    /// The slow systems would take a quarter of an hour for all pages; the rate is over what they did.
    limit: Duration,
    /// weir and the bare loop take turns of this length.
    slice: Duration,
    runs: u32,
    sizes: &'static [u64],
}

impl Scale {
    fn new(size: Size, with_table: bool) -> Scale {
        let sizes: &'static [u64] = if with_table { &TABLE_BYTES } else { &[WRITE_BYTES] };
        match size {
            Size::Small => Scale {
                pages: 2_000,
                device_bytes: 256 << 20,
                buffer_bytes: 64 << 20,
                limit: Duration::from_millis(300),
                slice: Duration::from_millis(50),
                runs: 1,
                sizes,
            },
            Size::Real => Scale {
                pages: 100_000,
                device_bytes: 4 << 30,
                buffer_bytes: 512 << 20,
                limit: Duration::from_secs(if with_table { 3 } else { 10 }),
                slice: Duration::from_millis(500),
                runs: if with_table { 1 } else { 3 },
                sizes,
            },
        }
    }
}

/// Where things lie. Fields are taken down from the top.
struct Places {
    /// A tmpfs of our own.
    memory: PathBuf,
    /// The machine's disk.
    disk: PathBuf,
    _unmount: Undo,
    _files: Undo,
}

impl Places {
    fn new(scale: &Scale) -> Result<Places, BenchError> {
        let root = std::env::temp_dir().join(format!("weir-bench-{}", std::process::id()));
        let files = remove_on_drop(&root);
        let (memory, disk) = (root.join("memory"), root.join("disk"));
        for directory in [&memory, &disk] {
            fs::create_dir_all(directory)
                .map_err(|error| BenchError::io("cannot create", directory, error))?;
        }
        let unmount = unmount_on_drop(&memory);
        // A buffer, a journal, and room for what belongs to them.
        let option = format!("size={}", scale.buffer_bytes * 3);
        run(command("mount", ["-t", "tmpfs", "-o", &option, "weir-bench"]).arg(&memory))?;
        Ok(Places { memory, disk, _unmount: unmount, _files: files })
    }
}

/// Runs the benchmark and prints what it found.
pub(super) fn run_benchmark(args: &NonblockingWritesArgs) -> Result<(), BenchError> {
    check_machine()?;
    undo::install()?;
    let present = std::thread::available_parallelism().map_or(1, usize::from);
    let processors = Processors::claim(args.placement)?;
    let scale = Scale::new(args.size, args.table);
    let places = Places::new(&scale)?;
    let mut models = Vec::new();
    for &model in args.model.list() {
        let design = Design { model, bytes: scale.device_bytes, processors };
        models.push(run_model(&design, &scale, &places, args.seed)?);
    }
    let report = Report {
        benchmark: "nonblocking-writes",
        version: env!("CARGO_PKG_VERSION"),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        processors: present,
        placement: placement::text(processors),
        disk: file_system_of(&places.disk),
        pages: scale.pages,
        seconds_max: scale.limit.as_secs_f64(),
        models,
    };
    drop(places);
    if args.json {
        println!(
            "{}",
            serde_json::to_string_pretty(&report).expect("a report has only names and finite numbers")
        );
    } else {
        print!("{}", text(&report, if args.table { BySize::Yes } else { BySize::No }));
    }
    Ok(())
}

fn file_system_of(path: &Path) -> String {
    let arguments = ["--noheadings", "--output", "FSTYPE,SOURCE", "--target"];
    run(command("findmnt", arguments).arg(path)).unwrap_or_else(|_| "an unknown file system".to_owned())
}

/// The systems that one model compares.
struct Systems {
    ext4: System,
    ext4_journal_memory: System,
    ext4_journal_disk: System,
    weir_blocking: System,
    weir_disk: System,
    weir_memory: System,
}

impl Systems {
    fn set_up(device: &Design, scale: &Scale, places: &Places) -> Result<Systems, BenchError> {
        let set_up = |name: &str, kind| {
            eprintln!("{}: setting up {name}", device.model.name());
            System::set_up(name, kind, device, &places.disk, scale.pages)
        };
        let weir = |fetch, place: &Path| Kind::Weir {
            fetch,
            buffer_in: place.to_path_buf(),
            buffer_bytes: scale.buffer_bytes,
        };
        let journal = |place: &Path| Kind::Ext4DataJournal {
            journal_in: place.to_path_buf(),
            journal_bytes: scale.buffer_bytes,
        };
        Ok(Systems {
            ext4: set_up("ext4", Kind::Ext4)?,
            ext4_journal_memory: set_up("ext4-journal-tmpfs", journal(&places.memory))?,
            ext4_journal_disk: set_up("ext4-journal-disk", journal(&places.disk))?,
            weir_blocking: set_up("weir-blocking", weir(Fetch::Blocking, &places.disk))?,
            weir_disk: set_up("weir-disk", weir(Fetch::Lazy, &places.disk))?,
            weir_memory: set_up("weir-tmpfs", weir(Fetch::Lazy, &places.memory))?,
        })
    }

    /// Every load, in the order in which the systems take turns.
    fn loads(&self) -> [(&'static str, &'static str, &System, Sync); 8] {
        [
            (OVERWRITE, EXT4, &self.ext4, Sync::Never),
            (OVERWRITE, WEIR_DISK, &self.weir_disk, Sync::Never),
            (OVERWRITE, WEIR_BLOCKING, &self.weir_blocking, Sync::Never),
            (OVERWRITE_SYNC, EXT4, &self.ext4, Sync::EachWrite),
            (OVERWRITE_SYNC, EXT4_JOURNAL_TMPFS, &self.ext4_journal_memory, Sync::EachWrite),
            (OVERWRITE_SYNC, WEIR_TMPFS, &self.weir_memory, Sync::EachWrite),
            (OVERWRITE_SYNC, EXT4_JOURNAL_DISK, &self.ext4_journal_disk, Sync::EachWrite),
            (OVERWRITE_SYNC, WEIR_DISK, &self.weir_disk, Sync::EachWrite),
        ]
    }
}

/// What one size's turns found.
#[derive(Default)]
struct Found {
    /// The runs of each load, in the order of [`Systems::loads`].
    runs: [Vec<Run>; 8],
    bare: Vec<Run>,
    /// weir with its buffer on the disk, over the bare loop beside it, slice by slice.
    disk_to_bare: Vec<f64>,
}

fn run_model(design: &Design, scale: &Scale, places: &Places, seed: u64) -> Result<ModelReport, BenchError> {
    let model = design.model;
    let measured = {
        let device = SlowDevice::up(design, &places.disk.join("measured"))?;
        measure(device.path(), scale.device_bytes, scale.limit / 5)?
    };
    let systems = Systems::set_up(design, scale, places)?;
    let mut report = ModelReport { model, measured, rows: Vec::new(), ratios: Vec::new() };
    for &bytes in scale.sizes {
        let mut found = Found::default();
        for turn in 0..scale.runs {
            eprintln!("{}: {bytes} B, run {} of {}", model.name(), turn + 1, scale.runs);
            take_turns(&systems, scale, places, bytes, seed + u64::from(turn), &mut found)?;
        }
        let mut rows: Vec<Row> = systems
            .loads()
            .iter()
            .zip(found.runs)
            .map(|((load, system, ..), runs)| Row::new(load, system, bytes, runs))
            .collect();
        rows.push(Row::new(OVERWRITE_SYNC, BARE, bytes, found.bare));
        if bytes == WRITE_BYTES {
            report.ratios = ratios(model, &rows, median(&found.disk_to_bare));
        }
        report.rows.extend(rows);
    }
    Ok(report)
}

fn take_turns(
    systems: &Systems,
    scale: &Scale,
    places: &Places,
    bytes: u64,
    seed: u64,
    found: &mut Found,
) -> Result<(), BenchError> {
    for (index, (_, name, system, sync)) in systems.loads().into_iter().enumerate() {
        let mounted = system.mount()?;
        let mut load = Overwriter::open(&mounted.file, scale.pages, bytes, seed)?;
        let done = if (name, sync) == (WEIR_DISK, Sync::EachWrite) {
            beside_the_bare_loop(&mut load, scale, places, bytes, found)?
        } else {
            Run::from(load.run(scale.pages, scale.limit, sync)?)
        };
        found.runs[index].push(done);
    }
    Ok(())
}

/// Lets the load and the bare loop on the same disk take turns, so that both see the same disk.
fn beside_the_bare_loop(
    load: &mut Overwriter,
    scale: &Scale,
    places: &Places,
    bytes: u64,
    found: &mut Found,
) -> Result<Run, BenchError> {
    let mut bare_loop = BareLoop::create(&places.disk.join("bare"), bytes)?;
    let mut sum = Run { writes: 0, seconds: 0.0, writes_per_s: 0.0 };
    let mut bare_sum = sum;
    while sum.seconds < scale.limit.as_secs_f64() {
        let bare = bare_loop.run(scale.slice)?;
        let done = load.run(scale.pages, scale.slice, Sync::EachWrite)?;
        if done.elapsed < scale.slice {
            break; // No page is left: a slice cut short says nothing.
        }
        found.disk_to_bare.push(done.rate() / bare.rate());
        for (sum, done) in [(&mut sum, done), (&mut bare_sum, bare)] {
            sum.writes += done.writes;
            sum.seconds += done.elapsed.as_secs_f64();
            sum.writes_per_s = sum.writes as f64 / sum.seconds;
        }
    }
    found.bare.push(bare_sum);
    Ok(sum)
}

fn ratios(model: Model, rows: &[Row], disk_to_bare: f64) -> Vec<Ratio> {
    let rate = |load, system| {
        let row = rows.iter().find(|row| (row.load, row.system) == (load, system));
        row.map_or(f64::NAN, |row| row.median_writes_per_s)
    };
    let (lazy_target, sync_target) = match model {
        Model::Hdd => (200.0, 300.0),
        Model::Cloud => (40.0, 60.0),
        Model::Ssd => (4.0, 8.0),
    };
    let lazy = rate(OVERWRITE, WEIR_DISK) / rate(OVERWRITE, EXT4);
    let sync = rate(OVERWRITE_SYNC, WEIR_TMPFS) / rate(OVERWRITE_SYNC, EXT4);
    vec![
        Ratio::new("overwrite, weir lazy to ext4", lazy, lazy_target),
        Ratio::new("overwrite + fdatasync, weir with its buffer on tmpfs to ext4", sync, sync_target),
        Ratio::new("overwrite + fdatasync, weir with its buffer on disk to the bare loop", disk_to_bare, 0.6),
    ]
}
