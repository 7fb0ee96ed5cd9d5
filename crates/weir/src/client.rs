//! How commands talk to the daemon of a mount.
//!
//! A mount is found in the mount table, never by touching it: it may hang.

use crate::control::socket_candidates;
use crate::error::WeirError;
use crate::media::FS_TYPE;
use host::Mounts;
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a daemon may think about a request. A sync may wait for a slow device, so this is long.
const PATIENCE: Duration = Duration::from_secs(120);

/// A mount of ours.
pub(crate) struct Found {
    /// Where.
    pub(crate) dir: PathBuf,
    candidates: Vec<PathBuf>,
}

impl Found {
    /// The mount at `dir`.
    pub(crate) fn at(dir: &Path) -> Result<Found, WeirError> {
        let mounts = Mounts::now().map_err(|source| WeirError::Host { path: dir.into(), source })?;
        let mount = spellings(dir)
            .find_map(|dir| mounts.mounted_at(&dir).filter(|mount| mount.fs_type == FS_TYPE))
            .ok_or_else(|| WeirError::NotMounted { dir: dir.into() })?;
        Ok(Found { dir: mount.point.clone(), candidates: socket_candidates(mount.device) })
    }

    /// A connection to its daemon.
    pub(crate) fn connect(&self) -> Result<Client, WeirError> {
        let mut last = io::Error::from(ErrorKind::NotFound);
        for socket in &self.candidates {
            match UnixStream::connect(socket) {
                Ok(stream) => return Client::over(stream, &self.dir),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => last = error,
            }
        }
        Err(WeirError::NoAnswer { dir: self.dir.clone(), source: last })
    }
}

/// `dir` as the mount table may write it. Only the last spelling looks at `dir` itself, and it is needed only where
/// `dir` is a symbolic link, which a mount point is not.
pub(crate) fn spellings(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let plain = std::path::absolute(dir).ok();
    let parents_resolved = plain.clone().and_then(|plain| {
        let name = plain.file_name()?.to_os_string();
        Some(std::fs::canonicalize(plain.parent()?).ok()?.join(name))
    });
    let link = plain.clone().filter(|plain| plain.is_symlink());
    let resolved = link.and_then(|link| std::fs::canonicalize(link).ok());
    [plain, parents_resolved, resolved].into_iter().flatten()
}

/// One connection: requests and replies are lines of JSON, in turn.
pub(crate) struct Client {
    dir: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    fn over(stream: UnixStream, dir: &Path) -> Result<Client, WeirError> {
        Ok(Client { dir: dir.into(), stream: BufReader::new(stream) })
    }

    /// Asks and waits for the answer.
    pub(crate) fn request(&mut self, operation: &str) -> Result<Value, WeirError> {
        self.ask(&json!({ "operation": operation }))
    }

    /// Asks with more than a word, and waits for the answer.
    pub(crate) fn ask(&mut self, request: &Value) -> Result<Value, WeirError> {
        self.send_request(request)?;
        self.receive_within(PATIENCE)?.ok_or_else(|| self.lost(ErrorKind::TimedOut.into()))
    }

    /// Asks.
    pub(crate) fn send(&mut self, operation: &str) -> Result<(), WeirError> {
        self.send_request(&json!({ "operation": operation }))
    }

    fn send_request(&mut self, request: &Value) -> Result<(), WeirError> {
        let line = format!("{request}\n");
        self.stream.get_mut().write_all(line.as_bytes()).map_err(|source| self.lost(source))
    }

    /// The answer, or `None` if there is none in this time.
    pub(crate) fn receive_within(&mut self, timeout: Duration) -> Result<Option<Value>, WeirError> {
        self.stream.get_ref().set_read_timeout(Some(timeout)).map_err(|source| self.lost(source))?;
        let mut line = String::new();
        match self.stream.read_line(&mut line) {
            Ok(0) => return Err(self.lost(ErrorKind::UnexpectedEof.into())),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(source) => return Err(self.lost(source)),
        }
        let reply: Value = serde_json::from_str(&line).map_err(|error| self.lost(error.into()))?;
        match reply["error"].as_str() {
            Some(why) => {
                let help = reply["help"].as_str().map(str::to_owned);
                Err(WeirError::Refused { dir: self.dir.clone(), why: why.into(), help })
            }
            None => Ok(Some(reply)),
        }
    }

    fn lost(&self, source: io::Error) -> WeirError {
        WeirError::NoAnswer { dir: self.dir.clone(), source }
    }
}
