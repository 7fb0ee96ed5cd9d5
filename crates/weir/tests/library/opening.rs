//! Stores that cannot be opened: the errno, and one line with the next step.

use crate::common::{Sandbox, can_mount};
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use weir_library::{Weir, WeirOptions};

#[track_caller]
fn assert_refused(sandbox: &Sandbox, errno: Errno, parts: &[&str]) {
    let error = Weir::open(&sandbox.store(), &WeirOptions::default()).expect_err("it is refused");
    let line = error.line();
    assert_eq!(error.errno(), errno, "{line}");
    assert!(!line.contains('\n'), "{line}");
    for part in parts {
        assert!(line.contains(part), "{line}: has no {part}");
    }
}

/// Overwrites bytes of a medium.
fn damage(sandbox: &Sandbox, medium: &str, bytes: &[u8], offset: u64) {
    let medium = OpenOptions::new().write(true).open(sandbox.store().join(medium)).expect("a medium");
    medium.write_all_at(bytes, offset).expect("it can be written");
}

#[test]
fn a_mounted_store_is_named_with_the_command_that_unmounts_it() {
    let sandbox = Sandbox::formatted();
    if can_mount() {
        let mounted = sandbox.mount();
        let dir = fs::canonicalize(mounted.dir()).unwrap();
        let command = format!("`weir unmount {}`", dir.display());
        assert_refused(&sandbox, Errno::BUSY, &["in use by process", &command]);
    }
}

#[test]
fn a_store_without_its_buffer_is_refused() {
    let sandbox = Sandbox::formatted();
    fs::rename(sandbox.store().join("buffer"), sandbox.path("elsewhere")).unwrap();
    assert_refused(
        &sandbox,
        Errno::NOENT,
        &["the buffer is missing", "`weir replace-buffer` gives", "nothing is lost"],
    );
    let named = WeirOptions { buffer: Some(sandbox.path("elsewhere")), ..WeirOptions::default() };
    Weir::open(&sandbox.store(), &named).expect("the buffer is named");
}

#[test]
fn damaged_media_are_refused() {
    let sandbox = Sandbox::formatted();
    damage(&sandbox, "buffer", &[0x55; 4096], 0);
    assert_refused(&sandbox, Errno::INVAL, &["weir"]);
    let sandbox = Sandbox::formatted();
    damage(&sandbox, "store", &[0x55; 64], 64);
    assert_refused(&sandbox, Errno::UCLEAN, &["superblock is damaged", "`weir check --repair"]);
}
