//! Where the log ends: a group that is missing was torn, unless something says that it was durable once.

use crate::model::{ID, open};
use buffer::{Buffer, BufferError, GroupNo, LogRecord};
use device::{BLOCK_BYTES, Block, Incarnation, Lsn, ObjectId, PageNo};
use sim_disk::{PowerSupply, SimDisk};
use std::sync::Arc;

/// The ring of a buffer of 256 blocks: behind a superblock and two header slots.
const RING_START: u64 = 3;
const RING_BLOCKS: u64 = 253;
/// A quarter of it.
const GROUP_BLOCKS_MAX: u64 = 63;

/// A log, and where each of its groups begins.
struct Log {
    disk: Arc<SimDisk>,
    buffer: Buffer,
    end: u64,
    groups: Vec<Block>,
}

impl Log {
    fn new() -> Log {
        let disk = SimDisk::new("buffer", 256, &PowerSupply::new(), 1);
        Buffer::format(&*disk, ID).expect("a device without faults");
        let (buffer, _) = open(disk.clone()).expect("an empty buffer");
        buffer.begin_incarnation(Incarnation(1), Lsn(0)).expect("no faults");
        Log { disk, buffer, end: 0, groups: Vec::new() }
    }

    /// Commits one group of so many blocks. It moves to the next lap where it does not fit before the ring's end.
    fn commit(&mut self, blocks: u64) {
        let object = ObjectId::default();
        let write =
            |page| LogRecord::Write { object, page: PageNo(page), start: 0, bytes: &[7; BLOCK_BYTES] };
        let mut records: Vec<LogRecord<'_>> = (1..blocks).map(write).collect();
        records.push(LogRecord::Delete { object });
        self.buffer.append(&records).expect("space");
        self.buffer.commit().expect("no faults");
        let left = RING_BLOCKS - self.end % RING_BLOCKS;
        self.end += if blocks > left { left } else { 0 };
        self.groups.push(Block(RING_START + self.end % RING_BLOCKS));
        self.end += blocks;
    }

    /// How many transactions are found when group `number`, counted from 1, rots.
    fn found_without(&self, number: usize) -> Result<usize, (Block, GroupNo)> {
        let rotten = self.disk.fork(&PowerSupply::new(), 1);
        rotten.rot(self.groups[number - 1], 1000);
        match open(rotten) {
            Ok((_, found)) => Ok(found.len()),
            Err(BufferError::GroupDamaged { block, group, .. }) => Err((block, group)),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn a_group_that_a_later_one_knows_to_be_durable_is_rot_and_the_last_one_is_torn() {
    for lengths in [&[1, 1, 1][..], &[1, 62, 1, 30, 1], &[GROUP_BLOCKS_MAX; 4], &[2, GROUP_BLOCKS_MAX, 3]] {
        let mut log = Log::new();
        lengths.iter().for_each(|&blocks| log.commit(blocks));
        assert_eq!(open(log.disk.clone()).expect("a good log").1.len(), lengths.len());
        for number in 1..lengths.len() {
            let refused = Err((log.groups[number - 1], GroupNo(number as u64)));
            assert_eq!(log.found_without(number), refused, "groups of {lengths:?} blocks");
        }
        assert_eq!(log.found_without(lengths.len()), Ok(lengths.len() - 1), "groups of {lengths:?} blocks");
    }
}

#[test]
fn a_group_of_the_next_lap_knows_of_those_before_the_rings_end() {
    let mut log = Log::new();
    (0..3).for_each(|_| log.commit(GROUP_BLOCKS_MAX));
    log.buffer.release(GroupNo(3), 0);
    log.commit(60);
    log.commit(10);
    assert_eq!(log.groups[4], Block(RING_START), "four blocks before the ring's end are too few");
    assert_eq!(log.found_without(4), Err((log.groups[3], GroupNo(4))));
    assert_eq!(log.found_without(5), Ok(2), "of groups 3 and 4");
}

#[test]
fn wherever_a_group_lies_in_the_ring_the_one_behind_it_knows_of_it() {
    let lengths = [(1, GROUP_BLOCKS_MAX), (GROUP_BLOCKS_MAX, 1), (GROUP_BLOCKS_MAX, GROUP_BLOCKS_MAX)];
    for (third, (length, next)) in (1..=GROUP_BLOCKS_MAX).flat_map(|third| lengths.map(|pair| (third, pair)))
    {
        let mut log = Log::new();
        [GROUP_BLOCKS_MAX, GROUP_BLOCKS_MAX, third].into_iter().for_each(|blocks| log.commit(blocks));
        log.buffer.release(GroupNo(3), 0);
        // The tail is written with the next commit.
        [1, length, next].into_iter().for_each(|blocks| log.commit(blocks));
        let refused = Err((log.groups[4], GroupNo(5)));
        assert_eq!(log.found_without(5), refused, "{length} blocks at {}, then {next}", log.groups[4]);
    }
}
