//! How long it takes a process to open a store that was closed cleanly.

use std::path::Path;
use std::time::Instant;

use weir_library::{Weir, WeirOptions};

use super::super::error::BenchError;
use super::super::program::run;
use super::super::quantile::median;
use super::super::report::{ReportCell, ReportTable};
use super::super::system::weir;

/// Openings of each store.
const OPENINGS: usize = 30;
/// The most that one may take, in milliseconds.
const TARGET_MS: f64 = 15.0;

/// Opens a new store in each of the directories, which are named for the report.
pub(super) fn measure(directories: &[(&str, &Path)]) -> Result<ReportTable, BenchError> {
    let mut table = ReportTable::default();
    for &(name, directory) in directories {
        let store = directory.join("idle");
        run(weir("format").arg(&store).args(["--volatile-buffer", "--size=512MiB", "--buffer-size=128MiB"]))?;
        let options = WeirOptions { volatile_buffer: true, ..WeirOptions::default() };
        let mut times = Vec::new();
        for _ in 0..OPENINGS {
            let begun = Instant::now();
            let opened = Weir::open(&store, &options).map_err(|source| BenchError::Stack { source })?;
            times.push(begun.elapsed().as_secs_f64() * 1000.0);
            opened.close().map_err(|error| BenchError::io("cannot close", &store, error))?;
        }
        table.row([
            ("media", "an idle store", name.into()),
            ("ms", "opened in", ReportCell::rounds(&times).unit(" ms")),
            ("target_ms", "target", ReportCell::from(TARGET_MS).unit(" ms")),
            ("met", "verdict", ReportCell::verdict(median(&times) <= TARGET_MS)),
        ]);
    }
    Ok(table)
}
