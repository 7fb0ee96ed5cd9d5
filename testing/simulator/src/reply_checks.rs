//! Checks replies to clients.

use crate::model::{FsModel, ModelBody, ModelId};
use crate::oracle::expected_links;
use crate::request_call::FsReply;
use crash_oracle::bytes_difference;
use device::BLOCK_BYTES;
use fs::{FileAttributes, FileKind, FsError, SeekWhence};
use std::ops::Range;

/// The bytes that a read must return now.
pub(crate) fn right_bytes(model: &FsModel, file: ModelId, offset: u64, len: usize) -> Vec<u8> {
    let content = model.get(file).content();
    let start = content.len().min(offset as usize);
    content[start..content.len().min(start + len)].to_vec()
}

/// Checks a read. Each page must be as it was at some moment since the request, and so must the length.
/// Writers go on while a read waits for the store.
pub(crate) fn check_read(offset: u64, right: &[Vec<u8>], found: &[u8]) -> Result<(), String> {
    let newest = right.last().expect("a read has an expected answer");
    let wrong = |what: String| Err(format!("{what} (none of the {} right answers)", right.len()));
    if !right.iter().any(|right| right.len() == found.len()) {
        return wrong(bytes_difference(newest, found).unwrap_or_default());
    }
    let mut start = 0;
    while start < found.len() {
        let in_page = BLOCK_BYTES - (offset as usize + start) % BLOCK_BYTES;
        let page = start..found.len().min(start + in_page);
        if !right.iter().any(|right| equal_with_zeros_after(right, page.clone(), &found[page.clone()])) {
            return wrong(bytes_difference(newest, found).unwrap_or_default());
        }
        start = page.end;
    }
    Ok(())
}

/// Whether `range` of `right` is `found`. Bytes past the end of `right` count as zeros.
fn equal_with_zeros_after(right: &[u8], range: Range<usize>, found: &[u8]) -> bool {
    let there = &right[range.start.min(right.len())..range.end.min(right.len())];
    found[..there.len()] == *there && found[there.len()..].iter().all(|&byte| byte == 0)
}

/// Checks a found place of data or a hole. A search for data may pass over zeros only. A hole is a range of
/// zeros, or the end of the file.
pub(crate) fn check_seek(
    content: &[u8],
    offset: u64,
    what: SeekWhence,
    found: &Result<FsReply, FsError>,
) -> Result<(), String> {
    let size = content.len() as u64;
    let wrong = || Err(format!("{found:?}, of {size} bytes"));
    let is_zeros =
        |range: Range<u64>| content[range.start as usize..range.end as usize].iter().all(|&byte| byte == 0);
    match (what, found) {
        (_, Err(FsError::PastEnd)) if offset >= size => Ok(()),
        (SeekWhence::Data, Err(FsError::PastEnd)) if is_zeros(offset..size) => Ok(()),
        (_, Ok(FsReply::Place(place))) if !(offset..=size).contains(place) => wrong(),
        (SeekWhence::Data, Ok(FsReply::Place(place))) if *place < size && is_zeros(offset..*place) => Ok(()),
        (SeekWhence::Hole, Ok(FsReply::Place(place))) => {
            let end = (place / BLOCK_BYTES as u64 + 1) * BLOCK_BYTES as u64;
            if is_zeros(*place..end.min(size)) { Ok(()) } else { wrong() }
        }
        _ => wrong(),
    }
}

pub(crate) fn check_attributes(model: &FsModel, id: ModelId, found: &FileAttributes) -> Result<(), String> {
    let inode = model.get(id);
    let size = match &inode.body {
        ModelBody::File(file) => Some(file.bytes().len() as u64),
        ModelBody::Symlink(target) => Some(target.len() as u64),
        ModelBody::Directory { .. } => None,
        ModelBody::Node(..) => Some(0),
    };
    let device = if let ModelBody::Node(_, device) = inode.body { device } else { 0 };
    let right = found.kind == inode.body.kind()
        && size.is_none_or(|size| found.size == size)
        && found.mode == inode.mode
        && found.device == device
        && found.links == expected_links(model, id)
        && inode.ino == Some(found.ino)
        && (found.uid, found.gid) == (inode.uid, inode.gid);
    if let Some(difference) = inode.times.difference(found) {
        return Err(difference);
    }
    if right {
        return Ok(());
    }
    let kind = match inode.body.kind() {
        FileKind::Directory => "directory",
        _ => "file",
    };
    Err(format!(
        "{found:?}, expected a {kind} {:?} of size {size:?}, mode {:o}, links {}, owner {:?}",
        inode.ino,
        inode.mode,
        expected_links(model, id),
        (inode.uid, inode.gid)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_may_mix_moments_but_not_within_a_page() {
        let (old, new) = (vec![1; 2 * BLOCK_BYTES], vec![2; 2 * BLOCK_BYTES]);
        let right = [old.clone(), new.clone()];
        let mixed = |at: usize| [&old[..at], &new[at..]].concat();
        assert!(check_read(0, &right, &mixed(BLOCK_BYTES)).is_ok());
        assert!(check_read(0, &right, &mixed(BLOCK_BYTES + 1)).is_err());
        assert!(check_read(1, &right, &mixed(BLOCK_BYTES - 1)).is_ok());
        assert!(check_read(0, &right, &old[1..]).is_err(), "no moment had this length");
    }

    #[test]
    fn a_read_that_meets_a_truncation_may_see_zeros_after_the_end() {
        let right = [vec![1; 100], vec![1; 40]];
        assert!(check_read(0, &right, &[vec![1; 40], vec![0; 60]].concat()).is_ok());
        assert!(check_read(0, &right, &[vec![1; 40], vec![2; 60]].concat()).is_err());
        assert!(check_read(0, &right, &[vec![1; 41], vec![0; 59]].concat()).is_err());
    }
}
