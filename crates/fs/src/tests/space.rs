//! Space of ranges: allocation, refusals and holes.

use super::in_memory::{InMemoryFs, OWNER, snapshot};
use super::model::{ModelOperation, ModelSubject};
use super::simulated_stack::SimulatedStack;
use crate::arena::FsTransaction;
use crate::cost;
use crate::error::FsError;
use crate::format::FILE_BYTES_MAX;
use crate::ops::allocate::{FallocateMode, SeekWhence, SizePolicy};
use crate::types::{FileKind, IfExists, Ino, SetAttributes};
use crate::{BatchChange, BatchPlace, BatchSource};
use cache::FetchMode;
use std::time::Duration;

const PAGE: u64 = 4096;

fn file(stack: &SimulatedStack, name: &[u8]) -> Ino {
    let made = stack.wait(|done| stack.fs().make(OWNER, Ino::ROOT, name, FileKind::File, 0o600, done));
    made.expect("a file").ino
}

fn write(stack: &SimulatedStack, ino: Ino, offset: u64, bytes: &[u8]) {
    stack.wait(|done| stack.fs().write(ino, offset, bytes.to_vec(), done)).expect("a write");
}

fn allocate(
    stack: &SimulatedStack,
    ino: Ino,
    what: FallocateMode,
    range: (u64, u64),
    size: SizePolicy,
) -> Result<(), FsError> {
    stack.wait(|done| stack.fs().allocate(ino, what, range, size, done))
}

fn seek(stack: &SimulatedStack, ino: Ino, offset: u64, what: SeekWhence) -> Option<u64> {
    match stack.wait(|done| stack.fs().seek(ino, offset, what, done)) {
        Ok(found) => Some(found),
        Err(FsError::PastEnd) => None,
        Err(error) => panic!("{error}"),
    }
}

fn size(stack: &SimulatedStack, ino: Ino) -> u64 {
    stack.attributes(ino).expect("it is there").size
}

/// Every offset at which data or a hole begins, as found by seeking.
fn layout(stack: &SimulatedStack, ino: Ino) -> Vec<(u64, u64)> {
    let mut at = 0;
    let mut found = Vec::new();
    while let Some(data) = seek(stack, ino, at, SeekWhence::Data) {
        at = seek(stack, ino, data, SeekWhence::Hole).expect("a hole ends every file");
        found.push((data, at));
    }
    found
}

#[test]
fn holes_and_data_are_found_in_memory_and_in_the_store() {
    let mut stack = SimulatedStack::new(1, FetchMode::Lazy, 16384);
    let ino = file(&stack, b"sparse");
    assert_eq!(layout(&stack, ino), []);
    stack
        .wait(|done| {
            let set = SetAttributes { size: Some(1 << 40), ..SetAttributes::default() };
            stack.fs().set_attributes(ino, set, done)
        })
        .expect("a size");
    assert_eq!(seek(&stack, ino, 5, SeekWhence::Hole), Some(5));
    assert_eq!(layout(&stack, ino), []);
    write(&stack, ino, 0, &[1; 100]);
    write(&stack, ino, 10 * PAGE, &[2; 3 * PAGE as usize]);
    write(&stack, ino, (1 << 40) - 10, &[3; 20]);
    let last = (1 << 40) - PAGE;
    let expected = [(0, PAGE), (10 * PAGE, 13 * PAGE), (last, (1 << 40) + 10)];
    assert_eq!(layout(&stack, ino), expected);
    stack.reopen();
    assert_eq!(layout(&stack, ino), expected);
    allocate(&stack, ino, FallocateMode::PunchHole, (11 * PAGE, PAGE), SizePolicy::Keep).expect("a hole");
    let expected = [(0, PAGE), (10 * PAGE, 11 * PAGE), (12 * PAGE, 13 * PAGE), (last, (1 << 40) + 10)];
    assert_eq!(layout(&stack, ino), expected);
    assert_eq!(seek(&stack, ino, 11 * PAGE + 7, SeekWhence::Hole), Some(11 * PAGE + 7));
    assert_eq!(seek(&stack, ino, 11 * PAGE + 7, SeekWhence::Data), Some(12 * PAGE));
    stack.reopen();
    assert_eq!(layout(&stack, ino), expected);
    // To the end and beyond: the last page is removed as a whole.
    allocate(&stack, ino, FallocateMode::PunchHole, (10 * PAGE, 1 << 41), SizePolicy::Keep).expect("a hole");
    assert_eq!(layout(&stack, ino), [(0, PAGE)]);
    assert_eq!(size(&stack, ino), (1 << 40) + 10);
}

