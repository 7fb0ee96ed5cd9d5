//! The command line. The parser, the help texts and the man pages all come from these types.

use crate::byte_size::ByteSize;
use crate::option_values::{DATA_MODES, FETCH_MODES, KERNEL_CACHE_POLICIES, one_of, word_of};
use cache::{CacheSettings, FetchMode};
use clap::builder::RangedI64ValueParser;
use clap::parser::ValueSource;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use fuse::KernelCachePolicy;
use request::{BufferPolicy, RequestClass};
use std::convert::Infallible;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;
use store::DataMode;

/// A storage write path that never makes a program wait without need.
#[derive(Debug, Parser)]
#[command(name = "weir", version = env!("WEIR_VERSION"), max_term_width = 100, after_help = EXIT_CODES)]
pub(crate) struct WeirCommandLine {
    #[command(subcommand)]
    pub(crate) command: WeirCommand,
}

const EXIT_CODES: &str = "\
weir prints results to standard output, and everything else to standard error.
Sizes: K, M, G, T and KiB, MiB, GiB, TiB are multiples of 1024; kB, MB, GB, TB of 1000.
Exit codes: 0 done; 1 failed (`check`, `scrub`: findings); 2 wrong command line (`check`:
could not check); 130 after Ctrl-C, 143 after SIGTERM. Long work shows its progress, and says
after Ctrl-C what was done and what to do now. A command that fails changes nothing, unless its error says otherwise
or the daemon does not answer.

A first session:
  weir format /var/lib/weir/demo
  mkdir /mnt/demo && weir mount /var/lib/weir/demo /mnt/demo
  weir status /mnt/demo
  weir unmount /mnt/demo";

#[derive(Debug, Subcommand)]
pub(crate) enum WeirCommand {
    Format(FormatArgs),
    Mount(MountArgs),
    /// Unmount a store, write everything back, and wait until that is done
    ///
    /// After Ctrl-C the daemon goes on and ends by itself.
    #[command(visible_alias = "umount")]
    Unmount(DirArgs),
    Status(StatusArgs),
    Top(TopArgs),
    Metrics(MetricsArgs),
    Why(WhyArgs),
    /// Make everything written so far durable, in all files
    Sync(DirArgs),
    Check(CheckArgs),
    Space(SpaceArgs),
    Scrub(ScrubArgs),
    Volume(VolumeArgs),
    Export(ExportArgs),
    Cp(CopyArgs),
    Grow(GrowArgs),
    Tune(TuneArgs),
    Rules(RulesArgs),
    Class(ClassArgs),
    #[command(hide = true)]
    Order(RenamedArgs),
    ReplaceBuffer(ReplaceBufferArgs),
    Run(RunArgs),
    Trace(TraceArgs),
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man(DirArgs),
    /// Print the completions of the command line for a shell
    Completions(CompletionsArgs),
}

/// Record a program's system calls, and replay them on any directory: see `weir trace --help`
///
/// weir runs `weir-trace` with the same arguments. That is a program of its own, beside `weir` or in PATH.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct TraceArgs {
    /// The arguments for `weir-trace`, such as `record`
    #[arg(value_name = "ARGUMENTS", trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

/// Create an empty store
///
/// PATH is a directory, which weir creates if it does not exist. It gets two files: `store`, which is sparse,
/// and `buffer`. weir writes all of `buffer` now, so that no later sync waits for the host file system to
/// allocate space. Or PATH is a block device (or an existing file) that becomes the store; then --buffer is
/// required.
///
/// Without --force, weir refuses a device or file that is not blank, and a directory that holds other files.
/// weir always refuses media that are mounted. New files get the mode 0600, because a store holds the data of
/// all users. Block devices keep their mode.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir format /var/lib/weir/demo
  weir format --size 100GiB --buffer /dev/nvme0n1p3 /var/lib/weir/db
  weir format --buffer /dev/nvme0n1p3 /dev/vdb")]
pub(crate) struct FormatArgs {
    /// The directory to create, or a block device
    pub(crate) path: PathBuf,
    /// The buffer, which keeps changes until they are written back: a fast block device, or a file (created
    /// if it does not exist)
    #[arg(long, value_name = "PATH")]
    pub(crate) buffer: Option<PathBuf>,
    /// Size of the file `store`; weir uses a block device whole [default: 8GiB]
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) size: Option<ByteSize>,
    /// Size of a buffer file; weir uses a block device whole [default: 256MiB]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) buffer_size: Option<ByteSize>,
    /// Size of a segment, from 512KiB to 128MiB [default: 1/2048 of the store, within these limits]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) segment_size: Option<ByteSize>,
    /// Allocate the whole store file now, so that writes never fail because the host file system is full
    ///
    /// weir keeps the space allocated. Without this option the file is sparse, and grows with the data in it.
    #[arg(long)]
    pub(crate) preallocate: bool,
    /// Overwrite existing data, and accept a directory that holds other files
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) buffer_medium: BufferMediumArgs,
}

/// The risks that a user accepts in the medium of a buffer.
#[derive(Debug, Args)]
pub(crate) struct BufferMediumArgs {
    /// Accept a buffer that loses flushed data when the power fails
    ///
    /// Such a buffer is in memory (tmpfs, zram), on an overlay mounted `volatile`, or on a file system
    /// without barriers above a disk with a cache. A power failure then loses every change that was not yet
    /// written back, synced or not. The store then needs `weir replace-buffer --accept-loss`, and recently
    /// written files may be damaged.
    #[arg(long)]
    pub(crate) volatile_buffer: bool,
}

/// Mount a store, and return once it is ready
///
/// A daemon runs in the background until you unmount DIR with `weir unmount`, `umount` or SIGTERM. The daemon
/// then writes everything back and exits. If an earlier daemon was killed and left a dead mount of the same
/// store on DIR, weir removes that mount first.
///
/// If a volume of the store is mounted already, its daemon mounts this one, too. The daemon ends with the last
/// mount; unmounting any other makes all changes durable. A volume is mounted once: use `mount --bind` to have it
/// in two places. Options that all volumes of the store share, such as --memory, must be those of the first mount,
/// or left out.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir mount /var/lib/weir/demo /mnt/demo
  weir mount --allow-other --memory 4GiB /var/lib/weir/demo /mnt/demo
  weir mount /dev/vdb /mnt/db
  weir mount --volume nightly /dev/vdb /mnt/nightly")]
