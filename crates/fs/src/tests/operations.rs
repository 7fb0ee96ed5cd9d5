//! Examples: what each operation promises.

use super::bench::{Bench, OWNER, snapshot};
use super::model::{Operation, Subject};
use crate::cost;
use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, LINKS_MAX};
use crate::types::{Caller, IfExists, Ino, Kind, SetAttributes};
use zerocopy::little_endian::U32;

const ROOT: Ino = Ino::ROOT;

fn unlink(bench: &mut Bench, parent: Ino, name: &str) -> Result<(), FsError> {
    bench.apply(&Operation::Unlink { parent, name: name.as_bytes().to_vec() }).map(drop)
}

fn rename(bench: &mut Bench, from: (Ino, &str), to: (Ino, &str)) -> Result<(), FsError> {
    let (from, to) = ((from.0, from.1.as_bytes().to_vec()), (to.0, to.1.as_bytes().to_vec()));
    bench.apply(&Operation::Rename { from, to, if_exists: IfExists::Replace, whiteout: None }).map(drop)
}

fn set(bench: &mut Bench, ino: Ino, set: SetAttributes) -> Result<(), FsError> {
    bench.apply(&Operation::Set { ino, set }).map(drop)
}

fn write(bench: &mut Bench, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), FsError> {
    bench.apply(&Operation::Write { ino, offset, bytes: bytes.to_vec() }).map(drop)
}

#[test]
fn a_new_file_belongs_to_its_caller_and_a_setgid_directory_passes_on_its_group() {
    let mut bench = Bench::new();
    let make = |parent, name: &str, kind, mode| {
        let caller = Caller { uid: 7, gid: 8, umask: 0 };
        Operation::Make { caller, parent, name: name.as_bytes().to_vec(), kind, mode, device: 0 }
    };
    let made = bench.apply(&make(ROOT, "d", Kind::Directory, 0o2775)).expect("made").expect("attributes");
    assert_eq!((made.uid, made.gid, made.mode), (7, 8, 0o2775));
    set(&mut bench, made.ino, SetAttributes { gid: Some(50), ..Default::default() }).expect("a group");
    let below = bench.apply(&make(made.ino, "e", Kind::Directory, 0o755)).expect("made").expect("attributes");
    assert_eq!((below.gid, below.mode), (50, 0o2755));
    let file = bench.apply(&make(made.ino, "f", Kind::File, 0o644)).expect("made").expect("attributes");
    assert_eq!((file.uid, file.gid, file.mode, file.links), (7, 50, 0o644, 1));
    bench.verify();
}

#[test]
fn names_have_limits() {
    let mut bench = Bench::new();
    assert!(matches!(bench.make(ROOT, "", Kind::File), Err(FsError::NotFound)));
    assert!(matches!(bench.make(ROOT, ".", Kind::File), Err(FsError::Invalid)));
    assert!(matches!(bench.make(ROOT, "a/b", Kind::File), Err(FsError::Invalid)));
    bench.file(ROOT, &"n".repeat(255));
    assert!(matches!(bench.make(ROOT, &"n".repeat(256), Kind::File), Err(FsError::NameTooLong)));
    let link = |len| {
        let target = vec![b't'; len];
        Operation::Symlink { caller: OWNER, parent: ROOT, name: format!("l{len}").into_bytes(), target }
    };
    let made = bench.apply(&link(4095)).expect("the longest link").expect("attributes");
    assert_eq!((made.size, bench.read_link(made.ino).expect("a target").len()), (4095, 4095));
    assert!(matches!(bench.apply(&link(4096)), Err(FsError::NameTooLong)));
    assert!(matches!(bench.apply(&link(0)), Err(FsError::NotFound)));
    bench.verify();
}

#[test]
fn an_unlinked_file_lives_until_its_last_opener_is_gone() {
    let mut bench = Bench::new();
    let ino = bench.file(ROOT, "open");
    write(&mut bench, ino, 0, b"still here").expect("a write");
    bench.apply(&Operation::Hold { ino }).expect("held");
    unlink(&mut bench, ROOT, "open").expect("unlinked");
    assert!(matches!(bench.lookup(ROOT, b"open"), Err(FsError::NotFound)));
    assert_eq!(bench.read(ino).expect("a read"), b"still here");
    assert_eq!(bench.attributes(ino).expect("attributes").links, 0);
    bench.verify();
    bench.apply(&Operation::Unhold { ino }).expect("let go");
    assert!(matches!(bench.attributes(ino), Err(FsError::Stale)));
    assert_eq!(bench.objects.files(), 0, "its bytes went too");
    let next = bench.make(ROOT, "next", Kind::File).expect("made");
    assert_eq!((next.ino, next.generation), (ino, 2), "the slot comes back under a new generation");
    bench.verify();
}

