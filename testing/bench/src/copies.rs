//! `weir-bench copies`: copies that share pages, beside copies that read and write all bytes.
//!
//! Large files are copied by one call, by `cp` and, from a mounted snapshot, by `weir cp`. A tree of small files is copied by
//! `cp -r`, and read afterwards: a copy must not be bought at its readers' expense.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use device::SeededRng;
use rustix::fs::copy_file_range;

use super::cleanup::{self, CleanupGuard};
use super::counters::mount;
use super::device_model::DeviceKind;
use super::error::BenchError;
use super::program::{check_machine, check_programs, command, run, run_until_stopped};
use super::quantile::{RoundSpread, median};
use super::report::{BenchReport, ReportCell, ReportTable};
use super::run_args::TurnArgs;
use super::slow_device::{DeviceSpec, SlowDevice, work_directory};
use super::system::{weir, weir_on};
use super::workload::{PAGE_BYTES, lay_out};

const MIB: u64 = 1 << 20;
/// Bytes of each small file.
const SMALL_FILE_BYTES: usize = 11 << 10;
/// Small files of a directory.
const FILES_PER_DIRECTORY: u64 = 200;
/// No file has this text.
const PATTERN: &str = "no such text";

/// Options of `weir-bench copies`.
#[derive(Debug, Args)]
pub(super) struct CopiesArgs {
    /// Sizes of the large files, in MiB
    #[arg(long, value_name = "MIB", value_delimiter = ',', default_values_t = [1, 64, 1024, 4096], value_parser = clap::value_parser!(u64).range(1..=65_536))]
    sizes: Vec<u64>,
    /// Small files in the tree
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    files: u64,
    #[command(flatten)]
    turns: TurnArgs,
}

/// A way to copy a large file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum CopyWay {
    /// `cp --reflink=never`.
    EveryByte,
    /// `copy_file_range`, called by this program.
    Call,
    /// `cp`.
    Program,
    /// `weir cp` from a mounted snapshot.
    FromSnapshot,
}

const WAYS: [CopyWay; 4] = [CopyWay::EveryByte, CopyWay::Call, CopyWay::Program, CopyWay::FromSnapshot];

impl CopyWay {
    fn name(self) -> &'static str {
        match self {
            CopyWay::EveryByte => "cp --reflink=never",
            CopyWay::Call => "copy_file_range",
            CopyWay::Program => "cp",
            CopyWay::FromSnapshot => "weir cp, from a snapshot",
        }
    }
}

/// Whether the source is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SourcePages {
    Warm,
    Cold,
}

/// A store, mounted, and a place to mount its snapshot.
struct CopyStore {
    store: PathBuf,
    mount_point: PathBuf,
    snapshot: PathBuf,
    settings: [String; 2],
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &CopiesArgs) -> Result<(), BenchError> {
    check_machine()?;
    check_programs(&["cp", "grep"])?;
    cleanup::install()?;
    let (root, _files) = work_directory(args.turns.on.as_deref())?;
    let mut report = BenchReport::new("copies");
    report.fact("rounds", args.turns.rounds);
    measure_large(args, &root, &mut report)?;
    measure_small(args, &root, None, &mut report)?;
    measure_small(args, &root, Some(DeviceKind::Cloud), &mut report)?;
    report.print(args.turns.json);
    Ok(())
}

impl CopyStore {
    /// Formats a store at `store`, a path without a file or a device.
    fn format(
        root: &Path,
        name: &str,
        store: PathBuf,
        options: &[String],
        memory_bytes: u64,
    ) -> Result<CopyStore, BenchError> {
        let at = |place: &str| root.join(format!("{name}.{place}"));
        let (mount_point, snapshot) = (at("mount"), at("snapshot"));
        for directory in [&mount_point, &snapshot] {
            fs::create_dir(directory).map_err(|error| BenchError::io("cannot create", directory, error))?;
        }
        let mut format = weir_on(&store, "format");
        cleanup::uninterrupted(|| run(format.arg(&store).args(options)))?;
        let settings = [format!("--memory={memory_bytes}"), "--epoch-every=0".to_owned()];
        Ok(CopyStore { store, mount_point, snapshot, settings })
    }

    fn mount(&self) -> Result<CleanupGuard, BenchError> {
        mount(&self.store, &self.mount_point, &self.settings)
    }

