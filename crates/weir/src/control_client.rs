//! How commands talk to the daemon of a mount or of exports.
//!
//! A command finds a mount in the mount table. It never touches the mount itself, which may hang. A daemon that exports
//! volumes, and may have no mount, is found through the lock of its store.

use crate::control_address::{self, ControlAddress, DeviceNumber};
use crate::descriptor_stream;
use crate::error::WeirError;
use crate::store_path::open_store;
use host::{DiskAccess, FuseMountOwner, MountEntry, MountTable, is_stopped};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use stack::{FS_TYPE, StackError, store_of};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Time limit for a reply that needs no I/O, on a busy machine.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Time limit for a reply that needs I/O: a sync may wait for a slow device.
const WORK_WAIT: Duration = Duration::from_secs(120);

/// How often a waiting client checks whether the daemon is stopped.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(2);

/// How long the kernel may take to report that a mount has no daemon.
const KERNEL_WAIT: Duration = Duration::from_secs(2);

/// A mount of weir.
pub(crate) struct WeirMount {
    /// The mount point.
    pub(crate) dir: PathBuf,
    /// The store's path.
    pub(crate) store: PathBuf,
    device: DeviceNumber,
    owner: FuseMountOwner,
}

impl WeirMount {
    /// The mount at `dir`.
    pub(crate) fn at(dir: &Path) -> Result<WeirMount, WeirError> {
        let mounts = MountTable::read().map_err(|source| StackError::Host { path: dir.into(), source })?;
        spellings(dir)
            .find_map(|dir| mounts.mounted_at(&dir).and_then(WeirMount::of))
            .ok_or_else(|| WeirError::NotMounted { dir: dir.into() })
    }

    /// The mount that `path` lies on, and the path from the mount's root. Touches the mount only if `path` leads
    /// there through links.
    pub(crate) fn containing(path: &Path) -> Result<(WeirMount, PathBuf), WeirError> {
        let mounts = MountTable::read().map_err(|source| StackError::Host { path: path.into(), source })?;
        let find = |path: PathBuf| {
            let found = WeirMount::of(mounts.mount_of(&path)?)?;
            let inside = path.strip_prefix(&found.dir).ok()?.to_owned();
            Some((found, inside))
        };
        let is_plain = |path: &PathBuf| !path.components().any(|part| part == Component::ParentDir);
        let plain = std::path::absolute(path).ok().filter(is_plain);
        plain
            .and_then(find)
            .or_else(|| find(std::fs::canonicalize(path).ok()?))
            .ok_or_else(|| WeirError::NotMounted { dir: path.into() })
    }

    /// All mounts that the user may control.
    pub(crate) fn all_of_user() -> Result<Vec<WeirMount>, WeirError> {
        let mounts = MountTable::read().map_err(|source| StackError::Host { path: "/".into(), source })?;
        let mounts = mounts.iter().filter_map(WeirMount::of);
        Ok(mounts.filter(|mount| mount.ensure_may_control().is_ok()).collect())
    }

    /// A mount of the store on `medium`, an absolute path, which the process `pid` serves. A dead mount is served by
    /// none, and nobody can pretend to be another process.
    pub(crate) fn served_by(pid: u32, medium: &Path) -> Option<WeirMount> {
        let is_served = |mount: &WeirMount| {
            let daemon = control_address::connect(ControlAddress::Mount(mount.device), mount.owner.uid);
            daemon.is_ok_and(|daemon| daemon.is_some_and(|(_, peer)| peer.pid == Some(pid)))
        };
        let mounts = MountTable::read().ok()?;
        let mut of_store =
            mounts.iter().filter_map(WeirMount::of).filter(|mount| medium.starts_with(&mount.store));
        of_store.find(is_served)
    }

    /// The mount in a line of the mount table, if it is a mount of weir.
    pub(crate) fn of(mount: &MountEntry) -> Option<WeirMount> {
        let owner = mount.owner.filter(|_| mount.fs_type == FS_TYPE)?;
        let (dir, store) = (mount.point.clone(), mount.source.clone());
        Some(WeirMount { dir, store, device: mount.device, owner })
    }

    /// The device number, which leads to the daemon.
    pub(crate) fn device(&self) -> DeviceNumber {
        self.device
    }

    /// Connects to the mount's daemon.
    pub(crate) fn connect(&self) -> Result<ControlClient, WeirError> {
        let no_answer = |source| WeirError::NoAnswer { dir: self.dir.clone(), source };
        let address = ControlAddress::Mount(self.device);
        match control_address::connect(address, self.owner.uid).map_err(no_answer)? {
            Some((stream, peer)) => {
                Ok(ControlClient::over(stream, (self.dir.clone(), self.owner.uid), peer.pid))
            }
            None if self.is_dead() => Err(self.gone()),
            None => {
                Err(no_answer(io::Error::other("no daemon listens for this mount in this network namespace")))
            }
        }
    }

