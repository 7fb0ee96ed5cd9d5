//! The request to stop a replay, from the reader that gets a signal to the replayer in another process.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{self, PipeReader, PipeWriter};

/// A pipe that holds a byte once the reader has got a signal. Each process has a copy.
pub(crate) struct StopRequest {
    receiver: PipeReader,
    /// Kept open, so that the pipe does not end.
    _sender: PipeWriter,
}

impl StopRequest {
    /// Takes the signals of this process from now on. The second signal still ends the process.
    pub(crate) fn on_signals() -> io::Result<StopRequest> {
        let (receiver, sender) = io::pipe()?;
        progress::pass_signals_to(&sender)?;
        Ok(StopRequest { receiver, _sender: sender })
    }

    /// Whether the request was made.
    pub(crate) fn is_made(&self) -> bool {
        let mut polled = [PollFd::new(&self.receiver, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }
}
