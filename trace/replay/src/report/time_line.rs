//! Writes a replay as a time line for Perfetto and Chrome: the JSON trace event format, as an array of
//! events. `M` events name the rows; all other events are slices with a beginning and a duration (`X`).
//! Slices of a row never overlap.

use super::show;
use crate::replay::ReplayRun;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::path::Path;
use trace_file::{CompiledTrace, Fate, TraceError};

/// Writes every executed action and the wait before it, with one row for each thread.
pub fn write_time_line(compiled: &CompiledTrace, run: &ReplayRun, path: &Path) -> Result<(), TraceError> {
    let write = || -> io::Result<()> {
        let mut out = io::BufWriter::new(std::fs::File::create(path)?);
        write_events(compiled, run, &mut out)?;
        out.flush()
    };
    write().map_err(TraceError::io("writing", path))
}

fn write_events(compiled: &CompiledTrace, run: &ReplayRun, out: &mut dyn Write) -> io::Result<()> {
    let mut separator = "[\n";
    let mut put = |event: Value| -> io::Result<()> {
        write!(out, "{separator}{event}")?;
        separator = ",\n";
        Ok(())
    };
    put(named("process_name", 0, &compiled.about.trace))?;
    for thread in 0..compiled.about.threads {
        put(named("thread_name", thread, &format!("thread {thread}")))?;
    }
    // When each thread's last action ended, which is when the wait of the next one begins.
    let mut ended = vec![0; compiled.about.threads as usize];
    for (id, (action, sample)) in compiled.actions.iter().zip(&run.samples).enumerate() {
        if !sample.is_reached() {
            continue;
        }
        let ended = &mut ended[action.thread as usize];
        if sample.waited > 0
            && let Some(on) = sample.on
        {
            let args = json!({ "action": id, "for": on });
            put(slice(action.thread, &format!("waits for action {on}"), (*ended, sample.waited), args))?;
        }
        if action.fate == Fate::Executed {
            let (recorded, replayed) = (show(action.recorded), show(sample.outcome));
            let args =
                json!({ "action": id, "line": action.line, "recorded": recorded, "replayed": replayed });
            let name = compiled.names.show(action.name);
            put(slice(action.thread, &name, (sample.start, sample.took), args))?;
        }
        *ended = sample.start + sample.took;
    }
    writeln!(out, "\n]")
}

/// The event that names a row.
fn named(what: &str, thread: u32, name: &str) -> Value {
    json!({ "ph": "M", "pid": 1, "tid": thread, "name": what, "args": { "name": name } })
}

/// A slice with a start and a duration. The format's unit is the microsecond.
fn slice(thread: u32, name: &str, (start, took): (u64, u64), args: Value) -> Value {
    let micros = |nanos: u64| nanos as f64 / 1e3;
    json!({ "ph": "X", "pid": 1, "tid": thread, "name": name, "ts": micros(start), "dur": micros(took), "args": args })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::ActionSample;
    use std::collections::BTreeMap;
    use trace_compile::{CompileSettings, Strace, compile};
    use trace_file::Outcome;

    #[test]
    fn rows_have_names_and_slices_that_begin_where_they_should_and_do_not_overlap() {
        let text = "1 100000001.0 openat(AT_FDCWD</>, \"/a\", O_RDWR|O_CREAT, 0644) = 3 <0.1>\n\
            1 100000002.0 clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD) = 2 <0.1>\n\
            1 100000003.0 pwrite64(3, \"\"..., 10, 0) = 10 <0.1>\n\
            2 100000004.0 pread64(3, \"\"..., 10, 0) = 10 <0.1>\n\
            2 100000005.0 access(\"/none\", F_OK) = -1 ENOENT (No such file or directory) <0.1>\n";
        let compiled =
            compile(&mut Strace::new(text.as_bytes()), "line".as_ref(), &CompileSettings::default())
                .expect("it compiles");
        let sample =
            |start, took, outcome| ActionSample { start, waited: 0, on: None, late: 0, took, outcome };
        let samples = vec![
            sample(0, 1500, Outcome::Value(3)),
            sample(1500, 0, Outcome::Value(2)),
            sample(2000, 1000, Outcome::Value(10)),
            // The action waits from the beginning until the bytes are written, pauses, and is late.
            ActionSample { waited: 3000, on: Some(2), late: 50, ..sample(4000, 250, Outcome::Value(10)) },
            sample(4250, 750, Outcome::Error(libc::ENOENT)),
        ];
        let run = ReplayRun { samples, ..ReplayRun::default() };
        let mut bytes = Vec::new();
        write_events(&compiled, &run, &mut bytes).expect("memory does not fail");
        let events: Vec<Value> = serde_json::from_slice(&bytes).expect("JSON");
        let rows: Vec<_> =
            events.iter().filter(|event| event["ph"] == "M").map(|row| &row["args"]["name"]).collect();
        assert_eq!(rows, ["line", "thread 0", "thread 1"]);
        let mut slices: BTreeMap<u64, Vec<(f64, f64, String)>> = BTreeMap::new();
        for event in events.iter().filter(|event| event["ph"] == "X") {
            let number = |key: &str| event[key].as_f64().expect("a number");
            assert_eq!(event["pid"], 1);
            let name = event["name"].as_str().expect("a name").to_owned();
            let row = slices.entry(event["tid"].as_u64().expect("a row")).or_default();
            row.push((number("ts"), number("dur"), name));
        }
        let waits = "waits for action 2".to_owned();
        assert_eq!(slices[&0], [(0.0, 1.5, "openat".to_owned()), (2.0, 1.0, "pwrite64".to_owned())]);
        assert_eq!(
            slices[&1],
            [(0.0, 3.0, waits), (4.0, 0.25, "pread64".to_owned()), (4.25, 0.75, "access".to_owned())]
        );
        let last = &events.last().expect("there are some")["args"];
        assert_eq!(
            (&last["recorded"], &last["replayed"], &last["line"]),
            (&json!("ENOENT"), &json!("ENOENT"), &json!(5))
        );
    }
}