/// The pages that a file is charged for.
fn charged(stack: &SimulatedStack, ino: Ino) -> u64 {
    stack.attributes(ino).expect("it is there").stored_bytes / PAGE
}

#[test]
fn a_file_is_charged_for_what_was_written_and_no_hole() {
    let mut stack = SimulatedStack::new(7, FetchMode::Lazy, 16384);
    let ino = file(&stack, b"sparse");
    allocate(&stack, ino, FallocateMode::Allocate, (0, 1000 * PAGE), SizePolicy::Grow).expect("space");
    assert_eq!(charged(&stack, ino), 0);
    write(&stack, ino, 10 * PAGE + 5, &[1; 10 * PAGE as usize]);
    assert_eq!(charged(&stack, ino), 11);
    allocate(&stack, ino, FallocateMode::PunchHole, (0, 995 * PAGE), SizePolicy::Keep).expect("a hole");
    assert_eq!(charged(&stack, ino), 0, "nothing is left");
    write(&stack, ino, 0, &[1; 1000 * PAGE as usize]);
    assert_eq!(charged(&stack, ino), 1000);
    stack.reopen();
    assert_eq!(charged(&stack, ino), 1000);
    let set = SetAttributes { size: Some(2 * PAGE + 1), ..SetAttributes::default() };
    stack.wait(|done| stack.fs().set_attributes(ino, set, done)).expect("a size");
    assert_eq!(charged(&stack, ino), 3);
    assert_eq!(stack.findings(), []);
}

fn resize(stack: &SimulatedStack, ino: Ino, size: u64) {
    let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
    stack.wait(|done| stack.fs().set_attributes(ino, set, done)).expect("a size");
}

/// A file of 1000 pages that has 100 at its beginning and 100 in its middle.
fn sparse(stack: &SimulatedStack) -> Ino {
    let ino = file(stack, b"sparse");
    resize(stack, ino, 1000 * PAGE);
    write(stack, ino, 0, &[1; 100 * PAGE as usize]);
    write(stack, ino, 500 * PAGE, &[1; 100 * PAGE as usize]);
    ino
}

fn punch(stack: &SimulatedStack, ino: Ino, first: u64, pages: u64) {
    let range = (first * PAGE, pages * PAGE);
    allocate(stack, ino, FallocateMode::PunchHole, range, SizePolicy::Keep).expect("a hole");
}

#[test]
fn every_punch_counts_what_it_removes_be_it_in_memory_or_stored() {
    for (seed, is_stored) in [(11, false), (12, true)] {
        let mut stack = SimulatedStack::new(seed, FetchMode::Lazy, 16384);
        let ino = sparse(&stack);
        if is_stored {
            stack.drain();
        }
        let mut left = 200;
        for (first, had) in [(0, 50), (500, 50), (50, 50), (0, 0), (450, 0), (550, 50)] {
            assert_eq!(charged(&stack, ino), left);
            punch(&stack, ino, first, 50);
            left -= had;
        }
        assert_eq!(charged(&stack, ino), 0);
        write(&stack, ino, 30 * PAGE + 1, &[1; PAGE as usize]);
        stack.reopen();
        assert_eq!(charged(&stack, ino), 2);
        assert_eq!(stack.findings(), []);
    }
}

