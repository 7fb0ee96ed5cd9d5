//! The groups in memory: the open group, and sealed groups that wait for a commit. Also gauges that can be
//! read at any time without waiting for an appender.

use crate::counters::BufferCounters;
use crate::error::BufferError;
use crate::format::{GROUP_HEADER_BYTES, GROUP_MAGIC, GroupHeader, RECORD_VERSION, seal};
use crate::record::{self, LogRecord, TransactionLsn, transaction_bytes};
use crate::ring::{GroupBoundary, GroupNo, LogRing, RingPosition, blocks_of};
use crate::sync::{AtomicU64, Ordering};
use device::{BLOCK_BYTES, Incarnation, Lsn, Page, StoreId};
use std::collections::VecDeque;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromZeros, IntoBytes};

/// The size of a commit group: a group is sealed when the next transaction would make it larger, and worth a
/// commit when it is this large.
///
/// Large enough for the full speed of any device, small enough that its bytes stay in the processor's caches.
/// A larger transaction is a group of its own; the format allows 8 MiB (`GROUP_BLOCKS_MAX`), or a quarter of
/// the ring.
pub const GROUP_BYTES: u64 = 1 << 20;

const GROUP_BLOCKS: u64 = GROUP_BYTES / BLOCK_BYTES as u64;

/// A group that is being filled (owned by the state, under its lock) or written (owned by the writer, under
/// its lock). Lost at a crash unless it was written.
#[derive(Debug, Default)]
pub(crate) struct CommitGroup {
    /// The header's space, then the transactions; bytes behind `bytes` are undefined. The memory is kept from
    /// group to group, so that the steady state allocates nothing.
    pages: Vec<Page>,
    /// Bytes in use, the header's included.
    bytes: usize,
    pub(crate) number: GroupNo,
    /// The LSN that the group's first new record has or will have.
    pub(crate) first: Lsn,
    /// The number of new records.
    records: u32,
    transactions: u32,
    /// The group's place in the ring, known once it is sealed.
    pub(crate) at: RingPosition,
}

