//! Names and renames.

use crate::common::{Sandbox, can_mount, next_tick};
use crate::{USER, as_user, compiled_calls, crash, open_to_all};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};

#[test]
fn exchange_swaps_whatever_the_two_names_lead_to() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    let at = |name: &str| mounted.path(name);
    fs::create_dir_all(at("one/d/inner")).expect("directories");
    fs::create_dir(at("other")).expect("a directory");
    fs::write(at("other/f"), b"a file").expect("a file");
    let ino = |name: &str| fs::symlink_metadata(at(name)).expect("it is there").ino();
    let before = (ino("one/d"), ino("other/f"), fs::metadata(at("one/d")).expect("it").ctime_nsec());
    next_tick();
    let exchange =
        |one: &str, other: &str| renameat_with(CWD, at(one), CWD, at(other), RenameFlags::EXCHANGE);
    exchange("one/d", "other/f").expect("a directory for a file");
    let links = |name: &str| fs::metadata(at(name)).expect("it is there").nlink();
    assert_eq!((ino("other/f"), ino("one/d")), (before.0, before.1));
    assert_eq!((links("one"), links("other"), links("other/f"), links("one/d")), (2, 3, 3, 1));
    assert_eq!(fs::read(at("one/d")).expect("a file"), b"a file");
    assert_eq!(fs::metadata(at("other/f/..")).expect("the parent").ino(), ino("other"));
    assert_ne!(fs::metadata(at("other/f")).expect("it").ctime_nsec(), before.2);
    assert_eq!(exchange("other", "other/f/inner").expect_err("a directory below itself"), Errno::INVAL);
    assert_eq!(exchange("one/d", "nothing").expect_err("only one name"), Errno::NOENT);
    symlink("nowhere", at("link")).expect("a link");
    exchange("link", "one/d").expect("a link for a file");
    assert_eq!(fs::read(at("link")).expect("a file"), b"a file");
    let refuse = RenameFlags::NOREPLACE;
    assert_eq!(
        renameat_with(CWD, at("link"), CWD, at("one/d"), refuse).expect_err("it exists"),
        Errno::EXIST
    );
    renameat_with(CWD, at("link"), CWD, at("new"), refuse).expect("it does not");
    let both = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE;
    assert_eq!(
        renameat_with(CWD, at("new"), CWD, at("one/d"), both).expect_err("a contradiction"),
        Errno::INVAL
    );
    let mounted = crash(&sandbox, mounted);
    assert_eq!(fs::read(mounted.path("new")).expect("the file"), b"a file");
    assert!(mounted.path("other/f/inner").is_dir());
    mounted.unmount();
}

#[test]
fn names_are_bytes_of_any_value_up_to_255() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    // Every byte but the two that cannot be in a name.
    let all: Vec<u8> = (1..=255u8).filter(|&byte| byte != b'/').collect();
    let names = [&all[..], &[0xff; 255], b"\n", b" ", b"...", "名前".as_bytes(), &[b'n'; 255]];
    for name in names {
        fs::write(mounted.dir().join(OsStr::from_bytes(name)), name).expect("a file");
    }
    let mounted = crash(&sandbox, mounted);
    let listing = fs::read_dir(mounted.dir()).expect("a listing");
    let mut listed: Vec<_> = listing.map(|entry| entry.expect("an entry").file_name()).collect();
    listed.sort();
    let mut expected: Vec<_> = names.iter().map(|name| OsStr::from_bytes(name).to_owned()).collect();
    expected.sort();
    assert_eq!(listed, expected);
    for name in names {
        let path = mounted.dir().join(OsStr::from_bytes(name));
        assert_eq!(fs::read(&path).expect("its bytes"), name);
        fs::remove_file(path).expect("removed");
    }
    mounted.unmount();
}

#[test]
fn paths_may_be_deeper_than_one_call_can_name() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    let name = "d".repeat(200);
    // One call names at most 4096 bytes, so the way down goes step by step.
    let mut at = fs::File::open(mounted.dir()).expect("the root");
    let open = |at: &fs::File, name: &str| {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
        rustix::fs::openat(at, name, flags, rustix::fs::Mode::empty()).map(fs::File::from)
    };
    for _ in 0..100 {
        rustix::fs::mkdirat(&at, &name, rustix::fs::Mode::from_raw_mode(0o755)).expect("a directory");
        at = open(&at, &name).expect("it opens");
    }
    drop(at);
    let mounted = crash(&sandbox, mounted);
    let mut at = fs::File::open(mounted.dir()).expect("the root");
    for _ in 0..100 {
        at = open(&at, &name).expect("it is there");
    }
    drop(at);
    fs::remove_dir_all(mounted.path(&name)).expect("all of them go");
    mounted.unmount();
}

/// Whether the file is a whiteout.
fn is_whiteout(path: &std::path::Path) -> bool {
    let found = fs::symlink_metadata(path).expect("it is there");
    found.file_type().is_char_device() && found.rdev() == 0 && found.nlink() == 1
}

#[test]
fn a_rename_leaves_a_whiteout_at_the_old_name_as_one_change() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    compiled_calls(&sandbox);
    let mounted = open_to_all(&sandbox);
    let at = |name: &str| mounted.path(name);
    let rename =
        |from: &str, to: &str, more| renameat_with(CWD, at(from), CWD, at(to), RenameFlags::WHITEOUT | more);
    fs::create_dir_all(at("d/inner")).expect("directories");
    fs::create_dir(at("e")).expect("a directory");
    fs::write(at("d/f"), b"moved").expect("a file");
    fs::write(at("e/old"), b"old").expect("a file");
    rename("d/f", "e/f", RenameFlags::empty()).expect("to a free name");
    rename("e/f", "e/old", RenameFlags::empty()).expect("over a file");
    assert_eq!(fs::read(at("e/old")).expect("the file"), b"moved");
    let links = |name: &str| fs::metadata(at(name)).expect("it is there").nlink();
    rename("d/inner", "e/inner", RenameFlags::NOREPLACE).expect("a directory");
    assert_eq!((links("d"), links("e")), (2, 3));
    assert_eq!(rename("e/old", "e/f", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    assert_eq!(rename("e/old", "e/f", RenameFlags::EXCHANGE), Err(Errno::INVAL), "a contradiction");
    fs::hard_link(at("e/old"), at("same")).expect("another name");
    rename("same", "e/old", RenameFlags::empty()).expect("two names of one file");
    assert_eq!(links("same"), 2, "nothing happens");
    rename("same", "by", RenameFlags::empty()).expect("renamed");
    // The user who renames owns the whiteout, and needs no privilege to make it.
    as_user(&mounted, USER, "echo mine >mine; ../call whiteout mine theirs").expect("a user may");
    assert!(is_whiteout(&at("mine")));
    assert_eq!(fs::symlink_metadata(at("mine")).expect("it").uid(), USER.0);
    let mounted = crash(&sandbox, mounted);
    for name in ["d/f", "e/f", "d/inner", "same"] {
        assert!(is_whiteout(&mounted.path(name)), "{name}");
    }
    assert!(mounted.path("e/inner").is_dir());
    assert_eq!(fs::read(mounted.path("by")).expect("the file"), b"moved");
    fs::remove_file(mounted.path("d/f")).expect("a whiteout goes as any file does");
    mounted.unmount();
}
