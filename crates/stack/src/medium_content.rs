//! What lies on a medium: recognises its content by well-known magic numbers.

use device::BLOCK_BYTES;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes at the start of a device that are read: the magic number of btrfs lies at 64 KiB.
const HEAD_BYTES: usize = 128 * 1024;

/// Name, position and bytes of each magic number.
const MAGICS: &[(&str, usize, &[u8])] = &[
    ("an XFS file system", 0, b"XFSB"),
    ("a btrfs file system", 0x1_0040, b"_BHRfS_M"),
    ("an ext2, ext3 or ext4 file system", 0x438, &[0x53, 0xef]),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("a LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 536, b"LVM2 001"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a member of a RAID", 4096, &[0xfc, 0x4e, 0x2b, 0xa9]),
    ("a part of a bcache", 4120, &[0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca]),
    ("an NTFS file system", 3, b"NTFS    "),
    ("a squashfs file system", 0, b"hsqs"),
    ("a QCOW2 image", 0, b"QFI\xfb"),
    ("an ISO 9660 file system", 0x8001, b"CD001"),
    ("a partition table or a boot sector", 510, &[0x55, 0xaa]),
];

/// Kinds that may have a buffer in them, once they are opened.
const CONTAINERS: &[&str] = &[
    "a LUKS encrypted volume",
    "an LVM physical volume",
    "a GPT partition table",
    "a member of a RAID",
    "a part of a bcache",
    "a partition table or a boot sector",
];

/// What the first blocks of a medium tell of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediumContent {
    /// They are zeros.
    Blank,
    /// Content of this kind, which is not weir's.
    Known(&'static str),
    /// Perhaps weir's: in these words.
    Unknown(&'static str),
}

impl MediumContent {
    /// Reads the first blocks of the medium at `path`, and names their content.
    ///
    /// # Errors
    /// They cannot be read.
    pub fn of(path: &Path) -> io::Result<MediumContent> {
        read_head(path).map(|head| describe_content(&head))
    }

    /// Whether something of this kind may have other media in it, as a disk has partitions.
    pub(crate) fn is_container(self) -> bool {
        matches!(self, MediumContent::Known(name) if CONTAINERS.contains(&name))
    }

    /// Whether such a container may hold more than the devices that were opened on it so far. A LUKS volume is opened whole.
    pub(crate) fn may_be_incomplete(self) -> bool {
        self.is_container() && self != MediumContent::Known("a LUKS encrypted volume")
    }
}

/// Whether a crash cut off the format of a buffer on this medium: nothing is there but the headers, which are written before the
/// superblock.
pub(crate) fn is_unfinished_buffer(path: &Path) -> bool {
    let is_zero = |bytes: &[u8]| bytes.iter().all(|&byte| byte == 0);
    read_head(path).is_ok_and(|head| {
        head.len() == HEAD_BYTES && is_zero(&head[..BLOCK_BYTES]) && is_zero(&head[3 * BLOCK_BYTES..])
    })
}

fn read_head(path: &Path) -> io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    File::open(path)?.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Names the content that begins with `head`.
fn describe_content(head: &[u8]) -> MediumContent {
    if head.iter().all(|&byte| byte == 0) {
        return MediumContent::Blank;
    }
    let known = MAGICS.iter().find(|(_, at, magic)| head.get(*at..at + magic.len()) == Some(*magic));
    match known {
        Some((name, ..)) => MediumContent::Known(name),
        None if is_version_1(head) => {
            MediumContent::Unknown("a store or buffer of weir 0.1, which weir 0.1 mounts")
        }
        None if head.windows(4).take(64).any(|bytes| bytes.eq_ignore_ascii_case(b"weir")) => {
            MediumContent::Unknown("a weir store or buffer")
        }
        None => MediumContent::Unknown("data of an unknown kind"),
    }
}

/// Whether `head` begins with a superblock of weir 0.1. Stores and buffers have the version in different
/// places.
fn is_version_1(head: &[u8]) -> bool {
    [(b"weir.sup", 8), (b"weirbuff", 12)]
        .iter()
        .any(|(magic, at)| head.starts_with(*magic) && head.get(*at..at + 4) == Some(&[1, 0, 0, 0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head_with(at: usize, magic: &[u8]) -> Vec<u8> {
        let mut head = vec![0; HEAD_BYTES];
        head[at..at + magic.len()].copy_from_slice(magic);
        head
    }

    #[test]
    fn zeros_and_nothing_are_blank() {
        assert_eq!(describe_content(&[0; HEAD_BYTES]), MediumContent::Blank);
        assert_eq!(describe_content(&[]), MediumContent::Blank);
    }

    #[test]
    fn every_known_magic_is_named_and_a_single_bit_is_not_blank() {
        for (name, at, magic) in MAGICS {
            assert_eq!(describe_content(&head_with(*at, magic)), MediumContent::Known(name));
        }
        let expected = MediumContent::Unknown("data of an unknown kind");
        assert_eq!(describe_content(&head_with(HEAD_BYTES - 1, &[1])), expected);
    }
}
