use crate::common::{Mounted, Sandbox, can_mount, next_tick, succeeds, weir};
use rustix::fs::{FallocateFlags, SeekFrom, copy_file_range, fallocate, seek};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
const KEEP: FallocateFlags = FallocateFlags::KEEP_SIZE;

pub(crate) fn create(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).expect("a file")
}

fn data(file: &File, at: u64) -> Result<u64, Errno> {
    seek(file, SeekFrom::Data(at))
}

fn hole(file: &File, at: u64) -> Result<u64, Errno> {
    seek(file, SeekFrom::Hole(at))
}

/// Where the file's data lies.
pub(crate) fn layout(file: &File) -> Vec<(u64, u64)> {
    let (mut at, mut found) = (0, Vec::new());
    while let Ok(start) = data(file, at) {
        at = hole(file, start).expect("a hole ends every file");
        found.push((start, at));
    }
    assert_eq!(data(file, at), Err(Errno::NXIO));
    found
}

#[test]
fn holes_and_data_are_found_before_and_after_they_are_stored() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let file = create(&mounted.path("sparse"));
    file.set_len(1 << 40).expect("a size");
    assert_eq!(layout(&file), []);
    for page in [3, 4, 100, (1 << 28) - 1] {
        file.write_all_at(b"data", page * PAGE + 9).expect("a write");
    }
    let expected = [(3 * PAGE, 5 * PAGE), (100 * PAGE, 101 * PAGE), ((1 << 40) - PAGE, 1 << 40)];
    assert_eq!(layout(&file), expected);
    assert_eq!((data(&file, 3 * PAGE + 7), hole(&file, 7)), (Ok(3 * PAGE + 7), Ok(7)));
    drop(file);
    mounted.unmount();
    let mounted = sandbox.mount();
    let file = File::open(mounted.path("sparse")).expect("the file");
    assert_eq!(layout(&file), expected);
    for nowhere in [1 << 40, (1 << 40) + 1, i64::MAX as u64] {
        assert_eq!(data(&file, nowhere), Err(Errno::NXIO));
        assert_eq!(hole(&file, nowhere), Err(Errno::NXIO));
    }
}

#[test]
fn a_hole_that_is_punched_reads_as_zeros_and_the_size_stays() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let path = mounted.path("file");
    let file = create(&path);
    file.write_all_at(&[7; 10 * PAGE as usize], 0).expect("a write");
    // Reads the pages into the kernel's cache, which must drop them later.
    fs::read(&path).expect("a read");
    let before = file.metadata().expect("metadata");
    next_tick();
    fallocate(&file, FallocateFlags::PUNCH_HOLE | KEEP, PAGE + 100, 4 * PAGE).expect("a hole");
    let after = file.metadata().expect("metadata");
    assert_eq!(after.len(), before.len());
    let times = |of: &fs::Metadata| ((of.mtime(), of.mtime_nsec()), (of.ctime(), of.ctime_nsec()));
    assert!(
        times(&after).0 > times(&before).0 && times(&after).1 > times(&before).1,
        "the times stand still"
    );
    let mut expected = vec![7; 10 * PAGE as usize];
    expected[PAGE as usize + 100..5 * PAGE as usize + 100].fill(0);
    assert_eq!(fs::read(&path).expect("a read"), expected);
    // Partly zeroed pages are still data.
    assert_eq!(layout(&file), [(0, 2 * PAGE), (5 * PAGE, 10 * PAGE)]);
    // A punch past the end changes nothing.
    fallocate(&file, FallocateFlags::PUNCH_HOLE | KEEP, 20 * PAGE, PAGE).expect("nothing");
    fallocate(&file, FallocateFlags::PUNCH_HOLE | KEEP, 9 * PAGE, 99 * PAGE).expect("the last page");
    assert_eq!(file.metadata().expect("metadata").len(), 10 * PAGE);
    assert_eq!(layout(&file), [(0, 2 * PAGE), (5 * PAGE, 9 * PAGE)]);
}

