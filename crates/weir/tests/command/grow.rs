//! `weir grow` enlarges a full store while programs fill it, an unmounted store, and a buffer.

use crate::common::{Mounted, Sandbox, assert_says, can_mount, fails, succeeds, weir};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;

fn grow(path: &Path, size: Option<&str>) -> Command {
    let mut command = weir();
    command.arg("grow").arg(path).args(size.map(|size| format!("--size={size}")));
    command
}

fn total_bytes(dir: &Path) -> u64 {
    let stat = rustix::fs::statvfs(dir).expect("a mount");
    stat.f_blocks * stat.f_frsize
}

/// Writes a MiB at a time until there is no space, or the file has `most` MiB.
fn fill(file: &mut File, most: u64) -> u64 {
    let mut written = file.metadata().expect("a file").len() / MIB;
    while written < most {
        match file.write_all(&vec![written as u8 + 1; MIB as usize]).and_then(|()| file.sync_data()) {
            Ok(()) => written += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
                break;
            }
        }
    }
    if file.metadata().expect("a file").len() > written * MIB {
        file.set_len(written * MIB).expect("a shorter file");
    }
    written
}

fn assert_holds(mounted: &Mounted, mib: u64) {
    let bytes = fs::read(mounted.path("file")).expect("a file");
    assert_eq!(bytes.len() as u64, mib * MIB);
    for (chunk, number) in bytes.chunks(MIB as usize).zip(0..) {
        assert!(chunk.iter().all(|&byte| byte == number as u8 + 1), "MiB {number}");
    }
}

#[test]
fn a_full_store_grows_under_a_mount_and_all_of_it_is_there_after_a_kill() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted_with(&["--size=64MiB", "--buffer-size=8MiB"]);
    let mounted = sandbox.mount();
    let mut file = File::create(mounted.path("file")).expect("a file");
    let before = total_bytes(mounted.dir());
    let full = fill(&mut file, 1000);
    assert!((10..64).contains(&full), "{full} MiB");
    let said = String::from_utf8(succeeds(&mut grow(mounted.dir(), Some("300MiB"))).stdout).expect("text");
    assert_says(&said, "the store has 299.5 MiB now");
    assert!(total_bytes(mounted.dir()) > before + 200 * MIB, "{before}, {}", total_bytes(mounted.dir()));
    assert_eq!(fill(&mut file, 200), 200);
    mounted.kill();
    let mounted = sandbox.mount();
    assert_holds(&mounted, 200);
    assert!(total_bytes(mounted.dir()) > before + 200 * MIB);
    mounted.unmount();
    succeeds(weir().arg("check").arg(sandbox.store()));
}

fn grow_buffer(path: &Path, size: &str) -> Command {
    let mut command = grow(path, Some(size));
    command.arg("--buffer");
    command
}

#[test]
fn a_buffer_grows_under_a_mount_and_what_it_took_since_is_there_after_a_kill() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted_with(&["--size=256MiB", "--buffer-size=8MiB"]);
    let store = sandbox.store();
    assert_says(&fails(&mut grow_buffer(&store, "64MiB")), "only a mounted store can enlarge its buffer");
    let mounted = sandbox.mount();
    let mut file = File::create(mounted.path("file")).expect("a file");
    // The buffer's log has wrapped around when the buffer grows.
    assert_eq!(fill(&mut file, 12), 12);
    assert_says(&fails(&mut grow_buffer(mounted.dir(), "2MiB")), "more than");
    assert_says(&fails(&mut grow(&store.join("buffer"), Some("1GiB"))), "not a weir store");
    assert!(mounted.status().space.total_bytes < 300 * MIB, "the path of the buffer made the store larger");
    let said = String::from_utf8(succeeds(&mut grow_buffer(&store, "64MiB")).stdout).expect("text");
    assert_says(&said, "the buffer has 64 MiB now");
    assert!(mounted.status().buffer_log.bytes > 63 * MIB);
    assert_eq!(fill(&mut file, 60), 60);
    mounted.kill();
    let mounted = sandbox.mount();
    assert_holds(&mounted, 60);
    assert!(mounted.status().buffer_log.bytes > 63 * MIB);
    mounted.unmount();
    succeeds(weir().arg("check").arg(store));
}

#[test]
fn a_store_that_is_not_mounted_grows_to_a_size_or_to_what_its_file_has_and_never_shrinks() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted_with(&["--size=64MiB", "--buffer-size=8MiB"]);
    let store = sandbox.store();
    // Once more does no harm: a script may be run again.
    for size in [None, Some("64MiB")] {
        succeeds(&mut grow(&store, size));
    }
    assert_says(&fails(&mut grow(&store, Some("32MiB"))), "does not get smaller");
    assert_says(&fails(&mut grow(&store, Some("100TiB"))), "give at most `--size");
    let length = || fs::metadata(store.join("store")).expect("a file").len();
    assert_eq!(length(), 64 * MIB, "nothing was done");
    succeeds(&mut grow(&store, Some("100MiB")));
    File::options().write(true).open(store.join("store")).expect("it").set_len(150 * MIB).expect("longer");
    succeeds(&mut grow(&store, None));
    let mounted = sandbox.mount();
    assert!(total_bytes(mounted.dir()) > 100 * MIB, "{}", total_bytes(mounted.dir()));
    // By the store's path, too.
    succeeds(&mut grow(&store, Some("200MiB")));
    assert!(total_bytes(mounted.dir()) > 150 * MIB, "{}", total_bytes(mounted.dir()));
    mounted.unmount();
    let said = fails(&mut grow(&sandbox.path("nothing"), None));
    assert_says(&said, "give the directory on which a store is mounted");
}
