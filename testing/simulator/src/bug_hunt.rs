//! Shows that the simulator can fail: it must find each broken rule within a stated number of operations.
//! Each bound is about four times the slowest of several hunts when the bound was set. A hunt goes from seed
//! to seed, so no result depends on one store or one buffer.

use crate::main_loop::run;
use crate::options::{MOUNTS_MAX, SimulatorOptions};
use crate::planted_rules::PlantedRule;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The length of one run. Short histories are enough, with a crash for each 20 operations.
const OPERATIONS: u64 = 4000;
const CRASHES: u64 = OPERATIONS / 20;

/// The bound for each rule: the operations within which it is found, from any first seed on.
const BOUNDS: &[(PlantedRule, u64)] = &[
    (PlantedRule::CutIgnoresPageLsn, 40_000),
    (PlantedRule::ReusedBeforePins, 10_000),
    (PlantedRule::StoreWithoutFlush, 10_000),
    (PlantedRule::RepointBeforeCopy, 300_000),
    (PlantedRule::TrimAfterReuse, 1_000_000),
    (PlantedRule::FreedOnceTooOften, 10_000),
    (PlantedRule::LeakedNode, 10_000),
    (PlantedRule::ForgottenReservation, 10_000),
    (PlantedRule::ReservationCountedTwice, 10_000),
    (PlantedRule::HolderMissed, 300_000),
    (PlantedRule::FreedWithOneHolder, 10_000),
    (PlantedRule::SharedLeafChanged, 10_000),
    (PlantedRule::DyingTwice, 100_000),
    (PlantedRule::EntriesBeforeRoot, 10_000),
    (PlantedRule::TornGroupApplied, 10_000),
    (PlantedRule::StaleIncarnation, 10_000),
    (PlantedRule::BufferWithoutFlush, 10_000),
    (PlantedRule::NewerBytesLostAtMerge, 60_000),
    (PlantedRule::PinsIgnored, 1_000_000),
    (PlantedRule::OthersFlushesIgnored, 1_000_000),
    (PlantedRule::OneRoot, 80_000),
    (PlantedRule::SettledEarly, 300_000),
    (PlantedRule::StoreRotTakenForTorn, 300_000),
    (PlantedRule::RepairFromWrongCopy, 300_000),
    (PlantedRule::CopiesInOneSegment, 10_000),
    (PlantedRule::PageCopyForgotten, 10_000),
    (PlantedRule::MissingPairBelieved, 300_000),
    (PlantedRule::BeginWithoutFlush, 300_000),
    (PlantedRule::BufferRotTakenForTorn, 300_000),
    (PlantedRule::CutForgotten, 400_000),
    (PlantedRule::CutWithoutGroups, 1_000_000),
    (PlantedRule::OldGroupForgotten, 1_000_000),
    (PlantedRule::MergedCutKills, 1_000_000),
    (PlantedRule::StoredBeforeDurable, 10_000),
    (PlantedRule::RelogNotDurable, 1_000_000),
    (PlantedRule::CloneTooLate, 100_000),
    (PlantedRule::CloneTooEarly, 80_000),
    (PlantedRule::RescueCutsLate, 1_000_000),
    (PlantedRule::RangeRepeated, 20_000),
    (PlantedRule::RangeOvertaken, 1_000_000),
    (PlantedRule::RangeRecoveredTwice, 200_000),
    (PlantedRule::DeltasInWrongOrder, 300_000),
    (PlantedRule::DeltaBlockFreedEarly, 300_000),
    (PlantedRule::BaseFreedEarly, 300_000),
    (PlantedRule::FoldWithoutDeltas, 300_000),
    (PlantedRule::DeltaOverCut, 1_000_000),
    (PlantedRule::NameBeforeBytes, 300_000),
    (PlantedRule::CloneBeforeBytes, 300_000),
    (PlantedRule::PartBeforeWhole, 300_000),
    (PlantedRule::SyncWithoutBytes, 300_000),
    (PlantedRule::BackgroundSyncTold, 100_000),
    (PlantedRule::DifferenceOverUnlogged, 1_000_000),
    (PlantedRule::LentPagesNotLogged, 100_000),
    (PlantedRule::OlderOverBypassed, 300_000),
    (PlantedRule::OverdueNotLogged, 300_000),
    (PlantedRule::EndWithoutCommit, 1_000_000),
    (PlantedRule::VolumeNumberUsedAgain, 2_000_000),
    (PlantedRule::ReadOnlyVolumeChanged, 30_000),
    (PlantedRule::DeletedVolumeReplayed, 30_000),
    (PlantedRule::CompleteTooEarly, 300_000),
    (PlantedRule::VolumesOfTwoMoments, 10_000),
    (PlantedRule::NotUndone, 10_000),
    (PlantedRule::OverwriteBesideClone, 400_000),
    (PlantedRule::OverwriteBesideWriteBack, 1_000_000),
    (PlantedRule::OverwriteOfAnotherTick, 20_000),
    (PlantedRule::BatchInTwo, 20_000),
    (PlantedRule::StaleComparison, 200_000),
    (PlantedRule::BlockSyncWithoutBytes, 40_000),
    (PlantedRule::BlockZeroWithoutEdges, 40_000),
    (PlantedRule::BlockWriteInPages, 40_000),
    (PlantedRule::BlockLastPageIsHole, 40_000),
    (PlantedRule::BlockSizeWithoutZeros, 300_000),
];

