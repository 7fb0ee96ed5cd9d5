//! Bugs that the simulator must find. Without the feature `planted-bugs` none can be switched on.

/// A bug to plant with `Buffer::open_with_bug`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted-bugs"), allow(dead_code, unreachable_pub))]
pub enum BufferBug {
    /// Recovery applies the transactions that parse in a group whose checksum is wrong.
    TornGroupApplied,
    /// Recovery ignores predecessor, incarnation and number, and so replays groups of an earlier lap or
    /// mount.
    StaleIncarnation,
    /// A commit returns without flushing.
    MissingFlush,
    /// An incarnation begins without a flush of groups that the one before it left in the device's cache.
    BeginWithoutFlush,
    /// A damaged group that a slot or a later group says was durable counts as torn.
    RotTakenForTorn,
    /// Groups are written to a larger ring that only one header slot names.
    LargerInOneSlot,
}

/// The planted bug of this buffer; there is none in the build for users.
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
