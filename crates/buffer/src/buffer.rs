//! The buffer: appending in memory, committing with one flush, letting old groups go.
//!
//! Two locks, taken in this order. The writer's is held for a whole commit, so that one of the callers writes for
//! all callers that wait; the state's only for moments, so that appends go on while the device works.

use crate::counters::BufferCounters;
use crate::error::BufferError;
use crate::format::{BufferIdentity, HeaderSlot};
use crate::groups::{BufferGauges, BufferState, CommitGroup, RecoveredLog};
use crate::layout;
use crate::planted_bug::{BufferBug, PlantedBufferBug};
use crate::record::{LogRecord, TransactionLsn};
use crate::recover::{RecoveryScan, ReplayedTransaction, ScannedGroups, UnconfirmedGroup};
use crate::ring::{GroupBoundary, GroupNo, LogRing};
use crate::sync::{Mutex, MutexGuard};
use device::{BLOCK_BYTES, BufferId, Device, Incarnation, Lsn, Page, StoreId, pages};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// Where an appended transaction will lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendedTransaction {
    /// The LSN of the transaction's first record; the others follow without gaps.
    pub first_lsn: Lsn,
    /// The LSN of its last record; one below `first` if it has none.
    pub last_lsn: Lsn,
    /// The commit group that holds the whole of it.
    pub group: GroupNo,
}

/// The non-volatile place of records whose changes are not stored yet.
pub struct Buffer {
    device: Arc<dyn Device>,
    identity: BufferIdentity,
    planted: PlantedBufferBug,
    /// Held while it grows: one at a time.
    growing: Mutex<()>,
    writer: Mutex<CommitWriter>,
    state: Mutex<BufferState>,
    gauges: BufferGauges,
}

/// What a commit changes, and what is on media.
struct CommitWriter {
    /// The newest header slot, whose ring it is; the state has a copy of that.
    slot: HeaderSlot,
    /// A larger ring, that begins when the log lies in one piece.
    larger_ring: Option<LogRing>,
    /// The older header slot may name another ring.
    slots_differ: bool,
    /// One before each group from the tail on, and one behind the last.
    boundaries: VecDeque<GroupBoundary>,
    /// The groups of this commit.
    sealed: Vec<CommitGroup>,
    /// Groups that recovery has read, and that are not known to be durable.
    unconfirmed: Vec<UnconfirmedGroup>,
    /// Space for a header slot.
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
    /// Lays out an empty buffer with this identity on the whole of `device`, at least 1 MiB, writing every block once
    /// so that later writes allocate nothing in a file system below, and makes it durable. After a crash in the
    /// middle there is no buffer.
    pub fn format(device: &dyn Device, identity: impl Into<BufferIdentity>) -> Result<(), BufferError> {
        layout::format(device, identity.into(), Lsn(0))
    }

    /// The same for a store that has been in use, without a buffer or with another one: its records' LSNs come after `newest`.
    pub fn format_after(
        device: &dyn Device,
        identity: impl Into<BufferIdentity>,
        newest: Lsn,
    ) -> Result<(), BufferError> {
        layout::format(device, identity.into(), newest)
    }

    /// Makes the buffer on `device` none any more, durably: it is refused from then on. What it held must be stored.
    pub fn retire(device: &dyn Device) -> Result<(), BufferError> {
        layout::retire(device)
    }

