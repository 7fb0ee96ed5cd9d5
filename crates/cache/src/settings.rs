//! Limits and ages.

use crate::page_table::PageMemory;
use request::RequestClass;
use std::time::Duration;

/// When and how pages are fetched (*Non-blocking Writes to Files*, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FetchMode {
    /// A write to an absent page waits for the page, as in other file systems: the baseline.
    Blocking,
    /// A page is fetched when a read needs bytes that its delta lacks.
    Lazy,
    /// A page is fetched after the write, which does not wait. The paper has several asynchronous modes. Here
    /// is one, since always another thread reads the store, its metadata too.
    Background,
    /// Like `Background` for files whose readers recently waited for newly written pages, otherwise like
    /// `Lazy`.
    #[default]
    Adaptive,
}

/// Limits and ages.
#[derive(Debug, Clone)]
pub struct CacheSettings {
    /// When pages are fetched.
    pub fetch: FetchMode,
    /// Memory for pages and deltas, in bytes. Clean pages beyond it are dropped.
    pub memory_bytes_max: u64,
    /// The part of that memory that may be dirty. Above half of it pages are written back; at the limit
    /// writers wait.
    pub dirty_bytes_max: u64,
    /// The part of that memory that may be deltas: pages of which only the written bytes are in memory.
    /// Half of it and all of it have the same effects.
    pub delta_bytes_max: u64,
    /// Changes are durable after this time without a sync.
    pub commit_interval: Duration,
    /// Write-back begins when the oldest change that is not stored is older than this. No writer waits for
    /// it.
    pub dirty_age_max: Duration,
    /// How long writers without space wait while nothing can be written back, before they get the store's
    /// error. How long a clone waits for a damaged page, before it is stored without the page.
    pub store_patience: Duration,
    /// If a commit takes less than this, as measured, a sync makes it in its own thread: handing it over
    /// would take longer. Zero: never.
    pub commit_inline_below: Duration,
    /// Bytes of a file that must be written in order before its next whole pages
    /// [bypass the buffer](crate::ObjectChange::FileWrite). `u64::MAX`: never. This is the value at the
    /// mount: see [`set_bypass_after`](crate::Cache::set_bypass_after).
    pub bypass_after: u64,
    /// Bypassed bytes of an object that a sync logs, because that takes less time than storing them. For
    /// more, the sync waits for the store.
    pub sync_log_bytes_max: u64,
    /// Whether a critical write is logged rather than wait until earlier bypassed pages are stored, and
    /// whether the whole pages of a write bypass the buffer though its first or last page is written in part.
    pub follows_classes: bool,
    /// The buffer is given up: changes to it go nowhere, and nothing that is stored now counts as what the
    /// buffer should have.
    pub buffer_is_given_up: bool,
    /// Blocks of log after which a checkpoint is due: the most that a recovery reads.
    pub checkpoint_blocks: u64,
}

impl CacheSettings {
    /// Whether dirty memory is over one of its limits: writers wait. Background writers wait at four fifths.
    pub(crate) fn is_over_limit(&self, memory: &PageMemory, class: RequestClass) -> bool {
        let limit = |bytes: u64| match class {
            RequestClass::Critical => bytes,
            RequestClass::Background => bytes / 5 * 4,
        };
        memory.dirty > limit(self.dirty_bytes_max) || memory.deltas > limit(self.delta_bytes_max)
    }

    /// Whether dirty memory is over half of one of its limits: pages are to be written back.
    pub(crate) fn is_near_limit(&self, memory: &PageMemory) -> bool {
        memory.dirty > self.dirty_bytes_max / 2 || memory.deltas > self.delta_bytes_max / 2
    }
}

impl Default for CacheSettings {
    fn default() -> CacheSettings {
        CacheSettings::with_memory(512 << 20)
    }
}

impl CacheSettings {
    /// The least memory with which a cache is of use, in bytes.
    pub const MEMORY_BYTES_MIN: u64 = 16 << 20;

    /// The defaults of a cache with this much memory, in bytes. Every default stands here, and nowhere else.
    pub fn with_memory(bytes: u64) -> CacheSettings {
        CacheSettings {
            fetch: FetchMode::default(),
            memory_bytes_max: bytes,
            dirty_bytes_max: bytes / 2,
            delta_bytes_max: bytes / 2,
            commit_interval: Duration::from_secs(1),
            dirty_age_max: Duration::from_secs(300),
            // A disk's own time-out: a disk that answers within it was never away.
            store_patience: Duration::from_secs(30),
            // Two switches between threads, on a busy machine.
            commit_inline_below: Duration::from_micros(50),
            bypass_after: u64::MAX,
            sync_log_bytes_max: u64::MAX,
            follows_classes: false,
            buffer_is_given_up: false,
            // 256 MiB: anything faster than a single disk reads that in about a second.
            checkpoint_blocks: 65536,
        }
    }
}
