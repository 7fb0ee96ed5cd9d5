//! Counters of the store's work since it was opened.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of the store's work since it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreCounters {
    /// Pages that readers asked for and that were no holes.
    pub page_reads: u64,
    /// Map nodes read from the device.
    pub node_reads: u64,
    /// Blocks of metadata that were damaged or unreadable, and were repaired from their copy.
    pub metadata_repaired: u64,
    /// Reads of the device for pages; consecutive pages share one.
    pub device_reads: u64,
    /// Vectors applied.
    pub batches: u64,
    /// Pages of these vectors, each counted once. Pages that the cleaner moves have their own counter.
    pub pages_written: u64,
    /// The part of `pages_written` that is blocks of deltas.
    pub delta_blocks_written: u64,
    /// Pages into which a base and its deltas were merged. They count as written, too.
    pub pages_delta_merged: u64,
    /// Blocks written to the device, of any kind.
    pub blocks_written: u64,
    /// Flushes of the device.
    pub flushes: u64,
    /// Checkpoints made durable.
    pub checkpoints: u64,
    /// Nodes and pages of the node table written by checkpoints.
    pub nodes_written: u64,
    /// Pages that the cleaner moved.
    pub pages_cleaned: u64,
    /// Entries of the map that the cleaner repointed. A node that several volumes share counts once.
    pub entries_repointed: u64,
    /// Nodes of the map that the cleaner and the scrubber visited.
    pub nodes_visited: u64,
    /// References that deleted volumes and files gave up, and nodes freed with the last one.
    pub nodes_freed: u64,
    /// Complete walks of the map, after which live counts are exact.
    pub walks: u64,
    /// Segments that the cleaner emptied.
    pub segments_cleaned: u64,
    /// Segments trimmed and free again.
    pub segments_freed: u64,
    /// Trims that failed. After the first, the device is asked for none any more.
    pub trims_failed: u64,
    /// Segments that the host file system has allocated since.
    pub segments_allocated: u64,
}

/// The counters behind [`StoreCounters`].
#[derive(Debug, Default)]
pub(crate) struct AtomicStoreCounters {
    pub(crate) page_reads: AtomicU64,
    pub(crate) node_reads: AtomicU64,
    pub(crate) metadata_repaired: AtomicU64,
    pub(crate) device_reads: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) pages_written: AtomicU64,
    pub(crate) delta_blocks_written: AtomicU64,
    pub(crate) pages_delta_merged: AtomicU64,
    pub(crate) blocks_written: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) checkpoints: AtomicU64,
    pub(crate) nodes_written: AtomicU64,
    pub(crate) pages_cleaned: AtomicU64,
    pub(crate) entries_repointed: AtomicU64,
    pub(crate) nodes_visited: AtomicU64,
    pub(crate) nodes_freed: AtomicU64,
    pub(crate) walks: AtomicU64,
    pub(crate) segments_cleaned: AtomicU64,
    pub(crate) segments_freed: AtomicU64,
    pub(crate) trims_failed: AtomicU64,
    pub(crate) segments_allocated: AtomicU64,
}

/// Adds to a counter. No code depends on the order among counters.
pub(crate) fn count(counter: &AtomicU64, more: u64) {
    counter.fetch_add(more, Ordering::Relaxed);
}

impl AtomicStoreCounters {
    pub(crate) fn now(&self) -> StoreCounters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        StoreCounters {
            page_reads: get(&self.page_reads),
            node_reads: get(&self.node_reads),
            metadata_repaired: get(&self.metadata_repaired),
            device_reads: get(&self.device_reads),
            batches: get(&self.batches),
            pages_written: get(&self.pages_written),
            delta_blocks_written: get(&self.delta_blocks_written),
            pages_delta_merged: get(&self.pages_delta_merged),
            blocks_written: get(&self.blocks_written),
            flushes: get(&self.flushes),
            checkpoints: get(&self.checkpoints),
            nodes_written: get(&self.nodes_written),
            pages_cleaned: get(&self.pages_cleaned),
            entries_repointed: get(&self.entries_repointed),
            nodes_visited: get(&self.nodes_visited),
            nodes_freed: get(&self.nodes_freed),
            walks: get(&self.walks),
            segments_cleaned: get(&self.segments_cleaned),
            segments_freed: get(&self.segments_freed),
            trims_failed: get(&self.trims_failed),
            segments_allocated: get(&self.segments_allocated),
        }
    }
}
