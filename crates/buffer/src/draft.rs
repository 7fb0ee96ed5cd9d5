//! A commit group in memory, on its way to the device.

use crate::format::{GROUP_HEADER_BYTES, GROUP_MAGIC, GroupHeader, RECORD_VERSION, seal};
use crate::record::{self, Order, Record};
use crate::ring::{GroupNo, Mark, Position, blocks_of};
use device::{BLOCK_BYTES, Lsn, Page, StoreId};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

/// A group is sealed when the next transaction would take it beyond 1 MiB: long enough for the full speed of any
/// device, short enough that what is copied in memory stays in its caches.
pub(crate) const OPEN_BLOCKS_MAX: u64 = 256;

/// A group that is being filled (owned by the state, under its lock) or written (owned by the writer, under its).
/// Lost at a crash unless it was written.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    /// Space for the header, then the transactions; behind `bytes` anything. Kept from group to group, so that
    /// the steady state allocates nothing.
    pages: Vec<Page>,
    /// Bytes in use, the header's included.
    bytes: usize,
    pub(crate) number: GroupNo,
    /// The LSN that its first new record has or will have.
    pub(crate) first: Lsn,
    /// New records in it.
    records: u32,
    transactions: u32,
    /// Where it goes; known once it is sealed.
    pub(crate) at: Position,
}

impl Draft {
    /// An empty group that uses the memory of an old one.
    pub(crate) fn new(pages: Vec<Page>, number: GroupNo, first: Lsn) -> Draft {
        Draft { pages, bytes: GROUP_HEADER_BYTES, number, first, ..Draft::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.transactions == 0
    }

    /// Bytes of the transactions in it and its header.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Blocks that it fills on the device: none while it is empty.
    pub(crate) fn blocks(&self) -> u64 {
        if self.is_empty() { 0 } else { blocks_of(self.bytes()) }
    }

    /// Adds a transaction of `bytes` bytes.
    pub(crate) fn push(&mut self, order: Order, records: &[Record<'_>], bytes: u64) {
        let end = self.bytes + bytes as usize;
        self.grow_to(end);
        record::encode(order, records, &mut Page::bytes_mut(&mut self.pages)[self.bytes..end]);
        self.bytes = end;
        self.transactions += 1;
        if let Order::New(_) = order {
            self.records += records.len() as u32;
        }
    }

    fn grow_to(&mut self, bytes: usize) {
        let wanted = bytes.div_ceil(BLOCK_BYTES);
        if wanted > self.pages.len() {
            // Doubling, so that a group filled record by record moves its bytes only a few times; but not past what most
            // groups reach, so that the memory serves the next ones.
            let doubled = (2 * self.pages.len()).min(OPEN_BLOCKS_MAX as usize);
            let more = wanted.max(doubled) - self.pages.len();
            Page::extend_vec_zeroed(&mut self.pages, more).expect("memory for a commit group");
        }
    }

    /// Completes the group as the one after `mark`, when `durable` is the last durable group, and returns the mark
    /// after it.
    pub(crate) fn finish(&mut self, id: StoreId, mark: &Mark, durable: GroupNo) -> Mark {
        assert_eq!(self.number, mark.number, "groups are written in their order");
        let blocks = self.blocks();
        let header = GroupHeader {
            magic: GROUP_MAGIC,
            checksum: U32::ZERO,
            version: RECORD_VERSION.into(),
            reserve: U16::ZERO,
            store: id.0,
            incarnation: mark.incarnation.0.into(),
            number: self.number.0.into(),
            durable: durable.0.into(),
            first: self.first.0.into(),
            predecessor: mark.predecessor.into(),
            bytes: (self.bytes as u32).into(),
            transactions: self.transactions.into(),
            records: self.records.into(),
        };
        let bytes = Page::bytes_mut(&mut self.pages[..blocks as usize]);
        bytes[self.bytes..].fill(0);
        bytes[..GROUP_HEADER_BYTES].copy_from_slice(header.as_bytes());
        let checksum = seal(bytes);
        Mark {
            position: self.at.plus(blocks),
            number: self.number.next(),
            lsn: self.first.plus(u64::from(self.records)),
            incarnation: mark.incarnation,
            predecessor: checksum,
        }
    }

    /// What goes to the device, once finished.
    pub(crate) fn pages(&self) -> &[Page] {
        &self.pages[..self.blocks() as usize]
    }

    /// Gives its memory back.
    pub(crate) fn into_pages(self) -> Vec<Page> {
        self.pages
    }
}
