//! The flags of `fallocate` and `lseek`.

use crate::connection::PendingReply;
use crate::errno::reply_errno;
use crate::latency::LatencyTimer;
use crate::protocol::LseekReply;
use fs::{FallocateMode, FsCompletion, FsError, SeekWhence, SizePolicy};
use rustix::io::Errno;

/// Decodes the mode of `fallocate`. The kernel passes on only these modes, and `FALLOC_FL_PUNCH_HOLE` only
/// with `FALLOC_FL_KEEP_SIZE`. Others, such as collapsing and inserting, are unsupported.
pub(crate) fn fallocate_mode(mode: i32) -> Result<(FallocateMode, SizePolicy), Errno> {
    let size = if mode & libc::FALLOC_FL_KEEP_SIZE != 0 { SizePolicy::Keep } else { SizePolicy::Grow };
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Ok((FallocateMode::Allocate, size)),
        libc::FALLOC_FL_ZERO_RANGE => Ok((FallocateMode::ZeroRange, size)),
        libc::FALLOC_FL_PUNCH_HOLE if size == SizePolicy::Keep => Ok((FallocateMode::PunchHole, size)),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// Decodes `lseek`. The kernel handles all other values of `whence` itself.
pub(crate) fn seek_whence(offset: i64, whence: i32) -> Result<(u64, SeekWhence), FsError> {
    let what = match whence {
        libc::SEEK_DATA => SeekWhence::Data,
        libc::SEEK_HOLE => SeekWhence::Hole,
        _ => return Err(FsError::Invalid),
    };
    // Linux answers an offset before the file with ENXIO, like one behind it.
    u64::try_from(offset).map(|offset| (offset, what)).map_err(|_| FsError::PastEnd)
}

/// A completion that replies with an offset in a file.
pub(crate) fn seek_completion(timer: LatencyTimer, reply: PendingReply) -> FsCompletion<u64> {
    Box::new(move |found| {
        let _timer = timer;
        match found {
            Ok(found) => reply.body(&LseekReply { offset: found }),
            Err(error) => reply.error(reply_errno(&error)),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_not_supported() {
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        assert_eq!(fallocate_mode(0).ok(), Some((FallocateMode::Allocate, SizePolicy::Grow)));
        assert_eq!(fallocate_mode(keep).ok(), Some((FallocateMode::Allocate, SizePolicy::Keep)));
        assert_eq!(
            fallocate_mode(libc::FALLOC_FL_PUNCH_HOLE | keep).ok(),
            Some((FallocateMode::PunchHole, SizePolicy::Keep))
        );
        assert_eq!(
            fallocate_mode(libc::FALLOC_FL_ZERO_RANGE).ok(),
            Some((FallocateMode::ZeroRange, SizePolicy::Grow))
        );
        let collapse = libc::FALLOC_FL_COLLAPSE_RANGE;
        let unshare = libc::FALLOC_FL_UNSHARE_RANGE;
        for mode in [libc::FALLOC_FL_PUNCH_HOLE, collapse, libc::FALLOC_FL_INSERT_RANGE, unshare, 0x4000] {
            assert_eq!(fallocate_mode(mode).err(), Some(Errno::OPNOTSUPP), "{mode:#x}");
        }
    }

    #[test]
    fn only_data_and_holes_are_sought_and_only_in_the_file() {
        assert!(matches!(seek_whence(7, libc::SEEK_DATA), Ok((7, SeekWhence::Data))));
        assert!(matches!(
            seek_whence(i64::MAX, libc::SEEK_HOLE),
            Ok((0x7fff_ffff_ffff_ffff, SeekWhence::Hole))
        ));
        assert!(matches!(seek_whence(-1, libc::SEEK_DATA), Err(FsError::PastEnd)));
        assert!(matches!(seek_whence(0, libc::SEEK_END), Err(FsError::Invalid)));
    }
}
