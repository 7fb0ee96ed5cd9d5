//! Loads in which a critical and a background client need the same kernel lock: a file's or a directory's.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use device::SeededRng;

use super::super::error::BenchError;
use super::super::quantile::quantile;
use super::super::report::{ReportCell, ReportTable, number};
use super::super::workload::PAGE_BYTES;
use super::clients::{LoadClient, run_clients};

/// Size of a write.
const WRITE_BYTES: u64 = 2 * PAGE_BYTES;
/// Sleep of the critical client between two writes.
const WRITE_PAUSE: Duration = Duration::from_millis(2);
/// Calls of the background client from one fsync to the next.
const SYNC_EVERY: u64 = 513;

/// Figures of one policy, one value for each round.
#[derive(Debug, Default)]
pub(super) struct ConflictRounds {
    p50_ms: Vec<f64>,
    p99_ms: Vec<f64>,
    p999_ms: Vec<f64>,
    slowest_ms: Vec<f64>,
    critical_per_s: Vec<f64>,
    background_per_s: Vec<f64>,
    background_slowest_ms: Vec<f64>,
    buffer_mib: Vec<f64>,
}

impl ConflictRounds {
    pub(super) fn add_row(&self, policy: &str, table: &mut ReportTable) {
        table.row([
            ("policy", "policy", policy.into()),
            ("p50_ms", "50 % ms", median_and_range(&self.p50_ms)),
            ("p99_ms", "99 % ms", median_and_range(&self.p99_ms)),
            ("p999_ms", "99.9 % ms", median_and_range(&self.p999_ms)),
            ("slowest_ms", "slowest ms", median_and_range(&self.slowest_ms)),
            ("critical_per_s", "calls/s", median_and_range(&self.critical_per_s)),
            ("background_per_s", "background calls/s", median_and_range(&self.background_per_s)),
            ("background_slowest_ms", "its slowest ms", median_and_range(&self.background_slowest_ms)),
            ("buffer_mib", "buffer MiB", median_and_range(&self.buffer_mib)),
        ]);
    }

    /// Runs both clients on the mount, and adds a value to each figure.
    fn measure(
        &mut self,
        mount_point: &Path,
        seconds: u64,
        clients: [LoadClient<'_>; 2],
    ) -> Result<(), BenchError> {
        let run = run_clients(mount_point, seconds, clients.into())?;
        let [critical, background] = &run.clients[..] else { unreachable!("there were two clients") };
        let of_critical = |share| quantile(&critical.took_ms, share);
        self.p50_ms.push(of_critical(0.5));
        self.p99_ms.push(of_critical(0.99));
        self.p999_ms.push(of_critical(0.999));
        self.slowest_ms.push(of_critical(1.0));
        self.critical_per_s.push(critical.rate());
        self.background_per_s.push(background.rate());
        self.background_slowest_ms.push(quantile(&background.took_ms, 1.0));
        self.buffer_mib.push(run.buffer_mib);
        Ok(())
    }
}

/// The median in the text with the range of the rounds, and each round in the JSON.
pub(super) fn median_and_range(values: &[f64]) -> ReportCell {
    let [least, median, most] = [0.0, 0.5, 1.0].map(|share| number(quantile(values, share)));
    let text = if values.len() < 2 { median } else { format!("{median} ({least}–{most})") };
    ReportCell::rounds(values).shown_as(text)
}

/// Both clients overwrite random places of a file. The background client fsyncs it now and then.
pub(super) fn write_one_file(
    file: &Path,
    seconds: u64,
    rounds: &mut ConflictRounds,
) -> Result<(), BenchError> {
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
    rounds.measure(file.parent().unwrap_or(file), seconds, clients)
}
