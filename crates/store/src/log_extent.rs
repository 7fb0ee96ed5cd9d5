//! Log extents, and the chunk index at the beginning of each.
//!
//! Chunk heads are as far apart as the data between them is long, so following the log costs a read for each
//! chunk. A segment is therefore cut into *extents* whose boundaries are known in advance. The first chunk of
//! an extent carries the *chunk index*: copies of all heads of the extent before, which one read fetches.
//!
//! A copy is verified like the chunk itself, by its checksum and its place in the chain. A damaged, stale or
//! missing copy costs reads and nothing else.

use crate::format::{U32, blocks_for};
use crate::log_entry::{CHUNK_ENTRIES_MAX, entry_blocks, head_bytes};
use device::Page;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Blocks of an extent at most: 16 MiB. The part after the last index is read as a whole.
const EXTENT_BLOCKS_MAX: u64 = 4096;

/// Blocks of a segment that has indexes, at least: 1 MiB. Stores with smaller segments are read in no time
/// anyway.
const INDEXED_SEGMENT_BLOCKS_MIN: u64 = 256;

/// The index takes at most this fraction of an extent. With pages of data it takes a fiftieth or less. A log
/// of hardly anything but log entries goes without an index, which would double it.
const INDEX_PART: u64 = 32;

/// Blocks read where an index may be: the log entries and the index of any chunk fit.
pub(crate) const INDEX_READ_BLOCKS: u64 = 176;

/// Blocks read at once in an extent without an index: 8 MiB, so that the open extent takes two or three
/// reads.
pub(crate) const WINDOW_BLOCKS: u64 = 2048;

const _: () =
    assert!(entry_blocks(CHUNK_ENTRIES_MAX) as u64 + EXTENT_BLOCKS_MAX / INDEX_PART <= INDEX_READ_BLOCKS);

/// How segments of log are cut into extents.
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

    /// The offset at which the extent of a block begins.
    pub(crate) fn start(&self, offset: u64) -> u64 {
        offset / self.extent_blocks * self.extent_blocks
    }

    /// The offset at which the extent of a block ends.
    pub(crate) fn end(&self, offset: u64) -> u64 {
        (self.start(offset) + self.extent_blocks).min(self.segment_blocks)
    }

    /// Whether extents may have an index at all.
    pub(crate) fn has_index(&self) -> bool {
        self.segment_blocks >= INDEXED_SEGMENT_BLOCKS_MIN
    }

    /// The blocks of an index with `bytes` bytes; 0 if there are no bytes, or too many for an index.
    pub(crate) fn index_blocks(&self, bytes: usize) -> u64 {
        let blocks = blocks_for(bytes) as u64;
        if self.has_index() && blocks <= self.extent_blocks / INDEX_PART { blocks } else { 0 }
    }

    /// Upper bound of the reads that it takes to follow a whole extent.
    pub(crate) fn reads(&self, copied: bool) -> u64 {
        // A window begins with a chunk. It may end within the log entries of the next one, and is then read
        // again from there.
        let windows = self.extent_blocks.div_ceil(WINDOW_BLOCKS - entry_blocks(CHUNK_ENTRIES_MAX) as u64);
        if copied { 1 } else { windows + u64::from(self.has_index()) }
    }
}

/// The heads of an extent's chunks, one after the other, as they are copied.
#[derive(Debug, Default)]
pub(crate) struct ChunkIndex(Vec<u8>);

/// Precedes each copy.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct IndexEntryBytes {
    /// The chunk's first block, from its segment's start.
    offset: U32,
    /// Bytes of the head and its log entries; 0 after the last copy.
    bytes: U32,
}

/// Bytes of a copy of a head with this many log entries.
pub(crate) fn index_entry_bytes(entries: usize) -> usize {
    size_of::<IndexEntryBytes>() + head_bytes(entries)
}

impl ChunkIndex {
    /// Adds a chunk, whose first block is at `offset` in its segment.
    pub(crate) fn push(&mut self, offset: u64, head: &[Page], entries: usize) {
        let bytes = head_bytes(entries);
        let copy = IndexEntryBytes { offset: (offset as u32).into(), bytes: (bytes as u32).into() };
        self.0.extend(copy.as_bytes());
        self.0.extend(&Page::bytes(head)[..bytes]);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }

    /// Writes the index to the beginning of `into`, which is zeroed.
    pub(crate) fn write_to(&self, into: &mut [Page]) {
        Page::bytes_mut(into)[..self.0.len()].copy_from_slice(&self.0);
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

/// The copies in an index: the offset of each chunk in its segment, and its head and log entries. Nothing is
/// verified yet.
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
    fn extents_are_equal_parts_of_a_segment() {
        for (segment, blocks) in [(16, 16), (256, 256), (4096, 4096), (4097, 2049), (32_768, 4096)] {
            let extents = LogExtents::of(segment);
            assert_eq!((extents.start(0), extents.end(0)), (0, blocks));
            assert_eq!((extents.start(blocks - 1), extents.end(blocks - 1)), (0, blocks));
            let last = extents.start(segment - 1);
            assert_eq!(extents.end(last), segment, "the last one ends with the segment");
            assert!(segment - last + 8 > blocks, "and is about as long");
        }
        assert_eq!(LogExtents::of(256).end(256), 256, "a segment's end begins no extent");
    }

    #[test]
    fn an_index_is_at_most_a_32nd_of_an_extent() {
        let blocks = |segment: u64, copies: usize| LogExtents::of(segment).index_blocks(copies * 4096);
        assert_eq!([0, 1, 8, 9].map(|copies| blocks(256, copies)), [0, 1, 8, 0]);
        assert_eq!([128, 129].map(|copies| blocks(32_768, copies)), [128, 0]);
        assert_eq!(blocks(16, 1), 0);
        assert_eq!([true, false].map(|copied| LogExtents::of(32_768).reads(copied)), [1, 4]);
    }

    #[test]
    fn index_reads_back_and_garbage_is_none() {
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
