//! The four recorded programs: every call is read, explained and ordered.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use trace_compile::{CompileSettings, Strace};
use trace_file::{CompiledTrace, Fate, TraceError, TraceInventory};
use trace_replay::{OrderChoice, ReplayReport, ReplaySettings, ReplaySpeed};

fn data(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file)
}

fn source(name: &str) -> Strace<impl BufRead> {
    let path = data(&format!("{name}.strace.gz"));
    Strace::new(BufReader::new(trace_compile::open_text(&path).expect("the trace is there")))
}

fn settings(name: &str) -> CompileSettings {
    let snapshot = Some((data(&format!("{name}.snapshot.gz")), "/srv/app".into()));
    CompileSettings { snapshot, ..CompileSettings::default() }
}

fn compiled(name: &str) -> CompiledTrace {
    trace_compile::compile(&mut source(name), name.as_ref(), &settings(name)).expect("the trace compiles")
}

/// Name, lines, threads, and number of calls that may be skipped: one call never returned.
const TRACES: [(&str, u64, u32, usize); 4] = [
    ("sqlite-wal-6threads", 7_342, 7, 0),
    ("git-clone-nolocal", 176_157, 11, 0),
    ("cargo-build", 9_236, 53, 1),
    ("fio-libaio-2threads", 13_603, 6, 0),
];

#[test]
fn every_line_of_four_recorded_programs_is_used_and_every_call_known() {
    for (name, lines, threads, skipped) in TRACES {
        let compiled = compiled(name);
        let about = &compiled.about;
        assert_eq!((about.lines, about.used, about.threads), (lines, lines, threads), "{name}");
        assert_eq!(about.problems, [], "{name}");
        let found = compiled.actions.iter().filter(|action| matches!(action.fate, Fate::Skipped(_))).count();
        assert_eq!(found, skipped, "{name}");
    }
}

#[test]
fn both_orders_of_every_trace_have_edges_and_no_cycle() {
    for (name, ..) in TRACES {
        let compiled = compiled(name);
        for order in ["weir", "root"] {
            let order = compiled.order(order).expect("both orders are compiled");
            assert!(order.is_acyclic(compiled.actions.len()), "{name}");
            assert!(!order.waits.is_empty(), "{name}");
        }
    }
}

#[test]
fn compiling_twice_gives_the_same_bytes_and_a_changed_byte_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (first, second) = (dir.path().join("a"), dir.path().join("b"));
    compiled("sqlite-wal-6threads").write(&first).expect("it is written");
    compiled("sqlite-wal-6threads").write(&second).expect("it is written");
    let mut bytes = std::fs::read(&first).expect("it was written");
    assert_eq!(bytes, std::fs::read(&second).expect("it was written"));
    assert_eq!(
        CompiledTrace::read(&first).expect("it is whole").actions,
        compiled("sqlite-wal-6threads").actions
    );
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&first, &bytes).expect("it is written");
    assert!(matches!(CompiledTrace::read(&first), Err(TraceError::Checksum { .. })));
    std::fs::write(&first, &bytes[..40]).expect("it is written");
    assert!(matches!(CompiledTrace::read(&first), Err(TraceError::Contents { .. })));
}

#[test]
fn compiling_into_a_file_gives_what_compiling_in_memory_gives() {
    let name = "git-clone-nolocal";
    let dir = tempfile::tempdir().expect("a temporary directory");
    let streamed = dir.path().join("streamed");
    let written = dir.path().join("written");
    trace_compile::compile_to(&mut source(name), name.as_ref(), &settings(name), &streamed)
        .expect("it compiles");
    let compiled = compiled(name);
    compiled.write(&written).expect("it is written");
    assert!(std::fs::read(&streamed).expect("it is there") == std::fs::read(&written).expect("it is there"));
    assert!(CompiledTrace::read(&streamed).expect("it is whole") == compiled);
    assert_eq!(std::fs::read_dir(dir.path()).expect("it is there").count(), 2, "nothing else is left");
    let inventory = TraceInventory::read(&streamed).expect("it is whole");
    assert_eq!((inventory.actions, inventory.fates), (compiled.actions.len() as u64, compiled.fates()));
    for (order, counted) in compiled.orders.iter().zip(inventory.orders) {
        assert_eq!(
            (&order.name, order.kept(), &order.asked),
            (&counted.name, counted.kept.clone(), &counted.asked)
        );
        assert_eq!(order.waits.len() as u64, counted.edges());
    }
}

