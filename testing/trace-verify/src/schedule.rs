//! Random executions that an order allows. An action begins, and later takes effect. Other actions may wait
//! for either moment.
//!
//! Only moments that matter are steps: an action takes effect on the simulated file system, or a thread waits
//! there, or other threads wait for that moment. The beginning of an action is a separate step only if an
//! action waits for just that.

use device::SeededRng;
use trace_file::{ActionId, CompiledTrace, Fate, Moment, Order};

/// The most changes of priority in one execution. Few bugs need more than a few switches at the right moment.
/// The executions that pick a random thread for each step find the others.
const CHANGES_MAX: usize = 16;

/// The executions that an order allows. A schedule can be walked many times.
pub(super) struct Schedule {
    /// The steps of each thread.
    threads: Vec<Vec<Step>>,
    /// The waits of all steps. Those of one step are adjacent.
    untils: Vec<Until>,
    steps: usize,
}

/// One step of a thread.
#[derive(Clone, Copy)]
struct Step {
    /// The action that takes effect, if there is one.
    action: Option<ActionId>,
    /// The index of the first wait, and the number of waits.
    waits: (u32, u32),
}

/// The condition that a thread has made this many steps.
#[derive(Clone, Copy, Default)]
struct Until {
    thread: u32,
    made: u32,
}

/// The progress of an execution.
#[derive(Clone)]
pub(super) struct Progress {
    /// The number of steps that each thread has made.
    made: Vec<u32>,
    /// Threads that can continue.
    ready: Vec<u32>,
    is_ready: Vec<bool>,
    /// For each thread, the threads that wait for it, each with the number of steps that it waits for.
    waiting: Vec<Vec<Until>>,
}

/// How threads are chosen.
enum Choice {
    /// A random thread that can continue.
    Any,
    /// The first thread in this list that can continue. The list changes now and then, so that some threads
    /// run far ahead.
    First { priorities: Vec<u32>, changes: Vec<usize> },
}

impl Schedule {
    pub(super) fn new(compiled: &CompiledTrace, order: &Order) -> Schedule {
        let count = compiled.actions.len();
        let (mut begun, mut done) = (vec![false; count], vec![false; count]);
        for wait in &order.waits {
            let waited = if wait.moment == Moment::Start { &mut begun } else { &mut done };
            waited[wait.on as usize] = true;
        }
        let mut schedule = Schedule {
            threads: vec![Vec::new(); compiled.about.threads as usize],
            untils: Vec::new(),
            steps: 0,
        };
        // For each action, the number of steps of its thread at its beginning, and at its end.
        let mut after: Vec<(u32, u32)> = Vec::with_capacity(count);
        for (id, action) in compiled.actions.iter().enumerate() {
            let first = schedule.untils.len() as u32;
            schedule.untils.extend(order.of(id as ActionId).iter().map(|wait| {
                let thread = compiled.actions[wait.on as usize].thread;
                let (begun, done) = after[wait.on as usize];
                Until { thread, made: if wait.moment == Moment::Start { begun } else { done } }
            }));
            let waits = (first, schedule.untils.len() as u32 - first);
            let own = &mut schedule.threads[action.thread as usize];
            let executed = action.fate == Fate::Executed;
            match (begun[id], executed || done[id] || waits.1 > 0) {
                (true, _) => {
                    own.push(Step { action: None, waits });
                    own.push(Step { action: executed.then_some(id as ActionId), waits: (0, 0) });
                    after.push((own.len() as u32 - 1, own.len() as u32));
                }
                (false, matters) => {
                    let action = executed.then_some(id as ActionId);
                    own.extend(matters.then_some(Step { action, waits }));
                    after.push((own.len() as u32, own.len() as u32));
                }
            }
        }
        schedule.steps = schedule.threads.iter().map(Vec::len).sum();
        schedule
    }

