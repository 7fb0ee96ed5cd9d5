//! The buffer: appends in memory, commits with one flush, frees released groups.
//!
//! Two locks, taken in this order. The writer's lock is held for a whole commit, so that one caller writes
//! for all waiting callers. The state's lock is held only for moments, so that appends go on while the device
//! works.

use crate::counters::BufferCounters;
use crate::error::BufferError;
use crate::format::{BufferIdentity, HeaderSlot};
use crate::groups::{BufferGauges, BufferState, CommitGroup, RecoveredLog};
use crate::layout;
use crate::planted_bug::{BufferBug, PlantedBufferBug};
use crate::record::{LogRecord, TransactionLsn};
use crate::recover::{RecoveryScan, ReplayedTransaction, UnconfirmedGroup};
use crate::ring::{GroupBoundary, GroupNo, LogRing};
use crate::sync::{Mutex, MutexGuard};
use device::{BLOCK_BYTES, BufferId, Device, Incarnation, Lsn, Page, StoreId, pages};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// The LSNs and the commit group of an appended transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendedTransaction {
    /// The LSN of the transaction's first record; the other records follow without gaps.
    pub first_lsn: Lsn,
    /// The LSN of the transaction's last record; one below `first_lsn` if it has no records.
    pub last_lsn: Lsn,
    /// The commit group that holds the whole transaction.
    pub group: GroupNo,
    /// Its bytes in the log, with its frame; 0 if it has no records.
    pub bytes: u64,
}

/// The durable log of changes that are not stored yet.
pub struct Buffer {
    device: Arc<dyn Device>,
    identity: BufferIdentity,
    planted: PlantedBufferBug,
    /// Held by the one caller that makes the buffer larger.
    growing: Mutex<()>,
    writer: Mutex<CommitWriter>,
    state: Mutex<BufferState>,
    gauges: BufferGauges,
}

/// The state that a commit changes: what is on media.
struct CommitWriter {
    /// The newest header slot. The log lies in its ring, of which the state has a copy.
    slot: HeaderSlot,
    /// A larger ring, in use as soon as the log lies in one piece.
    larger_ring: Option<LogRing>,
    /// The older header slot may name another ring.
    slots_differ: bool,
    /// One boundary before each group from the tail on, and one behind the last group.
    boundaries: VecDeque<GroupBoundary>,
    /// The groups of this commit.
    sealed: Vec<CommitGroup>,
    /// Groups that recovery has read, and that are not known to be durable.
    unconfirmed: Vec<UnconfirmedGroup>,
    /// Memory for writing a header slot.
    slot_page: Vec<Page>,
    counters: BufferCounters,
}

impl CommitWriter {
    fn head(&self) -> GroupBoundary {
        *self.boundaries.back().expect("at least one mark")
    }

    fn tail(&self) -> GroupBoundary {
        *self.boundaries.front().expect("at least one mark")
    }
}

impl Buffer {
    /// Formats the whole of `device`, at least 1 MiB, as an empty buffer with this identity, durably.
    ///
    /// Every block is written once, so that later writes allocate nothing in the host file system. After a
    /// crash during the format there is no buffer.
    pub fn format(device: &dyn Device, identity: impl Into<BufferIdentity>) -> Result<(), BufferError> {
        layout::format(device, identity.into(), Lsn(0))
    }

    /// Like [`format`](Buffer::format), for a store that was in use before, without a buffer or with another
    /// one: LSNs of new records come after `newest`.
    pub fn format_after(
        device: &dyn Device,
        identity: impl Into<BufferIdentity>,
        newest: Lsn,
    ) -> Result<(), BufferError> {
        layout::format(device, identity.into(), newest)
    }

    /// Destroys the buffer on `device`, durably: opening it is refused from then on. Everything in it must be
    /// stored.
    pub fn retire(device: &dyn Device) -> Result<(), BufferError> {
        layout::retire(device)
    }