#[test]
fn orphans_go_at_the_next_opening() {
    let mut bench = Bench::new();
    for at in 0..20 {
        let ino = bench.file(ROOT, &format!("f{at}"));
        write(&mut bench, ino, 0, b"bytes").expect("a write");
        bench.apply(&Operation::Hold { ino }).expect("held");
        unlink(&mut bench, ROOT, &format!("f{at}")).expect("unlinked");
    }
    assert_eq!((bench.state.header().orphans.get(), bench.objects.files()), (20, 20));
    bench.reopen();
    assert_eq!((bench.state.header().orphans.get(), bench.objects.files()), (0, 0));
    assert_eq!(bench.state.header().inodes.get(), 1);
    bench.verify();
}

#[test]
fn a_whiteout_takes_the_old_names_place_and_counts_as_a_new_inode() {
    let mut bench = Bench::new();
    let one = bench.directory(ROOT, "one");
    let (file, gone) = (bench.file(one, "f"), bench.file(ROOT, "gone"));
    let caller = Caller { uid: 7, gid: 8, umask: 0 };
    let rename = |from: (Ino, &str), to: (Ino, &str), if_exists| {
        let (from, to) = ((from.0, from.1.as_bytes().to_vec()), (to.0, to.1.as_bytes().to_vec()));
        Operation::Rename { from, to, if_exists, whiteout: Some(caller) }
    };
    let left = bench.apply(&rename((one, "f"), (ROOT, "gone"), IfExists::Replace)).expect("a move");
    let left = left.expect("a whiteout");
    assert_eq!((left.kind, left.device, left.mode, left.links), (Kind::CharDevice, 0, 0, 1));
    assert_eq!((left.uid, left.gid), (7, 8));
    assert_eq!(
        (bench.lookup(one, b"f").ok(), bench.lookup(ROOT, b"gone").ok()),
        (Some(left.ino), Some(file))
    );
    assert!(matches!(bench.attributes(gone), Err(FsError::Stale)));
    let refused = bench.apply(&rename((ROOT, "gone"), (one, "f"), IfExists::Refuse));
    assert!(matches!(refused, Err(FsError::Exists)));
    bench.apply(&Operation::Link { ino: file, parent: ROOT, name: b"same".to_vec() }).expect("a name");
    let nothing = bench.apply(&rename((ROOT, "same"), (ROOT, "gone"), IfExists::Replace)).expect("one file");
    assert!(nothing.is_none() && bench.lookup(ROOT, b"same").ok() == Some(file));
    bench.verify();
}

#[test]
fn a_rename_replaces_what_it_may_and_nothing_else() {
    let mut bench = Bench::new();
    let (full, empty) = (bench.directory(ROOT, "full"), bench.directory(ROOT, "empty"));
    let (file, other) = (bench.file(full, "file"), bench.file(ROOT, "other"));
    assert!(matches!(rename(&mut bench, (ROOT, "empty"), (ROOT, "full")), Err(FsError::NotEmpty)));
    assert!(matches!(rename(&mut bench, (ROOT, "empty"), (ROOT, "other")), Err(FsError::NotDirectory)));
    assert!(matches!(rename(&mut bench, (ROOT, "other"), (ROOT, "empty")), Err(FsError::IsDirectory)));
    assert!(matches!(rename(&mut bench, (ROOT, "full"), (full, "within")), Err(FsError::Invalid)));
    assert!(matches!(rename(&mut bench, (ROOT, "none"), (ROOT, "new")), Err(FsError::NotFound)));
    rename(&mut bench, (full, "file"), (ROOT, "other")).expect("a file replaces a file");
    assert_eq!(bench.lookup(ROOT, b"other").ok(), Some(file));
    assert!(matches!(bench.attributes(other), Err(FsError::Stale)));
    rename(&mut bench, (ROOT, "full"), (ROOT, "empty")).expect("a directory replaces an empty one");
    assert_eq!(bench.lookup(ROOT, b"empty").ok(), Some(full));
    assert!(matches!(bench.attributes(empty), Err(FsError::Stale)));
    assert_eq!(bench.attributes(ROOT).expect("attributes").links, 3);
    bench.verify();
}

#[test]
fn a_moved_directory_knows_its_new_parent() {
    let mut bench = Bench::new();
    let (one, other) = (bench.directory(ROOT, "one"), bench.directory(ROOT, "other"));
    let moved = bench.directory(one, "moved");
    rename(&mut bench, (one, "moved"), (other, "moved")).expect("a move");
    let (_, hot) = bench.state.find_directory(moved).expect("a directory");
    assert_eq!(bench.state.numbers.ino(crate::format::Slot(hot.next.get())), other);
    assert_eq!(bench.attributes(one).expect("attributes").links, 2);
    assert_eq!(bench.attributes(other).expect("attributes").links, 3);
    assert!(matches!(rename(&mut bench, (ROOT, "other"), (moved, "x")), Err(FsError::Invalid)));
    bench.verify();
}

