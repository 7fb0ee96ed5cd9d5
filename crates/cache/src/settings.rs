//! Limits and ages.

use crate::page_table::Memory;
use std::time::Duration;

/// When and how pages are fetched (*Non-blocking Writes to Files*, section 4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FetchMode {
    /// A write to an absent page waits for the page, as other file systems do: the baseline.
    Blocking,
    /// A page is fetched when a reader asks for what its delta does not cover.
    Lazy,
    /// A page is fetched behind the write, which does not wait: the paper's asynchronous modes, of which here is one, since it is
    /// always another thread that reads the store, its metadata too.
    Background,
    /// As `Background` where readers of the file have had to wait for what was written to lately, else as `Lazy`.
    #[default]
    Adaptive,
}

/// Limits and ages.
#[derive(Debug, Clone)]
pub struct Settings {
    /// When pages are fetched.
    pub fetch: FetchMode,
    /// Memory for pages and deltas, in bytes. Clean pages beyond it are dropped.
    pub memory_bytes_max: u64,
    /// Of these, how much may be newer than the store. Beyond half of it pages are written back; at all of it writers wait.
    pub dirty_bytes_max: u64,
    /// Of these, how much may be deltas, pages of which only what was written is in memory. The same happens at half of it and at all.
    pub delta_bytes_max: u64,
    /// What was not synced is durable after this long.
    pub commit_interval: Duration,
    /// Write-back begins when the oldest change that is not stored is older than this. No writer waits for it.
    pub dirty_age_max: Duration,
    /// How long writers that find no space wait while nothing can be written back, before they get the store's error; and
    /// how long a clone waits for a page that is damaged before it is made without.
    pub store_patience: Duration,
    /// Where a commit takes less than this (as measured), a sync makes it in its own thread: handing it over would
    /// take longer. Zero: never.
    pub commit_inline_below: Duration,
    /// Bytes of a file that must be written in order before its next whole pages are written [around the buffer](crate::Change::BypassWrite);
    /// `u64::MAX`: none are. The cache leaves it to those who know files. Where a mount begins: see
    /// [`set_bypass_after`](crate::Cache::set_bypass_after).
    pub bypass_after: u64,
    /// Bypassed bytes of an object that a sync of it logs, because that is sooner done than storing them; for more
    /// it waits for the store.
    pub sync_logs_max: u64,
    /// Changes to the buffer go nowhere: it is given up, and nothing that is stored now counts as what it should have.
    pub buffer_is_given_up: bool,
    /// Blocks of log after which a checkpoint is due: what a recovery reads at most.
    pub checkpoint_blocks: u64,
}

impl Settings {
    /// How near what is newer than the store is to the nearer one of its limits: 1 at it.
    pub(crate) fn crowding(&self, memory: &Memory) -> f64 {
        let dirty = memory.dirty as f64 / self.dirty_bytes_max as f64;
        dirty.max(memory.deltas as f64 / self.delta_bytes_max as f64)
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            fetch: FetchMode::default(),
            memory_bytes_max: 512 << 20,
            dirty_bytes_max: 256 << 20,
            delta_bytes_max: 256 << 20,
            commit_interval: Duration::from_secs(1),
            dirty_age_max: Duration::from_secs(300),
            // A disk's own time-out: one that comes back within it was never away.
            store_patience: Duration::from_secs(30),
            // Two switches between threads, on a busy machine.
            commit_inline_below: Duration::from_micros(50),
            bypass_after: u64::MAX,
            sync_logs_max: u64::MAX,
            buffer_is_given_up: false,
            // 256 MiB: read back in about a second by anything faster than a single disk.
            checkpoint_blocks: 65536,
        }
    }
}
