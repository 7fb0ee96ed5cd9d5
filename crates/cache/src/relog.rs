//! Relogging: appends changes to the buffer again that need its oldest groups and are not written back, so
//! that these groups can be released. These are pages that are still being written, which would be written
//! back over and over; stuck items, which would keep all later groups; and lost tails of objects in a damaged
//! volume.

use crate::commit::Committer;
use crate::error::CacheError;
use crate::log::CacheLog;
use crate::page::{CachedPage, DirtyRanges, PageBody};
use crate::page_table::{PageKey, PageTable, PendingPunch};
use crate::planted_bug::{CacheBug, is_planted};
use crate::range_ops::{PendingRangeOp, RangeOp};
use crate::retry::{RetryList, WriteBackItem};
use crate::space::CacheSpace;
use crate::state::{CacheShared, CacheState};
use buffer::{Buffer, GroupNo, LogRecord, TRANSFER_BYTES};
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
        let mut state = self.shared.state();
        if !state.log.is_half_full() {
            return Ok(false);
        }
        let CacheState { pages, log, space, .. } = &mut *state;
        let relogged = RelogStep::new(self.shared.buffer(), pages, log, space).append_all(now)?;
        for &(key, group) in &relogged.pages {
            if pages.mark_page_logged(key) {
                log.syncs.note_late_logged(group);
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
        let pages = &mut state.pages;
        for (lsn, group) in relogged.range_ops {
            pages.mark_range_op_relogged(lsn, group);
        }
        relogged.pages.into_iter().for_each(|(key, group)| pages.mark_page_relogged(key, group));
        for (object, lsn, group) in relogged.punches {
            pages.mark_punch_relogged(object, lsn, group);
        }
        for (object, group) in relogged.lost_tails {
            pages.mark_lost_tail_relogged(object, group);
        }
        state.release_groups();
        Ok(true)
    }
}

/// One step of relogging: it appends to the buffer, and only looks at the state.
struct RelogStep<'a> {
    buffer: &'a Buffer,
    log: &'a CacheLog,
    pages: &'a PageTable,
    retries: &'a RetryList,
    /// The groups that are not released.
    groups: Range<GroupNo>,
    /// Bytes of the buffer that it leaves to others.
    kept_bytes: u64,
}

