use crate::common::{Sandbox, can_mount, succeeds, weir};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use test_support::DirectoryContents;

/// Every call that changes something is refused with EROFS.
fn refuses_every_change(dir: &Path) {
    let (file, path) = (dir.join("file"), |name: &str| dir.join(name));
    let refused = |what: &str, outcome: std::io::Result<()>| {
        let error = outcome.expect_err(what);
        assert_eq!(error.kind(), ErrorKind::ReadOnlyFilesystem, "{what}: {error}");
    };
    refused("create", File::create_new(path("new")).map(drop));
    refused("open for writing", OpenOptions::new().write(true).open(&file).map(drop));
    refused("open and truncate", File::create(&file).map(drop));
    refused("mkdir", fs::create_dir(path("new")));
    refused("symlink", symlink("file", path("new")));
    refused("link", fs::hard_link(&file, path("new")));
    refused("rename", fs::rename(&file, path("new")));
    refused("unlink", fs::remove_file(&file));
    refused("rmdir", fs::remove_dir(path("dir")));
    refused("chmod", fs::set_permissions(&file, fs::Permissions::from_mode(0o600)));
    let reader = File::open(&file).expect("to read");
    refused("utimes", reader.set_modified(std::time::SystemTime::UNIX_EPOCH));
    // The kernel checks first that the descriptor is open for writing.
    assert_eq!(fallocate(&reader, FallocateFlags::empty(), 0, 1), Err(Errno::BADF));
    assert!(reader.write_at(b"x", 0).is_err());
}

fn filled(sandbox: &Sandbox) -> Vec<u8> {
    let bytes: Vec<u8> = (0..100_000_u32).map(|at| (at / 3) as u8).collect();
    let mounted = sandbox.mount();
    fs::create_dir(mounted.path("dir")).expect("a directory");
    fs::write(mounted.path("file"), &bytes).expect("a file");
    File::open(mounted.path("file")).and_then(|file| file.sync_all()).expect("a sync");
    // The kill leaves changes in the buffer that a mount has to recover.
    mounted.kill();
    bytes
}

#[test]
fn a_read_only_mount_shows_what_was_synced_and_changes_no_byte_of_the_media() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let bytes = filled(&sandbox);
    let media = DirectoryContents::below(&sandbox.store());
    let mounted = sandbox.mount_with(&["--read-only"]);
    assert_eq!(fs::read(mounted.path("file")).expect("a read"), bytes);
    refuses_every_change(mounted.dir());
    File::open(mounted.path("file")).and_then(|file| file.sync_all()).expect("a sync of nothing");
    succeeds(weir().arg("sync").arg(mounted.dir()));
    // Other read-only commands work at the same time.
    succeeds(weir().arg("check").arg(sandbox.store()));
    mounted.unmount();
    media.assert_unchanged(&sandbox.store());
    let mounted = sandbox.mount_with(&["--read-only"]);
    assert_eq!(fs::read(mounted.path("file")).expect("a read"), bytes);
    mounted.kill();
    media.assert_unchanged(&sandbox.store());
    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("file")).expect("a read"), bytes);
    fs::write(mounted.path("file"), b"writable again").expect("a write");
    mounted.unmount();
}

#[test]
fn remounting_read_only_and_back_works_unless_somebody_writes() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    filled(&sandbox);
    let mounted = sandbox.mount();
    let remount = |flags| mount_remount(mounted.dir(), flags, "");
    let keep = MountFlags::NOSUID | MountFlags::NODEV;
    let writer = OpenOptions::new().write(true).open(mounted.path("file")).expect("the file");
    assert_eq!(remount(MountFlags::RDONLY | keep), Err(Errno::BUSY), "a file is open for writing");
    drop(writer);
    remount(MountFlags::RDONLY | keep).expect("nobody writes");
    refuses_every_change(mounted.dir());
    assert_eq!(fs::read(mounted.path("file")).expect("a read").len(), 100_000);
    remount(keep).expect("writable again");
    fs::write(mounted.path("file"), b"after").expect("a write");
    mounted.unmount();
    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("file")).expect("a read"), b"after");
}
