//! Several volumes of a store, mounted by one daemon.

use crate::common::{Mounted, Sandbox, assert_says, can_mount, fails, is_mounted, status_of, succeeds, weir};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user who is neither root nor the mount's owner.
const STRANGER: u32 = 65533;

/// A store with the volumes `main` and `other`, and two directories to mount them on.
struct TwoVolumes {
    sandbox: Sandbox,
    second: PathBuf,
}

impl TwoVolumes {
    fn new() -> TwoVolumes {
        let sandbox = Sandbox::formatted();
        succeeds(weir().args(["volume", "create"]).arg(sandbox.store()).arg("other"));
        let second = sandbox.path("second");
        fs::create_dir(&second).expect("a directory");
        TwoVolumes { sandbox, second }
    }

    /// The command that mounts `volume` on the second directory.
    fn mount_second(&self, volume: &str) -> Command {
        let mut command = weir();
        command.args(["mount", "--volume", volume]).arg(self.sandbox.store()).arg(&self.second);
        command
    }
}

fn unmount(dir: &Path) {
    succeeds(weir().arg("unmount").arg(dir));
    assert!(!is_mounted(dir));
}

fn write_synced(path: PathBuf, bytes: &[u8]) {
    let mut file = File::create(path).expect("a file");
    file.write_all(bytes).and_then(|()| file.sync_data()).expect("space");
}

#[test]
fn one_daemon_mounts_two_volumes_and_ends_with_the_last() {
    if !can_mount() {
        return;
    }
    let volumes = TwoVolumes::new();
    let second = &volumes.second;
    let mut first = volumes.sandbox.mount();
    succeeds(&mut volumes.mount_second("other"));
    let (status, other) = (first.status(), status_of(second));
    assert_eq!((status.pid, status.volume.as_str()), (first.pid(), "main"));
    assert_eq!((other.pid, other.volume.as_str()), (first.pid(), "other"));
    assert_eq!(Path::new(&other.mounted_on), second.as_path());
    fs::write(first.path("file"), b"of main").expect("a file");
    fs::write(second.join("file"), b"of other").expect("a file");
    let listed = succeeds(weir().args(["volume", "list"]).arg(second));
    let listed = String::from_utf8(listed.stdout).expect("text");
    for dir in [first.dir(), second] {
        assert_says(&listed, &format!("(mounted on {})", dir.display()));
    }
    // Unmounted, mounted again and unmounted first: the daemon goes on.
    for _ in 0..2 {
        unmount(second);
        succeeds(&mut volumes.mount_second("other"));
        assert_eq!(fs::read(second.join("file")).expect("it"), b"of other");
    }
    unmount(first.dir());
    assert_eq!(status_of(second).pid, first.pid());
    fs::write(second.join("later"), b"alone").expect("a file");
    unmount(second);
    assert!(first.ended().success(), "{}", first.messages());
    let first = volumes.sandbox.mount_with(&["--volume", "other"]);
    assert_eq!(fs::read(first.path("later")).expect("it"), b"alone");
    first.unmount();
}

#[test]
fn a_killed_daemon_loses_nothing_that_was_synced_in_any_volume() {
    if !can_mount() {
        return;
    }
    let volumes = TwoVolumes::new();
    for round in 0..3_u8 {
        let first = volumes.sandbox.mount();
        succeeds(&mut volumes.mount_second("other"));
        if round > 0 {
            assert_eq!(fs::read(first.path("file")).expect("it"), [round; 5000]);
            assert_eq!(fs::read(volumes.second.join("file")).expect("it"), [round + 100; 5000]);
        }
        write_synced(first.path("file"), &[round + 1; 5000]);
        write_synced(volumes.second.join("file"), &[round + 101; 5000]);
        // The second one leaves a dead mount, which the next mount removes.
        first.kill();
    }
    succeeds(weir().arg("unmount").arg(&volumes.second));
    succeeds(weir().arg("check").arg(volumes.sandbox.store()));
}

