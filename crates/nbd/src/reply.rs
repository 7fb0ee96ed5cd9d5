//! The reply to one request, on its way from the `Disk` to the thread that writes replies.

use crate::disk::{DiskError, Extent, ExtentKind};
use crate::in_flight::InFlightPlace;
use crate::protocol::{
    NBD_STATE_HOLE, NBD_STATE_ZERO, NbdErrno, RequestHeader, StatusDescriptor, block_status_chunk,
    error_chunk, none_chunk, offset_data_chunk_head, simple_reply,
};
use std::sync::mpsc::Sender;

/// The format of the replies that client and server agreed on in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyFormat {
    /// Every reply is a simple reply.
    Simple,
    /// Replies with data, and replies that report errors, are structured. A reply that reports plain success
    /// is still a simple reply, which the specification allows for all commands but READ and BLOCK_STATUS.
    Structured,
}

/// A reply as its bytes. Dropping the reply ends the request: its place is free for the next request.
#[derive(Debug)]
pub(crate) struct Reply {
    /// All bytes that come before the data.
    pub(crate) head: Vec<u8>,
    /// The data of a read, empty in other replies.
    pub(crate) data: Vec<u8>,
    /// Freed when the reply is dropped.
    _place: InFlightPlace,
}

/// The right to reply to one request, once, from any thread. A right that is dropped unused sends EIO, so that
/// no client waits for ever.
pub(crate) struct PendingReply {
    request: RequestHeader,
    format: ReplyFormat,
    replies: Sender<Reply>,
    /// `None` once the reply is queued.
    place: Option<InFlightPlace>,
}

impl PendingReply {
    /// The reply to `request`, to be sent to the queue `replies`.
    pub(crate) fn new(
        request: RequestHeader,
        format: ReplyFormat,
        replies: Sender<Reply>,
        place: InFlightPlace,
    ) -> PendingReply {
        PendingReply { request, format, replies, place: Some(place) }
    }

    /// Replies with an error. The client may show `message` to a person.
    pub(crate) fn error(mut self, errno: NbdErrno, message: &str) {
        self.queue_error(errno, message);
    }

    /// Replies to a request whose reply has no data.
    pub(crate) fn finish(mut self, outcome: Result<(), DiskError>) {
        match outcome {
            Ok(()) => self.queue(simple_reply(self.request.cookie, None), Vec::new()),
            Err(error) => self.queue_error(error.into(), &error.to_string()),
        }
    }

    /// Replies to a read.
    pub(crate) fn finish_read(mut self, outcome: Result<Vec<u8>, DiskError>) {
        let request = self.request;
        match outcome {
            Ok(data) if data.len() != request.len as usize => {
                self.queue_error(NbdErrno::Eio, "the disk read another number of bytes");
            }
            Ok(data) => {
                let head = match self.format {
                    ReplyFormat::Simple => simple_reply(request.cookie, None),
                    // A chunk with data has at least one byte of data.
                    ReplyFormat::Structured if data.is_empty() => none_chunk(request.cookie),
                    ReplyFormat::Structured => {
                        offset_data_chunk_head(request.cookie, request.offset, request.len)
                    }
                };
                self.queue(head, data);
            }
            Err(error) => self.queue_error(error.into(), &error.to_string()),
        }
    }

    /// Replies to BLOCK_STATUS.
    pub(crate) fn finish_block_status(mut self, outcome: Result<Vec<Extent>, DiskError>) {
        match outcome.map(|extents| status_descriptors(&extents, self.request.len)) {
            Ok(descriptors) if descriptors.is_empty() => {
                self.queue_error(NbdErrno::Eio, "the disk reported no extents");
            }
            Ok(descriptors) => {
                self.queue(block_status_chunk(self.request.cookie, &descriptors), Vec::new());
            }
            Err(error) => self.queue_error(error.into(), &error.to_string()),
        }
    }

    fn queue_error(&mut self, errno: NbdErrno, message: &str) {
        let cookie = self.request.cookie;
        let head = match self.format {
            ReplyFormat::Simple => simple_reply(cookie, Some(errno)),
            ReplyFormat::Structured => error_chunk(cookie, errno, message),
        };
        self.queue(head, Vec::new());
    }

    fn queue(&mut self, head: Vec<u8>, data: Vec<u8>) {
        if let Some(place) = self.place.take() {
            // Fails only if the writing thread has panicked. The connection is being closed then.
            let _ = self.replies.send(Reply { head, data, _place: place });
        }
    }
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        self.queue_error(NbdErrno::Eio, "the disk did not complete the request");
    }
}

