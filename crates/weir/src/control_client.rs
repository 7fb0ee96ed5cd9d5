//! How commands talk to the daemon of a mount.
//!
//! A mount is found in the mount table, never by touching it: it may hang.

use crate::control_address::{self, DeviceNumber};
use crate::error::WeirError;
use crate::media::FS_TYPE;
use crate::tell;
use host::{FuseMountOwner, MountEntry, MountTable, is_stopped};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a daemon may take for an answer that it knows, on a busy machine.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// How long a daemon may take for what devices must do first: a sync may wait for a slow one.
const WORK_WAIT: Duration = Duration::from_secs(120);

/// How often who waits looks whether the daemon is stopped.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(2);

/// How long the kernel may take to say that nobody serves a mount.
const KERNEL_WAIT: Duration = Duration::from_secs(2);

/// A mount of ours.
pub(crate) struct WeirMount {
    /// Where.
    pub(crate) dir: PathBuf,
    /// What: the store's path.
    pub(crate) store: PathBuf,
    device: DeviceNumber,
    owner: FuseMountOwner,
}

impl WeirMount {
    /// The mount at `dir`.
    pub(crate) fn at(dir: &Path) -> Result<WeirMount, WeirError> {
        let mounts = MountTable::read().map_err(|source| WeirError::Host { path: dir.into(), source })?;
        spellings(dir)
            .find_map(|dir| mounts.mounted_at(&dir).and_then(WeirMount::of))
            .ok_or_else(|| WeirError::NotMounted { dir: dir.into() })
    }

    /// A line of the mount table, if it is a mount of ours.
    pub(crate) fn of(mount: &MountEntry) -> Option<WeirMount> {
        let owner = mount.owner.filter(|_| mount.fs_type == FS_TYPE)?;
        let (dir, store) = (mount.point.clone(), mount.source.clone());
        Some(WeirMount { dir, store, device: mount.device, owner })
    }

    /// The number by which its daemon is found.
    pub(crate) fn device(&self) -> DeviceNumber {
        self.device
    }

    /// A connection to its daemon.
    pub(crate) fn connect(&self) -> Result<ControlClient, WeirError> {
        let no_answer = |source| WeirError::NoAnswer { dir: self.dir.clone(), source };
        match control_address::connect(self.device, self.owner.uid).map_err(no_answer)? {
            Some((stream, peer)) => Ok(ControlClient::over(stream, self, peer.pid)),
            None if self.is_dead() => Err(self.gone()),
            None => {
                Err(no_answer(io::Error::other("no daemon listens for this mount in this network namespace")))
            }
        }
    }

    /// Refuses what only root and the mount's owner may do.
    pub(crate) fn ensure_may_control(&self) -> Result<(), WeirError> {
        match geteuid() {
            user if user.is_root() || user.as_raw() == self.owner.uid => Ok(()),
            _ => Err(WeirError::DaemonOfOther { dir: self.dir.clone(), owner: self.owner.uid }),
        }
    }

    /// That the daemon is gone and the mount is not.
    pub(crate) fn gone(&self) -> WeirError {
        WeirError::DaemonGone { dir: self.dir.clone(), store: self.store.clone(), owner: self.owner.uid }
    }

    /// Whether the daemon is gone. The kernel remembers much, but not how full a file system is; it asks only for the mount's
    /// owner, though, and for as long as a daemon that hangs: hence a thread, which may become that user and be left behind.
    pub(crate) fn is_dead(&self) -> bool {
        let (tell, told) = mpsc::channel();
        let (dir, FuseMountOwner { uid, gid }) = (self.dir.clone(), self.owner);
        let ask = move || {
            if geteuid().is_root() && uid != 0 {
                let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                // Where this fails, the question is not passed on, and the mount not taken for dead.
                let _ = set_thread_res_gid(gid, gid, gid).and_then(|()| set_thread_res_uid(uid, uid, uid));
            }
            // The second one where the daemon died with our question in its hands.
            let dead = matches!(rustix::fs::statfs(&dir), Err(Errno::NOTCONN | Errno::CONNABORTED));
            // Nobody waits any more if it took too long.
            let _ = tell.send(dead);
        };
        let asked = std::thread::Builder::new().name("statfs".into()).spawn(ask);
        asked.is_ok() && told.recv_timeout(KERNEL_WAIT).unwrap_or(false)
    }
}

