//! Several changes as one.

use crate::answer::{CallError, answer};
use crate::file::offset_of;
use crate::handles::{FileHandle, Handle, StoreHandle, path_of, source, structures};
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_uint, c_void};
use weir_library::Batch;

/// For weir_change.kind: writes `length` bytes from `bytes` to `file` at `offset`, also if it was opened with O_APPEND.
pub const WEIR_WRITE: c_uint = 1;

/// For weir_change.kind: renames `path` to `new_path`, and replaces what has that name.
pub const WEIR_RENAME: c_uint = 2;

/// For weir_change.kind: removes the name `path` of a file.
pub const WEIR_REMOVE: c_uint = 3;

/// One of several changes. Members that its kind does not name are not looked at.
#[repr(C)]
pub struct Change {
    /// WEIR_WRITE, WEIR_RENAME or WEIR_REMOVE.
    pub kind: c_uint,
    /// A file that is open for writing.
    pub file: *mut FileHandle,
    /// What is written.
    pub bytes: *const c_void,
    /// Its length.
    pub length: usize,
    /// Where in the file.
    pub offset: libc::off_t,
    /// The name that is taken away.
    pub path: *const c_char,
    /// The name that a renamed file gets.
    pub new_path: *const c_char,
}

/// Makes `count` changes at once, in their order: every other thread, and whoever opens the store after a crash, sees all of them or
/// none. They are durable after a later weir_commit(), or on return if a file was opened with O_SYNC or O_DSYNC. Only a read that
/// began before may have some pages from before and others from after.
///
/// If one fails, nothing has changed, but that set-user-ID bits of the files may be gone; errno is that change's. Names are those before the first change. Fails with EFBIG for more
/// than 64 changes or 1 MiB, or if the buffer is too small for so many; EXDEV for a file of another store; EINVAL for an unknown kind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_apply(store: *mut StoreHandle, changes: *const Change, count: usize) -> c_int {
    answer("weir_apply", || {
        let mut batch = StoreHandle::get(store)?.batch();
        for (index, change) in structures(changes, count)?.iter().enumerate() {
            add(&mut batch, change).map_err(|error| error.about(format_args!("changes[{index}]")))?;
        }
        batch.apply()?;
        Ok(0)
    })
}

fn add(batch: &mut Batch, change: &Change) -> Result<(), CallError> {
    match change.kind {
        WEIR_WRITE => {
            let bytes = source(change.bytes, change.length)?;
            batch.write_at(&FileHandle::get(change.file)?.file, bytes, offset_of(change.offset)?)?
        }
        WEIR_RENAME => batch.rename(path_of(change.path)?, path_of(change.new_path)?)?,
        WEIR_REMOVE => batch.remove_file(path_of(change.path)?)?,
        _ => return Err(Errno::INVAL.into()),
    };
    Ok(())
}
