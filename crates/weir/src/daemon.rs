//! The process behind the mounts of a store: how it begins and ends.
//!
//! Threads: the main one waits until neither a mount nor an export is left; the workers of crate `stack`; one keeps epochs; one watches
//! for problems; one waits for signals. For each mount, one waits for its end; one or two take the kernel's requests; with
//! rules one looks at tasks, and one lends; one listens on the control socket and starts a short-lived one per client. For each export, one accepts clients, and two
//! serve each client.

use crate::byte_size::ByteSize;
use crate::cli::{BufferMediumArgs, MountArgs, TuningArgs, WakeUpArg};
use crate::epoch_keeper::EpochKeeper;
use crate::error::WeirError;
use crate::log_files;
use crate::lost_buffer::{LostBuffer, NextAttempt, Restoration};
use crate::messages;
use crate::mount_point::MountPoint;
use crate::mount_problems;
use crate::mount_request::RunningDaemon;
use crate::mounted_volume::{MountEnd, MountedVolume};
use crate::pm_qos::PmQos;
use crate::service_manager;
use crate::signals::{self, HeldSignals, SignalHandler};
use crate::store_daemon::{EndedMount, FrontEnd, NewMount, StoreDaemon};
use crate::unmount::{UnmountMode, unmount};
use crate::write_policy::{PolicyChoice, StreamSettings, WritePolicy};
use cache::{Cache, CacheSettings};
use fuse::RequestCounter;
use host::{DiskAccess, PmQosRequest, are_on_one_disk};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stack::{ExpectedBuffer, StackError, StorageStack, StoreMedia, WorkerStopper, WorkerThreads};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use store::DataMode;

/// The line that the daemon prints on its standard output once it serves requests.
pub(crate) const READY: &str = "ready";

/// The smallest `--memory`: a few of the kernel's largest requests.
const MEMORY_MIN: ByteSize = ByteSize(CacheSettings::MEMORY_BYTES_MIN);
/// How long a mount waits for a daemon of the store that begins or ends.
pub(crate) const DAEMON_WAIT: Duration = Duration::from_secs(10);
/// How long it waits where that daemon may be making a new buffer, which is written from end to end.
const RESTORATION_WAIT: Duration = Duration::from_secs(600);
pub(crate) const DAEMON_STEP: Duration = Duration::from_millis(20);
/// The data mode if none was chosen for the store.
const DATA_MODE: DataMode = DataMode::Ordered;
/// Sequential bytes after which a stream bypasses the buffer. Most files are smaller.
const BYPASS_AFTER: ByteSize = ByteSize(1 << 20);
/// The most bypassed bytes that a sync logs if store and buffer are on one disk. More bytes go to the store
/// instead: they are then written once instead of twice, at the price of a second flush.
const SYNC_LOGS_MAX: ByteSize = ByteSize(64 << 10);
/// The smallest `--deltas`: somewhat more than one step of write-back takes.
const DELTAS_MIN: ByteSize = ByteSize(1 << 20);

/// Has the running daemon of the store mount the volume. If there is none, becomes the daemon.
pub(crate) fn run(args: &MountArgs) -> Result<(), WeirError> {
    abort_on_panic();
    let mut lost_buffer = LostBuffer::of(args);
    // With the /proc of another PID namespace a daemon that serves is not found by the number of its process. It does not end.
    let may_be_restoring = lost_buffer.restores() && host::proc_has_own_pids();
    let patience = if may_be_restoring { RESTORATION_WAIT } else { DAEMON_WAIT };
    let deadline = Instant::now() + patience;
    let mut attempt = NextAttempt::Repeat;
    loop {
        let ended = match RunningDaemon::find(&args.path)? {
            Some(running) => running
                .mount(args)
                .and_then(|()| say_ready_to(io::stdout()).map_err(|source| WeirError::Spawn { source })),
            None => become_daemon(args, &attempt),
        };
        match ended {
            Err(WeirError::Stack(error)) if lost_buffer.is_for(&error) => {
                ensure_caller_waits(args)?;
                attempt = lost_buffer.search_or_wait(&error)?;
            }
            Err(WeirError::BufferCame { buffer }) => attempt = NextAttempt::With(buffer),
            Err(error) if is_passing(&error) && Instant::now() < deadline => std::thread::sleep(DAEMON_STEP),
            ended => return ended,
        }
    }
}

