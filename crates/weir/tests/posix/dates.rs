//! Dates far from today, as programs set them and read them back.

use crate::common::{Mounted, Sandbox, TmpfsMount, can_mount, succeeds};
use crate::{crash, open_to_all};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// The first and the last moment that 64 bits of nanoseconds hold, in 1677 and in 2262: seconds since 1970, and nanoseconds after them.
const FIRST: (i64, i64) = (-9_223_372_037, 145_224_192);
const LAST: (i64, i64) = (9_223_372_036, 854_775_807);

fn touch(file: &Path, date: &str) {
    succeeds(Command::new("touch").args(["-d", date]).arg(file));
}

fn modified(file: &Path) -> (i64, i64) {
    let found = fs::metadata(file).expect("it is there, and the mount answers");
    (found.mtime(), found.mtime_nsec())
}

fn accessed(file: &Path) -> (i64, i64) {
    let found = fs::metadata(file).expect("it is there, and the mount answers");
    (found.atime(), found.atime_nsec())
}

fn with_file(sandbox: &Sandbox) -> Mounted {
    let mounted = open_to_all(sandbox);
    fs::write(mounted.path("f"), b"bytes").expect("a file");
    mounted
}

#[test]
fn touch_with_the_first_date_there_is_sets_1677() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = with_file(&sandbox);
    touch(&mounted.path("f"), "@-9223372036854775808");
    assert_eq!((modified(&mounted.path("f")), accessed(&mounted.path("f"))), (FIRST, FIRST));
    mounted.unmount();
}

#[test]
fn touch_with_half_a_second_before_1970_sets_it() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = with_file(&sandbox);
    touch(&mounted.path("f"), "1969-07-20 20:17:40.5 UTC");
    assert_eq!(modified(&mounted.path("f")), (-14_182_940, 500_000_000));
    // Each copy goes no further back.
    succeeds(Command::new("cp").args(["-p", "f", "g"]).current_dir(mounted.dir()));
    succeeds(Command::new("cp").args(["-p", "g", "h"]).current_dir(mounted.dir()));
    assert_eq!(modified(&mounted.path("h")), (-14_182_940, 500_000_000));
    let mounted = crash(&sandbox, mounted);
    assert_eq!(modified(&mounted.path("h")), (-14_182_940, 500_000_000));
    mounted.unmount();
}

#[test]
fn cp_of_a_file_with_a_date_beyond_all_sets_the_nearest() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    fs::create_dir(sandbox.path("memory")).expect("a directory");
    let memory = TmpfsMount::new(sandbox.path("memory"), "1m");
    for (date, nearest) in [("@-9223372036854775808", FIRST), ("@9223372036854775807", LAST)] {
        let file = memory.0.join("f");
        fs::write(&file, b"bytes").expect("a file");
        touch(&file, date);
        assert_eq!(modified(&file).0.to_string(), date[1..], "a file system that keeps it");
        succeeds(Command::new("cp").arg("-p").arg(&file).arg(mounted.path("f")));
        assert_eq!(modified(&mounted.path("f")), nearest);
        succeeds(Command::new("cp").args(["-p", "f", "g"]).current_dir(mounted.dir()));
        assert_eq!(modified(&mounted.path("g")), nearest);
    }
    mounted.unmount();
}

#[test]
fn dates_at_both_ends_are_kept_and_beyond_them_become_the_ends() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mounted = open_to_all(&sandbox);
    let cases = [
        (FIRST, FIRST),
        ((FIRST.0, FIRST.1 - 1), FIRST),
        ((FIRST.0, FIRST.1 + 1), (FIRST.0, FIRST.1 + 1)),
        ((FIRST.0 - 1, 999_999_999), FIRST),
        ((i64::MIN, 0), FIRST),
        ((i64::MIN, 999_999_999), FIRST),
        ((i64::MIN + 1, 1), FIRST),
        ((-1, 0), (-1, 0)),
        ((-1, 999_999_999), (-1, 999_999_999)),
        ((0, 0), (0, 0)),
        ((LAST.0, LAST.1 - 1), (LAST.0, LAST.1 - 1)),
        (LAST, LAST),
        ((LAST.0, LAST.1 + 1), LAST),
        ((LAST.0 + 1, 0), LAST),
        ((i64::MAX, 999_999_999), LAST),
    ];
    let file = |number: usize| format!("f{number}");
    for (number, (set, expected)) in cases.into_iter().enumerate() {
        let path = mounted.path(&file(number));
        fs::write(&path, b"").expect("a file");
        let time = Timespec { tv_sec: set.0, tv_nsec: set.1 };
        let times = Timestamps { last_access: time, last_modification: time };
        utimensat(CWD, &path, &times, AtFlags::empty()).expect("times");
        assert_eq!((modified(&path), accessed(&path)), (expected, expected), "{set:?}");
    }
    let mounted = crash(&sandbox, mounted);
    for (number, (set, expected)) in cases.into_iter().enumerate() {
        let path = mounted.path(&file(number));
        assert_eq!((modified(&path), accessed(&path)), (expected, expected), "{set:?} after a crash");
    }
    mounted.unmount();
}
