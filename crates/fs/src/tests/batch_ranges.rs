//! Batches that clone, move, punch and compare ranges.

use super::in_memory::OWNER;
use super::model::ModelSubject;
use super::simulated_stack::SimulatedStack;
use crate::error::FsError;
use crate::types::{FileKind, Ino, SetAttributes};
use crate::{BatchChange, BatchPlace, BatchSource};
use cache::FetchMode;

const PAGE: u64 = 4096;
const BEHIND: &str = "a range ends behind the end of its file, whose size must be set before";

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
    assert_eq!(why(clone((one, 2), 2, (two, 0))), BEHIND);
    assert_eq!(why(expect_equal((one, 0), (two, 0), 4)), BEHIND);
    assert_eq!(why(moved((one, 0), 2, (one, 1))), "a range that overlaps its own source");
    let far = "a long clone or move between offsets that differ modulo 512 KiB";
    assert_eq!(why(clone((one, 1), 1 << 25, (two, 0))), far);
    assert_eq!(pages(&stack, one), [16, 17, 18]);
    assert_eq!(pages(&stack, two), [32, 33, 34]);
    let compared: Vec<BatchChange> = (0..300).map(|_| expect_equal((one, 0), (two, 0), 1)).collect();
    assert!(matches!(apply(&stack, compared), Err(FsError::BatchTooLarge)));
}

/// Swaps and chains of overlapping ranges in one transaction, beside plain arrays.
#[test]
fn parts_of_a_batch_are_made_in_order() {
    let (mut stack, [one, two, three]) = stack_with_files(9, [8, 8, 8]);
    let files = [one, two, three];
    let mut model: Vec<Vec<u8>> = files.iter().map(|&ino| pages(&stack, ino)).collect();
    let mut random = device::SeededRng::new(77);
    for round in 0..60_u32 {
        let mut batch = Vec::new();
        for _ in 0..1 + random.below(12) {
            let (a, b) = (random.below(3) as usize, random.below(3) as usize);
            let (from, to, len) = (random.below(6), random.below(6), 1 + random.below(2));
            if a == b && from.abs_diff(to) < len {
                continue;
            }
            match random.below(4) {
                0 => {
                    let byte = random.below(200) as u8 + 1;
                    model[b][to as usize] = byte;
                    batch.push(BatchChange::Write {
                        ino: files[b],
                        offset: to * PAGE,
                        bytes: vec![byte; PAGE as usize],
                    });
                }
                1 => {
                    model[b][to as usize] = 0;
                    batch.push(BatchChange::Punch { ino: files[b], offset: to * PAGE, len: PAGE });
                }
                kind => {
                    let bytes = model[a][from as usize..(from + len) as usize].to_vec();
                    model[b][to as usize..(to + len) as usize].copy_from_slice(&bytes);
                    if kind == 2 {
                        batch.push(clone((files[a], from), len, (files[b], to)));
                    } else {
                        model[a][from as usize..(from + len) as usize].fill(0);
                        batch.push(moved((files[a], from), len, (files[b], to)));
                    }
                }
            }
        }
        apply(&stack, batch).expect("space");
        if random.once_in(3) {
            stack.reopen();
        }
        if random.once_in(2) {
            for (ino, expected) in files.iter().zip(&model) {
                assert_eq!(&pages(&stack, *ino), expected, "round {round}");
            }
        }
    }
    assert_eq!(stack.findings(), []);
}

#[test]
fn a_difference_behind_pages_that_are_not_in_memory_is_told() {
    let (mut stack, [one, two, three, four]) = stack_with_files(8, [1, 0, 1, 1]);
    apply(&stack, vec![clone((one, 0), 1, (two, 0))]).expect("space");
    stack.reopen();
    let compared = vec![expect_equal((one, 0), (two, 0), 1), expect_equal((three, 0), (four, 0), 1)];
    let found = apply(&stack, compared);
    assert!(matches!(found, Err(FsError::Differs { part: 1 })), "{found:?}");
}

#[test]
fn a_difference_far_behind_the_beginning_is_found() {
    let (stack, [one, two]) = stack_with_files(10, [0, 0]);
    for ino in [one, two] {
        stack.wait(|done| stack.fs().write(ino, 0, vec![1; 100 << 10], done)).expect("space");
    }
    stack.wait(|done| stack.fs().write(two, 90 << 10, vec![2], done)).expect("space");
    let found = apply(&stack, vec![expect_equal((one, 0), (two, 0), 25)]);
    assert!(matches!(found, Err(FsError::Differs { part: 0 })), "{found:?}");
}

#[test]
fn no_file_grows_past_the_kernel() {
    let (stack, [one, two]) = stack_with_files(11, [2, 2]);
    let within = |changes| stack.wait(|done| stack.fs().apply_batch_within_sizes(changes, done));
    let write = |offset| BatchChange::Write { ino: one, offset, bytes: vec![9; PAGE as usize] };
    within(vec![write(PAGE)]).expect("within the file");
    for change in [write(PAGE + 1), clone((one, 0), 2, (two, 1)), moved((one, 0), 1, (two, 2))] {
        let refused = within(vec![change]);
        assert!(matches!(refused, Err(FsError::BadRange(BEHIND))), "{refused:?}");
    }
    assert_eq!([pages(&stack, one), pages(&stack, two)], [[16, 9], [32, 33]]);
}

#[test]
fn a_last_page_that_moves_away_is_not_charged_for() {
    let (stack, [one, two]) = stack_with_files(12, [2, 0]);
    stack.wait(|done| stack.fs().write(one, 2 * PAGE, vec![5; 100], done)).expect("space");
    let all = BatchChange::Move { from: one, offset: 0, len: 2 * PAGE + 100, to: two, at: 0 };
    apply(&stack, vec![all]).expect("space");
    assert_eq!([charged(&stack, one), charged(&stack, two)], [0, 3]);
}

#[test]
fn a_file_of_another_volume_that_was_never_written_is_cloned_as_zeros() {
    let (mut stack, [sparse, target]) = stack_with_files(13, [0, 3]);
    let set = SetAttributes { size: Some(2 * PAGE), ..SetAttributes::default() };
    stack.wait(|done| stack.fs().set_attributes(sparse, set, done)).expect("a size");
    let source = BatchSource::Elsewhere(stack.fs().copy_source(sparse).expect("a file"));
    let from = BatchPlace { source, offset: 0 };
    apply(&stack, vec![BatchChange::Clone { from, len: 2 * PAGE, to: target, at: 0 }]).expect("space");
    for _ in 0..2 {
        assert_eq!(pages(&stack, target), [0, 0, 34]);
        stack.reopen();
    }
    assert_eq!(stack.findings(), []);
}
