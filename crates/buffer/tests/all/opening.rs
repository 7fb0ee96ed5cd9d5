//! What opening does with a device that is not a whole buffer of this store, and with rot.

use crate::model::{ID, Plan, Run, open};
use buffer::{Buffer, BufferError, BufferIdentity, LogRecord};
use device::{
    BLOCK_BYTES, Block, BufferId, Device, Incarnation, Lsn, Page, PageNo, SeededRng, StoreId, pages,
};
use sim_disk::{DiskFaults, PowerSupply, SimDisk};
use std::sync::Arc;

fn formatted() -> Arc<SimDisk> {
    let disk = SimDisk::new("buffer", 300, &PowerSupply::new(), 1);
    Buffer::format(&*disk, ID).expect("a device without faults");
    disk
}

fn refusal(disk: Arc<SimDisk>) -> BufferError {
    let before = disk.written_blocks().len();
    let error = open(disk.clone()).err().expect("refused");
    assert_eq!(disk.written_blocks().len(), before, "a refused opening wrote something");
    error
}

/// Puts the right checksum on a block.
fn seal(page: &mut Page) {
    let sum = crc32c::crc32c_append(crc32c::crc32c(&page.0[..8]), &page.0[12..]);
    page.0[8..12].copy_from_slice(&sum.to_le_bytes());
}

/// Changes the superblock and gives it a right checksum.
fn with_superblock(change: impl FnOnce(&mut [u8])) -> Arc<SimDisk> {
    let disk = formatted();
    change_block(&disk, Block(0), change);
    disk
}

/// Changes a block and gives it a right checksum.
fn change_block(disk: &SimDisk, at: Block, change: impl FnOnce(&mut [u8])) {
    let mut page = pages(1);
    disk.read(at, &mut page).expect("power is on");
    change(&mut page[0].0);
    seal(&mut page[0]);
    disk.write(at, &page).expect("power is on");
    disk.flush().expect("power is on");
}

#[test]
fn an_empty_device_is_not_a_buffer() {
    let disk = SimDisk::new("buffer", 300, &PowerSupply::new(), 1);
    assert!(matches!(refusal(disk), BufferError::NotABuffer { .. }));
    let nothing = SimDisk::new("buffer", 0, &PowerSupply::new(), 1);
    assert!(matches!(refusal(nothing), BufferError::NotABuffer { .. }));
}

#[test]
fn a_damaged_superblock_is_refused_wherever_the_bit_is() {
    for bit in (0..BLOCK_BYTES * 8).step_by(61) {
        let disk = formatted();
        disk.rot(Block(0), bit);
        let expected = if bit < 64 { "not a weir buffer" } else { "checksum" };
        let message = refusal(disk).to_string();
        assert!(message.contains(expected), "bit {bit}: {message}");
    }
}

#[test]
fn one_damaged_header_slot_is_survived_and_two_are_refused() {
    let disk = formatted();
    disk.rot(Block(2), 300);
    assert!(open(disk.clone()).is_ok());
    disk.rot(Block(1), 300);
    assert!(matches!(refusal(disk), BufferError::HeadersDamaged { .. }));
}

