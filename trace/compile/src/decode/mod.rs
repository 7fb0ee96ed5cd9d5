//! Decodes a [`TraceEvent`]'s printed values into a typed [`Call`]. One table for each subject maps names to
//! meanings.

mod arguments;
mod calls;
mod descriptors;
mod files;
mod macos;
mod processes;
mod symbols;

pub use calls::{EXECUTED, MODELLED};
pub(crate) use symbols::has_flag;

use crate::call::{Ask, Call, Fd};
use crate::coverage::Coverage;
use crate::event::{EventKind, Recorded, TraceEvent, Value};
use arguments::{CallArguments, Unusable};
use trace_file::{Name, Names, Outcome};

/// The reason why an unknown call cannot be used.
const UNKNOWN: Unusable = "no replay of this call exists";

/// Decodes one event. Unknown calls and unreadable arguments are counted in `coverage`, and become
/// [`Ask::Unsupported`].
pub(crate) fn decode(event: &TraceEvent, names: &mut Names, coverage: &mut Coverage) -> Call {
    let mut call = Call {
        task: event.task,
        start: event.start,
        end: event.end,
        line: event.line,
        name: names.intern(b"+end"),
        ask: Ask::Exit,
        outcome: Outcome::Value(0),
        notes: Box::default(),
        made_note: None,
    };
    match &event.what {
        EventKind::Ended => {}
        EventKind::Superseded { by } => {
            call.name = names.intern(b"+superseded");
            call.ask = Ask::Supersede { by: *by };
        }
        EventKind::Call { name, args, result } => {
            call.name = names.intern(name.as_bytes());
            (call.outcome, call.made_note) = outcome(result, names);
            if let (Some(position), Outcome::Value(0)) = (descriptors::position(name, args), call.outcome) {
                call.outcome = Outcome::Value(position);
            }
            call.notes = match &name[..] {
                _ if processes::takes_tasks(name) => Box::default(),
                "getcwd" => working_directory(args, call.outcome, names),
                // The argument of a command may be a task, so only the descriptor counts.
                "fcntl" | "fcntl64" => notes(&args[..args.len().min(1)], names),
                _ => notes(args, names),
            };
            let mut arguments = CallArguments { values: args, names, outcome: call.outcome };
            call.ask = ask(name, &mut arguments).unwrap_or_else(|why| {
                // strace prints only the input arguments of a call that never returned, so a missing argument
                // is no problem.
                if call.outcome != Outcome::Unknown {
                    coverage.problem(&format!("{name}: {why}"), event.line, b"");
                }
                Ask::Unsupported
            });
        }
    }
    call
}

fn ask(name: &str, arguments: &mut CallArguments<'_>) -> Result<Ask, Unusable> {
    let name = usual_name(name);
    let op = files::op(name, arguments).or_else(|| descriptors::op(name, arguments));
    if let Some(op) = op.or_else(|| macos::op(name, arguments)) {
        return op.map(Ask::File);
    }
    match descriptors::ask(name, arguments).or_else(|| processes::ask(name, arguments)) {
        Some(ask) => ask,
        None if macos::idle(name) => Ok(Ask::Idle),
        None => Err(UNKNOWN),
    }
}

/// The usual name of a call with the same arguments that has another name in 32-bit programs, on older
/// systems, or on macOS, where the end of a thread does not interrupt the call.
fn usual_name(name: &str) -> &str {
    match name {
        "statfs64" => "statfs",
        "fstatfs64" => "fstatfs",
        "ftruncate64" => "ftruncate",
        "truncate64" => "truncate",
        "fadvise64_64" => "fadvise64",
        "chown32" => "chown",
        "fchown32" => "fchown",
        "lchown32" => "lchown",
        "mmap2" | "old_mmap" => "mmap",
        "_newselect" | "old_select" => "select",
        _ => {
            let name = name.strip_suffix("_nocancel").unwrap_or(name);
            macos::usual_name(name).unwrap_or(name)
        }
    }
}

fn outcome(result: &Recorded, names: &mut Names) -> (Outcome, Option<Name>) {
    match result {
        Recorded::Value(value, note) => {
            (Outcome::Value(*value), note.as_ref().map(|note| names.intern(note)))
        }
        Recorded::Error(name) => (trace_file::errno(name).map_or(Outcome::Unknown, Outcome::Error), None),
        Recorded::Unknown | Recorded::Restarts => (Outcome::Unknown, None),
    }
}

/// The working directory, from getcwd's result.
fn working_directory(args: &[Value], outcome: Outcome, names: &mut Names) -> Box<[(Fd, Name)]> {
    match args.first() {
        Some(Value::Text { bytes, whole: true }) if outcome.succeeded() && bytes.starts_with(b"/") => {
            Box::new([(libc::AT_FDCWD, names.intern(bytes))])
        }
        _ => Box::default(),
    }
}

/// The notes of descriptors among the arguments, including those in lists (poll, io_submit).
fn notes(args: &[Value], names: &mut Names) -> Box<[(Fd, Name)]> {
    fn walk(value: &Value, found: &mut Vec<(Fd, Name)>, names: &mut Names) {
        match value {
            Value::Descriptor { number, note } => found.push((*number, names.intern(note))),
            Value::List(values) => values.iter().for_each(|value| walk(value, found, names)),
            Value::Fields(fields) => {
                let of_task = |name: &str| name.ends_with("pid");
                let fields = fields.iter().filter(|(name, _)| !of_task(name));
                fields.for_each(|(_, value)| walk(value, found, names));
            }
            _ => {}
        }
    }
    let mut found = Vec::new();
    args.iter().for_each(|value| walk(value, &mut found, names));
    found.into()
}

#[cfg(test)]
mod tests;
