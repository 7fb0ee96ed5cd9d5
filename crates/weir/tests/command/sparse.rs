//! A store that is a sparse file on a file system that has less space: a bounded image of ext4 that tests
//! fill to its last block.

use crate::common::{Mounted, Sandbox, can_mount, fails, succeeds, weir};
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// How long a write that fails may take on a busy machine. The patience with devices that fail is 30 s.
const AT_ONCE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(20);

/// A file system of its own, gone after the test.
struct Image {
    dir: PathBuf,
    sandbox: Sandbox,
}

impl Image {
    /// `None` where this machine cannot make one.
    fn new(size: &str) -> Option<Image> {
        if !can_mount() {
            return None;
        }
        let sandbox = Sandbox::new();
        let (image, dir) = (sandbox.path("image"), sandbox.path("disk"));
        fs::create_dir(&dir).expect("a directory");
        succeeds(Command::new("truncate").args(["--size", size]).arg(&image));
        let made = Command::new("mkfs.ext4").args(["-q", "-E", "lazy_itable_init=0"]).arg(&image).status();
        let mounted = made.is_ok()
            && Command::new("mount")
                .args(["-o", "loop"])
                .args([&image, &dir])
                .status()
                .is_ok_and(|ok| ok.success());
        if !mounted {
            eprintln!("skipped: no loop device, or no mkfs.ext4");
        }
        mounted.then_some(Image { dir, sandbox })
    }

    fn store(&self) -> PathBuf {
        self.dir.join("media")
    }

    fn mount(&self) -> Mounted {
        let options = ["--dirty-age", "1", "--memory", "64MiB"];
        let log = self.sandbox.path("daemon.log");
        Mounted::start(&self.store(), &self.sandbox.mount_point(), &options, &log)
    }

    /// Fills the host file system to the last block, as another program would.
    fn fill(&self) {
        let mut file =
            File::options().create(true).append(true).open(self.dir.join("filler")).expect("a file");
        for len in [MIB as usize, 4096] {
            while file.write_all(&vec![0; len]).is_ok() {}
        }
        drop(file);
        let _ = Command::new("sync").arg("-f").arg(&self.dir).status();
    }

    fn remove_filler(&self) {
        fs::remove_file(self.dir.join("filler")).expect("it is there");
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let gone = Command::new("umount").arg(&self.dir).status();
        assert!(
            std::thread::panicking() || gone.is_ok_and(|status| status.success()),
            "the image stays mounted"
        );
    }
}

/// Bytes available to users, and total bytes.
fn df(dir: &Path) -> (u64, u64) {
    let found = rustix::fs::statvfs(dir).expect("a file system");
    (found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)
}

/// Writes files of 4 MiB until there is no space. Each refusal must come at once. Returns the number of
/// files.
#[track_caller]
fn fill_inside(mounted: &Mounted, name: &str) -> u64 {
    let mut written = 0;
    let bytes = vec![0xa5; MIB as usize];
    loop {
        let begun = Instant::now();
        let file = File::create(mounted.path(&format!("{name}-{written}")));
        let outcome = file.and_then(|mut file| (0..4).try_for_each(|_| file.write_all(&bytes)));
        match outcome {
            Ok(()) => written += 1,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
                assert!(begun.elapsed() < AT_ONCE * 4, "it took {:?} to say so", begun.elapsed());
                break;
            }
        }
    }
    // The daemon knows by now that the disk is full, so the refusal comes at once.
    let file = File::create(mounted.path(&format!("{name}-more")));
    for _ in 0..3 {
        let begun = Instant::now();
        let outcome = file.as_ref().map(|mut file| file.write_all(&bytes));
        assert!(begun.elapsed() < AT_ONCE, "a write took {:?}: {outcome:?}", begun.elapsed());
    }
    written
}

#[track_caller]
fn remove_inside(mounted: &Mounted, name: &str, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let begun = Instant::now();
        fs::remove_file(mounted.path(&format!("{name}-{number}")))
            .expect("removing works when the disk is full");
        assert!(begun.elapsed() < AT_ONCE, "it took {:?}", begun.elapsed());
    }
    succeeds(Command::new("sync").arg("-f").arg(mounted.dir()));
}

