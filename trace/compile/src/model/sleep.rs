//! Threads that wait for each other without a file in between: futexes, and the ends of threads.

use super::world::World;
use crate::call::{Ask, Call};
use crate::step::{Need, Step};
use std::collections::{HashMap, VecDeque};
use trace_file::{ActionId, Moment, Nap, Rule};

/// Wakes at one address that nobody has answered; more are lost ones.
const WAKES_MAX: usize = 64;

/// Naps of one thread at one place before it is woken there. Of more, those that follow have their full time.
const NAPS_MAX: usize = 1 << 16;
/// A condition variable has two words side by side, and its sleepers move from one to the other: they are one place.
const PLACE_BYTES: u64 = 8;

/// An address in a process's memory.
type Address = (u32, u64);

/// A call that woke others.
#[derive(Debug, Clone)]
struct Waker {
    action: ActionId,
    /// When it returned: it woke nobody who slept later.
    end: u64,
    /// How many of those whom it woke have not returned yet.
    left: u64,
}

/// Who wakes whom.
#[derive(Debug, Clone, Default)]
pub(super) struct Sleepers {
    /// Wakes, oldest first.
    wakes: HashMap<Address, VecDeque<Waker>>,
    /// Of each task and place, the naps since somebody woke it there.
    naps: HashMap<(u32, u64), Vec<ActionId>>,
    /// Tasks at whose end the kernel wakes who sleeps there.
    ends: HashMap<Address, u32>,
}

impl World {
    /// A new thread has an address where others wait for its end.
    pub(super) fn note_child(&mut self, call: &Call, child: Option<u32>, address: Option<u64>) {
        if let (Some(child), Some(address)) = (child, address) {
            let process = self.task(call).process;
            self.sleepers.ends.insert((process, address), child);
        }
    }

    /// A thread sleeps, or wakes those that do.
    pub(super) fn sleep_or_wake(&mut self, call: &Call, step: &mut Step) {
        match call.ask {
            Ask::Sleep { address } => self.sleep(call, step, address),
            Ask::Nap { address } => self.nap(call, address),
            Ask::Wake { address, count } => self.wake(call, address, count),
            _ => {}
        }
    }

    /// `count` threads go on.
    fn wake(&mut self, call: &Call, address: u64, count: u64) {
        let process = self.task(call).process;
        let wakes = self.sleepers.wakes.entry((process, address)).or_default();
        wakes.push_back(Waker { action: self.next, end: call.end, left: count });
        if wakes.len() > WAKES_MAX {
            wakes.pop_front();
        }
    }

    /// The caller slept until somebody woke it. Who wakes may return after the one who was woken: its start counts. Where
    /// nobody in the trace did, nothing is known, and the time is think time.
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
            Some(Need { on, moment: Moment::Start, rule: Rule::Wake })
        });
        if let Some(need) = woken_by {
            let naps = self.sleepers.naps.remove(&(call.task, address / PLACE_BYTES)).unwrap_or_default();
            self.naps.extend(naps.into_iter().map(|action| Nap { action, ends_with: need.on }));
        }
        step.needs.extend(woken_by.or_else(|| self.end_of_sleep(key)));
    }

    /// The caller slept until its time was over. Whoever wakes it there later would have ended this sleep, too: where others
    /// are faster than in the trace, a thread that only looks up from time to time must not hold them up.
    fn nap(&mut self, call: &Call, address: u64) {
        let naps = self.sleepers.naps.entry((call.task, address / PLACE_BYTES)).or_default();
        if naps.len() < NAPS_MAX {
            naps.push(self.next);
        }
    }

    /// The kernel wakes who waits for a thread's end before the trace shows that end: its last call counts.
    fn end_of_sleep(&self, key: Address) -> Option<Need> {
        let child = self.sleepers.ends.get(&key)?;
        let last = self.tasks.get(child).map(|task| task.last).or_else(|| self.ends.get(child).copied())?;
        Some(Need { on: last, moment: Moment::End, rule: Rule::Wake })
    }
}
