//! Random work with crashes at every write and flush, against a plain model.

mod model;

use model::{Plan, Run, open};
use sim::Faults;

#[test]
fn after_every_crash_exactly_a_prefix_survives_with_all_that_was_durable() {
    let (mut crashes, mut full) = (0, 0);
    for seed in 0..60 {
        let mut run = Run::new(seed, 256 + seed % 7, open);
        let plan = Plan { seed, rounds: 20, operations: 60, faults: Faults::default() };
        run.go(&plan).unwrap_or_else(|broken| panic!("{broken}"));
        (crashes, full) = (crashes + run.crashes, full + run.full);
    }
    assert!(crashes == 1200 && full > 20, "{crashes} crashes, {full} times full: the run tests little");
}

#[test]
fn after_device_errors_exactly_a_prefix_survives_with_all_that_was_durable() {
    for seed in 0..40 {
        let mut run = Run::new(seed, 300, open);
        let faults = Faults { read_one_in: 0, write_one_in: 30, flush_one_in: 30 };
        let plan = Plan { seed, rounds: 20, operations: 40, faults };
        run.go(&plan).unwrap_or_else(|broken| panic!("{broken}"));
    }
}

#[test]
fn the_ring_wraps_many_times_without_a_crash() {
    let mut run = Run::new(1, 256, open);
    let plan = Plan { seed: 1, rounds: 2, operations: 20_000, faults: Faults::default() };
    run.go(&plan).unwrap_or_else(|broken| panic!("{broken}"));
    assert!(run.full > 20, "{} times full: the ring hardly wrapped", run.full);
}
