//! Vectors: ranges of open files that a program has the daemon change together.

use crate::common::{Mounted, Sandbox, can_mount, detach, succeeds, weir};
use client::{BYTES_MAX, ClientError, ControlClient, RANGES_MAX, RangeVector, VectorOutcome, WeirMount};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::PathBuf;

const PAGE: u64 = 4096;

struct Vectors {
    mounted: Mounted,
    daemon: ControlClient,
    /// Dropped last: its directory can only be removed once nothing is mounted there.
    sandbox: Sandbox,
}

impl Vectors {
    /// `None` where nothing can be mounted.
    fn new() -> Option<Vectors> {
        can_mount().then(|| {
            let sandbox = Sandbox::formatted();
            let mounted = sandbox.mount();
            let daemon = WeirMount::at(mounted.dir()).and_then(|mount| mount.connect()).expect("a daemon");
            Vectors { mounted, daemon, sandbox }
        })
    }

    /// A file of pages, each of one byte value.
    fn file(&self, name: &str, pages: &[u8]) -> File {
        let path = self.mounted.path(name);
        let bytes: Vec<u8> = pages.iter().flat_map(|&byte| [byte; PAGE as usize]).collect();
        fs::write(&path, bytes).expect("space");
        File::options().read(true).write(true).open(path).expect("a file")
    }

