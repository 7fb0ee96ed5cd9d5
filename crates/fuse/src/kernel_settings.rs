//! The protocol settings that weir asks of the kernel, and how long the kernel may cache.

use fuser::{InitFlags, KernelConfig};
use std::time::Duration;

/// Bytes of the largest write request: the most that the kernel allows (256 pages).
const WRITE_BYTES_MAX: u32 = 1 << 20;

/// Bytes of the largest request: a write's head and its bytes. Other requests, with the longest names and
/// values, are shorter.
pub(crate) const REQUEST_BYTES_MAX: usize = WRITE_BYTES_MAX as usize + 4096;

/// Read-ahead and write-back requests that the kernel may have under way. Each may wait for a fetch, so this
/// is far above the default of 12.
pub(crate) const BACKGROUND_MAX: u16 = 256;

/// Whether the kernel may cache names, attributes and listings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelCachePolicy {
    /// Everything, without limit: weir is the only front end, so nothing changes without the kernel.
    Full,
    /// Nothing: every operation reaches the front end. For measuring the front end.
    None,
}

impl KernelCachePolicy {
    /// How long the kernel may cache names and attributes.
    pub fn ttl(self) -> Duration {
        match self {
            KernelCachePolicy::Full => Duration::from_secs(24 * 60 * 60),
            KernelCachePolicy::None => Duration::ZERO,
        }
    }
}

/// Sets the protocol's flags and limits at INIT. Public so that other servers in a benchmark can use the same
/// ones.
pub fn configure_kernel(config: &mut KernelConfig) {
    let wanted = [
        InitFlags::FUSE_PARALLEL_DIROPS,
        InitFlags::FUSE_DO_READDIRPLUS,
        InitFlags::FUSE_READDIRPLUS_AUTO,
        InitFlags::FUSE_CACHE_SYMLINKS,
        InitFlags::FUSE_ASYNC_DIO,
        InitFlags::FUSE_NO_OPEN_SUPPORT,
        InitFlags::FUSE_NO_OPENDIR_SUPPORT,
        // File handles (`open_by_handle_at`, NFS) reach an inode that the kernel forgot by a look-up of "."
        // in it.
        InitFlags::FUSE_EXPORT_SUPPORT,
        // The kernel checks access ACLs. weir decides what a new file inherits, so it must apply the umask,
        // too.
        InitFlags::FUSE_POSIX_ACL,
        InitFlags::FUSE_DONT_MASK,
        // Files that are open for direct I/O can be mapped and shared, too (Linux 6.6).
        InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        // Without it the kernel asks for `security.capability` before every single write.
        InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    ];
    for flag in wanted {
        // A kernel without one of them works, but slower. FUSE_ATOMIC_O_TRUNC must stay off: OPEN mostly
        // does not reach weir, so the kernel must truncate by setting the size.
        let _ = config.add_capabilities(flag);
    }
    if let Err(nearest) = config.set_max_write(WRITE_BYTES_MAX) {
        let _ = config.set_max_write(nearest);
    }
    let _ = config.set_max_background(BACKGROUND_MAX);
}
