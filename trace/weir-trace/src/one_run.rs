//! One run of a replay, in three processes. The *reader* is the process that the user started; it reads the
//! results. The *replayer* confines itself to the sandbox and replays; a process cannot leave the root
//! directory that confines it. The *keeper* between them outlives the replayer and removes the sandbox, even
//! after the reader is killed.
//!
//! | ends | effect |
//! | --- | --- |
//! | the replayer | the keeper removes the sandbox and ends; then the reader accepts the results |
//! | the replay, because the reader asked for it after a signal | as at a normal end, with the results until then |
//! | the reader, in whatever way | the keeper notices, ends the replayer and removes the sandbox |
//! | the keeper | the kernel ends the replayer; the reader removes the sandbox |
//! | all three | the next replay below the same target removes the sandbox |

use crate::args::{CacheArg, FsyncArg, OrderArg, ReplayArgs};
use crate::error::ProgramError;
use crate::replayed_traces::ReplayedTraces;
use crate::stop_request::StopRequest;
use progress::{LongWork, OnInterrupt, WorkAmount, WorkUnit, print_above_progress};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal, setsid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::borrow::Cow;
use std::io::{self, PipeWriter, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::time::{Duration, Instant};
use trace_file::TraceError;
use trace_replay::{
    AfterReplay, CacheControl, FsyncMeaning, OrderChoice, ReplayFailure, ReplayResults, ReplayRun,
    ReplaySandbox, ReplaySettings, ReplaySpeed, StartCache,
};

/// Exit code of the keeper if it failed.
const FAILED: u8 = 1;
/// The keeper adds this to the number of the signal that ended the replayer, as shells do.
const BY_SIGNAL: i32 = 128;

/// How long a stopped replay waits for calls under way before it says so. A call for a lock may wait for ever.
const CALLS_WAIT: Duration = Duration::from_secs(1);

pub(crate) fn name(order: OrderArg) -> &'static str {
    match order {
        OrderArg::Weir => "weir",
        OrderArg::Root => "root",
        OrderArg::Temporal => "temporal",
        OrderArg::Single => "single",
        OrderArg::Unconstrained => "unconstrained",
    }
}

/// Replays once, below the target. After a `stop`, the results are those of the actions until then.
pub(crate) fn run(
    args: &ReplayArgs,
    together: &ReplayedTraces,
    order: OrderArg,
    stop: &StopRequest,
) -> Result<ReplayRun, ProgramError> {
    std::fs::create_dir_all(&args.on).map_err(TraceError::target("creating", &args.on))?;
    let target = args.on.canonicalize().map_err(TraceError::target("finding", &args.on))?;
    for path in ReplaySandbox::remove_left(&target) {
        eprintln!("warning: removed {}, which a replay left that was killed", path.display());
    }
    let stay = match (args.reuse, args.keep) {
        (true, _) => AfterReplay::Reused,
        (false, true) => AfterReplay::Kept,
        (false, false) => AfterReplay::Removed,
    };
    let mut sandbox = Some(ReplaySandbox::new(&target, stay)?);
    let failed = |source| ProgramError::Start { target: target.clone(), source };
    let (reader, results) = std::io::pipe().map_err(failed)?;
    let mut reader = Some(reader);
    // Each process has a copy of these values, and takes its own.
    let (own_sandbox, own_reader) = (&mut sandbox, &mut reader);
    let keeper = host::fork(move || {
        drop(own_reader.take());
        keep(own_sandbox, results, |sandbox, results| {
            hand_over(results, replay(args, together, order, (sandbox, stop)))
        })
        .unwrap_or(FAILED)
    });
    let (keeper, mut bytes) = (keeper.map_err(failed)?, Vec::new());
    let read = reader.iter_mut().try_for_each(|reader| reader.read_to_end(&mut bytes).map(drop));
    let status = keeper.wait().map_err(failed)?;
    // The keeper has already removed the sandbox, unless it was killed.
    sandbox.iter().try_for_each(ReplaySandbox::remove)?;
    read.map_err(failed)?;
    if !status.success() {
        return Err(ProgramError::ReplayFailed { status: shown(status) });
    }
    trace_replay::results_from_bytes(&bytes)?
        .map_err(|ReplayFailure { code, message, help }| ProgramError::Replay { code, message, help })
}

/// Runs the keeper: starts the replayer, waits for its end, and removes the sandbox. If the keeper gets a
/// signal to end, or the reader is gone, the keeper ends the replayer first.
fn keep(
    sandbox: &mut Option<ReplaySandbox>,
    results: PipeWriter,
    replay: impl FnOnce(Option<ReplaySandbox>, PipeWriter) -> u8,
) -> io::Result<u8> {
    // Signals of the terminal must not end the keeper, which cleans up after the others.
    let _ = setsid();
    let keeper = getpid();
    let (ended, life) = std::io::pipe()?;
    let (own_sandbox, own_results) = (&mut *sandbox, results.try_clone()?);
    let replayer = host::fork(move || {
        let _life = life;
        match end_with(keeper) {
            Ok(()) => replay(own_sandbox.take(), own_results),
            Err(_) => FAILED,
        }
    })?;
    let (told, teller) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::low_level::pipe::register(signal, teller.try_clone()?)?;
    }
    let by_itself = loop {
        // poll reports a pipe's write end when no process reads from the pipe any more.
        let mut all = [
            PollFd::new(&ended, PollFlags::IN),
            PollFd::new(&told, PollFlags::IN),
            PollFd::new(&results, PollFlags::empty()),
        ];
        match poll(&mut all, None) {
            Ok(_) => break !all[0].revents().is_empty(),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    };
    if !by_itself {
        replayer.kill()?;
    }
    let status = replayer.wait()?;
    // If that fails, the reader tries again and reports the reason.
    let _ = sandbox.iter().try_for_each(ReplaySandbox::remove);
    let code = status.code().or_else(|| status.signal().map(|signal| BY_SIGNAL + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED))
}

