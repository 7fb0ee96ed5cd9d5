//! Space for ranges: what is refused, what is allocated, what is a hole.

use super::bench::{Bench, OWNER, snapshot};
use super::machine::Machine;
use super::model::{Operation, Subject};
use crate::allocate::{Allocate, Seek, Size};
use crate::arena::Transaction;
use crate::cost;
use crate::error::FsError;
use crate::format::FILE_BYTES_MAX;
use crate::types::{IfExists, Ino, Kind, SetAttributes};
use cache::FetchMode;
use std::time::Duration;

const PAGE: u64 = 4096;

fn file(machine: &Machine, name: &[u8]) -> Ino {
    let made = machine.wait(|done| machine.fs().make(OWNER, Ino::ROOT, name, Kind::File, 0o600, done));
    made.expect("a file").ino
}

fn write(machine: &Machine, ino: Ino, offset: u64, bytes: &[u8]) {
    machine.wait(|done| machine.fs().write(ino, offset, bytes.to_vec(), done)).expect("a write");
}

fn allocate(
    machine: &Machine,
    ino: Ino,
    what: Allocate,
    range: (u64, u64),
    size: Size,
) -> Result<(), FsError> {
    machine.wait(|done| machine.fs().allocate(ino, what, range, size, done))
}

fn seek(machine: &Machine, ino: Ino, offset: u64, what: Seek) -> Option<u64> {
    match machine.wait(|done| machine.fs().seek(ino, offset, what, done)) {
        Ok(found) => Some(found),
        Err(FsError::PastEnd) => None,
        Err(error) => panic!("{error}"),
    }
}

fn size(machine: &Machine, ino: Ino) -> u64 {
    machine.attributes(ino).expect("it is there").size
}

/// Every change of data and hole, as found by seeking.
fn layout(machine: &Machine, ino: Ino) -> Vec<(u64, u64)> {
    let (mut at, mut found) = (0, Vec::new());
    while let Some(data) = seek(machine, ino, at, Seek::Data) {
        at = seek(machine, ino, data, Seek::Hole).expect("a hole ends every file");
        found.push((data, at));
    }
    found
}

#[test]
fn holes_and_data_are_found_in_memory_and_in_the_store() {
    let mut machine = Machine::new(1, FetchMode::Lazy, 16384);
    let ino = file(&machine, b"sparse");
    assert_eq!(layout(&machine, ino), []);
    machine
        .wait(|done| {
            let set = SetAttributes { size: Some(1 << 40), ..SetAttributes::default() };
            machine.fs().set_attributes(ino, set, done)
        })
        .expect("a size");
    assert_eq!(seek(&machine, ino, 5, Seek::Hole), Some(5));
    assert_eq!(layout(&machine, ino), []);
    write(&machine, ino, 0, &[1; 100]);
    write(&machine, ino, 10 * PAGE, &[2; 3 * PAGE as usize]);
    write(&machine, ino, (1 << 40) - 10, &[3; 20]);
    let last = (1 << 40) - PAGE;
    let expected = [(0, PAGE), (10 * PAGE, 13 * PAGE), (last, (1 << 40) + 10)];
    assert_eq!(layout(&machine, ino), expected);
    machine.reopen();
    assert_eq!(layout(&machine, ino), expected);
    allocate(&machine, ino, Allocate::Hole, (11 * PAGE, PAGE), Size::Stays).expect("a hole");
    let expected = [(0, PAGE), (10 * PAGE, 11 * PAGE), (12 * PAGE, 13 * PAGE), (last, (1 << 40) + 10)];
    assert_eq!(layout(&machine, ino), expected);
    assert_eq!(seek(&machine, ino, 11 * PAGE + 7, Seek::Hole), Some(11 * PAGE + 7));
    assert_eq!(seek(&machine, ino, 11 * PAGE + 7, Seek::Data), Some(12 * PAGE));
    machine.reopen();
    assert_eq!(layout(&machine, ino), expected);
    // To the end and beyond: the last page goes as a whole.
    allocate(&machine, ino, Allocate::Hole, (10 * PAGE, 1 << 41), Size::Stays).expect("a hole");
    assert_eq!(layout(&machine, ino), [(0, PAGE)]);
    assert_eq!(size(&machine, ino), (1 << 40) + 10);
}