#[test]
fn a_range_that_is_zeroed_or_allocated_grows_the_file_unless_its_size_is_kept() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let file = create(&mounted.path("file"));
    let len = || file.metadata().expect("metadata").len();
    for (flags, grows) in [
        (FallocateFlags::empty(), true),
        (KEEP, false),
        (FallocateFlags::ZERO_RANGE, true),
        (FallocateFlags::ZERO_RANGE | KEEP, false),
    ] {
        file.set_len(0).expect("empty");
        file.write_all_at(&[7; 6000], 0).expect("a write");
        fallocate(&file, flags, 5000, 10_000).expect("space");
        assert_eq!(len(), if grows { 15_000 } else { 6000 }, "{flags:?}");
        let mut bytes = vec![1; 6000];
        file.read_exact_at(&mut bytes, 0).expect("a read");
        let zeroed = flags.contains(FallocateFlags::ZERO_RANGE);
        assert!(bytes[..5000].iter().all(|&byte| byte == 7), "{flags:?}");
        assert!(bytes[5000..].iter().all(|&byte| byte == if zeroed { 0 } else { 7 }), "{flags:?}");
    }
}

#[test]
fn what_fallocate_and_lseek_refuse_they_refuse_by_the_right_name() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let path = mounted.path("file");
    let file = create(&path);
    file.write_all_at(&[7; 20_000], 0).expect("a write");
    let none = FallocateFlags::empty();
    let punch = FallocateFlags::PUNCH_HOLE;
    assert_eq!(fallocate(&file, none, 0, 0), Err(Errno::INVAL), "no length");
    assert_eq!(fallocate(&file, none, u64::MAX, 1), Err(Errno::INVAL), "a negative place");
    assert_eq!(fallocate(&file, none, 0, u64::MAX), Err(Errno::INVAL), "a negative length");
    assert_eq!(fallocate(&file, punch, 0, PAGE), Err(Errno::OPNOTSUPP), "a hole that changes the size");
    for flags in [FallocateFlags::COLLAPSE_RANGE, FallocateFlags::INSERT_RANGE] {
        assert_eq!(fallocate(&file, flags, 0, PAGE), Err(Errno::OPNOTSUPP), "{flags:?}");
    }
    let reader = File::open(&path).expect("the file");
    assert_eq!(fallocate(&reader, none, 0, 1), Err(Errno::BADF), "opened for reading");
    let directory = File::open(mounted.dir()).expect("the root");
    assert!(fallocate(&directory, none, 0, 1).is_err());
    let largest = 1_u64 << 47;
    assert_eq!(fallocate(&file, none, largest, 1), Err(Errno::FBIG));
    assert_eq!(fallocate(&file, FallocateFlags::ZERO_RANGE, 1, largest), Err(Errno::FBIG));
    assert_eq!(fallocate(&file, none, i64::MAX as u64, 1), Err(Errno::FBIG));
    // 64 MiB of store.
    assert_eq!(fallocate(&file, none, 0, 1 << 30), Err(Errno::NOSPC));
    assert_eq!(fallocate(&file, KEEP, 0, largest), Err(Errno::NOSPC));
    let (read, _write) = rustix_pipe();
    assert_eq!(fallocate(&read, none, 0, 1), Err(Errno::BADF), "a pipe's reading end");
    assert_eq!(seek(&read, SeekFrom::Data(0)), Err(Errno::SPIPE));
    assert_eq!(data(&file, u64::MAX), Err(Errno::NXIO), "before the file");
    assert_eq!(file.metadata().expect("metadata").len(), 20_000, "a refusal left a trace");
    assert_eq!(fs::read(&path).expect("a read"), [7; 20_000]);
}

fn rustix_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    std::io::pipe().expect("a pipe")
}

