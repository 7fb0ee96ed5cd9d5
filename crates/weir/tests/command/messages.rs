//! The command's error messages: complete, in its own words, with the next step.

use crate::common::{self, Mounted, Sandbox, assert_says, can_mount, failing_after, fails, succeeds, weir};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use test_support::DirectoryContents;

/// The output of `command`, which must refuse its command line with the exit code for that.
#[track_caller]
fn makes_no_sense(command: &mut Command) -> String {
    let output = command.output().expect("the command starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{command:?} said: {said}");
    said
}

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("a device that is full").into()
}

#[test]
fn a_name_with_a_semicolon_stands_whole_in_the_message() {
    let sandbox = Sandbox::new();
    File::create(sandbox.path("file")).expect("a file");
    let inside = sandbox.path("file").join("a; b");
    let said = fails(weir().arg("format").arg(&inside));
    assert_says(&said, &format!("error: {}: ", inside.display()));
}

#[test]
fn a_name_with_a_newline_makes_no_second_line() {
    let sandbox = Sandbox::new();
    let said = fails(weir().args(["volume", "list"]).arg(sandbox.path("a\nall is lost\x1b[2J")));
    assert_says(&said, r"a\nall is lost\u{1b}[2J");
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_no_panic() {
    let sandbox = Sandbox::formatted();
    let is_told = |command: &mut Command| assert_says(&fails(command.stdout(full())), "standard output");
    is_told(weir().arg("check").arg(sandbox.store()));
    is_told(weir().args(["volume", "list"]).arg(sandbox.store()));
    is_told(weir().arg("--help"));
    if can_mount() {
        let mounted = sandbox.mount();
        is_told(weir().arg("status").arg(mounted.dir()));
        is_told(weir().arg("space").arg(mounted.dir()));
        mounted.unmount();
    }
}

#[test]
fn a_daemon_whose_messages_cannot_be_written_goes_on() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mut mounted = sandbox.mount_saying_to(full());
    let open = File::create(mounted.path("file")).expect("a file");
    // The daemon reports that the mount is busy.
    mounted.signal("TERM");
    std::thread::sleep(std::time::Duration::from_millis(300));
    (&open).write_all(b"still there").expect("it goes on");
    drop(open);
    assert_eq!(mounted.ended().code(), Some(0));
}

#[test]
fn a_scrub_that_would_never_end_is_refused() {
    let sandbox = Sandbox::new();
    for rate in ["0", "1", "64KiB"] {
        let said = fails(weir().args(["scrub", "--rate", rate]).arg(sandbox.mount_point()));
        assert_says(&said, "less than 1 MiB");
    }
}

#[test]
fn a_size_is_refused_in_words_that_quote_all_of_it() {
    let sandbox = Sandbox::new();
    for wrong in ["-5GiB", "1.2.3GiB", "1.5", "8 parsecs", "1,5GiB", ""] {
        let said = makes_no_sense(weir().args(["mount", "--memory", wrong, "a", "b"]));
        assert_says(&said, &format!("invalid value '{wrong}' for '--memory <SIZE>'"));
        assert_says(&said, "1.5GiB");
    }
    let said = makes_no_sense(weir().args(["format", "--size", "-5GiB"]).arg(sandbox.store()));
    assert_says(&said, "a size cannot be negative");
}

#[test]
fn memory_that_the_machine_does_not_have_is_refused() {
    let sandbox = Sandbox::formatted();
    let mount = |memory| {
        let mut mount = weir();
        mount.args(["mount", "--memory", memory]).arg(sandbox.store()).arg(sandbox.mount_point());
        mount
    };
    assert_says(&fails(&mut mount("1PiB")), "this machine has");
    let said = fails(&mut mount("15"));
    assert_says(&said, "less than 16 MiB");
    assert_says(&said, "a number without a unit is in bytes");
}

#[test]
fn a_directory_that_is_not_empty_becomes_no_store() {
    let sandbox = Sandbox::new();
    let dir = sandbox.path("precious");
    fs::create_dir_all(dir.join("lost+found")).expect("a directory");
    fs::write(dir.join("letters"), "mine").expect("a file");
    let before = DirectoryContents::below(&dir);
    let format = || {
        let mut format = weir();
        format.arg("format").args(common::SMALL).arg(&dir);
        format
    };
    assert_says(&fails(&mut format()), "not empty: it holds letters");
    before.assert_unchanged(&dir);
    succeeds(format().arg("--force"));
    assert_eq!(fs::read(dir.join("letters")).expect("it is there"), b"mine");

    fs::remove_dir_all(&dir).expect("ours");
    fs::create_dir_all(dir.join("lost+found")).expect("a directory");
    succeeds(&mut format());
}

#[test]
fn a_command_for_a_mount_that_is_given_the_store_names_the_mount() {
    if !common::can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let said = fails(weir().arg("status").arg(sandbox.store()));
    let mount = format!("a directory on which it is mounted: {}", mounted.dir().display());
    assert!(said.contains("no weir store is mounted here") && said.contains(&mount), "{said}");
}

#[test]
fn umount_is_unmount() {
    let sandbox = Sandbox::new();
    assert_says(&fails(weir().arg("umount").arg(sandbox.mount_point())), "no weir store is mounted here");
}

#[test]
fn a_file_larger_than_is_allowed_below_is_not_called_a_full_disk() {
    let sandbox = Sandbox::new();
    let said = fails(failing_after(1024).arg("format").args(common::SMALL).arg(sandbox.store()));
    assert_says(&said, "larger than the host file system allows");
    assert!(!said.contains("no space"), "{said}");
    assert!(!sandbox.store().exists());
}

