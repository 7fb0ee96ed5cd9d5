//! Delta blocks: changes of pages in one leaf, without their bases, packed into a block.
//!
//! | bytes | content |
//! | --- | --- |
//! | 0..32 | the head |
//! | 32..36 | number of pieces |
//! | 36..40 | 0 |
//! | 40.. | for each piece: the page's number in the leaf, 1 for zeros or 0, first byte, length |
//! | then | the bytes of the pieces that are not zeros, in order |

use crate::format::*;
use device::{BLOCK_BYTES, Page, PageNo, SharedPage, StoreId};
use std::ops::Range;
use std::sync::Arc;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One range of a delta.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeltaPiece<'a> {
    /// Bytes, from this position in the page on.
    Bytes(u16, &'a [u8]),
    /// Zeros: position in the page, and number.
    Zeros(u16, u16),
}

impl DeltaPiece<'_> {
    /// The bytes of the page that it changes.
    pub fn range(&self) -> Range<usize> {
        let (start, len) = match *self {
            DeltaPiece::Bytes(start, bytes) => (start, bytes.len()),
            DeltaPiece::Zeros(start, len) => (start, usize::from(len)),
        };
        usize::from(start)..usize::from(start) + len
    }

    /// Its bytes in a block.
    fn bytes(&self) -> &[u8] {
        match self {
            DeltaPiece::Bytes(_, bytes) => bytes,
            DeltaPiece::Zeros(..) => &[],
        }
    }
}

/// Deltas of some pages of one leaf, in one block.
#[derive(Debug, Clone)]
pub struct DeltaBlock {
    /// The leaf's first page.
    first: PageNo,
    /// The leaf's pages with a delta here, one bit each.
    page_bits: u128,
    store: StoreId,
    bytes: SharedPage,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DeltaBlockHead {
    head: StructureHead,
    pieces: U32,
    reserved: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct DeltaPieceBytes {
    page: u8,
    zeros: u8,
    start: U16,
    len: U16,
}

const HEAD_BYTES: usize = size_of::<DeltaBlockHead>();
const PIECE_BYTES: usize = size_of::<DeltaPieceBytes>();
const _: () = assert!(HEAD_BYTES == 40 && PIECE_BYTES == 6);

/// The number of a page in its leaf, and the leaf's first page.
fn index_and_leaf(page: PageNo) -> (usize, PageNo) {
    let index = page.0 % LEAF_PAGES;
    (index as usize, PageNo(page.0 - index))
}

/// The first page of the leaf in which a page lies.
pub fn leaf_first_page(page: PageNo) -> PageNo {
    index_and_leaf(page).1
}

/// Packs deltas into blocks. Pages must come in ascending order.
pub struct DeltaPacker {
    store: StoreId,
    done: Vec<DeltaBlock>,
    open: Option<OpenDeltaBlock>,
}

/// A delta block that is being filled.
struct OpenDeltaBlock {
    first: PageNo,
    page_bits: u128,
    heads: Vec<DeltaPieceBytes>,
    bytes: Vec<u8>,
}

impl OpenDeltaBlock {
    fn new(first: PageNo) -> OpenDeltaBlock {
        OpenDeltaBlock { first, page_bits: 0, heads: Vec::new(), bytes: Vec::new() }
    }

    fn push(&mut self, index: usize, piece: &DeltaPiece<'_>) {
        let range = piece.range();
        let zeros = u8::from(matches!(piece, DeltaPiece::Zeros(..)));
        let start = (range.start as u16).into();
        let len = (range.len() as u16).into();
        self.heads.push(DeltaPieceBytes { page: index as u8, zeros, start, len });
        self.bytes.extend_from_slice(piece.bytes());
        self.page_bits |= 1 << index;
    }

    /// Whether a delta with this many pieces and bytes fits.
    fn fits(&self, pieces: usize, bytes: usize) -> bool {
        let heads = (self.heads.len() + pieces) * PIECE_BYTES;
        HEAD_BYTES + heads + self.bytes.len() + bytes <= BLOCK_BYTES
    }

    fn seal(self, store: StoreId) -> DeltaBlock {
        let mut page = Page::zeroed();
        let pieces = (self.heads.len() as u32).into();
        let head =
            DeltaBlockHead { head: StructureHead::new(MAGIC_DELTAS, store), pieces, reserved: 0.into() };
        head.write_to_prefix(&mut page.0).expect("smaller than a page");
        let heads = self.heads.as_bytes();
        page.0[HEAD_BYTES..HEAD_BYTES + heads.len()].copy_from_slice(heads);
        page.0[HEAD_BYTES + heads.len()..][..self.bytes.len()].copy_from_slice(&self.bytes);
        seal(&mut page.0);
        DeltaBlock { first: self.first, page_bits: self.page_bits, store, bytes: Arc::new(page) }
    }
}

impl DeltaPacker {
    /// A packer for blocks of this store.
    pub fn new(store: StoreId) -> DeltaPacker {
        DeltaPacker { store, done: Vec::new(), open: None }
    }

    /// Adds a page's delta. Returns `false` if it does not fit into one block.
    pub fn add<'a>(&mut self, page: PageNo, pieces: impl Iterator<Item = DeltaPiece<'a>>) -> bool {
        let (index, first) = index_and_leaf(page);
        let pieces: Vec<DeltaPiece<'a>> = pieces.collect();
        let bytes = pieces.iter().map(|piece| piece.bytes().len()).sum();
        if !OpenDeltaBlock::new(first).fits(pieces.len(), bytes) {
            return false;
        }
        if self.open.as_ref().is_some_and(|open| open.first != first || !open.fits(pieces.len(), bytes)) {
            self.close();
        }
        let open = self.open.get_or_insert_with(|| OpenDeltaBlock::new(first));
        pieces.iter().for_each(|piece| open.push(index, piece));
        true
    }

    fn close(&mut self) {
        let store = self.store;
        self.done.extend(self.open.take().map(|open| open.seal(store)));
    }

    /// The finished blocks.
    pub fn finish(mut self) -> Vec<DeltaBlock> {
        self.close();
        self.done
    }
}

impl DeltaBlock {
    /// The first page of its leaf.
    pub fn first(&self) -> PageNo {
        self.first
    }