pub(crate) struct MountArgs {
    /// The directory or device that you formatted
    pub(crate) path: PathBuf,
    /// The empty directory to mount on
    pub(crate) dir: PathBuf,
    /// The buffer, if weir does not find it where it was last, beside the store, or on a block device
    #[arg(long, value_name = "PATH")]
    pub(crate) buffer: Option<PathBuf>,
    /// The volume to mount, by its name in `weir volume list`; weir mounts a read-only volume read-only
    #[arg(long, value_name = "NAME", default_value = crate::volume::DEFAULT)]
    pub(crate) volume: String,
    /// Stay in the foreground
    #[arg(long)]
    pub(crate) foreground: bool,
    /// Let other users use the mount; file permissions still apply
    #[arg(long)]
    pub(crate) allow_other: bool,
    /// Refuse every change, and write nothing to the store or the buffer
    ///
    /// Changes that a recovery would write back stay in memory, which needs as much memory as the buffer
    /// holds.
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Let programs mark files of this volume for atomic writes, with the attribute user.weir.atomic
    ///
    /// A database that writes its pages to marked files needs no protection of its own against torn pages, such as PostgreSQL's
    /// full_page_writes: see docs/databases.md. The volume remembers this option. It makes each opening of a file a request.
    #[arg(long, conflicts_with = "read_only")]
    pub(crate) atomic_writes: bool,
    /// What to do if the buffer is absent, blank, or another store's
    ///
    /// With `restore`, weir makes a new buffer. If the store was closed cleanly, nothing is lost. Otherwise each volume returns to
    /// its newest epoch (--epoch-every): changes since then are missing. The state that it had, newer and perhaps damaged, is kept
    /// as volume NAME-damaged-DATE. A volume without an epoch is only renamed so, and a mount of it still fails. If the lost buffer
    /// comes back, weir refuses it.
    #[arg(long, value_enum, value_name = "ANSWER", conflicts_with = "read_only")]
    pub(crate) on_lost_buffer: Option<LostBufferAnswer>,
    /// With `--on-lost-buffer restore`: how many seconds to wait for the buffer's device
    #[arg(long, value_name = "SECONDS", default_value_t = 30, requires = "on_lost_buffer", value_parser = clap::value_parser!(u64).range(0..=86_400))]
    pub(crate) lost_buffer_wait: u64,
    /// With `--on-lost-buffer restore`: the new buffer [default: the old buffer's device, if that is blank; else a file in the
    /// directory of the store, as large as the old buffer]
    #[arg(long, value_name = "PATH", requires = "on_lost_buffer")]
    pub(crate) new_buffer: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) buffer_medium: BufferMediumArgs,
    #[command(flatten)]
    pub(crate) tuning: TuningArgs,
    /// Set by `weir mount` on the process that becomes the daemon.
    #[arg(long, hide = true, conflicts_with = "foreground")]
    pub(crate) daemon: bool,
}

/// What a mount does if its buffer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LostBufferAnswer {
    /// Change nothing
    Refuse,
    /// Make a new buffer, and go on from the newest epoch
    Restore,
}

/// Whether the command line of this process, `weir mount`, has an option, by the name of its field.
pub(crate) fn given_mount_options() -> impl Fn(&str) -> bool {
    given_options("mount")
}

/// An option of the command line of this process that is about the daemon, not about what the command asks of it.
pub(crate) fn given_daemon_option(command: &'static str) -> Option<String> {
    let given = given_options(command);
    let tuning = TuningArgs::augment_args(clap::Command::new(""));
    let tuning = tuning.get_arguments().map(|argument| argument.get_id().as_str());
    let found = tuning.chain(["buffer"]).find(|option| given(option))?;
    Some(format!("--{}", found.replace('_', "-")))
}

fn given_options(command: &'static str) -> impl Fn(&str) -> bool {
    let matches = WeirCommandLine::command().try_get_matches().ok();
    move |option| {
        let of_command = matches.as_ref().and_then(|matches| matches.subcommand_matches(command));
        of_command.is_some_and(|given| {
            given.try_contains_id(option).is_ok()
                && given.value_source(option) == Some(ValueSource::CommandLine)
        })
    }
}

/// 1 GiB, or half of the machine's memory if that is less.
fn memory_default() -> ByteSize {
    ByteSize((1 << 30).min(host::memory_bytes() / 2))
}

fn commit_interval_help() -> String {
    let default_ms = CacheSettings::default().commit_interval.as_millis();
    format!(
        "Make a change durable after this many milliseconds, even if no program syncs it. The store remembers the value for later \
         mounts [default: {default_ms}]"
    )
}