/// What it is charged for, in pages.
fn charged(machine: &Machine, ino: Ino) -> u64 {
    machine.attributes(ino).expect("it is there").stored_bytes / PAGE
}

#[test]
fn a_file_is_charged_for_what_was_written_and_no_hole() {
    let mut machine = Machine::new(7, FetchMode::Lazy, 16384);
    let ino = file(&machine, b"sparse");
    allocate(&machine, ino, Allocate::Space, (0, 1000 * PAGE), Size::Grows).expect("space");
    assert_eq!(charged(&machine, ino), 0);
    write(&machine, ino, 10 * PAGE + 5, &[1; 10 * PAGE as usize]);
    assert_eq!(charged(&machine, ino), 11);
    allocate(&machine, ino, Allocate::Hole, (0, 995 * PAGE), Size::Stays).expect("a hole");
    assert_eq!(charged(&machine, ino), 0, "nothing is left");
    write(&machine, ino, 0, &[1; 1000 * PAGE as usize]);
    assert_eq!(charged(&machine, ino), 1000);
    machine.reopen();
    assert_eq!(charged(&machine, ino), 1000);
    let set = SetAttributes { size: Some(2 * PAGE + 1), ..SetAttributes::default() };
    machine.wait(|done| machine.fs().set_attributes(ino, set, done)).expect("a size");
    assert_eq!(charged(&machine, ino), 3);
    assert_eq!(machine.findings(), []);
}

fn resize(machine: &Machine, ino: Ino, size: u64) {
    let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
    machine.wait(|done| machine.fs().set_attributes(ino, set, done)).expect("a size");
}

/// A file of 1000 pages that has 100 at its beginning and 100 in its middle.
fn sparse(machine: &Machine) -> Ino {
    let ino = file(machine, b"sparse");
    resize(machine, ino, 1000 * PAGE);
    write(machine, ino, 0, &[1; 100 * PAGE as usize]);
    write(machine, ino, 500 * PAGE, &[1; 100 * PAGE as usize]);
    ino
}

fn punch(machine: &Machine, ino: Ino, first: u64, pages: u64) {
    let range = (first * PAGE, pages * PAGE);
    allocate(machine, ino, Allocate::Hole, range, Size::Stays).expect("a hole");
}

#[test]
fn every_punch_counts_what_it_removes_be_it_in_memory_or_stored() {
    for (seed, is_stored) in [(11, false), (12, true)] {
        let mut machine = Machine::new(seed, FetchMode::Lazy, 16384);
        let ino = sparse(&machine);
        if is_stored {
            machine.drain();
        }
        let mut left = 200;
        for (first, had) in [(0, 50), (500, 50), (50, 50), (0, 0), (450, 0), (550, 50)] {
            assert_eq!(charged(&machine, ino), left);
            punch(&machine, ino, first, 50);
            left -= had;
        }
        assert_eq!(charged(&machine, ino), 0);
        write(&machine, ino, 30 * PAGE + 1, &[1; PAGE as usize]);
        machine.reopen();
        assert_eq!(charged(&machine, ino), 2);
        assert_eq!(machine.findings(), []);
    }
}

#[test]
fn a_shorter_file_is_charged_for_what_it_has_left() {
    let machine = Machine::new(13, FetchMode::Lazy, 16384);
    let ino = sparse(&machine);
    machine.drain();
    write(&machine, ino, 600 * PAGE, &[1; 10 * PAGE as usize]);
    for (pages, left) in [(605, 205), (550, 150), (300, 100), (60, 60), (0, 0)] {
        resize(&machine, ino, pages * PAGE);
        assert_eq!(charged(&machine, ino), left, "{pages} pages long");
    }
}

#[test]
fn pages_that_are_written_over_and_over_are_charged_for_once() {
    let mut machine = Machine::new(14, FetchMode::Lazy, 16384);
    let ino = sparse(&machine);
    machine.drain();
    for round in 0..8 {
        write(&machine, ino, 0, &[round; 20 * PAGE as usize]);
        assert_eq!(charged(&machine, ino), 220, "the first time nobody knows that they are there");
    }
    for round in 0..20 {
        machine.drain();
        write(&machine, ino, 0, &[round; 100 * PAGE as usize]);
        (0..3).for_each(|_| machine.step());
        let charged = charged(&machine, ino);
        // Each may count twice until they are counted anew.
        assert!((200..=300).contains(&charged), "round {round}: {charged}");
    }
    machine.reopen();
    assert!((200..=300).contains(&charged(&machine, ino)), "{}", charged(&machine, ino));
}