#[test]
fn a_shorter_file_is_charged_for_what_it_has_left() {
    let stack = SimulatedStack::new(13, FetchMode::Lazy, 16384);
    let ino = sparse(&stack);
    stack.drain();
    write(&stack, ino, 600 * PAGE, &[1; 10 * PAGE as usize]);
    for (pages, left) in [(605, 205), (550, 150), (300, 100), (60, 60), (0, 0)] {
        resize(&stack, ino, pages * PAGE);
        assert_eq!(charged(&stack, ino), left, "{pages} pages long");
    }
}

#[test]
fn pages_that_are_written_over_and_over_are_charged_for_once() {
    let mut stack = SimulatedStack::new(14, FetchMode::Lazy, 16384);
    let ino = sparse(&stack);
    stack.drain();
    for round in 0..8 {
        write(&stack, ino, 0, &[round; 20 * PAGE as usize]);
        assert_eq!(charged(&stack, ino), 220, "the first time nobody knows that they are there");
    }
    for round in 0..20 {
        stack.drain();
        write(&stack, ino, 0, &[round; 100 * PAGE as usize]);
        (0..3).for_each(|_| stack.step());
        let charged = charged(&stack, ino);
        // Each page may count twice until the file's pages are counted again.
        assert!((200..=300).contains(&charged), "round {round}: {charged}");
    }
    stack.reopen();
    assert!((200..=300).contains(&charged(&stack, ino)), "{}", charged(&stack, ino));
}

#[test]
fn a_copy_is_charged_for_the_pages_that_it_shares() {
    let stack = SimulatedStack::new(15, FetchMode::Lazy, 16384);
    let ino = sparse(&stack);
    let copy = file(&stack, b"copy");
    resize(&stack, copy, 1000 * PAGE);
    for (at, pages) in [(0, 100), (500, 100)] {
        let range = (at * PAGE, pages * PAGE);
        let copied = stack.wait(|done| stack.fs().copy_range(ino, range, copy, at * PAGE, done));
        assert_eq!(copied.expect("whole pages"), pages * PAGE);
    }
    assert_eq!(charged(&stack, copy), 200);
    stack.drain();
    punch(&stack, copy, 0, 550);
    assert_eq!([charged(&stack, copy), charged(&stack, ino)], [50, 200]);
}

#[test]
fn a_copy_has_zeros_behind_the_end_that_its_source_had() {
    let stack = SimulatedStack::new(17, FetchMode::Lazy, 16384);
    let ino = file(&stack, b"file");
    let copy = file(&stack, b"copy");
    write(&stack, ino, 0, &[1; 5000]);
    let source = stack.fs().copy_source(ino).expect("a file");
    write(&stack, ino, 5000, &[2; 3000]);
    let from = BatchPlace { source: BatchSource::Elsewhere(source), offset: 0 };
    let clone = vec![BatchChange::Clone { from, len: 5000, to: copy, at: 0 }];
    stack.wait(|done| stack.fs().apply_batch(clone, done)).expect("an empty file");
    resize(&stack, copy, 3 * PAGE);
    for is_stored in [false, true] {
        let found = stack.wait(|done| stack.fs().read(copy, 0, 3 * PAGE as usize, done)).expect("a read");
        assert_eq!(found[..5000], [1; 5000], "stored: {is_stored}");
        assert!(
            found[5000..].iter().all(|&byte| byte == 0),
            "bytes of the source behind the end, stored: {is_stored}"
        );
        stack.drain();
    }
}