    /// Fails unless the user is root or the mount's owner.
    pub(crate) fn ensure_may_control(&self) -> Result<(), WeirError> {
        match geteuid() {
            user if user.is_root() || user.as_raw() == self.owner.uid => Ok(()),
            _ => Err(WeirError::DaemonOfOther { dir: self.dir.clone(), owner: self.owner.uid }),
        }
    }

    /// The error for a mount whose daemon has ended.
    pub(crate) fn gone(&self) -> WeirError {
        WeirError::DaemonGone { dir: self.dir.clone(), store: self.store.clone(), owner: self.owner.uid }
    }

    /// Whether the daemon has ended.
    ///
    /// The kernel caches most replies of a daemon, but not those to `statfs`. Unless the mount allows other
    /// users, the kernel forwards `statfs` only for the mount's owner, so the call needs a thread that takes
    /// the owner's user id. The call blocks as long as the daemon hangs, so the thread may have to be left
    /// behind.
    pub(crate) fn is_dead(&self) -> bool {
        let (tell, told) = mpsc::channel();
        let (dir, FuseMountOwner { uid, gid }) = (self.dir.clone(), self.owner);
        let ask = move || {
            if geteuid().is_root() && uid != 0 {
                let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                // After a failure the kernel does not forward the call, and the mount does not count as dead.
                let _ = set_thread_res_gid(gid, gid, gid).and_then(|()| set_thread_res_uid(uid, uid, uid));
            }
            // ECONNABORTED: the daemon died after it had received the call.
            let dead = matches!(rustix::fs::statfs(&dir), Err(Errno::NOTCONN | Errno::CONNABORTED));
            // Fails if the call took too long: the receiver is gone.
            let _ = tell.send(dead);
        };
        let asked = std::thread::Builder::new().name("statfs".into()).spawn(ask);
        asked.is_ok() && told.recv_timeout(KERNEL_WAIT).unwrap_or(false)
    }
}

/// A daemon that exports volumes of a store, whether it has a mount or not.
pub(crate) struct ExportDaemon {
    store: PathBuf,
    pid: u32,
    /// The user of the process.
    uid: u32,
}

impl ExportDaemon {
    /// The process `pid`, which holds the lock of the store, if it listens for clients.
    pub(crate) fn of_process(pid: u32, store: &Path) -> Option<ExportDaemon> {
        let uid = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        let store = std::path::absolute(store).ok()?;
        let daemon = ExportDaemon { store, pid, uid };
        daemon.stream().ok().flatten().map(|_| daemon)
    }

    /// A connection, if the process listens. A process of the same user cannot pretend to be this one.
    fn stream(&self) -> io::Result<Option<UnixStream>> {
        let found = control_address::connect(ControlAddress::Process(self.pid), self.uid)?;
        Ok(found.filter(|(_, peer)| peer.pid == Some(self.pid)).map(|(stream, _)| stream))
    }

    fn connect(&self) -> Result<ControlClient, WeirError> {
        let no_answer = |source| WeirError::NoAnswer { dir: self.store.clone(), source };
        let is_gone = || no_answer(io::Error::other("the daemon is ending"));
        let stream = self.stream().map_err(no_answer)?.ok_or_else(is_gone)?;
        Ok(ControlClient::over(stream, (self.store.clone(), self.uid), Some(self.pid)))
    }
}

/// The daemon that has a store open.
pub(crate) enum StoreServer {
    /// Found through a mount.
    Mount(WeirMount),
    /// Found because it exports volumes, and has no mount that can be seen from here.
    Exports(ExportDaemon),
}

impl StoreServer {
    /// The daemon of the mount at `path`, or of the store at `path`; `None` if the store has no daemon.
    pub(crate) fn at_or_of(path: &Path) -> Result<Option<StoreServer>, WeirError> {
        match StoreServer::serving(path) {
            Some(found) => Ok(Some(found)),
            None => open_store(path, DiskAccess::Write).map(|_| None),
        }
    }

    /// The daemon of the mount at `path`, or of the store at `path`. Does not open the store, which would wait for its
    /// lock.
    pub(crate) fn serving(path: &Path) -> Option<StoreServer> {
        let mount = WeirMount::at(path).ok().map(StoreServer::Mount);
        mount.or_else(|| StoreServer::of_store(path).ok().flatten())
    }

    /// The daemon of the store at `path`; `None` if there is none that can be found from here.
    pub(crate) fn of_store(path: &Path) -> Result<Option<StoreServer>, WeirError> {
        let medium = store_of(path)?;
        let holder = host::lock_holder(&medium);
        let holder = holder.map_err(|source| StackError::Host { path: path.into(), source })?;
        Ok(holder.and_then(|pid| {
            let mount = WeirMount::served_by(pid, &medium).map(StoreServer::Mount);
            mount.or_else(|| ExportDaemon::of_process(pid, path).map(StoreServer::Exports))
        }))
    }

