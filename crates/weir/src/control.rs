//! The daemon's side of the control socket.
//!
//! A Unix socket in a directory that only its owner can enter, named by the mount's device number, which the mount
//! table tells to whoever looks for it. A line of JSON asks, a line of JSON answers:
//! `{"operation":"status"}`, `{"operation":"sync"}`, and `{"operation":"drained"}`, which is answered when the mount
//! is gone and everything is home. What is scrubbed and done with volumes goes the same way.

use crate::error::WeirError;
use crate::media::FS_TYPE;
use crate::status::{Mounted, Refusal, ScrubFrom};
use host::Mounts;
use rustix::fs::Mode;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, geteuid, test_kill_process};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of a request line; ours have some twenty.
const REQUEST_BYTES_MAX: u64 = 4096;

/// Clients served at once. More are a mistake of somebody's, and are turned away.
const CLIENTS_MAX: usize = 32;

/// How long the end waits for clients to get their last answer.
const FAREWELL: Duration = Duration::from_secs(2);

/// How the names of sockets end.
const SOCKET: &str = "socket";

/// How the names of the files with a daemon's messages end.
const LOG: &str = "log";

/// Files with messages of daemons that are gone, which are kept.
const LOGS_MAX: usize = 16;

/// Where daemons of root keep their sockets.
const ROOT_DIRECTORY: &str = "/run/weir";

/// A device number, as the mount table writes it.
pub(crate) type DeviceNumber = (u32, u32);

/// A listening control socket.
pub(crate) struct Server {
    /// Where it listens.
    pub(crate) socket: PathBuf,
    listener: Arc<UnixListener>,
    listening: JoinHandle<()>,
    clients: Arc<AtomicUsize>,
}

impl Server {
    /// Listens for clients of `mounted`, which must be in the mount table.
    pub(crate) fn start(mounted: Arc<Mounted>) -> Result<Server, WeirError> {
        let device = device_of(mounted.dir())?;
        let directory = own_directory();
        make_private(&directory)
            .map_err(WeirError::io("making the control socket's directory", &directory))?;
        remove_orphans(&directory, device);
        remove_old_logs(&directory);
        let name = format!("{}{}.{SOCKET}", prefix(device), std::process::id());
        let socket = directory.join(name);
        let failed = |error| WeirError::io("making the control socket", &socket)(error);
        let listener = Arc::new(UnixListener::bind(&socket).map_err(failed)?);
        let clients = Arc::new(AtomicUsize::new(0));
        let (heard, counted) = (listener.clone(), clients.clone());
        let failed = |source| WeirError::Spawn { source };
        let listening = std::thread::Builder::new().name("control".into());
        let listening = listening
            .spawn(move || listen(&heard, |stream| serve_in_thread(stream, &mounted, &counted)))
            .map_err(failed)?;
        Ok(Server { socket, listener, listening, clients })
    }

    /// Stops being found: the mount is gone, and its device number may be somebody else's by now.
    pub(crate) fn hide(&self) {
        let _ = fs::remove_file(&self.socket);
    }

    /// Lets those who wait get their answer, and those who have just connected.
    pub(crate) fn close(self) {
        remove_if_empty(&log_path(&self.socket));
        // Nobody can connect any more; who has done so is still accepted, then the thread ends.
        if shutdown(&*self.listener, Shutdown::Read).is_ok() {
            let _ = self.listening.join();
        }
        let step = Duration::from_millis(5);
        let mut waited = Duration::ZERO;
        while self.clients.load(Ordering::Acquire) > 0 && waited < FAREWELL {
            std::thread::sleep(step);
            waited += step;
        }
    }
}

/// Serves whoever connects, until the listener is shut down.
fn listen(listener: &UnixListener, mut serve: impl FnMut(UnixStream)) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => serve(stream),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            // Out of descriptors, say: some are closed soon.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Removes what a daemon leaves in its directory, but for what it had to say: that may be all that tells why it ended.
pub(crate) fn remove(socket: &Path) {
    remove_if_empty(&log_path(socket));
    let _ = fs::remove_file(socket);
}

fn remove_if_empty(log: &Path) {
    if fs::metadata(log).is_ok_and(|log| log.len() == 0) {
        let _ = fs::remove_file(log);
    }
}

