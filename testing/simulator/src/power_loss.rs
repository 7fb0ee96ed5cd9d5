//! How a life of the stack ends, as far as the media are concerned.

use crate::event_log::MediumRole;
use crate::run_state::SimulationRun;
use crate::stack::RandomPick;

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LifeEnd {
    /// What was not flushed is lost in part.
    PowerCut,
    /// The process goes, the media keep what they accepted.
    Kill,
    /// The process goes, and one medium loses what was not flushed.
    Loss(MediumRole),
}

impl LifeEnd {
    /// Whether a medium loses what was not flushed, in part.
    fn loses(self, role: MediumRole) -> bool {
        self == LifeEnd::PowerCut || self == LifeEnd::Loss(role)
    }
}

impl SimulationRun {
    /// What stops everything in the middle of a device operation is mostly a power cut.
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
        // Nothing that the stack does while it falls apart may reach the media.
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
