//! File handles, by which NFS servers and backup programs open a file without a path.

use crate::common::{Mounted, Sandbox, can_mount, succeeds, weir};
use crate::{compiled_calls, crash, open_to_all};
use rustix::io::Errno;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Names files by handles.
struct Handles(PathBuf);

impl Handles {
    fn of(&self, path: &Path) -> String {
        let output = succeeds(Command::new(&self.0).arg("handle").arg(path));
        String::from_utf8(output.stdout).expect("a word").trim().to_owned()
    }

    /// The file's path, as the kernel reports it, and its content.
    fn open(&self, mounted: &Mounted, handle: &str) -> Result<(PathBuf, String), Errno> {
        let mut command = Command::new(&self.0);
        let output = command.arg("open").arg(mounted.dir()).arg(handle).output().expect("it runs");
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let number = said.trim().strip_prefix("errno ").and_then(|number| number.parse().ok());
            return Err(Errno::from_raw_os_error(number.expect("an errno")));
        }
        let said = String::from_utf8(output.stdout).expect("text");
        let (path, content) = said.split_once('\n').expect("a line");
        Ok((path.into(), content.to_owned()))
    }

    fn read(&self, mounted: &Mounted, handle: &str) -> Result<String, Errno> {
        self.open(mounted, handle).map(|(_, content)| content)
    }
}

/// Makes the kernel forget every inode of the whole machine that is not open.
fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "2").expect("root may");
}

/// Inodes in use, counted after all removed files have been freed.
fn inodes(mounted: &Mounted) -> u64 {
    let stat = rustix::fs::statvfs(mounted.dir()).expect("statfs");
    stat.f_files - stat.f_ffree
}

#[test]
fn a_handle_leads_to_its_file_wherever_the_file_went_and_whatever_was_forgotten() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let handles = Handles(compiled_calls(&sandbox));
    let mounted = open_to_all(&sandbox);
    fs::create_dir_all(mounted.path("a/b/c")).expect("directories");
    fs::write(mounted.path("a/b/f"), "content").expect("a file");
    fs::write(mounted.path("a/other"), "other").expect("a file");
    let (file, directory) = (handles.of(&mounted.path("a/b/f")), handles.of(&mounted.path("a/b/c")));
    let (root, top) = (handles.of(mounted.dir()), handles.of(&mounted.path("a")));
    let check = |mounted: &Mounted, when: &str, directory_is: &str| {
        assert_eq!(handles.read(mounted, &file), Ok("content".into()), "{when}");
        let found = handles.open(mounted, &directory).map(|(path, _)| path);
        assert_eq!(found, Ok(mounted.path(directory_is)), "{when}");
        assert_eq!(handles.open(mounted, &top).map(|(path, _)| path), Ok(mounted.path("a")), "{when}");
        assert!(handles.open(mounted, &root).is_ok(), "{when}");
        // The root is still valid: its generation has not changed.
        assert_eq!(fs::read_to_string(mounted.path("a/other")).expect("it"), "other", "{when}");
    };
    check(&mounted, "at once", "a/b/c");
    drop_caches();
    check(&mounted, "after the caches were dropped", "a/b/c");
    fs::rename(mounted.path("a/b/f"), mounted.path("g")).expect("renamed");
    fs::rename(mounted.path("a/b/c"), mounted.path("a/d")).expect("renamed");
    check(&mounted, "after a rename", "a/d");
    drop_caches();
    check(&mounted, "after a rename, and forgotten", "a/d");
    fs::hard_link(mounted.path("g"), mounted.path("a/b/h")).expect("another name");
    fs::remove_file(mounted.path("g")).expect("removed");
    drop_caches();
    check(&mounted, "after one of its two names is gone", "a/d");
    mounted.unmount();
    let mounted = open_to_all(&sandbox);
    check(&mounted, "on another mount", "a/d");
    let mounted = crash(&sandbox, mounted);
    check(&mounted, "after a crash", "a/d");
    mounted.unmount();
    succeeds(weir().arg("check").arg(sandbox.store()));
}

