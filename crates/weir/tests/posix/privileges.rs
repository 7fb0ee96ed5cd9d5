//! setuid, setgid, the sticky bit, file capabilities, and groups.

use crate::common::{Mounted, Sandbox, can_mount, copy_program, succeeds};
use crate::{USER, as_user, as_user_in, compiled_calls, crash, open_to_all};
use rustix::fs::{XattrFlags, getxattr_query, setxattr};
use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

fn mode(mounted: &Mounted, file: &str) -> u32 {
    fs::metadata(mounted.path(file)).expect("it is there").mode() & 0o7777
}

fn chmod(mounted: &Mounted, file: &str, mode: u32) {
    fs::set_permissions(mounted.path(file), Permissions::from_mode(mode)).expect("a mode");
}

/// A valid `security.capability`: CAP_NET_RAW, permitted, in the format of version 2.
const CAPABILITY: [u8; 20] = [0, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn whoever_changes_a_files_content_takes_its_powers_unless_he_is_root() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    fs::write(mounted.path("f"), b"some bytes").expect("a file");
    for script in [
        "printf x >>f",
        "printf x 1<>f",
        ": >f",
        "truncate -s 5 f",
        "truncate -s 5000 f",
        "dd if=/dev/zero of=f bs=4096 count=1 conv=notrunc oflag=direct status=none",
    ] {
        chmod(&mounted, "f", 0o6777);
        as_user(&mounted, USER, script).expect("everybody may write it");
        assert_eq!(mode(&mounted, "f"), 0o777, "after {script}");
        chmod(&mounted, "f", 0o2767);
        as_user(&mounted, USER, script).expect("everybody may write it");
        assert_eq!(mode(&mounted, "f"), 0o767, "he is not in the group: {script}");
        chmod(&mounted, "f", 0o6777);
        succeeds(Command::new("sh").args(["-ec", script]).current_dir(mounted.dir()));
        assert_eq!(mode(&mounted, "f"), 0o6777, "root may: {script}");
    }
    let mounted = crash(&sandbox, mounted);
    assert_eq!(mode(&mounted, "f"), 0o6777);
    mounted.unmount();
}

#[test]
fn a_new_owner_does_not_get_the_old_ones_powers_even_from_root() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    fs::write(mounted.path("f"), b"").expect("a file");
    fs::create_dir(mounted.path("d")).expect("a directory");
    for (uid, gid) in [(Some(7), None), (None, Some(8)), (Some(9), Some(9))] {
        chmod(&mounted, "f", 0o6755);
        chmod(&mounted, "d", 0o6755);
        chown(mounted.path("f"), uid, gid).expect("a new owner");
        chown(mounted.path("d"), uid, gid).expect("a new owner");
        assert_eq!((mode(&mounted, "f"), mode(&mounted, "d")), (0o755, 0o6755));
    }
    // The owner may give the file to one of his groups, which also clears the bits.
    chown(mounted.path("f"), Some(1000), Some(1000)).expect("a user's");
    chmod(&mounted, "f", 0o6755);
    as_user(&mounted, (1000, 1000, "2000"), "chgrp 2000 f").expect("a group of his");
    assert_eq!((mode(&mounted, "f"), fs::metadata(mounted.path("f")).expect("it").gid()), (0o755, 2000));
    assert!(as_user(&mounted, (1000, 1000, ""), "chgrp 3000 f").is_err(), "not a group of his");
    assert!(as_user(&mounted, (1000, 1000, ""), "chown 1001 f").is_err());
    // chmod by an owner outside the file's group does not set setgid.
    as_user(&mounted, (1000, 1000, ""), "chmod 2755 f").expect("his file");
    assert_eq!(mode(&mounted, "f"), 0o755);
    mounted.unmount();
}

