//! `weir trace`: record a program, compile its trace, replay it.

mod args;
mod compare;
mod info;
mod one_run;
mod replay;

pub(crate) use args::TraceArgs;

use crate::error::WeirError;
use ::trace::{Benchmark, CompileSettings, RecordSettings, Strace, TraceError};
use args::{CompileArgs, ExplainArgs, RecordArgs, Verb};
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
    }
}

fn record(args: &RecordArgs) -> Result<ExitCode, TraceError> {
    let settings = RecordSettings {
        command: args.command.clone(),
        output: args.output.clone(),
        trees: args.tree.clone(),
    };
    let status = ::trace::record(&settings)?;
    eprintln!("recorded {}; next: weir trace compile {0}", args.output.display());
    // The program's own result is the result, as under strace itself.
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from))
}

fn compile(args: &CompileArgs) -> Result<(), TraceError> {
    let settings = CompileSettings {
        snapshot: args.snapshot.clone().map(|file| (file, args.snapshot_root.clone())),
        tracer_nanos: args.tracer_ns,
    };
    let input = std::io::BufReader::with_capacity(1 << 20, trace::open_text(&args.trace)?);
    let mut source = Strace::new(input);
    let benchmark = ::trace::compile(&mut source, &args.trace, &settings)?;
    benchmark.write(&args.output)?;
    info::print(&benchmark);
    Ok(())
}

fn explain(args: &ExplainArgs) -> Result<(), TraceError> {
    let explanation = ::trace::explain(&Benchmark::read(&args.benchmark)?, args.action)?;
    match args.json {
        true => println!("{}", serde_json::json!(explanation)),
        false => print!("{explanation}"),
    }
    Ok(())
}
