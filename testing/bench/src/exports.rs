//! `weir-bench exports`: a disk that `weir export` serves, beside other NBD servers, in turns.
//!
//! One client, fio, uses each of them in the same way. nbdkit with a disk in memory shows what the protocol and two processes
//! cost; nbdkit and qemu-nbd with a file on a mount of the same store show what an export saves.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use rustix::process::Signal;
use serde_json::Value;

use super::cleanup;
use super::counters::mount;
use super::error::BenchError;
use super::program::{check_programs, command, run, run_until_stopped};
use super::quantile::{RoundSpread, median};
use super::report::{BenchReport, ReportCell, ReportTable};
use super::run_args::TurnArgs;
use super::server::RunningServer;
use super::slow_device::work_directory;
use super::system::{weir, weir_on};

/// Options of `weir-bench exports`.
#[derive(Debug, Args)]
pub(super) struct ExportsArgs {
    /// Size of each disk, in MiB: it stays in memory
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    disk: u64,
    /// Seconds of each measurement
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    #[command(flatten)]
    turns: TurnArgs,
}

/// A server of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DiskServer {
    WeirExport,
    NbdkitMemory,
    /// nbdkit with a file on a mount of weir.
    NbdkitFile,
    /// qemu-nbd with a raw file on a mount of weir.
    QemuNbd,
}

const SERVERS: [DiskServer; 4] =
    [DiskServer::WeirExport, DiskServer::NbdkitMemory, DiskServer::NbdkitFile, DiskServer::QemuNbd];

impl DiskServer {
    fn name(self) -> &'static str {
        match self {
            DiskServer::WeirExport => "weir export",
            DiskServer::NbdkitMemory => "nbdkit memory",
            DiskServer::NbdkitFile => "nbdkit file, on a mount",
            DiskServer::QemuNbd => "qemu-nbd, on a mount",
        }
    }
}

/// A load of 4 KiB requests at random places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DiskLoad {
    name: &'static str,
    /// fio's `--rw`.
    pattern: &'static str,
    depth: u32,
    /// Whether a flush follows each write.
    flushes: bool,
}

const LOADS: [DiskLoad; 4] = [
    DiskLoad { name: "reads, depth 32", pattern: "randread", depth: 32, flushes: false },
    DiskLoad { name: "writes, depth 32", pattern: "randwrite", depth: 32, flushes: false },
    DiskLoad { name: "writes, depth 1", pattern: "randwrite", depth: 1, flushes: false },
    DiskLoad { name: "writes, each flushed", pattern: "randwrite", depth: 1, flushes: true },
];

/// The load that is also run on a file of the mount, with `fdatasync` for the flush.
const FLUSHED: DiskLoad = LOADS[3];

/// The loads of writes that are also run right after a snapshot.
const AFTER_SNAPSHOT: [DiskLoad; 2] = [LOADS[1], LOADS[2]];

struct ExportsBench<'a> {
    args: &'a ExportsArgs,
    root: PathBuf,
    store: PathBuf,
    mount_point: PathBuf,
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &ExportsArgs) -> Result<(), BenchError> {
    check_programs(&["fio", "nbdcopy", "nbdkit", "qemu-nbd", "qemu-img"])?;
    cleanup::install()?;
    let (root, _files) = work_directory(args.turns.on.as_deref())?;
    let (store, mount_point) = (root.join("store"), root.join("mount"));
    let bench = ExportsBench { args, root, store, mount_point };
    fs::create_dir(&bench.mount_point)
        .map_err(|error| BenchError::io("cannot create", &bench.mount_point, error))?;
    let store_bytes = (args.disk << 20) * 12 + (2 << 30);
    let buffer_bytes = (args.disk << 20) * 2 + (128 << 20);
    run(weir_on(&bench.store, "format")
        .arg(&bench.store)
        .args([format!("--size={store_bytes}"), format!("--buffer-size={buffer_bytes}")]))?;
    let memory = format!("--memory={}MiB", args.disk * 6 + 256);
    let mounted = mount(&bench.store, &bench.mount_point, &[memory, "--epoch-every=0".into()])?;
    let mut report = BenchReport::new("exports");
    report.fact("rounds", args.turns.rounds);
    report.fact("seconds", args.seconds);
    report.fact("disk_bytes", args.disk << 20);
    bench.measure_servers(&mut report)?;
    bench.measure_snapshots(&mut report)?;
    drop(mounted);
    report.print(args.turns.json);
    Ok(())
}

