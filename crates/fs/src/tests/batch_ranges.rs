//! Batches that clone, move, punch and compare ranges.

use super::in_memory::OWNER;
use super::model::ModelSubject;
use super::simulated_stack::SimulatedStack;
use crate::error::FsError;
use crate::types::{FileKind, Ino, SetAttributes};
use crate::{BatchChange, BatchPlace, BatchSource};
use cache::FetchMode;

const PAGE: u64 = 4096;

fn stack_with_files<const N: usize>(seed: u64, pages: [u64; N]) -> (SimulatedStack, [Ino; N]) {
    let stack = SimulatedStack::new(seed, FetchMode::Lazy, 16384);
    let mut number = 0;
    let files = pages.map(|pages| {
        number += 1;
        let name = [b'a' + number];
        let made = stack.wait(|done| stack.fs().make(OWNER, Ino::ROOT, &name, FileKind::File, 0o600, done));
        let ino = made.expect("a file").ino;
        let bytes = (0..pages).flat_map(|page| [number * 16 + page as u8; PAGE as usize]).collect();
        stack.wait(|done| stack.fs().write(ino, 0, bytes, done)).expect("a write");
        ino
    });
    (stack, files)
}

/// The first byte of each page, after a check that the others are the same.
fn pages(stack: &SimulatedStack, ino: Ino) -> Vec<u8> {
    let bytes = stack.wait(|done| stack.fs().read(ino, 0, 1 << 20, done)).expect("a read");
    let page = |page: &[u8]| {
        assert!(page.iter().all(|&byte| byte == page[0]), "a page of several bytes");
        page[0]
    };
    bytes.chunks(PAGE as usize).map(page).collect()
}

fn apply(stack: &SimulatedStack, changes: Vec<BatchChange>) -> Result<(), FsError> {
    stack.wait(|done| stack.fs().apply_batch(changes, done))
}

fn place(ino: Ino, page: u64) -> BatchPlace {
    BatchPlace { source: BatchSource::Here(ino), offset: page * PAGE }
}

fn clone(from: (Ino, u64), pages: u64, to: (Ino, u64)) -> BatchChange {
    BatchChange::Clone { from: place(from.0, from.1), len: pages * PAGE, to: to.0, at: to.1 * PAGE }
}

fn moved(from: (Ino, u64), pages: u64, to: (Ino, u64)) -> BatchChange {
    BatchChange::Move { from: from.0, offset: from.1 * PAGE, len: pages * PAGE, to: to.0, at: to.1 * PAGE }
}

fn expect_equal(one: (Ino, u64), other: (Ino, u64), pages: u64) -> BatchChange {
    BatchChange::ExpectEqual { one: place(one.0, one.1), other: place(other.0, other.1), len: pages * PAGE }
}

fn charged(stack: &SimulatedStack, ino: Ino) -> u64 {
    stack.fs().attributes(ino).expect("it is there").stored_bytes / PAGE
}

#[test]
fn ranges_of_all_kinds_change_together() {
    let (mut stack, [one, two]) = stack_with_files(1, [4, 2]);
    let write = BatchChange::Write { ino: one, offset: 0, bytes: vec![9; PAGE as usize] };
    let punch = BatchChange::Punch { ino: two, offset: 0, len: PAGE };
    let made = apply(&stack, vec![punch, write, clone((one, 1), 1, (two, 3)), moved((one, 2), 2, (two, 5))]);
    made.expect("space");
    for is_reopened in [false, true] {
        assert_eq!(pages(&stack, one), [9, 17, 0, 0], "reopened: {is_reopened}");
        assert_eq!(pages(&stack, two), [0, 33, 0, 17, 0, 18, 19], "reopened: {is_reopened}");
        assert_eq!([charged(&stack, one), charged(&stack, two)], [2, 4]);
        stack.reopen();
    }
    assert_eq!(stack.findings(), []);
}

#[test]
fn pages_move_within_a_file() {
    let (mut stack, [ino]) = stack_with_files(2, [4]);
    apply(&stack, vec![moved((ino, 0), 2, (ino, 6))]).expect("space");
    for _ in 0..2 {
        assert_eq!(pages(&stack, ino), [0, 0, 18, 19, 0, 0, 16, 17]);
        stack.reopen();
    }
    assert_eq!(stack.findings(), []);
}

