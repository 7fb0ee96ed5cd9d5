//! Rot, devices that fail, and a store that is full.

use crate::common::*;
use device::{Block, Device, Incarnation, Lsn, ObjectId, OverlayDevice, PageNo, SeededRng};
use sim_disk::{DiskFaults, PowerSupply, ScratchedBlocks, SimDisk};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::{CleaningOutcome, PageRead, Store, StoreChange, StoreError, StoredPage, VolumeId};

const FILE: ObjectId = VolumeId::MAIN.object(7, 1);

fn write(number: u64, page_lsn: u64) -> StoreChange {
    StoreChange::Write { object: FILE, page: PageNo(number), bytes: page(page_lsn), page_lsn: Lsn(page_lsn) }
}

/// Works for a while. A checkpoint covers the end of the log.
fn busy(seed: u64) -> (Arc<SimDisk>, Model) {
    let (_power, disk, store) = fresh(200, seed);
    let (mut model, mut work) = (Model::default(), Work::new(seed));
    for step in 0..40 {
        let vector = work.vector(&model);
        store.data().apply(&vector).expect("space");
        model.apply(&vector);
        if step % 13 == 0 || step == 38 {
            store.maintenance().checkpoint().expect("a checkpoint");
        }
    }
    // Damaged nodes of a deleted volume lose no data, but keep the cleaner from knowing all references. So
    // free them first.
    while store.maintenance().free_deleted_step().expect("no faults") {}
    store.maintenance().checkpoint().expect("a checkpoint");
    (disk, model)
}

/// Asserts that all reads give the right bytes or an error. Returns the number of errors.
fn errors_but_no_lies(store: &Store, model: &Model, when: &str) -> u64 {
    let mut errors = 0;
    for (&slot, (generation, held)) in &model.objects {
        let object = VolumeId::MAIN.object(slot, *generation);
        let pages: BTreeSet<u64> = domain().into_iter().chain(held.keys().copied()).collect();
        let mut wants: Vec<PageRead> =
            pages.into_iter().map(|page| PageRead::new(object, PageNo(page))).collect();
        store.data().read(&mut wants);
        assert_same_in_bulk(store, &wants, when);
        for want in wants {
            let found = match want.result {
                Ok(StoredPage::Hole) => None,
                Ok(StoredPage::Page { bytes, page_lsn }) => Some((stamp(&bytes), page_lsn.0)),
                Err(StoreError::Corrupt { .. }) => {
                    errors += 1;
                    continue;
                }
                Err(error) => panic!("{when}: {error}"),
            };
            assert_eq!(found, held.get(&want.page.0).copied(), "{when}: wrong bytes");
        }
    }
    errors
}

/// Bulk reads return the same as reads page by page.
fn assert_same_in_bulk(store: &Store, wants: &[PageRead], when: &str) {
    let pages: Vec<(ObjectId, PageNo)> = wants.iter().map(|want| (want.object, want.page)).collect();
    let mut told = vec![0; wants.len()];
    store.data().read_in_device_order(&pages, &mut |index, found| {
        told[index] += 1;
        match (found, &wants[index].result) {
            (Ok(None), Ok(StoredPage::Hole)) => {}
            (Ok(Some((page, at))), Ok(StoredPage::Page { bytes, page_lsn })) => {
                assert!(page.0 == bytes.0 && at == *page_lsn, "{when}: page {index}");
            }
            (Err(bulk), Err(single)) => assert_eq!(bulk.to_string(), single.to_string(), "{when}"),
            (bulk, single) => panic!("{when}: page {index}: {bulk:?} in bulk, {single:?} alone"),
        }
    });
    assert!(told.iter().all(|&times| times == 1), "{when}: each is told once: {told:?}");
}