/// The outcome of a hunt.
struct BugHunt {
    /// Operations of all runs together.
    operations: u64,
    /// The options of the run that failed, and its failure. `None` if no run failed.
    found: Option<(SimulatorOptions, String)>,
}

/// Breaks a rule in run after run until a run fails or `bound` operations have passed. Disks make errors in
/// every second run, and at most `mounts` volumes are mounted at once.
fn hunt(plant: Option<PlantedRule>, mounts: u64, from: u64, bound: u64) -> BugHunt {
    let mut operations = 0;
    for seed in from.. {
        let (faults, left) = (seed % 2 == 1, bound - operations);
        let options =
            SimulatorOptions { plant, faults, mounts, ..SimulatorOptions::of_one(seed, OPERATIONS, CRASHES) };
        match run(&options) {
            Err(failure) => {
                let found = (failure.operations <= left).then_some((options, failure.what));
                return BugHunt { operations: operations + failure.operations, found };
            }
            Ok(_) if left <= OPERATIONS => break,
            Ok(_) => operations += OPERATIONS,
        }
    }
    BugHunt { operations: bound, found: None }
}

/// Hunts for all rules, or for `only` one, and prints the table. Returns `false` if a rule was not found.
pub(crate) fn command(only: Option<PlantedRule>, from: u64) -> bool {
    let chosen: Vec<_> = BOUNDS.iter().filter(|(plant, _)| only.is_none_or(|only| only == *plant)).collect();
    let (next, lines) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((number, &&(plant, bound))) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|number| Some((number, chosen.get(number)?)))
        {
            let hunt = hunt(Some(plant), MOUNTS_MAX, from, bound);
            let line = line(plant, bound, &hunt);
            eprintln!("{line}");
            lines.lock().expect("nobody panics with the lines").push((number, hunt.found.is_some(), line));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let mut lines = lines.into_inner().expect("nobody panics with the lines");
    lines.sort();
    println!("| broken rule | found after | stated | by |\n| --- | --- | --- | --- |");
    lines.iter().for_each(|(_, _, line)| println!("{line}"));
    lines.iter().all(|&(_, found, _)| found)
}

fn line(plant: PlantedRule, bound: u64, hunt: &BugHunt) -> String {
    let after = if hunt.found.is_some() { hunt.operations.to_string() } else { "not found".to_owned() };
    let what = hunt.found.as_ref().map_or(String::new(), |(options, what)| {
        let what: String = what.lines().next().unwrap_or_default().chars().take(90).collect();
        format!("seed {}: {}", options.seed, what.replace('|', "/"))
    });
    format!("| `{}` | {after} | {bound} | {what} |", plant.name())
}