/// Limits and ages of a mount.
#[derive(Debug, Args)]
pub(crate) struct TuningArgs {
    /// When weir reads a page that a write covers only in part
    #[arg(long, value_parser = one_of(FETCH_MODES), default_value = word_of(FETCH_MODES, &FetchMode::default()))]
    pub(crate) fetch: FetchMode,
    /// Memory for pages and deltas: at least 16MiB, at most what the machine has
    #[arg(long, value_name = "SIZE", default_value_t = memory_default(), allow_hyphen_values = true)]
    pub(crate) memory: ByteSize,
    /// The part of --memory that may hold dirty data, which is newer than the store: at least 8MiB [default:
    /// half of --memory]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) dirty: Option<ByteSize>,
    /// The part of --dirty that may be deltas, the written parts of pages that are not in memory: at least
    /// 1MiB [default: --dirty]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) deltas: Option<ByteSize>,
    #[arg(long, value_name = "MS", help = commit_interval_help(), value_parser = clap::value_parser!(u64).range(store::COMMIT_INTERVAL_MS_RANGE))]
    pub(crate) commit_interval: Option<u64>,
    /// Start to write a change back to the store when the change is this many seconds old
    #[arg(long, value_name = "SECONDS", default_value_t = CacheSettings::default().dirty_age_max.as_secs(), value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) dirty_age: u64,
    /// Keep a read-only copy of the volume, at most about this many seconds old, in case the buffer is lost;
    /// 0 keeps none
    ///
    /// Without the buffer, the pages in the store come from different points in time. The copy, the volume
    /// `epoch-…`, comes from one. It keeps the space of data that was overwritten since, and weir deletes it
    /// when the store is nearly full. Under random writes, a copy each 10 seconds costs 2 % more blocks that are
    /// written, and one each second a quarter more.
    #[arg(long, value_name = "SECONDS", default_value_t = 900, value_parser = clap::value_parser!(u64).range(0..=604_800))]
    pub(crate) epoch_every: u64,
    /// How data is written. The store remembers the mode for later mounts [default: ordered]
    #[arg(long, value_parser = one_of(DATA_MODES), value_name = "MODE")]
    pub(crate) data: Option<DataMode>,
    /// With `--data ordered`: let the whole pages of a file bypass the buffer after this many bytes of
    /// sequential writes [default: 1MiB if store and buffer are on one disk, else a quarter of the buffer]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) bypass_after: Option<ByteSize>,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
    #[arg(long, hide = true, value_parser = order_was_renamed)]
    pub(crate) order: Option<RenamedOption>,
    #[arg(long, hide = true, value_parser = direct_after_was_renamed)]
    pub(crate) direct_after: Option<RenamedOption>,
    /// Number of threads that serve requests of the kernel: 1 is best for one or two programs that sync, 2
    /// for many [default: 1 if --wake-up keeps processors awake, else 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) threads: Option<u8>,
    /// Keep all processors awake while requests arrive: a small request then takes a fraction of the time,
    /// but idle processors use power
    ///
    /// If weir does not keep processors awake, `weir status` says why.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t = WakeUpArg::Auto)]
    pub(crate) wake_up: WakeUpArg,
    /// Choose whether the kernel may cache; `none` is for measuring the front end
    #[arg(long, value_parser = one_of(KERNEL_CACHE_POLICIES), hide = true, default_value = "full")]
    pub(crate) kernel_cache: KernelCachePolicy,
}

/// For which requests the buffer is.
#[derive(Debug, Args)]
pub(crate) struct PolicyArgs {
    /// For which requests the buffer is, until the unmount: none, all, sync, file=PATH, critical,
    /// critical+process or critical+process+io [default: none]
    ///
    /// none: all data goes through the buffer, but large sequential writes bypass it. all: all data goes through
    /// it. sync: whole pages bypass it until a program syncs their file. file=PATH: as sync, but nobody waits for
    /// anything else than the file PATH, or the files below it, all of which goes through the buffer; PATH begins
    /// with / at the mount's root. critical:
    /// as sync, but nobody waits for what `weir class` or --rules call background: its pages bypass the buffer
    /// even when it syncs, and it leaves space to others. critical+process: and a background write goes first
    /// while something critical waits for the same file or directory in the kernel. critical+process+io: and so
    /// does a background sync. With `--data journal` nothing bypasses the buffer.
    #[arg(long, value_name = "POLICY")]
    pub(crate) policy: Option<BufferPolicy>,
    /// A file with rules for --policy critical: see `weir rules --help`
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: Option<PathBuf>,
}

/// Whether processors are kept awake while requests flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WakeUpArg {
    /// If root mounts, not on battery, on at most 16 processors, and not while the hypervisor gives their
    /// time to other guests
    Auto,
    /// Never
    Off,
}

impl WakeUpArg {
    /// The word at the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            WakeUpArg::Auto => "auto",
            WakeUpArg::Off => "off",
        }
    }
}

/// Change a setting of a mounted store, while programs use it
///
/// With --data, the store remembers the mode for later mounts. When the command returns, everything written
/// before it is durable, and the new mode is in effect. With --policy or --rules, the policy is in effect until the
/// unmount; `--policy none` ends it. If the command fails, neither has changed.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("setting").args(["data", "policy", "rules"]).required(true).multiple(true)))]
#[command(after_help = "\
Examples:
  weir tune /mnt/demo --data journal
  weir tune /mnt/demo --policy critical --rules postgresql.rules
  weir tune /mnt/demo --policy none")]
pub(crate) struct TuneArgs {
    /// The directory on which the store is mounted
    pub(crate) dir: PathBuf,
    /// How data is written from now on
    #[arg(long, value_parser = one_of(DATA_MODES), value_name = "MODE")]
    pub(crate) data: Option<DataMode>,
    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
}

/// The value of an option, or the argument of a command, that was renamed in 0.2. No text parses as one.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RenamedOption {}

fn order_was_renamed(_: &str) -> Result<RenamedOption, String> {
    Err("this option is `--data ordered` (was `streams`) or `--data journal` (was `strict`) now".into())
}

fn direct_after_was_renamed(_: &str) -> Result<RenamedOption, String> {
    Err("this option is `--bypass-after SIZE` now".into())
}

fn command_order_was_renamed(_: &str) -> Result<RenamedOption, String> {
    Err("this command is `weir tune DIR --data ordered` (was `streams`) or `--data journal` (was `strict`) now".into())
}

/// The arguments of a renamed command.
#[derive(Debug, Args)]
pub(crate) struct RenamedArgs {
    #[arg(required = true, value_parser = command_order_was_renamed)]
    pub(crate) arguments: Vec<RenamedOption>,
}

/// The directory on which a command works.
#[derive(Debug, Args)]
pub(crate) struct DirArgs {
    /// The directory
    pub(crate) dir: PathBuf,
}

/// Show what a mounted store is doing, or list all mounts
///
/// Without DIR, a line for each mount of yours, or for each of the machine if you are root. Its first word is the health:
///
/// * ok;
///
/// * volatile: the buffer loses flushed data when the power fails;
///
/// * stuck: some changes cannot be written back, and stay in the buffer, durable;
///
/// * stalled: nothing can be written back at present, so writes may soon wait;
///
/// * read-only: changes could not be made durable; everything is saved in the store;
///
/// * at-risk: changes could not be made durable, and those in memory are not saved in the store yet;
///
/// * silent: the daemon does not answer, or is stopped;
///
/// * dead: the mount has no daemon.
///
/// Then come the directory; the part of reads that did not wait for the store (READ HITS), since the daemon began and in all mounts
/// of the store; what programs write and read in a second; the dirty data, which is newer than the store, and the age of its oldest
/// change; when the buffer is full if it goes on filling as it does now (FULL IN); the free space; and the volume. weir measures
/// the rates for a fifth of a second. `-` stands for a figure without meaning: no reads yet, or a buffer that does not fill.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir status
  weir status /mnt/db
  weir status | grep -v ^ok")]