#[test]
fn the_buffer_of_another_store_is_refused() {
    let mut replay = |_: &[buffer::ReplayedTransaction<'_>]| {};
    let error = Buffer::open(formatted(), StoreId([8; 16]), &mut replay).err().expect("refused");
    assert!(matches!(error, BufferError::WrongStore { found: ID, .. }), "{error}");
    assert_eq!(Buffer::open(formatted(), ID, &mut replay).expect("its own").store_id(), ID);
}

#[test]
fn a_newer_version_and_an_older_one_are_refused_and_the_way_out_is_said() {
    let newer = refusal(with_superblock(|bytes| bytes[12] = 3));
    assert!(matches!(newer, BufferError::Version { found: 3, supported: 2, .. }), "{newer}");
    let older = refusal(with_superblock(|bytes| bytes[12] = 1));
    assert!(matches!(older, BufferError::OldVersion { found: 1, .. }), "{older}");
    let help = older.help().expect("the way out");
    assert!(help.contains("weir 0.1") && help.contains("rsync"), "{help}");
}

#[test]
fn a_buffer_says_which_it_is_and_whose() {
    let identity = BufferIdentity { store: ID, id: BufferId(*b"0123456789abcdef") };
    let disk = SimDisk::new("buffer", 300, &PowerSupply::new(), 1);
    assert!(matches!(Buffer::identify(&*disk), Err(BufferError::NotABuffer { .. })));
    Buffer::format(&*disk, identity).expect("a device without faults");
    assert_eq!(Buffer::identify(&*disk), Ok(identity));
    let (buffer, _) = open(disk).expect("a buffer");
    assert_eq!((buffer.store_id(), buffer.buffer_id()), (ID, identity.id));
}

#[test]
fn numbers_that_cannot_be_are_refused() {
    for at in [48, 52, 56] {
        let disk = with_superblock(|bytes| bytes[at..at + 2].fill(0));
        let error = refusal(disk);
        assert!(matches!(error, BufferError::InvalidField { .. }), "byte {at}: {error}");
    }
    // The ring's length in both header slots.
    for (length, is_refused) in [([0; 8], true), ([0xff; 8], true), (297u64.to_le_bytes(), false)] {
        let disk = formatted();
        for slot in [Block(1), Block(2)] {
            change_block(&disk, slot, |bytes| bytes[116..124].copy_from_slice(&length));
        }
        let opened = open(disk);
        let refused = matches!(opened, Err(BufferError::HeadersDamaged { .. }));
        assert_eq!(refused, is_refused, "{length:?}: {:?}", opened.err());
    }
}

#[test]
fn a_device_that_lost_its_end_is_refused() {
    let (long, short) = (formatted(), SimDisk::new("buffer", 299, &PowerSupply::new(), 1));
    let mut all = pages(299);
    long.read(Block(0), &mut all).expect("power is on");
    short.write(Block(0), &all).expect("power is on");
    short.flush().expect("power is on");
    assert!(matches!(refusal(short), BufferError::Truncated { blocks: 299, expected: 300, .. }));
}

#[test]
fn a_device_that_is_too_small_is_not_formatted() {
    let disk = SimDisk::new("buffer", 255, &PowerSupply::new(), 1);
    let error = Buffer::format(&*disk, ID).expect_err("refused");
    assert!(matches!(error, BufferError::TooSmall { minimum: 1_048_576, .. }), "{error}");
    assert!(disk.written_blocks().is_empty());
    Buffer::format(&*SimDisk::new("buffer", 256, &PowerSupply::new(), 1), ID).expect("1 MiB is enough");
}

#[test]
fn a_crash_while_formatting_leaves_no_buffer_or_an_empty_one() {
    for cut in 0..10 {
        let power = PowerSupply::new();
        let disk = SimDisk::new("buffer", 300, &power, cut);
        power.cut_after(cut);
        let done = Buffer::format(&*disk, ID).is_ok();
        power.cut();
        disk.crash();
        power.restore();
        match open(disk) {
            Ok((buffer, found)) => {
                assert!(found.is_empty() && buffer.incarnation() == Incarnation(0));
            }
            Err(error) => assert!(!done, "{error}"),
        }
    }
}

#[test]
fn opening_writes_nothing() {
    let power = PowerSupply::new();
    let disk = SimDisk::new("buffer", 300, &power, 1);
    Buffer::format(&*disk, ID).expect("a device without faults");
    let before = power.operations_seen();
    open(disk).expect("a buffer");
    assert_eq!(power.operations_seen(), before);
}

#[test]
fn rot_is_refused_or_costs_nothing_but_the_last_commit() {
    let (mut refused, mut tried) = (0, 0);
    for seed in 0..40 {
        let mut run = Run::new(seed, 256, open);
        let plan = Plan { seed, rounds: 1 + seed % 3, operations: 100, faults: DiskFaults::default() };
        run.go(&plan).unwrap_or_else(|broken| panic!("{broken}"));
        let mut random = SeededRng::new(seed);
        // What was found at the end may not be durable yet; beginning makes it so, and leaves evidence of it.
        let (buffer, _) = open(run.disk.clone()).expect("no rot yet");
        buffer.begin_incarnation(Incarnation(1_000), Lsn(0)).expect("no faults");
        run.durable = run.all.len();
        for _ in 0..50 {
            let rotten = run.disk.fork(&PowerSupply::new(), seed);
            let written = rotten.written_blocks();
            let at = written[random.below(written.len() as u64) as usize];
            rotten.rot(at, random.below(BLOCK_BYTES as u64 * 8) as usize);
            tried += 1;
            match open(rotten) {
                Ok((_, found)) => {
                    // The slot may hold the only evidence: then the last commit looks torn.
                    if at.0 == 1 || at.0 == 2 {
                        run.durable = run.durable_before;
                    }
                    run.compare(&found).unwrap_or_else(|broken| panic!("seed {seed}: block {at}: {broken}"));
                    run.durable = run.all.len();
                }
                Err(BufferError::GroupDamaged { block, group, .. }) => {
                    // A group that did not fit before the ring's end lies at its start.
                    let near = block <= at && at.0 < block.0 + 63 || at.0 < 3 + 63;
                    assert!(near && group.0 > 0, "group {group} in block {block}, rot in block {at}");
                    refused += 1;
                }
                Err(error) => assert!(at.0 == 0, "seed {seed}: block {at}: {error}"),
            }
        }
    }
    assert!(refused > tried / 100, "{refused} of {tried} refused: the run tests little");
}

#[test]
fn a_group_as_long_as_any_and_one_that_ends_with_the_ring_are_found() {
    let disk = SimDisk::new("buffer", 256, &PowerSupply::new(), 1);
    Buffer::format(&*disk, ID).expect("a device without faults");
    let (buffer, _) = open(disk.clone()).expect("an empty buffer");
    buffer.begin_incarnation(Incarnation(1), Lsn(0)).expect("no faults");
    let object = device::ObjectId::default();
    let write = |page| LogRecord::Write { object, page: PageNo(page), start: 0, bytes: &[7; BLOCK_BYTES] };
    let long: Vec<LogRecord<'_>> = (0..62).map(write).collect();
    // The ring has 253 blocks, and a quarter of it is the longest group: 63.
    for _ in 0..4 {
        buffer.append(&long).expect("space");
        buffer.commit().expect("no faults");
    }
    buffer.append(&[LogRecord::Delete { object }]).expect("the last block");
    buffer.commit().expect("no faults");
    assert!(buffer.append(&[LogRecord::Delete { object }]).is_err(), "the ring is full");
    let (_, found) = open(disk).expect("a good log");
    let firsts: Vec<u64> = found.iter().map(|one| one.first.0).collect();
    assert_eq!(firsts, [1, 63, 125, 187, 249]);
}

#[test]
fn an_unreadable_group_is_an_error_and_not_an_end() {
    let mut run = Run::new(3, 256, open);
    let plan = Plan { seed: 3, rounds: 1, operations: 60, faults: DiskFaults::default() };
    run.go(&plan).unwrap_or_else(|broken| panic!("{broken}"));
    run.disk.set_faults(DiskFaults { read_one_in: 1, ..DiskFaults::default() });
    assert!(matches!(refusal(run.disk.clone()), BufferError::Device(_)));
}

#[test]
fn random_bytes_in_the_ring_are_never_replayed() {
    let disk = formatted();
    let mut random = SeededRng::new(5);
    let mut noise: Vec<Page> = pages(297);
    Page::bytes_mut(&mut noise).fill_with(|| random.next_u64() as u8);
    disk.write(Block(3), &noise).expect("power is on");
    let (_, found) = open(disk).expect("an empty log in a noisy ring");
    assert!(found.is_empty());
}

#[test]
fn bytes_that_somebody_made_up_with_right_checksums_never_make_it_panic() {
    let mut run = Run::new(11, 256, open);
    let plan = Plan { seed: 11, rounds: 1, operations: 30, faults: DiskFaults::default() };
    run.go(&plan).unwrap_or_else(|broken| panic!("{broken}"));
    let mut random = SeededRng::new(11);
    let written = run.disk.written_blocks();
    let mut outcomes = [0; 2];
    for _ in 0..1000 {
        let disk = run.disk.fork(&PowerSupply::new(), 1);
        let at = match random.below(2) {
            0 => Block(random.below(4)),
            _ => written[random.below(written.len() as u64) as usize],
        };
        let mut page = pages(1);
        disk.read(at, &mut page).expect("power is on");
        for _ in 0..1 + random.below(3) {
            let byte = random.below(160) as usize;
            page[0].0[byte] = [0, 1, 0x7f, 0xff, random.next_u64() as u8][random.below(5) as usize];
        }
        seal(&mut page[0]);
        disk.write(at, &page).expect("power is on");
        let opened = open(disk);
        if let Ok((buffer, _)) = &opened {
            let next = Incarnation(buffer.incarnation().0.saturating_add(1));
            if next > buffer.incarnation() && buffer.begin_incarnation(next, Lsn(0)).is_ok() {
                let _ = buffer.append(&[LogRecord::Delete { object: device::ObjectId::default() }]);
                let _ = buffer.commit();
            }
        }
        outcomes[usize::from(opened.is_ok())] += 1;
    }
    assert!(outcomes.iter().all(|&times| times > 20), "{outcomes:?}: the run tests little");
}
