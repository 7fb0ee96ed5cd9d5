use super::block::{Block, Cutter};
use super::format::{MAGIC, VERSION};
use super::{About, Benchmark, CompileSettings, Initial, InitialKind, compile, compile_to};
use crate::action::{Action, Fate, Moment, Nap, Rule};
use crate::error::TraceError;
use crate::names::{Name, Names};
use crate::op::{Op, Outcome, SyncKind};
use crate::order::{Order, Wait};
use crate::parse::Strace;

fn hex_blocks() -> Vec<Vec<u8>> {
    let text = include_str!("../../FORMAT.md");
    let blocks = text.split("```hex\n").skip(1).filter_map(|block| block.split_once("```"));
    let byte = |byte: &str| u8::from_str_radix(byte, 16).expect("two hex digits");
    blocks.map(|(hex, _)| hex.split_whitespace().map(byte).collect()).collect()
}

#[test]
fn the_examples_of_the_format_are_what_is_written() {
    let blocks = hex_blocks();
    let file = super::format::write(&Benchmark::default(), Vec::new()).expect("it is written");
    assert_eq!(file[..16], blocks[0]);
    assert_eq!((&file[..8], file[8]), (&MAGIC[..], VERSION as u8));
    let initial = Initial {
        path: Name(5),
        kind: InitialKind::Directory,
        mode: 0o755,
        attributes: Box::default(),
        holes: Box::default(),
    };
    assert_eq!(postcard::to_stdvec(&initial).expect("it is written"), blocks[1]);
    let action = Action {
        thread: 1,
        start: 2,
        end: 4,
        line: 7,
        name: Name(0),
        fate: Fate::Executed,
        op: Op::SyncAll,
        recorded: Outcome::Value(0),
    };
    let wait = Wait { on: 3, moment: Moment::End, rule: Rule::Bytes };
    let mut block = Block::default();
    block.push(action, [&[wait][..]].into_iter());
    assert_eq!(postcard::to_stdvec(&block).expect("it is written"), blocks[2]);
    assert_eq!(postcard::to_stdvec(&Block::default()).expect("it is written"), [0, 0]);
    let nap = Nap { action: 5, ends_with: 300 };
    assert_eq!(postcard::to_stdvec(&nap).expect("it is written"), blocks[3]);
}

#[test]
fn a_block_ends_by_its_actions_or_by_the_lists_in_them() {
    let mut cutter = Cutter::default();
    let close = Op::Close { all: vec![0; 1 << 14].into(), unlocked: Box::default() };
    let (name, fate, recorded) = (Name(0), Fate::Executed, Outcome::Value(0));
    let action = |op| Action { thread: 0, start: 0, end: 0, line: 0, name, fate, op, recorded };
    assert!(cutter.push(action(close), [].into_iter()).is_some_and(|block| block.actions.len() == 1));
    let filled = (1..).find(|_| cutter.push(action(Op::SyncAll), [].into_iter()).is_some());
    assert_eq!(filled, Some(1 << 14));
    assert!(cutter.finish().is_none());
}

#[test]
fn what_refers_to_nothing_or_to_what_comes_later_is_refused() {
    let wait = Wait { on: 0, moment: Moment::End, rule: Rule::Bytes };
    let (name, fate, recorded) = (Name(0), Fate::Executed, Outcome::Value(0));
    let action = Action { thread: 0, start: 0, end: 0, line: 0, name, fate, op: Op::SyncAll, recorded };
    let order = |begins: &[u32]| Order { begins: begins.into(), waits: vec![wait], ..Order::default() };
    let about = About { threads: 1, ..About::default() };
    let names = Names::from_all([Box::from(&b"sync"[..])]);
    let good = Benchmark {
        about,
        names,
        actions: vec![action.clone(), action.clone()],
        orders: vec![order(&[0, 0, 1])],
        ..Benchmark::default()
    };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("benchmark");
    let read = |benchmark: &Benchmark| {
        benchmark.write(&file).expect("it is written");
        Benchmark::read(&file)
    };
    assert!(read(&good).is_ok_and(|found| found == good));
    let backwards = Benchmark { orders: vec![order(&[0, 1, 1])], ..good.clone() };
    let nameless = Benchmark { names: Names::default(), ..good.clone() };
    let open = Op::Sync { on: 0, kind: SyncKind::File };
    let handleless = Benchmark { actions: vec![Action { op: open, ..action }; 2], ..good.clone() };
    let threadless = Benchmark { about: About::default(), ..good };
    for (wrong, what) in [
        (backwards, "an edge that runs backwards"),
        (nameless, "a name, thread, handle or request"),
        (handleless, "a name, thread, handle or request"),
        (threadless, "a name, thread, handle or request"),
    ] {
        let refused = read(&wrong).expect_err(what).to_string();
        assert!(refused.contains(what), "{refused}");
    }
}

