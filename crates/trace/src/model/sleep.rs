//! Threads that wait for each other without a file in between: futexes, and the ends of threads.

use super::world::World;
use crate::action::{ActionId, Moment, Need, Rule, Step};
use crate::op::Call;
use std::collections::{HashMap, VecDeque};

/// Wakes at one address that nobody has answered; more are lost ones.
const WAKES_MAX: usize = 64;

/// An address in a process's memory.
type Address = (u32, u64);

/// Who wakes whom.
#[derive(Debug, Clone, Default)]
pub(super) struct Sleepers {
    /// Wakes, oldest first, and how many threads each still has to wake.
    wakes: HashMap<Address, VecDeque<(ActionId, u64)>>,
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

    /// `count` threads go on.
    pub(super) fn wake(&mut self, call: &Call, address: u64, count: u64) {
        let process = self.task(call).process;
        let wakes = self.sleepers.wakes.entry((process, address)).or_default();
        wakes.push_back((self.next, count));
        if wakes.len() > WAKES_MAX {
            wakes.pop_front();
        }
    }

    /// The caller slept until somebody woke it. Who wakes may return after the one who was woken: its start counts. Where
    /// nobody in the trace did, nothing is known, and the time is think time.
    pub(super) fn sleep(&mut self, call: &Call, step: &mut Step, address: u64) {
        let key = (self.task(call).process, address);
        let woken_by = self.sleepers.wakes.get_mut(&key).and_then(|wakes| {
            let (by, left) = wakes.front_mut()?;
            let by = *by;
            *left -= 1;
            if *left == 0 {
                wakes.pop_front();
            }
            Some(Need { on: by, moment: Moment::Start, rule: Rule::Wake })
        });
        step.needs.extend(woken_by.or_else(|| self.end_of_sleep(key)));
    }

    /// The kernel wakes who waits for a thread's end before the trace shows that end: its last call counts.
    fn end_of_sleep(&self, key: Address) -> Option<Need> {
        let child = self.sleepers.ends.get(&key)?;
        let last = self.tasks.get(child).map(|task| task.last).or_else(|| self.ends.get(child).copied())?;
        Some(Need { on: last, moment: Moment::End, rule: Rule::Wake })
    }
}
