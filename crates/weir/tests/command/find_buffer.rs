//! weir finds a store's buffer in its last place, beside the store, or on a block device. It takes no other
//! buffer, and refuses to choose between two.

use crate::common::{LoopDevice, Mounted, Sandbox, assert_says, can_mount, fails, succeeds, weir};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::DirectoryContents;

/// A store and a buffer that are files in two directories.
fn apart(sandbox: &Sandbox) -> (PathBuf, PathBuf) {
    let (store, buffer) = (sandbox.path("slow"), sandbox.path("fast"));
    [&store, &buffer].iter().for_each(|directory| fs::create_dir(directory).expect("a directory"));
    let (store, buffer) = (store.join("image"), buffer.join("log"));
    File::create(&store).expect("a file").set_len(64 << 20).expect("space");
    succeeds(weir().args(["format", "--buffer-size", "8MiB", "--buffer"]).arg(&buffer).arg(&store));
    (store, buffer)
}

fn check(store: &Path) -> Command {
    let mut command = weir();
    command.arg("check").arg(store);
    command
}

/// The output of `weir check`, which cannot begin.
#[track_caller]
fn not_checked(store: &Path) -> String {
    let output = check(store).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert_says(&said, "  help: ");
    said
}

#[test]
fn a_buffer_elsewhere_is_found_where_it_was_last_and_a_missing_one_is_said_with_where_was_looked() {
    let sandbox = Sandbox::new();
    let (store, buffer) = apart(&sandbox);
    succeeds(&mut check(&store));
    let moved = sandbox.path("moved");
    fs::rename(&buffer, &moved).expect("the buffer moves");
    let before = DirectoryContents::below(&sandbox.path("slow"));
    let said = not_checked(&store);
    for part in [
        "the buffer is missing",
        &buffer.display().to_string(),
        "block devices",
        "--buffer PATH",
        "replace-buffer",
    ] {
        assert_says(&said, part);
    }
    before.assert_unchanged(&sandbox.path("slow"));
    // A command that writes to the store records the path of its buffer. Later commands find the buffer
    // there.
    succeeds(weir().args(["check", "--repair", "--buffer"]).args([&moved, &store]));
    if can_mount() {
        Mounted::start(
            &store,
            &sandbox.mount_point(),
            &["--buffer", moved.to_str().expect("UTF-8")],
            &sandbox.path("log"),
        )
        .unmount();
        succeeds(&mut check(&store));
    }
}

#[test]
fn a_directory_that_is_renamed_or_copied_has_its_own_buffer() {
    let sandbox = Sandbox::formatted();
    succeeds(&mut check(&sandbox.store()));
    let (renamed, copied) = (sandbox.path("renamed"), sandbox.path("copied"));
    succeeds(Command::new("cp").arg("-a").arg(sandbox.store()).arg(&copied));
    fs::rename(sandbox.store(), &renamed).expect("the store moves");
    for store in [&renamed, &copied, &copied.join("store")] {
        succeeds(&mut check(store));
    }
    // A store without its buffer does not take that of the other store.
    fs::remove_file(copied.join("buffer")).expect("removed");
    assert_says(&not_checked(&copied), "the buffer is missing");
}

#[test]
fn of_two_media_that_say_to_be_the_buffer_none_is_taken() {
    let sandbox = Sandbox::new();
    let (store, buffer) = apart(&sandbox);
    let copy = sandbox.path("slow").join("buffer");
    fs::copy(&buffer, &copy).expect("a copy");
    let before = DirectoryContents::below(&sandbox.path("slow"));
    let said = not_checked(&store);
    for part in ["two buffers", &buffer.display().to_string(), &copy.display().to_string(), "--buffer PATH"] {
        assert_says(&said, part);
    }
    before.assert_unchanged(&sandbox.path("slow"));
    succeeds(weir().args(["check", "--buffer"]).args([&buffer, &store]));
    // A link to the same buffer does not count as a second buffer.
    fs::remove_file(&copy).expect("removed");
    std::os::unix::fs::symlink(&buffer, &copy).expect("a link");
    succeeds(&mut check(&store));
}

#[test]
fn a_commit_interval_that_was_said_once_is_kept() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let interval = |options: &[&str]| {
        let mounted = sandbox.mount_with(options);
        let interval = mounted.status().settings.commit_interval_ms;
        mounted.unmount();
        interval
    };
    assert_eq!(interval(&[]), 1000);
    assert_eq!(interval(&["--commit-interval", "250"]), 250);
    assert_eq!(interval(&[]), 250);
    fs::rename(sandbox.store(), sandbox.path("elsewhere")).expect("it moves");
    fs::rename(sandbox.path("elsewhere"), sandbox.store()).expect("it comes back");
    assert_eq!(interval(&["--commit-interval", "1000"]), 1000);
    assert_eq!(interval(&[]), 1000);
}

#[test]
fn a_buffer_on_a_block_device_that_has_another_name_now_is_found_by_its_identity() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    let (store, buffer) = apart(&sandbox);
    let moved = sandbox.path("moved");
    fs::rename(&buffer, &moved).expect("the buffer moves");
    let Some(device) = LoopDevice::of(&moved) else { return };
    succeeds(&mut check(&store));
    Mounted::start(&store, &sandbox.mount_point(), &[], &sandbox.path("log")).unmount();
    let copy = sandbox.path("copy");
    fs::copy(&moved, &copy).expect("a copy");
    drop(device);
    let (Some(one), Some(other)) = (LoopDevice::of(&moved), LoopDevice::of(&copy)) else { return };
    // The buffer's last device may have got its name again.
    let said = check(&store).output().expect("it runs");
    if !said.status.success() {
        let said = String::from_utf8_lossy(&said.stderr).into_owned();
        let named = [&one, &other].map(|device| said.contains(&device.0.display().to_string()));
        assert!(said.contains("two buffers") && named == [true, true], "{said}");
    }
    drop((one, other));
    let said = fails(weir().arg("mount").arg(&store).arg(sandbox.mount_point()));
    assert_says(&said, "the buffer is missing");
}