#[test]
fn renaming_a_file_over_another_of_its_names_does_nothing() {
    let mut bench = Bench::new();
    let ino = bench.file(ROOT, "one");
    bench.apply(&Operation::Link { ino, parent: ROOT, name: b"two".to_vec() }).expect("a link");
    rename(&mut bench, (ROOT, "one"), (ROOT, "two")).expect("nothing");
    assert!(bench.lookup(ROOT, b"one").is_ok() && bench.lookup(ROOT, b"two").is_ok());
    assert_eq!(bench.attributes(ino).expect("attributes").links, 2);
    bench.verify();
}

#[test]
fn a_removed_directory_takes_no_new_names() {
    let mut bench = Bench::new();
    let ino = bench.directory(ROOT, "d");
    bench.apply(&Operation::Hold { ino }).expect("held");
    bench.apply(&Operation::RemoveDirectory { parent: ROOT, name: b"d".to_vec() }).expect("removed");
    assert!(matches!(bench.make(ino, "x", Kind::File), Err(FsError::NotFound)));
    assert!(matches!(bench.list(ino), Err(FsError::NotFound)));
    bench.verify();
}

#[test]
fn what_a_shorter_file_lost_is_zeros_when_it_grows_again() {
    let mut bench = Bench::new();
    let ino = bench.file(ROOT, "f");
    write(&mut bench, ino, 0, &[7; 10_000]).expect("a write");
    set(&mut bench, ino, SetAttributes { size: Some(5000), ..Default::default() }).expect("shorter");
    set(&mut bench, ino, SetAttributes { size: Some(9000), ..Default::default() }).expect("longer");
    let bytes = bench.read(ino).expect("a read");
    assert!(bytes[..5000].iter().all(|&byte| byte == 7) && bytes[5000..].iter().all(|&byte| byte == 0));
    assert_eq!(bytes.len(), 9000);
    let larger = SetAttributes { size: Some(FILE_BYTES_MAX + 1), ..Default::default() };
    assert!(matches!(set(&mut bench, ino, larger), Err(FsError::TooLarge)));
    assert!(matches!(write(&mut bench, ino, FILE_BYTES_MAX - 1, b"ab"), Err(FsError::TooLarge)));
    write(&mut bench, ino, FILE_BYTES_MAX - 2, b"ab").expect("the last two bytes");
}

#[test]
fn a_new_owner_does_not_inherit_setuid() {
    let mut bench = Bench::new();
    let ino = bench.file(ROOT, "f");
    for (before, after) in [(0o6755, 0o0755), (0o2644, 0o2644), (0o1777, 0o1777)] {
        set(&mut bench, ino, SetAttributes { mode: Some(before), ..Default::default() }).expect("a mode");
        set(&mut bench, ino, SetAttributes { uid: Some(5), ..Default::default() }).expect("an owner");
        assert_eq!(bench.attributes(ino).expect("attributes").mode, after, "{before:o}");
    }
}

#[test]
fn links_have_a_limit() {
    let mut bench = Bench::new();
    let ino = bench.file(ROOT, "f");
    let (slot, mut hot, _) = bench.state.find(ino).expect("a file");
    hot.links = U32::new(LINKS_MAX);
    let plant = bench.run(cost::free(1), |tx| {
        tx.set_hot(slot, &hot);
        Ok(())
    });
    plant.expect("planted");
    let link = Operation::Link { ino, parent: ROOT, name: b"g".to_vec() };
    assert!(matches!(bench.apply(&link), Err(FsError::TooManyLinks)));
    assert_eq!(bench.findings().len(), 1, "and the check sees what was planted");
}

#[test]
fn a_transaction_that_is_not_kept_leaves_everything_as_it_was() {
    let mut bench = Bench::new();
    let directory = bench.directory(ROOT, "d");
    for at in 0..300 {
        bench.file(directory, &format!("file number {at}"));
    }
    let before = snapshot(&bench.state);
    for at in 0..200 {
        let name = format!("another name, number {at}").into_bytes();
        let result = bench.run(cost::make(1, 0), |tx| {
            let new = crate::create::New::Node { kind: Kind::File, mode: at, device: 0 };
            tx.make(Caller { uid: u32::from(at), gid: 1, umask: 0 }, directory, &name, new)?;
            tx.unlink(directory, format!("file number {at}").as_bytes())?;
            Err::<(), _>(FsError::NoSpace)
        });
        assert!(matches!(result, Err(FsError::NoSpace)));
        assert!(snapshot(&bench.state) == before, "attempt {at} left a trace");
    }
    bench.verify();
    bench.file(directory, "and it still works");
    bench.verify();
}
