//! `weir trace`: record a program, compile its trace, replay it.

mod args;
mod compare;
mod info;
mod one_run;
mod replay;
mod together;

pub(crate) use args::TraceArgs;

use crate::error::WeirError;
use ::trace::{
    Benchmark, CompileSettings, Inventory, Merged, RecordSettings, Source, Strace, Switches, TraceError,
};
use args::{CompileArgs, ExplainArgs, RecordArgs, Verb, VerifyArgs};
use std::io::BufReader;
use std::path::Path;
use std::process::ExitCode;

pub(crate) fn run(args: &TraceArgs) -> Result<ExitCode, WeirError> {
    let done = |()| ExitCode::SUCCESS;
    match &args.verb {
        Verb::Record(args) => Ok(record(args)?),
        Verb::Compile(args) => Ok(compile(args).map(done)?),
        Verb::Info(args) => Ok(info::run(args).map(done)?),
        Verb::Replay(args) => replay::run(args),
        Verb::Compare(args) => compare::run(args).map(done),
        Verb::Explain(args) => Ok(explain(args).map(done)?),
        Verb::Verify(args) => Ok(verify(args)?),
        Verb::Calls => {
            calls();
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn record(args: &RecordArgs) -> Result<ExitCode, TraceError> {
    let settings = RecordSettings {
        command: args.command.clone(),
        output: args.output.clone(),
        trees: args.tree.clone(),
    };
    let ::trace::Recording { status, tracer, unseen } = ::trace::record(&settings)?;
    match tracer {
        Some(cost) => eprintln!(
            "the tracer adds {:.1} us between two calls, {:.1} us around one that has waited, which think times will not have",
            cost.busy as f64 / 1e3,
            cost.after_wait as f64 / 1e3
        ),
        None => eprintln!("warning: what the tracer adds could not be measured: think times will have it"),
    }
    unseen.warnings().iter().for_each(|what| eprintln!("warning: {what}"));
    eprintln!("recorded {}; next: weir trace compile {0}", args.output.display());
    // The program's own result is the result, as under strace itself.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn compile(args: &CompileArgs) -> Result<(), TraceError> {
    let switches = Switches::without(args.without.iter().copied());
    let settings = CompileSettings {
        snapshot: args.snapshot.clone().map(|file| (file, args.snapshot_root.clone())),
        tracer: args.tracer_ns.map(::trace::TracerCost::same),
        switches: if args.program_sequence { switches.with_program_sequence() } else { switches },
        used_percent_min: args.min_used,
    };
    let mut sources = args.trace.iter().map(|file| source(file)).collect::<Result<Vec<_>, _>>()?;
    let mut source = match sources.len() {
        1 => sources.remove(0).0,
        _ => Box::new(Merged::new(sources)),
    };
    ::trace::compile_to(&mut *source, &args.trace[0], &settings, &args.output)?;
    // Reading it back checks all of it.
    info::print(&Inventory::read(&args.output)?);
    Ok(())
}

/// A file of a trace, and the task that its name ends in.
fn source(file: &Path) -> Result<(Box<dyn Source>, u32), TraceError> {
    let input = BufReader::with_capacity(1 << 20, trace::open_text(file)?);
    Ok((Box::new(Strace::new(input)), Merged::task_of(file).unwrap_or(0)))
}

fn explain(args: &ExplainArgs) -> Result<(), TraceError> {
    let explanation = ::trace::explain(&Benchmark::read(&args.benchmark)?, args.action)?;
    match args.json {
        true => println!("{}", serde_json::json!(explanation)),
        false => print!("{explanation}"),
    }
    Ok(())
}

fn verify(args: &VerifyArgs) -> Result<ExitCode, TraceError> {
    let verification =
        ::trace::verify(&Benchmark::read(&args.benchmark)?, &args.order, args.orders, args.seed)?;
    match args.json {
        true => println!("{:#}", serde_json::json!(verification)),
        false => print!("{verification}"),
    }
    Ok(if verification.holds() { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

fn calls() {
    let executed = ::trace::EXECUTED;
    let modelled = ::trace::MODELLED;
    executed.iter().for_each(|name| println!("executed  {name}"));
    modelled.iter().for_each(|name| println!("modelled  {name}"));
    let all = executed.len() + modelled.len();
    println!("{all} calls: {} executed, {} modelled", executed.len(), modelled.len());
}