#[test]
fn random_orders_of_every_trace_give_the_recorded_results() {
    for (name, orders) in [
        ("generated-11", 1000),
        ("generated-145", 1000),
        ("sqlite-wal-6threads", 1000),
        ("cargo-build", 1000),
        ("fio-libaio-2threads", 1000),
        ("git-clone-nolocal", 100),
    ] {
        let compiled = compiled(name);
        for order in ["weir", "root"] {
            let verification =
                trace_verify::verify(&compiled, order, orders, 1).expect("the order is compiled");
            println!("{name}: {verification}");
            // `root` has no rule for the list of a directory's names.
            let promised = |call: &str| order != "root" || call != "getdents64";
            let changed = verification.results.iter().find(|changed| promised(&changed.what.call));
            assert!(changed.is_none(), "{name}: {verification}");
        }
    }
}

/// Generated programs. In one, a much later position shows which file a truncation changed. In the other, a
/// lock shows that a conversion had failed and had lost another lock, which was taken meanwhile.
#[test]
fn results_that_some_order_of_overlapping_calls_explains_are_no_races() {
    for name in ["generated-11", "generated-145"] {
        let about = compiled(name).about;
        assert_eq!((about.repairs.races, about.repairs.outside, about.used), (0, 0, about.lines), "{name}");
    }
}

#[test]
fn a_file_that_the_snapshot_lacks_and_the_trace_opens_was_there() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let snapshot = dir.path().join("snapshot");
    std::fs::write(&snapshot, "d 755 4096 2 1:2 /srv/app\t\n").expect("it is written");
    let text = "1 100000001.0 openat(AT_FDCWD</srv/app>, \"f\", O_RDONLY) = 3</srv/app/f> <0.1>\n\
        1 100000002.0 read(3</srv/app/f>, \"\"..., 100) = 100 <0.1>\n";
    let settings = CompileSettings { snapshot: Some((snapshot, "/".into())), ..CompileSettings::default() };
    let compiled =
        trace_compile::compile(&mut Strace::new(text.as_bytes()), "contradiction".as_ref(), &settings)
            .expect("it compiles");
    assert_eq!((compiled.about.repairs.outside, compiled.about.repairs.races), (1, 0));
    let verification = trace_verify::verify(&compiled, "weir", 1, 1).expect("the order is compiled");
    assert_eq!((verification.judged, verification.unjudged.len()), (2, 0), "{verification}");
}

#[test]
fn a_report_names_both_numbers_of_a_result_that_differs_its_line_and_the_cause_in_words() {
    let text = "1 100000001.0 openat(AT_FDCWD</>, \"/f\", O_RDONLY) = 3</f> <0.1>\n\
        1 100000002.0 read(3</f>, \"\"..., 100) = 100 <0.1>\n1 100000003.0 read(3</f>, \"\"..., 50) = 50 <0.1>\n";
    let settings = CompileSettings::default();
    let compiled = trace_compile::compile(&mut Strace::new(text.as_bytes()), "one".as_ref(), &settings)
        .expect("it compiles");
    // The null target returns 0 for every call.
    let settings = ReplaySettings { order: OrderChoice::Single, speed: ReplaySpeed::Full, stall_seconds: 30 };
    let run = trace_replay::replay_onto_nothing(&compiled, &settings).expect("it ends");
    let said = ReplayReport::new(&compiled, "single", &run, Some(&run)).to_string();
    let words =
        "2 read, the first recorded 100, replayed 0 (action 1, line 2): the files that were there before";
    assert!(said.contains(words), "{said}");
}

/// Files of format 3, written by an earlier build.
const GOLDEN: [&str; 2] = ["shapes.compiled", "generated-145.compiled"];

#[test]
fn golden_files_are_read_and_written_back_as_they_were() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let written = dir.path().join("written");
    for golden in GOLDEN.map(data) {
        CompiledTrace::read(&golden).expect("it is whole").write(&written).expect("it is written");
        assert!(bytes(&written) == bytes(&golden), "{}", golden.display());
    }
}

#[test]
fn compiling_gives_the_bytes_of_the_golden_file() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let written = dir.path().join("written");
    let name = "generated-145";
    let trace = data(&format!("{name}.strace.gz"));
    trace_compile::compile_to(&mut source(name), &trace, &settings(name), &written).expect("it compiles");
    assert!(bytes(&written) == bytes(&data("generated-145.compiled")));
}

fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).expect("it is there")
}