impl<'a> RelogStep<'a> {
    fn new(
        buffer: &'a Buffer,
        pages: &'a PageTable,
        log: &'a CacheLog,
        space: &'a CacheSpace,
    ) -> RelogStep<'a> {
        let kept_bytes = log.reserved_bytes(pages, space) + buffer.capacity_bytes() / 16;
        RelogStep {
            buffer,
            log,
            pages,
            retries: &space.retries,
            groups: buffer.unreleased_groups(),
            kept_bytes,
        }
    }

    fn append_all(&self, now: Duration) -> Result<RelogBatch, CacheError> {
        let mut relogged = RelogBatch::default();
        self.append_range_ops(&mut relogged)?;
        relogged.punches.extend(self.append_punches()?);
        relogged.pages = self.append_pages(now)?;
        relogged.lost_tails = self.append_lost_tails()?;
        Ok(relogged)
    }

    /// Number of groups that are not released.
    fn span(&self) -> u64 {
        self.groups.end.0 - self.groups.start.0
    }

    /// Whether a group is in the log's older half.
    fn is_old(&self, group: GroupNo) -> bool {
        group.0 < self.groups.start.0 + self.span() / 2
    }

    /// Relogs range operations that cannot be stored, and those that wait for them. Recovery relies on the
    /// order: the operation, its dependencies, the punches of its objects. If newer punches were released
    /// first, the operation would bring back what they removed; and an older punch before the operation could
    /// be taken for a part of a newer one.
    fn append_range_ops(&self, relogged: &mut RelogBatch) -> Result<(), CacheError> {
        let transfers = self.pages.range_ops();
        let is_stuck =
            |lsn| transfers.get(lsn).is_some_and(|one| self.retries.is_stuck(WriteBackItem::of(&one.op)));
        let stays = |one: &&PendingRangeOp| {
            let punches = self.pages.punches_before(&one.op);
            let oldest = punches.iter().map(|(_, punch)| punch.group).fold(one.oldest_group, GroupNo::min);
            self.is_old(oldest) && transfers.stuck_dependency(one.op.lsn, is_stuck).is_some()
        };
        for one in transfers.iter().filter(stays).take(RELOG_STEP) {
            let RangeOp { transfer, lsn } = one.op;
            let Some(group) = self.append_again(lsn, &[one.op.record()])? else { return Ok(()) };
            for (page, entry) in one.dependencies() {
                let Some(dirt) = entry.dirty_state() else { return Ok(()) };
                // Each begins with the record of its operation: if the log begins behind that, the store has
                // all of them.
                let mut records = page_records(entry, PageKey { object: transfer.from, page }, &dirt.ranges);
                records.insert(0, one.op.record());
                if self.append_again(lsn, &records)?.is_none() {
                    return Ok(());
                }
            }
            for (object, punch) in self.pages.punches().filter(|(object, _)| one.op.touches(*object)) {
                let Some(group) = self.append_again(punch.lsn, &[punch_record(object, &punch)])? else {
                    return Ok(());
                };
                relogged.punches.push((object, punch.lsn, group));
            }
            relogged.range_ops.push((lsn, group));
        }
        Ok(())
    }

    fn append_pages(&self, now: Duration) -> Result<Vec<(PageKey, GroupNo)>, CacheError> {
        let stays = |key: &PageKey, entry: &CachedPage| {
            let dirt = entry.dirty_state().filter(|_| entry.writing().is_none());
            // Written in the last eighth of the log, and first written in its older half.
            dirt.is_some_and(|dirt| {
                let hot = dirt.newest_group.0 >= self.groups.end.0 - self.span() / 8;
                let waits = self.pages.is_blocked(key);
                let stays = hot || waits || self.retries.is_backed_off(WriteBackItem::Page(*key), now);
                stays && self.is_old(dirt.oldest_group)
            })
        };
        let oldest = self.pages.by_group().take(RELOG_STEP).map(|(_, key)| key);
        let staying = oldest.filter_map(|key| {
            let entry = self.pages.get(&key).filter(|entry| stays(&key, entry))?;
            Some((key, entry))
        });
        let mut appended = Vec::new();
        for (key, entry) in staying {
            let Some(dirt) = entry.dirty_state() else { continue };
            let records = page_records(entry, key, &dirt.ranges);
            if let Some(group) = self.append_again(dirt.newest, &records)? {
                appended.push((key, group));
            }
        }
        Ok(appended)
    }

    fn append_punches(&self) -> Result<Vec<(ObjectId, Lsn, GroupNo)>, CacheError> {
        let transfers = self.pages.range_ops();
        let stays = |object: ObjectId, punch: &PendingPunch| {
            let waits = transfers.blocks_change(object, punch.lsn);
            let is_stuck = waits || self.retries.is_stuck(WriteBackItem::Punch(object, punch.lsn));
            self.is_old(punch.group) && is_stuck
        };
        let parted =
            |object: ObjectId, punch: &PendingPunch| transfers.any_between(object, punch.lsn..Lsn(u64::MAX));
        let alone =
            |(object, punch): &(ObjectId, PendingPunch)| stays(*object, punch) && !parted(*object, punch);
        let mut appended = Vec::new();
        for (object, punch) in self.pages.punches().filter(alone).take(RELOG_STEP) {
            if let Some(group) = self.append_again(punch.lsn, &[punch_record(object, &punch)])? {
                appended.push((object, punch.lsn, group));
            }
        }
        Ok(appended)
    }

    /// Relogs lost tails: nothing could end their objects before them.
    fn append_lost_tails(&self) -> Result<Vec<(ObjectId, GroupNo)>, CacheError> {
        let limit = GroupNo(self.groups.start.0 + self.span() / 2);
        let mut appended = Vec::new();
        for (object, lost) in self.pages.lost_tails_before(limit).take(RELOG_STEP) {
            if let Some(group) = self.append_again(lost.lsn, &[lost.record(object)])? {
                appended.push((object, group));
            }
        }
        Ok(appended)
    }

    /// Appends records again. `None` if the buffer has no space for that.
    fn append_again(&self, newest: Lsn, records: &[LogRecord<'_>]) -> Result<Option<GroupNo>, CacheError> {
        let bytes = records.iter().map(|record| match record {
            LogRecord::Write { bytes, .. } => bytes.len() as u64,
            LogRecord::Transfer(_) => TRANSFER_BYTES,
            _ => 0,
        });
        let footprint = buffer::footprint(records.len() as u64, bytes.sum());
        if self.buffer.free_bytes() < footprint + self.kept_bytes {
            return Ok(None);
        }
        Ok(Some(self.log.append_again(newest, records)?))
    }
}

/// Relogs one page, whatever space is kept for other records.
pub(crate) fn append_page(log: &CacheLog, pages: &PageTable, key: PageKey) -> Result<(), CacheError> {
    let page = pages.get(&key).and_then(|entry| Some((entry, entry.dirty_state()?)));
    let Some((entry, dirt)) = page else { return Ok(()) };
    log.append_again(dirt.newest, &page_records(entry, key, &dirt.ranges))?;
    Ok(())
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
