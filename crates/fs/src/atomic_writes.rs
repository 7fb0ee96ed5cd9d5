//! Files whose short writes stay whole: those that have the extended attribute `user.weir.atomic`. Its value is the size of the
//! program's pages.
//!
//! A write is one transaction, but whole pages of it can bypass the buffer, and each of those is atomic alone. For a marked
//! file a write of up to [`ATOMIC_WRITE_BYTES_MAX`] is logged at once, whatever the policy, so a crash leaves all of it or
//! nothing. A front end must not split such a write: see [`Fs::atomic_page_bytes`].
//!
//! A new file or directory in a marked directory is marked, too, in the transaction that makes it. Renames and links
//! change no mark.

use crate::arena::Arena;
use crate::error::FsError;
use crate::format::{Inode, PAGE_BYTES};
use crate::fs::Fs;
use crate::types::Ino;
use crate::xattr::{XattrKey, XattrNamespace};
use request::Origin;

/// The longest write that a marked file keeps whole, in bytes: the largest page of a database.
pub const ATOMIC_WRITE_BYTES_MAX: usize = 64 << 10;

/// The name of the mark. Its value is the size of the program's pages as a decimal number, a power of two from 4096 to
/// 65536; or `off`, which is as good as no mark.
pub const ATOMIC_WRITES_MARK: &[u8] = b"user.weir.atomic";

/// The value of a mark that marks nothing.
pub const ATOMIC_WRITES_OFF: &[u8] = b"off";

/// The mark's name in two parts.
pub(crate) const MARK: XattrKey<'static> = XattrKey { space: XattrNamespace::User, name: b"weir.atomic" };

/// The size of pages that a mark's value says; `None` if the value is no size.
fn page_bytes_in(value: &[u8]) -> Option<u32> {
    let bytes: u32 = std::str::from_utf8(value).ok()?.parse().ok()?;
    let range = PAGE_BYTES as u32..=ATOMIC_WRITE_BYTES_MAX as u32;
    (bytes.is_power_of_two() && range.contains(&bytes)).then_some(bytes)
}

/// Checks the value that a program sets an attribute to.
pub(crate) fn check_mark(key: XattrKey<'_>, value: &[u8]) -> Result<(), FsError> {
    let is_valid = key != MARK || value == ATOMIC_WRITES_OFF || page_bytes_in(value).is_some();
    if is_valid { Ok(()) } else { Err(FsError::Invalid) }
}

impl Arena {
    /// The value of an inode's mark, if the inode is marked.
    pub(crate) fn atomic_writes_mark(&self, inode: &Inode) -> Result<Option<Vec<u8>>, FsError> {
        Ok(self.xattr(inode, MARK)?.filter(|value| value != ATOMIC_WRITES_OFF))
    }
}

impl Fs {
    /// The size of the program's pages in a marked file; `None` if the file is not marked.
    ///
    /// The front end must pass on a write of such a page as one write. If it gets a part of the page, because the program was
    /// killed while the kernel read the page from its memory, it must refuse that part.
    pub fn atomic_page_bytes(&self, ino: Ino) -> Result<Option<u32>, FsError> {
        let state = self.core().read_state();
        let (_, inode, _) = state.find_inode(ino)?;
        Ok(state.atomic_writes_mark(&inode)?.and_then(|value| page_bytes_in(&value)))
    }

    /// The origin of a write. The write is logged at once if it has to stay whole; a write within one page does so anyway.
    #[inline]
    pub(crate) fn origin_of_write(&self, ino: Ino, offset: u64, len: usize) -> Origin {
        let origin = self.origin();
        let is_within_page = (offset % PAGE_BYTES) as usize + len <= PAGE_BYTES as usize;
        if is_within_page || len > ATOMIC_WRITE_BYTES_MAX {
            return origin;
        }
        // The write itself reports errors.
        let stays_whole = self.atomic_page_bytes(ino).is_ok_and(|bytes| bytes.is_some());
        Origin { logs_at_once: origin.logs_at_once || stays_whole, ..origin }
    }
}
