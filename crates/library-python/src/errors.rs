//! From the library's errors to `OSError`.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use rustix::io::Errno;
use std::io;
use std::path::Path;
use weir_library::StackError;

/// The exception for a failed call. The interpreter makes it a `FileNotFoundError` and the like, by the errno.
pub(crate) fn failed(error: io::Error) -> PyErr {
    let (errno, text) = parts(&error);
    PyOSError::new_err((errno, text))
}

/// As [`failed`], of a call about `path`.
pub(crate) fn failed_at(path: &Path) -> impl Fn(io::Error) -> PyErr + '_ {
    move |error| {
        let (errno, text) = parts(&error);
        PyOSError::new_err((errno, text, path.as_os_str().to_owned()))
    }
}

/// As [`failed`], of a call about two paths.
pub(crate) fn failed_at_both<'a>(path: &'a Path, other: &'a Path) -> impl Fn(io::Error) -> PyErr + 'a {
    move |error| {
        let (errno, text) = parts(&error);
        let [path, other] = [path, other].map(|path| path.as_os_str().to_owned());
        // The fourth argument is an error code of Windows.
        PyOSError::new_err((errno, text, path, None::<i32>, other))
    }
}

/// The exception for a store that cannot be opened. Its text says what to do next.
pub(crate) fn not_opened(error: StackError) -> PyErr {
    PyOSError::new_err((error.errno().raw_os_error(), error.line()))
}

fn parts(error: &io::Error) -> (i32, String) {
    let errno = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
    let text = io::Error::from_raw_os_error(errno).to_string();
    (errno, text.split(" (os error").next().unwrap_or_default().to_owned())
}
