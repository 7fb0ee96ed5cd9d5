//! A page leaf: where 128 consecutive pages of an object lie, and the delta blocks over them.
//!
//! A page is a *base* (a whole block, or zeros if it has none) with its *deltas* laid over it, the oldest
//! first. A page with neither is a *hole*. A *delta block* belongs to one leaf and may have deltas for each
//! of its pages. The base of a page is found without its deltas, by an entry of 20 bytes; the rest of the
//! node is for entries of delta blocks, 28 bytes each (decision 0045).

use crate::bug::{StoreBug, is_planted};
use crate::format::*;
use device::{Block, Lsn};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Where the base of a page lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PageMapEntry {
    /// The block of the base; block 0 if there is none.
    pub(crate) place: Block,
    /// The highest LSN that base and deltas contain, or that of another page in the same delta block. No
    /// change of this page has an LSN between the two. 0 for a hole.
    pub(crate) page_lsn: Lsn,
    /// CRC32C of the base.
    pub(crate) crc: u32,
    /// Whether other entries may refer to the same block.
    pub(crate) shared: bool,
}

/// Stands for the base of a lost page: block 1 is a checkpoint root, never a page.
const LOST_BASE: Block = Block(1);

impl PageMapEntry {
    /// The entry of a page that could not be read when a transfer took it. Reading such a page is an error.
    pub(super) fn lost(page_lsn: Lsn) -> PageMapEntry {
        PageMapEntry { place: LOST_BASE, page_lsn, crc: 0, shared: false }
    }

    /// Whether the page is lost: it could not be read when a transfer took it.
    pub(crate) fn is_lost(&self) -> bool {
        self.place == LOST_BASE
    }

    /// Whether the page has neither a base nor a delta.
    pub(crate) fn is_hole(&self) -> bool {
        self.place == Block(0) && self.page_lsn == Lsn(0)
    }

    /// The block of the base, if there is one.
    pub(crate) fn base(&self) -> Option<BlockEntry> {
        let PageMapEntry { place, crc, shared, .. } = *self;
        (place != Block(0) && place != LOST_BASE).then_some(BlockEntry { place, crc, shared })
    }
}

/// A block that an entry refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockEntry {
    pub(crate) place: Block,
    /// CRC32C of its bytes.
    pub(crate) crc: u32,
    /// Whether other entries may refer to the same block.
    pub(crate) shared: bool,
}

/// An entry for a delta block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeltaEntry {
    pub(crate) block: BlockEntry,
    /// The pages of the leaf whose delta in this block counts, one bit each.
    pub(crate) pages: u128,
}

impl DeltaEntry {
    pub(super) fn covers(&self, index: usize) -> bool {
        self.pages >> index & 1 == 1
    }
}

/// Blocks to which a leaf no longer refers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DroppedBlocks {
    pub(crate) base: Option<BlockEntry>,
    pub(crate) deltas: Vec<BlockEntry>,
}

impl DroppedBlocks {
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &BlockEntry> {
        self.base.iter().chain(&self.deltas)
    }
}

