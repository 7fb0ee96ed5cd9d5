//! Examples: what each operation promises.

use super::in_memory::{InMemoryFs, OWNER, snapshot};
use super::model::{ModelOperation, ModelSubject};
use crate::cost;
use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, LINKS_MAX};
use crate::types::{CallerCredentials, FileKind, IfExists, Ino, SetAttributes};
use zerocopy::little_endian::U32;

const ROOT: Ino = Ino::ROOT;

fn unlink(fs: &mut InMemoryFs, parent: Ino, name: &str) -> Result<(), FsError> {
    fs.apply(&ModelOperation::Unlink { parent, name: name.as_bytes().to_vec() }).map(drop)
}

fn rename(fs: &mut InMemoryFs, from: (Ino, &str), to: (Ino, &str)) -> Result<(), FsError> {
    let (from, to) = ((from.0, from.1.as_bytes().to_vec()), (to.0, to.1.as_bytes().to_vec()));
    fs.apply(&ModelOperation::Rename { from, to, if_exists: IfExists::Replace, whiteout: None }).map(drop)
}

fn set(fs: &mut InMemoryFs, ino: Ino, set: SetAttributes) -> Result<(), FsError> {
    fs.apply(&ModelOperation::Set { ino, set }).map(drop)
}

fn write(fs: &mut InMemoryFs, ino: Ino, offset: u64, bytes: &[u8]) -> Result<(), FsError> {
    fs.apply(&ModelOperation::Write { ino, offset, bytes: bytes.to_vec() }).map(drop)
}

#[test]
fn a_new_file_belongs_to_its_caller_and_a_setgid_directory_passes_on_its_group() {
    let mut fs = InMemoryFs::new();
    let make = |parent, name: &str, kind, mode| {
        let caller = CallerCredentials { uid: 7, gid: 8, umask: 0 };
        ModelOperation::Make { caller, parent, name: name.as_bytes().to_vec(), kind, mode, device: 0 }
    };
    let made = fs.apply(&make(ROOT, "d", FileKind::Directory, 0o2775)).expect("made").expect("attributes");
    assert_eq!((made.uid, made.gid, made.mode), (7, 8, 0o2775));
    set(&mut fs, made.ino, SetAttributes { gid: Some(50), ..Default::default() }).expect("a group");
    let below =
        fs.apply(&make(made.ino, "e", FileKind::Directory, 0o755)).expect("made").expect("attributes");
    assert_eq!((below.gid, below.mode), (50, 0o2755));
    let file = fs.apply(&make(made.ino, "f", FileKind::File, 0o644)).expect("made").expect("attributes");
    assert_eq!((file.uid, file.gid, file.mode, file.links), (7, 50, 0o644, 1));
    fs.verify();
}

#[test]
fn names_have_limits() {
    let mut fs = InMemoryFs::new();
    assert!(matches!(fs.make(ROOT, "", FileKind::File), Err(FsError::NotFound)));
    assert!(matches!(fs.make(ROOT, ".", FileKind::File), Err(FsError::Invalid)));
    assert!(matches!(fs.make(ROOT, "a/b", FileKind::File), Err(FsError::Invalid)));
    fs.file(ROOT, &"n".repeat(255));
    assert!(matches!(fs.make(ROOT, &"n".repeat(256), FileKind::File), Err(FsError::NameTooLong)));
    let link = |len| {
        let target = vec![b't'; len];
        ModelOperation::Symlink { caller: OWNER, parent: ROOT, name: format!("l{len}").into_bytes(), target }
    };
    let made = fs.apply(&link(4095)).expect("the longest link").expect("attributes");
    assert_eq!((made.size, fs.read_link(made.ino).expect("a target").len()), (4095, 4095));
    assert!(matches!(fs.apply(&link(4096)), Err(FsError::NameTooLong)));
    assert!(matches!(fs.apply(&link(0)), Err(FsError::NotFound)));
    fs.verify();
}

#[test]
fn an_unlinked_file_lives_until_its_last_opener_is_gone() {
    let mut fs = InMemoryFs::new();
    let ino = fs.file(ROOT, "open");
    write(&mut fs, ino, 0, b"still here").expect("a write");
    fs.apply(&ModelOperation::Hold { ino }).expect("held");
    unlink(&mut fs, ROOT, "open").expect("unlinked");
    assert!(matches!(fs.lookup(ROOT, b"open"), Err(FsError::NotFound)));
    assert_eq!(fs.read(ino).expect("a read"), b"still here");
    assert_eq!(fs.attributes(ino).expect("attributes").links, 0);
    fs.verify();
    fs.apply(&ModelOperation::Unhold { ino }).expect("let go");
    assert!(matches!(fs.attributes(ino), Err(FsError::Stale)));
    assert_eq!(fs.objects.files(), 0, "its bytes went too");
    let next = fs.make(ROOT, "next", FileKind::File).expect("made");
    assert_eq!((next.ino, next.generation), (ino, 2), "the slot comes back under a new generation");
    fs.verify();
}

