//! The files below a directory: how many differ, and out of the kernel's cache.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, fadvise};

/// Bytes that are compared at once.
const COMPARED_BYTES: u64 = 1 << 20;

/// The paths of all files below `directory`, relative to it.
pub(super) fn files_below(directory: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut files = BTreeSet::new();
    let mut left = vec![PathBuf::new()];
    while let Some(parent) = left.pop() {
        for entry in fs::read_dir(directory.join(&parent))? {
            let entry = entry?;
            let path = parent.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                left.push(path);
            } else if kind.is_file() {
                files.insert(path);
            }
        }
    }
    Ok(files)
}

/// The files below `later` that have another content below `earlier`, or do not exist there.
pub(super) fn changed_files(earlier: &Path, later: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let before = files_below(earlier)?;
    let mut changed = BTreeSet::new();
    for file in files_below(later)? {
        if !before.contains(&file) || !have_same_bytes(&earlier.join(&file), &later.join(&file))? {
            changed.insert(file);
        }
    }
    Ok(changed)
}

fn have_same_bytes(one: &Path, other: &Path) -> io::Result<bool> {
    let mut files = [File::open(one)?, File::open(other)?];
    loop {
        let mut bytes = [Vec::new(), Vec::new()];
        for (file, bytes) in files.iter_mut().zip(&mut bytes) {
            file.take(COMPARED_BYTES).read_to_end(bytes)?;
        }
        if bytes[0] != bytes[1] {
            return Ok(false);
        }
        if bytes[0].is_empty() {
            return Ok(true);
        }
    }
}

/// Drops the clean pages of all files below `directory` from the kernel's cache.
pub(super) fn drop_from_cache(directory: &Path) -> io::Result<()> {
    for file in files_below(directory)? {
        fadvise(File::open(directory.join(file))?, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_longer_and_overwritten_files_are_changed() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let [earlier, later] = ["earlier", "later"].map(|name| root.path().join(name));
        for (directory, end) in [(&earlier, "a"), (&later, "b")] {
            fs::create_dir_all(directory.join("below")).expect("a directory");
            let large = "x".repeat(COMPARED_BYTES as usize) + end;
            fs::write(directory.join("below/overwritten"), large).expect("a file");
            fs::write(directory.join("same"), "same").expect("a file");
            fs::write(directory.join("longer"), "x".repeat(1 + usize::from(end == "b"))).expect("a file");
        }
        fs::write(earlier.join("removed"), "").expect("a file");
        fs::write(later.join("new"), "").expect("a file");
        drop_from_cache(&later).expect("files");
        let changed = changed_files(&earlier, &later).expect("files");
        assert_eq!(changed, ["below/overwritten", "longer", "new"].map(PathBuf::from).into());
    }
}
