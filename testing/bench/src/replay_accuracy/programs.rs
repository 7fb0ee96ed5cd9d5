//! The programs that are traced: what they need before they run, and how they are called.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::error::BenchError;
use super::super::program::{command, run};
use super::super::system::own;
use super::super::workload::lay_out;
use super::load::file;
use super::plan::TracedProgram;

const THREADS: u32 = 4;
const VALUE_BYTES: u32 = 400;

impl TracedProgram {
    /// Whether what it reads has to be put in place before each run, because it changes it.
    fn changes_its_input(self) -> bool {
        !matches!(self, TracedProgram::Readers { .. })
    }

    /// Makes, once, what is copied into place before each run: a database that nobody has opened since.
    pub(super) fn make_input(self, input: &Path) -> Result<(), BenchError> {
        let TracedProgram::RocksRead { keys, .. } = self else { return Ok(()) };
        if input.exists() {
            return Ok(());
        }
        let unfinished = input.with_extension("unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        // Flushed: what lies in the log only would be read, and written again, when the database is opened.
        let mut fill = db_bench("fillseq,flush", &unfinished);
        run(fill.args([
            format!("--num={keys}"),
            "--threads=1".into(),
            "--write_buffer_size=8388608".into(),
        ]))?;
        fs::rename(&unfinished, input).map_err(|error| BenchError::io("cannot rename", &unfinished, error))
    }

    /// Puts into `data` what a run begins with.
    pub(super) fn prepare(self, input: &Path, data: &Path) -> Result<(), BenchError> {
        if data.exists() && !self.changes_its_input() {
            return Ok(());
        }
        let _ = fs::remove_dir_all(data);
        let made = |error| BenchError::io("cannot make", data, error);
        match self {
            TracedProgram::Readers { threads, file_pages, .. } => {
                fs::create_dir(data).map_err(made)?;
                (0..threads).try_for_each(|thread| lay_out(&file(data, thread), file_pages))?;
            }
            TracedProgram::RocksFill { .. } => fs::create_dir(data).map_err(made)?,
            TracedProgram::RocksRead { .. } => {
                run(command("cp", ["-r"]).arg(input).arg(data))?;
            }
        }
        run(command("sync", ["-f"]).arg(data)).map(drop)
    }

    /// The program at work on `data`.
    pub(super) fn command(self, data: &Path) -> Command {
        match self {
            TracedProgram::Readers { threads, reads, how, .. } => {
                let mut readers = own("replay-load");
                readers.arg(data).args(["--how", how.name()]);
                readers.args([format!("--threads={threads}"), format!("--reads={reads}")]);
                readers
            }
            TracedProgram::RocksFill { writes } => {
                let mut fill = db_bench("fillrandom", data);
                fill.args(["--sync=1".into(), format!("--num={writes}"), format!("--threads={THREADS}")]);
                fill
            }
            TracedProgram::RocksRead { reads, keys } => {
                let mut read = db_bench("readrandom", data);
                read.args([
                    format!("--num={keys}"),
                    format!("--reads={reads}"),
                    format!("--threads={THREADS}"),
                ]);
                read.arg("--use_existing_db=1");
                read
            }
        }
    }

    /// Runs the program on next to nothing elsewhere, so that its own file and its libraries are in memory: they lie on
    /// another device than the one in question.
    pub(super) fn warm(self, scratch: &Path) -> Result<(), BenchError> {
        let _ = fs::remove_dir_all(scratch);
        fs::create_dir_all(scratch).map_err(|error| BenchError::io("cannot create", scratch, error))?;
        let program = match self {
            TracedProgram::Readers { .. } => {
                lay_out(&file(scratch, 0), 1)?;
                own("replay-load").arg(scratch).args(["--how=random", "--threads=1", "--reads=1"]).output()
            }
            _ => db_bench("fillseq", scratch).arg("--num=1").output(),
        };
        program.map(drop).map_err(|error| BenchError::io("cannot run a program in", scratch, error))
    }
}

/// Without what prints from time to time, and with calls that a trace can see.
fn db_bench(benchmark: &str, data: &Path) -> Command {
    let mut program = command("db_bench", [format!("--benchmarks={benchmark}")]);
    program.arg(format!("--db={}", data.display())).arg(format!("--value_size={VALUE_BYTES}"));
    program.args(["--mmap_read=0", "--mmap_write=0", "--compression_type=none", "--seed=1"]);
    program.args(["--stats_dump_period_sec=0", "--disable_auto_compactions=1"]);
    program
}

/// Where the name is noted that the program's data had when it was traced: somebody may have moved the results since.
pub(super) fn data_note(benchmark: &Path) -> PathBuf {
    benchmark.with_extension("data")
}

/// Where a trace and its benchmark lie.
pub(super) fn benchmark(directory: &Path, experiment: &str, source: &str) -> PathBuf {
    directory.join(format!("{experiment}.{source}.benchmark"))
}
