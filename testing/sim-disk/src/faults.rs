//! What goes wrong on a disk.

use device::SeededRng;

/// Errors that a disk makes up: one in so many operations of a kind; 0 means none.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskFaults {
    /// Reads that fail.
    pub read_one_in: u64,
    /// Writes that fail; an unknown part of them arrives.
    pub write_one_in: u64,
    /// Flushes that fail; an unknown part of what was not durable is dropped for good.
    pub flush_one_in: u64,
    /// Trims that fail; an unknown part of the blocks is trimmed.
    pub trim_one_in: u64,
    /// One error, after so many more operations of any kind but trims that go well.
    pub once_after: Option<u64>,
}

impl DiskFaults {
    /// Whether an operation, of which one in `every` fails, fails now.
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

/// What becomes of a write that a failed flush dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DroppedWrites {
    /// It is gone at once, as in a drive's own cache.
    #[default]
    AtOnce,
    /// It is read until the power is lost, and no later flush makes it durable: a kernel's page cache, whose pages count as
    /// clean after an error.
    AtPowerLoss,
}

/// What is wrong with a block, until it is written or [healed](crate::SimDisk::heal).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockDamage {
    /// A read of it fails.
    Unreadable,
    /// A read of it fails, as it does for good: nothing was ever written there, or it was trimmed.
    Unused,
    /// A read of it fails: it was being written when the power failed.
    Torn,
    /// One bit of it, counted from its start, reads as what it is not.
    Rot(usize),
}
