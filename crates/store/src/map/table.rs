//! The node table: from a node's id to its place, checksum, number of references and version.

use super::node::NodeId;
use crate::format::*;
use device::{Block, Page, StoreId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What the table knows about a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NodeEntry {
    /// Its block; block 0 for a node that no checkpoint has written.
    pub(crate) place: Block,
    pub(crate) crc: u32,
    /// Parents and roots that hold its id; 0 for an id that is not in use.
    pub(crate) references: u32,
    /// The checkpoint that wrote it.
    pub(crate) version: u64,
}

/// A page of the table on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct TablePage {
    /// Its block; block 0 for a page that no checkpoint has written.
    pub(crate) place: Block,
    pub(crate) crc: u32,
    pub(crate) dirty: bool,
    /// Not as a checkpoint under way has it.
    pub(crate) changed: bool,
}

/// All nodes, in memory as a whole: 24 bytes each, 48 MB for a TiB of pages.
#[derive(Debug)]
pub(crate) struct NodeTable {
    entries: Vec<NodeEntry>,
    pub(crate) pages: Vec<TablePage>,
    /// The lowest id is used first, so that the table stays dense.
    free: BinaryHeap<Reverse<NodeId>>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct PageBytes {
    head: Head,
    number: U64,
    reserved: [u8; 24],
    entries: [EntryBytes; TABLE_NODES as usize],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EntryBytes {
    place: U64,
    version: U64,
    crc: U32,
    references: U32,
}

const _: () = assert!(size_of::<PageBytes>() == 64 + 24 * TABLE_NODES as usize);

impl NodeTable {
    /// The table of an empty store: id 0 is taken, by nobody.
    pub(crate) fn new() -> NodeTable {
        NodeTable { entries: vec![NodeEntry::default()], pages: Vec::new(), free: BinaryHeap::new() }
    }

    /// The table whose pages were read from the medium.
    pub(crate) fn from_pages(pages: Vec<TablePage>, entries: Vec<NodeEntry>) -> NodeTable {
        let mut table = NodeTable { entries, pages, free: BinaryHeap::new() };
        if table.entries.is_empty() {
            table.entries.push(NodeEntry::default());
        }
        let unused =
            |(id, entry): (usize, &NodeEntry)| (entry.references == 0).then_some(Reverse(NodeId(id as u64)));
        table.free = table.entries.iter().enumerate().skip(1).filter_map(unused).collect();
        table
    }

    pub(crate) fn get(&self, id: NodeId) -> Option<&NodeEntry> {
        self.entries.get(id.0 as usize).filter(|entry| entry.references > 0)
    }

    /// How many references a node has; 0 if there is no such node.
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
        *self.change(id) = NodeEntry { references: 1, ..NodeEntry::default() };
        id
    }

    pub(crate) fn add_reference(&mut self, id: NodeId) {
        self.change(id).references += 1;
    }

    /// How many references are left.
    pub(crate) fn drop_reference(&mut self, id: NodeId) -> u32 {
        let entry = self.change(id);
        entry.references -= 1;
        entry.references
    }

    /// Forgets a node without references; returns the block that it had.
    pub(crate) fn remove(&mut self, id: NodeId) -> Option<Block> {
        let entry = std::mem::take(self.change(id));
        assert_eq!(entry.references, 0, "node {} is still referred to", id.0);
        self.free.push(Reverse(id));
        (entry.place != Block(0)).then_some(entry.place)
    }

    /// Corrects numbers of references. Returns those that were wrong, with what they are now.
    pub(crate) fn set_references(&mut self, counted: &BTreeMap<NodeId, u32>) -> Vec<(NodeId, u32)> {
        let count = |id: NodeId| counted.get(&id).copied().unwrap_or(0);
        let wrong =
            |(id, entry): (NodeId, &NodeEntry)| (count(id) != entry.references).then(|| (id, count(id)));
        let wrong: Vec<(NodeId, u32)> = self.iter().filter_map(wrong).collect();
        for &(id, references) in &wrong {
            self.change(id).references = references;
            if references == 0 {
                self.remove(id);
            }
        }
        wrong
    }

    /// Lets all pages be written again, in order, if they lie in more than `max` runs of consecutive blocks.
    pub(crate) fn gather(&mut self, max: usize) {
        if self.runs() > max {
            self.pages.iter_mut().for_each(|page| page.dirty = true);
        }
    }

    /// The runs of consecutive blocks in which the pages lie that will not be written now; each page that will be
    /// breaks one.
    fn runs(&self) -> usize {
        let follows = |page: &TablePage, next: &TablePage| {
            !page.dirty && !next.dirty && page.place.0 + 1 == next.place.0
        };
        self.pages.chunk_by(follows).filter(|run| !run[0].dirty).count()
    }

    /// Drops pages at the end in which no id is in use. Returns the blocks that they had.
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

    /// The node is now written elsewhere; returns the block that it had.
    pub(crate) fn moved(&mut self, id: NodeId, place: Block, crc: u32, version: u64) -> Option<Block> {
        let entry = self.change(id);
        let old = std::mem::replace(&mut entry.place, place);
        (entry.crc, entry.version) = (crc, version);
        (old != Block(0)).then_some(old)
    }

    /// How many nodes are in use.
    pub(crate) fn used(&self) -> u64 {
        self.entries.len() as u64 - 1 - self.free.len() as u64
    }

    /// All nodes in use.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (NodeId, &NodeEntry)> {
        let used = |(_, entry): &(NodeId, &NodeEntry)| entry.references > 0;
        self.entries.iter().enumerate().map(|(id, entry)| (NodeId(id as u64), entry)).filter(used)
    }

    fn change(&mut self, id: NodeId) -> &mut NodeEntry {
        let page = (id.0 / TABLE_NODES) as usize;
        if page >= self.pages.len() {
            self.pages.resize(page + 1, TablePage::default());
        }
        (self.pages[page].dirty, self.pages[page].changed) = (true, true);
        &mut self.entries[id.0 as usize]
    }

    /// The bytes of page `number`, and their checksum.
    pub(crate) fn encode(&self, number: usize, store: StoreId) -> (Box<Page>, u32) {
        let none = EntryBytes { place: 0.into(), version: 0.into(), crc: 0.into(), references: 0.into() };
        let mut bytes = PageBytes {
            head: Head::new(MAGIC_TABLE, store),
            number: (number as u64).into(),
            reserved: [0; 24],
            entries: [none; TABLE_NODES as usize],
        };
        let from = number * TABLE_NODES as usize;
        for (bytes, entry) in bytes.entries.iter_mut().zip(&self.entries[from..]) {
            *bytes = EntryBytes {
                place: place_to_bits(entry.place).into(),
                version: entry.version.into(),
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
    sealed(&page.0, MAGIC_TABLE, store)?;
    let (bytes, _) = PageBytes::read_from_prefix(&page.0).expect("smaller than a page");
    let entry = |bytes: &EntryBytes| {
        Some(NodeEntry {
            place: place_from_bits(bytes.place.get())?,
            crc: bytes.crc.get(),
            references: bytes.references.get(),
            version: bytes.version.get(),
        })
    };
    let ours = bytes.number.get() == number as u64;
    if ours { bytes.entries.iter().map(entry).collect() } else { None }
}
