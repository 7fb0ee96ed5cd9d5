//! The simulator can fail: each broken rule is found within a stated number of operations. What the slowest of several hunts
//! needed when they were set, times four or so; a hunt goes from seed to seed, so no result hangs on one store or one buffer.

use crate::options::Options;
use crate::plant::Plant;
use crate::turns::run;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Operations of one run, with a crash for each 20: what a short history needs.
const OPERATIONS: u64 = 4000;
const CRASHES: u64 = OPERATIONS / 20;

/// The operations within which each is found, from any first seed on.
const BOUNDS: &[(Plant, u64)] = &[
    (Plant::CutIgnoresPageLsn, 40_000),
    (Plant::ReusedBeforePins, 10_000),
    (Plant::StoreWithoutFlush, 10_000),
    (Plant::RepointBeforeCopy, 300_000),
    (Plant::TrimAfterReuse, 1_000_000),
    (Plant::FreedOnceTooOften, 10_000),
    (Plant::LeakedNode, 10_000),
    (Plant::ForgottenReservation, 10_000),
    (Plant::ReservationCountedTwice, 10_000),
    (Plant::HolderMissed, 300_000),
    (Plant::FreedWithOneHolder, 10_000),
    (Plant::DyingTwice, 100_000),
    (Plant::EntriesBeforeRoot, 10_000),
    (Plant::TornGroupApplied, 10_000),
    (Plant::StaleIncarnation, 10_000),
    (Plant::BufferWithoutFlush, 10_000),
    (Plant::NewerBytesLostAtMerge, 60_000),
    (Plant::PinsIgnored, 1_000_000),
    (Plant::OthersFlushesIgnored, 1_000_000),
    (Plant::OneRoot, 80_000),
    (Plant::SettledEarly, 300_000),
    (Plant::StoreRotTakenForTorn, 300_000),
    (Plant::RepairFromWrongCopy, 300_000),
    (Plant::CopiesInOneSegment, 10_000),
    (Plant::PageCopyForgotten, 10_000),
    (Plant::MissingPairBelieved, 300_000),
    (Plant::BeginWithoutFlush, 300_000),
    (Plant::BufferRotTakenForTorn, 300_000),
    (Plant::CutForgotten, 400_000),
    (Plant::CutWithoutGroups, 1_000_000),
    (Plant::OldGroupForgotten, 1_000_000),
    (Plant::MergedCutKills, 1_000_000),
    (Plant::StoredBeforeDurable, 10_000),
    (Plant::RelogNotDurable, 1_000_000),
    (Plant::CloneTooLate, 30_000),
    (Plant::CloneTooEarly, 300_000),
    (Plant::RescueCutsLate, 1_000_000),
    (Plant::RangeRepeated, 20_000),
    (Plant::RangeOvertaken, 1_000_000),
    (Plant::RangeRecoveredTwice, 200_000),
    (Plant::DeltasInWrongOrder, 300_000),
    (Plant::DeltaBlockFreedEarly, 300_000),
    (Plant::BaseFreedEarly, 300_000),
    (Plant::FoldWithoutDeltas, 300_000),
    (Plant::DeltaOverCut, 1_000_000),
    (Plant::NameBeforeBytes, 300_000),
    (Plant::CloneBeforeBytes, 300_000),
    (Plant::PartBeforeWhole, 300_000),
    (Plant::SyncWithoutBytes, 300_000),
    (Plant::OlderOverBypassed, 300_000),
    (Plant::OverdueNotLogged, 300_000),
    (Plant::EndWithoutCommit, 1_000_000),
    (Plant::VolumeNumberUsedAgain, 2_000_000),
    (Plant::NotUndone, 10_000),
];

/// What a hunt came to.
struct Hunt {
    /// Operations of all runs.
    operations: u64,
    /// What was found, and in which run; `None`: nothing.
    found: Option<(Options, String)>,
}

/// Breaks a rule in run after run, every second one on disks that fail, until that is seen or there were `bound` operations.
fn hunt(plant: Option<Plant>, from: u64, bound: u64) -> Hunt {
    let mut operations = 0;
    for seed in from.. {
        let (faults, left) = (seed % 2 == 1, bound - operations);
        let options = Options { plant, faults, ..Options::of_one(seed, OPERATIONS, CRASHES) };
        match run(&options) {
            Err(failure) => {
                let found = (failure.operations <= left).then_some((options, failure.what));
                return Hunt { operations: operations + failure.operations, found };
            }
            Ok(_) if left <= OPERATIONS => break,
            Ok(_) => operations += OPERATIONS,
        }
    }
    Hunt { operations: bound, found: None }
}