    /// Opens the buffer of store `id` and hands every durable transaction to `replay`, in the order of the log, those of a
    /// group at once. Writes nothing. After an error, what was replayed is worth nothing.
    pub fn open(
        device: Arc<dyn Device>,
        id: StoreId,
        replay: &mut dyn FnMut(&[ReplayedTransaction<'_>]),
    ) -> Result<Buffer, BufferError> {
        Buffer::open_planted(&*device.clone(), device, id, replay, PlantedBufferBug::default())
    }

    /// The same, where what the buffer holds is read from `reader`: the same medium, maybe read ahead. It is needed no more on return.
    pub fn open_through(
        reader: &dyn Device,
        device: Arc<dyn Device>,
        id: StoreId,
        replay: &mut dyn FnMut(&[ReplayedTransaction<'_>]),
    ) -> Result<Buffer, BufferError> {
        Buffer::open_planted(reader, device, id, replay, PlantedBufferBug::default())
    }

    /// Like [`open`](Buffer::open), with a bug on purpose.
    #[cfg(feature = "planted-bugs")]
    pub fn open_with_bug(
        device: Arc<dyn Device>,
        id: StoreId,
        replay: &mut dyn FnMut(&[ReplayedTransaction<'_>]),
        bug: BufferBug,
    ) -> Result<Buffer, BufferError> {
        Buffer::open_planted(&*device.clone(), device, id, replay, PlantedBufferBug::one(bug))
    }

    fn open_planted(
        reader: &dyn Device,
        device: Arc<dyn Device>,
        id: StoreId,
        replay: &mut dyn FnMut(&[ReplayedTransaction<'_>]),
        planted: PlantedBufferBug,
    ) -> Result<Buffer, BufferError> {
        let identity = layout::read_identity(reader, id)?;
        let (slot, agree) = layout::read_newest_slot(reader, id)?;
        let ScannedGroups { boundaries: marks, unconfirmed: readable } =
            RecoveryScan::new(reader, id, slot, planted).run(replay)?;
        let (batch, page, counters) = (Vec::new(), pages(1), BufferCounters::default());
        let (larger, slots_differ) = (None, !agree);
        let writer = CommitWriter {
            slot,
            larger_ring: larger,
            slots_differ,
            boundaries: marks,
            sealed: batch,
            unconfirmed: readable,
            slot_page: page,
            counters,
        };
        let (tail, head) = (writer.tail(), writer.head());
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
        let (growing, writer, state) = (Mutex::new(()), Mutex::new(writer), Mutex::new(state));
        Ok(Buffer { device, identity, planted, growing, writer, state, gauges })
    }

    /// The incarnation found at opening, or the one begun since.
    pub fn incarnation(&self) -> Incarnation {
        self.state().incarnation
    }

    /// Which buffer is on `device`. Reads one block.
    ///
    /// # Errors
    /// What [`open`](Buffer::open) says of one that is missing, damaged, cut off or of another version.
    pub fn identify(device: &dyn Device) -> Result<BufferIdentity, BufferError> {
        layout::read_superblock(device)
    }

    /// The store that it belongs to.
    pub fn store_id(&self) -> StoreId {
        self.identity.store
    }

    /// Which of the buffers it is that the store may have had.
    pub fn buffer_id(&self) -> BufferId {
        self.identity.id
    }

    /// The highest LSN in the buffer.
    pub fn newest_lsn(&self) -> Lsn {
        self.state().newest
    }

    /// Makes `incarnation`, which is higher than any before, durable; LSNs go on after `newest`, or after the
    /// highest in the buffer if that is higher. Before it, nothing may be appended. What recovery has read and is not known to
    /// be durable is written again first, since a flush that failed may have dropped it from a cache that still gives it to
    /// readers. The store has the incarnation durably by then: see [`store_batch`](Buffer::store_batch).
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
        (head.incarnation, head.lsn) = (incarnation, newest.plus(1));
        *writer.boundaries.back_mut().expect("at least one mark") = head;
        let tail = writer.tail();
        let (first_group, durable_group) = (head.number, GroupNo(head.number.0 - 1));
        // What was found must be durable before the slot says that it is.
        let flushed = match self.planted.is(BufferBug::BeginWithoutFlush) {
            true => Ok(()),
            false => self.rewrite_unconfirmed(&mut writer).and_then(|()| self.flush(&mut writer)),
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

    /// Writes the other header slot, too, if that may name another ring: it would lead to a part of the log only, should this one become
    /// unreadable.
    fn unify_slots(&self, writer: &mut CommitWriter) -> Result<(), BufferError> {
        if !writer.slots_differ {
            return Ok(());
        }
        self.write_slot(writer, |_| ())?;
        self.flush(writer)?;
        writer.slots_differ = false;
        Ok(())
    }

    /// Makes durable what opening has handed to `replay`, and begins nothing: for who takes the buffer's content elsewhere. A flush
    /// that failed before may have dropped it from a cache that still gives it to readers, which another flush does not mend.
    pub fn make_durable(&self) -> Result<(), BufferError> {
        let mut writer = self.writer.lock().expect("no panic in a commit");
        self.rewrite_unconfirmed(&mut writer)
            .and_then(|()| self.flush(&mut writer))
            .map_err(|error| self.fail(error))?;
        writer.unconfirmed.clear();
        Ok(())
    }

    /// Writes what was read at opening and may still be lost with the power: groups that nothing calls durable. Not the slot, of
    /// which there may be no other: a drive may leave a block unreadable whose write the power's loss cut off.
    fn rewrite_unconfirmed(&self, writer: &mut CommitWriter) -> Result<(), BufferError> {
        for readable in &writer.unconfirmed {
            let (at, mut group) = (writer.slot.ring.block(readable.at), pages(readable.blocks as usize));
            self.device.read(at, &mut group)?;
            self.device.write(at, &group)?;
            writer.counters.bytes_written += readable.blocks * BLOCK_BYTES as u64;
        }
        Ok(())
    }

    /// Adds a transaction to the open group, in memory: it gets the next LSNs, and survives a crash as a
    /// whole or not at all, and only if everything appended before it does. Never waits for the device. A
    /// transaction without records leaves no trace.
    ///
    /// # Panics
    /// If no incarnation was begun, or a record leaves its page.
    pub fn append(&self, records: &[LogRecord<'_>]) -> Result<AppendedTransaction, BufferError> {
        let mut state = self.lock_for_append()?;
        let (first, last) = (state.newest.plus(1), state.newest.plus(records.len() as u64));
        if !records.is_empty() {
            state.append(TransactionLsn::New(first), records)?;
            state.newest = last;
            self.gauges.publish(&state);
        }
        Ok(AppendedTransaction { first_lsn: first, last_lsn: last, group: state.open.number })
    }

    /// Adds the surviving delta of one page again, under its own newest LSN, so that older groups can go.
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

    /// Makes everything appended before the call durable and returns the highest durable LSN. Callers at the
    /// same time share one flush. Also makes free what was released, if that is much or space is short.
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

    /// Makes the buffer so many blocks long, by making its file longer; or as long as its device is by now. Groups go to what is new
    /// after the first commit that finds the log in one piece, as it is once a lap unless it is full; [`is_growing`](Buffer::is_growing) says
    /// whether that is still to come. A crash leaves it as large as before or after. What is new is written once, as by
    /// [`format`](Buffer::format). Returns its length then, in blocks.
    ///
    /// # Errors
    /// [`BufferError::ShrinkRefused`]; and those of the device, after which it is as large as before.
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
            // A flush is everybody's: no commit is acknowledged beside one that fails.
            let mut writer = writer();
            self.device.flush().map_err(|error| self.fail(error.into()))?;
            writer.larger_ring = Some(LogRing::on_device(end));
            self.switch_to_larger_ring(&mut writer)?;
        }
        Ok(end)
    }

    /// Whether it has grown, and groups do not go to what is new yet.
    pub fn is_growing(&self) -> bool {
        self.writer.lock().expect("no panic in a commit").larger_ring.is_some()
    }

    /// Begins the larger ring, if there is one and the log lies in one piece: then all of it is where the larger ring has it, too. Both
    /// header slots know of it before a group lies where a smaller ring has no place.
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

    /// Whether no commit is under way.
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

    /// Groups that may still be needed: from the oldest that was not released up to the one being filled, which is
    /// `end`: a caller that needs nothing at all releases that.
    pub fn unreleased_groups(&self) -> Range<GroupNo> {
        let state = self.state();
        state.released..state.open.number
    }

    /// Says that no group before `oldest_needed` is needed by a store whose batches up to `store_batch` are durable. Its space is
    /// used again after a later commit has made that durable.
    pub fn release(&self, oldest_needed: GroupNo, store_batch: u64) {
        let mut state = self.state();
        let newest = state.open.number;
        state.released = state.released.max(oldest_needed.min(newest));
        state.store_batch = state.store_batch.max(store_batch);
    }

    /// The store has made `store_batch` durable, of which no record here tells: the next commit says so in any case.
    pub fn record_store_batch(&self, store_batch: u64) {
        let mut state = self.state();
        state.store_batch = state.store_batch.max(store_batch);
        state.slot_due = true;
    }

    /// The newest batch of the store on which anything was let go, or that was [recorded](Buffer::record_store_batch). A store without it, or with a lower incarnation than
    /// this buffer's, is an older copy of the one that this buffer belongs to: what it lacks is nowhere.
    pub fn store_batch(&self) -> u64 {
        self.state().store_batch
    }

    /// What of that is durable here: a store without this batch is refused.
    pub fn durable_store_batch(&self) -> u64 {
        self.state().durable_store_batch
    }

    /// Bytes of records, headers and padding included, that can surely be appended before `Full`: transactions
    /// whose [`footprint`](crate::footprint)s together are not more, in any order, with any commits between them.
    pub fn free_bytes(&self) -> u64 {
        self.gauges.free_blocks() * BLOCK_BYTES as u64
    }

    /// Bytes that the log can hold in all.
    pub fn capacity_bytes(&self) -> u64 {
        self.gauges.ring().blocks * BLOCK_BYTES as u64
    }

    /// The largest [`footprint`](crate::footprint) of a transaction, in bytes: a quarter of the ring, at most 8 MiB.
    pub fn transaction_bytes_max(&self) -> u64 {
        self.gauges.ring().group_blocks_max * BLOCK_BYTES as u64
    }

    /// Bytes appended and not yet handed to the device.
    pub fn open_bytes(&self) -> u64 {
        self.gauges.open_bytes()
    }

    /// What happened since the buffer was opened; a commit counts when it is durable.
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

    /// From now on every append and commit says this.
    fn fail(&self, error: BufferError) -> BufferError {
        self.state().failed.get_or_insert(error).clone()
    }

    /// The tail to write with this commit, and the store's batch by which all before it is stored: if the tail moved by more than
    /// 1/32 of the ring, so that its writes are few; by anything while less than half of the ring is free, since an operation may wait
    /// for space; or if the store relies on the batch.
    fn tail_due(&self, writer: &CommitWriter, state: &BufferState) -> Option<(GroupBoundary, u64)> {
        if !state.begun {
            // A slot says what is durable; before the beginning that is not known.
            return None;
        }
        let oldest = writer.tail();
        // What is not durable yet has no place on media that a tail could name.
        let number = state.released.min(writer.head().number);
        let tail = writer.boundaries[(number.0 - oldest.number.0) as usize];
        let freed = tail.position.0 - oldest.position.0;
        let blocks = writer.slot.ring.blocks;
        let short = state.free_blocks() < blocks / 2;
        let due = freed > blocks / 32 || (freed > 0 && short) || state.slot_due;
        due.then_some((tail, state.store_batch))
    }

    /// Writes the header slot, if the tail moves, and the batch, and flushes once.
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

    /// Tells everybody what is durable now, and gives free what lies before the tail on media.
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

    /// Writes the next header slot over the older of the two. It counts after a flush.
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
