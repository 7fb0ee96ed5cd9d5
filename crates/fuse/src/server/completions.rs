//! What becomes of an operation's result: the reply, once, and how long it took.

use super::Server;
use crate::attributes::{attr_reply, entry_reply};
use crate::connection::Reply;
use crate::errno::refused;
use crate::latency::Class;
use fs::{Attributes, Completion};

impl Server {
    /// A completion that ends with an entry, which the kernel then remembers.
    pub(super) fn entry(&self, class: Class, reply: Reply) -> Completion<Attributes> {
        let (timer, fs, ttl) = (self.timer(class), self.fs.clone(), self.ttl);
        Box::new(move |made| {
            let _timer = timer;
            match made.and_then(|made| fs.hold(made.ino).map(|()| made)) {
                Ok(made) => reply.body(&entry_reply(&made, ttl)),
                Err(error) => reply.error(refused(&error)),
            }
        })
    }

    /// A completion that ends with attributes.
    pub(super) fn attr(&self, class: Class, reply: Reply) -> Completion<Attributes> {
        let (timer, ttl) = (self.timer(class), self.ttl);
        Box::new(move |done| {
            let _timer = timer;
            match done {
                Ok(now) => reply.body(&attr_reply(&now, ttl)),
                Err(error) => reply.error(refused(&error)),
            }
        })
    }

    /// A completion that ends with success or not.
    pub(super) fn empty(&self, class: Class, reply: Reply) -> Completion<()> {
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
