//! What we ask of the kernel, and what it may remember.

use fuser::{InitFlags, KernelConfig};
use std::time::Duration;

/// Bytes of the largest write request: what the kernel allows (256 pages).
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// Bytes of the largest request: a write's head and its bytes. The longest names and values of others are shorter.
pub(crate) const REQUEST_BYTES_MAX: usize = WRITE_BYTES_MAX as usize + 4096;

/// Read-ahead and write-back requests of the kernel under way at once. Each may wait for a fetch, so there are many
/// more than the 12 of the default.
pub(crate) const BACKGROUND_MAX: u16 = 256;

/// Whether the kernel may cache names, attributes and listings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelCachePolicy {
    /// Everything, for as long as it likes: this is the only front end, so nothing changes behind its back.
    Full,
    /// Nothing: every operation comes to the front end. For measuring it.
    None,
}

impl KernelCachePolicy {
    /// How long the kernel may believe what we said.
    pub fn ttl(self) -> Duration {
        match self {
            KernelCachePolicy::Full => Duration::from_secs(24 * 60 * 60),
            KernelCachePolicy::None => Duration::ZERO,
        }
    }
}

/// Settles with the kernel how it speaks to us. Public so that what is measured beside us can ask for the same.
pub fn configure_kernel(config: &mut KernelConfig) {
    let wanted = [
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_CACHE_SYMLINKS,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_NO_OPEN_SUPPORT,
        InitFlags::FUSE_NO_OPENDIR_SUPPORT,
        // Handles (`open_by_handle_at`, NFS) find an inode that the kernel forgot by a look-up of "." in it.
        InitFlags::FUSE_EXPORT_SUPPORT,
        // The kernel checks access ACLs; what new files inherit is ours, and so must be the umask.
        InitFlags::FUSE_POSIX_ACL,
        InitFlags::FUSE_DONT_MASK,
        // Without it the kernel asks for `security.capability` before every single write.
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    ];
    for flag in wanted {
        // A kernel without one of them works, only slower. FUSE_ATOMIC_O_TRUNC must stay off: `open` does not
        // reach us, so the kernel truncates by setting the size.
        let _ = config.add_capabilities(flag);
    }
    if let Err(nearest) = config.set_max_write(WRITE_BYTES_MAX) {
        let _ = config.set_max_write(nearest);
    }
    let _ = config.set_max_background(BACKGROUND_MAX);
}
