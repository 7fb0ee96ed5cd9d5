//! `weir-bench sqlite`: inserts by unmodified programs on a store in their own process (`weir run`), beside the same
//! programs on tmpfs, by the processor time of the thread that inserts.
//!
//! Each insert is a transaction with a random key. Both media of weir are files on tmpfs. With `synchronous=FULL` weir
//! writes its buffer at each commit, while a sync on tmpfs makes nothing durable.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use device::SeededRng;

use super::cleanup;
use super::error::BenchError;
use super::program::{check_programs, command, run, run_until_stopped};
use super::quantile::{RoundSpread, median};
use super::report::{BenchReport, ReportCell, ReportTable};
use super::run_args::TurnArgs;
use super::slow_device::{unmount_on_drop, work_directory};
use super::system::weir_on;

/// Debian's: a version manager's `python3` is a script.
const PYTHON: &str = "/usr/bin/python3";
const STORE_BYTES: u64 = 1 << 30;
const BUFFER_BYTES: u64 = 256 << 20;
const TMPFS_BYTES: u64 = 2 << 30;
/// Characters of a row's value.
const VALUE_CHARACTERS: usize = 100;
/// Keys are below this, so that SQLite and Python take them as numbers.
const KEYS: u64 = 1 << 62;

const JOURNALS: [&str; 5] = ["off", "truncate", "delete", "persist", "wal"];
const LOCKINGS: [&str; 2] = ["normal", "exclusive"];

/// Inserts the rows of the file `argv[2]` into the database `argv[1]`, set up by `argv[3]`.
const PYTHON_SCRIPT: &str = "
import sqlite3, sys, time
rows = [int(line) for line in open(sys.argv[2])]
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[3].split(';'):
    database.execute(statement).fetchall()
begin = time.thread_time_ns()
for row in rows:
    database.execute('insert into pairs values(?, ?)', (row, VALUE))
spent = time.thread_time_ns() - begin
count, = database.execute('select count(*) from pairs').fetchone()
database.close()
print(spent, count)";

/// Options of `weir-bench sqlite`.
#[derive(Debug, Args)]
pub(super) struct DenseSqliteArgs {
    /// Inserts of each turn
    #[arg(long, default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    inserts: u32,
    #[command(flatten)]
    turns: TurnArgs,
}

/// A program that inserts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InsertProgram {
    Sqlite3,
    Python,
}

impl InsertProgram {
    const ALL: [InsertProgram; 2] = [InsertProgram::Sqlite3, InsertProgram::Python];

    fn name(self) -> &'static str {
        match self {
            InsertProgram::Sqlite3 => "sqlite3",
            InsertProgram::Python => "python3",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SyncLevel {
    Off,
    Full,
}

impl SyncLevel {
    fn name(self) -> &'static str {
        match self {
            SyncLevel::Off => "off",
            SyncLevel::Full => "full",
        }
    }
}

/// One combination of settings.
#[derive(Debug, Clone, Copy)]
struct InsertMode {
    program: InsertProgram,
    journal: &'static str,
    locking: &'static str,
    synchronous: SyncLevel,
}

impl InsertMode {
    /// All combinations, those of one level of synchronous together.
    fn all() -> Vec<InsertMode> {
        let mut all = Vec::new();
        for synchronous in [SyncLevel::Off, SyncLevel::Full] {
            for program in InsertProgram::ALL {
                for journal in JOURNALS {
                    for locking in LOCKINGS {
                        all.push(InsertMode { program, journal, locking, synchronous });
                    }
                }
            }
        }
        all
    }

    /// Statements that make the database. With exclusive locking a WAL's index is not shared memory, if it is asked for first.
    fn set_up(&self) -> String {
        format!(
            "PRAGMA locking_mode={}; PRAGMA journal_mode={}; PRAGMA synchronous={}; \
             CREATE TABLE pairs(key INTEGER PRIMARY KEY, value TEXT)",
            self.locking,
            self.journal,
            self.synchronous.name()
        )
    }
}

/// Where the database of a turn is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InsertSide {
    Tmpfs,
    Weir,
}

