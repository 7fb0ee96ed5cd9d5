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
use crate::format::{Inode, InodeSlot, PAGE_BYTES, ROOT};
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
    let sizes = (PAGE_BYTES.ilog2()..=ATOMIC_WRITE_BYTES_MAX.ilog2()).map(|log2| 1 << log2);
    sizes.into_iter().find(|size: &u32| size.to_string().as_bytes() == value)
}

impl Arena {
    /// Checks a change of the mark of an inode, whose new value is `None` if it is removed.
    ///
    /// # Errors
    /// [`FsError::Invalid`] for a value that is no size; [`FsError::Unsupported`] if the root has no mark: nobody would look at this
    /// one; [`FsError::NotPermitted`] if the root would lose its mark.
    pub(crate) fn check_mark(&self, slot: InodeSlot, value: Option<&[u8]>) -> Result<(), FsError> {
        match value {
            None if slot == ROOT => Err(FsError::NotPermitted),
            Some(value) if value != ATOMIC_WRITES_OFF && page_bytes_in(value).is_none() => {
                Err(FsError::Invalid)
            }
            Some(_) if slot != ROOT && !self.has_atomic_writes()? => Err(FsError::Unsupported),
            _ => Ok(()),
        }
    }

    /// Whether files can be marked: the root has a mark, of whatever value.
    pub(crate) fn has_atomic_writes(&self) -> Result<bool, FsError> {
        Ok(self.xattr(&self.inode(ROOT)?, MARK)?.is_some())
    }

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
        // If the mark cannot be read, the write is logged, too.
        let stays_whole = !matches!(self.atomic_page_bytes(ino), Ok(None));
        Origin { logs_at_once: origin.logs_at_once || stays_whole, ..origin }
    }
}
