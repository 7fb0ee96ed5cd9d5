//! What can be typed. The parser, the help and the man pages all come from here.

use crate::size::Size;
use crate::trace::TraceArgs;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

/// A storage write path that never makes a program wait without need.
#[derive(Debug, Parser)]
#[command(name = "weir", version, max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "\
Results go to standard output, everything else to standard error.
Sizes: K, M, G, T or KiB, MiB, GiB, TiB count by 1024; kB, MB, GB, TB by 1000.
Exit codes: 0 done; 1 failed, and what failed is as it was (`check`: findings);
2 the command line makes no sense (`check`: could not check).

A first session:
  weir format /var/lib/weir/demo
  mkdir /mnt/demo && weir mount /var/lib/weir/demo /mnt/demo
  weir status /mnt/demo
  weir unmount /mnt/demo";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Format(FormatArgs),
    Mount(MountArgs),
    /// Unmount, write everything back, and wait until that is done
    #[command(visible_alias = "umount")]
    Unmount(DirArgs),
    Status(StatusArgs),
    /// Make everything written so far durable, for all files
    Sync(DirArgs),
    Check(CheckArgs),
    Space(SpaceArgs),
    Scrub(ScrubArgs),
    Volume(VolumeArgs),
    Grow(GrowArgs),
    Tune(TuneArgs),
    #[command(hide = true)]
    Order(RenamedArgs),
    ReplaceBuffer(ReplaceBufferArgs),
    Trace(TraceArgs),
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man(DirArgs),
}

/// Make an empty store
///
/// PATH is a directory, made if need be, that gets two files: `store`, sparse, and `buffer`, written in full so that
/// a later sync never waits for the file system below to find space. Or PATH is a block device (or an existing file)
/// that becomes the store; then --buffer is required.
///
/// Refuses anything that is not blank, and a directory with other things in it, unless --force is given; and anything
/// mounted, always. Files get the mode 0600: a store holds everybody's data. Block devices keep theirs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir format /var/lib/weir/demo
  weir format --size 100GiB --buffer /dev/nvme0n1p3 /var/lib/weir/db
  weir format --buffer /dev/nvme0n1p3 /dev/vdb")]
pub(crate) struct FormatArgs {
    /// A directory to make, or a block device
    pub(crate) path: PathBuf,
    /// Where records wait until they are written back: a fast block device, or a file (made if need be)
    #[arg(long, value_name = "PATH")]
    pub(crate) buffer: Option<PathBuf>,
    /// Size of the file `store`; a block device is used whole [default: 8GiB]
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) size: Option<Size>,
    /// Size of a buffer file; a block device is used whole [default: 256MiB]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) buffer_size: Option<Size>,
    /// Size of a segment, from 512KiB to 128MiB [default: store / 2048, within these]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) segment_size: Option<Size>,
    /// Take the whole size of a store that is a file from its file system now, and keep it: writers never find that file system
    /// full. Without it the file is sparse, and grows with what is in it
    #[arg(long)]
    pub(crate) preallocate: bool,
    /// Overwrite what is there
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) buffer_medium: BufferMedium,
}

/// What is put up with in the medium of a buffer.
#[derive(Debug, Args)]
pub(crate) struct BufferMedium {
    /// Accept a buffer that loses with the power what was flushed to it: in memory (tmpfs, zram), on an overlay mounted `volatile`, or
    /// without barriers above a disk with a cache. With the power goes everything that was not yet written back, synced or not; the
    /// store then needs `weir replace-buffer --accept-loss`, and files written lately may be damaged
    #[arg(long)]
    pub(crate) volatile_buffer: bool,
}

/// Mount a store; returns once it is ready
///
/// The daemon stays in the background until DIR is unmounted, by `weir unmount`,
/// `umount`, or SIGTERM; it then writes everything back and exits. A dead mount of the same store on DIR, left by a daemon
/// that was killed, is taken away.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir mount /var/lib/weir/demo /mnt/demo
  weir mount --allow-other --memory 4GiB /var/lib/weir/demo /mnt/demo
  weir mount /dev/vdb /mnt/db")]
