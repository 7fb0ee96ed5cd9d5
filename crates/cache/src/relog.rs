//! Relogging: appends changes to the buffer again that need its oldest groups and are not written back, so
//! that these groups can be released. These are pages that are still being written, which would be written
//! back over and over; stuck items, which would keep all later groups; and lost tails of objects in a damaged
//! volume.

use crate::bypass;
use crate::commit::Committer;
use crate::error::CacheError;
use crate::page::{CachedPage, DirtyRanges, PageBody};
use crate::page_table::{PageKey, PendingPunch};
use crate::planted_bug::{CacheBug, is_planted};
use crate::range_ops::{PendingRangeOp, RangeOp};
use crate::retry::WriteBackItem;
use crate::state::{CacheShared, CacheState};
use buffer::{GroupNo, LogRecord, TRANSFER_BYTES};
use device::{Lsn, ObjectId};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::DeltaPiece;

/// Pages and punches of one step, which is done under the lock.
const RELOG_STEP: usize = 256;

/// Relogged items, with their new groups.
#[derive(Default)]
struct RelogBatch {
    range_ops: Vec<(Lsn, GroupNo)>,
    punches: Vec<(ObjectId, Lsn, GroupNo)>,
    pages: Vec<(PageKey, GroupNo)>,
    lost_tails: Vec<(ObjectId, GroupNo)>,
}

/// Relogs what keeps the oldest groups.
pub(crate) struct Relogger {
    shared: Arc<CacheShared>,
    committer: Arc<Committer>,
}

impl Relogger {
    pub(crate) fn new(shared: Arc<CacheShared>, committer: Arc<Committer>) -> Relogger {
        Relogger { shared, committer }
    }

    /// One step. `false` if there is nothing to do.
    pub(crate) fn step(&self, now: Duration) -> Result<bool, CacheError> {
        if !self.shared.buffer_is_half_full() {
            return Ok(false);
        }
        let mut state = self.shared.state();
        let groups = self.shared.buffer().unreleased_groups();
        let mut relogged = RelogBatch::default();
        self.append_range_ops(&state, &groups, &mut relogged)?;
        relogged.punches.extend(self.append_punches(&state, &groups)?);
        relogged.pages = self.append_pages(&state, &groups, now)?;
        relogged.lost_tails = self.append_lost_tails(&state, &groups)?;
        for &(key, group) in &relogged.pages {
            if state.pages.mark_page_logged(key) {
                state.syncs.note_late_logged(group);
            }
        }
        let count = relogged.range_ops.len() + relogged.pages.len() + relogged.punches.len();
        if count + relogged.lost_tails.len() == 0 {
            return Ok(false);
        }
        state.counters.pages_relogged += count as u64;
        drop(state);
        // Only now is the new copy as good as the old one.
        if !is_planted(CacheBug::RelogNotDurable) {
            self.committer.commit_now()?;
        }
        let mut state = self.shared.state();
        for (lsn, group) in relogged.range_ops {
            state.pages.mark_range_op_relogged(lsn, group);
        }
        relogged.pages.into_iter().for_each(|(key, group)| state.pages.mark_page_relogged(key, group));
        for (object, lsn, group) in relogged.punches {
            state.pages.mark_punch_relogged(object, lsn, group);
        }
        relogged
            .lost_tails
            .into_iter()
            .for_each(|(object, group)| state.pages.mark_lost_tail_relogged(object, group));
        self.committer.release_groups(&mut state);
        Ok(true)
    }

    /// Relogs range operations that cannot be stored, and those that wait for them. Recovery relies on the
    /// order: the operation, its dependencies, the punches of its objects. If newer punches were released
    /// first, the operation would bring back what they removed; and an older punch before the operation could
    /// be taken for a part of a newer one.
    fn append_range_ops(
        &self,
        state: &CacheState,
        groups: &Range<GroupNo>,
        relogged: &mut RelogBatch,
    ) -> Result<(), CacheError> {
        let span = groups.end.0 - groups.start.0;
        let transfers = state.pages.range_ops();
        let is_stuck =
            |lsn| transfers.get(lsn).is_some_and(|one| state.retries.is_stuck(WriteBackItem::of(&one.op)));
        let stays = |one: &&PendingRangeOp| {
            let punches = state.pages.punches_before(&one.op);
            let oldest = punches.iter().map(|(_, punch)| punch.group).fold(one.oldest_group, GroupNo::min);
            oldest.0 < groups.start.0 + span / 2 && transfers.stuck_dependency(one.op.lsn, is_stuck).is_some()
        };
        for one in transfers.iter().filter(stays).take(RELOG_STEP) {
            let RangeOp { transfer, lsn } = one.op;
            let Some(group) = self.append_again(state, lsn, &[one.op.record()])? else { return Ok(()) };
            for (page, entry) in one.dependencies() {
                let Some(dirt) = entry.dirty_state() else { return Ok(()) };
                // Each begins with the record of its operation: if the log begins behind that, the store has
                // all of them.
                let mut records = page_records(entry, PageKey { object: transfer.from, page }, &dirt.ranges);
                records.insert(0, one.op.record());
                if self.append_again(state, lsn, &records)?.is_none() {
                    return Ok(());
                }
            }
            for (object, punch) in state.pages.punches().filter(|(object, _)| one.op.touches(*object)) {
                let Some(group) = self.append_again(state, punch.lsn, &[punch_record(object, &punch)])?
                else {
                    return Ok(());
                };
                relogged.punches.push((object, punch.lsn, group));
            }
            relogged.range_ops.push((lsn, group));
        }
        Ok(())
    }

