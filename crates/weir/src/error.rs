//! The errors of the command line: what failed, where, and the next step.

use crate::byte_size::ByteSize;
use crate::log_files;
use buffer::BufferError;
use cache::CacheError;
use device::DeviceOperation;
use fs::FsError;
use host::{HostError, TaskReadError, VolatileReason, shell_quoted};
use request::{BufferPolicy, RuleError};
use rustix::io::Errno;
use std::borrow::Cow;
use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use store::StoreError;

/// Why a command failed. The text says what failed and where; [`WeirError::help`] gives the next step.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WeirError {
    #[error("{}: there is no store here", path.display())]
    Missing { path: PathBuf },
    #[error("{}: {doing}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: not blank: it holds {found}", path.display())]
    NotBlank { path: PathBuf, found: &'static str },
    #[error("{}: not empty: it holds {holds}", path.display())]
    NotEmpty { path: PathBuf, holds: String },
    #[error("{}: is a directory, not a file or a block device", path.display())]
    IsDirectory { path: PathBuf },
    #[error("{}: a symbolic link to {}, which does not exist", path.display(), to.display())]
    LeadsNowhere { path: PathBuf, to: PathBuf },
    #[error("{}: neither a mounted store nor a formatted store", path.display())]
    NeitherMountNorStore { path: PathBuf },
    #[error("{}: the store is not mounted, and only a mounted store can enlarge its buffer", path.display())]
    BufferNotMounted { path: PathBuf },
    #[error("{}: is mounted on {}", path.display(), at.display())]
    DeviceMounted { path: PathBuf, at: PathBuf },
    #[error("{}: is neither a directory, a block device nor a regular file", path.display())]
    NotMedia { path: PathBuf },
    #[error("{}: a store on a block device needs a separate buffer", path.display())]
    BufferWanted { path: PathBuf },
    #[error("{}: the buffer is missing{looked}", path.display())]
    BufferMissing { path: PathBuf, looked: String },
    #[error("{}: two buffers claim to be its latest buffer: {} and {}", store.display(), one.display(), other.display())]
    TwoBuffers { store: PathBuf, one: PathBuf, other: PathBuf },
    #[error("{}: an outdated buffer of this store, which has since been used with another buffer", path.display())]
    OtherBuffer { path: PathBuf },
    #[error("not the buffer of this store: {why}")]
    NotItsBuffer { why: String },
    #[error("{}: an earlier buffer is kept here, and weir does not overwrite it", path.display())]
    EarlierBuffer { path: PathBuf },
    #[error("{}: the buffer cannot be used, and only it holds the changes that are not in the store yet: {why}", path.display())]
    BufferLost { path: PathBuf, why: String },
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
    #[error("{}: {first}{}", path.display(), and_more(*more))]
    BadRules { path: PathBuf, first: RuleError, more: usize },
    #[error("{}: {source}", program.display())]
    Run { program: PathBuf, source: io::Error },
    #[error("--rules: --policy {policy} follows no rules")]
    UnusedRules { policy: BufferPolicy },
    #[error("{option} {size}: {why}")]
    Size { option: &'static str, size: ByteSize, why: String },
    #[error("{}: its file system has {free} free, too little for {wanted}", path.display())]
    NoSpace { path: PathBuf, wanted: ByteSize, free: ByteSize },
    #[error("{option}: {} already has a size", path.display())]
    FixedSize { option: &'static str, path: PathBuf },
    #[error("{}: in use: it is already mounted, or is being checked or formatted", path.display())]
    Busy { path: PathBuf },
    #[error("{}: in use by process {pid} ({program})", path.display())]
    InUse { path: PathBuf, pid: u32, program: String, mount: Option<PathBuf> },
    #[error("{source}")]
    Host { path: PathBuf, source: HostError },
    #[error("{}", about(path, source))]
    Store { path: PathBuf, source: StoreError },
    #[error("{}", about(path, source))]
    Cache { path: PathBuf, source: CacheError },
    #[error("{}", about(path, source))]
    Fs { path: PathBuf, source: FsError },
    #[error("{}: volume {volume}: {source}", path.display())]
    Volume { path: PathBuf, volume: String, source: Box<FsError> },
    #[error("{}: volume {volume}: a crash took the ends of some of its files, which are not truncated yet", path.display())]
    LostEnds { path: PathBuf, volume: String },
    #[error("volume {volume} is mounted already, on {}", dir.display())]
    VolumeMounted { volume: String, dir: PathBuf },
    #[error(
        "{}: volume {volume}: the running daemon {}",
        path.display(),
        if *read_only { "writes to the store, so it cannot mount this volume read-only" } else { "was started with --read-only" }
    )]
    OtherAccess { path: PathBuf, volume: String, read_only: bool },
    #[error("--foreground: the store is mounted on {}, and its daemon mounts this volume, too", dir.display())]
    ForegroundBesideDaemon { dir: PathBuf },
    #[error("{option}: the store is mounted on {} with another value, which all of its mounts share", dir.display())]
    OtherOption { dir: PathBuf, option: String },
    #[error("{}: the daemon of this store, pid {pid}, runs in another mount namespace or root directory", path.display())]
    OtherNamespace { path: PathBuf, pid: u32 },
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
    #[error("{}: this user may not mount here", dir.display())]
    MayNotMount { dir: PathBuf },
    #[error("--allow-other: /etc/fuse.conf does not allow this option for this user")]
    MayNotAllowOther,
    #[error("{}: the mount failed: {source}", dir.display())]
    MountFailed { dir: PathBuf, source: io::Error },
    #[error("starting the daemon: {source}")]
    Spawn { source: io::Error },
    #[error("the daemon ended before it was ready: {status}")]
    DaemonDied { status: String },
    #[error("{}: no weir store is mounted here", dir.display())]
    NotMounted { dir: PathBuf },
    #[error("no weir store is mounted that this user may control")]
    NothingMounted,
    #[error("{}: the daemon does not answer: {source}", dir.display())]
    NoAnswer { dir: PathBuf, source: io::Error },
    #[error("{}: does not answer: the daemon has ended, because it was killed or crashed, and left a dead mount", dir.display())]
    DaemonGone { dir: PathBuf, store: PathBuf, owner: u32 },
    #[error("{}: holds a dead mount of another store, {}", dir.display(), store.display())]
    DeadMount { dir: PathBuf, store: PathBuf },
    #[error("{}: the daemon, pid {pid}, is stopped (SIGSTOP, or a debugger)", dir.display())]
    DaemonStopped { dir: PathBuf, pid: u32 },
    #[error("{}: the daemon has not answered for {seconds} s", dir.display())]
    DaemonSilent { dir: PathBuf, pid: Option<u32>, seconds: u64 },
    #[error("{}: the daemon of user {owner} accepts this command only from that user and root", dir.display())]
    DaemonOfOther { dir: PathBuf, owner: u32 },
    #[error("{}: the daemon cannot keep its log here: {why}", dir.display())]
    RunDirectory { dir: PathBuf, why: String },
    #[error("{}: the daemon says: {why}", dir.display())]
    Refused { dir: PathBuf, why: String, help: Option<String> },
    #[error("{}: unmounting: {why}", dir.display())]
    Unmount { dir: PathBuf, why: String },
    #[error(
        "{}: unmounted, but its file system is also mounted on {}{}: the daemon keeps running until you unmount it there, too; \
         synced data is safe",
        dir.display(), point.display(), of_process(*pid)
    )]
    StillMounted { dir: PathBuf, point: PathBuf, pid: Option<u32> },
    #[error("{}: unmounted, but not everything was written back: {why}", dir.display())]
    NotDrained { dir: PathBuf, why: String },
    #[error("{}: there is no volume {name} in this store", path.display())]
    NoSuchVolume { path: PathBuf, name: String, there_are: Vec<String> },
    #[error("{}: volume {name} is a copy that weir takes and replaces itself: it keeps its name", path.display())]
    EpochKeepsName { path: PathBuf, name: String },
    #[error("{}: volume {name} is read-only, so it has not changed: there is nothing to roll back", path.display())]
    ReadOnlyRolledBack { path: PathBuf, name: String },
    #[error("{pid}: {source}")]
    Task { pid: u32, source: TaskReadError },
    #[error("weir-trace: {source}")]
    NoTraceProgram { source: io::Error },
    #[error("could not check: {source}")]
    CannotCheck { source: Box<WeirError> },
}

