//! The numbers of `struct stat` that a store does not keep.

use fs::{FileAttributes, FileKind};
use rustix::fs::FileType;

/// The minor number of the device that all files of a store are on; the major one is 0. No device has it: a program that
/// copies files must see that files outside are on another one.
pub const DEVICE_MINOR: u32 = 0x7_7765;

/// The unit in which files are stored, in bytes.
pub const BLOCK_BYTES: u32 = 4096;

/// A file's `st_mode`: its kind and its permission bits.
pub fn full_mode(file: &FileAttributes) -> u32 {
    kind_bits(file.kind) | u32::from(file.mode)
}

/// The bits of a kind in `st_mode`.
pub fn kind_bits(kind: FileKind) -> u32 {
    let kind = match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    };
    kind.as_raw_mode()
}
