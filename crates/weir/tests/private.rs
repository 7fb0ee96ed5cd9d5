//! What a store and its buffer hold is everybody's files: only their owner reads the media.

mod common;

use common::{Sandbox, assert_says, can_mount, copy_program, fails, succeeds, weir};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A blank file that everybody may read.
fn open_to_all(path: PathBuf, bytes: u64) -> PathBuf {
    File::create(&path).expect("a file").set_len(bytes).expect("room");
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
    let store = open_to_all(sandbox.path("store"), 40 << 20);
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
    let store = open_to_all(sandbox.path("the store"), 40 << 20);
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