/// Removes all but the newest [`LOGS_MAX`] messages of daemons that are gone.
fn remove_old_logs(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut logs: Vec<PathBuf> = entries
        .filter(|path| path.extension().is_some_and(|extension| extension == LOG))
        .filter(|log| !log.with_extension(SOCKET).exists())
        .collect();
    logs.sort_by_key(|log| Reverse(fs::metadata(log).and_then(|found| found.modified()).ok()));
    logs.iter().skip(LOGS_MAX).for_each(|log| drop(fs::remove_file(log)));
}

/// Where daemons that this user started write their messages.
pub(crate) fn logs() -> PathBuf {
    own_directory().join("*").with_extension(LOG)
}

/// Where the daemon behind `socket` writes its messages.
pub(crate) fn log_path(socket: &Path) -> PathBuf {
    socket.with_extension(LOG)
}

/// Where the daemon of a mount with this device number may listen, most likely first.
pub(crate) fn socket_candidates(device: DeviceNumber) -> Vec<PathBuf> {
    let mut directories = vec![own_directory(), PathBuf::from(ROOT_DIRECTORY)];
    if geteuid().is_root() {
        let users = fs::read_dir("/run/user").into_iter().flatten().flatten();
        directories.extend(users.map(|user| user.path().join("weir")));
    }
    directories.dedup();
    let mut found: Vec<PathBuf> =
        directories.iter().flat_map(|directory| sockets_in(directory, device)).collect();
    // A daemon that is ending may not have hidden itself yet; the one that has its number now is newer.
    found.sort_by_key(|socket| Reverse(fs::metadata(socket).and_then(|found| found.modified()).ok()));
    found
}

/// Sockets for a device number in one directory. Their names are `MAJOR:MINOR.PID.socket`: a number is used again
/// as soon as its mount is gone, a process id is not while its process lives.
fn sockets_in(directory: &Path, device: DeviceNumber) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let is_for_device = |path: &PathBuf| pid_of(path, device).is_some();
    entries.map(|entry| entry.path()).filter(is_for_device).collect()
}

fn pid_of(socket: &Path, device: DeviceNumber) -> Option<Pid> {
    let name = socket.file_name()?.to_str()?;
    let pid = name.strip_prefix(&prefix(device))?.strip_suffix(SOCKET)?.strip_suffix('.')?;
    Pid::from_raw(pid.parse().ok()?)
}

/// Removes what daemons that were killed have left.
fn remove_orphans(directory: &Path, device: DeviceNumber) {
    for socket in sockets_in(directory, device) {
        let is_alive = pid_of(&socket, device).is_some_and(|pid| test_kill_process(pid).is_ok());
        if !is_alive {
            remove(&socket);
        }
    }
}

fn prefix((major, minor): DeviceNumber) -> String {
    format!("{major}:{minor}.")
}

fn own_directory() -> PathBuf {
    let user = geteuid();
    if user.is_root() {
        return ROOT_DIRECTORY.into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) => PathBuf::from(directory).join("weir"),
        None => format!("/tmp/weir-{}", user.as_raw()).into(),
    }
}

/// Makes `directory` for us alone, or makes sure that it is.
fn make_private(directory: &Path) -> io::Result<()> {
    let mode = Mode::RWXU.as_raw_mode();
    match fs::DirBuilder::new().mode(mode).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    let is_private = found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o777 == mode;
    if is_private { Ok(()) } else { Err(io::Error::other("it exists and is not private to this user")) }
}

/// The device number of our mount on `dir`.
pub(crate) fn device_of(dir: &Path) -> Result<DeviceNumber, WeirError> {
    let mounts = Mounts::now().map_err(|source| WeirError::Host { path: dir.into(), source })?;
    let ours = mounts.mounted_at(dir).filter(|mount| mount.fs_type == FS_TYPE);
    ours.map(|mount| mount.device).ok_or_else(|| WeirError::NotMounted { dir: dir.into() })
}

