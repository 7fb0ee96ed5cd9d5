//! Clones and moves of pages: the order in which the store gets them and their dependencies, and which reads
//! wait. Random ones are in `prefix.rs`, `volumes.rs`, `rescue.rs` and `seek.rs`.

use crate::common::meddled::{Meddled, Meddler};
use crate::common::plain::{Machine, PATIENCE};
use crate::common::{Disks, Slot, apply_at_once};
use cache::{
    BackgroundTask, Cache, CacheError, ObjectChange, SpaceReservation, TRANSFER_PAGES_MAX, TransactionCost,
    WaitCause,
};
use device::{BLOCK_BYTES, Block, Clock, Device, ObjectId, PageNo, PageTransfer, TransferKind, VolumeId};
use sim_disk::{DiskFaults, SimClock};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{NewVolume, Store, VolumeMode};

const ALWAYS: DiskFaults =
    DiskFaults { write_one_in: 1, flush_one_in: 1, read_one_in: 0, trim_one_in: 0, once_after: None };
/// Far apart, so that they do not share a leaf of the map.
const SOURCE: ObjectId = VolumeId::MAIN.object(1, 1);
const OTHER: ObjectId = VolumeId::MAIN.object(1 << 40, 1);
const TARGET: ObjectId = VolumeId::MAIN.object(1 << 20, 1);

fn clone(from: ObjectId, to: ObjectId) -> ObjectChange<'static> {
    ObjectChange::Transfer(PageTransfer::clone_of(from, to))
}

fn page(cache: &Cache, object: ObjectId, page: u64) -> Result<u8, CacheError> {
    let bytes = cache.read_now(object, page * BLOCK_BYTES as u64, BLOCK_BYTES)?;
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "one write's bytes, or none");
    Ok(bytes[0])
}

fn write(machine: &Machine, cache: &Cache, object: ObjectId, page: u64, byte: u8) {
    machine.write(cache, object, page, &[byte; BLOCK_BYTES]).expect("space");
}

/// Damages both copies of the nodes above `SOURCE` alone. Damaging them again heals them.
fn damage_source(machine: &Machine) -> Vec<[Block; 2]> {
    let is_found = |object| {
        let store = Store::open(machine.store.clone()).ok()?;
        Some(store.data().page_lsn(object, PageNo(0)).is_ok())
    };
    let mut damaged = Vec::new();
    for pair in machine.pairs() {
        machine.rot_both(pair);
        match (is_found(SOURCE), is_found(OTHER)) {
            (Some(false), Some(true)) => damaged.push(pair),
            _ => machine.rot_both(pair),
        }
    }
    assert!(!damaged.is_empty(), "there is a node for it");
    damaged
}

/// Where the store holds pages that consist of this byte.
fn places_of(machine: &Machine, byte: u8) -> Vec<Block> {
    let is_it = |&at: &Block| {
        let mut page = device::pages(1);
        machine.store.read(at, &mut page).is_ok() && page[0].0 == [byte; BLOCK_BYTES]
    };
    machine.store.written_blocks().into_iter().filter(is_it).collect()
}

/// Its page 2 is stored as a base and a delta. Returns where the base is.
fn with_delta(machine: &Machine) -> (Cache, Block) {
    let cache = machine.open();
    write(machine, &cache, SOURCE, 2, 0xab);
    // Too many pieces for an object without a leaf.
    (1..6).for_each(|number| write(machine, &cache, SOURCE, 20 * number, 1));
    // Until the buffer has released it.
    machine.fill(&cache, OTHER).expect("space");
    cache.drain().expect("devices that work");
    drop(cache);
    let cache = machine.open();
    machine
        .apply(
            &cache,
            &[ObjectChange::Write { object: SOURCE, offset: 2 * BLOCK_BYTES as u64, bytes: &[7; 10] }],
        )
        .expect("space");
    cache.drain().expect("devices that work");
    let base = places_of(machine, 0xab)[0];
    (cache, base)
}

const EDGES: PageTransfer = PageTransfer::clone_range(SOURCE, PageNo(1)..PageNo(4), TARGET, PageNo(1));

