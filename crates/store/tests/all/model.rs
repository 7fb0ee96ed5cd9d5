//! Random changes, checkpoints, cleaning and reopening, against a plain model.

use crate::common::*;
use device::{Incarnation, Lsn, PageNo, VolumeId};
use proptest::prelude::*;
use store::Change;

/// Runs `steps` random steps from a seed; small stores are cleaned all the time.
fn run(seed: u64, steps: u64, segments: u64) {
    let (_power, disk, mut store) = fresh(segments, seed);
    store.keep_nodes(1);
    let (mut model, mut work) = (Model::default(), Work::new(seed));
    for step in 0..steps {
        match work.random.below(20) {
            0 => {
                drop(store);
                store = mount(&disk).expect("it opens again");
                store.keep_nodes(1);
            }
            1 | 2 => store.checkpoint().expect("a checkpoint"),
            3 => drop(store.clean().expect("cleaning")),
            4..7 => drop(store.clean_step().expect("a step of cleaning")),
            _ => {
                let vector = work.vector(&model);
                store
                    .apply(&vector)
                    .unwrap_or_else(|error| panic!("seed {seed} step {step}: {error}: {:?}", store.space()));
                model.apply(&vector);
            }
        }
        while store.is_short_of_space() && store.clean().expect("cleaning") {
            store.checkpoint().expect("a checkpoint");
        }
        if step % 16 == 0 {
            assert_eq!(model.difference(&store), None, "seed {seed} step {step}");
        }
    }
    assert_sound(&store, &model, &format!("seed {seed} at the end"));
    drop(store);
    let store = open(&disk).expect("it opens");
    assert_sound(&store, &model, &format!("seed {seed} after the end"));
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
    run(1, 1_500, 260);
}

#[test]
fn an_old_cut_or_delete_leaves_newer_pages_alone() {
    let (_power, _disk, store) = fresh(64, 1);
    let object = VolumeId::MAIN.object(3, 1);
    let write = |number, page_lsn| Change::Write {
        object,
        page: PageNo(number),
        bytes: page(number),
        page_lsn: Lsn(page_lsn),
    };
    store.apply(&[write(1, 10), write(2, 20), write(300, 30)]).expect("space");
    let all = PageNo(0)..PageNo(u64::MAX);
    store.apply(&[Change::Cut { object, pages: all, lsn: Lsn(20) }]).expect("space");
    assert_eq!(store.page_lsn(object, PageNo(1)), Ok(None));
    assert_eq!(store.page_lsn(object, PageNo(2)), Ok(Some(Lsn(20))));
    store.apply(&[Change::Delete { object, lsn: Lsn(25) }]).expect("space");
    assert_eq!(store.page_lsn(object, PageNo(2)), Ok(None));
    assert_eq!(store.page_lsn(object, PageNo(300)), Ok(Some(Lsn(30))));
    assert_eq!(store.newest_lsn(), Lsn(30));
    // Large or small, and as young as the deletion.
    let many: Vec<Change> = (200..300).map(|number| write(number, 30)).collect();
    store.apply(&many).expect("space");
    store.apply(&[Change::Delete { object, lsn: Lsn(30) }]).expect("space");
    assert_eq!(store.page_lsn(object, PageNo(300)), Ok(Some(Lsn(30))));
    store.apply(&[Change::Delete { object, lsn: Lsn(31) }]).expect("space");
    store.apply(&[write(1, 40)]).expect("space");
    store.apply(&[Change::Delete { object, lsn: Lsn(40) }]).expect("space");
    assert_eq!(store.page_lsn(object, PageNo(1)), Ok(Some(Lsn(40))));
    store.apply(&[Change::Delete { object, lsn: Lsn(41) }]).expect("space");
    assert_eq!([1, 300].map(|page| store.page_lsn(object, PageNo(page))), [Ok(None), Ok(None)]);
}

#[test]
fn nothing_is_applied_before_an_incarnation_begins_and_none_begins_twice() {
    let (_power, disk, store) = fresh(64, 1);
    let object = VolumeId::MAIN.object(3, 1);
    let cut = Change::Cut { object, pages: PageNo(0)..PageNo(1), lsn: Lsn(1) };
    drop(store);
    let store = open(&disk).expect("it opens");
    assert!(store.apply(std::slice::from_ref(&cut)).is_err());
    assert!(store.begin(store.incarnation()).is_err());
    store.begin(Incarnation(9)).expect("a higher one");
    store.apply(&[cut]).expect("begun");
    drop(store);
    assert_eq!(open(&disk).expect("it opens").incarnation(), Incarnation(9));
}

#[test]
fn what_is_left_behind_is_durable_and_changes_nothing_else() {
    let (power, disk, store) = fresh(64, 1);
    let object = VolumeId::MAIN.object(3, 1);
    let write = Change::Write { object, page: PageNo(1), bytes: page(1), page_lsn: Lsn(10) };
    store.apply(&[write]).expect("space");
    store.fence(Lsn(1000)).expect("a checkpoint");
    store.fence(Lsn(7)).expect("a checkpoint");
    drop(store);
    power.cut();
    disk.crash();
    power.restore();
    let store = open(&disk).expect("it opens");
    assert_eq!(store.newest_lsn(), Lsn(1000));
    assert_eq!(store.page_lsn(object, PageNo(1)), Ok(Some(Lsn(10))));
}