#[test]
fn a_copy_of_nothing_over_a_file_s_end_takes_off_what_was_there() {
    let stack = SimulatedStack::new(16, FetchMode::Lazy, 16384);
    let empty = file(&stack, b"empty");
    let ino = file(&stack, b"file");
    resize(&stack, empty, 100 * PAGE);
    write(&stack, ino, 0, &[1; 10 * PAGE as usize]);
    for (from, to) in [(8, 18), (20, 30)] {
        let range = (0, (to - from) * PAGE);
        let copied = stack.wait(|done| stack.fs().copy_range(empty, range, ino, from * PAGE, done));
        assert_eq!(copied.expect("whole pages"), range.1);
        assert_eq!(charged(&stack, ino), 8);
    }
}

#[test]
fn a_seek_at_the_end_or_behind_it_finds_nothing() {
    let stack = SimulatedStack::new(2, FetchMode::Lazy, 16384);
    let ino = file(&stack, b"file");
    for what in [SeekWhence::Data, SeekWhence::Hole] {
        assert_eq!(seek(&stack, ino, 0, what), None, "of an empty file");
    }
    write(&stack, ino, 0, &[1; 5000]);
    assert_eq!(seek(&stack, ino, 4999, SeekWhence::Data), Some(4999));
    assert_eq!(seek(&stack, ino, 4999, SeekWhence::Hole), Some(5000));
    for what in [SeekWhence::Data, SeekWhence::Hole] {
        assert_eq!(seek(&stack, ino, 5000, what), None);
        assert_eq!(seek(&stack, ino, u64::MAX, what), None);
    }
    let root = stack.wait(|done| stack.fs().seek(Ino::ROOT, 0, SeekWhence::Data, done));
    assert!(matches!(root, Err(FsError::IsDirectory)), "{root:?}");
}

#[test]
fn allocating_grows_the_file_or_not_and_keeps_what_is_there() {
    let mut stack = SimulatedStack::new(3, FetchMode::Lazy, 16384);
    let ino = file(&stack, b"file");
    write(&stack, ino, 0, &[7; 5000]);
    allocate(&stack, ino, FallocateMode::Allocate, (1000, 99_000), SizePolicy::Keep).expect("space");
    assert_eq!(size(&stack, ino), 5000);
    allocate(&stack, ino, FallocateMode::Allocate, (1000, 99_000), SizePolicy::Grow).expect("space");
    assert_eq!(size(&stack, ino), 100_000);
    allocate(&stack, ino, FallocateMode::ZeroRange, (100, 200_000), SizePolicy::Keep).expect("zeros");
    assert_eq!(size(&stack, ino), 100_000);
    allocate(&stack, ino, FallocateMode::ZeroRange, (150_000, 50_000), SizePolicy::Grow).expect("zeros");
    stack.reopen();
    let mut expected = vec![0; 200_000];
    expected[..100].fill(7);
    assert_eq!(stack.read(ino).expect("a read"), expected);
}

#[test]
fn what_there_is_no_space_for_is_refused_as_a_whole() {
    // 4096 blocks of 4 KiB.
    let stack = SimulatedStack::new(4, FetchMode::Lazy, 4096);
    let ino = file(&stack, b"file");
    write(&stack, ino, 0, &[7; 100_000]);
    let before = stack.attributes(ino).expect("it is there");
    for len in [16 << 20, 1 << 30, FILE_BYTES_MAX] {
        let refused = allocate(&stack, ino, FallocateMode::Allocate, (0, len), SizePolicy::Grow);
        assert!(matches!(refused, Err(FsError::NoSpace)), "{len}: {refused:?}");
    }
    assert_eq!(stack.attributes(ino).expect("it is there"), before, "a refusal left a trace");
    allocate(&stack, ino, FallocateMode::Allocate, (0, 2 << 20), SizePolicy::Grow)
        .expect("two of sixteen MiB");
    // Holes cost nothing.
    allocate(&stack, ino, FallocateMode::ZeroRange, (0, FILE_BYTES_MAX), SizePolicy::Grow).expect("a hole");
    assert_eq!(size(&stack, ino), FILE_BYTES_MAX);
}

