//! A database server as a process of the benchmark.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::super::cleanup::{self, CleanupGuard};
use super::super::error::BenchError;

/// Limit for the start of a server.
const START_MAX: Duration = Duration::from_secs(120);

/// A running server. Dropping it ends the server in order, with all its processes, and waits for that.
pub(super) struct RunningServer {
    _end: CleanupGuard,
}

impl RunningServer {
    /// Starts a server, which ends in order when it gets `stop`, and waits until `is_ready`.
    pub(super) fn start(
        server: &mut Command,
        stop: Signal,
        is_ready: impl Fn() -> bool,
    ) -> Result<RunningServer, BenchError> {
        let child: Arc<Mutex<Option<Child>>> = Arc::default();
        let started = Arc::clone(&child);
        let end = CleanupGuard::new(move || {
            if let Some(mut child) = started.lock().unwrap_or_else(PoisonError::into_inner).take() {
                // kill -9 would leave the server's other processes behind, with files open on the mount.
                let _ = kill_process(Pid::from_child(&child), stop);
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
            if start.elapsed() > START_MAX {
                let what = server.get_program().display().to_string();
                return Err(BenchError::Late { what, says: "see its log".to_owned() });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(RunningServer { _end: end })
    }
}
