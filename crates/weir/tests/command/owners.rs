//! Several users and one mount: which of them find its daemon, and their rights.

use crate::common::{NOBODY, PATIENCE, SMALL, Sandbox, can_mount, fails, in_mount_namespace, succeeds, weir};
use rustix::process::{Gid, Uid};
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use test_support::DirectoryContents;

/// A user who is neither root nor the mount's owner.
const STRANGER: u32 = 65533;

fn by(user: u32, program: &Path) -> Command {
    let mut command = Command::new(program);
    command.uid(user).gid(user);
    command
}

#[test]
fn a_stranger_is_told_whose_daemon_it_is() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let Some(program) = sandbox.command_for_all() else { return };
    let mounted = sandbox.mount_with(&["--allow-other"]);
    for command in ["status", "sync", "space", "why", "unmount"] {
        let said = fails(by(STRANGER, &program).arg(command).arg(mounted.dir()));
        assert!(said.contains("the daemon of user 0 "), "{command}: {said}");
        assert!(said.contains("  help: ask user 0 "), "{command}: {said}");
    }
    mounted.unmount();
}

#[test]
fn the_owner_of_the_files_may_look_and_sync_and_no_more() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let Some(program) = sandbox.command_for_all() else { return };
    let mounted = sandbox.mount_with(&["--allow-other", "--commit-interval", "3600000"]);
    chown(mounted.dir(), Some(NOBODY), Some(NOBODY)).expect("its root directory has an owner");
    fs::write(mounted.path("file"), b"not synced").expect("a file");
    succeeds(by(NOBODY, &program).arg("sync").arg(mounted.dir()));
    let status = mounted.status();
    assert_eq!(status.lsns.applied, status.lsns.durable);
    for command in ["status", "space", "why"] {
        succeeds(by(NOBODY, &program).arg(command).arg(mounted.dir()));
    }
    let refused =
        [&["volume", "clone"][..], &["volume", "delete"], &["scrub"], &["class", "background", "--pid", "1"]];
    for command in refused {
        let mut command_line = by(NOBODY, &program);
        command_line.args(command).arg(mounted.dir());
        if command[0] == "volume" {
            command_line.arg("copy");
        }
        let said = fails(&mut command_line);
        assert!(said.contains("the daemon of user 0 "), "{command:?}: {said}");
    }
    assert!(fails(by(STRANGER, &program).arg("sync").arg(mounted.dir())).contains("the daemon of user 0 "));
    mounted.unmount();
}

/// A listener of `user` that pretends to be the daemon of the mount of `device`. `user` need not be the
/// mount's owner.
fn pretend(device: u64, user: u32) -> UnixListener {
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let address = SocketAddr::from_abstract_name(format!("weir/{number}/{}", u64::MAX)).expect("a name");
    let bind = move || {
        // Changes the ids of this thread only.
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        rustix::thread::set_thread_res_gid(gid, gid, gid).expect("we are root");
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("we are root");
        // A process that another test is starting may still hold the socket before.
        for _ in 0..500 {
            match UnixListener::bind_addr(&address) {
                Err(error) if error.kind() == ErrorKind::AddrInUse => {
                    std::thread::sleep(Duration::from_millis(10))
                }
                outcome => return outcome.expect("anybody may"),
            }
        }
        panic!("the name stays in use");
    };
    std::thread::spawn(bind).join().expect("it is bound")
}

#[test]
fn a_socket_of_who_did_not_mount_is_not_believed() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let device = fs::metadata(mounted.dir()).expect("a mount").dev();
    let pretender = pretend(device, STRANGER);
    assert_eq!(mounted.status().pid, mounted.pid());
    // The command trusts the same name if root holds it, so the pretender above had the right name.
    drop(pretender);
    let pretender = pretend(device, 0);
    let served = std::thread::spawn(move || {
        let (stream, _) = pretender.accept().expect("somebody asks");
        let mut asked = String::new();
        BufReader::new(stream).read_line(&mut asked).expect("a request");
        asked
    });
    assert!(fails(weir().arg("status").arg(mounted.dir())).contains("does not answer"));
    assert!(served.join().expect("it was asked").contains("status"));
    mounted.unmount();
}

/// A mount namespace in which all users may open /dev/fuse, as on most machines.
struct Namespace {
    holder: Child,
}

impl Namespace {
    fn new(sandbox: &Sandbox) -> Namespace {
        let script = "mount -t tmpfs tmpfs \"$0\" && mknod \"$0/fuse\" c 10 229 && chmod 666 \"$0/fuse\" \
                      && mount --bind \"$0/fuse\" /dev/fuse && echo ready && exec cat";
        let devices = sandbox.path("devices");
        fs::create_dir(&devices).expect("a directory");
        let mut holder = in_mount_namespace(script)
            .arg(devices)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("unshare");
        let mut said = String::new();
        BufReader::new(holder.stdout.take().expect("a pipe")).read_line(&mut said).expect("it speaks");
        let namespace = Namespace { holder };
        assert_eq!(said, "ready\n");
        namespace
    }

