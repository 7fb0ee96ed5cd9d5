//! The daemon's side of the control socket.
//!
//! A request and its reply are a line of JSON each: `{"operation":"status"}`, `{"operation":"sync"}`, and so
//! on. `{"operation":"drained"}` is answered when the mount is gone and everything is stored, or durable if other
//! volumes of the store are still mounted.
//!
//! `{"operation":"export"}` comes with a listening socket, and is answered twice: when the volume is exported, and when the
//! export has ended, which it does once the client sends no further request.
//!
//! | client | may |
//! | --- | --- |
//! | root, and the user of the daemon | everything |
//! | the owner of the mount's root directory | read and sync: `status`, `space`, `why`, `sync` |
//! | any user | `change_ranges` of files that the client has open, and sends along |

use crate::cli::CloneWish;
use crate::error::WeirError;
use crate::export;
use crate::json_schema::JsonSchema;
use crate::mount_request;
use crate::mounted_volume::MountedVolume;
use crate::range_request;
use crate::store_daemon::{RequestRefusal, StoreDaemon};
use crate::volume;
use crate::write_policy::PolicyChoice;
use client::{ControlAddress, DescriptorStream};
use host::{SocketPeer, socket_peer};
use request::RequestClass;
use rustix::net::{Shutdown, shutdown};
use rustix::process::geteuid;
use serde::Serialize;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use store::{DataMode, VolumeMode};

/// The longest request line. Most have some twenty bytes; one with 64 rules has some thousands.
const REQUEST_BYTES_MAX: u64 = 1 << 18;

/// Clients served at the same time. More clients are some program's mistake, and are refused. Half of the
/// places are reserved for clients with all rights.
const CLIENTS_MAX: usize = 32;

/// How long the end of the daemon waits for clients to receive their last reply.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// The operations that a client may request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientRights {
    All,
    ReadAndSync,
    /// Only requests about open files that come along.
    OpenFiles,
}

/// The subject of the requests of a client.
#[derive(Clone)]
pub(crate) enum ControlSubject {
    /// A mount, and its daemon.
    Mount(Arc<MountedVolume>),
    /// A daemon that may have no mount.
    Daemon(Arc<StoreDaemon>),
}

impl ControlSubject {
    fn daemon(&self) -> &Arc<StoreDaemon> {
        match self {
            ControlSubject::Mount(mounted) => &mounted.daemon,
            ControlSubject::Daemon(daemon) => daemon,
        }
    }

    /// The mount, for requests that are about one.
    fn mount(&self) -> Result<&Arc<MountedVolume>, RequestRefusal> {
        match self {
            ControlSubject::Mount(mounted) => Ok(mounted),
            ControlSubject::Daemon(_) => {
                let help = "mount a volume of it: `weir mount --volume NAME PATH DIR`";
                Err(RequestRefusal::new(&"no volume of the store is mounted", Some(help.into())))
            }
        }
    }
}

/// A place among the clients that are served at the same time.
struct ClientPlace(Arc<AtomicUsize>);

impl ClientPlace {
    fn take(clients: &Arc<AtomicUsize>) -> ClientPlace {
        clients.fetch_add(1, Ordering::AcqRel);
        ClientPlace(clients.clone())
    }
}

impl Drop for ClientPlace {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A listening control socket.
pub(crate) struct ControlServer {
    listener: Arc<UnixListener>,
    listening: JoinHandle<()>,
    clients: Arc<AtomicUsize>,
}

impl ControlServer {
    /// Listens at `address` for clients that ask about `subject`.
    pub(crate) fn start(
        subject: ControlSubject,
        address: ControlAddress,
    ) -> Result<ControlServer, WeirError> {
        let failed = |source| WeirError::Spawn { source };
        let listener = Arc::new(client::listen(address).map_err(failed)?);
        let clients = Arc::new(AtomicUsize::new(0));
        let listener_of_thread = listener.clone();
        let clients_of_thread = clients.clone();
        let accept = move || {
            accept_clients(&listener_of_thread, |stream| {
                serve_in_thread(stream, &subject, &clients_of_thread)
            });
        };
        let listening = std::thread::Builder::new().name("control".into()).spawn(accept).map_err(failed)?;
        Ok(ControlServer { listener, listening, clients })
    }

