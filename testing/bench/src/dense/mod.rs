//! `weir-bench dense`: single operations of the library in this process, beside the same system calls on tmpfs.
//!
//! Both media of weir are in memory. A sync on tmpfs makes nothing durable; weir's writes its buffer, here a file on tmpfs.

mod openings;
mod threads;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use device::SeededRng;
use rustix::fs::{Mode, OFlags};
use rustix::io::{pread, pwrite};
use weir_library::{Weir, WeirOptions};

use super::cleanup::{self, CleanupGuard};
use super::error::BenchError;
use super::program::{command, run};
use super::quantile::{RoundSpread, median};
use super::report::{BenchReport, ReportCell, ReportTable};
use super::slow_device::{unmount_on_drop, work_directory};
use super::system::weir;
use super::workload::PAGE_BYTES;

/// Pages of the file that is read and overwritten: what the processor's caches hold.
const FILE_PAGES: u64 = 64;
/// Names beside those that are looked up.
const NAMES: u64 = 64;
/// Bytes after which an appended file begins anew.
const APPENDED_MAX: u64 = 16 << 20;
const STORE_BYTES: u64 = 512 << 20;
const BUFFER_BYTES: u64 = 128 << 20;
const TMPFS_BYTES: u64 = 1 << 30;

/// Options of `weir-bench dense`.
#[derive(Debug, Args)]
pub(super) struct DenseArgs {
    /// Rounds, with a turn of weir and one of tmpfs for each operation
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Operations of one turn
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..))]
    operations: u32,
    /// Threads that are compared with one; 1 leaves the comparison out
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    threads: u8,
    /// Directory on a disk, for the store that is opened there
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    on: PathBuf,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// One operation, by its number in the turn.
pub(super) type DenseOperation<'a> = dyn FnMut(u64) -> io::Result<()> + 'a;

/// An operation on both sides, and the share of tmpfs's time that weir may take.
pub(super) struct DenseRow<'a> {
    pub(super) name: &'static str,
    target: f64,
    pub(super) weir: Box<DenseOperation<'a>>,
    pub(super) tmpfs: Box<DenseOperation<'a>>,
}

/// A store that is open in this process with both media on tmpfs, and a directory beside it. Fields are dropped, and
/// so taken down, from the top.
pub(super) struct DenseBed {
    weir: Weir,
    store: PathBuf,
    plain: PathBuf,
    root: PathBuf,
    _mounted: CleanupGuard,
    _files: CleanupGuard,
}

impl DenseBed {
    pub(super) fn set_up() -> Result<DenseBed, BenchError> {
        cleanup::install()?;
        let (root, files) = work_directory(None)?;
        let mounted = unmount_on_drop(&root);
        let size = format!("size={TMPFS_BYTES}");
        run(command("mount", ["-t", "tmpfs", "-o", &size, "weir-bench"]).arg(&root))?;
        let (store, plain) = (root.join("store"), root.join("plain"));
        run(weir("format")
            .arg(&store)
            .args(["--volatile-buffer".to_owned(), format!("--size={STORE_BYTES}")])
            .arg(format!("--buffer-size={BUFFER_BYTES}")))?;
        std::fs::create_dir(&plain).map_err(|error| BenchError::io("cannot create", &plain, error))?;
        let options =
            WeirOptions { volatile_buffer: true, memory_bytes: 256 << 20, ..WeirOptions::default() };
        let weir = Weir::open(&store, &options).map_err(|source| BenchError::Stack { source })?;
        Ok(DenseBed { weir, store, plain, root, _mounted: mounted, _files: files })
    }

