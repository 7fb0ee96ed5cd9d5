//! What a replay does when: who waits for what, and how long each action thinks first. Pure.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use trace_file::{Action, Benchmark, Fate, Moment, Nap, Order, Rule, TraceError, TracerCost, Wait};

/// How a replay runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// What orders the threads.
    pub order: Baseline,
    /// How fast.
    pub speed: Speed,
    /// Seconds without any progress after which a replay is given up.
    pub stall_seconds: u64,
}

/// What orders the threads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Baseline {
    /// A compiled order: `weir` or `root`.
    Compiled(String),
    /// One thread makes all calls, in the order that explains the trace.
    Single,
    /// Every action waits until the one before it, by entry in the trace, has begun.
    Temporal,
    /// Nothing but each thread's own order.
    Unconstrained,
}

/// How fast a replay runs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Speed {
    /// Every action as soon as it may.
    Full,
    /// Think time of the trace, multiplied.
    Natural(f64),
}

/// A replay, prepared.
#[derive(Debug)]
pub(super) struct Plan {
    /// Of each thread, its actions in order.
    pub(super) threads: Vec<Vec<u32>>,
    /// Of each action, its thread's number here and how many of that thread's actions come before it.
    pub(super) place: Vec<(u32, u32)>,
    pub(super) order: Order,
    /// Nanoseconds between the last thing that an action waits for and its start; empty at full speed.
    pub(super) think: Vec<u64>,
    /// Pauses that end early, with the start of another thread's action; empty at full speed.
    pub(super) naps: HashMap<u32, u32>,
    pub(super) stall_seconds: u64,
}

impl Plan {
    pub(super) fn new(benchmark: &Benchmark, settings: &Settings) -> Result<Plan, TraceError> {
        let single = settings.order == Baseline::Single;
        let count = if single { 1 } else { benchmark.about.threads as usize };
        let mut threads = vec![Vec::new(); count];
        let mut place = Vec::with_capacity(benchmark.actions.len());
        for (id, action) in benchmark.actions.iter().enumerate() {
            let thread = if single { 0 } else { action.thread };
            let own: &mut Vec<u32> = &mut threads[thread as usize];
            place.push((thread, own.len() as u32));
            own.push(id as u32);
        }
        let order = match &settings.order {
            Baseline::Compiled(name) => benchmark.order(name)?.clone(),
            Baseline::Temporal => temporal(benchmark),
            Baseline::Single | Baseline::Unconstrained => {
                Order { begins: vec![0; benchmark.actions.len() + 1], ..Order::default() }
            }
        };
        let think = match settings.speed {
            Speed::Full => Vec::new(),
            Speed::Natural(scale) => think_times(benchmark, &threads, &order, scale),
        };
        let other = |nap: &&Nap| place[nap.action as usize].0 != place[nap.ends_with as usize].0;
        let naps = benchmark.about.naps.iter().filter(|_| !think.is_empty()).filter(other);
        let naps = naps.map(|nap| (nap.action, nap.ends_with)).collect();
        Ok(Plan { threads, place, order, think, naps, stall_seconds: settings.stall_seconds })
    }
}

/// Each action after the start of the one before it. Made of the trace's stamps alone, as tools without a model do;
/// a thread's own order comes first where stamps contradict it.
fn temporal(benchmark: &Benchmark) -> Order {
    let mut order = Order { name: "temporal".into(), begins: vec![0], ..Order::default() };
    let mut before = vec![None; benchmark.actions.len()];
    let mut by_start: Vec<u32> = (0..benchmark.actions.len() as u32).collect();
    by_start.sort_by_key(|id| happens(&benchmark.actions[*id as usize]));
    for pair in by_start.windows(2) {
        before[pair[1] as usize] = Some(pair[0]);
    }
    for (id, previous) in before.into_iter().enumerate() {
        let other = |on: &u32| benchmark.actions[*on as usize].thread != benchmark.actions[id].thread;
        order.waits.extend(previous.filter(other).map(|on| Wait {
            on,
            moment: Moment::Start,
            rule: Rule::Temporal,
        }));
        order.begins.push(order.waits.len() as u32);
    }
    order
}

/// When an action happens in the trace, as a replay makes it: what is not executed is over at once, and has waited before.
/// What waits outside of the trace is think time; what waits inside of it is an edge.
fn happens(action: &Action) -> u64 {
    if action.fate == Fate::Executed { action.start } else { action.end }
}

/// Start minus the latest completion among what is waited for, the thread's own last action included, and minus what the
/// tracer did meanwhile; never below zero.
fn think_times(benchmark: &Benchmark, threads: &[Vec<u32>], order: &Order, scale: f64) -> Vec<u64> {
    let tracer = Tracer::new(benchmark);
    let mut think = vec![0; benchmark.actions.len()];
    for own in threads {
        let (mut last, mut took) = (0, [0; 2]);
        for id in own {
            let action = &benchmark.actions[*id as usize];
            let ready = order.of(*id).iter().fold(last, |ready, wait| {
                let on = &benchmark.actions[wait.on as usize];
                ready.max(if wait.moment == Moment::Start { on.start } else { on.end })
            });
            let pause = tracer.without(ready, action, took);
            think[*id as usize] = (pause as f64 * scale) as u64;
            (last, took) = (action.end, [took[1], action.end - action.start.min(action.end)]);
        }
    }
    think
}

/// What the tracer did, and when. It is one process, which stops a thread at each entry and each return: a pause has its work
/// for that thread in it, and its work for others, behind which the thread stood in line.
struct Tracer {
    cost: TracerCost,
    /// Every moment at which it took note of something.
    stamps: Vec<u64>,
}

impl Tracer {
    fn new(benchmark: &Benchmark) -> Tracer {
        let cost = benchmark.about.tracer;
        let mut stamps = Vec::new();
        if cost.busy > 0 {
            stamps.extend(benchmark.actions.iter().flat_map(|action| [action.start, action.end]));
            stamps.sort_unstable();
        }
        Tracer { cost, stamps }
    }

    /// The pause from `ready` until an action happens, less the tracer's part: its whole work between two calls once, half of
    /// it for each entry and each return of another thread. The thread's last two calls `took` so long.
    fn without(&self, ready: u64, action: &Action, took: [u64; 2]) -> u64 {
        let until = happens(action);
        let before = |at: u64| self.stamps.partition_point(|stamp| *stamp < at);
        let all = before(until).saturating_sub(before(ready.saturating_add(1)));
        // What happens at its return has its own entry in its pause.
        let own = (ready < action.start && action.start < until) as usize;
        let others = all.saturating_sub(own) as u64;
        let own = self.cost.before(took) + others * (self.cost.busy / 2);
        until.saturating_sub(ready).saturating_sub(own)
    }
}