#[test]
fn a_clone_of_a_page_that_has_a_delta_and_cannot_be_read_waits_for_it_and_holds_up_nothing_else() {
    let machine = Machine::new(3);
    let (cache, base) = with_delta(&machine);
    machine.store.damage(base, sim_disk::BlockDamage::Unreadable);
    machine.apply(&cache, &[ObjectChange::Transfer(EDGES)]).expect("space");
    (0..8).for_each(|number| write(&machine, &cache, OTHER, number, 9));
    for _ in 0..50 {
        machine.clock.advance(Duration::from_secs(10));
        cache.step(BackgroundTask::WriteBack);
    }
    let status = cache.status();
    assert_eq!((status.pending_transfers, status.dirty_pages), (1, 0), "{status:?}");
    machine.store.heal();
    cache.drain().expect("devices that work");
    let bytes = cache.read_now(TARGET, 2 * BLOCK_BYTES as u64, 11).expect("it is whole again");
    assert_eq!(bytes, [[7; 10].as_slice(), &[0xab]].concat());
}

#[test]
fn a_clone_of_a_damaged_page_that_has_a_delta_is_stored_after_a_while_and_the_page_is_lost_in_it() {
    for moves in [false, true] {
        let machine = Machine::new(3);
        let (cache, base) = with_delta(&machine);
        machine.store.rot(base, 77);
        // So that it has a leaf, too.
        (1..6).for_each(|number| write(&machine, &cache, TARGET, 20 * number, 1));
        let kind = if moves { TransferKind::Move } else { TransferKind::Clone };
        let transfer = PageTransfer { kind, ..EDGES };
        machine.apply(&cache, &[ObjectChange::Transfer(transfer)]).expect("space");
        write(&machine, &cache, TARGET, 1, 5);
        for _ in 0..7 {
            assert_eq!(cache.status().pending_transfers, 1, "a moment later the page may be read");
            machine.clock.advance(Duration::from_secs(5));
            cache.step(BackgroundTask::WriteBack);
        }
        cache.drain().expect("it can be stored");
        drop(cache);
        let cache = machine.open();
        let error = page(&cache, TARGET, 2).expect_err("it is damaged").to_string();
        assert!(error.contains("damaged already when it was cloned or moved"), "{error}");
        assert_eq!(page(&cache, TARGET, 1).ok(), Some(5));
        if moves {
            assert_eq!(page(&cache, SOURCE, 2).ok(), Some(0))
        } else {
            assert!(page(&cache, SOURCE, 2).is_err(), "as it was")
        }
        let part = ObjectChange::Write { object: TARGET, offset: 2 * BLOCK_BYTES as u64, bytes: &[3; 100] };
        machine.apply(&cache, &[part]).expect("space");
        cache.drain().expect("it can be stored");
        drop(cache);
        let cache = machine.open();
        assert!(page(&cache, TARGET, 2).is_err(), "the rest of it is damaged");
        write(&machine, &cache, TARGET, 2, 6);
        cache.drain().expect("it can be stored");
        assert_eq!(page(&cache, TARGET, 2).ok(), Some(6));
    }
}

#[test]
fn a_part_of_a_damaged_page_of_a_small_file_holds_up_its_clone_for_a_while_and_no_longer() {
    let machine = Machine::new(7);
    let cache = machine.open();
    write(&machine, &cache, SOURCE, 2, 0xab);
    machine.fill(&cache, OTHER).expect("space");
    cache.drain().expect("devices that work");
    drop(cache);
    let cache = machine.open();
    machine.store.rot(places_of(&machine, 0xab)[0], 77);
    let part = ObjectChange::Write { object: SOURCE, offset: 2 * BLOCK_BYTES as u64, bytes: &[7; 100] };
    machine.apply(&cache, &[part]).expect("space");
    machine.apply(&cache, &[clone(SOURCE, TARGET)]).expect("space");
    write(&machine, &cache, SOURCE, 3, 4);
    for _ in 0..7 {
        assert_eq!(cache.status().pending_transfers, 1, "a moment later the page may be read");
        machine.clock.advance(Duration::from_secs(5));
        cache.step(BackgroundTask::WriteBack);
    }
    cache.drain().expect("nothing holds it up");
    assert!(page(&cache, TARGET, 2).is_err() && page(&cache, SOURCE, 2).is_err());
    assert_eq!(page(&cache, SOURCE, 3).ok(), Some(4));
    write(&machine, &cache, SOURCE, 2, 5);
    assert_eq!(page(&cache, SOURCE, 2).ok(), Some(5));
}