    /// The directory of all files.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// All operations, with files of their own. To be called once.
    pub(super) fn rows(&self) -> io::Result<Vec<DenseRow<'_>>> {
        rows(&self.weir, &self.plain)
    }

    pub(super) fn close(self) -> Result<(), BenchError> {
        let DenseBed { weir, store, _mounted, _files, .. } = self;
        let closed = weir.close().map_err(|error| BenchError::io("cannot close", &store, error));
        // A directory cannot be removed while something is mounted there.
        drop(_mounted);
        drop(_files);
        closed
    }
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &DenseArgs) -> Result<(), BenchError> {
    let bed = DenseBed::set_up()?;
    let mut report = BenchReport::new("dense");
    report.fact("rounds", args.rounds);
    report.fact("operations", args.operations);
    report.fact("threads", args.threads);
    report.line(format!("nanoseconds an operation, medians of {} rounds", args.rounds));
    let failed = |error| BenchError::io("cannot measure in", bed.root(), error);
    let table = measure(args, &bed).map_err(failed)?;
    report.table("rows", &table);
    if args.threads > 1 {
        report.line(format!(
            "\noperations/s of weir by {} threads, each in its own file, beside one thread",
            args.threads
        ));
        let table = threads::measure(args, &bed.weir).map_err(failed)?;
        report.table("threads", &table);
    }
    report.line("");
    let (on_disk, _files) = work_directory(Some(&args.on))?;
    let table = openings::measure(&[("in memory", bed.root()), ("on disk", &on_disk)])?;
    report.table("openings", &table);
    report.print(args.json);
    bed.close()
}

fn measure(args: &DenseArgs, bed: &DenseBed) -> io::Result<ReportTable> {
    let mut table = ReportTable::default();
    for mut row in bed.rows()? {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            ours.push(turn(&mut row.weir, args.operations)?);
            theirs.push(turn(&mut row.tmpfs, args.operations)?);
        }
        let shares: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| ours / theirs).collect();
        let share = RoundSpread::of(&shares);
        let quartiles = format!("{:.2} to {:.2}", share.first_quartile, share.third_quartile);
        table.row([
            ("operation", "operation", row.name.into()),
            ("weir_ns", "weir", median(&ours).into()),
            ("tmpfs_ns", "tmpfs", median(&theirs).into()),
            ("share", "weir/tmpfs", ReportCell::median(share)),
            ("", "quartiles", quartiles.as_str().into()),
            ("target", "target", row.target.into()),
        ]);
    }
    Ok(table)
}

/// Changes the first and the last byte, so that the whole range differs from what is there.
fn stamp(bytes: &mut [u8], number: u64) {
    let last = bytes.len() - 1;
    bytes[0] = number as u8;
    bytes[last] = !number as u8;
}

/// Nanoseconds of one operation.
fn turn(operation: &mut DenseOperation<'_>, count: u32) -> io::Result<f64> {
    let start = Instant::now();
    (0..u64::from(count)).try_for_each(operation)?;
    Ok(start.elapsed().as_nanos() as f64 / f64::from(count))
}

