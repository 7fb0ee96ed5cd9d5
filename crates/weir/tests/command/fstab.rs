//! `mount -t weir` and lines of fstab. `mount` looks for `mount.weir` in /usr/sbin, so each test has a directory of its own
//! there, in a mount namespace that ends with the test.

use crate::common::{Sandbox, assert_says, can_mount, in_mount_namespace, succeeds, weir};
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Output;

/// Runs a script as root, in a namespace in which `mount -t weir` is this build.
fn with_helper(sandbox: &Sandbox, script: &str) -> Output {
    let helpers = sandbox.path("helpers");
    fs::create_dir_all(&helpers).expect("a new directory");
    for helper in ["mount.weir", "umount.fuse.weir"].map(|name| helpers.join(name)) {
        if !helper.is_symlink() {
            symlink(env!("CARGO_BIN_EXE_weir"), helper).expect("a link");
        }
    }
    let script = format!("mount --bind {} /usr/sbin\n{script}", helpers.display());
    let mut command = in_mount_namespace(&script);
    command.env("STORE", sandbox.store()).env("DIR", sandbox.path("dir")).env("FSTAB", sandbox.path("fstab"));
    command.env("WEIR", env!("CARGO_BIN_EXE_weir"));
    command.env("PATH", "/usr/bin:/bin").output().expect("unshare starts")
}

fn sandbox() -> Option<Sandbox> {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return None;
    }
    let sandbox = Sandbox::formatted();
    fs::create_dir(sandbox.path("dir")).expect("a new directory");
    Some(sandbox)
}

#[test]
fn mount_mounts_a_store_by_its_type_and_umount_ends_it() {
    let Some(sandbox) = sandbox() else { return };
    let done = with_helper(
        &sandbox,
        "mount -t weir -o nofail,x-systemd.device-timeout=9,memory=64MiB $STORE $DIR
         echo kept > $DIR/file
         mount -t weir $STORE $DIR && exit 9
         sync -f $DIR/file; $WEIR sync $DIR
         kill -9 $($WEIR status --json $DIR | grep -o '\"pid\": [0-9]*' | grep -o '[0-9]*')
         cat $DIR/file 2>$DIR.why && exit 9
         umount $DIR
         mount -t weir $STORE $DIR
         umount $DIR",
    );
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let fstab = format!(
        "{0} {1} weir volume=main,ro,noauto 0 0\n",
        sandbox.store().display(),
        sandbox.path("dir").display()
    );
    fs::write(sandbox.path("fstab"), fstab).expect("space");
    let done = with_helper(
        &sandbox,
        "mount --fstab $FSTAB $DIR
         cat $DIR/file
         touch $DIR/new && exit 9
         umount $DIR",
    );
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(String::from_utf8_lossy(&done.stdout), "kept\n");
    succeeds(weir().arg("check").arg(sandbox.store()));
}

#[test]
fn wrong_lines_say_what_is_wrong_with_them() {
    let Some(sandbox) = sandbox() else { return };
    for (options, part) in [
        ("voluem=main", "voluem: weir does not know this option"),
        ("volume=missing", "there is no volume missing"),
        ("memory=many", "invalid value 'many' for '--memory"),
        ("remount,ro", "remount"),
    ] {
        let done = with_helper(&sandbox, &format!("mount -t weir -o {options} $STORE $DIR"));
        assert!(!done.status.success(), "{options}");
        assert_says(&String::from_utf8_lossy(&done.stderr), part);
    }
    let done = with_helper(&sandbox, "mount -t weir $STORE/missing $DIR");
    assert!(!done.status.success());
    assert_says(&String::from_utf8_lossy(&done.stderr), "there is no store here");
}

#[test]
fn umount_returns_when_everything_is_written_back() {
    let Some(sandbox) = sandbox() else { return };
    let done = with_helper(
        &sandbox,
        "mount -t weir $STORE $DIR
         head -c 20000000 /dev/urandom > $DIR/file
         umount $DIR
         rm $STORE/buffer
         mount -t weir -o on_lost_buffer=restore,lost_buffer_wait=0 $STORE $DIR
         test $(stat -c %s $DIR/file) = 20000000
         mkdir $DIR.too
         mount --bind $DIR $DIR.too
         umount $DIR.too
         sleep 60 < $DIR/file & sleeper=$!
         until test $(readlink /proc/$sleeper/fd/0) = $DIR/file; do sleep 0.01; done
         umount $DIR 2>/dev/null && exit 9
         umount -l $DIR
         kill $sleeper",
    );
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert_says(&said, "Nothing is lost");
}
