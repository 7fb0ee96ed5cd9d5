//! The process behind a mount: its inheritance from the caller, its messages, and the errors about a stopped
//! daemon.

use crate::common::{PATIENCE, Sandbox, can_mount, fails, is_mounted, status_of, succeeds, weir};
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// A mount whose daemon has no parent. Dropping it kills the daemon and unmounts.
struct Background {
    dir: PathBuf,
    pid: u32,
}

impl Background {
    /// Runs `script` as a shell does, with `weir mount STORE DIR` in `"$@"`; it must end in time.
    fn by(script: &str, sandbox: &Sandbox) -> Background {
        let mut shell = Command::new("timeout");
        shell.args(["60", "bash", "-c", script, "bash", env!("CARGO_BIN_EXE_weir"), "mount"]);
        // Relative paths: the daemon changes its working directory.
        shell.args(["media", "mnt"]).current_dir(sandbox.path(""));
        let output = shell.output().expect("a shell");
        let mounted = is_mounted(&sandbox.mount_point());
        let pid = if mounted { status_of(&sandbox.mount_point()).pid } else { 0 };
        let background = Background { dir: sandbox.mount_point(), pid };
        assert!(mounted && output.status.success(), "{output:?}");
        background
    }

    fn proc(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(name)
    }

    fn signal(&self, name: &str) {
        succeeds(Command::new("kill").args(["-s", name, &self.pid.to_string()]));
    }

    fn unmount(self) {
        succeeds(weir().arg("unmount").arg(&self.dir));
        assert!(!is_mounted(&self.dir));
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        if is_mounted(&self.dir) {
            let _ = Command::new("kill").args(["-9", &self.pid.to_string()]).output();
            let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH);
        }
    }
}

#[test]
fn a_lock_that_its_caller_held_is_free_when_the_caller_has_ended() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = Background::by(r#"( flock 9; "$@" ) 9>lock"#, &sandbox);
    succeeds(Command::new("flock").args(["--nonblock", "lock", "true"]).current_dir(sandbox.path("")));
    mounted.unmount();
}

#[test]
fn a_pipeline_with_a_mount_in_it_ends() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    Background::by(r#""$@" 2>&1 3>&1 | cat"#, &sandbox).unmount();
}

#[test]
fn a_daemon_keeps_nothing_of_its_caller_and_writes_to_its_log() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = Background::by(r#""$@" 7</dev/zero 9>inherited"#, &sandbox);
    let link = |name: &str| fs::read_link(mounted.proc(name)).expect("a link");
    let log = PathBuf::from(status_of(&mounted.dir).log.expect("a log"));
    assert_eq!(link("fd/0"), Path::new("/dev/null"));
    assert_eq!(link("fd/1"), Path::new("/dev/null"));
    assert_eq!(link("fd/2"), log);
    assert_eq!(link("cwd"), Path::new("/"));
    let open: Vec<_> = fs::read_dir(mounted.proc("fd"))
        .expect("a listing")
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .collect();
    assert!(open.iter().any(|path| *path == sandbox.store().join("store")), "{open:?}");
    let inherited = [PathBuf::from("/dev/zero"), sandbox.path("inherited")];
    assert!(!open.iter().any(|path| inherited.contains(path)), "{open:?}");
    let stat = fs::read_to_string(mounted.proc("stat")).expect("a process");
    let fields: Vec<_> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    let (group, session) = (fields[2], fields[3]);
    assert_eq!([group, session], [mounted.pid.to_string(), mounted.pid.to_string()]);

    let file = File::create(mounted.dir.join("file")).expect("a file");
    mounted.signal("TERM");
    let begin = Instant::now();
    while !fs::read_to_string(&log).expect("the log").contains("busy; it is unmounted when") {
        assert!(begin.elapsed() < PATIENCE, "nothing was said");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(file);
    while mounted.proc("").exists() {
        assert!(begin.elapsed() < PATIENCE, "the daemon goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    fs::remove_file(log).expect("it outlives its daemon");
}

/// Runs a command that must not wait for long, whatever the daemon does.
fn soon(command: &str, dir: &Path) -> Output {
    let mut limited = Command::new("timeout");
    limited.args(["20", env!("CARGO_BIN_EXE_weir"), command]).arg(dir).output().expect("it runs")
}

#[test]
fn a_daemon_that_is_stopped_is_named_within_seconds() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    mounted.signal("STOP");
    let outputs = ["status", "sync", "space", "unmount"].map(|command| soon(command, mounted.dir()));
    let said = fails(weir().args(["volume", "snapshot"]).arg(mounted.dir()).arg("late"));
    mounted.signal("CONT");
    assert!(said.contains("is stopped"), "{said}");
    for output in outputs {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("pid {}", mounted.pid())), "{said}");
        assert!(said.contains(&format!("  help: resume it: `kill -CONT {}`", mounted.pid())), "{said}");
    }
    assert!(is_mounted(mounted.dir()), "it was unmounted under its programs");
    fs::write(mounted.path("file"), b"goes on").expect("it goes on");
    // What was refused is not done later.
    for _ in 0..10 {
        let volumes = succeeds(weir().args(["volume", "list"]).arg(mounted.dir())).stdout;
        assert!(!String::from_utf8_lossy(&volumes).contains("late"));
        std::thread::sleep(Duration::from_millis(20));
    }
    mounted.unmount();
}