#[test]
fn a_copy_is_charged_for_the_pages_that_it_shares() {
    let machine = Machine::new(15, FetchMode::Lazy, 16384);
    let ino = sparse(&machine);
    let copy = file(&machine, b"copy");
    resize(&machine, copy, 1000 * PAGE);
    for (at, pages) in [(0, 100), (500, 100)] {
        let range = (at * PAGE, pages * PAGE);
        let copied = machine.wait(|done| machine.fs().copy_range(ino, range, copy, at * PAGE, done));
        assert_eq!(copied.expect("whole pages"), pages * PAGE);
    }
    assert_eq!(charged(&machine, copy), 200);
    machine.drain();
    punch(&machine, copy, 0, 550);
    assert_eq!([charged(&machine, copy), charged(&machine, ino)], [50, 200]);
}

#[test]
fn a_copy_of_nothing_over_a_file_s_end_takes_off_what_was_there() {
    let machine = Machine::new(16, FetchMode::Lazy, 16384);
    let (empty, ino) = (file(&machine, b"empty"), file(&machine, b"file"));
    resize(&machine, empty, 100 * PAGE);
    write(&machine, ino, 0, &[1; 10 * PAGE as usize]);
    for (from, to) in [(8, 18), (20, 30)] {
        let range = (0, (to - from) * PAGE);
        let copied = machine.wait(|done| machine.fs().copy_range(empty, range, ino, from * PAGE, done));
        assert_eq!(copied.expect("whole pages"), range.1);
        assert_eq!(charged(&machine, ino), 8);
    }
}

#[test]
fn a_seek_at_the_end_or_behind_it_finds_nothing() {
    let machine = Machine::new(2, FetchMode::Lazy, 16384);
    let ino = file(&machine, b"file");
    for what in [Seek::Data, Seek::Hole] {
        assert_eq!(seek(&machine, ino, 0, what), None, "of an empty file");
    }
    write(&machine, ino, 0, &[1; 5000]);
    assert_eq!(seek(&machine, ino, 4999, Seek::Data), Some(4999));
    assert_eq!(seek(&machine, ino, 4999, Seek::Hole), Some(5000));
    for what in [Seek::Data, Seek::Hole] {
        assert_eq!(seek(&machine, ino, 5000, what), None);
        assert_eq!(seek(&machine, ino, u64::MAX, what), None);
    }
    let root = machine.wait(|done| machine.fs().seek(Ino::ROOT, 0, Seek::Data, done));
    assert!(matches!(root, Err(FsError::IsDirectory)), "{root:?}");
}

#[test]
fn allocating_grows_the_file_or_not_and_keeps_what_is_there() {
    let mut machine = Machine::new(3, FetchMode::Lazy, 16384);
    let ino = file(&machine, b"file");
    write(&machine, ino, 0, &[7; 5000]);
    allocate(&machine, ino, Allocate::Space, (1000, 99_000), Size::Stays).expect("space");
    assert_eq!(size(&machine, ino), 5000);
    allocate(&machine, ino, Allocate::Space, (1000, 99_000), Size::Grows).expect("space");
    assert_eq!(size(&machine, ino), 100_000);
    allocate(&machine, ino, Allocate::Zeros, (100, 200_000), Size::Stays).expect("zeros");
    assert_eq!(size(&machine, ino), 100_000);
    allocate(&machine, ino, Allocate::Zeros, (150_000, 50_000), Size::Grows).expect("zeros");
    machine.reopen();
    let mut expected = vec![0; 200_000];
    expected[..100].fill(7);
    assert_eq!(machine.read(ino).expect("a read"), expected);
}

