//! Several volumes of a store, mounted by one daemon.

use crate::common::{
    Mounted, PATIENCE, Sandbox, assert_says, can_mount, detach, fails, is_mounted, status_of, succeeds, weir,
};
use device::SeededRng;
use serde_json::json;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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

/// A failed test leaves no dead mount.
impl Drop for TwoVolumes {
    fn drop(&mut self) {
        detach(&self.second);
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
    for options in [
        ["--memory", "65MiB"],
        ["--data", "journal"],
        ["--policy", "all"],
        ["--epoch-every", "1"],
        ["--wake-up", "off"],
        ["--kernel-cache", "none"],
    ] {
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
        volumes
            .mount_second("other")
            .args(["--memory", "64MiB", "--policy", "none", "--data", "ordered"])
            .args(["--wake-up", "auto", "--kernel-cache", "full"]),
    );
    fs::write(second.join("file"), b"works").expect("a file");
    unmount(second);
    live.unmount();
}

/// Without a /proc of its own, a PID namespace does not show which process is the daemon. A mount namespace would keep the mounts of
/// other tests.
#[test]
fn a_second_mount_in_a_pid_namespace_without_proc_fails_soon() {
    if !can_mount() {
        return;
    }
    let volumes = TwoVolumes::new();
    let script = "\"$0\" mount \"$1\" \"$2\" || exit 3
        timeout 60 \"$0\" mount --on-lost-buffer restore --volume other \"$1\" \"$3\"
        status=$?
        \"$0\" unmount \"$2\" || exit 4
        exit $status";
    let mut inside = Command::new("unshare");
    inside.args(["--pid", "--fork", "sh", "-c", script, env!("CARGO_BIN_EXE_weir")]);
    let said =
        fails(inside.arg(volumes.sandbox.store()).arg(volumes.sandbox.path("mnt")).arg(&volumes.second));
    assert_says(&said, "in use by process");
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

#[test]
fn snapshots_of_two_volumes_are_of_one_moment() {
    if !can_mount() {
        return;
    }
    let volumes = TwoVolumes::new();
    let live = volumes.sandbox.mount();
    succeeds(&mut volumes.mount_second("other"));
    let (first, second) = (live.path("count"), volumes.second.join("count"));
    let is_done = AtomicBool::new(false);
    let rounds = 5;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // The second volume never has a number that the first one lacks.
            for number in 0_u64.. {
                [&first, &second]
                    .into_iter()
                    .for_each(|path| fs::write(path, number.to_string()).expect("space"));
                if is_done.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for round in 0..rounds {
            let [first, second] = ["main", "other"].map(|volume| format!("{volume}-{round}={volume}"));
            succeeds(weir().args(["volume", "snapshot"]).arg(live.dir()).args([first, second]));
        }
        is_done.store(true, Ordering::Relaxed);
    });
    unmount(&volumes.second);
    live.unmount();
    for round in 0..rounds {
        let [first, second] = ["main", "other"].map(|volume| {
            let name = format!("{volume}-{round}");
            let mounted = volumes.sandbox.mount_with(&["--volume", &name]);
            // The file was empty between its truncation and its write.
            let number = fs::read_to_string(mounted.path("count")).unwrap_or_default().parse::<u64>().ok();
            mounted.unmount();
            number
        });
        if let (Some(first), Some(second)) = (first, second) {
            assert!(first == second || first == second + 1, "{first} and {second}");
        }
    }
}

#[test]
fn a_volume_is_rolled_back_and_what_it_was_is_kept() {
    if !can_mount() {
        return;
    }
    let volumes = TwoVolumes::new();
    let store = volumes.sandbox.store();
    let live = volumes.sandbox.mount();
    fs::write(live.path("file"), b"good").expect("a file");
    succeeds(weir().args(["volume", "snapshot"]).arg(live.dir()).arg("nightly"));
    fs::write(live.path("file"), b"bad").expect("a file");
    let mut roll_back = weir();
    roll_back.args(["volume", "rollback"]).arg(&store).args(["main", "nightly"]);
    let said = fails(&mut roll_back);
    assert_says(&said, &format!("volume main is mounted on {}", live.dir().display()));
    unmount(live.dir());
    let mut wrong = weir();
    fails(wrong.args(["volume", "rollback"]).arg(&store).args(["other", "nightly"]));
    let mut turned = weir();
    turned.args(["volume", "rollback"]).arg(&store).args(["nightly", "main"]);
    assert_says(&fails(&mut turned), "nightly is read-only");
    // Once without a daemon, and once with the daemon of another volume.
    for is_mounted in [false, true] {
        let other = is_mounted.then(|| volumes.sandbox.mount_with(&["--volume", "other"]));
        let said = succeeds(&mut roll_back);
        let said = String::from_utf8(said.stdout).expect("text");
        let before = said.trim_end().rsplit(' ').next().expect("a name").to_owned();
        assert!(before.starts_with("main-before-2"), "{said}");
        other.into_iter().for_each(Mounted::unmount);
        let live = volumes.sandbox.mount();
        assert_eq!(fs::read(live.path("file")).expect("it"), b"good");
        succeeds(weir().args(["mount", "--volume", &before]).arg(&store).arg(&volumes.second));
        assert_eq!(fs::read(volumes.second.join("file")).expect("it"), b"bad");
        unmount(&volumes.second);
        let freed = succeeds(weir().args(["volume", "delete", "--dry-run"]).arg(live.dir()).arg(&before));
        assert_says(&String::from_utf8_lossy(&freed.stdout), "deleting it would free ");
        succeeds(weir().args(["volume", "delete"]).arg(live.dir()).arg(&before));
        fs::write(live.path("file"), b"bad").expect("a file");
        live.unmount();
    }
    // Most of these are in one second.
    (0..5).for_each(|_| drop(succeeds(&mut roll_back)));
    let listed = succeeds(weir().args(["volume", "list"]).arg(&store)).stdout;
    assert_eq!(String::from_utf8_lossy(&listed).matches("\nmain-before-2").count(), 5);
    let freed = succeeds(weir().args(["volume", "delete", "--dry-run"]).arg(&store).arg("nightly"));
    assert_says(&String::from_utf8_lossy(&freed.stdout), "nightly: deleting it would free ");
    assert_says(
        &fails(weir().args(["volume", "delete", "--dry-run"]).arg(&store).arg("none")),
        "there are: ",
    );
    succeeds(weir().arg("check").arg(&store));
}

#[test]
fn mounts_and_rollbacks_at_once_follow_each_other() {
    if !can_mount() {
        return;
    }
    let volumes = TwoVolumes::new();
    let live = volumes.sandbox.mount_with(&["--volume", "other"]);
    succeeds(weir().args(["volume", "clone", "--read-only", "--of", "main"]).arg(live.dir()).arg("nightly"));
    for _ in 0..10 {
        let mut roll_back = weir();
        roll_back.args(["volume", "rollback"]).arg(live.dir()).args(["main", "nightly"]);
        let mut mount = volumes.mount_second("main");
        let (rolled_back, mounted) = std::thread::scope(|scope| {
            let mounted = scope.spawn(|| mount.output().expect("weir"));
            (roll_back.output().expect("weir"), mounted.join().expect("no panic"))
        });
        assert!(mounted.status.success(), "{mounted:?}");
        let listed = succeeds(weir().args(["volume", "list"]).arg(live.dir()));
        let listed = String::from_utf8(listed.stdout).expect("text");
        let line = listed.lines().find(|line| line.contains(&*volumes.second.to_string_lossy()));
        assert!(line.is_some_and(|line| line.starts_with("main ")), "{listed}");
        unmount(&volumes.second);
        if !rolled_back.status.success() {
            assert_says(&String::from_utf8_lossy(&rolled_back.stderr), "volume main is mounted on");
            continue;
        }
        let said = String::from_utf8(rolled_back.stdout).expect("text");
        let before = said.trim_end().rsplit(' ').next().expect("a name");
        succeeds(weir().args(["volume", "delete"]).arg(live.dir()).arg(before));
    }
    live.unmount();
}

#[test]
fn last_epochs_are_taken_beside_those_of_a_deleted_volume() {
    if !can_mount() {
        return;
    }
    let volumes = TwoVolumes::new();
    let live = volumes.sandbox.mount_with(&["--epoch-every", "2"]);
    succeeds(&mut volumes.mount_second("other"));
    let begun = Instant::now();
    while [live.status(), status_of(&volumes.second)].iter().any(|status| status.epoch.last.is_none()) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", live.status().epoch);
        std::thread::sleep(Duration::from_millis(20));
    }
    unmount(&volumes.second);
    succeeds(weir().args(["volume", "delete"]).arg(live.dir()).arg("other"));
    fs::write(live.path("file"), b"last").expect("a file");
    live.unmount();
    let listed = succeeds(weir().args(["volume", "list"]).arg(volumes.sandbox.store()));
    let listed = String::from_utf8(listed.stdout).expect("text");
    let is_of_main = |line: &&str| line.starts_with("epoch-") && line.ends_with(" main");
    let epoch = listed.lines().find(is_of_main).unwrap_or_else(|| panic!("no epoch of main: {listed}"));
    let epoch = epoch.split_whitespace().next().expect("a name");
    let mounted = volumes.sandbox.mount_with(&["--volume", epoch]);
    assert_eq!(fs::read(mounted.path("file")).expect("it"), b"last");
    mounted.unmount();
}