#[test]
fn read_only_media_lead_to_read_only() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let disk = ReadOnlyDisk::over(&sandbox.store().join("store"));
    let buffer = sandbox.store().join("buffer");
    let mut mount = weir();
    mount.arg("mount").arg("--buffer").arg(&buffer).arg(&disk.0).arg(sandbox.mount_point());
    let said = fails(&mut mount);
    assert_says(&said, "is read-only");
    assert_says(&said, "`weir mount --read-only`");
}

/// A loop device over a file, which cannot be written.
struct ReadOnlyDisk(String);

impl ReadOnlyDisk {
    fn over(file: &Path) -> ReadOnlyDisk {
        let Output { stdout, .. } =
            succeeds(Command::new("losetup").args(["--find", "--show", "--read-only"]).arg(file));
        ReadOnlyDisk(String::from_utf8_lossy(&stdout).trim().to_owned())
    }
}

impl Drop for ReadOnlyDisk {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn a_full_disk_at_format_is_called_one() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    let small = common::TmpfsMount::new(sandbox.path("mnt"), "4m");
    let said =
        fails(weir().args(["format", common::VOLATILE]).args(common::SMALL).arg(small.0.join("media")));
    assert_says(&said, "media/buffer: its file system has 4 MiB free, too little for 8 MiB");
    assert_says(&said, "  help: free some space there, or choose a smaller size");
}

#[test]
fn a_check_with_the_wrong_buffer_is_no_finding() {
    let (sandbox, other) = (Sandbox::formatted(), Sandbox::formatted());
    let check = |buffer: &Path| {
        let output = weir().args(["check", "--buffer"]).arg(buffer).arg(sandbox.store()).output();
        let output = output.expect("it runs");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert_says(&check(&other.store().join("buffer")), "could not check");
    assert_says(&check(Path::new("/etc/passwd")), "not a weir buffer");
    assert_says(&check(&sandbox.path("nothing")), "the buffer is missing");
}

#[test]
fn an_old_buffer_that_is_another_file_is_a_mistake_and_no_loss() {
    let (sandbox, other) = (Sandbox::formatted(), Sandbox::formatted());
    let before = DirectoryContents::below(&sandbox.store());
    let theirs = other.store().join("buffer");
    for wrong in [Path::new("/etc/passwd"), &theirs, &sandbox.path("nothing")] {
        let mut replace = weir();
        let said =
            fails(replace.args(["replace-buffer", "--accept-loss", "--old"]).arg(wrong).arg(sandbox.store()));
        assert_says(&said, "not the buffer of this store");
        before.assert_unchanged(&sandbox.store());
    }
}

#[test]
fn a_buffer_is_as_large_as_format_makes_one_wherever_it_comes_from() {
    let sandbox = Sandbox::formatted();
    let small = sandbox.path("small");
    File::create(&small).expect("a file").set_len(1 << 20).expect("space");
    let before = DirectoryContents::below(&sandbox.store());
    let replace = |what: &str, value: &Path| {
        let said = fails(weir().args(["replace-buffer", what]).arg(value).arg(sandbox.store()));
        assert_says(&said, "less than 8 MiB");
        before.assert_unchanged(&sandbox.store());
    };
    replace("--buffer-size", Path::new("1MiB"));
    replace("--buffer", &small);
    let said =
        fails(weir().args(["format", "--size", "64MiB", "--buffer"]).arg(&small).arg(sandbox.path("new")));
    assert_says(&said, "less than 8 MiB");
    assert!(!sandbox.path("new").exists());
    assert!(fs::read(&small).expect("ours").iter().all(|byte| *byte == 0), "it was written to");
}

#[test]
fn a_link_that_leads_nowhere_is_named_with_where_it_leads() {
    let sandbox = Sandbox::formatted();
    let link = sandbox.path("link");
    symlink("/dev/not attached", &link).expect("a link");
    let leads = "a symbolic link to /dev/not attached, which does not exist";
    assert_says(&fails(weir().arg("format").arg(&link)), leads);
    assert_says(&fails(weir().arg("mount").arg(&link).arg(sandbox.mount_point())), leads);
    let buffer = sandbox.store().join("buffer");
    fs::remove_file(&buffer).expect("ours");
    symlink("/dev/not attached", &buffer).expect("a link");
    let said = fails(weir().arg("mount").arg(sandbox.store()).arg(sandbox.mount_point()));
    assert_says(&said, "the buffer is missing: a symbolic link to /dev/not attached, which does not exist");
}

#[test]
fn what_is_no_store_is_called_that() {
    let sandbox = Sandbox::new();
    let said = fails(weir().args(["volume", "list"]).arg(sandbox.mount_point()));
    assert_says(&said, "neither a mounted store nor a formatted store");
    let said = fails(weir().args(["mount", "/etc/passwd"]).arg(sandbox.mount_point()));
    assert_says(&said, "/etc/passwd: this is not a weir store");
    assert!(!said.contains("overwrite"), "{said}");
}

#[test]
fn a_path_that_is_not_utf_8_is_shown_and_does_not_end_the_daemon() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let store = sandbox.store().with_file_name(OsStr::from_bytes(b"bad\xff"));
    fs::rename(sandbox.store(), &store).expect("ours");
    let mounted = Mounted::start(&store, &sandbox.mount_point(), &[], &sandbox.path("daemon.log"));
    let told = succeeds(weir().args(["status", "--json"]).arg(mounted.dir()));
    let told = String::from_utf8(told.stdout).expect("JSON is UTF-8");
    assert!(told.contains("bad\u{fffd}/store") && told.contains("bad\u{fffd}/buffer"), "{told}");
    mounted.unmount();
}
