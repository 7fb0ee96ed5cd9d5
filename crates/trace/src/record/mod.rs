//! Records a program: a snapshot of the trees that it will touch, then the program under strace.

mod calibrate;

use crate::error::TraceError;
use crate::parse::TRACER_NOTE;
use std::ffi::OsString;
use std::fs::{DirEntry, File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

/// What to record and where to.
#[derive(Debug, Clone)]
pub struct RecordSettings {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The trace to write; the snapshot gets the same name with `.snapshot`.
    pub output: PathBuf,
    /// Trees to list before the run.
    pub trees: Vec<PathBuf>,
}

/// What came of it.
#[derive(Debug, Clone, Copy)]
pub struct Recording {
    /// The program's own end.
    pub status: ExitStatus,
    /// Nanoseconds that the tracer adds between two calls on this machine, as measured just before; it is in the trace.
    pub tracer_nanos: Option<u64>,
}

/// Calls that the model knows or needs. Classes cover calls that this version of strace knows and we do not.
const CALLS: &str = "trace=%file,%desc,%process,%ipc,%memory,%network,%creds,sync,futex,umask,unshare,setns,io_setup,io_submit,\
    io_getevents,io_destroy,io_cancel,io_uring_setup,io_uring_enter,io_uring_register";

/// Lists the trees, then runs the program under strace and waits for it. What strace
/// itself costs is measured before, and noted in the trace.
pub fn record(settings: &RecordSettings) -> Result<Recording, TraceError> {
    let snapshot = settings.output.with_added_extension("snapshot");
    let file = File::create(&snapshot).map_err(TraceError::io("creating", &snapshot))?;
    let mut out = BufWriter::new(file);
    for tree in &settings.trees {
        let tree = tree.canonicalize().map_err(TraceError::io("listing", tree))?;
        list(&tree, &mut out).map_err(TraceError::io("listing", &tree))?;
    }
    out.flush().map_err(TraceError::io("writing", &snapshot))?;
    let tracer_nanos = calibrate::tracer_nanos(&settings.output)?;
    let mut strace = strace(&settings.output);
    let status = strace.arg("--").args(&settings.command).status();
    let status = status.map_err(|source| TraceError::NoStrace { source })?;
    if let Some(nanos) = tracer_nanos {
        let trace = File::options().append(true).open(&settings.output);
        trace
            .and_then(|mut trace| writeln!(trace, "{TRACER_NOTE}{nanos}"))
            .map_err(TraceError::io("writing", &settings.output))?;
    }
    Ok(Recording { status, tracer_nanos })
}

/// strace with what all recordings have in common.
fn strace(output: &Path) -> Command {
    let mut strace = Command::new("strace");
    strace.args([
        "-f",
        "--seccomp-bpf",
        "--absolute-timestamps=format:unix,precision:ns",
        "--syscall-times=ns",
    ]);
    // Structures whole; but arguments and environment of programs, which may hold secrets, left out. Payload is never kept.
    strace.args(["-y", "-s", "0", "-e", "abbrev=execve,execveat", "-e", CALLS, "-o"]);
    strace.arg(output);
    strace
}

/// One line for each file: type, mode, size, links, device:inode, path, TAB, link target.
fn list(path: &Path, out: &mut impl Write) -> io::Result<()> {
    let meta = path.symlink_metadata()?;
    line(path, &meta, out)?;
    if meta.is_dir() {
        let mut entries: Vec<DirEntry> = std::fs::read_dir(path)?.collect::<io::Result<_>>()?;
        entries.sort_by_key(DirEntry::file_name);
        entries.iter().try_for_each(|entry| list(&entry.path(), out))?;
    }
    Ok(())
}

fn line(path: &Path, meta: &Metadata, out: &mut impl Write) -> io::Result<()> {
    let kind = match meta.mode() & libc::S_IFMT {
        libc::S_IFDIR => 'd',
        libc::S_IFREG => 'f',
        libc::S_IFLNK => 'l',
        libc::S_IFCHR => 'c',
        libc::S_IFBLK => 'b',
        libc::S_IFIFO => 'p',
        _ => 's',
    };
    let (mode, size, links) = (meta.mode() & 0o7777, meta.size(), meta.nlink());
    write!(out, "{kind} {mode:o} {size} {links} {}:{} ", meta.dev(), meta.ino())?;
    out.write_all(path.as_os_str().as_bytes())?;
    out.write_all(b"\t")?;
    if kind == 'l' {
        out.write_all(std::fs::read_link(path)?.as_os_str().as_bytes())?;
    }
    out.write_all(b"\n")
}
