//! A disk that keeps what was not flushed apart from what was, and decides at a crash what of it survives.

use device::{BLOCK_BYTES, Block, Device, DeviceError, Operation, Page, Random};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Disks tear writes between sectors, never within one.
const SECTOR_BYTES: usize = 512;

/// One supply of power for several disks: it fails for all of them at the same moment.
#[derive(Debug, Default)]
pub struct Power(Mutex<PowerState>);

#[derive(Debug, Default)]
struct PowerState {
    /// Writes, trims and flushes that still succeed; none: power does not fail.
    left: Option<u64>,
    lost: bool,
    /// Writes, trims and flushes seen since the start.
    seen: u64,
}

impl Power {
    /// Power that stays on.
    pub fn new() -> Arc<Power> {
        Arc::new(Power::default())
    }

    /// Fails after `operations` more writes, trims and flushes; the one at which it fails is half done.
    pub fn cut_after(&self, operations: u64) {
        self.state().left = Some(operations);
    }

    /// True once it has failed.
    pub fn lost(&self) -> bool {
        self.state().lost
    }

    /// Writes, trims and flushes seen since the start, on all disks.
    pub fn seen(&self) -> u64 {
        self.state().seen
    }

    /// Turns the power on again, for good until the next [`cut_after`](Power::cut_after).
    pub fn restore(&self) {
        let mut state = self.state();
        state.left = None;
        state.lost = false;
    }

    /// Fails now.
    pub fn cut(&self) {
        self.state().lost = true;
    }

    /// Takes the power for one operation; `false` if it fails during this one.
    fn take(&self) -> bool {
        let mut state = self.state();
        state.seen += 1;
        match &mut state.left {
            Some(0) => state.lost = true,
            Some(left) => *left -= 1,
            None => {}
        }
        !state.lost
    }

    fn state(&self) -> MutexGuard<'_, PowerState> {
        self.0.lock().expect("no panic while holding the power")
    }
}

/// Errors that a disk makes up: one in so many operations of a kind; 0 means none.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Reads that fail.
    pub read_one_in: u64,
    /// Writes that fail; an unknown part of them arrives.
    pub write_one_in: u64,
    /// Flushes that fail; an unknown part of what was not durable is dropped for good.
    pub flush_one_in: u64,
    /// One error, after so many more operations of any kind but trims that go well.
    pub once_after: Option<u64>,
}

