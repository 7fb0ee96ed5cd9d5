//! A database server as a process of the benchmark.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::cleanup::{self, CleanupGuard};
use super::error::BenchError;

/// Limit for the start of a server.
const START_MAX: Duration = Duration::from_secs(120);

/// A running server. Dropping it ends the server in order, with all its processes, and waits for that.
pub(super) struct RunningServer {
    _end: CleanupGuard,
}

impl RunningServer {
    /// Starts a server that writes to `log`, and waits until `is_ready`. It ends in order when it gets `stop`.
    pub(super) fn start(
        server: &mut Command,
        stop: Signal,
        log: &Path,
        is_ready: impl Fn() -> bool,
    ) -> Result<RunningServer, BenchError> {
        let child: Arc<Mutex<Option<Child>>> = Arc::default();
        let started = Arc::clone(&child);
        let end = CleanupGuard::new(move || {
            if let Some(mut child) = started.lock().unwrap_or_else(PoisonError::into_inner).take() {
                // kill -9 would leave the server's other processes behind, with files open on the mount.
                if matches!(child.try_wait(), Ok(None)) {
                    let _ = kill_process(Pid::from_child(&child), stop);
                }
                let _ = child.wait();
            }
        });
        // Its own process group: Ctrl-C must not reach it before the benchmark stops it.
        server.process_group(0).stdout(Stdio::null());
        let spawn = || -> io::Result<()> {
            *child.lock().unwrap_or_else(PoisonError::into_inner) = Some(server.spawn()?);
            Ok(())
        };
        cleanup::uninterrupted(spawn)
            .map_err(|error| BenchError::io("cannot start", server.get_program(), error))?;
        let start = Instant::now();
        while !is_ready() {
            if has_ended(&child) || start.elapsed() > START_MAX {
                let what = server.get_program().display().to_string();
                let says = fs::read_to_string(log).unwrap_or_default().trim().to_owned();
                return Err(BenchError::Late { what, says });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(RunningServer { _end: end })
    }
}

fn has_ended(child: &Mutex<Option<Child>>) -> bool {
    let mut child = child.lock().unwrap_or_else(PoisonError::into_inner);
    child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
}