    fn append_pages(
        &self,
        state: &CacheState,
        groups: &Range<GroupNo>,
        now: Duration,
    ) -> Result<Vec<(PageKey, GroupNo)>, CacheError> {
        let span = groups.end.0 - groups.start.0;
        let stays = |key: &PageKey, entry: &CachedPage| {
            let dirt = entry.dirty_state().filter(|_| entry.writing().is_none());
            // Written in the last eighth of the log, and first written in its older half.
            dirt.is_some_and(|dirt| {
                let hot = dirt.newest_group.0 >= groups.end.0 - span / 8;
                let waits = state.pages.is_blocked(key);
                let stays = hot || waits || state.retries.is_backed_off(WriteBackItem::Page(*key), now);
                stays && dirt.oldest_group.0 < groups.start.0 + span / 2
            })
        };
        let oldest = state.pages.by_group().take(RELOG_STEP).map(|(_, key)| key);
        let staying = oldest.filter_map(|key| {
            let entry = state.pages.get(&key).filter(|entry| stays(&key, entry))?;
            Some((key, entry))
        });
        let mut appended = Vec::new();
        for (key, entry) in staying {
            let Some(dirt) = entry.dirty_state() else { continue };
            let records = page_records(entry, key, &dirt.ranges);
            if let Some(group) = self.append_again(state, dirt.newest, &records)? {
                appended.push((key, group));
            }
        }
        Ok(appended)
    }

    /// Relogs one page, whatever space is kept for other records.
    pub(crate) fn append_page(&self, state: &CacheState, key: PageKey) -> Result<(), CacheError> {
        let page = state.pages.get(&key).and_then(|entry| Some((entry, entry.dirty_state()?)));
        let Some((entry, dirt)) = page else { return Ok(()) };
        self.shared.buffer().append_relogged(dirt.newest, &page_records(entry, key, &dirt.ranges))?;
        Ok(())
    }

    fn append_punches(
        &self,
        state: &CacheState,
        groups: &Range<GroupNo>,
    ) -> Result<Vec<(ObjectId, Lsn, GroupNo)>, CacheError> {
        let span = groups.end.0 - groups.start.0;
        let stays = |object: ObjectId, punch: &PendingPunch| {
            let waits = state.pages.range_ops().blocks_change(object, punch.lsn);
            let is_stuck = waits || state.retries.is_stuck(WriteBackItem::Punch(object, punch.lsn));
            punch.group.0 < groups.start.0 + span / 2 && is_stuck
        };
        let mut appended = Vec::new();
        let parted = |object: ObjectId, punch: &PendingPunch| {
            state.pages.range_ops().any_between(object, punch.lsn..Lsn(u64::MAX))
        };
        let alone =
            |(object, punch): &(ObjectId, PendingPunch)| stays(*object, punch) && !parted(*object, punch);
        for (object, punch) in state.pages.punches().filter(alone).take(RELOG_STEP) {
            if let Some(group) = self.append_again(state, punch.lsn, &[punch_record(object, &punch)])? {
                appended.push((object, punch.lsn, group));
            }
        }
        Ok(appended)
    }

    /// Relogs lost tails: nothing could end their objects before them.
    fn append_lost_tails(
        &self,
        state: &CacheState,
        groups: &Range<GroupNo>,
    ) -> Result<Vec<(ObjectId, GroupNo)>, CacheError> {
        let limit = GroupNo(groups.start.0 + (groups.end.0 - groups.start.0) / 2);
        let mut appended = Vec::new();
        for (object, lost) in state.pages.lost_tails_before(limit).take(RELOG_STEP) {
            if let Some(group) = self.append_again(state, lost.lsn, &[lost.record(object)])? {
                appended.push((object, group));
            }
        }
        Ok(appended)
    }

    /// Appends records again. `None` if the buffer has no space for that.
    fn append_again(
        &self,
        state: &CacheState,
        newest: Lsn,
        records: &[LogRecord<'_>],
    ) -> Result<Option<GroupNo>, CacheError> {
        let bytes = records.iter().map(|record| match record {
            LogRecord::Write { bytes, .. } => bytes.len() as u64,
            LogRecord::Transfer(_) => TRANSFER_BYTES,
            _ => 0,
        });
        let footprint = buffer::footprint(records.len() as u64, bytes.sum());
        let reserved =
            state.admission.reserved_bytes() + bypass::reserved_bytes(state.pages.unlogged() as u64);
        let kept = reserved + self.shared.buffer().capacity_bytes() / 16;
        if self.shared.buffer().free_bytes() < footprint + kept {
            return Ok(None);
        }
        Ok(Some(self.shared.buffer().append_relogged(newest, records)?))
    }
}

/// The record of a punch or a deletion.
fn punch_record(object: ObjectId, punch: &PendingPunch) -> LogRecord<'static> {
    if punch.whole_object {
        LogRecord::Delete { object }
    } else {
        LogRecord::Punch { object, from: punch.from, to: punch.to }
    }
}

/// Records of a page's changes that are not stored.
fn page_records<'a>(entry: &'a CachedPage, key: PageKey, ranges: &DirtyRanges) -> Vec<LogRecord<'a>> {
    let PageKey { object, page } = key;
    match entry.body() {
        PageBody::Patch(delta) => delta
            .pieces()
            .map(|piece| match piece {
                DeltaPiece::Bytes(start, bytes) => LogRecord::Write { object, page, start, bytes },
                DeltaPiece::Zeros(start, len) => LogRecord::Zero { object, page, start, len },
            })
            .collect(),
        PageBody::Whole(bytes) => ranges
            .iter()
            .map(|range| LogRecord::Write { object, page, start: range.start as u16, bytes: &bytes.0[range] })
            .collect(),
    }
}
