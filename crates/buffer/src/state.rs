//! The groups in memory: the open one, and those sealed behind it until a commit takes them.

use crate::counters::Counters;
use crate::draft::{Draft, OPEN_BLOCKS_MAX};
use crate::error::BufferError;
use crate::format::GROUP_HEADER_BYTES;
use crate::record::{Order, Record, transaction_bytes};
use crate::ring::{GroupNo, Position, Ring, blocks_of};
use device::{BLOCK_BYTES, Incarnation, Lsn, Page};
use std::collections::VecDeque;

/// Page vectors kept for later groups: one being filled, one being written, and a burst.
const SPARES_MAX: usize = 4;

/// What appenders change, under one short lock that no thread holds while it waits for the device. All of it is lost
/// at a crash.
pub(crate) struct State {
    ring: Ring,
    pub(crate) open: Draft,
    pub(crate) sealed: VecDeque<Draft>,
    spares: Vec<Vec<Page>>,
    /// Where the last sealed group ends.
    end: Position,
    /// The tail on media: what lies before it may be overwritten.
    tail: Position,
    /// No group before this one is needed.
    pub(crate) released: GroupNo,
    /// The store's newest durable batch by then.
    pub(crate) store_batch: u64,
    /// The store relies on that to be in a header slot with the next commit.
    pub(crate) slot_wanted: bool,
    /// The last LSN given out.
    pub(crate) newest: Lsn,
    /// The highest LSN on media.
    pub(crate) durable: Lsn,
    /// The last group on media.
    pub(crate) durable_group: GroupNo,
    pub(crate) incarnation: Incarnation,
    /// Whether this opening has begun its incarnation.
    pub(crate) begun: bool,
    /// The first failure of the device: from then on it is not known what is durable.
    pub(crate) failed: Option<BufferError>,
    pub(crate) bytes_appended: u64,
    /// As of the last commit; what is appended since is counted above.
    pub(crate) counters: Counters,
}

/// The log, as recovery found it.
pub(crate) struct Found {
    pub(crate) tail: Position,
    pub(crate) end: Position,
    pub(crate) oldest: GroupNo,
    pub(crate) next: GroupNo,
    pub(crate) newest: Lsn,
    pub(crate) incarnation: Incarnation,
    pub(crate) store_batch: u64,
}

impl State {
    pub(crate) fn new(ring: Ring, found: Found) -> State {
        State {
            ring,
            open: Draft::new(Vec::new(), found.next, found.newest.plus(1)),
            sealed: VecDeque::new(),
            spares: Vec::new(),
            end: found.end,
            tail: found.tail,
            released: found.oldest,
            store_batch: found.store_batch,
            slot_wanted: false,
            newest: found.newest,
            durable: found.newest,
            durable_group: GroupNo(found.next.0 - 1),
            incarnation: found.incarnation,
            begun: false,
            failed: None,
            bytes_appended: 0,
            counters: Counters::default(),
        }
    }

    /// The failure of the device, if it has failed.
    pub(crate) fn check(&self) -> Result<(), BufferError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Begins an incarnation whose LSNs go on behind `newest`.
    pub(crate) fn begin(&mut self, incarnation: Incarnation, newest: Lsn) {
        assert!(self.open.is_empty() && self.sealed.is_empty(), "nothing is appended before the beginning");
        self.incarnation = incarnation;
        self.newest = newest;
        self.durable = newest;
        self.open.first = newest.plus(1);
        self.begun = true;
    }

    /// Adds a transaction to the open group, or to a new one if it does not fit there.
    pub(crate) fn append(&mut self, order: Order, records: &[Record<'_>]) -> Result<(), BufferError> {
        let bytes = transaction_bytes(records);
        let alone = GROUP_HEADER_BYTES as u64 + bytes;
        let limit = self.ring.group_blocks_max * BLOCK_BYTES as u64;
        if alone > limit {
            return Err(BufferError::TooBig { bytes: alone, limit });
        }
        let together = self.open.bytes() + bytes;
        let limit = limit.min(OPEN_BLOCKS_MAX * BLOCK_BYTES as u64);
        let new_group = !self.open.is_empty() && together > limit;
        let (from, bytes_of_group) = if new_group { (self.open_end(), alone) } else { (self.end, together) };
        let blocks = blocks_of(bytes_of_group);
        if self.ring.place(from, blocks).plus(blocks) > self.limit() {
            return Err(BufferError::Full);
        }
        if new_group {
            self.seal();
        }
        self.open.push(order, records, bytes);
        self.bytes_appended += bytes;
        Ok(())
    }

    /// Closes the open group, unless it is empty, and begins the next one.
    pub(crate) fn seal(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let next =
            Draft::new(self.spares.pop().unwrap_or_default(), self.open.number.next(), self.newest.plus(1));
        let mut full = std::mem::replace(&mut self.open, next);
        full.at = self.ring.place(self.end, full.blocks());
        self.end = full.at.plus(full.blocks());
        self.sealed.push_back(full);
    }

    /// Keeps the memory of a written group for a later one.
    pub(crate) fn recycle(&mut self, draft: Draft) {
        let pages = draft.into_pages();
        if self.spares.len() < SPARES_MAX && pages.len() as u64 <= OPEN_BLOCKS_MAX {
            self.spares.push(pages);
        }
    }

    /// Gives the space before `tail` free.
    pub(crate) fn tail_moved(&mut self, tail: Position) {
        self.tail = tail;
    }

    /// Blocks that can surely be appended.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.ring.free_blocks(self.open_end(), self.limit(), !self.open.is_empty())
    }

    /// Where the open group ends if it is sealed now.
    fn open_end(&self) -> Position {
        let blocks = self.open.blocks();
        self.ring.place(self.end, blocks).plus(blocks)
    }

    /// The end of the free space.
    fn limit(&self) -> Position {
        self.tail.plus(self.ring.blocks)
    }

    /// Bytes in sealed groups and the open one.
    pub(crate) fn open_bytes(&self) -> u64 {
        let open = if self.open.is_empty() { 0 } else { self.open.bytes() };
        open + self.sealed.iter().map(Draft::bytes).sum::<u64>()
    }
}