#[track_caller]
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn a_store_on_a_full_disk_is_a_full_store_that_goes_on_when_there_is_space() {
    let Some(disk) = Image::new("520M") else { return };
    let format = ["format", "--size", "1TiB", "--segment-size", "4MiB", "--buffer-size", "8MiB"];
    let said = succeeds(weir().args(format).arg(disk.store()));
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("writes will fail with ENOSPC") && said.contains("--preallocate"), "{said}");

    let mounted = disk.mount();
    let (free, total) = df(mounted.dir());
    assert!(free <= df(&disk.dir).0 + 200 * MIB && total <= 520 * MIB, "{free} of {total}");
    let written = fill_inside(&mounted, "a");
    assert!(written > 20, "only {written} files");
    let (inside, outside) = (df(mounted.dir()).0, df(&disk.dir).0);
    assert!(inside.abs_diff(outside) < 40 * MIB, "{inside} inside, {outside} outside");
    let space = mounted.status().space;
    assert!(space.full_below_bytes.is_some(), "{space:#?}");

    // Removing files frees space in the store, even without other changes, and returns disk space after a
    // while.
    remove_inside(&mounted, "a", 0..12);
    wait_until("there is space for a few files", || df(mounted.dir()).0 > inside + 20 * MIB);
    let before = df(&disk.dir).0;
    remove_inside(&mounted, "a", 12..written * 3 / 4);
    wait_until("space comes back outside", || df(&disk.dir).0 > before + 20 * MIB);
    // Another program takes the space: writes fail at once, and removals work.
    disk.fill();
    fill_inside(&mounted, "b");
    assert_eq!(
        fs::read(mounted.path(&format!("a-{}", written - 1))).expect("it is there").len() as u64,
        4 * MIB
    );
    mounted.unmount();

    // To the last block.
    disk.fill();
    assert_eq!(df(&disk.dir).0, 0);
    let mounted = disk.mount();
    remove_inside(&mounted, "a", written * 3 / 4..written * 3 / 4 + 1);
    disk.remove_filler();
    wait_until("writing goes on", || fs::write(mounted.path("again"), vec![1; 32 << 20]).is_ok());
    mounted.unmount();
    succeeds(weir().arg("check").arg(disk.store()));
}

#[test]
fn a_preallocated_store_has_its_space_or_is_not_made() {
    let Some(disk) = Image::new("200M") else { return };
    let format = |size: &str| {
        let mut command = weir();
        command.args(["format", "--preallocate", "--buffer-size", "8MiB", "--size", size]).arg(disk.store());
        command
    };
    let said = fails(&mut format("1GiB"));
    assert!(said.contains("free") && said.contains("1 GiB"), "{said}");
    assert!(!disk.store().exists(), "something is left behind");
    let said = fails(weir().args(["format", "--size", "64MiB", "--buffer-size", "1GiB"]).arg(disk.store()));
    assert!(said.contains("free"), "{said}");
    assert!(!disk.store().exists(), "something is left behind");
    succeeds(&mut format("120MiB"));
    let mounted = disk.mount();
    disk.fill();
    let written = fill_inside(&mounted, "a");
    assert!(written > 10, "only {written} files");
    remove_inside(&mounted, "a", 0..written);
    mounted.unmount();
    let mounted = disk.mount();
    wait_until("all of it can be written again", || fill_inside(&mounted, "b") + 3 > written);
    mounted.unmount();
}

#[test]
fn a_store_for_which_the_disk_is_too_small_from_the_start_is_refused_with_what_is_free() {
    // A sparse store allocates the space for deletions and checkpoints at once. Here none of that space fits,
    // then only a part.
    for space in ["200M", "1G"] {
        let Some(disk) = Image::new(space) else { return };
        let mut format = weir();
        format.args(["format", "--buffer-size", "32MiB", "--size", "1TiB"]).arg(disk.store());
        let said = fails(&mut format);
        assert!(
            said.contains("MiB free, too little") && said.contains("choose a smaller size (--size"),
            "{said}"
        );
        assert!(!disk.store().exists(), "something is left behind");
    }
}
