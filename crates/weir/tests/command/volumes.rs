//! Volumes on a real mount: clones are points in time, volumes are mounted one at a time, and a deletion
//! frees their space.

use crate::common::{self, Mounted, Sandbox, can_mount, fails, space_of, succeeds, weir};
use serde_json::Value;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use test_support::DirectoryContents;

/// A clone, or the wish for one.
fn clone(dir: &Path, name: &str) -> Command {
    let mut command = weir();
    command.args(["volume", "clone"]).arg(dir).arg(name);
    command
}

fn delete(dir: &Path, name: &str) -> Command {
    let mut command = weir();
    command.args(["volume", "delete"]).arg(dir).arg(name);
    command
}

fn create(path: &Path, name: &str) -> Command {
    let mut command = weir();
    command.args(["volume", "create"]).arg(path).arg(name);
    command
}

fn rename(path: &Path, old: &str, new: &str) -> Command {
    let mut command = weir();
    command.args(["volume", "rename"]).arg(path).arg(old).arg(new);
    command
}

/// `weir volume list --json` of a mount or of a store.
fn list(path: &Path) -> Vec<Value> {
    let output = succeeds(weir().args(["volume", "list", "--json"]).arg(path));
    serde_json::from_slice(&output.stdout).expect("list prints JSON")
}

fn names(path: &Path) -> Vec<String> {
    list(path).iter().map(|volume| volume["name"].as_str().expect("a name").to_owned()).collect()
}

fn checked(sandbox: &Sandbox) -> String {
    let output = succeeds(weir().arg("check").arg(sandbox.store()));
    String::from_utf8(output.stdout).expect("text")
}

fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(seed * 2 + 7) >> 3) as u8).collect()
}

/// The store's live bytes, once freeing is over and a checkpoint has recorded that.
fn live_bytes(mounted: &Mounted) -> u64 {
    mounted.status().space.live_bytes_bound
}

#[test]
fn a_clone_is_what_was_there_and_the_source_goes_on() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::create_dir(mounted.path("dir")).expect("a directory");
    fs::write(mounted.path("dir/big"), pattern(1, 3_000_000)).expect("a file");
    fs::write(mounted.path("small"), b"before").expect("a file");
    succeeds(weir().arg("sync").arg(mounted.dir()));
    // A partial write to a page that need not be in memory. The write completed, so the copy has it, although
    // no program synced it.
    let file = OpenOptions::new().write(true).open(mounted.path("dir/big")).expect("it");
    file.write_all_at(b"a delta", 123_456).expect("a write");
    file.set_len(2_500_000).expect("shorter");
    let before = DirectoryContents::below(mounted.dir());
    succeeds(&mut clone(mounted.dir(), "copy"));
    succeeds(clone(mounted.dir(), "frozen").arg("--read-only"));

    fs::write(mounted.path("small"), b"after").expect("a file");
    file.write_all_at(b"another delta", 1_000_000).expect("a write");
    fs::remove_file(mounted.path("dir/big")).expect("gone");
    assert_eq!(names(mounted.dir()), ["main", "copy", "frozen"]);
    drop(file);
    let after = DirectoryContents::below(mounted.dir());
    mounted.unmount();
    assert_eq!(names(&sandbox.store()), ["main", "copy", "frozen"]);

    for name in ["copy", "frozen", "main"] {
        let mounted = sandbox.mount_with(&["--volume", name]);
        assert_eq!(mounted.status().volume, name);
        if name == "main" { &after } else { &before }.assert_unchanged(mounted.dir());
        let refused = fs::write(mounted.path("small"), b"changed").is_err();
        assert_eq!(refused, name == "frozen", "{name}");
        mounted.unmount();
    }
    let said = checked(&sandbox);
    assert!(said.contains("volume copy: the file system"), "{said}");
    assert!(said.contains("volume frozen: the file system"), "{said}");
    let mounted = sandbox.mount_with(&["--volume", "copy"]);
    assert_eq!(fs::read(mounted.path("small")).expect("it"), b"changed");
    assert_eq!(fs::metadata(mounted.path("dir/big")).expect("it").len(), 2_500_000);
    mounted.unmount();
}

