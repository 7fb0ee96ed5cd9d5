//! Why a daemon was not found, or did not do what it was asked, and the next step.

use crate::log_directory::log_pattern_of_user;
use crate::ranges::{BYTES_MAX, RANGES_MAX};
use host::{HostError, shell_quoted};
use std::borrow::Cow;
use std::io::{self, ErrorKind};
use std::path::PathBuf;

/// Why a request to a daemon failed. The text says what failed and where; [`ClientError::help`] gives the next step.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum ClientError {
    #[error("{}: no weir store is mounted here", dir.display())]
    NotMounted { dir: PathBuf, mounts_of_store: Vec<PathBuf> },
    #[error("the file lies on device {major}:{minor}, which is not a weir mount that this process sees")]
    NotOnMount { major: u32, minor: u32 },
    #[error("looking up the device of the file: {source}")]
    FileDevice { source: io::Error },
    #[error("{source}")]
    MountTable { source: HostError },
    #[error("{}: the daemon does not answer: {source}", dir.display())]
    NoAnswer { dir: PathBuf, source: io::Error },
    #[error("{}: does not answer: the daemon has ended, because it was killed or crashed, and left a dead mount", dir.display())]
    DaemonGone { dir: PathBuf, store: PathBuf, owner: u32 },
    #[error("{}: the daemon, pid {pid}, is stopped (SIGSTOP, or a debugger)", dir.display())]
    DaemonStopped { dir: PathBuf, pid: u32 },
    #[error("{}: the daemon has not answered for {seconds} s", dir.display())]
    DaemonSilent { dir: PathBuf, pid: Option<u32>, seconds: u64 },
    #[error("{}: the daemon of user {owner} accepts this command only from that user and root", dir.display())]
    DaemonOfOther { dir: PathBuf, owner: u32 },
    #[error("{}: the daemon says: {why}", dir.display())]
    Refused { dir: PathBuf, why: String, help: Option<String> },
    #[error("{}: memory is so short that ranges to be compared were dropped", dir.display())]
    Busy { dir: PathBuf },
    #[error("a vector of {ranges} ranges: at most {RANGES_MAX} can be changed together")]
    TooManyRanges { ranges: usize },
    #[error("a vector that writes {bytes} bytes: at most {BYTES_MAX} can be written together")]
    TooManyBytesWritten { bytes: u64 },
    #[error("a vector that compares {bytes} bytes: at most {BYTES_MAX} can be compared together")]
    TooManyBytesCompared { bytes: u64 },
    #[error("keeping the bytes to write in memory: {source}")]
    Memfd { source: io::Error },
}

impl ClientError {
    /// Whether the daemon closed the connection without an answer, as one does that is killed.
    pub fn is_closed_connection(&self) -> bool {
        let is_closed = |kind| {
            matches!(kind, ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        };
        matches!(self, ClientError::NoAnswer { source, .. } if is_closed(source.kind()))
    }

    /// The next step.
    pub fn help(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            ClientError::NotMounted { mounts_of_store, .. } if !mounts_of_store.is_empty() => {
                let dirs: Vec<_> = mounts_of_store.iter().map(|dir| shell_quoted(dir)).collect();
                format!("it is a store; give a directory on which it is mounted: {}", dirs.join(", ")).into()
            }
            ClientError::NotMounted { .. } => "see what is mounted with `findmnt -t fuse.weir`".into(),
            ClientError::NotOnMount { .. } => {
                "open the file on a mount of weir: `findmnt -t fuse.weir` shows them".into()
            }
            ClientError::FileDevice { .. } => return None,
            ClientError::MountTable { source } => return source.help(),
            ClientError::NoAnswer { dir, .. } => {
                format!("check that the daemon still runs with `ps -C weir -f`, and that `ls {}` works", shell_quoted(dir)).into()
            }
            ClientError::DaemonGone { dir, store, owner } => format!(
                "stop the programs that use it; `weir mount {} {}`, with the options of before, removes the dead mount and mounts \
                 again; no synced data is lost; the newest of {} holds the daemon's last messages",
                shell_quoted(store),
                shell_quoted(dir),
                log_pattern_of_user(*owner).display()
            )
            .into(),
            ClientError::DaemonStopped { pid, .. } => format!("resume it: `kill -CONT {pid}`").into(),
            ClientError::DaemonSilent { pid: Some(pid), .. } => format!(
                "see what it waits for with `ps -o pid,stat,wchan:20 -p {pid}`; if it is stopped, `kill -CONT {pid}`"
            )
            .into(),
            ClientError::DaemonSilent { pid: None, .. } => {
                "you cannot see its process from here: run the command again where you started the daemon".into()
            }
            ClientError::DaemonOfOther { owner, .. } => format!("ask user {owner} or root to do it").into(),
            ClientError::Refused { help: Some(help), .. } => help.clone().into(),
            ClientError::Refused { dir, help: None, .. } => format!("see `weir status {}`", shell_quoted(dir)).into(),
            ClientError::Busy { .. } => "try again".into(),
            ClientError::TooManyRanges { .. } | ClientError::TooManyBytesCompared { .. } => {
                "use several vectors, each of which is atomic by itself".into()
            }
            ClientError::TooManyBytesWritten { .. } => {
                "write the bytes to another file first, and move its pages with the vector".into()
            }
            ClientError::Memfd { .. } => "check the limits of this process: `ulimit -n`, and its memory".into(),
        })
    }
}