/// The extents as the protocol describes them: none beyond the `len` bytes of the request, and neighbours of
/// one kind merged.
fn status_descriptors(extents: &[Extent], len: u32) -> Vec<StatusDescriptor> {
    let mut descriptors: Vec<StatusDescriptor> = Vec::new();
    let mut rest = len;
    for extent in extents {
        let len = u32::try_from(extent.len).map_or(rest, |len| len.min(rest));
        if len == 0 {
            continue;
        }
        rest -= len;
        let state = match extent.kind {
            ExtentKind::Data => 0,
            ExtentKind::Hole => NBD_STATE_HOLE | NBD_STATE_ZERO,
        };
        match descriptors.last_mut() {
            Some(last) if last.state == state => last.len += len,
            _ => descriptors.push(StatusDescriptor { len, state }),
        }
    }
    descriptors
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::InFlightLimit;
    use crate::protocol::{NBD_CMD_BLOCK_STATUS, NBD_CMD_READ};
    use std::sync::{Arc, mpsc};

    const REQUEST: RequestHeader =
        RequestHeader { flags: 0, command: NBD_CMD_READ, cookie: 5, offset: 3, len: 2 };

    /// The bytes of the reply to `request` that `answer` gives.
    fn reply_bytes(
        request: RequestHeader,
        format: ReplyFormat,
        answer: impl FnOnce(PendingReply),
    ) -> Vec<u8> {
        let (sender, replies) = mpsc::channel();
        let place = Arc::new(InFlightLimit::default()).admit(0);
        answer(PendingReply::new(request, format, sender, place));
        let mut reply = replies.recv().expect("a reply");
        assert!(replies.recv().is_err(), "two replies");
        reply.head.append(&mut reply.data);
        reply.head
    }

    #[test]
    fn a_read_is_answered_in_the_format_of_the_connection() {
        let read = |format| reply_bytes(REQUEST, format, |reply| reply.finish_read(Ok(vec![8, 9])));
        assert_eq!(read(ReplyFormat::Simple), [simple_reply(5, None), vec![8, 9]].concat());
        let chunk = [offset_data_chunk_head(5, 3, 2), vec![8, 9]].concat();
        assert_eq!(read(ReplyFormat::Structured), chunk);
    }

    #[test]
    fn an_empty_read_has_no_data_chunk() {
        let request = RequestHeader { len: 0, ..REQUEST };
        let read = |format| reply_bytes(request, format, |reply| reply.finish_read(Ok(Vec::new())));
        assert_eq!(read(ReplyFormat::Simple), simple_reply(5, None));
        assert_eq!(read(ReplyFormat::Structured), none_chunk(5));
    }

    #[test]
    fn errors_have_a_message_where_the_format_allows() {
        let fail = |format| reply_bytes(REQUEST, format, |reply| reply.finish(Err(DiskError::NoSpace)));
        assert_eq!(fail(ReplyFormat::Simple), simple_reply(5, Some(NbdErrno::Enospc)));
        let chunk = error_chunk(5, NbdErrno::Enospc, "no space left for the disk");
        assert_eq!(fail(ReplyFormat::Structured), chunk);
    }

    #[test]
    fn a_dropped_reply_is_an_error() {
        assert_eq!(reply_bytes(REQUEST, ReplyFormat::Simple, drop), simple_reply(5, Some(NbdErrno::Eio)));
    }

    #[test]
    fn a_read_of_another_length_is_an_error() {
        let bytes = reply_bytes(REQUEST, ReplyFormat::Simple, |reply| reply.finish_read(Ok(vec![8])));
        assert_eq!(bytes, simple_reply(5, Some(NbdErrno::Eio)));
    }

    #[test]
    fn extents_are_cut_to_the_range_and_merged() {
        let extent = |len, kind| Extent { len, kind };
        let (data, hole) = (ExtentKind::Data, ExtentKind::Hole);
        let descriptors = |extents: &[Extent], len| -> Vec<(u32, u32)> {
            status_descriptors(extents, len).iter().map(|found| (found.len, found.state)).collect()
        };
        let extents = [extent(5, hole), extent(6, hole), extent(0, data), extent(7, data)];
        assert_eq!(descriptors(&extents, 100), [(11, 3), (7, 0)]);
        assert_eq!(descriptors(&extents, 12), [(11, 3), (1, 0)]);
        assert_eq!(descriptors(&extents, 11), [(11, 3)]);
        assert_eq!(descriptors(&[extent(u64::MAX, data)], u32::MAX), [(u32::MAX, 0)]);
        let request = RequestHeader { command: NBD_CMD_BLOCK_STATUS, ..REQUEST };
        let none = |reply: PendingReply| reply.finish_block_status(Ok(Vec::new()));
        let refused = error_chunk(5, NbdErrno::Eio, "the disk reported no extents");
        assert_eq!(reply_bytes(request, ReplyFormat::Structured, none), refused);
    }
}
