//! Errors in replies.

use crate::error_log::log_error;
use fs::FsError;
use rustix::io::Errno;

/// The errno of `error`, for a reply. An EIO is also logged, because no program can mend its cause.
pub(crate) fn reply_errno(error: &FsError) -> Errno {
    let errno = error.errno();
    if errno == Errno::IO {
        log_error(error, error.help().as_deref());
    }
    errno
}
