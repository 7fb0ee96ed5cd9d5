//! The simulator as a whole.

use super::{Options, repeat_line, run};

#[test]
fn the_same_seed_gives_the_same_hash() {
    for faults in [false, true] {
        let options = Options { faults, ..Options::for_test(11) };
        let hash = || run(&options).expect("no promise is broken").hash;
        assert_eq!(hash(), hash(), "{}", repeat_line(&options));
    }
    let hash = |seed| run(&Options::for_test(seed)).expect("no promise is broken").hash;
    assert_ne!(hash(1), hash(2), "the seed has no effect");
}

#[test]
fn thousands_of_crashes_break_no_promise() {
    for seed in 1..=4 {
        let options = Options { operations: 10_000, crashes: 250, ..Options::for_test(seed) };
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
fn device_errors_break_no_promise() {
    for seed in 1..=4 {
        let options = Options { faults: true, ..Options::for_test(seed) };
        let summary =
            run(&options).unwrap_or_else(|failure| panic!("{failure:?}\n{}", repeat_line(&options)));
        assert!(summary.counts.errors_made_up > 0, "no errors were made up");
    }
}
