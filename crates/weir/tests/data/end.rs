//! The effect of signals on a daemon, and of its end on programs with open files.

use crate::call::call;
use crate::common::{Mounted, Sandbox, can_mount, fails, is_mounted, succeeds, weir};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const ENOTCONN: i32 = 107;
const ECONNABORTED: i32 = 103;

/// Commits wait for an hour, so only the clean end can have written back the data that is found afterwards.
const NO_COMMITS: [&str; 2] = ["--commit-interval", "3600000"];

fn create(mounted: &Mounted, name: &str) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true).open(mounted.path(name)).expect("a file")
}

#[track_caller]
fn is_gone(outcome: std::io::Result<impl Sized>) {
    let error = outcome.err().expect("the daemon is gone").raw_os_error();
    assert!(matches!(error, Some(ENOTCONN | ECONNABORTED)), "{error:?}");
}

#[test]
fn every_polite_signal_unmounts_and_writes_everything_back() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    for signal in ["TERM", "INT", "HUP"] {
        let mut mounted = sandbox.mount_with(&NO_COMMITS);
        fs::write(mounted.path(signal), signal).expect("a file");
        mounted.signal(signal);
        assert!(mounted.ended().success(), "{signal}: {}", mounted.messages());
        assert!(!is_mounted(mounted.dir()), "{signal}");
        drop(mounted);
        let mounted = sandbox.mount();
        assert_eq!(fs::read_to_string(mounted.path(signal)).expect("it was written back"), signal);
        mounted.unmount();
        succeeds(weir().arg("check").arg(sandbox.store()));
    }
}

#[test]
fn a_busy_mount_ends_with_its_last_user_and_loses_nothing() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mut mounted = sandbox.mount_with(&NO_COMMITS);
    let file = create(&mounted, "file");
    mounted.signal("TERM");
    let begin = Instant::now();
    while is_mounted(mounted.dir()) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", mounted.messages());
        std::thread::sleep(Duration::from_millis(5));
    }
    // No other program finds the mount. Programs with open files continue.
    assert!(!mounted.path("file").exists());
    file.write_all_at(b"after the signal", 0).expect("a write");
    file.sync_all().expect("a sync");
    assert!(mounted.messages().contains("busy"), "{}", mounted.messages());
    drop(file);
    assert!(mounted.ended().success(), "{}", mounted.messages());
    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("file")).expect("it was written back"), b"after the signal");
}

#[test]
fn a_second_signal_ends_a_busy_mount_and_loses_nothing_that_was_written() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mut mounted = sandbox.mount_with(&NO_COMMITS);
    let file = create(&mounted, "file");
    file.write_all_at(&[7; 100_000], 0).expect("a write");
    mounted.signal("TERM");
    let begin = Instant::now();
    while is_mounted(mounted.dir()) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", mounted.messages());
        std::thread::sleep(Duration::from_millis(5));
    }
    mounted.signal("TERM");
    assert!(mounted.ended().success(), "{}", mounted.messages());
    is_gone(file.write_at(b"too late", 0));
    is_gone(file.sync_all());
    drop(mounted);
    // The old daemon must not touch a new mount of the store.
    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("file")).expect("it was written back"), vec![7; 100_000]);
    mounted.unmount();
    succeeds(weir().arg("check").arg(sandbox.store()));
}

