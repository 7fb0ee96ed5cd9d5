//! The node table: for each node id its block, checksum and number of references.

use super::node::NodeId;
use crate::format::*;
use device::{Block, Page, StoreId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The entry of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NodeEntry {
    /// The node's block; block 0 if no checkpoint has written the node.
    pub(crate) place: Block,
    pub(crate) crc: u32,
    /// Number of parents and roots that hold the id; 0 for an unused id.
    pub(crate) references: u32,
}

/// A page of the table on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TablePage {
    /// The page's block; block 0 if no checkpoint has written the page.
    pub(crate) place: Block,
    pub(crate) crc: u32,
    pub(crate) dirty: bool,
    /// Changed since a checkpoint under way wrote it.
    pub(crate) changed: bool,
}

/// All nodes. The whole table is in memory: 16 bytes a node, 32 MB for a TiB of pages.
#[derive(Debug)]
pub(crate) struct NodeTable {
    entries: Vec<NodeEntry>,
    pages: Vec<TablePage>,
    /// Unused ids. The lowest is used first, so that the table stays dense.
    free: BinaryHeap<Reverse<NodeId>>,
    /// Number of nodes with more than one reference.
    shared: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct TablePageBytes {
    head: StructureHead,
    number: U64,
    reserved: [u8; 24],
    entries: [NodeEntryBytes; TABLE_NODES as usize],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct NodeEntryBytes {
    place: U64,
    crc: U32,
    references: U32,
}

const _: () = assert!(size_of::<TablePageBytes>() == 64 + 16 * TABLE_NODES as usize);

impl NodeTable {
    /// The table of an empty store. Id 0 is taken: it means no node.
    pub(crate) fn new() -> NodeTable {
        NodeTable {
            entries: vec![NodeEntry::default()],
            pages: Vec::new(),
            free: BinaryHeap::new(),
            shared: 0,
        }
    }

    /// A table whose pages were read from the medium.
    pub(crate) fn from_pages(pages: Vec<TablePage>, entries: Vec<NodeEntry>) -> NodeTable {
        let mut table = NodeTable { entries, pages, free: BinaryHeap::new(), shared: 0 };
        if table.entries.is_empty() {
            table.entries.push(NodeEntry::default());
        }
        let unused =
            |(id, entry): (usize, &NodeEntry)| (entry.references == 0).then_some(Reverse(NodeId(id as u64)));
        table.free = table.entries.iter().enumerate().skip(1).filter_map(unused).collect();
        table.count_shared();
        table
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<&NodeEntry> {
        self.entries.get(id.0 as usize).filter(|entry| entry.references > 0)
    }

    /// Number of references to a node; 0 if there is no such node.
    pub(crate) fn references(&self, id: NodeId) -> u32 {
        self.get(id).map_or(0, |entry| entry.references)
    }

    /// A new id with one reference.
    pub(crate) fn add(&mut self) -> NodeId {
        let id = self.free.pop().map_or_else(
            || {
                self.entries.push(NodeEntry::default());
                NodeId(self.entries.len() as u64 - 1)
            },
            |Reverse(id)| id,
        );
        *self.entry_mut(id) = NodeEntry { references: 1, ..NodeEntry::default() };
        id
    }

    pub(crate) fn add_reference(&mut self, id: NodeId) {
        let entry = self.entry_mut(id);
        entry.references += 1;
        let becomes_shared = entry.references == 2;
        self.shared += u64::from(becomes_shared);
    }

    /// Whether any node has more than one reference, as after a clone of a volume or of pages.
    pub(crate) fn has_shared(&self) -> bool {
        self.shared > 0
    }

    fn count_shared(&mut self) {
        self.shared = self.entries.iter().filter(|entry| entry.references > 1).count() as u64;
    }

    /// Drops a reference. Returns how many are left.
    pub(crate) fn drop_reference(&mut self, id: NodeId) -> u32 {
        let entry = self.entry_mut(id);
        entry.references -= 1;
        let left = entry.references;
        self.shared -= u64::from(left == 1);
        left
    }

    /// Removes a node without references. Returns its block.
    pub(crate) fn remove(&mut self, id: NodeId) -> Option<Block> {
        let entry = std::mem::take(self.entry_mut(id));
        assert_eq!(entry.references, 0, "node {} is still referred to", id.0);
        self.free.push(Reverse(id));
        (entry.place != Block(0)).then_some(entry.place)
    }

    /// Corrects numbers of references. Returns the nodes whose numbers were wrong, with the new numbers.
    pub(crate) fn set_references(&mut self, counted: &BTreeMap<NodeId, u32>) -> Vec<(NodeId, u32)> {
        let count = |id: NodeId| counted.get(&id).copied().unwrap_or(0);
        let wrong =
            |(id, entry): (NodeId, &NodeEntry)| (count(id) != entry.references).then(|| (id, count(id)));
        let wrong: Vec<(NodeId, u32)> = self.iter().filter_map(wrong).collect();
        for &(id, references) in &wrong {
            self.entry_mut(id).references = references;
            if references == 0 {
                self.remove(id);
            }
        }
        self.count_shared();
        wrong
    }

    /// The table's pages on the medium, in order.
    pub(crate) fn pages(&self) -> &[TablePage] {
        &self.pages
    }

    /// A checkpoint writes page `number` to `place`. The page stays dirty until
    /// [`mark_page_written`](NodeTable::mark_page_written). Returns its bytes, and the block that it had.
    pub(crate) fn write_page_to(
        &mut self,
        number: usize,
        place: Block,
        store: StoreId,
    ) -> (Box<Page>, Option<Block>) {
        let (bytes, crc) = self.encode(number, store);
        let page = &mut self.pages[number];
        page.crc = crc;
        page.changed = false;
        let old = std::mem::replace(&mut page.place, place);
        (bytes, Some(old).filter(|&old| old != Block(0)))
    }

    /// The checkpoint that wrote a page is durable. The page is clean, unless it changed since.
    pub(crate) fn mark_page_written(&mut self, number: usize) {
        if let Some(page) = self.pages.get_mut(number).filter(|page| !page.changed) {
            page.dirty = false;
        }
    }

    /// The checkpoint that wrote a page failed. The page has no block. Returns the block that it was written
    /// to.
    pub(crate) fn mark_page_unwritten(&mut self, number: usize) -> Block {
        let page = &mut self.pages[number];
        page.dirty = true;
        page.changed = true;
        std::mem::replace(&mut page.place, Block(0))
    }

    /// Marks the pages as dirty whose blocks satisfy `is_inside`.
    pub(crate) fn rewrite_pages(&mut self, is_inside: impl Fn(Block) -> bool) {
        self.pages.iter_mut().filter(|page| is_inside(page.place)).for_each(|page| page.dirty = true);
    }

    /// Marks all pages as dirty, to be written in order, if they lie in more than `max` runs of consecutive
    /// blocks.
    pub(crate) fn rewrite_if_scattered(&mut self, max: usize) {
        if self.runs() > max {
            self.pages.iter_mut().for_each(|page| page.dirty = true);
        }
    }

    /// Number of runs of consecutive blocks among the clean pages. Each dirty page ends a run.
    fn runs(&self) -> usize {
        let follows = |page: &TablePage, next: &TablePage| {
            !page.dirty && !next.dirty && page.place.0 + 1 == next.place.0
        };
        self.pages.chunk_by(follows).filter(|run| !run[0].dirty).count()
    }

    /// Drops pages at the end in which no id is used. Returns their blocks.
    pub(crate) fn shrink(&mut self) -> Vec<Block> {
        let page = |last: usize| last / TABLE_NODES as usize;
        let used = self.entries.iter().rposition(|entry| entry.references > 0).unwrap_or(0);
        let pages = page(used) + 1;
        if pages >= self.pages.len() {
            return Vec::new();
        }
        let gone = self.pages.split_off(pages);
        self.entries.truncate(pages * TABLE_NODES as usize);
        let left = self.entries.len() as u64;
        self.free.retain(|Reverse(id)| id.0 < left);
        gone.into_iter().map(|page| page.place).filter(|&place| place != Block(0)).collect()
    }

    /// Sets the block of a node. Returns the block that it had.
    pub(crate) fn set_place(&mut self, id: NodeId, place: Block, crc: u32) -> Option<Block> {
        let entry = self.entry_mut(id);
        let old = std::mem::replace(&mut entry.place, place);
        entry.crc = crc;
        (old != Block(0)).then_some(old)
    }

    /// Number of nodes in use.
    pub(crate) fn used_count(&self) -> u64 {
        self.entries.len() as u64 - 1 - self.free.len() as u64
    }

    /// All nodes in use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, &NodeEntry)> {
        let used = |(_, entry): &(NodeId, &NodeEntry)| entry.references > 0;
        self.entries.iter().enumerate().map(|(id, entry)| (NodeId(id as u64), entry)).filter(used)
    }

    /// The page of the table with a node's entry.
    pub(crate) fn page_of(id: NodeId) -> usize {
        (id.0 / TABLE_NODES) as usize
    }

    fn entry_mut(&mut self, id: NodeId) -> &mut NodeEntry {
        let page = NodeTable::page_of(id);
        if page >= self.pages.len() {
            self.pages.resize(page + 1, TablePage::default());
        }
        self.pages[page].dirty = true;
        self.pages[page].changed = true;
        &mut self.entries[id.0 as usize]
    }

    /// The bytes of page `number`, and their checksum.
    pub(crate) fn encode(&self, number: usize, store: StoreId) -> (Box<Page>, u32) {
        let none = NodeEntryBytes { place: 0.into(), crc: 0.into(), references: 0.into() };
        let mut bytes = TablePageBytes {
            head: StructureHead::new(MAGIC_TABLE, store),
            number: (number as u64).into(),
            reserved: [0; 24],
            entries: [none; TABLE_NODES as usize],
        };
        let from = number * TABLE_NODES as usize;
        for (bytes, entry) in bytes.entries.iter_mut().zip(&self.entries[from..]) {
            *bytes = NodeEntryBytes {
                place: place_to_bits(entry.place).into(),
                crc: entry.crc.into(),
                references: entry.references.into(),
            };
        }
        let mut page = Page::zeroed();
        bytes.write_to_prefix(&mut page.0).expect("smaller than a page");
        let crc = seal(&mut page.0);
        (page, crc)
    }
}

/// The entries in page `number` of the table; `None` if these are not its bytes.
pub(crate) fn decode(page: &Page, number: usize, store: StoreId) -> Option<Vec<NodeEntry>> {
    verify_head(&page.0, MAGIC_TABLE, store)?;
    let (bytes, _) = TablePageBytes::read_from_prefix(&page.0).expect("smaller than a page");
    let entry = |bytes: &NodeEntryBytes| {
        Some(NodeEntry {
            place: place_from_bits(bytes.place.get())?,
            crc: bytes.crc.get(),
            references: bytes.references.get(),
        })
    };
    let ours = bytes.number.get() == number as u64;
    if ours { bytes.entries.iter().map(entry).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: StoreId = StoreId([1; 16]);

    /// A table with `nodes` nodes, each written at the block with its number plus 1000.
    fn table(nodes: u64) -> NodeTable {
        let mut table = NodeTable::new();
        for number in 1..=nodes {
            assert_eq!(table.add(), NodeId(number));
            assert_eq!(table.set_place(NodeId(number), Block(1000 + number), number as u32), None);
        }
        table
    }

    /// Marks the pages as written, at these blocks.
    fn written(table: &mut NodeTable, places: &[u64]) {
        for (page, &place) in table.pages.iter_mut().zip(places) {
            *page = TablePage { place: Block(place), ..TablePage::default() };
        }
    }

    #[test]
    fn removed_ids_are_reused_lowest_first() {
        let mut table = table(3);
        assert_eq!((table.used_count(), table.references(NodeId(2)), table.references(NodeId(9))), (3, 1, 0));
        table.add_reference(NodeId(2));
        assert_eq!(table.references(NodeId(2)), 2);
        assert_eq!(table.drop_reference(NodeId(2)), 1);
        for id in [2, 1] {
            assert_eq!(table.drop_reference(NodeId(id)), 0);
            assert_eq!(table.remove(NodeId(id)), Some(Block(1000 + id)));
            assert_eq!(table.get(NodeId(id)), None);
        }
        assert_eq!(table.iter().map(|(id, _)| id).collect::<Vec<_>>(), [NodeId(3)]);
        assert_eq!(
            (table.used_count(), table.add(), table.add(), table.add()),
            (1, NodeId(1), NodeId(2), NodeId(4))
        );
        assert_eq!((table.used_count(), table.references(NodeId(1))), (4, 1));
        table.drop_reference(NodeId(4));
        assert_eq!(table.remove(NodeId(4)), None, "no checkpoint wrote it");
        assert_eq!(table.set_place(NodeId(3), Block(9), 5), Some(Block(1003)));
        let entry = NodeEntry { place: Block(9), crc: 5, references: 1 };
        assert_eq!(table.get(NodeId(3)), Some(&entry));
        assert_eq!(table.get(NodeId::NONE), None);
    }

    #[test]
    fn table_pages_read_back() {
        let mut before = table(TABLE_NODES * 2 + 5);
        assert_eq!(before.pages.len(), 3);
        written(&mut before, &[50, 51, 52]);
        before.drop_reference(NodeId(TABLE_NODES));
        before.remove(NodeId(TABLE_NODES));
        let changed: Vec<_> = before.pages.iter().map(|page| (page.dirty, page.changed)).collect();
        assert_eq!(changed, [(false, false), (true, true), (false, false)]);
        let mut entries = Vec::new();
        for number in 0..3 {
            let (page, crc) = before.encode(number, STORE);
            assert_eq!(verify_head(&page.0, MAGIC_TABLE, STORE).expect("whole").crc.get(), crc);
            assert!(decode(&page, number + 1, STORE).is_none(), "another page's bytes");
            assert!(decode(&page, number, StoreId([2; 16])).is_none(), "another store's");
            entries.extend(decode(&page, number, STORE).expect("its own"));
        }
        let mut after = NodeTable::from_pages(before.pages.clone(), entries);
        assert_eq!(after.iter().collect::<Vec<_>>(), before.iter().collect::<Vec<_>>());
        assert_eq!(after.used_count(), before.used_count());
        assert_eq!(after.add(), NodeId(TABLE_NODES), "it is free");
        assert_eq!(after.add(), NodeId(TABLE_NODES * 2 + 5 + 1));
        assert_eq!(NodeTable::from_pages(Vec::new(), Vec::new()).add(), NodeId(1));
    }

    #[test]
    fn counted_references_replace_wrong_ones() {
        let mut table = table(4);
        let counted = BTreeMap::from([(NodeId(1), 1), (NodeId(2), 3), (NodeId(4), 1)]);
        assert_eq!(table.set_references(&counted), [(NodeId(2), 3), (NodeId(3), 0)]);
        assert_eq!([1, 2, 3, 4].map(|id| table.references(NodeId(id))), [1, 3, 0, 1]);
        assert_eq!((table.used_count(), table.add()), (3, NodeId(3)), "its id is free");
        let right = BTreeMap::from([(NodeId(1), 1), (NodeId(2), 3), (NodeId(3), 1), (NodeId(4), 1)]);
        assert_eq!(table.set_references(&right), []);
    }

    #[test]
    fn scattered_pages_are_rewritten() {
        let runs = |places: &[u64], dirty: &[usize]| {
            let mut table = table(TABLE_NODES * places.len() as u64 - 1);
            written(&mut table, places);
            dirty.iter().for_each(|&page| table.pages[page].dirty = true);
            let runs = table.runs();
            table.rewrite_if_scattered(runs);
            assert_eq!(table.pages.iter().filter(|page| page.dirty).count(), dirty.len(), "they may be");
            if runs > 0 {
                table.rewrite_if_scattered(runs - 1);
                assert!(table.pages.iter().all(|page| page.dirty), "all are written again");
            }
            runs
        };
        assert_eq!(runs(&[10, 11, 12, 13], &[]), 1);
        assert_eq!(runs(&[10, 11, 13, 14], &[]), 2);
        assert_eq!(runs(&[13, 12, 11, 10], &[]), 4);
        assert_eq!(runs(&[10, 11, 12, 13, 14], &[2]), 2, "one that is written elsewhere breaks a run");
        assert_eq!(runs(&[10, 11, 12, 13], &[0, 3]), 1);
        assert_eq!(runs(&[10, 11], &[0, 1]), 0);
    }

    #[test]
    fn unused_pages_at_the_end_are_dropped() {
        let mut table = table(TABLE_NODES * 3 + 2);
        written(&mut table, &[50, 51, 0, 53]);
        assert_eq!(table.shrink(), [], "the last page has nodes");
        let remove = |table: &mut NodeTable, id| {
            table.drop_reference(NodeId(id));
            table.remove(NodeId(id));
        };
        (TABLE_NODES * 3..=TABLE_NODES * 3 + 2).for_each(|id| remove(&mut table, id));
        assert_eq!(table.shrink(), [Block(53)]);
        assert_eq!((table.pages.len(), table.references(NodeId(TABLE_NODES * 3 - 1))), (3, 1));
        (TABLE_NODES..TABLE_NODES * 3).chain([5]).for_each(|id| remove(&mut table, id));
        assert_eq!(table.shrink(), [Block(51)], "one was never written");
        assert_eq!((table.pages.len(), table.used_count()), (1, TABLE_NODES - 2));
        assert_eq!(table.shrink(), []);
        assert_eq!((table.add(), table.add()), (NodeId(5), NodeId(TABLE_NODES)));
        assert_eq!(table.pages.len(), 2);
        assert_eq!(table.shrink(), [], "the first node of a page keeps it");
    }
}
