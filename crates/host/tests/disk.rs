//! Files and block devices as disks.

use device::{Block, BlockRead, Device, DeviceOperation, OverlayDevice, check_contract, check_growth, pages};
use host::{DiskAccess, ExistingFile, HostDisk, HostError};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const BYTES: u64 = 1 << 20;

fn directory() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary directory")
}

#[test]
fn a_file_keeps_the_contract() {
    let directory = directory();
    let disk =
        HostDisk::create(&directory.path().join("disk"), BYTES, ExistingFile::Refuse).expect("a new file");
    assert_eq!(disk.blocks(), 256);
    check_contract(&disk);
}

#[test]
fn a_file_on_tmpfs_keeps_the_contract() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else { return };
    let disk =
        HostDisk::create(&directory.path().join("disk"), BYTES, ExistingFile::Refuse).expect("a new file");
    check_contract(&disk);
}

/// A loop device on a file, detached when dropped.
struct Loop(PathBuf);

impl Loop {
    /// `None` where this machine does not let us.
    fn on(file: &Path) -> Option<Loop> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let path = String::from_utf8(made.stdout).ok()?;
        made.status.success().then(|| Loop(path.trim().into()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.0).status();
        assert!(detached.is_ok_and(|status| status.success()), "{} stays behind", self.0.display());
    }
}

#[test]
fn a_block_device_keeps_the_contract_where_one_can_be_made() {
    let directory = directory();
    let file = directory.path().join("backing");
    fs::write(&file, vec![0; BYTES as usize]).expect("space for a small file");
    let Some(device) = Loop::on(&file) else {
        eprintln!("no loop devices for us here: only files were checked");
        return;
    };
    let disk = HostDisk::open(&device.0, DiskAccess::Write).expect("a loop device of our own");
    assert_eq!(disk.blocks(), 256);
    check_contract(&disk);
    let again = HostDisk::open(&device.0, DiskAccess::Write);
    assert!(matches!(again, Err(HostError::Busy { .. })), "{again:?}");
    drop(disk);
    let made = HostDisk::create(&device.0, BYTES, ExistingFile::Overwrite);
    assert!(matches!(made, Err(HostError::NotADisk { .. })), "{made:?}");
}

#[test]
fn a_writer_has_the_disk_alone_and_readers_share_it() {
    let directory = directory();
    let path = directory.path().join("disk");
    let writer = HostDisk::create(&path, BYTES, ExistingFile::Refuse).expect("a new file");
    for access in [DiskAccess::Read, DiskAccess::Write] {
        let error = HostDisk::open(&path, access).expect_err("in use");
        assert!(matches!(error, HostError::Busy { .. }), "{error}");
        assert!(error.help().is_some_and(|help| help.contains("weir status")), "{error}");
    }
    let over = HostDisk::create(&path, 8192, ExistingFile::Overwrite);
    assert!(matches!(over, Err(HostError::Busy { .. })), "overwrote what is in use");
    drop(writer);
    assert_eq!(fs::metadata(&path).expect("still there").len(), BYTES);
    let (one, other) = (HostDisk::open(&path, DiskAccess::Read), HostDisk::open(&path, DiskAccess::Read));
    assert!(one.is_ok() && other.is_ok());
    assert!(matches!(HostDisk::open(&path, DiskAccess::Write), Err(HostError::Busy { .. })));
}

#[test]
fn a_reader_cannot_write() {
    let directory = directory();
    let path = directory.path().join("disk");
    drop(HostDisk::create(&path, BYTES, ExistingFile::Refuse).expect("a new file"));
    let disk = HostDisk::open(&path, DiskAccess::Read).expect("a file");
    let error = disk.write(Block(1), &pages(1)).expect_err("opened for reading");
    assert_eq!((error.operation, error.at, error.count), (DeviceOperation::Write, Block(1), 1));
}

#[test]
fn an_existing_file_is_overwritten_only_when_asked() {
    let directory = directory();
    let path = directory.path().join("disk");
    fs::write(&path, "precious").expect("space for a small file");
    let error = HostDisk::create(&path, BYTES, ExistingFile::Refuse).expect_err("there is something");
    assert!(matches!(error, HostError::Exists { .. }), "{error}");
    assert_eq!(fs::read(&path).expect("still there"), b"precious");
    let disk = HostDisk::create(&path, BYTES, ExistingFile::Overwrite).expect("asked for");
    let mut page = pages(1);
    disk.read(Block(0), &mut page).expect("in range");
    assert_eq!((page, disk.blocks()), (pages(1), 256));
}