#[test]
fn path_of_a_store_leads_to_its_daemon_beside_a_dead_mount() {
    if !can_mount() {
        return;
    }
    let volumes = TwoVolumes::new();
    let mut first = volumes.sandbox.mount();
    succeeds(&mut volumes.mount_second("other"));
    first.signal("KILL");
    first.ended();
    drop(first);
    let live = volumes.sandbox.mount();
    assert!(is_mounted(&volumes.second), "the dead mount");
    let store = volumes.sandbox.store();
    succeeds(weir().args(["volume", "snapshot"]).arg(&store).arg("nightly"));
    let listed = succeeds(weir().args(["volume", "list"]).arg(&store));
    assert_says(&String::from_utf8_lossy(&listed.stdout), &format!("(mounted on {})", live.dir().display()));
    live.unmount();
    unmount(&volumes.second);
}

/// A connection to the daemon of the mount on `dir`.
pub(crate) fn connect_to_daemon(dir: &Path) -> UnixStream {
    let device = fs::metadata(dir).expect("a mount").dev();
    let prefix = format!("@weir/{}:{}/", rustix::fs::major(device), rustix::fs::minor(device));
    let table = fs::read_to_string("/proc/net/unix").expect("a table");
    let mut names = table.split_whitespace().filter(|word| word.starts_with(&prefix));
    let connected = names.find_map(|name| {
        UnixStream::connect_addr(&SocketAddr::from_abstract_name(&name[1..]).expect("a name")).ok()
    });
    connected.expect("a daemon listens")
}