#[test]
fn a_snapshot_is_read_beside_the_live_volume() {
    if !can_mount() {
        return;
    }
    let volumes = TwoVolumes::new();
    let live = volumes.sandbox.mount();
    fs::write(live.path("file"), b"before").expect("a file");
    succeeds(weir().args(["volume", "clone", "--read-only"]).arg(live.dir()).arg("nightly"));
    succeeds(&mut volumes.mount_second("nightly"));
    fs::write(live.path("file"), b"after").expect("a file");
    let copied = volumes.second.join("file");
    assert_eq!(fs::read(&copied).expect("it"), b"before");
    assert!(fs::write(&copied, b"changed").is_err());
    assert!(fs::remove_file(&copied).is_err());
    for command in ["delete", "rename"] {
        let mut command_line = weir();
        command_line.args(["volume", command]).arg(live.dir()).arg("nightly");
        if command == "rename" {
            command_line.arg("weekly");
        }
        assert_says(&fails(&mut command_line), &format!("mounted on {}", volumes.second.display()));
    }
    unmount(&volumes.second);
    succeeds(weir().args(["volume", "delete"]).arg(live.dir()).arg("nightly"));
    assert_eq!(fs::read(live.path("file")).expect("it"), b"after");
    live.unmount();
}

#[test]
fn what_a_running_daemon_cannot_do_is_refused_and_disturbs_no_mount() {
    if !can_mount() {
        return;
    }
    let volumes = TwoVolumes::new();
    let (sandbox, second) = (&volumes.sandbox, &volumes.second);
    let live = sandbox.mount_with(&["--memory", "64MiB"]);
    let said = fails(&mut volumes.mount_second("main"));
    assert_says(&said, &format!("volume main is mounted already, on {}", live.dir().display()));
    assert_says(&said, "mount --bind");
    assert_says(&fails(&mut volumes.mount_second("nothing")), "there are: main, other");
    assert_says(&fails(volumes.mount_second("other").arg("--foreground")), "leave it out");
    assert_says(&fails(volumes.mount_second("other").arg("--read-only")), "clone it");
    for options in [["--memory", "65MiB"], ["--data", "journal"], ["--policy", "all"], ["--epoch-every", "1"]]
    {
        assert_says(&fails(volumes.mount_second("other").args(options)), options[0]);
    }
    fs::write(second.join("occupied"), b"").expect("a file");
    assert_says(&fails(&mut volumes.mount_second("other")), "not empty");
    fs::remove_file(second.join("occupied")).expect("it");
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["--mount", env!("CARGO_BIN_EXE_weir"), "mount", "--volume", "other"]);
    assert_says(&fails(elsewhere.arg(sandbox.store()).arg(second)), "another mount namespace");
    if let Some(program) = sandbox.command_for_all() {
        let mut stranger = Command::new(program);
        stranger.uid(STRANGER).gid(STRANGER).args(["mount", "--volume", "other"]);
        fails(stranger.arg(sandbox.store()).arg(second));
    }
    assert!(!is_mounted(second));
    // The same options are accepted.
    succeeds(
        volumes.mount_second("other").args(["--memory", "64MiB", "--policy", "none", "--data", "ordered"]),
    );
    fs::write(second.join("file"), b"works").expect("a file");
    unmount(second);
    live.unmount();
}

#[test]
fn a_daemon_that_only_reads_mounts_further_volumes_to_read() {
    if !can_mount() {
        return;
    }
    let volumes = TwoVolumes::new();
    let first = volumes.sandbox.mount_with(&["--read-only"]);
    assert_says(&fails(&mut volumes.mount_second("other")), "--read-only");
    succeeds(volumes.mount_second("other").arg("--read-only"));
    assert!(fs::write(volumes.second.join("file"), b"").is_err());
    unmount(&volumes.second);
    first.unmount();
}

#[test]
fn a_signal_unmounts_all_volumes() {
    if !can_mount() {
        return;
    }
    let volumes = TwoVolumes::new();
    let mut first = volumes.sandbox.mount();
    succeeds(&mut volumes.mount_second("other"));
    fs::write(first.path("file"), b"of main").expect("a file");
    fs::write(volumes.second.join("file"), b"of other").expect("a file");
    first.signal("TERM");
    assert!(first.ended().success(), "{}", first.messages());
    assert!(![first.dir(), &volumes.second].into_iter().any(is_mounted));
    let other: Mounted = volumes.sandbox.mount_with(&["--volume", "other"]);
    assert_eq!(fs::read(other.path("file")).expect("it"), b"of other");
    other.unmount();
}