#[test]
fn signals_in_a_row_while_programs_write_end_the_daemon_well() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted_with(&["--size", "200MiB", "--buffer-size", "16MiB"]);
    for round in 0..4_u64 {
        let mut mounted = sandbox.mount();
        let written = std::thread::scope(|scope| {
            let file = create(&mounted, &format!("file{round}"));
            let writer = scope.spawn(move || {
                let mut written = 0;
                while file.write_all_at(&[round as u8 + 1; 4096], written * 4096).is_ok() && written < 20_000
                {
                    written += 1;
                }
                written
            });
            std::thread::sleep(Duration::from_millis(20 + 40 * round));
            for signal in ["TERM", "INT", "TERM"] {
                // The daemon may have ended before the last signal.
                let _ = Command::new("kill")
                    .args(["-s", signal, &mounted.pid().to_string()])
                    .stderr(Stdio::null())
                    .status();
                std::thread::sleep(Duration::from_millis(10 * round));
            }
            writer.join().expect("the writer does not panic")
        });
        assert!(mounted.ended().success(), "{}", mounted.messages());
        drop(mounted);
        // A clean end keeps all acknowledged data.
        let mounted = sandbox.mount();
        let bytes = fs::read(mounted.path(&format!("file{round}"))).expect("the file");
        assert!(bytes.len() as u64 >= written * 4096, "{} of {} bytes", bytes.len(), written * 4096);
        assert!(bytes.iter().all(|&byte| byte == round as u8 + 1), "other bytes");
        mounted.unmount();
        succeeds(weir().arg("check").arg(sandbox.store()));
    }
}

#[test]
fn a_signal_at_any_moment_of_the_start_leaves_a_store_that_mounts_and_no_dead_mount() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), [7; 1_000_000]).expect("a file");
    File::open(mounted.path("file")).and_then(|file| file.sync_all()).expect("a sync");
    mounted.kill();
    for after_ms in [0, 2, 4, 6, 8, 10, 12, 15, 20, 30, 50] {
        let mut daemon = weir()
            .args(["mount", "--foreground"])
            .args([sandbox.store(), sandbox.mount_point()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the daemon starts");
        std::thread::sleep(Duration::from_millis(after_ms));
        succeeds(Command::new("kill").args(["-s", "TERM", &daemon.id().to_string()]));
        let status = daemon.wait().expect("a child of ours");
        assert!(status.success() || status.signal() == Some(15), "after {after_ms} ms: {status}");
        assert!(!is_mounted(&sandbox.mount_point()), "after {after_ms} ms: a dead mount is left");
    }
    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("file")).expect("it was synced"), vec![7; 1_000_000]);
    mounted.unmount();
    succeeds(weir().arg("check").arg(sandbox.store()));
}

#[test]
fn who_has_files_open_when_the_daemon_dies_is_told_and_mounting_again_brings_everything_back() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mut mounted = sandbox.mount();
    let file = create(&mounted, "file");
    file.write_all_at(&[7; 8192], 0).expect("a write");
    file.sync_all().expect("a sync");
    fs::create_dir(mounted.path("dir")).expect("a directory");
    let mut storer = call(&["map", "{}", "8192", "100", "stored", "shared", "none"], &mounted.path("file"));
    storer.expect("stored");
    mounted.signal("KILL");
    assert_eq!(mounted.ended().signal(), Some(9));
    // Calls that need the daemon fail at once. Data in the kernel's cache can still be read.
    is_gone(file.write_at(b"x", 0));
    is_gone(file.sync_all());
    is_gone(file.set_len(1));
    is_gone(File::create(mounted.path("new")));
    is_gone(fs::remove_file(mounted.path("file")));
    is_gone(fs::read_dir(mounted.path("dir")).and_then(|mut names| names.next().transpose().map(drop)));
    assert!(storer.end().code() == Some(1), "msync said that it was done");
    let said = fails(weir().arg("status").arg(mounted.dir()));
    let way_out = format!("`weir mount {} {}`", sandbox.store().display(), mounted.dir().display());
    assert!(said.contains(&way_out), "no way out: {said}");
    // weir does not mount over the dead mount of another store. That mount can be removed even while files on
    // it are open.
    let other = Sandbox::formatted();
    let said = fails(weir().arg("mount").arg(other.store()).arg(mounted.dir()));
    let way_out = format!("`weir unmount {}`", mounted.dir().display());
    assert!(said.contains(&way_out), "no way out: {said}");
    succeeds(weir().arg("unmount").arg(mounted.dir()));
    assert!(!is_mounted(mounted.dir()));
    let again = sandbox.mount();
    assert_eq!(fs::read(again.path("file")).expect("it was synced"), vec![7; 8192]);
    // A descriptor of the old mount stays dead.
    is_gone(file.write_at(b"x", 0));
    again.unmount();
}