impl CommitGroup {
    /// An empty group that uses the memory of an old one.
    pub(crate) fn new(pages: Vec<Page>, number: GroupNo, first: Lsn) -> CommitGroup {
        CommitGroup { pages, bytes: GROUP_HEADER_BYTES, number, first, ..CommitGroup::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.transactions == 0
    }

    /// The bytes of the header and the transactions.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// The blocks that the group fills on the device: none while it is empty.
    pub(crate) fn blocks(&self) -> u64 {
        if self.is_empty() { 0 } else { blocks_of(self.bytes()) }
    }

    /// Adds a transaction of `bytes` bytes.
    pub(crate) fn push(&mut self, order: TransactionLsn, records: &[LogRecord<'_>], bytes: u64) {
        let end = self.bytes + bytes as usize;
        self.grow_to(end);
        record::encode_transaction(order, records, &mut Page::bytes_mut(&mut self.pages)[self.bytes..end]);
        self.bytes = end;
        self.transactions += 1;
        if let TransactionLsn::New(_) = order {
            self.records += records.len() as u32;
        }
    }

    fn grow_to(&mut self, bytes: usize) {
        let wanted = bytes.div_ceil(BLOCK_BYTES);
        if wanted > self.pages.len() {
            // Doubled, so that a group filled record by record moves its bytes only a few times; but not past
            // the size of most groups, so that the memory serves the next ones.
            let doubled = (2 * self.pages.len()).min(GROUP_BLOCKS as usize);
            let more = wanted.max(doubled) - self.pages.len();
            Page::extend_vec_zeroed(&mut self.pages, more).expect("memory for a commit group");
        }
    }

    /// Completes the header of the group that follows `mark`, where `durable` is the last durable group.
    /// Returns the boundary after the group.
    pub(crate) fn finish(&mut self, id: StoreId, mark: &GroupBoundary, durable: GroupNo) -> GroupBoundary {
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
        GroupBoundary {
            position: self.at.plus(blocks),
            number: self.number.next(),
            lsn: self.first.plus(u64::from(self.records)),
            incarnation: mark.incarnation,
            predecessor: checksum,
        }
    }

    /// The pages to write to the device, once finished.
    pub(crate) fn pages(&self) -> &[Page] {
        &self.pages[..self.blocks() as usize]
    }

    /// The group's memory, for a later group.
    pub(crate) fn into_pages(self) -> Vec<Page> {
        self.pages
    }
}

/// The page vectors kept for later groups: one being filled, one being written, and two for a burst.
const SPARES_MAX: usize = 4;

/// The state that appenders change, under one short lock that no thread holds while it waits for the device.
/// All of it is lost at a crash.
pub(crate) struct BufferState {
    ring: LogRing,
    pub(crate) open: CommitGroup,
    pub(crate) sealed: VecDeque<CommitGroup>,
    spare_pages: Vec<Vec<Page>>,
    /// Where the last sealed group ends.
    end: RingPosition,
    /// The tail on media: blocks before it may be overwritten.
    tail: RingPosition,
    /// No group before this one is needed.
    pub(crate) released: GroupNo,
    /// The store's newest durable batch, as of the last release or record.
    pub(crate) store_batch: u64,
    /// The store batch in the newest header slot on media.
    pub(crate) durable_store_batch: u64,
    /// The store relies on `store_batch` being in a header slot with the next commit.
    pub(crate) slot_due: bool,
    /// The last LSN given out.
    pub(crate) newest: Lsn,
    /// The highest LSN on media.
    pub(crate) durable: Lsn,
    /// The last group on media.
    pub(crate) durable_group: GroupNo,
    pub(crate) incarnation: Incarnation,
    /// Whether this opening has begun its incarnation.
    pub(crate) begun: bool,
    /// The first failure of the device: from then on it is unknown which groups are durable.
    pub(crate) failed: Option<BufferError>,
    pub(crate) bytes_appended: u64,
    /// As of the last commit; bytes appended since are counted in `bytes_appended`.
    pub(crate) counters: BufferCounters,
}

/// The log, as recovery has found it.
pub(crate) struct RecoveredLog {
    pub(crate) tail: RingPosition,
    pub(crate) end: RingPosition,
    pub(crate) oldest_group: GroupNo,
    pub(crate) next_group: GroupNo,
    pub(crate) newest: Lsn,
    pub(crate) incarnation: Incarnation,
    pub(crate) store_batch: u64,
}

impl BufferState {
    pub(crate) fn new(ring: LogRing, found: RecoveredLog) -> BufferState {
        BufferState {
            ring,
            open: CommitGroup::new(Vec::new(), found.next_group, found.newest.plus(1)),
            sealed: VecDeque::new(),
            spare_pages: Vec::new(),
            end: found.end,
            tail: found.tail,
            released: found.oldest_group,
            store_batch: found.store_batch,
            durable_store_batch: found.store_batch,
            slot_due: false,
            newest: found.newest,
            durable: found.newest,
            durable_group: GroupNo(found.next_group.0 - 1),
            incarnation: found.incarnation,
            begun: false,
            failed: None,
            bytes_appended: 0,
            counters: BufferCounters::default(),
        }
    }

    /// The failure of the device, if it has failed.
    pub(crate) fn check(&self) -> Result<(), BufferError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Begins an incarnation whose LSNs go on after `newest`.
    pub(crate) fn begin_incarnation(&mut self, incarnation: Incarnation, newest: Lsn) {
        assert!(self.open.is_empty() && self.sealed.is_empty(), "nothing is appended before the beginning");
        self.incarnation = incarnation;
        self.newest = newest;
        self.durable = newest;
        self.open.first = newest.plus(1);
        self.begun = true;
    }

    /// Adds a transaction to the open group, or to a new one if it does not fit there. Returns its bytes.
    pub(crate) fn append(
        &mut self,
        order: TransactionLsn,
        records: &[LogRecord<'_>],
    ) -> Result<u64, BufferError> {
        let bytes = transaction_bytes(records);
        let alone = GROUP_HEADER_BYTES as u64 + bytes;
        let limit = self.ring.group_blocks_max * BLOCK_BYTES as u64;
        if alone > limit {
            return Err(BufferError::TransactionTooLarge { bytes: alone, limit });
        }
        let together = self.open.bytes() + bytes;
        let limit = limit.min(GROUP_BLOCKS * BLOCK_BYTES as u64);
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
        Ok(bytes)
    }

    /// Closes the open group, unless it is empty, and begins the next one.
    pub(crate) fn seal(&mut self) {
        if self.open.is_empty() {
            return;
        }
        let next = CommitGroup::new(
            self.spare_pages.pop().unwrap_or_default(),
            self.open.number.next(),
            self.newest.plus(1),
        );
        let mut full = std::mem::replace(&mut self.open, next);
        full.at = self.ring.place(self.end, full.blocks());
        self.end = full.at.plus(full.blocks());
        self.sealed.push_back(full);
    }

    /// Keeps the memory of a written group for a later group.
    pub(crate) fn recycle(&mut self, draft: CommitGroup) {
        let pages = draft.into_pages();
        if self.spare_pages.len() < SPARES_MAX && pages.len() as u64 <= GROUP_BLOCKS {
            self.spare_pages.push(pages);
        }
    }

    /// Moves the log to the ring `larger`, if the log ends in the lap of the old ring that `tail`, the tail
    /// on media, is in.
    ///
    /// Returns the number of blocks by which all positions became lower. Free space does not shrink.
    pub(crate) fn switch_ring(&mut self, larger: LogRing, tail: RingPosition) -> Option<u64> {
        let laps = tail.0 - tail.0 % self.ring.blocks;
        if self.open_end().0 >= laps + self.ring.blocks {
            return None;
        }
        self.ring = larger;
        self.end = self.end.minus(laps);
        self.tail = self.tail.minus(laps);
        self.sealed.iter_mut().for_each(|draft| draft.at = draft.at.minus(laps));
        Some(laps)
    }

    /// Frees the space before `tail`.
    pub(crate) fn free_before(&mut self, tail: RingPosition) {
        self.tail = tail;
    }

    /// The blocks that can surely be appended.
    pub(crate) fn free_blocks(&self) -> u64 {
        self.ring.free_blocks(self.open_end(), self.limit(), !self.open.is_empty())
    }

    /// The end of the open group if it is sealed now.
    fn open_end(&self) -> RingPosition {
        let blocks = self.open.blocks();
        self.ring.place(self.end, blocks).plus(blocks)
    }

    /// The end of the free space.
    fn limit(&self) -> RingPosition {
        self.tail.plus(self.ring.blocks)
    }

    /// The bytes in sealed groups and the open one.
    pub(crate) fn open_bytes(&self) -> u64 {
        let open = if self.open.is_empty() { 0 } else { self.open.bytes() };
        open + self.sealed.iter().map(CommitGroup::bytes).sum::<u64>()
    }
}

/// Copies of figures of the state, written under its lock at the end of each change.
///
/// A reader that appends under a lock of its own sees the figures after its own last append, or better ones
/// after a commit since.
pub(crate) struct BufferGauges {
    newest: AtomicU64,
    durable: AtomicU64,
    free_blocks: AtomicU64,
    open_bytes: AtomicU64,
    ring_blocks: AtomicU64,
}

impl BufferGauges {
    pub(crate) fn of(state: &BufferState) -> BufferGauges {
        let zero = || AtomicU64::new(0);
        let gauges = BufferGauges {
            newest: zero(),
            durable: zero(),
            free_blocks: zero(),
            open_bytes: zero(),
            ring_blocks: zero(),
        };
        gauges.publish(state);
        gauges
    }

    /// Copies the figures; the caller holds the state's lock.
    pub(crate) fn publish(&self, state: &BufferState) {
        // A reader loads `durable` before `newest` (see `durable`), so it is stored after it.
        self.newest.store(state.newest.0, Ordering::Release);
        self.durable.store(state.durable.0, Ordering::Release);
        self.free_blocks.store(state.free_blocks(), Ordering::Release);
        self.open_bytes.store(state.open_bytes(), Ordering::Release);
        self.ring_blocks.store(state.ring.blocks, Ordering::Release);
    }

    /// Never ahead of a `newest` that is read after it.
    pub(crate) fn durable(&self) -> Lsn {
        Lsn(self.durable.load(Ordering::Acquire))
    }

    pub(crate) fn newest(&self) -> Lsn {
        Lsn(self.newest.load(Ordering::Acquire))
    }

    pub(crate) fn free_blocks(&self) -> u64 {
        self.free_blocks.load(Ordering::Acquire)
    }

    pub(crate) fn open_bytes(&self) -> u64 {
        self.open_bytes.load(Ordering::Acquire)
    }

    pub(crate) fn ring(&self) -> LogRing {
        LogRing::with_blocks(self.ring_blocks.load(Ordering::Acquire))
    }
}
