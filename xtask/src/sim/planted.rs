//! The simulator can fail: each broken rule is found within a stated number of operations. What the slowest of several hunts
//! needed when they were set, times four or so; a hunt goes from seed to seed, so no result hangs on one store or one buffer.

use super::plant::Plant;
use super::{Options, run};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Operations of one run, with a crash for each 20: what a short history needs.
const OPERATIONS: u64 = 4000;
const CRASHES: u64 = OPERATIONS / 20;

/// The operations within which each is found, from any first seed on.
const BOUNDS: &[(Plant, u64)] = &[
    (Plant::CutIgnoresHome, 200_000),
    (Plant::ReusedBeforePins, 200_000),
    (Plant::StoreWithoutFlush, 200_000),
    (Plant::RepointBeforeCopy, 200_000),
    (Plant::TrimAfterReuse, 200_000),
    (Plant::FreedOnceTooOften, 200_000),
    (Plant::LeakedNode, 200_000),
    (Plant::ForgottenPromise, 200_000),
    (Plant::NotesBeforeRoot, 200_000),
    (Plant::TornGroupApplied, 200_000),
    (Plant::StaleIncarnation, 200_000),
    (Plant::BufferWithoutFlush, 200_000),
    (Plant::NewerBytesLostAtMerge, 200_000),
    (Plant::PinsIgnored, 200_000),
    (Plant::OthersFlushesIgnored, 200_000),
    (Plant::OneRoot, 200_000),
    (Plant::SettledEarly, 200_000),
    (Plant::StoreRotTakenForTorn, 200_000),
    (Plant::BeginWithoutFlush, 200_000),
    (Plant::BufferRotTakenForTorn, 200_000),
    (Plant::CutForgotten, 200_000),
    (Plant::CutWithoutGroups, 200_000),
    (Plant::OldGroupForgotten, 200_000),
    (Plant::MergedCutKills, 200_000),
    (Plant::HomeBeforeDurable, 200_000),
    (Plant::RelogNotDurable, 200_000),
    (Plant::CloneTooLate, 200_000),
    (Plant::CloneTooEarly, 200_000),
    (Plant::NotUndone, 200_000),
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