#[test]
fn a_page_that_cannot_be_read_beside_a_damaged_one_holds_up_its_clone_and_nothing_else() {
    let machine = Machine::new(3);
    let (cache, base) = with_delta(&machine);
    let part = ObjectChange::Write { object: SOURCE, offset: 20 * BLOCK_BYTES as u64, bytes: &[7; 10] };
    machine.apply(&cache, &[part]).expect("space");
    cache.drain().expect("devices that work");
    machine.store.rot(base, 77);
    let ones = places_of(&machine, 1);
    assert!(!ones.is_empty());
    ones.iter().for_each(|&at| machine.store.damage(at, sim_disk::BlockDamage::Unreadable));
    machine
        .apply(&cache, &[ObjectChange::Transfer(PageTransfer { end: PageNo(30), ..EDGES })])
        .expect("space");
    write(&machine, &cache, OTHER, 1, 9);
    for _ in 0..50 {
        machine.clock.advance(Duration::from_secs(10));
        cache.step(BackgroundTask::WriteBack);
    }
    let status = cache.status();
    assert_eq!((status.pending_transfers, status.dirty_pages), (1, 0), "{status:?}");
    machine.store.heal();
    cache.drain().expect("it can be read");
}

#[test]
fn a_page_that_is_written_again_while_a_copy_is_made_is_in_it_as_it_was_at_its_moment() {
    let machine = Machine::new(5);
    let meddler: Arc<Mutex<Option<Meddler>>> = Arc::default();
    let meddled = Arc::new(Meddled { disk: machine.store.clone(), meddler: meddler.clone() });
    let cache = machine.open_on(meddled, machine.buffer.clone()).expect("sound media");
    write(&machine, &cache, OTHER, 7, 1);
    // It is stored after the clone's point in time and before the clone's pages.
    machine.apply(&cache, &[clone(SOURCE, TARGET)]).expect("space");
    let other = cache.clone();
    let mut left = 1;
    *meddler.lock().expect("one thread") = Some(Box::new(move || {
        let changes =
            [ObjectChange::Write { object: OTHER, offset: 7 * BLOCK_BYTES as u64, bytes: &[2; BLOCK_BYTES] }];
        if left > 0 {
            left -= 1;
            apply_at_once(&other, &changes).expect("space").expect("power");
        }
    }));
    let new = NewVolume { name: "copy", mode: VolumeMode::ReadOnly, created: 1 };
    let copy = cache.clone_volume(VolumeId::MAIN, &new).expect("space");
    assert_eq!(page(&cache, OTHER, 7).ok(), Some(2), "it was written again meanwhile");
    assert_eq!(page(&cache, OTHER.in_volume(copy), 7).ok(), Some(1));
    *meddler.lock().expect("one thread") = None;
}

#[test]
fn a_part_of_a_page_that_was_cut_is_zeros_elsewhere_also_where_the_cut_cannot_be_stored() {
    let machine = Machine::new(6);
    let cache = machine.open();
    (0..20).for_each(|number| write(&machine, &cache, SOURCE, 2 * number, 1));
    write(&machine, &cache, SOURCE, 5000, 1);
    cache.drain().expect("devices that work");
    drop(cache);
    let found = |page: u64| {
        Store::open(machine.store.clone()).expect("a store").data().page_lsn(SOURCE, PageNo(page)).is_ok()
    };
    let is_its_leaf = |&pair: &[Block; 2]| {
        machine.rot_both(pair);
        let is_it = found(4) && !found(5000);
        machine.rot_both(pair);
        is_it
    };
    let leaf = machine.pairs().into_iter().find(is_its_leaf).expect("page 5000 has a leaf of its own");
    machine.rot_both(leaf);
    let cache = machine.open();
    let cut = ObjectChange::Zero { object: SOURCE, offset: 0, len: 6000 * BLOCK_BYTES as u64 };
    machine.apply(&cache, &[cut]).expect("space");
    cache.drain().expect_err("a leaf is damaged");
    let part = ObjectChange::Write { object: SOURCE, offset: 4 * BLOCK_BYTES as u64, bytes: &[3; 100] };
    machine.apply(&cache, &[part]).expect("space");
    cache.drain().expect_err("a leaf is damaged");
    assert_eq!((cache.status().dirty_pages, cache.status().pending_punches), (0, 1));
    machine.rot_both(leaf);
    cache.drain().expect("it is whole again");
    drop(cache);
    let cache = machine.open();
    let bytes = cache.read_now(SOURCE, 4 * BLOCK_BYTES as u64, BLOCK_BYTES).expect("devices that work");
    assert!(bytes == [[3; 100].as_slice(), &[0; BLOCK_BYTES - 100]].concat());
    assert_eq!(page(&cache, SOURCE, 5000).ok(), Some(0));
}

