//! The simulator can fail: each broken rule is found within a stated number of operations, and nothing is found in the
//! same runs without it. The bounds are about four times what the slowest of the seeds needed when they were set.

use super::plant::Plant;
use super::{Options, repeat_line, run};

/// Operations of each run, with a crash for each 40: what a short history needs.
const OPERATIONS: u64 = 60_000;
const CRASHES: u64 = OPERATIONS / 40;
/// Runs of each kind, with seeds from 1 on, so that no result hangs on one seed.
const SEEDS: u64 = 3;

fn options(seed: u64, plant: Option<Plant>) -> Options {
    Options { operations: OPERATIONS, crashes: CRASHES, plant, ..Options::for_test(seed) }
}

/// Sees `plant` found within `bound` operations from every seed.
fn is_found_within(bound: u64, plant: Plant) {
    found_from(1..=SEEDS, bound, plant);
}

/// The same, in stores that clients keep full: one seed in five does.
fn is_found_in_full_stores_within(bound: u64, plant: Plant) {
    found_from((1..=SEEDS).map(|run| 5 * run), bound, plant);
}

fn found_from(seeds: impl Iterator<Item = u64>, bound: u64, plant: Plant) {
    for seed in seeds {
        let found = run(&options(seed, Some(plant))).expect_err("a broken rule breaks a promise");
        assert!(found.operations <= bound, "seed {seed}: {plant:?} is found after {}", found.operations);
    }
}

#[test]
fn the_same_runs_without_a_planted_bug_break_no_promise() {
    for seed in (1..=SEEDS).chain((1..=SEEDS).map(|run| 5 * run)) {
        let options = options(seed, None);
        let run = run(&options);
        assert!(run.is_ok(), "{run:?}; {}", repeat_line(&options));
    }
}

/// Needs an old cut in the buffer, newer bytes at home, and a crash between.
const CUT_IGNORES_HOME_OPERATIONS: u64 = 60_000;
/// Needs the log to come round while an old root still needs the segment.
const REUSED_BEFORE_PINS_OPERATIONS: u64 = 4_000;
/// Needs a power cut soon after a write-back.
const STORE_WITHOUT_FLUSH_OPERATIONS: u64 = 4_000;
/// Needs a store that is cleaned, and a page that is read, or a crash, before the copies arrive.
const REPOINT_BEFORE_COPY_OPERATIONS: u64 = 5_000;
/// Needs a store that is so full that a segment is used again at once.
const TRIM_AFTER_REUSE_OPERATIONS: u64 = 11_000;
/// Needs a deleted volume some of whose nodes others share.
const FREED_ONCE_TOO_OFTEN_OPERATIONS: u64 = 3_000;
/// Needs a deleted volume with nodes of its own.
const LEAKED_NODE_OPERATIONS: u64 = 3_000;
/// Needs more promises than there is room for, all of which are used.
const FORGOTTEN_PROMISE_OPERATIONS: u64 = 50_000;
/// Needs a crash with a log that began before the newest root.
const NOTES_BEFORE_ROOT_OPERATIONS: u64 = 2_600;
/// Needs a power cut in a commit of several blocks.
const TORN_GROUP_APPLIED_OPERATIONS: u64 = 12_000;
/// Needs what an earlier mount left just where the newest group ends.
const STALE_INCARNATION_OPERATIONS: u64 = 2_000;
/// Needs a power cut soon after a sync.
const BUFFER_WITHOUT_FLUSH_OPERATIONS: u64 = 2_000;
/// Needs a write to a page that is on its way home, and that nobody writes to again until a crash or an eviction.
const NEWER_BYTES_LOST_OPERATIONS: u64 = 25_000;

#[test]
fn a_cut_that_ignores_home_is_found() {
    is_found_within(CUT_IGNORES_HOME_OPERATIONS, Plant::CutIgnoresHome);
}

#[test]
fn a_segment_reused_before_its_pins_are_gone_is_found() {
    is_found_within(REUSED_BEFORE_PINS_OPERATIONS, Plant::ReusedBeforePins);
}

#[test]
fn a_store_without_flushes_is_found() {
    is_found_within(STORE_WITHOUT_FLUSH_OPERATIONS, Plant::StoreWithoutFlush);
}

#[test]
fn repointing_before_the_copy_is_there_is_found() {
    is_found_in_full_stores_within(REPOINT_BEFORE_COPY_OPERATIONS, Plant::RepointBeforeCopy);
}

#[test]
fn a_trim_after_the_segment_s_reuse_is_found() {
    is_found_in_full_stores_within(TRIM_AFTER_REUSE_OPERATIONS, Plant::TrimAfterReuse);
}

#[test]
fn a_clone_s_node_that_is_freed_once_too_often_is_found() {
    is_found_within(FREED_ONCE_TOO_OFTEN_OPERATIONS, Plant::FreedOnceTooOften);
}

#[test]
fn a_leaked_node_is_found() {
    is_found_within(LEAKED_NODE_OPERATIONS, Plant::LeakedNode);
}

#[test]
fn a_forgotten_promise_is_found() {
    is_found_in_full_stores_within(FORGOTTEN_PROMISE_OPERATIONS, Plant::ForgottenPromise);
}

#[test]
fn a_note_replayed_past_the_root_that_has_it_is_found() {
    is_found_within(NOTES_BEFORE_ROOT_OPERATIONS, Plant::NotesBeforeRoot);
}

#[test]
fn a_torn_group_that_is_applied_is_found() {
    is_found_within(TORN_GROUP_APPLIED_OPERATIONS, Plant::TornGroupApplied);
}

#[test]
fn a_stale_incarnation_that_is_replayed_is_found() {
    is_found_within(STALE_INCARNATION_OPERATIONS, Plant::StaleIncarnation);
}

#[test]
fn a_buffer_without_flushes_is_found() {
    is_found_within(BUFFER_WITHOUT_FLUSH_OPERATIONS, Plant::BufferWithoutFlush);
}

#[test]
fn newer_bytes_lost_at_a_merge_are_found() {
    is_found_within(NEWER_BYTES_LOST_OPERATIONS, Plant::NewerBytesLostAtMerge);
}
