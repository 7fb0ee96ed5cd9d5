//! Calls on extended attributes. The kernel's calls take no directory, so a relative path is opened first, or
//! the descriptor is used if the path is empty.

use super::kernel::ReplayKernel;
use super::target::CallBuffer;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use trace_file::{Handle, Op};

/// The file of a call: a path or an open file.
enum On<'a> {
    /// An absolute path, and whether links are followed.
    Path(&'a [u8], bool),
    File(&'a OwnedFd),
}

pub(super) fn call(
    dir: Option<&OwnedFd>,
    path: &[u8],
    op: &Op<Handle>,
    kernel: &ReplayKernel<'_>,
    buffer: &mut CallBuffer,
) -> Result<i64, Errno> {
    let (Op::GetAttribute { follow, .. }
    | Op::SetAttribute { follow, .. }
    | Op::ListAttributes { follow, .. }
    | Op::RemoveAttribute { follow, .. }) = op
    else {
        return Err(Errno::NOSYS);
    };
    match dir {
        None => on(&On::Path(path, *follow), op, kernel, buffer),
        Some(file) if path.is_empty() => on(&On::File(file), op, kernel, buffer),
        Some(dir) => {
            let link = if *follow { OFlags::empty() } else { OFlags::NOFOLLOW };
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | link;
            let file = match rustix::fs::openat(dir, path, flags, Mode::empty()) {
                // Symbolic links cannot have user attributes.
                Err(Errno::LOOP) => return Err(Errno::NODATA),
                file => file?,
            };
            on(&On::File(&file), op, kernel, buffer)
        }
    }
}

fn on(
    on: &On<'_>,
    op: &Op<Handle>,
    kernel: &ReplayKernel<'_>,
    buffer: &mut CallBuffer,
) -> Result<i64, Errno> {
    match op {
        Op::GetAttribute { name, bytes, .. } => {
            let (name, into) = (kernel.name(*name), buffer.take(*bytes));
            match on {
                On::Path(path, true) => rustix::fs::getxattr(*path, name, into),
                On::Path(path, false) => rustix::fs::lgetxattr(*path, name, into),
                On::File(file) => rustix::fs::fgetxattr(file, name, into),
            }
            .map(|bytes| bytes as i64)
        }
        Op::ListAttributes { bytes, .. } => {
            let into = buffer.take(*bytes);
            match on {
                On::Path(path, true) => rustix::fs::listxattr(*path, into),
                On::Path(path, false) => rustix::fs::llistxattr(*path, into),
                On::File(file) => rustix::fs::flistxattr(file, into),
            }
            .map(|bytes| bytes as i64)
        }
        Op::SetAttribute { name, bytes, flags, .. } => {
            let (name, value) = (kernel.name(*name), &*buffer.take(*bytes));
            let flags = XattrFlags::from_bits_retain(*flags);
            match on {
                On::Path(path, true) => rustix::fs::setxattr(*path, name, value, flags),
                On::Path(path, false) => rustix::fs::lsetxattr(*path, name, value, flags),
                On::File(file) => rustix::fs::fsetxattr(file, name, value, flags),
            }
            .map(|()| 0)
        }
        Op::RemoveAttribute { name, .. } => {
            let name = kernel.name(*name);
            match on {
                On::Path(path, true) => rustix::fs::removexattr(*path, name),
                On::Path(path, false) => rustix::fs::lremovexattr(*path, name),
                On::File(file) => rustix::fs::fremovexattr(file, name),
            }
            .map(|()| 0)
        }
        _ => Err(Errno::NOSYS),
    }
}
