//! The second part of a connection: one thread reads requests and calls the `Disk`, another writes replies.
//!
//! ```text
//! client ── requests ──▶ reading thread ── calls ──▶ Disk
//!   ▲                                                 │ completions, on any thread
//!   └────── replies ─── writing thread ◀── queue ─────┘
//! ```
//!
//! A completion puts its reply into the queue and returns, so that a slow client never blocks the `Disk`. The
//! queue is short, because the reading thread waits at the limits of `in_flight.rs`.
//!
//! A connection ends in this order. The reading thread ends: the client has disconnected, broken the
//! protocol, or gone. All requests in flight complete. The last completion closes the queue. The writing
//! thread has written all replies, or has dropped them because the client is gone, and ends.

use crate::disk::Disk;
use crate::handshake::{broken_protocol, skip};
use crate::in_flight::InFlightLimit;
use crate::negotiation::{ExportDescription, NegotiatedFeatures};
use crate::protocol::{NBD_CMD_DISC, REQUEST_HEADER_BYTES, RequestHeader};
use crate::reply::{PendingReply, Reply};
use crate::request_check::{CheckedRequest, check};
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

/// The data bytes after which a batch of replies is full. The next requests are admitted after each batch.
const BATCH_BYTES: usize = 1 << 20;

/// A disk, and its description for clients.
pub(crate) struct Export {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) description: ExportDescription,
}

/// Serves the requests of a client until it disconnects or is gone, and until all requests have completed.
/// `hang_up` makes reads of `input` and writes to `output` fail.
pub(crate) fn serve_requests(
    input: &mut impl Read,
    output: &mut (impl Write + Send),
    features: NegotiatedFeatures,
    export: &Export,
    hang_up: impl Fn() + Send,
) -> io::Result<()> {
    let (queue, replies) = mpsc::channel();
    thread::scope(|scope| {
        let writing = thread::Builder::new()
            .name("nbd-replies".into())
            .spawn_scoped(scope, move || write_replies(&replies, output, hang_up))?;
        let reader = RequestReader { features, export, queue, in_flight: Arc::default() };
        let read = reader.run(input);
        let written = writing
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that writes replies panicked")));
        read.and(written)
    })
}

/// The reading thread's side of a connection.
struct RequestReader<'e> {
    features: NegotiatedFeatures,
    export: &'e Export,
    /// The writing thread takes the replies from here.
    queue: Sender<Reply>,
    in_flight: Arc<InFlightLimit>,
}

impl RequestReader<'_> {
    /// Reads requests until the client disconnects. The replies may still be under way on return.
    fn run(self, input: &mut impl Read) -> io::Result<()> {
        while let Some(request) = read_header(input)? {
            if request.command == NBD_CMD_DISC {
                break;
            }
            self.serve(request, input)?;
        }
        Ok(())
    }

    /// Reads the payload of a request, and starts the operation of the `Disk`.
    fn serve(&self, request: RequestHeader, input: &mut impl Read) -> io::Result<()> {
        let checked = check(&request, &self.features, &self.export.description);
        let payload_bytes = checked.map_or(0, CheckedRequest::payload_bytes);
        let place = self.in_flight.admit(payload_bytes);
        let reply = PendingReply::new(request, self.features.reply_format, self.queue.clone(), place);
        let disk = &self.export.disk;
        match checked {
            Ok(CheckedRequest::Read { len: 0, .. }) => reply.finish_read(Ok(Vec::new())),
            Ok(CheckedRequest::Write { len: 0, .. } | CheckedRequest::Zero { len: 0, .. }) => {
                reply.finish(Ok(()));
            }
            Ok(CheckedRequest::Read { offset, len }) => {
                disk.read(offset, len, Box::new(|outcome| reply.finish_read(outcome)));
            }
            Ok(CheckedRequest::Write { offset, len, durability }) => {
                let mut bytes = vec![0; len];
                input.read_exact(&mut bytes)?;
                disk.write(offset, bytes, durability, Box::new(|outcome| reply.finish(outcome)));
            }
            Ok(CheckedRequest::Zero { offset, len, durability }) => {
                disk.zero(offset, len, durability, Box::new(|outcome| reply.finish(outcome)));
            }
            Ok(CheckedRequest::Flush) => disk.flush(Box::new(|outcome| reply.finish(outcome))),
            Ok(CheckedRequest::BlockStatus { offset, len, extents_max }) => {
                let done = Box::new(|outcome| reply.finish_block_status(outcome));
                disk.extents(offset, len, extents_max, done);
            }
            Err(invalid) => {
                skip(input, request.payload_len())?;
                reply.error(invalid.errno, invalid.message);
            }
        }
        Ok(())
    }
}

