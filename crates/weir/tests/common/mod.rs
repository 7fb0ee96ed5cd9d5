//! Shared by the tests of the command: a directory that is removed after the test, the command itself, and a
//! mount whose daemon ends with the test, even if the test panics.
//!
//! Tests that mount need /dev/fuse and root. Without these, the tests print that and pass.
//! `WEIR_TESTS_MUST_MOUNT=1`, as in CI, makes them fail instead.
#![allow(dead_code)]

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use test_support::TestDirectory;
pub(crate) use test_support::{can_mount, copy_program, succeeds};
use weir_status::{SpaceReport, StatusReport, WaitsReport};

/// Sizes for tests: small enough to compare byte by byte.
pub(crate) const SMALL: [&str; 4] = ["--size", "64MiB", "--buffer-size", "8MiB"];

/// The option with which `format`, `mount` and `replace-buffer` accept a buffer in memory.
pub(crate) const VOLATILE: &str = "--volatile-buffer";

/// A user who owns nothing.
pub(crate) const NOBODY: u32 = 65534;

/// How long a mount, or its end, may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A loop device, until it is dropped.
pub(crate) struct LoopDevice(pub(crate) PathBuf);

impl LoopDevice {
    /// One over a new image of 32 MiB. `None` where this machine has none.
    pub(crate) fn over(image: &Path) -> Option<LoopDevice> {
        succeeds(Command::new("truncate").args(["--size", "32M"]).arg(image));
        LoopDevice::of(image)
    }

