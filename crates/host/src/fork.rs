//! A process that goes on from where this one is: for what a process can do to itself only, such as giving up its root
//! directory, and for what must outlive it.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;

/// What a process ends with that panicked.
const PANICKED: u8 = 101;

/// A process that was forked off.
#[derive(Debug)]
pub struct ForkedProcess(Pid);

/// Runs `work` in a process of its own, which ends with what it returns: nothing else of this program runs there. It begins with
/// all that this process has open. Refused if this process has other threads, which the new one would lack.
pub fn fork(work: impl FnOnce() -> u8) -> io::Result<ForkedProcess> {
    if std::fs::read_dir("/proc/self/task")?.count() != 1 {
        return Err(io::Error::other("a process with several threads cannot be forked"));
    }
    // SAFETY: this is the only thread, so no other one holds a lock or is in the middle of anything that the copy would need;
    // the copy ends below, and never returns into the frames of the original.
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
    /// Ends it as soon as the kernel can.
    pub fn kill(&self) -> io::Result<()> {
        Ok(kill_process(self.0, Signal::KILL)?)
    }

    /// Waits for its end.
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
