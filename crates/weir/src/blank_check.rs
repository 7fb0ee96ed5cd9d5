//! Whether a medium may be overwritten: recognises its content by well-known magic numbers.

use crate::error::WeirError;
use std::fs::File;
use std::io::Read;
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
    ("an NTFS file system", 3, b"NTFS    "),
    ("a squashfs file system", 0, b"hsqs"),
    ("a QCOW2 image", 0, b"QFI\xfb"),
    ("an ISO 9660 file system", 0x8001, b"CD001"),
    ("a partition table or a boot sector", 510, &[0x55, 0xaa]),
];

/// Refuses a medium whose first blocks are not zeros.
pub(crate) fn ensure_blank(path: &Path) -> Result<(), WeirError> {
    let head = read_head(path).map_err(WeirError::io("reading its first blocks", path))?;
    match describe_content(&head) {
        None => Ok(()),
        Some(found) => Err(WeirError::NotBlank { path: path.into(), found }),
    }
}

fn read_head(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    File::open(path)?.take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// Names the content that begins with `head`; `None` for zeros.
fn describe_content(head: &[u8]) -> Option<&'static str> {
    if head.iter().all(|&byte| byte == 0) {
        return None;
    }
    let known = MAGICS.iter().find(|(_, at, magic)| head.get(*at..at + magic.len()) == Some(*magic));
    Some(match known {
        Some((name, ..)) => name,
        None if is_version_1(head) => "a store or buffer of weir 0.1, which weir 0.1 mounts",
        None if head.windows(4).take(64).any(|bytes| bytes.eq_ignore_ascii_case(b"weir")) => {
            "a weir store or buffer"
        }
        None => "data of an unknown kind",
    })
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
        assert_eq!(describe_content(&[0; HEAD_BYTES]), None);
        assert_eq!(describe_content(&[]), None);
    }

    #[test]
    fn every_known_magic_is_named_and_a_single_bit_is_not_blank() {
        for (name, at, magic) in MAGICS {
            assert_eq!(describe_content(&head_with(*at, magic)), Some(*name));
        }
        assert_eq!(describe_content(&head_with(HEAD_BYTES - 1, &[1])), Some("data of an unknown kind"));
    }
}
