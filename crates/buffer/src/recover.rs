//! Following the log from its tail to its end, and telling a torn end from rot.

use crate::decode::{DecodedTransaction, decode_transaction, decode_transaction_unchecked};
use crate::error::BufferError;
use crate::format::{
    GROUP_HEADER_BYTES, GROUP_MAGIC, GroupHeader, HeaderSlot, NUMBER_END, RECORD_VERSION, checksum, front,
};
use crate::planted_bug::{BufferBug, PlantedBufferBug};
use crate::record::{LogRecord, TransactionLsn};
use crate::ring::{GroupBoundary, GroupNo, LogRing, RingPosition, blocks_of};
use device::{BLOCK_BYTES, Device, DeviceError, Incarnation, Lsn, Page, StoreId};
use std::collections::VecDeque;
use std::iter;
use zerocopy::FromZeros;

/// One transaction read back at recovery.
#[derive(Debug)]
pub struct ReplayedTransaction<'a> {
    /// LSN of the first record.
    pub first_lsn: Lsn,
    /// Whether every record has the next LSN, or all of them are one page's delta, re-logged, with `first`.
    pub relogged: bool,
    /// The group it was found in.
    pub group: GroupNo,
    /// Its records, in order.
    pub records: &'a [LogRecord<'a>],
}

impl<'a> ReplayedTransaction<'a> {
    fn of(
        DecodedTransaction { lsn: order, records }: &'a DecodedTransaction<'_>,
        group: GroupNo,
    ) -> ReplayedTransaction<'a> {
        let (first, merged) = match *order {
            TransactionLsn::New(first) => (first, false),
            TransactionLsn::Relogged(newest) => (newest, true),
        };
        ReplayedTransaction { first_lsn: first, relogged: merged, group, records }
    }
}

/// Reads ahead so much at a time: small groups come at the speed of a long read.
const WINDOW_BLOCKS: u64 = 256;

/// The log being followed.
pub(crate) struct RecoveryScan<'a> {
    device: &'a dyn Device,
    id: StoreId,
    ring: LogRing,
    slot: HeaderSlot,
    planted: PlantedBufferBug,
    window: RingWindow,
    /// From the tail on, one before each group found and one behind the last.
    boundaries: VecDeque<GroupBoundary>,
    /// Of these groups, those that nothing found so far calls durable.
    unconfirmed: VecDeque<UnconfirmedGroup>,
}

/// A group that was read, and may still be lost with the power.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnconfirmedGroup {
    number: GroupNo,
    pub(crate) at: RingPosition,
    pub(crate) blocks: u64,
}

/// The log, followed to its end.
pub(crate) struct ScannedGroups {
    pub(crate) boundaries: VecDeque<GroupBoundary>,
    /// Groups at its end that nothing calls durable.
    pub(crate) unconfirmed: Vec<UnconfirmedGroup>,
}

