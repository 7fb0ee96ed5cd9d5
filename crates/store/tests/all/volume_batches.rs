//! Changes of several volumes in one batch: clones that are made together, and rollbacks.

use crate::common::{findings, fresh, mount, page, stamp};
use device::{Lsn, ObjectId, PageNo};
use sim_disk::{PowerSupply, SimDisk};
use std::sync::Arc;
use store::{
    NewVolume, PageRead, Store, StoreChange, StoreError, StoredPage, VolumeId, VolumeMode, VolumeRollback,
};

const MAIN: VolumeId = VolumeId::MAIN;
const FILE: ObjectId = MAIN.object(7, 1);

fn write(store: &Store, volume: VolumeId, page_lsn: u64) {
    let object = FILE.in_volume(volume);
    let change =
        StoreChange::Write { object, page: PageNo(0), bytes: page(page_lsn), page_lsn: Lsn(page_lsn) };
    store.data().apply(&[change]).expect("space");
}

fn create(store: &Store, name: &str, lsn: u64) -> VolumeId {
    let new = NewVolume { name, ..NewVolume::default() };
    store.volumes().create(&new, &[], Lsn(lsn)).expect("space")
}

fn named(name: &str) -> NewVolume<'_> {
    NewVolume { name, mode: VolumeMode::ReadOnly, created: 5 }
}

fn clone(store: &Store, from: VolumeId, name: &str, lsn: u64) -> VolumeId {
    store.volumes().clone_named(from, &named(name), Lsn(lsn)).expect("space")
}

fn rollback(volume: VolumeId, snapshot: VolumeId, kept_name: &str) -> VolumeRollback<'_> {
    VolumeRollback { volume, snapshot, kept_name, created: 6 }
}

/// Each volume: its number, name and source, and the first page of its file.
fn described(store: &Store) -> Vec<(u32, String, Option<u32>, Option<u64>)> {
    let first_page = |volume| {
        let mut wants = [PageRead::new(FILE.in_volume(volume), PageNo(0))];
        store.data().read(&mut wants);
        match &wants[0].result {
            Ok(StoredPage::Hole) => None,
            Ok(StoredPage::Page { bytes, .. }) => Some(stamp(bytes)),
            Err(error) => panic!("{error}"),
        }
    };
    let all = store.volumes().describe().into_iter();
    all.map(|one| (one.id.0, one.name, one.from.map(|from| from.0), first_page(one.id))).collect()
}

/// A store with two volumes, and a snapshot of the first one, which has changed since.
fn prepared(seed: u64) -> (Arc<PowerSupply>, Arc<SimDisk>, Store) {
    let (power, disk, store) = fresh(100, seed);
    write(&store, MAIN, 1);
    write(&store, create(&store, "other", 2), 3);
    clone(&store, MAIN, "snapshot", 4);
    write(&store, MAIN, 5);
    (power, disk, store)
}

/// Makes a change while the power fails at each operation of the disk in turn.
fn assert_whole_after_every_crash(change: impl Fn(&Store) -> Result<(), StoreError>) {
    let (_power, _disk, store) = prepared(0);
    let before = described(&store);
    change(&store).expect("space");
    let after = described(&store);
    let mut outcomes = [0, 0];
    for operations in 0.. {
        let mut is_acknowledged = false;
        for seed in 0..8 {
            let (power, disk, store) = prepared(seed);
            power.cut_after(operations);
            is_acknowledged = change(&store).is_ok();
            assert_ne!(is_acknowledged, power.is_lost(), "{operations}");
            drop(store);
            power.cut();
            disk.crash();
            power.restore();
            let store = mount(&disk).expect("it opens");
            let found = described(&store);
            let is_made = found == after;
            assert!(is_made || found == before, "{operations}: {found:?}");
            assert!(is_made || !is_acknowledged, "{operations}: an acknowledged change is gone");
            if !is_made {
                change(&store).expect("it can be made still");
                assert_eq!(described(&store), after, "{operations}");
            }
            assert_eq!(findings(&store), [], "{operations}");
            outcomes[usize::from(is_made)] += 1;
        }
        if is_acknowledged {
            break;
        }
    }
    assert!(outcomes.iter().all(|&count| count >= 8), "{outcomes:?}: the runs test little");
}

#[test]
fn clones_of_two_volumes_are_all_there_after_a_crash_or_none() {
    // More entries than a segment of the log has space for.
    let names: Vec<String> = (0..300).map(|number| format!("{number:0127}")).collect();
    let sources = [MAIN, VolumeId(1)].into_iter().cycle();
    assert_whole_after_every_crash(|store| {
        let clones: Vec<_> = sources.clone().zip(names.iter().map(|name| named(name))).collect();
        let made = store.volumes().clone_volumes(&clones, Lsn(6))?;
        assert_eq!(made, (3..303).map(VolumeId).collect::<Vec<_>>());
        Ok(())
    });
}