#[test]
fn orphans_go_at_the_next_opening() {
    let mut fs = InMemoryFs::new();
    for at in 0..20 {
        let ino = fs.file(ROOT, &format!("f{at}"));
        write(&mut fs, ino, 0, b"bytes").expect("a write");
        fs.apply(&ModelOperation::Hold { ino }).expect("held");
        unlink(&mut fs, ROOT, &format!("f{at}")).expect("unlinked");
    }
    assert_eq!((fs.state.header().orphans.get(), fs.objects.files()), (20, 20));
    fs.reopen();
    assert_eq!((fs.state.header().orphans.get(), fs.objects.files()), (0, 0));
    assert_eq!(fs.state.header().inodes.get(), 1);
    fs.verify();
}

#[test]
fn a_whiteout_takes_the_old_names_place_and_counts_as_a_new_inode() {
    let mut fs = InMemoryFs::new();
    let one = fs.directory(ROOT, "one");
    let (file, gone) = (fs.file(one, "f"), fs.file(ROOT, "gone"));
    let caller = CallerCredentials { uid: 7, gid: 8, umask: 0 };
    let rename = |from: (Ino, &str), to: (Ino, &str), if_exists| {
        let (from, to) = ((from.0, from.1.as_bytes().to_vec()), (to.0, to.1.as_bytes().to_vec()));
        ModelOperation::Rename { from, to, if_exists, whiteout: Some(caller) }
    };
    let left = fs.apply(&rename((one, "f"), (ROOT, "gone"), IfExists::Replace)).expect("a move");
    let left = left.expect("a whiteout");
    assert_eq!((left.kind, left.device, left.mode, left.links), (FileKind::CharDevice, 0, 0, 1));
    assert_eq!((left.uid, left.gid), (7, 8));
    assert_eq!((fs.lookup(one, b"f").ok(), fs.lookup(ROOT, b"gone").ok()), (Some(left.ino), Some(file)));
    assert!(matches!(fs.attributes(gone), Err(FsError::Stale)));
    let refused = fs.apply(&rename((ROOT, "gone"), (one, "f"), IfExists::Refuse));
    assert!(matches!(refused, Err(FsError::Exists)));
    fs.apply(&ModelOperation::Link { ino: file, parent: ROOT, name: b"same".to_vec() }).expect("a name");
    let nothing = fs.apply(&rename((ROOT, "same"), (ROOT, "gone"), IfExists::Replace)).expect("one file");
    assert!(nothing.is_none() && fs.lookup(ROOT, b"same").ok() == Some(file));
    fs.verify();
}

#[test]
fn a_rename_replaces_what_it_may_and_nothing_else() {
    let mut fs = InMemoryFs::new();
    let (full, empty) = (fs.directory(ROOT, "full"), fs.directory(ROOT, "empty"));
    let (file, other) = (fs.file(full, "file"), fs.file(ROOT, "other"));
    assert!(matches!(rename(&mut fs, (ROOT, "empty"), (ROOT, "full")), Err(FsError::NotEmpty)));
    assert!(matches!(rename(&mut fs, (ROOT, "empty"), (ROOT, "other")), Err(FsError::NotDirectory)));
    assert!(matches!(rename(&mut fs, (ROOT, "other"), (ROOT, "empty")), Err(FsError::IsDirectory)));
    assert!(matches!(rename(&mut fs, (ROOT, "full"), (full, "within")), Err(FsError::Invalid)));
    assert!(matches!(rename(&mut fs, (ROOT, "none"), (ROOT, "new")), Err(FsError::NotFound)));
    rename(&mut fs, (full, "file"), (ROOT, "other")).expect("a file replaces a file");
    assert_eq!(fs.lookup(ROOT, b"other").ok(), Some(file));
    assert!(matches!(fs.attributes(other), Err(FsError::Stale)));
    rename(&mut fs, (ROOT, "full"), (ROOT, "empty")).expect("a directory replaces an empty one");
    assert_eq!(fs.lookup(ROOT, b"empty").ok(), Some(full));
    assert!(matches!(fs.attributes(empty), Err(FsError::Stale)));
    assert_eq!(fs.attributes(ROOT).expect("attributes").links, 3);
    fs.verify();
}

#[test]
fn a_moved_directory_knows_its_new_parent() {
    let mut fs = InMemoryFs::new();
    let (one, other) = (fs.directory(ROOT, "one"), fs.directory(ROOT, "other"));
    let moved = fs.directory(one, "moved");
    rename(&mut fs, (one, "moved"), (other, "moved")).expect("a move");
    let (_, inode) = fs.state.find_directory(moved).expect("a directory");
    assert_eq!(fs.state.numbering.ino(crate::format::InodeSlot(inode.next.get())), other);
    assert_eq!(fs.attributes(one).expect("attributes").links, 2);
    assert_eq!(fs.attributes(other).expect("attributes").links, 3);
    assert!(matches!(rename(&mut fs, (ROOT, "other"), (moved, "x")), Err(FsError::Invalid)));
    fs.verify();
}

