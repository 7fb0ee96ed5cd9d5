//! Overlayfs with a mount as its upper directory, as containers use it.

use crate::common::{Mounted, Sandbox, can_mount, succeeds, weir};
use crate::{crash, open_to_all};
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use test_support::DirectoryContents;

/// An overlay whose changes go to a weir mount. Dropping it unmounts.
struct Overlay(PathBuf);

impl Overlay {
    fn mount(sandbox: &Sandbox, mounted: &Mounted) -> Overlay {
        let dir = sandbox.path("merged");
        fs::create_dir_all(&dir).expect("a mount point");
        for name in ["upper", "work"] {
            fs::create_dir_all(mounted.path(name)).expect("a directory");
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={},redirect_dir=on",
            sandbox.path("lower").display(),
            mounted.path("upper").display(),
            mounted.path("work").display()
        );
        succeeds(Command::new("mount").args(["-t", "overlay", "overlay", "-o", &options]).arg(&dir));
        Overlay(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self, name: &str) -> Vec<String> {
        let listing = fs::read_dir(self.path(name)).expect("a listing");
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry.expect("an entry").file_name().into_string().expect("a name")
        };
        let mut names: Vec<String> = listing.map(name).collect();
        names.sort();
        names
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// The lower directory, which must not change.
fn lower(sandbox: &Sandbox) -> PathBuf {
    let lower = sandbox.path("lower");
    fs::create_dir_all(lower.join("dir/inner")).expect("directories");
    fs::create_dir(lower.join("gone")).expect("a directory");
    for name in ["dir/f", "dir/inner/g", "gone/h", "removed", "renamed", "written"] {
        fs::write(lower.join(name), format!("lower {name}")).expect("a file");
    }
    lower
}

fn is_whiteout(path: &Path) -> bool {
    let found = fs::symlink_metadata(path).expect("it is there");
    found.file_type().is_char_device() && found.rdev() == 0
}

/// Asserts that all files are as `change` left them.
fn check(overlay: &Overlay) {
    let read = |name: &str| fs::read_to_string(overlay.path(name)).expect("it is there");
    assert_eq!(overlay.names("."), ["gone", "link", "made", "moved", "new name", "written"]);
    assert_eq!(overlay.names("gone"), ["fresh"], "a directory that came back is not what lay below");
    assert_eq!(
        (overlay.names("moved"), overlay.names("moved/inner")),
        (vec!["f".into(), "inner".into()], vec!["g".into()])
    );
    assert_eq!(read("written"), "lower written, and more");
    assert_eq!(read("new name"), "lower renamed");
    assert_eq!(read("moved/inner/g"), "lower dir/inner/g");
    assert_eq!(read("link"), "made");
}

fn change(overlay: &Overlay) {
    let at = |name: &str| overlay.path(name);
    fs::write(at("made"), "made").expect("created");
    symlink("made", at("link")).expect("a link");
    fs::write(at("written"), "lower written, and more").expect("modified");
    fs::remove_file(at("removed")).expect("removed");
    fs::rename(at("renamed"), at("new name")).expect("renamed");
    fs::rename(at("dir"), at("moved")).expect("a directory that lies below is renamed");
    fs::remove_dir_all(at("gone")).expect("removed");
    fs::create_dir(at("gone")).expect("made again");
    fs::write(at("gone/fresh"), "").expect("created");
}

#[test]
fn overlayfs_takes_a_mount_as_its_upper_directory_and_finds_everything_again() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let lower = lower(&sandbox);
    let below = DirectoryContents::below(&lower);
    let mounted = open_to_all(&sandbox);
    let overlay = Overlay::mount(&sandbox, &mounted);
    change(&overlay);
    check(&overlay);
    for name in ["removed", "renamed", "dir"] {
        assert!(is_whiteout(&mounted.path("upper").join(name)), "{name}");
    }
    drop(overlay);
    let overlay = Overlay::mount(&sandbox, &mounted);
    check(&overlay);
    drop(overlay);
    mounted.unmount();
    let mounted = open_to_all(&sandbox);
    let overlay = Overlay::mount(&sandbox, &mounted);
    check(&overlay);
    drop(overlay);
    let mounted = crash(&sandbox, mounted);
    let overlay = Overlay::mount(&sandbox, &mounted);
    check(&overlay);
    // A new file can replace a whiteout, and a removed file leaves nothing behind.
    fs::write(overlay.path("removed"), "again").expect("created");
    fs::remove_dir_all(overlay.path("moved")).expect("removed");
    assert_eq!(overlay.names("."), ["gone", "link", "made", "new name", "removed", "written"]);
    drop(overlay);
    below.assert_unchanged(&lower);
    mounted.unmount();
    succeeds(weir().arg("check").arg(sandbox.store()));
}
