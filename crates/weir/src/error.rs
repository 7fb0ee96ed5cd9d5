//! What can go wrong at the command line: what, where, and the next step.

use crate::bench::BenchError;
use crate::control;
use crate::size::Size;
use buffer::BufferError;
use cache::CacheError;
use device::Operation;
use fs::FsError;
use host::HostError;
use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};
use store::StoreError;

/// Why a command failed. The text says what and where, [`WeirError::help`] what to do next.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WeirError {
    #[error("{}: there is no store here", path.display())]
    Missing { path: PathBuf },
    #[error("{}: {doing}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: not blank: it holds {found}", path.display())]
    NotBlank { path: PathBuf, found: &'static str },
    #[error("{}: is mounted on {}", path.display(), at.display())]
    DeviceMounted { path: PathBuf, at: PathBuf },
    #[error("{}: is neither a directory, a block device nor a regular file", path.display())]
    NotMedia { path: PathBuf },
    #[error("{}: a store that is a device needs a buffer of its own", path.display())]
    BufferWanted { path: PathBuf },
    #[error("{}: the buffer is missing", path.display())]
    BufferMissing { path: PathBuf },
    #[error("{}: the buffer cannot be read, and what was not home yet is only there: {why}", path.display())]
    BufferLost { path: PathBuf, why: String },
    #[error("{}: the buffer cannot be written: {why}", path.display())]
    BufferNotWritable { path: PathBuf, why: String },
    #[error("{}: the store and the buffer are the same", path.display())]
    SameMedia { path: PathBuf },
    #[error("{option} {size}: {why}")]
    Size { option: &'static str, size: Size, why: String },
    #[error("{}: its file system has {free} free, too little for {wanted}", path.display())]
    NoSpace { path: PathBuf, wanted: Size, free: Size },
    #[error("{option}: {} has its own size", path.display())]
    FixedSize { option: &'static str, path: PathBuf },
    #[error("{}: in use: it is mounted already, or being checked or formatted", path.display())]
    Busy { path: PathBuf },
    #[error("{source}")]
    Host { path: PathBuf, source: HostError },
    #[error("{}: {source}", path.display())]
    Store { path: PathBuf, source: StoreError },
    #[error("{}: {source}", path.display())]
    Cache { path: PathBuf, source: CacheError },
    #[error("{}: {source}", path.display())]
    Fs { path: PathBuf, source: FsError },
    #[error("{}: lies on weir's own mount {}", path.display(), mount.display())]
    OnOwnMount { path: PathBuf, mount: PathBuf },
    #[error("{}: lies below the mount point {}", path.display(), dir.display())]
    BelowMountPoint { path: PathBuf, dir: PathBuf },
    #[error("{}: no such directory to mount on", dir.display())]
    MountPointMissing { dir: PathBuf },
    #[error("{}: not a directory", dir.display())]
    MountPointNotDirectory { dir: PathBuf },
    #[error("{}: the mount point is not empty", dir.display())]
    MountPointNotEmpty { dir: PathBuf },
    #[error("{}: is a mount point already ({fs_type})", dir.display())]
    MountPointBusy { dir: PathBuf, fs_type: String },
    #[error("/dev/fuse: {source}")]
    NoFuse { source: io::Error },
    #[error("{} may not be mounted on by this user", dir.display())]
    MayNotMount { dir: PathBuf },
    #[error("--allow-other: /etc/fuse.conf does not allow it to this user")]
    MayNotAllowOther,
    #[error("{}: mounting: {source}", dir.display())]
    MountFailed { dir: PathBuf, source: io::Error },
    #[error("starting the daemon: {source}")]
    Spawn { source: io::Error },
    #[error("the daemon ended before it was ready: {status}")]
    DaemonDied { status: String },
    #[error("{}: no weir store is mounted here", dir.display())]
    NotMounted { dir: PathBuf },
    #[error("{}: the daemon does not answer: {source}", dir.display())]
    NoAnswer { dir: PathBuf, source: io::Error },
    #[error("{}: the daemon says: {why}", dir.display())]
    Refused { dir: PathBuf, why: String, help: Option<String> },
    #[error("{}: unmounting: {why}", dir.display())]
    Unmount { dir: PathBuf, why: String },
    #[error("the process that replays failed: {status}")]
    ReplayFailed { status: String },
    #[error("{message}")]
    Replay { code: u8, message: String, help: Option<String> },
    #[error(transparent)]
    Trace(#[from] ::trace::TraceError),
    #[error(transparent)]
    Bench(#[from] BenchError),
    #[error("{}: unmounted, but not everything went home: {why}", dir.display())]
    NotDrained { dir: PathBuf, why: String },
    #[error("{}: there is no volume {name} in it", path.display())]
    NoSuchVolume { path: PathBuf, name: String, there_are: Vec<String> },
    #[error("could not check: {source}")]
    CannotCheck { source: Box<WeirError> },
}

impl WeirError {
    /// An I/O error with what was being done to what.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> WeirError {
        let path = path.into();
        move |source| WeirError::Io { doing, path, source }
    }

    /// What the process ends with: see `weir --help`.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            WeirError::CannotCheck { .. } => 2,
            WeirError::Replay { code, .. } => *code,
            WeirError::Trace(error) if error.is_about_the_target() => 4,
            WeirError::Trace(::trace::TraceError::Stalled { .. }) => 5,
            _ => 1,
        }
    }

    /// Whether it is the buffer, which lies at `buffer`, that cannot be used.
    pub(crate) fn is_of(&self, buffer: &Path) -> bool {
        match self {
            WeirError::Cache { source, .. } => {
                matches!(
                    source,
                    CacheError::Buffer(_)
                        | CacheError::ReadOnly { .. }
                        | CacheError::StaleBuffer { .. }
                        | CacheError::StaleStore { .. }
                )
            }
            WeirError::Host { path, .. } => path == buffer,
            _ => false,
        }
    }

    /// Whether it is that the buffer, which lies at `buffer`, cannot be written; it may still be readable.
    pub(crate) fn is_not_writable(&self, buffer: &Path) -> bool {
        match self {
            WeirError::Cache { source: CacheError::Buffer(BufferError::Device(error)), .. } => {
                matches!(error.operation, Operation::Write | Operation::Flush)
            }
            WeirError::Host { path, source: HostError::Permission { .. } } => path == buffer,
            _ => false,
        }
    }

    fn help_about_buffer(&self) -> Option<&'static str> {
        Some(match self {
            WeirError::BufferWanted { .. } => {
                "add `--buffer PATH`: a fast block device, or a file on another one"
            }
            WeirError::BufferMissing { .. } => {
                "attach its device, or say where it is with `--buffer PATH`; if it is gone for good, what was synced last \
                 is lost, and `weir replace-buffer --accept-loss` gives the store a new one"
            }
            WeirError::BufferNotWritable { .. } => {
                "if its device can be read and not be written any more, `weir replace-buffer` takes home what it holds, \
                 without writing to it, and gives the store another one; nothing is lost"
            }
            WeirError::BufferLost { .. } => {
                "attach its device or restore it from a copy; if it is gone for good, add \
                 --accept-loss, and see `weir replace-buffer --help` for what that means"
            }
            WeirError::SameMedia { .. } => "give the buffer a device or file of its own with `--buffer PATH`",
            _ => return None,
        })
    }

    /// The next step.
    pub(crate) fn help(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            WeirError::Missing { path } => format!("make one with `weir format {}`", path.display()).into(),
            WeirError::Io { source, .. } => return io_help(source),
            WeirError::NotBlank { .. } => "choose another place, or add --force to lose what is there".into(),
            WeirError::DeviceMounted { at, .. } => format!("unmount it first: `umount {}`", at.display()).into(),
            WeirError::NotMedia { .. } => "give the directory or block device that was formatted".into(),
            WeirError::BufferWanted { .. }
            | WeirError::BufferMissing { .. }
            | WeirError::BufferNotWritable { .. }
            | WeirError::BufferLost { .. }
            | WeirError::SameMedia { .. } => return self.help_about_buffer().map(Cow::from),
            WeirError::Size { .. } => "see `weir format --help` and `weir mount --help` for the defaults".into(),
            WeirError::NoSpace { .. } => "free some space there, or choose a smaller --size (and --segment-size)".into(),
            WeirError::FixedSize { option, .. } => format!("leave out {option}: a device or existing file is used whole").into(),
            WeirError::Busy { .. } => "find its mount with `findmnt -t fuse.weir`, and `weir unmount` it".into(),
            WeirError::Host { source, .. } => return source.help(),
            WeirError::Store { source, .. } => return source.help(),
            WeirError::Cache { source, .. } => return source.help(),
            WeirError::Fs { source, .. } => return source.help(),
            WeirError::OnOwnMount { .. } => "put the store and its buffer on another file system".into(),
            WeirError::BelowMountPoint { .. } => "mount on a directory that does not contain the store".into(),
            WeirError::MountPointMissing { dir } => format!("make it: `mkdir -p {}`", dir.display()).into(),
            WeirError::MountPointNotDirectory { .. } => "give an empty directory".into(),
            WeirError::MountPointNotEmpty { dir } => {
                format!("what is in it would be hidden; give an empty directory, such as `mkdir {}.weir`", dir.display()).into()
            }
            WeirError::MountPointBusy { dir, .. } => {
                format!("`findmnt {0}` shows what is there; `umount {0}` takes it away", dir.display()).into()
            }
            WeirError::NoFuse { source } => match source.kind() {
                io::ErrorKind::PermissionDenied => "run as root, or let this user open /dev/fuse".into(),
                _ => "load the kernel's module with `modprobe fuse`".into(),
            },
            WeirError::MayNotMount { .. } => "run as root, or install the package `fuse3` for its fusermount3".into(),
            WeirError::MayNotAllowOther => "add the line `user_allow_other` to /etc/fuse.conf, or run as root".into(),
            WeirError::MountFailed { .. } => "see `dmesg | tail` for the kernel's reason".into(),
            WeirError::Spawn { .. } => "try `weir mount --foreground`".into(),
            WeirError::DaemonDied { .. } => "run it with `--foreground` to see its messages".into(),
            WeirError::NotMounted { .. } => "see what is mounted with `findmnt -t fuse.weir`".into(),
            WeirError::NoAnswer { dir, .. } => format!(
                "if the daemon was killed: `umount {}`, then `weir mount` again; nothing that was synced is lost, and the \
                 newest of {} has what it said last",
                dir.display(),
                control::logs().display()
            )
            .into(),
            WeirError::Refused { help: Some(help), .. } => help.clone().into(),
            WeirError::Refused { dir, help: None, .. } => format!("see `weir status {}`", dir.display()).into(),
            WeirError::Unmount { dir, .. } => {
                format!("see who works there with `fuser -vm {}`, and try again", dir.display()).into()
            }
            WeirError::NoSuchVolume { there_are, .. } => format!("there are: {}", there_are.join(", ")).into(),
            WeirError::CannotCheck { source } => return source.help(),
            WeirError::Bench(error) => return error.help(),
            WeirError::Trace(error) => return error.help(),
            WeirError::Replay { help, .. } => return help.clone().map(Cow::from),
            WeirError::ReplayFailed { .. } => "its own message, above, says why".into(),
            WeirError::NotDrained { .. } => {
                "what was synced is in the buffer where it is not home: keep it, and `weir mount` again when both media work"
                    .into()
            }
        })
    }
}

fn io_help(source: &io::Error) -> Option<Cow<'static, str>> {
    match source.kind() {
        io::ErrorKind::PermissionDenied => Some("run as root, or as the owner".into()),
        io::ErrorKind::StorageFull => Some("free some space, or choose a smaller size".into()),
        _ => None,
    }
}
