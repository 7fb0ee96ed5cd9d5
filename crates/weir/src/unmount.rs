//! `weir unmount`, and the system call behind it.
//!
//! The system call removes one mount point. The mount ends with its last one, and the daemon with its last mount.
//! If a bind mount or another mount namespace keeps the file system in use, the command waits a little, and then
//! names that place. The command cannot find a layer of an overlay, so it waits for the overlay to be unmounted.

use crate::cli::DirArgs;
use crate::error::WeirError;
use client::{ClientError, ControlClient, WeirMount};
use host::{MountEntry, MountTable};
use progress::{LongWork, OnInterrupt, WorkAmount, WorkUnit, held_signal};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use weir_status::StatusReport;

/// The time between two looks at the daemon during a long unmount.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How long the command waits for short uses of the mount to end. Examples are a program that just exited, a
/// program that visits every mount, and a forked process that holds its parent's open files until its `exec`.
const BUSY_WAIT: Duration = Duration::from_secs(2);

/// The time between two attempts. Without root, each attempt starts a fusermount3 process.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// The message if write-back makes no progress and no other mount is found.
const MOUNTED_ELSEWHERE: &str = "no progress: if the file system is still used elsewhere (as a layer of an overlay, in a container), the \
                         daemon ends when you unmount it there; until then synced data is safe";

/// Another place where a file system is mounted.
struct OtherMount {
    point: PathBuf,
    /// A process that sees the mount, if this process does not.
    pid: Option<u32>,
}

impl OtherMount {
    /// Finds another place where the unmounted file system is still mounted.
    ///
    /// The search begins in this process's mount namespace, and continues in those of all processes that this
    /// process may inspect. A file system of another store may have got the old device number, so the store must
    /// match, too. The same daemon may have made a new mount with the number: see [`is_number_reused`].
    fn find(gone: &WeirMount) -> Option<OtherMount> {
        let is_of = |one: &MountEntry| one.device == gone.device() && one.source == gone.store();
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

/// How to unmount a file system that programs use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnmountMode {
    /// Fail.
    WhenIdle,
    /// Admit no other program, and unmount when the last program leaves.
    Detach,
}

/// Unmounts `dir`: as root by the system call, otherwise through fusermount3. The error is a message for the
/// user.
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
        // Programs on the mount wait for this daemon, and would lose their writes.
        Err(error @ (ClientError::DaemonStopped { .. } | ClientError::DaemonSilent { .. })) => {
            return Err(error.into());
        }
        daemon => daemon,
    };
    let unknown = || WorkAmount { unit: WorkUnit::Unknown, done: 0, total: None };
    let unmounting =
        LongWork::start(format!("unmounting {}", found.dir().display()), unknown, OnInterrupt::Hold);
    let may_wait = |deadline| Instant::now() < deadline && held_signal().is_none();
    let deadline = Instant::now() + BUSY_WAIT;
    let unmounted = loop {
        match unmount(found.dir(), UnmountMode::WhenIdle) {
            // The mount is dead. Programs with open files get errors anyway.
            Err(_) if daemon.is_err() && found.is_dead() => break unmount(found.dir(), UnmountMode::Detach),
            // Another command has unmounted it.
            Err(_) if is_unmounted(&found) => break Ok(()),
            Err(why) if is_busy(&why) && may_wait(deadline) => std::thread::sleep(BUSY_PAUSE),
            unmounted => break unmounted,
        }
    };
    unmounted.map_err(|why| WeirError::Unmount { dir: found.dir().into(), why })?;
    match daemon {
        Ok(daemon) => daemon.wait(&found, unmounting),
        Err(error) => {
            tracing::warn!("{error}; synced data is safe, and the next `weir mount` recovers it");
            Ok(())
        }
    }
}

fn is_unmounted(found: &WeirMount) -> bool {
    match WeirMount::at(found.dir()) {
        Ok(now) => now.device() != found.device(),
        Err(error) => matches!(error, ClientError::NotMounted { .. }),
    }
}

/// Whether the unmount failed because programs use the mount. The kernel's error and fusermount3's message
/// have the same words.
fn is_busy(why: &str) -> bool {
    why.contains("Device or resource busy")
}

/// A daemon that is about to end, or of which one mount is.
struct EndingDaemon {
    drained: ControlClient,
    /// Connection for progress requests. It is opened early, because an unmounted daemon takes no new
    /// connections.
    status: ControlClient,
    process: OwnedFd,
}