/// Fails if the command that started this process, and waits for its mount, was ended.
pub(crate) fn ensure_caller_waits(args: &MountArgs) -> Result<(), WeirError> {
    if args.daemon && host::is_hung_up(io::stdout()) {
        return Err(WeirError::CallerEnded { path: args.path.clone() });
    }
    Ok(())
}

/// Whether a daemon of the store is beginning or ending, so that another attempt finds it or none.
pub(crate) fn is_passing(error: &WeirError) -> bool {
    match error {
        WeirError::DaemonEnding { .. } => true,
        WeirError::Client(error) => error.is_closed_connection(),
        WeirError::Stack(StackError::InUse { pid, .. }) => is_daemon(*pid) || host::is_ending(*pid),
        _ => false,
    }
}

/// Whether a process is a `weir mount` or a `weir export`.
fn is_daemon(pid: u32) -> bool {
    let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let command = arguments.split(|&byte| byte == 0).nth(1);
    command == Some(b"mount") || command == Some(b"export")
}

/// Refuses options that cannot be, before anything is changed.
fn ensure_options(tuning: &TuningArgs) -> Result<(), WeirError> {
    settings(tuning, 1)?;
    PolicyChoice::of_options(tuning.policy.policy.as_ref(), tuning.policy.rules.as_deref()).map(drop)
}

/// The options of a daemon, whatever it serves.
pub(crate) struct DaemonOptions<'a> {
    pub(crate) access: DiskAccess,
    pub(crate) buffer_medium: &'a BufferMediumArgs,
    pub(crate) tuning: &'a TuningArgs,
}

/// Checks everything before the first write, mounts, serves until no mount is left, and writes everything back.
fn become_daemon(args: &MountArgs, attempt: &NextAttempt) -> Result<(), WeirError> {
    let (media, restoration) = match attempt {
        NextAttempt::Repeat => (StoreMedia::find(&args.path, args.buffer.as_deref())?, None),
        NextAttempt::With(buffer) => (StoreMedia::find(&args.path, Some(buffer))?, None),
        NextAttempt::Restore => {
            ensure_options(&args.tuning)?;
            let restoration = Restoration::prepare(args)?;
            (restoration.media.clone(), Some(restoration))
        }
    };
    let point = MountPoint::check(&args.dir, args.allow_other, &media.name)?;
    point.ensure_not_over(&media)?;
    let is_in_background = args.daemon;
    let log_directory =
        if is_in_background && !messages::stderr_is_journal() { Some(log_files::directory()?) } else { None };
    if is_in_background {
        // Fails only if this process already leads a session, which is as good.
        let _ = rustix::process::setsid();
    }
    let options = DaemonOptions {
        access: if args.read_only { DiskAccess::Read } else { DiskAccess::Write },
        buffer_medium: &args.buffer_medium,
        tuning: &args.tuning,
    };
    let daemon = Arc::new(match &restoration {
        None => open(media, &options)?,
        Some(Restoration { store, buffer, volumes, .. }) => open_as(media, &options, |media, settings| {
            let which = ExpectedBuffer::NewAfterLoss { buffer: *buffer, volumes };
            StorageStack::open_with_store(media, store.clone(), settings, DiskAccess::Write, which)
        })?,
    });
    if let Some(restoration) = restoration {
        restoration.report();
    }
    let first = NewMount {
        point,
        volume: args.volume.clone(),
        allow_other: args.allow_other,
        read_only: args.read_only,
        atomic_writes: args.atomic_writes,
    };
    serve(&daemon, &first, is_in_background, log_directory.as_deref())
}

