//! Where daemons in the background keep their log files: one directory for each user.

use rustix::process::geteuid;
use std::path::PathBuf;

/// The end of the names of log files, without the dot before it.
pub const LOG_EXTENSION: &str = "log";

/// The directory for the log files of root's daemons.
pub const ROOT_LOG_DIRECTORY: &str = "/run/weir";

/// The directory for the log files of daemons that this process starts. It may not exist yet.
pub fn own_log_directory() -> PathBuf {
    let user = geteuid();
    if user.is_root() {
        return ROOT_LOG_DIRECTORY.into();
    }
    // The specification says to ignore a relative path.
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(directory) => directory.join("weir"),
        None => format!("/tmp/weir-{}", user.as_raw()).into(),
    }
}

/// The pattern of the log files of daemons that `user` started.
pub(crate) fn log_pattern_of_user(user: u32) -> PathBuf {
    let directory = match user {
        user if user == geteuid().as_raw() => own_log_directory(),
        0 => ROOT_LOG_DIRECTORY.into(),
        user => format!("/run/user/{user}/weir").into(),
    };
    directory.join("*").with_extension(LOG_EXTENSION)
}
