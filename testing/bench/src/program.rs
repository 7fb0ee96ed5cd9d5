//! Running the programs that benchmarks drive.

use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, OnceLock};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::cleanup::CleanupGuard;
use super::error::BenchError;

/// Debian packages with every program that a benchmark runs.
pub(super) const PACKAGES: &str = "fuse3 util-linux e2fsprogs strace valgrind rocksdb-tools sqlite3 python3 postgresql redis-server restic fio \
     nbdkit libnbd-bin qemu-utils";

/// A command without input.
pub(super) fn command<A: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    arguments: impl IntoIterator<Item = A>,
) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs a command to its end and returns what it wrote to stdout, without the last newline.
pub(super) fn run(command: &mut Command) -> Result<String, BenchError> {
    let output = command.output();
    result(command, output)
}

/// Like [`run`], for longer programs: a stop of the benchmark kills the program. Not for use during cleanup.
pub(super) fn run_until_stopped(command: &mut Command) -> Result<String, BenchError> {
    let process = Arc::new(OnceLock::new());
    let started = Arc::clone(&process);
    let _kill = CleanupGuard::new(move || {
        if let Some(process) = started.get() {
            // The descriptor refers to this process even after its number was reused.
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    });
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let output = child.and_then(|child| {
        let _ = process.set(pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?);
        child.wait_with_output()
    });
    result(command, output)
}

fn result(command: &Command, output: std::io::Result<Output>) -> Result<String, BenchError> {
    let failed = |says| BenchError::Command { command: line(command), says };
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        // Some programs, such as pg_amcheck, report on stdout.
        let said = if output.stderr.is_empty() { output.stdout } else { output.stderr };
        return Err(failed(format!("{}: {}", output.status, String::from_utf8_lossy(&said).trim())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// The command line, as typed in a shell.
pub(super) fn line(command: &Command) -> String {
    format!("{command:?}").replace('"', "")
}

/// Checks, before anything is set up, that modelled devices can be set up here.
pub(super) fn check_machine() -> Result<(), BenchError> {
    check_programs(&["losetup", "mke2fs", "mount", "umount"])
}

/// Checks that this process is root and that the programs are installed.
pub(super) fn check_programs(programs: &[&'static str]) -> Result<(), BenchError> {
    if !rustix::process::geteuid().is_root() {
        return Err(BenchError::NotRoot);
    }
    for program in programs.iter().copied() {
        if Command::new(program).arg("--version").stdin(Stdio::null()).output().is_err() {
            return Err(BenchError::Missing { program });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_program_is_named_with_what_it_said() {
        let error =
            run(&mut command("sh", ["-c", "echo out of rope >&2; exit 3"])).expect_err("it exits with 3");
        let text = error.to_string();
        assert!(text.contains("out of rope") && text.contains('3'), "{text}");
    }

    #[test]
    fn output_comes_without_the_last_newline() {
        assert_eq!(run(&mut command("echo", ["one"])).expect("echo works"), "one");
    }
}