#[test]
fn sizes_that_make_no_sense_are_refused_and_leave_nothing() {
    let directory = directory();
    let path = directory.path().join("disk");
    for bytes in [0, 1, 4095, 4097, u64::MAX - 4095] {
        let error = HostDisk::create(&path, bytes, ExistingFile::Refuse).expect_err("no size");
        assert!(matches!(error, HostError::InvalidSize { .. }), "{bytes}: {error}");
    }
    // More than ext4 can hold in a file; some file systems can.
    let made = HostDisk::create(&path, 1 << 62, ExistingFile::Refuse);
    assert!(matches!(made, Ok(_) | Err(HostError::TooLarge { .. })), "{made:?}");
    assert_eq!(made.is_ok(), path.exists(), "a failed creation left a file");
}

#[test]
fn what_is_no_disk_is_refused_by_name() {
    let directory = directory();
    let missing = HostDisk::open(&directory.path().join("nothing"), DiskAccess::Read).expect_err("missing");
    assert!(matches!(missing, HostError::Missing { .. }), "{missing}");
    for (path, what) in [(directory.path(), "a directory"), (Path::new("/dev/null"), "a character device")] {
        let error = HostDisk::open(path, DiskAccess::Write).expect_err("no disk");
        assert!(matches!(&error, HostError::NotADisk { what: found, .. } if *found == what), "{error}");
    }
    let pipe = directory.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .expect("a pipe");
    let error = HostDisk::open(&pipe, DiskAccess::Read).expect_err("no disk");
    assert!(matches!(error, HostError::NotADisk { what: "a pipe", .. }), "{error}");
}

#[test]
fn a_disk_that_became_shorter_gives_errors_and_not_zeros() {
    let directory = directory();
    let path = directory.path().join("disk");
    let disk = HostDisk::create(&path, BYTES, ExistingFile::Refuse).expect("a new file");
    fs::File::options().write(true).open(&path).expect("ours").set_len(BYTES / 2).expect("shorter");
    let error = disk.read(Block(127), &mut pages(2)).expect_err("half of it is gone");
    assert!(error.reason.contains("shorter"), "{error}");
    let mut reads =
        [BlockRead::new(Block(100), 1), BlockRead::new(Block(127), 2), BlockRead::new(Block(130), 1)];
    disk.read_batch(&mut reads);
    assert!(reads[0].result.is_ok() && reads[1].result.is_err() && reads[2].result.is_err());
}

#[test]
fn many_threads_read_in_batches_at_once() {
    let directory = directory();
    let disk =
        HostDisk::create(&directory.path().join("disk"), BYTES, ExistingFile::Refuse).expect("a new file");
    for at in 0..256 {
        let mut page = pages(1);
        page[0].0.fill(at as u8);
        disk.write(Block(at), &page).expect("in range");
    }
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let disk = &disk;
            scope.spawn(move || {
                for round in 0..20 {
                    let at = |i: u64| Block((i * 31 + round * 7 + thread) % 256);
                    let mut reads: Vec<BlockRead> = (0..100).map(|i| BlockRead::new(at(i), 1)).collect();
                    disk.read_batch(&mut reads);
                    assert!(reads.iter().all(|read| read.result.is_ok()));
                    assert!(reads.iter().all(|read| read.pages[0].0[99] == read.at.0 as u8));
                }
            });
        }
    });
}

#[test]
fn a_panic_in_what_is_done_meanwhile_goes_on_when_the_reads_are_done() {
    let directory = directory();
    let disk =
        HostDisk::create(&directory.path().join("disk"), BYTES, ExistingFile::Refuse).expect("a new file");
    let mut full = pages(256);
    full.iter_mut().for_each(|page| page.0.fill(0xa5));
    disk.write(Block(0), &full).expect("in range");
    let mut reads: Vec<BlockRead> = (0..256).map(|at| BlockRead::new(Block(at), 1)).collect();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        disk.read_batch_while(&mut reads, &mut || panic!("on purpose"));
    }));
    assert_eq!(panicked.expect_err("it goes on").downcast_ref(), Some(&"on purpose"));
    let is_whole = |read: &BlockRead| read.pages[0].0 == full[0].0;
    let (whole, untouched) = reads.iter().partition::<Vec<&BlockRead>, _>(|read| is_whole(read));
    // Where there is no io_uring none of them was begun.
    assert!(whole.is_empty() || untouched.is_empty(), "{} of 256", whole.len());
    disk.read_batch(&mut reads);
    assert!(reads.iter().all(|read| read.result.is_ok() && is_whole(read)));
}