/// Hunts for all, or for `only` one, and prints the table; `false` if one was not found.
pub(crate) fn command(only: Option<Plant>, from: u64) -> bool {
    let chosen: Vec<_> = BOUNDS.iter().filter(|(plant, _)| only.is_none_or(|only| only == *plant)).collect();
    let (next, lines) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        while let Some((number, &&(plant, bound))) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|number| Some((number, chosen.get(number)?)))
        {
            let hunt = hunt(Some(plant), from, bound);
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

fn line(plant: Plant, bound: u64, hunt: &Hunt) -> String {
    let after = if hunt.found.is_some() { hunt.operations.to_string() } else { "not found".to_owned() };
    let what = hunt.found.as_ref().map_or(String::new(), |(options, what)| {
        let what: String = what.lines().next().unwrap_or_default().chars().take(90).collect();
        format!("seed {}: {}", options.seed, what.replace('|', "/"))
    });
    format!("| `{}` | {after} | {bound} | {what} |", plant.name())
}

/// Those that are found soon. `cargo sim --planted` hunts for all.
#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    fn is_found(plant: Plant) {
        let &(_, bound) = BOUNDS.iter().find(|(other, _)| *other == plant).expect("each has a bound");
        let hunt = hunt(Some(plant), 1, bound);
        assert!(hunt.found.is_some(), "{plant:?} is not found within {bound} operations");
    }

    #[test]
    fn every_rule_has_a_bound() {
        let missing = |plant: &&Plant| BOUNDS.iter().all(|(other, _)| other != *plant);
        let missing: Vec<&Plant> = Plant::value_variants().iter().filter(missing).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn nothing_is_found_where_nothing_is_planted() {
        let found = hunt(None, 1, 40_000).found.map(|(options, what)| (options.seed, what));
        assert_eq!(found, None);
    }

    #[test]
    fn a_cut_that_ignores_page_lsns_is_found() {
        is_found(Plant::CutIgnoresPageLsn);
    }

    #[test]
    fn a_segment_reused_before_its_pins_are_gone_is_found() {
        is_found(Plant::ReusedBeforePins);
    }

    #[test]
    fn a_store_without_flushes_is_found() {
        is_found(Plant::StoreWithoutFlush);
    }

    #[test]
    fn repointing_before_the_copy_is_there_is_found() {
        is_found(Plant::RepointBeforeCopy);
    }

    #[test]
    fn a_trim_after_the_segment_s_reuse_is_found() {
        is_found(Plant::TrimAfterReuse);
    }

    #[test]
    fn a_clone_s_node_that_is_freed_once_too_often_is_found() {
        is_found(Plant::FreedOnceTooOften);
    }

    #[test]
    fn a_leaked_node_is_found() {
        is_found(Plant::LeakedNode);
    }

    #[test]
    fn a_forgotten_reservation_is_found() {
        is_found(Plant::ForgottenReservation);
    }

    #[test]
    fn a_reservation_that_counts_twice_is_found() {
        is_found(Plant::ReservationCountedTwice);
    }

    #[test]
    fn a_shared_block_that_is_freed_with_a_holder_left_is_found() {
        is_found(Plant::FreedWithOneHolder);
    }

    #[test]
    fn a_log_entry_replayed_past_the_root_that_has_it_is_found() {
        is_found(Plant::EntriesBeforeRoot);
    }

    #[test]
    fn a_torn_group_that_is_applied_is_found() {
        is_found(Plant::TornGroupApplied);
    }

    #[test]
    fn a_stale_incarnation_that_is_replayed_is_found() {
        is_found(Plant::StaleIncarnation);
    }

    #[test]
    fn a_buffer_without_flushes_is_found() {
        is_found(Plant::BufferWithoutFlush);
    }

    #[test]
    fn newer_bytes_lost_at_a_merge_are_found() {
        is_found(Plant::NewerBytesLostAtMerge);
    }

    #[test]
    fn a_store_with_one_root_is_found() {
        is_found(Plant::OneRoot);
    }

    #[test]
    fn pages_that_are_stored_before_they_are_durable_are_found() {
        is_found(Plant::StoredBeforeDurable);
    }

    #[test]
    fn a_copy_with_later_changes_is_found() {
        is_found(Plant::CloneTooLate);
    }

    #[test]
    fn a_copy_without_earlier_changes_is_found() {
        is_found(Plant::CloneTooEarly);
    }

    #[test]
    fn a_transaction_that_is_not_undone_is_found() {
        is_found(Plant::NotUndone);
    }
}