/// Lets this process have as many descriptors as its user may raise the limit to. Any user may send open files with a request,
/// and the usual limit of 1024 is too low for a few clients that each send as many as they may.
fn raise_descriptor_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    // Fails if the kernel's own limit is lower. The daemon works with the limit that it has.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

/// Opens the store on `media` for a daemon. Checks everything before the first write.
pub(crate) fn open(media: StoreMedia, options: &DaemonOptions<'_>) -> Result<StoreDaemon, WeirError> {
    open_as(media, options, |media, settings| {
        StorageStack::open(media, settings, options.access, ExpectedBuffer::LastUsed)
    })
}

/// As [`open`], for a store that `open_stack` opens.
fn open_as(
    mut media: StoreMedia,
    options: &DaemonOptions<'_>,
    open_stack: impl FnOnce(StoreMedia, CacheSettings) -> Result<StorageStack, StackError>,
) -> Result<StoreDaemon, WeirError> {
    let &DaemonOptions { access, buffer_medium, tuning } = options;
    let front = FrontEndConfig::of(tuning);
    let policy = &tuning.policy;
    let choice =
        PolicyChoice::of_options(policy.policy.as_ref(), policy.rules.as_deref())?.unwrap_or_default();
    let mut settings = settings(tuning, front.threads)?;
    // The store remembers the interval for later mounts.
    media.settings.commit_interval_ms = tuning.commit_interval.or(media.settings.commit_interval_ms);
    if let Some(ms) = media.settings.commit_interval_ms {
        settings.commit_interval = Duration::from_millis(ms);
    }
    media.settings.data = tuning.data;
    let on_one_disk = are_on_one_disk(&media.store, &media.buffer);
    let bypass_after = bypass_after(tuning, &media, on_one_disk);
    let sync_log_bytes_max = if on_one_disk { SYNC_LOGS_MAX.0 } else { u64::MAX };
    let streams = StreamSettings { bypass_after, sync_log_bytes_max };
    if access == DiskAccess::Write && !buffer_medium.volatile_buffer {
        media.ensure_durable()?;
    }
    let stack = open_stack(media, settings)?;
    let data = stack.store.settings().data.unwrap_or(DATA_MODE);
    let policy = WritePolicy::new(Cache::clone(&stack.cache), streams, data, choice);
    stack.media.warn_of_readers();
    stack.media.warn_of_page_cache();
    // Memory reclaim must not make the daemon wait for its own write-back. The call needs privilege, and the
    // daemon works without it.
    let _ = host::mark_io_flusher();
    raise_descriptor_limit();
    let every = Some(tuning.epoch_every).filter(|&seconds| seconds > 0 && access == DiskAccess::Write);
    let epochs = Arc::new(EpochKeeper::new(Cache::clone(&stack.cache), every.map(Duration::from_secs)));
    let front = front.start(tuning)?;
    Ok(StoreDaemon::new(stack, policy, epochs, front))
}

/// How the daemon takes requests. Decided once, at the start.
struct FrontEndConfig {
    threads: u8,
    /// The request that keeps processors awake, or why processors may sleep.
    wake_ups: Result<PmQosRequest, String>,
}

impl FrontEndConfig {
    fn of(tuning: &TuningArgs) -> FrontEndConfig {
        let wake_ups = match tuning.wake_up {
            WakeUpArg::Auto => PmQosRequest::open().map_err(|why| why.to_string()),
            WakeUpArg::Off => Err("--wake-up=off".into()),
        };
        // If processors may sleep, a second thread on another processor keeps both processors awake while a
        // program sends one request after the other (decision 0035).
        let threads = tuning.threads.unwrap_or(if wake_ups.is_ok() { 1 } else { 2 });
        FrontEndConfig { threads, wake_ups }
    }

