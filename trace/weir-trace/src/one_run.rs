//! One run of a replay, in three processes. The *reader* is the process that the user started; it reads the
//! results. The *replayer* confines itself to the sandbox and replays; a process cannot leave the root
//! directory that confines it. The *keeper* between them outlives the replayer and removes the sandbox, even
//! after the reader is killed.
//!
//! | ends | effect |
//! | --- | --- |
//! | the replayer | the keeper removes the sandbox and ends; then the reader accepts the results |
//! | the reader, in whatever way | the keeper notices, ends the replayer and removes the sandbox |
//! | the keeper | the kernel ends the replayer; the reader removes the sandbox |
//! | all three | the next replay below the same target removes the sandbox |

use crate::args::{CacheArg, FsyncArg, OrderArg, ReplayArgs};
use crate::error::ProgramError;
use crate::replayed_traces::ReplayedTraces;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal, setsid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::borrow::Cow;
use std::io::{self, IsTerminal, PipeWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use trace_file::TraceError;
use trace_replay::{
    AfterReplay, CacheControl, FsyncMeaning, OrderChoice, ReplayFailure, ReplayResults, ReplayRun,
    ReplaySandbox, ReplaySettings, ReplaySpeed, StartCache,
};

/// Exit code of the keeper if it failed.
const FAILED: u8 = 1;
/// The keeper adds this to the number of the signal that ended the replayer, as shells do.
const BY_SIGNAL: i32 = 128;

pub(crate) fn name(order: OrderArg) -> &'static str {
    match order {
        OrderArg::Weir => "weir",
        OrderArg::Root => "root",
        OrderArg::Temporal => "temporal",
        OrderArg::Single => "single",
        OrderArg::Unconstrained => "unconstrained",
    }
}

/// Replays once, below the target.
pub(crate) fn run(
    args: &ReplayArgs,
    together: &ReplayedTraces,
    order: OrderArg,
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
            hand_over(results, replay(args, together, order, sandbox))
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
    sandbox: Option<ReplaySandbox>,
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
    let watched = std::io::stderr().is_terminal();
    let tell = |done: usize, all: usize| {
        if watched {
            eprintln!("building the initial tree: {done} of {all} files");
        }
    };
    let built = trace_replay::initialise(&confined, compiled, &tell)?;
    let done = cache.apply(compiled)?;
    let run =
        trace_replay::replay(compiled, &ReplaySettings { order, speed, stall_seconds: args.stall }, syncs)?;
    Ok(ReplayRun { built, cache: done, ..run })
}