pub(crate) struct MountArgs {
    /// The directory or device that was formatted
    pub(crate) path: PathBuf,
    /// An empty directory
    pub(crate) dir: PathBuf,
    /// The buffer, where weir does not find it: in its last place, beside the store, or on a block device
    #[arg(long, value_name = "PATH")]
    pub(crate) buffer: Option<PathBuf>,
    /// The volume to mount, as `weir volume list` names it; one that is read-only is mounted read-only
    #[arg(long, value_name = "NAME", default_value = crate::volume::DEFAULT)]
    pub(crate) volume: String,
    /// Stay in the foreground
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Let users other than the one who mounts enter; permissions are checked as usual
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Refuse every change, and write nothing to the media: what a recovery would write stays in memory, which needs as
    /// much of it as the buffer holds
    #[arg(long)]
    pub(crate) read_only: bool,
    #[command(flatten)]
    pub(crate) buffer_medium: BufferMedium,
    #[command(flatten)]
    pub(crate) tuning: Tuning,
    /// Set by `weir mount` on the process that becomes the daemon.
    #[arg(long, hide = true, conflicts_with = "foreground")]
    pub(crate) daemon: bool,
}

/// 1 GiB, or half of the memory there is where that is less.
fn memory_default() -> Size {
    Size((1 << 30).min(host::memory_bytes() / 2))
}

/// Limits and ages of a mount.
#[derive(Debug, Args)]
pub(crate) struct Tuning {
    /// When pages that a write covers only in part are fetched
    #[arg(long, value_enum, default_value_t = Fetch::Adaptive)]
    pub(crate) fetch: Fetch,
    /// Memory for pages and deltas: at least 16MiB, at most what the machine has
    #[arg(long, value_name = "SIZE", default_value_t = memory_default(), allow_hyphen_values = true)]
    pub(crate) memory: Size,
    /// Of it, how much may be newer than the store: at least 8MiB [default: half of --memory]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) dirty: Option<Size>,
    /// Of that, how much may be deltas, pages of which only what was written is in memory: at least 1MiB [default: --dirty]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) deltas: Option<Size>,
    /// What nobody synced is durable after this many milliseconds. The store keeps it for later mounts [default: 1000]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(store::COMMIT_INTERVALS_MS))]
    pub(crate) commit_interval: Option<u64>,
    /// Begin to write a change back to the store when it is so many seconds old
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) dirty_age: u64,
    /// Keep a read-only copy of the volume that is at most about so many seconds old, for the day on which the buffer is lost: the
    /// store alone has each page as of another moment. It holds what was overwritten since, is given up when the store is nearly
    /// full, and is the volume `epoch-…`; 0: none
    #[arg(long, value_name = "SECONDS", default_value_t = 900, value_parser = clap::value_parser!(u64).range(0..=604_800))]
    pub(crate) epoch_every: u64,
    /// How data is written. The store remembers the mode for later mounts [default: ordered]
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) data: Option<DataMode>,
    /// With `--data ordered`: how many bytes you must write to a file in order before its next whole pages bypass the buffer [default:
    /// 1MiB where store and buffer are on one disk, else a quarter of the buffer]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) bypass_after: Option<Size>,
    #[arg(long, hide = true, value_parser = order_was_renamed)]
    pub(crate) order: Option<Renamed>,
    #[arg(long, hide = true, value_parser = direct_after_was_renamed)]
    pub(crate) direct_after: Option<Renamed>,
    /// Threads that take requests from the kernel: 1 is best for one or two programs that sync, 2 for many [default: 1 where
    /// processors are kept awake, else 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) threads: Option<u8>,
    /// Keep all processors from sleeping while requests flow: a small request then takes a fraction of the time, and processors that
    /// are idle use power. `auto`: where root mounts, not on battery, on at most 16 processors, and not while the hypervisor
    /// runs others on their time; `weir status` says why not
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = WakeUp::Auto)]
    pub(crate) wake_up: WakeUp,
    /// What the kernel may remember; `none` is for measuring the front end
    #[arg(long, value_enum, hide = true, default_value_t = KernelCache::Full)]
    pub(crate) kernel_cache: KernelCache,
}

/// What the kernel may remember of names, attributes and listings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KernelCache {
    Full,
    None,
}

impl KernelCache {
    pub(crate) fn for_server(self) -> fuse::KernelCache {
        match self {
            KernelCache::Full => fuse::KernelCache::Full,
            KernelCache::None => fuse::KernelCache::None,
        }
    }
}

/// Whether processors are kept awake while requests flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WakeUp {
    Auto,
    Off,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fetch {
    /// Behind the write, in files whose readers have had to wait for what was written to lately; else when somebody reads them
    Adaptive,
    /// When somebody reads them
    Lazy,
    /// Behind the write, which does not wait
    Background,
    /// Before the write, as other file systems do: the baseline for comparisons
    Blocking,
}