#[test]
fn a_clone_made_under_writers_is_the_state_of_one_moment() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted_with(&["--size", "200MiB", "--buffer-size", "16MiB"]);
    let mounted = sandbox.mount_with(&["--memory", "64MiB"]);
    let stop = Arc::new(AtomicBool::new(false));
    let answered = Arc::new(AtomicU64::new(0));
    let (first, second) = (mounted.path("first"), mounted.path("second"));
    let (stopping, counting) = (stop.clone(), answered.clone());
    // Record n goes to the first file, then to the second. At no moment is it only in the second file.
    let writer = std::thread::spawn(move || {
        let (first, second) = (File::create(first).expect("a file"), File::create(second).expect("a file"));
        let mut number = 0u64;
        while !stopping.load(Ordering::Relaxed) {
            let record = number.to_le_bytes().repeat(64);
            (&first).write_all(&record).expect("a write");
            (&second).write_all(&record).expect("a write");
            number += 1;
            counting.store(number, Ordering::Release);
        }
    });
    let mut least = Vec::new();
    for round in 0..5 {
        std::thread::sleep(Duration::from_millis(60));
        least.push(answered.load(Ordering::Acquire));
        succeeds(&mut clone(mounted.dir(), &format!("round{round}")));
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().expect("it wrote");
    // The source has newer durable data than its copies. After a kill, the copies are unchanged.
    mounted.kill();
    for (round, &least) in least.iter().enumerate() {
        let mounted = sandbox.mount_with(&["--volume", &format!("round{round}")]);
        let read = |name: &str| fs::read(mounted.path(name)).unwrap_or_default();
        let (first, second) = (read("first"), read("second"));
        let whole = |bytes: &[u8]| {
            bytes.chunks(512).zip(0u64..).all(|(record, n)| record == n.to_le_bytes().repeat(64))
        };
        assert!(whole(&first) && whole(&second), "round {round}: a record is not what was written");
        let (firsts, seconds) = (first.len() as u64 / 512, second.len() as u64 / 512);
        assert!(seconds >= least, "round {round}: {seconds} records, {least} were answered before");
        assert!(firsts == seconds || firsts == seconds + 1, "round {round}: {firsts} and {seconds}");
        mounted.unmount();
    }
    checked(&sandbox);
}

#[test]
fn what_cannot_be_cloned_or_deleted_is_refused_with_the_reason() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), b"bytes").expect("a file");
    succeeds(clone(mounted.dir(), "copy").arg("--read-only"));
    let before = DirectoryContents::below(mounted.dir());
    let taken = fails(&mut clone(mounted.dir(), "copy"));
    assert!(taken.contains("there is a volume copy already"), "{taken}");
    assert!(fails(&mut clone(mounted.dir(), "main")).contains("there is a volume main already"));
    for bad in ["", ".hidden", "two words", "a/b", &"n".repeat(128)] {
        let said = fails(&mut clone(mounted.dir(), bad));
        assert!(said.contains("cannot be a volume's name"), "{bad}: {said}");
    }
    let unknown = fails(&mut delete(mounted.dir(), "copi"));
    assert!(unknown.contains("there is no volume copi"), "{unknown}");
    let used = fails(&mut delete(mounted.dir(), "main"));
    let is_mounted = format!("volume main is mounted on {}", mounted.dir().display());
    assert!(used.contains(&is_mounted), "{used}");
    let used = fails(&mut rename(mounted.dir(), "main", "old"));
    assert!(used.contains(&is_mounted) && used.contains("weir unmount"), "{used}");
    before.assert_unchanged(mounted.dir());
    assert_eq!(names(mounted.dir()), ["main", "copy"]);
    assert_eq!(names(&sandbox.store()), ["main", "copy"]);
    mounted.unmount();

    let nowhere = fails(&mut clone(&sandbox.mount_point(), "late"));
    assert!(nowhere.contains("neither"), "{nowhere}");
    let arguments = ["mount", "--volume", "copi"];
    let unknown = fails(weir().args(arguments).arg(sandbox.store()).arg(sandbox.mount_point()));
    assert!(unknown.contains("there is no volume copi") && unknown.contains("main, copy"), "{unknown}");
    let media = DirectoryContents::below(&sandbox.store());
    let mounted = sandbox.mount_with(&["--volume", "copy", "--read-only"]);
    let refused = fails(&mut clone(mounted.dir(), "second"));
    assert!(refused.contains("read-only"), "{refused}");
    assert!(fails(&mut delete(mounted.dir(), "copy")).contains("read-only"));
    mounted.unmount();
    media.assert_unchanged(&sandbox.store());
    let mounted = sandbox.mount();
    succeeds(&mut delete(mounted.dir(), "copy"));
    assert_eq!(names(mounted.dir()), ["main"]);
    mounted.unmount();
}

