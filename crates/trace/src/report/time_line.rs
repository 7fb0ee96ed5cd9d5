//! A replay as a time line that Perfetto and Chrome open: the JSON trace event format.

use crate::action::Fate;
use crate::benchmark::Benchmark;
use crate::error::TraceError;
use crate::replay::Run;
use std::io::{self, Write};
use std::path::Path;

/// Writes every executed action, and before it what it waited, one row for each thread.
pub fn write_time_line(benchmark: &Benchmark, run: &Run, path: &Path) -> Result<(), TraceError> {
    let write = || -> io::Result<()> {
        let mut out = io::BufWriter::new(std::fs::File::create(path)?);
        write_events(benchmark, run, &mut out)?;
        out.flush()
    };
    write().map_err(TraceError::io("writing", path))
}

fn write_events(benchmark: &Benchmark, run: &Run, out: &mut dyn Write) -> io::Result<()> {
    // Microseconds, with three digits: the format's unit.
    let micros = |nanos: u64| format!("{}.{:03}", nanos / 1000, nanos % 1000);
    let mut separator = "[\n";
    let mut event = |thread: u32, name: &str, (start, took): (u64, u64), id: usize| -> io::Result<()> {
        let name = serde_json::Value::from(name);
        let (start, took) = (micros(start), micros(took));
        write!(
            out,
            "{separator}{{\"ph\":\"X\",\"pid\":1,\"tid\":{thread},\"name\":{name},\"ts\":{start},\"dur\":{took},\"args\":{{\"action\":{id}}}}}"
        )?;
        separator = ",\n";
        Ok(())
    };
    for (id, (action, sample)) in benchmark.actions.iter().zip(&run.samples).enumerate() {
        if sample.waited > 0
            && let Some(on) = sample.on
        {
            let until = sample.start - sample.late.min(sample.start);
            let began = until.saturating_sub(sample.waited);
            event(action.thread, &format!("waits for action {on}"), (began, sample.waited), id)?;
        }
        if action.fate == Fate::Executed {
            event(action.thread, &benchmark.names.show(action.name), (sample.start, sample.took), id)?;
        }
    }
    match separator {
        "[\n" => writeln!(out, "[]"),
        _ => writeln!(out, "\n]"),
    }
}