    /// Accepts no new connections: the mount is gone, and another mount may have its device number by now.
    /// Clients that have connected already are still served.
    pub(crate) fn stop_accepting(&self) {
        let _ = shutdown(&*self.listener, Shutdown::Read);
    }

    /// Ends once all clients have their replies, those that have just connected included.
    pub(crate) fn close(self) {
        self.stop_accepting();
        let _ = self.listening.join();
        let step = Duration::from_millis(5);
        let mut waited = Duration::ZERO;
        while self.clients.load(Ordering::Acquire) > 0 && waited < CLOSE_WAIT {
            std::thread::sleep(step);
            waited += step;
        }
    }
}

/// Calls `serve` with each connection, until the listener is shut down.
fn accept_clients(listener: &UnixListener, mut serve: impl FnMut(UnixStream)) {
    loop {
        match listener.accept() {
            Ok((stream, _)) => serve(stream),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            // The process may be out of descriptors. Some are closed soon.
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

fn serve_in_thread(stream: UnixStream, subject: &ControlSubject, clients: &Arc<AtomicUsize>) {
    let peer = socket_peer(stream.as_fd()).ok();
    let rights = rights_of(peer, subject);
    let clients_max = match rights {
        ClientRights::All => CLIENTS_MAX,
        ClientRights::ReadAndSync => CLIENTS_MAX / 2,
        ClientRights::OpenFiles => CLIENTS_MAX / 4,
    };
    // Only this thread adds clients, so the limit holds.
    if clients.load(Ordering::Acquire) >= clients_max {
        let why = format!("more than {clients_max} clients at once; try again");
        return send_reply(&stream, &json!({ "error": why }));
    }
    let place = ClientPlace::take(clients);
    let subject = subject.clone();
    let serve = move || {
        // Fails if the client has gone: there is no reader left for an error.
        let _ = serve(stream, &subject, (rights, place), peer.and_then(|peer| peer.pid));
    };
    // Fails if the process may have no more threads: the client sees the connection close.
    let _ = std::thread::Builder::new().name("client".into()).spawn(serve);
}

/// Sends one line to a client that is not served. A new connection has space for a line, so this does not
/// wait.
fn send_reply(mut stream: &UnixStream, reply: &Value) {
    let _ = stream.write_all(format!("{reply}\n").as_bytes());
}

/// The rights of the connected process. The kernel reports the process's user, so no secret is needed.
fn rights_of(peer: Option<SocketPeer>, subject: &ControlSubject) -> ClientRights {
    match peer {
        Some(peer) if peer.uid == 0 || peer.uid == geteuid().as_raw() => ClientRights::All,
        Some(peer) if subject.mount().is_ok_and(|mounted| mounted.owner_of_files() == Some(peer.uid)) => {
            ClientRights::ReadAndSync
        }
        _ => ClientRights::OpenFiles,
    }
}

/// The reply to a client without rights. The client knows whose daemon it is, and says so.
fn refusal() -> Value {
    json!({ "refused": true })
}

fn serve(
    stream: UnixStream,
    subject: &ControlSubject,
    (rights, place): (ClientRights, ClientPlace),
    peer: Option<u32>,
) -> io::Result<()> {
    let mut reader = BufReader::new(DescriptorStream::new(stream));
    loop {
        let mut line = String::new();
        if reader.by_ref().take(REQUEST_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let descriptors = reader.get_mut().take_descriptors();
        // A client that did not wait for its reply has told its user that this process is stopped, or does not answer.
        if reader.get_ref().is_hung_up() {
            return Ok(());
        }
        let request: Value = serde_json::from_str(&line).unwrap_or_default();
        if request["operation"] == "export" && rights == ClientRights::All {
            // It may last for months.
            drop(place);
            return serve_export(reader, &request, subject.daemon(), descriptors.into_iter().next());
        }
        let reply = match request["operation"].as_str() {
            Some("change_ranges") => range_request::answer(subject.daemon(), &request, descriptors),
            _ if rights == ClientRights::OpenFiles => Ok(refusal()),
            _ => answer(&request, subject, rights, peer),
        };
        let reply = reply_or_error(reply);
        reader.get_mut().write_all(format!("{reply}\n").as_bytes())?;
    }
}

/// Exports a volume until the client sends no further request, or has gone.
fn serve_export(
    mut reader: BufReader<DescriptorStream>,
    request: &Value,
    daemon: &Arc<StoreDaemon>,
    listener: Option<OwnedFd>,
) -> io::Result<()> {
    let begun = export::begin(request, daemon, listener, reader.get_ref().connection()?);
    let volume = begun.as_ref().ok().copied().flatten();
    let reply = reply_or_error(begun.map(|volume| json!({ "is_ending": volume.is_none() })));
    let told = reader.get_mut().write_all(format!("{reply}\n").as_bytes());
    let Some(volume) = volume else { return told };
    // A request here is a mistake, and is not answered. The daemon ends the wait when it ends the export by itself.
    let mut rest = [0; 512];
    while told.is_ok() && reader.read(&mut rest).is_ok_and(|bytes| bytes > 0) {}
    let ended = reply_or_error(daemon.end_export(volume).map(|()| json!({})));
    let told = reader.get_mut().write_all(format!("{ended}\n").as_bytes());
    daemon.note_told();
    told
}

/// The reply to a request of the process `peer`.
fn answer(
    request: &Value,
    subject: &ControlSubject,
    rights: ClientRights,
    peer: Option<u32>,
) -> Result<Value, RequestRefusal> {
    let name = request["name"].as_str().unwrap_or_default();
    let daemon = subject.daemon();
    match request["operation"].as_str() {
        Some("status") => Ok(JsonSchema::STATUS.add_to(to_json(&subject.mount()?.status_report()))),
        Some("space") => Ok(JsonSchema::SPACE.add_to(to_json(&subject.mount()?.space_report()))),
        Some("why") => {
            let path = request["path"].as_str().unwrap_or_default();
            subject.mount()?.waits_report(path).map(|waits| to_json(&waits))
        }
        Some("sync") => daemon.sync().map(|()| json!({})),
        Some("rules") => Ok(daemon.policy.rules_in_force()),
        _ if rights != ClientRights::All => Ok(refusal()),
        Some("drained") => {
            let end = subject.mount()?.wait_for_end();
            Ok(json!({ "not_drained": end.written_back.err(), "ends_process": end.ends_process }))
        }
        Some("mount") => Ok(mount_request::answer(request, peer, daemon)),
        Some("scrub_begin") => Ok(daemon.begin_scrub()),
        Some("scrub") => daemon.go_on_scrubbing(request["scrub"].as_u64()),
        Some("space_exact") => {
            let space = subject.mount()?.exact_space_report()?;
            Ok(JsonSchema::SPACE.add_to(to_json(&space)))
        }
        Some("volume_list") => Ok(daemon.volumes()),
        Some("volume_clone") => clone_volumes(request, subject),
        Some("grow") => with_bytes(request, |bytes| daemon.grow(bytes)),
        Some("grow_buffer") => with_bytes(request, |bytes| daemon.grow_buffer(bytes)),
        Some("tune") => tune(request, subject.mount()?),
        Some("class") => set_class(request, daemon),
        Some("volume_create") => {
            with_bytes(request, |size| daemon.create_volume(name, size).map(|()| json!({})))
        }
        Some("volume_resize") => with_bytes(request, |size| {
            daemon.resize_volume(name, size.unwrap_or(0), request["accept_loss"] == true)
        }),
        Some("volume_rename") => {
            let to = request["to"].as_str().unwrap_or_default();
            daemon.rename_volume(name, to).map(|()| json!({}))
        }
        Some("volume_rollback") => {
            let snapshot = request["snapshot"].as_str().unwrap_or_default();
            daemon.roll_back_volume(name, snapshot)
        }
        Some("volume_delete") => daemon.delete_volume(name).map(|()| json!({})),
        _ => {
            let why = "not a request: {\"operation\": \"status\", \"sync\" or \"drained\"}";
            Err(RequestRefusal::new(&why, None))
        }
    }
}

/// The reply of `work`, which gets the field `bytes` of the request; `None` if the request has no such field.
fn with_bytes(
    request: &Value,
    work: impl FnOnce(Option<u64>) -> Result<Value, RequestRefusal>,
) -> Result<Value, RequestRefusal> {
    let bytes = &request["bytes"];
    if !bytes.is_null() && !bytes.is_u64() {
        return Err(RequestRefusal::new(&"bytes: a number", None));
    }
    work(bytes.as_u64())
}

/// Changes the data mode, the policy, or both.
fn tune(request: &Value, mounted: &MountedVolume) -> Result<Value, RequestRefusal> {
    let data = request["data"].as_str().and_then(DataMode::named);
    if data.is_none() && !request["data"].is_null() {
        return Err(RequestRefusal::new(&"data: journal or ordered", None));
    }
    let rules = request["rules"].as_str().unwrap_or_default();
    let choice = request["policy"].as_str().map(|policy| PolicyChoice::parse(policy, rules)).transpose();
    let choice = choice.map_err(|why| RequestRefusal::new(&why, None))?;
    Ok(json!({ "file_is_missing": mounted.tune(data, choice)? }))
}

fn clone_volumes(request: &Value, subject: &ControlSubject) -> Result<Value, RequestRefusal> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let wish = |clone: &Value| Some(CloneWish { name: text(&clone["name"])?, of: text(&clone["of"]) });
    let clones = request["clones"].as_array().and_then(|clones| clones.iter().map(wish).collect());
    let no_clones = || RequestRefusal::new(&"clones: a list of names", None);
    let clones: Vec<CloneWish> = clones.ok_or_else(no_clones)?;
    let mode = if request["read_only"] == true { VolumeMode::ReadOnly } else { VolumeMode::Writable };
    let default = match subject.mount() {
        Ok(mounted) => &mounted.volume.name,
        Err(_) if clones.iter().all(|clone| clone.of.is_some()) => volume::DEFAULT,
        Err(_) => {
            let help =
                "as `weir volume snapshot PATH NAME=VOLUME`, or `weir volume clone PATH NAME --of VOLUME`";
            return Err(RequestRefusal::new(&"name the volume to copy", Some(help.into())));
        }
    };
    subject.daemon().clone_volumes(&clones, default, mode)
}

fn set_class(request: &Value, daemon: &StoreDaemon) -> Result<Value, RequestRefusal> {
    let class = &request["class"];
    let pid = request["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
    let pid = pid.ok_or_else(|| RequestRefusal::new(&"pid: the id of a process or thread", None))?;
    let named = class.as_str().and_then(RequestClass::named);
    if named.is_none() && !class.is_null() {
        return Err(RequestRefusal::new(&"class: critical, background or null", None));
    }
    daemon.set_class(pid, named).map(|counts| json!({ "counts": counts }))
}

fn to_json(report: &impl Serialize) -> Value {
    serde_json::to_value(report).expect("a report has string keys")
}

fn reply_or_error(outcome: Result<Value, RequestRefusal>) -> Value {
    outcome.unwrap_or_else(|RequestRefusal { why, help }| json!({ "error": why, "help": help }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::RecvTimeoutError;

    #[test]
    fn connections_before_the_end_are_accepted() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("socket");
        let listener = Arc::new(UnixListener::bind(&socket).expect("a socket"));
        let early: Vec<_> = (0..5).map(|_| UnixStream::connect(&socket).expect("a listener")).collect();
        shutdown(&*listener, Shutdown::Read).expect("a listener");
        assert!(UnixStream::connect(&socket).is_err(), "a connection after the end");
        let (sender, accepted) = std::sync::mpsc::channel();
        // In a thread of its own, so that a listener that does not end fails the test.
        std::thread::spawn(move || accept_clients(&listener, |stream| drop(sender.send(stream))));
        let wait = || accepted.recv_timeout(Duration::from_secs(20));
        assert!(early.iter().all(|_| wait().is_ok()));
        assert_eq!(wait().err(), Some(RecvTimeoutError::Disconnected), "the listener does not end");
    }
}