#[test]
fn a_synced_hole_is_there_after_a_kill_and_one_that_was_not_is_there_as_a_whole_or_not_at_all() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount_with(&["--commit-interval", "3600000"]);
    let file = create(&mounted.path("file"));
    file.write_all_at(&[7; 64 * PAGE as usize], 0).expect("a write");
    fallocate(&file, FallocateFlags::PUNCH_HOLE | KEEP, 10 * PAGE + 1, 20 * PAGE).expect("a hole");
    fallocate(&file, FallocateFlags::empty(), 0, 100 * PAGE).expect("space");
    file.sync_all().expect("a sync");
    fallocate(&file, FallocateFlags::ZERO_RANGE, 50 * PAGE, 100 * PAGE).expect("zeros");
    drop(file);
    mounted.kill();
    let mounted = sandbox.mount();
    let bytes = fs::read(mounted.path("file")).expect("a read");
    let mut expected = vec![7; 64 * PAGE as usize];
    expected[10 * PAGE as usize + 1..30 * PAGE as usize + 1].fill(0);
    expected.resize(100 * PAGE as usize, 0);
    if bytes.len() as u64 == 150 * PAGE {
        expected.resize(150 * PAGE as usize, 0);
        expected[50 * PAGE as usize..].fill(0);
    }
    assert!(bytes == expected, "{} bytes, or other ones", bytes.len());
    let file = File::open(mounted.path("file")).expect("the file");
    assert_eq!(layout(&file)[0], (0, 11 * PAGE));
}

fn copy(mounted: &Mounted, from: (&File, u64), to: (&File, u64), len: usize) -> Result<usize, Errno> {
    let _ = mounted;
    let (mut at, mut into) = (from.1, to.1);
    copy_file_range(from.0, Some(&mut at), to.0, Some(&mut into), len)
}

#[test]
fn copy_file_range_copies_within_a_file_and_between_two_and_refuses_as_linux_does() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|at| (at / 3) as u8).collect();
    fs::write(mounted.path("from"), &bytes).expect("a file");
    let from = OpenOptions::new().read(true).write(true).open(mounted.path("from")).expect("the file");
    let to = create(&mounted.path("to"));
    let mut done = 0;
    while done < bytes.len() - 5 {
        let more =
            copy(&mounted, (&from, 5 + done as u64), (&to, 77 + done as u64), bytes.len()).expect("a copy");
        assert!(more > 0, "it ends before the file does");
        done += more;
    }
    let found = fs::read(mounted.path("to")).expect("the copy");
    assert!(found[..77].iter().all(|&byte| byte == 0) && found[77..] == bytes[5..]);
    assert_eq!(copy(&mounted, (&from, 3_000_000), (&to, 0), 10), Ok(0), "at the end");
    assert_eq!(copy(&mounted, (&from, 0), (&from, 2_000_000), 1_000_000).expect("within"), 1_000_000);
    assert_eq!(fs::read(mounted.path("from")).expect("it")[2_000_000..], bytes[..1_000_000]);
    assert_eq!(copy(&mounted, (&from, 0), (&from, 100), 1000), Err(Errno::INVAL), "over itself");
    let reader = File::open(mounted.path("to")).expect("the file");
    assert_eq!(copy(&mounted, (&from, 0), (&reader, 0), 10), Err(Errno::BADF));
    let directory = File::open(mounted.dir()).expect("the root");
    assert_eq!(copy(&mounted, (&directory, 0), (&to, 0), 10), Err(Errno::ISDIR));
}

#[test]
fn cp_makes_a_sparse_copy_of_a_sparse_file() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let file = create(&mounted.path("sparse"));
    // Far more than the store holds.
    file.set_len(1 << 40).expect("a size");
    file.write_all_at(b"near", 5 * PAGE).expect("a write");
    file.write_all_at(b"far", 1 << 39).expect("a write");
    let mut cp = std::process::Command::new("cp");
    crate::common::succeeds(
        cp.args(["--sparse=always"]).arg(mounted.path("sparse")).arg(mounted.path("copy")),
    );
    let copied = File::open(mounted.path("copy")).expect("the copy");
    assert_eq!(copied.metadata().expect("metadata").len(), 1 << 40);
    assert_eq!(layout(&copied), layout(&file));
    let mut bytes = [0; 3];
    copied.read_exact_at(&mut bytes, 1 << 39).expect("a read");
    assert_eq!(&bytes, b"far");
}

