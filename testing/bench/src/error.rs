use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::program::PACKAGES;

/// The next step after errors that have none of their own.
const WITHOUT_HELP: &str = "see what the kernel says with `dmesg | tail`";

/// Why a benchmark could not run.
#[derive(Debug, Error)]
pub(crate) enum BenchError {
    /// Loop devices and mounts are the superuser's.
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
        /// What was waited for.
        what: String,
        /// What its program wrote to stderr.
        says: String,
    },

    /// The benchmark could not choose its processors.
    #[error("cannot choose the processors to run on: {source}")]
    Placement {
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

    /// The program that is to be measured is not there.
    #[error("{}: there is no `weir`", path.display())]
    NoWeir {
        /// Where it should be.
        path: PathBuf,
    },

    /// An operation inside failed.
    #[error("an operation failed: {source}")]
    Fs {
        /// Why.
        source: fs::FsError,
    },

    /// A file operation failed.
    #[error("{what} {}: {source}", path.display())]
    Io {
        /// What was tried, such as `cannot open`.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },

    /// `weir status --json` did not say what the benchmark has to know.
    #[error("`weir status` of {} has not what it should at {pointer}", directory.display())]
    Status {
        /// The mount point.
        directory: PathBuf,
        /// Where in the JSON it should be.
        pointer: String,
    },
}

impl BenchError {
    /// The next step.
    pub(crate) fn help(&self) -> Cow<'static, str> {
        match self {
            BenchError::NotRoot => "run it with `sudo`".into(),
            BenchError::Missing { .. } => {
                format!("install what benchmarks drive: apt-get install {PACKAGES}").into()
            }
            BenchError::Io { .. } => {
                "benchmarks keep their files below $TMPDIR: give it a place with free space".into()
            }
            BenchError::Placement { .. } => "`--placement free` leaves that to the kernel".into(),
            // The program's own message is part of ours.
            BenchError::Command { .. } | BenchError::Late { .. } | BenchError::Open { .. } => {
                WITHOUT_HELP.into()
            }
            BenchError::NoWeir { .. } => {
                "build it with `cargo build --release`, or say where it is: --weir PATH".into()
            }
            BenchError::Fs { source } => source.help().unwrap_or(WITHOUT_HELP.into()),
            BenchError::Status { .. } => "measure with the `weir` that was built with this program".into(),
        }
    }

    /// Why what lies at `path` could not be opened.
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
