//! A connection to a daemon: requests and replies are lines of JSON, in turn.

use crate::descriptor_stream;
use crate::error::ClientError;
use host::is_stopped;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time limit for a reply that needs no I/O, on a busy machine.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// Time limit for a reply that needs I/O: a sync may wait for a slow device.
const WORK_WAIT: Duration = Duration::from_secs(120);

/// How often a waiting client checks whether the daemon is stopped.
const LIVENESS_INTERVAL: Duration = Duration::from_secs(2);

/// One connection: requests and replies are lines of JSON, in turn.
pub struct ControlClient {
    dir: PathBuf,
    owner: u32,
    /// The daemon's process id, if this process can see it.
    pid: Option<u32>,
    stream: BufReader<UnixStream>,
    /// The received part of the next reply.
    line: String,
    /// Replies to requests whose wait ended with an error. They arrive before the reply to a later request.
    late_replies: usize,
    /// Whether the user was told that the reply takes long.
    told: bool,
}

impl ControlClient {
    /// A connection to the daemon of the user `owner`. `dir`, its mount or its store, is named in errors. `pid` is the
    /// daemon's process, if this process can see it.
    pub fn over(stream: UnixStream, dir: PathBuf, owner: u32, pid: Option<u32>) -> ControlClient {
        let stream = BufReader::new(stream);
        ControlClient { dir, owner, pid, stream, line: String::new(), late_replies: 0, told: false }
    }

    /// The daemon's process id, if this process can see it.
    pub fn pid(&self) -> Option<u32> {
        self.pid
    }

    /// Sends a request without arguments, and waits for the reply.
    pub fn request(&mut self, operation: &str) -> Result<Value, ClientError> {
        self.ask(&json!({ "operation": operation }))
    }

    /// Sends a request without arguments for a report, and waits for it.
    pub fn report<R: DeserializeOwned>(&mut self, operation: &str) -> Result<R, ClientError> {
        self.report_for(&json!({ "operation": operation }))
    }

    /// Sends a request with arguments for a report, and waits for it.
    pub fn report_for<R: DeserializeOwned>(&mut self, request: &Value) -> Result<R, ClientError> {
        let reply = self.ask(request)?;
        self.parsed(reply)
    }