#[test]
fn a_copy_of_a_volume_has_what_a_clone_brought_after_a_cut_under_what_was_written_to_it_since() {
    let machine = Machine::new(4);
    let cache = machine.open();
    write(&machine, &cache, SOURCE, 7, 1);
    write(&machine, &cache, TARGET, 7, 2);
    cache.drain().expect("devices that work");
    let cut = ObjectChange::Zero { object: TARGET, offset: 0, len: 1 << 40 };
    machine.apply(&cache, &[cut]).expect("space");
    machine.apply(&cache, &[clone(SOURCE, TARGET)]).expect("space");
    let part = ObjectChange::Write { object: TARGET, offset: 7 * BLOCK_BYTES as u64, bytes: &[3; 100] };
    machine.apply(&cache, &[part]).expect("space");
    let new = NewVolume { name: "copy", mode: VolumeMode::ReadOnly, created: 1 };
    let copy = cache.clone_volume(VolumeId::MAIN, &new).expect("space");
    for object in [TARGET, TARGET.in_volume(copy)] {
        let bytes = cache.read_now(object, 7 * BLOCK_BYTES as u64, 101).expect("devices that work");
        assert_eq!(bytes, [[3; 100].as_slice(), &[1]].concat(), "{object}");
    }
}

#[test]
fn a_clone_that_is_stuck_holds_up_nobody_tells_its_readers_and_is_made_when_it_can_be() {
    let machine = Machine::new(1);
    let cache = machine.open();
    (0..8).for_each(|number| write(&machine, &cache, SOURCE, 2 * number, 1));
    (0..8).for_each(|number| write(&machine, &cache, OTHER, 2 * number, 9));
    cache.drain().expect("devices that work");
    drop(cache);
    let damaged = damage_source(&machine);
    let cache = machine.open();
    write(&machine, &cache, SOURCE, 0, 2);
    machine.apply(&cache, &[clone(SOURCE, TARGET)]).expect("space");
    write(&machine, &cache, SOURCE, 0, 3);
    write(&machine, &cache, TARGET, 4, 4);
    machine.apply(&cache, &[ObjectChange::Delete { object: SOURCE }]).expect("space");
    machine.fill(&cache, OTHER).expect("it does not concern them");
    let status = cache.status();
    assert_eq!(status.pending_transfers, 1, "{status:?}");
    assert!(status.counters.pages_relogged > 0, "the buffer has come round");
    let told = machine.wait(&cache, |then| {
        cache.read(TARGET, 0, 10, 1 << 20, then);
    });
    assert!(matches!(told, Err(CacheError::Store(_))), "{told:?}");
    assert_eq!(page(&cache, SOURCE, 0).ok(), None, "nobody knows what there is");
    machine.sync(&cache).expect("a buffer that works");
    drop(cache);
    machine.crash();

    damaged.into_iter().for_each(|pair| machine.rot_both(pair));
    let cache = machine.open();
    assert_eq!(cache.status().pending_transfers, 0, "the start stores what it found");
    let found = [0, 2, 4, 6, 7].map(|number| page(&cache, TARGET, number).expect("all is whole"));
    assert_eq!(found, [2, 1, 4, 1, 0]);
    cache.drain().expect("devices that work");
    drop(cache);
    let cache = machine.open();
    assert_eq!(cache.status().pending_transfers, 0);
    let found = [0, 2, 4, 6, 7].map(|number| page(&cache, TARGET, number).expect("all is whole"));
    assert_eq!(found, [2, 1, 4, 1, 0], "from the store");
    assert_eq!(
        [0, 2].map(|number| page(&cache, SOURCE, number).expect("all is whole")),
        [0, 0],
        "it was deleted"
    );
    cache.store().maintenance().check(&mut |finding| panic!("{finding}"));
}

