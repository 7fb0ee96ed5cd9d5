//! Object leaves: for each slot the generation of its object, and the object's pages, inline while they are
//! few.

use super::node::{FLAG_SHARED, NodeId, NodeTree, decode_shared_flag};
use super::page_leaf::PageMapEntry;
use crate::format::*;
use device::{Lsn, PageNo};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The entry of the object in a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectEntry {
    pub(crate) generation: u32,
    /// LSN of the last clone or move with this object as source or target. No punch, clone or move up to it
    /// is applied again.
    pub(crate) transfer_lsn: Lsn,
    pub(crate) pages: ObjectPageEntries,
}

/// Where the entries of an object's pages are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ObjectPageEntries {
    /// In the object's entry, in order, if they [fit](fits_inline).
    Inline(Vec<(PageNo, PageMapEntry)>),
    /// In a tree of page leaves.
    Tree(NodeTree),
}

/// Inline pages at most: 64 KiB of file, 64 bytes of checksums.
const INLINE_PAGES_MAX: usize = 16;
/// Inline extents at most: as many as fit into an entry beside the checksums.
pub(super) const INLINE_EXTENTS_MAX: usize = 4;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ObjectBytes {
    generation: U32,
    kind: u8,
    height: u8,
    extents: u8,
    reserved: u8,
    root: U64,
    table: [InlineExtentBytes; INLINE_EXTENTS_MAX],
    crcs: [U32; INLINE_PAGES_MAX],
    transfer_lsn: U64,
    reserved_2: [u8; 32],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct InlineExtentBytes {
    page: U64,
    place: U64,
    page_lsn: U64,
    count: U32,
    flags: U32,
}

const ENTRY_BYTES: usize = size_of::<ObjectBytes>();
const _: () = assert!(ENTRY_BYTES == 248 && 64 + ENTRY_BYTES * LEAF_OBJECTS as usize <= 4096);

const KIND_NONE: u8 = 0;
const KIND_INLINE: u8 = 1;
const KIND_TREE: u8 = 2;

/// Splits pages into extents: consecutive pages with consecutive blocks, one page LSN and one shared flag.
fn inline_extents(pages: &[(PageNo, PageMapEntry)]) -> impl Iterator<Item = &[(PageNo, PageMapEntry)]> {
    pages.chunk_by(|(page, entry), (next_page, next)| {
        page.0 + 1 == next_page.0
            && entry.place.0 + 1 == next.place.0
            && entry.page_lsn == next.page_lsn
            && entry.shared == next.shared
    })
}

/// Whether these pages fit into an object's entry.
pub(crate) fn fits_inline(pages: &[(PageNo, PageMapEntry)]) -> bool {
    pages.len() <= INLINE_PAGES_MAX && inline_extents(pages).count() <= INLINE_EXTENTS_MAX
}

pub(super) fn encode(entries: &[Option<ObjectEntry>; LEAF_OBJECTS as usize], into: &mut [u8]) {
    for (entry, bytes) in entries.iter().zip(into.chunks_exact_mut(ENTRY_BYTES)) {
        let Some(entry) = entry else { continue };
        let mut object = ObjectBytes::new_zeroed();
        object.generation = entry.generation.into();
        object.transfer_lsn = entry.transfer_lsn.0.into();
        match &entry.pages {
            ObjectPageEntries::Tree(tree) => {
                object.kind = KIND_TREE;
                object.height = tree.height;
                object.root = tree.root.0.into();
            }
            ObjectPageEntries::Inline(pages) => {
                object.kind = KIND_INLINE;
                encode_inline(pages, &mut object);
            }
        }
        object.write_to(bytes).expect("exactly as long");
    }
}

fn encode_inline(pages: &[(PageNo, PageMapEntry)], object: &mut ObjectBytes) {
    assert!(fits_inline(pages), "whoever adds a page checks");
    for (index, extent) in inline_extents(pages).enumerate() {
        let (page, first) = extent[0];
        let flags = if first.shared { FLAG_SHARED } else { 0 };
        object.extents = index as u8 + 1;
        object.table[index] = InlineExtentBytes {
            page: page.0.into(),
            place: place_to_bits(first.place).into(),
            page_lsn: first.page_lsn.0.into(),
            count: (extent.len() as u32).into(),
            flags: flags.into(),
        };
    }
    for (crc, (_, entry)) in object.crcs.iter_mut().zip(pages) {
        *crc = entry.crc.into();
    }
}

pub(super) fn decode(bytes: &[u8]) -> Option<Box<[Option<ObjectEntry>; LEAF_OBJECTS as usize]>> {
    let mut entries = Box::new([const { None }; LEAF_OBJECTS as usize]);
    for (entry, bytes) in entries.iter_mut().zip(bytes.chunks_exact(ENTRY_BYTES)) {
        let object = ObjectBytes::read_from_bytes(bytes).ok()?;
        let pages = match object.kind {
            KIND_NONE => continue,
            KIND_INLINE => ObjectPageEntries::Inline(decode_inline(&object)?),
            KIND_TREE => {
                ObjectPageEntries::Tree(NodeTree { root: NodeId(object.root.get()), height: object.height })
            }
            _ => return None,
        };
        let generation = object.generation.get();
        let transfer_lsn = Lsn(object.transfer_lsn.get());
        *entry = Some(ObjectEntry { generation, transfer_lsn, pages });
    }
    Some(entries)
}

fn decode_inline(object: &ObjectBytes) -> Option<Vec<(PageNo, PageMapEntry)>> {
    let mut crcs = object.crcs.iter();
    let mut pages = Vec::new();
    for extent in object.table.get(..usize::from(object.extents))? {
        for index in 0..u64::from(extent.count.get()) {
            let entry = PageMapEntry {
                place: place_from_bits(extent.place.get().checked_add(index)?)?,
                page_lsn: Lsn(extent.page_lsn.get()),
                crc: crcs.next()?.get(),
                shared: decode_shared_flag(extent.flags.get())?,
            };
            pages.push((PageNo(extent.page.get().checked_add(index)?), entry));
        }
    }
    Some(pages)
}

#[cfg(test)]
mod tests {
    use super::super::node;
    use super::*;
    use device::{Block, StoreId};

    fn entry(place: u64, page_lsn: u64) -> PageMapEntry {
        PageMapEntry { place: Block(place), page_lsn: Lsn(page_lsn), crc: place as u32 * 7, shared: false }
    }

    #[test]
    fn extents_that_leave_their_range_are_refused() {
        let extent_of = |page: u64, place: u64| {
            let mut object = ObjectBytes::new_zeroed();
            object.extents = 1;
            object.table[0].page = page.into();
            object.table[0].place = place.into();
            object.table[0].count = 2.into();
            decode_inline(&object).is_some()
        };
        assert!(extent_of(u64::MAX - 1, (1 << 48) - 2));
        assert!(!extent_of(u64::MAX, 50), "a page behind the last");
        assert!(!extent_of(7, (1 << 48) - 1), "a block that no store has");
    }

    #[test]
    fn object_leaf_reads_back() {
        let store = StoreId([1; 16]);
        let mut leaf = node::NodeBody::objects();
        let node::NodeBody::Objects(entries) = &mut leaf else { unreachable!() };
        let inline = vec![
            (PageNo(1), entry(50, 3)),
            (PageNo(2), entry(51, 3)),
            (PageNo(3), entry(52, 4)),
            (PageNo(9), PageMapEntry { shared: true, ..entry(60, 4) }),
        ];
        entries[3] = Some(ObjectEntry {
            generation: 8,
            transfer_lsn: Lsn(9),
            pages: ObjectPageEntries::Inline(inline),
        });
        let tree = NodeTree { root: NodeId(77), height: 2 };
        entries[15] = Some(ObjectEntry {
            generation: 0,
            transfer_lsn: Lsn(u64::MAX),
            pages: ObjectPageEntries::Tree(tree),
        });
        let (page, _) = node::encode(&leaf, NodeId(5), store);
        assert_eq!(node::decode(&page, NodeId(5), store), Some(leaf));
        assert_eq!(node::decode(&page, NodeId(6), store), None, "another node's bytes");
    }

    #[test]
    fn few_extents_and_few_pages_fit_inline() {
        let run: Vec<_> = (0..16).map(|i| (PageNo(i), entry(100 + i, 1))).collect();
        assert!(fits_inline(&run));
        let longer: Vec<_> = (0..17).map(|i| (PageNo(i), entry(100 + i, 1))).collect();
        assert!(!fits_inline(&longer));
        let scattered: Vec<_> = (0..5).map(|i| (PageNo(i), entry(100 + 2 * i, 1))).collect();
        assert!(!fits_inline(&scattered) && fits_inline(&scattered[..4]));
    }

    #[test]
    fn unknown_flags_are_refused() {
        assert_eq!(
            [0, 1, 2, 3, 1 << 31].map(decode_shared_flag),
            [Some(false), Some(true), None, None, None]
        );
    }

    #[test]
    fn extents_have_consecutive_places_and_one_lsn() {
        let first = (PageNo(1), entry(50, 3));
        let next =
            |page, place, page_lsn, shared| (PageNo(page), PageMapEntry { shared, ..entry(place, page_lsn) });
        let count = |second| inline_extents(&[first, second]).count();
        assert_eq!(count(next(2, 51, 3, false)), 1);
        for second in
            [next(3, 51, 3, false), next(2, 52, 3, false), next(2, 51, 4, false), next(2, 51, 3, true)]
        {
            assert_eq!(count(second), 2, "{second:?}");
        }
        assert!(fits_inline(&[]));
    }
}
