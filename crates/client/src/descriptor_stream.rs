//! A Unix stream on which a client sends descriptors beside the bytes of a request.

use crate::ranges::RANGES_MAX;
use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Descriptors that one message may carry: two files for each range of a vector, and the bytes to write. The kernel allows 253.
const DESCRIPTORS_MAX: usize = 2 * RANGES_MAX + 1;

/// Sends `bytes`, with copies of the descriptors beside the first of them. Sends nothing if there are more than
/// [`DESCRIPTORS_MAX`] descriptors.
pub(crate) fn send(mut stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let has_space = beside.push(SendAncillaryMessage::ScmRights(descriptors));
    if descriptors.len() > DESCRIPTORS_MAX || !has_space {
        let why = format!("{} descriptors, and a request may have {DESCRIPTORS_MAX}", descriptors.len());
        return Err(io::Error::new(ErrorKind::InvalidInput, why));
    }
    let line = [IoSlice::new(bytes)];
    let sent = retry_on_intr(|| sendmsg(stream, &line, &mut beside, SendFlags::NOSIGNAL))?;
    stream.write_all(&bytes[sent..])
}

/// The receiving end. Keeps the descriptors of the last message that had some. A message of which some descriptors were lost,
/// because this process may not have so many, counts as one without descriptors.
pub struct DescriptorStream {
    stream: UnixStream,
    received: Vec<OwnedFd>,
}

impl DescriptorStream {
    /// Receives from `stream`.
    pub fn new(stream: UnixStream) -> DescriptorStream {
        DescriptorStream { stream, received: Vec::new() }
    }

    /// A second handle of the connection.
    pub fn connection(&self) -> io::Result<UnixStream> {
        self.stream.try_clone()
    }

    /// Whether the process at the other end has closed the connection, and reads no reply.
    pub fn is_hung_up(&self) -> bool {
        host::is_hung_up(&self.stream)
    }

    /// Takes the descriptors that arrived with the bytes read so far, in their order.
    pub fn take_descriptors(&mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.received)
    }
}

impl Read for DescriptorStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(into)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let message = retry_on_intr(|| recvmsg(self.stream.as_fd(), &mut into, &mut beside, flags))?;
        for received in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = received {
                // Those of an earlier message are closed.
                self.received = descriptors.collect();
            }
        }
        if message.flags.contains(ReturnFlags::CTRUNC) {
            self.received.clear();
        }
        Ok(message.bytes)
    }
}

impl Write for DescriptorStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{BufRead, BufReader, Seek};

    #[test]
    fn descriptors_arrive_with_their_line() {
        let (client, server) = UnixStream::pair().expect("sockets");
        let mut server = BufReader::new(DescriptorStream::new(server));
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"content").expect("space");
        (&client).write_all(b"without\n").expect("a socket");
        let mut line = String::new();
        server.read_line(&mut line).expect("a line");
        assert!(server.get_mut().take_descriptors().is_empty());
        let other = tempfile::tempfile().expect("a file");
        send(&client, b"with\n", &[other.as_fd(), file.as_fd()]).expect("a socket");
        line.clear();
        server.read_line(&mut line).expect("a line");
        assert_eq!(line, "with\n");
        let [_, received] = server.get_mut().take_descriptors().try_into().expect("two descriptors");
        let mut received = File::from(received);
        let mut content = String::new();
        received.rewind().expect("a file");
        received.read_to_string(&mut content).expect("a file");
        assert_eq!(content, "content");
    }

    #[test]
    fn as_many_descriptors_as_a_vector_needs_arrive() {
        let (client, server) = UnixStream::pair().expect("sockets");
        let mut server = BufReader::new(DescriptorStream::new(server));
        let file = tempfile::tempfile().expect("a file");
        let refused = send(&client, b"too many\n", &[file.as_fd(); DESCRIPTORS_MAX + 1]);
        assert_eq!(refused.map_err(|error| error.kind()), Err(ErrorKind::InvalidInput));
        send(&client, b"all\n", &[file.as_fd(); DESCRIPTORS_MAX]).expect("a socket");
        let mut line = String::new();
        server.read_line(&mut line).expect("a line");
        assert_eq!(line, "all\n");
        assert_eq!(server.get_mut().take_descriptors().len(), DESCRIPTORS_MAX);
    }
}
