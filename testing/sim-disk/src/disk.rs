//! A disk that keeps unflushed writes apart from durable ones, and decides at a crash which of them survive.

use crate::disk_space::DiskSpace;
use crate::faults::{BlockDamage, DiskFaults, DroppedWrites};
use crate::power_supply::PowerSupply;
use device::{BLOCK_BYTES, Block, Device, DeviceError, DeviceOperation, Page, SeededRng};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Disks tear writes between sectors, never within one.
const SECTOR_BYTES: usize = 512;

/// A simulated disk. See the crate's README for what it promises.
pub struct SimDisk {
    name: String,
    blocks: AtomicU64,
    power: Arc<PowerSupply>,
    state: Mutex<SimDiskState>,
}

#[derive(Clone)]
struct SimDiskState {
    /// Shared with forks.
    durable: HashMap<u64, Arc<Page>>,
    /// Accepted and not flushed writes, oldest first; `None` is a trim.
    pending: Vec<(u64, Option<Arc<Page>>)>,
    /// For each block, the index of its newest entry in `pending`: what a read returns.
    newest: HashMap<u64, usize>,
    /// Writes that a failed flush dropped: they can be read, and never become durable.
    dropped_readable: HashMap<u64, Option<Arc<Page>>>,
    dropped: DroppedWrites,
    header: Range<u64>,
    torn_unreadable: Range<u64>,
    damage: BTreeMap<u64, BlockDamage>,
    /// How many reads returned a rotten block.
    rot_reads: u64,
    faults: DiskFaults,
    space: DiskSpace,
    random: SeededRng,
}

impl SimDisk {
    /// A disk of `blocks` zeros on `power`; `seed` decides its faults and crashes.
    pub fn new(name: &str, blocks: u64, power: &Arc<PowerSupply>, seed: u64) -> Arc<SimDisk> {
        let state = SimDiskState {
            durable: HashMap::new(),
            pending: Vec::new(),
            newest: HashMap::new(),
            dropped_readable: HashMap::new(),
            dropped: DroppedWrites::default(),
            header: 0..0,
            torn_unreadable: 0..0,
            damage: BTreeMap::new(),
            rot_reads: 0,
            faults: DiskFaults::default(),
            space: DiskSpace::default(),
            random: SeededRng::new(seed),
        };
        Arc::new(SimDisk {
            name: name.to_owned(),
            blocks: AtomicU64::new(blocks),
            power: power.clone(),
            state: Mutex::new(state),
        })
    }

    /// Sets the errors that the disk makes from now on.
    pub fn set_faults(&self, faults: DiskFaults) {
        self.state().faults = faults;
    }

    /// Sets how long writes that a failed flush drops can be read, from now on.
    pub fn set_dropped(&self, dropped: DroppedWrites) {
        self.state().dropped = dropped;
    }

    /// Sets the header blocks, which describe the others: power can be cut
    /// [after](PowerSupply::cut_after_header) one of them is written.
    pub fn set_header(&self, header: Range<u64>) {
        self.state().header = header;
    }

    /// From now on, a power failure that tears one of these blocks may make it unreadable, until it is
    /// written.
    pub fn set_torn_unreadable(&self, blocks: Range<u64>) {
        self.state().torn_unreadable = blocks;
    }

    /// From now on the disk is a sparse file, whose host file system has space for `blocks` blocks in all.
    /// Blocks that were written and not trimmed have space already.
    pub fn set_space(&self, blocks: u64) {
        let mut state = self.state();
        let SimDiskState { space, durable, pending, .. } = &mut *state;
        let pending = pending.iter().filter(|(_, page)| page.is_some()).map(|&(at, _)| at);
        space.set_limit(blocks, durable.keys().copied().chain(pending));
    }

    /// Blocks that have space, if the disk is a sparse file.
    pub fn space_taken(&self) -> u64 {
        self.state().space.taken()
    }

    /// Damages a block until it is written.
    pub fn damage(&self, at: Block, damage: BlockDamage) {
        self.state().damage.insert(at.0, damage);
    }

    /// Repairs all damage except torn and unused blocks.
    pub fn heal(&self) {
        self.state().damage.retain(|_, damage| matches!(damage, BlockDamage::Torn | BlockDamage::Unused));
    }

    /// How many reads have returned a rotten block.
    pub fn rot_reads(&self) -> u64 {
        self.state().rot_reads
    }

    /// Whether a block was never written, or was durably trimmed since.
    pub fn is_unused(&self, at: Block) -> bool {
        let state = self.state();
        match state.newest.get(&at.0) {
            Some(&newest) if state.pending[newest].1.is_some() => false,
            _ => !state.durable.contains_key(&at.0) && !state.dropped_readable.contains_key(&at.0),
        }
    }