    /// Copies the file `source` to a new name. Returns the seconds until the call or the program has returned.
    fn copy(&self, way: CopyWay) -> Result<f64, BenchError> {
        let (from, to) = (self.mount_point.join("source"), self.mount_point.join("copy"));
        let _ = fs::remove_file(&to);
        rustix::fs::sync();
        let begun = Instant::now();
        match way {
            CopyWay::EveryByte => {
                run_until_stopped(command("cp", ["--reflink=never"]).arg(&from).arg(&to))?;
            }
            CopyWay::Call => {
                copy_by_calls(&from, &to).map_err(|error| BenchError::io("cannot copy", &from, error))?;
            }
            CopyWay::Program => {
                run_until_stopped(command("cp", [""; 0]).arg(&from).arg(&to))?;
            }
            CopyWay::FromSnapshot => {
                run(weir("cp").arg(self.snapshot.join("source")).arg(&to))?;
            }
        }
        Ok(begun.elapsed().as_secs_f64())
    }
}

/// Copies a file with as few calls as the kernel needs.
fn copy_by_calls(from: &Path, to: &Path) -> std::io::Result<()> {
    let (source, target) = (File::open(from)?, File::create(to)?);
    let mut left = source.metadata()?.len();
    while left > 0 {
        let copied =
            copy_file_range(&source, None, &target, None, usize::try_from(left).unwrap_or(usize::MAX))?;
        if copied == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        left -= copied as u64;
    }
    Ok(())
}

fn measure_large(args: &CopiesArgs, root: &Path, report: &mut BenchReport) -> Result<(), BenchError> {
    let largest = args.sizes.iter().copied().max().unwrap_or(1) * MIB;
    let options = [format!("--size={}", largest * 6 + (2 << 30)), format!("--buffer-size={}", 512 * MIB)];
    let memory = (largest * 2).clamp(512 * MIB, 4 << 30);
    let store = CopyStore::format(root, "large", root.join("large"), &options, memory)?;
    let mut table = ReportTable::default();
    for &size in &args.sizes {
        let mounted = store.mount()?;
        let source = store.mount_point.join("source");
        lay_out(&source, size * MIB / PAGE_BYTES)?;
        run(weir("volume").arg("snapshot").arg(&store.mount_point).arg("saved"))?;
        drop(mounted);
        for pages in [SourcePages::Warm, SourcePages::Cold] {
            let mut seconds = WAYS.map(|_| Vec::new());
            for round in 0..args.turns.rounds {
                eprintln!("copies: {size} MiB, {pages:?}, round {} of {}", round + 1, args.turns.rounds);
                for (&way, seconds) in WAYS.iter().zip(&mut seconds) {
                    let _mounted = store.mount()?;
                    let _saved = mount_snapshot(&store)?;
                    if pages == SourcePages::Warm {
                        run_until_stopped(command("grep", ["-qa", PATTERN]).arg(&source)).ok();
                    }
                    seconds.push(store.copy(way)?);
                }
            }
            for (way, found) in WAYS.iter().zip(&seconds) {
                let shares: Vec<f64> =
                    seconds[0].iter().zip(found).map(|(every, other)| every / other).collect();
                table.row([
                    ("size_mib", "MiB", size.into()),
                    ("warm", "", ReportCell::json(pages == SourcePages::Warm)),
                    (
                        "",
                        "source",
                        if pages == SourcePages::Warm { "in memory" } else { "not in memory" }.into(),
                    ),
                    ("way", "copied by", way.name().into()),
                    (
                        "seconds",
                        "ms",
                        ReportCell::rounds(&found.iter().map(|s| s * 1000.0).collect::<Vec<_>>()),
                    ),
                    ("median_s", "", ReportCell::json(median(found))),
                    ("share", "times as fast as the first (quartiles)", RoundSpread::of(&shares).into()),
                ]);
            }
        }
        let mounted = store.mount()?;
        run(weir("volume").arg("delete").arg(&store.mount_point).arg("saved"))?;
        drop(mounted);
    }
    report.line(format!(
        "\nCopies of one file within a store, until the call or program has returned, medians of {} rounds; those that share \
         pages are durable then, the first is not",
        args.turns.rounds
    ));
    report.table("large", &table);
    Ok(())
}

