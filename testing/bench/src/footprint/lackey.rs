//! A program under `valgrind --tool=lackey`, which prints every instruction and every access to memory.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use super::super::cleanup::CleanupGuard;
use super::super::error::BenchError;
use super::super::program::line;

/// Bytes that are read from the tracer at once.
const READ_BYTES: usize = 1 << 20;

/// A range of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryRange {
    pub(super) address: u64,
    pub(super) bytes: u64,
}

/// One line of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TraceStep {
    /// An instruction is executed. The accesses that follow are made by this instruction.
    Instruction(MemoryRange),
    Load(MemoryRange),
    Store(MemoryRange),
    /// A load and a store of the same range.
    Modify(MemoryRange),
}

impl TraceStep {
    /// `None` for a line that the traced program itself wrote to its standard error, or the tracer's heading.
    fn parse(line: &[u8]) -> Option<TraceStep> {
        let (kind, range) = line.split_at_checked(3)?;
        let text = std::str::from_utf8(range).ok()?;
        let (address, bytes) = text.split_once(',')?;
        let range =
            MemoryRange { address: u64::from_str_radix(address, 16).ok()?, bytes: bytes.parse().ok()? };
        match kind {
            b"I  " => Some(TraceStep::Instruction(range)),
            b" L " => Some(TraceStep::Load(range)),
            b" S " => Some(TraceStep::Store(range)),
            b" M " => Some(TraceStep::Modify(range)),
            _ => None,
        }
    }
}

/// A traced program. Dropping this ends it.
pub(super) struct TracedProgram {
    name: String,
    process: u32,
    child: Arc<Mutex<Option<Child>>>,
    trace: BufReader<ChildStderr>,
    line: Vec<u8>,
    /// Lines that are no part of the trace: errors of the tracer and of the program.
    says: Vec<String>,
    _end: CleanupGuard,
}

impl TracedProgram {
    /// Starts `program`. Its standard output becomes this process's standard error.
    pub(super) fn start<A: AsRef<OsStr>>(
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<TracedProgram, BenchError> {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no", "-q"]);
        valgrind.arg(program).args(arguments);
        // Of a program that panics, the trace would be mostly its backtrace.
        valgrind.env("RUST_BACKTRACE", "0");
        valgrind.stdin(Stdio::null()).stdout(io::stderr()).stderr(Stdio::piped());
        let child: Arc<Mutex<Option<Child>>> = Arc::default();
        let started = child.clone();
        let end = CleanupGuard::new(move || {
            if let Some(mut child) = started.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        });
        let mut spawned = valgrind.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => BenchError::Missing { program: "valgrind" },
            _ => BenchError::Command { command: line(&valgrind), says: error.to_string() },
        })?;
        let trace = spawned.stderr.take().expect("its standard error is a pipe");
        let process = spawned.id();
        *child.lock().unwrap_or_else(PoisonError::into_inner) = Some(spawned);
        Ok(TracedProgram {
            name: line(&valgrind),
            process,
            child,
            trace: BufReader::with_capacity(READ_BYTES, trace),
            line: Vec::new(),
            says: Vec::new(),
            _end: end,
        })
    }

    /// The process whose memory has the program's objects.
    pub(super) fn process(&self) -> u32 {
        self.process
    }

    /// The next step, or `None` at the end of the program.
    pub(super) fn next_step(&mut self) -> Result<Option<TraceStep>, BenchError> {
        loop {
            self.line.clear();
            let read = self.trace.read_until(b'\n', &mut self.line);
            if read.map_err(|error| BenchError::io("cannot read the trace of", &self.name, error))? == 0 {
                return Ok(None);
            }
            let text = self.line.trim_ascii_end();
            match TraceStep::parse(text) {
                Some(step) => return Ok(Some(step)),
                None => self.says.push(String::from_utf8_lossy(text).into_owned()),
            }
        }
    }

    /// Waits for the end of a program that has no further steps, and returns its own standard error.
    ///
    /// # Errors
    /// The program failed, if it `must_succeed`.
    pub(super) fn finish(self, must_succeed: bool) -> Result<Vec<String>, BenchError> {
        let child = self.child.lock().unwrap_or_else(PoisonError::into_inner).take();
        let failed = |says: String| BenchError::Command { command: self.name.clone(), says };
        if let Some(mut child) = child {
            let status = child.wait().map_err(|error| failed(error.to_string()))?;
            if must_succeed && !status.success() {
                return Err(failed(format!("{status}: {}", self.says.join("\n"))));
            }
        }
        Ok(self.says)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_an_instruction_or_an_access() {
        let range = |address, bytes| MemoryRange { address, bytes };
        let steps = [
            ("I  04001090,3", Some(TraceStep::Instruction(range(0x0400_1090, 3)))),
            (" L 1ffefffe7c,4", Some(TraceStep::Load(range(0x1f_feff_fe7c, 4)))),
            (" S 1ffefffe80,8", Some(TraceStep::Store(range(0x1f_feff_fe80, 8)))),
            (" M 0421c7cc,32", Some(TraceStep::Modify(range(0x0421_c7cc, 32)))),
            ("==12== Command: ls", None),
            ("ls: cannot access 'a,3': No such file", None),
            ("I", None),
        ];
        for (line, step) in steps {
            assert_eq!(TraceStep::parse(line.as_bytes()), step, "{line}");
        }
    }
}