/// The number of clients of the daemon of the mount of `device`.
fn clients_of(device: u64) -> usize {
    let name = format!("@weir/{}:{}/", rustix::fs::major(device), rustix::fs::minor(device));
    let table = fs::read_to_string("/proc/net/unix").expect("a table");
    let connected = |line: &&str| line.contains(&name) && line.split_whitespace().nth(5) == Some("03");
    table.lines().filter(connected).count()
}

#[test]
fn an_unmount_that_waits_for_a_stopped_daemon_says_so_and_goes_on_with_it() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mut mounted = sandbox.mount();
    let device = fs::metadata(mounted.dir()).expect("a mount").dev();
    // This program uses the mount without an open file. Closing a file would need an answer of the daemon.
    let mut worker = Command::new("sleep").arg("60").current_dir(mounted.dir()).spawn().expect("it starts");
    let begin = Instant::now();
    // The command with which the test saw that the mount is ready.
    while clients_of(device) > 0 {
        assert!(begin.elapsed() < PATIENCE, "an earlier client does not leave");
    }
    let mut unmount =
        weir().arg("unmount").arg(mounted.dir()).stderr(Stdio::piped()).spawn().expect("it starts");
    while clients_of(device) < 2 {
        assert!(begin.elapsed() < PATIENCE, "it does not ask the daemon");
    }
    mounted.signal("STOP");
    worker.kill().and_then(|()| worker.wait()).expect("a child of ours");
    let mut said = String::new();
    BufReader::new(unmount.stderr.take().expect("a pipe")).read_line(&mut said).expect("a line");
    mounted.signal("CONT");
    assert!(said.contains(&format!("`kill -CONT {}`", mounted.pid())), "{said}");
    assert!(unmount.wait().expect("a child of ours").success());
    assert!(mounted.ended().success());
}

#[test]
fn a_daemon_that_is_killed_is_said_to_be_gone_and_the_next_mount_takes_the_dead_one_away() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = Background::by(r#""$@""#, &sandbox);
    fs::write(mounted.dir.join("file"), b"synced").expect("a file");
    succeeds(weir().arg("sync").arg(&mounted.dir));
    let open = File::open(mounted.dir.join("file")).expect("a program that has not noticed");
    mounted.signal("KILL");
    let begin = Instant::now();
    while File::create(mounted.dir.join("other")).is_ok() {
        assert!(begin.elapsed() < PATIENCE, "the daemon outlived kill -9");
    }
    let said = fails(weir().arg("status").arg(&mounted.dir));
    assert!(said.contains("the daemon has ended") && said.contains("`weir mount"), "{said}");

    let again = Background::by(r#""$@""#, &sandbox);
    assert_ne!(again.pid, mounted.pid);
    assert_eq!(fs::read(again.dir.join("file")).expect("it was synced"), b"synced");
    drop(open);
    again.unmount();
    assert!(!is_mounted(&sandbox.mount_point()), "the dead one is still below");
}

#[test]
fn a_mount_waits_until_the_kernel_has_ended_a_killed_daemon() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mut mounted = Background::by(r#""$@""#, &sandbox);
    for round in 0_u8..20 {
        // Memory that the kernel has to free first.
        fs::write(mounted.dir.join("file"), vec![round; 16 << 20]).expect("a file");
        let kill_and_mount = format!(r#"kill -9 {}; "$@""#, mounted.pid);
        // Dropped, it would unmount the next one.
        std::mem::forget(mounted);
        mounted = Background::by(&kill_and_mount, &sandbox);
    }
    mounted.unmount();
}

#[test]
fn two_unmounts_at_once_both_end_well() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    for _ in 0..5 {
        let mounted = Background::by(r#""$@""#, &sandbox);
        let unmount = || weir().arg("unmount").arg(&mounted.dir).output().expect("a process");
        let both = std::thread::scope(|scope| {
            let first = scope.spawn(unmount);
            [unmount(), first.join().expect("no panic")]
        });
        for output in both {
            // An unmount that begins when the other has ended finds no mount.
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() || said.contains("no weir store is mounted here"), "{said}");
        }
        assert!(!is_mounted(&mounted.dir));
    }
}

#[test]
fn the_dead_mount_of_another_store_is_left_to_its_owner() {
    if !can_mount() {
        return;
    }
    let (sandbox, other) = (Sandbox::formatted(), Sandbox::formatted());
    let mut mounted = sandbox.mount();
    mounted.signal("KILL");
    mounted.ended();
    let said = fails(weir().arg("mount").arg(other.store()).arg(mounted.dir()));
    assert!(said.contains(&sandbox.store().display().to_string()), "{said}");
    assert!(said.contains(&format!("`weir unmount {}`", mounted.dir().display())), "{said}");
    assert!(is_mounted(mounted.dir()));
}

#[test]
fn a_store_in_use_by_a_daemon_without_a_mount_names_its_pid() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mut mounted = sandbox.mount();
    let file = File::create(mounted.path("file")).expect("a file");
    rustix::mount::unmount(mounted.dir(), rustix::mount::UnmountFlags::DETACH).expect("it is taken away");
    let pid = mounted.pid();
    let said = fails(weir().arg("mount").arg(sandbox.store()).arg(sandbox.mount_point()));
    assert!(said.contains(&format!("in use by process {pid} (weir)")), "{said}");
    assert!(said.contains(&format!("`kill {pid}`")), "{said}");
    drop(file);
    assert!(mounted.ended().success());
    sandbox.mount().unmount();
}