pub(crate) struct StatusArgs {
    /// The directory on which the store is mounted
    pub(crate) dir: Option<PathBuf>,
    /// Print JSON, for scripts: an object, or without DIR an array of them
    #[arg(long)]
    pub(crate) json: bool,
}

/// Watch the mounts on a screen that is refreshed
///
/// The table has a row for each mount of yours, or for each of the machine if you are root, as `weir status` prints it. Below stands
/// what the chosen mount is doing: curves of the last minutes, how full the buffer is, dirty data, what the buffer gets and why,
/// cleaning, the epoch, the latencies of the last seconds, and the requests that wait or have waited. The arrows choose a mount, `p`
/// pauses, `?` shows all keys, and `q` quits. weir goes on when a daemon dies or a mount is gone, and shows that in its row.
///
/// Scripts want `weir status --json` and `weir metrics`. Exit codes: 0 quit, 1 failed, 2 standard input or output is not a terminal.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir top
  weir top /mnt/db --interval 5")]
pub(crate) struct TopArgs {
    /// Watch only the mount on this directory
    pub(crate) dir: Option<PathBuf>,
    /// How often to ask the daemons
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) interval: u64,
}

/// For the shells that complete arguments
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  weir completions bash > /etc/bash_completion.d/weir")]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

/// Print the state of this machine's mounts for Prometheus
///
/// Lists the mounts that you may control, all of them as root. Names and meanings: docs/metrics.md.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir metrics --listen 127.0.0.1:9765
  weir metrics --textfile /var/lib/prometheus/node-exporter/weir.prom")]
pub(crate) struct MetricsArgs {
    /// Serve them over HTTP at this address of this machine: there is no password
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) listen: Option<SocketAddr>,
    /// Write them to a file, which the text file collector of Prometheus' node exporter reads
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    pub(crate) textfile: Option<PathBuf>,
}

/// Show the requests that wait or have waited, with the cause of each wait
///
/// The first table counts the waits of a millisecond and more by their cause, since the daemon began, in all mounts of the
/// store. For a file or a process it counts the ended waits that are shown below. Then come the requests that wait now, the
/// longest wait for each cause, and the last 256 waits, the newest first. Each has its beginning, its length, the program and
/// the cause. Under a policy it also has the class of the request, the rule that gave the class, if one did, and the critical
/// program for which the request was lent priority. Times are in UTC. Of a file that its thread
/// has closed you see the inode: `find DIR -inum N` finds its name. Waits in the kernel, such as for
/// the lock of a file that another program writes, are waits of that other program here.
#[derive(Debug, Args)]
#[command(after_help = "\
What requests wait for:
  space in the buffer        the store takes changes more slowly than programs make them:
                             `weir status` says what fills the buffer
  memory for dirty pages     the same, with less memory than buffer: raise --dirty
  earlier copies of ranges   many large files are copied at once: the store takes one copy after the other
  space in the store         it is nearly full, and must be cleaned: see `weir space`
  earlier requests           they wait for one of these, and go first
  a page from the store      it was not in memory: raise --memory
  a commit of the buffer     `slowest` in `weir status` has the times of the buffer's disk
  write-back to the store    a background sync; or large writes, faster than the store

Examples:
  weir why /mnt/db
  weir why /mnt/db/pg_wal/000000010000000000000001
  weir why /mnt/db --pid 4711")]
pub(crate) struct WhyArgs {
    /// The directory on which the store is mounted; or a file or directory in it, for requests to that alone
    #[arg(value_name = "DIR|FILE")]
    pub(crate) path: PathBuf,
    /// Only requests of this process and of those that it started, and requests that were lent priority for their sake
    ///
    /// Processes that have ended are left out, and so are those that they started: weir cannot know any more whose they were.
    #[arg(long)]
    pub(crate) pid: Option<u32>,
    /// Print one JSON object, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show how full a mounted store is
///
/// If volumes share blocks, the size of live data is an upper bound. With --exact, weir reads and counts the
/// whole map, which delays write-back meanwhile. It then prints for each volume the bytes that only this
/// volume uses, which its deletion would free, and the bytes that it shares.
#[derive(Debug, Args)]
pub(crate) struct SpaceArgs {
    /// The directory on which the store is mounted
    pub(crate) dir: PathBuf,
    /// Count exactly, for each volume
    #[arg(long)]
    pub(crate) exact: bool,
    /// Print one JSON object, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// Enlarge a store, mounted or not, or the buffer of a mounted store
///
/// weir extends a file, and keeps it sparse or allocated as before. Enlarge a block device yourself first. No
/// data moves, and programs keep running. After a crash during the command, the store has either the old or
/// the new size. A store cannot be made smaller. It uses as many whole segments as fit, at most about 43,000
/// of 512 KiB or 350,000 of 4 MiB.
///
/// The daemon of a mounted store does the work, and goes on after Ctrl-C.
///
/// With --buffer, weir enlarges the buffer, and writes the new space once. If it must write dirty data back
/// before it can use that space, this takes at most as long as an unmount. If the store is not mounted, use
/// `weir replace-buffer` instead.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir grow --size 200GiB /mnt/demo
  lvextend --size 2T vg/db && weir grow /mnt/db
  weir grow --buffer --size 1GiB /mnt/demo")]
pub(crate) struct GrowArgs {
    /// The directory on which the store is mounted; if it is not mounted, the directory or device that you
    /// formatted
    pub(crate) path: PathBuf,
    /// The new size [default: the present size of the device or file]
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) size: Option<ByteSize>,
    /// Enlarge the buffer instead of the store
    #[arg(long)]
    pub(crate) buffer: bool,
}

/// Give a store that is not mounted another buffer
///
/// weir first writes the changes in the old buffer back to the store, so nothing is lost. The old buffer then
/// stops being a buffer. It must be readable for this, but need not be writable. Until the new buffer is
/// formatted, you can stop the command with Ctrl-C: the store keeps the old buffer.
///
/// If the old buffer is missing or cannot be read, you lose the changes that only it held. Each page in the
/// store is then some minutes old at most, but different pages come from different points in time, so the
/// volumes that were mounted or exported may be damaged where they were written recently. Their epochs are undamaged:
/// copies from at most 15 minutes before, unless `weir mount` was given another interval. Volumes that were neither
/// are undamaged, too. weir makes a writable copy of the epoch, and prints how to mount it. If the old buffer
/// comes back later, weir refuses it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir replace-buffer --buffer /dev/nvme1n1p3 /var/lib/weir/db
  weir replace-buffer --accept-loss /var/lib/weir/db
  weir replace-buffer --buffer /dev/nvme1n1p3 /dev/vdb")]
pub(crate) struct ReplaceBufferArgs {
    /// The directory or device that you formatted
    pub(crate) path: PathBuf,
    /// The new buffer: a fast block device, or a file (created if it does not exist) [default: the entry
    /// `buffer` of PATH]
    #[arg(long, value_name = "PATH")]
    pub(crate) buffer: Option<PathBuf>,
    /// Size of a new buffer file; weir uses a block device whole [default: the size of the old buffer]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(crate) buffer_size: Option<ByteSize>,
    /// The old buffer, if weir does not find it
    #[arg(long, value_name = "PATH")]
    pub(crate) old: Option<PathBuf>,
    /// Continue if the old buffer cannot be read, and lose the changes that only it held
    #[arg(long)]
    pub(crate) accept_loss: bool,
    /// Overwrite the data on the new buffer
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) buffer_medium: BufferMediumArgs,
}