#[test]
fn main_is_replaced_by_a_clone() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let store = sandbox.store();
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), b"good").expect("a file");
    succeeds(&mut clone(mounted.dir(), "copy"));
    fs::write(mounted.path("file"), b"bad").expect("a file");
    succeeds(weir().arg("sync").arg(mounted.dir()));
    mounted.kill();
    // What the buffer has of `main` stays with it under its new name.
    succeeds(&mut rename(&store, "main", "broken"));
    succeeds(&mut rename(&store, "copy", "main"));
    let mounted = sandbox.mount();
    assert_eq!(mounted.status().volume, "main");
    assert_eq!(fs::read(mounted.path("file")).expect("it"), b"good");
    // The path of a mounted store leads to its daemon.
    succeeds(&mut rename(&store, "broken", "older"));
    assert_eq!(names(mounted.dir()), ["older", "main"]);
    mounted.unmount();
    let mounted = sandbox.mount_with(&["--volume", "older"]);
    assert_eq!(fs::read(mounted.path("file")).expect("it"), b"bad");
    succeeds(&mut delete(mounted.dir(), "main"));
    mounted.unmount();
    let gone = fails(weir().arg("mount").arg(&store).arg(sandbox.mount_point()));
    assert!(gone.contains("there is no volume main") && gone.contains("there are: older"), "{gone}");
    checked(&sandbox);
}

#[test]
fn store_without_volumes_says_how_to_make_one() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let store = sandbox.store();
    succeeds(&mut delete(&store, "main"));
    assert_eq!(names(&store), [""; 0]);
    assert_eq!(list(&store), [Value::Null; 0]);
    checked(&sandbox);
    for arguments in [&["mount"][..], &["mount", "--read-only"]] {
        let said = fails(weir().args(arguments).arg(&store).arg(sandbox.mount_point()));
        let next = format!("weir volume create {} main", store.display());
        assert!(said.contains("there is no volume main") && said.contains(&next), "{said}");
    }
    let unknown = fails(&mut delete(&store, "main"));
    assert!(unknown.contains("there is no volume main"), "{unknown}");
    succeeds(&mut create(&store, "main"));
    assert_eq!(list(&store)[0]["number"], 1, "numbers are not used again");
    assert!(list(&store)[0]["from"].is_null() && list(&store)[0]["created"].is_string());
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), b"bytes").expect("a file");
    succeeds(&mut create(mounted.dir(), "other"));
    succeeds(&mut create(&store, "third"));
    assert_eq!(names(mounted.dir()), ["main", "other", "third"]);
    mounted.unmount();
    let mounted = sandbox.mount_with(&["--volume", "other"]);
    assert_eq!(fs::read_dir(mounted.dir()).expect("a directory").count(), 0);
    fs::write(mounted.path("file"), b"others").expect("a file");
    mounted.unmount();
    checked(&sandbox);
}