impl<'a> RecoveryScan<'a> {
    pub(crate) fn new(
        device: &'a dyn Device,
        id: StoreId,
        slot: HeaderSlot,
        planted: PlantedBufferBug,
    ) -> RecoveryScan<'a> {
        let ring = slot.ring;
        let (window, marks, readable) = (RingWindow::default(), [slot.tail].into(), VecDeque::new());
        RecoveryScan { device, id, ring, slot, planted, window, boundaries: marks, unconfirmed: readable }
    }

    /// Hands every durable transaction to `replay`, those of a group at once, and returns what was found.
    pub(crate) fn run(
        mut self,
        replay: &mut dyn FnMut(&[ReplayedTransaction<'_>]),
    ) -> Result<ScannedGroups, BufferError> {
        while let Some((at, header)) = self.next_group()? {
            let end = self.replay_group(at, &header, replay)?;
            self.boundaries.push_back(end);
            let blocks = blocks_of(u64::from(header.bytes.get()));
            self.unconfirmed.push_back(UnconfirmedGroup { number: GroupNo(header.number.get()), at, blocks });
            self.confirm_durable(GroupNo(header.durable.get()).max(self.slot.durable_group));
        }
        self.refuse_rot()?;
        Ok(ScannedGroups { boundaries: self.boundaries, unconfirmed: self.unconfirmed.into() })
    }

    /// All groups up to this one are durable.
    fn confirm_durable(&mut self, group: GroupNo) {
        while self.unconfirmed.front().is_some_and(|readable| readable.number <= group) {
            self.unconfirmed.pop_front();
        }
    }

    fn head(&self) -> GroupBoundary {
        *self.boundaries.back().expect("at least the tail's mark")
    }

    /// The group behind the last one found: where that ends, or at the next lap's start if it may be too long for what is left
    /// of this one.
    fn next_group(&mut self) -> Result<Option<(RingPosition, GroupHeader)>, BufferError> {
        let here = self.head().position;
        let any_fits = self.ring.group_blocks_max <= self.ring.left(here);
        let lap = (!any_fits).then(|| self.ring.next_lap(here));
        for at in iter::once(here).chain(lap) {
            if let Some(header) = self.group_at(at)?
                && self.follows(&header, at)
            {
                return Ok(Some((at, header)));
            }
        }
        Ok(None)
    }

    /// Whether a group that is whole is the one that comes next, and not one that an earlier lap or an earlier
    /// incarnation left behind.
    fn follows(&self, header: &GroupHeader, at: RingPosition) -> bool {
        let head = self.head();
        let blocks = blocks_of(u64::from(header.bytes.get()));
        let fits = at.plus(blocks).0 - self.slot.tail.position.0 <= self.ring.blocks;
        if self.planted.is(BufferBug::StaleIncarnation) {
            return fits;
        }
        let (number, incarnation) = (GroupNo(header.number.get()), Incarnation(header.incarnation.get()));
        let first = Lsn(header.first.get());
        let of_this_incarnation = number >= self.slot.first_group;
        fits && first.0 < NUMBER_END
            && number == head.number
            && header.predecessor.get() == head.predecessor
            && incarnation >= head.incarnation
            && (incarnation >= self.slot.incarnation) == of_this_incarnation
            && (first == head.lsn || (first > head.lsn && incarnation > head.incarnation))
    }

    /// The header of the group at `at`, if there is a whole one of this store.
    fn group_at(&mut self, at: RingPosition) -> Result<Option<GroupHeader>, BufferError> {
        let page = &self.window.get(self.device, &self.ring, at, 1)?[0];
        let header: GroupHeader = front(page);
        let bytes = header.bytes.get() as usize;
        let blocks = blocks_of(bytes as u64);
        if header.magic != GROUP_MAGIC
            || header.store != self.id.0
            || bytes < GROUP_HEADER_BYTES
            || blocks > self.ring.group_blocks_max
            || blocks > self.ring.left(at)
        {
            return Ok(None);
        }
        let whole = Page::bytes(self.window.get(self.device, &self.ring, at, blocks)?);
        if header.checksum.get() != checksum(whole) && !self.planted.is(BufferBug::TornGroupApplied) {
            return Ok(None);
        }
        if header.version.get() > RECORD_VERSION {
            return Err(BufferError::Version {
                device: self.device.name().to_owned(),
                block: self.ring.block(at),
                found: header.version.get().into(),
                supported: RECORD_VERSION.into(),
            });
        }
        Ok(Some(header))
    }

    /// Like `group_at`, behind the log's end: there a block that cannot be read says nothing.
    fn later_group_at(&mut self, at: RingPosition) -> Result<Option<GroupHeader>, BufferError> {
        match self.group_at(at) {
            Err(BufferError::Device(_)) => Ok(None),
            other => other,
        }
    }

    /// Replays a group and returns the mark behind it. Nothing is replayed unless all of it makes sense.
    fn replay_group(
        &mut self,
        at: RingPosition,
        header: &GroupHeader,
        replay: &mut dyn FnMut(&[ReplayedTransaction<'_>]),
    ) -> Result<GroupBoundary, BufferError> {
        let number = GroupNo(header.number.get());
        let blocks = blocks_of(u64::from(header.bytes.get()));
        let whole = Page::bytes(self.window.get(self.device, &self.ring, at, blocks)?);
        let content = &whole[GROUP_HEADER_BYTES..header.bytes.get() as usize];
        let transactions =
            if self.planted.is(BufferBug::TornGroupApplied) && header.checksum.get() != checksum(whole) {
                parseable_transactions(header, content)
            } else {
                decode_group(header, content).map_err(|reason| BufferError::Malformed {
                    device: self.device.name().to_owned(),
                    block: self.ring.block(at),
                    group: number,
                    reason,
                })?
            };
        let replayed = transactions.iter().map(|one| ReplayedTransaction::of(one, number));
        replay(&replayed.collect::<Vec<_>>());
        Ok(GroupBoundary {
            position: at.plus(blocks),
            number: number.next(),
            lsn: Lsn(header.first.get()).plus(u64::from(header.records.get())),
            incarnation: Incarnation(header.incarnation.get()),
            predecessor: header.checksum.get(),
        })
    }

    /// The log ends where a group is missing. That is a torn end unless something says that the group was durable
    /// once: the header slot, or a later group. Such groups lie behind it: the next begins at most the longest group's length
    /// away.
    fn refuse_rot(&mut self) -> Result<(), BufferError> {
        let head = self.head();
        let mut durable = self.slot.durable_group;
        let lap = self.ring.next_lap(head.position);
        for (from, limit) in [(head.position, lap), (lap, lap.plus(self.ring.blocks))] {
            let mut at = from;
            let reach = self.ring.group_blocks_max + 1;
            let mut end = from.plus(reach).min(limit);
            while at < end && durable < head.number {
                let later = self.later_group_at(at)?.filter(|header| header.number.get() > head.number.0);
                at = match later {
                    Some(header) => {
                        durable = durable.max(GroupNo(header.durable.get()));
                        let next = at.plus(blocks_of(u64::from(header.bytes.get())));
                        end = next.plus(reach).min(limit);
                        next
                    }
                    None => at.plus(1),
                };
            }
            // None that begins before `end` was too long for what is left of this lap.
            if end.plus(self.ring.group_blocks_max) <= limit {
                break;
            }
        }
        let blind =
            self.planted.is(BufferBug::StaleIncarnation) || self.planted.is(BufferBug::RotTakenForTorn);
        if durable < head.number || blind {
            return Ok(());
        }
        Err(BufferError::GroupDamaged {
            device: self.device.name().to_owned(),
            block: self.ring.block(head.position),
            group: head.number,
        })
    }
}

/// The transactions of a whole group, checked against its header.
fn decode_group<'a>(
    header: &GroupHeader,
    mut content: &'a [u8],
) -> Result<Vec<DecodedTransaction<'a>>, &'static str> {
    let mut next = Lsn(header.first.get());
    let mut found = Vec::new();
    for _ in 0..header.transactions.get() {
        let one = decode_transaction(&mut content)?;
        match one.lsn {
            TransactionLsn::New(first) if first == next => next = next.plus(one.records.len() as u64),
            TransactionLsn::New(_) => return Err("a transaction's LSN is not the next"),
            TransactionLsn::Relogged(newest) if newest < next => {}
            TransactionLsn::Relogged(_) => return Err("a merged delta is newer than the log"),
        }
        found.push(one);
    }
    if !content.is_empty() || next != Lsn(header.first.get()).plus(u64::from(header.records.get())) {
        return Err("its transactions are not those that its header counts");
    }
    Ok(found)
}

fn parseable_transactions<'a>(header: &GroupHeader, mut content: &'a [u8]) -> Vec<DecodedTransaction<'a>> {
    (0..header.transactions.get()).map_while(|_| decode_transaction_unchecked(&mut content)).collect()
}

