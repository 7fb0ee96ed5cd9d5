//! What a file system promises to a program.

use crate::common::{Sandbox, can_mount};
use rustix::io::Errno;
use std::fs;
use std::io::{Read, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use weir_library::{
    Access, Directory, FallocateMode, FileKind, IfExists, OFlags, SeekWhence, SetXattrMode, SizePolicy, Weir,
    WeirFile, WeirOptions,
};

const CREATE: OFlags = OFlags::CREATE.union(OFlags::RDWR);
const READ: OFlags = OFlags::RDONLY;

pub(crate) fn open(sandbox: &Sandbox) -> Weir {
    Weir::open(&sandbox.store(), &WeirOptions::default()).expect("the store opens")
}

/// The errno of a refused operation.
#[track_caller]
pub(crate) fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Errno {
    Errno::from_io_error(&result.expect_err("it is refused")).expect("an errno")
}

fn names(directory: &Directory) -> Vec<String> {
    let mut names: Vec<String> =
        directory.entries().map(|entry| entry.unwrap().name.into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_is_written_is_there_after_the_store_was_closed() {
    let sandbox = Sandbox::formatted();
    let weir = open(&sandbox);
    weir.create_dir("/logs", 0o777).unwrap();
    let file = weir.open("logs/today", CREATE, 0o666).unwrap();
    file.write(b"hello").unwrap();
    file.write_at(b"far", 100_000).unwrap();
    let made = weir.metadata("/logs/today").unwrap();
    assert_eq!((made.size, made.mode), (100_003, 0o644), "the umask is 022");
    assert!(weir.media().iter().all(|medium| medium.starts_with(sandbox.store())));
    assert_eq!(weir.metadata("/logs").unwrap().mode, 0o755);
    drop(file);
    weir.close().unwrap();

    let weir = open(&sandbox);
    let mut bytes = vec![1; 100_003];
    let mut file = &weir.open("/logs/today", READ, 0).unwrap();
    file.read_exact(&mut bytes).unwrap();
    assert!(bytes.starts_with(b"hello\0") && bytes.ends_with(b"\0far"));
    assert_eq!(file.read(&mut bytes).unwrap(), 0, "at the end");
    weir.close().unwrap();
}

#[test]
fn a_mount_sees_the_same_files() {
    let sandbox = Sandbox::formatted();
    if !can_mount() {
        return;
    }
    let weir = open(&sandbox);
    weir.create_dir("/etc", 0o700).unwrap();
    weir.open("/etc/conf", CREATE, 0o640).unwrap().write(b"of the library").unwrap();
    weir.symlink("etc/conf", "/link").unwrap();
    let inside = weir.metadata("/etc/conf").unwrap();
    weir.close().unwrap();

    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("link")).unwrap(), b"of the library");
    let outside = fs::metadata(mounted.path("etc/conf")).unwrap();
    assert_eq!((outside.ino(), outside.mode() & 0o7777), (inside.ino.0, u32::from(inside.mode)));
    fs::write(mounted.path("etc/conf"), b"of the mount").unwrap();
    mounted.unmount();

    let weir = open(&sandbox);
    let mut found = String::new();
    let mut file = &weir.open("/link", READ, 0).unwrap();
    file.read_to_string(&mut found).unwrap();
    assert_eq!(found, "of the mount");
}

#[test]
fn paths_lead_where_the_kernel_would_go() {
    let sandbox = Sandbox::formatted();
    let weir = open(&sandbox);
    for path in ["/a", "/a/b", "/a/b/c"] {
        weir.create_dir(path, 0o755).unwrap();
    }
    weir.open("/a/file", CREATE, 0o644).unwrap();
    weir.symlink("../file", "/a/b/up").unwrap();
    weir.symlink("/a/b", "/absolute").unwrap();
    weir.symlink("loop2", "/loop1").unwrap();
    weir.symlink("loop1", "/loop2").unwrap();
    weir.symlink("nowhere", "/dangling").unwrap();
    let file = weir.metadata("/a/file").unwrap().ino;
    for path in ["a/file", "//a//.//file", "/a/b/../file", "/a/b/up", "/absolute/up", "/../a/b/c/../../file"]
    {
        assert_eq!(weir.metadata(path).unwrap().ino, file, "{path}");
    }
    let inner = weir.open("/a/b", OFlags::DIRECTORY, 0).unwrap();
    let inner = Directory::of(&inner).unwrap();
    assert_eq!(inner.metadata("../file").unwrap().ino, file);
    assert_eq!(inner.metadata("/a/file").unwrap().ino, file, "a slash at the start is the root");
    assert_eq!(names(&inner), ["c", "up"]);

    for (path, expected) in [
        ("", Errno::NOENT),
        ("/a/file/", Errno::NOTDIR),
        ("/a/file/x", Errno::NOTDIR),
        ("/a/missing/x", Errno::NOENT),
        ("/loop1", Errno::LOOP),
        ("/dangling", Errno::NOENT),
    ] {
        assert_eq!(errno(weir.metadata(path)), expected, "{path}");
    }
    let long = "x".repeat(256);
    assert_eq!(errno(weir.open(&long, CREATE, 0o644)), Errno::NAMETOOLONG);
    assert_eq!(errno(weir.open("y/".repeat(2100), READ, 0)), Errno::NAMETOOLONG);
    assert_eq!(weir.symlink_metadata("/loop1").unwrap().kind, FileKind::Symlink);
    // A new file is made where a dangling link leads; with EXCL or NOFOLLOW it is not.
    assert_eq!(errno(weir.open("/dangling", CREATE | OFlags::EXCL, 0o644)), Errno::EXIST);
    assert_eq!(errno(weir.open("/dangling", CREATE | OFlags::NOFOLLOW, 0o644)), Errno::LOOP);
    weir.open("/dangling", CREATE, 0o644).unwrap();
    assert_eq!(weir.metadata("/nowhere").unwrap().kind, FileKind::File);
}

#[test]
fn names_are_made_moved_and_removed() {
    let sandbox = Sandbox::formatted();
    let weir = open(&sandbox);
    weir.open("/one", CREATE, 0o644).unwrap().write(b"1").unwrap();
    weir.hard_link("/one", "/again").unwrap();
    assert_eq!(weir.metadata("/one").unwrap().links, 2);
    weir.create_dir("/d", 0o755).unwrap();
    assert_eq!(errno(weir.create_dir("/d/", 0o755)), Errno::EXIST);
    assert_eq!(errno(weir.create_dir("/", 0o755)), Errno::EXIST);
    weir.rename("/one", "/d/two").unwrap();
    assert_eq!(names(&weir), ["again", "d"]);
    assert_eq!(errno(weir.remove_directory("/d")), Errno::NOTEMPTY);
    assert_eq!(errno(weir.remove_directory("/again")), Errno::NOTDIR);
    assert_eq!(errno(weir.remove_directory("/d/.")), Errno::INVAL);
    assert_eq!(errno(weir.remove_directory("/d/..//")), Errno::NOTEMPTY);
    assert_eq!(errno(weir.remove_directory("/")), Errno::BUSY);
    assert_eq!(errno(weir.remove_file("/d")), Errno::ISDIR);
    assert_eq!(errno(weir.rename("/d", "/d/below")), Errno::INVAL);
    assert_eq!(errno(weir.rename("/again", "/d")), Errno::ISDIR);
    let both = (weir.root(), "/again".as_ref());
    let taken = weir.rename_to(both, (weir.root(), "/d/two".as_ref()), IfExists::Refuse);
    assert_eq!(errno(taken), Errno::EXIST);
    weir.remove_file("/d/two").unwrap();
    weir.remove_directory("/d/").unwrap();
    assert_eq!(names(&weir), ["again"]);
    assert_eq!(weir.metadata("/again").unwrap().links, 1);
}

#[test]
fn a_file_without_a_name_lives_while_it_is_open() {
    let sandbox = Sandbox::formatted();
    let weir = open(&sandbox);
    let mut file = &weir.open("/temporary", CREATE, 0o600).unwrap();
    file.write_all(b"still here").unwrap();
    weir.remove_file("/temporary").unwrap();
    assert_eq!(errno(weir.metadata("/temporary")), Errno::NOENT);
    file.seek(SeekFrom::Start(6)).unwrap();
    let mut rest = String::new();
    file.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), file.metadata().unwrap().links), ("here", 0));
}