#[test]
fn the_source_s_slot_used_again_before_a_clone_is_stored_takes_nothing_from_it() {
    let machine = Machine::new(2);
    let cache = machine.open();
    (0..4).for_each(|number| write(&machine, &cache, SOURCE, number, 1));
    cache.drain().expect("devices that work");
    machine.store.set_faults(ALWAYS);
    machine.apply(&cache, &[clone(SOURCE, TARGET)]).expect("space");
    machine.apply(&cache, &[ObjectChange::Delete { object: SOURCE }]).expect("space");
    let next = ObjectId { generation: SOURCE.generation + 1, ..SOURCE };
    write(&machine, &cache, next, 0, 7);
    for _ in 0..20 {
        cache.step(BackgroundTask::WriteBack);
    }
    machine.store.set_faults(DiskFaults::default());
    machine.clock.advance(Duration::from_secs(100));
    cache.drain().expect("devices that work");
    assert_eq!([0, 3].map(|number| page(&cache, TARGET, number).expect("stored")), [1, 1]);
    assert_eq!([0, 3].map(|number| page(&cache, next, number).expect("stored")), [7, 0]);
    assert_eq!(cache.store().space().now().reserved, 0, "what is stored needs no reservation");
}

#[test]
fn one_transaction_clones_and_writes_in_several_volumes_and_is_there_as_a_whole() {
    for is_stored in [false, true] {
        let machine = Machine::new(3);
        let cache = machine.open();
        (0..4).for_each(|number| write(&machine, &cache, SOURCE, number, 1));
        let new = NewVolume { name: "copy", mode: VolumeMode::Writable, created: 1 };
        let copy = cache.clone_volume(VolumeId::MAIN, &new).expect("space");
        let target = TARGET.in_volume(copy);
        let back = PageTransfer {
            kind: TransferKind::Move,
            from: target,
            first: PageNo(0),
            end: PageNo(2),
            to: OTHER,
            at: PageNo(9),
        };
        let changes = [
            ObjectChange::Write { object: SOURCE, offset: 0, bytes: &[2; BLOCK_BYTES] },
            clone(SOURCE, target),
            ObjectChange::Write { object: SOURCE, offset: 0, bytes: &[3; BLOCK_BYTES] },
            ObjectChange::Write { object: target, offset: BLOCK_BYTES as u64, bytes: &[4; BLOCK_BYTES] },
            ObjectChange::Transfer(back),
            ObjectChange::Write { object: target, offset: 0, bytes: &[5; BLOCK_BYTES] },
        ];
        machine.apply(&cache, &changes).expect("space");
        machine.sync(&cache).expect("a buffer that works");
        if is_stored {
            cache.drain().expect("devices that work");
        }
        drop(cache);
        machine.crash();
        let cache = machine.open();
        let found =
            [(SOURCE, 0), (SOURCE, 1), (target, 0), (target, 1), (target, 2), (OTHER, 9), (OTHER, 10)];
        let found = found.map(|(object, number)| page(&cache, object, number).expect("all is whole"));
        assert_eq!(found, [3, 1, 5, 0, 1, 2, 4], "stored before: {is_stored}");
        cache.delete_volume(copy).expect("a log entry");
        assert_eq!([9, 10].map(|number| page(&cache, OTHER, number).expect("its own")), [2, 4]);
    }
}

#[test]
fn a_clone_of_too_many_pages_whose_places_do_not_agree_is_refused_before_anything_is_logged() {
    let machine = Machine::new(4);
    let cache = machine.open();
    let transfer = |pages, at| {
        let first = PageNo(0);
        let end = PageNo(pages);
        let at = PageNo(at);
        [ObjectChange::Transfer(PageTransfer::clone_range(SOURCE, first..end, TARGET, at))]
    };
    machine.apply(&cache, &transfer(1 << 40, 128)).expect("subtrees are shared");
    machine.apply(&cache, &transfer(TRANSFER_PAGES_MAX, 1)).expect("as many as may be");
    let before = cache.status().applied;
    let refused = machine.apply(&cache, &transfer(TRANSFER_PAGES_MAX + 1, 1));
    assert!(matches!(refused, Err(CacheError::TransferTooLong { .. })), "{refused:?}");
    assert_eq!(cache.status().applied, before);
}

/// A machine whose store has space for the reservations of some hundred clones.
fn large_machine(seed: u64) -> Machine {
    Machine { disks: Disks::new(seed, 1 << 17, 1024, 64), clock: Arc::new(SimClock::new()) }
}

