//! What becomes of an operation's result: the reply, once, and how long it took.

use super::Server;
use crate::attributes::{generation, to_kernel};
use crate::errno::refused;
use crate::latency::Class;
use fs::{Attributes, Completion};
use fuser::{ReplyAttr, ReplyEmpty, ReplyEntry};

impl Server {
    /// A completion that ends with an entry, which the kernel then remembers.
    pub(super) fn entry(&self, class: Class, reply: ReplyEntry) -> Completion<Attributes> {
        let (timer, fs, ttl) = (self.timer(class), self.fs.clone(), self.ttl);
        Box::new(move |made| {
            let _timer = timer;
            match made.and_then(|made| fs.hold(made.ino).map(|()| made)) {
                Ok(made) => reply.entry(&ttl, &to_kernel(&made), generation(&made)),
                Err(error) => reply.error(refused(&error)),
            }
        })
    }

    /// A completion that ends with attributes.
    pub(super) fn attr(&self, class: Class, reply: ReplyAttr) -> Completion<Attributes> {
        let (timer, ttl) = (self.timer(class), self.ttl);
        Box::new(move |done| {
            let _timer = timer;
            match done {
                Ok(now) => reply.attr(&ttl, &to_kernel(&now)),
                Err(error) => reply.error(refused(&error)),
            }
        })
    }

    /// A completion that ends with success or not.
    pub(super) fn empty(&self, class: Class, reply: ReplyEmpty) -> Completion<()> {
        let timer = self.timer(class);
        Box::new(move |done| {
            let _timer = timer;
            match done {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(refused(&error)),
            }
        })
    }
}
