//! Several users on one mount, and a user who mounts for himself.

use crate::common::{Sandbox, can_mount, in_mount_namespace, succeeds, weir};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

/// Runs a line of shell as another user, in `dir`.
fn as_user(user: u32, dir: &Path, line: &str) -> Output {
    let user = user.to_string();
    Command::new("setpriv")
        .args(["--reuid", &user, "--regid", &user, "--clear-groups", "sh", "-c", line])
        .current_dir(dir)
        .output()
        .expect("setpriv starts; util-linux has it")
}

#[track_caller]
fn may(user: u32, dir: &Path, line: &str) {
    let output = as_user(user, dir, line);
    assert!(output.status.success(), "{user}: {line}: {}", String::from_utf8_lossy(&output.stderr));
}

#[track_caller]
fn may_not(user: u32, dir: &Path, line: &str) {
    let output = as_user(user, dir, line);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{user}: {line} was let through");
    assert!(said.contains("ermission denied") || said.contains("not permitted"), "{line}: {said}");
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("permissions");
}

#[test]
fn users_share_a_mount_by_the_usual_rules() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    open_to_all(&sandbox.path("."));
    let mounted = sandbox.mount_with(&["--allow-other"]);
    let dir = mounted.dir();
    fs::create_dir(mounted.path("shared")).expect("a directory");
    fs::set_permissions(mounted.path("shared"), fs::Permissions::from_mode(0o1777)).expect("permissions");
    let shared = mounted.path("shared");
    may_not(1001, dir, "echo mine > file");
    may(1001, &shared, "umask 027; echo mine > one; mkdir own; echo secret > own/file; chmod 700 own");
    let made = fs::metadata(shared.join("one")).expect("metadata");
    assert_eq!((made.uid(), made.gid(), made.mode() & 0o777), (1001, 1001, 0o640));
    may_not(1002, &shared, "cat one");
    may_not(1002, &shared, "cat own/file");
    may_not(1002, &shared, "mv one other");
    may_not(1002, &shared, "chmod 666 one");
    may(1001, &shared, "chmod 644 one");
    may(1002, &shared, "cat one; echo two > two");
    // Only users who may write may punch a hole.
    may_not(1002, &shared, "fallocate -p -o 0 -l 1 one");
    may(1001, &shared, "fallocate -p -o 0 -l 1 one");
    may(0, dir, "cat shared/own/file");
    std::thread::scope(|scope| {
        for user in [1001, 1002, 1003] {
            let shared = &shared;
            let line = "set -e; for i in $(seq 50); do echo $i > $(id -u).$i; done; rm $(id -u).[1-4]*";
            scope.spawn(move || may(user, shared, line));
        }
    });
    mounted.unmount();
    let mounted = sandbox.mount_with(&["--allow-other"]);
    let owners = |user: u32| {
        let listing = fs::read_dir(mounted.path("shared")).expect("a listing");
        let files = listing.map(|entry| entry.expect("an entry").metadata().expect("metadata"));
        files.filter(|found| found.uid() == user).count()
    };
    // 5 to 9 and 50; one also "one" and "own", the other "two".
    assert_eq!([1001, 1002, 1003].map(owners), [6 + 2, 6 + 1, 6]);
}

#[test]
fn without_allow_other_the_mount_is_its_owners_alone() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    open_to_all(&sandbox.path("."));
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), b"root's").expect("a file");
    let mount = mounted.dir().display().to_string();
    may_not(1001, Path::new("/"), &format!("cat {mount}/file"));
    may_not(1001, Path::new("/"), &format!("ls {mount}"));
}

/// In a mount namespace of its own, where /dev/fuse is open to all as it is on most machines. `nobody` does
/// it, because fusermount3 asks for a name.
#[test]
fn a_user_mounts_for_himself_with_fusermount3() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    open_to_all(&sandbox.path("."));
    let home = sandbox.path("home");
    fs::create_dir(&home).expect("a directory");
    std::os::unix::fs::chown(&home, Some(65534), Some(65534)).expect("chown");
    let script = r#"
        set -eu
        mknod "$HOME/../fuse" c 10 229
        chmod 666 "$HOME/../fuse"
        mount --bind "$HOME/../fuse" /dev/fuse
        exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -euc '
            cd "$HOME"
            "$WEIR" format --size 64MiB --buffer-size 8MiB store
            mkdir mnt
            "$WEIR" mount store mnt
            echo mine > mnt/file
            "$WEIR" sync mnt
            "$WEIR" status mnt > status
            test "$(stat -c %u:%g mnt/file)" = 65534:65534
            "$WEIR" unmount mnt
            ! test -e mnt/file
            "$WEIR" check store
            "$WEIR" mount --read-only store mnt
            test "$(cat mnt/file)" = mine
            ! touch mnt/new 2> refused
            grep -i "read-only" refused
            pid=$("$WEIR" status --json mnt | sed -n "s/.*\"pid\": *\([0-9]*\).*/\1/p")
            kill "$pid"
            for i in $(seq 500); do kill -0 "$pid" 2> gone || break; sleep 0.02; done
            ! test -e mnt/file
            if "$WEIR" mount --allow-other store mnt 2> refused; then "$WEIR" unmount mnt; exit 1; fi
            grep user_allow_other refused
        '"#;
    let mut nobody = in_mount_namespace(script);
    nobody
        .env("HOME", &home)
        .env("WEIR", weir().get_program())
        .env("TMPDIR", &home)
        .env_remove("XDG_RUNTIME_DIR");
    succeeds(&mut nobody);
}
