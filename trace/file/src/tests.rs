use crate::action::{Action, Fate, Moment, Nap, Rule};
use crate::block::{Block, Cutter};
use crate::contents::{About, Benchmark, Initial, InitialKind};
use crate::format::{MAGIC, VERSION};
use crate::names::{Name, Names};
use crate::op::{Op, Outcome, SyncKind};
use crate::order::{Order, Wait};

fn hex_blocks() -> Vec<Vec<u8>> {
    let text = include_str!("../FORMAT.md");
    let blocks = text.split("```hex\n").skip(1).filter_map(|block| block.split_once("```"));
    let byte = |byte: &str| u8::from_str_radix(byte, 16).expect("two hex digits");
    blocks.map(|(hex, _)| hex.split_whitespace().map(byte).collect()).collect()
}

#[test]
fn the_examples_of_the_format_are_what_is_written() {
    let blocks = hex_blocks();
    let file = crate::format::write(&Benchmark::default(), Vec::new()).expect("it is written");
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
