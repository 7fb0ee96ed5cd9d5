//! The threads of a replay.

use super::pause_compensation::PauseCompensation;
use super::plan::ReplayPlan;
use super::progress::{Progress, begun, done};
use super::results::{ActionSample, ReplayRun};
use super::target::{CallBuffer, Target};
use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use trace_file::{CompiledTrace, Fate, Moment, Rule, TraceError};

/// Stack of a replay thread, in bytes. Its calls are shallow, and a trace may have thousands of threads.
const STACK_BYTES: usize = 128 << 10;
/// The last part of a pause, which a thread does not sleep. A sleep ends late by the time of a timer and a
/// thread switch.
const AWAKE: Duration = Duration::from_micros(30);
/// How late the kernel may end a sleep to save wake-ups, in nanoseconds. The kernel's default is 50,000.
const TIMER_SLACK: NonZeroU64 = NonZeroU64::MIN;
/// Marks a thread that waits for nothing.
const NOBODY: u32 = u32::MAX;

struct Shared<'a, T> {
    compiled: &'a CompiledTrace,
    plan: &'a ReplayPlan,
    target: &'a T,
    progress: Vec<Progress>,
    /// The action for which each thread waits, for the watchdog.
    waits_for: Vec<AtomicU32>,
    given_up: AtomicBool,
    /// The start of the replay, set once all threads exist. Until then no thread acts.
    began: OnceLock<Instant>,
}

#[derive(Default)]
struct Own {
    samples: Vec<ActionSample>,
    waited: BTreeMap<Rule, u64>,
}

/// The waiting before an action.
struct Before {
    /// When all its prerequisites were met.
    ready: u64,
    /// The action that it waited for last.
    on: Option<u32>,
}

/// How often the replay is shown, and may be stopped.
const SHOW_EVERY: Duration = Duration::from_millis(100);
/// The longest part of a pause that a thread sleeps before it looks whether the replay was given up.
const SLEEP_MAX: Duration = Duration::from_millis(200);

/// Replays on `target`. `show` is called from time to time with the number of actions that are done; after its break, no thread
/// begins another action.
pub(super) fn run<T: Target>(
    compiled: &CompiledTrace,
    plan: &ReplayPlan,
    target: &T,
    show: &dyn Fn(u64) -> ControlFlow<()>,
) -> Result<ReplayRun, TraceError> {
    let count = plan.threads.len();
    let shared = Shared {
        compiled,
        plan,
        target,
        progress: (0..count).map(|_| Progress::default()).collect(),
        waits_for: (0..count).map(|_| AtomicU32::new(NOBODY)).collect(),
        given_up: AtomicBool::new(false),
        began: OnceLock::new(),
    };
    let left = (Mutex::new(count), Condvar::new());
    let (owns, stall) = std::thread::scope(|scope| {
        let spawn = |thread: usize| {
            let (shared, left) = (&shared, &left);
            let builder = std::thread::Builder::new().stack_size(STACK_BYTES);
            builder.spawn_scoped(scope, move || {
                let own = shared.thread(thread);
                *left.0.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
                left.1.notify_all();
                own
            })
        };
        let threads: Vec<_> = (0..count).map(spawn).collect();
        // A replay with missing threads could not end, so none of it is executed.
        let missing = threads.iter().filter(|thread| thread.is_err()).count();
        shared.given_up.store(missing > 0, Ordering::Relaxed);
        shared.began.get_or_init(Instant::now);
        let stall = match missing {
            0 => shared.watch(&left, show),
            missing => Some(format!("{missing} of {count} threads could not be started")),
        };
        let join = |thread: std::thread::ScopedJoinHandle<'_, Own>| {
            thread.join().expect("a replay's thread does not panic")
        };
        (threads.into_iter().map(|thread| thread.map(join).unwrap_or_default()).collect::<Vec<_>>(), stall)
    });
    match stall {
        Some(what) => Err(TraceError::Stalled { what }),
        None => Ok(collect(plan, owns)),
    }
}

fn collect(plan: &ReplayPlan, owns: Vec<Own>) -> ReplayRun {
    let mut run = ReplayRun::unreached(plan.place.len());
    for (thread, own) in owns.into_iter().enumerate() {
        for (id, sample) in plan.threads[thread].iter().zip(own.samples) {
            run.elapsed = run.elapsed.max(sample.start + sample.took);
            run.samples[*id as usize] = sample;
        }
        run.waited.push(own.waited);
    }
    run
}

