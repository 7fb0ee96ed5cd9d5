//! One run of a replay: a child process, because a process cannot leave the root directory that confines it.

use super::args::{CacheArg, FsyncArg, OrderArg, ReplayArgs};
use super::together::Together;
use crate::error::WeirError;
use ::trace::{Baseline, Cache, CacheControl, Failure, Results, Run, Settings, Speed, Syncs, TraceError};
use std::borrow::Cow;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// Where `--reuse` keeps the tree.
const REUSED: &str = "weir-replay-tree";

pub(super) fn name(order: OrderArg) -> &'static str {
    match order {
        OrderArg::Weir => "weir",
        OrderArg::Root => "root",
        OrderArg::Temporal => "temporal",
        OrderArg::Single => "single",
        OrderArg::Unconstrained => "unconstrained",
    }
}

/// Starts a child in a directory below the target, takes its results, and removes the directory.
pub(super) fn outside(args: &ReplayArgs, order: OrderArg) -> Result<Run, WeirError> {
    std::fs::create_dir_all(&args.on).map_err(TraceError::target("creating", &args.on))?;
    let target = args.on.canonicalize().map_err(TraceError::target("finding", &args.on))?;
    let root = match args.reuse {
        true => reused_directory(target.join(REUSED))?,
        false => new_directory(&target)?,
    };
    let output = command(args, order, &root)
        .stderr(Stdio::inherit())
        .output()
        .map_err(WeirError::io("starting a replay in", &root))?;
    if !args.keep && !args.reuse {
        std::fs::remove_dir_all(&root).map_err(TraceError::target("removing", &root))?;
    }
    if !output.status.success() {
        return Err(WeirError::ReplayFailed { status: output.status.to_string() });
    }
    ::trace::results_from_bytes(&output.stdout)?
        .map_err(|Failure { code, message, help }| WeirError::Replay { code, message, help })
}

fn command(args: &ReplayArgs, order: OrderArg, root: &Path) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["trace", "replay"]).args(&args.benchmark).arg("--on").arg(&args.on);
    command.arg("--inside").arg(root).args(["--order", name(order)]);
    command.args(["--stall", &args.stall.to_string()]);
    let cache = match args.cache {
        CacheArg::AsBuilt => "as-built",
        CacheArg::Cold => "cold",
        CacheArg::Warm => "warm",
    };
    command.args(["--cache", cache]);
    if let Some(directory) = &args.cold_only {
        command.arg("--cold-only").arg(directory);
    }
    let fsync = match args.fsync {
        FsyncArg::Durable => "durable",
        FsyncArg::Device => "device",
        FsyncArg::None => "none",
    };
    command.args(["--fsync", fsync]);
    if let Some(scale) = args.scale {
        command.args(["--scale", &scale.to_string()]);
    }
    if args.natural {
        command.arg("--natural");
    }
    command
}

/// A name that nobody uses.
fn new_directory(below: &Path) -> Result<PathBuf, TraceError> {
    let mut number = 0;
    loop {
        let root = below.join(format!("weir-replay-{}-{number}", std::process::id()));
        match std::fs::create_dir(&root) {
            Ok(()) => return Ok(root),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(TraceError::target("creating", root)(error)),
        }
    }
}

/// What is in it will be removed, so a link to somewhere else is refused.
fn reused_directory(root: PathBuf) -> Result<PathBuf, TraceError> {
    match std::fs::create_dir(&root) {
        Err(_) if root.symlink_metadata().is_ok_and(|found| found.is_dir()) => Ok(root),
        Err(error) => Err(TraceError::target("creating", root)(error)),
        Ok(()) => Ok(root),
    }
}

/// The child: hands its results to its parent, whatever they are.
pub(super) fn inside(args: &ReplayArgs, root: &Path) -> Result<ExitCode, WeirError> {
    let results: Results = replay(args, root).map_err(|error| {
        let error = WeirError::from(error);
        let help = error.help().map(Cow::into_owned);
        Failure { code: error.exit_code(), message: error.to_string(), help }
    });
    let mut out = std::io::stdout();
    let written = out.write_all(&::trace::results_to_bytes(&results)).and_then(|()| out.flush());
    written.map_err(WeirError::io("writing results to", "standard output"))?;
    Ok(ExitCode::SUCCESS)
}

/// Everything that it needs from outside is read or opened before it confines itself.
fn replay(args: &ReplayArgs, root: &Path) -> Result<Run, TraceError> {
    let together = Together::read(&args.benchmark)?;
    let benchmark = together.whole();
    let order = match args.order {
        OrderArg::Temporal => Baseline::Temporal,
        OrderArg::Single => Baseline::Single,
        OrderArg::Unconstrained => Baseline::Unconstrained,
        compiled => Baseline::Compiled(name(compiled).into()),
    };
    let speed = match (args.scale, args.natural) {
        (Some(scale), _) => Speed::Natural(scale),
        (None, true) => Speed::Natural(1.0),
        (None, false) => Speed::Full,
    };
    let cache = CacheControl::new(match args.cache {
        CacheArg::AsBuilt => Cache::AsBuilt,
        CacheArg::Cold => Cache::Cold,
        CacheArg::Warm => Cache::Warm,
    })
    .cold_below(args.cold_only.clone());
    let syncs = match args.fsync {
        FsyncArg::Durable => Syncs::Durable,
        FsyncArg::Device => Syncs::Device(host::write_out),
        FsyncArg::None => Syncs::Nothing,
    };
    ::trace::confine(root)?;
    let watched = std::io::stderr().is_terminal();
    let tell = |done: usize, all: usize| {
        if watched {
            eprintln!("building the initial tree: {done} of {all} files");
        }
    };
    let built = ::trace::initialise(benchmark, Path::new("/"), &tell)?;
    let done = cache.apply(benchmark)?;
    let run = ::trace::replay(benchmark, &Settings { order, speed, stall_seconds: args.stall }, syncs)?;
    Ok(Run { built, cache: done, ..run })
}
