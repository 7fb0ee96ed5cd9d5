//! Completions of operations: each sends the reply and records the latency.

use super::FuseServer;
use crate::attributes::{attr_reply, entry_reply};
use crate::connection::PendingReply;
use crate::errno::reply_errno;
use fs::{FileAttributes, FsCompletion};

impl FuseServer {
    /// A completion that replies with an entry, which the kernel then remembers.
    pub(super) fn entry_completion(&self, reply: PendingReply) -> FsCompletion<FileAttributes> {
        let timer = self.shared_timer();
        let fs = self.fs.clone();
        let ttl = self.parts.ttl;
        Box::new(move |made| {
            let _timer = timer;
            match made.and_then(|made| fs.hold(made.ino).map(|()| made)) {
                Ok(made) => reply.body(&entry_reply(&made, ttl)),
                Err(error) => reply.error(reply_errno(&error)),
            }
        })
    }

    /// A completion that replies with attributes.
    pub(super) fn attr_completion(&self, reply: PendingReply) -> FsCompletion<FileAttributes> {
        let timer = self.shared_timer();
        let ttl = self.parts.ttl;
        Box::new(move |done| {
            let _timer = timer;
            match done {
                Ok(now) => reply.body(&attr_reply(&now, ttl)),
                Err(error) => reply.error(reply_errno(&error)),
            }
        })
    }

    /// A completion that replies with success or an error.
    pub(super) fn empty_completion(&self, reply: PendingReply) -> FsCompletion<()> {
        let timer = self.shared_timer();
        Box::new(move |done| {
            let _timer = timer;
            match done {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(reply_errno(&error)),
            }
        })
    }
}
