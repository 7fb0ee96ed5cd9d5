//! The header of a block volume, as FORMAT.md describes it: how it is written, read and changed.

use crate::error::BlockVolumeError;
use crate::planted_bug::{BlockBug, is_planted};
use cache::{BackgroundTask, Cache, CacheError, CacheTransaction, ObjectChange, SpaceClaim, TransactionCost};
use device::{BLOCK_BYTES, ObjectId, Page, PageNo, SharedPage, VolumeId};
use std::mem::offset_of;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The largest block volume: 128 TiB, as the largest file.
pub const BLOCK_VOLUME_BYTES_MAX: u64 = 1 << 47;

/// The size of a block volume is a multiple of this, because clients count in sectors.
pub const SECTOR_BYTES: u64 = 512;

/// The background work that a change and its sync may wait for.
const STEPS: [BackgroundTask; 3] =
    [BackgroundTask::Commit, BackgroundTask::WriteBack, BackgroundTask::Checkpoint];

/// The time between two steps of background work while a new size waits.
const STEP_PAUSE: Duration = Duration::from_millis(1);

const MAGIC: [u8; 8] = *b"weir-blk";
const VERSION: u32 = 1;

/// The first bytes of page 0 of object 0.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BlockVolumeHeader {
    magic: [u8; 8],
    version: U32,
    /// Features that a version without them may ignore: none yet.
    compatible: U32,
    /// Features that a version without them must refuse: none yet.
    incompatible: U32,
    reserved: U32,
    /// Bytes of the volume.
    size: U64,
}

const _: () = assert!(size_of::<BlockVolumeHeader>() == 32);

/// The object with the header. A volume with a file system has its metadata there.
fn header_object(volume: VolumeId) -> ObjectId {
    volume.object(0, 0)
}

/// The object with the bytes of the disk.
pub(crate) fn data_object(volume: VolumeId) -> ObjectId {
    volume.object(1, 1)
}

fn check_size(size: u64) -> Result<(), BlockVolumeError> {
    let is_good =
        (SECTOR_BYTES..=BLOCK_VOLUME_BYTES_MAX).contains(&size) && size.is_multiple_of(SECTOR_BYTES);
    is_good.then_some(()).ok_or(BlockVolumeError::BadSize)
}

/// The first pages of a block volume of `size` bytes, all of which read as zeros, for
/// [`Cache::create_volume`].
///
/// # Errors
/// [`BlockVolumeError::BadSize`] unless `size` is a multiple of [`SECTOR_BYTES`], and at most
/// [`BLOCK_VOLUME_BYTES_MAX`].
pub fn new_block_volume(size: u64) -> Result<Vec<(PageNo, SharedPage)>, BlockVolumeError> {
    check_size(size)?;
    let header = BlockVolumeHeader {
        magic: MAGIC,
        version: U32::new(VERSION),
        compatible: U32::new(0),
        incompatible: U32::new(0),
        reserved: U32::new(0),
        size: U64::new(size),
    };
    let mut page = Page::zeroed();
    page.0[..size_of::<BlockVolumeHeader>()].copy_from_slice(header.as_bytes());
    Ok(vec![(PageNo(0), Arc::new(page))])
}

/// The size of a block volume in bytes; `None` if the volume holds something else. Reads the header in the caller's
/// thread.
///
/// # Errors
/// [`BlockVolumeError::NewerVersion`], [`BlockVolumeError::Damaged`], and those of reading.
pub fn block_volume_size(cache: &Cache, volume: VolumeId) -> Result<Option<u64>, BlockVolumeError> {
    let page = cache.read_now(header_object(volume), 0, BLOCK_BYTES)?;
    let (header, _) = BlockVolumeHeader::read_from_prefix(&page).map_err(|_| BlockVolumeError::Damaged)?;
    if header.magic != MAGIC {
        return Ok(None);
    }
    let version = header.version.get();
    if version != VERSION || header.incompatible != 0 {
        return Err(BlockVolumeError::NewerVersion { version });
    }
    let size = header.size.get();
    check_size(size).map_err(|_| BlockVolumeError::Damaged)?;
    Ok(Some(size))
}