#[test]
fn what_there_is_no_space_for_is_refused_as_a_whole() {
    // 4096 blocks of 4 KiB.
    let machine = Machine::new(4, FetchMode::Lazy, 4096);
    let ino = file(&machine, b"file");
    write(&machine, ino, 0, &[7; 100_000]);
    let before = machine.attributes(ino).expect("it is there");
    for len in [16 << 20, 1 << 30, FILE_BYTES_MAX] {
        let refused = allocate(&machine, ino, Allocate::Space, (0, len), Size::Grows);
        assert!(matches!(refused, Err(FsError::NoSpace)), "{len}: {refused:?}");
    }
    assert_eq!(machine.attributes(ino).expect("it is there"), before, "a refusal left a trace");
    allocate(&machine, ino, Allocate::Space, (0, 2 << 20), Size::Grows).expect("two of sixteen MiB");
    // Holes cost nothing.
    allocate(&machine, ino, Allocate::Zeros, (0, FILE_BYTES_MAX), Size::Grows).expect("a hole");
    assert_eq!(size(&machine, ino), FILE_BYTES_MAX);
}

#[test]
fn what_is_there_already_needs_no_space() {
    let machine = Machine::new(5, FetchMode::Lazy, 4096);
    let ino = file(&machine, b"file");
    let space = || machine.store().space().available() * PAGE;
    // Half of what there is, so that the whole does not fit a second time.
    let half = space() / 2 / PAGE * PAGE;
    let mut written = 0;
    while written < half {
        write(&machine, ino, written, &[7; 16 * PAGE as usize]);
        written += 16 * PAGE;
    }
    machine.drain();
    let left = space();
    assert!(left < written, "{left} left, {written} written");
    let much = written + left / 2;
    allocate(&machine, ino, Allocate::Space, (0, much), Size::Stays).expect("only the rest is needed");
    let refused = allocate(&machine, ino, Allocate::Space, (0, written + left + 64 * PAGE), Size::Stays);
    assert!(matches!(refused, Err(FsError::NoSpace)), "{refused:?}");
}

#[test]
fn ranges_that_make_no_sense_are_refused() {
    let machine = Machine::new(6, FetchMode::Lazy, 16384);
    let ino = file(&machine, b"file");
    for what in [Allocate::Space, Allocate::Zeros, Allocate::Hole] {
        for (range, size) in [((0, 0), Size::Grows), ((9, 0), Size::Stays)] {
            let refused = allocate(&machine, ino, what, range, size);
            assert!(matches!(refused, Err(FsError::Invalid)), "{refused:?}");
        }
        for range in [(FILE_BYTES_MAX, 1), (1, FILE_BYTES_MAX), (u64::MAX, 2), (0, u64::MAX)] {
            let refused = allocate(&machine, ino, what, range, Size::Stays);
            assert!(matches!(refused, Err(FsError::TooLarge)), "{refused:?}");
        }
        let refused = allocate(&machine, Ino::ROOT, what, (0, 1), Size::Grows);
        assert!(matches!(refused, Err(FsError::IsDirectory)), "{refused:?}");
    }
    allocate(&machine, ino, Allocate::Zeros, (FILE_BYTES_MAX - 1, 1), Size::Grows).expect("the last byte");
}

#[test]
fn an_allocation_that_is_not_taken_leaves_no_trace() {
    let mut bench = Bench::new();
    let ino = bench.file(Ino::ROOT, "file");
    bench.apply(&Operation::Write { ino, offset: 0, bytes: vec![1; 9000] }).expect("a write");
    let before = snapshot(&bench.state);
    for what in [Allocate::Space, Allocate::Zeros, Allocate::Hole] {
        bench.now += 1;
        let mut tx = Transaction::begin(&mut bench.state, bench.now, &[]);
        tx.allocate(ino, what, (100, 50_000), Size::Grows).expect("it could be");
        let changes = tx.changes();
        assert!(crate::arena::within(&changes, cost::allocate(false)), "{changes:?}");
        drop(changes);
        drop(tx);
        assert!(snapshot(&bench.state) == before, "{what:?}");
    }
}

#[test]
fn small_files_that_are_not_stored_yet_count_as_what_they_will_take() {
    let machine = Machine::roomy(8, 32768);
    let before = machine.fs().usage().available;
    for number in 0..2000 {
        let ino = file(&machine, format!("file{number}").as_bytes());
        write(&machine, ino, 0, &[1; 100]);
    }
    let unstored = before - machine.fs().usage().available;
    assert!(machine.store().space().reserved > 8 * 2000, "most of them are not stored");
    machine.drain();
    let stored = before - machine.fs().usage().available;
    assert!((2000..4000).contains(&stored), "{stored} blocks");
    assert!(unstored >= stored / 2 && unstored <= 2 * stored, "{unstored} blocks, and {stored} once stored");
}

