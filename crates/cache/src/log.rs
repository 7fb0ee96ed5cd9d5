//! What is appended to the buffer: transactions, and bypassed pages that are logged late.

use crate::bypass;
use crate::change::ObjectChange;
use crate::error::CacheError;
use crate::page::PageBody;
use crate::page_table::{PageKey, PageTable};
use crate::planted_bug::{CacheBug, is_planted};
use crate::rule_shares::RuleShares;
use crate::space::CacheSpace;
use crate::sync_queue::SyncQueue;
use buffer::{AppendedTransaction, Buffer, BufferError, GroupNo, LogRecord};
use device::{BLOCK_BYTES, Lsn, ObjectId, PageNo};
use request::Origin;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

/// The log as the cache's lock protects it. Only here does the cache append, except for what is
/// [relogged](crate::relog), and only here is it decided that nothing can change any more.
pub(crate) struct CacheLog {
    buffer: Arc<Buffer>,
    pub(crate) syncs: SyncQueue,
    pub(crate) shares: RuleShares,
    /// Set once, when the buffer has failed.
    failed: Option<BufferError>,
    /// The mount ends.
    is_stopping: bool,
    pages_logged_late: u64,
}

impl CacheLog {
    pub(crate) fn new(buffer: Arc<Buffer>) -> CacheLog {
        CacheLog {
            buffer,
            syncs: SyncQueue::default(),
            shares: RuleShares::default(),
            failed: None,
            is_stopping: false,
            pages_logged_late: 0,
        }
    }

    /// How the buffer failed, if it did: then nothing can change any more.
    pub(crate) fn failed(&self) -> Option<&BufferError> {
        self.failed.as_ref()
    }

    /// Notes that the buffer failed.
    pub(crate) fn fail(&mut self, why: &BufferError) {
        self.failed.get_or_insert_with(|| why.clone());
    }

