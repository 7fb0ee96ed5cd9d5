//! Errors before a store is open, and the next step.

use block::BlockVolumeError;
use buffer::BufferError;
use cache::CacheError;
use device::DeviceOperation;
use fs::FsError;
use host::{HostError, MountTable, VolatileReason, WEIR_FS_TYPE, shell_quoted};
use rustix::io::Errno;
use std::borrow::Cow;
use std::fmt::Display;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use store::StoreError;

/// Why a store could not be opened or used. The text says what failed and where; [`StackError::help`] gives the
/// next step.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the texts say it")]
pub enum StackError {
    #[error("{}: there is no store here", path.display())]
    Missing { path: PathBuf },
    #[error("{}: {doing}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: a symbolic link to {}, which does not exist", path.display(), to.display())]
    LeadsNowhere { path: PathBuf, to: PathBuf },
    #[error("{}: is neither a directory, a block device nor a regular file", path.display())]
    NotMedia { path: PathBuf },
    #[error("{}: the buffer is missing{looked}", path.display())]
    BufferMissing {
        path: PathBuf,
        looked: String,
        /// Whether it may have changes that the store lacks.
        is_needed: bool,
    },
    #[error("{}: this may be the buffer: {why}", path.display())]
    PerhapsBuffer { path: PathBuf, why: String },
    #[error("{}: two buffers claim to be its latest buffer: {} and {}", store.display(), one.display(), other.display())]
    TwoBuffers { store: PathBuf, one: PathBuf, other: PathBuf },
    #[error("{}: an outdated buffer of this store, which has since been used with another buffer", path.display())]
    OtherBuffer { path: PathBuf },
    #[error("{}: the buffer cannot be written: {why}", path.display())]
    BufferNotWritable { path: PathBuf, why: String },
    #[error("{}: this buffer loses synced data when the power fails: it {why}", path.display())]
    VolatileBuffer {
        path: PathBuf,
        why: VolatileReason,
        /// The store whose buffer this already is.
        store: Option<PathBuf>,
    },
    #[error("{}: the store and the buffer are the same device or file", path.display())]
    SameMedia { path: PathBuf },
    #[error("{}: lies on weir's own mount {}", path.display(), mount.display())]
    OnOwnMount { path: PathBuf, mount: PathBuf },
    #[error("{}: in use: it is already mounted, or is being checked or formatted", path.display())]
    Busy { path: PathBuf },
    #[error("{}: in use by process {pid} ({program})", path.display())]
    InUse { path: PathBuf, pid: u32, program: String },
    #[error("a memory of {bytes} bytes is too small: weir needs 16 MiB")]
    MemoryTooSmall { bytes: u64 },
    #[error("{source}")]
    Host { path: PathBuf, source: HostError },
    #[error("{}", about(path, source))]
    Store { path: PathBuf, source: StoreError },
    #[error("{}", about(path, source))]
    Cache { path: PathBuf, source: CacheError },
    #[error("{}: volume {volume}: {source}", path.display())]
    Volume { path: PathBuf, volume: String, source: Box<FsError> },
    #[error("{}: volume {volume}: {source}", path.display())]
    BlockVolume { path: PathBuf, volume: String, source: Box<BlockVolumeError> },
    #[error("{}: volume {volume} is a block volume, and holds no file system of weir", path.display())]
    NotFileSystem { path: PathBuf, volume: String },
    #[error("{}: there is no volume {name} in this store", path.display())]
    NoSuchVolume { path: PathBuf, name: String, there_are: Vec<String> },
    #[error("{}: volume {volume}: a crash took the ends of some of its files, which are not truncated yet", path.display())]
    LostEnds { path: PathBuf, volume: String },
}

impl StackError {
    /// Adds to an I/O error the failed step and the path.
    pub fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> StackError {
        let path = path.into();
        move |source| StackError::Io { doing, path, source }
    }

