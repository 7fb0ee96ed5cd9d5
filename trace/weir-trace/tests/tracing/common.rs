//! Shared by these tests: a temporary directory, and the command itself.
#![allow(dead_code)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A temporary directory.
pub(crate) struct Sandbox {
    root: tempfile::TempDir,
}

impl Sandbox {
    /// An empty sandbox, in `$WEIR_TESTS_DIR` or `$TMPDIR`, or else in /var/tmp, which is a disk where /tmp
    /// is memory.
    #[allow(clippy::new_without_default)]
    pub(crate) fn new() -> Sandbox {
        let said = ["WEIR_TESTS_DIR", "TMPDIR"].into_iter().find_map(std::env::var_os);
        let parent = said.map_or("/var/tmp".into(), PathBuf::from);
        let root =
            tempfile::Builder::new().prefix("weir-test-").tempdir_in(parent).expect("a temporary directory");
        fs::create_dir(root.path().join("mnt")).expect("a mount point");
        Sandbox { root }
    }

    /// A path in the sandbox.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    /// The mount point.
    pub(crate) fn mount_point(&self) -> PathBuf {
        self.path("mnt")
    }
}

/// The command under test.
pub(crate) fn weir_trace() -> Command {
    Command::new(env!("CARGO_BIN_EXE_weir-trace"))
}

/// Runs `command`, which must succeed.
#[track_caller]
pub(crate) fn succeeds(command: &mut Command) -> Output {
    let output = command.output().expect("the command starts");
    let said = [&output.stdout, &output.stderr].map(|said| String::from_utf8_lossy(said)).concat();
    assert!(output.status.success(), "{command:?} ended with {}: {said}", output.status);
    output
}

/// Copies a program so that it can be run. Another process makes the copy: this process may fork for another
/// test while the copy is open for writing, and until the fork calls exec, the copy cannot be run.
pub(crate) fn copy_program(from: &str, to: &Path) {
    succeeds(Command::new("cp").arg(from).arg(to));
}

/// Every file below a directory, with its mode and contents.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Bytes(BTreeMap<PathBuf, (u32, Vec<u8>)>);

impl Bytes {
    /// Reads everything below `directory`.
    pub(crate) fn below(directory: &Path) -> Bytes {
        let mut all = BTreeMap::new();
        let mut left = vec![directory.to_path_buf()];
        while let Some(at) = left.pop() {
            let found = fs::symlink_metadata(&at).expect("it is there");
            let bytes = match found.file_type() {
                kind if kind.is_dir() => {
                    let entries = fs::read_dir(&at).expect("a listing");
                    left.extend(entries.map(|entry| entry.expect("an entry").path()));
                    Vec::new()
                }
                kind if kind.is_symlink() => {
                    fs::read_link(&at).expect("a link").into_os_string().into_encoded_bytes()
                }
                _ => fs::read(&at).expect("its bytes"),
            };
            all.insert(at, (found.mode(), bytes));
        }
        Bytes(all)
    }

    /// Asserts that nothing has changed. A failure names the file.
    #[track_caller]
    pub(crate) fn assert_unchanged(&self, directory: &Path) {
        let now = Bytes::below(directory);
        let names = |bytes: &Bytes| bytes.0.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(self), names(&now), "files came or went");
        for (path, before) in &self.0 {
            // assert_eq would print up to 40 MiB.
            assert!(*before == now.0[path], "{} changed", path.display());
        }
    }
}