/// Tests of the rules that are found soon. `cargo sim --planted` hunts for all.
#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    fn is_found(plant: PlantedRule) {
        let &(_, bound) = BOUNDS.iter().find(|(other, _)| *other == plant).expect("each has a bound");
        let hunt = hunt(Some(plant), MOUNTS_MAX, 1, bound);
        assert!(hunt.found.is_some(), "{plant:?} is not found within {bound} operations");
    }

    #[test]
    fn every_rule_has_a_bound() {
        let missing = |plant: &&PlantedRule| BOUNDS.iter().all(|(other, _)| other != *plant);
        let missing: Vec<&PlantedRule> = PlantedRule::value_variants().iter().filter(missing).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn nothing_is_found_where_nothing_is_planted() {
        let found = hunt(None, MOUNTS_MAX, 1, 40_000).found.map(|(options, what)| (options.seed, what));
        assert_eq!(found, None);
    }

    #[test]
    fn a_cut_that_ignores_page_lsns_is_found() {
        is_found(PlantedRule::CutIgnoresPageLsn);
    }

    #[test]
    fn a_segment_reused_before_its_pins_are_gone_is_found() {
        is_found(PlantedRule::ReusedBeforePins);
    }

    #[test]
    fn a_store_without_flushes_is_found() {
        is_found(PlantedRule::StoreWithoutFlush);
    }

    #[test]
    fn repointing_before_the_copy_is_there_is_found() {
        is_found(PlantedRule::RepointBeforeCopy);
    }

    #[test]
    fn a_trim_after_the_segment_s_reuse_is_found() {
        is_found(PlantedRule::TrimAfterReuse);
    }

    #[test]
    fn a_clone_s_node_that_is_freed_once_too_often_is_found() {
        is_found(PlantedRule::FreedOnceTooOften);
    }

    #[test]
    fn a_leaked_node_is_found() {
        is_found(PlantedRule::LeakedNode);
    }

    #[test]
    fn a_forgotten_reservation_is_found() {
        is_found(PlantedRule::ForgottenReservation);
    }

    #[test]
    fn a_reservation_that_counts_twice_is_found() {
        is_found(PlantedRule::ReservationCountedTwice);
    }

    #[test]
    fn a_shared_block_that_is_freed_with_a_holder_left_is_found() {
        is_found(PlantedRule::FreedWithOneHolder);
    }

    #[test]
    fn a_shared_leaf_that_is_changed_is_found() {
        is_found(PlantedRule::SharedLeafChanged);
    }

    #[test]
    fn a_log_entry_replayed_past_the_root_that_has_it_is_found() {
        is_found(PlantedRule::EntriesBeforeRoot);
    }

    #[test]
    fn a_torn_group_that_is_applied_is_found() {
        is_found(PlantedRule::TornGroupApplied);
    }

    #[test]
    fn a_stale_incarnation_that_is_replayed_is_found() {
        is_found(PlantedRule::StaleIncarnation);
    }

    #[test]
    fn a_buffer_without_flushes_is_found() {
        is_found(PlantedRule::BufferWithoutFlush);
    }

    #[test]
    fn newer_bytes_lost_at_a_merge_are_found() {
        is_found(PlantedRule::NewerBytesLostAtMerge);
    }

    #[test]
    fn a_store_with_one_root_is_found() {
        is_found(PlantedRule::OneRoot);
    }

    #[test]
    fn pages_that_are_stored_before_they_are_durable_are_found() {
        is_found(PlantedRule::StoredBeforeDurable);
    }

    #[test]
    fn a_copy_with_later_changes_is_found() {
        is_found(PlantedRule::CloneTooLate);
    }

    #[test]
    fn a_copy_without_earlier_changes_is_found() {
        is_found(PlantedRule::CloneTooEarly);
    }

    #[test]
    fn a_background_sync_that_is_told_too_early_is_found() {
        is_found(PlantedRule::BackgroundSyncTold);
    }

    #[test]
    fn a_lent_sync_that_is_not_logged_is_found() {
        is_found(PlantedRule::LentPagesNotLogged);
    }

    #[test]
    fn replayed_records_of_a_deleted_volume_are_found() {
        is_found(PlantedRule::DeletedVolumeReplayed);
    }

    #[test]
    fn a_store_that_is_called_complete_and_is_not_is_found() {
        is_found(PlantedRule::CompleteTooEarly);
    }

    #[test]
    fn volumes_of_two_moments_are_found() {
        is_found(PlantedRule::VolumesOfTwoMoments);
    }

    #[test]
    fn a_transaction_that_is_not_undone_is_found() {
        is_found(PlantedRule::NotUndone);
    }

    #[test]
    fn times_of_another_tick_that_an_overwrite_leaves_are_found() {
        is_found(PlantedRule::OverwriteOfAnotherTick);
    }

    #[test]
    fn a_batch_that_is_two_transactions_is_found() {
        is_found(PlantedRule::BatchInTwo);
    }

    #[test]
    fn a_comparison_before_its_batch_is_found() {
        is_found(PlantedRule::StaleComparison);
    }

    #[test]
    fn a_sync_of_a_block_volume_without_its_bypassed_pages_is_found() {
        is_found(PlantedRule::BlockSyncWithoutBytes);
    }

    #[test]
    fn zeros_of_a_block_volume_without_their_edges_are_found() {
        is_found(PlantedRule::BlockZeroWithoutEdges);
    }

    #[test]
    fn a_write_to_a_block_volume_page_by_page_is_found() {
        is_found(PlantedRule::BlockWriteInPages);
    }

    #[test]
    fn a_last_page_of_a_block_volume_that_counts_as_a_hole_is_found() {
        is_found(PlantedRule::BlockLastPageIsHole);
    }
}
