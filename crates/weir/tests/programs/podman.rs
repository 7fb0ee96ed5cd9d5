//! Containers whose images and layers lie on a mount: podman's overlay driver, as it comes.

use crate::common::succeeds;
use crate::kills::have;
use crate::weir::Weir;
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Podman with its storage in the mount, and its temporary files beside the mount. The names are short,
/// because podman refuses a runroot of more than 50 characters.
struct Podman {
    storage: PathBuf,
    beside: PathBuf,
}

impl Podman {
    fn command(&self) -> Command {
        let mut command = Command::new("podman");
        command.arg("--root").arg(&self.storage);
        command.arg("--runroot").arg(self.beside.join("r")).arg("--tmpdir").arg(self.beside.join("tmp"));
        command.args(["--storage-driver", "overlay", "--runtime", "runc", "--cgroup-manager", "cgroupfs"]);
        command.args(["--events-backend", "none"]).env("TMPDIR", &self.beside);
        command
    }

    /// An image of busybox alone; there is no registry to ask.
    fn import(&self) {
        let rootfs = self.beside.join("rootfs");
        for directory in ["bin", "data/old"] {
            fs::create_dir_all(rootfs.join(directory)).expect("a directory");
        }
        fs::write(rootfs.join("data/old/f"), "from the image\n").expect("a file");
        fs::write(rootfs.join("data/unwanted"), "").expect("a file");
        fs::copy("/bin/busybox", rootfs.join("bin/busybox")).expect("a shell");
        let archive = self.beside.join("rootfs.tar");
        succeeds(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&rootfs).arg("."));
        succeeds(self.command().arg("import").arg(archive).arg("localhost/base"));
    }

    /// A run of `script` in a new container of `image`. The limits are below those that a test may not raise.
    fn run(&self, name: &str, image: &str, script: &str) -> Command {
        let mut command = self.command();
        command.args(["run", "--network", "none", "--cgroups", "no-conmon", "--name", name]);
        command.args(["--ulimit", "nofile=1000:1000", "--ulimit", "nproc=1000:1000"]);
        command.args([image, "/bin/busybox", "sh", "-ec", script]);
        command
    }

    /// The output of `command`, which must succeed.
    fn said(mut command: Command) -> String {
        String::from_utf8(succeeds(&mut command).stdout).expect("text")
    }

    /// Unmounts the driver's directory, which the driver keeps mounted on itself, so that the mount is free.
    fn leave(&self) {
        let _ = unmount(self.storage.join("overlay"), UnmountFlags::DETACH);
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Whether podman can run anything on this machine, with its storage on the machine's own file system.
fn runs_here(beside: PathBuf) -> bool {
    let podman = Podman { storage: beside.join("storage"), beside };
    podman.import();
    let output = podman.run("one", "localhost/base", "true").output().expect("podman starts");
    if !output.status.success() {
        eprintln!("skipped: podman runs nothing here: {}", String::from_utf8_lossy(&output.stderr));
    }
    output.status.success()
}

/// In the image `data` has `old/f` and `unwanted`.
const CHANGES: &str =
    "cd /data; /bin/busybox rm unwanted; /bin/busybox mv old new; echo more >>new/f; echo made >made";

#[test]
fn podman_runs_containers_on_a_mount_commits_them_and_finds_them_after_a_crash() {
    if !have(&["podman", "runc", "/bin/busybox"].map(Path::new)) {
        return;
    }
    let Some(mut weir) = Weir::start("256MiB", "32MiB") else { return };
    if !runs_here(weir.beside("e")) {
        return;
    }
    let podman = Podman { storage: weir.path().join("storage"), beside: weir.beside("p") };
    podman.import();
    Podman::said(podman.run("one", "localhost/base", CHANGES));
    let mut commit = podman.command();
    commit.args(["commit", "one", "localhost/changed"]);
    Podman::said(commit);
    succeeds(crate::common::weir().arg("sync").arg(weir.path()));
    podman.leave();
    weir.kill();
    weir.mount();
    let looks = "cd /data; busybox ls; busybox cat new/f made";
    let looks = looks.replace("busybox", "/bin/busybox");
    let said = Podman::said(podman.run("two", "localhost/changed", &looks));
    assert_eq!(said, "made\nnew\nfrom the image\nmore\nmade\n", "an image of two layers");
    let mut diff = podman.command();
    diff.args(["diff", "one"]);
    let said = Podman::said(diff);
    for change in ["D /data/unwanted", "D /data/old", "A /data/new", "A /data/made"] {
        assert!(said.lines().any(|line| line == change), "{change} is missing: {said}");
    }
    podman.leave();
    weir.unmount_and_check();
}