fn mount_snapshot(store: &CopyStore) -> Result<CleanupGuard, BenchError> {
    mount(&store.store, &store.snapshot, &["--volume=saved".to_owned()])
}

/// Copies a tree of small files and reads the copy, on the disk of the work directory or on a modelled device.
fn measure_small(
    args: &CopiesArgs,
    root: &Path,
    model: Option<DeviceKind>,
    report: &mut BenchReport,
) -> Result<(), BenchError> {
    let name = model.map_or("disk".to_owned(), DeviceKind::name);
    let tree_bytes = args.files * (SMALL_FILE_BYTES as u64).next_multiple_of(PAGE_BYTES);
    let bytes = (tree_bytes * 6 + (1 << 30)).next_multiple_of(MIB);
    let device = match model {
        Some(device) => {
            Some(SlowDevice::up(&DeviceSpec { device, bytes, processors: None }, &root.join("model"))?)
        }
        None => None,
    };
    let buffer = format!("--buffer-size={}", tree_bytes + 128 * MIB);
    let (place, options) = match &device {
        Some(device) => {
            let beside = format!("--buffer={}", root.join("small.buffer").display());
            (device.path().to_owned(), vec![beside, buffer])
        }
        None => (root.join("small"), vec![format!("--size={bytes}"), buffer]),
    };
    let store = CopyStore::format(root, &format!("small-{name}"), place, &options, 1 << 30)?;
    let mounted = store.mount()?;
    make_tree(&store.mount_point.join("tree"), args.files)
        .map_err(|error| BenchError::io("cannot write", &store.mount_point, error))?;
    rustix::fs::sync();
    const SMALL_WAYS: [&str; 2] = ["--reflink=never", "--reflink=auto"];
    let mut copied = SMALL_WAYS.map(|_| Vec::new());
    let mut read = SMALL_WAYS.map(|_| Vec::new());
    for round in 0..args.turns.rounds {
        eprintln!("copies: small files, {name}, round {} of {}", round + 1, args.turns.rounds);
        for (index, way) in SMALL_WAYS.iter().enumerate() {
            let copy = store.mount_point.join("copy");
            let begun = Instant::now();
            run_until_stopped(command("cp", ["-r", way]).arg(store.mount_point.join("tree")).arg(&copy))?;
            copied[index].push(begun.elapsed().as_secs_f64());
            // grep finds nothing, which is no error here.
            let _ = run_until_stopped(command("grep", ["-rqa", PATTERN]).arg(&copy));
            read[index].push(begun.elapsed().as_secs_f64());
            run_until_stopped(command("rm", ["-r"]).arg(&copy))?;
            rustix::fs::sync();
        }
    }
    drop(mounted);
    drop(device);
    report.line(format!(
        "\n`cp -r` of {} files of {} KiB, and with grep reading all of the copy, on {}; medians of {} rounds; the share with \
         reading should be at most 1.1",
        args.files,
        SMALL_FILE_BYTES >> 10,
        model.map_or("the disk of the directory", DeviceKind::text),
        args.turns.rounds
    ));
    let mut table = ReportTable::default();
    for (index, way) in SMALL_WAYS.iter().enumerate() {
        let shares: Vec<f64> = read[0].iter().zip(&read[index]).map(|(never, other)| other / never).collect();
        table.row([
            ("way", "cp", (*way).into()),
            ("copied_s", "s", ReportCell::rounds(&copied[index])),
            ("read_s", "with reading, s", ReportCell::rounds(&read[index])),
            ("share", "with reading / never (quartiles)", RoundSpread::of(&shares).into()),
        ]);
    }
    report.table(&format!("small.{name}"), &table);
    Ok(())
}

fn make_tree(tree: &Path, files: u64) -> std::io::Result<()> {
    let mut random = SeededRng::new(46);
    let mut bytes = vec![0; SMALL_FILE_BYTES];
    for number in 0..files {
        let directory = tree.join(format!("d{}", number / FILES_PER_DIRECTORY));
        if number % FILES_PER_DIRECTORY == 0 {
            fs::create_dir_all(&directory)?;
        }
        super::tar_archive::fill_with_lines(&mut random, &mut bytes);
        fs::write(directory.join(format!("f{number}")), &bytes)?;
    }
    Ok(())
}
