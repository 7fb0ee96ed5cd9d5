//! Random changes, checkpoints, cleaning and reopening, against a plain model.

use crate::common::*;
use device::{Block, Device, Incarnation, Lsn, ObjectId, PageNo, PageTransfer, TransferKind, VolumeId};
use proptest::prelude::*;
use store::StoreChange;

/// Runs `steps` random steps from a seed; small stores are cleaned all the time.
fn run(seed: u64, steps: u64, segments: u64) {
    run_with(Work::new(seed), seed, steps, segments);
}

/// Returns how many segments were cleaned.
fn run_with(mut work: Work, seed: u64, steps: u64, segments: u64) -> u64 {
    let (_power, disk, mut store) = fresh(segments, seed);
    store.set_cached_nodes_max(1);
    let mut model = Model::default();
    let mut cleaned = 0;
    for step in 0..steps {
        match work.random.below(20) {
            0 => {
                cleaned += store.counters().segments_cleaned;
                drop(store);
                store = mount(&disk).expect("it opens again");
                store.set_cached_nodes_max(1);
            }
            1 | 2 => store.maintenance().checkpoint().expect("a checkpoint"),
            3 if work.random.once_in(2) => drop(store.maintenance().free_deleted_step().expect("freeing")),
            3 => drop(store.maintenance().clean_round().expect("cleaning")),
            4..7 => drop(store.maintenance().clean_step().expect("a step of cleaning")),
            _ => {
                let vector = work.vector_for(&model, &store).expect("folding");
                apply_with_cleaning(&store, &vector).unwrap_or_else(|error| {
                    panic!("seed {seed} step {step}: {error}: {:?}", store.space().now())
                });
                model.apply(&vector);
            }
        }
        while store.maintenance().is_short_of_space()
            && (store.maintenance().free_deleted_step().expect("freeing")
                || store.maintenance().clean_round().expect("cleaning"))
        {
            store.maintenance().checkpoint().expect("a checkpoint");
        }
        if step % 16 == 0 {
            assert_eq!(model.difference(&store), None, "seed {seed} step {step}");
        }
    }
    assert_sound(&store, &model, &format!("seed {seed} at the end"));
    cleaned += store.counters().segments_cleaned;
    drop(store);
    let store = open(&disk).expect("it opens");
    assert_sound(&store, &model, &format!("seed {seed} after the end"));
    cleaned
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_store_is_a_map_of_pages(seed in any::<u64>(), steps in 1_u64..150) {
        run(seed, steps, 400);
    }
}

#[test]
fn a_long_life_on_a_small_device_reuses_and_cleans_segments() {
    run(1, 1_500, 600);
}

#[test]
fn a_long_life_of_pages_of_metadata_on_a_small_device_reuses_and_cleans_pairs() {
    for seed in 0..4 {
        let cleaned = run_with(Work::of_metadata(seed), seed, 1_500, 160);
        assert!(cleaned > 20, "seed {seed}: {cleaned} segments were cleaned");
    }
}

#[test]
fn an_old_cut_leaves_newer_pages_alone_and_a_deletion_none() {
    let (_power, _disk, store) = fresh(64, 1);
    let object = VolumeId::MAIN.object(3, 1);
    let write = |number, page_lsn| StoreChange::Write {
        object,
        page: PageNo(number),
        bytes: page(number),
        page_lsn: Lsn(page_lsn),
    };
    store.data().apply(&[write(1, 10), write(2, 20), write(300, 30)]).expect("space");
    let all = PageNo(0)..PageNo(u64::MAX);
    store.data().apply(&[StoreChange::Punch { object, pages: all, lsn: Lsn(20) }]).expect("space");
    assert_eq!(store.data().page_lsn(object, PageNo(1)), Ok(None));
    assert_eq!(store.data().page_lsn(object, PageNo(2)), Ok(Some(Lsn(20))));
    let cut = |lsn| StoreChange::Punch { object, pages: PageNo(0)..PageNo(u64::MAX), lsn: Lsn(lsn) };
    store.data().apply(&[cut(25)]).expect("space");
    assert_eq!(store.data().page_lsn(object, PageNo(2)), Ok(None));
    assert_eq!(store.data().page_lsn(object, PageNo(300)), Ok(Some(Lsn(30))));
    assert_eq!(store.data().newest_lsn(), Lsn(30));
    // Many pages or few, with the LSN of the punch.
    let many: Vec<StoreChange> = (200..300).map(|number| write(number, 30)).collect();
    store.data().apply(&many).expect("space");
    store.data().apply(&[cut(30)]).expect("space");
    assert_eq!(store.data().page_lsn(object, PageNo(300)), Ok(Some(Lsn(30))));
    store.data().apply(&[cut(31)]).expect("space");
    store.data().apply(&[write(1, 40), cut(40)]).expect("space");
    assert_eq!(store.data().page_lsn(object, PageNo(1)), Ok(Some(Lsn(40))));
    store.data().apply(&many).expect("space");
    store.data().apply(&[StoreChange::Delete { object, lsn: Lsn(41) }]).expect("space");
    assert_eq!(
        [1, 200, 299].map(|page| store.data().page_lsn(object, PageNo(page))),
        [Ok(None), Ok(None), Ok(None)]
    );
}

