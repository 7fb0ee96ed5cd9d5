//! A store and its buffer hold the files of all users, so only the owner of the media may read them.

use crate::common::{
    LoopDevice, Mounted, Sandbox, VOLATILE, assert_says, can_mount, copy_program, fails, succeeds, weir,
};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A blank file that all users may read.
fn open_to_all(path: PathBuf, bytes: u64) -> PathBuf {
    File::create(&path).expect("a file").set_len(bytes).expect("space");
    let_all_read(&path);
    path
}

fn let_all_read(path: &Path) {
    fs::set_permissions(path, Permissions::from_mode(0o644)).expect("it is ours");
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").mode() & 0o7777
}

#[test]
fn files_that_become_a_store_are_closed_to_others() {
    let sandbox = Sandbox::new();
    let store = open_to_all(sandbox.path("store"), 64 << 20);
    let buffer = open_to_all(sandbox.path("buffer"), 8 << 20);
    succeeds(weir().arg("format").arg("--buffer").arg(&buffer).arg(&store));
    assert_eq!((mode(&store), mode(&buffer)), (0o600, 0o600));

    [&store, &buffer].into_iter().for_each(|path| let_all_read(path));
    succeeds(weir().args(["format", "--force", "--buffer"]).arg(&buffer).arg(&store));
    assert_eq!((mode(&store), mode(&buffer)), (0o600, 0o600));

    let new = open_to_all(sandbox.path("new"), 8 << 20);
    succeeds(weir().args(["replace-buffer", "--old"]).arg(&buffer).arg("--buffer").arg(&new).arg(&store));
    assert_eq!(mode(&new), 0o600);
}

#[test]
fn a_file_that_cannot_be_closed_to_others_is_refused_with_the_command() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    let store = open_to_all(sandbox.path("the store"), 64 << 20);
    let buffer = open_to_all(sandbox.path("buffer"), 8 << 20);
    chown(&store, Some(0), Some(65534)).expect("we are root");
    fs::set_permissions(&store, Permissions::from_mode(0o664)).expect("it is ours");
    chown(&buffer, Some(65534), Some(65534)).expect("we are root");
    fs::set_permissions(sandbox.path(""), Permissions::from_mode(0o755)).expect("it is ours");
    copy_program(env!("CARGO_BIN_EXE_weir"), &sandbox.path("weir"));
    fs::set_permissions(sandbox.path("weir"), Permissions::from_mode(0o755)).expect("it is ours");
    let mut format = Command::new(sandbox.path("weir"));
    let format = format.uid(65534).gid(65534).arg("format").arg("--buffer").arg(&buffer).arg(&store);
    assert_says(&fails(format), &format!("`chmod 600 '{}'`", store.display()));
    assert!(fs::read(&store).expect("it is ours").iter().all(|byte| *byte == 0), "it was written to");
}

#[test]
fn a_block_device_keeps_its_mode_and_is_warned_of_where_all_may_read_it() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    let (image, buffer) = (open_to_all(sandbox.path("image"), 64 << 20), sandbox.path("buffer"));
    let device = LoopDevice::of(&image).expect("a loop device");
    let before = mode(&device.0);
    let mut format = weir();
    format.args(["format", "--force", "--buffer-size", "8MiB", "--buffer"]).arg(&buffer).arg(&device.0);
    let said = |output: Output| String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!said(succeeds(&mut format)).contains("warning"));
    assert_eq!(mode(&device.0), before);

    fs::remove_file(&buffer).expect("ours");
    fs::set_permissions(&device.0, Permissions::from_mode(before | 0o004)).expect("we are root");
    let warned = said(succeeds(&mut format));
    let after = mode(&device.0);
    fs::set_permissions(&device.0, Permissions::from_mode(before)).expect("we are root");
    assert_eq!(after, before | 0o004);
    assert_says(&warned, &format!("`chmod o-rwx {}`", device.0.display()));
}

#[test]
fn a_mount_of_media_that_others_can_read_says_so() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    assert!(!mounted.messages().contains("warning"), "{}", mounted.messages());
    mounted.unmount();
    let store = sandbox.store().join("store");
    let_all_read(&store);
    let mut wrong = weir();
    wrong.args(["mount", "--buffer", "/etc/passwd"]).arg(sandbox.store()).arg(sandbox.mount_point());
    assert!(!fails(&mut wrong).contains("chmod"), "of a file that is none of ours");
    let mounted = sandbox.mount();
    assert_says(&mounted.messages(), &format!("`chmod 600 {}`", store.display()));
    mounted.unmount();
}

/// A file system in memory that has no direct I/O, until it is dropped.
struct RamMount(PathBuf);

impl RamMount {
    fn new(dir: PathBuf) -> RamMount {
        fs::create_dir(&dir).expect("a new directory");
        succeeds(Command::new("mount").args(["-t", "ramfs", "none"]).arg(&dir));
        RamMount(dir)
    }
}

impl Drop for RamMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_mount_of_media_that_the_page_cache_stands_before_says_so() {
    if !can_mount() || !rustix::process::getuid().is_root() {
        return;
    }
    let sandbox = Sandbox::new();
    let ram = RamMount::new(sandbox.path("ram"));
    let store = ram.0.join("store");
    succeeds(weir().args(["format", VOLATILE, "--size", "256MiB", "--buffer-size", "8MiB"]).arg(&store));
    fs::create_dir_all(sandbox.mount_point()).expect("a directory");
    let mounted = Mounted::start(&store, &sandbox.mount_point(), &[VOLATILE], &sandbox.path("log"));
    assert_says(&mounted.messages(), "buffer: its file system has no direct I/O (O_DIRECT)");
    mounted.unmount();
}
