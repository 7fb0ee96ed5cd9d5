//! Decides which errors the disks return, and when.

use crate::run_state::SimulationRun;
use crate::stack::RandomPick;
use device::{BLOCK_BYTES, Block, Device};
use sim_disk::{BlockDamage, DiskFaults};

/// The longest time that a disk makes errors, in operations.
const FAULTY_OPERATIONS_MAX: u64 = 60;
/// The longest life of the stack after a device failed, in operations.
const OPERATIONS_AFTER_FAILURE_MAX: u64 = 40;
/// A disk that fails all writes and flushes, but no reads.
pub(crate) const TAKES_NOTHING: DiskFaults =
    DiskFaults { write_one_in: 1, flush_one_in: 1, read_one_in: 0, trim_one_in: 0, once_after: None };
/// The most blocks that are damaged at once.
const DAMAGED_MAX: u64 = 4;
/// The magic of map nodes in the store. The stack cannot change anything below a damaged node.
const NODE: &[u8] = b"weir.nod";
/// The number of blocks that are tried for scratches. Only unused blocks become unreadable.
const SCRATCHED_MAX: u64 = 200;

/// The magics of blocks that describe the owners of other blocks.
const OWNER_HEADS: [&[u8]; 2] = [b"weir.log", b"weir.own"];

impl SimulationRun {
    /// Lets disks begin or cease to make errors.
    pub(crate) fn faults(&mut self) {
        if !self.options.faults {
            return;
        }
        let now = self.counts.operations;
        match self.life.faulty_until {
            Some(until) if now >= until => {
                self.no_faults();
                self.life.faulty_until = None;
                self.life.die_soon(now + self.random.below(OPERATIONS_AFTER_FAILURE_MAX));
            }
            None if self.random.once_in(100) => {
                let every = [2, 5, 20][self.random.below(3) as usize];
                let mut faults = DiskFaults::default();
                let store = self.random.below(3) > 0;
                match self.random.below(9) {
                    8 if store => faults = TAKES_NOTHING,
                    0 => faults.write_one_in = every,
                    1..=2 => faults.flush_one_in = every,
                    3..=4 => faults.read_one_in = every,
                    5 => faults.trim_one_in = every,
                    _ => self.damage_some(),
                }
                let disk = if store { &self.media.store } else { &self.media.buffer };
                disk.set_faults(faults);
                self.media.log.event(|| format!("=== faults: {faults:?}"), &[every]);
                self.life.faulty_until = Some(now + 1 + self.random.below(FAULTY_OPERATIONS_MAX));
            }
            _ => {}
        }
    }

    /// Makes some blocks of the store unreadable, or flips one bit in them, until they are written or the
    /// faults end.
    fn damage_some(&mut self) {
        let disk = self.media.store.clone();
        let mut written = disk.written_blocks();
        if self.random.once_in(2) {
            written.retain(|&at| disk.begins_with(at, NODE));
        }
        if written.is_empty() {
            return;
        }
        for _ in 0..1 + self.random.below(DAMAGED_MAX) {
            let at = self.random.pick(&written);
            // Rot in such a head would lose the owners of moved blocks for good, even after the rot is
            // healed.
            let is_head = OWNER_HEADS.iter().any(|begin| disk.begins_with(at, begin));
            let damage = if self.random.once_in(2) || is_head {
                BlockDamage::Unreadable
            } else {
                BlockDamage::Rot(self.random.below(8 * BLOCK_BYTES as u64) as usize)
            };
            self.media.log.event(|| format!("=== {at}: {damage:?}"), &[at.0]);
            disk.damage(at, damage);
        }
    }

    /// Lets reads fail in recoveries, too, at times.
    pub(crate) fn faults_for_recovery(&mut self) {
        if self.random.once_in(8) {
            let faults = DiskFaults { read_one_in: 10, ..DiskFaults::default() };
            self.media.buffer.set_faults(faults);
            self.media.store.set_faults(faults);
        }
    }

    /// Makes some unused blocks of the store unreadable. The stack must never report that.
    pub(crate) fn scratch_unused(&mut self) {
        if self.random.once_in(2) {
            return;
        }
        for _ in 0..SCRATCHED_MAX {
            let at = Block(self.random.below(self.media.store.blocks()));
            if self.media.store.is_unused(at) {
                self.media.store.damage(at, BlockDamage::Unused);
            }
        }
    }

    pub(crate) fn no_faults(&self) {
        for disk in [&self.media.store, &self.media.buffer] {
            disk.set_faults(DiskFaults::default());
            disk.heal();
        }
    }
}
