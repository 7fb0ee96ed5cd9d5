//! A store in a temporary directory with its mount, both gone when dropped.

use crate::common::{Mounted, Sandbox, TmpfsMount, VOLATILE, can_mount, is_mounted, succeeds, weir};
use rustix::fs::{XattrFlags, setxattr};
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// The rules of all databases that have some.
const DATABASE_RULES: [&str; 3] = [
    include_str!("../../../../rules/mariadb.rules"),
    include_str!("../../../../rules/postgresql.rules"),
    include_str!("../../../../rules/redis.rules"),
];

/// The policy under which databases are killed, if `WEIR_TESTS_POLICY` names one that follows rules.
pub(crate) fn tested_policy() -> Option<String> {
    std::env::var("WEIR_TESTS_POLICY").ok()
}

/// A store. It is mounted, except between [`Weir::kill`] or [`Weir::unmount_and_check`] and [`Weir::mount`].
pub(crate) struct Weir {
    mounted: Option<Mounted>,
    _memory: Option<TmpfsMount>,
    sandbox: Sandbox,
    options: &'static [&'static str],
}

impl Weir {
    /// Formats and mounts a store of `store` with a buffer of `buffer`, such as `1GiB`. `None` where nothing
    /// can be mounted.
    pub(crate) fn start(store: &str, buffer: &str) -> Option<Weir> {
        Weir::start_with(store, buffer, &[])
    }

    /// Formats and mounts a store with more mount options.
    pub(crate) fn start_with(store: &str, buffer: &str, options: &'static [&'static str]) -> Option<Weir> {
        can_mount().then(|| {
            let sandbox = Sandbox::formatted_with(&["--size", store, "--buffer-size", buffer]);
            let mut weir = Weir { mounted: None, _memory: None, sandbox, options };
            weir.mount();
            weir
        })
    }

    /// Formats and mounts a store whose buffer is in memory: weir takes that for a second disk. `options`
    /// must accept such a buffer.
    pub(crate) fn start_on_two_disks(
        store: &str,
        buffer: &str,
        options: &'static [&'static str],
    ) -> Option<Weir> {
        can_mount().then(|| {
            let sandbox = Sandbox::new();
            let (dir, sizes) = (sandbox.path("memory"), ["--size", store, "--buffer-size", buffer]);
            std::fs::create_dir(&dir).expect("a new directory");
            let memory = TmpfsMount::new(dir, "100m");
            let mut format = weir();
            format.arg("format").args(sizes).arg(VOLATILE).arg("--buffer").arg(memory.0.join("buffer"));
            succeeds(format.arg(sandbox.store()));
            let mut weir = Weir { mounted: None, _memory: Some(memory), sandbox, options };
            weir.mount();
            weir
        })
    }

    /// The mount point.
    pub(crate) fn path(&self) -> PathBuf {
        self.sandbox.mount_point()
    }

    /// A path beside the mount, on the machine's own file system.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.sandbox.path(name)
    }

    /// Mounts again, under the policy of [`tested_policy`]. The changes that the last crash lost never come back
    /// after this.
    pub(crate) fn mount(&mut self) {
        let Some(policy) = tested_policy() else {
            self.mounted = Some(self.sandbox.mount_with(self.options));
            return;
        };
        let rules = self.sandbox.rules_file(&DATABASE_RULES.concat());
        let policy = ["--policy", &policy, "--rules", &rules];
        self.mounted = Some(self.sandbox.mount_with(&[self.options, &policy].concat()));
    }

    /// Mounts another volume instead of the default one.
    pub(crate) fn mount_volume(&mut self, volume: &str, mode: &[&str]) {
        let options = [self.options, &["--volume", volume], mode].concat();
        self.mounted = Some(self.sandbox.mount_with(&options));
    }

    /// Has the daemon mount another volume, too, on a directory beside the mount. A killed daemon leaves a dead
    /// mount there, which the next call removes.
    pub(crate) fn mount_beside(&self, volume: &str) -> PathBuf {
        let dir = self.beside(volume);
        let mut mount = weir();
        mount.args(["mount", "--volume", volume]).arg(self.sandbox.store()).arg(&dir);
        succeeds(&mut mount);
        dir
    }

    /// Unmounts what [`mount_beside`](Weir::mount_beside) mounted.
    pub(crate) fn unmount_beside(&self, volume: &str) {
        succeeds(weir().arg("unmount").arg(self.beside(volume)));
    }

    /// Creates a volume, while the store is mounted.
    pub(crate) fn create_volume(&self, volume: &str) {
        succeeds(weir().args(["volume", "create"]).arg(self.path()).arg(volume));
    }

    /// The volumes of the store.
    pub(crate) fn volumes(&self) -> Vec<String> {
        let listed = succeeds(weir().args(["volume", "list", "--json"]).arg(self.sandbox.store())).stdout;
        let listed: serde_json::Value = serde_json::from_slice(&listed).expect("JSON");
        let volumes = listed.as_array().expect("a list").iter();
        volumes.map(|volume| volume["name"].as_str().expect("a name").to_owned()).collect()
    }

    /// Unmounts in order.
    pub(crate) fn unmount(&mut self) {
        self.mounted.take().expect("it is mounted").unmount();
    }

    /// The daemon that serves the mount now.
    pub(crate) fn daemon(&self) -> &Mounted {
        self.mounted.as_ref().expect("it is mounted")
    }

    /// Unmounts in order, and runs `weir check`, which must find no problem.
    pub(crate) fn unmount_and_check(&mut self) {
        self.unmount();
        succeeds(weir().arg("check").arg(self.sandbox.store()));
    }

    /// Kills the daemon as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        self.mounted.take().expect("it is mounted").kill();
    }

    /// Starts to mount, and kills the daemon after the time `after`, whatever it does then.
    pub(crate) fn kill_while_mounting(&self, after: Duration) {
        let mut daemon = weir()
            .args(["mount", "--foreground"])
            .args(self.options)
            .args([self.sandbox.store(), self.path()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the daemon starts");
        std::thread::sleep(after);
        daemon.kill().expect("it can be killed");
        daemon.wait().expect("a child of ours");
        take_away(&self.path());
    }
}

/// Marks a new directory, and so all that will be made in it, for atomic writes of pages of this size.
pub(crate) fn mark_for_atomic_writes(directory: &Path, page_bytes: &str) {
    let marked = setxattr(directory, "user.weir.atomic", page_bytes.as_bytes(), XattrFlags::empty());
    marked.expect("the mount takes marks");
}

/// Unmounts the mount of a killed daemon, if it had mounted.
fn take_away(dir: &Path) {
    if is_mounted(dir) {
        rustix::mount::unmount(dir, UnmountFlags::DETACH).expect("a dead mount can be taken away");
    }
}
