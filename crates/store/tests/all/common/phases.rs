//! Two threads, and a flush that fails and drops the other thread's writes.

use device::{Device, DeviceError};
use sim_disk::{DiskFaults, SimDisk};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// Phases around the failing flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Quiet,
    /// The next flush fails.
    Armed,
    /// One thread has asked for it.
    Asked,
    /// Another thread has written.
    Written,
    /// The flush has failed and dropped the writes.
    Failed,
    /// The other thread has flushed.
    Flushed,
}

/// Long enough for another thread to get on, if it can.
const PATIENCE: Duration = Duration::from_millis(300);

/// The current phase.
pub struct Phases {
    phase: Mutex<Phase>,
    changed: Condvar,
}

impl Phases {
    pub fn quiet() -> Phases {
        Phases { phase: Mutex::new(Phase::Quiet), changed: Condvar::new() }
    }

    pub fn are(&self, phase: Phase) -> bool {
        *self.phase.lock().expect("no panic") == phase
    }

    /// Goes from one phase to the next; `false` if the current one is another.
    pub fn step(&self, from: Phase, to: Phase) -> bool {
        let mut phase = self.phase.lock().expect("no panic");
        let is_it = *phase == from;
        if is_it {
            *phase = to;
            self.changed.notify_all();
        }
        is_it
    }

    /// Waits for a phase, for a limited time, as it may never come.
    pub fn wait_for(&self, wanted: Phase) {
        let phase = self.phase.lock().expect("no panic");
        drop(self.changed.wait_timeout_while(phase, PATIENCE, |phase| *phase < wanted));
    }
}

/// A flush that fails.
pub fn failing_flush(disk: &SimDisk) -> Result<(), DeviceError> {
    disk.set_faults(DiskFaults { flush_one_in: 1, ..DiskFaults::default() });
    let failed = disk.flush();
    disk.set_faults(DiskFaults::default());
    failed
}