    /// The pages for which it has a delta.
    pub fn pages(&self) -> impl Iterator<Item = PageNo> + '_ {
        (0..LEAF_PAGES)
            .filter(|index| self.page_bits >> index & 1 == 1)
            .map(|index| PageNo(self.first.0 + index))
    }

    /// Lays the delta of a page over `into`; `false` if there is none.
    pub fn overlay(&self, page: PageNo, into: &mut Page) -> bool {
        let (index, first) = index_and_leaf(page);
        first == self.first && overlay_delta(&self.bytes, index, self.store, into).is_some()
    }

    /// The pages for which it has a delta, one bit each, the leaf's first page lowest.
    pub(crate) fn page_bits(&self) -> u128 {
        self.page_bits
    }

    /// The bytes of the block.
    pub fn bytes(&self) -> &SharedPage {
        &self.bytes
    }
}

/// Lays the delta of a page in `block` over `page`; `None` if `block` is no delta block, or has no delta of
/// the page.
pub(crate) fn overlay_delta(block: &Page, index: usize, store: StoreId, page: &mut Page) -> Option<()> {
    verify_head(&block.0, MAGIC_DELTAS, store)?;
    let (head, rest) = DeltaBlockHead::read_from_prefix(&block.0).ok()?;
    let heads = rest.get(..head.pieces.get() as usize * PIECE_BYTES)?;
    let mut at = heads.len();
    let mut found = false;
    for piece in heads.chunks_exact(PIECE_BYTES) {
        let piece = DeltaPieceBytes::read_from_bytes(piece).ok()?;
        let start = usize::from(piece.start.get());
        let len = usize::from(piece.len.get());
        let taken = if piece.zeros == 0 { len } else { 0 };
        if usize::from(piece.page) == index {
            let into = page.0.get_mut(start..start + len)?;
            if piece.zeros == 0 {
                into.copy_from_slice(rest.get(at..at + len)?);
            } else {
                into.fill(0);
            }
            found = true;
        }
        at += taken;
    }
    found.then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: StoreId = StoreId([7; 16]);

    fn laid(block: &DeltaBlock, page: u64) -> Option<Page> {
        let mut into = Page([0xee; BLOCK_BYTES]);
        overlay_delta(block.bytes(), index_and_leaf(PageNo(page)).0, ID, &mut into).map(|()| into)
    }

    #[test]
    fn deltas_of_one_leaf_share_blocks() {
        let mut packer = DeltaPacker::new(ID);
        for page in 130..150 {
            let bytes = [page as u8; 512];
            let pieces = [DeltaPiece::Bytes(100, &bytes), DeltaPiece::Zeros(2000, 96)];
            assert!(packer.add(PageNo(page), pieces.into_iter()));
        }
        assert!(packer.add(PageNo(256), [DeltaPiece::Zeros(0, 1)].into_iter()), "of the next leaf");
        let blocks = packer.finish();
        assert_eq!(blocks.len(), 4, "seven each, and one of another leaf");
        assert_eq!(blocks.iter().map(|block| block.first().0).collect::<Vec<_>>(), [128, 128, 128, 256]);
        let mut found = Vec::new();
        for block in &blocks[..3] {
            for page in block.pages() {
                let bytes = laid(block, page.0).expect("it has one");
                assert_eq!(bytes.0[100..612], [page.0 as u8; 512]);
                assert_eq!(bytes.0[2000..2096], [0; 96]);
                let rest = bytes.0[..100].iter().chain(&bytes.0[612..2000]).chain(&bytes.0[2096..]);
                assert!(rest.copied().all(|byte| byte == 0xee), "nothing else changes");
                found.push(page.0);
            }
            assert_eq!(laid(block, 150), None, "it has none of this page");
        }
        assert_eq!(found, (130..150).collect::<Vec<_>>());
        assert_eq!(overlay_delta(&Page::zeroed(), 0, ID, &mut Page::zeroed()), None, "no block of deltas");
    }

    #[test]
    fn largest_delta_fills_one_block() {
        let most = BLOCK_BYTES - HEAD_BYTES - PIECE_BYTES;
        let bytes = [1; BLOCK_BYTES];
        let mut packer = DeltaPacker::new(ID);
        assert!(!packer.add(PageNo(0), [DeltaPiece::Bytes(0, &bytes[..most + 1])].into_iter()));
        assert!(packer.add(PageNo(0), [DeltaPiece::Bytes(0, &bytes[..most])].into_iter()));
        let many = (0..2000).map(|at| DeltaPiece::Bytes(2 * at, &[3][..]));
        assert!(!packer.add(PageNo(1), many), "its pieces need more than a block");
        assert_eq!(packer.finish().len(), 1);
    }
}