    fn start(self, tuning: &TuningArgs) -> Result<FrontEnd, WeirError> {
        let traffic = Arc::new(RequestCounter::default());
        let pm_qos = match self.wake_ups {
            Ok(wake_ups) => {
                PmQos::start(wake_ups, traffic.clone()).map_err(|source| WeirError::Spawn { source })?
            }
            Err(why) => PmQos::off(why),
        };
        Ok(FrontEnd {
            pm_qos,
            traffic,
            threads: self.threads,
            wake_up: tuning.wake_up,
            kernel_cache: tuning.kernel_cache,
        })
    }
}

/// Serves the first mount, and those that follow, until no mount is left.
fn serve(
    daemon: &Arc<StoreDaemon>,
    first: &NewMount,
    is_in_background: bool,
    log_directory: Option<&Path>,
) -> Result<(), WeirError> {
    let workers = WorkerThreads::start(&daemon.stack.cache, daemon.stack.access)
        .map_err(|source| WeirError::Spawn { source })?;
    // Until here a signal may end the process. From here on that would leave a dead mount.
    let signals = signals::hold().map_err(|source| WeirError::Spawn { source })?;
    let mounted = match daemon.mount(first) {
        Ok(mounted) => mounted.expect("a daemon does not end before its first mount"),
        Err(error) => {
            // No program has changed anything, because nothing was mounted. The media are as consistent as
            // after any stop.
            let _ = workers.stop_and_drain();
            return Err(error);
        }
    };
    let serving = Arc::new(AtomicBool::new(true));
    let signals = (signals, workers.stopper());
    let attended = attend(daemon, &mounted, signals, &serving, (is_in_background, log_directory));
    if attended.is_err() {
        // The threads of the mounts would serve them for ever.
        for mounted in daemon.leave() {
            let _ = unmount(&mounted.dir, UnmountMode::Detach);
        }
    }
    let last = daemon.wait_for_end();
    service_manager::say_ending(&daemon.stack.media.name);
    serving.store(false, Ordering::Release);
    let drained = workers.stop_and_drain().map_err(|error| error.to_string());
    if drained.is_ok() {
        daemon.epochs.take_last();
    }
    if let Some(EndedMount { mounted, .. }) = &last {
        mounted.set_end(MountEnd { written_back: drained.clone(), ends_process: true });
    }
    attended?;
    daemon.remove_empty_log();
    daemon.close_control();
    if let Some(EndedMount { mounted, control, outcome }) = last {
        control.close();
        outcome.map_err(|source| WeirError::MountFailed { dir: mounted.dir.clone(), source })?;
    }
    drained.map_err(|why| WeirError::NotDrained { dir: mounted.dir.clone(), why })
}

/// Starts the threads that watch the daemon, and says that the first mount is ready. A daemon in the background
/// writes its messages below `log_directory` from then on.
fn attend(
    daemon: &Arc<StoreDaemon>,
    mounted: &MountedVolume,
    (signals, stopper): (HeldSignals, WorkerStopper),
    serving: &Arc<AtomicBool>,
    (is_in_background, log_directory): (bool, Option<&Path>),
) -> Result<(), WeirError> {
    let spawn_failed = |source| WeirError::Spawn { source };
    watch(daemon, serving)?;
    service_manager::start_watchdog(daemon.cache(), serving.clone()).map_err(spawn_failed)?;
    service_manager::say_ready(&daemon.stack.media.name);
    signals.watch(SignalHandler { daemon: daemon.clone(), stopper }).map_err(spawn_failed)?;
    if !is_in_background {
        tracing::info!("{}: mounted; unmount it, or press ^C, to end", mounted.dir.display());
        return Ok(());
    }
    let mut log = None;
    if let Some(directory) = log_directory {
        let (file, path) = log_files::create(directory, mounted.device)?;
        daemon.set_log(path);
        log = Some(file);
    }
    leave_caller(log.as_ref()).map_err(spawn_failed)
}

