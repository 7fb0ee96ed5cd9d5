//! The system call that a task is in, from /proc/TASK/syscall.

use crate::task::TaskReadError;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Tasks whose file in /proc is kept open. Reading an open one takes a third of the time.
const OPEN_MAX: usize = 128;

/// Bytes of the longest line of /proc/TASK/syscall: nine numbers and blanks.
const SYSCALL_BYTES_MAX: usize = 256;

/// A system call that a task is in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SystemCall {
    pub(crate) number: libc::c_long,
    pub(crate) arguments: [u64; 6],
}

/// Reads the system calls that tasks are in. For tasks of other users this takes CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.
#[derive(Debug, Default)]
pub(crate) struct SystemCallReader {
    /// `/proc/TASK/syscall`, by task. Such a file stays about its task even if the thread id is reused.
    open: HashMap<u32, File>,
}

impl SystemCallReader {
    /// The call that a task is in; `None` if the task runs, or is in a page fault.
    pub(crate) fn read(&mut self, task: u32) -> Result<Option<SystemCall>, TaskReadError> {
        let mut line = [0; SYSCALL_BYTES_MAX];
        let len = self.read_line(task, &mut line).map_err(|error| {
            self.open.remove(&task);
            TaskReadError::of("syscall", error)
        })?;
        Ok(SystemCall::parse(&line[..len]))
    }

    fn read_line(&mut self, task: u32, line: &mut [u8]) -> io::Result<usize> {
        if let Some(open) = self.open.get(&task) {
            match open.read_at(line, 0) {
                // Its task is gone. Another one may have the id.
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                done => return done,
            }
        }
        if self.open.len() >= OPEN_MAX {
            self.open.clear();
        }
        let opened = File::open(format!("/proc/{task}/syscall"))?;
        let len = opened.read_at(line, 0)?;
        self.open.insert(task, opened);
        Ok(len)
    }
}

impl SystemCall {
    /// `18 0x3 0x7f00 …`: the call's number, its six arguments, stack and instruction. `None` for a task that
    /// runs (`running`), or is in a page fault (`-1 …`).
    fn parse(line: &[u8]) -> Option<SystemCall> {
        let mut fields = std::str::from_utf8(line).ok()?.split_whitespace();
        let number = fields.next()?.parse().ok().filter(|&number| number >= 0)?;
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            *argument = u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()?;
        }
        Some(SystemCall { number, arguments })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_call_or_none() {
        let line = b"18 0x3 0x7f5e0 0x2000 0x10 0x0 0xffffffffffffff9c 0x7ffd 0x7f5f\n";
        let expected = SystemCall { number: 18, arguments: [3, 0x7f5e0, 0x2000, 0x10, 0, u64::MAX - 99] };
        assert_eq!(SystemCall::parse(line), Some(expected));
        for other in [&b"running\n"[..], b"-1 0x7ffd 0x7f5f\n", b"", b"18 0x3 0x7f5e0", b"18 3 4 5 6 7 8"] {
            assert_eq!(SystemCall::parse(other), None);
        }
    }
}