#[test]
fn rollback_is_whole_after_a_crash_or_did_not_happen() {
    let kept_name = "k".repeat(127);
    assert_whole_after_every_crash(|store| {
        let made = store.volumes().roll_back(&rollback(MAIN, VolumeId(2), &kept_name), Lsn(6))?;
        assert_eq!(made, VolumeId(3));
        Ok(())
    });
    let (_power, _disk, store) = prepared(0);
    store.volumes().roll_back(&rollback(MAIN, VolumeId(2), &kept_name), Lsn(6)).expect("space");
    let expected = [
        (0, kept_name, None, Some(5)),
        (1, "other".into(), None, Some(3)),
        (2, "snapshot".into(), Some(0), Some(1)),
        (3, "main".into(), Some(2), Some(1)),
    ];
    assert_eq!(described(&store), expected);
    assert_eq!(store.volumes().mode(VolumeId(3)), Some(VolumeMode::Writable));
}

#[test]
fn clones_that_cannot_all_be_made_are_refused() {
    let (_power, _disk, store) = prepared(0);
    let before = described(&store);
    let clone = |clones: &[(VolumeId, NewVolume<'_>)]| store.volumes().clone_volumes(clones, Lsn(6));
    let first = (MAIN, named("first"));
    assert_eq!(clone(&[]), Ok(vec![]));
    assert!(matches!(clone(&[first, (VolumeId(1), named("first"))]), Err(StoreError::BadName { .. })));
    assert!(matches!(clone(&[first, (VolumeId(1), named("-x"))]), Err(StoreError::BadName { .. })));
    assert!(matches!(clone(&[first, (VolumeId(1), named("main"))]), Err(StoreError::NameTaken { .. })));
    assert!(matches!(clone(&[first, (VolumeId(9), named("more"))]), Err(StoreError::NoSuchVolume { .. })));
    assert_eq!(described(&store), before);
    assert_eq!(clone(&[first, (MAIN, named("second"))]), Ok(vec![VolumeId(3), VolumeId(4)]));
}

#[test]
fn rollback_accepts_snapshots_from_before_earlier_rollbacks() {
    let (_power, _disk, store) = fresh(100, 1);
    let [early, late] = ["early", "late"].map(|name| clone(&store, MAIN, name, 1));
    let other = create(&store, "other", 2);
    let other_snapshot = clone(&store, other, "other-snapshot", 3);
    let is_refused = |volume, snapshot| {
        let checked = store.volumes().check_rollback(&rollback(volume, snapshot, "kept"));
        assert!(matches!(checked, Ok(()) | Err(StoreError::NotASnapshot { .. })), "{checked:?}");
        checked.is_err()
    };
    assert!(is_refused(MAIN, MAIN) && is_refused(MAIN, other) && is_refused(MAIN, other_snapshot));
    let roll_back = |volume, snapshot, kept_name| {
        store.volumes().roll_back(&rollback(volume, snapshot, kept_name), Lsn(4)).expect("accepted")
    };
    let second = roll_back(MAIN, early, "kept-1");
    let since = clone(&store, second, "since", 5);
    let accepted = [early, late, since, MAIN];
    assert!(accepted.into_iter().all(|snapshot| !is_refused(second, snapshot)));
    assert!(is_refused(second, other_snapshot) && is_refused(MAIN, since) && is_refused(other, early));
    // Back to before the first rollback.
    let third = roll_back(second, MAIN, "kept-2");
    assert!(!is_refused(third, early) && is_refused(third, since));
    assert_eq!(store.volumes().named("main").map(|main| main.id), Some(third));
    // A deleted volume does not say what it was cloned from.
    store.volumes().delete(early, Lsn(6)).expect("it exists");
    assert!(is_refused(second, late) && !is_refused(second, since));
}

#[test]
fn rollback_that_cannot_be_made_is_refused() {
    let (_power, _disk, store) = prepared(0);
    let before = described(&store);
    let snapshot = VolumeId(2);
    let roll_back = |volume, snapshot, kept_name| {
        store.volumes().roll_back(&rollback(volume, snapshot, kept_name), Lsn(6)).expect_err("refused")
    };
    let refused = roll_back(VolumeId(1), snapshot, "kept");
    assert_eq!(refused.to_string(), "volume snapshot is not a snapshot of volume other");
    assert!(refused.help().is_some());
    assert_eq!(roll_back(MAIN, VolumeId(9), "kept"), StoreError::NoSuchVolume { volume: VolumeId(9) });
    assert_eq!(roll_back(VolumeId(9), snapshot, "kept"), StoreError::NoSuchVolume { volume: VolumeId(9) });
    for taken in ["main", "other", "snapshot"] {
        assert_eq!(roll_back(MAIN, snapshot, taken), StoreError::NameTaken { name: taken.into() });
    }
    assert!(matches!(roll_back(MAIN, snapshot, "a/b"), StoreError::BadName { .. }));
    assert_eq!(described(&store), before);
}
