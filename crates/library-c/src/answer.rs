//! The way back to C: results, errno and the text of the last error.

use crate::handles::path_of;
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::fmt::Display;
use std::io;
use std::path::Path;
use std::ptr::null_mut;
use weir_library::StackError;

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Why a call fails.
pub(crate) struct CallError {
    errno: Errno,
    /// The whole line; `None`: the errno says it all.
    line: Option<String>,
}

impl From<io::Error> for CallError {
    fn from(error: io::Error) -> CallError {
        CallError { errno: Errno::from_io_error(&error).unwrap_or(Errno::IO), line: None }
    }
}

impl From<Errno> for CallError {
    fn from(errno: Errno) -> CallError {
        CallError { errno, line: None }
    }
}

impl From<StackError> for CallError {
    fn from(error: StackError) -> CallError {
        CallError { errno: error.errno(), line: Some(error.line()) }
    }
}

impl CallError {
    /// Says what the call was about, unless the error has a line.
    pub(crate) fn about(self, what: impl Display) -> CallError {
        let line = self.line.unwrap_or_else(|| format!("{what}: {}", text_of(self.errno)));
        CallError { line: Some(line), ..self }
    }
}

/// The value with which a function reports failure.
pub(crate) trait Failure {
    const FAILED: Self;
}

impl Failure for c_int {
    const FAILED: c_int = -1;
}

impl Failure for isize {
    const FAILED: isize = -1;
}

impl Failure for i64 {
    const FAILED: i64 = -1;
}

impl<T> Failure for *mut T {
    const FAILED: *mut T = null_mut();
}

/// Answers the call of `function`. errno changes only if the call fails: a program that lists a directory looks at it after a
/// success, too.
///
/// A panic cannot leave a function of C: it ends the process, with a message.
pub(crate) fn answer<T: Failure>(function: &str, call: impl FnOnce() -> Result<T, CallError>) -> T {
    let errno_before = errno();
    match call() {
        Ok(value) => {
            set_errno(errno_before);
            value
        }
        Err(error) => fail(function, error),
    }
}

/// [Answers](answer) a call about `path`.
pub(crate) fn answer_at<T: Failure>(
    function: &str,
    path: *const c_char,
    call: impl FnOnce(&Path) -> Result<T, CallError>,
) -> T {
    answer(function, || {
        let path = path_of(path)?;
        call(path).map_err(|error| error.about(path.display()))
    })
}

fn fail<T: Failure>(function: &str, error: CallError) -> T {
    let line = format!("{function}: {}", error.line.unwrap_or_else(|| text_of(error.errno)));
    // A path of C has no zero byte. A thread that ends has no texts any more.
    let line = CString::new(line).unwrap_or_default();
    let _ = LAST_ERROR.try_with(|last| last.replace(line));
    set_errno(error.errno.raw_os_error());
    T::FAILED
}

/// "No such file or directory"
fn text_of(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    text.split(" (os error").next().unwrap_or_default().to_owned()
}

fn errno() -> c_int {
    // SAFETY: each thread has an errno, and its address does not change.
    unsafe { *libc::__errno_location() }
}

fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno }
}

/// The last error in this thread, in one line. If a store cannot be opened, the line says what to do next, often with the command.
/// Valid until the next call fails in this thread; empty before the first.
#[unsafe(no_mangle)]
pub extern "C" fn weir_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}