#[test]
fn a_sparse_file_knows_what_has_space_and_gets_more_without_being_written() {
    let directory = directory();
    let path = directory.path().join("disk");
    let disk = HostDisk::create(&path, BYTES, ExistingFile::Refuse).expect("a new file");
    assert_eq!(disk.allocated(), Some(Vec::new()));
    disk.write(Block(8), &pages(4)).and_then(|()| disk.flush()).expect("a write");
    disk.allocate(Block(64), 32).and_then(|()| disk.allocate(Block(96), 8)).expect("there is space");
    assert_eq!(disk.allocated(), Some(vec![Block(8)..Block(12), Block(64)..Block(104)]));
    disk.trim(Block(72), 8).expect("a trim");
    assert_eq!(disk.allocated().map(|known| known.len()), Some(3));
    assert!(disk.spare_blocks().is_some_and(|spare| spare > 0));
    drop(disk);
    assert_eq!(fs::metadata(&path).expect("still there").len(), BYTES);
}

#[test]
fn a_file_that_was_preallocated_keeps_its_space_when_it_is_trimmed() {
    let directory = directory();
    let path = directory.path().join("disk");
    let taken = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&path).expect("there")) * 512;
    let disk = HostDisk::create(&path, BYTES, ExistingFile::Refuse).expect("a new file");
    drop(disk.preallocate().expect("there is space"));
    assert!(taken() >= BYTES);
    let disk = HostDisk::open(&path, DiskAccess::Write).expect("ours");
    assert_eq!((disk.allocated(), disk.spare_blocks()), (None, None));
    disk.trim(Block(0), 256).and_then(|()| disk.flush()).expect("a trim");
    assert!(taken() >= BYTES);
}

#[test]
fn a_file_gets_larger_and_one_that_was_preallocated_with_all_its_space_or_not_at_all() {
    let directory = directory();
    let path = directory.path().join("disk");
    let taken = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&path).expect("there")) * 512;
    let disk = HostDisk::create(&path, BYTES, ExistingFile::Refuse).expect("a new file");
    check_growth(&disk);
    assert!(taken() < BYTES, "it is sparse");
    let disk = disk.preallocate().expect("there is space");
    let before = disk.blocks();
    check_growth(&disk);
    assert!(taken() >= (before + 100) * 4096);
    // Somebody has made it longer, which gives it no space.
    fs::File::options().write(true).open(&path).and_then(|file| file.set_len(2 * BYTES)).expect("longer");
    disk.grow(0).expect("space");
    assert_eq!(disk.blocks(), 2 * BYTES / 4096);
    assert!(taken() >= 2 * BYTES);
    let (length, taken_before) = (fs::metadata(&path).expect("there").len(), taken());
    assert!(disk.grow(1 << 50).is_err(), "no file system has that");
    assert_eq!((disk.blocks(), fs::metadata(&path).expect("there").len()), (2 * BYTES / 4096, length));
    assert!(taken() <= taken_before + BYTES, "it keeps what it could not use");
}

#[test]
fn an_overlay_over_a_file_is_a_device_and_the_file_stays_as_it_was() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("below");
    let disk = HostDisk::create(&path, 64 * 4096, ExistingFile::Refuse).expect("a file");
    let mut full = pages(64);
    full.iter_mut().for_each(|page| page.0.fill(0xa5));
    disk.write(Block(0), &full).and_then(|()| disk.flush()).expect("filled");
    drop(disk);
    check_contract(&OverlayDevice::new(HostDisk::open(&path, DiskAccess::Read).expect("to look")));
    assert!(std::fs::read(&path).expect("it").iter().all(|&byte| byte == 0xa5));
}
