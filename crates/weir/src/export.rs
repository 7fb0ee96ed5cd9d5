//! `weir export`: serves a block volume as a network block device (NBD), in the foreground.
//!
//! The command binds the socket. If the store has a daemon, the daemon gets the listening socket, and serves it until the
//! command ends; else the command becomes the daemon.

use crate::cli::{self, ExportArgs};
use crate::daemon::{self, DAEMON_STEP, DAEMON_WAIT, DaemonOptions};
use crate::error::WeirError;
use crate::signals;
use crate::store_daemon::{RequestRefusal, StoreDaemon};
use crate::store_server::StoreServer;
use host::DiskAccess;
use nbd::Listener;
use rustix::net::{AddressFamily, sockopt};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use stack::{StoreMedia, WorkerThreads};
use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use store::VolumeId;

/// The exit code that a shell reports for a program that ^C ended.
const EXIT_CODE_SIGINT: i32 = 128 + 2;

pub(crate) fn run(args: &ExportArgs) -> Result<(), WeirError> {
    daemon::abort_on_panic();
    let socket = BoundSocket::bind(args)?;
    let deadline = Instant::now() + DAEMON_WAIT;
    loop {
        let exported = match StoreServer::serving(&args.path) {
            Some(server) => hand_over(args, &server, &socket),
            None => become_daemon(args, &socket),
        };
        match exported {
            Err(error) if daemon::is_passing(&error) && Instant::now() < deadline => {
                std::thread::sleep(DAEMON_STEP)
            }
            ended => return ended,
        }
    }
}

/// A listening socket, and the file of a Unix socket, which is removed at the end.
struct BoundSocket {
    listener: OwnedFd,
    _file: Option<SocketFile>,
    /// The place where clients connect, as nbd clients write it.
    uri: String,
}