/// Create, list, resize, rename and delete volumes, and clone the mounted one in an instant
///
/// `weir format` makes the volume `main`, which `weir mount` mounts by default. It is a volume like any other.
/// A clone shares all blocks with its source until one of the two is changed, and takes no space of its own
/// until then. It remains when you delete its source. `weir mount --volume NAME` mounts it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir volume clone /mnt/demo before-upgrade --read-only
  weir volume list /mnt/demo
  weir unmount /mnt/demo && weir mount --volume before-upgrade /var/lib/weir/demo /mnt/demo
  weir volume delete /mnt/demo before-upgrade
  weir volume rename /var/lib/weir/demo main broken")]
pub(crate) struct VolumeArgs {
    #[command(subcommand)]
    pub(crate) command: VolumeCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    Create(VolumeCreateArgs),
    Resize(VolumeResizeArgs),
    Clone(VolumeCloneArgs),
    Snapshot(VolumeSnapshotArgs),
    Rollback(VolumeRollbackArgs),
    List(VolumeListArgs),
    Rename(VolumeRenameArgs),
    Delete(VolumeDeleteArgs),
}

/// Create a volume: with an empty file system, or, with --size, a block volume
///
/// The root directory of the file system belongs to you; on a mounted store, to the user who mounted it. A block volume is a
/// disk of zeros, for a virtual machine or for another file system: `weir export` serves it. Only pages that were
/// written take space, and a discard frees it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir volume create /mnt/demo wiki
  weir volume create /var/lib/weir/demo vm1 --size 20GiB")]
pub(crate) struct VolumeCreateArgs {
    /// The directory or device that you formatted, or the directory on which a volume of it is mounted
    #[arg(value_name = "PATH|DIR")]
    pub(crate) path: PathBuf,
    /// The name of the new volume: letters, digits and . _ - + : @
    pub(crate) name: String,
    /// Make a block volume of this size: a multiple of 512 bytes, at most 128TiB
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) size: Option<ByteSize>,
}

/// Copy a file, or a range of one, between mounts of one store, at once
///
/// The copy shares its pages with the source until one of the two is changed, so it takes no longer for a terabyte than for a
/// megabyte, and hardly any space. `cp` does this within a mount, but between two mounts, such as a snapshot and the live volume,
/// the kernel makes it read and write all bytes.
///
/// The copy gets the mode, the times and, if you are root, the owner of the source; no extended attributes and ACLs. It gets
/// its name when it is whole and durable. A range changes in place, as a whole or not at all, whatever crashes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir mount --volume nightly /var/lib/weir/db /mnt/nightly
  weir cp --force /mnt/nightly/base/16384/2619 /mnt/db/base/16384/2619
  weir cp --range 1GiB:16MiB /mnt/nightly/disk.img /mnt/db/disk.img")]
pub(crate) struct CopyArgs {
    /// The file to copy
    pub(crate) source: PathBuf,
    /// The name of the copy, or the directory for it
    pub(crate) target: PathBuf,
    /// Replace a file that has the name of the copy
    #[arg(long)]
    pub(crate) force: bool,
    /// Copy LENGTH bytes from OFFSET on to the same place of the target, which exists; both are multiples of 4096, unless the
    /// target ends with the range
    #[arg(long, value_name = "OFFSET:LENGTH", conflicts_with = "force")]
    pub(crate) range: Option<CopiedRange>,
}

/// A range of bytes in source and target of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CopiedRange {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

impl FromStr for CopiedRange {
    type Err = String;

    fn from_str(text: &str) -> Result<CopiedRange, String> {
        let how = "write OFFSET:LENGTH, such as 1GiB:16MiB or 4096:8192";
        let (offset, len) = text.split_once(':').ok_or(how)?;
        let ByteSize(offset) = offset.parse()?;
        let ByteSize(len) = len.parse()?;
        if len == 0 { Err(format!("an empty range; {how}")) } else { Ok(CopiedRange { offset, len }) }
    }
}

/// Change the size of a block volume that is not exported
///
/// A larger volume has zeros behind its former end. The size is durable when the command returns.
#[derive(Debug, Args)]
pub(crate) struct VolumeResizeArgs {
    /// The directory or device that you formatted, or the directory on which a volume of it is mounted
    #[arg(value_name = "PATH|DIR")]
    pub(crate) path: PathBuf,
    /// The block volume
    pub(crate) name: String,
    /// The new size: a multiple of 512 bytes, at most 128TiB
    #[arg(long, allow_hyphen_values = true)]
    pub(crate) size: ByteSize,
    /// Let the volume become smaller: what lies behind the new end is gone
    #[arg(long)]
    pub(crate) accept_loss: bool,
}

