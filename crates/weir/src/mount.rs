//! `weir mount`: starts the daemon and returns when it is ready.

use crate::byte_size::ByteSize;
use crate::cli::MountArgs;
use crate::daemon::{self, READY};
use crate::error::WeirError;
use std::io::{BufRead, BufReader};
use std::process::{Command, ExitCode, Stdio};

pub(crate) fn run(args: &MountArgs) -> Result<ExitCode, WeirError> {
    check_memory(args.tuning.memory)?;
    if args.foreground || args.daemon {
        return daemon::run(args).map(|()| ExitCode::SUCCESS);
    }
    let itself = std::env::current_exe().map_err(|source| WeirError::Spawn { source })?;
    // A daemon would keep inherited descriptors until its end, for example the descriptors of a shell or of
    // `flock`.
    host::close_descriptors_on_exec().map_err(|source| WeirError::Spawn { source })?;
    // The daemon gets the same arguments: `weir mount …`.
    let mut daemon = Command::new(itself)
        .args(["mount", "--daemon"])
        .args(std::env::args_os().skip(2))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|source| WeirError::Spawn { source })?;
    let mut line = String::new();
    let said = daemon.stdout.take().expect("it is piped");
    // An unreadable pipe counts as an empty one.
    let _ = BufReader::new(said).read_line(&mut line);
    if line.trim_end() == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let status = daemon.wait().map_err(|source| WeirError::Spawn { source })?;
    match status.code() {
        // The daemon has written the error to this process's standard error.
        Some(code) if code != 0 => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        _ => Err(WeirError::DaemonDied { status: status.to_string() }),
    }
}

/// Refuses more memory than the machine has: the kernel would kill the daemon, or another process, when the
/// memory is used.
fn check_memory(memory: ByteSize) -> Result<(), WeirError> {
    let machine = ByteSize(host::memory_bytes());
    if memory <= machine {
        Ok(())
    } else {
        let why = format!("this machine has {machine} for this process");
        Err(WeirError::Size { option: "--memory", size: memory, why })
    }
}
