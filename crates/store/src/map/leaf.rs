//! A leaf of pages: where the pages of a stretch of an object lie, and the deltas over them.
//!
//! A page is its base, a whole block, or a hole, with its deltas laid over it, the oldest first. A block of deltas belongs to one leaf and
//! may have some for each of its pages. The whole pages of a leaf are found without any of its deltas, in 20 bytes each; what is left of
//! the node is for the deltas, in 28 bytes for each block of them (decision 0045).

use crate::bug::{StoreBug, is_planted};
use crate::format::*;
use device::{Block, Lsn};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Where a page of an object lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PageEntry {
    /// The block of its base; block 0 where it has none.
    pub(crate) place: Block,
    /// The highest LSN that its base and its deltas contain, or that of another page with which a delta was stored: no change of this
    /// page has an LSN between the two. 0 for a hole.
    pub(crate) page_lsn: Lsn,
    /// CRC32C of its base.
    pub(crate) crc: u32,
    /// Whether other entries may refer to the same block.
    pub(crate) shared: bool,
}

/// In the place of a base that is lost: in block 1 lies a root, and no page.
const LOST: Block = Block(1);

impl PageEntry {
    /// What is left of a page that could not be read when it had to be: where it is read, that is an error.
    pub(super) fn lost(page_lsn: Lsn) -> PageEntry {
        PageEntry { place: LOST, page_lsn, crc: 0, shared: false }
    }

    /// Whether nothing is left of it.
    pub(crate) fn is_lost(&self) -> bool {
        self.place == LOST
    }

    /// Neither a base nor a delta.
    pub(crate) fn is_hole(&self) -> bool {
        self.place == Block(0) && self.page_lsn == Lsn(0)
    }

    /// Its block, if it has a base.
    pub(crate) fn base(&self) -> Option<BlockEntry> {
        let PageEntry { place, crc, shared, .. } = *self;
        (place != Block(0) && place != LOST).then_some(BlockEntry { place, crc, shared })
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

/// A block of deltas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeltaEntry {
    pub(crate) block: BlockEntry,
    /// The pages of the leaf for which there is a delta in it that counts, by bits.
    pub(crate) pages: u128,
}

impl DeltaEntry {
    pub(super) fn has(&self, index: usize) -> bool {
        self.pages >> index & 1 == 1
    }
}

/// What no entry of a leaf refers to any more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) base: Option<BlockEntry>,
    pub(crate) deltas: Vec<BlockEntry>,
}

impl Gone {
    pub(crate) fn blocks(&self) -> impl Iterator<Item = &BlockEntry> {
        self.base.iter().chain(&self.deltas)
    }
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PageLeaf {
    pages: [PageEntry; LEAF_PAGES as usize],
    /// In the order in which they were stored.
    deltas: Vec<DeltaEntry>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PageBytes {
    place_and_flags: U64,
    page_lsn: U64,
    crc: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DeltaBytes {
    place_and_flags: U64,
    crc: U32,
    pages: [u8; 16],
}

const PAGE_BYTES: usize = size_of::<PageBytes>();
const DELTA_BYTES: usize = size_of::<DeltaBytes>();
const PAGES_BYTES: usize = PAGE_BYTES * LEAF_PAGES as usize;
const _: () = assert!(PAGE_BYTES == 20 && DELTA_BYTES == 28);
const _: () = assert!(64 + PAGES_BYTES + DELTA_BYTES * LEAF_DELTAS <= 4096);

/// Blocks of deltas that a leaf gets where space is short.
pub(super) const LEAF_DELTAS_TIGHT: usize = 8;

/// In the bits above a place: the block may have other references.
const SHARED: u64 = 1 << 63;

impl PageLeaf {
    pub(crate) fn new() -> PageLeaf {
        PageLeaf { pages: [PageEntry::default(); LEAF_PAGES as usize], deltas: Vec::new() }
    }

    /// Its pages, in order, holes included.
    pub(crate) fn pages(&self) -> &[PageEntry; LEAF_PAGES as usize] {
        &self.pages
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pages.iter().all(PageEntry::is_hole)
    }

    /// The blocks with the deltas of a page, the oldest first.
    pub(crate) fn deltas_of(&self, index: usize) -> impl Iterator<Item = BlockEntry> + '_ {
        self.deltas.iter().filter(move |delta| delta.has(index)).map(|delta| delta.block)
    }

    /// Everything that it refers to, with what is [found](PageLeaf::found) by that number.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = (usize, BlockEntry)> + '_ {
        self.bases().chain(self.deltas.iter().map(|delta| (LEAF_PAGES as usize, delta.block)))
    }

    /// All blocks, each with the page in the leaf whose base it is, or the first one of which it has a delta.
    pub(crate) fn first_pages(&self) -> impl Iterator<Item = (u64, BlockEntry)> + '_ {
        let deltas = self.deltas.iter().map(|delta| (u64::from(delta.pages.trailing_zeros()), delta.block));
        self.bases().map(|(index, base)| (index as u64, base)).chain(deltas)
    }

