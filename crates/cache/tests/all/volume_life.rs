//! Changes of volumes that may not be changed.

use crate::common::apply_at_once;
use crate::common::plain::Machine;
use cache::{Cache, CacheError, ObjectChange};
use device::{BLOCK_BYTES, ObjectId, PageNo, PageTransfer, TransferKind, VolumeId};
use store::{NewVolume, StoreError, VolumeMode};

const FILE: ObjectId = VolumeId::MAIN.object(5, 1);

fn clone(cache: &Cache, name: &str, mode: VolumeMode) -> VolumeId {
    cache.clone_volume(VolumeId::MAIN, &NewVolume { name, mode, created: 1 }).expect("space")
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
