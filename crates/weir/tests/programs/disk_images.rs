//! Files on a mount as disks: every block of commands in docs/disk-images.md is run.

use crate::common::{space_of, succeeds};
use crate::guide::{Cleanup, Guide, OwnMount};
use crate::kills::{PATIENCE, Server, have};
use crate::weir::Weir;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const PAGE: &str = include_str!("../../../../docs/disk-images.md");

/// What the page and this test run.
const PROGRAMS: [&str; 13] = [
    "bash",
    "dd",
    "debugfs",
    "e2fsck",
    "fstrim",
    "losetup",
    "mkfs.ext4",
    "nbdcopy",
    "nbdinfo",
    "nbdkit",
    "qemu-img",
    "qemu-io",
    "qemu-nbd",
];

/// The page's directories, and what the test has instead. The mount is the last one: its files lie below
/// `@ROOT@/mnt/` from then on, which an earlier line would take for one of the page's directories.
const DIRECTORIES: [(&str, &str); 6] = [
    ("/mnt/work", "@ROOT@/work"),
    ("/mnt/before-upgrade", "@ROOT@/before-upgrade"),
    ("/var/lib/weir/disks", "@ROOT@/media"),
    ("/var/tmp/", "@ROOT@/"),
    ("/run/", "@ROOT@/"),
    ("/mnt/disks", "@ROOT@/mnt"),
];

const MIB: u64 = 1 << 20;

/// qemu-io that has an image open, as a virtual machine has its disk.
struct Guest {
    _process: Server,
    requests: ChildStdin,
    replies: BufReader<ChildStdout>,
}

impl Guest {
    fn start(image: &Path) -> Guest {
        let mut command = Command::new("qemu-io");
        command.args(["-f", "raw", "-t", "none", "-i", "native", "-d", "unmap"]).arg(image);
        let mut process = Server::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let requests = process.0.stdin.take().expect("a pipe");
        let replies = BufReader::new(process.0.stdout.take().expect("a pipe"));
        let mut guest = Guest { _process: process, requests, replies };
        guest.wait_for_prompt();
        guest
    }

    /// Fills 64 KiB at `offset` with `byte`, and flushes.
    fn write(&mut self, byte: u8, offset: u64) {
        // qemu-io does not look for a second line that arrives with the first.
        for request in [format!("write -P {byte} {offset} 64k"), "flush".to_owned()] {
            writeln!(self.requests, "{request}").expect("qemu-io reads");
            let said = self.wait_for_prompt();
            assert!(!said.contains("failed"), "qemu-io said {said:?}");
        }
    }

    /// Waits until qemu-io has ended its last request, and returns its output.
    fn wait_for_prompt(&mut self) -> String {
        let mut said = Vec::new();
        self.replies.read_until(b'>', &mut said).expect("a pipe");
        let said = String::from_utf8_lossy(&said).into_owned();
        assert!(said.ends_with("qemu-io>"), "qemu-io ended: {said:?}");
        said
    }
}

/// The space that a store uses, compared with that of the empty store.
struct Space {
    mount_point: PathBuf,
    empty: u64,
}

impl Space {
    fn new(mount_point: PathBuf) -> Space {
        let empty = space_of(&mount_point, &[]).used_bytes;
        Space { mount_point, empty }
    }

    fn mib(&self) -> u64 {
        space_of(&self.mount_point, &[]).used_bytes.saturating_sub(self.empty) / MIB
    }

    #[track_caller]
    fn has_at_least(&self, mib: u64) {
        let used = self.mib();
        assert!(used >= mib, "{used} MiB are used, less than {mib}");
    }