#[test]
fn nothing_is_applied_before_an_incarnation_begins_and_none_begins_twice() {
    let (_power, disk, store) = fresh(64, 1);
    let object = VolumeId::MAIN.object(3, 1);
    let cut = StoreChange::Punch { object, pages: PageNo(0)..PageNo(1), lsn: Lsn(1) };
    drop(store);
    let store = open(&disk).expect("it opens");
    assert!(store.data().apply(std::slice::from_ref(&cut)).is_err());
    assert!(store.begin(store.incarnation()).is_err());
    store.begin(Incarnation(9)).expect("a higher one");
    store.data().apply(&[cut]).expect("begun");
    drop(store);
    assert_eq!(open(&disk).expect("it opens").incarnation(), Incarnation(9));
}

#[test]
fn what_is_left_behind_is_durable_and_changes_nothing_else() {
    let (power, disk, store) = fresh(64, 1);
    let object = VolumeId::MAIN.object(3, 1);
    let write = StoreChange::Write { object, page: PageNo(1), bytes: page(1), page_lsn: Lsn(10) };
    store.data().apply(&[write]).expect("space");
    store.data().fence(Lsn(1000)).expect("a checkpoint");
    store.data().fence(Lsn(7)).expect("a checkpoint");
    drop(store);
    power.cut();
    disk.crash();
    power.restore();
    let store = open(&disk).expect("it opens");
    assert_eq!(store.data().newest_lsn(), Lsn(1000));
    assert_eq!(store.data().page_lsn(object, PageNo(1)), Ok(Some(Lsn(10))));
}

/// Clones, moves and punches of ranges, replayed after everything is stored, as a buffer that still has them
/// replays them after a crash.
#[test]
fn what_an_object_has_had_is_not_made_again() {
    let (_power, _disk, store) = fresh(64, 1);
    let [source, target] = [3, 4].map(|slot| VolumeId::MAIN.object(slot, 1));
    let write = |object, number, page_lsn| StoreChange::Write {
        object,
        page: PageNo(number),
        bytes: page(page_lsn),
        page_lsn: Lsn(page_lsn),
    };
    let transfer = |kind, pages: u64, at| PageTransfer {
        kind,
        from: source,
        first: PageNo(0),
        end: PageNo(pages),
        to: target,
        at: PageNo(at),
    };
    let found =
        |object, page| store.data().page_lsn(object, PageNo(page)).expect("no faults").map(|lsn| lsn.0);

    // A clone, then its target punched and its source written.
    let clone = StoreChange::Transfer { transfer: transfer(TransferKind::Clone, 300, 0), lsn: Lsn(10) };
    let cut = StoreChange::Punch { object: target, pages: PageNo(0)..PageNo(200), lsn: Lsn(11) };
    store.data().apply(&[write(source, 1, 5), write(source, 250, 6)]).expect("space");
    store.data().apply(&[clone.clone(), cut.clone(), write(source, 250, 12)]).expect("space");
    for change in [clone, cut] {
        store.data().apply(&[change]).expect("space");
        assert_eq!((found(target, 1), found(target, 250), found(source, 250)), (None, Some(6), Some(12)));
    }

    // A punch, and a clone of older pages into the hole.
    let cut = StoreChange::Punch { object: target, pages: PageNo(0)..PageNo(1000), lsn: Lsn(17) };
    let clone = StoreChange::Transfer { transfer: transfer(TransferKind::Clone, 300, 0), lsn: Lsn(20) };
    store.data().apply(&[cut.clone(), clone]).expect("space");
    store.data().apply(&[cut]).expect("space");
    assert_eq!((found(target, 1), found(target, 250)), (Some(5), Some(12)), "the clone is killed");

    // A move, and newer pages in its source and in its target.
    let moved = StoreChange::Transfer { transfer: transfer(TransferKind::Move, 300, 1000), lsn: Lsn(30) };
    store.data().apply(std::slice::from_ref(&moved)).expect("space");
    assert_eq!((found(source, 1), found(target, 1001)), (None, Some(5)));
    store.data().apply(&[write(source, 1, 31), write(target, 1001, 32)]).expect("space");
    store.data().apply(&[moved]).expect("space");
    assert_eq!((found(source, 1), found(target, 1001)), (Some(31), Some(32)));

    // A clone whose target is deleted: only the source still has its LSN.
    let clone = StoreChange::Transfer { transfer: transfer(TransferKind::Clone, 300, 5000), lsn: Lsn(40) };
    let delete = StoreChange::Delete { object: target, lsn: Lsn(41) };
    store.data().apply(&[clone.clone(), delete, write(source, 2, 42)]).expect("space");
    store.data().apply(&[clone]).expect("space");
    assert_eq!((found(target, 5001), found(target, 1001)), (None, None));
    assert_eq!(findings(&store), []);
}