#[test]
fn a_copy_shares_its_pages_and_is_a_copy_whatever_becomes_of_either() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let bytes: Vec<u8> = (0..6 << 20).map(|at: u32| (at / 7 % 251) as u8).collect();
    let bytes = &bytes[..bytes.len() - 100];
    let source = create(&mounted.path("source"));
    source.write_all_at(bytes, 0).expect("space");
    let copies = ["one", "other"].map(|name| create(&mounted.path(name)));
    for copy in &copies {
        let (mut from, mut to) = (0, 0);
        while copy_file_range(&source, Some(&mut from), copy, Some(&mut to), usize::MAX >> 1).expect("a copy")
            > 0
        {}
    }
    let status = mounted.status();
    assert!(status.counters.clones_stored + status.dirty.clones >= 2, "{status:#?}");
    source.write_all_at(b"source", 5000).expect("space");
    copies[0].write_all_at(b"copy", 1 << 20).expect("space");
    fs::remove_file(mounted.path("source")).expect("ours");
    let expected = |change: Option<(&[u8], usize)>| {
        let mut expected = bytes.to_vec();
        change.into_iter().for_each(|(bytes, at)| expected[at..at + bytes.len()].copy_from_slice(bytes));
        expected
    };
    let read = |name: &str| fs::read(mounted.path(name)).expect("it is there");
    assert!(read("one") == expected(Some((b"copy", 1 << 20))) && read("other") == expected(None));
    // The kernel reads and writes a range that begins in the middle of a page.
    let (mut from, mut to) = (100, 200);
    copy_file_range(&copies[0], Some(&mut from), &copies[1], Some(&mut to), 10_000).expect("a copy");
    let moved = &expected(None)[100..10_100];
    assert!(read("other") == expected(Some((moved, 200))));
    drop((source, copies));
    mounted.unmount();
    let mounted = sandbox.mount();
    assert!(fs::read(mounted.path("other")).expect("it is there") == expected(Some((moved, 200))));
    mounted.unmount();
}

#[test]
fn a_small_copy_shares_nothing_and_waits_for_no_disk() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let bytes = vec![7; (1 << 20) - 1];
    fs::write(mounted.path("source"), &bytes).expect("space");
    let before = mounted.status();
    succeeds(Command::new("cp").arg("--reflink=auto").arg(mounted.path("source")).arg(mounted.path("copy")));
    let after = mounted.status();
    assert_eq!((after.counters.clones_stored, after.dirty.clones), (0, 0), "{after:#?}");
    assert_eq!(after.counters.syncs, before.counters.syncs);
    assert!(fs::read(mounted.path("copy")).expect("the copy") == bytes);
    mounted.unmount();
}

/// Bytes that `du` counts.
fn used(path: &Path) -> u64 {
    fs::metadata(path).expect("metadata").blocks() * 512
}

#[test]
fn du_of_an_image_shrinks_with_every_trim_of_what_is_in_it() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted_with(&["--size", "512MiB", "--buffer-size", "32MiB"]);
    let mounted = sandbox.mount();
    let (image, inside) = (mounted.path("image"), sandbox.path("inside"));
    create(&image).set_len(256 << 20).expect("a size");
    fs::create_dir(&inside).expect("a directory");
    succeeds(Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&image));
    let loop_mount = LoopMount::new(&image, &inside);
    let sync_and_trim = || {
        succeeds(Command::new("sync").arg("-f").arg(&inside));
        succeeds(Command::new("fstrim").arg(&inside));
    };
    sync_and_trim();
    let empty = used(&image);
    // Many files, so that their ranges become many punches. Every second file is removed first.
    for number in 0..60 {
        fs::write(inside.join(number.to_string()), vec![number; 1 << 20]).expect("space");
    }
    sync_and_trim();
    let expect_beside_metadata = |left: u64| {
        let (now, expected) = (used(&image), empty + (left << 20));
        assert!(now.abs_diff(expected) < 3 << 20, "{left} MiB of files: {now}, expected {expected}");
    };
    expect_beside_metadata(60);
    for (parity, left) in [(0, 30), (1, 0)] {
        for number in (parity..60).step_by(2) {
            fs::remove_file(inside.join(number.to_string())).expect("ours");
        }
        sync_and_trim();
        expect_beside_metadata(left);
    }
    drop(loop_mount);
    let before = used(&image);
    succeeds(weir().arg("sync").arg(mounted.dir()));
    mounted.kill();
    let mounted = sandbox.mount();
    assert!(used(&mounted.path("image")).abs_diff(before) < 1 << 20);
    mounted.unmount();
}