    /// Applies a power failure: any subset of the writes since the last flush survives, each torn between
    /// sectors.
    ///
    /// Call it when the power is lost and no thread uses the disk; restore the power afterwards.
    pub fn crash(&self) {
        let mut state = self.state();
        let state = &mut *state;
        // The patterns in which real caches lose writes: all survive, none, each by a coin, the first ones,
        // or the last ones.
        let shape = state.random.below(5);
        let prefix = state.random.below(state.pending.len() as u64 + 1) as usize;
        state.newest.clear();
        state.dropped_readable.clear();
        for (index, (at, page)) in std::mem::take(&mut state.pending).into_iter().enumerate() {
            let kept = match shape {
                0 => false,
                1 => true,
                2 => state.random.once_in(2),
                3 => index < prefix,
                _ => index >= prefix,
            };
            if kept {
                make_durable(&mut state.durable, at, page);
            } else if shape != 0 && state.random.once_in(4) {
                let old = state.durable.entry(at).or_insert_with(zeros);
                tear(Arc::make_mut(old), &page.unwrap_or_else(zeros), &mut state.random);
                if state.torn_unreadable.contains(&at) && state.random.once_in(4) {
                    state.damage.insert(at, BlockDamage::Torn);
                }
            }
        }
    }

    /// Flips one bit of a durable block, as bit rot does. The disk must have nothing pending for the block.
    pub fn rot(&self, at: Block, bit: usize) {
        let mut state = self.state();
        let page = state.durable.entry(at.0).or_insert_with(zeros);
        Arc::make_mut(page).0[bit / 8 % BLOCK_BYTES] ^= 1 << (bit % 8);
    }

    /// The blocks with durable content, in order: where bit rot would matter.
    pub fn written_blocks(&self) -> Vec<Block> {
        let mut written: Vec<Block> = self.state().durable.keys().map(|&at| Block(at)).collect();
        written.sort();
        written
    }

    /// Whether a block's durable content begins with these bytes.
    pub fn begins_with(&self, at: Block, bytes: &[u8]) -> bool {
        self.state().durable.get(&at.0).is_some_and(|page| page.0.starts_with(bytes))
    }

    /// A copy of the disk as it is, on its own power, for trying several futures of one state.
    pub fn fork(&self, power: &Arc<PowerSupply>, seed: u64) -> Arc<SimDisk> {
        let fork = SimDiskState { random: SeededRng::new(seed), ..self.state().clone() };
        Arc::new(SimDisk {
            name: self.name.clone(),
            blocks: AtomicU64::new(self.blocks()),
            power: power.clone(),
            state: Mutex::new(fork),
        })
    }

    fn state(&self) -> MutexGuard<'_, SimDiskState> {
        self.state.lock().expect("no panic while holding a simulated disk")
    }

    pub(crate) fn error(
        &self,
        operation: DeviceOperation,
        at: Block,
        count: u64,
        reason: &str,
    ) -> DeviceError {
        let device = self.name.clone();
        // 5 is EIO on every Linux.
        DeviceError { device, operation, at, count, errno: 5, reason: reason.to_owned() }
    }

    fn no_space(&self, operation: DeviceOperation, at: Block, count: u64) -> DeviceError {
        // 28 is ENOSPC on every Linux.
        DeviceError { errno: 28, ..self.error(operation, at, count, "no space left below") }
    }

    fn check(&self, operation: DeviceOperation, at: Block, count: u64) -> Result<(), DeviceError> {
        match at.0.checked_add(count) {
            Some(end) if end <= self.blocks() => Ok(()),
            _ => Err(self.error(operation, at, count, "past the end of the device")),
        }
    }

    /// Accepts new content for the blocks from `at` on. If the power fails during this operation, only the
    /// first few blocks arrive.
    fn accept(
        &self,
        operation: DeviceOperation,
        at: Block,
        count: u64,
        content: impl Fn(u64) -> Option<Arc<Page>>,
    ) -> Result<(), DeviceError> {
        self.check(operation, at, count)?;
        if self.power.is_lost() {
            return Err(self.error(operation, at, count, "power lost"));
        }
        let powered = self.power.use_for_operation();
        let mut state = self.state();
        match operation {
            DeviceOperation::Write if !state.space.take(at.0..at.0 + count) => {
                return Err(self.no_space(operation, at, count));
            }
            DeviceOperation::Trim => state.space.give_back(at.0..at.0 + count),
            _ => {}
        }
        let faulty = match operation {
            DeviceOperation::Write => state.should_fail(|faults| faults.write_one_in),
            _ => state.trim_fails(),
        };
        let arrives = if powered && !faulty { count } else { state.random.below(count + 1) };
        if operation == DeviceOperation::Write && state.header.contains(&at.0) {
            self.power.header_written();
        }
        for index in 0..arrives {
            let newest = state.pending.len();
            state.newest.insert(at.0 + index, newest);
            state.dropped_readable.remove(&(at.0 + index));
            state.damage.remove(&(at.0 + index));
            state.pending.push((at.0 + index, content(index)));
        }
        if !powered {
            return Err(self.error(operation, at, count, "power lost"));
        }
        if !faulty {
            return Ok(());
        }
        let reason = match operation {
            DeviceOperation::Trim => "this device does not trim",
            _ => "made-up error",
        };
        Err(self.error(operation, at, count, reason))
    }
}

