use super::*;
use trace_file::{Action, Fate, Moment, Name, Nap, Op, Order, Outcome, Rule, TraceOrigin, TracerCost, Wait};

/// Builds a compiled trace from actions (thread, entry, return) and waits (action, prerequisite).
fn compiled(actions: &[(u32, u64, u64)], waits: &[(u32, u32)]) -> CompiledTrace {
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
    let mut compiled = CompiledTrace {
        about: TraceOrigin { threads, ..TraceOrigin::default() },
        ..CompiledTrace::default()
    };
    compiled.names.intern(b"sync");
    compiled.actions = actions.iter().map(action).collect();
    compiled.orders = vec![order];
    compiled
}

fn settings(speed: ReplaySpeed) -> ReplaySettings {
    ReplaySettings { order: OrderChoice::Compiled("test".into()), speed, stall_seconds: 0 }
}

#[test]
fn a_replay_in_which_all_wait_for_each_other_is_given_up_and_says_who_waits_for_what() {
    let compiled = compiled(&[(0, 0, 1), (1, 0, 1)], &[(0, 1), (1, 0)]);
    let error = replay_onto_nothing(&compiled, &settings(ReplaySpeed::Full)).expect_err("nobody can begin");
    let said = error.to_string();
    assert!(
        said.contains("thread 0 waits for action 1") && said.contains("thread 1 waits for action 0"),
        "{said}"
    );
}

#[test]
fn think_time_counts_from_the_latest_enforced_predecessor_and_is_never_below_zero() {
    // The third action began 30 after the second ended, and 70 after its own thread's first ended. The fourth
    // began before its prerequisite ended.
    let actions = [(0, 0, 10), (1, 0, 50), (0, 80, 90), (1, 85, 95)];
    let compiled = compiled(&actions, &[(2, 1), (3, 2)]);
    let think = |speed| plan::ReplayPlan::new(&compiled, &settings(speed)).expect("a plan").think;
    assert_eq!(think(ReplaySpeed::Natural(1.0)), [0, 0, 30, 0]);
    assert_eq!(think(ReplaySpeed::Natural(2.0)), [0, 0, 60, 0]);
    assert!(think(ReplaySpeed::Full).is_empty());
    let free = ReplaySettings { order: OrderChoice::Unconstrained, ..settings(ReplaySpeed::Natural(1.0)) };
    assert_eq!(plan::ReplayPlan::new(&compiled, &free).expect("a plan").think, [0, 0, 70, 35]);
}

#[test]
fn at_natural_speed_a_pause_is_kept_and_lateness_reported() {
    let compiled = compiled(&[(0, 0, 0), (0, 20_000_000, 20_000_000)], &[]);
    let run = replay_onto_nothing(&compiled, &settings(ReplaySpeed::Natural(1.0))).expect("it ends");
    assert!(run.elapsed >= 20_000_000, "{run:?}");
    assert_eq!(
        run.samples[1].start,
        run.samples[0].start + run.samples[0].took + 20_000_000 + run.samples[1].late
    );
}

#[test]
fn a_pause_is_less_what_the_tracer_did_for_this_thread_and_for_others_and_never_below_zero() {
    // The first thread pauses from 10 to 110, and from 120 to 130. In the first pause, the other thread
    // enters and returns.
    let actions = [(0, 0, 10), (1, 50, 60), (0, 110, 120), (0, 130, 140)];
    let mut compiled = compiled(&actions, &[]);
    let think = |compiled: &CompiledTrace| {
        plan::ReplayPlan::new(compiled, &settings(ReplaySpeed::Natural(1.0))).expect("a plan").think
    };
    assert_eq!(think(&compiled), [0, 50, 100, 10]);
    compiled.about.tracer = TracerCost { busy: 20, after_wait: 300_000 };
    // The other thread's pause contains the first thread's return. A stop at the edge of a pause does not
    // count.
    assert_eq!(think(&compiled), [0, 20, 60, 0]);
}

#[test]
fn a_pause_is_less_what_the_tracer_does_for_who_was_cold_until_two_calls_after_a_wait() {
    let calls = [(0, 2_000_000), (2_090_000, 2_091_000), (2_180_000, 2_181_000), (2_270_000, 2_271_000)];
    let mut compiled = compiled(&calls.map(|(start, end)| (0, start, end)), &[]);
    compiled.about.tracer = TracerCost { busy: 20_000, after_wait: 60_000 };
    let plan = plan::ReplayPlan::new(&compiled, &settings(ReplaySpeed::Natural(1.0))).expect("a plan");
    assert_eq!(plan.think, [0, 30_000, 29_000, 69_000]);
    // An action that happens at its return has its own entry in the pause, which is not another thread's.
    compiled.actions[3].fate = Fate::Modelled(trace_file::Modelled::Idle);
    let plan = plan::ReplayPlan::new(&compiled, &settings(ReplaySpeed::Natural(1.0))).expect("a plan");
    assert_eq!(plan.think[3], 70_000);
}

#[test]
fn a_sleep_whose_time_passed_in_the_trace_ends_with_the_wake_that_others_reach_sooner() {
    // The first thread slept for an hour. The second would have woken it, had it been fast enough.
    let mut compiled = compiled(&[(1, 0, 10), (0, 0, 3_600_000_000_000), (1, 10, 20)], &[]);
    compiled.actions[1].fate = Fate::Modelled(trace_file::Modelled::Idle);
    compiled.about.naps = vec![Nap { action: 1, ends_with: 2 }];
    let run = replay_onto_nothing(&compiled, &settings(ReplaySpeed::Natural(1.0))).expect("it runs");
    assert!(run.samples[1].start < 3_600_000_000_000 && run.samples[1].late == 0);
    // A single thread cannot wake itself, so its pauses stay.
    let single = ReplaySettings { order: OrderChoice::Single, ..settings(ReplaySpeed::Natural(1.0)) };
    let plan = plan::ReplayPlan::new(&compiled, &single).expect("a plan");
    assert_eq!((plan.naps.len(), plan.think[1]), (0, 3_600_000_000_000 - 10));
}
