//! The ends of a life of the stack, and their effects on the media.

use crate::event_log::MediumRole;
use crate::run_state::SimulationRun;
use crate::stack::RandomPick;

/// An end of a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LifeEnd {
    /// Both media lose a part of their unflushed writes.
    PowerCut,
    /// The process ends. The media keep all accepted writes.
    Kill,
    /// The process ends, and one medium loses a part of its unflushed writes.
    Loss(MediumRole),
}

impl LifeEnd {
    /// Whether a medium loses a part of its unflushed writes.
    fn loses(self, role: MediumRole) -> bool {
        self == LifeEnd::PowerCut || self == LifeEnd::Loss(role)
    }
}

impl SimulationRun {
    /// Draws the end of a life that stopped during a device operation: mostly a power cut.
    pub(crate) fn draw_end(&mut self) -> LifeEnd {
        match self.random.below(6) {
            0 => LifeEnd::Kill,
            1 => LifeEnd::Loss(self.random.pick(&[MediumRole::Store, MediumRole::Buffer])),
            _ => LifeEnd::PowerCut,
        }
    }

    pub(crate) fn lose_power(&mut self, end: LifeEnd) {
        self.no_faults();
        self.media.meanwhile.never_comes();
        // Calls that the stack makes while it stops must not reach the media.
        self.media.power.cut();
        if let Some(stack) = self.stack.take() {
            // Requests that are parked in the cache keep it alive.
            stack.cache.stop();
        }
        if end.loses(MediumRole::Store) {
            self.media.store.crash();
        }
        if end.loses(MediumRole::Buffer) {
            self.media.buffer.crash();
        }
        cache::end_refusal();
        self.media.power.restore();
    }
}
