//! The blocks of the tables' stream. Each has a checksum of its own, so of each block either copy will do.

use crate::checkpoint_root::{StreamExtent, TablesStream};
use crate::error::StoreError;
use crate::superblock::StoreGeometry;
use device::{BLOCK_BYTES, Block, Device, Page};

/// Bytes of the stream in a block; a checksum follows.
pub(crate) const STREAM_BLOCK_BYTES: usize = BLOCK_BYTES - 4;

/// Blocks that `bytes` bytes of a stream take.
pub(crate) fn stream_blocks(bytes: usize) -> u64 {
    bytes.div_ceil(STREAM_BLOCK_BYTES) as u64
}

/// A block's checksum. It covers the stream's own checksum, the block's number and its bytes, so no block of
/// another stream has it.
fn block_sum(stream: u32, number: u64, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(stream, &number.to_le_bytes()), bytes)
}

/// Encodes a stream. Returns its blocks and its checksum.
pub(crate) fn encode_stream(bytes: &[u8]) -> (Vec<Page>, u32) {
    let crc = crc32c::crc32c(bytes);
    let mut pages = device::pages(stream_blocks(bytes.len()) as usize);
    for ((page, part), number) in pages.iter_mut().zip(bytes.chunks(STREAM_BLOCK_BYTES)).zip(0..) {
        page.0[..part.len()].copy_from_slice(part);
        let sum = block_sum(crc, number, &page.0[..STREAM_BLOCK_BYTES]);
        page.0[STREAM_BLOCK_BYTES..].copy_from_slice(&sum.to_le_bytes());
    }
    (pages, crc)
}

/// The place of each block of a stream, in order, and that of its copy.
pub(crate) fn stream_places(extents: &[StreamExtent]) -> impl Iterator<Item = (Block, Block)> + '_ {
    let blocks = |extent: &StreamExtent| {
        let StreamExtent { at, copy, count } = *extent;
        (0..count).map(move |index| (at.plus(index), copy.plus(index)))
    };
    extents.iter().flat_map(blocks)
}

/// Fails unless `page`, read at `place`, is block `number` of the stream with this checksum.
pub(crate) fn verify_stream_block(
    device: &dyn Device,
    place: Block,
    page: &Page,
    stream: u32,
    number: u64,
) -> Result<(), StoreError> {
    let (bytes, sum) = page.0.split_at(STREAM_BLOCK_BYTES);
    let expected = u32::from_le_bytes([sum[0], sum[1], sum[2], sum[3]]);
    let found = block_sum(stream, number, bytes);
    if expected == found {
        return Ok(());
    }
    let device = device.name().to_owned();
    let what = "the checkpoint's tables".to_owned();
    Err(StoreError::Corrupt { device, place, what, expected, found })
}

/// Reads a stream. Where a block is damaged, reads its copy. Returns the bytes, and how many blocks were
/// damaged.
pub(crate) fn read_stream(
    device: &dyn Device,
    geometry: StoreGeometry,
    stream: &TablesStream,
) -> Result<(Vec<u8>, u64), StoreError> {
    let damaged = |place, what: &str| {
        let device = device.name().to_owned();
        let what = what.to_owned();
        StoreError::Damaged { device, place, what }
    };
    let mut bytes = Vec::new();
    let mut number = 0;
    let mut bad = 0;
    for extent in &stream.extents {
        // An extent may reach from one segment into the next.
        let is_inside = |at: Block| {
            let last = Block(at.0.saturating_add(extent.count.saturating_sub(1)));
            geometry.segment_of(at).is_some() && geometry.segment_of(last).is_some()
        };
        let fits = (1..=stream_blocks(stream.bytes as usize)).contains(&extent.count);
        if !(is_inside(extent.at) && is_inside(extent.copy) && fits) {
            return Err(damaged(extent.at, "a checkpoint root's extent"));
        }
        let mut pages = device::pages(extent.count as usize);
        let all = device.read(extent.at, &mut pages);
        for (page, index) in pages.iter_mut().zip(0..) {
            let at = extent.at.plus(index);
            let copy = extent.copy.plus(index);
            // If all of them together cannot be read, some may be.
            let read = if all.is_ok() { Ok(()) } else { read_one(device, at, page) };
            let whole = read.and_then(|()| verify_stream_block(device, at, page, stream.crc, number));
            if let Err(error) = whole {
                let copied = read_one(device, copy, page);
                copied
                    .and_then(|()| verify_stream_block(device, copy, page, stream.crc, number))
                    .map_err(|_| error)?;
                bad += 1;
            }
            bytes.extend_from_slice(&page.0[..STREAM_BLOCK_BYTES]);
            number += 1;
        }
    }
    bytes.truncate(stream.bytes as usize);
    if stream.bytes > bytes.len() as u64 || crc32c::crc32c(&bytes) != stream.crc {
        let first = stream.extents.first().map_or(Block(0), |extent| extent.at);
        return Err(damaged(first, "the checkpoint's tables"));
    }
    Ok((bytes, bad))
}

fn read_one(device: &dyn Device, at: Block, page: &mut Page) -> Result<(), StoreError> {
    Ok(device.read(at, std::slice::from_mut(page))?)
}