    /// Fails unless the user is root or the user of the daemon.
    pub(crate) fn ensure_may_control(&self) -> Result<(), WeirError> {
        match self {
            StoreServer::Mount(mount) => mount.ensure_may_control(),
            StoreServer::Exports(daemon) if !geteuid().is_root() && geteuid().as_raw() != daemon.uid => {
                Err(WeirError::DaemonOfOther { dir: daemon.store.clone(), owner: daemon.uid })
            }
            StoreServer::Exports(_) => Ok(()),
        }
    }

    /// A mount of the daemon, or else the store, for messages.
    pub(crate) fn dir(&self) -> &Path {
        match self {
            StoreServer::Mount(mount) => &mount.dir,
            StoreServer::Exports(daemon) => &daemon.store,
        }
    }

    /// The path of the store.
    pub(crate) fn store(&self) -> &Path {
        match self {
            StoreServer::Mount(mount) => &mount.store,
            StoreServer::Exports(daemon) => &daemon.store,
        }
    }

    /// Connects to the daemon.
    pub(crate) fn connect(&self) -> Result<ControlClient, WeirError> {
        match self {
            StoreServer::Mount(mount) => mount.connect(),
            StoreServer::Exports(daemon) => daemon.connect(),
        }
    }
}

/// The spellings of `dir` that the mount table may contain.
///
/// Only the last spelling touches `dir` itself, which may hang, so callers get it last. That spelling exists
/// only if `dir` is a symbolic link, which is never a mount point itself.
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
    /// The daemon's process id, if this process can see it.
    pid: Option<u32>,
    stream: BufReader<UnixStream>,
    /// The received part of the next reply.
    line: String,
    /// Whether the user was told that the reply takes long.
    told: bool,
}

impl ControlClient {
    fn over(stream: UnixStream, (dir, owner): (PathBuf, u32), pid: Option<u32>) -> ControlClient {
        let stream = BufReader::new(stream);
        ControlClient { dir, owner, pid, stream, line: String::new(), told: false }
    }

    /// The daemon's process id, if this process can see it.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Sends a request without arguments, and waits for the reply.
    pub(crate) fn request(&mut self, operation: &str) -> Result<Value, WeirError> {
        self.ask(&json!({ "operation": operation }))
    }

    /// Sends a request without arguments for a report, and waits for it.
    pub(crate) fn report<R: DeserializeOwned>(&mut self, operation: &str) -> Result<R, WeirError> {
        self.report_for(&json!({ "operation": operation }))
    }

    /// Sends a request with arguments for a report, and waits for it.
    pub(crate) fn report_for<R: DeserializeOwned>(&mut self, request: &Value) -> Result<R, WeirError> {
        let reply = self.ask(request)?;
        serde_json::from_value(reply).map_err(|error| self.lost(error.into()))
    }

    /// Sends a request, and waits for the reply.
    pub(crate) fn ask(&mut self, request: &Value) -> Result<Value, WeirError> {
        let patience = match request["operation"].as_str() {
            Some("status" | "space" | "why" | "rules" | "volume_list" | "class") => ANSWER_WAIT,
            _ => WORK_WAIT,
        };
        self.send_request(request)?;
        self.wait_for_reply(patience)
    }

    /// Sends a request together with descriptors, and waits for the reply.
    pub(crate) fn ask_with(
        &mut self,
        request: &Value,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Value, WeirError> {
        let line = format!("{request}\n");
        let sent = descriptor_stream::send(self.stream.get_ref(), line.as_bytes(), descriptors);
        sent.map_err(|source| self.lost(source))?;
        self.wait_for_reply(WORK_WAIT)
    }

    fn wait_for_reply(&mut self, patience: Duration) -> Result<Value, WeirError> {
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
                tracing::info!("{}: waiting for the daemon", self.dir.display());
                self.told = true;
            }
        }
    }

    /// Waits until the daemon has closed the connection. Returns its last reply, if one came.
    pub(crate) fn wait_for_close(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.stream.get_ref().set_read_timeout(None).ok()?;
        // An error is an end as well.
        self.stream.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    /// A second handle of the connection, for another thread.
    pub(crate) fn connection(&self) -> io::Result<UnixStream> {
        self.stream.get_ref().try_clone()
    }

    /// Fails if the daemon is stopped (SIGSTOP), perhaps for ever.
    pub(crate) fn ensure_runs(&self) -> Result<(), WeirError> {
        match self.pid.filter(|&pid| is_stopped(pid)) {
            Some(pid) => Err(WeirError::DaemonStopped { dir: self.dir.clone(), pid }),
            None => Ok(()),
        }
    }

    /// Sends a request without arguments, and does not wait.
    pub(crate) fn send(&mut self, operation: &str) -> Result<(), WeirError> {
        self.send_request(&json!({ "operation": operation }))
    }

    fn send_request(&mut self, request: &Value) -> Result<(), WeirError> {
        let line = format!("{request}\n");
        match self.stream.get_mut().write_all(line.as_bytes()) {
            // The daemon has refused this client. Its reply says why.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            sent => sent.map_err(|source| self.lost(source)),
        }
    }

    /// Receives the reply, or `None` if none arrives within `timeout`.
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