fn serve_in_thread(stream: UnixStream, mounted: &Arc<Mounted>, clients: &Arc<AtomicUsize>) {
    if !is_allowed(&stream) {
        return;
    }
    // Only this thread adds, so the limit holds.
    if clients.load(Ordering::Acquire) >= CLIENTS_MAX {
        let reply = json!({ "error": format!("more than {CLIENTS_MAX} clients at once; try again") });
        // A new connection has room for a line: this does not wait.
        let _ = (&stream).write_all(format!("{reply}\n").as_bytes());
        return;
    }
    clients.fetch_add(1, Ordering::AcqRel);
    let (mounted, counted) = (mounted.clone(), clients.clone());
    let serve = move || {
        // A client that goes away in the middle has nobody to tell.
        let _ = serve(stream, &mounted);
        counted.fetch_sub(1, Ordering::AcqRel);
    };
    if std::thread::Builder::new().name("client".into()).spawn(serve).is_err() {
        clients.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The directory keeps others out; this holds even where its mode was changed.
fn is_allowed(stream: &UnixStream) -> bool {
    socket_peercred(stream).is_ok_and(|peer| peer.uid.is_root() || peer.uid == geteuid())
}

fn serve(stream: UnixStream, mounted: &Mounted) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.by_ref().take(REQUEST_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let reply = answer(&line, mounted);
        reader.get_mut().write_all(format!("{reply}\n").as_bytes())?;
    }
}

fn answer(line: &str, mounted: &Mounted) -> Value {
    let request: Value = serde_json::from_str(line).unwrap_or_default();
    let name = request["name"].as_str().unwrap_or_default();
    match request["operation"].as_str() {
        Some("status") => mounted.report(),
        Some("sync") => or_error(mounted.sync().map(|()| json!({}))),
        Some("drained") => match mounted.wait_drained() {
            Ok(()) => json!({}),
            Err(why) => json!({ "not_drained": why }),
        },
        Some("scrub_begin") => mounted.scrub(ScrubFrom::Start),
        Some("scrub") => mounted.scrub(ScrubFrom::WhereItIs),
        Some("space") => mounted.space(),
        Some("space_exact") => or_error(mounted.space_exact()),
        Some("volume_list") => mounted.volumes(),
        Some("volume_clone") => or_error(mounted.clone_volume(name, request["read_only"] == true)),
        Some("volume_delete") => or_error(mounted.delete_volume(name).map(|()| json!({}))),
        _ => json!({ "error": "not a request: {\"operation\": \"status\", \"sync\" or \"drained\"}" }),
    }
}

fn or_error(outcome: Result<Value, Refusal>) -> Value {
    outcome.unwrap_or_else(|Refusal { why, help }| json!({ "error": why, "help": help }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::RecvTimeoutError;

    #[test]
    fn messages_outlive_their_daemon_and_empty_ones_do_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        for number in 0..LOGS_MAX + 3 {
            fs::write(path(&format!("0:1.{number}.log")), "gone").expect("a file");
        }
        fs::write(path("0:1.7777.log"), "alive").expect("a file");
        fs::write(path("0:1.7777.socket"), "").expect("a file");
        remove_old_logs(directory.path());
        let left = || fs::read_dir(directory.path()).expect("a directory").count();
        assert_eq!(left(), LOGS_MAX + 2);
        remove(&path("0:1.7777.socket"));
        assert_eq!(left(), LOGS_MAX + 1, "the socket alone is gone");
        fs::write(path("0:1.8888.log"), "").expect("a file");
        remove(&path("0:1.8888.socket"));
        assert_eq!(left(), LOGS_MAX + 1);
    }

    #[test]
    fn who_has_connected_before_the_end_is_accepted_and_the_listener_ends() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("socket");
        let listener = Arc::new(UnixListener::bind(&socket).expect("a socket"));
        let early: Vec<_> = (0..5).map(|_| UnixStream::connect(&socket).expect("somebody listens")).collect();
        shutdown(&*listener, Shutdown::Read).expect("a listener");
        assert!(UnixStream::connect(&socket).is_err(), "nobody may come any more");
        let (sender, accepted) = std::sync::mpsc::channel();
        // In a thread, so that one that does not end fails the test.
        std::thread::spawn(move || listen(&listener, |stream| drop(sender.send(stream))));
        let wait = || accepted.recv_timeout(Duration::from_secs(20));
        assert!(early.iter().all(|_| wait().is_ok()));
        assert_eq!(wait().err(), Some(RecvTimeoutError::Disconnected), "it does not end");
    }
}