impl SimDiskState {
    fn should_fail(&mut self, one_in: impl Fn(&DiskFaults) -> u64) -> bool {
        let every = one_in(&self.faults);
        self.faults.should_fail(every, &mut self.random)
    }

    /// Whether a trim fails now. Unlike [`should_fail`](SimDiskState::should_fail) it does not count towards
    /// `once_after`.
    fn trim_fails(&mut self) -> bool {
        self.faults.trim_one_in > 0 && self.random.once_in(self.faults.trim_one_in)
    }

    /// Reads a block. Returns the reason if the block cannot be read.
    fn read(&mut self, at: u64, into: &mut Page) -> Option<&'static str> {
        let found = match self.newest.get(&at) {
            Some(&newest) => self.pending[newest].1.as_deref(),
            None => match self.dropped_readable.get(&at) {
                Some(page) => page.as_deref(),
                None => self.durable.get(&at).map(|page| &**page),
            },
        };
        into.0.copy_from_slice(found.map_or(&[0; BLOCK_BYTES], |page| &page.0));
        match self.damage.get(&at) {
            Some(BlockDamage::Unreadable) => Some("made-up unreadable block"),
            Some(BlockDamage::Unused) => Some("unreadable and unused"),
            Some(BlockDamage::Torn) => Some("torn when the power failed"),
            Some(BlockDamage::Rot(bit)) => {
                into.0[bit / 8 % BLOCK_BYTES] ^= 1 << (bit % 8);
                self.rot_reads += 1;
                None
            }
            None => None,
        }
    }
}

fn zeros() -> Arc<Page> {
    Arc::from(Page::zeroed())
}

fn make_durable(durable: &mut HashMap<u64, Arc<Page>>, at: u64, page: Option<Arc<Page>>) {
    match page {
        Some(page) => durable.insert(at, page),
        None => durable.remove(&at),
    };
}

/// Each sector becomes new or stays old, by a coin.
fn tear(old: &mut Page, new: &Page, random: &mut SeededRng) {
    for at in (0..BLOCK_BYTES).step_by(SECTOR_BYTES) {
        if random.once_in(2) {
            old.0[at..at + SECTOR_BYTES].copy_from_slice(&new.0[at..at + SECTOR_BYTES]);
        }
    }
}

impl Device for SimDisk {
    fn blocks(&self) -> u64 {
        self.blocks.load(Ordering::Acquire)
    }

    fn grow(&self, blocks: u64) -> Result<(), DeviceError> {
        if self.power.is_lost() {
            return Err(self.error(DeviceOperation::Grow, Block(0), blocks, "power lost"));
        }
        self.blocks.fetch_max(blocks, Ordering::AcqRel);
        Ok(())
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        let count = into.len() as u64;
        self.check(DeviceOperation::Read, at, count)?;
        if self.power.is_lost() {
            return Err(self.error(DeviceOperation::Read, at, count, "power lost"));
        }
        let mut state = self.state();
        if state.should_fail(|faults| faults.read_one_in) {
            return Err(self.error(DeviceOperation::Read, at, count, "made-up read error"));
        }
        for (index, page) in into.iter_mut().enumerate() {
            if let Some(why) = state.read(at.0 + index as u64, page) {
                return Err(self.error(DeviceOperation::Read, at, count, why));
            }
        }
        Ok(())
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.accept(DeviceOperation::Write, at, from.len() as u64, |index| {
            let mut page = Page::zeroed();
            page.0.copy_from_slice(&from[index as usize].0);
            Some(Arc::from(page))
        })
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.power.is_lost() || !self.power.use_for_operation() {
            return Err(self.error(DeviceOperation::Flush, Block(0), 0, "power lost"));
        }
        let mut state = self.state();
        let state = &mut *state;
        let faulty = state.should_fail(|faults| faults.flush_one_in);
        state.newest.clear();
        for (at, page) in state.pending.drain(..) {
            if !faulty || state.random.once_in(2) {
                make_durable(&mut state.durable, at, page);
                state.dropped_readable.remove(&at);
            } else if state.dropped == DroppedWrites::AtPowerLoss {
                state.dropped_readable.insert(at, page);
            }
        }
        if faulty {
            return Err(self.error(DeviceOperation::Flush, Block(0), 0, "made-up flush error"));
        }
        Ok(())
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.accept(DeviceOperation::Trim, at, count, |_| None)
    }

    fn allocate(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.check(DeviceOperation::Allocate, at, count)?;
        if self.power.is_lost() {
            return Err(self.error(DeviceOperation::Allocate, at, count, "power lost"));
        }
        if !self.state().space.take(at.0..at.0 + count) {
            return Err(self.no_space(DeviceOperation::Allocate, at, count));
        }
        Ok(())
    }

    fn allocated(&self) -> Option<Vec<Range<Block>>> {
        self.state().space.ranges()
    }

    fn spare_blocks(&self) -> Option<u64> {
        self.state().space.spare()
    }
}

#[cfg(test)]
mod tests;
