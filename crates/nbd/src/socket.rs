//! Sockets of both families, Unix and TCP.

use rustix::net::sockopt::set_socket_keepalive;
use rustix::net::{Shutdown, shutdown};
use std::io::{self, IoSlice, Read, Write};
use std::net::{self, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// The socket on which a server waits for clients.
#[derive(Debug)]
pub enum Listener {
    /// Clients on this machine. The permissions of the socket's file decide who may connect.
    Unix(UnixListener),
    /// Clients in the network. Everybody who can reach the address may connect.
    Tcp(TcpListener),
}

impl Listener {
    /// Waits for a client.
    pub(crate) fn accept(&self) -> io::Result<ClientSocket> {
        match self {
            Listener::Unix(listener) => Ok(ClientSocket::Unix(listener.accept()?.0)),
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                // Without this, a small reply waits until the client has acknowledged the reply before.
                stream.set_nodelay(true)?;
                // Without this, the connection of a machine that lost its power stays for ever.
                set_socket_keepalive(&stream, true)?;
                Ok(ClientSocket::Tcp(stream))
            }
        }
    }

    /// Makes `accept` fail with EINVAL, once it has returned the clients that have connected already.
    pub(crate) fn stop_accepting(&self) {
        // Fails only if the socket is not a listener, and then `accept` fails anyway.
        let _ = match self {
            Listener::Unix(listener) => shutdown(listener, Shutdown::Read),
            Listener::Tcp(listener) => shutdown(listener, Shutdown::Read),
        };
    }
}

/// The connection to one client. Two threads may read and write at once.
#[derive(Debug)]
pub(crate) enum ClientSocket {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl ClientSocket {
    /// The longest that a read or a write waits for the client. `None`: for ever.
    pub(crate) fn set_wait_max(&self, wait: Option<Duration>) -> io::Result<()> {
        match self {
            ClientSocket::Unix(stream) => {
                stream.set_read_timeout(wait)?;
                stream.set_write_timeout(wait)
            }
            ClientSocket::Tcp(stream) => {
                stream.set_read_timeout(wait)?;
                stream.set_write_timeout(wait)
            }
        }
    }

    /// Ends the connection: reads and writes in progress return, and later ones fail.
    pub(crate) fn hang_up(&self) {
        // Fails if the client has hung up first.
        let _ = match self {
            ClientSocket::Unix(stream) => stream.shutdown(net::Shutdown::Both),
            ClientSocket::Tcp(stream) => stream.shutdown(net::Shutdown::Both),
        };
    }
}

impl Read for &ClientSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            ClientSocket::Unix(stream) => (&mut &*stream).read(buffer),
            ClientSocket::Tcp(stream) => (&mut &*stream).read(buffer),
        }
    }
}

impl Write for &ClientSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            ClientSocket::Unix(stream) => (&mut &*stream).write(bytes),
            ClientSocket::Tcp(stream) => (&mut &*stream).write(bytes),
        }
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            ClientSocket::Unix(stream) => (&mut &*stream).write_vectored(slices),
            ClientSocket::Tcp(stream) => (&mut &*stream).write_vectored(slices),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
