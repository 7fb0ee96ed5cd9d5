//! Stretches of the log, and the copies of their chunks' heads that the next one begins with.
//!
//! The heads of a log lie as far apart as its data is long, so following it costs a read for each chunk. A stretch begins
//! at a place that is known before the log was followed to it, and its first chunk carries copies of all heads of the
//! stretch before: one read for all of them. A copy is believed as the chunk is, by its checksum and its place in the
//! chain, so one that is damaged, stale or missing costs reads and nothing else.

use crate::format::{U32, blocks_for};
use crate::log_entry::{CHUNK_ENTRIES_MAX, entry_blocks, head_bytes};
use device::Page;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Blocks of a stretch at most: 16 MiB. What lies behind the last copies is read as a whole.
const EXTENT_BLOCKS_MAX: u64 = 4096;

/// Blocks of a segment that is worth copies: 1 MiB. Smaller ones are those of stores that are read in no time.
const INDEXED_SEGMENT_BLOCKS_MIN: u64 = 256;

/// Of a stretch, copies are at most this part: with pages of data they are a fiftieth or less. A log of hardly anything but log entries
/// goes without, as copies would double it.
const INDEX_PART: u64 = 32;

/// Blocks read where copies may lie: the log entries and copies of any chunk fit.
pub(crate) const INDEX_READ_BLOCKS: u64 = 176;

/// Blocks read at once where there are none: 8 MiB, so that an open stretch takes two or three reads.
pub(crate) const WINDOW_BLOCKS: u64 = 2048;

const _: () =
    assert!(entry_blocks(CHUNK_ENTRIES_MAX) as u64 + EXTENT_BLOCKS_MAX / INDEX_PART <= INDEX_READ_BLOCKS);

/// How segments of log are cut into stretches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LogExtents {
    segment_blocks: u64,
    extent_blocks: u64,
}

impl LogExtents {
    pub(crate) fn of(segment_blocks: u64) -> LogExtents {
        let count = segment_blocks.div_ceil(EXTENT_BLOCKS_MAX);
        LogExtents { segment_blocks, extent_blocks: segment_blocks.div_ceil(count) }
    }

    /// Where the stretch begins in which a block of a segment lies.
    pub(crate) fn start(&self, offset: u64) -> u64 {
        offset / self.extent_blocks * self.extent_blocks
    }

    /// Where it ends.
    pub(crate) fn end(&self, offset: u64) -> u64 {
        (self.start(offset) + self.extent_blocks).min(self.segment_blocks)
    }

    /// Whether stretches may have copies at all.
    pub(crate) fn has_index(&self) -> bool {
        self.segment_blocks >= INDEXED_SEGMENT_BLOCKS_MIN
    }

    /// The blocks that copies of so many bytes take; 0 where there are none or they are too many.
    pub(crate) fn index_blocks(&self, bytes: usize) -> u64 {
        let blocks = blocks_for(bytes) as u64;
        if self.has_index() && blocks <= self.extent_blocks / INDEX_PART { blocks } else { 0 }
    }

    /// Reads that following a whole stretch takes, at most: with copies of its heads, and without.
    pub(crate) fn reads(&self, copied: bool) -> u64 {
        // A window begins with a chunk, so it may end within the next one's log entries and be read again from there.
        let windows = self.extent_blocks.div_ceil(WINDOW_BLOCKS - entry_blocks(CHUNK_ENTRIES_MAX) as u64);
        if copied { 1 } else { windows + u64::from(self.has_index()) }
    }
}

/// The heads of a stretch's chunks, one behind the other, as they are copied.
#[derive(Debug, Default)]
pub(crate) struct ChunkIndex(Vec<u8>);

/// Stands before each copy.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct IndexEntryBytes {
    /// The chunk's first block, from its segment's start.
    offset: U32,
    /// Bytes of the head and its log entries; 0 behind the last copy.
    bytes: U32,
}

