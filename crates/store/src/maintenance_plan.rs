//! The plan of maintenance: which step is due, by gauges of the store. Does nothing itself:
//! [`maintenance`](crate::maintenance) reads the gauges and makes the step.
//!
//! | step | due when |
//! | --- | --- |
//! | checkpoint | recovery would read much, or many nodes are dirty |
//! | allocate | free segments that the host file system backs run low |
//! | free | deleted files and volumes hold blocks |
//! | clean | pages were written for which cleaning is owed |
//! | trim dead segments | the host file system is full, and segments may have died |
//! | trim freed segments | the last deleted file or volume is freed |
//! | merge | pages were stored as deltas, and no page was applied for a while |
//!
//! The first one that is due is made. After a failure, allocating, freeing and merging rest for a while.
//! Cleaning that found nothing, and trimming dead segments, rest until something is written. A checkpoint or
//! a cleaning step that failed is tried again at once, before all steps below it.

use std::time::Duration;

/// Reads of the log after which a checkpoint is due: those of 256 MiB of log in extents of 16 MiB. A
/// checkpoint comes earlier if extents are shorter, or if the log has too many entries for an index block to
/// sum them up.
const LOG_READS_MAX: u64 = 16;

/// If nothing was applied for this long, stored deltas are merged into their pages: then these are read as
/// fast as pages that were stored whole. It is also the shortest time between two trims of freed segments.
pub(crate) const QUIET_PERIOD: Duration = Duration::from_secs(5);

/// The pause after a failure to allocate, to free or to merge.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How long segments that could not be emptied are left alone while a caller waits for space.
pub(crate) const RETRY_STUCK_AFTER: Duration = Duration::from_secs(60);

/// A step of maintenance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MaintenanceStep {
    /// Shortens recovery.
    Checkpoint,
    /// Asks the host file system for the segments that will be needed soon.
    AllocateAhead,
    /// Frees blocks of deleted files and volumes.
    Free,
    /// Cleans as much as is owed for what was written.
    Clean,
    /// Trims dead segments for a full host file system, without waiting for a checkpoint.
    TrimDead,
    /// Trims the segments of deleted files and volumes, though nothing else asks for a checkpoint.
    TrimFreed,
    /// Merges the deltas of a leaf.
    Merge,
}

/// What earlier steps noted for the plan: when they may be made again, and as of when they gained nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MaintenanceNotes {
    /// Freeing the blocks of deleted files and volumes.
    pub(crate) free_not_before: Duration,
    /// Blocks were freed that were not trimmed since.
    pub(crate) has_freed: bool,
    /// Trimming freed blocks.
    pub(crate) trim_not_before: Duration,
    /// Asking the host file system for space.
    pub(crate) allocate_not_before: Duration,
    /// Merging deltas.
    pub(crate) merge_not_before: Duration,
    /// Retrying segments that could not be emptied.
    pub(crate) retry_not_before: Duration,
    /// The number of applied pages when merging was last put off.
    pub(crate) pages_applied: u64,
    /// The number of batches when there was nothing to clean.
    pub(crate) nothing_to_clean_as_of: Option<u64>,
    /// The number of batches when dead segments were last trimmed for a full host file system.
    pub(crate) trimmed_as_of: u64,
}

/// The figures of the store from which the plan follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct MaintenanceGauges {
    pub(crate) now: Duration,
    pub(crate) notes: MaintenanceNotes,
    /// Blocks of the log since the last checkpoint, and the most of them.
    pub(crate) log_blocks: u64,
    pub(crate) log_blocks_max: u64,
    /// Reads by which recovery would follow the log since then.
    pub(crate) log_reads: u64,
    pub(crate) has_many_dirty_nodes: bool,
    /// Batches written so far: what changes with each write.
    pub(crate) batches: u64,
    /// Blocks that are reserved.
    pub(crate) reserved: u64,
    /// Free segments that the host file system backs run low, or it was full and may not be any more.
    pub(crate) free_segments_run_low: bool,
    /// Some segments are free as soon as the host file system allocates them.
    pub(crate) has_unbacked: bool,
    /// The host file system has no space for a segment that the store could use.
    pub(crate) host_fs_is_full: bool,
    /// Deleted files or volumes hold blocks.
    pub(crate) is_freeing: bool,
    /// Less than an eighth of the store is left.
    pub(crate) is_tight: bool,
    /// A step of cleaning is owed for what was written.
    pub(crate) cleaning_is_owed: bool,
    /// A round of cleaning may let more be reserved or written.
    pub(crate) cleaning_may_help: bool,
    /// Enough was stored as deltas, and space is not short.
    pub(crate) merge_is_worth_it: bool,
}

