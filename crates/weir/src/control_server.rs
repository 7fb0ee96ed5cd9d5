//! The daemon's side of the control socket.
//!
//! A line of JSON asks, a line of JSON answers: `{"operation":"status"}`, `{"operation":"sync"}`, and `{"operation":"drained"}`,
//! which is answered when the mount is gone and everything is stored. What is scrubbed and done with volumes goes the same way.
//!
//! | who asks | may |
//! | --- | --- |
//! | root, and the user of the daemon | everything |
//! | who owns the mount's root directory | look and sync: `status`, `space`, `sync` |
//! | anybody else | nothing |

use crate::control_address::{self, DeviceNumber};
use crate::error::WeirError;
use crate::status::{MountedStore, RequestRefusal, ScrubFrom};
use host::socket_peer;
use rustix::net::{Shutdown, shutdown};
use rustix::process::geteuid;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use store::DataMode;

/// Bytes of a request line; ours have some twenty.
const REQUEST_BYTES_MAX: u64 = 4096;

/// Clients served at once. More are a mistake of somebody's, and are turned away; half of them are for those who may do everything.
const CLIENTS_MAX: usize = 32;

/// How long the end waits for clients to get their last answer.
const CLOSE_WAIT: Duration = Duration::from_secs(2);

/// What a client may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientRights {
    All,
    ReadAndSync,
    None,
}

/// A listening control socket.
pub(crate) struct ControlServer {
    listener: Arc<UnixListener>,
    listening: JoinHandle<()>,
    clients: Arc<AtomicUsize>,
}

impl ControlServer {
    /// Listens for clients of `mounted`, whose mount has this device number.
    pub(crate) fn start(
        mounted: Arc<MountedStore>,
        device: DeviceNumber,
    ) -> Result<ControlServer, WeirError> {
        let failed = |source| WeirError::Spawn { source };
        let listener = Arc::new(control_address::listen(device).map_err(failed)?);
        let clients = Arc::new(AtomicUsize::new(0));
        let (heard, counted) = (listener.clone(), clients.clone());
        let listening = std::thread::Builder::new().name("control".into());
        let listening = listening
            .spawn(move || listen(&heard, |stream| serve_in_thread(stream, &mounted, &counted)))
            .map_err(failed)?;
        Ok(ControlServer { listener, listening, clients })
    }

    /// Takes no more clients: the mount is gone, and its device number may be somebody else's by now. Who has connected is
    /// still accepted.
    pub(crate) fn stop_accepting(&self) {
        let _ = shutdown(&*self.listener, Shutdown::Read);
    }

    /// Lets those who wait get their answer, and those who have just connected.
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

fn serve_in_thread(stream: UnixStream, mounted: &Arc<MountedStore>, clients: &Arc<AtomicUsize>) {
    let rights = rights_of(&stream, mounted);
    let clients_max = match rights {
        ClientRights::All => CLIENTS_MAX,
        ClientRights::ReadAndSync => CLIENTS_MAX / 2,
        ClientRights::None => return send_reply(&stream, &refusal()),
    };
    // Only this thread adds, so the limit holds.
    if clients.load(Ordering::Acquire) >= clients_max {
        let why = format!("more than {clients_max} clients at once; try again");
        return send_reply(&stream, &json!({ "error": why }));
    }
    clients.fetch_add(1, Ordering::AcqRel);
    let (mounted, counted) = (mounted.clone(), clients.clone());
    let serve = move || {
        // A client that goes away in the middle has nobody to tell.
        let _ = serve(stream, &mounted, rights);
        counted.fetch_sub(1, Ordering::AcqRel);
    };
    if std::thread::Builder::new().name("client".into()).spawn(serve).is_err() {
        clients.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Says one thing to who is not served. A new connection has space for a line: this does not wait.
fn send_reply(mut stream: &UnixStream, reply: &Value) {
    let _ = stream.write_all(format!("{reply}\n").as_bytes());
}

/// The kernel says who asks, so this needs no secret.
fn rights_of(stream: &UnixStream, mounted: &MountedStore) -> ClientRights {
    match socket_peer(stream.as_fd()) {
        Ok(peer) if peer.uid == 0 || peer.uid == geteuid().as_raw() => ClientRights::All,
        Ok(peer) if mounted.owner_of_files() == Some(peer.uid) => ClientRights::ReadAndSync,
        _ => ClientRights::None,
    }
}

/// The answer to who may not ask: the client knows whose daemon it is.
fn refusal() -> Value {
    json!({ "refused": true })
}

fn serve(stream: UnixStream, mounted: &MountedStore, rights: ClientRights) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        if reader.by_ref().take(REQUEST_BYTES_MAX).read_line(&mut line)? == 0 {
            return Ok(());
        }
        let reply = answer(&line, mounted, rights);
        reader.get_mut().write_all(format!("{reply}\n").as_bytes())?;
    }
}

fn answer(line: &str, mounted: &MountedStore, rights: ClientRights) -> Value {
    let request: Value = serde_json::from_str(line).unwrap_or_default();
    let name = request["name"].as_str().unwrap_or_default();
    match request["operation"].as_str() {
        Some("status") => mounted.report(),
        Some("space") => mounted.space(),
        Some("sync") => reply_or_error(mounted.sync().map(|()| json!({}))),
        _ if rights != ClientRights::All => refusal(),
        Some("drained") => match mounted.wait_drained() {
            Ok(()) => json!({}),
            Err(why) => json!({ "not_drained": why }),
        },
        Some("scrub_begin") => mounted.scrub(ScrubFrom::Start),
        Some("scrub") => mounted.scrub(ScrubFrom::WhereItIs),
        Some("space_exact") => reply_or_error(mounted.space_exact()),
        Some("volume_list") => mounted.volumes(),
        Some("volume_clone") => reply_or_error(mounted.clone_volume(name, request["read_only"] == true)),
        Some("grow") => with_bytes(&request, |bytes| mounted.grow(bytes)),
        Some("grow_buffer") => with_bytes(&request, |bytes| mounted.grow_buffer(bytes)),
        Some("tune") => match request["data"].as_str().and_then(DataMode::named) {
            Some(mode) => reply_or_error(mounted.set_data_mode(mode).map(|()| json!({}))),
            None => json!({ "error": "data: journal or ordered" }),
        },
        Some("volume_delete") => reply_or_error(mounted.delete_volume(name).map(|()| json!({}))),
        _ => json!({ "error": "not a request: {\"operation\": \"status\", \"sync\" or \"drained\"}" }),
    }
}

/// What `work` says, given the request's bytes, if it names any.
fn with_bytes(request: &Value, work: impl FnOnce(Option<u64>) -> Result<Value, RequestRefusal>) -> Value {
    match (&request["bytes"], request["bytes"].as_u64()) {
        (Value::Null, _) => reply_or_error(work(None)),
        (_, Some(bytes)) => reply_or_error(work(Some(bytes))),
        (_, None) => json!({ "error": "bytes: a number" }),
    }
}

fn reply_or_error(outcome: Result<Value, RequestRefusal>) -> Value {
    outcome.unwrap_or_else(|RequestRefusal { why, help }| json!({ "error": why, "help": help }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::RecvTimeoutError;

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