/// A page leaf; see the module's documentation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageLeaf {
    pages: [PageMapEntry; LEAF_PAGES as usize],
    /// In the order in which they were stored.
    deltas: Vec<DeltaEntry>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PageMapEntryBytes {
    place_and_flags: U64,
    page_lsn: U64,
    crc: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DeltaEntryBytes {
    place_and_flags: U64,
    crc: U32,
    pages: [u8; 16],
}

const PAGE_BYTES: usize = size_of::<PageMapEntryBytes>();
const DELTA_BYTES: usize = size_of::<DeltaEntryBytes>();
const PAGES_BYTES: usize = PAGE_BYTES * LEAF_PAGES as usize;
const _: () = assert!(PAGE_BYTES == 20 && DELTA_BYTES == 28);
const _: () = assert!(64 + PAGES_BYTES + DELTA_BYTES * LEAF_DELTAS <= 4096);

/// Delta blocks that a leaf may have while space is short.
pub(super) const LEAF_DELTAS_SHORT_OF_SPACE: usize = 8;

/// The bit of a place that says: the block may have other references.
const SHARED_BIT: u64 = 1 << 63;

impl PageLeaf {
    pub(crate) fn new() -> PageLeaf {
        PageLeaf { pages: [PageMapEntry::default(); LEAF_PAGES as usize], deltas: Vec::new() }
    }

    /// The pages, in order, holes included.
    pub(crate) fn pages(&self) -> &[PageMapEntry; LEAF_PAGES as usize] {
        &self.pages
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pages.iter().all(PageMapEntry::is_hole)
    }

    /// The blocks with deltas of a page, the oldest first.
    pub(crate) fn deltas_of(&self, index: usize) -> impl Iterator<Item = BlockEntry> + '_ {
        self.deltas.iter().filter(move |delta| delta.covers(index)).map(|delta| delta.block)
    }

    /// All blocks that the leaf refers to, each with the number by which [`block_mut`](PageLeaf::block_mut)
    /// finds its entry.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (usize, BlockEntry)> + '_ {
        self.bases().chain(self.deltas.iter().map(|delta| (LEAF_PAGES as usize, delta.block)))
    }

    /// All blocks, each with the number of a page in the leaf: of a base its page, of a delta block the first
    /// page that it has a delta for.
    pub(crate) fn first_pages(&self) -> impl Iterator<Item = (u64, BlockEntry)> + '_ {
        let deltas = self.deltas.iter().map(|delta| (u64::from(delta.pages.trailing_zeros()), delta.block));
        self.bases().map(|(index, base)| (index as u64, base)).chain(deltas)
    }

    /// The numbers of the lost pages.
    pub(crate) fn lost_pages(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.iter().zip(0..).filter(|(page, _)| page.is_lost()).map(|(_, index)| index)
    }

    /// The bases, with the numbers of their pages.
    pub(crate) fn bases(&self) -> impl Iterator<Item = (usize, BlockEntry)> + '_ {
        self.pages.iter().enumerate().filter_map(|(index, page)| Some((index, page.base()?)))
    }

    /// The entry with this number among [`blocks`](PageLeaf::blocks), if it still refers to `place`.
    pub(crate) fn block_mut(&mut self, number: usize, place: Block) -> Option<BlockMut<'_>> {
        match self.pages.get_mut(number) {
            Some(page) if page.place == place && place != Block(0) => Some(BlockMut::Base(page)),
            Some(_) => None,
            None => {
                let found = self.deltas.iter_mut().find(|delta| delta.block.place == place);
                found.map(|delta| BlockMut::Delta(&mut delta.block))
            }
        }
    }

    /// As [`block_mut`](PageLeaf::block_mut), to read.
    pub(crate) fn block_at(&self, number: usize, place: Block) -> Option<BlockEntry> {
        let found = match self.pages.get(number) {
            Some(page) => page.base(),
            None => self.deltas.iter().map(|delta| delta.block).find(|block| block.place == place),
        };
        found.filter(|block| block.place == place)
    }

    /// Replaces base and deltas of a page by a new base, or a hole. Returns the blocks that the leaf no
    /// longer refers to.
    pub(crate) fn set(&mut self, index: usize, new: PageMapEntry) -> DroppedBlocks {
        let old = std::mem::replace(&mut self.pages[index], new);
        DroppedBlocks { base: old.base(), deltas: self.drop_deltas(1 << index) }
    }

    /// Removes the deltas of `pages`, given by bits. Returns the delta blocks that were removed.
    fn drop_deltas(&mut self, pages: u128) -> Vec<BlockEntry> {
        let mut gone = Vec::new();
        self.deltas.retain_mut(|delta| {
            let before = delta.pages;
            delta.pages &= !pages;
            if before != delta.pages && is_planted(StoreBug::DeltaBlockFreedEarly) {
                delta.pages = 0;
            }
            if delta.pages == 0 {
                gone.push(delta.block);
            }
            delta.pages != 0
        });
        gone
    }

    /// Takes a page out of the leaf, for a move. Deltas stay in their leaf and were merged before. A page
    /// that still has some could not be read: the target gets it as lost.
    pub(crate) fn take(&mut self, index: usize) -> (PageMapEntry, DroppedBlocks) {
        if !self.has_deltas(index) {
            return (std::mem::take(&mut self.pages[index]), DroppedBlocks::default());
        }
        (PageMapEntry::lost(self.pages[index].page_lsn), self.set(index, PageMapEntry::default()))
    }

    /// The entry that a clone gets of a page: the base, marked as shared on both sides; or, as in
    /// [`take`](PageLeaf::take), a lost page.
    pub(crate) fn share(&mut self, index: usize) -> PageMapEntry {
        let page = &mut self.pages[index];
        page.shared = page.base().is_some();
        let page = *page;
        if self.has_deltas(index) { PageMapEntry::lost(page.page_lsn) } else { page }
    }

    fn has_deltas(&self, index: usize) -> bool {
        self.deltas_of(index).next().is_some()
    }

    /// Marks all blocks as shared.
    pub(crate) fn mark_all_shared(&mut self) {
        self.pages.iter_mut().for_each(|page| page.shared = page.base().is_some());
        self.deltas.iter_mut().for_each(|delta| delta.block.shared = true);
    }

    /// Adds a delta block over what there is.
    pub(crate) fn add_delta(&mut self, new: DeltaEntry, page_lsn: Lsn) {
        let pages = self.pages.iter_mut().enumerate().filter(|(index, _)| new.covers(*index));
        pages.for_each(|(_, page)| page.page_lsn = page_lsn);
        self.deltas.push(new);
    }

    /// Whether `blocks` more delta blocks fit, of at most `most`, and none of `pages` has as many deltas as a
    /// page may have.
    pub(crate) fn has_space_for_deltas(&self, blocks: usize, most: usize, pages: u128) -> bool {
        let is_full = |index: usize| self.deltas_of(index).count() >= PAGE_DELTAS;
        self.deltas.len() + blocks <= most
            && (0..LEAF_PAGES as usize).filter(|index| pages >> index & 1 == 1).all(|index| !is_full(index))
    }

    /// The number of delta blocks, for the head of the node.
    pub(super) fn deltas_len(&self) -> u8 {
        self.deltas.len() as u8
    }

    pub(super) fn encode(&self, into: &mut [u8]) {
        assert!(self.deltas.len() <= LEAF_DELTAS, "whoever adds one looks first");
        let bits = |place, shared| place_to_bits(place) | if shared { SHARED_BIT } else { 0 };
        let (pages, deltas) = into.split_at_mut(PAGES_BYTES);
        for (page, bytes) in self.pages.iter().zip(pages.chunks_exact_mut(PAGE_BYTES)) {
            let place_and_flags = bits(page.place, page.shared).into();
            let page =
                PageMapEntryBytes { place_and_flags, page_lsn: page.page_lsn.0.into(), crc: page.crc.into() };
            page.write_to(bytes).expect("exactly as long");
        }
        for (delta, bytes) in self.deltas.iter().zip(deltas.chunks_exact_mut(DELTA_BYTES)) {
            let delta = DeltaEntryBytes {
                place_and_flags: bits(delta.block.place, delta.block.shared).into(),
                crc: delta.block.crc.into(),
                pages: delta.pages.to_le_bytes(),
            };
            delta.write_to(bytes).expect("exactly as long");
        }
    }

    /// Decodes a leaf; `None` for bytes that no encoder writes.
    pub(super) fn decode(bytes: &[u8], deltas_len: u8) -> Option<PageLeaf> {
        let place = |bits: u64| Some((place_from_bits(bits & !SHARED_BIT)?, bits & SHARED_BIT != 0));
        let (pages, deltas) = bytes.split_at(PAGES_BYTES);
        let mut leaf = PageLeaf::new();
        for (page, bytes) in leaf.pages.iter_mut().zip(pages.chunks_exact(PAGE_BYTES)) {
            let bytes = PageMapEntryBytes::read_from_bytes(bytes).ok()?;
            let (place, shared) = place(bytes.place_and_flags.get())?;
            *page = PageMapEntry { place, page_lsn: Lsn(bytes.page_lsn.get()), crc: bytes.crc.get(), shared };
        }
        let count = Some(usize::from(deltas_len)).filter(|&count| count <= LEAF_DELTAS)?;
        for bytes in deltas.chunks_exact(DELTA_BYTES).take(count) {
            let bytes = DeltaEntryBytes::read_from_bytes(bytes).ok()?;
            let (place, shared) = place(bytes.place_and_flags.get())?;
            let pages = u128::from_le_bytes(bytes.pages);
            let exist = |index: usize| pages >> index & 1 == 0 || !leaf.pages[index].is_hole();
            if pages == 0 || place == Block(0) || !(0..LEAF_PAGES as usize).all(exist) {
                return None;
            }
            leaf.deltas.push(DeltaEntry { block: BlockEntry { place, crc: bytes.crc.get(), shared }, pages });
        }
        Some(leaf)
    }
}

/// A reference to a block, for a change.
pub(crate) enum BlockMut<'a> {
    Base(&'a mut PageMapEntry),
    Delta(&'a mut BlockEntry),
}

impl BlockMut<'_> {
    /// Points the entry to the block's new place.
    pub(crate) fn repoint(self, to: Block, to_shared: bool) {
        let (place, shared) = match self {
            BlockMut::Base(PageMapEntry { place, shared, .. })
            | BlockMut::Delta(BlockEntry { place, shared, .. }) => (place, shared),
        };
        *place = to;
        *shared = to_shared;
    }
}
