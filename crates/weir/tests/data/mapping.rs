use crate::call::call;
use crate::common::{Sandbox, can_mount, next_tick};
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

const SIGBUS: i32 = 7;

fn times(path: &Path) -> [(i64, i64); 2] {
    let found = fs::metadata(path).expect("metadata");
    [(found.mtime(), found.mtime_nsec()), (found.ctime(), found.ctime_nsec())]
}

#[test]
fn what_is_stored_into_a_shared_mapping_is_seen_at_once_and_durable_after_msync() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--commit-interval", "3600000"]);
    let path = mounted.path("file");
    let file = fs::File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
    file.write_all_at(&[b'.'; 10_000], 0).expect("a write");
    let before = times(&path);
    next_tick();
    let mut storer = call(&["map", "{}", "10000", "4090", "over two pages", "shared", "sync"], &path);
    storer.expect("stored");
    let expected = |bytes: &[u8]| &bytes[4090..4104] == b"over two pages" && bytes.len() == 10_000;
    assert!(expected(&fs::read(&path).expect("a read")));
    // POSIX: both times are set between the store and the end of msync.
    let after = times(&path);
    assert!(after[0] > before[0] && after[1] > before[1], "{before:?} {after:?}");
    // A write is seen in the mapping and the other way round.
    let mut other = call(&["map", "{}", "10000", "0", "second", "shared", "none"], &path);
    other.expect("stored");
    let mut bytes = [0; 6];
    file.read_exact_at(&mut bytes, 0).expect("a read");
    assert_eq!(&bytes, b"second", "not yet synced, and seen already");
    mounted.kill();
    let mounted = sandbox.mount();
    assert!(expected(&fs::read(mounted.path("file")).expect("a read")), "synced, and lost");
}

#[test]
fn what_is_stored_into_a_private_mapping_stays_there() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let path = mounted.path("file");
    fs::write(&path, [b'.'; 10_000]).expect("a file");
    let before = times(&path);
    next_tick();
    let mut storer = call(&["map", "{}", "10000", "5000", "private", "private", "sync"], &path);
    storer.expect("stored");
    assert_eq!(fs::read(&path).expect("a read"), [b'.'; 10_000]);
    assert!(storer.end().success());
    assert_eq!(times(&path), before);
    mounted.unmount();
    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("file")).expect("a read"), [b'.'; 10_000]);
}

#[test]
fn a_mapping_outlives_its_descriptor_and_what_it_holds_is_written_back_with_the_unmount() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), [b'.'; 10_000]).expect("a file");
    let mut storer =
        call(&["map", "{}", "10000", "9990", "at its end", "shared", "none"], &mounted.path("file"));
    storer.expect("stored");
    // It closed the file long ago. Killed, it never calls msync.
    storer.kill();
    mounted.unmount();
    let mounted = sandbox.mount();
    assert_eq!(&fs::read(mounted.path("file")).expect("a read")[9990..], b"at its end");
}

#[test]
fn a_page_past_the_end_of_the_file_is_no_memory() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let path = mounted.path("file");
    fs::write(&path, [9; 5000]).expect("a file");
    let mut within = call(&["touch", "{}", "20000", "4999"], &path);
    assert_eq!(within.expect("byte"), 9);
    let mut rest = call(&["touch", "{}", "20000", "8191"], &path);
    assert_eq!(rest.expect("byte"), 0, "the rest of the last page is zeros");
    let mut behind = call(&["touch", "{}", "20000", "8192"], &path);
    assert_eq!(behind.end().signal(), Some(SIGBUS));
    // Made shorter under a mapping, and longer again: what was cut off does not come back.
    let file = fs::File::options().write(true).open(&path).expect("the file");
    file.set_len(100).expect("shorter");
    file.set_len(5000).expect("longer");
    let mut cut = call(&["touch", "{}", "20000", "4999"], &path);
    assert_eq!(cut.expect("byte"), 0);
}
