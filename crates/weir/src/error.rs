//! The errors of the command line: what failed, where, and the next step.

use crate::byte_size::ByteSize;
use crate::log_files;
use crate::store_server::ExportDaemon;
use client::{ClientError, WeirMount};
use fs::FsError;
use host::{TaskReadError, WEIR_FS_TYPE, shell_quoted};
use request::{BufferPolicy, RuleError};
use stack::StackError;
use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a command failed. The text says what failed and where; [`WeirError::help`] gives the next step.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WeirError {
    #[error(transparent)]
    Stack(#[from] StackError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("{}: not blank: it holds {found}", path.display())]
    NotBlank { path: PathBuf, found: &'static str },
    #[error("{}: not empty: it holds {found}", path.display())]
    NotEmpty { path: PathBuf, found: String },
    #[error("{}: is a directory, not a file or a block device", path.display())]
    IsDirectory { path: PathBuf },
    #[error("{}: neither a mounted store nor a formatted store", path.display())]
    NeitherMountNorStore { path: PathBuf },
    #[error("{}: the store is not mounted, and only a mounted store can enlarge its buffer", path.display())]
    BufferNotMounted { path: PathBuf },
    #[error("{}: is mounted on {}", path.display(), at.display())]
    DeviceMounted { path: PathBuf, at: PathBuf },
    #[error("{}: a store on a block device needs a separate buffer", path.display())]
    BufferWanted { path: PathBuf },
    #[error("not the buffer of this store: {why}")]
    NotItsBuffer { why: String },
    #[error("{}: an earlier buffer is kept here, and weir does not overwrite it", path.display())]
    EarlierBuffer { path: PathBuf },
    #[error("{}: this is the store's buffer already", path.display())]
    SameBuffer { path: PathBuf },
    #[error("{}: this is the store's buffer: an earlier `weir replace-buffer` was cut off before it got its name", new.display())]
    ReplacementCutOff { new: PathBuf, entry: PathBuf },
    #[error("{}: the buffer is lost, and volume {volume} has no epoch to go on from", path.display())]
    NoEpoch { path: PathBuf, volume: String },
    #[error("{}: the buffer is lost, and volume {rescued} has everything that was in memory when the buffer failed", path.display())]
    BufferLostAfterRescue { path: PathBuf, rescued: String },
    #[error("{}: the buffer came back while weir made a new one", buffer.display())]
    BufferCame { buffer: PathBuf },
    #[error("{}: the buffer is lost, and {why}", path.display())]
    NewBufferWanted { path: PathBuf, why: String },
    #[error("{}: the buffer cannot be used, and only it holds the changes that are not in the store yet: {why}", path.display())]
    BufferLost { path: PathBuf, why: String },
    #[error("{}: {first}{}", path.display(), and_more(*more))]
    BadRules { path: PathBuf, first: RuleError, more: usize },
    #[error("{address}: {source}")]
    Listen { address: SocketAddr, source: io::Error },
    #[error("standard input or output is not a terminal")]
    NoTerminal,
    #[error("the screen cannot be shown: {source}")]
    Screen { source: io::Error },
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
    #[error("{}: {source}", path.display())]
    Fs { path: PathBuf, source: FsError },
    #[error("{}: is no regular file", path.display())]
    NotRegularFile { path: PathBuf },
    #[error("{}: exists already", path.display())]
    TargetExists { path: PathBuf },
    #[error("{at}: {source}")]
    Socket { at: String, source: io::Error },
    #[error("volume {volume} is exported already, at {at}")]
    VolumeExported { volume: String, at: String },
    #[error("{}: the daemon of the store is ending", path.display())]
    DaemonEnding { path: PathBuf },
    #[error("volume {volume}: the daemon has ended, and with it the export")]
    ExportEnded { volume: String },
    #[error("volume {volume}: the export has ended, and not everything is durable: {why}")]
    ExportNotSynced { volume: String, why: String },
    #[error("{}: {option}: a daemon has the store open, with options of its own", path.display())]
    OptionOfDaemon { path: PathBuf, option: String },
    #[error("{}: volume {name} has {size} now, and would lose the rest", path.display())]
    WouldShrink { path: PathBuf, name: String, size: ByteSize },
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
    #[error("{}: not mounted: the command was ended while it waited", path.display())]
    CallerEnded { path: PathBuf },
    #[error("the daemon ended before it was ready: {status}")]
    DaemonDied { status: String },
    #[error("no weir store is mounted that this user may control")]
    NothingMounted,
    #[error("{}: holds a dead mount of another store, {}", dir.display(), store.display())]
    DeadMount { dir: PathBuf, store: PathBuf },
    #[error("{}: the daemon cannot keep its log here: {why}", dir.display())]
    RunDirectory { dir: PathBuf, why: String },
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
    #[error("{}: volume {name} is a copy that weir takes and replaces itself: it keeps its name", path.display())]
    EpochKeepsName { path: PathBuf, name: String },
    #[error("{}: volume {name} is read-only, so it has not changed: there is nothing to roll back", path.display())]
    ReadOnlyRolledBack { path: PathBuf, name: String },
    #[error("{pid}: {source}")]
    Task { pid: u32, source: TaskReadError },
    #[error("{}: {why}", program.display())]
    CannotServe { program: PathBuf, why: &'static str },
    #[error("libweir_shim.so: there is no such library in {}", places.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or "))]
    NoShim { places: Vec<PathBuf> },
    #[error("weir-trace: {source}")]
    NoTraceProgram { source: io::Error },
    #[error("could not check: {source}")]
    CannotCheck { source: Box<WeirError> },
}

impl WeirError {
    /// Adds to an I/O error the failed step and the path.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> WeirError {
        let path = path.into();
        move |source| StackError::Io { doing, path, source }.into()
    }

    /// The exit code of the process, which `weir --help` documents.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            WeirError::CannotCheck { .. } | WeirError::NoTerminal => 2,
            // As of shells, `env` and `nice`.
            WeirError::Run { source, .. } if source.kind() == io::ErrorKind::NotFound => 127,
            WeirError::Run { .. } => 126,
            _ => 1,
        }
    }

    /// The error for a path that the user named as the buffer.
    pub(crate) fn not_its_buffer(error: &StackError) -> WeirError {
        WeirError::NotItsBuffer { why: error.to_string() }
    }

    fn help_about_media(&self) -> Option<&'static str> {
        Some(match self {
            WeirError::NotBlank { .. } => {
                "choose another place, or look at what is there: `weir check` examines a store; `weir format` and `weir replace-buffer` \
                 overwrite it for good with --force"
            }
            WeirError::NotEmpty { .. } => {
                "give a new or empty directory, or add --force to put the store beside the other files"
            }
            WeirError::IsDirectory { .. } => {
                "give the path of a block device or of a file; weir creates the file if it does not exist"
            }
            WeirError::BufferNotMounted { .. } => {
                "mount the store first, or give it a larger buffer with `weir replace-buffer`"
            }
            WeirError::NeitherMountNorStore { .. } => {
                "give the directory on which a store is mounted (`findmnt -t fuse.weir`), or the directory or device \
                 that you formatted"
            }
            WeirError::NotItsBuffer { .. } => {
                "give the path of this store's buffer; if that buffer is gone for good, leave out the option, and see \
                 `weir replace-buffer --help`"
            }
            WeirError::BelowMountPoint { .. } => "mount on a directory that does not contain the store",
            WeirError::BufferWanted { .. } => {
                "add `--buffer PATH`: a fast block device, or a file on another device"
            }
            WeirError::BufferLost { .. } => {
                "attach its device, or restore store and buffer from copies of the same moment; if the buffer is gone for good, \
                 add --accept-loss; `weir replace-buffer --help` says what you lose"
            }
            WeirError::NoEpoch { .. } => {
                "attach its device; if it is gone for good, `weir replace-buffer --accept-loss` gives the store a new buffer, and \
                 leaves the volume as the store has it"
            }
            WeirError::BufferCame { .. } => "mount again",
            WeirError::BufferLostAfterRescue { .. } => {
                "`weir replace-buffer --accept-loss` gives the store a new buffer; mount that volume afterwards, and delete it when you \
                 have its files"
            }
            WeirError::NewBufferWanted { .. } => "name a place for a new buffer with `--new-buffer PATH`",
            WeirError::SameBuffer { .. } => "name another place for the new buffer with `--buffer PATH`",
            WeirError::EarlierBuffer { .. } => "move it away, or remove it if you do not need its data",
            WeirError::Size { .. } => {
                "a number without a unit is in bytes; write 512MiB, 1.5GiB or 8GB, and see the command's --help"
            }
            _ => return None,
        })
    }

    fn help_about_daemon(&self) -> Option<Cow<'static, str>> {
        Some(match self {
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
            WeirError::DeadMount { dir, .. } => {
                format!("mount that store again, or remove the dead mount with `weir unmount {}`", shell_quoted(dir)).into()
            }
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
            WeirError::MountPointBusy { dir, fs_type } if fs_type == WEIR_FS_TYPE => format!(
                "`weir status {dir}` shows which store and volume are mounted there, and `weir unmount {dir}` unmounts them",
                dir = shell_quoted(dir)
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
            WeirError::Stack(error) => return help_about_stack(error),
            WeirError::Client(error) => return error.help(),
            WeirError::DeviceMounted { at, .. } => format!("unmount it first: `umount {}`", shell_quoted(at)).into(),
            WeirError::NotBlank { .. }
            | WeirError::NotEmpty { .. }
            | WeirError::IsDirectory { .. }
            | WeirError::NeitherMountNorStore { .. }
            | WeirError::BufferNotMounted { .. }
            | WeirError::NotItsBuffer { .. }
            | WeirError::BelowMountPoint { .. }
            | WeirError::BufferWanted { .. }
            | WeirError::BufferLost { .. }
            | WeirError::NoEpoch { .. }
            | WeirError::BufferCame { .. }
            | WeirError::BufferLostAfterRescue { .. }
            | WeirError::NewBufferWanted { .. }
            | WeirError::EarlierBuffer { .. }
            | WeirError::SameBuffer { .. }
            | WeirError::Size { .. } => return self.help_about_media().map(Cow::from),
            WeirError::Listen { .. } => {
                "choose a free port of this machine: `weir metrics --listen 127.0.0.1:9765`".into()
            }
            WeirError::BadRules { path, .. } => {
                format!("`weir rules check {}` shows every error", shell_quoted(path)).into()
            }
            WeirError::Run { source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "give the program's path, or its name if it is in PATH".into()
            }
            WeirError::Run { .. } => "check that it is a program which this user may run".into(),
            WeirError::UnusedRules { .. } => "use `--policy critical`, or leave out --rules".into(),
            WeirError::NoSpace { .. } => "free some space there, or choose a smaller size (--size, --segment-size, --buffer-size)".into(),
            WeirError::FixedSize { option, .. } => format!("leave out {option}: weir uses a device or an existing file whole").into(),
            WeirError::Fs { source, .. } => return source.help(),
            WeirError::MountPointMissing { .. }
            | WeirError::MountPointNotDirectory { .. }
            | WeirError::MountPointNotEmpty { .. }
            | WeirError::MountPointBusy { .. }
            | WeirError::NoFuse { .. }
            | WeirError::MayNotMount { .. }
            | WeirError::MayNotAllowOther
            | WeirError::MountFailed { .. } => return self.help_about_mounting(),
            WeirError::NoTerminal => {
                "scripts want `weir status --json` and `weir metrics`; `weir status` prints a line for each mount".into()
            }
            WeirError::Screen { .. } => "`weir status` prints a line for each mount".into(),
            WeirError::Spawn { .. } => "try `weir mount --foreground`".into(),
            WeirError::ReplacementCutOff { new, entry } => {
                format!("give it its name: `mv --backup=numbered {} {}`", shell_quoted(new), shell_quoted(entry)).into()
            }
            WeirError::CallerEnded { .. } => "nothing was given up; attach the buffer, or run the command again".into(),
            WeirError::DaemonDied { .. } => "run it with `--foreground` to see its messages".into(),
            WeirError::NothingMounted => "see what is mounted with `findmnt -t fuse.weir`".into(),
            WeirError::VolumeMounted { .. }
            | WeirError::OtherAccess { .. }
            | WeirError::ForegroundBesideDaemon { .. }
            | WeirError::OtherOption { .. }
            | WeirError::OtherNamespace { .. }
            | WeirError::DeadMount { .. }
            | WeirError::Unmount { .. }
            | WeirError::StillMounted { .. }
            | WeirError::RunDirectory { .. } => return self.help_about_daemon(),
            WeirError::NotRegularFile { .. } => "copy each file of a directory by itself, or use `cp`".into(),
            WeirError::TargetExists { .. } => "choose another name, or pass `--force` to replace it".into(),
            WeirError::Socket { source, .. } => match source.kind() {
                io::ErrorKind::AddrInUse => {
                    "if no program uses what is there, remove it; otherwise choose another path or port".into()
                }
                io::ErrorKind::NotFound => "create its directory".into(),
                io::ErrorKind::InvalidInput => "the path of a socket has at most 107 bytes".into(),
                _ => "choose a path or a port that you may use".into(),
            },
            WeirError::VolumeExported { .. } => {
                "end its `weir export` first; two file systems on one disk, as of two virtual machines, would destroy it".into()
            }
            WeirError::ExportEnded { .. } | WeirError::ExportNotSynced { .. } => {
                "see why in the messages of the daemon, and export the volume again: what clients flushed is there".into()
            }
            WeirError::DaemonEnding { .. } => "try again in a moment".into(),
            WeirError::OptionOfDaemon { .. } => "leave the option out, or end all mounts and exports of the store first".into(),
            WeirError::WouldShrink { .. } => "shrink the file system on it first, and pass `--accept-loss`".into(),
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
            WeirError::CannotServe { .. } => {
                "mount the store with `weir mount`, and run the program there; or use a program that is linked to glibc".into()
            }
            WeirError::NoShim { .. } => {
                "`cargo build --release` makes it: install it beside `weir`, or in ../lib/weir; WEIR_SHIM names another place".into()
            }
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

/// The next step about a store that could not be opened or used. If it is in use, the command can see the mounts of its user.
fn help_about_stack(error: &StackError) -> Option<Cow<'static, str>> {
    let StackError::InUse { path, pid, program } = error else { return error.help() };
    Some(match WeirMount::served_by(*pid, path) {
        Some(mount) => format!("unmount it: `weir unmount {}`", shell_quoted(mount.dir())).into(),
        None if ExportDaemon::of_process(*pid, path).is_some() => {
            "it exports volumes: end each `weir export` of the store first; `weir volume list` shows them".into()
        }
        None if program == env!("CARGO_PKG_NAME") => format!(
            "it has no mount that you can see: after an unmount it writes everything back, and ends when no program uses its \
             files; `kill {pid}` ends it without waiting for those programs, and still writes everything back"
        )
        .into(),
        None => return error.help(),
    })
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
