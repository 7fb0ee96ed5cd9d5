//! The log files of daemons in the background: one for each daemon, in a directory that only its user can
//! write to.

use crate::error::WeirError;
use client::{DeviceNumber, LOG_EXTENSION, ROOT_LOG_DIRECTORY, own_log_directory};
use rustix::fs::Mode;
use rustix::process::{Pid, geteuid, test_kill_process};
use std::cmp::Reverse;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Log files that are kept of daemons that have ended.
const LOGS_MAX: usize = 16;

/// Whether `directory` is that of root's daemons.
pub(crate) fn is_directory_of_root(directory: &Path) -> bool {
    directory == Path::new(ROOT_LOG_DIRECTORY)
}

/// Makes the directory for this user's daemons, if it does not exist, and removes old log files from it.
pub(crate) fn directory() -> Result<PathBuf, WeirError> {
    let directory = own_log_directory();
    make_private_directory(&directory)
        .map_err(|error| WeirError::RunDirectory { dir: directory.clone(), why: why(&error) })?;
    remove_old(&directory);
    Ok(directory)
}

/// Creates the log file of this process, which serves the mount with this device number. Returns the file and
/// its path.
pub(crate) fn create(directory: &Path, (major, minor): DeviceNumber) -> Result<(File, PathBuf), WeirError> {
    let path = directory.join(format!("{major}:{minor}.{}.{LOG_EXTENSION}", std::process::id()));
    let mode = (Mode::RUSR | Mode::WUSR).as_raw_mode();
    let file = OpenOptions::new().create(true).append(true).mode(mode).open(&path);
    let file = file.map_err(WeirError::io("making the file for messages", &path))?;
    Ok((file, path))
}

/// Removes a log file if it is empty. One with messages stays: it may say why the daemon ended.
pub(crate) fn remove_if_empty(log: &Path) {
    if fs::metadata(log).is_ok_and(|log| log.len() == 0) {
        let _ = fs::remove_file(log);
    }
}

/// Makes `directory` for this user alone, or checks that no other user can make files in it.
fn make_private_directory(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(Mode::RWXU.as_raw_mode()).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(directory)?;
    let writable_by_others = (Mode::WGRP | Mode::WOTH).as_raw_mode();
    let is_own =
        found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & writable_by_others == 0;
    if is_own { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
}

fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "EACCES, another user owns it, or other users may write to it".into()
        }
        io::ErrorKind::NotFound => "ENOENT, its parent directory does not exist".into(),
        io::ErrorKind::ReadOnlyFilesystem => "EROFS, the file system is read-only".into(),
        _ => error.to_string(),
    }
}

/// Removes all but the newest [`LOGS_MAX`] log files of daemons that have ended.
fn remove_old(directory: &Path) {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut gone: Vec<PathBuf> =
        entries.filter(|path| pid_of(path).is_some_and(|pid| !is_alive(pid))).collect();
    gone.iter().for_each(|log| remove_if_empty(log));
    gone.sort_by_key(|log| Reverse(fs::metadata(log).and_then(|found| found.modified()).ok()));
    gone.iter().skip(LOGS_MAX).for_each(|log| drop(fs::remove_file(log)));
}

/// The process whose log a file is.
fn pid_of(log: &Path) -> Option<Pid> {
    let name = log.file_name()?.to_str()?.strip_suffix(LOG_EXTENSION)?.strip_suffix('.')?;
    Pid::from_raw(name.rsplit_once('.')?.1.parse().ok()?)
}

fn is_alive(pid: Pid) -> bool {
    test_kill_process(pid) != Err(rustix::io::Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Larger than any process id.
    const NOBODYS: usize = 1 << 23;

    #[test]
    fn messages_outlive_their_daemon_unless_empty() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        for number in NOBODYS..NOBODYS + LOGS_MAX + 3 {
            fs::write(path(&format!("0:1.{number}.log")), "gone").expect("a file");
        }
        fs::write(path("0:1.8388700.log"), "").expect("a file");
        let (_file, own) = create(directory.path(), (0, 1)).expect("a file");
        remove_old(directory.path());
        let left = || fs::read_dir(directory.path()).expect("a directory").count();
        assert_eq!(left(), LOGS_MAX + 1);
        assert!(own.exists() && !path("0:1.8388700.log").exists());
        remove_if_empty(&own);
        assert_eq!(left(), LOGS_MAX);
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let parent = tempfile::tempdir().expect("a directory");
        let directory = parent.path().join("weir");
        make_private_directory(&directory).expect("made");
        assert_eq!(fs::metadata(&directory).expect("it").mode() & 0o777, 0o700);
        make_private_directory(&directory).expect("found");
        for (mode, is_own) in [(0o755, true), (0o775, false), (0o1777, false)] {
            let permissions = std::os::unix::fs::PermissionsExt::from_mode(mode);
            fs::set_permissions(&directory, permissions).expect("it is ours");
            assert_eq!(make_private_directory(&directory).is_ok(), is_own, "{mode:o}");
        }
    }
}