/// Changes the size of a block volume that is not in use. Durable on return. Bytes behind a smaller size are gone: if the
/// volume grows again, they are zeros. The call does the background work of the cache, if no worker thread does it.
///
/// # Errors
/// [`BlockVolumeError::BadSize`], [`BlockVolumeError::NotBlockVolume`], [`CacheError::InUse`], and those of a change. After
/// an error of the last sync the size may be either.
pub fn resize(cache: &Cache, volume: VolumeId, size: u64) -> Result<(), BlockVolumeError> {
    check_size(size)?;
    let in_use = cache.use_volume(volume)?;
    let before = block_volume_size(cache, volume)?.ok_or(BlockVolumeError::NotBlockVolume)?;
    let bytes = size.to_le_bytes();
    let cut_off = ObjectChange::Zero {
        object: data_object(volume),
        offset: size.min(before),
        len: if is_planted(BlockBug::SizeWithoutZeros) { 0 } else { before.saturating_sub(size) },
    };
    // Both change what exists, or free it: a full store must not refuse them.
    let claim = if size < before { SpaceClaim::Frees } else { SpaceClaim::Names };
    let cost = TransactionCost { claim, ..TransactionCost::of(&[cut_off, size_change(volume, &bytes)]) };
    let (tell, told) = channel();
    let syncing = cache.clone();
    let work = move |transaction: &mut CacheTransaction<'_>| {
        transaction.apply(&[cut_off, size_change(volume, &bytes)])
    };
    cache.transact(cost, work, move |applied: Result<_, CacheError>| match applied {
        Ok(_) => syncing.sync(Box::new(move |synced| drop(tell.send(synced)))),
        Err(error) => drop(tell.send(Err(error))),
    });
    let resized = loop {
        match told.recv_timeout(STEP_PAUSE) {
            Ok(resized) => break resized,
            Err(RecvTimeoutError::Disconnected) => break Err(CacheError::Stopping),
            // The cache may have no workers.
            Err(RecvTimeoutError::Timeout) => {
                for task in STEPS {
                    cache.step(task);
                }
            }
        }
    };
    drop(in_use);
    Ok(resized?)
}

/// The change of a header that gives a volume this size, as little-endian bytes.
fn size_change(volume: VolumeId, size: &[u8; 8]) -> ObjectChange<'_> {
    let offset = offset_of!(BlockVolumeHeader, size) as u64;
    ObjectChange::Write { object: header_object(volume), offset, bytes: size }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in FORMAT.md.
    #[test]
    fn the_header_is_as_documented() {
        let documented = include_str!("../FORMAT.md").split("```hex header\n").nth(1).expect("the example");
        let documented = documented.split("```").next().expect("its end");
        let documented: Vec<u8> = documented
            .split_whitespace()
            .map(|byte| u8::from_str_radix(byte, 16).expect("two hexadecimal digits"))
            .collect();
        let pages = new_block_volume(10 << 30).expect("a good size");
        assert_eq!(pages.len(), 1);
        assert_eq!(pages[0].0, PageNo(0));
        let (header, rest) = pages[0].1.0.split_at(size_of::<BlockVolumeHeader>());
        assert_eq!(header, documented);
        assert!(rest.iter().all(|&byte| byte == 0), "zeros behind the header");
    }

    #[test]
    fn sizes_are_whole_sectors_within_limits() {
        for size in [0, 1, 511, 513, BLOCK_VOLUME_BYTES_MAX + 512, u64::MAX] {
            assert!(matches!(new_block_volume(size), Err(BlockVolumeError::BadSize)), "{size}");
        }
        for size in [512, 4096, BLOCK_VOLUME_BYTES_MAX] {
            assert!(new_block_volume(size).is_ok(), "{size}");
        }
    }
}