/// Reads the header of a request. `None`: the client closed the connection before the header.
fn read_header(input: &mut impl Read) -> io::Result<Option<RequestHeader>> {
    let mut bytes = [0; REQUEST_HEADER_BYTES];
    // The first byte alone: only here may a connection end.
    loop {
        match input.read(&mut bytes[..1]) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    input.read_exact(&mut bytes[1..])?;
    match RequestHeader::decode(&bytes) {
        Some(request) => Ok(Some(request)),
        None => Err(broken_protocol("a request has a wrong magic number")),
    }
}

/// Writes replies until the queue is closed. After an error, the client is gone: all further replies are
/// dropped.
fn write_replies(replies: &Receiver<Reply>, output: &mut impl Write, hang_up: impl Fn()) -> io::Result<()> {
    while let Some(batch) = next_batch(replies) {
        if let Err(error) = write_batch(output, &batch) {
            drop(batch);
            // The reading thread reads no more requests whose replies would be dropped.
            hang_up();
            replies.iter().for_each(drop);
            return Err(error);
        }
    }
    Ok(())
}

/// Waits for a reply, and takes all replies that are queued by then. `None`: the queue is closed.
fn next_batch(replies: &Receiver<Reply>) -> Option<Vec<Reply>> {
    let first = replies.recv().ok()?;
    let mut data_bytes = first.data.len();
    let mut batch = vec![first];
    while data_bytes < BATCH_BYTES
        && let Ok(reply) = replies.try_recv()
    {
        data_bytes += reply.data.len();
        batch.push(reply);
    }
    Some(batch)
}

/// Writes a batch with one system call if the socket has space, without copying the data.
fn write_batch(output: &mut impl Write, batch: &[Reply]) -> io::Result<()> {
    let parts = batch.iter().flat_map(|reply| [&reply.head, &reply.data]);
    let mut slices: Vec<IoSlice<'_>> =
        parts.filter(|part| !part.is_empty()).map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    while !rest.is_empty() {
        match output.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{NBD_REQUEST_MAGIC, simple_reply};

    /// An output that takes one byte at a time, and fails once it is full.
    struct SlowOutput {
        bytes: Vec<u8>,
        bytes_max: usize,
    }

    impl Write for SlowOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.bytes.len() == self.bytes_max {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.bytes.push(bytes[0]);
            Ok(1)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A closed queue of `count` replies to requests with the cookies 0, 1, and so on.
    fn queue_of(count: u64, in_flight: &Arc<InFlightLimit>) -> Receiver<Reply> {
        let (queue, replies) = mpsc::channel();
        for cookie in 0..count {
            let request = RequestHeader { flags: 0, command: 0, cookie, offset: 0, len: 3 };
            let format = crate::reply::ReplyFormat::Simple;
            let reply = PendingReply::new(request, format, queue.clone(), in_flight.admit(3));
            reply.finish_read(Ok(vec![cookie as u8; 3]));
        }
        replies
    }

    #[test]
    fn a_slow_output_gets_all_bytes_in_order() {
        let in_flight = Arc::default();
        let mut output = SlowOutput { bytes: Vec::new(), bytes_max: usize::MAX };
        write_replies(&queue_of(5, &in_flight), &mut output, || panic!("no error")).expect("no error");
        let expected = (0..5).flat_map(|cookie| [simple_reply(cookie, None), vec![cookie as u8; 3]].concat());
        assert_eq!(output.bytes, expected.collect::<Vec<u8>>());
    }

    #[test]
    fn replies_to_a_client_that_is_gone_are_dropped() {
        let in_flight = Arc::new(InFlightLimit::default());
        let replies = queue_of(64, &in_flight);
        let mut output = SlowOutput { bytes: Vec::new(), bytes_max: 20 };
        let hung_up = std::cell::Cell::new(0);
        let written = write_replies(&replies, &mut output, || hung_up.set(hung_up.get() + 1));
        assert_eq!(written.expect_err("the output is full").kind(), io::ErrorKind::BrokenPipe);
        assert_eq!(hung_up.get(), 1);
        // All places are free again: this does not wait.
        drop(queue_of(64, &in_flight));
    }

    #[test]
    fn a_connection_ends_between_requests_only() {
        let header = [&NBD_REQUEST_MAGIC.to_be_bytes()[..], &[0; 24]].concat();
        assert!(read_header(&mut &header[..0]).expect("a clean end").is_none());
        assert!(read_header(&mut &header[..]).expect("a header").is_some());
        let cut = read_header(&mut &header[..27]).expect_err("half a header");
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
        let wrong = read_header(&mut &[0; 28][..]).expect_err("a wrong magic number");
        assert_eq!(wrong.kind(), io::ErrorKind::InvalidData);
    }
}