    /// The mount ends, and so do its threads.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    pub(crate) fn stop(&mut self) {
        self.is_stopping = true;
    }

    /// Refuses changes after the buffer failed.
    pub(crate) fn ensure_works(&self) -> Result<(), CacheError> {
        self.failed.clone().map_or(Ok(()), |why| Err(CacheError::ReadOnly { why }))
    }

    /// Number of bypassed pages that were logged late.
    pub(crate) fn pages_logged_late(&self) -> u64 {
        self.pages_logged_late
    }

    pub(crate) fn is_half_full(&self) -> bool {
        self.buffer.free_bytes() < self.buffer.capacity_bytes() / 2
    }

    /// Bytes of the buffer that are kept for admitted operations, and in which bypassed pages can be logged.
    pub(crate) fn reserved_bytes(&self, pages: &PageTable, space: &CacheSpace) -> u64 {
        space.booked_bytes() + bypass::reserved_bytes(pages.unlogged() as u64)
    }

    /// Appends a transaction, after the bypassed pages that must not become durable after `changes`. `now` is
    /// called only if everything before it is durable.
    pub(crate) fn append(
        &mut self,
        pages: &mut PageTable,
        origin: Origin,
        changes: &[ObjectChange<'_>],
        records: &[LogRecord<'_>],
        now: impl FnOnce() -> Duration,
    ) -> Result<AppendedTransaction, CacheError> {
        let logged = self.log_before(pages, origin, changes);
        match logged.and_then(|()| self.buffer.append(records)) {
            Ok(appended) => {
                self.syncs.note_append(now);
                self.note_appended(origin, appended.bytes, appended.group);
                Ok(appended)
            }
            Err(why @ BufferError::Device(_)) => {
                self.fail(&why);
                Err(CacheError::ReadOnly { why })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Counts bytes for the share of the rule that decided about a request.
    fn note_appended(&mut self, origin: Origin, bytes: u64, group: GroupNo) {
        self.shares.note_appended(origin, bytes, group, self.buffer.capacity_bytes());
    }

    /// Logs bypassed pages, for a request of this origin. The buffer keeps space for that, so only its device
    /// can fail it.
    pub(crate) fn log_bypassed(
        &mut self,
        pages: &mut PageTable,
        origin: Origin,
        keys: impl IntoIterator<Item = PageKey>,
    ) -> Result<(), BufferError> {
        for key in keys {
            let Some(entry) = pages.get(&key).filter(|entry| entry.is_unlogged()) else { continue };
            let (PageBody::Whole(bytes), Some(newest)) = (entry.body(), entry.newest()) else {
                unreachable!("a page that bypassed the buffer is whole and not stored");
            };
            let record = LogRecord::Write { object: key.object, page: key.page, start: 0, bytes: &bytes.0 };
            let group = self.buffer.append_relogged(newest, &[record])?;
            pages.mark_page_logged(key);
            self.syncs.note_late_logged(group);
            self.note_appended(origin, BLOCK_BYTES as u64, group);
            self.pages_logged_late += 1;
        }
        Ok(())
    }

    /// Logs all bypassed pages in a range of keys.
    fn log_range(
        &mut self,
        pages: &mut PageTable,
        origin: Origin,
        keys: impl RangeBounds<PageKey>,
    ) -> Result<(), BufferError> {
        let keys: Vec<PageKey> = pages.unlogged_in(keys).collect();
        self.log_bypassed(pages, origin, keys)
    }

    /// Logs the bypassed pages that must not become durable after `changes`: pages that change in part, are
    /// cloned or moved, or whose file gets a name.
    fn log_before(
        &mut self,
        pages: &mut PageTable,
        origin: Origin,
        changes: &[ObjectChange<'_>],
    ) -> Result<(), BufferError> {
        if pages.unlogged() == 0 {
            return Ok(());
        }
        changes.iter().try_for_each(|change| match *change {
            ObjectChange::Write { object, offset, bytes }
            | ObjectChange::FileWrite { object, offset, bytes, .. } => {
                self.log_edges(pages, origin, object, offset..offset + bytes.len() as u64)
            }
            ObjectChange::Zero { object, offset, len } => {
                self.log_edges(pages, origin, object, offset..offset.saturating_add(len))
            }
            ObjectChange::Transfer(transfer) if !is_planted(CacheBug::CloneBeforeBytes) => {
                let Range { start, end } = transfer.source();
                let from = PageKey { object: transfer.from, page: start };
                let to = PageKey { object: transfer.from, page: end };
                self.log_range(pages, origin, (Bound::Included(from), Bound::Excluded(to)))
            }
            ObjectChange::LogBypassed { object } if !is_planted(CacheBug::NameBeforeBytes) => {
                self.log_range(pages, origin, bypass::of_object(object))
            }
            _ => Ok(()),
        })
    }

    /// Logs the pages at the ends of a range of bytes that covers them only in part.
    fn log_edges(
        &mut self,
        pages: &mut PageTable,
        origin: Origin,
        object: ObjectId,
        bytes: Range<u64>,
    ) -> Result<(), BufferError> {
        if is_planted(CacheBug::PartBeforeWhole) {
            return Ok(());
        }
        let edges = [bytes.start, bytes.end];
        let edges = edges.into_iter().filter(|edge| !edge.is_multiple_of(BLOCK_BYTES as u64));
        self.log_bypassed(pages, origin, edges.map(|edge| PageKey { object, page: PageNo::of(edge) }))
    }

    /// Logs bypassed pages unless the buffer failed, and notes if it fails. Then updates syncs that wait for
    /// the store to have them.
    pub(crate) fn log_late(&mut self, pages: &mut PageTable, keys: impl IntoIterator<Item = PageKey>) {
        if self.failed.is_some() {
            return;
        }
        if let Err(why) = self.log_bypassed(pages, Origin::UNMATCHED, keys) {
            self.fail(&why);
        }
        self.complete_store_waits(pages, &[]);
    }

    /// [`log_late`](CacheLog::log_late) for all bypassed pages.
    pub(crate) fn log_all_late(&mut self, pages: &mut PageTable) {
        let keys: Vec<PageKey> = pages.unlogged_in(bypass::ALL).collect();
        self.log_late(pages, keys);
    }

    /// Updates syncs that wait for the store: pages were stored as of these changes, logged, or removed.
    pub(crate) fn complete_store_waits(&mut self, pages: &PageTable, stored: &[(PageKey, Lsn)]) {
        if self.syncs.any_waiting_for_store() {
            self.syncs.complete_store_waits(self.buffer.appended_lsn(), pages, stored);
        }
    }

    /// Notes that the store has bypassed pages, all in its batches up to this one: from here on, records and
    /// answers may rely on that.
    pub(crate) fn note_bypassed_stored(&mut self, store_batch: u64) {
        self.buffer.record_store_batch(store_batch);
        self.syncs.note_bypassed_stored(store_batch);
    }

    /// Releases the groups of the buffer that no page needs any more.
    pub(crate) fn release_groups(&mut self, pages: &PageTable, space: &CacheSpace) {
        let needed = pages.oldest_group().unwrap_or(self.buffer.unreleased_groups().end);
        self.buffer.release(needed, space.store().data().durable_batch());
        self.shares.note_released(needed, self.buffer.capacity_bytes());
        // Released space is usable after the next commit only. A writer may be waiting for it.
        if space.admission.is_waiting() || self.is_half_full() {
            self.syncs.ask_for_commit();
        }
    }
}
