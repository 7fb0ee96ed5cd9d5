//! Volumes that are created, renamed and deleted, and changes of volumes that may not be changed.

use crate::common::apply_at_once;
use crate::common::meddled::{Meddled, Meddler};
use crate::common::plain::Machine;
use cache::{Cache, CacheError, ObjectChange};
use device::{BLOCK_BYTES, ObjectId, PageNo, PageTransfer, SharedPage, TransferKind, VolumeId};
use std::sync::{Arc, Mutex};
use store::{NewVolume, StoreError, VolumeMode};

const FILE: ObjectId = VolumeId::MAIN.object(5, 1);

fn create(cache: &Cache, name: &str) -> Result<VolumeId, CacheError> {
    let first: SharedPage = Arc::new(Box::new(device::Page([3; BLOCK_BYTES])));
    cache.create_volume(&NewVolume { name, ..NewVolume::default() }, &[(PageNo(0), first)])
}

fn clone(cache: &Cache, name: &str, mode: VolumeMode) -> VolumeId {
    cache.clone_volume(VolumeId::MAIN, &NewVolume { name, mode, created: 1 }).expect("space")
}

fn names(cache: &Cache) -> Vec<(u32, String)> {
    cache.store().volumes().describe().into_iter().map(|volume| (volume.id.0, volume.name)).collect()
}

/// The first byte of a page.
fn byte(cache: &Cache, object: ObjectId, page: u64) -> u8 {
    cache.read_now(object, page * BLOCK_BYTES as u64, 1).expect("sound media")[0]
}

#[test]
fn read_only_volume_refuses_every_change() {
    let machine = Machine::new(1);
    let cache = machine.open();
    machine.write(&cache, FILE, 0, &[7; 2 * BLOCK_BYTES]).expect("space");
    let copy = clone(&cache, "copy", VolumeMode::ReadOnly);
    let file = FILE.in_volume(copy);
    let page = |object, number| PageTransfer::clone_range(object, PageNo(0)..PageNo(1), FILE, PageNo(number));
    let into = PageTransfer::clone_range(FILE, PageNo(0)..PageNo(1), file, PageNo(9));
    let changes = [
        ObjectChange::Write { object: file, offset: 0, bytes: b"new" },
        ObjectChange::FileWrite {
            object: file,
            offset: 0,
            bytes: &[8; BLOCK_BYTES],
            size: BLOCK_BYTES as u64,
        },
        ObjectChange::Zero { object: file, offset: 0, len: 100 },
        ObjectChange::Delete { object: file },
        ObjectChange::Transfer(into),
        ObjectChange::Transfer(PageTransfer { kind: TransferKind::Move, ..page(file, 9) }),
    ];
    let before = cache.status();
    for change in changes {
        let refused = |outcome: Result<(), CacheError>| {
            let error = outcome.expect_err("it is refused");
            assert!(
                matches!(error, CacheError::ReadOnlyVolume { volume } if volume == copy),
                "{change:?}: {error}"
            );
        };
        // Alone, after a change of another volume, and within a reservation.
        refused(apply_at_once(&cache, &[change]).expect("it need not wait").map(drop));
        let other = ObjectChange::Write { object: FILE, offset: 0, bytes: b"other" };
        refused(apply_at_once(&cache, &[other, change]).expect("it need not wait").map(drop));
        refused(machine.apply(&cache, &[change]));
    }
    let after = cache.status();
    assert_eq!((after.applied, after.dirty_pages), (before.applied, before.dirty_pages));
    machine.apply(&cache, &[ObjectChange::Transfer(page(file, 9))]).expect("a clone of its pages");
    cache.drain().expect("nothing is stuck");
    assert_eq!((byte(&cache, file, 0), byte(&cache, FILE, 9)), (7, 7));
    assert_eq!(byte(&cache, file, 9), 0);
}

