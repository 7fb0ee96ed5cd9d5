//! Counters and the current state, for reports.

use crate::append_cause::AppendedBytes;
use device::{Lsn, ObjectId, PageNo};
use std::time::Duration;

/// Events since the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheCounters {
    /// Transactions applied.
    pub transactions: u64,
    /// Changes of pages of which not all bytes were in memory.
    pub writes_to_absent_pages: u64,
    /// Pages read from the store's device because a read waited for them.
    pub fetched_for_reads: u64,
    /// Pages read from the store's device because a write waited for them; only in blocking mode.
    pub fetched_for_writes: u64,
    /// Pages read from the store's device to write a partial page back.
    pub fetched_for_write_back: u64,
    /// Pages read from the store's device by read-ahead.
    pub fetched_ahead: u64,
    /// Pages read from the store's device by prefetch, because a write had left them partial.
    pub fetched_in_background: u64,
    /// Reads, writes and flushes of the store's device for which a sync had to wait.
    pub store_io_for_syncs: u64,
    /// Pages that were holes: no device was read.
    pub holes: u64,
    /// Reads that did not wait.
    pub reads_at_once: u64,
    /// Reads that waited for a page.
    pub reads_parked: u64,
    /// Syncs asked for.
    pub syncs: u64,
    /// Pages written back.
    pub pages_stored: u64,
    /// Pages whose changes were relogged, because they are still being written.
    pub pages_relogged: u64,
    /// Pages that bypassed the buffer.
    pub pages_bypassed: u64,
    /// The number of these that were logged late, because a later change needed it or the store was too slow.
    pub pages_logged_late: u64,
    /// Bytes appended to the buffer: the sum is what the buffer counts.
    pub appended: AppendedBytes,
    /// Punches and deletions written back.
    pub punches_stored: u64,
    /// Clones and moves of pages written back.
    pub transfers_stored: u64,
    /// [Expendable](crate::Cache::set_expendable_volumes) volumes that were deleted for space.
    pub volumes_given_up: u64,
    /// Pages dropped from memory.
    pub evicted: u64,
    /// Operations that had to wait for space.
    pub admissions_parked: u64,
    /// The most pages that the cleaner moved while one of these operations waited. Counted until its
    /// admission: how long its thread then waits for a processor does not matter.
    pub cleaned_while_parked: u64,
    /// Fetches that failed.
    pub fetch_errors: u64,
    /// Write-backs that failed and will be tried again.
    pub write_back_errors: u64,
    /// Steps of the store's maintenance that failed and will be tried again: checkpoints, cleaning, freeing.
    pub checkpoint_errors: u64,
    /// Transactions that recovery found in the buffer.
    pub replayed: u64,
}

/// The current state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheStatus {
    /// Events since the mount.
    pub counters: CacheCounters,
    /// The newest change.
    pub applied: Lsn,
    /// The newest change that survives a crash.
    pub durable: Lsn,
    /// Dirty pages: they have changes that the store lacks.
    pub dirty_pages: u64,
    /// Their memory, in bytes, approximately.
    pub dirty_bytes: u64,
    /// The number of these that are deltas: only their written bytes are in memory.
    pub deltas: u64,
    /// The memory of deltas, in bytes, approximately.
    pub delta_bytes: u64,
    /// How long ago the oldest change that is not stored was made.
    pub dirty_age: Duration,
    /// Punches and deletions that are not stored.
    pub pending_punches: u64,
    /// Clones and moves of pages that are not stored: reads of their targets wait.
    pub pending_transfers: u64,
    /// Pages in memory.
    pub pages: u64,
    /// The memory of all pages, in bytes, approximately.
    pub memory_bytes: u64,
    /// Reads waiting for a page.
    pub parked_reads: u64,
    /// Syncs waiting for a commit.
    pub parked_syncs: u64,
    /// Operations waiting for space.
    pub parked_admissions: u64,
    /// Pages queued because a read or write waits, and all pages being fetched.
    pub fetching: u64,
    /// Size of the buffer's log, in bytes.
    pub buffer_bytes: u64,
    /// The part of it that is free, in bytes.
    pub buffer_free_bytes: u64,
    /// Why nothing can be changed any more, if so.
    pub failed: Option<String>,
    /// The volume with everything as it was when the buffer failed, once it is complete.
    pub rescued: Option<String>,
    /// Pages whose last changes that volume lacks, because they are damaged in the store: reading them is an
    /// error.
    pub left_out: u64,
    /// Why there is no such volume yet. The rescue is tried again.
    pub not_rescued: Option<String>,
    /// Why nothing is written back, if so. Writers that find no space get this error.
    pub stalled: Option<String>,
    /// Number of items that could not be written back when they were last tried. The buffer keeps them.
    pub stuck_count: u64,
    /// Some of them.
    pub stuck: Vec<StuckItem>,
}

/// A page, punch or range operation that could not be written back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StuckItem {
    /// The object.
    pub object: ObjectId,
    /// Its page; `None` for a punch, a deletion or a range operation.
    pub page: Option<PageNo>,
    /// The error.
    pub why: String,
}
