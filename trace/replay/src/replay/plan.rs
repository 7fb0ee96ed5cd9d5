//! Plans a replay: the waits of each action, and the pause before it. This is a pure function.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use trace_file::{Action, CompiledTrace, Fate, Moment, Nap, Order, Rule, TraceError, TracerCost, Wait};

/// How a replay runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplaySettings {
    /// The order that the threads keep.
    pub order: OrderChoice,
    /// The speed.
    pub speed: ReplaySpeed,
    /// Seconds without any progress after which a replay is given up.
    pub stall_seconds: u64,
}

/// The order that the threads keep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OrderChoice {
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
pub enum ReplaySpeed {
    /// Every action as soon as its waits are over.
    Full,
    /// With the trace's think times, multiplied by this factor.
    Natural(f64),
}

/// The plan of a replay.
#[derive(Debug)]
pub(super) struct ReplayPlan {
    /// The actions of each thread, in order.
    pub(super) threads: Vec<Vec<u32>>,
    /// For each action, the number of its thread in this plan, and the number of that thread's earlier
    /// actions.
    pub(super) place: Vec<(u32, u32)>,
    pub(super) order: Order,
    /// Nanoseconds between the end of the last wait of an action and its start; empty at full speed.
    pub(super) think: Vec<u64>,
    /// Pauses that end early when another thread's action starts; empty at full speed.
    pub(super) naps: HashMap<u32, u32>,
    pub(super) stall_seconds: u64,
}

impl ReplayPlan {
    pub(super) fn new(compiled: &CompiledTrace, settings: &ReplaySettings) -> Result<ReplayPlan, TraceError> {
        let single = settings.order == OrderChoice::Single;
        let count = if single { 1 } else { compiled.about.threads as usize };
        let mut threads = vec![Vec::new(); count];
        let mut place = Vec::with_capacity(compiled.actions.len());
        for (id, action) in compiled.actions.iter().enumerate() {
            let thread = if single { 0 } else { action.thread };
            let own: &mut Vec<u32> = &mut threads[thread as usize];
            place.push((thread, own.len() as u32));
            own.push(id as u32);
        }
        let order = match &settings.order {
            OrderChoice::Compiled(name) => compiled.order(name)?.clone(),
            OrderChoice::Temporal => temporal(compiled),
            OrderChoice::Single | OrderChoice::Unconstrained => {
                Order { begins: vec![0; compiled.actions.len() + 1], ..Order::default() }
            }
        };
        let think = match settings.speed {
            ReplaySpeed::Full => Vec::new(),
            ReplaySpeed::Natural(scale) => think_times(compiled, &threads, &order, scale),
        };
        let other = |nap: &&Nap| place[nap.action as usize].0 != place[nap.ends_with as usize].0;
        let naps = compiled.about.naps.iter().filter(|_| !think.is_empty()).filter(other);
        let naps = naps.map(|nap| (nap.action, nap.ends_with)).collect();
        Ok(ReplayPlan { threads, place, order, think, naps, stall_seconds: settings.stall_seconds })
    }
}

/// Builds the temporal order: each action waits for the start of the one before it. Like tools without a
/// model, it uses only the trace's time stamps. A thread's own order wins if stamps contradict it.
fn temporal(compiled: &CompiledTrace) -> Order {
    let mut order = Order { name: "temporal".into(), begins: vec![0], ..Order::default() };
    let mut before = vec![None; compiled.actions.len()];
    let mut by_start: Vec<u32> = (0..compiled.actions.len() as u32).collect();
    by_start.sort_by_key(|id| happens(&compiled.actions[*id as usize]));
    for pair in by_start.windows(2) {
        before[pair[1] as usize] = Some(pair[0]);
    }
    for (id, previous) in before.into_iter().enumerate() {
        let other = |on: &u32| compiled.actions[*on as usize].thread != compiled.actions[id].thread;
        order.waits.extend(previous.filter(other).map(|on| Wait {
            on,
            moment: Moment::Start,
            rule: Rule::Temporal,
        }));
        order.begins.push(order.waits.len() as u32);
    }
    order
}

/// When an action happens in the trace, from a replay's point of view. An action that is not executed takes
/// no time and happens at its return. A wait outside of the trace is think time; a wait inside of the trace
/// is an edge.
fn happens(action: &Action) -> u64 {
    if action.fate == Fate::Executed { action.start } else { action.end }
}

/// The think time of each action: its start minus the latest end of its prerequisites (including the thread's
/// own last action), minus the tracer's work in between. Never below zero.
fn think_times(compiled: &CompiledTrace, threads: &[Vec<u32>], order: &Order, scale: f64) -> Vec<u64> {
    let tracer = Tracer::new(compiled);
    let mut think = vec![0; compiled.actions.len()];
    for own in threads {
        let (mut last, mut took) = (0, [0; 2]);
        for id in own {
            let action = &compiled.actions[*id as usize];
            let ready = order.of(*id).iter().fold(last, |ready, wait| {
                let on = &compiled.actions[wait.on as usize];
                ready.max(if wait.moment == Moment::Start { on.start } else { on.end })
            });
            let pause = tracer.without(ready, action, took);
            think[*id as usize] = (pause as f64 * scale) as u64;
            (last, took) = (action.end, [took[1], action.end - action.start.min(action.end)]);
        }
    }
    think
}

/// The tracer's work. strace is one process, which stops a thread at each entry and each return. So a pause
/// contains the tracer's work for that thread, and its work for other threads, for which the thread had to
/// queue.
struct Tracer {
    cost: TracerCost,
    /// Every moment at which the tracer stopped a thread.
    stamps: Vec<u64>,
}

impl Tracer {
    fn new(compiled: &CompiledTrace) -> Tracer {
        let cost = compiled.about.tracer;
        let mut stamps = Vec::new();
        if cost.busy > 0 {
            stamps.extend(compiled.actions.iter().flat_map(|action| [action.start, action.end]));
            stamps.sort_unstable();
        }
        Tracer { cost, stamps }
    }

    /// The pause from `ready` until an action happens, less the tracer's part: its whole work between two
    /// calls once, and half of that work for each entry and return of another thread. `took` is how long the
    /// thread's last two calls took.
    fn without(&self, ready: u64, action: &Action, took: [u64; 2]) -> u64 {
        let until = happens(action);
        let before = |at: u64| self.stamps.partition_point(|stamp| *stamp < at);
        let all = before(until).saturating_sub(before(ready.saturating_add(1)));
        // An action that happens at its return has its own entry in its pause.
        let own = (ready < action.start && action.start < until) as usize;
        let others = all.saturating_sub(own) as u64;
        let own = self.cost.before(took) + others * (self.cost.busy / 2);
        until.saturating_sub(ready).saturating_sub(own)
    }
}