    fn refusal(&mut self, vector: &RangeVector<'_>) -> String {
        match self.daemon.change_ranges(vector) {
            Err(ClientError::Refused { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }
}

/// The first byte of each page, after a check that the others are the same.
fn pages(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().expect("a file").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("a file");
    let is_even = bytes.chunks(PAGE as usize).all(|page| page.iter().all(|&byte| byte == page[0]));
    assert!(is_even, "a page of several bytes");
    bytes.chunks(PAGE as usize).map(|page| page[0]).collect()
}

#[test]
fn all_of_a_vector_is_there_and_survives_a_kill() {
    let Some(mut vectors) = Vectors::new() else { return };
    let (one, two) = (vectors.file("one", &[1, 2, 3, 4]), vectors.file("two", &[5, 6]));
    // A vector makes no file larger.
    two.set_len(6 * PAGE).expect("a size");
    // Now they are in the page cache of the kernel.
    assert_eq!((pages(&one), pages(&two)), (vec![1, 2, 3, 4], vec![5, 6, 0, 0, 0, 0]));
    let mut vector = RangeVector::new();
    vector
        .write(&one, 0, &[9; PAGE as usize])
        .clone_range((&one, PAGE), (&two, 3 * PAGE), PAGE)
        .move_range((&one, 2 * PAGE), (&two, 4 * PAGE), 2 * PAGE)
        .delete(&two, 0, PAGE)
        .expect_equal((&one, 0), (&one, 0), PAGE);
    assert_eq!(vectors.daemon.change_ranges(&vector).expect("space"), VectorOutcome::Changed);
    let expected = (vec![9, 2, 0, 0], vec![0, 6, 0, 2, 3, 4]);
    assert_eq!((pages(&one), pages(&two)), expected, "stale pages");
    drop((one, two));
    let Vectors { sandbox, mounted, .. } = vectors;
    mounted.kill();
    let mounted = sandbox.mount();
    let open = |name: &str| File::open(mounted.path(name)).expect("a file");
    assert_eq!((pages(&open("one")), pages(&open("two"))), expected, "after a kill");
    mounted.unmount();
    succeeds(weir().arg("check").arg(sandbox.store()));
}

#[test]
fn ranges_that_differ_change_nothing() {
    let Some(mut vectors) = Vectors::new() else { return };
    let (one, two) = (vectors.file("one", &[1, 2, 3]), vectors.file("two", &[1, 2, 4]));
    let mut vector = RangeVector::new();
    vector.write(&two, 0, &[7; 10]).expect_equal((&one, 0), (&two, 0), 2 * PAGE).expect_equal(
        (&one, PAGE + 1),
        (&two, PAGE + 1),
        2 * PAGE - 1,
    );
    let found = vectors.daemon.change_ranges(&vector).expect("a comparison");
    assert_eq!(found, VectorOutcome::Differs { range: 2 });
    assert_eq!(pages(&two), [1, 2, 4]);
    let mut vector = RangeVector::new();
    vector.write(&two, 0, &[7; PAGE as usize]).expect_equal((&one, 0), (&two, 0), 2 * PAGE);
    assert_eq!(vectors.daemon.change_ranges(&vector).expect("equal"), VectorOutcome::Changed);
    assert_eq!(pages(&two), [7, 2, 4]);
}

/// A mount that is gone when this is dropped.
struct SecondMount(PathBuf);

impl Drop for SecondMount {
    fn drop(&mut self) {
        detach(&self.0);
    }
}

#[test]
fn a_page_comes_back_from_a_snapshot_if_it_still_has_what_was_expected() {
    let Some(mut vectors) = Vectors::new() else { return };
    let live = vectors.file("data", &[1, 2, 3]);
    let beside = SecondMount(vectors.sandbox.path("beside"));
    fs::create_dir(&beside.0).expect("a new directory");
    succeeds(weir().args(["volume", "snapshot"]).arg(vectors.mounted.dir()).arg("night"));
    succeeds(weir().args(["mount", "--volume", "night"]).arg(vectors.sandbox.store()).arg(&beside.0));
    let saved = File::open(beside.0.join("data")).expect("a file");
    live.write_all_at(&[8; 2 * PAGE as usize], PAGE).expect("space");
    let mut vector = RangeVector::new();
    vector.expect_equal((&live, 0), (&saved, 0), PAGE).clone_range((&saved, PAGE), (&live, PAGE), PAGE);
    assert_eq!(vectors.daemon.change_ranges(&vector).expect("equal"), VectorOutcome::Changed);
    assert_eq!(pages(&live), [1, 2, 8]);
    assert_eq!(pages(&saved), [1, 2, 3]);

    // A clone of the volume can change, so what is compared there could change before the vector is made.
    let writable = SecondMount(vectors.sandbox.path("writable"));
    fs::create_dir(&writable.0).expect("a new directory");
    succeeds(weir().args(["volume", "clone"]).arg(vectors.mounted.dir()).arg("other"));
    succeeds(weir().args(["mount", "--volume", "other"]).arg(vectors.sandbox.store()).arg(&writable.0));
    let other = File::options().read(true).write(true).open(writable.0.join("data")).expect("a file");
    let mut vector = RangeVector::new();
    vector.expect_equal((&live, 0), (&other, 0), PAGE).delete(&live, 0, PAGE);
    assert_eq!(
        vectors.refusal(&vector),
        "a compared file of another volume, which is not read-only".to_owned()
    );
    let mut vector = RangeVector::new();
    vector.delete(&live, 0, PAGE).delete(&other, 0, PAGE);
    assert_eq!(vectors.refusal(&vector), "files of several volumes are changed");
    let mut vector = RangeVector::new();
    vector.clone_range((&other, 0), (&live, 2 * PAGE), PAGE);
    assert_eq!(vectors.daemon.change_ranges(&vector).expect("space"), VectorOutcome::Changed);
    assert_eq!(pages(&live), [1, 2, 1]);
}

/// The kernel appends at the end that it knows.
#[test]
fn an_append_after_a_vector_goes_behind_what_the_vector_wrote() {
    let Some(mut vectors) = Vectors::new() else { return };
    let file = vectors.file("log", &[1]);
    let mut appender = File::options().append(true).open(vectors.mounted.path("log")).expect("a file");
    file.set_len(2 * PAGE).expect("a size");
    let mut vector = RangeVector::new();
    vector.write(&file, PAGE, &[2; PAGE as usize]);
    assert_eq!(vectors.daemon.change_ranges(&vector).expect("space"), VectorOutcome::Changed);
    appender.write_all(&[3; PAGE as usize]).expect("space");
    assert_eq!(pages(&file), [1, 2, 3]);
}

#[test]
fn a_changed_file_does_not_keep_the_rights_of_its_owner() {
    let Some(mut vectors) = Vectors::new() else { return };
    let file = vectors.file("program", &[1]);
    file.set_permissions(Permissions::from_mode(0o4755)).expect("a file of ours");
    assert_eq!(file.metadata().expect("a file").mode() & 0o7777, 0o4755);
    let mut vector = RangeVector::new();
    vector.write(&file, 0, &[2; 10]);
    assert_eq!(vectors.daemon.change_ranges(&vector).expect("space"), VectorOutcome::Changed);
    // The kernel has forgotten the old mode.
    assert_eq!(file.metadata().expect("a file").mode() & 0o7777, 0o755);
}

#[test]
fn wrong_vectors_are_refused_by_name_and_change_nothing() {
    let Some(mut vectors) = Vectors::new() else { return };
    let (one, two) = (vectors.file("one", &[1, 2, 3]), vectors.file("two", &[4, 5, 6]));
    let only_read = File::open(vectors.mounted.path("one")).expect("a file");
    let only_written = File::options().write(true).open(vectors.mounted.path("one")).expect("a file");
    let path = rustix::fs::open(vectors.mounted.path("one"), OFlags::PATH, Mode::empty()).expect("a file");
    let path = File::from(path);
    let directory = File::open(vectors.mounted.dir()).expect("a directory");
    let outside = tempfile::tempfile().expect("a file");
    let (pipe, _writer) = std::io::pipe().expect("a pipe");
    let pipe = File::from(OwnedFd::from(pipe));
    let page = [7; PAGE as usize];
    let overlaps = "a changed range that overlaps another range of the request";
    let foreign = "not a file of a volume that this daemon has mounted";
    macro_rules! refused {
        ($why:expr, $($call:ident($($argument:expr),*)),+) => {{
            let mut vector = RangeVector::new();
            $(vector.$call($($argument),*);)+
            assert_eq!(vectors.refusal(&vector), $why);
        }};
    }
    refused!(overlaps, write(&one, 0, &page), write(&one, 4095, &page));
    refused!(overlaps, write(&one, 0, &page), clone_range((&one, 0), (&two, 0), PAGE));
    refused!(overlaps, delete(&one, 0, PAGE), move_range((&one, 0), (&two, 0), PAGE));
    refused!(overlaps, clone_range((&one, 0), (&one, PAGE), 2 * PAGE));
    refused!("a clone or a move that does not begin with pages", move_range((&one, 1), (&two, 0), PAGE));
    refused!(
        "a clone or a move that ends within a page, and before the end of a file",
        clone_range((&one, 0), (&two, 0), 9)
    );
    let behind = "a range ends behind the end of its file, whose size must be set before";
    refused!(behind, clone_range((&one, PAGE), (&two, 0), 3 * PAGE));
    refused!(behind, clone_range((&one, 0), (&two, PAGE), 3 * PAGE));
    refused!(behind, write(&one, 3 * PAGE, &[1]));
    refused!(behind, expect_equal((&one, PAGE), (&two, 0), 3 * PAGE));
    refused!("a range that ends behind the largest offset", delete(&one, u64::MAX, 2));
    refused!("the file would be larger than 128 TiB", write(&one, u64::MAX - 2, &[1]));
    refused!("a file that is not open for writing", write(&only_read, 0, &page));
    refused!("a file that is not open for writing", move_range((&only_read, 0), (&two, 0), PAGE));
    refused!("a file that is not open for writing", delete(&path, 0, PAGE));
    refused!("a file that is not open for reading", clone_range((&only_written, 0), (&two, 0), PAGE));
    refused!("a file that is not open for reading", expect_equal((&path, 0), (&two, 0), PAGE));
    refused!(foreign, write(&outside, 0, &page));
    refused!(foreign, clone_range((&pipe, 0), (&two, 0), PAGE));
    refused!(foreign, write(&directory, 0, &page));
    let mut vector = RangeVector::new();
    for _ in 0..=RANGES_MAX {
        vector.expect_equal((&one, 0), (&one, 0), 1);
    }
    let refused = vectors.daemon.change_ranges(&vector);
    assert!(matches!(refused, Err(ClientError::TooManyRanges { ranges: 65 })), "{refused:?}");
    let mut vector = RangeVector::new();
    vector.write(&one, 0, &vec![0; BYTES_MAX as usize + 1]);
    let refused = vectors.daemon.change_ranges(&vector);
    assert!(matches!(refused, Err(ClientError::TooManyBytesWritten { .. })), "{refused:?}");
    assert_eq!((pages(&one), pages(&two)), (vec![1, 2, 3], vec![4, 5, 6]));
}
