#![doc = include_str!("../README.md")]

mod args;
mod compare;
mod error;
mod info;
mod one_run;
mod output;
mod replay;
mod replayed_traces;
mod stop_request;

use args::{CompileArgs, ExplainArgs, ManArgs, RecordArgs, TraceCommandLine, TraceVerb};
use clap::{CommandFactory, Parser};
use error::ProgramError;
use output::{explain_error, refuse_command_line};
use std::path::Path;
use std::process::ExitCode;
use trace_compile::{CompileSettings, RecordSettings, Source, Switches, TaskFiles};
use trace_file::{CompiledTrace, TraceError, TraceInventory, TracerCost};

fn main() -> ExitCode {
    output::end_when_output_fails();
    let verb = match TraceCommandLine::try_parse() {
        Ok(cli) => cli.verb,
        Err(refused) => return refuse_command_line(&refused),
    };
    run(&verb).unwrap_or_else(|error| {
        explain_error(&error);
        ExitCode::from(error.exit_code())
    })
}

fn run(verb: &TraceVerb) -> Result<ExitCode, ProgramError> {
    let done = |()| ExitCode::SUCCESS;
    match verb {
        TraceVerb::Record(args) => Ok(record(args)?),
        TraceVerb::Compile(args) => Ok(compile(args).map(done)?),
        TraceVerb::Info(args) => Ok(info::run(args).map(done)?),
        TraceVerb::Replay(args) => replay::run(args),
        TraceVerb::Compare(args) => compare::run(args).map(done),
        TraceVerb::Explain(args) => Ok(explain(args).map(done)?),
        TraceVerb::Calls => {
            calls();
            Ok(ExitCode::SUCCESS)
        }
        TraceVerb::Man(args) => Ok(man(args).map(done)?),
    }
}

fn record(args: &RecordArgs) -> Result<ExitCode, TraceError> {
    let settings = RecordSettings {
        command: args.command.clone(),
        output: args.output.clone(),
        trees: args.tree.clone(),
    };
    let recording = trace_compile::record(&settings)?;
    match recording.tracer {
        Some(cost) => eprintln!(
            "the tracer adds {:.1} us between two calls, {:.1} us around one that has waited, which think times will not have",
            cost.busy as f64 / 1e3,
            cost.after_wait as f64 / 1e3
        ),
        None => eprintln!("warning: what the tracer adds could not be measured: think times will have it"),
    }
    recording.unseen.warnings().iter().for_each(|what| eprintln!("warning: {what}"));
    eprintln!("recorded {}; next: weir-trace compile {0}", args.output.display());
    // Return the program's own exit code, as strace does.
    Ok(recording
        .status
        .code()
        .and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from))
}

fn compile(args: &CompileArgs) -> Result<(), TraceError> {
    let switches = Switches::without(args.without.iter().copied());
    let settings = CompileSettings {
        snapshot: args.snapshot.clone().map(|file| (file, args.snapshot_root.clone())),
        tracer: args.tracer_ns.map(TracerCost::same),
        switches: if args.program_sequence { switches.with_program_sequence() } else { switches },
        used_percent_min: args.min_used,
    };
    let mut sources = args.trace.iter().map(|file| source(file)).collect::<Result<Vec<_>, _>>()?;
    let mut source = match sources.len() {
        1 => sources.remove(0).0,
        _ => Box::new(TaskFiles::new(sources)),
    };
    trace_compile::compile_to(&mut *source, &args.trace[0], &settings, &args.output)?;
    // Reading the file back checks all of it.
    info::print(&TraceInventory::read(&args.output)?);
    Ok(())
}

/// Opens a file of a trace. Returns the source, and the task in the file's name.
fn source(file: &Path) -> Result<(Box<dyn Source>, u32), TraceError> {
    let source = trace_compile::read_trace(trace_compile::open_text(file)?);
    Ok((source.map_err(TraceError::io("reading", file))?, TaskFiles::task_of(file).unwrap_or(0)))
}

fn explain(args: &ExplainArgs) -> Result<(), TraceError> {
    let explanation = trace_replay::explain(&CompiledTrace::read(&args.compiled)?, args.action)?;
    if args.json {
        println!("{}", serde_json::json!(explanation));
    } else {
        print!("{explanation}");
    }
    Ok(())
}

fn calls() {
    let executed = trace_compile::EXECUTED;
    let modelled = trace_compile::MODELLED;
    executed.iter().for_each(|name| println!("executed  {name}"));
    modelled.iter().for_each(|name| println!("modelled  {name}"));
    let all = executed.len() + modelled.len();
    println!("{all} calls: {} executed, {} modelled", executed.len(), modelled.len());
}

/// Writes `weir-trace.1` and a page for each verb.
fn man(args: &ManArgs) -> Result<(), TraceError> {
    clap_mangen::generate_to(TraceCommandLine::command(), &args.dir)
        .map_err(TraceError::io("writing the manual pages", &args.dir))
}