#[test]
fn what_is_there_already_needs_no_space() {
    let stack = SimulatedStack::new(5, FetchMode::Lazy, 4096);
    let ino = file(&stack, b"file");
    let space = || stack.store().space().now().available() * PAGE;
    // Half of the space, so that the whole does not fit a second time.
    let half = space() / 2 / PAGE * PAGE;
    let mut written = 0;
    while written < half {
        write(&stack, ino, written, &[7; 16 * PAGE as usize]);
        written += 16 * PAGE;
    }
    stack.drain();
    let left = space();
    assert!(left < written, "{left} left, {written} written");
    let much = written + left / 2;
    allocate(&stack, ino, FallocateMode::Allocate, (0, much), SizePolicy::Keep)
        .expect("only the rest is needed");
    let refused =
        allocate(&stack, ino, FallocateMode::Allocate, (0, written + left + 64 * PAGE), SizePolicy::Keep);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
}

#[test]
fn ranges_that_make_no_sense_are_refused() {
    let stack = SimulatedStack::new(6, FetchMode::Lazy, 16384);
    let ino = file(&stack, b"file");
    for what in [FallocateMode::Allocate, FallocateMode::ZeroRange, FallocateMode::PunchHole] {
        for (range, size) in [((0, 0), SizePolicy::Grow), ((9, 0), SizePolicy::Keep)] {
            let refused = allocate(&stack, ino, what, range, size);
            assert!(matches!(refused, Err(FsError::Invalid)), "{refused:?}");
        }
        for range in [(FILE_BYTES_MAX, 1), (1, FILE_BYTES_MAX), (u64::MAX, 2), (0, u64::MAX)] {
            let refused = allocate(&stack, ino, what, range, SizePolicy::Keep);
            assert!(matches!(refused, Err(FsError::TooLarge)), "{refused:?}");
        }
        let refused = allocate(&stack, Ino::ROOT, what, (0, 1), SizePolicy::Grow);
        assert!(matches!(refused, Err(FsError::IsDirectory)), "{refused:?}");
    }
    allocate(&stack, ino, FallocateMode::ZeroRange, (FILE_BYTES_MAX - 1, 1), SizePolicy::Grow)
        .expect("the last byte");
}

#[test]
fn an_allocation_that_is_not_taken_leaves_no_trace() {
    let mut fs = InMemoryFs::new();
    let ino = fs.file(Ino::ROOT, "file");
    fs.apply(&ModelOperation::Write { ino, offset: 0, bytes: vec![1; 9000] }).expect("a write");
    let before = snapshot(&fs.state);
    for what in [FallocateMode::Allocate, FallocateMode::ZeroRange, FallocateMode::PunchHole] {
        fs.now += 1;
        let mut tx = FsTransaction::begin(&mut fs.state, fs.now, &[]);
        tx.allocate(ino, what, (100, 50_000), SizePolicy::Grow).expect("it could be");
        let changes = tx.changes();
        assert!(crate::arena::is_within_cost(&changes, cost::allocate(false)), "{changes:?}");
        drop(changes);
        drop(tx);
        assert!(snapshot(&fs.state) == before, "{what:?}");
    }
}

#[test]
fn small_files_that_are_not_stored_yet_count_as_what_they_will_take() {
    let stack = SimulatedStack::roomy(8, 32768);
    let before = stack.fs().usage().available;
    for number in 0..2000 {
        let ino = file(&stack, format!("file{number}").as_bytes());
        write(&stack, ino, 0, &[1; 100]);
    }
    let unstored = before - stack.fs().usage().available;
    assert!(stack.store().space().now().reserved > 8 * 2000, "most of them are not stored");
    stack.drain();
    let stored = before - stack.fs().usage().available;
    assert!((2000..4000).contains(&stored), "{stored} blocks");
    assert!(unstored >= stored / 2 && unstored <= 2 * stored, "{unstored} blocks, and {stored} once stored");
}

