//! The kernel's FUSE protocol, version 7, as `include/uapi/linux/fuse.h` describes it: decodes requests,
//! encodes replies. Pure: no I/O.
//!
//! A program chooses the numbers in a request, so each may have any value of its type. No arithmetic is done
//! with them here.

mod reply;
mod request;
#[cfg(test)]
mod tests;

pub(crate) use reply::{
    AttrReply, CopyReply, CreateReply, EntryReply, ListingReply, LseekReply, OpenReply, ReplyHeader,
    StatfsReply, WireAttributes, WriteReply, XattrSizeReply,
};
pub(crate) use request::{
    BatchForget, CopyCount, FuseOp, IS_DIRECT_IO, IS_WRITE_BACK, RequestHeader, SetTimeIn, SetattrIn,
    WRITE_KILLS_PRIVILEGES,
};