/// Files of the benchmark.
struct InsertBench {
    root: PathBuf,
    store: PathBuf,
    inserts: u32,
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &DenseSqliteArgs) -> Result<(), BenchError> {
    check_programs(&["sqlite3", PYTHON, "mount", "umount"])?;
    cleanup::install()?;
    let (root, _files) = work_directory(None)?;
    let _mounted = unmount_on_drop(&root);
    let size = format!("size={TMPFS_BYTES}");
    run(command("mount", ["-t", "tmpfs", "-o", &size, "weir-bench"]).arg(&root))?;
    let outside = args.turns.on.as_deref().map(|on| work_directory(Some(on))).transpose()?;
    let media = outside.as_ref().map_or(&root, |(directory, _)| directory);
    let bench = InsertBench { store: media.join("store"), root, inserts: args.inserts };
    run(weir_on(&bench.store, "format")
        .arg(&bench.store)
        .args([format!("--size={STORE_BYTES}"), format!("--buffer-size={BUFFER_BYTES}")]))?;
    bench.write_rows()?;

    let mut report = BenchReport::new("sqlite");
    report.fact("inserts", args.inserts);
    report.fact("rounds", args.turns.rounds);
    report.fact("store", if args.turns.on.is_some() { "a directory" } else { "tmpfs" });
    report.line(format!(
        "microseconds of the inserting thread's processor time for an insert, medians of {} rounds of {} inserts",
        args.turns.rounds, args.inserts
    ));
    let mut table = ReportTable::default();
    let (mut off, mut full) = (Vec::new(), Vec::new());
    for mode in InsertMode::all() {
        eprintln!(
            "sqlite: {}, journal {}, locking {}, synchronous {}",
            mode.program.name(),
            mode.journal,
            mode.locking,
            mode.synchronous.name()
        );
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 0..args.turns.rounds {
            let mut turns = [(InsertSide::Weir, &mut ours), (InsertSide::Tmpfs, &mut theirs)];
            turns.rotate_left(usize::from(round % 2));
            for (side, found) in turns {
                found.push(bench.turn(mode, side)?);
            }
        }
        let speeds: Vec<f64> = theirs.iter().zip(&ours).map(|(theirs, ours)| theirs / ours).collect();
        let speed = RoundSpread::of(&speeds);
        match mode.synchronous {
            SyncLevel::Off => off.push(speed.median),
            SyncLevel::Full => full.push(speed.median),
        }
        table.row([
            ("synchronous", "synchronous", mode.synchronous.name().into()),
            ("program", "program", mode.program.name().into()),
            ("journal", "journal", mode.journal.into()),
            ("locking", "locking", mode.locking.into()),
            ("tmpfs_us", "tmpfs", median(&theirs).into()),
            ("weir_us", "weir run", median(&ours).into()),
            ("speed", "tmpfs/weir (quartiles)", ReportCell::from(speed)),
        ]);
    }
    report.table("rows", &table);
    report.figures([
        ("off_speed", "synchronous off: speed, geometric mean", geometric_mean(&off).into()),
        ("off_speed_least", "synchronous off: the least of a row", least(&off).into()),
        (
            "full_speed",
            "synchronous full, durable on weir alone: geometric mean",
            geometric_mean(&full).into(),
        ),
    ]);
    report.print(args.turns.json);
    Ok(())
}

impl InsertBench {
    /// Writes the keys, and all statements of `sqlite3` but those that depend on the mode.
    fn write_rows(&self) -> Result<(), BenchError> {
        let mut random = SeededRng::new(1);
        let keys: Vec<String> = (0..self.inserts).map(|_| random.below(KEYS).to_string()).collect();
        self.write("keys", &(keys.join("\n") + "\n"))?;
        let value = "v".repeat(VALUE_CHARACTERS);
        let inserts: String =
            keys.iter().map(|key| format!("INSERT INTO pairs VALUES({key}, '{value}');\n")).collect();
        self.write("inserts.sql", &inserts)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), BenchError> {
        let path = self.root.join(name);
        fs::write(&path, text).map_err(|error| BenchError::io("cannot write", &path, error))
    }