/// `dir` as the mount table may write it. Only the last spelling looks at `dir` itself, which may hang, so it comes when the others
/// were not found; it is needed only where `dir` is a symbolic link, which a mount point is not.
pub(crate) fn spellings(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let plain = std::path::absolute(dir).ok();
    let (named, link) = (plain.clone(), plain.clone());
    let parents_resolved = move || {
        let named = named?;
        let name = named.file_name()?.to_os_string();
        Some(std::fs::canonicalize(named.parent()?).ok()?.join(name))
    };
    let resolved = move || std::fs::canonicalize(link.filter(|link| link.is_symlink())?).ok();
    plain
        .into_iter()
        .chain(std::iter::once_with(parents_resolved).flatten())
        .chain(std::iter::once_with(resolved).flatten())
}

/// One connection: requests and replies are lines of JSON, in turn.
pub(crate) struct ControlClient {
    dir: PathBuf,
    owner: u32,
    /// The daemon's, if this process can see it.
    pid: Option<u32>,
    stream: BufReader<UnixStream>,
    /// What has come of the next reply.
    line: String,
    /// That it takes long was told already.
    told: bool,
}

impl ControlClient {
    fn over(stream: UnixStream, found: &WeirMount, pid: Option<u32>) -> ControlClient {
        let (dir, owner, stream) = (found.dir.clone(), found.owner.uid, BufReader::new(stream));
        ControlClient { dir, owner, pid, stream, line: String::new(), told: false }
    }

    /// The daemon's process id, if this process can see it.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Asks and waits for the answer.
    pub(crate) fn request(&mut self, operation: &str) -> Result<Value, WeirError> {
        self.ask(&json!({ "operation": operation }))
    }

    /// Asks with more than a word, and waits for the answer.
    pub(crate) fn ask(&mut self, request: &Value) -> Result<Value, WeirError> {
        let patience = match request["operation"].as_str() {
            Some("status" | "space" | "volume_list") => ANSWER_WAIT,
            _ => WORK_WAIT,
        };
        self.send_request(request)?;
        let begun = Instant::now();
        loop {
            if let Some(reply) = self.receive_within(LIVENESS_INTERVAL)? {
                return Ok(reply);
            }
            self.ensure_runs()?;
            if begun.elapsed() >= patience {
                let (dir, seconds) = (self.dir.clone(), patience.as_secs());
                return Err(WeirError::DaemonSilent { dir, pid: self.pid, seconds });
            }
            if patience == WORK_WAIT && !self.told {
                tell(&format!("{}: waiting for the daemon", self.dir.display()));
                self.told = true;
            }
        }
    }

    /// Fails if the daemon is stopped: it may be so for ever.
    pub(crate) fn ensure_runs(&self) -> Result<(), WeirError> {
        match self.pid.filter(|&pid| is_stopped(pid)) {
            Some(pid) => Err(WeirError::DaemonStopped { dir: self.dir.clone(), pid }),
            None => Ok(()),
        }
    }

    /// Asks.
    pub(crate) fn send(&mut self, operation: &str) -> Result<(), WeirError> {
        self.send_request(&json!({ "operation": operation }))
    }

    fn send_request(&mut self, request: &Value) -> Result<(), WeirError> {
        let line = format!("{request}\n");
        match self.stream.get_mut().write_all(line.as_bytes()) {
            // It has turned us away, and its reply says why.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            sent => sent.map_err(|source| self.lost(source)),
        }
    }

    /// The answer, or `None` if there is none in this time.
    pub(crate) fn receive_within(&mut self, timeout: Duration) -> Result<Option<Value>, WeirError> {
        self.stream.get_ref().set_read_timeout(Some(timeout)).map_err(|source| self.lost(source))?;
        match self.stream.read_line(&mut self.line) {
            Ok(0) => return Err(self.lost(ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(source) => return Err(self.lost(source)),
        }
        let line = std::mem::take(&mut self.line);
        let reply: Value = serde_json::from_str(&line).map_err(|error| self.lost(error.into()))?;
        if reply["refused"] == true {
            return Err(WeirError::DaemonOfOther { dir: self.dir.clone(), owner: self.owner });
        }
        match reply["error"].as_str() {
            Some(why) => {
                let help = reply["help"].as_str().map(str::to_owned);
                Err(WeirError::Refused { dir: self.dir.clone(), why: why.into(), help })
            }
            None => Ok(Some(reply)),
        }
    }

    fn lost(&self, source: io::Error) -> WeirError {
        WeirError::NoAnswer { dir: self.dir.clone(), source }
    }
}
