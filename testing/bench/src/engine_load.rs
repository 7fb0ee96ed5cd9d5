//! What the engine itself costs: actions that do nothing, with as many edges across threads as asked for.

use device::SeededRng;
use serde::Serialize;
use trace::{
    About, Action, Baseline, Benchmark, Fate, Moment, Names, Op, Order, Outcome, Rule, Settings, Speed,
    TraceError, Wait, replay_onto_nothing,
};

/// A load for the engine.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct EngineTest {
    /// How many actions, over all threads.
    pub(super) actions: u32,
    /// How many threads; at least one.
    pub(super) threads: u32,
    /// Of a hundred actions, how many wait for the newest action of another thread.
    pub(super) crossing_percent: u32,
    /// Of the random choices.
    pub(super) seed: u64,
}

/// What a load took.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct EngineFigures {
    /// The load.
    pub(super) test: EngineTest,
    /// Edges across threads.
    pub(super) edges: u64,
    /// Nanoseconds.
    pub(super) elapsed_ns: u64,
    /// Actions a second.
    pub(super) actions_per_second: f64,
    /// Nanoseconds of one processor that an action costs when no thread waits: the replay's own share of every call.
    pub(super) own_ns_per_call: f64,
}

/// The order that a test makes.
const ORDER: &str = "engine";

/// Replays the load onto a target that does nothing, and then the same on one thread without edges.
pub(super) fn test_engine(test: &EngineTest) -> Result<EngineFigures, TraceError> {
    let benchmark = load(test);
    let settings = |order| Settings { order, speed: Speed::Full, stall_seconds: 30 };
    let run = replay_onto_nothing(&benchmark, &settings(Baseline::Compiled(ORDER.into())))?;
    let alone = replay_onto_nothing(&benchmark, &settings(Baseline::Single))?;
    let actions = f64::from(test.actions.max(1));
    Ok(EngineFigures {
        test: *test,
        edges: benchmark.orders[0].waits.len() as u64,
        elapsed_ns: run.elapsed,
        actions_per_second: actions * 1e9 / run.elapsed.max(1) as f64,
        own_ns_per_call: alone.elapsed as f64 / actions,
    })
}

/// Threads take turns at random. An edge comes from the newest action of another thread, which is the hardest to satisfy.
fn load(test: &EngineTest) -> Benchmark {
    let mut random = SeededRng::new(test.seed);
    let threads = test.threads.max(1);
    let mut newest: Vec<Option<u32>> = vec![None; threads as usize];
    let mut order = Order { name: ORDER.into(), begins: vec![0], ..Order::default() };
    let mut names = Names::default();
    let name = names.intern(b"pread64");
    let mut actions = Vec::with_capacity(test.actions as usize);
    for id in 0..test.actions {
        let thread = random.below(threads.into()) as u32;
        if threads > 1 && random.below(100) < u64::from(test.crossing_percent) {
            let other = (thread + 1 + random.below(u64::from(threads - 1)) as u32) % threads;
            let wait = |on| Wait { on, moment: Moment::End, rule: Rule::Bytes };
            order.waits.extend(newest[other as usize].map(wait));
        }
        order.begins.push(order.waits.len() as u32);
        newest[thread as usize] = Some(id);
        let (start, end, line) = (u64::from(id), u64::from(id), u64::from(id));
        let op = Op::Read { on: 0, bytes: 4096, at: Some(0) };
        let recorded = Outcome::Value(0);
        actions.push(Action { thread, start, end, line, name, fate: Fate::Executed, op, recorded });
    }
    let about = About { threads, ..About::default() };
    Benchmark { about, names, actions, orders: vec![order], ..Benchmark::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_has_the_edges_that_it_was_asked_for_and_ends() {
        for percent in [0, 1, 10, 100] {
            let test = EngineTest { actions: 20_000, threads: 8, crossing_percent: percent, seed: 7 };
            let figures = test_engine(&test).expect("it ends");
            let share = figures.edges as f64 / 200.0;
            assert!((share - f64::from(percent)).abs() < 0.5, "{percent}: {share}");
            assert!(figures.actions_per_second > 0.0 && figures.own_ns_per_call > 0.0);
        }
    }
}
