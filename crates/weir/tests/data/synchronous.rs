//! Synchronous writes are durable when they return. Commits wait for an hour here, so exactly the data that
//! the call under test has synced survives a kill.

use crate::call::call;
use crate::common::{Mounted, Sandbox, can_mount};
use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// From the kernel's `fs.h`.
const RWF_DSYNC: i32 = 2;
const RWF_SYNC: i32 = 4;
const RWF_NOWAIT: i32 = 8;
const RWF_APPEND: i32 = 16;
const EOPNOTSUPP: i64 = 95;
const EINVAL: i32 = 22;

fn mount(sandbox: &Sandbox) -> Mounted {
    sandbox.mount_with(&["--commit-interval", "3600000"])
}

/// A file of four pages, durable.
fn file(mounted: &Mounted, name: &str) -> File {
    let path = mounted.path(name);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).expect("a file");
    file.write_all_at(&[b'.'; 16_384], 0).expect("a write");
    file.sync_all().expect("a sync");
    file
}

fn open(path: &Path, flags: OFlags) -> File {
    OpenOptions::new().read(true).write(true).custom_flags(flags.bits() as i32).open(path).expect("the file")
}

/// Whether all changes are durable.
fn is_durable(mounted: &Mounted) -> bool {
    let status = mounted.status();
    status.lsns.applied == status.lsns.durable
}

#[test]
fn only_what_was_written_synchronously_is_there_after_a_kill() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    // The file's name, the kind of write, and whether the data must survive.
    for (round, (how, flags, rwf, durable)) in [
        ("plainly", OFlags::empty(), 0, false),
        ("O_DSYNC", OFlags::DSYNC, 0, true),
        ("O_SYNC", OFlags::SYNC, 0, true),
        ("RWF_DSYNC", OFlags::empty(), RWF_DSYNC, true),
        ("RWF_SYNC", OFlags::empty(), RWF_SYNC, true),
        ("RWF_APPEND", OFlags::empty(), RWF_APPEND, false),
        ("RWF_APPEND | RWF_DSYNC", OFlags::empty(), RWF_APPEND | RWF_DSYNC, true),
    ]
    .into_iter()
    .enumerate()
    {
        let mounted = mount(&sandbox);
        let path = mounted.path(&format!("file{round}"));
        drop(file(&mounted, &format!("file{round}")));
        assert!(is_durable(&mounted));
        if rwf == 0 {
            open(&path, flags).write_all_at(b"written", 5000).expect("a write");
        } else {
            let mut writer = call(&["rwf", "{}", "5000", "written", &rwf.to_string()], &path);
            assert_eq!(writer.expect("did"), 7, "{how}");
        }
        assert_eq!(is_durable(&mounted), durable, "{how}");
        let appended = rwf & RWF_APPEND != 0;
        assert_eq!(fs::metadata(&path).expect("metadata").len(), if appended { 16_391 } else { 16_384 });
        mounted.kill();
        let mounted = mount(&sandbox);
        let bytes = fs::read(mounted.path(&format!("file{round}"))).expect("it was synced before");
        let at = if appended { 16_384 } else { 5000 };
        assert_eq!(bytes.get(at..at + 7) == Some(b"written"), durable, "{how}");
        mounted.kill();
    }
}

#[test]
fn direct_io_passes_by_the_kernels_cache_and_promises_nothing_more() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = mount(&sandbox);
    let path = mounted.path("file");
    let plain = file(&mounted, "file");
    let direct = open(&path, OFlags::DIRECT);
    // This read brings the page into the kernel's cache.
    fs::read(&path).expect("a read");
    direct.write_all_at(&[7; 4096], 4096).expect("a direct write");
    assert!(!is_durable(&mounted), "O_DIRECT does not sync");
    let mut bytes = [0; 4096];
    plain.read_exact_at(&mut bytes, 4096).expect("a read");
    assert_eq!(bytes, [7; 4096], "the kernel's cache is behind");
    plain.write_all_at(b"cached", 4100).expect("a write");
    direct.read_exact_at(&mut bytes, 4096).expect("a direct read");
    assert_eq!(&bytes[4..10], b"cached", "a direct read is behind");
    // Any offset, length and memory alignment works, while ext4 requires whole sectors.
    direct.write_all_at(b"odd", 4097).expect("a direct write of three bytes");
    plain.read_exact_at(&mut bytes[..3], 4097).expect("a read");
    assert_eq!(&bytes[..3], b"odd");
    let both = open(&path, OFlags::DIRECT | OFlags::DSYNC);
    both.write_all_at(&[9; 4096], 8192).expect("a direct write");
    assert!(is_durable(&mounted), "O_DIRECT | O_DSYNC");
    mounted.kill();
    let mounted = mount(&sandbox);
    let bytes = fs::read(mounted.path("file")).expect("a read");
    assert_eq!((&bytes[4097..4100], &bytes[8192..12_288]), (&b"odd"[..], &[9; 4096][..]));
}