impl<T: Target> Shared<'_, T> {
    fn now(&self) -> u64 {
        self.began.wait().elapsed().as_nanos() as u64
    }

    fn thread(&self, thread: usize) -> Own {
        // If the kernel refuses, pauses end later.
        let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK));
        let mut own = Own::default();
        let mut buffer = CallBuffer::default();
        let (mut last, mut debt) = (0, PauseCompensation::default());
        own.samples.reserve(self.plan.threads[thread].len());
        self.began.wait();
        if self.given_up.load(Ordering::Relaxed) {
            return own;
        }
        for (place, id) in self.plan.threads[thread].iter().enumerate() {
            let Some(Before { ready, on }) = self.wait(thread, *id, last, &mut own) else { return own };
            let (start, late) = self.think(*id, ready, &mut debt);
            if self.given_up.load(Ordering::Relaxed) {
                return own;
            }
            let action = &self.compiled.actions[*id as usize];
            self.progress[thread].set(begun(place as u32));
            let (outcome, end) = match action.fate {
                Fate::Executed => {
                    let outcome = self.target.execute(&action.op, &mut buffer);
                    (outcome, self.now())
                }
                _ => (action.recorded, start),
            };
            self.progress[thread].set(done(place as u32));
            own.samples.push(ActionSample {
                start,
                waited: ready - last,
                on,
                late,
                took: end - start,
                outcome,
            });
            last = end;
        }
        own
    }

    /// Waits for the prerequisites in the order. `None` if the replay was given up.
    fn wait(&self, thread: usize, id: u32, last: u64, own: &mut Own) -> Option<Before> {
        let mut before = Before { ready: last, on: None };
        for wait in self.plan.order.of(id) {
            let (other, place) = self.plan.place[wait.on as usize];
            let to = if wait.moment == Moment::Start { begun(place) } else { done(place) };
            let progress = &self.progress[other as usize];
            if other as usize == thread || progress.get() >= to {
                continue;
            }
            self.waits_for[thread].store(wait.on, Ordering::Relaxed);
            if !progress.wait(to, &self.given_up) {
                return None;
            }
            self.waits_for[thread].store(NOBODY, Ordering::Relaxed);
            let after = self.now();
            *own.waited.entry(wait.rule).or_default() += after - before.ready;
            before = Before { ready: after, on: Some(wait.on) };
        }
        Some(before)
    }

    /// Pauses as long as the program did, minus the debt. The pause begins when the action was ready. Returns
    /// the end of the pause, and the lateness.
    fn think(&self, id: u32, ready: u64, debt: &mut PauseCompensation) -> (u64, u64) {
        let Some(&pause) = self.plan.think.get(id as usize).filter(|pause| **pause > 0) else {
            return (ready, 0);
        };
        let until = ready + debt.shorten(pause);
        let left = Duration::from_nanos(until.saturating_sub(self.now()));
        if left > AWAKE {
            match self.plan.naps.get(&id) {
                Some(ends_with) if self.nap(*ends_with, left - AWAKE) => return (self.now(), 0),
                Some(_) => {}
                None => self.sleep(left - AWAKE),
            }
        }
        while self.now() < until && !self.given_up.load(Ordering::Relaxed) {
            // Yields to other threads: with fewer processors than threads, this pause would delay them.
            std::thread::yield_now();
        }
        let now = self.now();
        let late = now.saturating_sub(until);
        debt.add(late);
        (now, late)
    }

    /// Sleeps, unless the replay is given up.
    fn sleep(&self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.given_up.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(left.min(SLEEP_MAX));
        }
    }

    /// Sleeps for at most `most`. Returns whether the action that ends such a sleep has begun.
    fn nap(&self, ends_with: u32, most: Duration) -> bool {
        let (other, place) = self.plan.place[ends_with as usize];
        self.progress[other as usize].wait_at_most(begun(place), &self.given_up, most)
    }

    /// Waits for the threads to end. If nothing moves for the stall time while every thread waits, gives up
    /// and reports which thread waits for which action. Gives up without a report if `show` says so.
    fn watch(&self, left: &(Mutex<usize>, Condvar), show: &dyn Fn(u64) -> ControlFlow<()>) -> Option<String> {
        let mut moved = (Instant::now(), 0);
        let mut guard = left.0.lock().unwrap_or_else(PoisonError::into_inner);
        while *guard > 0 {
            guard = left.1.wait_timeout(guard, SHOW_EVERY).unwrap_or_else(PoisonError::into_inner).0;
            let sum = self.progress.iter().map(Progress::get).fold(0, u64::wrapping_add);
            // Each progress counts the beginnings and the ends of actions.
            if show(sum / 2).is_break() {
                self.given_up.store(true, Ordering::Relaxed);
            }
            let waiting = self.waits_for.iter().filter(|on| on.load(Ordering::Relaxed) != NOBODY).count();
            if sum != moved.1 || waiting < *guard {
                moved = (Instant::now(), sum);
            } else if moved.0.elapsed() > Duration::from_secs(self.plan.stall_seconds) {
                self.given_up.store(true, Ordering::Relaxed);
                return Some(self.who_waits());
            }
        }
        None
    }

    fn who_waits(&self) -> String {
        let name = |on: u32| {
            let action = &self.compiled.actions[on as usize];
            format!(
                "action {on} ({} of thread {}, line {})",
                self.compiled.names.show(action.name),
                action.thread,
                action.line
            )
        };
        let waits =
            self.waits_for.iter().enumerate().map(|(thread, on)| (thread, on.load(Ordering::Relaxed)));
        let waits = waits.filter(|(_, on)| *on != NOBODY).take(8);
        waits
            .map(|(thread, on)| format!("thread {thread} waits for {}", name(on)))
            .collect::<Vec<_>>()
            .join(", ")
    }
}
