//! `weir scrub`, `weir space` and `weir check --repair`, on stores in use, damaged and cut off.

use crate::common::{Sandbox, assert_says, can_mount, fails, space_of, succeeds, weir};
use serde_json::Value;
use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use test_support::DirectoryContents;

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn scrub(dir: &Path) -> Output {
    weir().args(["scrub", "--json", "--rate", "1GiB"]).arg(dir).output().expect("it runs")
}

/// Bytes whose pages are all different, so that each is in the store once.
fn unique(pages: u32, seed: u32) -> Vec<u8> {
    (0..pages).flat_map(|page| (page ^ seed.rotate_left(16)).to_le_bytes().repeat(1024)).collect()
}

/// Where a page of [`unique`] lies in the store's file.
fn place_of(store: &Path, page: u32, seed: u32) -> u64 {
    let bytes = fs::read(store.join("store")).expect("the store");
    let wanted = (page ^ seed.rotate_left(16)).to_le_bytes().repeat(1024);
    let at = bytes.chunks(4096).position(|block| block == wanted);
    at.expect("it is stored") as u64 * 4096
}

fn flip(store: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(store.join("store")).expect("the store");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("a byte");
    file.write_all_at(&[byte[0] ^ 0x40], at).and_then(|()| file.sync_all()).expect("another byte");
}

#[test]
fn a_scrub_beside_writers_reads_everything_and_finds_nothing() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted_with(&["--size", "200MiB", "--buffer-size", "8MiB"]);
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), unique(4000, 1)).expect("a file");
    mounted.unmount();
    let mounted = sandbox.mount();
    let stop = Arc::new(AtomicBool::new(false));
    let (path, stopping) = (mounted.path("other"), stop.clone());
    let writer = std::thread::spawn(move || {
        for round in 0.. {
            if stopping.load(Ordering::Relaxed) {
                return;
            }
            fs::write(&path, unique(500, round)).expect("a write");
        }
    });
    for _ in 0..3 {
        let output = scrub(mounted.dir());
        assert!(output.status.success(), "{output:?}");
        let said = json(&output);
        assert_eq!(said["findings"], Value::Array(Vec::new()));
        assert!(said["read"]["blocks"].as_u64().expect("a number") >= 4000, "{said}");
    }
    stop.store(true, Ordering::Relaxed);
    writer.join().expect("it wrote");
    mounted.unmount();
}

#[test]
fn a_scrub_names_what_is_damaged_and_readers_get_an_error_never_wrong_bytes() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), unique(100, 7)).expect("a file");
    mounted.unmount();
    let mounted = sandbox.mount();
    let at = place_of(&sandbox.store(), 42, 7);
    flip(&sandbox.store(), at);
    let output = scrub(mounted.dir());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = json(&output);
    let found = said["findings"][0].as_str().expect("a finding");
    assert!(found.contains("page 42") && found.contains(&format!("block {}", at / 4096)), "{found}");
    assert_eq!(said["read"]["damaged"], 1);
    let file = fs::File::open(mounted.path("file")).expect("it");
    let mut page = [0; 4096];
    assert!(file.read_exact_at(&mut page, 42 * 4096).is_err());
    assert!(mounted.messages().contains(&format!("block {}", at / 4096)), "{}", mounted.messages());
    file.read_exact_at(&mut page, 43 * 4096).expect("its neighbour");
    // Writing the whole page repairs it.
    let again = unique(100, 7);
    let writer = OpenOptions::new().write(true).open(mounted.path("file")).expect("it");
    writer.write_all_at(&again[42 * 4096..43 * 4096], 42 * 4096).expect("a write");
    drop((file, writer));
    mounted.unmount();
    let mounted = sandbox.mount();
    assert!(fs::read(mounted.path("file")).expect("all of it") == again);
    assert!(scrub(mounted.dir()).status.success());
    mounted.unmount();
}