    /// The store frees the space of holes a second or two later.
    #[track_caller]
    fn waits_for_at_most(&self, mib: u64) {
        let begin = Instant::now();
        while self.mib() > mib {
            assert!(begin.elapsed() < PATIENCE, "{} MiB are used, more than {mib}", self.mib());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Fails unless the two images have the same bytes.
#[track_caller]
fn assert_same(one: &Path, other: &Path) {
    succeeds(Command::new("qemu-img").args(["compare", "-f", "raw", "-F", "raw"]).args([one, other]));
}

/// Fails unless `image` has 64 KiB of `byte` at `offset`.
#[track_caller]
fn assert_has(image: &Path, byte: u8, offset: u64) {
    let read = format!("read -P {byte} {offset} 64k");
    succeeds(Command::new("qemu-io").args(["-r", "-f", "raw", "-c", &read]).arg(image));
}

fn allocated(image: &Path) -> u64 {
    fs::metadata(image).expect("it is there").blocks() * 512
}

fn write_and_sync(path: &Path, bytes: &[u8]) {
    fs::write(path, bytes).and_then(|()| File::open(path)?.sync_all()).expect("written");
}

/// The image has 32 MiB at the end.
fn discards_of_qemu_free_space(guide: &mut Guide, space: &Space) {
    guide.run("vm.img 20G");
    guide.run("'write -P 0x5a 0 64M'");
    space.has_at_least(60);
    guide.run("'discard 0 32M'");
    space.waits_for_at_most(40);
}

/// The image without holes adds 64 MiB.
fn copies_share_their_pages(guide: &mut Guide, space: &Space) {
    let at = |name: &str| space.mount_point.join(name);
    guide.run("convert -C");
    assert_same(&at("vm.img"), &at("copy.img"));
    space.waits_for_at_most(48);
    guide.run("preallocation=full");
    assert_same(&at("full.img"), &at("full-copy.img"));
    space.waits_for_at_most(112);
}

fn servers_pass_on_writes_and_discards(guide: &mut Guide, space: &Space) {
    let (image, backup) = (space.mount_point.join("vm.img"), guide.root.join("backup.img"));
    let before = allocated(&image);
    let said = guide.run("nbdkit");
    for ability in ["can_flush: true", "can_fua: true", "can_trim: true", "can_multi_conn: true"] {
        assert!(said.contains(ability), "{ability} is missing: {said}");
    }
    assert_same(&image, &backup);
    assert!(allocated(&image) <= before + 4 * MIB, "16 MiB were written and discarded");
    guide.run("qemu-nbd");
    assert_same(&image, &backup);
    assert!(allocated(&image) <= before + 4 * MIB, "16 MiB were written and discarded");
    space.waits_for_at_most(112);
}

fn fstrim_on_a_loop_device_frees_space(guide: &mut Guide, cleanup: &Cleanup, space: &Space) {
    guide.run("losetup --find");
    let devices = cleanup.loop_devices();
    let name = devices[0].file_name().expect("a name");
    let is_direct = fs::read_to_string(Path::new("/sys/block").join(name).join("loop/dio"));
    assert_eq!(is_direct.expect("a loop device").trim(), "1", "the kernel caches each page twice");
    let work = guide.root.join("work");
    write_and_sync(&work.join("f"), &vec![0x66; 64 << 20]);
    space.has_at_least(96 + 60);
    fs::remove_file(work.join("f")).expect("it is there");
    // ext4 discards what its journal no longer needs.
    succeeds(Command::new("sync").arg("--file-system").arg(&work));
    guide.run("fstrim");
    space.waits_for_at_most(96 + 32);
}

/// Snapshots the disks while a program writes to the file system on the loop device, and while qemu-io has an
/// image open.
fn a_snapshot_has_what_was_synced(guide: &mut Guide, mount_point: &Path) {
    let (image, work) = (mount_point.join("vm.img"), guide.root.join("work"));
    write_and_sync(&work.join("synced"), b"synced before the snapshot\n");
    let mut busy = Command::new("dd");
    busy.args(["if=/dev/zero", "bs=4k", "count=16384", "oflag=dsync"]);
    busy.arg(format!("of={}", work.join("busy").display())).stderr(Stdio::null());
    let busy = Server::start(&mut busy);
    let mut guest = Guest::start(&image);
    guest.write(0x77, 128 * MIB);
    guide.run("volume snapshot");
    guest.write(0x78, 128 * MIB);
    drop((guest, busy));

    let snapshot = guide.root.join("before-upgrade");
    assert_has(&image, 0x78, 128 * MIB);
    assert_has(&snapshot.join("vm.img"), 0x77, 128 * MIB);
    let refused = File::create(snapshot.join("new")).expect_err("a snapshot is read-only");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    guide.run("qcow2 -b");

    let recovered = guide.root.join("recovered.img");
    succeeds(Command::new("cp").arg(snapshot.join("work.img")).arg(&recovered));
    // Replays the journal, which the exit code 1 reports.
    let recovery = Command::new("e2fsck").arg("-fp").arg(&recovered).output().expect("e2fsck starts");
    assert!(matches!(recovery.status.code(), Some(0 | 1)), "e2fsck said {recovery:?}");
    succeeds(Command::new("e2fsck").arg("-fn").arg(&recovered));
    let file = succeeds(Command::new("debugfs").args(["-R", "cat /synced"]).arg(&recovered)).stdout;
    assert_eq!(String::from_utf8_lossy(&file), "synced before the snapshot\n");
    guide.run("volume delete");
}

#[test]
fn commands_of_the_page_work_and_leave_nothing() {
    if !have(&PROGRAMS.map(Path::new)) {
        return;
    }
    let Some(mut weir) = Weir::start("1GiB", "64MiB") else { return };
    let root = weir.path().parent().expect("a sandbox").canonicalize().expect("it is there");
    let mount_point = root.join(weir.path().file_name().expect("a name"));
    let own = OwnMount { mount_point, daemon: weir.daemon().pid() };
    let cleanup = Cleanup::new(root, Some(own));
    let mut guide = Guide::new(PAGE, &cleanup.root, &DIRECTORIES);
    let space = Space::new(weir.path());
    discards_of_qemu_free_space(&mut guide, &space);
    copies_share_their_pages(&mut guide, &space);
    servers_pass_on_writes_and_discards(&mut guide, &space);
    fstrim_on_a_loop_device_frees_space(&mut guide, &cleanup, &space);
    a_snapshot_has_what_was_synced(&mut guide, &weir.path());
    guide.run("losetup --detach");
    assert!(guide.blocks.is_empty(), "not run: {:?}", guide.blocks);
    cleanup.assert_nothing_left();
    weir.unmount_and_check();
}
