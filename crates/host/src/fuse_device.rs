//! Additional channels to the kernel for a FUSE mount.

use rustix::ioctl::{Setter, opcode};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// `FUSE_DEV_IOC_CLONE` of `linux/fuse.h`.
const FUSE_DEV_IOC_CLONE: u32 = opcode::read::<u32>(229, 0);

/// Another descriptor of the mount that `device` serves, with a queue of its own: a request read from it is
/// answered on it.
pub fn clone_fuse_device(device: impl AsFd) -> io::Result<File> {
    let clone = File::options().read(true).write(true).open("/dev/fuse")?;
    let served = device.as_fd().as_raw_fd() as u32;
    // SAFETY: FUSE_DEV_IOC_CLONE reads a 32-bit number behind its argument, which is what `Setter` passes,
    // and writes nothing to memory.
    unsafe { rustix::ioctl::ioctl(&clone, Setter::<FUSE_DEV_IOC_CLONE, u32>::new(served)) }?;
    Ok(clone)
}