/// Calls that can be used, before and after lines that cannot.
fn mixed(used: usize, unused: &str) -> String {
    "mkdir(\"/a\", 0755) = 0\n".repeat(used / 2) + unused + &"rmdir(\"/a\") = 0\n".repeat(used - used / 2)
}

/// What compiling a trace says if at least so many per cent of it must be of use.
fn refusal(text: &str, used_percent_min: u8) -> Option<String> {
    let settings = CompileSettings { used_percent_min, ..CompileSettings::default() };
    match compile(&mut Strace::new(text.as_bytes()), "trace".as_ref(), &settings) {
        Ok(_) => None,
        Err(error @ TraceError::LittleUsed { .. }) => Some(error.to_string()),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn trace_that_is_used_by_half_compiles_and_by_less_is_refused() {
    let default = CompileSettings::default().used_percent_min;
    for unused in ["what is this?\n", "close(3\n", "read(3, \"\", 1) = 1\n", "frobnicate(\"/a\") = 0\n"] {
        assert_eq!(refusal(&mixed(10, &unused.repeat(10)), default), None, "{unused}");
        let said = refusal(&mixed(10, &unused.repeat(11)), default).expect(unused);
        assert!(
            said.starts_with("trace: 10 of 21 calls can be used (47 %), and 50 % are asked for."),
            "{said}"
        );
        assert!(said.contains("11: ") && said.contains("(first: line 6)"), "{said}");
    }
}

#[test]
fn share_that_must_be_used_can_be_chosen() {
    let text = mixed(10, "what is this?\n");
    assert_eq!((refusal(&text, 90), refusal(&text, 0)), (None, None));
    assert!(refusal(&text, 100).is_some());
    assert_eq!(refusal(&mixed(10, "--- SIGCHLD {} ---\n\n"), 100), None);
}

#[test]
fn refusal_names_the_most_frequent_reasons() {
    let kinds: String = (0..7).map(|kind| format!("call{kind}(1) = 0\n").repeat(10 - kind)).collect();
    let said = refusal(&mixed(1, &kinds), 50).expect("it is refused");
    let of = |kind: usize, line: usize| {
        format!("{}: call{kind}: no replay of this call exists (first: line {line})", 10 - kind)
    };
    assert!(said.contains(&[of(0, 1), of(1, 11), of(2, 20)].join("; ")), "{said}");
    assert!(said.ends_with("; 2 more reasons"), "{said}");
}

#[test]
fn trace_without_any_call_is_refused_with_the_reason() {
    let said = |text: &str| {
        let compiled =
            compile(&mut Strace::new(text.as_bytes()), "trace".as_ref(), &CompileSettings::default());
        compiled.expect_err("it is refused").to_string()
    };
    let why = "trace: no call could be read from it: 2: no call, signal or end of a task (first: line 1)";
    assert_eq!(said("{\"time\": 1}\n{\"time\": 2}\n"), why);
    assert_eq!(said("\n"), "trace: no call could be read from it");
}

#[test]
fn benchmark_that_is_refused_leaves_no_file() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let output = dir.path().join("benchmark");
    let text = mixed(1, &"read(3, \"\", 1) = 1\n".repeat(9));
    let settings = CompileSettings::default();
    let refused = compile_to(&mut Strace::new(text.as_bytes()), "trace".as_ref(), &settings, &output);
    assert!(matches!(refused, Err(TraceError::LittleUsed { used: 1, all: 10, .. })));
    assert_eq!(dir.path().read_dir().expect("the directory is there").count(), 0);
}