#[test]
fn capabilities_go_with_the_content_they_were_given_to() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    fs::write(mounted.path("f"), b"bytes").expect("a file");
    chmod(&mounted, "f", 0o777);
    let name = "security.capability";
    let write =
        |bytes: &[u8]| OpenOptions::new().append(true).open(mounted.path("f")).expect("it").write_all(bytes);
    let grant = || {
        setxattr(mounted.path("f"), name, &CAPABILITY, XattrFlags::empty()).expect("capabilities");
        setxattr(mounted.path("f"), "user.other", b"stays", XattrFlags::empty()).expect("an attribute");
    };
    let has = || getxattr_query(mounted.path("f"), name).is_ok();
    let other = || getxattr_query(mounted.path("f"), "user.other").is_ok();
    let check = |what: &str| assert!(!has() && other(), "after {what}");
    grant();
    assert!(has());
    write(b"x").expect("root writes");
    check("a write by root");
    grant();
    as_user(&mounted, USER, "printf x >>f").expect("a user writes");
    check("a write by a user");
    grant();
    fs::File::options().write(true).open(mounted.path("f")).expect("it").set_len(3).expect("shorter");
    check("truncation");
    grant();
    chown(mounted.path("f"), Some(5), None).expect("a new owner");
    check("chown");
    grant();
    chmod(&mounted, "f", 0o755);
    assert!(has(), "chmod is no new content");
    // A second write does not restore the privileges.
    write(b"y").expect("a write");
    write(b"z").expect("another");
    assert!(!has());
    mounted.unmount();
}

#[test]
fn a_program_that_somebody_changed_runs_without_its_owners_powers_at_once() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    // The mount has nosuid, as every FUSE mount.
    succeeds(Command::new("mount").args(["-i", "-o", "remount,suid"]).arg(mounted.dir()));
    copy_program("/usr/bin/id", &mounted.path("id"));
    chmod(&mounted, "id", 0o6777);
    assert_eq!(as_user(&mounted, USER, "./id -u; ./id -g").expect("it runs"), "0\n0");
    // No stat in between, which would tell the kernel the new mode.
    assert_eq!(
        as_user(&mounted, USER, "printf '\\0' >>id; ./id -u; ./id -g").expect("it runs"),
        "1000\n1000"
    );
    mounted.unmount();
}

#[test]
fn groups_are_inherited_where_setgid_says_so_and_the_sticky_bit_protects_names() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    fs::create_dir(mounted.path("shared")).expect("a directory");
    chown(mounted.path("shared"), None, Some(2000)).expect("a group");
    chmod(&mounted, "shared", 0o2777);
    as_user(&mounted, (1000, 1000, ""), "cd shared; echo >f; mkdir d; mkfifo p; ln -s f l; mkdir d/e")
        .expect("made");
    for name in ["f", "d", "p", "l", "d/e"] {
        let found = fs::symlink_metadata(mounted.path("shared").join(name)).expect("it is there");
        assert_eq!((found.uid(), found.gid()), (1000, 2000), "{name}");
        assert_eq!(found.mode() & 0o2000 != 0, found.is_dir(), "{name}");
    }
    as_user(&mounted, (1000, 1000, ""), "echo >plain").expect("made");
    assert_eq!(fs::metadata(mounted.path("plain")).expect("it").gid(), 1000);
    // The root of the mount is sticky: a user who may write there may not remove other users' names.
    let other = (1001, 1001, "");
    for script in ["rm -f plain", "mv plain mine", "echo >new; mv -f new plain"] {
        assert!(as_user(&mounted, other, script).is_err(), "{script}");
    }
    as_user(&mounted, other, "rm -f shared/f").expect("not sticky");
    as_user(&mounted, USER, "mv plain renamed; rm renamed").expect("the owner may");
    mounted.unmount();
}

/// Commands that change a file's content, each with one kind of call. `fallocate` is that of util-linux.
const CHANGES: [&str; 16] = [
    "printf x >>f",
    "printf x 1<>f",
    "dd if=/dev/zero of=f bs=4096 count=1 conv=notrunc oflag=direct status=none",
    "dd if=/dev/zero of=f bs=1 count=1 conv=notrunc oflag=sync status=none",
    ": >f",
    "truncate -s 5 f",
    "truncate -s 20000 f",
    "perl -e 'truncate(\"f\", 100) or die'",
    "fallocate -l 30000 f",
    "fallocate -n -l 30000 f",
    "fallocate -o 0 -l 100 f",
    "fallocate -p -o 0 -l 4096 f",
    "fallocate -z -o 4096 -l 4096 f",
    "fallocate -z -n -o 0 -l 100 f",
    "../call copy g f",
    "../call send g f",
];

