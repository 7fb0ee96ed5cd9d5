//! Decides which files of an earlier tree can stay.

use super::OPEN_DIRECTORY;
use std::collections::BTreeMap;
use std::fs::{DirEntry, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use trace_file::{CompiledTrace, InitialFile, InitialKind, TraceError};

/// The unit of `st_blocks`, in bytes.
const BLOCK_BYTES: u64 = 512;

/// Removes every file below `root` that is not in the tree or has another kind.
pub(super) fn remove_others(
    wanted: &BTreeMap<PathBuf, &InitialFile>,
    compiled: &CompiledTrace,
    root: &Path,
) -> Result<(), TraceError> {
    let mut left = vec![root.to_path_buf()];
    while let Some(dir) = left.pop() {
        let one = |entry: io::Result<DirEntry>| -> io::Result<Option<PathBuf>> {
            let entry = entry?;
            let (path, found) = (entry.path(), entry.metadata()?);
            let keep = match wanted.get(&path) {
                Some(initial) => may_stay(initial, compiled, &path, &found)?,
                None => false,
            };
            if found.is_dir() {
                let mode = Permissions::from_mode((found.mode() | OPEN_DIRECTORY) & 0o7777);
                std::fs::set_permissions(&path, mode)?;
            }
            match (keep, found.is_dir()) {
                (true, true) => return Ok(Some(path)),
                (true, false) => {}
                (false, true) => std::fs::remove_dir_all(&path)?,
                (false, false) => std::fs::remove_file(&path)?,
            }
            Ok(None)
        };
        let entries = std::fs::read_dir(&dir).map_err(TraceError::target("listing", &dir))?;
        for entry in entries {
            left.extend(one(entry).map_err(TraceError::target("cleaning", &dir))?);
        }
    }
    Ok(())
}

/// Whether a file can stay. Contents are not compared, because nothing depends on them.
fn may_stay(
    initial: &InitialFile,
    compiled: &CompiledTrace,
    path: &Path,
    found: &Metadata,
) -> io::Result<bool> {
    Ok(match &initial.kind {
        InitialKind::Directory => found.is_dir(),
        // A file with several names is a hard link of an earlier tree. The tree's own hard links are made
        // again.
        InitialKind::File(bytes) => {
            found.is_file()
                && initial.attributes.is_empty()
                && found.nlink() == 1
                && is_as_built(found, *bytes)
        }
        InitialKind::Special(_) => {
            found.file_type().is_char_device()
                || found.file_type().is_socket()
                || (found.is_file() && found.len() == 0)
        }
        InitialKind::Link(target) => {
            found.is_symlink()
                && std::fs::read_link(path)?.as_os_str().as_bytes() == compiled.names.bytes(*target)
        }
        InitialKind::HardLink(_) => false,
    })
}

/// Whether the file has that size and no holes, as far as the file system reports.
pub(super) fn is_as_built(found: &Metadata, bytes: u64) -> bool {
    found.is_file() && found.len() == bytes && found.blocks().saturating_mul(BLOCK_BYTES) >= bytes
}