/// All operations. Each has files of its own.
fn rows<'a>(weir: &'a Weir, plain: &Path) -> io::Result<Vec<DenseRow<'a>>> {
    const READ_WRITE: OFlags = OFlags::CREATE.union(OFlags::RDWR);
    let deep = "a/b/c/file";
    for directory in ["a", "a/b", "a/b/c"] {
        weir.create_dir(directory, 0o755)?;
        std::fs::create_dir(plain.join(directory))?;
    }
    for number in 0..NAMES {
        weir.open(format!("a/b/c/{number}"), READ_WRITE, 0o644)?;
        std::fs::write(plain.join(format!("a/b/c/{number}")), [])?;
    }
    let mode = Mode::from_raw_mode(0o644);
    let open_plain = |name: &str| rustix::fs::open(plain.join(name), READ_WRITE, mode);
    let page = [0x5a; PAGE_BYTES as usize];
    let mut rows: Vec<DenseRow<'a>> = Vec::new();

    let file = weir.open(deep, READ_WRITE, 0o644)?;
    let there = open_plain(deep)?;
    for number in 0..FILE_PAGES {
        file.write_at(&page, number * PAGE_BYTES)?;
        pwrite(&there, &page, number * PAGE_BYTES)?;
    }
    let (file, there) = (std::rc::Rc::new(file), std::rc::Rc::new(there));
    let (own, plain_own) = (file.clone(), there.clone());
    rows.push(DenseRow {
        name: "fstat",
        target: 0.1,
        weir: Box::new(move |_| own.metadata().map(drop)),
        tmpfs: Box::new(move |_| Ok(rustix::fs::fstat(&*plain_own).map(drop)?)),
    });
    let path = plain.join(deep);
    rows.push(DenseRow {
        name: "stat of a path of four names",
        target: 0.35,
        weir: Box::new(move |_| weir.metadata(deep).map(drop)),
        tmpfs: Box::new(move |_| Ok(rustix::fs::stat(&path).map(drop)?)),
    });
    let path = plain.join(deep);
    rows.push(DenseRow {
        name: "open and close",
        target: 0.4,
        weir: Box::new(move |_| weir.open(deep, OFlags::RDONLY, 0).map(drop)),
        tmpfs: Box::new(move |_| Ok(rustix::fs::open(&path, OFlags::RDONLY, mode).map(drop)?)),
    });
    for (name, target, len, is_read) in [
        ("read 512 B", 0.4, 512, true),
        ("read 4 KiB", 0.5, 4096, true),
        ("overwrite 512 B", 0.6, 512, false),
        ("overwrite 4 KiB", 1.0, 4096, false),
    ] {
        let (own, plain_own) = (file.clone(), there.clone());
        let offset = move |random: &mut SeededRng| random.below(FILE_PAGES) * PAGE_BYTES;
        let (mut ours, mut theirs) = (SeededRng::new(7), SeededRng::new(7));
        let (mut into, mut into_plain) = (vec![0; len], vec![0; len]);
        let (mut bytes, mut plain_bytes) = (page, page);
        let weir: Box<DenseOperation<'a>> = if is_read {
            Box::new(move |_| own.read_at(&mut into, offset(&mut ours)).map(drop))
        } else {
            Box::new(move |number| {
                stamp(&mut bytes[..len], number);
                own.write_at(&bytes[..len], offset(&mut ours)).map(drop)
            })
        };
        let tmpfs: Box<DenseOperation<'a>> = if is_read {
            Box::new(move |_| Ok(pread(&*plain_own, &mut into_plain, offset(&mut theirs)).map(drop)?))
        } else {
            Box::new(move |number| {
                stamp(&mut plain_bytes[..len], number);
                Ok(pwrite(&*plain_own, &plain_bytes[..len], offset(&mut theirs)).map(drop)?)
            })
        };
        rows.push(DenseRow { name, target, weir, tmpfs });
    }

    let (own, plain_own) = (weir.open("appended", READ_WRITE, 0o644)?, open_plain("appended")?);
    let (mut end, mut plain_end) = (0, 0);
    rows.push(DenseRow {
        name: "append 512 B",
        target: 0.9,
        weir: Box::new(move |_| {
            if end >= APPENDED_MAX {
                own.set_len(0)?;
                end = 0;
            }
            own.write_at(&page[..512], end)?;
            end += 512;
            Ok(())
        }),
        tmpfs: Box::new(move |_| {
            if plain_end >= APPENDED_MAX {
                rustix::fs::ftruncate(&plain_own, 0)?;
                plain_end = 0;
            }
            pwrite(&plain_own, &page[..512], plain_end)?;
            plain_end += 512;
            Ok(())
        }),
    });
    let (own, plain_own) = (file, there);
    rows.push(DenseRow {
        name: "overwrite 512 B and fdatasync",
        target: 2.5,
        weir: Box::new(move |number| {
            own.write_at(&page[..512], number % FILE_PAGES * PAGE_BYTES)?;
            own.sync_data()
        }),
        tmpfs: Box::new(move |number| {
            pwrite(&*plain_own, &page[..512], number % FILE_PAGES * PAGE_BYTES)?;
            Ok(rustix::fs::fdatasync(&*plain_own)?)
        }),
    });
    let path = plain.join("made");
    rows.push(DenseRow {
        name: "create, close and unlink",
        target: 0.3,
        weir: Box::new(move |_| {
            drop(weir.open("made", READ_WRITE, 0o644)?);
            weir.remove_file("made")
        }),
        tmpfs: Box::new(move |_| {
            drop(rustix::fs::open(&path, READ_WRITE, mode)?);
            Ok(rustix::fs::unlink(&path)?)
        }),
    });
    weir.open("even", READ_WRITE, 0o644)?;
    open_plain("even")?;
    let pair = ["even", "odd"];
    let plain_pair = pair.map(|name| plain.join(name));
    let (mut at, mut plain_at) = (0, 0);
    rows.push(DenseRow {
        name: "rename",
        target: 0.5,
        weir: Box::new(move |_| {
            weir.rename(pair[at], pair[1 - at])?;
            at = 1 - at;
            Ok(())
        }),
        tmpfs: Box::new(move |_| {
            rustix::fs::rename(&plain_pair[plain_at], &plain_pair[1 - plain_at])?;
            plain_at = 1 - plain_at;
            Ok(())
        }),
    });
    Ok(rows)
}
