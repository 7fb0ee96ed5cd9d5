//! Loads in which a critical and a background client need the same kernel lock: a file's or a directory's.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use device::SeededRng;

use super::super::cleanup;
use super::super::error::BenchError;
use super::super::quantile::quantile;
use super::super::workload::PAGE_BYTES;
use super::TurnFigure;
use super::clients::{LoadClient, run_clients};

/// Size of a write.
const WRITE_BYTES: u64 = 2 * PAGE_BYTES;
/// Sleep of the critical client between two writes, and between two new files.
const WRITE_PAUSE: Duration = Duration::from_millis(2);
const CREATE_PAUSE: Duration = Duration::from_millis(5);
/// Calls of the background client from one fsync to the next.
const SYNC_EVERY: u64 = 513;

/// Runs both clients on the mount.
fn run_both(
    mount_point: &Path,
    seconds: u64,
    clients: [LoadClient<'_>; 2],
) -> Result<Vec<TurnFigure>, BenchError> {
    let run = run_clients(mount_point, seconds, clients.into())?;
    let [critical, background] = &run.clients[..] else { unreachable!("there were two clients") };
    let of_critical = |share| quantile(&critical.took_ms, share);
    Ok(vec![
        ("p50_ms", "50 % ms", of_critical(0.5)),
        ("p99_ms", "99 % ms", of_critical(0.99)),
        ("p999_ms", "99.9 % ms", of_critical(0.999)),
        ("slowest_ms", "slowest ms", of_critical(1.0)),
        ("critical_per_s", "calls/s", critical.rate()),
        ("background_per_s", "background calls/s", background.rate()),
        ("background_slowest_ms", "its slowest ms", quantile(&background.took_ms, 1.0)),
        ("buffer_mib", "buffer MiB", run.buffer_mib),
    ])
}

/// Both clients overwrite random places of a file. The background client fsyncs it now and then.
pub(super) fn write_one_file(file: &Path, seconds: u64) -> Result<Vec<TurnFigure>, BenchError> {
    let open = || OpenOptions::new().write(true).open(file);
    let opened = || -> io::Result<_> { Ok((open()?, open()?, open()?.metadata()?.len() / WRITE_BYTES)) };
    let (ours, theirs, places) = opened().map_err(|error| BenchError::io("cannot open", file, error))?;
    let write = |file: File, seed| {
        let mut random = SeededRng::new(seed);
        let bytes: Vec<u8> = (0..WRITE_BYTES).map(|_| random.next_u64() as u8).collect();
        move |is_sync: bool| {
            if is_sync {
                file.sync_all()
            } else {
                file.write_all_at(&bytes, random.below(places) * WRITE_BYTES)
            }
        }
    };
    let (mut ours, mut theirs) = (write(ours, 1), write(theirs, 2));
    let clients = [
        LoadClient::critical(WRITE_PAUSE, move |_| ours(false)),
        LoadClient::background(move |number| theirs((number + 1).is_multiple_of(SYNC_EVERY))),
    ];
    run_both(file.parent().unwrap_or(file), seconds, clients)
}

/// Both clients change names in one directory. The background client creates and removes files, and fsyncs the
/// directory now and then.
pub(super) fn change_one_directory(mount_point: &Path, seconds: u64) -> Result<Vec<TurnFigure>, BenchError> {
    let directory = mount_point.join("names");
    let made = fs::create_dir(&directory).and_then(|()| File::open(&directory));
    let opened = made.map_err(|error| BenchError::io("cannot create", &directory, error))?;
    let ours = |number: u64| directory.join(format!("waited-for-{number}"));
    let theirs = directory.join("nobody-waits");
    let mut exists = false;
    let background = |number: u64| {
        if (number + 1).is_multiple_of(SYNC_EVERY) {
            return opened.sync_all();
        }
        exists = !exists;
        if exists { File::create(&theirs).map(drop) } else { fs::remove_file(&theirs) }
    };
    let clients = [
        LoadClient::critical(CREATE_PAUSE, |number| File::create(ours(number)).map(drop)),
        LoadClient::background(background),
    ];
    let figures = run_both(mount_point, seconds, clients);
    drop(opened);
    // The next turn begins with an empty directory.
    cleanup::uninterrupted(|| fs::remove_dir_all(&directory))
        .map_err(|error| BenchError::io("cannot remove", &directory, error))?;
    figures
}