    /// The progress before the first step.
    pub(super) fn start(&self) -> Progress {
        let threads = self.threads.len();
        let mut progress = Progress {
            made: vec![0; threads],
            ready: Vec::with_capacity(threads),
            is_ready: vec![false; threads],
            waiting: vec![Vec::new(); threads],
        };
        (0..threads as u32).for_each(|thread| self.look(&mut progress, thread));
        progress
    }

    /// Runs while only one thread can continue. These steps are the same in every execution.
    pub(super) fn run_forced(&self, progress: &mut Progress, mut each: impl FnMut(ActionId)) {
        while let [thread] = progress.ready[..] {
            self.step(progress, thread, &mut each);
        }
    }

    /// Walks one random execution from `progress` to its end. `each` gets the actions as they take effect.
    pub(super) fn run(&self, mut progress: Progress, random: &mut SeededRng, mut each: impl FnMut(ActionId)) {
        let mut choice = self.choice(random);
        let mut number: usize = progress.made.iter().map(|made| *made as usize).sum();
        while !progress.ready.is_empty() {
            let thread = match &mut choice {
                Choice::Any => progress.ready[random.index(progress.ready.len())],
                Choice::First { priorities, changes } => {
                    if changes.pop_if(|at| *at <= number).is_some() {
                        let (from, to) = (random.index(priorities.len()), random.index(priorities.len()));
                        priorities.swap(from, to);
                    }
                    let first = priorities.iter().find(|thread| progress.is_ready[**thread as usize]);
                    *first.expect("every thread is in the list")
                }
            };
            self.step(&mut progress, thread, &mut each);
            number += 1;
        }
        assert_eq!(number, self.steps, "an order without a cycle always lets some thread go on");
    }

    fn choice(&self, random: &mut SeededRng) -> Choice {
        if random.once_in(2) {
            return Choice::Any;
        }
        let mut priorities: Vec<u32> = (0..self.threads.len() as u32).collect();
        for at in (1..priorities.len()).rev() {
            priorities.swap(at, random.index(at + 1));
        }
        let mut changes: Vec<usize> =
            (0..random.index(CHANGES_MAX + 1)).map(|_| random.index(self.steps.max(1))).collect();
        changes.sort_unstable_by(|a, b| b.cmp(a));
        changes.dedup();
        Choice::First { priorities, changes }
    }

    /// Makes the next step of a thread that is ready.
    fn step(&self, progress: &mut Progress, thread: u32, each: &mut impl FnMut(ActionId)) {
        let at = thread as usize;
        if let Some(action) = self.threads[at][progress.made[at] as usize].action {
            each(action);
        }
        progress.made[at] += 1;
        let made = progress.made[at];
        let mut number = 0;
        while let Some(until) = progress.waiting[at].get(number).copied() {
            if until.made <= made {
                progress.waiting[at].swap_remove(number);
                self.look(progress, until.thread);
            } else {
                number += 1
            }
        }
        let next = self.threads[at].get(made as usize);
        if next.is_none_or(|next| next.waits.1 > 0) {
            progress.is_ready[at] = false;
            progress.ready.retain(|other| *other != thread);
            self.look(progress, thread);
        }
    }

    /// Makes a thread ready if its next step has no unmet wait. Otherwise the thread waits for the first
    /// unmet one.
    fn look(&self, progress: &mut Progress, thread: u32) {
        let Some(step) = self.threads[thread as usize].get(progress.made[thread as usize] as usize) else {
            return;
        };
        let (first, count) = (step.waits.0 as usize, step.waits.1 as usize);
        let missing = self.untils[first..first + count]
            .iter()
            .find(|until| progress.made[until.thread as usize] < until.made);
        match missing {
            Some(until) => {
                progress.waiting[until.thread as usize].push(Until { thread, made: until.made });
            }
            None => {
                progress.is_ready[thread as usize] = true;
                progress.ready.push(thread);
            }
        }
    }
}
