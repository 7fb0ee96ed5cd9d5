use crate::call::call;
use crate::common::{Sandbox, can_mount};
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// 128 TiB.
const LARGEST: u64 = 1 << 47;

const EFBIG: i64 = 27;
const SIGXFSZ: i32 = 25;

fn create(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create_new(true).open(path).expect("a file")
}

#[test]
fn the_last_byte_of_the_largest_file_can_be_written_and_no_byte_after_it() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let file = create(&mounted.path("largest"));
    file.write_all_at(b"the end", LARGEST - 7).expect("up to the last byte");
    assert_eq!(file.metadata().expect("metadata").len(), LARGEST);
    // POSIX: a write takes as many bytes as fit. The next one fails with EFBIG.
    assert_eq!(file.write_at(b"0123456789", LARGEST - 4).expect("a part"), 4);
    for offset in [LARGEST, LARGEST + 1, LARGEST * 2, i64::MAX as u64 - 9] {
        let error = file.write_at(b"beyond", offset).expect_err("past the largest file");
        assert_eq!(error.raw_os_error(), Some(EFBIG as i32), "at {offset}: {error}");
    }
    let mut bytes = [1; 16];
    assert_eq!(file.read_at(&mut bytes, LARGEST - 7).expect("a read"), 7);
    assert_eq!(&bytes[..7], b"the0123");
    for offset in [LARGEST, i64::MAX as u64 - 16] {
        assert_eq!(file.read_at(&mut bytes, offset).expect("nothing is there"), 0);
    }
    for size in [LARGEST + 1, i64::MAX as u64] {
        let error = file.set_len(size).expect_err("past the largest file");
        assert_eq!(error.raw_os_error(), Some(EFBIG as i32), "{size}: {error}");
    }
    let error = file.set_len(u64::MAX).expect_err("no size at all");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    drop(file);
    mounted.unmount();
    let mounted = sandbox.mount();
    let file = File::open(mounted.path("largest")).expect("the file");
    assert_eq!(file.metadata().expect("metadata").len(), LARGEST);
    file.read_exact_at(&mut bytes[..7], LARGEST - 7).expect("a read");
    assert_eq!(&bytes[..7], b"the0123");
}

#[test]
fn a_huge_sparse_file_is_made_shorter_longer_and_removed_at_once() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let path = mounted.path("huge");
    let file = create(&path);
    let start = Instant::now();
    for round in 0..20_u64 {
        file.set_len(LARGEST).expect("a size");
        // One page in each of many corners of the map.
        (0..20).for_each(|corner| file.write_all_at(b"x", (LARGEST >> corner) - 1).expect("a write"));
        file.sync_all().expect("a sync");
        file.set_len(round).expect("a size");
        assert_eq!(fs::read(&path).expect("a read"), vec![0; round as usize]);
    }
    file.set_len(LARGEST).expect("a size");
    drop(file);
    fs::remove_file(&path).expect("removed");
    // Milliseconds, unless something looks at every page of 128 TiB.
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    mounted.unmount();
}

#[test]
fn a_limit_of_the_process_kills_it_or_is_told() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let path = mounted.path("file");
    for what in ["write", "allocate", "truncate"] {
        let _ = fs::remove_file(&path);
        let mut over = call(&["limit", "10000", "{}", "10000", "5", what, "told"], &path);
        assert_eq!(over.expect("errno"), EFBIG, "{what}");
        let mut killed = call(&["limit", "10000", "{}", "10000", "5", what, "killed"], &path);
        assert_eq!(killed.end().signal(), Some(SIGXFSZ), "{what}");
        assert_eq!(fs::metadata(&path).expect("metadata").len(), 0, "{what}");
    }
    let mut part = call(&["limit", "10000", "{}", "9998", "5", "write", "told"], &path);
    assert_eq!(part.expect("did"), 2, "as much as the limit lets through");
    assert_eq!(fs::metadata(&path).expect("metadata").len(), 10_000);
}
