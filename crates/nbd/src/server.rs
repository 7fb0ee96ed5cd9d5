//! The server: accepts clients, and ends them.

use crate::connection::{Export, serve_requests};
use crate::disk::Disk;
use crate::handshake::shake_hands;
use crate::negotiation::ExportDescription;
use crate::protocol::NAME_BYTES_MAX;
use crate::socket::{ClientSocket, Listener};
use std::io::{self, BufReader};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// The most clients connected to one server at once. Further clients are disconnected at once.
const CONNECTIONS_MAX: usize = 16;

/// The longest that the server waits for the next bytes of a client's handshake.
const HANDSHAKE_WAIT_MAX: Duration = Duration::from_secs(30);

/// The size in bytes of the buffer in which a connection collects small requests.
const READ_BUFFER_BYTES: usize = 256 << 10;

/// How long the server waits after it failed to accept a client.
const ACCEPT_RETRY_WAIT: Duration = Duration::from_millis(10);

/// A running server with one export. Dropping the server does the same as [`ExportServer::stop`].
#[derive(Debug)]
pub struct ExportServer {
    listener: Arc<Listener>,
    connections: Arc<Connections>,
    /// `None` once the server has stopped.
    accepting: Option<JoinHandle<()>>,
}

impl ExportServer {
    /// Exports `disk` under `name` to the clients that connect to `listener`. Clients may also use the empty
    /// name.
    ///
    /// Fails with `InvalidInput` if the name has more than 4096 bytes, and with the system's error if it
    /// starts no thread. The file of a Unix socket belongs to the caller, and stays after the server's end.
    pub fn start(listener: Listener, name: &str, disk: Arc<dyn Disk>) -> io::Result<ExportServer> {
        if name.len() > NAME_BYTES_MAX {
            let why = format!("the name of an NBD export has at most {NAME_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let description =
            ExportDescription { name: name.into(), size: disk.size(), is_read_only: disk.is_read_only() };
        let export = Arc::new(Export { disk, description });
        let listener = Arc::new(listener);
        let connections = Arc::new(Connections::default());
        let listener_of_thread = listener.clone();
        let connections_of_thread = connections.clone();
        let accept = move || accept_clients(&listener_of_thread, &connections_of_thread, &export);
        let accepting = thread::Builder::new().name("nbd-accept".into()).spawn(accept)?;
        Ok(ExportServer { listener, connections, accepting: Some(accepting) })
    }

    /// The number of clients that are connected now. Clients in the handshake count, and so does a client
    /// that has gone while its requests are still in flight.
    pub fn connections(&self) -> usize {
        self.connections.count()
    }

    /// Disconnects all clients and accepts no more. Returns after all requests in flight have completed and
    /// all threads of the server have ended. Clients may miss the replies to requests in flight.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for ExportServer {
    fn drop(&mut self) {
        self.listener.stop_accepting();
        if let Some(accepting) = self.accepting.take() {
            // Fails if the thread has panicked, which has printed a message then.
            let _ = accepting.join();
        }
        self.connections.end_all();
    }
}

/// The connections of a server.
#[derive(Debug, Default)]
struct Connections {
    list: Mutex<Vec<Connection>>,
}

/// One connection of a server.
#[derive(Debug)]
struct Connection {
    /// The thread owns the socket, so that the socket is closed when the thread ends.
    socket: Weak<ClientSocket>,
    thread: JoinHandle<()>,
}

impl Connections {
    /// Serves a client in a thread of its own, unless the server has too many clients.
    fn serve(&self, socket: ClientSocket, export: &Arc<Export>) {
        let mut list = self.list();
        list.retain(|connection| !connection.thread.is_finished());
        if list.len() >= CONNECTIONS_MAX {
            tracing::warn!("an NBD client is refused: {CONNECTIONS_MAX} clients are connected");
            return;
        }
        let socket = Arc::new(socket);
        let weak_socket = Arc::downgrade(&socket);
        let export = export.clone();
        let serve = move || {
            if let Err(error) = serve_client(&socket, &export) {
                tracing::debug!("the connection of an NBD client failed: {error}");
            }
        };
        match thread::Builder::new().name("nbd-requests".into()).spawn(serve) {
            Ok(thread) => list.push(Connection { socket: weak_socket, thread }),
            Err(error) => tracing::warn!("an NBD client is refused: no thread: {error}"),
        }
    }

    fn count(&self) -> usize {
        self.list().iter().filter(|connection| !connection.thread.is_finished()).count()
    }

    /// Disconnects all clients, and waits for their requests and threads.
    fn end_all(&self) {
        let connections = std::mem::take(&mut *self.list());
        for connection in &connections {
            if let Some(socket) = connection.socket.upgrade() {
                socket.hang_up();
            }
        }
        for connection in connections {
            // Fails if the thread has panicked, which has printed a message then.
            let _ = connection.thread.join();
        }
    }

    fn list(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Accepts clients until the listener is stopped.
fn accept_clients(listener: &Listener, connections: &Connections, export: &Arc<Export>) {
    loop {
        match listener.accept() {
            Ok(socket) => connections.serve(socket, export),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return,
            Err(error) => {
                // The client may be gone already, or the process may be out of descriptors for a while.
                tracing::debug!("an NBD client was not accepted: {error}");
                thread::sleep(ACCEPT_RETRY_WAIT);
            }
        }
    }
}

/// Serves one client from its first byte to its last.
fn serve_client(socket: &ClientSocket, export: &Export) -> io::Result<()> {
    let mut input = BufReader::with_capacity(READ_BUFFER_BYTES, socket);
    let mut output = socket;
    socket.set_wait_max(Some(HANDSHAKE_WAIT_MAX))?;
    let Some(features) = shake_hands(&mut input, &mut output, &export.description)? else {
        return Ok(());
    };
    socket.set_wait_max(None)?;
    serve_requests(&mut input, &mut output, features, export, || socket.hang_up())
}
