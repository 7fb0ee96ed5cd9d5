//! The power supply that several disks share.

use std::sync::{Arc, Mutex, MutexGuard};

/// A power supply for several disks: it fails for all of them at the same moment.
#[derive(Debug, Default)]
pub struct PowerSupply(Mutex<PowerState>);

#[derive(Debug, Default)]
struct PowerState {
    /// Writes, trims and flushes that still succeed; `None`: the power does not fail.
    left: Option<u64>,
    after_header: Option<u64>,
    lost: bool,
    /// Writes, trims and flushes seen since the start.
    seen: u64,
}

impl PowerSupply {
    /// A power supply that stays on.
    pub fn new() -> Arc<PowerSupply> {
        Arc::new(PowerSupply::default())
    }

    /// Cuts the power after `operations` more writes, trims and flushes; the operation at which it fails is
    /// half done.
    pub fn cut_after(&self, operations: u64) {
        self.state().left = Some(operations);
    }

    /// Whether the power has failed.
    pub fn is_lost(&self) -> bool {
        self.state().lost
    }

    /// Writes, trims and flushes seen since the start, on all disks.
    pub fn operations_seen(&self) -> u64 {
        self.state().seen
    }

    /// Cuts the power `operations` writes, trims and flushes after the next write of any disk to one of its
    /// [header](crate::SimDisk::set_header) blocks: everything that a header says must be true already.
    pub fn cut_after_header(&self, operations: u64) {
        self.state().after_header = Some(operations);
    }

    /// A disk calls this when a header block is written.
    pub(crate) fn header_written(&self) {
        let mut state = self.state();
        if let Some(operations) = state.after_header.take() {
            state.left = Some(operations);
        }
    }

    /// Turns the power on again, for good until the next [`cut_after`](PowerSupply::cut_after).
    pub fn restore(&self) {
        let mut state = self.state();
        state.left = None;
        state.after_header = None;
        state.lost = false;
    }

    /// Cuts the power now.
    pub fn cut(&self) {
        self.state().lost = true;
    }

    /// Counts one operation; returns `false` if the power fails during it.
    pub(crate) fn use_for_operation(&self) -> bool {
        let mut state = self.state();
        state.seen += 1;
        match &mut state.left {
            Some(0) => state.lost = true,
            Some(left) => *left -= 1,
            None => {}
        }
        !state.lost
    }

    fn state(&self) -> MutexGuard<'_, PowerState> {
        self.0.lock().expect("no panic while holding the power")
    }
}
