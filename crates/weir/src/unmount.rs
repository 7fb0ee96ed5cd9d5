//! `weir unmount`, and the system call behind it.
//!
//! The kernel takes away one mount point. The daemon ends with the last one: where a bind mount, or another mount namespace, keeps the
//! file system in use, the command waits a little, and then names that place. A layer of an overlay cannot be found: it is waited for.

use crate::byte_size::ByteSize;
use crate::cli::DirArgs;
use crate::control_client::{ControlClient, WeirMount};
use crate::error::WeirError;
use host::{MountEntry, MountTable};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use weir_status::StatusReport;

/// How often the progress of a long unmount is told.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// How long whoever is about to leave may take. There are many who mean no harm: a program that just ended, one that
/// looks at every mount, and any process that was forked by one that had files open, until it becomes another program.
const BUSY_WAIT: Duration = Duration::from_secs(2);

/// Between two attempts. Each is a process where fusermount3 makes it.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Said when nothing is written back, and no other mount is found.
const MOUNTED_ELSEWHERE: &str = "no progress: if the file system is still used elsewhere (as a layer of an overlay, in a container), the \
                         daemon ends when you unmount it there; until then synced data is safe";

/// Another place where a file system is mounted.
struct OtherMount {
    point: PathBuf,
    /// A process that sees it, where this one does not.
    pid: Option<u32>,
}

impl OtherMount {
    /// Looks in this process's mount namespace first, then in those of all processes that it may look at. Once a file system is gone,
    /// another one may have its number; its store is in use for as long as its daemon is there.
    fn find(gone: &WeirMount) -> Option<OtherMount> {
        let is_of = |one: &MountEntry| one.device == gone.device() && one.source == gone.store;
        let point_in = |mounts: MountTable| mounts.iter().find(|one| is_of(one)).map(|one| one.point.clone());
        if let Some(point) = MountTable::read().ok().and_then(point_in) {
            return Some(OtherMount { point, pid: None });
        }
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find_map(|pid| {
            let point = MountTable::of_process(pid).ok().and_then(point_in)?;
            Some(OtherMount { point, pid: Some(pid) })
        })
    }
}

/// What to do where somebody works on the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnmountMode {
    /// Fail.
    WhenIdle,
    /// Let nobody new enter, and unmount when the last has left.
    Detach,
}

/// Unmounts `dir`: as root by the system call, otherwise through fusermount3. The error is in words.
pub(crate) fn unmount(dir: &Path, how: UnmountMode) -> Result<(), String> {
    if rustix::process::geteuid().is_root() {
        let flags = match how {
            UnmountMode::WhenIdle => UnmountFlags::NOFOLLOW,
            UnmountMode::Detach => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        };
        return rustix::mount::unmount(dir, flags).map_err(|errno| errno.to_string());
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if how == UnmountMode::Detach {
        command.arg("-z");
    }
    let output = command.arg("--").arg(dir).output().map_err(|error| format!("fusermount3: {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_string())
    }
}

pub(crate) fn run(args: &DirArgs) -> Result<(), WeirError> {
    let found = WeirMount::at(&args.dir)?;
    found.ensure_may_control()?;
    // Connected before the unmount: afterwards the mount table no longer says where the daemon listens.
    let daemon = match EndingDaemon::of(&found) {
        // Programs there wait for it, and would lose what they write.
        Err(error @ (WeirError::DaemonStopped { .. } | WeirError::DaemonSilent { .. })) => return Err(error),
        daemon => daemon,
    };
    let deadline = Instant::now() + BUSY_WAIT;
    let unmounted = loop {
        match unmount(&found.dir, UnmountMode::WhenIdle) {
            // Whoever has files open there gets errors from now on, however long they stay.
            Err(_) if daemon.is_err() && found.is_dead() => break unmount(&found.dir, UnmountMode::Detach),
            Err(why) if is_busy(&why) && Instant::now() < deadline => std::thread::sleep(BUSY_PAUSE),
            unmounted => break unmounted,
        }
    };
    unmounted.map_err(|why| WeirError::Unmount { dir: found.dir.clone(), why })?;
    match daemon {
        Ok(daemon) => daemon.wait(&found),
        Err(error) => {
            tracing::warn!("{error}; synced data is safe, and the next `weir mount` recovers it");
            Ok(())
        }
    }
}

/// Whether somebody works there. The kernel's error and fusermount3's message have the same words.
fn is_busy(why: &str) -> bool {
    why.contains("Device or resource busy")
}

/// A daemon that is about to end.
struct EndingDaemon {
    drained: ControlClient,
    /// Asked for the progress meanwhile: an unmounted daemon takes no new connections.
    status: ControlClient,
    process: OwnedFd,
}

impl EndingDaemon {
    fn of(found: &WeirMount) -> Result<EndingDaemon, WeirError> {
        let mut client = found.connect()?;
        // A sign of life.
        client.request("status")?;
        let lost = |source| WeirError::NoAnswer { dir: found.dir.clone(), source };
        let pid = client.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.ok_or_else(|| lost(std::io::Error::other("its process cannot be seen from here")))?;
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| lost(errno.into()))?;
        let mut drained = found.connect()?;
        drained.send("drained")?;
        Ok(EndingDaemon { drained, status: client, process })
    }

    /// Waits until everything is stored and the process is gone.
    fn wait(self, found: &WeirMount) -> Result<(), WeirError> {
        let EndingDaemon { mut drained, mut status, process } = self;
        let (mut before, mut told) = (None, false);
        let begun = Instant::now();
        let reply = loop {
            if let Some(reply) = drained.receive_within(TELL_EVERY)? {
                break reply;
            }
            match OtherMount::find(found) {
                Some(OtherMount { point, pid }) if begun.elapsed() >= BUSY_WAIT => {
                    return Err(WeirError::StillMounted { dir: found.dir.clone(), point, pid });
                }
                Some(_) => continue,
                None => {}
            }
            let left = tell_progress(&mut status);
            if left.is_some() && left == before && !told {
                tracing::info!("{MOUNTED_ELSEWHERE}");
                told = true;
            }
            before = left;
        };
        // The daemon waits for its clients to leave, and we for the daemon: its media are free when it is gone.
        drop((drained, status));
        while !is_gone_within(&process, TELL_EVERY) {
            tracing::info!("waiting for the daemon to end");
        }
        match reply["not_drained"].as_str() {
            None => Ok(()),
            Some(why) => Err(WeirError::NotDrained { dir: found.dir.clone(), why: why.into() }),
        }
    }
}

fn is_gone_within(process: &OwnedFd, timeout: Duration) -> bool {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    poll(&mut polled, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// Tells how much is left to be written back, and returns it.
fn tell_progress(daemon: &mut ControlClient) -> Option<u64> {
    // Unmounted it is already, so this is no reason to give up: it goes on when it is told to.
    if let Err(error) = daemon.ensure_runs() {
        tracing::info!("{error}; {}", error.help().unwrap_or_default());
        return None;
    }
    let left = daemon.report::<StatusReport>("status").ok().map(|status| status.dirty.bytes);
    match left {
        Some(bytes) => tracing::info!("writing everything back: {} left", ByteSize(bytes)),
        None => tracing::info!("writing everything back"),
    }
    left
}
