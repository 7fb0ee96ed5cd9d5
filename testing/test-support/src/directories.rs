use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A temporary directory.
pub struct TestDirectory(tempfile::TempDir);

impl TestDirectory {
    /// An empty directory in `$WEIR_TESTS_DIR` or `$TMPDIR`, or else in /var/tmp. On some machines /tmp is in
    /// memory, where no buffer is allowed.
    #[allow(clippy::new_without_default)]
    pub fn new() -> TestDirectory {
        let said = ["WEIR_TESTS_DIR", "TMPDIR"].into_iter().find_map(std::env::var_os);
        let parent = said.map_or("/var/tmp".into(), PathBuf::from);
        let made = tempfile::Builder::new().prefix("weir-test-").tempdir_in(parent);
        TestDirectory(made.expect("a temporary directory"))
    }

    /// A path in the directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// The mode and content of every file below a directory, to compare later.
#[derive(Debug, PartialEq, Eq)]
pub struct DirectoryContents(BTreeMap<PathBuf, (u32, Vec<u8>)>);

impl DirectoryContents {
    /// All files below `directory` now.
    pub fn below(directory: &Path) -> DirectoryContents {
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
        DirectoryContents(all)
    }

    /// Fails, naming the file, unless everything is as it was.
    #[track_caller]
    pub fn assert_unchanged(&self, directory: &Path) {
        let now = DirectoryContents::below(directory);
        let names = |bytes: &DirectoryContents| bytes.0.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(self), names(&now), "files came or went");
        for (path, before) in &self.0 {
            // Not assert_eq, which would print 40 MiB.
            assert!(*before == now.0[path], "{} changed", path.display());
        }
    }
}