#[test]
fn an_unmount_that_waits_for_an_overlay_says_so_and_ends_with_it() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    for dir in [mounted.path("upper"), mounted.path("work"), sandbox.path("lower"), sandbox.path("over")] {
        fs::create_dir(dir).expect("a directory");
    }
    let (upper, work) = (mounted.path("upper"), mounted.path("work"));
    let layers = format!(
        "lowerdir={},upperdir={},workdir={}",
        sandbox.path("lower").display(),
        upper.display(),
        work.display()
    );
    let mut overlay = Command::new("mount");
    succeeds(overlay.args(["-t", "overlay", "overlay", "-o", &layers]).arg(sandbox.path("over")));
    let mut unmount =
        weir().arg("unmount").arg(mounted.dir()).stderr(Stdio::piped()).spawn().expect("it starts");
    let said = BufReader::new(unmount.stderr.take().expect("piped")).lines();
    // The command prints a line each second.
    let told = said.map_while(Result::ok).take(20).any(|line| line.contains("still used elsewhere"));
    succeeds(Command::new("umount").arg(sandbox.path("over")));
    assert!(told, "it did not say what it waits for");
    unmount.wait().expect("a child of ours");
    assert_eq!(fs::read_dir(sandbox.mount_point()).expect("it").count(), 0, "it is unmounted");
}

#[test]
fn an_unmount_beside_a_bind_mount_names_it_and_ends_and_that_one_is_unmounted_like_any_other() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mut mounted = sandbox.mount();
    let bind = sandbox.path("elsewhere");
    fs::create_dir(&bind).expect("a directory");
    succeeds(Command::new("mount").arg("--bind").args([mounted.dir(), &bind]));
    let said = fails(weir().arg("unmount").arg(mounted.dir()));
    assert!(!is_mounted(mounted.dir()) && is_mounted(&bind), "{said}");
    let next = format!("`weir unmount {}`", bind.display());
    assert!(said.contains(&next), "{said}");
    fs::write(bind.join("file"), b"written there").expect("it goes on");
    succeeds(weir().arg("unmount").arg(&bind));
    assert!(mounted.ended().success());
    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("file")).expect("it"), b"written there");
    mounted.unmount();
}

#[test]
fn an_unmount_names_the_process_in_whose_mount_namespace_the_file_system_stays() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mut mounted = sandbox.mount();
    let mut unshare = Command::new("unshare");
    let mut other = unshare
        .args(["--mount", "--propagation", "private", "sh", "-c", "echo there; exec sleep 600"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    BufReader::new(other.stdout.take().expect("piped")).read_line(&mut line).expect("a line");
    let said = fails(weir().arg("unmount").arg(mounted.dir()));
    let next = format!("`nsenter --target {} --mount umount {}`", other.id(), mounted.dir().display());
    other.kill().and_then(|()| other.wait()).expect("a child of ours");
    assert!(said.contains(&next), "{said}");
    assert!(mounted.ended().success());
}
