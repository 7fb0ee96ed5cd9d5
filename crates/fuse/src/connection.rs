//! A channel to /dev/fuse: a read takes a request, a write sends a reply.

use crate::background_requests::ListedRequest;
use crate::protocol::{ReplyHeader, RequestHeader};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use zerocopy::{Immutable, IntoBytes};

/// A channel to the kernel, used by one thread.
#[derive(Debug)]
pub(crate) struct FuseConnection {
    device: Arc<File>,
}

impl FuseConnection {
    /// A channel on an open `device`, which stays open as long as the channel or one of its replies lives.
    pub(crate) fn of(device: &impl AsFd) -> io::Result<FuseConnection> {
        let device = device.as_fd().try_clone_to_owned()?;
        Ok(FuseConnection { device: Arc::new(device.into()) })
    }

    /// Opens another channel of the same mount, for another thread.
    pub(crate) fn clone_channel(&self) -> io::Result<FuseConnection> {
        host::clone_fuse_device(&self.device).map(|device| FuseConnection { device: Arc::new(device) })
    }

    /// Waits for a request, and reads it into `buffer`. `None`: the mount is gone.
    pub(crate) fn receive<'b>(&self, buffer: &'b mut [u8]) -> io::Result<Option<&'b [u8]>> {
        loop {
            match (&*self.device).read(buffer) {
                Ok(len) => return Ok(Some(&buffer[..len])),
                Err(error) => match Errno::from_io_error(&error) {
                    // The request was interrupted, or a signal came: read the next one.
                    Some(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                    // The second one comes if the kernel closes the connection during the read.
                    Some(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                    _ => return Err(error),
                },
            }
        }
    }

    /// The reply to the request with this header.
    pub(crate) fn reply_to(&self, header: &RequestHeader) -> PendingReply {
        let device = header.wants_reply().then(|| self.device.clone());
        PendingReply { unique: header.unique, device, listed: None }
    }
}

/// The reply to a request, to be sent once, by any thread. A reply that is dropped sends EIO, so that no
/// program waits for ever.
#[derive(Debug)]
pub(crate) struct PendingReply {
    unique: u64,
    /// `None` once the reply is sent, or if the kernel expects none.
    device: Option<Arc<File>>,
    /// For some background requests: dropped after the reply is sent.
    listed: Option<ListedRequest>,
}

impl PendingReply {
    /// Keeps the request listed until the reply is sent.
    pub(crate) fn keep_listed(&mut self, listed: ListedRequest) {
        self.listed = Some(listed);
    }

    /// Replies with success.
    pub(crate) fn ok(self) {
        self.bytes(&[]);
    }

    /// Replies with an error.
    pub(crate) fn error(mut self, errno: Errno) {
        self.send(-errno.raw_os_error(), &[]);
    }

    /// Replies with bytes.
    pub(crate) fn bytes(mut self, bytes: &[u8]) {
        self.send(0, bytes);
    }

    /// Replies with a structure.
    pub(crate) fn body(self, body: &(impl IntoBytes + Immutable)) {
        self.bytes(body.as_bytes());
    }

    fn send(&mut self, error: i32, body: &[u8]) {
        let Some(device) = self.device.take() else { return };
        // The kernel never asks for more bytes than 32 bits can count.
        let len = (size_of::<ReplyHeader>() + body.len()) as u32;
        let header = ReplyHeader { len, error, unique: self.unique };
        let parts = [IoSlice::new(header.as_bytes()), IoSlice::new(body)];
        let parts = if body.is_empty() { &parts[..1] } else { &parts };
        // The kernel takes a reply as a whole. An error means that no process waits for it any more.
        let _ = (&*device).write_vectored(parts);
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        self.send(-Errno::IO.raw_os_error(), &[]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background_requests::{BackgroundRequests, LockedInodes};
    use fs::Ino;

    #[test]
    fn a_background_request_is_listed_until_its_reply_is_sent() {
        let requests = Arc::new(BackgroundRequests::default());
        let is_listed = || !requests.under_way().is_empty();
        let locks = LockedInodes { inode: Ino(3), other: None, changes_names: false };
        let reply = || {
            let mut reply = PendingReply { unique: 1, device: None, listed: None };
            reply.keep_listed(requests.enter(1, 7, locks));
            assert!(is_listed());
            reply
        };
        reply().ok();
        assert!(!is_listed());
        reply().error(Errno::IO);
        assert!(!is_listed());
        drop(reply());
        assert!(!is_listed());
    }
}
