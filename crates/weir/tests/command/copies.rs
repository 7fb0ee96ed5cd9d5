//! `weir cp` between the mounts of a store.

use crate::common::{Mounted, Sandbox, assert_says, can_mount, detach, fails, space_of, succeeds, weir};
use crate::several_mounts::connect_to_daemon;
use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::json;
use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

const MIB: usize = 1 << 20;
/// A user who is neither root nor the mount's owner.
const STRANGER: u32 = 65533;

/// A mounted store, and a snapshot of it on a second directory.
struct LiveAndSnapshot {
    live: Mounted,
    snapshot: SnapshotMount,
    sandbox: Sandbox,
}

/// A failed test leaves no dead mount.
struct SnapshotMount(PathBuf);

impl Drop for SnapshotMount {
    fn drop(&mut self) {
        detach(&self.0);
    }
}

impl LiveAndSnapshot {
    /// Takes the snapshot once the file `data` has these bytes. `None` where nothing can be mounted.
    fn new(bytes: &[u8], options: &[&str]) -> Option<LiveAndSnapshot> {
        can_mount().then(|| {
            let sandbox = Sandbox::formatted_with(&["--size", "1GiB", "--buffer-size", "64MiB"]);
            let live = sandbox.mount_with(options);
            let data = live.path("data");
            fs::write(&data, bytes).expect("space");
            fs::set_permissions(&data, Permissions::from_mode(0o640)).expect("a file of ours");
            let snapshot = sandbox.path("snapshot");
            fs::create_dir(&snapshot).expect("a new directory");
            succeeds(weir().args(["volume", "snapshot"]).arg(live.dir()).arg("night"));
            succeeds(weir().args(["mount", "--volume", "night"]).arg(sandbox.store()).arg(&snapshot));
            LiveAndSnapshot { live, snapshot: SnapshotMount(snapshot), sandbox }
        })
    }

    fn unmount_and_check(self) {
        succeeds(weir().arg("unmount").arg(&self.snapshot.0));
        succeeds(weir().arg("unmount").arg(self.live.dir()));
        succeeds(weir().arg("check").arg(self.sandbox.store()));
    }
}

/// Bytes that differ from page to page.
fn numbered(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 4096 + at % 251) as u8).collect()
}

/// Sends the daemon of a mount a request to clone 1 MiB from the first file to the second, with open files, and returns its
/// reply.
fn ask_to_clone(dir: &Path, files: &[BorrowedFd<'_>]) -> String {
    let stream = connect_to_daemon(dir);
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    assert!(beside.push(SendAncillaryMessage::ScmRights(files)));
    let place = |file| json!({ "file": file, "offset": 0 });
    let clone = json!({ "clone": { "from": place(0), "to": place(1), "len": MIB } });
    let line = format!("{}\n", json!({ "operation": "change_ranges", "ranges": [clone] }));
    let sent = sendmsg(&stream, &[IoSlice::new(line.as_bytes())], &mut beside, SendFlags::NOSIGNAL);
    assert_eq!(sent.expect("the daemon listens"), line.len());
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).expect("a reply");
    reply
}