#[test]
fn space_adds_up_and_says_what_is_used() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted_with(&["--size", "120MiB", "--buffer-size", "8MiB"]);
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), unique(5000, 3)).expect("a file");
    mounted.unmount();
    let mounted = sandbox.mount();
    let space = space_of(mounted.dir(), &[]);
    assert!(space.live_bytes_bound >= 5000 * 4096, "{space:#?}");
    assert!(space.free_bytes + space.live_bytes_bound <= space.total_bytes, "{space:#?}");
    assert_eq!(space.used_bytes + space.available_bytes, space.usable_bytes, "{space:#?}");
    assert!(space.used_bytes >= 5000 * 4096 && space.usable_bytes < space.total_bytes, "{space:#?}");
    let exact = space_of(mounted.dir(), &["--exact"]);
    let main = &exact.by_volume.expect("the volumes")[0];
    assert_eq!((main.name.as_deref(), main.shared_bytes), (Some("main"), 0));
    assert_eq!(Some(main.exclusive_bytes), exact.data_bytes);
    assert!(main.exclusive_bytes >= 5000 * 4096);
    let text = succeeds(weir().args(["space", "--exact"]).arg(mounted.dir())).stdout;
    assert!(String::from_utf8_lossy(&text).contains("main"));
    mounted.unmount();
}

#[test]
fn a_store_in_use_is_neither_checked_nor_repaired() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), unique(10, 1)).expect("a file");
    for options in [&["check"][..], &["check", "--repair"]] {
        let output = weir().args(options).arg(sandbox.store()).output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("in use") && said.contains("  help: "), "{said}");
    }
    mounted.unmount();
    succeeds(weir().arg("check").arg(sandbox.store()));
}

#[test]
fn a_repair_keeps_what_the_buffer_holds_and_makes_a_damaged_root_right() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::write(mounted.path("stored"), unique(100, 1)).expect("a file");
    mounted.unmount();
    let mounted = sandbox.mount();
    fs::write(mounted.path("synced"), unique(20, 2)).expect("a file");
    succeeds(weir().arg("sync").arg(mounted.dir()));
    mounted.kill();
    flip(&sandbox.store(), 4096 + 40);
    let output = succeeds(weir().args(["check", "--repair"]).arg(sandbox.store()));
    assert!(String::from_utf8_lossy(&output.stderr).contains("both roots are written anew"), "{output:?}");
    // The other root may be damaged now.
    flip(&sandbox.store(), 2 * 4096 + 40);
    let mounted = sandbox.mount();
    assert!(fs::read(mounted.path("stored")).expect("it") == unique(100, 1));
    assert!(fs::read(mounted.path("synced")).expect("it") == unique(20, 2));
    mounted.unmount();
    succeeds(weir().arg("check").arg(sandbox.store()));
}

#[test]
fn an_image_cut_off_anywhere_is_refused_with_a_reason_and_stays_as_it_is() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    fs::write(mounted.path("file"), unique(100, 1)).expect("a file");
    mounted.kill();
    let whole = |name: &str| fs::metadata(sandbox.store().join(name)).expect("it").len();
    let copies = [("store", whole("store")), ("buffer", whole("buffer"))];
    for (name, len) in copies {
        let cuts = [0, 1, 511, 4095, 4096, 4097, 3 * 4096, 5 * 4096 + 7, len / 3 + 13, len - (1 << 20) - 1];
        for cut in cuts {
            let copy = sandbox.path("copy");
            fs::create_dir(&copy).expect("a directory");
            for (file, _) in copies {
                fs::copy(sandbox.store().join(file), copy.join(file)).expect("a copy");
            }
            let file = OpenOptions::new().write(true).open(copy.join(name)).expect("it");
            file.set_len(cut).expect("shorter");
            let before = DirectoryContents::below(&copy);
            for options in [&["check"][..], &["check", "--repair"]] {
                let output = weir().args(options).arg(&copy).output().expect("it runs");
                let (out, said) =
                    (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
                let code = output.status.code();
                assert!(matches!(code, Some(1 | 2)), "{name} cut at {cut}: {code:?} {out} {said}");
                assert!(!said.contains("panicked"), "{name} cut at {cut}: {said}");
                assert!(
                    out.contains("FOUND") || said.contains("error: "),
                    "{name} cut at {cut}: {out} {said}"
                );
                if name == "store" {
                    before.assert_unchanged(&copy);
                }
            }
            fs::remove_dir_all(&copy).expect("gone");
        }
    }
}

/// The two places of each node of the store's map.
fn nodes_of(store: &Path) -> Vec<[u64; 2]> {
    let bytes = fs::read(store.join("store")).expect("the store");
    let mut same: HashMap<&[u8], Vec<u64>> = HashMap::new();
    for (block, number) in bytes.chunks(4096).zip(0..).filter(|(block, _)| block.starts_with(b"weir.nod")) {
        same.entry(block).or_default().push(number * 4096);
    }
    same.into_values().filter_map(|places| places.try_into().ok()).collect()
}

