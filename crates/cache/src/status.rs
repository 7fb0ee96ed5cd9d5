//! What the cache tells about itself.

use device::{Lsn, ObjectId, PageNo};
use std::time::Duration;

/// Events since the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Transactions applied.
    pub transactions: u64,
    /// Page changes among them that touched a page whose bytes were not in memory.
    pub writes_to_absent_pages: u64,
    /// Pages read from the store's device because a reader asked for them.
    pub fetched_for_reads: u64,
    /// Pages read from the store's device because a writer waited for them; only in blocking mode.
    pub fetched_for_writes: u64,
    /// Pages read from the store's device to write a partly written page back.
    pub fetched_for_write_back: u64,
    /// Pages read from the store's device because a reader reads an object in order and will come to them.
    pub fetched_ahead: u64,
    /// Pages read from the store's device because a write had left them partial.
    pub fetched_in_background: u64,
    /// Reads, writes and flushes of the store's device that a sync had to wait for.
    pub store_io_for_syncs: u64,
    /// Pages found to be holes: no device was read.
    pub holes: u64,
    /// Reads served without waiting.
    pub reads_at_once: u64,
    /// Reads that waited for a page.
    pub reads_parked: u64,
    /// Syncs asked for.
    pub syncs: u64,
    /// Pages written back.
    pub pages_stored: u64,
    /// Pages whose delta was written to the buffer again, because they are still being written.
    pub pages_relogged: u64,
    /// Pages written around the buffer.
    pub pages_bypassed: u64,
    /// Of these, how many had to be logged after all, because something must not come before them or the store failed.
    pub pages_logged_late: u64,
    /// Cuts and deletions written back.
    pub cuts_stored: u64,
    /// Clones and moves of pages written back.
    pub transfers_stored: u64,
    /// Volumes that were [given up](crate::Cache::may_give_up) for space.
    pub volumes_given_up: u64,
    /// Pages dropped from memory.
    pub evicted: u64,
    /// Operations that had to wait for space.
    pub admissions_parked: u64,
    /// Pages that the cleaner moved while one of them waited, at most. Until it was let in: whether its thread has a processor
    /// then does not count.
    pub cleaned_while_parked: u64,
    /// Fetches that failed.
    pub fetch_errors: u64,
    /// Write-backs that failed and will be tried again.
    pub write_back_errors: u64,
    /// Checkpoints that failed and will be tried again.
    pub checkpoint_errors: u64,
    /// Transactions found in the buffer when the mount began.
    pub replayed: u64,
}

/// How things stand now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Events since the mount.
    pub counters: Counters,
    /// The newest change.
    pub applied: Lsn,
    /// The newest change that survives a crash.
    pub durable: Lsn,
    /// Pages newer than the store.
    pub dirty_pages: u64,
    /// Memory that these take, in bytes, about.
    pub dirty_bytes: u64,
    /// Of them, how many are deltas: pages of which only what was written is in memory.
    pub deltas: u64,
    /// Memory that these take, in bytes, about.
    pub delta_bytes: u64,
    /// How long ago the oldest change that is not stored was made.
    pub dirty_age: Duration,
    /// Cuts and deletions that are not stored.
    pub pending_cuts: u64,
    /// Clones and moves of pages that are not stored: reads of these wait.
    pub pending_transfers: u64,
    /// Pages in memory.
    pub pages: u64,
    /// Memory that these take, in bytes, about.
    pub memory_bytes: u64,
    /// Reads waiting for a page.
    pub parked_reads: u64,
    /// Syncs waiting for a commit.
    pub parked_syncs: u64,
    /// Operations waiting for space.
    pub parked_admissions: u64,
    /// Pages that a reader waits for and that are queued for a fetch, and pages on their way in one.
    pub fetching: u64,
    /// The buffer's log, in bytes.
    pub buffer_bytes: u64,
    /// Of these, how many can still be appended.
    pub buffer_free_bytes: u64,
    /// Why nothing can be changed any more, if so.
    pub failed: Option<String>,
    /// The volume that has everything as it was when the buffer failed, once it is whole.
    pub rescued: Option<String>,
    /// Pages that it lacks the last changes of, because what the store has of them is damaged: reading them is an error.
    pub left_out: u64,
    /// Why there is no such volume yet; it is tried again.
    pub not_rescued: Option<String>,
    /// Why nothing is written back, if so. Writers that find no space get this error.
    pub stalled: Option<String>,
    /// How many pages and cuts could not be written back when they were last tried. They stay in the buffer.
    pub stuck_count: u64,
    /// Some of them.
    pub stuck: Vec<Stuck>,
}

/// Something that could not be written back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stuck {
    /// The object.
    pub object: ObjectId,
    /// Its page; `None` for a cut or a deletion.
    pub page: Option<PageNo>,
    /// Why not.
    pub why: String,
}
