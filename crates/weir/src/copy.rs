//! `weir cp`: copies a file, or a range of one, between mounts of one store, sharing its pages.
//!
//! The kernel answers EXDEV to `copy_file_range` between two mounts, and passes FICLONE on to no file system in user space.
//! So the daemon of the store gets both open files, and shares the pages.

use crate::cli::{CopiedRange, CopyArgs};
use crate::error::WeirError;
use client::{RangeVector, WeirMount};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use stack::StackError;
use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

pub(crate) fn run(args: &CopyArgs) -> Result<(), WeirError> {
    let from = &args.source;
    let source = File::open(from).map_err(StackError::io("opening", from))?;
    let attributes = source.metadata().map_err(StackError::io("looking at it", from))?;
    if !attributes.is_file() {
        return Err(WeirError::NotRegularFile { path: from.clone() });
    }
    // Programs may have changed mapped pages that the daemon does not know yet.
    source.sync_data().map_err(StackError::io("syncing", from))?;
    if let Some(range) = args.range {
        return copy_range(&source, &args.target, range);
    }
    let to = target_path(from, &args.target);
    if !args.force && fs::symlink_metadata(&to).is_ok() {
        return Err(WeirError::TargetExists { path: to });
    }
    let directory = match to.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    // Before anything is made there.
    WeirMount::containing(directory)?;
    let unfinished = UnfinishedCopy::create(directory, &to)?;
    // A vector changes no sizes.
    unfinished
        .file
        .set_len(attributes.len())
        .map_err(StackError::io("setting its size", &unfinished.path))?;
    share(&source, &unfinished.file, CopiedRange { offset: 0, len: attributes.len() }, &unfinished.path)?;
    unfinished.finish(&attributes, &to, args.force)?;
    // The name.
    File::open(directory).and_then(|dir| dir.sync_all()).map_err(StackError::io("syncing", directory))?;
    Ok(())
}

/// Gives a range of the file `to` the bytes that the same range of `source` has.
fn copy_range(source: &File, to: &Path, range: CopiedRange) -> Result<(), WeirError> {
    let target = File::options().read(true).write(true).open(to).map_err(StackError::io("opening", to))?;
    share(source, &target, range, to)
}

/// Shares the pages of a range, and waits until the store has them shared: the volume of the source can then be deleted even
/// if the store is full.
fn share(source: &File, target: &File, range: CopiedRange, to: &Path) -> Result<(), WeirError> {
    let CopiedRange { offset, len } = range;
    if len == 0 {
        return Ok(());
    }
    let mut vector = RangeVector::new();
    vector.clone_range((source, offset), (target, offset), len);
    // Without an expectation no vector differs.
    WeirMount::of_file(target)?.connect()?.change_ranges(&vector)?;
    // The daemon answers this read when the store has them.
    target.read_at(&mut [0], offset).map_err(StackError::io("reading", to))?;
    Ok(())
}

/// The path of the copy: `target`, or the name of the source in the directory `target`.
fn target_path(source: &Path, target: &Path) -> PathBuf {
    match source.file_name() {
        Some(name) if target.is_dir() => target.join(name),
        _ => target.to_owned(),
    }
}

/// A copy without its name. It has a name of its own beside that, which is removed unless the copy is finished.
struct UnfinishedCopy {
    file: File,
    path: PathBuf,
}

impl UnfinishedCopy {
    fn create(directory: &Path, to: &Path) -> Result<UnfinishedCopy, WeirError> {
        let name = to.file_name().unwrap_or_default().to_string_lossy();
        // The longest name has 255 bytes.
        let name: String = name.chars().take(40).collect();
        let path = directory.join(format!(".{name}.weir-cp-{}", std::process::id()));
        let created = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = created.map_err(StackError::io("creating", &path))?;
        Ok(UnfinishedCopy { file, path })
    }

    /// Gives the copy the mode, the times and, if this user may, the owner of the source, and its name.
    fn finish(self, source: &Metadata, to: &Path, replaces: bool) -> Result<(), WeirError> {
        let times = |attributes: &Metadata| -> io::Result<FileTimes> {
            Ok(FileTimes::new().set_accessed(attributes.accessed()?).set_modified(attributes.modified()?))
        };
        // Before the mode, which a change of the owner may take bits from. A program that runs as its owner must not run as
        // another one.
        let has_owner = fchown(&self.file, Some(source.uid()), Some(source.gid())).is_ok();
        let mode = if has_owner { source.mode() } else { source.mode() & 0o777 };
        self.file
            .set_permissions(Permissions::from_mode(mode & 0o7777))
            .and_then(|()| self.file.set_times(times(source)?))
            .and_then(|()| self.file.sync_all())
            .map_err(StackError::io("setting its mode and times", &self.path))?;
        let flags = if replaces { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
        renameat_with(CWD, &self.path, CWD, to, flags)
            .map_err(|errno| StackError::io("naming the copy", to)(errno.into()))?;
        Ok(())
    }
}

impl Drop for UnfinishedCopy {
    fn drop(&mut self) {
        // Fails if the copy has its name.
        let _ = fs::remove_file(&self.path);
    }
}