    /// Whether the error is about the buffer, which lies at `buffer`.
    pub fn is_of(&self, buffer: &Path) -> bool {
        match self {
            StackError::Cache { source, .. } => {
                matches!(
                    source,
                    CacheError::Buffer(_)
                        | CacheError::ReadOnly { .. }
                        | CacheError::StaleBuffer { .. }
                        | CacheError::StaleStore { .. }
                )
            }
            StackError::Host { path, .. } | StackError::OtherBuffer { path } => path == buffer,
            _ => false,
        }
    }

    /// Whether the path given as the buffer holds no buffer, or the buffer of another store.
    pub fn is_of_another_buffer(&self) -> bool {
        let StackError::Cache { source: CacheError::Buffer(error), .. } = self else { return false };
        matches!(error, BufferError::NotABuffer { .. } | BufferError::WrongStore { .. })
    }

    /// Whether the buffer, which lies at `buffer`, cannot be written. It may still be readable.
    pub(crate) fn is_not_writable(&self, buffer: &Path) -> bool {
        match self {
            StackError::Cache { source: CacheError::Buffer(BufferError::Device(error)), .. } => {
                matches!(error.operation, DeviceOperation::Write | DeviceOperation::Flush)
            }
            StackError::Host { path, source: HostError::Permission { .. } | HostError::ReadOnly { .. } } => {
                path == buffer
            }
            _ => false,
        }
    }

    /// The error and the next step, in one line.
    pub fn line(&self) -> String {
        match self.help() {
            Some(help) => format!("{self}; {help}"),
            None => self.to_string(),
        }
    }

    /// The next step.
    pub fn help(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            // Never to format: the store may be there, and its file system not mounted.
            StackError::Missing { .. } => {
                "check the path, and that its file system is mounted: `findmnt`; for the path of a mount, `weir status` names its \
                 store"
                    .into()
            }
            StackError::Io { source, .. } => return io_help(source),
            StackError::LeadsNowhere { .. } => "attach the device, or correct the symbolic link".into(),
            StackError::NotMedia { .. } => "give a directory, a block device or a file".into(),
            StackError::BufferMissing { is_needed: false, .. } => {
                "attach its device, or name the buffer with `--buffer PATH`; if it is gone for good, `weir replace-buffer` gives the \
                 store a new one, and nothing is lost: the store has every change"
                    .into()
            }
            StackError::BufferMissing { .. } => {
                "attach its device, or name the buffer with `--buffer PATH`; if it is gone for good, the latest synced changes are \
                 lost, and `weir replace-buffer --accept-loss` gives the store a new buffer"
                    .into()
            }
            StackError::PerhapsBuffer { .. } => {
                "weir makes a new buffer by itself only if the last one is certainly gone; if this is not it, `weir replace-buffer \
                 --accept-loss` gives the store a new one"
                    .into()
            }
            StackError::TwoBuffers { .. } => {
                "one is a copy of the other: detach the copy, or name the right buffer with `--buffer PATH`".into()
            }
            StackError::OtherBuffer { .. } => {
                "attach the newer buffer; if that is gone for good, see `weir replace-buffer --help`".into()
            }
            StackError::BufferNotWritable { .. } => {
                "if you can still read its device, `weir replace-buffer` writes its changes back to the store, without writing to \
                 the device, and gives the store another buffer; nothing is lost"
                    .into()
            }
            StackError::VolatileBuffer { store, .. } => help_about_volatile(store.as_deref()).into(),
            StackError::SameMedia { .. } => {
                "give the buffer a device or file of its own with `--buffer PATH`".into()
            }
            StackError::OnOwnMount { .. } => "put the store and its buffer on another file system".into(),
            StackError::Busy { .. } => {
                "find its mount with `findmnt -t fuse.weir`, and `weir unmount` it".into()
            }
            StackError::InUse { path, pid, .. } if let Some(point) = mount_by(*pid, path) => {
                format!("unmount it: `weir unmount {}`", shell_quoted(&point)).into()
            }
            StackError::InUse { pid, .. } if *pid == std::process::id() => {
                "this program has it open already: close it before".into()
            }
            StackError::MemoryTooSmall { .. } => "give it more, or the default".into(),
            StackError::InUse { pid, .. } => {
                format!("see what it does with `ps -fp {pid}`, and wait until it ends").into()
            }
            StackError::Host { source, .. } => return source.help(),
            StackError::Store { path, source: StoreError::SuperblockDamaged { .. } } => format!(
                "`weir check --repair {}` restores it from its copy at the store's end",
                shell_quoted(path)
            )
            .into(),
            StackError::Store { source, .. } => return source.help(),
            StackError::Cache { source, .. } => return source.help(),
            StackError::Volume { source, .. } => return source.help(),
            StackError::BlockVolume { source, .. } => return source.help(),
            StackError::NotFileSystem { path, volume } => format!(
                "serve it as a disk: `weir export {} {} --socket PATH`",
                shell_quoted(path),
                shell_quoted(Path::new(volume))
            )
            .into(),
            StackError::NoSuchVolume { path, name, there_are } if there_are.is_empty() => {
                let (path, name) = (shell_quoted(path), shell_quoted(Path::new(name)));
                format!("it has no volumes: `weir volume create {path} {name}` makes one").into()
            }
            StackError::NoSuchVolume { there_are, .. } => format!("there are: {}", there_are.join(", ")).into(),
            StackError::LostEnds { .. } => {
                "unmount all volumes of the store, and mount this one first; `weir status` says why nothing is truncated".into()
            }
        })
    }
}