#[test]
fn pages_go_from_one_volume_to_another_in_one_batch() {
    let (_power, disk, store) = fresh(96, 1);
    let other = VolumeId(1);
    clone_volume(&store, VolumeId::MAIN, store::VolumeMode::Writable, Lsn(1)).expect("space");
    let source = VolumeId::MAIN.object(3, 1);
    let target = other.object(9, 2);
    let write = |object, number, page_lsn| StoreChange::Write {
        object,
        page: PageNo(number),
        bytes: page(page_lsn),
        page_lsn: Lsn(page_lsn),
    };
    let all: Vec<StoreChange> = (0..400).map(|number| write(source, number, 5 + number)).collect();
    store.data().apply(&all).expect("space");
    let to_target = |kind, first, end, at| PageTransfer {
        kind,
        from: source,
        first: PageNo(first),
        end: PageNo(end),
        to: target,
        at: PageNo(at),
    };
    store
        .data()
        .apply(&[
            StoreChange::Transfer { transfer: to_target(TransferKind::Clone, 0, 128, 256), lsn: Lsn(500) },
            StoreChange::Transfer { transfer: to_target(TransferKind::Move, 200, 300, 0), lsn: Lsn(501) },
            write(target, 1, 502),
        ])
        .expect("space");
    let found = |store: &store::Store| {
        let lsn =
            |object, page| store.data().page_lsn(object, PageNo(page)).expect("no faults").map(|lsn| lsn.0);
        [lsn(source, 5), lsn(source, 250), lsn(target, 261), lsn(target, 0), lsn(target, 1), lsn(target, 99)]
    };
    let expected = [Some(10), None, Some(10), Some(205), Some(502), Some(304)];
    assert_eq!(found(&store), expected);
    drop(store);
    let store = open(&disk).expect("it opens");
    assert_eq!(found(&store), expected);
    assert_eq!(findings(&store), []);
}

const A: ObjectId = VolumeId::MAIN.object(3, 1);
const B: ObjectId = VolumeId::MAIN.object(70, 1);

fn write(object: ObjectId, number: u64, page_lsn: u64) -> StoreChange {
    let bytes = page(page_lsn << 20 | number & 0xfffff);
    StoreChange::Write { object, page: PageNo(number), bytes, page_lsn: Lsn(page_lsn) }
}

#[test]
fn a_small_object_of_few_extents_that_are_cut_apart_is_written_and_read() {
    let part = |kind, from, to, first, at| PageTransfer {
        kind,
        from,
        first: PageNo(first),
        end: PageNo(first + 1),
        to,
        at: PageNo(at),
    };
    let lsn = Lsn(9);
    let apart = [
        StoreChange::Punch { object: A, pages: PageNo(11)..PageNo(12), lsn },
        StoreChange::Transfer { transfer: part(TransferKind::Clone, A, B, 11, 0), lsn },
        StoreChange::Transfer { transfer: part(TransferKind::Move, A, B, 11, 0), lsn },
        // A hole in the target.
        StoreChange::Transfer { transfer: part(TransferKind::Clone, B, A, 11, 11), lsn },
    ];
    for change in apart {
        let (_power, disk, store) = fresh(64, 1);
        // Pages of one LSN, as a rescue writes them: four extents of three pages.
        let all = [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 31, 32].map(|number| write(A, number, 5));
        store.data().apply(&all).expect("space");
        store.maintenance().checkpoint().expect("they are inline");
        store.data().apply(std::slice::from_ref(&change)).expect("space");
        store.maintenance().checkpoint().expect("a checkpoint");
        drop(store);
        let store = open(&disk).expect("it opens");
        assert_eq!(store.data().page_lsn(A, PageNo(12)), Ok(Some(Lsn(5))), "{change:?}");
        assert_eq!(findings(&store), [], "{change:?}");
    }
}

