//! Forked processes: for changes that a process can make to itself only, such as giving up its root
//! directory, and for work that must outlive this process.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;

/// The exit code of a process that panicked.
const PANICKED: u8 = 101;

/// A process that this process has forked.
#[derive(Debug)]
pub struct ForkedProcess(Pid);

/// Runs `work` in a forked process, which exits with the returned code and runs nothing else of this program.
///
/// The new process begins with all files that this process has open. Refused if this process has other
/// threads, which the new process would lack.
pub fn fork(work: impl FnOnce() -> u8) -> io::Result<ForkedProcess> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a process with several threads cannot be forked"));
    }
    // SAFETY: this is the only thread, so no other one holds a lock or is in the middle of anything that the
    // copy would need; the copy ends below, and never returns into the frames of the original.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let code = catch_unwind(AssertUnwindSafe(work)).unwrap_or(PANICKED);
            // SAFETY: the call takes a number and does not return.
            unsafe { libc::_exit(code.into()) }
        }
        pid => Pid::from_raw(pid)
            .map(ForkedProcess)
            .ok_or_else(|| io::Error::other("a process without a number")),
    }
}

impl ForkedProcess {
    /// Kills the process.
    pub fn kill(&self) -> io::Result<()> {
        Ok(kill_process(self.0, Signal::KILL)?)
    }

    /// Waits until the process ends.
    pub fn wait(self) -> io::Result<ExitStatus> {
        loop {
            match waitpid(Some(self.0), WaitOptions::empty()) {
                Ok(Some((_, status))) => return Ok(ExitStatus::from_raw(status.as_raw())),
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_other_threads_is_not_forked() {
        // The test itself is a thread beside the main one.
        let error = fork(|| 0).expect_err("it is refused");
        assert!(error.to_string().contains("threads"), "{error}");
    }
}