/// A file system in an image. Dropping it unmounts.
struct LoopMount(PathBuf);

impl LoopMount {
    fn new(image: &Path, dir: &Path) -> LoopMount {
        succeeds(Command::new("mount").args(["-o", "loop"]).args([image, dir]));
        LoopMount(dir.into())
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn du_of_a_file_with_holes_counts_what_it_has() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let path = mounted.path("file");
    let file = create(&path);
    file.set_len(1000 * PAGE).expect("a size");
    file.write_all_at(&[7; 100 * PAGE as usize], 500 * PAGE).expect("space");
    assert_eq!(used(&path), 100 * PAGE, "in the middle");
    file.sync_all().expect("a sync");
    for page in (500..600).step_by(2) {
        fallocate(&file, FallocateFlags::PUNCH_HOLE | KEEP, page * PAGE, PAGE).expect("a hole");
    }
    assert_eq!(used(&path), 50 * PAGE);
    let copy = create(&mounted.path("copy"));
    let (mut from, mut to) = (501 * PAGE, 101 * PAGE);
    assert_eq!(copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), PAGE as usize), Ok(4096));
    assert_eq!(used(&mounted.path("copy")), PAGE);
    file.sync_all().expect("a sync");
    mounted.kill();
    let mounted = sandbox.mount();
    let (path, copy) = (mounted.path("file"), mounted.path("copy"));
    assert_eq!([used(&path), used(&copy)], [50 * PAGE, PAGE]);
    let file = OpenOptions::new().write(true).open(&path).expect("it");
    file.set_len(550 * PAGE).expect("shorter");
    drop(file);
    assert_eq!(used(&path), 25 * PAGE);
    mounted.unmount();
}

#[test]
fn first_copies_at_the_same_moment_all_share() {
    if !can_mount() {
        return;
    }
    const COPIES: usize = 16;
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let files =
        |kind: &str| (0..COPIES).map(|i| create(&mounted.path(&format!("{kind}{i}")))).collect::<Vec<_>>();
    let (sources, copies) = (files("source"), files("copy"));
    for source in &sources {
        source.write_all_at(&[7; 1 << 20], 0).expect("space");
    }
    let start = std::sync::Barrier::new(COPIES);
    std::thread::scope(|scope| {
        for (source, copy) in sources.iter().zip(&copies) {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                let (mut from, mut to) = (0, 0);
                let copied = copy_file_range(source, Some(&mut from), copy, Some(&mut to), 1 << 20);
                assert_eq!(copied, Ok(1 << 20));
            });
        }
    });
    // A copy that is stored at this moment may count as stored and as dirty.
    let begin = Instant::now();
    let status = loop {
        let status = mounted.status();
        if status.dirty.clones == 0 {
            break status;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "{status:#?}");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(status.counters.clones_stored, COPIES as u64, "{status:#?}");
    for copy in &copies {
        let mut bytes = vec![0; 1 << 20];
        copy.read_exact_at(&mut bytes, 0).expect("the copy");
        assert!(bytes.iter().all(|&byte| byte == 7));
    }
    drop((sources, copies));
    mounted.unmount();
}
