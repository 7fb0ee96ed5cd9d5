//! Requests to a block volume. The oracle knows its bytes as those of a file.

use crate::change::ModelChange;
use crate::request_call::{FsReply, IssuedRequest, PreparedRequest, RequestCall};
use block::{BlockCompletion, BlockExtent, BlockExtentKind, BlockVolume, BlockVolumeError};
use crash_oracle::bytes_difference;
use fs::FsError;
use std::sync::Arc;

/// The error of a file system that stands for one of a block volume.
pub(crate) fn fs_error(error: BlockVolumeError) -> FsError {
    match error {
        BlockVolumeError::Cache(error) => FsError::from(error),
        BlockVolumeError::PastEnd => FsError::PastEnd,
        _ => FsError::Invalid,
    }
}

impl RequestCall<'_> {
    fn done_of_block_volume<T: Send + 'static>(&self, reply: fn(T) -> FsReply) -> BlockCompletion<T> {
        let done = self.done(reply);
        Box::new(move |result: Result<T, BlockVolumeError>| done(result.map_err(fs_error)))
    }

    /// Prepares a request to a block volume.
    pub(crate) fn prepare_for_block_volume(
        &self,
        asked: &IssuedRequest,
        volume: &Arc<BlockVolume>,
    ) -> PreparedRequest {
        let volume = volume.clone();
        match asked {
            IssuedRequest::Change(ModelChange::Write { offset, bytes, .. }) => {
                let (offset, bytes) = (*offset, bytes.to_vec());
                let done = self.done_of_block_volume(|()| FsReply::Done);
                Box::new(move || volume.write(offset, bytes, done))
            }
            IssuedRequest::Change(ModelChange::Allocate { offset, len, .. }) => {
                let (offset, len) = (*offset, *len);
                let done = self.done_of_block_volume(|()| FsReply::Done);
                Box::new(move || volume.zero(offset, len, done))
            }
            IssuedRequest::Read { offset, len, .. } => {
                let (offset, len) = (*offset, *len);
                let done = self.done_of_block_volume(FsReply::Bytes);
                Box::new(move || volume.read(offset, len, done))
            }
            IssuedRequest::Extents { offset, len, count_max, .. } => {
                let (offset, len, count_max) = (*offset, *len, *count_max);
                let done = self.done_of_block_volume(FsReply::Extents);
                Box::new(move || volume.extents(offset, len, count_max, done))
            }
            IssuedRequest::SyncFile(..) => {
                let done = self.done_of_block_volume(|()| FsReply::Done);
                Box::new(move || volume.sync(done))
            }
            IssuedRequest::Sync(_) => {
                let (cache, done) = (self.cache.clone(), self.done(|()| FsReply::Done));
                Box::new(move || cache.sync(Box::new(move |synced| done(synced.map_err(FsError::from)))))
            }
            IssuedRequest::Change(_) | IssuedRequest::Seek { .. } => {
                unreachable!("a block volume has bytes alone")
            }
        }
    }
}

/// Checks the extents of `content`, which begins where they begin: a hole has zeros alone, and there are as many
/// extents as were asked for, unless they reach the end.
pub(crate) fn check_extents(content: &[u8], count_max: usize, found: &[BlockExtent]) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("{what}: {found:?}, of {} bytes", content.len()));
    if found.len() > count_max {
        return wrong("too many extents");
    }
    let mut left = content;
    for extent in found {
        let Some((bytes, rest)) = left.split_at_checked(extent.len as usize) else {
            return wrong("an extent ends behind the range");
        };
        if bytes.is_empty() {
            return wrong("an extent is empty");
        }
        if extent.kind == BlockExtentKind::Hole
            && let Some(difference) = bytes_difference(bytes, &vec![0; bytes.len()])
        {
            return wrong(&format!("a hole has data: {difference}"));
        }
        left = rest;
    }
    if !left.is_empty() && found.len() < count_max {
        return wrong("extents are missing");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_with_data_in_a_hole_are_wrong() {
        let extent = |len, kind| BlockExtent { len, kind };
        let (data, hole) = (BlockExtentKind::Data, BlockExtentKind::Hole);
        let content = [1, 1, 0, 0];
        for right in [vec![extent(2, data), extent(2, hole)], vec![extent(4, data)], vec![extent(3, data)]] {
            assert_eq!(check_extents(&content, right.len(), &right), Ok(()));
        }
        for wrong in [
            vec![extent(1, data), extent(3, hole)],
            vec![extent(5, data)],
            vec![extent(0, data), extent(4, data)],
            vec![],
        ] {
            assert!(check_extents(&content, 2, &wrong).is_err(), "{wrong:?}");
        }
        assert!(check_extents(&content, 1, &[extent(2, data), extent(2, hole)]).is_err(), "too many");
    }
}
