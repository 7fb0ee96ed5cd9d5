//! Three programs in the form of macOS's dtruss: a copy, an editor that replaces a file, and a database with two
//! threads and a child. The lines are made up after real traces.

use std::path::PathBuf;
use trace_compile::{CompileSettings, read_trace};
use trace_file::{CompiledTrace, Fate, Op, Outcome, SyncKind};

fn text(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/dtruss").join(name);
    std::fs::read(path).expect("the trace is there")
}

/// Compiles a trace whose form is found by its text, and checks its orders.
fn compiled(name: &str) -> CompiledTrace {
    let mut source = read_trace(std::io::Cursor::new(text(name))).expect("memory does not fail");
    let compiled = trace_compile::compile(&mut *source, name.as_ref(), &CompileSettings::default())
        .expect("the trace compiles");
    assert_eq!(compiled.about.repairs.races, 0, "{name}: {:?}", compiled.about.races);
    for order in ["weir", "root"] {
        let verification = trace_verify::verify(&compiled, order, 100, 1).expect("the order is compiled");
        assert!(verification.holds() && verification.unjudged.is_empty(), "{name}: {verification}");
    }
    compiled
}

fn problems(compiled: &CompiledTrace) -> Vec<(&str, u64)> {
    compiled.about.problems.iter().map(|(kind, count, _)| (kind.as_str(), *count)).collect()
}

/// The executed actions of that name.
fn executed<'a>(compiled: &'a CompiledTrace, name: &str) -> Vec<(u32, &'a Op<u32>, Outcome)> {
    let of_name = compiled
        .actions
        .iter()
        .filter(|action| action.fate == Fate::Executed && compiled.names.show(action.name) == name);
    of_name.map(|action| (action.thread, &action.op, action.recorded)).collect()
}

#[test]
fn copy_is_used_completely() {
    let compiled = compiled("copy.dtruss");
    assert_eq!(problems(&compiled), []);
    assert_eq!(compiled.about.used, compiled.about.lines);
    let opened = executed(&compiled, "open");
    let flags = (libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_EXCL) as u32;
    assert!(
        matches!(opened[2], (_, Op::Open { flags: found, mode: 0o644, .. }, _) if *found == flags),
        "{opened:?}"
    );
    assert!(matches!(executed(&compiled, "getattrlist")[..], [(_, Op::Stat { follow: false, .. }, _)]));
    assert!(matches!(
        executed(&compiled, "getdirentries64")[..],
        [(_, Op::List { bytes: 0x2000, .. }, _), _]
    ));
}

#[test]
fn editor_exchanges_two_names() {
    let compiled = compiled("edit.dtruss");
    assert_eq!(problems(&compiled), [("fstatat64: a path is not a string", 1), ("no call of dtruss", 1)]);
    assert_eq!(compiled.about.threads, 2);
    let exchanged = executed(&compiled, "renameatx_np");
    assert!(matches!(exchanged[0], (_, Op::Exchange { .. }, Outcome::Value(0))), "{exchanged:?}");
    let keeps = libc::RENAME_NOREPLACE;
    assert!(
        matches!(exchanged[1], (_, Op::Rename { flags, .. }, Outcome::Error(libc::EEXIST)) if *flags == keeps),
        "{exchanged:?}"
    );
}

#[test]
fn database_syncs_completely_and_its_child_reads_the_log() {
    let compiled = compiled("database.dtruss");
    assert_eq!(problems(&compiled), [("no call of dtruss", 1), ("rmdir: a path is not a string", 1)]);
    assert_eq!(compiled.about.threads, 3);
    let synced = executed(&compiled, "fcntl");
    assert!(
        synced.iter().all(|(_, op, _)| matches!(op, Op::Sync { kind: SyncKind::Full, .. })),
        "{synced:?}"
    );
    assert_eq!(synced.iter().map(|(thread, ..)| *thread).collect::<Vec<_>>(), [1, 1, 1, 1, 0]);
    assert!(matches!(executed(&compiled, "read")[..], [(2, Op::Read { .. }, Outcome::Value(2048))]));
    let ends = compiled.actions.iter().map(|action| action.end).max();
    assert!(ends.is_some_and(|end| (20_000_000..40_000_000).contains(&end)), "{ends:?}");
}

#[test]
fn damaged_trace_never_panics() {
    for name in ["copy.dtruss", "edit.dtruss", "database.dtruss"] {
        let whole = text(name);
        for at in (0..whole.len()).step_by(13) {
            let mut changed = whole.clone();
            changed[at] = b"\n\" (=0x"[at % 7];
            for damaged in [whole[at..].to_vec(), whole[..at].to_vec(), changed] {
                let mut source = read_trace(std::io::Cursor::new(damaged)).expect("memory does not fail");
                let settings = CompileSettings { used_percent_min: 0, ..CompileSettings::default() };
                drop(trace_compile::compile(&mut *source, name.as_ref(), &settings));
            }
        }
    }
}