#[test]
fn appends_of_several_threads_never_overlap() {
    const LINES: usize = 300;
    let sandbox = Sandbox::formatted();
    let weir = Arc::new(open(&sandbox));
    let threads: Vec<_> = (0..4)
        .map(|thread: usize| {
            let weir = weir.clone();
            std::thread::spawn(move || {
                let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND;
                let file = weir.open("/log", flags, 0o644).unwrap();
                for line in 0..LINES {
                    file.write(format!("{thread} {line:05}\n").as_bytes()).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let mut found = String::new();
    let mut file = &weir.open("/log", READ, 0).unwrap();
    file.read_to_string(&mut found).unwrap();
    let mut lines: Vec<&str> = found.lines().collect();
    lines.sort_unstable();
    let expected: Vec<String> =
        (0..4).flat_map(|thread| (0..LINES).map(move |line| format!("{thread} {line:05}"))).collect();
    assert!(lines == expected, "{} lines", lines.len());
}

#[test]
fn holes_sizes_and_attributes_are_those_of_a_file_system() {
    let sandbox = Sandbox::formatted();
    let weir = open(&sandbox);
    let file = weir.open("/sparse", CREATE, 0o644).unwrap();
    file.write_at(&[7; 4096], 8192).unwrap();
    assert_eq!(file.seek_to(0, SeekWhence::Data).unwrap(), 8192);
    assert_eq!(file.seek_to(8192, SeekWhence::Hole).unwrap(), 12288);
    file.allocate(FallocateMode::PunchHole, (8192, 4096), SizePolicy::Keep).unwrap();
    assert_eq!(errno(file.seek_to(0, SeekWhence::Data)), Errno::NXIO);
    file.set_len(3).unwrap();
    assert_eq!(file.metadata().unwrap().size, 3);
    weir.truncate("/sparse", 10).unwrap();
    let mut bytes = [1; 16];
    assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 10);
    assert_eq!(bytes[..10], [0; 10]);
    weir.set_xattr("/sparse", b"user.note", b"kept", SetXattrMode::Create).unwrap();
    assert_eq!(weir.xattr("/sparse", b"user.note").unwrap(), b"kept");
    file.set_xattr(b"user.note", b"by the file", SetXattrMode::Replace).unwrap();
    assert_eq!(weir.xattr("/sparse", b"user.note").unwrap(), file.xattr(b"user.note").unwrap());
    assert_eq!(file.xattr_names().unwrap(), [b"user.note".to_vec()]);
    file.remove_xattr(b"user.note").unwrap();
    assert_eq!(errno(weir.xattr("/sparse", b"user.note")), Errno::NODATA);
    weir.set_mode("/sparse", 0o400).unwrap();
    weir.set_owner("/sparse", Some(12), Some(34), true).unwrap();
    let now = file.metadata().unwrap();
    assert_eq!((now.mode, now.uid, now.gid), (0o400, 12, 34));
    let read_only = weir.open("/sparse", READ, 0).unwrap();
    assert_eq!(errno(read_only.write(b"x")), Errno::BADF);
    assert_eq!(errno(weir.open("/sparse", OFlags::WRONLY, 0).unwrap().read(&mut bytes)), Errno::BADF);
}

#[test]
fn a_read_is_the_same_from_memory_and_from_the_store() {
    let sandbox = Sandbox::formatted();
    let bytes: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    let weir = open(&sandbox);
    let file = weir.open("/file", CREATE, 0o644).unwrap();
    file.write(&bytes).unwrap();
    let check = |file: &WeirFile| {
        // From one page to more than is copied at once, and past the end.
        for (offset, len) in
            [(0, 1), (4000, 200), (8192, 4096), (100_000, 70_000), (299_990, 100), (300_000, 5)]
        {
            let mut into = vec![0; len];
            let count = file.read_at(&mut into, offset as u64).unwrap();
            let expected = &bytes[offset..(offset + len).min(bytes.len())];
            assert!(into[..count] == *expected, "{len} bytes at {offset}");
        }
    };
    check(&file);
    drop(file);
    weir.close().unwrap();
    let weir = open(&sandbox);
    let file = weir.open("/file", READ, 0).unwrap();
    check(&file);
    check(&file);
}

#[test]
fn an_append_overwrites_nothing_that_another_thread_adds() {
    const LINES: u64 = 300;
    let sandbox = Sandbox::formatted();
    let weir = Arc::new(open(&sandbox));
    let other = weir.clone();
    let appender = std::thread::spawn(move || {
        let flags = OFlags::CREATE | OFlags::WRONLY | OFlags::APPEND;
        let file = other.open("/log", flags, 0o644).unwrap();
        (0..LINES).for_each(|_| assert_eq!(file.write(b"aaaaaaaa").unwrap(), 8));
    });
    let file = weir.open("/log", CREATE, 0o644).unwrap();
    for number in 0..LINES {
        // At a place of its own, far behind the end: what was appended before stays before.
        file.write_at(b"bbbbbbbb", (number + 1) << 20).unwrap();
    }
    appender.join().unwrap();
    let mut at = [0; 8];
    for number in 0..LINES {
        file.read_at(&mut at, (number + 1) << 20).unwrap();
        assert_eq!(&at, b"bbbbbbbb", "{number}");
    }
}

#[test]
fn after_the_store_was_closed_no_operation_waits() {
    let sandbox = Sandbox::formatted();
    let weir = open(&sandbox);
    let file = weir.open("/file", CREATE, 0o644).unwrap();
    file.write(&[1; 100]).unwrap();
    let root = weir.root().clone();
    weir.remove_file("/file").unwrap();
    weir.close().unwrap();
    assert_eq!(errno(file.write(b"late")), Errno::IO);
    assert_eq!(errno(root.create_dir("/late", 0o755)), Errno::IO);
    file.sync_data().expect("all of it is durable");
    drop((file, root));
    let weir = open(&sandbox);
    assert!(names(&weir).is_empty());
    assert_eq!(weir.usage().inodes - weir.usage().inodes_free, 1, "the removed file is freed");
}

#[test]
fn a_store_opened_for_reading_takes_no_changes() {
    let sandbox = Sandbox::formatted();
    let weir = open(&sandbox);
    weir.open("/file", CREATE, 0o644).unwrap().write(b"kept").unwrap();
    weir.close().unwrap();
    let weir =
        Weir::open(&sandbox.store(), &WeirOptions { read_only: true, ..WeirOptions::default() }).unwrap();
    for refused in [OFlags::RDWR, OFlags::WRONLY, OFlags::TRUNC] {
        assert_eq!(errno(weir.open("/file", refused, 0)), Errno::ROFS);
    }
    assert_eq!(errno(weir.ensure_access("/file", Access::WRITE_OK)), Errno::ROFS);
    let file = weir.open("/file", OFlags::RDONLY, 0).unwrap();
    assert_eq!(errno(file.set_mode(0o600)), Errno::ROFS);
    assert_eq!(errno(weir.create_dir("/new", 0o755)), Errno::ROFS);
    assert_eq!(errno(weir.remove_file("/file")), Errno::ROFS);
    assert_eq!(errno(weir.snapshot("night")), Errno::ROFS);
    let mut bytes = [0; 4];
    assert_eq!((file.read_at(&mut bytes, 0).unwrap(), &bytes), (4, b"kept"));
}

#[test]
fn a_file_that_is_replaced_all_the_time_can_be_opened_and_is_the_one_that_was_checked() {
    let sandbox = Sandbox::formatted();
    let weir = open(&sandbox);
    weir.open("/file", CREATE, 0o644).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0..2000_u32 {
                weir.open("/next", CREATE, 0o644).unwrap().write(&number.to_le_bytes()).unwrap();
                weir.rename("/next", "/file").unwrap();
                weir.open("/other", CREATE, 0o600).unwrap();
                weir.remove_file("/other").unwrap();
            }
            is_done.store(true, Ordering::Relaxed);
        });
        while !is_done.load(Ordering::Relaxed) {
            let opened = weir.open("/file", OFlags::RDONLY, 0).unwrap();
            assert_eq!(opened.metadata().unwrap().mode, 0o644);
        }
    });
}