/// The blocks read last. Their memory is kept from one read to the next: new memory costs as much as the reading.
#[derive(Default)]
struct RingWindow {
    start: RingPosition,
    /// How many of `pages` are what was read.
    held: usize,
    pages: Vec<Page>,
}

impl RingWindow {
    /// `count` blocks from `at` on, which do not reach past the lap's end.
    fn get(
        &mut self,
        device: &dyn Device,
        ring: &LogRing,
        at: RingPosition,
        count: u64,
    ) -> Result<&[Page], DeviceError> {
        let is_held = at >= self.start && at.plus(count).0 <= self.start.0 + self.held as u64;
        if !is_held {
            let kept = self.keep_from(at);
            let ahead = count.max(kept as u64 + WINDOW_BLOCKS).min(ring.left(at)) as usize;
            let more = ahead.saturating_sub(self.pages.len());
            Page::extend_vec_zeroed(&mut self.pages, more).expect("memory to read the log");
            let from = ring.block(at.plus(kept as u64));
            let held = match device.read(from, &mut self.pages[kept..ahead]) {
                Ok(()) => ahead,
                // Perhaps only what was read ahead is unreadable.
                Err(_) => {
                    device.read(from, &mut self.pages[kept..count as usize])?;
                    count as usize
                }
            };
            (self.start, self.held) = (at, held);
        }
        let from = (at.0 - self.start.0) as usize;
        Ok(&self.pages[from..from + count as usize])
    }

    /// Moves what is held from `at` on to the front, so that the device is read from one end to the other, each block
    /// once; returns how many blocks that is.
    fn keep_from(&mut self, at: RingPosition) -> usize {
        let held = std::mem::take(&mut self.held);
        let end = self.start.0 + held as u64;
        if at < self.start || at.0 >= end {
            return 0;
        }
        let from = (at.0 - self.start.0) as usize;
        Page::bytes_mut(&mut self.pages).copy_within(from * BLOCK_BYTES..held * BLOCK_BYTES, 0);
        held - from
    }
}
