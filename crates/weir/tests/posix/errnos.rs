//! Every errno that POSIX and Linux's manual pages name for the calls on names and attributes, from real
//! calls.

use crate::common::{Mounted, Sandbox, can_mount, copy_program, succeeds};
use crate::{USER, as_user, open_to_all};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, RawMode, RenameFlags, Timespec, Timestamps, UTIME_NOW, Uid,
    chmod, chownat, linkat, makedev, mkdir, mknodat, open, readlink, rename, renameat_with, rmdir, statat,
    symlink, unlink, utimensat,
};
use rustix::io::Errno;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A call, its result, and the expected error.
type Case = (&'static str, Result<(), Errno>, Errno);

/// A tree with one of everything: `f`, `empty`, `full/x`, `link` to `f`, `dangling`, `loop`, `fifo`.
fn tree(mounted: &Mounted) {
    let at = |name: &str| mounted.path(name);
    fs::write(at("f"), b"bytes").expect("a file");
    fs::create_dir(at("empty")).expect("a directory");
    fs::create_dir_all(at("full/x")).expect("directories");
    for (target, name) in [("f", "link"), ("nowhere", "dangling"), ("loop", "loop")] {
        std::os::unix::fs::symlink(target, at(name)).expect("a link");
    }
    mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a FIFO");
}

fn check(cases: Vec<Case>) {
    for (what, found, expected) in cases {
        assert_eq!(found, Err(expected), "{what}");
    }
}

const fn mode(bits: RawMode) -> Mode {
    Mode::from_raw_mode(bits)
}

#[test]
fn lookups_and_opens() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    tree(&mounted);
    let at = |name: &str| mounted.path(name);
    let stat = |name: &str| statat(CWD, at(name), AtFlags::empty()).map(drop);
    let open = |name: &str, flags: OFlags| open(at(name), flags, mode(0o600)).map(drop);
    let (long, deep) = ("n".repeat(256), "d/".repeat(2048));
    check(vec![
        ("stat of nothing", stat("nothing"), Errno::NOENT),
        ("stat below nothing", stat("nothing/x"), Errno::NOENT),
        ("stat below a file", stat("f/x"), Errno::NOTDIR),
        ("stat of a file as a directory", stat("f/"), Errno::NOTDIR),
        ("stat through a loop", stat("loop"), Errno::LOOP),
        ("stat through a link to nothing", stat("dangling"), Errno::NOENT),
        ("a name of 256 bytes", stat(&long), Errno::NAMETOOLONG),
        ("a path of more than 4095 bytes", stat(&deep), Errno::NAMETOOLONG),
        ("create what exists", open("f", OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY), Errno::EXIST),
        ("create over a link to nothing", open("dangling", OFlags::CREATE | OFlags::EXCL), Errno::EXIST),
        ("create below nothing", open("nothing/x", OFlags::CREATE | OFlags::WRONLY), Errno::NOENT),
        ("create below a file", open("f/x", OFlags::CREATE | OFlags::WRONLY), Errno::NOTDIR),
        ("create a name of 256 bytes", open(&long, OFlags::CREATE | OFlags::WRONLY), Errno::NAMETOOLONG),
        ("write to a directory", open("empty", OFlags::WRONLY), Errno::ISDIR),
        ("create over a directory", open("empty", OFlags::CREATE | OFlags::RDWR), Errno::ISDIR),
        ("truncate a directory", open("empty", OFlags::TRUNC | OFlags::RDWR), Errno::ISDIR),
        ("a directory that is a file", open("f", OFlags::DIRECTORY), Errno::NOTDIR),
        ("a link, not followed", open("link", OFlags::NOFOLLOW), Errno::LOOP),
        ("a FIFO that nobody reads", open("fifo", OFlags::WRONLY | OFlags::NONBLOCK), Errno::NXIO),
        ("a link's target of a file", readlink(at("f"), Vec::new()).map(drop), Errno::INVAL),
        ("a link's target of nothing", readlink(at("nothing"), Vec::new()).map(drop), Errno::NOENT),
    ]);
    let socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("a socket");
    assert_eq!(open("socket", OFlags::RDONLY), Err(Errno::NXIO), "open of a socket");
    drop(socket);
    copy_program("/bin/sleep", &at("busy"));
    let mut busy = Command::new(at("busy")).arg("60").spawn().expect("it runs");
    let written = open("busy", OFlags::WRONLY);
    busy.kill().and_then(|()| busy.wait()).expect("it ends");
    assert_eq!(written, Err(Errno::TXTBSY), "a program that runs");
    mounted.unmount();
}