    /// One over this file.
    pub(crate) fn of(image: &Path) -> Option<LoopDevice> {
        let mut losetup = Command::new("losetup");
        let output = losetup.args(["--find", "--show"]).arg(image).stderr(Stdio::null()).output().ok()?;
        let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        if !output.status.success() {
            eprintln!("skipped: no loop device");
            return None;
        }
        Some(LoopDevice(device.into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let name = self.0.file_name().expect("a name");
        let image = Path::new("/sys/block").join(name).join("loop/backing_file");
        let ours = fs::read(&image).ok();
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
        // While somebody looks at all devices, and has it open, it stays. Afterwards it may be another test's.
        let begun = Instant::now();
        while ours.is_some() && fs::read(&image).ok() == ours && begun.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A temporary directory with a store and a place to mount it.
pub(crate) struct Sandbox {
    directory: TestDirectory,
}

impl Sandbox {
    /// An empty sandbox.
    #[allow(clippy::new_without_default)]
    pub(crate) fn new() -> Sandbox {
        let directory = TestDirectory::new();
        fs::create_dir(directory.path("mnt")).expect("a mount point");
        Sandbox { directory }
    }

    /// A sandbox with a small store.
    pub(crate) fn formatted() -> Sandbox {
        Sandbox::formatted_with(&SMALL)
    }

    /// A sandbox with a store that was formatted with `options`.
    pub(crate) fn formatted_with(options: &[&str]) -> Sandbox {
        let sandbox = Sandbox::new();
        succeeds(weir().arg("format").args(options).arg(sandbox.store()));
        sandbox
    }

    /// A path in the sandbox.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path(name)
    }

    /// The directory with the media.
    pub(crate) fn store(&self) -> PathBuf {
        self.path("media")
    }

    /// Writes the file of rules, and returns its path.
    pub(crate) fn rules_file(&self, rules: &str) -> String {
        let path = self.path("rules");
        fs::write(&path, rules).expect("a file");
        path.into_os_string().into_string().expect("UTF-8")
    }

    /// The mount point.
    pub(crate) fn mount_point(&self) -> PathBuf {
        self.path("mnt")
    }

    /// A copy of the command that any user may run, in a sandbox that any user may enter: the build directory
    /// may be closed to other users. `None`, with a message, if the directories above are closed, too.
    pub(crate) fn command_for_all(&self) -> Option<PathBuf> {
        let root = self.path("");
        let closed = |dir: &&Path| fs::metadata(dir).expect("an ancestor").permissions().mode() & 0o001 == 0;
        if let Some(dir) = root.ancestors().skip(1).find(closed) {
            let must = std::env::var_os("WEIR_TESTS_MUST_MOUNT").is_some();
            assert!(!must, "others cannot get into {}: set TMPDIR to one that they can", dir.display());
            eprintln!("skipped: others cannot get into {}", dir.display());
            return None;
        }
        let (open, copy) = (fs::Permissions::from_mode(0o755), self.path("weir"));
        fs::set_permissions(&root, open.clone()).expect("it is ours");
        copy_program(env!("CARGO_BIN_EXE_weir"), &copy);
        fs::set_permissions(&copy, open).expect("it is ours");
        Some(copy)
    }

    /// Mounts the store.
    pub(crate) fn mount(&self) -> Mounted {
        self.mount_with(&[])
    }

    /// Mounts the store. The daemon's messages go to `messages`.
    pub(crate) fn mount_saying_to(&self, messages: Stdio) -> Mounted {
        let (store, dir, log) = (self.store(), self.mount_point(), self.path("daemon.log"));
        Mounted::start_saying_to(weir(), &store, &dir, &[], messages, &log)
    }

    /// Mounts the store with a daemon without CAP_SYS_PTRACE.
    pub(crate) fn mount_without_ptrace(&self, options: &[&str]) -> Mounted {
        let log = self.path("daemon.log");
        let messages = File::create(&log).expect("a log");
        let mut program = Command::new("setpriv");
        program.args(["--bounding-set", "-sys_ptrace", weir().get_program().to_str().expect("UTF-8")]);
        Mounted::start_saying_to(program, &self.store(), &self.mount_point(), options, messages.into(), &log)
    }

    /// Mounts the store with more options.
    pub(crate) fn mount_with(&self, options: &[&str]) -> Mounted {
        Mounted::start(&self.store(), &self.mount_point(), options, &self.path("daemon.log"))
    }
}

/// A mount with its daemon. Dropping it kills the daemon and unmounts.
pub(crate) struct Mounted {
    dir: PathBuf,
    log: PathBuf,
    daemon: Child,
}

impl Mounted {
    /// Mounts `store` on `dir` and returns when it is ready; the daemon's messages go to `log`.
    pub(crate) fn start(store: &Path, dir: &Path, options: &[&str], log: &Path) -> Mounted {
        let messages = File::create(log).expect("a log");
        Mounted::start_saying_to(weir(), store, dir, options, messages.into(), log)
    }

    fn start_saying_to(
        mut program: Command,
        store: &Path,
        dir: &Path,
        options: &[&str],
        messages: Stdio,
        log: &Path,
    ) -> Mounted {
        let daemon = program
            .args(["mount", "--foreground"])
            .args(options)
            .args([store, dir])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(messages)
            .spawn()
            .expect("the daemon starts");
        let mut mounted = Mounted { dir: dir.into(), log: log.into(), daemon };
        mounted.wait_ready();
        mounted
    }

    fn wait_ready(&mut self) {
        let begin = Instant::now();
        while !self.answers() {
            if let Some(status) = self.daemon.try_wait().expect("a child of ours") {
                panic!("the daemon ended with {status}: {}", self.messages());
            }
            assert!(begin.elapsed() < PATIENCE, "not ready in time: {}", self.messages());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn answers(&self) -> bool {
        is_mounted(&self.dir) && weir().arg("status").arg(&self.dir).output().expect("runs").status.success()
    }

    /// The daemon's standard error so far.
    pub(crate) fn messages(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The mount point.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// A path on the mount.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The daemon's process id.
    pub(crate) fn pid(&self) -> u32 {
        self.daemon.id()
    }

    /// `weir status --json`.
    pub(crate) fn status(&self) -> StatusReport {
        status_of(&self.dir)
    }

    /// `weir why --json`.
    pub(crate) fn waits(&self) -> WaitsReport {
        let output = succeeds(weir().arg("why").arg(&self.dir).arg("--json"));
        serde_json::from_slice(&output.stdout).expect("a report")
    }

    /// Unmounts with `weir unmount`, and checks that the daemon ended well.
    pub(crate) fn unmount(mut self) {
        succeeds(weir().arg("unmount").arg(&self.dir));
        let status = self.daemon.wait().expect("a child of ours");
        assert!(status.success(), "the daemon ended with {status}: {}", self.messages());
        assert!(!is_mounted(&self.dir), "still mounted after `weir unmount`");
    }

    /// Sends a signal to the daemon.
    pub(crate) fn signal(&self, name: &str) {
        succeeds(Command::new("kill").args(["-s", name, &self.pid().to_string()]));
    }

    /// Waits for the daemon's end.
    #[track_caller]
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.daemon.try_wait().expect("a child of ours") {
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "the daemon goes on: {}", self.messages());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Kills the daemon as `kill -9` does, and removes the dead mount.
    pub(crate) fn kill(self) {
        drop(self);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Only this daemon, by its process id; it may have ended already.
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
        detach(&self.dir);
    }
}

/// Removes what is mounted on `dir`, also if programs use it or its daemon is gone.
pub(crate) fn detach(dir: &Path) {
    while is_mounted(dir) {
        if rustix::mount::unmount(dir, rustix::mount::UnmountFlags::DETACH).is_err() {
            break;
        }
    }
}

/// Whether a file system is mounted on `dir`. Does not touch the mount, which may hang.
pub(crate) fn is_mounted(dir: &Path) -> bool {
    let parent = dir.parent().expect("a mount point has a parent");
    let dir = fs::canonicalize(parent).expect("the parent is there").join(dir.file_name().expect("a name"));
    let table = fs::read_to_string("/proc/self/mountinfo").expect("a mount table");
    table.lines().any(|line| line.split(' ').nth(4).is_some_and(|point| Path::new(point) == dir))
}

/// The command under test.
pub(crate) fn weir() -> Command {
    Command::new(env!("CARGO_BIN_EXE_weir"))
}

/// `sh`, which runs `script` in a mount namespace of its own.
///
/// Only the mounts that the script makes are there: a daemon whose mount stayed in a namespace would not end when another test
/// unmounts it.
pub(crate) fn in_mount_namespace(script: &str) -> Command {
    let without_others = "umount --all --lazy --internal-only --types fuse.weir || true";
    let mut command = Command::new("unshare");
    let script = format!("{without_others}\n{script}");
    command.args(["--mount", "--propagation", "private", "sh", "-ec", &script]);
    command
}

/// `weir status --json` of the mount on `dir`.
#[track_caller]
pub(crate) fn status_of(dir: &Path) -> StatusReport {
    let output = succeeds(weir().args(["status", "--json"]).arg(dir));
    serde_json::from_slice(&output.stdout).expect("status prints JSON")
}

/// `weir space --json` of the mount on `dir`, with `options`.
#[track_caller]
pub(crate) fn space_of(dir: &Path, options: &[&str]) -> SpaceReport {
    let output = succeeds(weir().args(["space", "--json"]).args(options).arg(dir));
    serde_json::from_slice(&output.stdout).expect("space prints JSON")
}

/// Runs `command`, which must fail with exit code 1, one message and a next step. Returns the output.
#[track_caller]
pub(crate) fn fails(command: &mut Command) -> String {
    let output = command.output().expect("the command starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{command:?} said: {said}");
    assert_eq!(said.matches("error: ").count(), 1, "not one clear message: {said}");
    assert_eq!(said.matches("  help: ").count(), 1, "no next step: {said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

/// Fails unless the output contains `part`.
#[track_caller]
pub(crate) fn assert_says(said: &str, part: &str) {
    assert!(said.contains(part), "said {said:?}, not {part:?}");
}

/// The command with a limit of `kib` KiB on the size of files, so that every write past that fails.
pub(crate) fn failing_after(kib: u32) -> Command {
    let mut shell = Command::new("bash");
    let script = format!("trap '' XFSZ; ulimit -f {kib}; exec \"$0\" \"$@\"");
    shell.args(["-c", &script, env!("CARGO_BIN_EXE_weir")]);
    shell
}

/// Waits until a change gets a later time than earlier changes. Files are stamped with the kernel's tick, 10
/// ms at most.
pub(crate) fn next_tick() {
    std::thread::sleep(Duration::from_millis(12));
}

/// A small file system in memory, until it is dropped.
pub(crate) struct TmpfsMount(pub PathBuf);

impl TmpfsMount {
    /// Mounts a file system in memory on `dir`.
    pub(crate) fn new(dir: PathBuf, size: &str) -> TmpfsMount {
        let options = format!("size={size}");
        succeeds(Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&dir));
        TmpfsMount(dir)
    }
}

impl Drop for TmpfsMount {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}