impl EndingDaemon {
    fn of(found: &WeirMount) -> Result<EndingDaemon, ClientError> {
        let mut client = found.connect()?;
        // Shows that the daemon is alive.
        client.request("status")?;
        let lost = |source| ClientError::NoAnswer { dir: found.dir().into(), source };
        let pid = client.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        let pid = pid.ok_or_else(|| lost(std::io::Error::other("its process cannot be seen from here")))?;
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| lost(errno.into()))?;
        let mut drained = found.connect()?;
        drained.send("drained")?;
        Ok(EndingDaemon { drained, status: client, process })
    }

    /// Waits until everything is stored and the process is gone, or everything is durable if the daemon has other
    /// mounts. `unmounting` has held signals until now.
    fn wait(self, found: &WeirMount, unmounting: LongWork) -> Result<(), WeirError> {
        let EndingDaemon { mut drained, mut status, process } = self;
        let (mut before, mut told) = (None, false);
        let begun = Instant::now();
        let left = Arc::new(Mutex::new(DirtyBytesLeft::default()));
        let work = show_progress(found, status.pid(), &left);
        drop(unmounting);
        let reply = loop {
            if let Some(reply) = drained.receive_within(LOOK_EVERY)? {
                break reply;
            }
            match OtherMount::find(found).filter(|_| !is_number_reused(found, begun)) {
                Some(OtherMount { point, pid }) if begun.elapsed() >= BUSY_WAIT => {
                    return Err(WeirError::StillMounted { dir: found.dir().into(), point, pid });
                }
                Some(_) => continue,
                None => {}
            }
            let now = dirty_bytes(&mut status);
            left.lock().unwrap_or_else(PoisonError::into_inner).note(now);
            if now.is_some() && now == before && !told {
                tracing::info!("{MOUNTED_ELSEWHERE}");
                told = true;
            }
            before = now;
        };
        // The daemon waits for its clients to disconnect. Its media are free only when its process has ended.
        drop((drained, status));
        while reply["ends_process"] != false && !is_gone_within(&process, LOOK_EVERY) {}
        drop(work);
        match reply["not_drained"].as_str() {
            None => Ok(()),
            Some(why) => Err(WeirError::NotDrained { dir: found.dir().into(), why: why.into() }),
        }
    }
}

/// Whether a mount that was made after `unmounted` has the device number of the mount `gone`.
fn is_number_reused(gone: &WeirMount, unmounted: Instant) -> bool {
    // Before the request, so that the mount `gone` is never younger than this.
    let since = unmounted.elapsed();
    let status = gone.connect().and_then(|mut client| client.report::<StatusReport>("status"));
    status.is_ok_and(|status| Duration::from_millis(status.uptime_ms) < since)
}

fn is_gone_within(process: &OwnedFd, timeout: Duration) -> bool {
    let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: i64::from(timeout.subsec_nanos()) };
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    poll(&mut polled, Some(&timeout)).is_ok_and(|ready| ready > 0)
}

/// The bytes that are left to write back, and the most that were.
#[derive(Default)]
struct DirtyBytesLeft {
    now: Option<u64>,
    most: u64,
}

impl DirtyBytesLeft {
    fn note(&mut self, now: Option<u64>) {
        self.now = now.or(self.now);
        self.most = self.most.max(now.unwrap_or(0));
    }

    fn amount(&self) -> WorkAmount {
        match self.now {
            Some(now) => WorkAmount { unit: WorkUnit::Bytes, done: self.most - now, total: Some(self.most) },
            None => WorkAmount { unit: WorkUnit::Unknown, done: 0, total: None },
        }
    }
}

/// Shows the progress of the daemon's write-back. A signal ends this process alone.
fn show_progress(found: &WeirMount, pid: Option<u32>, left: &Arc<Mutex<DirtyBytesLeft>>) -> LongWork {
    let left = left.clone();
    let dir = found.dir().display().to_string();
    let what = format!("writing back {dir}");
    let process = pid.map_or_else(String::new, |pid| format!(", process {pid},"));
    let interrupted = move |amount: &WorkAmount| {
        let done = match amount.unit {
            WorkUnit::Unknown => String::new(),
            _ => format!(" {amount} were written back."),
        };
        format!(
            "{dir} is unmounted, and synced data is safe.{done} The daemon{process} goes on, and ends by itself unless \
             it serves other mounts: leave the store's devices attached until then"
        )
    };
    let amount = move || left.lock().unwrap_or_else(PoisonError::into_inner).amount();
    LongWork::start(what, amount, OnInterrupt::Exit(Box::new(interrupted)))
}

/// The bytes that the daemon has to write back. `None` if it does not say.
fn dirty_bytes(daemon: &mut ControlClient) -> Option<u64> {
    // No reason to fail: the mount is gone already, and the daemon continues after a SIGCONT.
    if let Err(error) = daemon.ensure_runs() {
        tracing::info!("{error}; {}", error.help().unwrap_or_default());
        return None;
    }
    daemon.report::<StatusReport>("status").ok().map(|status| status.dirty.bytes)
}