    /// `program` in the namespace, run by `user`.
    fn command(&self, user: u32, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.id().to_string(), "--mount", "setpriv", "--clear-groups"]);
        command.args(["--reuid", &user.to_string(), "--regid", &user.to_string()]).arg(program);
        command.env_remove("XDG_RUNTIME_DIR");
        command
    }

    fn is_mounted(&self, dir: &Path) -> bool {
        let table = fs::read_to_string(format!("/proc/{}/mountinfo", self.holder.id())).expect("a table");
        table.lines().any(|line| line.split(' ').nth(4) == dir.to_str())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A daemon of an ordinary user. Dropping it kills it.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A sandbox in which NOBODY owns the store and the mount point, and may run the command.
fn of_nobody() -> Option<(Sandbox, PathBuf, Namespace)> {
    let sandbox = Sandbox::new();
    let program = sandbox.command_for_all()?;
    fs::create_dir(sandbox.store()).expect("a directory");
    for dir in [sandbox.store(), sandbox.mount_point()] {
        chown(dir, Some(NOBODY), Some(NOBODY)).expect("it is ours");
    }
    succeeds(by(NOBODY, &program).arg("format").args(SMALL).arg(sandbox.store()));
    let namespace = Namespace::new(&sandbox);
    Some((sandbox, program, namespace))
}

fn mounted_by_nobody(sandbox: &Sandbox, program: &Path, namespace: &Namespace) -> Daemon {
    // As in a login session, whose environment cron, su and root do not have.
    let run = sandbox.path("run");
    if !run.exists() {
        fs::create_dir(&run).expect("a directory");
        fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).expect("it is ours");
        chown(&run, Some(NOBODY), Some(NOBODY)).expect("it is ours");
    }
    let mut command = namespace.command(NOBODY, program);
    command.args(["mount", "--foreground"]).args([sandbox.store(), sandbox.mount_point()]);
    let daemon = Daemon(command.env("XDG_RUNTIME_DIR", &run).spawn().expect("it starts"));
    let mut ask = namespace.command(NOBODY, program);
    ask.arg("status").arg(sandbox.mount_point()).env("XDG_RUNTIME_DIR", &run);
    let begin = Instant::now();
    while !(namespace.is_mounted(&sandbox.mount_point()) && ask.output().expect("runs").status.success()) {
        assert!(begin.elapsed() < PATIENCE, "not ready in time");
        std::thread::sleep(Duration::from_millis(10));
    }
    daemon
}

#[test]
fn the_daemon_of_a_user_is_found_by_root_and_from_cron_and_strangers_are_told_whose_it_is() {
    if !can_mount() {
        return;
    }
    let Some((sandbox, program, namespace)) = of_nobody() else { return };
    let mut daemon = mounted_by_nobody(&sandbox, &program, &namespace);
    let ask = |user: u32, operation: &str| {
        let mut command = namespace.command(user, &program);
        command.arg(operation).arg(sandbox.mount_point());
        command
    };
    for operation in ["status", "sync"] {
        succeeds(&mut ask(NOBODY, operation));
        succeeds(&mut ask(0, operation));
        let said = fails(&mut ask(STRANGER, operation));
        assert!(said.contains("the daemon of user 65534 "), "{said}");
    }
    let said = fails(&mut ask(STRANGER, "unmount"));
    assert!(said.contains("the daemon of user 65534 "), "{said}");
    succeeds(&mut ask(0, "unmount"));
    assert!(!namespace.is_mounted(&sandbox.mount_point()));
    assert!(daemon.0.wait().expect("a child of ours").success());
}

#[test]
fn the_dead_mount_of_a_user_is_told_as_such_and_taken_away_by_the_next_one() {
    if !can_mount() {
        return;
    }
    let Some((sandbox, program, namespace)) = of_nobody() else { return };
    drop(mounted_by_nobody(&sandbox, &program, &namespace));
    assert!(namespace.is_mounted(&sandbox.mount_point()));
    for user in [NOBODY, 0] {
        let said = fails(namespace.command(user, &program).arg("status").arg(sandbox.mount_point()));
        assert!(said.contains("the daemon has ended"), "to {user}: {said}");
    }
    let mut daemon = mounted_by_nobody(&sandbox, &program, &namespace);
    succeeds(namespace.command(NOBODY, &program).arg("unmount").arg(sandbox.mount_point()));
    assert!(!namespace.is_mounted(&sandbox.mount_point()), "the dead one is still below");
    assert!(daemon.0.wait().expect("a child of ours").success());
}

#[test]
fn a_run_directory_of_another_user_is_refused_by_name_before_anything_is_mounted() {
    if !can_mount() {
        return;
    }
    let Some((sandbox, program, namespace)) = of_nobody() else { return };
    let run = sandbox.path("run");
    fs::create_dir(&run).expect("a directory");
    fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).expect("it is ours");
    let before = DirectoryContents::below(&sandbox.store());
    let mut mount = namespace.command(NOBODY, &program);
    mount.arg("mount").args([sandbox.store(), sandbox.mount_point()]).env("XDG_RUNTIME_DIR", &run);
    let said = fails(&mut mount);
    assert!(said.contains(&run.display().to_string()) && said.contains("EACCES"), "{said}");
    assert!(said.contains("XDG_RUNTIME_DIR"), "{said}");
    before.assert_unchanged(&sandbox.store());
    assert!(!namespace.is_mounted(&sandbox.mount_point()));
}
