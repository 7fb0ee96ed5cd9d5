//! Bugs that the simulator must find. Without the feature `planted-bugs` nothing here can be switched on.

/// A bug to plant with `Buffer::open_with_bug`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted-bugs"), allow(dead_code, unreachable_pub))]
pub enum BufferBug {
    /// Recovery applies what parses of a group whose checksum is wrong.
    TornGroupApplied,
    /// Recovery ignores predecessor, incarnation and number, and so takes what an earlier lap or mount left.
    StaleIncarnation,
    /// A commit returns without flushing.
    MissingFlush,
    /// An incarnation begins without a flush of what the one before it left in the device's cache.
    BeginWithoutFlush,
    /// What something later knows to have been durable, and is damaged, counts as torn.
    RotTakenForTorn,
    /// Groups go to a larger ring of which only one header slot knows.
    LargerInOneSlot,
}

/// Which bug this buffer has: none, in what users run.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PlantedBufferBug(#[cfg(feature = "planted-bugs")] Option<BufferBug>);

impl PlantedBufferBug {
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn one(bug: BufferBug) -> PlantedBufferBug {
        PlantedBufferBug(Some(bug))
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn is(self, bug: BufferBug) -> bool {
        self.0 == Some(bug)
    }

    #[cfg(not(feature = "planted-bugs"))]
    pub(crate) fn is(self, _bug: BufferBug) -> bool {
        false
    }
}