/// Starts the threads that keep epochs and watch for problems until `serving` is false.
pub(crate) fn watch(daemon: &StoreDaemon, serving: &Arc<AtomicBool>) -> Result<(), WeirError> {
    let spawn_failed = |source| WeirError::Spawn { source };
    daemon.epochs.start(serving.clone()).map_err(spawn_failed)?;
    let store = daemon.stack.media.name.clone();
    mount_problems::start(daemon.cache(), store, serving.clone()).map_err(spawn_failed)
}

/// Refuses a `--memory` with which nothing works.
pub(crate) fn ensure_memory(memory: ByteSize) -> Result<(), WeirError> {
    if memory >= MEMORY_MIN {
        return Ok(());
    }
    Err(WeirError::Size { option: "--memory", size: memory, why: format!("less than {MEMORY_MIN}") })
}

fn settings(tuning: &TuningArgs, threads: u8) -> Result<CacheSettings, WeirError> {
    let wrong = |option, size, why: String| Err(WeirError::Size { option, size, why });
    let memory = tuning.memory;
    let defaults = CacheSettings::with_memory(memory.0);
    let dirty = tuning.dirty.unwrap_or(ByteSize(defaults.dirty_bytes_max));
    ensure_memory(memory)?;
    if dirty > memory {
        return wrong("--dirty", dirty, format!("more than --memory ({memory})"));
    }
    if dirty < ByteSize(MEMORY_MIN.0 / 2) {
        return wrong("--dirty", dirty, format!("less than {}", ByteSize(MEMORY_MIN.0 / 2)));
    }
    let deltas = tuning.deltas.unwrap_or(dirty);
    if deltas > dirty {
        return wrong("--deltas", deltas, format!("more than --dirty ({dirty})"));
    }
    if deltas < DELTAS_MIN {
        return wrong("--deltas", deltas, format!("less than {DELTAS_MIN}"));
    }
    Ok(CacheSettings {
        fetch: tuning.fetch,
        dirty_bytes_max: dirty.0,
        delta_bytes_max: deltas.0,
        dirty_age_max: Duration::from_secs(tuning.dirty_age),
        // A commit in the only front-end thread delays all requests: worth it up to the time of an NVMe
        // disk's flush. With more threads the others serve requests meanwhile: worth it up to the time of a
        // disk's seek (decision 0005).
        commit_inline_below: match threads {
            1 => Duration::from_micros(200),
            _ => Duration::from_millis(5),
        },
        ..defaults
    })
}

/// Bytes of sequential writes after which a file bypasses the buffer.
///
/// A buffer on its own disk absorbs a burst that fits into it. A longer stream waits for the store in any
/// case.
fn bypass_after(tuning: &TuningArgs, media: &StoreMedia, on_one_disk: bool) -> u64 {
    match tuning.bypass_after {
        Some(after) => after.0,
        None if on_one_disk => BYPASS_AFTER.0,
        None => {
            // An unreadable buffer fails the mount later.
            let buffer_bytes = File::open(&media.buffer).and_then(|mut file| file.seek(SeekFrom::End(0)));
            BYPASS_AFTER.0.max(buffer_bytes.unwrap_or(0) / 4)
        }
    }
}

/// Makes a panic of any thread end the process.
///
/// A daemon without one of its threads would hang its mount. After the end of the process the store can be
/// mounted again, and no synced data is lost.
pub(crate) fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        report(info);
        std::process::abort();
    }));
}

/// Reports that the daemon is ready, and releases everything that belongs to the caller.
///
/// Messages go to `log` from now on. Standard input is /dev/null already, and `weir mount` passes on no other
/// descriptor.
fn leave_caller(log: Option<&File>) -> io::Result<()> {
    std::env::set_current_dir("/")?;
    if let Some(log) = log {
        rustix::stdio::dup2_stderr(log)?;
    }
    let ready = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    rustix::stdio::dup2_stdout(File::options().write(true).open("/dev/null")?)?;
    say_ready_to(ready)
}

fn say_ready_to(mut caller: impl Write) -> io::Result<()> {
    writeln!(caller, "{READY}")
}
