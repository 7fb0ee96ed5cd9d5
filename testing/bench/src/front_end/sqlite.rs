//! SQLite: transactions of one small row, on weir and on the disk's own file system, in turns.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use device::SeededRng;

use super::super::error::BenchError;
use super::super::program::{command, run_until_stopped};
use super::super::run_args::RunSize;
use super::mounted::KernelCacheMode;
use super::mounted::{self, FrontEndMount};
use super::targets::{SpeedTarget, TargetBound};

const PROGRAM: &str = "sqlite3";
/// Length of a row in hexadecimal digits. With its key and header a row has about 200 bytes.
const ROW_DIGITS: usize = 190;

/// How a database makes transactions durable.
struct SqliteMode {
    journal: &'static str,
    synchronous: &'static str,
    /// Target for the ratio of weir's rate to the rate of the disk's file system.
    least: f64,
    /// Rows of one turn, for about a second.
    rows: u32,
}

const MODES: [SqliteMode; 3] = [
    SqliteMode { journal: "WAL", synchronous: "NORMAL", least: 0.4, rows: 20_000 },
    SqliteMode { journal: "DELETE", synchronous: "FULL", least: 0.9, rows: 300 },
    SqliteMode { journal: "WAL", synchronous: "FULL", least: 3.0, rows: 1_000 },
];

/// Says why SQLite cannot be measured here; `None` if it can.
pub(super) fn missing() -> Option<String> {
    let found = Command::new(PROGRAM).arg("--version").output();
    found.is_err().then(|| {
        format!("sqlite: NOT MEASURED: the program `{PROGRAM}` is missing: apt-get install {PROGRAM}")
    })
}

/// Measures weir beside the file system below `root`, which is of type `disk`.
pub(super) fn measure(
    root: &Path,
    size: RunSize,
    rounds: u16,
    disk: &str,
) -> Result<Vec<SpeedTarget>, BenchError> {
    let (media, on_weir, on_disk) =
        (root.join("sqlite-media"), root.join("sqlite-weir"), root.join("sqlite-disk"));
    mounted::format(&media)?;
    let _mount = FrontEndMount::weir(&media, &on_weir, None, KernelCacheMode::Full)?;
    fs::create_dir_all(&on_disk).map_err(|error| BenchError::io("cannot create", &on_disk, error))?;
    let mut targets = Vec::new();
    for mode in MODES {
        let rows = if size == RunSize::Small { 50 } else { mode.rows };
        let inserts = root.join("inserts.sql");
        fs::write(&inserts, script(mode.synchronous, rows, 1))
            .map_err(|error| BenchError::io("cannot write", &inserts, error))?;
        let (mut weir, mut other) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            eprintln!("sqlite: {}/{}, round {} of {rounds}", mode.journal, mode.synchronous, round + 1);
            let mut turns = [(&on_weir, &mut weir), (&on_disk, &mut other)];
            turns.rotate_left(usize::from(round % 2));
            for (directory, rates) in turns {
                rates.push(f64::from(rows) / turn(directory, mode.journal, &inserts)?);
            }
        }
        let row = format!("SQLite {}/{}, over {disk}", mode.journal, mode.synchronous);
        targets.push(SpeedTarget::ratio(row, "/s", &weir, &other, TargetBound::AtLeast(mode.least)));
    }
    Ok(targets)
}

/// Runs the script on a new database in `directory` and returns the seconds that the script took.
fn turn(directory: &Path, journal: &str, inserts: &Path) -> Result<f64, BenchError> {
    let database = directory.join("rows.db");
    let sqlite = || command(PROGRAM, ["-batch", "-bail"]);
    let make =
        format!("PRAGMA journal_mode={journal}; CREATE TABLE rows(id INTEGER PRIMARY KEY, body TEXT);");
    run_until_stopped(sqlite().arg(&database).arg(make))?;
    // Keeps earlier writes out of the measured time.
    rustix::fs::sync();
    let start = Instant::now();
    run_until_stopped(sqlite().arg(&database).arg(read(inserts)))?;
    let seconds = start.elapsed().as_secs_f64();
    fs::remove_file(&database).map_err(|error| BenchError::io("cannot remove", &database, error))?;
    Ok(seconds)
}

fn read(file: &Path) -> String {
    format!(".read '{}'", file.display())
}

/// An SQL script that inserts `rows` rows, each in its own transaction.
fn script(synchronous: &str, rows: u32, seed: u64) -> String {
    let mut random = SeededRng::new(seed);
    let mut script = format!("PRAGMA synchronous={synchronous};\n");
    for _ in 0..rows {
        let mut body = String::new();
        while body.len() < ROW_DIGITS {
            body += &format!("{:016x}", random.next_u64());
        }
        script += &format!("INSERT INTO rows(body) VALUES('{}');\n", &body[..ROW_DIGITS]);
    }
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_a_statement_of_its_own_and_the_same_for_the_same_seed() {
        let one = script("FULL", 3, 7);
        assert_eq!(one, script("FULL", 3, 7));
        assert_ne!(one, script("FULL", 3, 8));
        let inserts: Vec<&str> = one.lines().skip(1).collect();
        assert_eq!(inserts.len(), 3);
        assert!(inserts.iter().all(|line| line.starts_with("INSERT") && line.ends_with("');")), "{one}");
        assert!(one.starts_with("PRAGMA synchronous=FULL;\n") && inserts[0] != inserts[1], "{one}");
    }
}
