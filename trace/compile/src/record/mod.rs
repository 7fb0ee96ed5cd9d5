//! Records a program: takes a snapshot of the trees that it will touch, runs it under strace, and adds the
//! other files that it used.

mod calibrate;
mod snapshot;
mod unlisted_files;

use crate::parse::{Source, Strace};
use crate::untraced::count_untraced;
use snapshot::{line, list};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::SystemTime;
use trace_file::{TraceError, TracerCost, UntracedIo};
use unlisted_files::UnlistedFiles;

/// The settings of a recording.
#[derive(Debug, Clone)]
pub struct RecordSettings {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The trace to write; the snapshot gets the same name with `.snapshot`.
    pub output: PathBuf,
    /// Trees to list before the run.
    pub trees: Vec<PathBuf>,
}

/// The result of a recording.
#[derive(Debug)]
pub struct Recording {
    /// The exit status of the program.
    pub status: ExitStatus,
    /// The time that the tracer adds between two calls on this machine, measured just before and noted in the
    /// trace.
    pub tracer: Option<TracerCost>,
    /// I/O of the program that the trace cannot show.
    pub unseen: UntracedIo,
}

/// The calls to trace: those that the model knows or needs. Classes include calls that strace knows and weir
/// does not.
const CALLS: &str = "trace=%file,%desc,%process,%ipc,%memory,%network,%creds,sync,futex,umask,unshare,setns,io_setup,io_submit,\
    io_getevents,io_destroy,io_cancel,io_uring_setup,io_uring_enter,io_uring_register";

/// Lists the trees, runs the program under strace, waits for its end, and adds the files that it used outside
/// of the trees to the list. The cost of strace is measured before and noted in the trace.
pub fn record(settings: &RecordSettings) -> Result<Recording, TraceError> {
    let snapshot = settings.output.with_added_extension("snapshot");
    let trees = list_trees(&settings.trees, &snapshot)?;
    let tracer = calibrate::tracer_cost(&settings.output)?;
    let before = SystemTime::now();
    let status = strace(&settings.output).arg("--").args(&settings.command).status();
    let status = status.map_err(|source| TraceError::NoStrace { source })?;
    if let Some(cost) = tracer {
        let trace = File::options().append(true).open(&settings.output);
        trace
            .and_then(|mut trace| writeln!(trace, "{}", cost.note()))
            .map_err(TraceError::io("writing", &settings.output))?;
    }
    let unseen = look_back(&settings.output, &snapshot, &trees, before)?;
    Ok(Recording { status, tracer, unseen })
}

/// strace with the options of all recordings.
fn strace(output: &Path) -> Command {
    let mut strace = Command::new("strace");
    strace.args([
        "-f",
        "--seccomp-bpf",
        "--absolute-timestamps=format:unix,precision:ns",
        "--syscall-times=ns",
    ]);
    // Structures are printed whole, but not the arguments and environment of programs, which may hold
    // secrets. File contents are never kept.
    strace.args(["-y", "-s", "0", "-e", "abbrev=execve,execveat", "-e", CALLS, "-o"]);
    strace.arg(output);
    strace
}

fn list_trees(trees: &[PathBuf], snapshot: &Path) -> Result<Vec<PathBuf>, TraceError> {
    let file = File::create(snapshot).map_err(TraceError::io("creating", snapshot))?;
    let mut out = BufWriter::new(file);
    let mut listed = Vec::new();
    for tree in trees {
        let tree = tree.canonicalize().map_err(TraceError::io("listing", tree))?;
        list(&tree, &mut out).map_err(TraceError::io("listing", &tree))?;
        listed.push(tree);
    }
    out.flush().map_err(TraceError::io("writing", snapshot))?;
    Ok(listed)
}

fn look_back(
    trace: &Path,
    snapshot: &Path,
    trees: &[PathBuf],
    before: SystemTime,
) -> Result<UntracedIo, TraceError> {
    let (mut touched, mut unseen) = (UnlistedFiles::default(), UntracedIo::default());
    let file = File::open(trace).map_err(TraceError::io("opening", trace))?;
    let mut source = Strace::new(BufReader::with_capacity(1 << 20, file));
    while let Some(event) = source.next_event().map_err(TraceError::io("reading", trace))? {
        touched.add(&event);
        count_untraced(&mut unseen, &event);
    }
    let file = OpenOptions::new().append(true).open(snapshot).map_err(TraceError::io("opening", snapshot))?;
    let mut out = BufWriter::new(file);
    let listed = touched.list(trees, before, &mut out).and_then(|()| out.flush());
    listed.map_err(TraceError::io("writing", snapshot))?;
    Ok(unseen)
}
