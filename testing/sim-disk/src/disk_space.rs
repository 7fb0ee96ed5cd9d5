//! A file system below a disk that is a sparse file: it gives space until it has no more.

use device::Block;
use std::collections::BTreeSet;
use std::ops::Range;

/// The space that a disk has, if it is a sparse file. Taken and given back at once, whatever a crash does to the bytes: a trim that a
/// crash undid leaves bytes that count as having no space.
#[derive(Debug, Clone, Default)]
pub(crate) struct DiskSpace {
    sparse: Option<SparseLimit>,
}

#[derive(Debug, Clone)]
struct SparseLimit {
    limit: u64,
    taken: BTreeSet<u64>,
}

impl DiskSpace {
    pub(crate) fn set_limit(&mut self, limit: u64, written: impl Iterator<Item = u64>) {
        match &mut self.sparse {
            Some(sparse) => sparse.limit = limit,
            None => self.sparse = Some(SparseLimit { limit, taken: written.collect() }),
        }
    }

    /// Takes what these blocks lack; nothing and `false` if that is too much.
    pub(crate) fn take(&mut self, blocks: Range<u64>) -> bool {
        let Some(SparseLimit { limit, taken }) = &mut self.sparse else { return true };
        let more = (blocks.end - blocks.start) - taken.range(blocks.clone()).count() as u64;
        let fits = more == 0 || taken.len() as u64 + more <= *limit;
        if fits {
            taken.extend(blocks);
        }
        fits
    }

    pub(crate) fn give_back(&mut self, blocks: Range<u64>) {
        let Some(SparseLimit { taken, .. }) = &mut self.sparse else { return };
        taken.retain(|at| !blocks.contains(at));
    }

    pub(crate) fn taken(&self) -> u64 {
        self.sparse.as_ref().map_or(0, |sparse| sparse.taken.len() as u64)
    }

    pub(crate) fn spare(&self) -> Option<u64> {
        let SparseLimit { limit, taken } = self.sparse.as_ref()?;
        Some(limit.saturating_sub(taken.len() as u64))
    }

    pub(crate) fn ranges(&self) -> Option<Vec<Range<Block>>> {
        let taken: Vec<u64> = self.sparse.as_ref()?.taken.iter().copied().collect();
        let runs = taken.chunk_by(|at, next| at + 1 == *next);
        Some(runs.map(|run| Block(run[0])..Block(run[0] + run.len() as u64)).collect())
    }
}

#[cfg(test)]
mod tests {
    use crate::{PowerSupply, SimDisk};
    use device::{Block, Device, pages};

    #[test]
    fn a_sparse_disk_keeps_the_contract() {
        let disk = SimDisk::new("disk", 64, &PowerSupply::new(), 1);
        disk.set_space(64);
        device::check_contract(&*disk);
    }

    #[test]
    fn a_sparse_disk_is_full_when_its_space_is_taken_and_a_trim_gives_some_back() {
        let disk = SimDisk::new("disk", 64, &PowerSupply::new(), 1);
        disk.write(Block(0), &pages(4)).expect("it is no sparse file yet");
        disk.set_space(10);
        disk.allocate(Block(8), 4).expect("there is space");
        assert_eq!((disk.space_taken(), disk.spare_blocks()), (8, Some(2)));
        assert_eq!(disk.allocated(), Some(vec![Block(0)..Block(4), Block(8)..Block(12)]));
        disk.write(Block(8), &pages(6)).expect("two more");
        let full = disk.write(Block(20), &pages(1)).expect_err("it is full");
        assert!(full.is_no_space() && disk.allocate(Block(20), 1).is_err_and(|error| error.is_no_space()));
        disk.write(Block(0), &pages(4)).expect("these have theirs");
        disk.trim(Block(0), 4).expect("a trim");
        disk.allocate(Block(20), 4).expect("there is space again");
        assert!(disk.write(Block(0), &pages(1)).is_err(), "it was trimmed");
    }
}
