//! `weir-bench small-files`: grep and tar on many small files, unmodified and by `weir run`, beside tmpfs, a mount of
//! weir and ext4.
//!
//! grep searches one tree several times in one process. It prints a line for each file, so that the number of lines
//! tells when a pass has ended.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use clap::Args;
use device::SeededRng;

use super::cleanup::{self, CleanupGuard};
use super::error::BenchError;
use super::program::{check_programs, command, line, run, run_until_stopped};
use super::quantile::{RoundSpread, median};
use super::report::{BenchReport, ReportCell, ReportTable};
use super::run_args::TurnArgs;
use super::slow_device::{DirectIo, LoopDevice, unmount_on_drop, work_directory};
use super::system::{weir_on, weir_unmount_on_drop};
use super::tar_archive::{self, FILE_BYTES_MAX};

/// Memory of weir, which the searched files fit into.
const MEMORY: &str = "2GiB";
/// The largest file of the tree that grep searches; the mean is 3 KiB.
const SEARCHED_BYTES_MAX: u64 = 12 << 10;
/// No file has this text.
const PATTERN: &str = "X";
const BUFFER_BYTES: u64 = 512 << 20;
/// Bytes that a file may take on a file system, besides its content.
const FILE_OVERHEAD_BYTES: u64 = 8 << 10;
const IMAGE_BYTES_MIN: u64 = 1 << 30;

/// Options of `weir-bench small-files`.
#[derive(Debug, Args)]
pub(super) struct SmallFilesArgs {
    /// Files that grep searches
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    files: u64,
    /// Passes of one grep
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=20))]
    passes: u8,
    /// Files that tar unpacks
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    tar_files: u64,
    #[command(flatten)]
    turns: TurnArgs,
}

/// Where a program finds its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilesSystem {
    /// `weir run`.
    Run,
    /// A mount of the same store.
    Mount,
    Tmpfs,
    Ext4,
}

impl FilesSystem {
    fn name(self) -> &'static str {
        match self {
            FilesSystem::Run => "weir run",
            FilesSystem::Mount => "weir mount",
            FilesSystem::Tmpfs => "tmpfs",
            FilesSystem::Ext4 => "ext4",
        }
    }
}

/// The duration of a pass, and the processor time of grep's thread, in seconds.
#[derive(Debug, Clone, Copy)]
struct PassTimes {
    elapsed: f64,
    processor: f64,
}

struct SmallFilesBench {
    root: PathBuf,
    store: PathBuf,
    mount_point: PathBuf,
    tmpfs: PathBuf,
    ext4: PathBuf,
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &SmallFilesArgs) -> Result<(), BenchError> {
    check_programs(&["grep", "tar", "rm", "losetup", "mke2fs", "mount", "umount"])?;
    cleanup::install()?;
    let (root, _files) = work_directory(args.turns.on.as_deref())?;
    let bench = SmallFilesBench {
        store: root.join("store"),
        mount_point: root.join("mount"),
        tmpfs: root.join("tmpfs"),
        ext4: root.join("ext4"),
        root,
    };
    for directory in [&bench.mount_point, &bench.tmpfs, &bench.ext4] {
        fs::create_dir(directory).map_err(|error| BenchError::io("cannot create", directory, error))?;
    }
    let searched = args.files * (SEARCHED_BYTES_MAX / 4 + FILE_OVERHEAD_BYTES);
    let unpacked = args.tar_files * (FILE_BYTES_MAX / 4 + FILE_OVERHEAD_BYTES);
    let store_bytes = ((searched + unpacked) * 4 + (2 << 30)).next_multiple_of(1 << 20);
    run(weir_on(&bench.store, "format")
        .arg(&bench.store)
        .args([format!("--size={store_bytes}"), format!("--buffer-size={BUFFER_BYTES}")]))?;
    let mut report = BenchReport::new("small-files");
    report.fact("rounds", args.turns.rounds);
    report.fact("files", args.files);
    report.fact("tar_files", args.tar_files);
    bench.measure_tar(args, unpacked, &mut report)?;
    bench.measure_grep(args, searched, &mut report)?;
    report.print(args.turns.json);
    Ok(())
}

