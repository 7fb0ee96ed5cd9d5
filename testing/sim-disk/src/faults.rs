//! Errors and damage that a simulated disk makes up.

use device::SeededRng;

/// How often operations of each kind fail: one in N; 0 means never.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskFaults {
    /// Reads that fail.
    pub read_one_in: u64,
    /// Writes that fail; an unknown part of them arrives.
    pub write_one_in: u64,
    /// Flushes that fail; an unknown part of the writes that were not durable is dropped for good.
    pub flush_one_in: u64,
    /// Trims that fail; an unknown part of the blocks is trimmed.
    pub trim_one_in: u64,
    /// One error, after this many more successful operations of any kind but trims.
    pub once_after: Option<u64>,
}

impl DiskFaults {
    /// Whether the present operation fails, where one in `every` operations does.
    pub(crate) fn should_fail(&mut self, every: u64, random: &mut SeededRng) -> bool {
        match &mut self.once_after {
            Some(0) => {
                self.once_after = None;
                return true;
            }
            Some(left) => *left -= 1,
            None => {}
        }
        every > 0 && random.once_in(every)
    }
}

/// How long a write that a failed flush dropped can still be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DroppedWrites {
    /// Not at all, as in a drive's own cache.
    #[default]
    AtOnce,
    /// Until the power is lost, though no later flush makes it durable: as in a kernel's page cache, whose
    /// pages count as clean after an error.
    AtPowerLoss,
}

/// Damage of a block, until the block is written or [healed](crate::SimDisk::heal).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockDamage {
    /// A read fails.
    Unreadable,
    /// A read fails, and healing does not change that: the block was never written, or was trimmed.
    Unused,
    /// A read fails: the block was being written when the power failed.
    Torn,
    /// One bit, counted from the block's start, reads flipped.
    Rot(usize),
}