#[test]
fn names_of_weir_s_own_are_refused() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let store = sandbox.store();
    succeeds(&mut create(&store, "data"));
    let refuse = |path: &Path| {
        for (bad, why) in [
            ("data", "there is a volume data already"),
            ("main", "there is a volume main already"),
            ("two words", "cannot be a volume's name"),
            ("epoch-x", "names that begin with epoch-"),
            ("rescued-7", "names that begin with rescued-"),
            ("rescuing-7", "names that begin with rescuing-"),
        ] {
            for mut command in [create(path, bad), rename(path, "data", bad)] {
                let said = fails(&mut command);
                assert!(said.contains(why) && said.contains("choose another name"), "{bad}: {said}");
            }
        }
        let unknown = fails(&mut rename(path, "dat", "x"));
        assert!(unknown.contains("there is no volume dat") && unknown.contains("main, data"), "{unknown}");
    };
    refuse(&store);
    let mounted = sandbox.mount_with(&["--epoch-every", "1"]);
    refuse(mounted.dir());
    fs::write(mounted.path("file"), b"bytes").expect("a file");
    let begun = Instant::now();
    let epoch = loop {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", mounted.status().epoch);
        match mounted.status().epoch.last {
            Some(epoch) => break epoch,
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    let said = fails(&mut rename(mounted.dir(), &epoch, "kept"));
    assert!(said.contains("keeps its name") && said.contains("clone it"), "{said}");
    mounted.unmount();
}

#[test]
fn an_epoch_goes_before_a_writer_is_told_that_the_store_is_full() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--epoch-every", "1"]);
    let path = mounted.path("file");
    fs::write(&path, pattern(1, 24 << 20)).expect("space");
    let has_epoch = || mounted.status().epoch.last.is_some();
    let begun = Instant::now();
    while !has_epoch() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", mounted.status().epoch);
        std::thread::sleep(Duration::from_millis(50));
    }
    // Together with the epoch's pages of the file, more than the store can hold.
    for seed in 2..5 {
        let mut file = File::options().write(true).open(&path).expect("it");
        file.write_all(&pattern(seed, 24 << 20)).and_then(|()| file.sync_all()).expect("the epoch goes");
        assert!(fs::read(&path).expect("it") == pattern(seed, 24 << 20));
    }
    assert!(mounted.status().epoch.given_up > 0, "{:?}", mounted.status().epoch);
    mounted.unmount();
}

#[test]
fn another_volume_is_mounted_after_a_kill_and_each_has_its_own_writes() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), pattern(1, 100_000)).expect("a file");
    succeeds(&mut clone(mounted.dir(), "other"));
    mounted.unmount();
    let mut expected = [pattern(1, 100_000), pattern(1, 100_000)];
    for round in 0..8u32 {
        let which = (round % 2) as usize;
        let mounted = sandbox.mount_with(&["--volume", ["main", "other"][which]]);
        assert!(fs::read(mounted.path("file")).expect("it") == expected[which], "round {round}");
        let file = OpenOptions::new().write(true).open(mounted.path("file")).expect("it");
        let (at, bytes) = (round as usize * 9000 + 17, pattern(round + 2, 7000));
        file.write_all_at(&bytes, at as u64).expect("a write");
        file.sync_all().expect("a sync");
        expected[which][at..at + bytes.len()].copy_from_slice(&bytes);
        mounted.kill();
        if round % 3 == 1 {
            checked(&sandbox);
        }
    }
    // A read-only mount of the other volume leaves the records in the buffer.
    let media = DirectoryContents::below(&sandbox.store());
    let mounted = sandbox.mount_with(&["--read-only"]);
    assert!(fs::read(mounted.path("file")).expect("it") == expected[0]);
    mounted.unmount();
    media.assert_unchanged(&sandbox.store());
}

#[test]
fn a_kill_while_the_buffer_is_handed_over_loses_nothing() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), b"0").expect("a file");
    succeeds(&mut clone(mounted.dir(), "other"));
    mounted.unmount();
    for round in 1..20u32 {
        let mounted = sandbox.mount();
        let file = OpenOptions::new().write(true).open(mounted.path("file")).expect("it");
        file.write_all_at(&pattern(round, 400_000), 0).expect("a write");
        file.sync_all().expect("a sync");
        mounted.kill();
        // The daemon writes the records back, gives the buffer to the other volume, and begins to mount it.
        // The kill comes at any of these steps.
        let mut daemon = weir()
            .args(["mount", "--foreground", "--volume", "other"])
            .args([sandbox.store(), sandbox.mount_point()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        std::thread::sleep(Duration::from_millis(u64::from(round) * 4));
        daemon.kill().and_then(|()| daemon.wait()).expect("a child of ours");
        if common::is_mounted(&sandbox.mount_point()) {
            let point = sandbox.mount_point();
            rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH).expect("unmounted");
        }
        let mounted = sandbox.mount();
        assert!(fs::read(mounted.path("file")).expect("it") == pattern(round, 400_000), "round {round}");
        mounted.kill();
    }
    let mounted = sandbox.mount_with(&["--volume", "other"]);
    assert_eq!(fs::read(mounted.path("file")).expect("it"), b"0");
    mounted.unmount();
    checked(&sandbox);
}

