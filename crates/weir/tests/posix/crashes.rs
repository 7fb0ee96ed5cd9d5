//! Crashes during operations on names and attributes: each operation survives as a whole or not at all.

use crate::common::{Sandbox, can_mount, succeeds, weir};
use crate::{crash, open_to_all};
use rustix::fs::{CWD, RenameFlags, XattrFlags, getxattr, renameat_with, setxattr};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A value of the largest size, filled with one byte, so that a torn value shows.
fn value(round: u8) -> Vec<u8> {
    vec![round; 60_000]
}

fn work(dir: &Path, stop: &AtomicBool) {
    for round in 0u32.. {
        let name = format!("file{}", round % 5);
        let exchange = || renameat_with(CWD, dir.join("one"), CWD, dir.join("other"), RenameFlags::EXCHANGE);
        let set = || setxattr(dir.join(&name), "user.big", &value(round as u8), XattrFlags::empty());
        // The daemon is killed in the middle. The first error ends the work.
        let outcome = exchange().and_then(|()| set());
        if outcome.is_err() || stop.load(Ordering::Relaxed) {
            return;
        }
    }
}

#[test]
fn a_kill_in_the_middle_leaves_whole_values_and_each_of_two_exchanged_names_once() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    (0..5).for_each(|i| fs::write(mounted.path(&format!("file{i}")), b"").expect("a file"));
    fs::create_dir(mounted.path("one")).expect("a directory");
    fs::write(mounted.path("one/marker"), b"").expect("a file");
    fs::write(mounted.path("other"), b"a file").expect("a file");
    let mut mounted = crash(&sandbox, mounted);
    for round in 0..4u64 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| work(mounted.dir(), &stop));
            std::thread::sleep(Duration::from_millis(300 + 211 * round));
            succeeds(std::process::Command::new("kill").args(["-9", &mounted.pid().to_string()]));
            stop.store(true, Ordering::Relaxed);
            worker.join().expect("no panic");
        });
        mounted.kill();
        succeeds(weir().arg("check").arg(sandbox.store()));
        mounted = sandbox.mount_with(&["--allow-other"]);
        let is_directory = ["one", "other"].map(|name| mounted.path(name).is_dir());
        assert!(is_directory[0] != is_directory[1], "one is the directory and the other the file");
        let (directory, file) = if is_directory[0] { ("one", "other") } else { ("other", "one") };
        assert!(mounted.path(directory).join("marker").exists());
        assert_eq!(fs::read(mounted.path(file)).expect("the file"), b"a file");
        for i in 0..5 {
            let mut found = vec![0; 1 << 16];
            let Ok(len) = getxattr(mounted.path(&format!("file{i}")), "user.big", &mut found[..]) else {
                continue;
            };
            assert!(len == 60_000 && found[..len].iter().all(|&byte| byte == found[0]), "half a value");
        }
    }
    mounted.unmount();
}