/// How data is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DataMode {
    /// Large sequential writes bypass the buffer. A crash leaves each of their pages that you did not sync old or new; all other changes
    /// keep their order
    Ordered,
    /// All data goes through the buffer. A crash never reorders anything; large sequential writes are written twice
    Journal,
}

impl From<DataMode> for store::DataMode {
    fn from(mode: DataMode) -> store::DataMode {
        match mode {
            DataMode::Journal => store::DataMode::Journal,
            DataMode::Ordered => store::DataMode::Ordered,
        }
    }
}

/// Change a setting of a mounted store, while programs go on
///
/// The store remembers the setting for later mounts. With --data: once the command returns, everything written before it is durable,
/// and the new mode counts. If the command fails, the setting is what it was.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir tune /mnt/demo --data journal")]
pub(crate) struct TuneArgs {
    /// The directory on which the store is mounted
    pub(crate) dir: PathBuf,
    /// How data is written from now on
    #[arg(long, value_enum, value_name = "MODE")]
    pub(crate) data: DataMode,
}

/// The value of an option, or the arguments of a command, that has another name since 0.2: nothing parses as one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Renamed {}

fn order_was_renamed(_: &str) -> Result<Renamed, String> {
    Err("this option is `--data ordered` (was `streams`) or `--data journal` (was `strict`) now".into())
}

fn direct_after_was_renamed(_: &str) -> Result<Renamed, String> {
    Err("this option is `--bypass-after SIZE` now".into())
}

fn command_order_was_renamed(_: &str) -> Result<Renamed, String> {
    Err("this command is `weir tune DIR --data ordered` (was `streams`) or `--data journal` (was `strict`) now".into())
}

/// What a command was given that has another name now.
#[derive(Debug, Args)]
pub(crate) struct RenamedArgs {
    #[arg(required = true, value_parser = command_order_was_renamed)]
    pub(crate) arguments: Vec<Renamed>,
}

/// A mounted directory, or one to write to.
#[derive(Debug, Args)]
pub(crate) struct DirArgs {
    /// The directory
    pub(crate) dir: PathBuf,
}

/// Show what a mounted store is doing
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The directory on which the store is mounted
    pub(crate) dir: PathBuf,
    /// As one JSON object, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show how full a mounted store is
///
/// What is live is an upper bound where volumes share blocks. With --exact all of the map is read and counted, which holds
/// up what is written back meanwhile: then it is told what each volume takes alone (what its deletion would give back) and what it
/// shares.
#[derive(Debug, Args)]
pub(crate) struct SpaceArgs {
    /// The directory on which the store is mounted
    pub(crate) dir: PathBuf,
    /// Count, volume by volume
    #[arg(long)]
    pub(crate) exact: bool,
    /// As one JSON object, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// Make a store larger, mounted or not; or its buffer, mounted
///
/// A file is made longer, sparse as it was, or with all its space; for a block device, make that larger first. Nothing is moved, and
/// programs go on meanwhile. After a crash the store is as large as before or as it was to be. A store does not get smaller again.
/// It gets as many whole segments as fit, at most some 43,000 of 512 KiB, 350,000 of 4 MiB.
///
/// With --buffer, its buffer gets larger. What is new is written once; where that is needed to use it, what is dirty is written back,
/// which takes as long as an unmount at most. Where it is not mounted, see `weir replace-buffer`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir grow --size 200GiB /mnt/demo
  lvextend --size 2T vg/db && weir grow /mnt/db
  weir grow --buffer --size 1GiB /mnt/demo")]
pub(crate) struct GrowArgs {
    /// The directory on which the store is mounted; or, where it is not, the directory or device that was formatted
    pub(crate) path: PathBuf,
    /// The new size [default: all that the device or file has by now]
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) size: Option<Size>,
    /// The buffer instead of the store
    #[arg(long)]
    pub(crate) buffer: bool,
}

/// Give a store that is not mounted another buffer
///
/// What the old one holds is written back first, so nothing is lost; then it is a buffer no more. It need not be writable for
/// that. If it is missing or cannot be read, what was in it and nowhere else is lost: the store has each page as of some
/// moment of the last minutes, but not all of the same one, so the volume that was mounted may be damaged where it was
/// written lately. Its epoch, a copy of at most 15 minutes before where `weir mount` was not told otherwise, is whole, as the volumes
/// are that were not mounted: a writable copy of it is made, and how to mount it is said. An old buffer that comes back later
/// is refused.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir replace-buffer --buffer /dev/nvme1n1p3 /var/lib/weir/db
  weir replace-buffer --accept-loss /var/lib/weir/db
  weir replace-buffer --buffer /dev/nvme1n1p3 /dev/vdb")]