impl MaintenanceGauges {
    /// The first step that is due.
    pub(crate) fn next_step(&self) -> Option<MaintenanceStep> {
        let steps = [
            (self.checkpoint_is_due(), MaintenanceStep::Checkpoint),
            (self.allocation_is_due(), MaintenanceStep::AllocateAhead),
            (self.freeing_is_due(), MaintenanceStep::Free),
            (self.cleaning_is_due(), MaintenanceStep::Clean),
            (self.trimming_dead_is_due(), MaintenanceStep::TrimDead),
            (self.trimming_freed_is_due(), MaintenanceStep::TrimFreed),
            (self.merging_is_due(), MaintenanceStep::Merge),
        ];
        steps.into_iter().find(|(is_due, _)| *is_due).map(|(_, step)| step)
    }

    /// The step before pages are written back, if cleaning is owed for earlier pages. So free space is gained
    /// as fast as it is used, and a writer that waits for a write-back waits for its share of the cleaning,
    /// never for a whole segment.
    pub(crate) fn step_before_write_back(&self) -> Option<MaintenanceStep> {
        // Asking the host file system for space costs less than cleaning.
        let step =
            if self.allocation_is_due() { MaintenanceStep::AllocateAhead } else { MaintenanceStep::Clean };
        self.cleaning_is_due().then_some(step)
    }

    fn checkpoint_is_due(&self) -> bool {
        self.log_blocks >= self.log_blocks_max || self.log_reads >= LOG_READS_MAX || self.has_many_dirty_nodes
    }

    fn allocation_is_due(&self) -> bool {
        self.free_segments_run_low && self.may_ask_host_fs()
    }

    /// Whether the host file system may have space for another segment.
    pub(crate) fn may_allocate(&self) -> bool {
        self.has_unbacked && self.may_ask_host_fs()
    }

    /// Whether the host file system's last refusal was a while ago.
    fn may_ask_host_fs(&self) -> bool {
        self.now >= self.notes.allocate_not_before
    }

    pub(crate) fn freeing_is_due(&self) -> bool {
        self.is_freeing && self.now >= self.notes.free_not_before
    }

    /// After a step that found nothing to clean, not before something is written.
    fn cleaning_is_due(&self) -> bool {
        self.cleaning_is_owed && self.notes.nothing_to_clean_as_of != Some(self.batches)
    }

    fn trimming_dead_is_due(&self) -> bool {
        self.host_fs_is_full && self.notes.trimmed_as_of != self.batches
    }

    fn trimming_freed_is_due(&self) -> bool {
        self.notes.has_freed && self.now >= self.notes.trim_not_before && !self.is_freeing
    }

    fn merging_is_due(&self) -> bool {
        self.merge_is_worth_it && self.now >= self.notes.merge_not_before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);
    const LATER: Duration = Duration::from_secs(101);

    /// Everything is due.
    fn busy() -> MaintenanceGauges {
        MaintenanceGauges {
            now: NOW,
            notes: MaintenanceNotes { has_freed: true, ..MaintenanceNotes::default() },
            log_blocks: 1000,
            log_blocks_max: 1000,
            log_reads: LOG_READS_MAX,
            has_many_dirty_nodes: true,
            batches: 7,
            reserved: 0,
            free_segments_run_low: true,
            has_unbacked: true,
            host_fs_is_full: true,
            is_freeing: true,
            is_tight: true,
            cleaning_is_owed: true,
            cleaning_may_help: true,
            merge_is_worth_it: true,
        }
    }

    /// Nothing is due.
    fn idle() -> MaintenanceGauges {
        MaintenanceGauges { now: NOW, log_blocks_max: 1000, batches: 7, ..MaintenanceGauges::default() }
    }