impl ExportsBench<'_> {
    /// Runs each load on each server, and the flushed writes on a file of the mount, in turns.
    fn measure_servers(&self, report: &mut BenchReport) -> Result<(), BenchError> {
        let _servers: Vec<RunningServer> =
            SERVERS.iter().map(|&server| self.start(server)).collect::<Result<_, _>>()?;
        let mut rates = LOADS.map(|_| SERVERS.map(|_| Vec::new()));
        let mut on_mount = Vec::new();
        for round in 0..self.args.turns.rounds {
            eprintln!("exports: round {} of {}", round + 1, self.args.turns.rounds);
            for (load, of_load) in LOADS.iter().zip(&mut rates) {
                let mut turns: Vec<_> = SERVERS.iter().zip(of_load).collect();
                turns.rotate_left(usize::from(round) % SERVERS.len());
                for (&server, rates) in turns {
                    rates.push(self.rate(load, &["--ioengine=nbd", &format!("--uri={}", self.uri(server))])?);
                }
            }
            let file = format!("--filename={}", self.mount_point.join("synced").display());
            on_mount.push(self.rate(&FLUSHED, &["--ioengine=psync", &file])?);
        }
        report.line(format!(
            "\n4 KiB at random places of a disk of {} MiB, which stays in memory; requests per second, medians of {} rounds of {} \
             s (quartiles)",
            self.args.disk, self.args.turns.rounds, self.args.seconds
        ));
        let mut table = ReportTable::default();
        for (load, of_load) in LOADS.iter().zip(&rates) {
            for (server, found) in SERVERS.iter().zip(of_load) {
                row(&mut table, load.name, server.name(), found, &of_load[0]);
            }
            if *load == FLUSHED {
                row(&mut table, load.name, "fdatasync of a file, on a mount", &on_mount, &of_load[0]);
            }
        }
        report.table("servers", &table);
        Ok(())
    }

    /// Writes to a disk alone and right after a snapshot, and to an overlay in qcow2, in turns.
    fn measure_snapshots(&self, report: &mut BenchReport) -> Result<(), BenchError> {
        let _export = self.start(DiskServer::WeirExport)?;
        let base = self.mount_point.join("base.img");
        run(command("qemu-img", ["convert", "-f", "raw", "-O", "raw"])
            .arg(self.uri(DiskServer::WeirExport))
            .arg(&base))?;
        const WAYS: [&str; 3] =
            ["without a snapshot", "after a snapshot", "qcow2 with a fresh overlay, qemu-nbd"];
        let mut rates = AFTER_SNAPSHOT.map(|_| WAYS.map(|_| Vec::new()));
        for round in 0..self.args.turns.rounds {
            eprintln!("exports: snapshots, round {} of {}", round + 1, self.args.turns.rounds);
            for (load, of_load) in AFTER_SNAPSHOT.iter().zip(&mut rates) {
                let [alone, after, overlay] = of_load;
                let nbd = format!("--uri={}", self.uri(DiskServer::WeirExport));
                alone.push(self.rate(load, &["--ioengine=nbd", &nbd])?);
                run(weir("volume").arg("snapshot").arg(&self.mount_point).arg("fresh=disk"))?;
                after.push(self.rate(load, &["--ioengine=nbd", &nbd])?);
                run(weir("volume").arg("delete").arg(&self.mount_point).arg("fresh"))?;
                overlay.push(self.overlay_rate(load, &base)?);
            }
        }
        report.line("\nThe same writes, with a snapshot of the disk that was made right before, and with a new overlay");
        let mut table = ReportTable::default();
        for (load, of_load) in AFTER_SNAPSHOT.iter().zip(&rates) {
            for (way, found) in WAYS.iter().zip(of_load) {
                row(&mut table, load.name, way, found, &of_load[0]);
            }
        }
        report.table("snapshots", &table);
        Ok(())
    }

    fn overlay_rate(&self, load: &DiskLoad, base: &Path) -> Result<f64, BenchError> {
        let overlay = self.mount_point.join("overlay.qcow2");
        run(command("qemu-img", ["create", "-q", "-f", "qcow2", "-F", "raw", "-b"]).arg(base).arg(&overlay))?;
        let socket = self.root.join("overlay.sock");
        let mut qemu = command("qemu-nbd", ["--persistent", "--shared=8", "--format=qcow2"]);
        qemu.args(["--cache=none", "--aio=native", "--discard=unmap"]);
        qemu.arg(format!("--socket={}", socket.display())).arg(&overlay);
        let _server = self.serve(&mut qemu, &socket)?;
        let uri = format!("--uri=nbd+unix:///?socket={}", socket.display());
        let rate = self.rate(load, &["--ioengine=nbd", &uri]);
        fs::remove_file(&overlay).map_err(|error| BenchError::io("cannot remove", &overlay, error))?;
        rate
    }

    /// Starts a server, and fills its disk.
    fn start(&self, server: DiskServer) -> Result<RunningServer, BenchError> {
        let socket = self.socket(server);
        let size = format!("{}MiB", self.args.disk);
        let file = self.mount_point.join(format!("{}.img", socket.file_stem().unwrap_or_default().display()));
        let mut program = match server {
            DiskServer::WeirExport => {
                // It may be there from an earlier start.
                let _ =
                    run(weir("volume").arg("create").arg(&self.mount_point).args(["disk", "--size", &size]));
                let mut export = weir("export");
                export.arg(&self.mount_point).arg("disk").arg("--socket").arg(&socket);
                export
            }
            DiskServer::NbdkitMemory => {
                let mut nbdkit = command("nbdkit", ["--foreground", "--unix"]);
                nbdkit.arg(&socket).args(["memory", &format!("{}M", self.args.disk)]);
                nbdkit
            }
            DiskServer::NbdkitFile => {
                let mut nbdkit = command("nbdkit", ["--foreground", "--unix"]);
                nbdkit.arg(&socket).arg("file").arg(&file);
                nbdkit
            }
            DiskServer::QemuNbd => {
                let mut qemu = command("qemu-nbd", ["--persistent", "--shared=8", "--format=raw"]);
                qemu.args(["--cache=none", "--aio=native", "--discard=unmap"]);
                qemu.arg(format!("--socket={}", socket.display())).arg(&file);
                qemu
            }
        };
        if matches!(server, DiskServer::NbdkitFile | DiskServer::QemuNbd) {
            let created = fs::File::create(&file).and_then(|file| file.set_len(self.args.disk << 20));
            created.map_err(|error| BenchError::io("cannot create", &file, error))?;
        }
        let running = self.serve(&mut program, &socket)?;
        let mut fill =
            command("fio", ["--name=fill", "--ioengine=nbd", "--rw=write", "--bs=1m", "--iodepth=8"]);
        fill.args([format!("--size={}m", self.args.disk), format!("--uri={}", self.uri(server))]);
        run_until_stopped(fill.current_dir(&self.root))?;
        Ok(running)
    }

    fn serve(&self, program: &mut std::process::Command, socket: &Path) -> Result<RunningServer, BenchError> {
        // A server that was ended may have left its socket.
        let _ = fs::remove_file(socket);
        RunningServer::start(program, Signal::TERM, &self.root.join("log"), || socket.exists())
    }

    fn socket(&self, server: DiskServer) -> PathBuf {
        let name = match server {
            DiskServer::WeirExport => "weir.sock",
            DiskServer::NbdkitMemory => "memory.sock",
            DiskServer::NbdkitFile => "file.sock",
            DiskServer::QemuNbd => "qemu.sock",
        };
        self.root.join(name)
    }

    fn uri(&self, server: DiskServer) -> String {
        format!("nbd+unix:///?socket={}", self.socket(server).display())
    }

    /// Requests per second of a load. `target` says where fio makes them.
    fn rate(&self, load: &DiskLoad, target: &[&str]) -> Result<f64, BenchError> {
        let mut fio = command("fio", ["--name=load", "--bs=4k", "--time_based", "--norandommap"]);
        fio.args([format!("--rw={}", load.pattern), format!("--iodepth={}", load.depth)]);
        fio.args([format!("--size={}m", self.args.disk), format!("--runtime={}", self.args.seconds)]);
        // fio's client of NBD knows no other word for a flush.
        let flush = if target.contains(&"--ioengine=nbd") { "--fsync=1" } else { "--fdatasync=1" };
        fio.args(load.flushes.then_some(flush)).arg("--output-format=json").args(target);
        let begun = Instant::now();
        let said = run_until_stopped(fio.current_dir(&self.root))?;
        let json: Value = serde_json::from_str(&said[said.find('{').unwrap_or(0)..]).unwrap_or_default();
        let side = if load.pattern == "randread" { "read" } else { "write" };
        let requests = json["jobs"][0][side]["total_ios"].as_f64().unwrap_or(0.0);
        let millis = json["jobs"][0][side]["runtime"].as_f64().unwrap_or(0.0);
        if requests == 0.0 || millis == 0.0 {
            let what = format!("fio, after {} s", begun.elapsed().as_secs());
            return Err(BenchError::Late { what, says: said });
        }
        Ok(requests / millis * 1000.0)
    }
}

/// A row of rates. `of_weir` are those of the same rounds of the first row of the load.
fn row(table: &mut ReportTable, load: &str, name: &str, rates: &[f64], of_weir: &[f64]) {
    let shares: Vec<f64> = of_weir.iter().zip(rates).map(|(weir, other)| weir / other).collect();
    table.row([
        ("load", "load", load.into()),
        ("server", "", ReportCell::json(name)),
        ("", "disk", name.into()),
        ("rates", "requests/s", ReportCell::rounds(rates)),
        ("median", "", ReportCell::json(median(rates))),
        ("weir_share", "first row / this one (quartiles)", RoundSpread::of(&shares).into()),
    ]);
}
