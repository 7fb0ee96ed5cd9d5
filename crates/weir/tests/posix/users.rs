//! Several users on one mount: ownership, permissions and times.

use crate::common::{Sandbox, can_mount, next_tick};
use crate::{USER, as_user, open_to_all};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

#[test]
fn everybody_owns_what_he_makes_and_permissions_hold_between_users() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    as_user(&mounted, USER, "umask 077; mkdir home; echo secret >home/f; echo shared >open; chmod 644 open")
        .expect("made");
    let found = fs::metadata(mounted.path("home/f")).expect("root may");
    assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (1000, 1000, 0o600));
    let other = (1001, 1001, "");
    assert!(as_user(&mounted, other, "ls home").expect_err("not theirs").contains("Permission denied"));
    assert!(as_user(&mounted, other, "cat home/f").is_err());
    assert_eq!(as_user(&mounted, other, "cat open").expect("everybody reads it"), "shared");
    for script in
        ["echo >>open", "chmod 666 open", "chown 1001 open", "touch -d 2001-01-01 open", "mkdir home/d"]
    {
        assert!(as_user(&mounted, other, script).is_err(), "{script}");
    }
    // A member of the file's group has the group's permissions.
    fs::set_permissions(mounted.path("home"), Permissions::from_mode(0o750)).expect("a mode");
    assert_eq!(as_user(&mounted, (1001, 1001, "1000"), "ls home").expect("a member"), "f");
    assert!(as_user(&mounted, (1001, 1001, "1000"), "rm -f home/f").is_err());
    mounted.unmount();
}

#[test]
fn without_allow_other_nobody_else_enters() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    fs::set_permissions(sandbox.path("."), Permissions::from_mode(0o755)).expect("the way there");
    let mounted = sandbox.mount();
    fs::write(mounted.path("f"), b"").expect("root's");
    fs::set_permissions(mounted.path("f"), Permissions::from_mode(0o666)).expect("a mode");
    // The shell cannot even change to it.
    let mut command = std::process::Command::new("setpriv");
    command.args(["--reuid=1000", "--regid=1000", "--clear-groups", "cat"]).arg(mounted.path("f"));
    assert!(!command.output().expect("setpriv runs").status.success());
    mounted.unmount();
}

#[test]
fn times_change_as_posix_says_and_reading_changes_none() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    let path = |name: &str| mounted.path(name);
    let times = |name: &str| {
        let found = fs::symlink_metadata(mounted.path(name)).expect("it is there");
        let nanos = |seconds: i64, nanos: i64| seconds * 1_000_000_000 + nanos;
        [
            nanos(found.atime(), found.atime_nsec()),
            nanos(found.mtime(), found.mtime_nsec()),
            nanos(found.ctime(), found.ctime_nsec()),
        ]
    };
    // Which of the times (access, modification, change) a step changes, of a file and of its directory.
    let step = |what: &str, file: &str, expected: [[bool; 3]; 2], act: &dyn Fn()| {
        let before = [times(file), times("d")];
        next_tick();
        act();
        let file = if what == "rename" { "d/g" } else { file };
        let after = [times(file), times("d")];
        for (which, expected) in expected.iter().enumerate() {
            let changed = [0, 1, 2].map(|at| before[which][at] != after[which][at]);
            assert_eq!(&changed, expected, "{what}: {}", ["the file", "its directory"][which]);
        }
    };
    let (none, all) = ([false; 3], [false, true, true]);
    let change = [false, false, true];
    fs::create_dir(path("d")).expect("a directory");
    fs::write(path("d/f"), b"bytes").expect("a file");
    step("write", "d/f", [all, none], &|| fs::write(path("d/f"), b"other").expect("a write"));
    step("read", "d/f", [none, none], &|| drop(fs::read(path("d/f")).expect("a read")));
    step("readdir", "d", [none, none], &|| {
        assert_eq!(fs::read_dir(path("d")).expect("a listing").count(), 1);
    });
    step("chmod", "d/f", [change, none], &|| {
        fs::set_permissions(path("d/f"), Permissions::from_mode(0o600)).expect("a mode");
    });
    step("link", "d/f", [change, all], &|| fs::hard_link(path("d/f"), path("d/l")).expect("a link"));
    step("unlink", "d/f", [change, all], &|| fs::remove_file(path("d/l")).expect("removed"));
    step("setxattr", "d/f", [change, none], &|| {
        rustix::fs::setxattr(path("d/f"), "user.a", b"", rustix::fs::XattrFlags::empty()).expect("set");
    });
    step("removexattr", "d/f", [change, none], &|| {
        rustix::fs::removexattr(path("d/f"), "user.a").expect("removed");
    });
    step("truncate", "d/f", [all, none], &|| {
        fs::File::options().write(true).open(path("d/f")).expect("it").set_len(2).expect("shorter");
    });
    step("rename", "d/f", [change, all], &|| fs::rename(path("d/f"), path("d/g")).expect("renamed"));
    step("mkdir", "d/g", [none, all], &|| fs::create_dir(path("d/sub")).expect("made"));
    step("rmdir", "d/g", [none, all], &|| fs::remove_dir(path("d/sub")).expect("removed"));
    mounted.unmount();
}
