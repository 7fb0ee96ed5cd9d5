//! Tests of the simulator as a whole.

use crate::change::ModelChange;
use crate::client::IssueTime;
use crate::main_loop::run;
use crate::model::ModelId;
use crate::options::{SimulatorOptions, repeat_line};
use crate::request_generator::{ALIKE, ClientRequest};
use crate::run_state::SimulationRun;
use crate::volumes::VolumeCounts;
use fs::{FileKind, Ino};
use std::collections::BTreeMap;
use store::VolumeId;

#[test]
fn the_same_seed_gives_the_same_hash() {
    for faults in [false, true] {
        let options = SimulatorOptions { faults, ..SimulatorOptions::for_test(11) };
        let hash = || run(&options).expect("no promise is broken").hash;
        assert_eq!(hash(), hash(), "{}", repeat_line(&options));
    }
    let hash = |seed| run(&SimulatorOptions::for_test(seed)).expect("no promise is broken").hash;
    assert_ne!(hash(1), hash(2), "the seed has no effect");
}

#[test]
fn thousands_of_crashes_break_no_promise() {
    for seed in 1..=4 {
        let options =
            SimulatorOptions { operations: 10_000, crashes: 250, ..SimulatorOptions::for_test(seed) };
        let summary =
            run(&options).unwrap_or_else(|failure| panic!("{failure:?}\n{}", repeat_line(&options)));
        assert!(summary.counts.operations >= 10_000 && summary.counts.crashes() >= 250);
        for phase in ["commit", "write-back", "checkpoint", "recovery, depth 1"] {
            assert!(
                summary.counts.crashes.contains_key(phase),
                "no crash in a {phase}: {:?}",
                summary.counts
            );
        }
    }
}

#[test]
fn volumes_are_changed_with_crashes_in_between_and_break_no_promise() {
    let (mut all, mut crashes) = (VolumeCounts::default(), BTreeMap::<&str, u64>::new());
    for seed in 11..=20 {
        let options = SimulatorOptions {
            operations: 5000,
            crashes: 250,
            faults: seed > 15,
            ..SimulatorOptions::for_test(seed)
        };
        let summary =
            run(&options).unwrap_or_else(|failure| panic!("{failure:?}\n{}", repeat_line(&options)));
        all.add(&summary.counts.volumes);
        summary.counts.crashes.iter().for_each(|(phase, times)| *crashes.entry(phase).or_default() += times);
    }
    for phase in ["copy of a volume", "deletion of a volume", "creation of a volume", "renaming of a volume"]
    {
        assert!(crashes.get(phase).is_some_and(|&times| times >= 5), "{phase}: {crashes:?}");
    }
    let VolumeCounts {
        copies,
        creations,
        block_creations,
        renamings,
        resizes,
        deletions,
        mounts,
        unmounts,
        crashes_of_several,
        looks,
        meanwhile,
        found,
    } = all;
    let seldom = [copies, deletions, mounts, crashes_of_several, looks].iter().any(|&count| count < 50)
        || block_creations < 5
        || resizes == 0
        || [creations, renamings, unmounts, meanwhile].iter().any(|&count| count < 20);
    assert!(!seldom && found > 0, "the run tests little: {all:?}");
}

#[test]
fn device_errors_break_no_promise() {
    for seed in 1..=4 {
        let options = SimulatorOptions { faults: true, ..SimulatorOptions::for_test(seed) };
        let summary =
            run(&options).unwrap_or_else(|failure| panic!("{failure:?}\n{}", repeat_line(&options)));
        assert!(summary.counts.errors_made_up > 0, "no errors were made up");
    }
}

#[test]
fn names_that_are_meant_to_be_alike_have_one_hash() {
    let mut run = SimulationRun::new(&SimulatorOptions::for_test(1)).expect("a format with power");
    for name in ALIKE.iter().flatten() {
        let change = ModelChange::Make {
            parent: ModelId::ROOT,
            name: name.to_vec(),
            kind: FileKind::File,
            mode: 0o600,
        };
        run.ask(VolumeId::MAIN, 0, IssueTime::Now, ClientRequest::Change(change))
            .expect("no promise is broken");
        run.settle().expect("space");
    }
    let mut cookies = BTreeMap::new();
    let mut each =
        |entry: fs::DirectoryEntry<'_>| cookies.insert(entry.name.to_vec(), entry.cookie).is_none();
    run.stack().mount(VolumeId::MAIN).fs().read_directory(Ino::ROOT, 0, &mut each).expect("a directory");
    assert_eq!(cookies.len(), 2 * ALIKE.len());
    // The lowest bits number names with the same hash.
    assert!(ALIKE.iter().all(|[one, other]| cookies[*one] >> 4 == cookies[*other] >> 4), "{cookies:x?}");
}