impl Faults {
    /// Whether an operation, of which one in `every` fails, fails now.
    fn strike(&mut self, every: u64, random: &mut Random) -> bool {
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

/// A simulated disk. See the crate's README for what it promises.
pub struct SimDisk {
    name: String,
    blocks: u64,
    power: Arc<Power>,
    state: Mutex<State>,
}

struct State {
    /// Shared with forks.
    durable: HashMap<u64, Arc<Page>>,
    /// Accepted and not flushed, oldest first; `None` is a trimmed block.
    pending: Vec<(u64, Option<Arc<Page>>)>,
    /// What a read sees of `pending`: the index of the newest one for each block.
    newest: HashMap<u64, usize>,
    faults: Faults,
    random: Random,
}

impl SimDisk {
    /// A disk of `blocks` zeros on `power`; `seed` decides its faults and crashes.
    pub fn new(name: &str, blocks: u64, power: &Arc<Power>, seed: u64) -> Arc<SimDisk> {
        let state = State {
            durable: HashMap::new(),
            pending: Vec::new(),
            newest: HashMap::new(),
            faults: Faults::default(),
            random: Random::new(seed),
        };
        Arc::new(SimDisk { name: name.to_owned(), blocks, power: power.clone(), state: Mutex::new(state) })
    }

    /// Sets the errors to make from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// What a power failure leaves: any subset of the writes since the last flush, each torn between sectors.
    /// Call it when the power is lost and nobody uses the disk; restore the power afterwards.
    pub fn crash(&self) {
        let mut state = self.state();
        let state = &mut *state;
        // All, none, each by a coin, or a prefix: the shapes in which real caches lose writes.
        let shape = state.random.below(4);
        let prefix = state.random.below(state.pending.len() as u64 + 1) as usize;
        state.newest.clear();
        for (index, (at, page)) in std::mem::take(&mut state.pending).into_iter().enumerate() {
            let kept = match shape {
                0 => false,
                1 => true,
                2 => state.random.once_in(2),
                _ => index < prefix,
            };
            if kept {
                settle(&mut state.durable, at, page);
            } else if shape != 0 && state.random.once_in(4) {
                let old = state.durable.entry(at).or_insert_with(zeros);
                tear(Arc::make_mut(old), &page.unwrap_or_else(zeros), &mut state.random);
            }
        }
    }

    /// Flips one bit of what is durable, as rot does. The disk must have nothing pending for the block.
    pub fn rot(&self, at: Block, bit: usize) {
        let mut state = self.state();
        let page = state.durable.entry(at.0).or_insert_with(zeros);
        Arc::make_mut(page).0[bit / 8 % BLOCK_BYTES] ^= 1 << (bit % 8);
    }

    /// The blocks that hold something durable, in order: where rot would hurt.
    pub fn written_blocks(&self) -> Vec<Block> {
        let mut written: Vec<Block> = self.state().durable.keys().map(|&at| Block(at)).collect();
        written.sort();
        written
    }

    /// A copy of the disk as it is, on its own power, for trying several futures of one state.
    pub fn fork(&self, power: &Arc<Power>, seed: u64) -> Arc<SimDisk> {
        let state = self.state();
        let fork = State {
            durable: state.durable.clone(),
            pending: state.pending.clone(),
            newest: state.newest.clone(),
            faults: state.faults,
            random: Random::new(seed),
        };
        Arc::new(SimDisk {
            name: self.name.clone(),
            blocks: self.blocks,
            power: power.clone(),
            state: Mutex::new(fork),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while holding a simulated disk")
    }

    pub(crate) fn error(&self, operation: Operation, at: Block, count: u64, reason: &str) -> DeviceError {
        let device = self.name.clone();
        // 5 is EIO on every Linux.
        DeviceError { device, operation, at, count, errno: 5, reason: reason.to_owned() }
    }

    fn check(&self, operation: Operation, at: Block, count: u64) -> Result<(), DeviceError> {
        match at.0.checked_add(count) {
            Some(end) if end <= self.blocks => Ok(()),
            _ => Err(self.error(operation, at, count, "past the end of the device")),
        }
    }

    /// Accepts new content for the blocks from `at` on. If the power fails now, the first few arrive.
    fn accept(
        &self,
        operation: Operation,
        at: Block,
        count: u64,
        content: impl Fn(u64) -> Option<Arc<Page>>,
    ) -> Result<(), DeviceError> {
        self.check(operation, at, count)?;
        if self.power.lost() {
            return Err(self.error(operation, at, count, "power lost"));
        }
        let powered = self.power.take();
        let mut state = self.state();
        let faulty = operation == Operation::Write && state.strike(|faults| faults.write_one_in);
        let arrives = if powered && !faulty { count } else { state.random.below(count + 1) };
        for index in 0..arrives {
            let newest = state.pending.len();
            state.newest.insert(at.0 + index, newest);
            state.pending.push((at.0 + index, content(index)));
        }
        match (powered, faulty) {
            (true, false) => Ok(()),
            (true, true) => Err(self.error(operation, at, count, "made-up write error")),
            (false, _) => Err(self.error(operation, at, count, "power lost")),
        }
    }
}

impl State {
    fn strike(&mut self, one_in: impl Fn(&Faults) -> u64) -> bool {
        let every = one_in(&self.faults);
        self.faults.strike(every, &mut self.random)
    }
}

fn zeros() -> Arc<Page> {
    Arc::from(Page::zeroed())
}

fn settle(durable: &mut HashMap<u64, Arc<Page>>, at: u64, page: Option<Arc<Page>>) {
    match page {
        Some(page) => durable.insert(at, page),
        None => durable.remove(&at),
    };
}

/// Each sector becomes new or stays old, by a coin.
fn tear(old: &mut Page, new: &Page, random: &mut Random) {
    for at in (0..BLOCK_BYTES).step_by(SECTOR_BYTES) {
        if random.once_in(2) {
            old.0[at..at + SECTOR_BYTES].copy_from_slice(&new.0[at..at + SECTOR_BYTES]);
        }
    }
}

impl Device for SimDisk {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        let count = into.len() as u64;
        self.check(Operation::Read, at, count)?;
        if self.power.lost() {
            return Err(self.error(Operation::Read, at, count, "power lost"));
        }
        let mut state = self.state();
        if state.strike(|faults| faults.read_one_in) {
            return Err(self.error(Operation::Read, at, count, "made-up read error"));
        }
        for (index, page) in into.iter_mut().enumerate() {
            let block = at.0 + index as u64;
            let found = match state.newest.get(&block) {
                Some(&newest) => state.pending[newest].1.as_deref(),
                None => state.durable.get(&block).map(|page| &**page),
            };
            page.0.copy_from_slice(found.map_or(&[0; BLOCK_BYTES], |page| &page.0));
        }
        Ok(())
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.accept(Operation::Write, at, from.len() as u64, |index| {
            let mut page = Page::zeroed();
            page.0.copy_from_slice(&from[index as usize].0);
            Some(Arc::from(page))
        })
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.power.lost() || !self.power.take() {
            return Err(self.error(Operation::Flush, Block(0), 0, "power lost"));
        }
        let mut state = self.state();
        let state = &mut *state;
        let faulty = state.strike(|faults| faults.flush_one_in);
        state.newest.clear();
        for (at, page) in state.pending.drain(..) {
            if !faulty || state.random.once_in(2) {
                settle(&mut state.durable, at, page);
            }
        }
        match faulty {
            false => Ok(()),
            true => Err(self.error(Operation::Flush, Block(0), 0, "made-up flush error")),
        }
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.accept(Operation::Trim, at, count, |_| None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(byte: u8) -> Vec<Page> {
        vec![Page([byte; BLOCK_BYTES])]
    }

    fn read(disk: &SimDisk, at: u64) -> Page {
        let mut into = device::pages(1);
        disk.read(Block(at), &mut into).expect("a read in range");
        into[0].clone()
    }

    #[test]
    fn a_simulated_disk_keeps_the_contract() {
        device::check_contract(&*SimDisk::new("disk", 64, &Power::new(), 1));
    }

    #[test]
    fn what_was_flushed_survives_every_crash() {
        for seed in 0..50 {
            let power = Power::new();
            let disk = SimDisk::new("disk", 64, &power, seed);
            disk.write(Block(3), &page(1)).expect("power is on");
            disk.flush().expect("power is on");
            power.cut();
            disk.crash();
            power.restore();
            assert_eq!(read(&disk, 3), page(1)[0]);
        }
    }

    #[test]
    fn what_was_not_flushed_is_sometimes_kept_sometimes_lost_and_sometimes_torn() {
        let mut outcomes = std::collections::HashSet::new();
        for seed in 0..200 {
            let power = Power::new();
            let disk = SimDisk::new("disk", 64, &power, seed);
            disk.write(Block(3), &page(1)).expect("power is on");
            power.cut_after(0);
            assert!(disk.flush().is_err());
            assert!(disk.write(Block(4), &page(1)).is_err(), "the disk works without power");
            disk.crash();
            power.restore();
            let ones = read(&disk, 3).0.iter().filter(|&&byte| byte == 1).count();
            assert_eq!(ones % SECTOR_BYTES, 0, "torn within a sector");
            outcomes.insert(match ones {
                0 => "lost",
                BLOCK_BYTES => "kept",
                _ => "torn",
            });
        }
        assert_eq!(outcomes.len(), 3);
    }

    #[test]
    fn one_error_comes_when_it_was_ordered_and_no_other_follows() {
        let disk = SimDisk::new("disk", 64, &Power::new(), 1);
        disk.set_faults(Faults { once_after: Some(2), ..Faults::default() });
        disk.write(Block(0), &page(7)).expect("the first goes well");
        disk.flush().expect("the second goes well");
        let mut into = device::pages(1);
        let error = disk.read(Block(0), &mut into).expect_err("the third fails");
        assert!(error.reason.starts_with("made-up"), "{error}");
        assert_eq!(read(&disk, 0), page(7)[0]);
        disk.write(Block(1), &page(8)).expect("and no other");
        disk.flush().expect("and no other");
    }

    #[test]
    fn a_fork_and_its_origin_do_not_see_each_others_writes() {
        let disk = SimDisk::new("disk", 64, &Power::new(), 1);
        disk.write(Block(0), &page(1)).expect("power");
        disk.flush().expect("power");
        let fork = disk.fork(&Power::new(), 2);
        fork.rot(Block(0), 0);
        disk.write(Block(0), &page(2)).expect("power");
        assert_eq!((read(&disk, 0).0[0], read(&fork, 0).0[0]), (2, 0));
    }

    #[test]
    fn a_failed_flush_says_so_and_may_drop_writes_for_good() {
        let mut dropped = 0;
        for seed in 0..50 {
            let disk = SimDisk::new("disk", 64, &Power::new(), seed);
            disk.set_faults(Faults { flush_one_in: 1, ..Faults::default() });
            disk.write(Block(0), &page(7)).expect("writes do not fail");
            assert!(disk.flush().is_err());
            disk.set_faults(Faults::default());
            disk.flush().expect("no faults any more");
            dropped += u32::from(read(&disk, 0) == Page::ZERO);
        }
        assert!((10..40).contains(&dropped), "{dropped} of 50");
    }
}
