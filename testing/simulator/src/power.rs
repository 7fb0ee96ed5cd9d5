//! How a life of the stack ends, as far as the media are concerned.

use crate::log::Role;
use crate::run::Run;
use crate::stack::Pick;

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// What was not flushed is lost in part.
    PowerCut,
    /// The process goes, the media keep what they accepted.
    Kill,
    /// The process goes, and one medium loses what was not flushed.
    Loss(Role),
}

impl End {
    /// Whether a medium loses what was not flushed, in part.
    fn loses(self, role: Role) -> bool {
        self == End::PowerCut || self == End::Loss(role)
    }
}

impl Run {
    /// What stops everything in the middle of a device operation is mostly a power cut.
    pub(crate) fn draw_end(&mut self) -> End {
        match self.random.below(6) {
            0 => End::Kill,
            1 => End::Loss(self.random.pick(&[Role::Store, Role::Buffer])),
            _ => End::PowerCut,
        }
    }

    pub(crate) fn lose_power(&mut self, end: End) {
        self.no_faults();
        self.media.meanwhile.never_comes();
        // Nothing that the stack does while it falls apart may reach the media.
        self.media.power.cut();
        if let Some(stack) = self.stack.take() {
            // Requests that are parked in the cache keep it alive.
            stack.cache.stop();
        }
        if end.loses(Role::Store) {
            self.media.store.crash();
        }
        if end.loses(Role::Buffer) {
            self.media.buffer.crash();
        }
        cache::end_refusal();
        self.media.power.restore();
    }
}