pub(crate) struct ReplaceBufferArgs {
    /// The directory or device that was formatted
    pub(crate) path: PathBuf,
    /// The new buffer: a fast block device, or a file, made if need be [default: the entry `buffer` of PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) buffer: Option<PathBuf>,
    /// Size of a new buffer file; a block device is used whole [default: as the old one]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) buffer_size: Option<Size>,
    /// The old buffer, where weir does not find it
    #[arg(long, value_name = "PATH")]
    pub(crate) old: Option<PathBuf>,
    /// Go on if the old buffer cannot be read, and lose what was only there
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// Overwrite what is on the new one
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) buffer_medium: BufferMedium,
}

/// Copy the mounted volume in an instant, list volumes, delete one
///
/// A clone shares everything with its source until one of the two is changed, takes no space of its own until then, and
/// lives on when its source is deleted. `weir mount --volume NAME` mounts it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir volume clone /mnt/demo before-upgrade --read-only
  weir volume list /mnt/demo
  weir unmount /mnt/demo && weir mount --volume before-upgrade /var/lib/weir/demo /mnt/demo
  weir volume delete /mnt/demo before-upgrade")]
pub(crate) struct VolumeArgs {
    #[command(subcommand)]
    pub(crate) command: VolumeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    Clone(VolumeCloneArgs),
    List(VolumeListArgs),
    Delete(VolumeDeleteArgs),
}

/// Make a new volume that is what the mounted one is now
///
/// The copy has every write that was answered before the command began, synced or not, and is what a crash at one moment
/// of the command would have left; it is durable when the command returns. Programs go on meanwhile.
#[derive(Debug, Args)]
pub(crate) struct VolumeCloneArgs {
    /// The directory on which the volume is mounted
    pub(crate) dir: PathBuf,
    /// The new volume's name: letters, digits and . _ - + : @
    pub(crate) name: String,
    /// Let nobody change it, ever
    #[arg(long)]
    pub(crate) read_only: bool,
}

/// List the volumes of a store
#[derive(Debug, Args)]
pub(crate) struct VolumeListArgs {
    /// The directory on which the store is mounted, or the directory or device that was formatted
    #[arg(value_name = "DIR|PATH")]
    pub(crate) path: PathBuf,
    /// As one JSON array, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// Delete a volume that is not mounted
///
/// What it does not share with others becomes free in the background, a little at a time, also after a crash.
#[derive(Debug, Args)]
pub(crate) struct VolumeDeleteArgs {
    /// The directory on which another volume of the store is mounted
    pub(crate) dir: PathBuf,
    /// The volume to delete
    pub(crate) name: String,
}

/// Read everything that a mounted store holds, and compare every checksum
///
/// Goes on beside all other work. What is wrong is listed with the object that it hits; map nodes that memory still has
/// whole, and the copy of the superblock, are written again. Exit codes: 0 clean, 1 findings.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir scrub /mnt/demo
  weir scrub --rate 20MiB /mnt/demo")]
pub(crate) struct ScrubArgs {
    /// The directory on which the store is mounted
    pub(crate) dir: PathBuf,
    /// Bytes to read in a second, at most; no less than 1MiB
    #[arg(long, value_name = "SIZE", default_value = "100MiB", allow_hyphen_values = true)]
    pub(crate) rate: Size,
    /// As one JSON object, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check a store that is not mounted; changes nothing, unless --repair is given
///
/// Reads everything that the formats promise, as the next mount would see it. Exit codes: 0 clean, 1 findings, 2 could not check.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The directory or device that was formatted
    pub(crate) path: PathBuf,
    /// The buffer, where weir does not find it: in its last place, beside the store, or on a block device
    #[arg(long, value_name = "PATH")]
    pub(crate) buffer: Option<PathBuf>,
    /// As one JSON object, for scripts
    #[arg(long)]
    pub(crate) json: bool,
    /// First make right what can be: a superblock from the other one, references, live blocks, both roots. Bytes that are gone stay gone
    #[arg(long)]
    pub(crate) repair: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