/// Waits until nothing is left to free.
fn wait_freed(mounted: &Mounted) {
    let begun = Instant::now();
    while mounted.status().space.freeing {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is never done");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_space_of_a_deleted_volume_comes_back_to_the_byte() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted_with(&["--size", "200MiB", "--buffer-size", "8MiB"]);
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), pattern(3, 20_000_000)).expect("a file");
    succeeds(&mut clone(mounted.dir(), "zero"));
    mounted.unmount();
    let data_bytes = |mounted: &Mounted| space_of(mounted.dir(), &["--exact"]).data_bytes.expect("counted");
    let mounted = sandbox.mount();
    let before = data_bytes(&mounted);
    for round in 0..3 {
        succeeds(&mut clone(mounted.dir(), &format!("round{round}")));
        let file = OpenOptions::new().write(true).open(mounted.path("file")).expect("it");
        // The same bytes: the file's content is unchanged, and its blocks are new.
        file.write_all_at(&pattern(3, 20_000_000)[..1464 * 4096], 0).expect("a write");
        drop(file);
    }
    succeeds(&mut clone(mounted.dir(), "last"));
    let full = data_bytes(&mounted);
    assert!(full >= before + 3 * 1464 * 4096, "{before} bytes, then {full}");
    for name in ["round1", "zero", "last", "round0", "round2"] {
        succeeds(&mut delete(mounted.dir(), name));
    }
    wait_freed(&mounted);
    assert_eq!(names(mounted.dir()), ["main"]);
    assert_eq!(data_bytes(&mounted), before);
    assert!(live_bytes(&mounted) >= before);
    mounted.unmount();
    checked(&sandbox);
}

#[test]
fn clones_and_deletions_survive_kills_at_random_moments() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted_with(&["--size", "120MiB", "--buffer-size", "8MiB"]);
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), pattern(0, 1_000_000)).expect("a file");
    mounted.unmount();
    for round in 1..=12u32 {
        let mounted = sandbox.mount();
        fs::write(mounted.path("file"), pattern(round, 1_000_000)).expect("a file");
        let synced = File::open(mounted.path("file")).and_then(|file| file.sync_all());
        synced.expect("a sync");
        let kept = names(mounted.dir());
        let mut busy =
            vec![clone(mounted.dir(), &format!("round{round}")).stderr(Stdio::null()).spawn().expect("runs")];
        if round > 3 {
            let old = format!("round{}", round - 3);
            busy.push(delete(mounted.dir(), &old).stderr(Stdio::null()).spawn().expect("runs"));
        }
        std::thread::sleep(Duration::from_micros(u64::from(round) * 1700));
        mounted.signal("KILL");
        busy.iter_mut().for_each(|child| drop(child.wait()));
        mounted.kill();
        let now = names(&sandbox.store());
        for name in kept.iter().filter(|name| **name != format!("round{}", i64::from(round) - 3)) {
            assert!(now.contains(name), "round {round}: {name} is lost");
        }
        checked(&sandbox);
    }
    for name in names(&sandbox.store()).into_iter().filter(|name| name != "main") {
        let round = name.trim_start_matches("round").parse().expect("a number");
        let mounted = sandbox.mount_with(&["--volume", &name]);
        assert!(fs::read(mounted.path("file")).expect("it") == pattern(round, 1_000_000), "{name}");
        mounted.unmount();
    }
    let mounted = sandbox.mount();
    assert!(fs::read(mounted.path("file")).expect("it") == pattern(12, 1_000_000));
    names(mounted.dir()).iter().filter(|name| *name != "main").for_each(|name| {
        succeeds(&mut delete(mounted.dir(), name));
    });
    wait_freed(&mounted);
    mounted.unmount();
    checked(&sandbox);
}