impl BoundSocket {
    fn bind(args: &ExportArgs) -> Result<BoundSocket, WeirError> {
        match (&args.socket, args.tcp) {
            (Some(path), _) => {
                let failed = |source| WeirError::Socket { at: path.display().to_string(), source };
                let path = std::path::absolute(path).map_err(failed)?;
                let listener = bind_unix(&path).map_err(failed)?.into();
                let uri = format!("nbd+unix:///{}?socket={}", args.volume, percent_encoded(&path));
                let file = Some(SocketFile::at(path).map_err(failed)?);
                Ok(BoundSocket { listener, _file: file, uri })
            }
            (None, Some(address)) => {
                let failed = |source| WeirError::Socket { at: address.to_string(), source };
                let listener = TcpListener::bind(address).map_err(failed)?;
                let uri = format!("nbd://{}/{}", listener.local_addr().map_err(failed)?, args.volume);
                Ok(BoundSocket { listener: listener.into(), _file: None, uri })
            }
            (None, None) => unreachable!("clap asks for one of them"),
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// The file of a Unix socket. Dropping it removes the file, unless another process has replaced it.
struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl SocketFile {
    fn at(path: PathBuf) -> io::Result<SocketFile> {
        let file = fs::symlink_metadata(&path)?;
        Ok(SocketFile { path, device: file.dev(), inode: file.ino() })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let is_ours = |file: &fs::Metadata| (file.dev(), file.ino()) == (self.device, self.inode);
        if fs::symlink_metadata(&self.path).is_ok_and(|file| is_ours(&file)) {
            // Another process may have removed it, or its directory.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Binds a Unix socket. Replaces a socket on which nobody listens: a command that was killed leaves one.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(error) if error.kind() == ErrorKind::AddrInUse && is_dead_socket(path) => {
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

fn is_dead_socket(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket());
    is_socket && UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// A path as an address has it: all but plain characters are encoded.
fn percent_encoded(path: &Path) -> String {
    let encoded = |&byte: &u8| match byte {
        b'/' | b'.' | b'-' | b'_' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
            char::from(byte).to_string()
        }
        byte => format!("%{byte:02X}"),
    };
    path.as_os_str().as_bytes().iter().map(encoded).collect()
}

/// Parses `--tcp`. A client needs no password to change the disk, so only clients on this machine may connect.
pub(crate) fn loopback_address(text: &str) -> Result<SocketAddr, String> {
    let with_port = text.parse().or_else(|_| format!("127.0.0.1:{text}").parse());
    let address: SocketAddr =
        with_port.map_err(|_| "an address such as 127.0.0.1:10809 or [::1]:10809, or a port".to_owned())?;
    if !address.ip().is_loopback() {
        return Err("NBD has no passwords, so weir listens on 127.0.0.1 and ::1 only: let other machines come through ssh or \
                    stunnel"
            .into());
    }
    Ok(address)
}

/// Has the running daemon of the store serve the socket, until a signal comes or the daemon ends.
fn hand_over(args: &ExportArgs, server: &StoreServer, socket: &BoundSocket) -> Result<(), WeirError> {
    if let Some(option) = cli::given_daemon_option("export") {
        return Err(WeirError::OptionOfDaemon { path: args.path.clone(), option });
    }
    let spawn_failed = |source| WeirError::Spawn { source };
    let mut client = server.connect()?;
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(spawn_failed)?;
    let request = json!({ "operation": "export", "volume": args.volume, "at": socket.uri });
    if client.ask_with(&request, &[socket.as_fd()])?["is_ending"] == true {
        return Err(WeirError::DaemonEnding { path: args.path.clone() });
    }
    say_ready(args, socket);
    let is_asked_to_end = Arc::new(AtomicBool::new(false));
    let asked = is_asked_to_end.clone();
    let connection = client.connection().map_err(spawn_failed)?;
    let watch = move || {
        for _ in signals.forever() {
            if asked.swap(true, Ordering::AcqRel) {
                // The daemon does not answer, and the user does not want to wait for it.
                std::process::exit(EXIT_CODE_SIGINT);
            }
            // Fails only if the daemon has gone.
            let _ = connection.shutdown(std::net::Shutdown::Write);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(watch).map_err(spawn_failed)?;
    let volume = args.volume.clone();
    match client.wait_for_close() {
        Some(reply) if reply["error"].is_null() => {
            if !is_asked_to_end.load(Ordering::Acquire) {
                tracing::warn!(
                    "{volume}: the daemon has ended the export; all that was written to it is durable"
                );
            }
            Ok(())
        }
        Some(reply) => {
            let why = reply["error"].as_str().unwrap_or_default().into();
            Err(WeirError::ExportNotSynced { volume, why })
        }
        // It may have ended before it had made durable what it had answered.
        None => Err(WeirError::ExportEnded { volume }),
    }
}

/// Begins an export for a client, which has sent a listening socket. `None` if the daemon is ending.
pub(crate) fn begin(
    request: &Value,
    daemon: &Arc<StoreDaemon>,
    listener: Option<OwnedFd>,
    requester: UnixStream,
) -> Result<Option<VolumeId>, RequestRefusal> {
    let text = |name: &str| request[name].as_str().unwrap_or_default();
    let no_socket =
        || RequestRefusal::new(&"export: needs a listening socket of the Unix or the TCP family", None);
    let listener = listener_of(listener.ok_or_else(no_socket)?).ok_or_else(no_socket)?;
    daemon.listen_for_exports()?;
    match daemon.export(text("volume"), listener, (text("at").into(), Some(requester))) {
        Err(WeirError::DaemonEnding { .. }) => Ok(None),
        exported => Ok(Some(exported?)),
    }
}

/// The listener that a descriptor is, if it is one that a server can use.
fn listener_of(socket: OwnedFd) -> Option<Listener> {
    if !sockopt::socket_acceptconn(&socket).ok()? {
        return None;
    }
    match sockopt::socket_domain(&socket).ok()? {
        AddressFamily::UNIX => Some(Listener::Unix(socket.into())),
        AddressFamily::INET | AddressFamily::INET6 => Some(Listener::Tcp(socket.into())),
        _ => None,
    }
}

/// Opens the store, and serves the socket until a signal comes. Other exports and mounts that began meanwhile are served
/// until they end, too, or the next signal comes.
fn become_daemon(args: &ExportArgs, socket: &BoundSocket) -> Result<(), WeirError> {
    let options =
        DaemonOptions { access: DiskAccess::Write, buffer_medium: &args.buffer_medium, tuning: &args.tuning };
    let media = StoreMedia::find(&args.path, args.buffer.as_deref())?;
    let daemon = Arc::new(daemon::open(media, &options)?);
    let spawn_failed = |source| WeirError::Spawn { source };
    let workers = WorkerThreads::start(&daemon.stack.cache, daemon.stack.access).map_err(spawn_failed)?;
    let signals = signals::hold().map_err(spawn_failed)?;
    let listener = socket.listener.try_clone().ok().and_then(listener_of);
    let listener = listener.expect("a listening socket");
    let begun = daemon
        .listen_for_exports()
        .and_then(|()| daemon.export(&args.volume, listener, (socket.uri.clone(), None)))
        .and_then(|volume| {
            let serving = Arc::new(AtomicBool::new(true));
            daemon::watch(&daemon, &serving)?;
            let stopper = workers.stopper();
            signals.watch_export(&daemon, volume, stopper).map_err(spawn_failed)?;
            Ok(serving)
        });
    if begun.is_ok() {
        say_ready(args, socket);
        daemon.wait_for_end();
    }
    let drained = workers.stop_and_drain().map_err(|error| error.to_string());
    begun?.store(false, Ordering::Release);
    if drained.is_ok() {
        daemon.epochs.take_last();
    }
    daemon.close_control();
    drained.map_err(|why| WeirError::NotDrained { dir: args.path.clone(), why })
}

fn say_ready(args: &ExportArgs, socket: &BoundSocket) {
    tracing::info!("{}: exported; press ^C to end", args.volume);
    println!("{}", socket.uri);
}