/// Serve a block volume as a network block device (NBD), until this command ends
///
/// Any NBD client can use it: qemu, nbd-client, nbdfuse, nbdcopy. The command prints the address that clients take, and stays
/// in the foreground: ^C or SIGTERM ends the export. Clients are disconnected then, and everything that they wrote is
/// durable. If the store is mounted, or another volume of it is exported, its daemon serves the volume; otherwise this
/// command opens the store. If you export several volumes, mount one of the store first: otherwise the first `weir export`
/// serves all, and stays until the last of them ends.
///
/// As with any disk, a write is durable once the client has flushed it. After a crash, or when weir is killed, the disk is
/// what it was at some moment after the last flush; only of large sequential writes some pages may be lost that are older
/// than others. Snapshots (`weir volume snapshot STORE NAME=VOLUME`) are of one moment.
///
/// An export serves one client, with one or several connections, or clients that coordinate their writes: two file systems on
/// one disk destroy it. A client must not reconnect by itself after weir was killed (qemu's `reconnect-delay`, `nbd-client
/// -persist`): its next flush would succeed, although writes that were answered before are gone.
///
/// Whoever may open the socket may read and write the disk: the umask decides, or every program of this machine with --tcp.
/// NBD has no passwords and no encryption.
#[derive(Debug, Args)]
#[command(group(clap::ArgGroup::new("listen").args(["socket", "tcp"]).required(true)))]
#[command(after_help = "\
Examples:
  weir volume create /var/lib/weir/demo vm1 --size 20GiB
  weir export /var/lib/weir/demo vm1 --socket /run/vm1.sock
  qemu-system-x86_64 -drive 'file=nbd+unix:///vm1?socket=/run/vm1.sock,format=raw,discard=unmap'
  nbd-client -unix /run/vm1.sock /dev/nbd0 -N vm1")]
pub(crate) struct ExportArgs {
    /// The directory or device that you formatted, or the directory on which a volume of it is mounted
    #[arg(value_name = "PATH|DIR")]
    pub(crate) path: PathBuf,
    /// The block volume
    pub(crate) volume: String,
    /// Listen on a Unix socket at this path. A socket that a killed export left there is replaced
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Listen on a TCP port of this machine, as `127.0.0.1:10809`, `[::1]:10809` or `10809`
    #[arg(long, value_name = "ADDRESS", value_parser = crate::export::loopback_address)]
    pub(crate) tcp: Option<SocketAddr>,
    /// The buffer, if weir does not find it where it was last, beside the store, or on a block device
    #[arg(long, value_name = "PATH")]
    pub(crate) buffer: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) buffer_medium: BufferMediumArgs,
    #[command(flatten)]
    pub(crate) tuning: TuningArgs,
}

/// Rename a volume that is not mounted
///
/// `weir mount` mounts the volume `main` by default, so you can replace that with a clone by two renames.
#[derive(Debug, Args)]
pub(crate) struct VolumeRenameArgs {
    /// The directory or device that you formatted, or the directory on which another volume is mounted
    #[arg(value_name = "PATH|DIR")]
    pub(crate) path: PathBuf,
    /// The volume to rename
    pub(crate) old: String,
    /// Its new name: letters, digits and . _ - + : @
    pub(crate) new: String,
}

/// Create a volume that is a copy of another one at this moment
///
/// The copy has every write that completed before the command began, synced or not. It is a point in time:
/// what a crash at one moment during the command would have left. It has no writes to memory mappings that
/// were not written back yet (`msync` them first), and no deleted files that are still open. The copy is
/// durable when the command returns. Programs keep running.
#[derive(Debug, Args)]
pub(crate) struct VolumeCloneArgs {
    /// The directory on which the volume is mounted, or the directory or device that you formatted
    #[arg(value_name = "DIR|PATH")]
    pub(crate) path: PathBuf,
    /// The name of the new volume: letters, digits and . _ - + : @
    pub(crate) name: String,
    /// The volume to copy [default: the one that is mounted on DIR, or main]
    #[arg(long, value_name = "VOLUME")]
    pub(crate) of: Option<String>,
    /// Create a volume that can never be changed
    #[arg(long)]
    pub(crate) read_only: bool,
}

/// Create read-only copies of one or several volumes, all of the same moment
///
/// A snapshot is what `weir volume clone --read-only` makes. If there are several, they show the volumes at one
/// moment, and a crash leaves all of them or none.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir volume snapshot /mnt/db nightly
  weir volume snapshot /mnt/db db-nightly=db wal-nightly=wal
  weir mount --volume nightly STORE /mnt/nightly")]
pub(crate) struct VolumeSnapshotArgs {
    /// The directory on which the volume is mounted, or the directory or device that you formatted
    #[arg(value_name = "DIR|PATH")]
    pub(crate) path: PathBuf,
    /// The name of each snapshot, and the volume to copy [default: the one that is mounted on DIR, or main]
    #[arg(value_name = "NAME[=VOLUME]", required = true, value_parser = clone_wish)]
    pub(crate) snapshots: Vec<CloneWish>,
}

/// A clone that the user asks for.
#[derive(Debug, Clone)]
pub(crate) struct CloneWish {
    pub(crate) name: String,
    /// The volume to clone, if the user names it.
    pub(crate) of: Option<String>,
}

/// A name with characters that it must not have is refused later.
fn clone_wish(text: &str) -> Result<CloneWish, Infallible> {
    Ok(match text.split_once('=') {
        Some((name, of)) => CloneWish { name: name.into(), of: Some(of.into()) },
        None => CloneWish { name: text.into(), of: None },
    })
}

/// Give a volume the content of one of its snapshots again
///
/// A writable copy of the snapshot gets the name of the volume. The volume itself becomes VOLUME-before-DATE,
/// which you can mount, or delete when you do not need it any more. A crash leaves all of this or nothing. The
/// volume must not be mounted: unmount it, roll it back, and mount it again.
#[derive(Debug, Args)]
pub(crate) struct VolumeRollbackArgs {
    /// The directory or device that you formatted, or the directory on which another volume is mounted
    #[arg(value_name = "PATH|DIR")]
    pub(crate) path: PathBuf,
    /// The volume to roll back
    pub(crate) volume: String,
    /// A snapshot or clone of it
    pub(crate) snapshot: String,
}