    /// Opens the buffer of store `id` and passes every durable transaction to `replay`, in the order of the
    /// log, those of a group at once. Writes nothing. If it returns an error, the caller must discard
    /// everything that was replayed.
    pub fn open(
        device: Arc<dyn Device>,
        id: StoreId,
        replay: &mut dyn FnMut(&[ReplayedTransaction<'_>]),
    ) -> Result<Buffer, BufferError> {
        Buffer::open_planted(device, id, replay, PlantedBufferBug::default())
    }

    /// Like [`open`](Buffer::open), with a planted bug.
    #[cfg(feature = "planted-bugs")]
    pub fn open_with_bug(
        device: Arc<dyn Device>,
        id: StoreId,
        replay: &mut dyn FnMut(&[ReplayedTransaction<'_>]),
        bug: BufferBug,
    ) -> Result<Buffer, BufferError> {
        Buffer::open_planted(device, id, replay, PlantedBufferBug::one(bug))
    }

    fn open_planted(
        device: Arc<dyn Device>,
        id: StoreId,
        replay: &mut dyn FnMut(&[ReplayedTransaction<'_>]),
        planted: PlantedBufferBug,
    ) -> Result<Buffer, BufferError> {
        let identity = layout::read_identity(&*device, id)?;
        let (slot, agree) = layout::read_newest_slot(&*device, id)?;
        let scanned = RecoveryScan::new(&*device, id, slot, planted).run(replay)?;
        let writer = CommitWriter {
            slot,
            larger_ring: None,
            slots_differ: !agree,
            boundaries: scanned.boundaries,
            sealed: Vec::new(),
            unconfirmed: scanned.unconfirmed,
            slot_page: pages(1),
            counters: BufferCounters::default(),
        };
        let tail = writer.tail();
        let head = writer.head();
        let found = RecoveredLog {
            tail: tail.position,
            end: head.position,
            oldest_group: tail.number,
            next_group: head.number,
            newest: slot.newest.max(Lsn(head.lsn.0 - 1)),
            incarnation: slot.incarnation.max(head.incarnation),
            store_batch: slot.store_batch,
        };
        let state = BufferState::new(slot.ring, found);
        let gauges = BufferGauges::of(&state);
        Ok(Buffer {
            device,
            identity,
            planted,
            growing: Mutex::new(()),
            writer: Mutex::new(writer),
            state: Mutex::new(state),
            gauges,
        })
    }

    /// The incarnation found at opening, or the one begun since.
    pub fn incarnation(&self) -> Incarnation {
        self.state().incarnation
    }

    /// The identity of the buffer on `device`. Reads one block.
    ///
    /// # Errors
    /// Those of [`open`](Buffer::open) for a buffer that is missing, damaged, cut off or of another version.
    pub fn identify(device: &dyn Device) -> Result<BufferIdentity, BufferError> {
        layout::read_superblock(device)
    }

    /// The store that the buffer belongs to.
    pub fn store_id(&self) -> StoreId {
        self.identity.store
    }

    /// The id of this buffer, which tells it from other buffers of the same store.
    pub fn buffer_id(&self) -> BufferId {
        self.identity.id
    }

    /// The highest LSN in the buffer.
    pub fn newest_lsn(&self) -> Lsn {
        self.state().newest
    }

    /// Makes `incarnation`, which is higher than any before, durable. Must come before the first append.
    ///
    /// LSNs go on after `newest`, or after the highest LSN in the buffer if that is higher. The store must
    /// have the incarnation durably by then: see [`store_batch`](Buffer::store_batch).
    ///
    /// Groups that recovery has read and that are not known to be durable are written again first: a failed
    /// flush may have dropped them from a cache that still returns them to readers.
    ///
    /// # Panics
    /// If the incarnation is not higher than the one found.
    pub fn begin_incarnation(&self, incarnation: Incarnation, newest: Lsn) -> Result<(), BufferError> {
        let mut writer = self.writer.lock().expect("no panic in a commit");
        let newest = {
            let state = self.state();
            state.check()?;
            let found = state.incarnation;
            assert!(incarnation > found, "incarnation {incarnation} begun after {found}");
            newest.max(state.newest)
        };
        let mut head = writer.head();
        head.incarnation = incarnation;
        head.lsn = newest.plus(1);
        *writer.boundaries.back_mut().expect("at least one mark") = head;
        let tail = writer.tail();
        let first_group = head.number;
        let durable_group = GroupNo(head.number.0 - 1);
        // The groups found must be durable before the slot says that they are.
        let flushed = if self.planted.is(BufferBug::BeginWithoutFlush) {
            Ok(())
        } else {
            self.rewrite_unconfirmed(&mut writer).and_then(|()| self.flush(&mut writer))
        };
        flushed
            .and_then(|()| {
                self.write_slot(&mut writer, |slot| {
                    *slot = HeaderSlot { incarnation, first_group, durable_group, newest, tail, ..*slot };
                })
            })
            .and_then(|()| self.flush(&mut writer))
            .and_then(|()| self.unify_slots(&mut writer))
            .map_err(|error| self.fail(error))?;
        writer.unconfirmed.clear();
        let mut state = self.state();
        state.begin_incarnation(incarnation, newest);
        state.counters = writer.counters;
        self.gauges.publish(&state);
        Ok(())
    }

    /// Writes the other header slot, too, if it may name another ring: should this slot become unreadable,
    /// the other one would lead to only a part of the log.
    fn unify_slots(&self, writer: &mut CommitWriter) -> Result<(), BufferError> {
        if !writer.slots_differ {
            return Ok(());
        }
        self.write_slot(writer, |_| ())?;
        self.flush(writer)?;
        writer.slots_differ = false;
        Ok(())
    }

    /// Makes all replayed groups durable without beginning an incarnation: for a caller that moves the
    /// buffer's content elsewhere.
    ///
    /// A flush is not enough: an earlier failed flush may have dropped groups from a cache that still returns
    /// them to readers.
    pub fn make_durable(&self) -> Result<(), BufferError> {
        let mut writer = self.writer.lock().expect("no panic in a commit");
        self.rewrite_unconfirmed(&mut writer)
            .and_then(|()| self.flush(&mut writer))
            .map_err(|error| self.fail(error))?;
        writer.unconfirmed.clear();
        Ok(())
    }

    /// Writes the groups again that recovery has read and that may still be lost at a power failure.
    ///
    /// Does not write the slot, of which there may be no other copy: a drive may leave a block unreadable if
    /// the power fails during its write.
    fn rewrite_unconfirmed(&self, writer: &mut CommitWriter) -> Result<(), BufferError> {
        for readable in &writer.unconfirmed {
            let at = writer.slot.ring.block(readable.at);
            let mut group = pages(readable.blocks as usize);
            self.device.read(at, &mut group)?;
            self.device.write(at, &group)?;
            writer.counters.bytes_written += readable.blocks * BLOCK_BYTES as u64;
        }
        Ok(())
    }

    /// Adds a transaction to the open group, in memory, and gives its records the next LSNs. Never waits for
    /// the device.
    ///
    /// The transaction survives a crash as a whole or not at all, and only if everything appended before it
    /// does. A transaction without records leaves no trace.
    ///
    /// # Panics
    /// If no incarnation was begun, or a record leaves its page.
    pub fn append(&self, records: &[LogRecord<'_>]) -> Result<AppendedTransaction, BufferError> {
        let mut state = self.lock_for_append()?;
        let first = state.newest.plus(1);
        let last = state.newest.plus(records.len() as u64);
        let mut bytes = 0;
        if !records.is_empty() {
            bytes = state.append(TransactionLsn::New(first), records)?;
            state.newest = last;
            self.gauges.publish(&state);
        }
        Ok(AppendedTransaction { first_lsn: first, last_lsn: last, group: state.open.number, bytes })
    }

    /// Logs the remaining delta of one page again, under its own newest LSN, so that older groups can be
    /// released.
    ///
    /// # Panics
    /// If `newest` was not given out yet.
    pub fn append_relogged(&self, newest: Lsn, records: &[LogRecord<'_>]) -> Result<GroupNo, BufferError> {
        let mut state = self.lock_for_append()?;
        assert!(newest <= state.newest, "LSN {newest} was never given out");
        if !records.is_empty() {
            state.append(TransactionLsn::Relogged(newest), records)?;
            self.gauges.publish(&state);
        }
        Ok(state.open.number)
    }

    /// Makes everything appended before the call durable and returns the highest durable LSN.
    ///
    /// Concurrent callers share one flush. Also frees released groups, if they are many or space is short.
    pub fn commit(&self) -> Result<Lsn, BufferError> {
        let wanted = {
            let state = self.state();
            state.check()?;
            if state.open.is_empty() { GroupNo(state.open.number.0 - 1) } else { state.open.number }
        };
        let mut writer = self.writer.lock().expect("no panic in a commit");
        let new_tail = {
            let mut state = self.state();
            state.check()?;
            let new_tail = self.tail_due(&writer, &state);
            if state.durable_group >= wanted && new_tail.is_none() {
                return Ok(state.durable);
            }
            state.slot_due = false;
            state.seal();
            writer.sealed.extend(state.sealed.drain(..));
            self.gauges.publish(&state);
            new_tail
        };
        self.write_batch(&mut writer, new_tail).map_err(|error| self.fail(error))?;
        let durable = self.publish(&mut writer);
        self.switch_to_larger_ring(&mut writer)?;
        Ok(durable)
    }

    /// Makes the buffer `blocks` blocks long, by growing its file; or as long as its device is now. Returns
    /// the new length in blocks.
    ///
    /// New blocks are used after the first commit that finds the log in one piece, which happens once a lap
    /// unless the ring is full; [`is_growing`](Buffer::is_growing) says whether that is still to come. A
    /// crash leaves the buffer as large as before or after. New blocks are written once, as by
    /// [`format`](Buffer::format).
    ///
    /// # Errors
    /// [`BufferError::ShrinkRefused`], and errors of the device, after which the buffer is as large as
    /// before.
    ///
    /// # Panics
    /// If no incarnation was begun.
    pub fn grow(&self, blocks: Option<u64>) -> Result<u64, BufferError> {
        let _one = self.growing.lock().expect("no panic while growing");
        drop(self.lock_for_append()?);
        let writer = || self.writer.lock().expect("no panic in a commit");
        let from = {
            let writer = writer();
            writer.larger_ring.unwrap_or(writer.slot.ring).device_blocks()
        };
        let asked = blocks.unwrap_or(from);
        if asked < from {
            return Err(BufferError::ShrinkRefused {
                device: self.device.name().to_owned(),
                blocks: asked,
                now: from,
            });
        }
        self.device.grow(asked)?;
        let end = if blocks.is_some() { asked } else { self.device.blocks() };
        if end > from {
            layout::write_zeros(&*self.device, from..end)?;
            // The flush covers the writes of commits, too: no commit may be acknowledged beside one that
            // fails.
            let mut writer = writer();
            self.device.flush().map_err(|error| self.fail(error.into()))?;
            writer.larger_ring = Some(LogRing::on_device(end));
            self.switch_to_larger_ring(&mut writer)?;
        }
        Ok(end)
    }

    /// Whether the buffer has grown, and does not use its new blocks yet.
    pub fn is_growing(&self) -> bool {
        self.writer.lock().expect("no panic in a commit").larger_ring.is_some()
    }

    /// Switches to the larger ring, if there is one and the log lies in one piece: then every group lies at
    /// the same block in both rings.
    ///
    /// Both header slots name the larger ring before a group lies outside the smaller one.
    fn switch_to_larger_ring(&self, writer: &mut CommitWriter) -> Result<(), BufferError> {
        let Some(ring) = writer.larger_ring else { return Ok(()) };
        {
            let mut state = self.state();
            state.check()?;
            let Some(lower) = state.switch_ring(ring, writer.tail().position) else { return Ok(()) };
            writer.boundaries.iter_mut().for_each(|mark| mark.position = mark.position.minus(lower));
            self.gauges.publish(&state);
        }
        writer.larger_ring = None;
        let tail = writer.tail();
        let slots = if self.planted.is(BufferBug::LargerInOneSlot) { 1 } else { 2 };
        for _ in 0..slots {
            self.write_slot(writer, |slot| *slot = HeaderSlot { tail, ring, ..*slot })
                .and_then(|()| self.flush(writer))
                .map_err(|error| self.fail(error))?;
        }
        Ok(())
    }

    /// Whether no commit is running.
    #[cfg(feature = "planted-bugs")]
    pub fn is_idle(&self) -> bool {
        self.writer.try_lock().is_ok()
    }

    /// The highest durable LSN.
    pub fn durable_lsn(&self) -> Lsn {
        self.gauges.durable()
    }

    /// The last group on media.
    pub fn durable_group(&self) -> GroupNo {
        self.state().durable_group
    }

    /// The highest appended LSN.
    pub fn appended_lsn(&self) -> Lsn {
        self.gauges.newest()
    }

    /// The groups that may still be needed: from the oldest unreleased group up to the open one, which is
    /// `end`. A caller that needs no group at all releases up to `end`.
    pub fn unreleased_groups(&self) -> Range<GroupNo> {
        let state = self.state();
        state.released..state.open.number
    }

    /// Releases all groups before `oldest_needed`: the store does not need them once its batches up to
    /// `store_batch` are durable. Their space is used again after a later commit has made the release
    /// durable.
    pub fn release(&self, oldest_needed: GroupNo, store_batch: u64) {
        let mut state = self.state();
        let newest = state.open.number;
        state.released = state.released.max(oldest_needed.min(newest));
        state.store_batch = state.store_batch.max(store_batch);
    }

    /// Records that the store has made `store_batch` durable, which no record here implies: the next commit
    /// writes it to a header slot in any case.
    pub fn record_store_batch(&self, store_batch: u64) {
        let mut state = self.state();
        state.store_batch = state.store_batch.max(store_batch);
        state.slot_due = true;
    }

    /// The store's newest batch at a release, or that was [recorded](Buffer::record_store_batch).
    ///
    /// A store without this batch, or with a lower incarnation than this buffer's, is an older copy of the
    /// store that this buffer belongs to: its missing changes are nowhere.
    pub fn store_batch(&self) -> u64 {
        self.state().store_batch
    }

    /// The part of [`store_batch`](Buffer::store_batch) that is durable here: a store without this batch is
    /// refused.
    pub fn durable_store_batch(&self) -> u64 {
        self.state().durable_store_batch
    }

    /// The bytes that can surely be appended before `Full`, headers and padding included: transactions whose
    /// [`footprint`](crate::footprint)s add up to at most this, in any order, with any commits between them.
    pub fn free_bytes(&self) -> u64 {
        self.gauges.free_blocks() * BLOCK_BYTES as u64
    }

    /// The total capacity of the log in bytes.
    pub fn capacity_bytes(&self) -> u64 {
        self.gauges.ring().blocks * BLOCK_BYTES as u64
    }

    /// The largest [`footprint`](crate::footprint) of a transaction, in bytes: a quarter of the ring, at most
    /// 8 MiB.
    pub fn transaction_bytes_max(&self) -> u64 {
        self.gauges.ring().group_blocks_max * BLOCK_BYTES as u64
    }

    /// Bytes appended and not yet handed to the device.
    pub fn open_bytes(&self) -> u64 {
        self.gauges.open_bytes()
    }

    /// Counters since the buffer was opened; a commit counts when it is durable.
    pub fn counters(&self) -> BufferCounters {
        let state = self.state();
        BufferCounters { bytes_appended: state.bytes_appended, ..state.counters }
    }

    fn state(&self) -> MutexGuard<'_, BufferState> {
        self.state.lock().expect("no panic while holding the buffer's state")
    }

    fn lock_for_append(&self) -> Result<MutexGuard<'_, BufferState>, BufferError> {
        let state = self.state();
        state.check()?;
        assert!(state.begun, "appended before an incarnation was begun");
        Ok(state)
    }

    /// Fails every append and commit from now on with the first such error.
    fn fail(&self, error: BufferError) -> BufferError {
        self.state().failed.get_or_insert(error).clone()
    }

    /// The tail to write with this commit, and the store's batch by which everything before the tail is
    /// stored; `None` if no slot is due.
    ///
    /// A slot is due if the tail moved by more than 1/32 of the ring, so that slot writes are few; by any
    /// move while less than half of the ring is free, since an operation may wait for space; or if the store
    /// relies on the batch.
    fn tail_due(&self, writer: &CommitWriter, state: &BufferState) -> Option<(GroupBoundary, u64)> {
        if !state.begun {
            // A slot states which groups are durable; before an incarnation is begun that is unknown.
            return None;
        }
        let oldest = writer.tail();
        // A group that is not durable yet has no place on media that a tail could name.
        let number = state.released.min(writer.head().number);
        let tail = writer.boundaries[(number.0 - oldest.number.0) as usize];
        let freed = tail.position.0 - oldest.position.0;
        let blocks = writer.slot.ring.blocks;
        let short = state.free_blocks() < blocks / 2;
        let due = freed > blocks / 32 || (freed > 0 && short) || state.slot_due;
        due.then_some((tail, state.store_batch))
    }

    /// Writes the header slot, if one is due, and the sealed groups, and flushes once.
    fn write_batch(
        &self,
        writer: &mut CommitWriter,
        new_tail: Option<(GroupBoundary, u64)>,
    ) -> Result<(), BufferError> {
        let durable_group = GroupNo(writer.head().number.0 - 1);
        if let Some((tail, store_batch)) = new_tail {
            let newest = Lsn(writer.head().lsn.0 - 1);
            self.write_slot(writer, |slot| {
                *slot = HeaderSlot { durable_group, newest, tail, store_batch, ..*slot }
            })?;
        }
        let mut head = writer.head();
        for draft in &mut writer.sealed {
            head = draft.finish(self.identity.store, &head, durable_group);
            self.device.write(writer.slot.ring.block(draft.at), draft.pages())?;
            writer.counters.groups += 1;
            writer.counters.bytes_written += draft.blocks() * BLOCK_BYTES as u64;
            writer.boundaries.push_back(head);
        }
        self.flush(writer)?;
        writer.counters.commits += 1;
        Ok(())
    }

    /// Publishes what is durable now, and frees the space before the tail on media.
    fn publish(&self, writer: &mut CommitWriter) -> Lsn {
        let tail = writer.slot.tail;
        while writer.tail().number < tail.number {
            writer.boundaries.pop_front();
        }
        let head = writer.head();
        let mut state = self.state();
        state.durable = Lsn(head.lsn.0 - 1);
        state.durable_group = GroupNo(head.number.0 - 1);
        state.durable_store_batch = writer.slot.store_batch;
        state.free_before(tail.position);
        state.counters = writer.counters;
        writer.sealed.drain(..).for_each(|draft| state.recycle(draft));
        self.gauges.publish(&state);
        state.durable
    }

    /// Writes the next header slot over the older of the two. It is valid after a flush.
    fn write_slot(
        &self,
        writer: &mut CommitWriter,
        change: impl FnOnce(&mut HeaderSlot),
    ) -> Result<(), BufferError> {
        change(&mut writer.slot);
        writer.slot.generation += 1;
        writer.slot.write_to(self.identity.store, &mut writer.slot_page[0]);
        self.device.write(writer.slot.block(), &writer.slot_page)?;
        writer.counters.header_writes += 1;
        writer.counters.bytes_written += BLOCK_BYTES as u64;
        Ok(())
    }

    fn flush(&self, writer: &mut CommitWriter) -> Result<(), BufferError> {
        if self.planted.is(BufferBug::MissingFlush) && self.state().begun {
            return Ok(());
        }
        self.device.flush()?;
        writer.counters.flushes += 1;
        Ok(())
    }
}