fn cp(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Command {
    let mut command = weir();
    command.arg("cp").arg(from.as_ref()).arg(to.as_ref());
    command
}

#[test]
fn a_file_comes_back_from_a_snapshot_and_shares_its_pages() {
    let bytes = numbered(64 * MIB + 1234);
    let Some(mounts) = LiveAndSnapshot::new(&bytes, &[]) else { return };
    let (live, saved) = (mounts.live.path("data"), mounts.snapshot.0.join("data"));
    let times = fs::metadata(&live).expect("a file").modified().expect("a time");
    // The live file is damaged, and open in a program, which sees the file that it has open.
    let opened = File::options().read(true).write(true).open(&live).expect("a file");
    opened.write_all_at(&vec![0xff; 10 * MIB], 0).expect("space");
    assert_says(&fails(&mut cp(&saved, &live)), "exists already");
    let used = space_of(mounts.live.dir(), &[]).used_bytes;
    succeeds(cp(&saved, &live).arg("--force"));
    assert!(fs::read(&live).expect("a file") == bytes, "other bytes come back");
    let mut still = [0];
    opened.read_exact_at(&mut still, 0).expect("an open file");
    assert_eq!(still, [0xff]);
    drop(opened);
    let found = fs::metadata(&live).expect("a file");
    assert_eq!((found.mode() & 0o7777, found.modified().expect("a time")), (0o640, times));
    let more = space_of(mounts.live.dir(), &[]).used_bytes.saturating_sub(used);
    assert!(more < 16 * MIB as u64, "the copy takes {more} bytes");

    // Into a directory, and from then on each has bytes of its own.
    succeeds(weir().args(["sync"]).arg(mounts.live.dir()));
    fs::create_dir(mounts.live.path("dir")).expect("space");
    succeeds(&mut cp(&saved, mounts.live.path("dir")));
    let copy = mounts.live.path("dir/data");
    let written = File::options().write(true).open(&copy).expect("a file");
    written.write_all_at(b"of the copy", 5000).expect("space");
    assert_eq!(fs::read(&saved).expect("a file")[5000..5011], bytes[5000..5011]);
    assert_eq!(fs::read(&copy).expect("a file")[5000..5011], *b"of the copy");
    assert_eq!(
        fs::read_dir(mounts.live.path("dir")).expect("a directory").count(),
        1,
        "nothing else is left"
    );

    // The snapshot can go, and the copies stay, also after a crash.
    let LiveAndSnapshot { sandbox, live, snapshot } = mounts;
    succeeds(weir().arg("unmount").arg(&snapshot.0));
    succeeds(weir().args(["volume", "delete"]).arg(live.dir()).arg("night"));
    live.kill();
    let live = sandbox.mount();
    assert!(fs::read(live.path("data")).expect("a file") == bytes, "a crash takes bytes of the copy");
    live.unmount();
    succeeds(weir().arg("check").arg(sandbox.store()));
}

#[test]
fn a_range_comes_back_from_a_snapshot() {
    let bytes = numbered(8 * MIB + 1000);
    let Some(mounts) = LiveAndSnapshot::new(&bytes, &[]) else { return };
    let (live, saved) = (mounts.live.path("data"), mounts.snapshot.0.join("data"));
    let opened = File::options().read(true).write(true).open(&live).expect("a file");
    opened.write_all_at(&vec![0xff; bytes.len()], 0).expect("space");
    succeeds(cp(&saved, &live).args(["--range", "1MiB:2MiB"]));
    // The last page, up to the end of both.
    succeeds(cp(&saved, &live).args(["--range", "8MiB:1000"]));
    let mut expected = vec![0xff; bytes.len()];
    for range in [MIB..3 * MIB, 8 * MIB..bytes.len()] {
        expected[range.clone()].copy_from_slice(&bytes[range]);
    }
    let mut found = vec![0; bytes.len()];
    opened.read_exact_at(&mut found, 0).expect("an open file");
    assert!(found == expected, "other bytes come back");
    for (range, part) in [
        ("100:4096", "does not begin with pages"),
        ("0:100", "ends within a page"),
        ("8MiB:4096", "behind the end of its file"),
        ("18446744073709547520:4096", "behind the largest offset"),
    ] {
        assert_says(&fails(cp(&saved, &live).args(["--range", range])), part);
    }
    for (range, part) in
        [("4096", "write OFFSET:LENGTH"), ("0:0", "an empty range"), ("99999PiB:4096", "into 64 bits")]
    {
        let output = cp(&saved, &live).args(["--range", range]).output().expect("the command starts");
        assert_eq!(output.status.code(), Some(2));
        assert_says(&String::from_utf8_lossy(&output.stderr), part);
    }
    assert!(fs::read(&live).expect("a file") == expected, "a refused copy has changed bytes");
    assert_says(&fails(cp(&saved, mounts.live.path("new")).args(["--range", "0:4096"])), "No such file");
    drop(opened);
    mounts.unmount_and_check();
}

#[test]
fn what_cannot_be_copied_is_refused_and_leaves_nothing() {
    let Some(mounts) = LiveAndSnapshot::new(&numbered(2 * MIB), &[]) else { return };
    let saved = mounts.snapshot.0.join("data");
    let live = mounts.live.dir();
    fs::create_dir(mounts.live.path("dir")).expect("space");
    let outside = mounts.sandbox.path("outside");
    fs::write(&outside, b"of another file system").expect("space");
    for (from, to, part) in [
        (saved.as_path(), mounts.snapshot.0.join("new"), "Read-only file system"),
        (&saved, mounts.sandbox.path("elsewhere"), "no weir store is mounted here"),
        (&outside, mounts.live.path("new"), "not a file of a volume that this daemon has mounted"),
        (&mounts.live.path("dir"), mounts.live.path("new"), "no regular file"),
        (&mounts.live.path("missing"), mounts.live.path("new"), "No such file"),
        (&saved, mounts.live.path("missing/new"), "No such file"),
        (&saved, mounts.live.path("data"), "exists already"),
    ] {
        assert_says(&fails(&mut cp(from, to)), part);
    }
    let names: Vec<_> =
        fs::read_dir(live).expect("a directory").map(|one| one.expect("one").file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    mounts.unmount_and_check();
}

#[test]
fn the_daemon_believes_only_how_files_are_open() {
    let Some(mounts) = LiveAndSnapshot::new(&numbered(MIB), &["--allow-other"]) else { return };
    let data = mounts.live.path("data");
    let new = |name: &str| {
        let path = mounts.live.path(name);
        File::options().read(true).write(true).create_new(true).mode(0o666).open(path).expect("space")
    };
    let source = File::open(&data).expect("a file");
    let target = new("target");
    target.set_len(MIB as u64).expect("a size");
    let only_written = File::options().write(true).open(&data).expect("a file");
    let only_read = File::open(mounts.live.path("target")).expect("a file");
    let path_only = rustix::fs::open(&data, OFlags::PATH, Mode::empty()).expect("a file");
    let (pipe, _writer) = std::io::pipe().expect("a pipe");
    let memory = memfd_create("memory", MemfdFlags::CLOEXEC).expect("memory");
    let refused: [(&[BorrowedFd<'_>], &str); 9] = [
        (&[], "not as many open files"),
        (&[source.as_fd()], "not as many open files"),
        (&[source.as_fd(), target.as_fd(), target.as_fd()], "not as many open files"),
        (&[only_written.as_fd(), target.as_fd()], "not open for reading"),
        (&[source.as_fd(), only_read.as_fd()], "not open for writing"),
        (&[path_only.as_fd(), target.as_fd()], "not open for reading"),
        (&[pipe.as_fd(), target.as_fd()], "not a file of a volume"),
        (&[memory.as_fd(), target.as_fd()], "not a file of a volume"),
        (&[source.as_fd(), only_written.as_fd()], "overlaps"),
    ];
    for (files, part) in refused {
        assert_says(&ask_to_clone(mounts.live.dir(), files), part);
    }
    let unchanged = fs::read(mounts.live.path("target")).expect("a file");
    assert!(unchanged == vec![0; MIB], "a refused request has changed bytes");
    assert_says(&ask_to_clone(mounts.live.dir(), &[source.as_fd(), target.as_fd()]), "changed");
    assert!(fs::read(mounts.live.path("target")).expect("a file") == numbered(MIB));

    // A stranger may ask for what is open to him, and for nothing else.
    if rustix::process::geteuid().is_root() {
        let Some(program) = mounts.sandbox.command_for_all() else { return };
        fs::set_permissions(&data, Permissions::from_mode(0o644)).expect("a file of ours");
        let own = mounts.live.path("own");
        fs::create_dir(&own).expect("space");
        fs::set_permissions(&own, Permissions::from_mode(0o777)).expect("a directory of ours");
        let as_stranger = |arguments: &[&Path]| {
            let mut command = Command::new("setpriv");
            command.args(["--clear-groups", &format!("--reuid={STRANGER}"), &format!("--regid={STRANGER}")]);
            command.arg(&program).args(arguments);
            command
        };
        fs::set_permissions(&data, Permissions::from_mode(0o6755)).expect("a file of ours");
        succeeds(&mut as_stranger(&[Path::new("cp"), &data, &own.join("program")]));
        let program_copy = fs::metadata(own.join("program")).expect("a file");
        assert_eq!(
            (program_copy.uid(), program_copy.mode() & 0o7777),
            (STRANGER, 0o755),
            "it runs as nobody else"
        );
        fs::set_permissions(&data, Permissions::from_mode(0o644)).expect("a file of ours");
        succeeds(&mut as_stranger(&[Path::new("cp"), &data, &own.join("copy")]));
        let copy = fs::metadata(own.join("copy")).expect("a file");
        assert_eq!((copy.uid(), copy.len()), (STRANGER, MIB as u64));
        fs::set_permissions(&data, Permissions::from_mode(0o600)).expect("a file of ours");
        let refused = fails(&mut as_stranger(&[Path::new("cp"), &data, &own.join("other")]));
        assert_says(&refused, "Permission denied");
        let refused = fails(&mut as_stranger(&[Path::new("status"), mounts.live.dir()]));
        assert_says(&refused, "only from that user and root");
    }
    drop((source, target, only_written, only_read, path_only));
    mounts.unmount_and_check();
}