#[test]
fn a_daemon_that_was_told_to_end_mounts_nothing_more() {
    if !can_mount() {
        return;
    }
    let volumes = TwoVolumes::new();
    let second = &volumes.second;
    let mut first = volumes.sandbox.mount();
    let in_use = File::create(first.path("file")).expect("a file");
    let mut client = BufReader::new(connect_to_daemon(first.dir()));
    first.signal("TERM");
    let begun = Instant::now();
    while is_mounted(first.dir()) {
        assert!(begun.elapsed() < PATIENCE, "{}", first.messages());
        std::thread::sleep(Duration::from_millis(5));
    }
    let request = json!({ "operation": "mount", "dir": second.as_os_str().as_bytes(), "volume": "other" });
    writeln!(client.get_mut(), "{request}").expect("it listens");
    let mut reply = String::new();
    client.read_line(&mut reply).expect("it answers");
    assert_eq!(reply.trim_end(), r#"{"is_ending":true}"#);
    assert!(!is_mounted(second));
    drop(client);
    drop(in_use);
    assert!(first.ended().success(), "{}", first.messages());
}

#[test]
fn unmounts_at_once_all_succeed() {
    if !can_mount() {
        return;
    }
    let volumes = TwoVolumes::new();
    for _ in 0..10 {
        let mut first = volumes.sandbox.mount();
        succeeds(&mut volumes.mount_second("other"));
        std::thread::scope(|scope| {
            for dir in [first.dir(), &volumes.second] {
                scope.spawn(|| unmount(dir));
            }
        });
        assert!(first.ended().success(), "{}", first.messages());
    }
}

/// Writes files of a MiB until the store is full. Returns their number.
fn fill(dir: &Path) -> u32 {
    for number in 0.. {
        let path = dir.join(number.to_string());
        let written = fs::write(&path, vec![number as u8; 1 << 20]);
        if let Err(error) = written.and_then(|()| File::open(&path)?.sync_all()) {
            assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
            return number;
        }
    }
    unreachable!("the store is small");
}

/// What takes space in a store.
enum SpaceUser {
    File(PathBuf),
    Snapshot(String),
}

#[test]
fn a_full_store_is_emptied_in_any_order() {
    if !can_mount() {
        return;
    }
    let volumes = TwoVolumes::new();
    let live = volumes.sandbox.mount_with(&["--epoch-every", "1"]);
    succeeds(&mut volumes.mount_second("other"));
    let dirs = [live.dir(), volumes.second.as_path()];
    let mut random = SeededRng::new(7);
    for round in 0..3 {
        let mut users = Vec::new();
        for (volume, dir) in ["main", "other"].into_iter().zip(dirs) {
            fs::write(dir.join("first"), vec![round; 10 << 20]).expect("space");
            users.push(SpaceUser::File(dir.join("first")));
            let name = format!("{volume}-{round}");
            succeeds(weir().args(["volume", "snapshot"]).arg(dir).arg(&name));
            users.push(SpaceUser::Snapshot(name));
        }
        for dir in dirs {
            // The last one is there in part.
            users.extend((0..=fill(dir)).map(|number| SpaceUser::File(dir.join(number.to_string()))));
        }
        while !users.is_empty() {
            match users.swap_remove(random.below(users.len() as u64) as usize) {
                SpaceUser::File(path) => fs::remove_file(path).expect("a full store deletes files"),
                SpaceUser::Snapshot(name) => {
                    succeeds(weir().args(["volume", "delete"]).arg(live.dir()).arg(name));
                }
            }
        }
        for dir in dirs {
            fs::write(dir.join("after"), vec![round; 15 << 20]).expect("all of the space is free");
            fs::remove_file(dir.join("after")).expect("it");
        }
    }
    unmount(&volumes.second);
    live.unmount();
    succeeds(weir().arg("check").arg(volumes.sandbox.store()));
}
