//! The traced programs: their inputs and command lines.

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
    /// Whether the program changes its input, which must then be restored before each run.
    fn changes_its_input(self) -> bool {
        !matches!(self, TracedProgram::Readers { .. })
    }

    /// Makes the input that is copied into place before each run: a database that was not opened since it was
    /// filled.
    pub(super) fn make_input(self, input: &Path) -> Result<(), BenchError> {
        let TracedProgram::RocksRead { keys, .. } = self else { return Ok(()) };
        if input.exists() {
            return Ok(());
        }
        let unfinished = input.with_extension("unfinished");
        let _ = fs::remove_dir_all(&unfinished);
        // Flushed, because opening a database reads records that are only in its log and writes them again.
        let mut fill = db_bench("fillseq,flush", &unfinished);
        run(fill.args([
            format!("--num={keys}"),
            "--threads=1".into(),
            "--write_buffer_size=8388608".into(),
        ]))?;
        fs::rename(&unfinished, input).map_err(|error| BenchError::io("cannot rename", &unfinished, error))
    }

    /// Puts the input of a run into `data`.
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

    /// The command that runs the program on `data`.
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

    /// Runs the program on tiny data elsewhere, to bring its file and libraries into memory.
    ///
    /// They are on another device than the measured one.
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

/// db_bench without periodic statistics, and with I/O by calls that a trace can see.
fn db_bench(benchmark: &str, data: &Path) -> Command {
    let mut program = command("db_bench", [format!("--benchmarks={benchmark}")]);
    program.arg(format!("--db={}", data.display())).arg(format!("--value_size={VALUE_BYTES}"));
    program.args(["--mmap_read=0", "--mmap_write=0", "--compression_type=none", "--seed=1"]);
    program.args(["--stats_dump_period_sec=0", "--disable_auto_compactions=1"]);
    program
}

/// Path of a note with the data's path at tracing time. The results may have been moved since.
pub(super) fn data_note(benchmark: &Path) -> PathBuf {
    benchmark.with_extension("data")
}

/// Path of a compiled trace.
pub(super) fn benchmark(directory: &Path, experiment: &str, source: &str) -> PathBuf {
    directory.join(format!("{experiment}.{source}.benchmark"))
}