#[test]
fn deleted_volume_refuses_changes() {
    let machine = Machine::new(2);
    let cache = machine.open();
    let copy = clone(&cache, "copy", VolumeMode::Writable);
    machine.write(&cache, FILE.in_volume(copy), 0, &[7]).expect("space");
    cache.delete_volume(copy).expect("it is not in use");
    let refused = machine.write(&cache, FILE.in_volume(copy), 0, &[8]).expect_err("it is gone");
    assert!(matches!(refused, CacheError::Store(StoreError::NoSuchVolume { volume }) if volume == copy));
    cache.drain().expect("nothing is stuck");
}

#[test]
fn used_volume_is_neither_used_again_nor_renamed_nor_deleted() {
    let machine = Machine::new(3);
    let cache = machine.open();
    let used = cache.use_volume(VolumeId::MAIN).expect("it is not in use");
    let used_again = cache.use_volume(VolumeId::MAIN).map(drop);
    let renamed = cache.rename_volume(VolumeId::MAIN, "old");
    for outcome in [used_again, renamed, cache.delete_volume(VolumeId::MAIN)] {
        assert!(matches!(outcome, Err(CacheError::InUse { volume: VolumeId::MAIN })));
    }
    drop(used);
    for name in ["rescued-1", "rescuing-1"] {
        let refused = [cache.rename_volume(VolumeId::MAIN, name), create(&cache, name).map(drop)];
        let is_bad = |one| matches!(one, Err(CacheError::Store(StoreError::BadName { .. })));
        assert!(refused.into_iter().all(is_bad), "{name}");
    }
    cache.rename_volume(VolumeId::MAIN, "old").expect("it is not in use");
    assert_eq!(names(&cache), [(0, "old".into())]);
    cache.delete_volume(VolumeId::MAIN).expect("it is not in use");
    assert_eq!(names(&cache), []);
}

/// A machine of which the buffer has synced records of `main` that are not stored.
fn machine_with_records_of_main() -> (Machine, Cache) {
    let machine = Machine::new(4);
    let cache = machine.open();
    machine.write(&cache, FILE, 0, &[7; BLOCK_BYTES]).expect("space");
    machine.write(&cache, VolumeId::MAIN.object(0, 0), 0, &[8; BLOCK_BYTES]).expect("space");
    machine.sync(&cache).expect("sound media");
    (machine, cache)
}

#[test]
fn records_of_a_deleted_volume_reach_no_other() {
    for is_drained in [false, true] {
        let (machine, cache) = machine_with_records_of_main();
        cache.delete_volume(VolumeId::MAIN).expect("it is not in use");
        let new = create(&cache, "main").expect("space");
        assert_eq!(new, VolumeId(1));
        machine.write(&cache, FILE.in_volume(new), 1, &[9; BLOCK_BYTES]).expect("space");
        machine.sync(&cache).expect("sound media");
        if is_drained {
            cache.drain().expect("sound media");
        }
        drop(cache);
        machine.crash();
        let cache = machine.open();
        assert_eq!(names(&cache), [(1, "main".into())]);
        let file = FILE.in_volume(new);
        assert_eq!((byte(&cache, file, 0), byte(&cache, file, 1)), (0, 9));
        assert_eq!(byte(&cache, new.object(0, 0), 0), 3);
        cache.delete_volume(new).expect("it is not in use");
        drop(cache);
        machine.crash();
        let cache = machine.open();
        assert_eq!(create(&cache, "main").expect("space"), VolumeId(2));
    }
}

/// Crashes after `main` was deleted. Returns a problem of the next start.
fn trouble_after_a_deletion() -> Option<String> {
    let (machine, cache) = machine_with_records_of_main();
    cache.delete_volume(VolumeId::MAIN).expect("it is not in use");
    drop(cache);
    machine.crash();
    let cache = machine.open();
    let new = create(&cache, "main").expect("space");
    let found = [byte(&cache, FILE.in_volume(new), 0), byte(&cache, new.object(0, 0), 0)];
    if found != [0, 3] {
        return Some(format!("the new volume has {found:?}"));
    }
    cache.drain().err().map(|error| error.to_string())
}

#[test]
fn deleted_volume_leaves_no_records() {
    assert_eq!(trouble_after_a_deletion(), None);
}

