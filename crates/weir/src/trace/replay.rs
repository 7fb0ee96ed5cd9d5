//! `weir trace replay`: one child process for each run, because a process cannot leave the root directory that confines it.

use super::args::{OrderArg, ReplayArgs};
use crate::error::WeirError;
use ::trace::{Baseline, Benchmark, Report, Run, Settings, Speed};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

pub(super) fn run(args: &ReplayArgs) -> Result<ExitCode, WeirError> {
    if let Some(root) = &args.inside {
        return inside(args, root);
    }
    let benchmark = Benchmark::read(&args.benchmark)?;
    let run = outside(args, args.order)?;
    let wants_single = !args.no_single && args.order != OrderArg::Single;
    let differs = !Report::new(&benchmark, name(args.order), &run, None).causes.is_empty();
    let single = (wants_single && differs).then(|| outside(args, OrderArg::Single)).transpose()?;
    let report = Report::new(&benchmark, name(args.order), &run, single.as_ref());
    match args.json {
        true => println!("{:#}", serde_json::json!(report)),
        false => print!("{report}"),
    }
    Ok(if args.strict && report.order_differences() > 0 { ExitCode::from(3) } else { ExitCode::SUCCESS })
}

fn name(order: OrderArg) -> &'static str {
    match order {
        OrderArg::Weir => "weir",
        OrderArg::Root => "root",
        OrderArg::Temporal => "temporal",
        OrderArg::Single => "single",
        OrderArg::Unconstrained => "unconstrained",
    }
}

/// Starts a child in a new directory below the target, takes its results, and removes the directory.
fn outside(args: &ReplayArgs, order: OrderArg) -> Result<Run, WeirError> {
    std::fs::create_dir_all(&args.on).map_err(WeirError::io("creating", &args.on))?;
    let root = new_directory(&args.on)?;
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["trace", "replay"])
        .arg(&args.benchmark)
        .arg("--on")
        .arg(&args.on)
        .arg("--inside")
        .arg(&root);
    command.args(["--order", name(order)]).args(["--stall", &args.stall.to_string()]);
    if let Some(scale) = args.scale {
        command.args(["--scale", &scale.to_string()]);
    }
    if args.natural {
        command.arg("--natural");
    }
    let output =
        command.stderr(Stdio::inherit()).output().map_err(WeirError::io("starting a replay in", &root))?;
    if !args.keep {
        std::fs::remove_dir_all(&root).map_err(WeirError::io("removing", &root))?;
    }
    match output.status.success() {
        true => Ok(Run::from_bytes(&output.stdout)?),
        false => Err(WeirError::ReplayFailed { status: output.status.to_string() }),
    }
}

/// A name that nobody uses.
fn new_directory(below: &Path) -> Result<PathBuf, WeirError> {
    let mut number = 0;
    loop {
        let root = below.join(format!("weir-replay-{}-{number}", std::process::id()));
        match std::fs::create_dir(&root) {
            Ok(()) => return Ok(root),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(WeirError::io("creating", root)(error)),
        }
    }
}

/// The child: everything that it needs is read before it confines itself.
fn inside(args: &ReplayArgs, root: &Path) -> Result<ExitCode, WeirError> {
    let benchmark = Benchmark::read(&args.benchmark)?;
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
    ::trace::confine(root)?;
    let built = ::trace::initialise(&benchmark, Path::new("/"))?;
    let mut run = ::trace::replay(&benchmark, &Settings { order, speed, stall_seconds: args.stall })?;
    run.built = (built.files, built.bytes);
    std::io::stdout()
        .write_all(&run.to_bytes())
        .map_err(WeirError::io("writing results to", "standard output"))?;
    Ok(ExitCode::SUCCESS)
}
