//! Waits between threads that touch no file: futexes, and the ends of threads.

use super::world::World;
use crate::call::{Ask, Call};
use crate::step::{Prerequisite, Step};
use std::collections::{HashMap, VecDeque};
use trace_file::{ActionId, Moment, Nap, Rule};

/// Unanswered wakes that are kept for one address. Older ones are dropped as lost wakes.
const WAKES_MAX: usize = 64;

/// Naps of one thread at one place that are kept until a wake there. Later naps keep their full length.
const NAPS_MAX: usize = 1 << 16;
/// Bytes of a place. A condition variable has two words side by side, and its sleepers move between them.
const PLACE_BYTES: u64 = 8;

/// An address in a process's memory.
type FutexAddress = (u32, u64);

/// A call that woke other threads.
#[derive(Debug, Clone)]
struct Waker {
    action: ActionId,
    /// Time of return. Sleeps that began later were not woken by this call.
    end: u64,
    /// Woken threads that have not returned yet.
    left: u64,
}

/// The state of all futexes: wakes, naps, and thread ends to wait for.
#[derive(Debug, Clone, Default)]
pub(super) struct FutexSleepers {
    /// Wakes, oldest first.
    wakes: HashMap<FutexAddress, VecDeque<Waker>>,
    /// The naps of each task at each place since the last wake there.
    naps: HashMap<(u32, u64), Vec<ActionId>>,
    /// The task whose end makes the kernel wake the sleepers at an address.
    ends: HashMap<FutexAddress, u32>,
}

impl World {
    /// Notes the address at which other threads wait for the end of a new thread.
    pub(super) fn note_child(&mut self, call: &Call, child: Option<u32>, address: Option<u64>) {
        if let (Some(child), Some(address)) = (child, address) {
            let process = self.task(call).process;
            self.sleepers.ends.insert((process, address), child);
        }
    }

    /// Applies a sleep, nap or wake.
    pub(super) fn sleep_or_wake(&mut self, call: &Call, step: &mut Step) {
        match call.ask {
            Ask::Sleep { address } => self.sleep(call, step, address),
            Ask::Nap { address } => self.nap(call, address),
            Ask::Wake { address, count } => self.wake(call, address, count),
            _ => {}
        }
    }

    /// Notes a wake of `count` threads.
    fn wake(&mut self, call: &Call, address: u64, count: u64) {
        let process = self.task(call).process;
        let wakes = self.sleepers.wakes.entry((process, address)).or_default();
        wakes.push_back(Waker { action: self.next, end: call.end, left: count });
        if wakes.len() > WAKES_MAX {
            wakes.pop_front();
        }
    }

    /// The caller slept until a wake, so the sleep waits for the start of the waker: a waker may return after
    /// the sleeper. Without a waker in the trace, the sleep is think time.
    fn sleep(&mut self, call: &Call, step: &mut Step, address: u64) {
        let key = (self.task(call).process, address);
        let woken_by = self.sleepers.wakes.get_mut(&key).and_then(|wakes| {
            while wakes.front().is_some_and(|waker| waker.end < call.start) {
                wakes.pop_front();
            }
            let waker = wakes.front_mut()?;
            let on = waker.action;
            waker.left -= 1;
            if waker.left == 0 {
                wakes.pop_front();
            }
            Some(Prerequisite { on, moment: Moment::Start, rule: Rule::Wake })
        });
        if let Some(need) = woken_by {
            let naps = self.sleepers.naps.remove(&(call.task, address / PLACE_BYTES)).unwrap_or_default();
            self.naps.extend(naps.into_iter().map(|action| Nap { action, ends_with: need.on }));
        }
        step.needs.extend(woken_by.or_else(|| self.end_of_sleep(key)));
    }

    /// The caller slept until its timeout. Any later wake of the caller there would have ended this sleep,
    /// too. A replay in which other threads are faster must not wait for a thread that only polls.
    fn nap(&mut self, call: &Call, address: u64) {
        let naps = self.sleepers.naps.entry((call.task, address / PLACE_BYTES)).or_default();
        if naps.len() < NAPS_MAX {
            naps.push(self.next);
        }
    }

    /// The prerequisite of a wait for a thread's end: the thread's last call. The kernel wakes the waiter
    /// before the trace shows that end.
    fn end_of_sleep(&self, key: FutexAddress) -> Option<Prerequisite> {
        let child = self.sleepers.ends.get(&key)?;
        let last = self.tasks.get(child).map(|task| task.last).or_else(|| self.ends.get(child).copied())?;
        Some(Prerequisite { on: last, moment: Moment::End, rule: Rule::Wake })
    }
}