#[test]
fn many_pages_come_with_few_reads_and_where_one_fails_each_page_is_read_by_itself() {
    let (_power, disk, store) = fresh(64, 1);
    let vector: Vec<StoreChange> = (0..200).map(|number| write(number, number + 1)).collect();
    vector.chunks(20).for_each(|some| store.data().apply(some).expect("space"));
    let pages: Vec<(ObjectId, PageNo)> = (0..201).rev().map(|number| (FILE, PageNo(number))).collect();
    for fails in [false, true] {
        disk.set_faults(DiskFaults { once_after: fails.then_some(0), ..DiskFaults::default() });
        let before = store.counters().device_reads;
        let mut right = 0;
        store.data().read_in_device_order(&pages, &mut |index, found| {
            let number = pages[index].1.0;
            let found = found.expect("it can be read").map(|(page, page_lsn)| (stamp(page), page_lsn.0));
            assert_eq!(found, (number < 200).then_some((number + 1, number + 1)));
            right += 1;
        });
        assert_eq!(right, 201);
        let reads = store.counters().device_reads - before;
        assert!(reads < 10, "{reads} reads");
    }
}

#[test]
fn rot_in_any_block_is_an_error_or_harmless_and_never_wrong_bytes() {
    let (disk, model) = busy(1);
    let (mut refused, mut errors, mut found) = (0, 0, 0);
    let mut random = SeededRng::new(1);
    for at in disk.written_blocks() {
        let fork = disk.fork(&sim_disk::PowerSupply::new(), 1);
        fork.rot(at, random.below(4096 * 8) as usize);
        let Ok(store) = open(&fork) else {
            refused += 1;
            continue;
        };
        let lost = errors_but_no_lies(&store, &model, &format!("block {at}"));
        errors += lost;
        found += u64::from(lost > 0 && !findings(&store).is_empty());
        assert!(lost == 0 || !findings(&store).is_empty(), "block {at}: check finds nothing");
    }
    assert!(refused > 0 && errors > 50 && found > 50, "{refused} refused, {errors} errors, {found} found");
}

/// Cleans all that can be cleaned, in rounds with checkpoints. Returns how many segments died, or held less
/// than was counted.
fn clean_all(store: &Store, when: &str) -> u64 {
    let mut emptied = 0;
    for _ in 0..10_000 {
        match store.maintenance().clean_step() {
            Ok(CleaningOutcome::Working) => {}
            Ok(CleaningOutcome::Idle | CleaningOutcome::RoundEnded(0)) => return emptied,
            Ok(CleaningOutcome::RoundEnded(segments)) => {
                emptied += segments;
                (0..2).for_each(|_| store.maintenance().checkpoint().expect("a checkpoint"));
            }
            other => panic!("{when}: {other:?}"),
        }
    }
    panic!("{when}: cleaning does not end");
}

#[test]
fn what_cannot_be_read_stays_where_it_is_and_the_cleaner_goes_on_with_the_rest() {
    let (disk, model) = busy(8);
    let sound =
        clean_all(&mount(&disk.fork(&sim_disk::PowerSupply::new(), 1)).expect("it is sound"), "sound");
    let (mut random, mut stuck) = (SeededRng::new(1), 0);
    for at in disk.written_blocks() {
        let (fork, bit) = (disk.fork(&sim_disk::PowerSupply::new(), 1), random.below(4096 * 8) as usize);
        fork.rot(at, bit);
        let Ok(store) = mount(&fork) else { continue };
        let when = format!("block {at}");
        let lost = errors_but_no_lies(&store, &model, &when);
        drop(store);
        // Nothing is in memory any more.
        let store = mount(&fork).expect("a moment ago it could");
        let emptied = clean_all(&store, &when);
        // The descendants of a damaged node are unknown.
        let mut block = device::pages(1);
        disk.read(at, &mut block).expect("no faults");
        let is_node = block[0].0.starts_with(b"weir.nod");
        // A pair is two segments, and blocks that cannot be moved from it may leave another segment less
        // full.
        assert!(is_node || emptied + 3 >= sound, "{when}: {emptied} segments of {sound}, {lost} pages lost");
        assert_eq!(errors_but_no_lies(&store, &model, &when), lost, "{when}: cleaning lost some");
        drop(store);
        if lost > 0 {
            stuck += 1;
            // After the damage is undone, the block and everything below it are readable again.
            fork.rot(at, bit);
            assert_sound(&mount(&fork).expect("it is sound again"), &model, &when);
        }
    }
    assert!(stuck > 50, "{stuck}");
}

