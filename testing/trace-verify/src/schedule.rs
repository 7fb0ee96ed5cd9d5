//! Random executions that an order allows. An action begins, and later takes effect; another may wait for either.
//!
//! Of all that happens only what matters is a step: an action that takes effect on the simulated file system, or at which some
//! thread waits or is waited for. That an action has begun is a step of its own only where something waits for just that.

use device::SeededRng;
use trace_file::{ActionId, CompiledTrace, Fate, Moment, Order};

/// Changes of priority in one execution. Bugs that need more than a few switches at the right moment are rare; the executions
/// that pick a thread at random for each step find those.
const CHANGES_MAX: usize = 16;

/// What an order allows, ready to be walked again and again.
pub(super) struct Schedule {
    /// Of each thread, its steps.
    threads: Vec<Vec<Step>>,
    /// What steps wait for, each step's own in a row.
    untils: Vec<Until>,
    steps: usize,
}

/// One step of a thread.
#[derive(Clone, Copy)]
struct Step {
    /// What takes effect, if anything does.
    action: Option<ActionId>,
    /// The first of the waits, and how many there are.
    waits: (u32, u32),
}

/// A thread has made so many steps.
#[derive(Clone, Copy, Default)]
struct Until {
    thread: u32,
    made: u32,
}

/// How far an execution is.
#[derive(Clone)]
pub(super) struct Progress {
    /// Of each thread, the steps that it has made.
    made: Vec<u32>,
    /// Threads that can go on.
    ready: Vec<u32>,
    is_ready: Vec<bool>,
    /// Of each thread, who waits for it, and until when.
    waiting: Vec<Vec<Until>>,
}

/// How a thread is chosen.
enum Choice {
    /// Any that can go on.
    Any,
    /// The first in this list that can go on. The list is changed now and then, so that some threads run far ahead.
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
        // Of each action, how many steps its thread has made once it has begun, and once it is done.
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

    /// Before the first step.
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

    /// Goes on as long as one thread alone can: these steps are the same in every execution.
    pub(super) fn run_forced(&self, progress: &mut Progress, mut each: impl FnMut(ActionId)) {
        while let [thread] = progress.ready[..] {
            self.step(progress, thread, &mut each);
        }
    }

    /// Walks one random execution from there to its end; `each` gets the actions as they take effect.
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

    /// Makes a thread ready whose next step has nothing to wait for any more; otherwise it stands with the first that it needs.
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