/// List the volumes of a store
#[derive(Debug, Args)]
pub(crate) struct VolumeListArgs {
    /// The directory on which the store is mounted, or the directory or device that you formatted
    #[arg(value_name = "DIR|PATH")]
    pub(crate) path: PathBuf,
    /// Print one JSON array, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// Delete a volume that is not mounted
///
/// weir frees the blocks that the volume shares with no other volume in the background, a few at a time, while
/// some volume of the store is mounted. It continues after a crash.
#[derive(Debug, Args)]
pub(crate) struct VolumeDeleteArgs {
    /// The directory or device that you formatted, or the directory on which another volume is mounted
    #[arg(value_name = "PATH|DIR")]
    pub(crate) path: PathBuf,
    /// The volume to delete
    pub(crate) name: String,
    /// Delete nothing, but say how much space would be freed
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// Make a program critical or background, with all programs that it starts
///
/// The class counts on mounts with `--policy critical`, before all rules. Without --pid, weir runs COMMAND, and sets
/// the variable WEIR_TAG in its environment. So `WEIR_TAG=background` in a systemd unit or a crontab has the
/// same effect. Exit codes: those of COMMAND; 127 if there is no such program, 126 if it cannot be executed.
///
/// With --pid, a running process gets the class within a second. So do its threads, and the processes that it has
/// started or starts later, as long as the processes between run, too. This class counts in place of WEIR_TAG.
/// It ends with the process, with the mount, or with `weir class none --pid`. Only root and the user who
/// mounted may do this. If the daemon of one mount fails to answer, the others have the class all the same.
///
/// A thread sets its own class, in place of all others and at once, with the extended attribute user.weir.class of any
/// file of the mount that it may write: setxattr(FILE, "user.weir.class", "background", 10, 0). An empty value takes
/// the class back. So `setfattr` from a shell changes nothing: it sets the class of `setfattr` itself, which then ends.
#[derive(Debug, Args)]
#[command(
    override_usage = "weir class <CLASS> -- <COMMAND>...\n       weir class <CLASS> --pid <PID> [DIR]..."
)]
#[command(after_help = "\
Examples:
  weir class background -- tar -cf /backup/db.tar /mnt/db
  weir class background --pid 708
  weir class none --pid 708 /mnt/db")]
pub(crate) struct ClassArgs {
    /// The class
    #[arg(value_enum, value_name = "CLASS")]
    pub(crate) class: ClassArg,
    /// The id of a running process, or of one thread (`ps -eLo lwp,comm,args`)
    #[arg(long, value_parser = task_id(), allow_negative_numbers = true)]
    pub(crate) pid: Option<u32>,
    /// The directories on which stores are mounted [default: all mounts of this user; for root, all]
    #[arg(value_name = "DIR", requires = "pid")]
    pub(crate) dirs: Vec<PathBuf>,
    /// The program and its arguments
    #[arg(required_unless_present = "pid", conflicts_with = "pid", last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Run a program on a store that is not mounted, in the program's own process
///
/// A path belongs to the store if one of its components is `@@`: the path in the volume follows. So `@@/app.db` is
/// the file /app.db of the volume, and so is `/tmp/@@/app.db`. All other paths are the machine's. The program needs no
/// mount and no daemon: its first call on such a path opens the store, and the store is closed when the program ends.
///
/// weir puts the library libweir_shim.so before the C library (LD_PRELOAD), for COMMAND and all programs that it starts.
/// One process has the store at a time. Another one waits for two seconds, and then gets EBUSY. A process that starts
/// another program while it has no file of the store open gives the store to that program.
///
/// weir refuses programs that would not load the library: static ones, setuid ones, and those of another C library than
/// glibc. If the program is killed, what it synced is in the store; of the rest, the last second may be lost. Exit codes:
/// those of COMMAND; 127 if there is no such program, 126 if it cannot be executed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir run --store /var/lib/weir/demo -- sqlite3 @@/app.db 'select 1'
  weir run --store /var/lib/weir/demo -- tar -xf src.tar -C @@
  weir run --store /dev/vdb --volume nightly -- grep -r TODO @@/src
  weir run --store /var/lib/weir/demo --prefix /srv/wiki -- python3 wiki.py --data /srv/wiki")]
pub(crate) struct RunArgs {
    /// The directory or device that you formatted
    #[arg(long, value_name = "PATH")]
    pub(crate) store: PathBuf,
    /// The volume, by its name in `weir volume list`
    #[arg(long, value_name = "NAME", default_value = crate::volume::DEFAULT)]
    pub(crate) volume: String,
    /// A path that stands for the root of the volume, too: absolute paths of the program that are this one or begin with it are
    /// the store's, as they are written. So a program with fixed paths needs no `@@`
    #[arg(long, value_name = "DIR", value_parser = crate::run::prefix)]
    pub(crate) prefix: Option<PathBuf>,
    /// Memory for pages and deltas: at least 16MiB, at most what the machine has
    #[arg(long, value_name = "SIZE", default_value_t = ByteSize(128 << 20), allow_hyphen_values = true)]
    pub(crate) memory: ByteSize,
    /// Print at the end of each process which calls were served, passed on and refused, and which are missing
    #[arg(long)]
    pub(crate) explain: bool,
    #[command(flatten)]
    pub(crate) buffer_medium: BufferMediumArgs,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// The class of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ClassArg {
    /// Somebody waits for it
    Critical,
    /// Nobody waits for it
    Background,
    /// The rules decide
    None,
}

impl ClassArg {
    /// The class, unless the rules decide.
    pub(crate) fn class(self) -> Option<RequestClass> {
        match self {
            ClassArg::Critical => Some(RequestClass::Critical),
            ClassArg::Background => Some(RequestClass::Background),
            ClassArg::None => None,
        }
    }
}

/// Check, try, show or suggest rules, which say for which programs and files the buffer is
///
/// A rule is a line: `critical` or `background`, then conditions, which must all hold. `#` begins a comment.
/// The first rule that matches a request decides its class. A request that no rule matches is critical.
/// There are at most 62 rules.
#[derive(Debug, Args)]
#[command(after_help = "\
Conditions:
  title=PATTERN   the command line of the process, its arguments joined by blanks
  thread=PATTERN  the name of the thread (`ps -L -o comm`), at most 15 bytes
  cgroup=PATTERN  the cgroup of the thread, or one above it
  uid=N           the number of the user
  nice=N..M       the nice value: from N to M, or N alone
  tag=PATTERN     WEIR_TAG in the environment with which the process began, or the class by
                  `weir class --pid`
  file=PATTERN    the path of the file, which begins with / at the mount's root

Critical rules with `file=` are for logs: all that is written there goes through the buffer at once.

A critical rule may have `share=N%`: while its requests fill more than that part of the buffer, they
are background.

In a pattern, * matches any characters, ? one, [a-z] one of a range, and {a,b} either part. \\ takes
the next character as it is. In cgroup and file, * and ? do not match a /; ** does. A pattern
matches the whole value. Quote blanks: title=\"a b\".

Examples:
  weir rules check rules/postgresql.rules
  weir rules test rules/postgresql.rules 708 /data/base/5/16384
  weir rules suggest /mnt/db > db.rules")]
pub(crate) struct RulesArgs {
    #[command(subcommand)]
    pub(crate) command: RulesCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum RulesCommand {
    Check(RulesCheckArgs),
    Test(RulesTestArgs),
    Show(RulesShowArgs),
    Suggest(RulesSuggestArgs),
}

/// Print the rules of a file as weir understands them, or every error in it
///
/// A warning names each rule that never decides because an earlier rule has the same conditions, or fewer of them. Exit
/// codes: 0 no errors, 1 errors.
#[derive(Debug, Args)]
pub(crate) struct RulesCheckArgs {
    /// The file with the rules
    pub(crate) file: PathBuf,
}

/// Print which rules hold for a running process or thread, and which one decides
///
/// A class in WEIR_TAG decides before all rules. weir does not take into account here classes by `weir class --pid`, and
/// those that threads set themselves: each mount has its own.
#[derive(Debug, Args)]
pub(crate) struct RulesTestArgs {
    /// The file with the rules
    pub(crate) file: PathBuf,
    /// The id of the process or thread (`ps -eLo lwp,comm,args`)
    #[arg(value_parser = task_id(), allow_negative_numbers = true)]
    pub(crate) pid: u32,
    /// The path of a file in the mount, which begins with / at the mount's root
    #[arg(value_parser = path_in_mount)]
    pub(crate) path: Option<PathBuf>,
}

/// Print the policy and the rules that a mount follows, in their order
///
/// With each rule stands for how many of the threads that used the mount in the last ten seconds its conditions
/// about programs hold. A rule with conditions about files alone holds for all threads.
#[derive(Debug, Args)]
pub(crate) struct RulesShowArgs {
    /// The directory on which the store is mounted
    pub(crate) dir: PathBuf,
    /// Print one JSON object, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// Watch the programs that use a mount, and print rules for them
///
/// weir looks a hundred times a second, in /proc, at what each thread waits for whose process has files of the mount
/// open. A thread that waits now for the mount and now for a client on a socket that it has accepted is critical.
/// One that reads, writes or syncs and never has a client is background. That is in doubt if somebody else may wait
/// for it: other threads of a server, clients that wait for the same file, a terminal, or a program to which it
/// talks. Rules in doubt are printed as comments. Each rule comes with what was seen.
///
/// A rule names a title and, if threads with this title have several names, the thread. Of a title weir keeps the
/// words that end in a colon and the word after them, or the command up to its first argument that is no option;
/// `*` stands for the rest.
///
/// weir does not see io_uring and libaio, mappings, `select`, and programs that live for less than a second. To look
/// at programs of other users, weir needs root, or CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir rules suggest /mnt/db > db.rules
  weir rules suggest --for 10m /mnt/db > db.rules")]
pub(crate) struct RulesSuggestArgs {
    /// The directory on which the store is mounted
    pub(crate) dir: PathBuf,
    /// How long to watch, such as 90s or 10m
    #[arg(long = "for", value_name = "TIME", default_value = "60s", value_parser = watch_time)]
    pub(crate) time: Duration,
}

fn watch_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|char: char| !char.is_ascii_digit()).unwrap_or(text.len()));
    let seconds = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => 0,
    };
    match number.parse::<u32>() {
        Ok(number) if number > 0 && seconds > 0 => Ok(Duration::from_secs(u64::from(number) * seconds)),
        _ => Err("a time such as 90s, 10m or 1h".into()),
    }
}

