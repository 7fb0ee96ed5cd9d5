//! A backup beside a critical client that syncs each write: a reader of the mount, and two writers of an
//! archive to it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use device::SeededRng;
use rustix::fs::{Advice, OFlags, fadvise};

use super::super::error::BenchError;
use super::super::workload::{PAGE_BYTES, lay_out};
use super::TurnFigure;
use super::clients::{ClientsRun, LoadClient, run_clients};

/// Pages that the critical client overwrites.
const LOG_PAGES: u64 = 1024;
/// Size and rate of the reads.
const READ_BYTES: u64 = 1 << 20;
const READS_PER_SECOND: u32 = 32;
/// Size of tar's writes, and of those of `cp`.
const TAR_BYTES: u64 = 10 << 10;
const CP_BYTES: u64 = 128 << 10;

/// Measures a backup of `file`, whose mount it is on, beside one that reads `elsewhere`, and the writers.
pub(super) fn measure_backup(
    file: &Path,
    elsewhere: &Path,
    seconds: u64,
) -> Result<Vec<TurnFigure>, BenchError> {
    let mount_point = file.parent().unwrap_or(file);
    let log = mount_point.join("log");
    lay_out(&log, LOG_PAGES)?;
    let run = |clients| run_clients(mount_point, seconds, clients);
    let waiting = || client_that_syncs(&log);
    let beside_reads = |of: &Path| run(vec![waiting()?, paced_reader(of)?]);
    let archive = mount_point.join("archive");
    let bytes_max = file.metadata().map_err(|error| BenchError::io("cannot read", file, error))?.len();
    let writer = |bytes| archive_writer(&archive, bytes, bytes_max);

    let outside = beside_reads(elsewhere)?;
    let inside = beside_reads(file)?;
    let beside_tar = run(vec![waiting()?, writer(TAR_BYTES)?])?;
    let beside_cp = run(vec![waiting()?, writer(CP_BYTES)?])?;
    let tar = run(vec![writer(TAR_BYTES)?])?;
    let cp = run(vec![writer(CP_BYTES)?])?;

    let critical = |run: &ClientsRun| run.clients[0].rate();
    let buffer_share = |run: &ClientsRun, bytes: u64| {
        let written = run.clients[0].took_ms.len() as f64 * bytes as f64;
        100.0 * run.buffer_mib * f64::from(1 << 20) / written.max(1.0)
    };
    Ok(vec![
        ("elsewhere_per_s", "writes/s, backup elsewhere", critical(&outside)),
        ("reads_per_s", "backup reads", critical(&inside)),
        ("read_mib_per_s", "it reads MiB/s", inside.clients[1].rate()),
        ("tar_per_s", "tar writes", critical(&beside_tar)),
        ("cp_per_s", "cp writes", critical(&beside_cp)),
        ("tar_buffer_percent", "% of tar in the buffer", buffer_share(&tar, TAR_BYTES)),
        ("cp_buffer_percent", "% of cp", buffer_share(&cp, CP_BYTES)),
    ])
}

/// Overwrites whole pages at random, each made durable before the next.
fn client_that_syncs(log: &Path) -> Result<LoadClient<'static>, BenchError> {
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlags::DSYNC.bits() as i32);
    let file = options.open(log).map_err(|error| BenchError::io("cannot open", log, error))?;
    let mut random = SeededRng::new(1);
    let page: Vec<u8> = (0..PAGE_BYTES).map(|_| random.next_u64() as u8).collect();
    Ok(LoadClient::critical(Duration::ZERO, move |_| {
        file.write_all_at(&page, random.below(LOG_PAGES) * PAGE_BYTES)
    }))
}

/// Reads a file again and again at a limited rate. None of it stays in the kernel's cache.
fn paced_reader(file: &Path) -> Result<LoadClient<'static>, BenchError> {
    let open = || -> io::Result<_> {
        let opened = File::open(file)?;
        let places = (opened.metadata()?.len() / READ_BYTES).max(1);
        Ok((opened, places))
    };
    let (opened, places) = open().map_err(|error| BenchError::io("cannot open", file, error))?;
    let mut bytes = vec![0; READ_BYTES as usize];
    Ok(LoadClient::background(move |number| {
        let start = Instant::now();
        opened.read_exact_at(&mut bytes, number % places * READ_BYTES)?;
        fadvise(&opened, 0, None, Advice::DontNeed)?;
        let each = Duration::from_secs(1) / READS_PER_SECOND;
        std::thread::sleep(each.saturating_sub(start.elapsed()));
        Ok(())
    }))
}

/// Writes an archive in order, and begins a new one when it has `bytes_max` bytes.
fn archive_writer(
    archive: &Path,
    write_bytes: u64,
    bytes_max: u64,
) -> Result<LoadClient<'static>, BenchError> {
    let create = |path: &Path| File::create(path);
    let mut file = create(archive).map_err(|error| BenchError::io("cannot create", archive, error))?;
    let path = archive.to_path_buf();
    let mut random = SeededRng::new(2);
    let bytes: Vec<u8> = (0..write_bytes).map(|_| random.next_u64() as u8).collect();
    let writes_max = (bytes_max / write_bytes).max(1);
    Ok(LoadClient::background(move |number| {
        let at = number % writes_max;
        if at == 0 && number > 0 {
            file = create(&path)?;
        }
        file.write_all_at(&bytes, at * write_bytes)
    }))
}