#[test]
fn a_cut_that_comes_after_a_later_one_of_other_pages_is_made() {
    let (_power, _disk, store) = fresh(64, 1);
    store.data().apply(&[write(A, 1, 5), write(A, 1000, 6)]).expect("space");
    let cut = |pages: std::ops::Range<u64>, lsn| StoreChange::Punch {
        object: A,
        pages: PageNo(pages.start)..PageNo(pages.end),
        lsn: Lsn(lsn),
    };
    store.data().apply(&[cut(1000..1001, 12)]).expect("space");
    store.data().apply(&[cut(0..2, 10)]).expect("space");
    assert_eq!([1, 1000].map(|number| store.data().page_lsn(A, PageNo(number))), [Ok(None), Ok(None)]);
}

#[test]
fn the_last_pages_of_an_object_go_where_they_have_a_place_and_nowhere_else() {
    let (_power, _disk, store) = fresh(64, 1);
    let far = u64::MAX - 5;
    let all: Vec<StoreChange> =
        (0..20).map(|number| write(A, number * 2, 5)).chain([write(A, far, 5)]).collect();
    store.data().apply(&all).expect("space");
    let transfer = PageTransfer::clone_range(A, PageNo(3)..PageNo(u64::MAX), B, PageNo(0));
    store.data().apply(&[StoreChange::Transfer { transfer, lsn: Lsn(9) }]).expect("space");
    assert_eq!(store.data().page_lsn(B, PageNo(far - 3)), Ok(Some(Lsn(5))));
    assert!(!PageTransfer { at: PageNo(1 << 63), first: PageNo(0), ..transfer }.is_valid());
}

/// Damages both copies of a leaf. A vector clones the whole object, and writes to the clone.
#[test]
fn a_vector_that_needs_what_lies_below_a_clone_is_refused_before_the_log_has_it() {
    let (_power, disk, store) = fresh(100, 1);
    let all: Vec<StoreChange> = (0..300).map(|number| write(A, number, 5 + number)).collect();
    store.data().apply(&all).expect("space");
    store.data().apply(&[write(B, 0, 400)]).expect("space");
    (0..2).for_each(|_| store.maintenance().checkpoint().expect("a checkpoint"));
    drop(store);
    let nodes: Vec<Block> = disk
        .written_blocks()
        .into_iter()
        .filter(|&at| {
            let mut block = device::pages(1);
            disk.read(at, &mut block).expect("no faults");
            block[0].0.starts_with(b"weir.nod")
        })
        .collect();
    let mut tried = 0;
    for (index, &one) in nodes.iter().enumerate() {
        for &other in &nodes[index + 1..] {
            let fork = disk.fork(&sim_disk::PowerSupply::new(), 1);
            [one, other].into_iter().for_each(|at| fork.rot(at, 77));
            let Ok(store) = mount(&fork) else { continue };
            // Only the leaf of pages 128 to 255.
            let is_there = |object, number| store.data().page_lsn(object, PageNo(number)).is_ok();
            if is_there(A, 130) || !is_there(A, 0) || !is_there(A, 260) || !is_there(B, 0) {
                continue;
            }
            tried += 1;
            let clone = VolumeId::MAIN.object(5, 1);
            let transfer = PageTransfer::clone_of(A, clone);
            let vector = [StoreChange::Transfer { transfer, lsn: Lsn(500) }, write(clone, 130, 501)];
            assert!(matches!(store.data().apply(&vector), Err(store::StoreError::Corrupt { .. })));
            store.data().apply(&[write(B, 1, 502)]).expect("others go on");
            drop(store);
            open(&fork).expect("it opens");
        }
    }
    assert!(tried > 0);
}

#[test]
fn the_number_of_a_deleted_volume_is_given_to_no_other() {
    let (_power, _disk, store) = fresh(64, 1);
    let clone = |lsn| clone_volume(&store, VolumeId::MAIN, store::VolumeMode::Writable, Lsn(lsn));
    assert_eq!(clone(1), Ok(VolumeId(1)));
    store.volumes().delete(VolumeId(1), Lsn(2)).expect("it goes");
    assert_eq!(clone(3), Ok(VolumeId(2)));
}
