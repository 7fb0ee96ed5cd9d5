//! Which errors the disks return, and when.

use crate::run_state::SimulationRun;
use crate::stack::RandomPick;
use device::{BLOCK_BYTES, Block, Device};
use sim_disk::{BlockDamage, DiskFaults};

/// How long a disk makes errors, in operations.
const FAULTY_OPERATIONS_MAX: u64 = 60;
/// How long the stack goes on after a device failed, in operations.
const OPERATIONS_AFTER_FAILURE_MAX: u64 = 40;
/// A disk that can be read, and takes nothing for a while.
pub(crate) const TAKES_NOTHING: DiskFaults =
    DiskFaults { write_one_in: 1, flush_one_in: 1, read_one_in: 0, trim_one_in: 0, once_after: None };
/// Blocks that are damaged at once.
const DAMAGED_MAX: u64 = 4;
/// How a node of the store's map begins: who needs one of those that are damaged cannot change what is below it.
const NODE: &[u8] = b"weir.nod";
/// Blocks without use that cannot be read.
const SCRATCHED_MAX: u64 = 200;

/// How blocks begin that say whose others are.
const OWNER_HEADS: [&[u8]; 2] = [b"weir.log", b"weir.own"];

impl SimulationRun {
    /// Lets disks begin and stop to make errors.
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

    /// Some blocks of the store cannot be read, or are not what was written, until they are written or the trouble is over.
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
            // What rot in a head costs, the owners of what was moved then, does not come back when the rot does.
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

    /// Recoveries meet errors, too.
    pub(crate) fn faults_for_recovery(&mut self) {
        if self.random.once_in(8) {
            let faults = DiskFaults { read_one_in: 10, ..DiskFaults::default() };
            self.media.buffer.set_faults(faults);
            self.media.store.set_faults(faults);
        }
    }

    /// Some blocks of the store in which nothing is cannot be read. Nobody may be told of that, ever.
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