/// docs/decisions/0046.
#[test]
fn a_direct_read_of_bytes_just_written_reads_nothing_from_the_store_and_a_buffered_one_its_page_once() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = sandbox.mount();
    let path = mounted.path("file");
    fs::write(&path, vec![1; 1 << 20]).expect("a file");
    mounted.unmount();
    let mounted = sandbox.mount();
    let reads = || {
        let counted = mounted.status().counters.store_reads;
        counted.for_reads + counted.ahead
    };
    let (plain, direct) = (open(&path, OFlags::empty()), open(&path, OFlags::DIRECT));
    plain.write_all_at(&[2; 100], 500_000).expect("a write");
    let mut bytes = [0; 100];
    let before = reads();
    direct.read_exact_at(&mut bytes, 500_000).expect("a read");
    assert_eq!((bytes, reads()), ([2; 100], before));
    plain.read_exact_at(&mut bytes, 500_000).expect("a read");
    let after = reads();
    assert!(bytes == [2; 100] && after > before, "the kernel asks for all of the page");
    plain.read_exact_at(&mut bytes, 500_000).expect("a read");
    assert_eq!((bytes, reads()), ([2; 100], after), "it has it now");
}

#[test]
fn a_copy_into_a_synchronous_file_is_durable_when_it_returns() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = mount(&sandbox);
    let from = file(&mounted, "from");
    drop(file(&mounted, "to"));
    let to = open(&mounted.path("to"), OFlags::DSYNC);
    from.write_all_at(b"copied", 0).expect("a write");
    from.sync_all().expect("a sync");
    let (mut at, mut into) = (0, 9000);
    let copied = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut into), 6).expect("a copy");
    assert_eq!(copied, 6);
    assert!(is_durable(&mounted));
    mounted.kill();
    let mounted = mount(&sandbox);
    assert_eq!(&fs::read(mounted.path("to")).expect("a read")[9000..9006], b"copied");
}

#[test]
fn what_cannot_be_done_without_waiting_is_refused() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = mount(&sandbox);
    let path = mounted.path("file");
    drop(file(&mounted, "file"));
    let mut nowait = call(&["rwf", "{}", "0", "text", &RWF_NOWAIT.to_string()], &path);
    assert_eq!(nowait.expect("errno"), EOPNOTSUPP);
    let mut unknown = call(&["rwf", "{}", "0", "text", &(1 << 30).to_string()], &path);
    assert_eq!(unknown.expect("errno"), EOPNOTSUPP);
    assert_eq!(fs::read(&path).expect("a read"), [b'.'; 16_384]);
}

#[test]
fn two_programs_that_append_write_over_nothing() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = mount(&sandbox);
    let path = mounted.path("log");
    std::thread::scope(|scope| {
        for writer in 0..4_u8 {
            let path = &path;
            scope.spawn(move || {
                let mut options = OpenOptions::new();
                let log = options.append(true).create(true).open(path).expect("the log");
                for line in 0..200_usize {
                    let line = vec![b'a' + writer; 1 + line * 7 % 300];
                    rustix::io::write(&log, &[&line[..], b"\n"].concat()).expect("a line");
                }
            });
        }
    });
    let text = fs::read_to_string(&path).expect("the log");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 800);
    for line in lines {
        let first = line.as_bytes()[0];
        assert!(line.bytes().all(|byte| byte == first), "a line in a line: {line}");
    }
    // No place below 0, whatever the flags.
    let file = OpenOptions::new().write(true).open(&path).expect("the log");
    let error = file.write_at(b"x", u64::MAX).expect_err("a negative place");
    assert_eq!(error.raw_os_error(), Some(EINVAL));
    assert_eq!(fs::metadata(&path).expect("metadata").size(), text.len() as u64);
}