#[test]
fn names_that_come_go_and_move() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    tree(&mounted);
    let at = |name: &str| mounted.path(name);
    let move_to = |from: &str, to: &str| rename(at(from), at(to));
    let flags = |from: &str, to: &str, flags| renameat_with(CWD, at(from), CWD, at(to), flags);
    let link = |from: &str, to: &str| linkat(CWD, at(from), CWD, at(to), AtFlags::empty());
    let node = |name: &str| mknodat(CWD, at(name), FileType::Fifo, mode(0o600), 0);
    let elsewhere: PathBuf = sandbox.path("elsewhere");
    let long = "n".repeat(256);
    check(vec![
        ("mkdir of what exists", mkdir(at("f"), mode(0o755)), Errno::EXIST),
        ("mkdir of a link to nothing", mkdir(at("dangling"), mode(0o755)), Errno::EXIST),
        ("mkdir below nothing", mkdir(at("nothing/x"), mode(0o755)), Errno::NOENT),
        ("mkdir below a file", mkdir(at("f/x"), mode(0o755)), Errno::NOTDIR),
        ("mkdir of 256 bytes", mkdir(at(&long), mode(0o755)), Errno::NAMETOOLONG),
        ("mknod of what exists", node("f"), Errno::EXIST),
        ("mknod below nothing", node("nothing/x"), Errno::NOENT),
        ("mknod of 256 bytes", node(&long), Errno::NAMETOOLONG),
        ("rmdir of a full directory", rmdir(at("full")), Errno::NOTEMPTY),
        ("rmdir of a file", rmdir(at("f")), Errno::NOTDIR),
        ("rmdir of nothing", rmdir(at("nothing")), Errno::NOENT),
        ("rmdir of .", rmdir(at("empty/.")), Errno::INVAL),
        ("rmdir of ..", rmdir(at("full/x/..")), Errno::NOTEMPTY),
        ("rmdir of the mount", rmdir(mounted.dir()), Errno::BUSY),
        ("unlink of a directory", unlink(at("empty")), Errno::ISDIR),
        ("unlink of nothing", unlink(at("nothing")), Errno::NOENT),
        ("unlink below a file", unlink(at("f/x")), Errno::NOTDIR),
        ("a link to a directory", link("empty", "new"), Errno::PERM),
        ("a link over a name", link("f", "link"), Errno::EXIST),
        ("a link to nothing", link("nothing", "new"), Errno::NOENT),
        ("a link of 256 bytes", link("f", &long), Errno::NAMETOOLONG),
        ("a link to elsewhere", linkat(CWD, at("f"), CWD, &elsewhere, AtFlags::empty()), Errno::XDEV),
        ("a symbolic link over a name", symlink("x", at("f")), Errno::EXIST),
        ("an empty symbolic link", symlink("", at("new")), Errno::NOENT),
        ("a symbolic link of 4096 bytes", symlink("x".repeat(4096), at("new")), Errno::NAMETOOLONG),
        ("rename of nothing", move_to("nothing", "new"), Errno::NOENT),
        ("rename into nothing", move_to("f", "nothing/new"), Errno::NOENT),
        ("rename into a file", move_to("empty", "f/new"), Errno::NOTDIR),
        ("rename of a file over a directory", move_to("f", "empty"), Errno::ISDIR),
        ("rename of a directory over a file", move_to("empty", "f"), Errno::NOTDIR),
        ("rename over a full directory", move_to("empty", "full"), Errno::NOTEMPTY),
        ("rename into itself", move_to("full", "full/x/new"), Errno::INVAL),
        ("rename of .", move_to("full/.", "new"), Errno::BUSY),
        ("rename of 256 bytes", move_to("f", &long), Errno::NAMETOOLONG),
        ("rename to elsewhere", rename(at("f"), &elsewhere), Errno::XDEV),
        ("rename that must not replace", flags("f", "link", RenameFlags::NOREPLACE), Errno::EXIST),
        ("exchange with nothing", flags("f", "nothing", RenameFlags::EXCHANGE), Errno::NOENT),
        ("exchange with what is below", flags("full", "full/x", RenameFlags::EXCHANGE), Errno::INVAL),
        (
            "a whiteout for what is exchanged",
            flags("f", "link", RenameFlags::WHITEOUT | RenameFlags::EXCHANGE),
            Errno::INVAL,
        ),
    ]);
    symlink("x".repeat(4095), at("new")).expect("a link of 4095 bytes");
    mounted.unmount();
}