/// Makes the kernel end this process when its parent ends. Fails if `parent` is no longer the parent.
fn end_with(parent: Pid) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid() == Some(parent) {
        Ok(())
    } else {
        Err(io::Error::other("the process that started this one is gone"))
    }
}

/// The text of the replayer's end, from the keeper's exit code.
fn shown(status: ExitStatus) -> String {
    match status.code().and_then(|code| code.checked_sub(BY_SIGNAL)) {
        Some(signal) if signal > 0 => ExitStatus::from_raw(signal).to_string(),
        _ => status.to_string(),
    }
}

/// Sends the results or the failure to the reader.
fn hand_over(mut results: PipeWriter, found: Result<ReplayRun, TraceError>) -> u8 {
    let found: ReplayResults = found.map_err(|error| {
        let error = ProgramError::from(error);
        let help = error.help().map(Cow::into_owned);
        ReplayFailure { code: error.exit_code(), message: error.to_string(), help }
    });
    match results.write_all(&trace_replay::results_to_bytes(&found)) {
        Ok(()) => 0,
        Err(_) => FAILED,
    }
}

/// Runs the replay in the replayer. Everything from outside of the sandbox is read or opened before the
/// confinement.
fn replay(
    args: &ReplayArgs,
    together: &ReplayedTraces,
    order: OrderArg,
    (sandbox, stop): (Option<ReplaySandbox>, &StopRequest),
) -> Result<ReplayRun, TraceError> {
    let compiled = together.whole();
    let sandbox = sandbox.expect("a replay has its site");
    let order = match order {
        OrderArg::Temporal => OrderChoice::Temporal,
        OrderArg::Single => OrderChoice::Single,
        OrderArg::Unconstrained => OrderChoice::Unconstrained,
        compiled => OrderChoice::Compiled(name(compiled).into()),
    };
    let speed = match (args.scale, args.natural) {
        (Some(scale), _) => ReplaySpeed::Natural(scale),
        (None, true) => ReplaySpeed::Natural(1.0),
        (None, false) => ReplaySpeed::Full,
    };
    let cache = CacheControl::new(match args.cache {
        CacheArg::AsBuilt => StartCache::AsBuilt,
        CacheArg::Cold => StartCache::Cold,
        CacheArg::Warm => StartCache::Warm,
    })
    .cold_below(args.cold_only.clone());
    let syncs = match args.fsync {
        FsyncArg::Durable => FsyncMeaning::Durable,
        FsyncArg::Device => FsyncMeaning::Device(host::write_out),
        FsyncArg::None => FsyncMeaning::Nothing,
    };
    let keeper = getppid();
    let confined = trace_replay::confine(sandbox)?;
    // A change of rights, as in a user namespace, clears the parent-death signal, so set it again.
    keeper.map_or(Ok(()), end_with).map_err(TraceError::target("confining", &args.on))?;
    let files = ReplayProgress::show("building the initial tree", "files", compiled.tree.len());
    let tell = |done: usize, _: usize| files.note(done as u64, stop);
    let built = trace_replay::initialise(&confined, compiled, &tell)?;
    drop(files);
    let Some(built) = built else { return Ok(ReplayRun::unreached(compiled.actions.len())) };
    let done = cache.apply(compiled)?;
    let settings = ReplaySettings { order, speed, stall_seconds: args.stall };
    let actions = ReplayProgress::show("replaying", "actions", compiled.actions.len());
    let run = trace_replay::replay(compiled, &settings, syncs, &|done| actions.note(done, stop))?;
    Ok(ReplayRun { built, cache: done, ..run })
}

/// The progress of a part of a replay, as the user sees it.
struct ReplayProgress {
    done: Arc<AtomicU64>,
    stop_seen: OnceLock<Instant>,
    hint: Once,
    _work: LongWork,
}

impl ReplayProgress {
    /// Shows the progress of `what`, in `all` things. The signals are the reader's.
    fn show(what: &str, things: &'static str, all: usize) -> ReplayProgress {
        let done = Arc::new(AtomicU64::new(0));
        let of_amount = done.clone();
        let amount = move || WorkAmount {
            unit: WorkUnit::Things(things),
            done: of_amount.load(Ordering::Relaxed),
            total: Some(all as u64),
        };
        let work = LongWork::start(what, amount, OnInterrupt::Nothing);
        ReplayProgress { done, stop_seen: OnceLock::new(), hint: Once::new(), _work: work }
    }

    /// Notes how much is done. Breaks if the replay is to stop.
    fn note(&self, done: u64, stop: &StopRequest) -> ControlFlow<()> {
        self.done.fetch_max(done, Ordering::Relaxed);
        if !stop.is_made() {
            return ControlFlow::Continue(());
        }
        if self.stop_seen.get_or_init(Instant::now).elapsed() >= CALLS_WAIT {
            self.hint.call_once(|| {
                print_above_progress(|| {
                    eprintln!("stopping when the calls under way return; a second Ctrl-C ends it at once")
                });
            });
        }
        ControlFlow::Break(())
    }
}