/// Ids of processes and threads. /proc has no 0.
fn task_id() -> RangedI64ValueParser<u32> {
    RangedI64ValueParser::new().range(1..=u32::MAX.into())
}

fn path_in_mount(path: &str) -> Result<PathBuf, String> {
    if path.starts_with('/') { Ok(path.into()) } else { Err("it begins with / at the mount's root".into()) }
}

/// Read everything in a mounted store, and compare every checksum
///
/// Programs keep running. weir lists all damage with the object that it affects. It repairs damaged map nodes
/// that are still whole in memory, and the copy of the superblock, by writing them again. After Ctrl-C, the
/// daemon stops reading within a moment. Exit codes: 0 clean, 1 findings.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  weir scrub /mnt/demo
  weir scrub --rate 20MiB /mnt/demo")]
pub(crate) struct ScrubArgs {
    /// The directory on which the store is mounted
    pub(crate) dir: PathBuf,
    /// The most bytes to read in a second: at least 1MiB
    #[arg(long, value_name = "SIZE", default_value = "100MiB", allow_hyphen_values = true)]
    pub(crate) rate: ByteSize,
    /// Print one JSON object, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// Check a store that is not mounted, and change nothing unless you give --repair
///
/// weir checks every promise of the on-disk formats, in the state that the next mount would recover. Ctrl-C
/// stops a check at once. A repair that it stops is incomplete and does no harm: run it again. Exit codes:
/// 0 clean, 1 findings, 2 could not check.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The directory or device that you formatted
    pub(crate) path: PathBuf,
    /// The buffer, if weir does not find it where it was last, beside the store, or on a block device
    #[arg(long, value_name = "PATH")]
    pub(crate) buffer: Option<PathBuf>,
    /// Print one JSON object, for scripts
    #[arg(long)]
    pub(crate) json: bool,
    /// First repair the superblocks (one from the other), reference counts, live block counts and both roots.
    /// Lost data stays lost
    #[arg(long)]
    pub(crate) repair: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        WeirCommandLine::command().debug_assert();
    }

    #[test]
    fn times_have_units() {
        assert_eq!(
            ["90", "90s", "2m", "1h"].map(|text| watch_time(text).map(|time| time.as_secs())),
            [90, 90, 120, 3600].map(Ok)
        );
        assert!(["", "s", "0", "-1s", "1d", "1 s", "1.5m"].iter().all(|text| watch_time(text).is_err()));
    }
}