#[test]
fn a_file_s_last_page_moves_and_grows_with_zeros() {
    let (stack, [one, two]) = stack_with_files(3, [1, 0]);
    stack.wait(|done| stack.fs().write(one, PAGE, vec![5; 100], done)).expect("space");
    let all = BatchChange::Move { from: one, offset: 0, len: PAGE + 100, to: two, at: 0 };
    apply(&stack, vec![all]).expect("space");
    let set = SetAttributes { size: Some(2 * PAGE), ..SetAttributes::default() };
    stack.wait(|done| stack.fs().set_attributes(two, set, done)).expect("a size");
    let found = stack.wait(|done| stack.fs().read(two, PAGE, PAGE as usize, done)).expect("a read");
    assert_eq!(found[..100], [5; 100]);
    assert_eq!(found[100..], [0; PAGE as usize - 100]);
    assert_eq!(pages(&stack, one), [0, 0]);
}

#[test]
fn nothing_changes_unless_expected_ranges_are_equal() {
    let (mut stack, [one, two]) = stack_with_files(4, [3, 3]);
    apply(&stack, vec![clone((one, 1), 1, (two, 1))]).expect("space");
    // Compared in memory, and from the store.
    for _ in 0..2 {
        let write = |byte| BatchChange::Write { ino: two, offset: 0, bytes: vec![byte; PAGE as usize] };
        let refused = apply(&stack, vec![write(1), expect_equal((one, 0), (two, 0), 3)]);
        assert!(matches!(refused, Err(FsError::Differs { part: 1 })), "{refused:?}");
        assert_eq!(pages(&stack, two), [32, 17, 34]);
        // Expectations are about the state before, wherever they stand.
        apply(&stack, vec![write(1), expect_equal((one, 1), (two, 1), 1)]).expect("equal ranges");
        assert_eq!(pages(&stack, two), [1, 17, 34]);
        apply(&stack, vec![write(32)]).expect("space");
        stack.reopen();
    }
}

#[test]
fn holes_are_equal_to_zeros() {
    let (mut stack, [one, two]) = stack_with_files(5, [4, 0]);
    let set = SetAttributes { size: Some(4 * PAGE), ..SetAttributes::default() };
    stack.wait(|done| stack.fs().set_attributes(two, set, done)).expect("a size");
    apply(&stack, vec![BatchChange::Punch { ino: one, offset: 0, len: 2 * PAGE }]).expect("space");
    let zeros = BatchChange::Write { ino: one, offset: PAGE, bytes: vec![0; 100] };
    apply(&stack, vec![zeros]).expect("space");
    for _ in 0..2 {
        apply(&stack, vec![expect_equal((one, 0), (two, 0), 2)]).expect("zeros");
        stack.reopen();
    }
}

#[test]
fn files_of_a_snapshot_are_compared_and_cloned() {
    let (stack, [ino]) = stack_with_files(6, [3]);
    let snapshot = stack.fs().copy_source(ino).expect("a file");
    let elsewhere = |page: u64| BatchPlace { source: BatchSource::Elsewhere(snapshot), offset: page * PAGE };
    let expect = BatchChange::ExpectEqual { one: elsewhere(0), other: place(ino, 0), len: 3 * PAGE };
    let copied = BatchChange::Clone { from: elsewhere(1), len: 2 * PAGE, to: ino, at: 4 * PAGE };
    apply(&stack, vec![expect, copied]).expect("equal ranges");
    assert_eq!(pages(&stack, ino), [16, 17, 18, 0, 17, 18]);
}

#[test]
fn wrong_ranges_are_refused_by_name() {
    let (stack, [one, two]) = stack_with_files(7, [3, 3]);
    let why = |change: BatchChange| match apply(&stack, vec![change]) {
        Err(FsError::BadRange(why)) => why,
        other => panic!("{other:?}"),
    };
    let off_page = BatchChange::Move { from: one, offset: 1, len: PAGE, to: two, at: 0 };
    assert_eq!(why(off_page), "a clone or a move that does not begin with pages");
    let part = BatchChange::Clone { from: place(one, 0), len: 100, to: two, at: 0 };
    assert_eq!(why(part), "a clone or a move that ends within a page, and before the end of a file");
    assert_eq!(why(clone((one, 0), 0, (two, 0))), "an empty range");
    assert_eq!(why(clone((one, 2), 2, (two, 0))), "a range ends behind the end of its file");
    assert_eq!(why(expect_equal((one, 0), (two, 0), 4)), "a range ends behind the end of its file");
    assert_eq!(why(moved((one, 0), 2, (one, 1))), "a range that overlaps its own source");
    let far = "a long clone or move between offsets that differ modulo 512 KiB";
    assert_eq!(why(clone((one, 1), 1 << 25, (two, 0))), far);
    assert_eq!(pages(&stack, one), [16, 17, 18]);
    assert_eq!(pages(&stack, two), [32, 33, 34]);
    let compared: Vec<BatchChange> = (0..300).map(|_| expect_equal((one, 0), (two, 0), 1)).collect();
    assert!(matches!(apply(&stack, compared), Err(FsError::BatchTooLarge)));
}