    /// Sends a request together with descriptors for a report, and waits for it.
    pub(crate) fn report_with<R: DeserializeOwned>(
        &mut self,
        request: &Value,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<R, ClientError> {
        let reply = self.ask_with(request, descriptors)?;
        self.parsed(reply)
    }

    /// Sends a request, and waits for the reply.
    pub fn ask(&mut self, request: &Value) -> Result<Value, ClientError> {
        let patience = match request["operation"].as_str() {
            Some("status" | "space" | "why" | "rules" | "volume_list" | "class") => ANSWER_WAIT,
            _ => WORK_WAIT,
        };
        self.send_request(request, &[])?;
        self.wait_for_reply(patience)
    }

    /// Sends a request for work that may take hours, and waits for the reply as long as the daemon runs.
    pub fn ask_for_long_work(&mut self, request: &Value) -> Result<Value, ClientError> {
        self.send_request(request, &[])?;
        self.wait_for_reply(Duration::MAX)
    }

    /// Sends a request together with at most 129 descriptors, and waits for the reply.
    pub fn ask_with(
        &mut self,
        request: &Value,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Value, ClientError> {
        self.send_request(request, descriptors)?;
        self.wait_for_reply(WORK_WAIT)
    }

    /// Waits for the reply to the last request. After an error, a reply that arrives later is never taken for the reply to
    /// another request.
    fn wait_for_reply(&mut self, patience: Duration) -> Result<Value, ClientError> {
        let reply = self.wait_for_reply_within(patience);
        if matches!(reply, Err(ClientError::DaemonSilent { .. } | ClientError::DaemonStopped { .. })) {
            self.late_replies += 1;
        }
        reply
    }

    fn wait_for_reply_within(&mut self, patience: Duration) -> Result<Value, ClientError> {
        let begun = Instant::now();
        loop {
            if let Some(reply) = self.receive_within(LIVENESS_INTERVAL)? {
                return Ok(reply);
            }
            self.ensure_runs()?;
            if begun.elapsed() >= patience {
                let (dir, seconds) = (self.dir.clone(), patience.as_secs());
                return Err(ClientError::DaemonSilent { dir, pid: self.pid, seconds });
            }
            if patience == WORK_WAIT && !self.told {
                tracing::info!("{}: waiting for the daemon", self.dir.display());
                self.told = true;
            }
        }
    }

    /// Waits until the daemon has closed the connection. Returns its last reply, if one came.
    pub fn wait_for_close(&mut self) -> Option<Value> {
        let mut line = String::new();
        self.stream.get_ref().set_read_timeout(None).ok()?;
        // An error is an end as well.
        self.stream.read_line(&mut line).ok()?;
        serde_json::from_str(&line).ok()
    }

    /// A second handle of the connection, for another thread.
    pub fn connection(&self) -> io::Result<UnixStream> {
        self.stream.get_ref().try_clone()
    }

    /// Fails if the daemon is stopped (SIGSTOP), perhaps for ever.
    pub fn ensure_runs(&self) -> Result<(), ClientError> {
        match self.pid.filter(|&pid| is_stopped(pid)) {
            Some(pid) => Err(ClientError::DaemonStopped { dir: self.dir.clone(), pid }),
            None => Ok(()),
        }
    }

    /// Sends a request without arguments, and does not wait.
    pub fn send(&mut self, operation: &str) -> Result<(), ClientError> {
        self.send_request(&json!({ "operation": operation }), &[])
    }

    fn send_request(&mut self, request: &Value, descriptors: &[BorrowedFd<'_>]) -> Result<(), ClientError> {
        let line = format!("{request}\n");
        let mut stream = self.stream.get_ref();
        let sent = match descriptors {
            [] => stream.write_all(line.as_bytes()),
            _ => descriptor_stream::send(stream, line.as_bytes(), descriptors),
        };
        match sent {
            // The daemon has refused this client. Its reply says why.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            sent => sent.map_err(|source| self.lost(source)),
        }
    }

    /// Receives the reply, or `None` if none arrives within `timeout`.
    pub fn receive_within(&mut self, timeout: Duration) -> Result<Option<Value>, ClientError> {
        self.stream.get_ref().set_read_timeout(Some(timeout)).map_err(|source| self.lost(source))?;
        let line = loop {
            match self.stream.read_line(&mut self.line) {
                Ok(0) => return Err(self.lost(ErrorKind::UnexpectedEof.into())),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(source) => return Err(self.lost(source)),
            }
            let line = std::mem::take(&mut self.line);
            if self.late_replies == 0 {
                break line;
            }
            self.late_replies -= 1;
        };
        let reply: Value = serde_json::from_str(&line).map_err(|error| self.lost(error.into()))?;
        if reply["refused"] == true {
            return Err(ClientError::DaemonOfOther { dir: self.dir.clone(), owner: self.owner });
        }
        match reply["error"].as_str() {
            Some(why) => {
                let help = reply["help"].as_str().map(str::to_owned);
                Err(ClientError::Refused { dir: self.dir.clone(), why: why.into(), help })
            }
            None => Ok(Some(reply)),
        }
    }

    fn parsed<R: DeserializeOwned>(&self, reply: Value) -> Result<R, ClientError> {
        serde_json::from_value(reply).map_err(|error| self.lost(error.into()))
    }

    /// The error for a vector that the daemon did not make, because other programs changed its files.
    pub(crate) fn busy(&self) -> ClientError {
        ClientError::Busy { dir: self.dir.clone() }
    }

    fn lost(&self, source: io::Error) -> ClientError {
        ClientError::NoAnswer { dir: self.dir.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_reply_is_not_taken_for_the_next_one() {
        let (client, server) = UnixStream::pair().expect("sockets");
        let mut client = ControlClient::over(client, "/mnt".into(), 0, None);
        let mut server = BufReader::new(server);
        client.send("first").expect("a socket");
        let silent = client.wait_for_reply(Duration::ZERO).expect_err("no reply");
        assert!(matches!(silent, ClientError::DaemonSilent { .. }), "{silent}");
        server.get_mut().write_all(b"{\"of\":\"first\"}\n{\"of\":\"second\"}\n").expect("a socket");
        assert_eq!(client.request("second").expect("a reply")["of"], "second");
    }
}
