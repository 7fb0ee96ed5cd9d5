//! Ranges of a file as space: what the flags of `fallocate` and `lseek` mean.

use crate::connection::Reply;
use crate::errno::refused;
use crate::latency::Timer;
use crate::protocol::LseekReply;
use fs::{Allocate, Completion, FsError, Seek, Size};
use rustix::io::Errno;

/// What `fallocate` asks for. The kernel lets through only these modes, and `FALLOC_FL_PUNCH_HOLE` only with
/// `FALLOC_FL_KEEP_SIZE`; of others, such as collapsing and inserting, we know nothing.
pub(crate) fn allocation(mode: i32) -> Result<(Allocate, Size), Errno> {
    let size = if mode & libc::FALLOC_FL_KEEP_SIZE != 0 { Size::Stays } else { Size::Grows };
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Ok((Allocate::Space, size)),
        libc::FALLOC_FL_ZERO_RANGE => Ok((Allocate::Zeros, size)),
        libc::FALLOC_FL_PUNCH_HOLE if size == Size::Stays => Ok((Allocate::Hole, size)),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// What `lseek` looks for, and from where. The kernel keeps the other ways to itself.
pub(crate) fn seek(offset: i64, whence: i32) -> Result<(u64, Seek), FsError> {
    let what = match whence {
        libc::SEEK_DATA => Seek::Data,
        libc::SEEK_HOLE => Seek::Hole,
        _ => return Err(FsError::Invalid),
    };
    // A place before the file is as far from its data as one behind it: Linux says ENXIO to both.
    u64::try_from(offset).map(|offset| (offset, what)).map_err(|_| FsError::PastEnd)
}

/// A completion that ends with a place in a file.
pub(crate) fn answer(timer: Timer, reply: Reply) -> Completion<u64> {
    Box::new(move |found| {
        let _timer = timer;
        match found {
            Ok(found) => reply.body(&LseekReply { offset: found }),
            Err(error) => reply.error(refused(&error)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_not_supported() {
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        assert_eq!(allocation(0).ok(), Some((Allocate::Space, Size::Grows)));
        assert_eq!(allocation(keep).ok(), Some((Allocate::Space, Size::Stays)));
        assert_eq!(allocation(libc::FALLOC_FL_PUNCH_HOLE | keep).ok(), Some((Allocate::Hole, Size::Stays)));
        assert_eq!(allocation(libc::FALLOC_FL_ZERO_RANGE).ok(), Some((Allocate::Zeros, Size::Grows)));
        let collapse = libc::FALLOC_FL_COLLAPSE_RANGE;
        let unshare = libc::FALLOC_FL_UNSHARE_RANGE;
        for mode in [libc::FALLOC_FL_PUNCH_HOLE, collapse, libc::FALLOC_FL_INSERT_RANGE, unshare, 0x4000] {
            assert_eq!(allocation(mode).err(), Some(Errno::OPNOTSUPP), "{mode:#x}");
        }
    }

    #[test]
    fn only_data_and_holes_are_sought_and_only_in_the_file() {
        assert!(matches!(seek(7, libc::SEEK_DATA), Ok((7, Seek::Data))));
        assert!(matches!(seek(i64::MAX, libc::SEEK_HOLE), Ok((0x7fff_ffff_ffff_ffff, Seek::Hole))));
        assert!(matches!(seek(-1, libc::SEEK_DATA), Err(FsError::PastEnd)));
        assert!(matches!(seek(0, libc::SEEK_END), Err(FsError::Invalid)));
    }
}