impl WeirError {
    /// Adds to an I/O error the failed step and the path.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> WeirError {
        let path = path.into();
        move |source| WeirError::Io { doing, path, source }
    }

    /// The exit code of the process, which `weir --help` documents.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            WeirError::CannotCheck { .. } => 2,
            // As of shells, `env` and `nice`.
            WeirError::Run { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            WeirError::Run { .. } => 126,
            _ => 1,
        }
    }

    /// Whether the error is about the buffer, which lies at `buffer`.
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
            WeirError::Host { path, .. } | WeirError::OtherBuffer { path } => path == buffer,
            _ => false,
        }
    }

    /// Whether the path given as the buffer holds no buffer, or the buffer of another store.
    pub(crate) fn is_of_another_buffer(&self) -> bool {
        let WeirError::Cache { source: CacheError::Buffer(error), .. } = self else { return false };
        matches!(error, BufferError::NotABuffer { .. } | BufferError::WrongStore { .. })
    }

    /// The error for a path that the user named as the buffer.
    pub(crate) fn not_its_buffer(&self) -> WeirError {
        WeirError::NotItsBuffer { why: self.to_string() }
    }

    /// Whether the buffer, which lies at `buffer`, cannot be written. It may still be readable.
    pub(crate) fn is_not_writable(&self, buffer: &Path) -> bool {
        match self {
            WeirError::Cache { source: CacheError::Buffer(BufferError::Device(error)), .. } => {
                matches!(error.operation, DeviceOperation::Write | DeviceOperation::Flush)
            }
            WeirError::Host { path, source: HostError::Permission { .. } | HostError::ReadOnly { .. } } => {
                path == buffer
            }
            _ => false,
        }
    }

    fn help_about_media(&self) -> Option<&'static str> {
        Some(match self {
            WeirError::NotBlank { .. } => "choose another place, or add --force to overwrite the data there",
            WeirError::NotEmpty { .. } => {
                "give a new or empty directory, or add --force to put the store beside the other files"
            }
            WeirError::IsDirectory { .. } => {
                "give the path of a block device or of a file; weir creates the file if it does not exist"
            }
            WeirError::NotMedia { .. } => "give a directory, a block device or a file",
            WeirError::BufferNotMounted { .. } => {
                "mount the store first, or give it a larger buffer with `weir replace-buffer`"
            }
            WeirError::NeitherMountNorStore { .. } => {
                "give the directory on which a store is mounted (`findmnt -t fuse.weir`), or the directory or device \
                 that you formatted"
            }
            WeirError::LeadsNowhere { .. } => "attach the device, or correct the symbolic link",
            WeirError::NotItsBuffer { .. } => {
                "give the path of this store's buffer; if that buffer is gone for good, leave out the option, and see \
                 `weir replace-buffer --help`"
            }
            WeirError::OnOwnMount { .. } => "put the store and its buffer on another file system",
            WeirError::BelowMountPoint { .. } => "mount on a directory that does not contain the store",
            WeirError::BufferWanted { .. } => {
                "add `--buffer PATH`: a fast block device, or a file on another device"
            }
            WeirError::BufferMissing { .. } => {
                "attach its device, or name the buffer with `--buffer PATH`; if it is gone for good, the latest synced changes are \
                 lost, and `weir replace-buffer --accept-loss` gives the store a new buffer"
            }
            WeirError::TwoBuffers { .. } => {
                "one is a copy of the other: detach the copy, or name the right buffer with `--buffer PATH`"
            }
            WeirError::OtherBuffer { .. } => {
                "attach the newer buffer; if that is gone for good, see `weir replace-buffer --help`"
            }
            WeirError::BufferNotWritable { .. } => {
                "if you can still read its device, `weir replace-buffer` writes its changes back to the store, without writing to \
                 the device, and gives the store another buffer; nothing is lost"
            }
            WeirError::BufferLost { .. } => {
                "attach its device, or restore store and buffer from copies of the same moment; if the buffer is gone for good, \
                 add --accept-loss; `weir replace-buffer --help` says what you lose"
            }
            WeirError::EarlierBuffer { .. } => "move it away, or remove it if you do not need its data",
            WeirError::Size { .. } => {
                "a number without a unit is in bytes; write 512MiB, 1.5GiB or 8GB, and see the command's --help"
            }
            WeirError::SameMedia { .. } => "give the buffer a device or file of its own with `--buffer PATH`",
            _ => return None,
        })
    }

    fn help_about_daemon(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            WeirError::LostEnds { .. } => {
                "unmount all volumes of the store, and mount this one first; `weir status` says why nothing is truncated".into()
            }
            WeirError::VolumeMounted { dir, .. } => format!(
                "to have it in another place, too: `mount --bind {} DIR`; to move it, unmount it first",
                shell_quoted(dir)
            )
            .into(),
            WeirError::OtherAccess { read_only: true, .. } => {
                "clone it with `weir volume clone --read-only`, and mount the clone; or unmount all volumes of the store first".into()
            }
            WeirError::OtherAccess { read_only: false, .. } => {
                "mount with `--read-only`, or unmount all volumes of the store first".into()
            }
            WeirError::ForegroundBesideDaemon { .. } => "leave it out".into(),
            WeirError::OtherOption { dir, .. } => format!(
                "leave it out, or unmount all volumes of the store first; `weir status {}` shows the values",
                shell_quoted(dir)
            )
            .into(),
            WeirError::OtherNamespace { pid, .. } => {
                format!("mount where the daemon runs: `nsenter -m -t {pid} weir mount ...`").into()
            }
            WeirError::InUse { mount: Some(dir), .. } => format!("unmount it: `weir unmount {}`", shell_quoted(dir)).into(),
            WeirError::InUse { pid, program, .. } if program == env!("CARGO_PKG_NAME") => format!(
                "it has no mount that you can see: after an unmount it writes everything back, and ends when no program uses its \
                 files; `kill {pid}` ends it without waiting for those programs, and still writes everything back"
            )
            .into(),
            WeirError::InUse { pid, .. } => {
                format!("see what it does with `ps -fp {pid}`, and wait until it ends").into()
            }
            WeirError::NoAnswer { dir, .. } => {
                format!("check that the daemon still runs with `ps -C weir -f`, and that `ls {}` works", shell_quoted(dir)).into()
            }
            WeirError::DaemonGone { dir, store, owner } => format!(
                "`weir mount {} {}` removes the dead mount and mounts again; no synced data is lost; the newest of {} holds the \
                 daemon's last messages",
                shell_quoted(store),
                shell_quoted(dir),
                log_files::log_pattern_of_user(*owner).display()
            )
            .into(),
            WeirError::DeadMount { dir, .. } => {
                format!("mount that store again, or remove the dead mount with `weir unmount {}`", shell_quoted(dir)).into()
            }
            WeirError::DaemonStopped { pid, .. } => format!("resume it: `kill -CONT {pid}`").into(),
            WeirError::DaemonSilent { pid: Some(pid), .. } => format!(
                "see what it waits for with `ps -o pid,stat,wchan:20 -p {pid}`; if it is stopped, `kill -CONT {pid}`"
            )
            .into(),
            WeirError::DaemonSilent { pid: None, .. } => {
                "you cannot see its process from here: run the command again where you started the daemon".into()
            }
            WeirError::DaemonOfOther { owner, .. } => format!("ask user {owner} or root to do it").into(),
            WeirError::Unmount { dir, .. } => {
                format!("find the programs that use it with `fuser -vm {}`, and try again", shell_quoted(dir)).into()
            }
            WeirError::StillMounted { point, pid: None, .. } => {
                format!("`weir unmount {}` writes everything back and ends the daemon", shell_quoted(point)).into()
            }
            WeirError::StillMounted { point, pid: Some(pid), .. } => format!(
                "end that process, or run `nsenter --target {pid} --mount umount {}`; the daemon then writes everything back and \
                 ends",
                shell_quoted(point)
            )
            .into(),
            WeirError::RunDirectory { dir, .. } if log_files::is_directory_of_root(dir) => {
                format!("make it: `install -d -o root -m 700 {}`; or mount with --foreground", shell_quoted(dir)).into()
            }
            WeirError::RunDirectory { .. } => {
                "set XDG_RUNTIME_DIR to a directory of your own, or unset it if it is another user's; or mount with --foreground"
                    .into()
            }
            _ => return None,
        })
    }

    fn help_about_mounting(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            WeirError::MountPointMissing { dir } => {
                format!("make it: `mkdir -p {}`", shell_quoted(dir)).into()
            }
            WeirError::MountPointNotDirectory { .. } => "give an empty directory".into(),
            WeirError::MountPointNotEmpty { dir } => format!(
                "a mount would hide the files in it; give an empty directory: `mkdir {}`",
                shell_quoted(&dir.with_added_extension("weir"))
            )
            .into(),
            WeirError::MountPointBusy { dir, .. } => format!(
                "mount on another directory; `findmnt {}` shows what is mounted there",
                shell_quoted(dir)
            )
            .into(),
            WeirError::NoFuse { source } => match source.kind() {
                io::ErrorKind::PermissionDenied => "run as root, or let this user open /dev/fuse".into(),
                _ => "load the kernel module with `modprobe fuse`".into(),
            },
            WeirError::MayNotMount { .. } => {
                "run as root, or install the package `fuse3` for its fusermount3".into()
            }
            WeirError::MayNotAllowOther => {
                "add the line `user_allow_other` to /etc/fuse.conf, or run as root".into()
            }
            WeirError::MountFailed { .. } => "see `dmesg | tail` for the kernel's reason".into(),
            _ => return None,
        })
    }

    /// The next step.
    pub(crate) fn help(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            WeirError::Missing { path } => {
                format!("check the path; `weir format {}` makes a store there", shell_quoted(path)).into()
            }
            WeirError::Io { source, .. } => return io_help(source),
            WeirError::DeviceMounted { at, .. } => format!("unmount it first: `umount {}`", shell_quoted(at)).into(),
            WeirError::NotBlank { .. }
            | WeirError::NotEmpty { .. }
            | WeirError::IsDirectory { .. }
            | WeirError::NotMedia { .. }
            | WeirError::NeitherMountNorStore { .. }
            | WeirError::BufferNotMounted { .. }
            | WeirError::LeadsNowhere { .. }
            | WeirError::NotItsBuffer { .. }
            | WeirError::OnOwnMount { .. }
            | WeirError::BelowMountPoint { .. }
            | WeirError::BufferWanted { .. }
            | WeirError::BufferMissing { .. }
            | WeirError::TwoBuffers { .. }
            | WeirError::OtherBuffer { .. }
            | WeirError::BufferNotWritable { .. }
            | WeirError::BufferLost { .. }
            | WeirError::EarlierBuffer { .. }
            | WeirError::Size { .. }
            | WeirError::SameMedia { .. } => return self.help_about_media().map(Cow::from),
            WeirError::BadRules { path, .. } => {
                format!("`weir rules check {}` shows every error", shell_quoted(path)).into()
            }
            WeirError::Run { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "give the program's path, or its name if it is in PATH".into()
            }
            WeirError::Run { .. } => "check that it is a program which this user may run".into(),
            WeirError::UnusedRules { .. } => "use `--policy critical`, or leave out --rules".into(),
            WeirError::VolatileBuffer { store, .. } => help_about_volatile(store.as_deref()).into(),
            WeirError::NoSpace { .. } => "free some space there, or choose a smaller size (--size, --segment-size, --buffer-size)".into(),
            WeirError::FixedSize { option, .. } => format!("leave out {option}: weir uses a device or an existing file whole").into(),
            WeirError::Busy { .. } => "find its mount with `findmnt -t fuse.weir`, and `weir unmount` it".into(),
            WeirError::Host { source, .. } => return source.help(),
            WeirError::Store { path, source } => return help_about_store(path, source),
            WeirError::Cache { source, .. } => return source.help(),
            WeirError::Fs { source, .. } => return source.help(),
            WeirError::Volume { source, .. } => return source.help(),
            WeirError::MountPointMissing { .. }
            | WeirError::MountPointNotDirectory { .. }
            | WeirError::MountPointNotEmpty { .. }
            | WeirError::MountPointBusy { .. }
            | WeirError::NoFuse { .. }
            | WeirError::MayNotMount { .. }
            | WeirError::MayNotAllowOther
            | WeirError::MountFailed { .. } => return self.help_about_mounting(),
            WeirError::Spawn { .. } => "try `weir mount --foreground`".into(),
            WeirError::DaemonDied { .. } => "run it with `--foreground` to see its messages".into(),
            WeirError::NotMounted { .. } | WeirError::NothingMounted => "see what is mounted with `findmnt -t fuse.weir`".into(),
            WeirError::NoAnswer { .. }
            | WeirError::LostEnds { .. }
            | WeirError::VolumeMounted { .. }
            | WeirError::OtherAccess { .. }
            | WeirError::ForegroundBesideDaemon { .. }
            | WeirError::OtherOption { .. }
            | WeirError::OtherNamespace { .. }
            | WeirError::InUse { .. }
            | WeirError::DaemonGone { .. }
            | WeirError::DeadMount { .. }
            | WeirError::DaemonStopped { .. }
            | WeirError::DaemonSilent { .. }
            | WeirError::DaemonOfOther { .. }
            | WeirError::Unmount { .. }
            | WeirError::StillMounted { .. }
            | WeirError::RunDirectory { .. } => return self.help_about_daemon(),
            WeirError::Refused { help: Some(help), .. } => help.clone().into(),
            WeirError::Refused { dir, help: None, .. } => format!("see `weir status {}`", shell_quoted(dir)).into(),
            WeirError::NoSuchVolume { path, name, there_are } if there_are.is_empty() => {
                let (path, name) = (shell_quoted(path), shell_quoted(Path::new(name)));
                format!("it has no volumes: `weir volume create {path} {name}` makes one").into()
            }
            WeirError::NoSuchVolume { there_are, .. } => format!("there are: {}", there_are.join(", ")).into(),
            WeirError::ReadOnlyRolledBack { .. } => {
                "name the volume first, then its snapshot: `weir volume rollback PATH VOLUME SNAPSHOT`".into()
            }
            WeirError::EpochKeepsName { name, .. } => {
                format!("mount it with `--volume {name}`, and clone it").into()
            }
            WeirError::Task { source: TaskReadError::Gone, .. } => {
                "give the id of a running process or thread: `ps -eLo lwp,comm,args` lists them".into()
            }
            WeirError::Task { source: TaskReadError::NotPermitted, .. } => {
                "run as root, or as the user of that process".into()
            }
            WeirError::Task { source: TaskReadError::Io { .. }, .. } => "nothing has changed: try again".into(),
            WeirError::CannotCheck { source } => return source.help(),
            WeirError::NoTraceProgram { source } if source.kind() == io::ErrorKind::NotFound => {
                "`weir trace` runs `weir-trace`, which is a program of its own: install it beside `weir`, or in a directory of PATH".into()
            }
            WeirError::NoTraceProgram { .. } => "check that this user may run it".into(),
            WeirError::NotDrained { .. } => {
                "synced data that is not in the store is in the buffer: keep the buffer, and run `weir mount` again when the devices \
                 of both work"
                    .into()
            }
        })
    }
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

/// The next step about a store, which the user calls `path`.
fn help_about_store(path: &Path, error: &StoreError) -> Option<Cow<'static, str>> {
    let repair = || {
        format!("`weir check --repair {}` restores it from its copy at the store's end", shell_quoted(path))
    };
    match error {
        StoreError::SuperblockDamaged { .. } => Some(repair().into()),
        other => other.help(),
    }
}

/// The process whose mount namespace has the mount, in brackets; empty if it is this one's.
fn and_more(errors: usize) -> String {
    match errors {
        0 => String::new(),
        1 => ", and 1 more error".into(),
        _ => format!(", and {errors} more errors"),
    }
}

fn of_process(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (in the mount namespace of process {pid})"))
}

/// The error of a lower layer, with `path` before it unless it begins with `path` already.
fn about(path: &Path, error: &dyn Display) -> String {
    let (path, error) = (path.display().to_string(), error.to_string());
    if error.starts_with(&path) { error } else { format!("{path}: {error}") }
}

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
