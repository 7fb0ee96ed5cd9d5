//! The errors of this program: what failed, where, and the next step.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;
use trace_file::TraceError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error(transparent)]
    Trace(#[from] TraceError),
    #[error("{}: starting a replay: {source}", target.display())]
    Start { target: PathBuf, source: io::Error },
    #[error("the process that replays failed: {status}")]
    ReplayFailed { status: String },
    #[error("{message}")]
    Replay { code: u8, message: String, help: Option<String> },
}

impl ProgramError {
    /// The exit code, as `weir-trace replay --help` documents it.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            ProgramError::Replay { code, .. } => *code,
            ProgramError::Trace(error) if error.is_about_the_target() => 4,
            ProgramError::Trace(TraceError::Stalled { .. }) => 5,
            _ => 1,
        }
    }

    /// The next step for the user.
    pub(crate) fn help(&self) -> Option<Cow<'static, str>> {
        match self {
            ProgramError::Trace(error) => error.help(),
            ProgramError::Start { .. } => None,
            ProgramError::ReplayFailed { .. } => {
                Some("if no message is above, see `dmesg | tail`: memory may have run out".into())
            }
            ProgramError::Replay { help, .. } => help.clone().map(Cow::from),
        }
    }
}
