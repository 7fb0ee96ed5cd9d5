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
    // What this process was given, by a shell or a lock's holder, is not for a daemon, which would keep it until it ends.
    host::close_descriptors_on_exec().map_err(|source| WeirError::Spawn { source })?;
    // The same command line again: `weir mount …`.
    let mut daemon = Command::new(itself)
        .args(["mount", "--daemon"])
        .args(std::env::args_os().skip(2))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|source| WeirError::Spawn { source })?;
    let mut line = String::new();
    let said = daemon.stdout.take().expect("it is piped");
    // An unreadable pipe is one on which nothing was said.
    let _ = BufReader::new(said).read_line(&mut line);
    if line.trim_end() == READY {
        return Ok(ExitCode::SUCCESS);
    }
    let status = daemon.wait().map_err(|source| WeirError::Spawn { source })?;
    match status.code() {
        // It has said why, on our standard error.
        Some(code) if code != 0 => Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
        _ => Err(WeirError::DaemonDied { status: status.to_string() }),
    }
}

/// More than there is would end in the kernel killing the daemon, or something else, when it is in use.
fn check_memory(memory: ByteSize) -> Result<(), WeirError> {
    let machine = ByteSize(host::memory_bytes());
    if memory <= machine {
        Ok(())
    } else {
        let why = format!("this machine has {machine} for this process");
        Err(WeirError::Size { option: "--memory", size: memory, why })
    }
}