/// They are replayed into nothing, and into a volume that has the number of the deleted one.
#[cfg(feature = "planted-bugs")]
#[test]
fn replayed_records_of_a_deleted_volume_are_noticed() {
    for in_store in [None, Some(store::StoreBug::VolumeNumberUsedAgain)] {
        cache::plant(Some(cache::CacheBug::DeletedVolumeReplayed));
        store::plant(in_store);
        let trouble = trouble_after_a_deletion();
        cache::plant(None);
        store::plant(None);
        println!("{in_store:?}: {}", trouble.expect("the bug is noticed"));
    }
}

#[test]
fn crash_in_a_change_of_volumes_leaves_all_of_it_or_nothing() {
    type Change = fn(&Cache) -> Result<(), CacheError>;
    let changes: [(Change, &[(u32, String)]); 3] = [
        (|cache| create(cache, "new").map(drop), &[(0, "main".into()), (1, "new".into())]),
        (|cache| cache.rename_volume(VolumeId::MAIN, "old"), &[(0, "old".into())]),
        (|cache| cache.delete_volume(VolumeId::MAIN), &[]),
    ];
    for (change, after) in changes {
        let mut outcomes = [0, 0];
        for operations in 0.. {
            let machine = Machine::new(operations);
            let cache = machine.open();
            machine.write(&cache, FILE, 0, &[7; BLOCK_BYTES]).expect("space");
            machine.power.cut_after(operations);
            let answer = change(&cache);
            let is_whole = !machine.power.is_lost();
            drop(cache);
            machine.crash();
            let cache = machine.open();
            let found = names(&cache);
            let is_made = found == after;
            assert!(is_made || found == [(0, "main".into())], "{operations}: {found:?}");
            assert!(is_made || answer.is_err() || !is_whole, "{operations}: an acknowledged change is gone");
            if is_made && found.len() == 2 {
                assert_eq!(byte(&cache, VolumeId(1).object(0, 0), 0), 3, "{operations}");
            }
            outcomes[usize::from(is_made)] += 1;
            if !is_made {
                change(&cache).expect("it can be made still");
                assert_eq!(names(&cache), after, "{operations}");
            }
            cache.store().maintenance().check(&mut |finding| panic!("{operations}: {finding:?}"));
            if is_whole {
                break;
            }
        }
        assert!(outcomes.iter().all(|&count| count > 0), "{outcomes:?}: the runs test little");
    }
}

#[test]
fn volume_is_in_use_while_it_is_changed() {
    let machine = Machine::new(5);
    let meddler: Arc<Mutex<Option<Meddler>>> = Arc::default();
    let meddled = |disk| Arc::new(Meddled { disk, meddler: meddler.clone() });
    let cache = machine
        .open_on(meddled(machine.store.clone()), meddled(machine.buffer.clone()))
        .expect("sound media");
    clone(&cache, "snapshot", VolumeMode::ReadOnly);
    let changes: [&dyn Fn(VolumeId) -> Result<(), CacheError>; 3] = [
        &|volume| cache.rename_volume(volume, "renamed"),
        &|volume| cache.roll_back(volume, VolumeId(1), "kept", 2).map(drop),
        &|volume| cache.delete_volume(volume),
    ];
    for change in changes {
        let asked = Arc::new(Mutex::new(0));
        let (mounting, asks) = (cache.clone(), asked.clone());
        *meddler.lock().expect("one thread") = Some(Box::new(move || {
            *asks.lock().expect("one thread") += 1;
            let used = mounting.use_volume(VolumeId::MAIN).map(drop);
            assert!(matches!(used, Err(CacheError::InUse { volume: VolumeId::MAIN })));
        }));
        change(VolumeId::MAIN).expect("it is not in use before");
        *meddler.lock().expect("one thread") = None;
        assert!(*asked.lock().expect("one thread") > 0, "no mount was tried meanwhile");
        cache.use_volume(VolumeId::MAIN).map(drop).expect("it is not in use afterwards");
    }
    assert_eq!(names(&cache), [(1, "snapshot".into()), (2, "renamed".into())]);
}
