//! Many entries, and the numbers of `statfs`.

use crate::common::{Sandbox, can_mount, succeeds, weir};
use crate::open_to_all;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

#[test]
fn a_listing_shows_each_name_that_stays_once_while_others_come_and_go() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    fs::create_dir(mounted.path("d")).expect("a directory");
    let make = |name: String| drop(File::create(mounted.path("d").join(name)).expect("a file"));
    (0..3000).for_each(|i| make(format!("stays {i}")));
    (0..9000).for_each(|i| make(format!("goes {i}")));
    let size = || fs::metadata(mounted.path("d")).expect("it").size();
    let full = size();
    let mut listed = Vec::new();
    for (at, entry) in fs::read_dir(mounted.path("d")).expect("a listing").enumerate() {
        listed.push(entry.expect("an entry").file_name().into_string().expect("a name"));
        // Create and remove names between two entries of the listing, so that leaves split and merge
        // meanwhile.
        if at < 3000 {
            (0..3).for_each(|i| {
                fs::remove_file(mounted.path(&format!("d/goes {}", at * 3 + i))).expect("removed")
            });
            make(format!("comes {at}"));
        }
    }
    let stays: Vec<_> = listed.iter().filter(|name| name.starts_with("stays")).collect();
    assert_eq!(stays.len(), 3000);
    assert_eq!(stays.iter().collect::<BTreeSet<_>>().len(), 3000, "one was listed twice");
    let all: BTreeSet<_> = listed.iter().collect();
    assert_eq!(all.len(), listed.len(), "no name is listed twice");
    (0..3000).for_each(|i| fs::remove_file(mounted.path(&format!("d/comes {i}"))).expect("removed"));
    // Keep one name in eight. A leaf that loses names as evenly as its neighbours is merged with one at three
    // eighths of a page, so at most a third of the pages remain, even of full ones.
    (0..1500).for_each(|i| fs::remove_file(mounted.path(&format!("d/stays {i}"))).expect("removed"));
    assert!(size() < full / 3, "the directory shrank: {} of {full}", size());
    fs::remove_dir_all(mounted.path("d")).expect("the rest goes");
    mounted.unmount();
    succeeds(weir().arg("check").arg(sandbox.store()));
}

#[test]
fn statfs_counts_inodes_and_bytes_and_neither_runs_out_unannounced() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    let now = || rustix::fs::statvfs(mounted.dir()).expect("statfs");
    let empty = now();
    assert_eq!((empty.f_namemax, empty.f_bsize, empty.f_frsize), (255, 4096, 4096));
    assert!(empty.f_blocks * 4096 <= 64 << 20 && empty.f_bavail > 0 && empty.f_bavail <= empty.f_blocks);
    // The store's reserve for deletions, checkpoints and cleaning does not count as free.
    assert!(empty.f_bavail == empty.f_bfree && empty.f_bfree < empty.f_blocks);
    let used = |stat: &rustix::fs::StatVfs| stat.f_files - stat.f_ffree;
    (0..500).for_each(|i| drop(File::create(mounted.path(&format!("f{i}"))).expect("a file")));
    let full = now();
    assert_eq!(used(&full), used(&empty) + 500);
    assert!(full.f_ffree < empty.f_ffree);
    fs::write(mounted.path("big"), vec![1; 8 << 20]).expect("a big file");
    // Dirty data counts for more than stored data. An unmount stores all of it.
    mounted.unmount();
    let mounted = open_to_all(&sandbox);
    let now = || rustix::fs::statvfs(mounted.dir()).expect("statfs");
    // 8 MiB are 2048 blocks. Some segments that were reserved for nodes hold nodes now, and are not reserved
    // any more.
    assert!(now().f_bavail + 1700 <= empty.f_bavail, "{} of {} blocks", now().f_bavail, empty.f_bavail);
    (0..500).for_each(|i| fs::remove_file(mounted.path(&format!("f{i}"))).expect("removed"));
    // A file is freed when the kernel forgets its inode. The kernel reports that after the call has returned.
    let begin = Instant::now();
    while used(&now()) > used(&empty) + 1 {
        assert!(begin.elapsed() < Duration::from_secs(60), "{} inodes are left", used(&now()) - used(&empty));
        std::thread::sleep(Duration::from_millis(5));
    }
    // A full store refuses writes with ENOSPC. Removals still work.
    let mut refused = None;
    for i in 0.. {
        if let Err(error) = fs::write(mounted.path(&format!("fill{i}")), vec![2; 1 << 20]) {
            refused = error.raw_os_error();
            break;
        }
    }
    assert_eq!(refused, Some(rustix::io::Errno::NOSPC.raw_os_error()));
    let listing = fs::read_dir(mounted.dir()).expect("a listing");
    listing.for_each(|entry| fs::remove_file(entry.expect("an entry").path()).expect("removing works"));
    mounted.unmount();
    succeeds(weir().arg("check").arg(sandbox.store()));
}