#[test]
fn renaming_a_file_over_another_of_its_names_does_nothing() {
    let mut fs = InMemoryFs::new();
    let ino = fs.file(ROOT, "one");
    fs.apply(&ModelOperation::Link { ino, parent: ROOT, name: b"two".to_vec() }).expect("a link");
    rename(&mut fs, (ROOT, "one"), (ROOT, "two")).expect("nothing");
    assert!(fs.lookup(ROOT, b"one").is_ok() && fs.lookup(ROOT, b"two").is_ok());
    assert_eq!(fs.attributes(ino).expect("attributes").links, 2);
    fs.verify();
}

#[test]
fn a_removed_directory_takes_no_new_names() {
    let mut fs = InMemoryFs::new();
    let ino = fs.directory(ROOT, "d");
    fs.apply(&ModelOperation::Hold { ino }).expect("held");
    fs.apply(&ModelOperation::RemoveDirectory { parent: ROOT, name: b"d".to_vec() }).expect("removed");
    assert!(matches!(fs.make(ino, "x", FileKind::File), Err(FsError::NotFound)));
    assert!(matches!(fs.list(ino), Err(FsError::NotFound)));
    fs.verify();
}

#[test]
fn what_a_shorter_file_lost_is_zeros_when_it_grows_again() {
    let mut fs = InMemoryFs::new();
    let ino = fs.file(ROOT, "f");
    write(&mut fs, ino, 0, &[7; 10_000]).expect("a write");
    set(&mut fs, ino, SetAttributes { size: Some(5000), ..Default::default() }).expect("shorter");
    set(&mut fs, ino, SetAttributes { size: Some(9000), ..Default::default() }).expect("longer");
    let bytes = fs.read(ino).expect("a read");
    assert!(bytes[..5000].iter().all(|&byte| byte == 7) && bytes[5000..].iter().all(|&byte| byte == 0));
    assert_eq!(bytes.len(), 9000);
    let larger = SetAttributes { size: Some(FILE_BYTES_MAX + 1), ..Default::default() };
    assert!(matches!(set(&mut fs, ino, larger), Err(FsError::TooLarge)));
    assert!(matches!(write(&mut fs, ino, FILE_BYTES_MAX - 1, b"ab"), Err(FsError::TooLarge)));
    write(&mut fs, ino, FILE_BYTES_MAX - 2, b"ab").expect("the last two bytes");
}

#[test]
fn a_new_owner_does_not_inherit_setuid() {
    let mut fs = InMemoryFs::new();
    let ino = fs.file(ROOT, "f");
    for (before, after) in [(0o6755, 0o0755), (0o2644, 0o2644), (0o1777, 0o1777)] {
        set(&mut fs, ino, SetAttributes { mode: Some(before), ..Default::default() }).expect("a mode");
        set(&mut fs, ino, SetAttributes { uid: Some(5), ..Default::default() }).expect("an owner");
        assert_eq!(fs.attributes(ino).expect("attributes").mode, after, "{before:o}");
    }
}

#[test]
fn links_have_a_limit() {
    let mut fs = InMemoryFs::new();
    let ino = fs.file(ROOT, "f");
    let (slot, mut inode, _) = fs.state.find_inode(ino).expect("a file");
    inode.links = U32::new(LINKS_MAX);
    let plant = fs.run(cost::free_orphans(1), |tx| {
        tx.set_inode(slot, &inode);
        Ok(())
    });
    plant.expect("planted");
    let link = ModelOperation::Link { ino, parent: ROOT, name: b"g".to_vec() };
    assert!(matches!(fs.apply(&link), Err(FsError::TooManyLinks)));
    assert_eq!(fs.findings().len(), 1, "and the check sees what was planted");
}

#[test]
fn a_transaction_that_is_not_kept_leaves_everything_as_it_was() {
    let mut fs = InMemoryFs::new();
    let directory = fs.directory(ROOT, "d");
    for at in 0..300 {
        fs.file(directory, &format!("file number {at}"));
    }
    let before = snapshot(&fs.state);
    for at in 0..200 {
        let name = format!("another name, number {at}").into_bytes();
        let result = fs.run(cost::make(1, 0), |tx| {
            let new = crate::ops::create::NewInode::Node { kind: FileKind::File, mode: at, device: 0 };
            tx.make(CallerCredentials { uid: u32::from(at), gid: 1, umask: 0 }, directory, &name, new)?;
            tx.unlink(directory, format!("file number {at}").as_bytes())?;
            Err::<(), _>(FsError::NoSpace)
        });
        assert!(matches!(result, Err(FsError::NoSpace)));
        assert!(snapshot(&fs.state) == before, "attempt {at} left a trace");
    }
    fs.verify();
    fs.file(directory, "and it still works");
    fs.verify();
}
