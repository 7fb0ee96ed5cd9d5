//! What is appended to the buffer: transactions, bypassed pages that are logged late, and what is
//! [relogged](crate::relog).

use crate::append_cause::{AppendCause, AppendedBytes};
use crate::bypass;
use crate::change::{ObjectChange, TransactionRecords};
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
use std::cell::Cell;
use std::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;
use std::time::Duration;

/// The log as the cache's lock protects it. Only here does the cache append, and only here is it decided that
/// nothing can change any more.
pub(crate) struct CacheLog {
    buffer: Arc<Buffer>,
    pub(crate) syncs: SyncQueue,
    pub(crate) shares: RuleShares,
    /// Set once, when the buffer has failed.
    failed: Option<BufferError>,
    /// The mount ends.
    is_stopping: bool,
    pages_logged_late: u64,
    /// A cell: relogging appends while it looks at the state.
    appended: Cell<AppendedBytes>,
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
            appended: Cell::default(),
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

    /// Bytes that were appended, by cause.
    pub(crate) fn appended_bytes(&self) -> AppendedBytes {
        self.appended.get()
    }

    fn count_appended(&self, cause: AppendCause, bytes: u64) {
        let mut appended = self.appended.get();
        appended.add(cause, bytes);
        self.appended.set(appended);
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
        made: &TransactionRecords<'_>,
        now: impl FnOnce() -> Duration,
    ) -> Result<AppendedTransaction, CacheError> {
        let logged = self.log_before(pages, origin, changes);
        let appended = logged.and_then(|()| self.buffer.append(&made.records));
        self.note_transaction(origin, appended, made.whole_page_bytes, made.part_of_page_bytes, now)
    }

    /// Appends a transaction of one record, which writes bytes of a file's page that did not bypass the buffer.
    pub(crate) fn append_overwrite(
        &mut self,
        origin: Origin,
        record: LogRecord<'_>,
        is_whole_page: bool,
        now: impl FnOnce() -> Duration,
    ) -> Result<AppendedTransaction, CacheError> {
        let bytes = buffer::record_bytes(&record);
        let (whole, part) = if is_whole_page { (bytes, 0) } else { (0, bytes) };
        let appended = self.buffer.append(&[record]);
        self.note_transaction(origin, appended, whole, part, now)
    }

    /// Counts an appended transaction, and notes that there is something to commit. Notes if the buffer failed.
    fn note_transaction(
        &mut self,
        origin: Origin,
        appended: Result<AppendedTransaction, BufferError>,
        whole_page_bytes: u64,
        part_of_page_bytes: u64,
        now: impl FnOnce() -> Duration,
    ) -> Result<AppendedTransaction, CacheError> {
        match appended {
            Ok(appended) => {
                let counted = self.appended.get_mut();
                counted.add(AppendCause::WholePage, whole_page_bytes);
                counted.add(AppendCause::PartOfPage, part_of_page_bytes);
                let other_bytes = appended.bytes - whole_page_bytes - part_of_page_bytes;
                counted.add(AppendCause::Metadata, other_bytes);
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

    /// Appends records again that the log has already. The caller has checked that there is space.
    pub(crate) fn append_again(
        &self,
        newest: Lsn,
        records: &[LogRecord<'_>],
    ) -> Result<GroupNo, BufferError> {
        self.append_under(newest, AppendCause::Relogged, records)
    }

    /// Appends records under the LSN of a change that was made before.
    fn append_under(
        &self,
        newest: Lsn,
        cause: AppendCause,
        records: &[LogRecord<'_>],
    ) -> Result<GroupNo, BufferError> {
        let group = self.buffer.append_relogged(newest, records)?;
        if !records.is_empty() {
            self.count_appended(cause, buffer::transaction_bytes(records));
        }
        Ok(group)
    }

    /// Logs bypassed pages, for a request of this origin. The buffer keeps space for that, so only its device
    /// can fail it.
    pub(crate) fn log_bypassed(
        &mut self,
        pages: &mut PageTable,
        origin: Origin,
        keys: impl IntoIterator<Item = PageKey>,
        cause: AppendCause,
    ) -> Result<(), BufferError> {
        for key in keys {
            let Some(entry) = pages.get(&key).filter(|entry| entry.is_unlogged()) else { continue };
            let (PageBody::Whole(bytes), Some(newest)) = (entry.body(), entry.newest()) else {
                unreachable!("a page that bypassed the buffer is whole and not stored");
            };
            let record = LogRecord::Write { object: key.object, page: key.page, start: 0, bytes: &bytes.0 };
            let group = self.append_under(newest, cause, &[record])?;
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
        cause: AppendCause,
    ) -> Result<(), BufferError> {
        let keys: Vec<PageKey> = pages.unlogged_in(keys).collect();
        self.log_bypassed(pages, origin, keys, cause)
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
                let keys = (Bound::Included(from), Bound::Excluded(to));
                self.log_range(pages, origin, keys, AppendCause::WholePage)
            }
            ObjectChange::LogBypassed { object } if !is_planted(CacheBug::NameBeforeBytes) => {
                self.log_range(pages, origin, bypass::of_object(object), AppendCause::Metadata)
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
        let keys = edges.map(|edge| PageKey { object, page: PageNo::of(edge) });
        self.log_bypassed(pages, origin, keys, AppendCause::WholePage)
    }

    /// Logs bypassed pages unless the buffer failed, and notes if it fails. Then updates syncs that wait for
    /// the store to have them.
    pub(crate) fn log_late(
        &mut self,
        pages: &mut PageTable,
        keys: impl IntoIterator<Item = PageKey>,
        cause: AppendCause,
    ) {
        if self.failed.is_some() {
            return;
        }
        if let Err(why) = self.log_bypassed(pages, Origin::UNMATCHED, keys, cause) {
            self.fail(&why);
        }
        self.complete_store_waits(pages, &[]);
    }

    /// [`log_late`](CacheLog::log_late) for all bypassed pages.
    pub(crate) fn log_all_late(&mut self, pages: &mut PageTable) {
        let keys: Vec<PageKey> = pages.unlogged_in(bypass::ALL).collect();
        self.log_late(pages, keys, AppendCause::WholePage);
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