#[test]
fn an_open_directory_is_not_taken_for_one_made_later() {
    let sandbox = Sandbox::formatted();
    let weir = open(&sandbox);
    weir.create_dir("/d", 0o755).unwrap();
    let directory = Directory::of(&weir.open("/d", OFlags::DIRECTORY, 0).unwrap()).unwrap();
    weir.remove_directory("/d").unwrap();
    weir.create_dir("/other", 0o755).unwrap();
    weir.open("/other/secret", CREATE, 0o644).unwrap();
    let mut listed = directory.entries();
    assert_eq!(errno(listed.next().expect("an error")), Errno::NOENT);
    assert!(listed.next().is_none());
    assert_eq!(errno(directory.open("secret", OFlags::RDONLY, 0)), Errno::NOENT);
}

#[test]
fn files_open_after_the_end_are_read_and_not_changed() {
    let sandbox = Sandbox::formatted();
    let weir = open(&sandbox);
    weir.open("/file", CREATE, 0o644).unwrap().write(&vec![7; 4 << 20]).unwrap();
    weir.close().unwrap();
    for read_only in [false, true] {
        let options = WeirOptions { read_only, ..WeirOptions::default() };
        let weir = Weir::open(&sandbox.store(), &options).unwrap();
        let access = if read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let file = weir.open("/file", access, 0).unwrap();
        weir.close().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 9000];
            let read = file.read_at(&mut bytes, 3 << 20).map(|read| (read, bytes));
            let refused = file.write_at(b"late", 0).is_err();
            drop(file);
            sender.send((read, refused)).unwrap();
        });
        let (read, refused) = receiver.recv_timeout(Duration::from_secs(20)).expect("nobody waits for ever");
        assert_eq!(read.unwrap(), (9000, [7; 9000]));
        assert!(refused);
    }
}

#[test]
fn a_snapshot_stays_as_it_was_and_takes_no_changes() {
    let sandbox = Sandbox::formatted();
    let weir = open(&sandbox);
    let file = weir.open("/file", CREATE, 0o644).unwrap();
    file.write(b"before").unwrap();
    weir.snapshot("night").unwrap();
    assert_eq!(errno(weir.snapshot("night")), Errno::EXIST);
    file.write_at(b"after!", 0).unwrap();
    drop(file);
    weir.close().unwrap();

    let options = WeirOptions { volume: "night".into(), ..WeirOptions::default() };
    let snapshot = Weir::open(&sandbox.store(), &options).unwrap();
    let mut found = String::new();
    let mut file = &snapshot.open("/file", READ, 0).unwrap();
    file.read_to_string(&mut found).unwrap();
    assert_eq!(found, "before");
    assert_eq!(errno(snapshot.create_dir("/new", 0o755)), Errno::ROFS);
}