/// Waits until a page of [`unique`] has been written back.
fn wait_until_stored(store: &Path, page: u32, seed: u32) {
    let wanted = (page ^ seed.rotate_left(16)).to_le_bytes().repeat(1024);
    let is_stored =
        || fs::read(store.join("store")).expect("the store").chunks(4096).any(|block| block == wanted);
    while !is_stored() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_store_with_a_change_below_a_damaged_node_is_not_written_to_and_is_mounted_to_look() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted_with(&["--size", "64MiB", "--buffer-size", "8MiB"]);
    let store = sandbox.store();
    let mounted = sandbox.mount();
    fs::write(mounted.path("changed"), unique(300, 1)).expect("a file");
    fs::write(mounted.path("other"), unique(300, 2)).expect("a file");
    mounted.unmount();
    let mounted = sandbox.mount_with(&["--dirty-age", "1"]);
    let file = OpenOptions::new().write(true).open(mounted.path("changed")).expect("it");
    file.write_all_at(&unique(1, 3), 42 * 4096).and_then(|()| file.sync_all()).expect("a page");
    wait_until_stored(&store, 0, 3);
    mounted.kill();
    let (mut refused, mut looked_at) = (0, 0);
    for pair in nodes_of(&store) {
        let copy = sandbox.path("copy");
        fs::create_dir(&copy).expect("a directory");
        for file in ["store", "buffer"] {
            fs::copy(store.join(file), copy.join(file)).expect("a copy");
        }
        pair.into_iter().for_each(|at| flip(&copy, at + 2048));
        let before = DirectoryContents::below(&copy);
        let output = weir().args(["check", "--repair"]).arg(&copy).output().expect("it runs");
        let found = String::from_utf8_lossy(&output.stdout);
        if found.contains("so the store can only be read") {
            refused += 1;
            assert_eq!(output.status.code(), Some(1), "{found}");
            assert!(found.contains("not repaired") && found.contains("weir mount --read-only"), "{found}");
            let mut mount = weir();
            mount.arg("mount").arg(&copy).arg(sandbox.mount_point());
            let mut replace = weir();
            replace.arg("replace-buffer").arg(&copy);
            for command in [&mut mount, &mut replace] {
                let said = fails(command);
                assert_says(&said, "so the store can only be read");
                assert_says(&said, "weir mount --read-only");
            }
            looked_at += u64::from(is_looked_at(&copy, &sandbox.mount_point()));
            before.assert_unchanged(&copy);
        }
        fs::remove_dir_all(&copy).expect("gone");
    }
    assert!(refused > 0 && looked_at > 0, "{refused} refused, {looked_at} of them mounted to look");
    let mounted = sandbox.mount();
    let mut expected = unique(300, 1);
    expected[42 * 4096..43 * 4096].copy_from_slice(&unique(1, 3));
    assert!(fs::read(mounted.path("changed")).expect("all of it") == expected);
    mounted.unmount();
    succeeds(weir().arg("check").arg(&store));
}

/// Whether the store can be mounted read-only and the other file can be read. Of the changed file, the page
/// in the buffer is correct, and its neighbour below the damaged node is an error.
fn is_looked_at(store: &Path, dir: &Path) -> bool {
    let output = weir().args(["mount", "--read-only"]).arg(store).arg(dir).output().expect("it runs");
    if !output.status.success() {
        // The node is above the names of all files.
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains("block") && said.contains("node"), "{said}");
        return false;
    }
    let other = fs::read(dir.join("other"));
    let changed = fs::File::open(dir.join("changed")).expect("its name is there");
    let (mut page, mut neighbour) = ([0; 4096], [0; 4096]);
    let is_read = changed.read_exact_at(&mut page, 42 * 4096).is_ok();
    let below = changed.read_exact_at(&mut neighbour, 43 * 4096);
    drop(changed);
    succeeds(weir().arg("unmount").arg(dir));
    assert!(!is_read || page[..] == unique(1, 3));
    assert!(below.is_err(), "what lies below the node is an error");
    other.is_ok_and(|bytes| bytes == unique(300, 2))
}
