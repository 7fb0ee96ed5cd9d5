//! A volume whose metadata is damaged, where a crash had cut a stream short: every other volume works.

use crate::common::{Mounted, Sandbox, assert_says, can_mount, fails, is_mounted, succeeds, weir};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

const BLOCK: usize = 4096;

/// The most streams that are cut short until one loses data.
const ATTEMPTS: u64 = 40;

/// The start of the names of files that only the volume `work` has.
const NAME: &str = "only-in-work-";

/// The first bytes of a directory's block of names that fills a page: its level, and the logarithm of its
/// size.
const PAGE_OF_NAMES: [u8; 2] = [0, 12];

/// The places of `work`'s metadata in the store, which does not change any more: one byte of each page of
/// names, and of each copy.
fn metadata_of_work(store: &Path) -> Vec<u64> {
    let bytes = fs::read(store.join("store")).expect("the store");
    let place = |(number, block): (usize, &[u8])| {
        let is_of_work = block.windows(NAME.len()).any(|bytes| bytes == NAME.as_bytes());
        (block.starts_with(&PAGE_OF_NAMES) && is_of_work).then_some((number * BLOCK + BLOCK / 2) as u64)
    };
    bytes.chunks(BLOCK).enumerate().filter_map(place).collect()
}

fn flip(store: &Path, places: &[u64]) {
    let file = OpenOptions::new().read(true).write(true).open(store.join("store")).expect("the store");
    for &at in places {
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("a byte");
        file.write_all_at(&[byte[0] ^ 0x40], at).expect("another byte");
    }
}

/// Writes a file on `work` until its daemon is killed.
fn cut_short(sandbox: &Sandbox, attempt: u64) {
    let mounted = sandbox.mount_with(&["--volume", "work", "--bypass-after", "64KiB"]);
    let mut file = File::create(mounted.path("file")).expect("a file");
    let writer = std::thread::spawn(move || {
        for page in 1..12_000_u32 {
            if file.write_all(&page.to_le_bytes().repeat(BLOCK / 4)).is_err() {
                return;
            }
        }
    });
    std::thread::sleep(Duration::from_millis(100 + 7 * attempt));
    mounted.kill();
    writer.join().expect("it ends with its mount");
}

fn read_only(sandbox: &Sandbox, volume: &str) -> Mounted {
    sandbox.mount_with(&["--volume", volume, "--read-only"])
}

#[test]
fn keeps_no_other_from_being_mounted_and_what_was_lost_in_it_is_remembered() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted_with(&["--size", "96MiB", "--buffer-size", "8MiB"]);
    let store = sandbox.store();
    let mounted = sandbox.mount();
    fs::write(mounted.path("main"), b"whole").expect("a file");
    succeeds(weir().args(["volume", "clone"]).arg(mounted.dir()).arg("work"));
    mounted.unmount();
    let mounted = sandbox.mount_with(&["--volume", "work"]);
    fs::create_dir(mounted.path("names")).expect("a directory");
    for number in 0..1000 {
        fs::write(mounted.path(&format!("names/{NAME}{number}")), b"").expect("a file");
    }
    mounted.unmount();

    let damaged = (0..ATTEMPTS).find_map(|attempt| {
        cut_short(&sandbox, attempt);
        let of_work = metadata_of_work(&store);
        assert!(!of_work.is_empty(), "no page of names is full");
        flip(&store, &of_work);
        let looking = read_only(&sandbox, "main");
        let was_lost = looking.messages().contains("warning: ");
        assert_eq!(fs::read(looking.path("main")).expect("it is whole"), b"whole");
        looking.unmount();
        if was_lost {
            return Some(of_work);
        }
        flip(&store, &of_work);
        sandbox.mount_with(&["--volume", "work"]).unmount();
        None
    });
    let of_work = damaged.expect("no stream lost anything");

    // Many times the size of the log.
    let mounted = sandbox.mount();
    assert_says(&mounted.messages(), "volume work cannot be mounted");
    for round in 0..200 {
        fs::write(mounted.path("main"), vec![round; 300_000]).expect("it works");
    }
    mounted.unmount();
    let refused = |what: &[&str]| {
        let said = fails(weir().arg("mount").args(what).arg(&store).arg(sandbox.mount_point()));
        assert_says(&said, "volume work: ");
        assert!(!is_mounted(&sandbox.mount_point()));
    };
    refused(&["--volume", "work"]);
    let replaced = succeeds(weir().arg("replace-buffer").arg(&store));
    assert_says(&String::from_utf8_lossy(&replaced.stderr), "volume work cannot be mounted");
    refused(&["--volume", "work"]);
    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("main")).expect("it is whole"), vec![199; 300_000]);
    mounted.unmount();

    flip(&store, &of_work);
    let mounted = sandbox.mount_with(&["--volume", "work"]);
    let bytes = fs::read(mounted.path("file")).expect("the volume is whole again");
    assert!(bytes.len().is_multiple_of(BLOCK));
    let pages = bytes.chunks(BLOCK).zip(1_u32..);
    let wrong = pages.filter(|(page, number)| *page != number.to_le_bytes().repeat(BLOCK / 4)).count();
    assert_eq!(wrong, 0, "pages of {} hold what nobody wrote", bytes.len() / BLOCK);
    mounted.unmount();
}