    /// Microseconds of an insert into a new database.
    fn turn(&self, mode: InsertMode, side: InsertSide) -> Result<f64, BenchError> {
        let directory = match side {
            InsertSide::Tmpfs => self.root.join("plain"),
            InsertSide::Weir => PathBuf::from("@@"),
        };
        self.clear(side)?;
        let database = directory.join("pairs.db");
        let said = match mode.program {
            InsertProgram::Sqlite3 => self.sqlite3(mode, side, &database)?,
            InsertProgram::Python => {
                let script = PYTHON_SCRIPT.replace("VALUE", &format!("'{}'", "v".repeat(VALUE_CHARACTERS)));
                let mut python = self.program(side, PYTHON);
                python.args(["-c", &script]).arg(&database).arg(self.root.join("keys")).arg(mode.set_up());
                run_until_stopped(&mut python)?
            }
        };
        let figures: Vec<f64> = said
            .lines()
            .last()
            .into_iter()
            .flat_map(str::split_whitespace)
            .filter_map(|figure| figure.parse().ok())
            .collect();
        match figures[..] {
            [nanos, count] if count == f64::from(self.inserts) && nanos > 0.0 => {
                Ok(nanos / 1000.0 / f64::from(self.inserts))
            }
            _ => Err(BenchError::Command {
                command: mode.program.name().to_owned(),
                says: format!("it did not insert {} rows: {said}", self.inserts),
            }),
        }
    }

    /// `sqlite3` reads the kernel's account of its thread as a table, before the inserts and after them. By `cat`: while the
    /// thread waits for it, the account is exact, and otherwise as of the scheduler's last tick.
    fn sqlite3(&self, mode: InsertMode, side: InsertSide, database: &Path) -> Result<String, BenchError> {
        let account = ".import \"|cat /proc/$PPID/task/$PPID/schedstat\" spent\n";
        let script = format!(
            "PRAGMA temp_store=memory;\n{};\nCREATE TEMP TABLE spent(ns INTEGER, waited INTEGER, slices INTEGER);\n\
             .separator \" \"\n{account}.read {}\n{account}\
             SELECT max(ns) - min(ns), (SELECT count(*) FROM pairs) FROM spent;\n",
            mode.set_up(),
            self.root.join("inserts.sql").display()
        );
        self.write("script.sql", &script)?;
        let path = self.root.join("script.sql");
        let script = File::open(&path).map_err(|error| BenchError::io("cannot open", &path, error))?;
        let mut sqlite = self.program(side, "sqlite3");
        sqlite.args(["-batch", "-bail", "-init", "/dev/null"]).arg(database).stdin(script);
        run_until_stopped(&mut sqlite)
    }

    /// An empty directory for the database on tmpfs; no files in the store.
    fn clear(&self, side: InsertSide) -> Result<(), BenchError> {
        let plain = self.root.join("plain");
        match side {
            InsertSide::Tmpfs => {
                let _ = fs::remove_dir_all(&plain);
                fs::create_dir(&plain).map_err(|error| BenchError::io("cannot create", &plain, error))
            }
            InsertSide::Weir => {
                let names = ["pairs.db", "pairs.db-journal", "pairs.db-wal", "pairs.db-shm"];
                let mut remove = self.program(side, "rm");
                remove.arg("-f").args(names.map(|name| format!("@@/{name}")));
                run(&mut remove).map(drop)
            }
        }
    }

    fn program(&self, side: InsertSide, program: &str) -> Command {
        match side {
            InsertSide::Tmpfs => command(program, [""; 0]),
            InsertSide::Weir => {
                let mut run = weir_on(&self.store, "run");
                run.arg("--store").arg(&self.store).arg("--").arg(program);
                run
            }
        }
    }
}

/// 0 if there are no values.
fn geometric_mean(values: &[f64]) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_geometric_mean_of_ratios_is_one_if_they_are_opposite() {
        assert!((geometric_mean(&[4.0, 0.25]) - 1.0).abs() < 1e-9);
        assert!((geometric_mean(&[2.0, 2.0, 2.0]) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn every_journal_has_each_locking_level_and_program() {
        let all = InsertMode::all();
        assert_eq!(all.len(), 40);
        assert!(all[..20].iter().all(|mode| mode.synchronous == SyncLevel::Off));
    }
}
