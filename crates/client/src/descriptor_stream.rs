//! A Unix stream on which a client sends descriptors beside the bytes of a request.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Descriptors that one message may carry. The kernel closes further ones.
const DESCRIPTORS_MAX: usize = 4;

/// Sends `bytes`, with copies of at most [`DESCRIPTORS_MAX`] descriptors beside the first of them.
pub(crate) fn send(mut stream: &UnixStream, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    let has_space = beside.push(SendAncillaryMessage::ScmRights(descriptors));
    assert!(has_space, "space for the descriptors");
    let sent = sendmsg(stream, &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL)?;
    stream.write_all(&bytes[sent..])
}

/// The receiving end. Keeps the descriptors of the last message that had some.
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
        let message = loop {
            match recvmsg(self.stream.as_fd(), &mut into, &mut beside, flags) {
                Err(error) if io::Error::from(error).kind() == ErrorKind::Interrupted => {}
                message => break message?,
            }
        };
        for received in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = received {
                // Those of an earlier message are closed.
                self.received = descriptors.collect();
            }
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
}