impl SmallFilesBench {
    /// Unpacks an archive on ext4, on a mount and by `weir run`, in turns.
    fn measure_tar(
        &self,
        args: &SmallFilesArgs,
        bytes: u64,
        report: &mut BenchReport,
    ) -> Result<(), BenchError> {
        let archive = self.root.join("unpacked.tar");
        write_archive(&archive, args.tar_files, FILE_BYTES_MAX, tar_archive::fill)?;
        let image = self.root.join("ext4.image");
        File::create(&image)
            .and_then(|file| file.set_len((bytes * 2).max(IMAGE_BYTES_MIN)))
            .map_err(|error| BenchError::io("cannot create", &image, error))?;
        let device = LoopDevice::attach(&image, DirectIo::No)?;
        // Lazy initialisation would continue in the background of the measurement.
        let mut format = command("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "4096"]);
        format.args(["-E", "lazy_itable_init=0,lazy_journal_init=0"]).arg(device.path());
        cleanup::uninterrupted(|| run(&mut format))?;
        let unmounted = unmount_on_drop(&self.ext4);
        run(command("mount", ["-t", "ext4", "-o", "noatime"]).arg(device.path()).arg(&self.ext4))?;
        let systems = [FilesSystem::Run, FilesSystem::Mount, FilesSystem::Ext4];
        let mut seconds = systems.map(|_| Vec::new());
        for round in 0..args.turns.rounds {
            eprintln!("small-files: tar, round {} of {}", round + 1, args.turns.rounds);
            let mut turns: Vec<_> = systems.iter().zip(&mut seconds).collect();
            turns.rotate_left(usize::from(round) % systems.len());
            for (system, found) in turns {
                found.push(self.untar_turn(*system, &archive)?);
            }
        }
        drop(unmounted);
        drop(device);
        fs::remove_file(&image).map_err(|error| BenchError::io("cannot remove", &image, error))?;
        report.line(format!(
            "\n`tar xf` of {} files with a mean of {} KiB, seconds to the program's end, medians of {} rounds; ext4 in a \
             loop device syncs nothing, `weir run` at its end",
            args.tar_files,
            FILE_BYTES_MAX / 4 / 1024,
            args.turns.rounds
        ));
        let mut table = ReportTable::default();
        for (system, times) in systems.iter().zip(&seconds) {
            let shares: Vec<f64> = seconds[0].iter().zip(times).map(|(run, other)| run / other).collect();
            table.row([
                ("system", "system", system.name().into()),
                ("seconds", "s", ReportCell::rounds(times)),
                ("run_share", "weir run / system (quartiles)", RoundSpread::of(&shares).into()),
            ]);
        }
        report.table("tar", &table);
        Ok(())
    }

    /// Seconds of one untar. The tree is removed afterwards.
    fn untar_turn(&self, system: FilesSystem, archive: &Path) -> Result<f64, BenchError> {
        let (_mounted, place) = self.place(system)?;
        rustix::fs::sync();
        let begun = Instant::now();
        run_until_stopped(self.program(system, "tar").arg("xf").arg(archive).arg("-C").arg(&place))?;
        let seconds = begun.elapsed().as_secs_f64();
        run_until_stopped(self.program(system, "rm").arg("-r").arg(place.join("tree")))?;
        Ok(seconds)
    }

    /// Searches a tree on tmpfs, on a new mount and by `weir run`, in turns.
    fn measure_grep(
        &self,
        args: &SmallFilesArgs,
        bytes: u64,
        report: &mut BenchReport,
    ) -> Result<(), BenchError> {
        let archive = self.root.join("searched.tar");
        write_archive(&archive, args.files, SEARCHED_BYTES_MAX, tar_archive::fill_with_lines)?;
        let _unmounted = unmount_on_drop(&self.tmpfs);
        let size = format!("size={},nr_inodes=0", bytes + (64 << 20));
        run(command("mount", ["-t", "tmpfs", "-o", &size, "weir-bench"]).arg(&self.tmpfs))?;
        for system in [FilesSystem::Tmpfs, FilesSystem::Run] {
            eprintln!("small-files: unpacking {} files: {}", args.files, system.name());
            let (_mounted, place) = self.place(system)?;
            run_until_stopped(self.program(system, "tar").arg("xf").arg(&archive).arg("-C").arg(place))?;
        }
        fs::remove_file(&archive).map_err(|error| BenchError::io("cannot remove", &archive, error))?;
        let systems = [FilesSystem::Run, FilesSystem::Mount, FilesSystem::Tmpfs];
        let mut rounds = systems.map(|_| Vec::new());
        for round in 0..args.turns.rounds {
            eprintln!("small-files: grep, round {} of {}", round + 1, args.turns.rounds);
            let mut turns: Vec<_> = systems.iter().zip(&mut rounds).collect();
            turns.rotate_left(usize::from(round) % systems.len());
            for (system, found) in turns {
                found.push(self.grep(*system, args)?);
            }
        }
        report.line(format!(
            "\n`grep -rc {PATTERN}` of {} files with a mean of {} KiB, {} passes in one process; medians of {} rounds. Each \
             grep on weir begins with nothing in memory, of which it may take {MEMORY}; a mount has the kernel's cache, too.",
            args.files,
            SEARCHED_BYTES_MAX / 4 / 1024,
            args.passes,
            args.turns.rounds
        ));
        let mut table = ReportTable::default();
        for pass in 0..usize::from(args.passes) {
            let [run, mount, tmpfs] = [0, 1, 2].map(|system: usize| {
                let of: Vec<PassTimes> = rounds[system].iter().map(|passes: &Vec<_>| passes[pass]).collect();
                of
            });
            let elapsed = |of: &[PassTimes]| of.iter().map(|times| times.elapsed).collect::<Vec<f64>>();
            let processor = |of: &[PassTimes]| of.iter().map(|times| times.processor).collect::<Vec<f64>>();
            let speed = |other: &[f64], own: &[f64]| -> ReportCell {
                let ratios: Vec<f64> = other.iter().zip(own).map(|(other, own)| other / own).collect();
                ReportCell::median(RoundSpread::of(&ratios))
            };
            table.row([
                ("pass", "pass", (pass as u64 + 1).into()),
                ("run_s", "weir run s", median(&elapsed(&run)).into()),
                ("mount_s", "mount s", median(&elapsed(&mount)).into()),
                ("tmpfs_s", "tmpfs s", median(&elapsed(&tmpfs)).into()),
                ("run_processor_s", "weir run processor s", median(&processor(&run)).into()),
                ("tmpfs_processor_s", "tmpfs processor s", median(&processor(&tmpfs)).into()),
                ("speed_mount", "mount/run", speed(&elapsed(&mount), &elapsed(&run))),
                ("speed_tmpfs", "tmpfs/run", speed(&elapsed(&tmpfs), &elapsed(&run))),
                ("speed_processor", "tmpfs/run, processor", speed(&processor(&tmpfs), &processor(&run))),
            ]);
        }
        report.table("grep", &table);
        Ok(())
    }

    /// The passes of one grep.
    fn grep(&self, system: FilesSystem, args: &SmallFilesArgs) -> Result<Vec<PassTimes>, BenchError> {
        let path = "/proc/sys/vm/drop_caches";
        rustix::fs::sync();
        fs::write(path, "3").map_err(|error| BenchError::io("cannot write", path, error))?;
        // The program itself stays cached.
        run(&mut command("grep", ["--version"]))?;
        let (_mounted, place) = self.place(system)?;
        let tree = place.join("tree");
        let mut grep = self.program(system, "grep");
        grep.args(["-rc", PATTERN]).args(vec![tree; usize::from(args.passes)]);
        let name = line(&grep);
        let failed = |says: String| BenchError::Command { command: name.clone(), says };
        let child = Arc::new(Mutex::new(None));
        let started = child.clone();
        let _killed = CleanupGuard::new(move || {
            let child: Option<std::process::Child> =
                started.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(mut child) = child {
                let _ = child.kill();
                let _ = child.wait();
            }
        });
        let mut begun = Instant::now();
        let mut spawned = grep.stdout(Stdio::piped()).spawn().map_err(|error| failed(error.to_string()))?;
        let process = spawned.id();
        let output = spawned.stdout.take().expect("its output is a pipe");
        *child.lock().unwrap_or_else(PoisonError::into_inner) = Some(spawned);
        let (mut passes, mut lines, mut spent) = (Vec::new(), 0, 0.0);
        for found in BufReader::new(output).split(b'\n') {
            found.map_err(|error| failed(error.to_string()))?;
            lines += 1;
            if lines % args.files == 0 {
                let now = Instant::now();
                // Unknown if grep has ended: then it has spent no more than at the last look.
                let account = processor_seconds(process).unwrap_or(f64::NAN);
                passes.push(PassTimes { elapsed: (now - begun).as_secs_f64(), processor: account - spent });
                (begun, spent) = (now, account);
            }
        }
        let ended = child.lock().unwrap_or_else(PoisonError::into_inner).take();
        let status = ended.map(|mut child| child.wait());
        // 1: nothing was found.
        let is_done = matches!(&status, Some(Ok(status)) if status.code() == Some(1));
        if !is_done || lines != args.files * u64::from(args.passes) {
            return Err(failed(format!("{status:?} after {lines} lines")));
        }
        Ok(passes)
    }

    /// The directory in which a program works, and the mount that it needs.
    fn place(&self, system: FilesSystem) -> Result<(Option<CleanupGuard>, PathBuf), BenchError> {
        match system {
            FilesSystem::Run => Ok((None, PathBuf::from("@@"))),
            FilesSystem::Tmpfs => Ok((None, self.tmpfs.clone())),
            FilesSystem::Ext4 => Ok((None, self.ext4.clone())),
            FilesSystem::Mount => {
                let mounted = weir_unmount_on_drop(&self.mount_point);
                let mut mount = weir_on(&self.store, "mount");
                mount.args(["--memory", MEMORY]);
                cleanup::uninterrupted(|| run(mount.arg(&self.store).arg(&self.mount_point)))?;
                Ok((Some(mounted), self.mount_point.clone()))
            }
        }
    }

    fn program(&self, system: FilesSystem, program: &str) -> Command {
        if system != FilesSystem::Run {
            return command(program, [""; 0]);
        }
        let mut run = weir_on(&self.store, "run");
        run.args(["--memory", MEMORY]).arg("--store").arg(&self.store).arg("--").arg(program);
        run
    }
}

/// Seconds that the first thread of a process has run, as of the scheduler's last tick. Also of a process that has ended and
/// was not waited for.
fn processor_seconds(process: u32) -> Option<f64> {
    let account = fs::read_to_string(format!("/proc/{process}/task/{process}/schedstat")).ok()?;
    account.split_whitespace().next()?.parse::<f64>().ok().map(|nanos| nanos / 1e9)
}

fn write_archive(
    path: &Path,
    files: u64,
    file_bytes_max: u64,
    fill: fn(&mut SeededRng, &mut [u8]),
) -> Result<(), BenchError> {
    let mut random = SeededRng::new(1);
    let entries = tar_archive::entries(files, file_bytes_max, &mut random);
    let write = |file: File| {
        let mut out = BufWriter::new(file);
        tar_archive::write(&entries, fill, &mut random, &mut out)?;
        out.flush()
    };
    File::create(path).and_then(write).map_err(|error| BenchError::io("cannot write", path, error))
}