/// Bytes that a copy of a head with so many log entries takes.
pub(crate) fn index_entry_bytes(entries: usize) -> usize {
    size_of::<IndexEntryBytes>() + head_bytes(entries)
}

impl ChunkIndex {
    /// One more chunk, whose first block is `offset` in its segment.
    pub(crate) fn push(&mut self, offset: u64, head: &[Page], entries: usize) {
        let bytes = head_bytes(entries);
        let copy = IndexEntryBytes { offset: (offset as u32).into(), bytes: (bytes as u32).into() };
        self.0.extend(copy.as_bytes());
        self.0.extend(&Page::bytes(head)[..bytes]);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Fills the first of `into`, which are zeros.
    pub(crate) fn write_to(&self, into: &mut [Page]) {
        Page::bytes_mut(into)[..self.0.len()].copy_from_slice(&self.0);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The copies in these blocks: where in its segment each chunk begins, and its head and log entries. Nothing of it is believed yet.
pub(crate) fn indexed_heads(pages: &[Page]) -> Vec<(u64, Vec<Page>)> {
    let mut rest = Page::bytes(pages);
    let mut found = Vec::new();
    while let Ok((copy, behind)) = IndexEntryBytes::read_from_prefix(rest) {
        let Some(bytes) = behind.get(..copy.bytes.get() as usize).filter(|bytes| !bytes.is_empty()) else {
            break;
        };
        found.push((u64::from(copy.offset.get()), crate::log_chunk::to_pages(bytes)));
        rest = &behind[bytes.len()..];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_equal_parts_of_a_segment_of_at_most_16_mib() {
        for (segment, blocks) in [(16, 16), (256, 256), (4096, 4096), (4097, 2049), (32_768, 4096)] {
            let extents = LogExtents::of(segment);
            assert_eq!((extents.start(0), extents.end(0)), (0, blocks));
            assert_eq!((extents.start(blocks - 1), extents.end(blocks - 1)), (0, blocks));
            let last = extents.start(segment - 1);
            assert_eq!(extents.end(last), segment, "the last one ends with the segment");
            assert!(segment - last + 8 > blocks, "and is about as long");
        }
        assert_eq!(LogExtents::of(256).end(256), 256, "a segment's end begins no stretch");
    }

    #[test]
    fn copies_are_a_32nd_of_a_stretch_at_most_and_none_where_segments_are_tiny() {
        let blocks = |segment: u64, copies: usize| LogExtents::of(segment).index_blocks(copies * 4096);
        assert_eq!([0, 1, 8, 9].map(|copies| blocks(256, copies)), [0, 1, 8, 0]);
        assert_eq!([128, 129].map(|copies| blocks(32_768, copies)), [128, 0]);
        assert_eq!(blocks(16, 1), 0);
        assert_eq!([true, false].map(|copied| LogExtents::of(32_768).reads(copied)), [1, 4]);
    }

    #[test]
    fn copies_read_back_as_they_were_written_and_garbage_is_none() {
        let mut head = device::pages(2);
        head[0].0[..8].fill(7);
        head[1].0[..8].fill(8);
        let mut chunk_index = ChunkIndex::default();
        chunk_index.push(5, &head[..1], 1);
        chunk_index.push(90, &head, 100);
        assert_eq!(chunk_index.bytes(), index_entry_bytes(1) + index_entry_bytes(100));
        let mut pages = device::pages(3);
        chunk_index.write_to(&mut pages);
        let found = indexed_heads(&pages);
        let places: Vec<(u64, usize)> = found.iter().map(|(at, pages)| (*at, pages.len())).collect();
        assert_eq!(places, [(5, 1), (90, 2)]);
        assert!(found[0].1 == head[..1] && found[1].1[0] == head[0]);
        assert_eq!(found[1].1[1].0[..8], [8; 8]);
        assert_eq!(indexed_heads(&[Page([0xff; device::BLOCK_BYTES])]).len(), 0, "longer than what there is");
        assert_eq!(indexed_heads(&[]).len(), 0);
    }
}
