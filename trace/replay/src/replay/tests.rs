use super::*;
use trace_file::{About, Action, Fate, Moment, Name, Nap, Op, Order, Outcome, Rule, TracerCost, Wait};

/// Actions by thread, entry and return; waits by action.
fn benchmark(actions: &[(u32, u64, u64)], waits: &[(u32, u32)]) -> Benchmark {
    let action = |(thread, start, end): &(u32, u64, u64)| Action {
        thread: *thread,
        start: *start,
        end: *end,
        line: 1,
        name: Name(0),
        fate: Fate::Executed,
        op: Op::SyncAll,
        recorded: Outcome::Value(0),
    };
    let mut order = Order { name: "test".into(), begins: vec![0], ..Order::default() };
    for id in 0..actions.len() as u32 {
        let mine = waits.iter().filter(|(to, _)| *to == id);
        order.waits.extend(mine.map(|(_, on)| Wait { on: *on, moment: Moment::End, rule: Rule::Name }));
        order.begins.push(order.waits.len() as u32);
    }
    let threads = actions.iter().map(|(thread, ..)| thread + 1).max().unwrap_or(0);
    let mut benchmark = Benchmark { about: About { threads, ..About::default() }, ..Benchmark::default() };
    benchmark.names.intern(b"sync");
    benchmark.actions = actions.iter().map(action).collect();
    benchmark.orders = vec![order];
    benchmark
}

fn settings(speed: Speed) -> Settings {
    Settings { order: Baseline::Compiled("test".into()), speed, stall_seconds: 0 }
}

#[test]
fn a_replay_in_which_all_wait_for_each_other_is_given_up_and_says_who_waits_for_what() {
    let benchmark = benchmark(&[(0, 0, 1), (1, 0, 1)], &[(0, 1), (1, 0)]);
    let error = replay_onto_nothing(&benchmark, &settings(Speed::Full)).expect_err("nobody can begin");
    let said = error.to_string();
    assert!(
        said.contains("thread 0 waits for action 1") && said.contains("thread 1 waits for action 0"),
        "{said}"
    );
}

#[test]
fn think_time_counts_from_the_latest_enforced_predecessor_and_is_never_below_zero() {
    // The third began 30 after the second ended, 70 after its own thread's first did; the fourth before what it waits for
    // ended.
    let actions = [(0, 0, 10), (1, 0, 50), (0, 80, 90), (1, 85, 95)];
    let benchmark = benchmark(&actions, &[(2, 1), (3, 2)]);
    let think = |speed| plan::Plan::new(&benchmark, &settings(speed)).expect("a plan").think;
    assert_eq!(think(Speed::Natural(1.0)), [0, 0, 30, 0]);
    assert_eq!(think(Speed::Natural(2.0)), [0, 0, 60, 0]);
    assert!(think(Speed::Full).is_empty());
    let free = Settings { order: Baseline::Unconstrained, ..settings(Speed::Natural(1.0)) };
    assert_eq!(plan::Plan::new(&benchmark, &free).expect("a plan").think, [0, 0, 70, 35]);
}

#[test]
fn at_natural_speed_a_pause_is_kept_and_lateness_reported() {
    let benchmark = benchmark(&[(0, 0, 0), (0, 20_000_000, 20_000_000)], &[]);
    let run = replay_onto_nothing(&benchmark, &settings(Speed::Natural(1.0))).expect("it ends");
    assert!(run.elapsed >= 20_000_000, "{run:?}");
    assert_eq!(
        run.samples[1].start,
        run.samples[0].start + run.samples[0].took + 20_000_000 + run.samples[1].late
    );
}

#[test]
fn a_pause_is_less_what_the_tracer_did_for_this_thread_and_for_others_and_never_below_zero() {
    // The first thread pauses from 10 to 110, and from 120 to 130; in the first pause the other one enters and returns.
    let actions = [(0, 0, 10), (1, 50, 60), (0, 110, 120), (0, 130, 140)];
    let mut benchmark = benchmark(&actions, &[]);
    let think = |benchmark: &Benchmark| {
        plan::Plan::new(benchmark, &settings(Speed::Natural(1.0))).expect("a plan").think
    };
    assert_eq!(think(&benchmark), [0, 50, 100, 10]);
    benchmark.about.tracer = TracerCost { busy: 20, after_wait: 300_000 };
    // The other thread's pause has the first one's return in it; what lies on its edge is no part of it.
    assert_eq!(think(&benchmark), [0, 20, 60, 0]);
}

#[test]
fn a_pause_is_less_what_the_tracer_does_for_who_was_cold_until_two_calls_after_a_wait() {
    let calls = [(0, 2_000_000), (2_090_000, 2_091_000), (2_180_000, 2_181_000), (2_270_000, 2_271_000)];
    let mut benchmark = benchmark(&calls.map(|(start, end)| (0, start, end)), &[]);
    benchmark.about.tracer = TracerCost { busy: 20_000, after_wait: 60_000 };
    let plan = plan::Plan::new(&benchmark, &settings(Speed::Natural(1.0))).expect("a plan");
    assert_eq!(plan.think, [0, 30_000, 29_000, 69_000]);
    // The entry of a call that happens at its return is no other thread's.
    benchmark.actions[3].fate = Fate::Modelled(trace_file::Modelled::Idle);
    let plan = plan::Plan::new(&benchmark, &settings(Speed::Natural(1.0))).expect("a plan");
    assert_eq!(plan.think[3], 70_000);
}

#[test]
fn a_sleep_whose_time_passed_in_the_trace_ends_with_the_wake_that_others_reach_sooner() {
    // The first thread slept for an hour; the second would have woken it, had it come so far.
    let mut benchmark = benchmark(&[(1, 0, 10), (0, 0, 3_600_000_000_000), (1, 10, 20)], &[]);
    benchmark.actions[1].fate = Fate::Modelled(trace_file::Modelled::Idle);
    benchmark.about.naps = vec![Nap { action: 1, ends_with: 2 }];
    let run = replay_onto_nothing(&benchmark, &settings(Speed::Natural(1.0))).expect("it runs");
    assert!(run.samples[1].start < 3_600_000_000_000 && run.samples[1].late == 0);
    // One thread alone cannot be woken by itself: its pauses stay.
    let single = Settings { order: Baseline::Single, ..settings(Speed::Natural(1.0)) };
    let plan = plan::Plan::new(&benchmark, &single).expect("a plan");
    assert_eq!((plan.naps.len(), plan.think[1]), (0, 3_600_000_000_000 - 10));
}