#[test]
fn removed_files_and_punched_ranges_are_free_space_in_seconds() {
    let mut stack = SimulatedStack::new(9, FetchMode::Lazy, 16384);
    let used = |stack: &SimulatedStack| stack.fs().usage().blocks - stack.fs().usage().available;
    let empty = used(&stack);
    let removed = file(&stack, b"removed");
    let punched = file(&stack, b"punched");
    for ino in [removed, punched] {
        for piece in 0..16 {
            write(&stack, ino, piece * 64 * PAGE, &[7; 64 * PAGE as usize]);
        }
    }
    stack.reopen();
    assert!(used(&stack) > empty + 2000);
    stack.wait(|done| stack.fs().unlink(Ino::ROOT, b"removed", done)).expect("it goes");
    allocate(&stack, punched, FallocateMode::PunchHole, (0, 1000 * PAGE), SizePolicy::Keep).expect("a hole");
    stack.work_for(Duration::from_secs(3));
    assert!(used(&stack) < empty + 200, "{} blocks used, {empty} when it was empty", used(&stack));
}

/// Makes order on a full file system, as a person would.
fn tidy_up(stack: &SimulatedStack, ino: Ino, round: u16) {
    let mode = SetAttributes { mode: Some(0o640 + round % 2), ..SetAttributes::default() };
    stack.wait(|done| stack.fs().set_attributes(ino, mode, done)).expect("chmod");
    let name = |what: &str| format!("{what}{round}").into_bytes();
    stack
        .wait(|done| stack.fs().make(OWNER, Ino::ROOT, &name("dir"), FileKind::Directory, 0o700, done))
        .expect("mkdir");
    file(stack, &name("touched"));
    stack.wait(|done| stack.fs().link(ino, Ino::ROOT, &name("link"), done)).expect("ln");
    let to = (Ino::ROOT, &name("moved")[..]);
    stack.wait(|done| stack.fs().rename((Ino::ROOT, &name("link")), to, IfExists::Refuse, done)).expect("mv");
}

#[test]
fn names_and_attributes_change_on_a_full_store() {
    let mut stack = SimulatedStack::new(10, FetchMode::Lazy, 65536);
    let ino = file(&stack, b"file");
    let mut size = 0;
    let mut fill = |stack: &SimulatedStack| {
        for piece in [64 * PAGE, PAGE] {
            loop {
                let bytes = vec![7; piece as usize];
                match stack.wait(|done| stack.fs().write(ino, size, bytes, done)) {
                    Ok(()) => size += piece,
                    Err(FsError::NoSpace) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    };
    fill(&stack);
    for round in 0..20 {
        tidy_up(&stack, ino, round);
    }
    stack.reopen();
    fill(&stack);
    for round in 20..40 {
        tidy_up(&stack, ino, round);
    }
    assert_eq!(stack.findings(), []);
}

/// Each dirty page of names keeps its reservation until it is stored. Only an operation that finds too little
/// space asks for that.
#[test]
fn a_name_moves_on_a_full_store_after_the_modes_of_all_files_changed() {
    let stack = SimulatedStack::roomy(11, 65536);
    let files: Vec<Ino> = (0..20_000).map(|i| file(&stack, format!("file{i}").as_bytes())).collect();
    stack.drain();
    let mut size = 0;
    loop {
        let bytes = vec![7; 64 * PAGE as usize];
        match stack.wait(|done| stack.fs().write(files[0], size, bytes, done)) {
            Ok(()) => size += 64 * PAGE,
            Err(FsError::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    for &ino in &files {
        let mode = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
        stack.wait(|done| stack.fs().set_attributes(ino, mode, done)).expect("chmod");
    }
    let to = (Ino::ROOT, &b"moved"[..]);
    stack.wait(|done| stack.fs().rename((Ino::ROOT, b"file7"), to, IfExists::Refuse, done)).expect("mv");
}