/// Runs `change` as this user on a file in `dir` with the owner root, group 7 and the mode `before`. Returns
/// the mode afterwards, and whether the file still has its capabilities, or the error.
fn changed_by(dir: &Path, user: (u32, u32, &str), change: &str, before: u32) -> Result<(u32, bool), String> {
    let (file, name) = (dir.join("f"), "security.capability");
    fs::write(&file, vec![1; 10_000]).expect("a file");
    chown(&file, Some(0), Some(7)).expect("an owner");
    fs::set_permissions(&file, Permissions::from_mode(before)).expect("a mode");
    // Before root's own writes to a file with a capability, the kernel asks weir to clear powers, with the
    // same request as for other users.
    let is_granted = user.0 != 0 || before & 0o6000 == 0;
    if is_granted {
        setxattr(&file, name, &CAPABILITY, XattrFlags::empty()).expect("capabilities");
    }
    as_user_in(dir, user, change)?;
    Ok((fs::metadata(&file).expect("it").mode() & 0o7777, getxattr_query(&file, name).is_ok()))
}

#[test]
fn every_call_that_changes_content_takes_the_powers_that_the_machines_own_file_system_takes() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    compiled_calls(&sandbox);
    let mounted = open_to_all(&sandbox);
    let own = sandbox.path("own");
    fs::create_dir(&own).expect("a directory");
    for dir in [&own, mounted.dir()] {
        fs::set_permissions(dir, Permissions::from_mode(0o777)).expect("a mode");
        fs::write(dir.join("g"), "bytes").expect("a file");
    }
    let (stranger, member, primary, root) = ((1000, 1000, ""), (1000, 1000, "7"), (1000, 7, ""), (0, 0, ""));
    let mut compared = 0;
    for change in CHANGES {
        for user in [stranger, member, primary, root] {
            for before in [0o777, 0o4777, 0o6777, 0o2777, 0o2767, 0o6766] {
                let what = format!("{change} by {user:?} of {before:o}");
                let right = match changed_by(&own, user, change, before) {
                    Ok(right) => right,
                    Err(said) if said.contains("not supported") => continue,
                    Err(said) => panic!("{what}: {said}"),
                };
                let found = changed_by(mounted.dir(), user, change, before).expect(&what);
                // A member of the group may keep a setgid bit that gives no power. weir removes the bit if it
                // cannot know whether the user is a member.
                let is_members = (user == member || user == primary) && before & 0o2010 == 0o2000;
                let more = (right.0 & !0o2000, right.1);
                assert!(
                    found == right || is_members && found == more,
                    "{what}: {:o}, not {:o}; {} {}",
                    found.0,
                    right.0,
                    found.1,
                    right.1
                );
                compared += 1;
            }
        }
    }
    assert!(compared > 300, "only {compared} were compared");
    mounted.unmount();
}

/// Runs `change` in `dir` with these options of `setpriv`.
fn with_capabilities(dir: &Path, options: &[&str], change: &str) {
    succeeds(Command::new("setpriv").args(options).args(["sh", "-ec", change]).current_dir(dir));
}

#[test]
fn truncation_takes_powers_unless_the_caller_has_cap_fsetid_whoever_he_is() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    let own = sandbox.path("own");
    fs::create_dir(&own).expect("a directory");
    fs::set_permissions(&own, Permissions::from_mode(0o777)).expect("a mode");
    let user =
        ["--reuid=1000", "--regid=1000", "--clear-groups", "--inh-caps=+fsetid", "--ambient-caps=+fsetid"];
    let callers =
        [("a user who has it", &user[..], 0o6777), ("root without it", &["--bounding-set=-fsetid"], 0o777)];
    for (caller, options, expected) in callers {
        for change in ["truncate -s 5 f", "truncate -s 20000 f", ": >f"] {
            for dir in [&own, mounted.dir()] {
                fs::write(dir.join("f"), vec![1; 10_000]).expect("a file");
                fs::set_permissions(dir.join("f"), Permissions::from_mode(0o6777)).expect("a mode");
                with_capabilities(dir, options, change);
                let mode = fs::metadata(dir.join("f")).expect("it").mode() & 0o7777;
                assert_eq!(mode, expected, "{change} by {caller} in {}", dir.display());
            }
        }
    }
    mounted.unmount();
}