#[test]
fn removed_files_and_punched_ranges_are_free_space_in_seconds() {
    let mut machine = Machine::new(9, FetchMode::Lazy, 16384);
    let used = |machine: &Machine| machine.fs().usage().blocks - machine.fs().usage().available;
    let empty = used(&machine);
    let (removed, punched) = (file(&machine, b"removed"), file(&machine, b"punched"));
    for ino in [removed, punched] {
        for piece in 0..16 {
            write(&machine, ino, piece * 64 * PAGE, &[7; 64 * PAGE as usize]);
        }
    }
    machine.reopen();
    assert!(used(&machine) > empty + 2000);
    machine.wait(|done| machine.fs().unlink(Ino::ROOT, b"removed", done)).expect("it goes");
    allocate(&machine, punched, Allocate::Hole, (0, 1000 * PAGE), Size::Stays).expect("a hole");
    machine.work_for(Duration::from_secs(3));
    assert!(used(&machine) < empty + 200, "{} blocks used, {empty} when it was empty", used(&machine));
}

/// What a person does to make order on a full file system.
fn tidy_up(machine: &Machine, ino: Ino, round: u16) {
    let mode = SetAttributes { mode: Some(0o640 + round % 2), ..SetAttributes::default() };
    machine.wait(|done| machine.fs().set_attributes(ino, mode, done)).expect("chmod");
    let name = |what: &str| format!("{what}{round}").into_bytes();
    machine
        .wait(|done| machine.fs().make(OWNER, Ino::ROOT, &name("dir"), Kind::Directory, 0o700, done))
        .expect("mkdir");
    file(machine, &name("touched"));
    machine.wait(|done| machine.fs().link(ino, Ino::ROOT, &name("link"), done)).expect("ln");
    let to = (Ino::ROOT, &name("moved")[..]);
    machine
        .wait(|done| machine.fs().rename((Ino::ROOT, &name("link")), to, IfExists::Refuse, done))
        .expect("mv");
}

#[test]
fn names_and_attributes_change_on_a_full_store() {
    let mut machine = Machine::new(10, FetchMode::Lazy, 65536);
    let ino = file(&machine, b"file");
    let mut size = 0;
    let mut fill = |machine: &Machine| {
        for piece in [64 * PAGE, PAGE] {
            loop {
                let bytes = vec![7; piece as usize];
                match machine.wait(|done| machine.fs().write(ino, size, bytes, done)) {
                    Ok(()) => size += piece,
                    Err(FsError::NoSpace) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        }
    };
    fill(&machine);
    for round in 0..20 {
        tidy_up(&machine, ino, round);
    }
    machine.reopen();
    fill(&machine);
    for round in 20..40 {
        tidy_up(&machine, ino, round);
    }
    assert_eq!(machine.findings(), []);
}

/// Each dirty page of names keeps its reservation until it is stored, and nothing asks for that but whoever finds too little space.
#[test]
fn a_name_moves_on_a_full_store_after_the_modes_of_all_files_changed() {
    let machine = Machine::roomy(11, 65536);
    let files: Vec<Ino> = (0..20_000).map(|i| file(&machine, format!("file{i}").as_bytes())).collect();
    machine.drain();
    let mut size = 0;
    loop {
        let bytes = vec![7; 64 * PAGE as usize];
        match machine.wait(|done| machine.fs().write(files[0], size, bytes, done)) {
            Ok(()) => size += 64 * PAGE,
            Err(FsError::NoSpace) => break,
            Err(error) => panic!("{error}"),
        }
    }
    for &ino in &files {
        let mode = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
        machine.wait(|done| machine.fs().set_attributes(ino, mode, done)).expect("chmod");
    }
    let to = (Ino::ROOT, &b"moved"[..]);
    machine.wait(|done| machine.fs().rename((Ino::ROOT, b"file7"), to, IfExists::Refuse, done)).expect("mv");
}
