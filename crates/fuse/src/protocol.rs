//! The kernel's FUSE protocol, version 7, as `include/uapi/linux/fuse.h` describes it: requests to read, bodies of replies to
//! write. Pure: nothing here does I/O.
//!
//! A number of a request is any number that its type can hold, because a program chose it. None is calculated with here.

mod reply;
mod request;
#[cfg(test)]
mod tests;

pub(crate) use reply::{
    AttrReply, CopyReply, CreateReply, EntryReply, ListingReply, LseekReply, OpenReply, ReplyHeader,
    StatfsReply, WireAttributes, WriteReply, XattrSizeReply,
};
pub(crate) use request::{
    BatchForget, CopyCount, FuseOp, IS_DIRECT_IO, RequestHeader, SetTimeIn, SetattrIn, WRITE_KILLS_PRIVILEGES,
};