#[test]
fn beside_many_pending_clones_a_further_one_waits_and_a_write_does_not() {
    let machine = large_machine(5);
    let cache = machine.open();
    write(&machine, &cache, SOURCE, 0, 1);
    let target = |number: u64| VolumeId::MAIN.object(1000 + number, 1);
    let mut made = 0;
    let waiting = loop {
        match apply_at_once(&cache, &[clone(SOURCE, target(made))]) {
            Some(applied) => drop(applied.expect("space")),
            None => break target(made),
        }
        made += 1;
        assert!(made < 1000, "no clone waits");
    };
    assert_eq!(cache.waits().waiting.len(), 0);
    assert!(made > 60, "only {made} clones can be pending");
    let written = [ObjectChange::Write { object: OTHER, offset: 0, bytes: &[7; BLOCK_BYTES] }];
    apply_at_once(&cache, &written).expect("a write need not wait").expect("space");
    machine
        .apply(&cache, &[clone(SOURCE, waiting)])
        .expect("space, once write-back has stored earlier clones");
    assert_eq!(page(&cache, waiting, 0).expect("all is whole"), 1);
    assert_eq!(page(&cache, target(0), 0).expect("all is whole"), 1);
}

#[test]
fn behind_a_clone_that_waits_only_clones_wait() {
    let machine = large_machine(6);
    let cache = machine.open();
    write(&machine, &cache, SOURCE, 0, 1);
    let cost = |change: &ObjectChange<'_>| TransactionCost::of(std::slice::from_ref(change));
    let mut admitted = Vec::new();
    for number in 0..300 {
        let copy = clone(SOURCE, VolumeId::MAIN.object(1000 + number, 1));
        let slot = Slot::new();
        let applying = cache.clone();
        let then = slot.then();
        let apply = move |space: Result<SpaceReservation, CacheError>| {
            then(space.and_then(|mut space| applying.apply(&mut space, &[copy])));
        };
        cache.admit(cost(&copy), Box::new(apply));
        admitted.push(slot);
        assert!(cache.status().pending_transfers <= 64);
    }
    let waits = || cache.waits().waiting.iter().map(|one| one.cause).collect::<Vec<_>>();
    assert!(!waits().is_empty());
    assert!(waits().iter().all(|&cause| cause == WaitCause::EarlierCopies), "{:?}", waits());
    let written = [ObjectChange::Write { object: OTHER, offset: 0, bytes: &[7; BLOCK_BYTES] }];
    apply_at_once(&cache, &written).expect("a write passes").expect("space");
    while cache.status().pending_transfers > 0 {
        cache.step(BackgroundTask::Commit);
        cache.step(BackgroundTask::WriteBack);
        assert!(cache.status().pending_transfers <= 64);
    }
    for (number, slot) in admitted.iter().enumerate() {
        slot.take().unwrap_or_else(|| panic!("clone {number} still waits")).expect("space");
    }
    cache.drain().expect("devices that work");
    assert_eq!(page(&cache, VolumeId::MAIN.object(1299, 1), 0).expect("all is whole"), 1);
}

#[test]
fn clones_that_are_stuck_hold_up_others_for_a_while_only() {
    let machine = Machine { disks: Disks::new(7, 1 << 15, 1024, 64), clock: Arc::new(SimClock::new()) };
    let cache = machine.open();
    (0..8).for_each(|number| write(&machine, &cache, SOURCE, 2 * number, 1));
    (0..8).for_each(|number| write(&machine, &cache, OTHER, 2 * number, 9));
    cache.drain().expect("devices that work");
    drop(cache);
    damage_source(&machine);
    let cache = machine.open();
    write(&machine, &cache, SOURCE, 0, 2);
    let target = |number: u64| VolumeId::MAIN.object(1000 + number, 1);
    (0..64).for_each(|number| machine.apply(&cache, &[clone(SOURCE, target(number))]).expect("space"));
    assert_eq!(cache.status().pending_transfers, 64, "they are stuck");
    let begun = machine.clock.monotonic();
    let other = VolumeId::MAIN.object((1 << 40) + 1, 1);
    machine.apply(&cache, &[clone(OTHER, other)]).expect("space");
    let waited = machine.clock.monotonic() - begun;
    assert!(waited <= 2 * PATIENCE, "it waited for {waited:?}");
    let is_stored = || {
        machine.clock.advance(Duration::from_secs(1));
        cache.step(BackgroundTask::Commit);
        cache.step(BackgroundTask::WriteBack);
        cache.status().pending_transfers == 64
    };
    assert!((0..300).any(|_| is_stored()), "it is stored behind the stuck ones");
    assert_eq!(page(&cache, other, 0).expect("the other source is whole"), 9);
}