    /// The pages that are lost.
    pub(crate) fn lost(&self) -> impl Iterator<Item = u64> + '_ {
        self.pages.iter().zip(0..).filter(|(page, _)| page.is_lost()).map(|(_, index)| index)
    }

    /// The bases, with the numbers of their pages.
    pub(crate) fn bases(&self) -> impl Iterator<Item = (usize, BlockEntry)> + '_ {
        self.pages.iter().enumerate().filter_map(|(index, page)| Some((index, page.base()?)))
    }

    /// What was numbered as one of its [blocks](PageLeaf::blocks), if it is still in this place.
    pub(crate) fn found(&mut self, number: usize, place: Block) -> Option<BlockMut<'_>> {
        match self.pages.get_mut(number) {
            Some(page) if page.place == place && place != Block(0) => Some(BlockMut::Base(page)),
            Some(_) => None,
            None => {
                let found = self.deltas.iter_mut().find(|delta| delta.block.place == place);
                found.map(|delta| BlockMut::Delta(&mut delta.block))
            }
        }
    }

    /// As [`found`](PageLeaf::found), to look at.
    pub(crate) fn block(&self, number: usize, place: Block) -> Option<BlockEntry> {
        let found = match self.pages.get(number) {
            Some(page) => page.base(),
            None => self.deltas.iter().map(|delta| delta.block).find(|block| block.place == place),
        };
        found.filter(|block| block.place == place)
    }

    /// All bytes of a page from now on, or a hole.
    pub(crate) fn set(&mut self, index: usize, new: PageEntry) -> Gone {
        let old = std::mem::replace(&mut self.pages[index], new);
        Gone { base: old.base(), deltas: self.drop_deltas(1 << index) }
    }

    /// Pages have no deltas any more.
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

    /// Takes a page out of it. Its deltas belong to the leaf, and were folded before: where it still has some, it cannot be read, and
    /// is lost.
    pub(crate) fn take(&mut self, index: usize) -> (PageEntry, Gone) {
        if !self.has_deltas(index) {
            return (std::mem::take(&mut self.pages[index]), Gone::default());
        }
        (PageEntry::lost(self.pages[index].page_lsn), self.set(index, PageEntry::default()))
    }

    /// What another gets of a page that stays, too: its base, or, as in [`take`](PageLeaf::take), nothing.
    pub(crate) fn share(&mut self, index: usize) -> PageEntry {
        let page = &mut self.pages[index];
        page.shared = page.base().is_some();
        let page = *page;
        if self.has_deltas(index) { PageEntry::lost(page.page_lsn) } else { page }
    }

    fn has_deltas(&self, index: usize) -> bool {
        self.deltas_of(index).next().is_some()
    }

    /// Everything in it may be another's, too.
    pub(crate) fn share_all(&mut self) {
        self.pages.iter_mut().for_each(|page| page.shared = page.base().is_some());
        self.deltas.iter_mut().for_each(|delta| delta.block.shared = true);
    }

    /// A block of deltas over what there is.
    pub(crate) fn add_delta(&mut self, new: DeltaEntry, page_lsn: Lsn) {
        let pages = self.pages.iter_mut().enumerate().filter(|(index, _)| new.has(*index));
        pages.for_each(|(_, page)| page.page_lsn = page_lsn);
        self.deltas.push(new);
    }

    /// Whether it has space for so many blocks of deltas more, of at most `most`, and none of these pages has as many deltas as a page may.
    pub(crate) fn takes_deltas(&self, blocks: usize, most: usize, pages: u128) -> bool {
        let is_full = |index: usize| self.deltas_of(index).count() >= PAGE_DELTAS;
        self.deltas.len() + blocks <= most
            && (0..LEAF_PAGES as usize).filter(|index| pages >> index & 1 == 1).all(|index| !is_full(index))
    }

    /// How many of them it has, for the head of the node.
    pub(super) fn deltas_len(&self) -> u8 {
        self.deltas.len() as u8
    }

    pub(super) fn encode(&self, into: &mut [u8]) {
        assert!(self.deltas.len() <= LEAF_DELTAS, "whoever adds one looks first");
        let bits = |place, shared| place_to_bits(place) | if shared { SHARED } else { 0 };
        let (pages, deltas) = into.split_at_mut(PAGES_BYTES);
        for (page, bytes) in self.pages.iter().zip(pages.chunks_exact_mut(PAGE_BYTES)) {
            let place_and_flags = bits(page.place, page.shared).into();
            let page = PageBytes { place_and_flags, page_lsn: page.page_lsn.0.into(), crc: page.crc.into() };
            page.write_to(bytes).expect("exactly as long");
        }
        for (delta, bytes) in self.deltas.iter().zip(deltas.chunks_exact_mut(DELTA_BYTES)) {
            let delta = DeltaBytes {
                place_and_flags: bits(delta.block.place, delta.block.shared).into(),
                crc: delta.block.crc.into(),
                pages: delta.pages.to_le_bytes(),
            };
            delta.write_to(bytes).expect("exactly as long");
        }
    }

    /// `None` for bytes that nobody writes.
    pub(super) fn decode(bytes: &[u8], deltas_len: u8) -> Option<PageLeaf> {
        let place = |bits: u64| Some((place_from_bits(bits & !SHARED)?, bits & SHARED != 0));
        let (pages, deltas) = bytes.split_at(PAGES_BYTES);
        let mut leaf = PageLeaf::new();
        for (page, bytes) in leaf.pages.iter_mut().zip(pages.chunks_exact(PAGE_BYTES)) {
            let bytes = PageBytes::read_from_bytes(bytes).ok()?;
            let (place, shared) = place(bytes.place_and_flags.get())?;
            *page = PageEntry { place, page_lsn: Lsn(bytes.page_lsn.get()), crc: bytes.crc.get(), shared };
        }
        let count = Some(usize::from(deltas_len)).filter(|&count| count <= LEAF_DELTAS)?;
        for bytes in deltas.chunks_exact(DELTA_BYTES).take(count) {
            let bytes = DeltaBytes::read_from_bytes(bytes).ok()?;
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

/// A reference to a block, to change it.
pub(crate) enum BlockMut<'a> {
    Base(&'a mut PageEntry),
    Delta(&'a mut BlockEntry),
}

impl BlockMut<'_> {
    /// It lies elsewhere now.
    pub(crate) fn moved(self, to: Block, to_shared: bool) {
        let (place, shared) = match self {
            BlockMut::Base(PageEntry { place, shared, .. })
            | BlockMut::Delta(BlockEntry { place, shared, .. }) => (place, shared),
        };
        (*place, *shared) = (to, to_shared);
    }
}
