//! Handing the buffer over to another volume: with a crash or an error at any write or flush of it, and any subset of
//! them kept, it is one volume's or the other's, and no volume's records are ever given to the other.

use buffer::{Buffer, BufferError, Record};
use device::{Block, Device, Incarnation, Lsn, ObjectId, StoreId, pages};
use sim::{Faults, Power, SimDisk};
use std::sync::Arc;

const ID: StoreId = StoreId([7; 16]);
/// Whose records it holds before and after.
const GIVER: u32 = 3;
const TAKER: u32 = 9;
/// Writes and flushes of a hand-over.
const OPERATIONS: u64 = 4;

/// What is found: the volume, the volume of each record, and the record's slot.
struct Found {
    buffer: Buffer,
    records: Vec<(u32, u64)>,
}

fn open(disk: &Arc<SimDisk>) -> Result<Found, BufferError> {
    let mut records = Vec::new();
    let buffer = Buffer::open(disk.clone(), ID, &mut |replayed| {
        for (transaction, record) in
            replayed.iter().flat_map(|one| one.records.iter().map(move |record| (one, record)))
        {
            let Record::Delete { object } = record else { panic!("nobody wrote {record:?}") };
            records.push((transaction.volume, object.slot));
        }
    })?;
    Ok(Found { buffer, records })
}

fn begin(buffer: &Buffer) {
    let newest = buffer.newest_lsn();
    buffer.begin(Incarnation(buffer.incarnation().0 + 1), newest).expect("power is on");
}

/// Appends and commits records about these slots, in a group each.
fn write(buffer: &Buffer, slots: std::ops::Range<u64>) {
    for slot in slots {
        buffer.append(&[Record::Delete { object: ObjectId { slot, generation: 0 } }]).expect("space");
        buffer.commit().expect("power is on");
    }
}

struct Machine {
    power: Arc<Power>,
    disk: Arc<SimDisk>,
}

impl Machine {
    /// A buffer that is the giver's, with a few groups in it, none of which is needed.
    fn ready(seed: u64) -> (Machine, Buffer) {
        let power = Power::new();
        let disk = SimDisk::new("buffer", 256, &power, seed);
        Buffer::format(&*disk, ID).expect("power is on");
        open(&disk).and_then(|found| found.buffer.hand_over(GIVER)).expect("an empty buffer");
        let buffer = open(&disk).expect("sound").buffer;
        begin(&buffer);
        write(&buffer, 0..seed % 5);
        buffer.release(buffer.groups().end, 0);
        (Machine { power, disk }, buffer)
    }

    fn crash(&self) {
        self.power.cut();
        self.disk.crash();
        self.power.restore();
    }

    fn damage(&self, slot: u64) {
        self.disk.write(Block(slot), &pages(1)).and_then(|()| self.disk.flush()).expect("power is on");
    }

    /// Opens what is left, checks it, lives on as whosever it is, and loses either header slot then.
    fn live_on(&self, seed: u64, after: u64) -> u32 {
        let about = format!("seed {seed}, after {after}");
        let Found { buffer, records } = open(&self.disk).expect("one slot is whole at any moment");
        let owner = buffer.volume();
        let were: Vec<(u32, u64)> = (0..seed % 5).map(|slot| (GIVER, slot)).collect();
        match owner {
            GIVER => assert_eq!(records, were, "{about}"),
            TAKER => assert_eq!(records, [], "{about}: the taker got something"),
            other => panic!("{about}: volume {other}"),
        }
        begin(&buffer);
        write(&buffer, 100..102);
        drop(buffer);
        self.crash();
        let mut expected = records;
        expected.extend([(owner, 100), (owner, 101)]);
        for slot in [1, 2] {
            let power = Power::new();
            let fork = Machine { disk: self.disk.fork(&power, seed), power };
            fork.damage(slot);
            let found = open(&fork.disk).unwrap_or_else(|error| panic!("{about}: {error}"));
            let mine = found.records.iter().all(|(volume, _)| *volume == owner);
            assert!(
                found.buffer.volume() == owner && mine,
                "{about}: the other volume's without slot {slot}"
            );
            assert_eq!(found.records, expected, "{about}: without slot {slot}");
        }
        owner
    }
}

#[test]
fn a_crash_at_any_write_or_flush_leaves_it_one_volumes_or_the_others() {
    let mut owners = [0, 0];
    for seed in 0..60 {
        for after in 0..=OPERATIONS {
            let (machine, buffer) = Machine::ready(seed);
            machine.power.cut_after(after);
            let outcome = buffer.hand_over(TAKER);
            assert_eq!(outcome.is_ok(), after == OPERATIONS, "seed {seed}, after {after}");
            drop(buffer);
            machine.crash();
            let owner = machine.live_on(seed, after);
            assert!(outcome.is_err() || owner == TAKER, "seed {seed}: it went back");
            // The first flush made it the taker's.
            assert!(after < 2 || owner == TAKER, "seed {seed}: it went back after {after}");
            owners[usize::from(owner == TAKER)] += 1;
        }
    }
    assert!(owners.iter().all(|&count| count > 50), "{owners:?}: crashes decide little");
}

#[test]
fn an_error_at_any_write_or_flush_leaves_it_one_volumes_or_the_others() {
    for seed in 0..60 {
        for after in 0..OPERATIONS {
            let (machine, buffer) = Machine::ready(seed);
            machine.disk.set_faults(Faults { once_after: Some(after), ..Faults::default() });
            buffer.hand_over(TAKER).expect_err("an error is told");
            buffer.append(&[]).expect_err("and stays");
            drop(buffer);
            machine.disk.set_faults(Faults::default());
            if seed % 2 == 0 {
                machine.crash();
            }
            machine.live_on(seed, after);
        }
    }
}

#[test]
fn one_that_was_handed_over_stays_so_without_either_header_slot() {
    for slot in [1, 2] {
        let (machine, buffer) = Machine::ready(4);
        buffer.hand_over(TAKER).expect("power is on");
        drop(buffer);
        machine.damage(slot);
        let found = open(&machine.disk).expect("the other slot is whole");
        assert_eq!((found.buffer.volume(), found.records), (TAKER, vec![]), "without slot {slot}");
    }
}

#[test]
#[should_panic(expected = "records that are needed")]
fn one_that_is_needed_is_not_handed_over() {
    let (_machine, buffer) = Machine::ready(1);
    write(&buffer, 7..8);
    drop(buffer.hand_over(TAKER));
}

#[test]
fn lsns_go_on_over_a_hand_over() {
    let (machine, buffer) = Machine::ready(4);
    let newest = buffer.newest_lsn();
    assert_eq!(newest, Lsn(4));
    buffer.hand_over(TAKER).expect("power is on");
    drop(buffer);
    assert_eq!(open(&machine.disk).expect("sound").buffer.newest_lsn(), newest);
}
