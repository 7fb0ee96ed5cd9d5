//! A store in a temporary directory, mounted by the real `weir`, gone when dropped.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// On a machine under heavy load even simple things take long; nothing right takes this long.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// One store and its mount point. Dropping it unmounts and removes everything.
pub struct Weir {
    directory: TempDir,
}

impl Weir {
    /// Formats and mounts a store of at most `store` with a buffer of `buffer`, such as `1GiB`.
    pub fn start(store: &str, buffer: &str) -> Weir {
        let weir = Weir { directory: tempfile::tempdir().expect("a temporary directory") };
        fs::create_dir(weir.path()).expect("a mount point");
        succeed(command("format").args(["--size", store, "--buffer-size", buffer]).arg(weir.store()));
        weir.mount();
        weir
    }

    /// The mount point.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("mount")
    }

    /// A directory beside the mount, on the machine's own file system.
    pub fn plain(&self) -> &Path {
        self.directory.path()
    }

    fn store(&self) -> PathBuf {
        self.directory.path().join("store")
    }

    pub fn mount(&self) {
        succeed(command("mount").arg(self.store()).arg(self.path()));
    }

    /// Unmounts in order; what is checked afterwards must be sound.
    pub fn unmount_and_check(&self) {
        succeed(command("unmount").arg(self.path()));
        succeed(command("check").arg(self.store()));
    }

    /// Starts mounting, and kills the daemon `after` so long, wherever it is then.
    pub fn kill_while_mounting(&self, after: Duration) {
        let mut daemon = command("mount")
            .arg("--foreground")
            .arg(self.store())
            .arg(self.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("weir starts");
        std::thread::sleep(after);
        end(&mut daemon);
        self.take_mount_away();
    }

    /// Kills the daemon as `kill -9` does.
    pub fn kill(&self) {
        let pid = self.status()["pid"].as_u64().expect("a pid").to_string();
        succeed(Command::new("kill").args(["-9", &pid]));
        // Until then it may hold the media.
        wait_until("the killed daemon is gone", || !is_running(&pid));
    }

    /// Takes away the mount of a daemon that was killed.
    pub fn take_mount_away(&self) {
        let path = self.path();
        for (program, options) in [("umount", &[][..]), ("umount", &["-l"]), ("fusermount3", &["-uz"])] {
            if !is_mounted(&path) {
                return;
            }
            let _ = Command::new(program).args(options).arg(&path).stderr(Stdio::null()).status();
        }
        assert!(!is_mounted(&path), "{} is still mounted", path.display());
    }

    pub fn status(&self) -> Value {
        let output = succeed(command("status").arg("--json").arg(self.path()));
        serde_json::from_slice(&output.stdout).expect("status is JSON")
    }
}

impl Drop for Weir {
    fn drop(&mut self) {
        if is_mounted(&self.path()) {
            let _ = command("unmount").arg(self.path()).output();
            self.take_mount_away();
        }
    }
}

/// `weir` with a verb.
pub fn command(verb: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg(verb);
    command
}

/// Runs a program that must succeed.
pub fn succeed(command: &mut Command) -> Output {
    let output = match command.stdin(Stdio::null()).output() {
        Ok(output) => output,
        Err(error) => panic!("{command:?}: {error}; `scripts/install-test-tools` installs what is missing"),
    };
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Kills a program that we started.
pub fn end(child: &mut Child) {
    let _ = child.kill();
    child.wait().expect("a killed program ends");
}

pub fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_running(pid: &str) -> bool {
    // The state stands after the program's name, which may hold anything, even a parenthesis. A zombie holds nothing.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("the kernel lists mounts");
    mounts.lines().any(|line| line.split(' ').nth(1) == path.to_str())
}
