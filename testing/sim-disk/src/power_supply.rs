//! The power supply that several disks share.

use std::sync::{Arc, Mutex, MutexGuard};

/// One supply of power for several disks: it fails for all of them at the same moment.
#[derive(Debug, Default)]
pub struct PowerSupply(Mutex<PowerState>);

#[derive(Debug, Default)]
struct PowerState {
    /// Writes, trims and flushes that still succeed; none: power does not fail.
    left: Option<u64>,
    after_header: Option<u64>,
    lost: bool,
    /// Writes, trims and flushes seen since the start.
    seen: u64,
}

impl PowerSupply {
    /// Power that stays on.
    pub fn new() -> Arc<PowerSupply> {
        Arc::new(PowerSupply::default())
    }

    /// Fails after `operations` more writes, trims and flushes; the one at which it fails is half done.
    pub fn cut_after(&self, operations: u64) {
        self.state().left = Some(operations);
    }

    /// True once it has failed.
    pub fn is_lost(&self) -> bool {
        self.state().lost
    }

    /// Writes, trims and flushes seen since the start, on all disks.
    pub fn operations_seen(&self) -> u64 {
        self.state().seen
    }

    /// Fails so many writes, trims and flushes after the next write of any disk to one of the blocks that are said to be its
    /// [header](crate::SimDisk::set_header): what such a block says must be true already.
    pub fn cut_after_header(&self, operations: u64) {
        self.state().after_header = Some(operations);
    }

    /// A header was written.
    pub(crate) fn header_written(&self) {
        let mut state = self.state();
        if let Some(operations) = state.after_header.take() {
            state.left = Some(operations);
        }
    }

    /// Turns the power on again, for good until the next [`cut_after`](PowerSupply::cut_after).
    pub fn restore(&self) {
        let mut state = self.state();
        (state.left, state.after_header) = (None, None);
        state.lost = false;
    }

    /// Fails now.
    pub fn cut(&self) {
        self.state().lost = true;
    }

    /// Takes the power for one operation; `false` if it fails during this one.
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