#[test]
fn what_can_be_read_no_more_when_it_is_to_be_moved_stays_where_it_is() {
    let (disk, model) = busy(8);
    let (mut random, mut stuck) = (SeededRng::new(1), 0);
    for at in disk.written_blocks() {
        let (fork, bit) = (disk.fork(&sim_disk::PowerSupply::new(), 1), random.below(4096 * 8) as usize);
        let (store, when) = (mount(&fork).expect("it is sound"), format!("block {at}"));
        while store.counters().walks == 0 {
            assert_eq!(store.maintenance().clean_step(), Ok(CleaningOutcome::Working));
        }
        fork.rot(at, bit);
        clean_all(&store, &when);
        if errors_but_no_lies(&store, &model, &when) > 0 {
            stuck += 1;
            drop(store);
            fork.rot(at, bit);
            assert_sound(&mount(&fork).expect("it is sound again"), &model, &when);
        }
    }
    assert!(stuck > 50, "{stuck}");
}

#[test]
fn rot_in_the_log_before_its_last_batch_is_refused_and_named() {
    let (_power, disk, store) = fresh(64, 1);
    for page_lsn in 1..=5 {
        store.data().apply(&[write(page_lsn, page_lsn)]).expect("space");
    }
    drop(store);
    // Segment 3 is the log's since begin; a chunk here is a block of log entries and one of data.
    let chunks: Vec<_> = disk.written_blocks().into_iter().filter(|&at| is_chunk(&disk, at)).collect();
    // The first one made the volume, before both roots.
    assert_eq!(chunks.len(), 1 + 5);
    for (index, &at) in chunks[1..].iter().enumerate() {
        let fork = disk.fork(&sim_disk::PowerSupply::new(), 1);
        fork.rot(at, 1000);
        match open(&fork) {
            Err(StoreError::Damaged { place, .. }) => assert_eq!(place, at),
            Err(other) => panic!("{other}"),
            Ok(_) => assert_eq!(index, 4, "only the last batch looks like a torn one"),
        }
    }
}

fn is_chunk(disk: &SimDisk, at: device::Block) -> bool {
    let mut pages = device::pages(1);
    disk.read(at, &mut pages).expect("a read in range");
    pages[0].0.starts_with(b"weir.log")
}