#[test]
fn a_handle_of_a_file_that_is_gone_is_stale_also_when_another_one_has_its_number() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let handles = Handles(compiled_calls(&sandbox));
    let mounted = open_to_all(&sandbox);
    let empty = inodes(&mounted);
    fs::write(mounted.path("f"), "old").expect("a file");
    fs::create_dir(mounted.path("d")).expect("a directory");
    let number = fs::metadata(mounted.path("f")).expect("it").ino();
    let (file, directory) = (handles.of(&mounted.path("f")), handles.of(&mounted.path("d")));
    fs::remove_dir(mounted.path("d")).expect("removed");
    fs::remove_file(mounted.path("f")).expect("removed");
    let stale = |mounted: &Mounted, handle: &str, when: &str| {
        assert_eq!(handles.read(mounted, handle), Err(Errno::STALE), "{when}");
    };
    stale(&mounted, &file, "removed");
    stale(&mounted, &directory, "removed");
    drop_caches();
    stale(&mounted, &file, "removed, and forgotten");
    stale(&mounted, &directory, "removed, and forgotten");
    // The directory is freed when the kernel forgets its inode. The kernel reports that after the call has
    // returned.
    let begin = Instant::now();
    while inodes(&mounted) > empty {
        assert!(begin.elapsed() < Duration::from_secs(60), "{} inodes are left", inodes(&mounted) - empty);
        std::thread::sleep(Duration::from_millis(5));
    }
    let names: Vec<String> = (0..3).map(|i| format!("new {i}")).collect();
    names.iter().for_each(|name| fs::write(mounted.path(name), "new").expect("a file"));
    let again = names.iter().find(|name| fs::metadata(mounted.path(name)).expect("it").ino() == number);
    let again = handles.of(&mounted.path(again.expect("the number is used again")));
    assert_ne!(again, file);
    stale(&mounted, &file, "another one has its number, and the kernel knows that one");
    drop_caches();
    stale(&mounted, &file, "another one has its number");
    assert_eq!(handles.read(&mounted, &again), Ok("new".into()));
    mounted.unmount();
    let mounted = open_to_all(&sandbox);
    stale(&mounted, &file, "on another mount");
    assert_eq!(handles.read(&mounted, &again), Ok("new".into()));
    mounted.unmount();
}

#[test]
fn a_removed_file_that_is_open_has_no_handle_after_its_end_and_keeps_its_content_until_then() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let handles = Handles(compiled_calls(&sandbox));
    let mounted = open_to_all(&sandbox);
    fs::write(mounted.path("f"), "open").expect("a file");
    let handle = handles.of(&mounted.path("f"));
    let open = fs::File::open(mounted.path("f")).expect("it opens");
    fs::remove_file(mounted.path("f")).expect("removed");
    drop_caches();
    assert_eq!(handles.read(&mounted, &handle), Ok("open".into()), "as on other file systems");
    drop(open);
    drop_caches();
    assert_eq!(handles.read(&mounted, &handle), Err(Errno::STALE));
    mounted.unmount();
    succeeds(weir().arg("check").arg(sandbox.store()));
}

#[test]
fn a_handle_of_a_file_that_a_crash_took_back_does_not_lead_to_the_next_one() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let handles = Handles(compiled_calls(&sandbox));
    let mounted = sandbox.mount_with(&["--commit-interval", "600000"]);
    fs::write(mounted.path("lost"), "lost").expect("a file");
    let number = fs::metadata(mounted.path("lost")).expect("it").ino();
    let handle = handles.of(&mounted.path("lost"));
    mounted.kill();
    let mounted = sandbox.mount();
    assert!(!mounted.path("lost").exists(), "nobody synced it");
    assert_eq!(handles.read(&mounted, &handle), Err(Errno::STALE));
    fs::write(mounted.path("next"), "next").expect("a file");
    assert_eq!(fs::metadata(mounted.path("next")).expect("it").ino(), number);
    assert_eq!(handles.read(&mounted, &handle), Err(Errno::STALE), "it is another file");
    mounted.unmount();
}