    #[test]
    fn steps_are_made_in_one_order() {
        let mut gauges = busy();
        let mut steps = Vec::new();
        while let Some(step) = gauges.next_step() {
            steps.push(step);
            match step {
                MaintenanceStep::Checkpoint => {
                    gauges.log_blocks = 0;
                    gauges.log_reads = 0;
                    gauges.has_many_dirty_nodes = false;
                }
                MaintenanceStep::AllocateAhead => gauges.free_segments_run_low = false,
                MaintenanceStep::Free => gauges.is_freeing = false,
                MaintenanceStep::Clean => gauges.cleaning_is_owed = false,
                MaintenanceStep::TrimDead => gauges.host_fs_is_full = false,
                MaintenanceStep::TrimFreed => gauges.notes.has_freed = false,
                MaintenanceStep::Merge => gauges.merge_is_worth_it = false,
            }
        }
        let expected = [
            MaintenanceStep::Checkpoint,
            MaintenanceStep::AllocateAhead,
            MaintenanceStep::Free,
            MaintenanceStep::Clean,
            MaintenanceStep::TrimDead,
            MaintenanceStep::TrimFreed,
            MaintenanceStep::Merge,
        ];
        assert_eq!(steps, expected);
    }

    #[test]
    fn any_limit_of_the_log_asks_for_a_checkpoint() {
        for (blocks, reads, has_many_dirty_nodes, is_due) in [
            (999, LOG_READS_MAX - 1, false, false),
            (1000, 0, false, true),
            (0, LOG_READS_MAX, false, true),
            (0, 0, true, true),
        ] {
            let gauges =
                MaintenanceGauges { log_blocks: blocks, log_reads: reads, has_many_dirty_nodes, ..idle() };
            assert_eq!(gauges.next_step(), is_due.then_some(MaintenanceStep::Checkpoint), "{gauges:?}");
        }
    }

    #[test]
    fn a_paused_step_waits_for_its_time() {
        let none = MaintenanceNotes::default();
        let freed = MaintenanceNotes { has_freed: true, ..none };
        let cases = [
            (
                MaintenanceStep::AllocateAhead,
                MaintenanceGauges { free_segments_run_low: true, ..idle() },
                MaintenanceNotes { allocate_not_before: LATER, ..none },
            ),
            (
                MaintenanceStep::Free,
                MaintenanceGauges { is_freeing: true, ..idle() },
                MaintenanceNotes { free_not_before: LATER, ..none },
            ),
            (
                MaintenanceStep::TrimFreed,
                MaintenanceGauges { notes: freed, ..idle() },
                MaintenanceNotes { trim_not_before: LATER, ..freed },
            ),
            (
                MaintenanceStep::Merge,
                MaintenanceGauges { merge_is_worth_it: true, ..idle() },
                MaintenanceNotes { merge_not_before: LATER, ..none },
            ),
        ];
        for (step, gauges, paused) in cases {
            assert_eq!(gauges.next_step(), Some(step));
            let paused = MaintenanceGauges { notes: paused, ..gauges };
            assert_eq!(paused.next_step(), None, "{step:?}");
            assert_eq!(MaintenanceGauges { now: LATER, ..paused }.next_step(), Some(step));
        }
    }

    #[test]
    fn what_gained_nothing_waits_for_a_write() {
        let cases = [
            (
                MaintenanceStep::Clean,
                MaintenanceGauges { cleaning_is_owed: true, ..idle() },
                MaintenanceNotes { nothing_to_clean_as_of: Some(7), ..MaintenanceNotes::default() },
            ),
            (
                MaintenanceStep::TrimDead,
                MaintenanceGauges { host_fs_is_full: true, ..idle() },
                MaintenanceNotes { trimmed_as_of: 7, ..MaintenanceNotes::default() },
            ),
        ];
        for (step, gauges, notes) in cases {
            assert_eq!(gauges.next_step(), Some(step));
            let in_vain = MaintenanceGauges { notes, ..gauges };
            assert_eq!(in_vain.next_step(), None, "{step:?}");
            assert_eq!(MaintenanceGauges { batches: 8, ..in_vain }.next_step(), Some(step));
        }
    }

    #[test]
    fn freed_blocks_are_trimmed_after_the_last() {
        let notes = MaintenanceNotes { has_freed: true, free_not_before: LATER, ..Default::default() };
        let gauges = MaintenanceGauges { is_freeing: true, notes, ..idle() };
        assert_eq!(gauges.next_step(), None);
    }

    #[test]
    fn write_back_waits_only_for_cleaning_that_is_owed() {
        let owed = MaintenanceGauges { cleaning_is_owed: true, ..idle() };
        assert_eq!(MaintenanceGauges { cleaning_is_owed: false, ..busy() }.step_before_write_back(), None);
        assert_eq!(owed.step_before_write_back(), Some(MaintenanceStep::Clean));
        assert_eq!(busy().step_before_write_back(), Some(MaintenanceStep::AllocateAhead));
    }
}
