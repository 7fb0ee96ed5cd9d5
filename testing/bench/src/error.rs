use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use stack::StackError;
use thiserror::Error;

use super::program::PACKAGES;

/// Help for errors that have no help of their own.
const WITHOUT_HELP: &str = "see what the kernel says with `dmesg | tail`";

/// A reason why a benchmark could not run.
#[derive(Debug, Error)]
pub(crate) enum BenchError {
    /// The process is not root, which loop devices and mounts need.
    #[error(
        "this benchmark sets up block devices, mounts file systems, or has the kernel drop its caches, which needs root"
    )]
    NotRoot,

    /// A program that the benchmark drives is not installed.
    #[error("the program `{program}` is missing")]
    Missing {
        /// Its name.
        program: &'static str,
    },

    /// A program that the benchmark drives failed.
    #[error("`{command}` failed: {says}")]
    Command {
        /// The command line.
        command: String,
        /// Its exit status and what it wrote to stderr.
        says: String,
    },

    /// A modelled device, or something on it, did not appear in time.
    #[error("{what} did not come up: {says}")]
    Late {
        /// The device, mount or event that the benchmark waited for.
        what: String,
        /// Output of the program on stderr, or the state.
        says: String,
    },

    /// The benchmark could not choose its processors.
    #[error("cannot choose the processors to run on: {source}")]
    CpuAffinity {
        /// Why.
        source: io::Error,
    },

    /// A store could not be opened in this process.
    #[error("{}: {source}", path.display())]
    Open {
        /// The store, or one of its media.
        path: PathBuf,
        /// Why.
        source: Box<dyn std::error::Error + Send>,
    },

    /// A store could not be used in this process.
    #[error("{source}")]
    Stack {
        /// Why.
        source: StackError,
    },

    /// The `weir` to measure does not exist.
    #[error("{}: there is no `weir`", path.display())]
    NoWeir {
        /// The path that was tried.
        path: PathBuf,
    },

    /// A file system operation in this process failed.
    #[error("an operation failed: {source}")]
    Fs {
        /// Why.
        source: fs::FsError,
    },

    /// A file operation failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// The failed action, such as `cannot open`.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },

    /// The daemon of a mount did not do what it was asked.
    #[error("{source}")]
    Client {
        /// Why.
        source: client::ClientError,
    },

    /// A page does not hold the bytes of its last commit.
    #[error("{}: page {page} does not hold what was written last", path.display())]
    WrongPage {
        /// The file.
        path: PathBuf,
        /// The page's number.
        page: usize,
    },

    /// A backup of a snapshot, or the database that was restored from it, is wrong.
    #[error("the backup is wrong: {says}")]
    WrongBackup {
        /// The difference.
        says: String,
    },

    /// restic printed something else.
    #[error("cannot understand restic: {says}")]
    Restic {
        /// The reason.
        says: String,
    },

    /// `weir status --json` printed something else.
    #[error("cannot understand `weir status` of {}: {source}", directory.display())]
    WeirStatus {
        /// The mount point.
        directory: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
}

impl BenchError {
    /// Advice on the next step.
    pub(crate) fn help(&self) -> Cow<'static, str> {
        match self {
            BenchError::NotRoot => "run it with `sudo`".into(),
            BenchError::Missing { .. } => {
                format!("install what benchmarks drive: apt-get install {PACKAGES}").into()
            }
            BenchError::Io { .. } => {
                "benchmarks keep their files below $TMPDIR: give it a place with free space".into()
            }
            BenchError::CpuAffinity { .. } => "`--cpu-affinity free` leaves that to the kernel".into(),
            // The program's own message is part of the error.
            BenchError::Command { .. } | BenchError::Late { .. } | BenchError::Open { .. } => {
                WITHOUT_HELP.into()
            }
            BenchError::NoWeir { .. } => {
                "build it with `cargo build --release`, or say where it is: --weir PATH".into()
            }
            BenchError::Stack { source } => source.help().unwrap_or(WITHOUT_HELP.into()),
            BenchError::Client { source } => source.help().unwrap_or(WITHOUT_HELP.into()),
            BenchError::WrongPage { .. } => {
                "do not trust this weir with data, and report it with the command that you ran".into()
            }
            BenchError::WrongBackup { .. } => {
                "do not back up snapshots with this weir, and report it with the command that you ran".into()
            }
            BenchError::Restic { .. } => "measure with restic 0.14 or later".into(),
            BenchError::Fs { source } => source.help().unwrap_or(WITHOUT_HELP.into()),
            BenchError::WeirStatus { .. } => {
                "measure with the `weir` that was built with this program".into()
            }
        }
    }

    /// Makes an error for a store or medium at `path` that could not be opened.
    pub(super) fn opening<E: std::error::Error + Send + 'static>(
        path: &Path,
    ) -> impl FnOnce(E) -> BenchError {
        let path = path.to_path_buf();
        |source| BenchError::Open { path, source: Box::new(source) }
    }

    pub(super) fn io(what: &'static str, path: impl AsRef<Path>, source: io::Error) -> BenchError {
        BenchError::Io { what, path: path.as_ref().to_path_buf(), source }
    }
}