#[test]
fn after_a_failed_write_or_flush_the_log_goes_on_elsewhere_and_nothing_is_lost() {
    for seed in 0..60 {
        let (power, disk, store) = fresh(300, seed);
        let (mut model, mut work) = (Model::default(), Work::new(seed));
        disk.set_faults(DiskFaults {
            read_one_in: 40,
            write_one_in: 12,
            flush_one_in: 12,
            ..DiskFaults::default()
        });
        let (mut failed, mut maybe) = (0, Vec::new());
        for _ in 0..60 {
            let vector = work.vector(&model);
            let mut after = model.clone();
            after.apply(&vector);
            match store.data().apply(&vector) {
                Ok(()) => (model, maybe) = (after, Vec::new()),
                Err(StoreError::Device(_)) => {
                    failed += 1;
                    // Until the log has started anew, which may fail as well, earlier failed vectors are in
                    // doubt, too.
                    maybe.push(after);
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
            if work.random.once_in(8) && store.maintenance().checkpoint().is_ok() {
                // The failed changes are not in the map, and the log that may have them is not read any more.
                maybe.clear();
            }
        }
        assert!(failed > 0, "seed {seed}: no fault met an apply");
        disk.set_faults(DiskFaults::default());
        assert_eq!(model.difference(&store), None, "seed {seed}");
        drop(store);
        power.cut();
        disk.crash();
        power.restore();
        let store = open(&disk).expect("it opens");
        let difference = model.difference(&store);
        let all_of_it = maybe.iter().any(|maybe: &Model| maybe.difference(&store).is_none());
        assert!(difference.is_none() || all_of_it, "seed {seed}: {difference:?}");
        assert_eq!(findings(&store), [], "seed {seed}");
    }
}

#[test]
fn a_full_store_says_so_and_deleting_and_checkpoints_still_work() {
    let (_power, disk, store) = fresh(96, 1);
    let mut written = 0;
    let error = loop {
        match store.data().apply(&[write(written, written + 1)]) {
            Ok(()) => written += 1,
            // The log's entries are dead, and lie between the pages.
            Err(StoreError::Full) if store.maintenance().clean_round() == Ok(true) => {
                store.maintenance().checkpoint_twice().expect("segments")
            }
            Err(error) => break error,
        }
    };
    assert_eq!(error, StoreError::Full);
    assert_eq!(store.space().reserve(1, store::ReservationEstimate::default()), Err(StoreError::Full));
    assert!(written > 200, "only {written} pages in 1536 blocks");
    for round in 0..30 {
        store.maintenance().checkpoint().unwrap_or_else(|error| panic!("round {round}: {error}"));
        let pages = PageNo(round)..PageNo(round + 1);
        let cut = StoreChange::Punch { object: FILE, pages, lsn: Lsn(u64::MAX) };
        store
            .data()
            .apply(&[cut])
            .unwrap_or_else(|error| panic!("round {round}: {error}: {:?}", store.space().now()));
    }
    store.data().apply(&[StoreChange::Delete { object: FILE, lsn: Lsn(u64::MAX) }]).expect("deleting works");
    while store.maintenance().free_deleted_step().expect("freeing") {}
    store.maintenance().checkpoint().expect("a checkpoint");
    store.maintenance().checkpoint().expect("a checkpoint");
    store.space().reserve(20, store::ReservationEstimate::default()).expect("there is space again");
    store.data().apply(&[write(1, 1)]).expect("there is space again");
    assert_eq!(findings(&store), []);
    drop(store);
    assert_eq!(open(&disk).expect("it opens").data().page_lsn(FILE, PageNo(1)), Ok(Some(Lsn(1))));
}

#[test]
fn a_full_store_can_be_mounted_any_number_of_times() {
    let (power, disk, store) = fresh(64, 1);
    let mut page_lsn = 0;
    while store.data().apply(&[write(page_lsn % 700, page_lsn + 1)]).is_ok() {
        page_lsn += 1;
    }
    drop(store);
    for times in 0..40 {
        let store = mount(&disk).unwrap_or_else(|error| panic!("mount {times}: {error}"));
        let pages = PageNo(times)..PageNo(times + 1);
        let cut = StoreChange::Punch { object: FILE, pages, lsn: Lsn(u64::MAX) };
        store
            .data()
            .apply(&[cut])
            .unwrap_or_else(|error| panic!("mount {times}: {error}: {:?}", store.space().now()));
        drop(store);
        power.cut();
        disk.crash();
        power.restore();
    }
}

#[test]
fn starts_after_which_nothing_was_written_use_the_same_segments_again() {
    let (_power, disk, store) = fresh(64, 1);
    (0..20).for_each(|number| store.data().apply(&[write(number, number + 1)]).expect("space"));
    drop(store);
    let free = || mount(&disk).expect("it opens again").space().now().free;
    // The first one writes nodes, which stay where they are; those after it a pair of segments each.
    let first = [free(), free(), free()][2];
    for _ in 0..6 {
        let now = free();
        assert!(now >= first, "{now} blocks free, {first} after the third start");
    }
}

#[test]
fn a_reservation_is_kept() {
    let (_power, _disk, store) = fresh(100, 1);
    let (mut page_lsn, mut reserved) = (0, 0);
    while store.space().reserve(8, store::ReservationEstimate::default()).is_ok() {
        reserved += 8;
    }
    assert!(reserved > 0);
    while reserved > 0 {
        // One page a vector, each in a leaf of its own, which costs the most space.
        page_lsn += 1;
        store.data().apply(&[write(page_lsn * 1000, page_lsn)]).expect("it was reserved");
        store.space().release(1);
        reserved -= 1;
    }
}

#[test]
fn overwriting_at_random_goes_on_for_ever_with_a_cleaner() {
    let (_power, _disk, store) = fresh(128, 1);
    let mut random = SeededRng::new(1);
    for page_lsn in 1..4000 {
        let number = random.below(600);
        store
            .data()
            .apply(&[write(number, page_lsn)])
            .unwrap_or_else(|error| panic!("{page_lsn}: {error}: {:?}", store.space().now()));
        if store.maintenance().is_short_of_space() {
            store.maintenance().clean_round().expect("cleaning");
            store.maintenance().checkpoint().expect("a checkpoint");
        }
    }
    assert!(store.counters().segments_cleaned > 10, "{:?}", store.counters());
    assert_eq!(findings(&store), []);
}

#[test]
fn one_root_that_cannot_be_read_is_no_reason_to_refuse_a_store_and_two_are() {
    for checkpoints in 0..4 {
        let (_power, disk, store) = fresh(64, 1);
        let (mut model, mut work) = (Model::default(), Work::new(1));
        for _ in 0..checkpoints {
            store.maintenance().checkpoint().expect("space");
            let vector = work.vector(&model);
            store.data().apply(&vector).expect("space");
            model.apply(&vector);
        }
        drop(store);
        for scratches in [vec![1], vec![2]] {
            let scratched = ScratchedBlocks::new(&disk, &scratches);
            let store =
                Store::open(scratched).unwrap_or_else(|error| panic!("without {scratches:?}: {error}"));
            assert_eq!(model.difference(&store), None, "without {scratches:?}");
        }
        let error = Store::open(ScratchedBlocks::new(&disk, &[1, 2])).err();
        assert!(matches!(error, Some(StoreError::Device(_))), "without roots: {error:?}");
        let error = Store::open(ScratchedBlocks::new(&disk, &[0])).err();
        assert!(matches!(error, Some(StoreError::SuperblockDamaged { .. })), "without block 0: {error:?}");
    }
}

/// Files with a leaf of the map each and more, of which the log has changes since both roots: pages, a cut, a
/// deletion, a move, and a file in the place of another.
fn with_changes_in_the_log() -> (Arc<SimDisk>, Model) {
    let (power, disk, store) = fresh(200, 1);
    let mut model = Model::default();
    let mut lsn = 0;
    let mut next = || {
        lsn += 1;
        lsn
    };
    let of = |slot: u64, generation: u32| VolumeId::MAIN.object(slot, generation);
    let to = |object, number, stamp| StoreChange::Write {
        object,
        page: PageNo(number),
        bytes: page(stamp),
        page_lsn: Lsn(stamp),
    };
    let files = [1, 2, 3, 4, 5, 20, 35];
    let mut vector: Vec<StoreChange> = Vec::new();
    for slot in files {
        for number in [0, 1, 120, 130, 139, 32_767, 32_769] {
            vector.push(to(of(slot, 1), number, next()));
        }
    }
    // One leaf each: with more extents than fit into an entry.
    for slot in [6, 7] {
        (0..20).step_by(2).for_each(|number| vector.push(to(of(slot, 1), number, next())));
    }
    store.data().apply(&vector).expect("space");
    model.apply(&vector);
    store.maintenance().checkpoint_twice().expect("no faults");
    let cut = StoreChange::Punch { object: of(2, 1), pages: PageNo(100)..PageNo(200), lsn: Lsn(next()) };
    let delete = StoreChange::Delete { object: of(3, 1), lsn: Lsn(next()) };
    let transfer = device::PageTransfer {
        kind: device::TransferKind::Move,
        from: of(4, 1),
        first: PageNo(0),
        end: PageNo(140),
        to: of(5, 1),
        at: PageNo(0),
    };
    for change in [
        to(of(1, 1), 130, next()),
        to(of(20, 1), 2, next()),
        cut,
        delete,
        StoreChange::Transfer { transfer, lsn: Lsn(next()) },
        to(of(6, 2), 3, next()),
        StoreChange::Delete { object: of(7, 1), lsn: Lsn(next()) },
    ] {
        store.data().apply(std::slice::from_ref(&change)).expect("space");
        model.apply(&[change]);
    }
    drop(store);
    power.cut();
    disk.crash();
    power.restore();
    (disk, model)
}

/// The places of the map's nodes, each with its copy.
fn nodes_of(disk: &SimDisk) -> Vec<[Block; 2]> {
    let mut same: BTreeMap<[u8; device::BLOCK_BYTES], Vec<Block>> = BTreeMap::new();
    for at in disk.written_blocks().into_iter().filter(|at| disk.begins_with(*at, b"weir.nod")) {
        let mut read = device::pages(1);
        disk.read(at, &mut read).expect("no faults");
        same.entry(read[0].0).or_default().push(at);
    }
    same.into_values().filter_map(|blocks| blocks.try_into().ok()).collect()
}

/// The pages of the files that a store has or once had.
fn wants_of(model: &Model) -> Vec<PageRead> {
    let objects = (0..SLOTS).flat_map(|slot| {
        let now = model.objects.get(&slot).map_or(1, |(generation, _)| *generation);
        [now, 1].map(|generation| VolumeId::MAIN.object(slot, generation))
    });
    objects
        .flat_map(|object| domain().into_iter().map(move |page| PageRead::new(object, PageNo(page))))
        .collect()
}

/// The number of pages that cannot be read because of a node in `places`. All other pages must be correct.
fn below_damage(store: &Store, model: &Model, places: &[Block]) -> u64 {
    let (mut wants, mut errors) = (wants_of(model), 0);
    store.data().read(&mut wants);
    for want in wants {
        let held = model.objects.get(&want.object.slot);
        let held = held.filter(|(generation, _)| *generation == want.object.generation);
        let expected = held.and_then(|(_, held)| held.get(&want.page.0)).copied();
        match want.result {
            Ok(StoredPage::Hole) => assert_eq!(None, expected, "{} {}", want.object, want.page),
            Ok(StoredPage::Page { bytes, page_lsn }) => {
                assert_eq!(Some((stamp(&bytes), page_lsn.0)), expected, "{} {}", want.object, want.page);
            }
            Err(StoreError::Corrupt { place, .. }) if places.contains(&place) => errors += 1,
            Err(error) => panic!("{error}"),
        }
    }
    errors
}

#[test]
fn a_store_with_changes_below_a_damaged_node_is_only_read_and_all_that_is_not_below_it_is_there() {
    let (disk, model) = with_changes_in_the_log();
    let (mut refused, mut partly) = (0, 0);
    for pair in nodes_of(&disk) {
        let damaged = disk.fork(&PowerSupply::new(), 3);
        pair.into_iter().for_each(|at| damaged.rot(at, 77));
        // All pages lie below the tree of volumes.
        let Ok(store) = open(&damaged) else { continue };
        let all = wants_of(&model).len() as u64;
        let errors = below_damage(&store, &model, &pair);
        partly += u64::from((1..all).contains(&errors));
        let begun = store.begin(Incarnation(store.incarnation().0 + 1));
        let Err(error) = begun else { continue };
        refused += 1;
        let StoreError::ChangeBelowDamage { object, node } = &error else { panic!("{error}") };
        assert!(matches!(**node, StoreError::Corrupt { place, .. } if pair.contains(&place)), "{error}");
        assert!(error.to_string().contains(&format!("object {object}")), "{error}");
        assert!(error.help().is_some_and(|help| help.contains("weir mount --read-only")));
        assert_eq!(store.counters().blocks_written, 0);
        // The overlay drops all writes, so no checkpoint ends the log.
        let copy = Arc::into_inner(damaged.fork(&PowerSupply::new(), 4)).expect("nobody else has it");
        let store = Store::open(Arc::new(OverlayDevice::new(copy))).expect("it could be opened just now");
        store.begin(Incarnation(store.incarnation().0 + 1)).expect("nothing of it lasts");
        assert_eq!(below_damage(&store, &model, &pair), errors);
        drop(store);
        // A second flip undoes the damage.
        pair.into_iter().for_each(|at| damaged.rot(at, 77));
        let store = mount(&damaged).expect("nothing is damaged any more");
        assert_eq!(below_damage(&store, &model, &[]), 0);
        assert_eq!(findings(&store), []);
    }
    assert!(refused > 5 && partly > 5, "{refused} refused, {partly} read in part");
}