/// Where the process `pid` seems to have mounted the store on `medium`: a mount of its user that names the store.
fn mount_by(pid: u32, medium: &Path) -> Option<PathBuf> {
    let user = std::fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let mounts = MountTable::read().ok()?;
    let mount = mounts.iter().find(|mount| {
        let is_by_user = mount.owner.is_some_and(|owner| owner.uid == user);
        mount.fs_type == WEIR_FS_TYPE && is_by_user && medium.starts_with(&mount.source)
    });
    Some(mount?.point.clone())
}

/// The next step about a buffer that is not durable. `store` is the store that already uses it, if there is
/// one.
fn help_about_volatile(store: Option<&Path>) -> String {
    let durable = match store {
        Some(store) => format!(
            "move it to a disk without losing anything: `weir replace-buffer --buffer PATH {}`",
            shell_quoted(store)
        ),
        None => "give a file or block device on a disk with `--buffer PATH`".into(),
    };
    format!(
        "{durable}; or add --volatile-buffer to accept that a power failure loses every change that was not yet written back, \
         synced or not"
    )
}

/// The error of a lower layer, with `path` before it unless it begins with `path` already.
fn about(path: &Path, error: &dyn Display) -> String {
    let (path, error) = (path.display().to_string(), error.to_string());
    if error.starts_with(&path) { error } else { format!("{path}: {error}") }
}

/// The next step after an error of the host file system.
fn io_help(source: &io::Error) -> Option<Cow<'static, str>> {
    Some(match source.kind() {
        io::ErrorKind::PermissionDenied => "run as root, or as the owner".into(),
        io::ErrorKind::StorageFull => "free some space, or choose a smaller size".into(),
        io::ErrorKind::ReadOnlyFilesystem => "make its file system writable, or choose another place".into(),
        io::ErrorKind::AlreadyExists => "choose another place".into(),
        io::ErrorKind::NotFound => {
            "check the path: the file, or one of its directories, does not exist".into()
        }
        io::ErrorKind::IsADirectory => "give the path of a file".into(),
        io::ErrorKind::NotADirectory => "check the path: one of its parts is not a directory".into(),
        io::ErrorKind::InvalidFilename => "choose a shorter name".into(),
        _ if Errno::from_io_error(source) == Some(Errno::LOOP) => {
            "check the path: its symbolic links form a loop".into()
        }
        _ => return None,
    })
}