#[test]
fn attributes_and_access() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    tree(&mounted);
    let at = |name: &str| mounted.path(name);
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times =
        |nanos| Timestamps { last_access: now, last_modification: Timespec { tv_sec: 1, tv_nsec: nanos } };
    let touch = |name: &str, nanos| utimensat(CWD, at(name), &times(nanos), AtFlags::empty());
    let owner = Some(Uid::from_raw(5));
    let file = fs::File::options().write(true).open(at("f")).expect("a file");
    let read_only = fs::File::open(at("f")).expect("a file");
    check(vec![
        ("chmod of nothing", chmod(at("nothing"), mode(0o600)), Errno::NOENT),
        ("chmod through a loop", chmod(at("loop"), mode(0o600)), Errno::LOOP),
        ("chown of nothing", chownat(CWD, at("nothing"), owner, None, AtFlags::empty()), Errno::NOENT),
        (
            "chown below a file",
            chownat(CWD, at("f/x"), None, Some(Gid::from_raw(5)), AtFlags::empty()),
            Errno::NOTDIR,
        ),
        ("times of nothing", touch("nothing", 0), Errno::NOENT),
        ("a second of 10^9 nanoseconds", touch("f", 1_000_000_000), Errno::INVAL),
        ("a size beyond all", rustix::fs::ftruncate(&file, 1 << 62), Errno::FBIG),
        ("a size past the largest file", rustix::fs::ftruncate(&file, (1 << 47) + 1), Errno::FBIG),
        ("truncation of what is open to read", rustix::fs::ftruncate(&read_only, 1), Errno::INVAL),
        (
            "a position before the start",
            rustix::fs::seek(&file, rustix::fs::SeekFrom::Current(-1)).map(drop),
            Errno::INVAL,
        ),
    ]);
    assert_eq!(fs::metadata(at("f")).expect("it").len(), 5, "as it was");
    drop((file, read_only));
    // Only the owner, or only root, may do these. Other users get EPERM or EACCES.
    for (script, said) in [
        ("chmod 777 f", "Operation not permitted"),
        ("chown 1000 f", "Operation not permitted"),
        ("chgrp 1000 f", "Operation not permitted"),
        ("touch f", "Permission denied"),
        ("echo >f", "Permission denied"),
        ("truncate -s 1 f", "Permission denied"),
        ("mkdir full/new", "Permission denied"),
        ("ln f full/new", "Operation not permitted"),
        ("rmdir full/x", "Permission denied"),
        ("mv full/x new", "Permission denied"),
        ("rm -f f", "Operation not permitted"),
        ("mknod null c 1 3", "Operation not permitted"),
        ("setpriv --nnp true && mknod disk b 8 0", "Operation not permitted"),
    ] {
        let refused = as_user(&mounted, USER, script).expect_err(script);
        assert!(refused.contains(said), "{script}: {refused}");
    }
    chmod(at("full"), mode(0o600)).expect("a mode");
    assert!(as_user(&mounted, USER, "stat full/x").expect_err("no way in").contains("Permission denied"));
    as_user(&mounted, USER, "mkfifo mine").expect("a FIFO needs no privilege");
    mknodat(CWD, at("null"), FileType::CharacterDevice, mode(0o666), makedev(1, 3)).expect("root may");
    mounted.unmount();
}

#[test]
fn a_mount_that_is_read_only_refuses_every_change() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    tree(&mounted);
    let at = |name: &str| mounted.path(name);
    succeeds(Command::new("mount").args(["-i", "-o", "remount,ro"]).arg(mounted.dir()));
    let xattr = rustix::fs::setxattr(at("f"), "user.a", b"", rustix::fs::XattrFlags::empty());
    check(vec![
        ("create", open(at("new"), OFlags::CREATE | OFlags::WRONLY, mode(0o600)).map(drop), Errno::ROFS),
        ("write", open(at("f"), OFlags::WRONLY, mode(0)).map(drop), Errno::ROFS),
        ("mkdir", mkdir(at("new"), mode(0o755)), Errno::ROFS),
        ("mknod", mknodat(CWD, at("new"), FileType::Fifo, mode(0o600), 0), Errno::ROFS),
        ("unlink", unlink(at("f")), Errno::ROFS),
        ("rmdir", rmdir(at("empty")), Errno::ROFS),
        ("link", linkat(CWD, at("f"), CWD, at("new"), AtFlags::empty()), Errno::ROFS),
        ("symlink", symlink("f", at("new")), Errno::ROFS),
        ("rename", rename(at("f"), at("new")), Errno::ROFS),
        ("chmod", chmod(at("f"), mode(0o600)), Errno::ROFS),
        ("chown", chownat(CWD, at("f"), Some(Uid::from_raw(5)), None, AtFlags::empty()), Errno::ROFS),
        ("setxattr", xattr, Errno::ROFS),
    ]);
    assert_eq!(fs::read(at("f")).expect("reading works"), b"bytes");
    succeeds(Command::new("mount").args(["-i", "-o", "remount,rw"]).arg(mounted.dir()));
    fs::write(at("f"), b"again").expect("writing works again");
    mounted.unmount();
}
