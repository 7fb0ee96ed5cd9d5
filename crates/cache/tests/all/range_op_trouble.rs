//! Clones and moves while the store, the buffer or the map is in trouble: nothing is lost, and every wait
//! ends.

use crate::common::apply_at_once;
use crate::common::plain::Machine;
use cache::{BackgroundTask, Cache, CacheCompletion, CacheError, ObjectChange, SeekTarget, TransactionCost};
use device::{BLOCK_BYTES, Block, ObjectId, PageNo, PageTransfer, TransferKind};
use sim_disk::DiskFaults;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{NewVolume, Store, VolumeId, VolumeMode};

const ALWAYS: DiskFaults =
    DiskFaults { write_one_in: 1, flush_one_in: 1, read_one_in: 0, trim_one_in: 0, once_after: None };

const PAGE: usize = BLOCK_BYTES;
const ONE: ObjectId = VolumeId::MAIN.object(1, 1);
const TWO: ObjectId = VolumeId::MAIN.object(1 << 20, 1);
const OTHER: ObjectId = VolumeId::MAIN.object(1 << 40, 1);
/// In the same leaf of objects as `OTHER`.
const TARGET: ObjectId = VolumeId::MAIN.object((1 << 40) + 1, 1);
const THIRD: ObjectId = VolumeId::MAIN.object((1 << 40) + 2, 1);

type Answer<T> = Arc<Mutex<Option<Result<T, CacheError>>>>;

fn asked<T: Send + 'static>(ask: impl FnOnce(CacheCompletion<T>)) -> Answer<T> {
    let slot: Answer<T> = Arc::default();
    let answer = slot.clone();
    ask(Box::new(move |outcome| *answer.lock().expect("no panic") = Some(outcome)));
    slot
}

fn is_answered<T>(answer: &Answer<T>) -> bool {
    answer.lock().expect("no panic").is_some()
}

/// Applies changes that are admitted at once. Does no work.
fn at_once(cache: &Cache, changes: &[ObjectChange<'_>]) {
    apply_at_once(cache, changes).expect("space at once").expect("a buffer that works");
}

fn pages(from: ObjectId, first: u64, count: u64, to: ObjectId) -> PageTransfer {
    PageTransfer::clone_range(from, PageNo(first)..PageNo(first + count), to, PageNo(first))
}

fn moved(from: ObjectId, first: u64, count: u64, to: ObjectId) -> ObjectChange<'static> {
    ObjectChange::Transfer(PageTransfer { kind: TransferKind::Move, ..pages(from, first, count, to) })
}

fn step_for(machine: &Machine, cache: &Cache, seconds: u64) {
    for _ in 0..seconds * 20 {
        BackgroundTask::ALL.iter().for_each(|&task| {
            cache.step(task);
        });
        machine.clock.advance(Duration::from_millis(50));
    }
}

/// Damages both copies of each node that `object` needs and `others` do not. Returns the nodes: damaging them
/// once more heals them.
fn damage_map_of(machine: &Machine, object: ObjectId, others: &[ObjectId]) -> Vec<[Block; 2]> {
    let is_found = |object: ObjectId| {
        Store::open(machine.store.clone())
            .is_ok_and(|store| store.data().page_lsns(&[(object, PageNo(0))])[0].is_ok())
    };
    let mut damaged = Vec::new();
    for pair in machine.disks.pairs() {
        machine.disks.rot_both(pair);
        if !is_found(object) && others.iter().all(|&other| is_found(other)) {
            damaged.push(pair);
        } else {
            machine.disks.rot_both(pair);
        }
    }
    assert!(!damaged.is_empty(), "there is a node for {object}");
    damaged
}

fn heal(machine: &Machine, damaged: &[[Block; 2]]) {
    damaged.iter().for_each(|&pair| machine.disks.rot_both(pair));
}

/// Objects that are stored, each in its own leaves.
fn three(seed: u64) -> Machine {
    let machine = Machine::new(seed);
    store_three(&machine);
    machine
}

fn store_three(machine: &Machine) {
    let cache = machine.open();
    for object in [ONE, TWO, OTHER] {
        for page in 0..64 {
            machine.write(&cache, object, 2 * page, &[0xab; PAGE]).expect("space");
        }
    }
    cache.drain().expect("devices that work");
}

#[test]
fn a_seek_that_waits_for_a_clone_is_answered_when_the_buffer_fails() {
    let machine = three(1);
    let cache = machine.open();
    at_once(&cache, &[ObjectChange::Transfer(pages(ONE, 0, 4, TARGET))]);
    let answer = asked(|then| cache.seek(TARGET, PageNo(0)..PageNo(100), SeekTarget::Data, then));
    cache.step(BackgroundTask::Fetch);
    machine.buffer.set_faults(ALWAYS);
    assert!(machine.sync(&cache).is_err());
    step_for(&machine, &cache, 120);
    assert!(is_answered(&answer), "{:?}", cache.status());
}

#[test]
fn a_seek_behind_a_clone_behind_a_stuck_clone_is_answered() {
    let machine = three(2);
    damage_map_of(&machine, ONE, &[TWO, OTHER]);
    let cache = machine.open();
    at_once(&cache, &[ObjectChange::Transfer(pages(ONE, 0, 4, TARGET))]);
    at_once(&cache, &[ObjectChange::Transfer(pages(TARGET, 0, 4, THIRD))]);
    let read = asked(|then| {
        cache.read(THIRD, 0, 10, 10, then);
    });
    let seek = asked(|then| cache.seek(THIRD, PageNo(0)..PageNo(100), SeekTarget::Data, then));
    step_for(&machine, &cache, 120);
    assert!(is_answered(&read), "{:?}", cache.status());
    assert!(is_answered(&seek), "{:?}", cache.status());
}

#[test]
fn a_read_of_a_clone_is_answered_above_a_store_that_fails_all_writes() {
    let machine = three(3);
    let cache = machine.open();
    machine.store.set_faults(ALWAYS);
    at_once(&cache, &[ObjectChange::Transfer(pages(ONE, 0, 4, TARGET))]);
    let answer = asked(|then| {
        cache.read(TARGET, 0, 10, 10, then);
    });
    step_for(&machine, &cache, 300);
    assert!(is_answered(&answer), "{:?}", cache.status());
}

#[test]
fn a_read_of_a_clone_is_answered_above_a_file_system_that_is_full() {
    let machine = three(4);
    let cache = machine.open();
    machine.store.set_space(machine.store.written_blocks().len() as u64);
    at_once(&cache, &[ObjectChange::Transfer(pages(ONE, 0, 4, TARGET))]);
    let answer = asked(|then| {
        cache.read(TARGET, 0, 10, 10, then);
    });
    step_for(&machine, &cache, 300);
    assert!(is_answered(&answer), "{:?}", cache.status());
}

/// Like `weir mount` of a read-only volume: the media are overlays, and the two workers that write to the
/// store do not run.
#[test]
fn a_mount_that_only_looks_reads_what_a_clone_made_before_a_crash() {
    let machine = three(15);
    let cache = machine.open();
    at_once(&cache, &[ObjectChange::Transfer(pages(ONE, 0, 4, TARGET))]);
    machine.sync(&cache).expect("a buffer that works");
    step_for(&machine, &cache, 1);
    assert_eq!(cache.status().pending_transfers, 0, "the store has it, and the buffer still tells of it");
    drop(cache);
    machine.crash();
    let cache = machine.open();
    let answer = asked(|then| {
        cache.read(TARGET, 0, 10, 10, then);
    });
    for _ in 0..10_000 {
        cache.step(BackgroundTask::Commit);
        cache.step(BackgroundTask::Fetch);
        machine.clock.advance(Duration::from_millis(50));
    }
    assert!(is_answered(&answer), "{:?}", cache.status());
}

#[test]
fn a_clone_that_is_stored_is_read_after_a_crash_though_its_source_is_damaged() {
    let machine = three(19);
    let cache = machine.open();
    at_once(&cache, &[ObjectChange::Transfer(pages(ONE, 0, 4, TARGET))]);
    step_for(&machine, &cache, 1);
    assert_eq!(cache.status().pending_transfers, 0);
    cache.store().maintenance().checkpoint().expect("devices that work");
    drop(cache);
    machine.crash();
    damage_map_of(&machine, ONE, &[TARGET, TWO, OTHER]);
    let cache = machine.open();
    let answer = asked(|then| {
        cache.read(TARGET, 0, 10, 10, then);
    });
    step_for(&machine, &cache, 5);
    let answer = answer.lock().expect("no panic").take().expect("an answer");
    assert_eq!(answer.map_err(|error| error.to_string()), Ok(vec![0xab; 10]), "{:?}", cache.status());
}

#[test]
fn a_clone_of_nothing_or_onto_itself_does_not_make_the_log_unreadable() {
    for (transfer, what) in [
        (pages(ONE, 3, 0, TARGET), "nothing"),
        (PageTransfer { at: PageNo(1), ..pages(ONE, 0, 4, ONE) }, "itself"),
    ] {
        let machine = three(18);
        let cache = machine.open();
        let changes = [ObjectChange::Transfer(transfer)];
        let applied = apply_at_once(&cache, &changes).expect("space");
        at_once(&cache, &[ObjectChange::Write { object: OTHER, offset: 0, bytes: &[7; PAGE] }]);
        machine.sync(&cache).expect("a buffer that works");
        drop(cache);
        machine.crash();
        let opened = machine.try_open();
        let why = opened.as_ref().err().map(ToString::to_string);
        assert_eq!(why, None, "{what}, applied: {applied:?}");
        let found = opened.expect("just now").read_now(OTHER, 0, 1).expect("sound");
        assert_eq!(found, [7], "{what}");
    }
}

#[test]
fn an_unmount_answers_who_reads_what_a_clone_hides_and_writes_back_what_he_waits_for() {
    let machine = three(5);
    let cache = machine.open();
    at_once(&cache, &[ObjectChange::Transfer(pages(ONE, 0, 4, TARGET))]);
    at_once(&cache, &[ObjectChange::Write { object: TARGET, offset: 0, bytes: &[7; 100] }]);
    let answer = asked(|then| {
        cache.read(TARGET, 0, 200, 200, then);
    });
    cache.step(BackgroundTask::Fetch);
    cache.stop();
    cache.drain().expect("devices that work");
    let status = cache.status();
    assert!(is_answered(&answer), "a read that hangs: {status:?}");
    assert_eq!(
        (status.dirty_pages, cache.store().space().now().reserved),
        (0, 0),
        "a drain that says it is done"
    );
}

#[test]
fn a_move_takes_its_sources_pages_though_its_target_was_deleted_and_its_slot_used_again() {
    let machine = three(6);
    let damaged = damage_map_of(&machine, ONE, &[TWO, OTHER]);
    let cache = machine.open();
    at_once(&cache, &[moved(ONE, 0, 64, TARGET)]);
    step_for(&machine, &cache, 1);
    assert_eq!(cache.status().stuck_count, 1);
    at_once(&cache, &[ObjectChange::Delete { object: TARGET }]);
    let next = ObjectId { generation: 2, ..TARGET };
    at_once(&cache, &[ObjectChange::Write { object: next, offset: 0, bytes: &[5; PAGE] }]);
    cache.drain().expect_err("the move is stuck");
    heal(&machine, &damaged);
    machine.clock.advance(Duration::from_secs(100));
    cache.drain().expect("all is well again");
    assert_eq!(cache.status().pending_transfers, 0);
    assert!(cache.read_now(next, 0, PAGE).expect("sound") == [5; PAGE]);
    assert!(cache.read_now(ONE, 0, PAGE).expect("sound") == [0; PAGE], "it was moved away");
}

#[test]
fn a_move_from_an_object_that_had_nothing_is_not_made_again_when_its_target_is_gone() {
    let machine = three(7);
    let cache = machine.open();
    // Nothing of `THIRD` was ever written.
    at_once(&cache, &[moved(THIRD, 0, 4, TARGET)]);
    step_for(&machine, &cache, 1);
    assert_eq!(cache.status().pending_transfers, 0);
    at_once(&cache, &[ObjectChange::Delete { object: TARGET }]);
    at_once(&cache, &[ObjectChange::Write { object: THIRD, offset: 0, bytes: &[9; PAGE] }]);
    cache.drain().expect("devices that work");
    drop(cache);
    machine.crash();
    let cache = machine.open();
    step_for(&machine, &cache, 5);
    cache.drain().expect("devices that work");
    let stored_in_target = cache.store().data().page_lsn(TARGET, PageNo(0)).expect("sound");
    // The log moves on, so that the records are not replayed once more.
    for number in 0..300 {
        machine.write(&cache, OTHER, number, &[1; PAGE]).expect("space");
        machine.sync(&cache).expect("a buffer that works");
    }
    cache.drain().expect("devices that work");
    machine.write(&cache, OTHER, 0, &[1; PAGE]).expect("space");
    machine.sync(&cache).expect("a buffer that works");
    drop(cache);
    let cache = machine.open();
    let found = cache.read_now(THIRD, 0, PAGE).expect("sound")[0];
    assert_eq!((found, stored_in_target), (9, None), "what was written and stored, and what was deleted");
}

#[test]
fn a_clone_of_an_object_that_had_nothing_is_not_made_again_when_its_target_is_gone() {
    let machine = three(8);
    let cache = machine.open();
    at_once(&cache, &[ObjectChange::Transfer(pages(THIRD, 0, 4, TARGET))]);
    step_for(&machine, &cache, 1);
    assert_eq!(cache.status().pending_transfers, 0);
    at_once(&cache, &[ObjectChange::Delete { object: TARGET }]);
    at_once(&cache, &[ObjectChange::Write { object: THIRD, offset: 0, bytes: &[9; PAGE] }]);
    cache.drain().expect("devices that work");
    drop(cache);
    machine.crash();
    let cache = machine.open();
    step_for(&machine, &cache, 5);
    assert_eq!(cache.store().data().page_lsn(TARGET, PageNo(0)).expect("sound"), None, "it was deleted");
}

/// Writes one page of `OTHER` again and again, with a commit each, until the buffer is full enough.
fn fill_until(machine: &Machine, cache: &Cache, is_enough: impl Fn(&Cache) -> bool) {
    for number in 0..2000u64 {
        if is_enough(cache) {
            return;
        }
        at_once(cache, &[ObjectChange::Write { object: OTHER, offset: 0, bytes: &[number as u8; PAGE] }]);
        let _ = asked(|then| cache.sync(then));
        cache.step(BackgroundTask::Commit);
        machine.clock.advance(Duration::from_millis(1));
    }
    panic!("never: {:?}", cache.status());
}

fn is_half_full(cache: &Cache) -> bool {
    cache.status().buffer_free_bytes < cache.status().buffer_bytes / 2
}

#[test]
fn what_lies_beside_a_move_that_was_logged_again_does_not_come_back_when_the_log_begins_in_its_middle() {
    let machine = three(9);
    damage_map_of(&machine, TWO, &[ONE, OTHER]);
    let one = damage_map_of(&machine, ONE, &[OTHER]);
    let cache = machine.open();
    for page in 0..300 {
        at_once(
            &cache,
            &[ObjectChange::Write { object: ONE, offset: page * PAGE as u64, bytes: &[4; PAGE] }],
        );
    }
    at_once(&cache, &[moved(ONE, 0, 300, TARGET)]);
    // Stuck until the end: it keeps the group with the last relogged record.
    at_once(&cache, &[ObjectChange::Transfer(pages(TWO, 0, 4, THIRD))]);
    let _ = asked(|then| cache.sync(then));
    cache.step(BackgroundTask::Commit);
    cache.step(BackgroundTask::WriteBack);
    cache.step(BackgroundTask::WriteBack);
    assert_eq!(cache.status().stuck_count, 2);
    fill_until(&machine, &cache, is_half_full);
    let before = cache.status().counters.pages_relogged;
    for _ in 0..5 {
        if cache.status().counters.pages_relogged >= before + 2 {
            break;
        }
        machine.clock.advance(Duration::from_millis(50));
        cache.step(BackgroundTask::WriteBack);
    }
    assert!(cache.status().counters.pages_relogged >= before + 2, "{:?}", cache.status());
    assert_eq!(cache.status().pending_transfers, 2);
    heal(&machine, &one);
    machine.clock.advance(Duration::from_secs(100));
    cache.drain().expect_err("the clone of TWO is stuck");
    let status = cache.status();
    assert_eq!((status.pending_transfers, status.dirty_pages), (1, 0), "{status:?}");
    let read = |cache: &Cache, object, page: u64| {
        cache.read_now(object, page * PAGE as u64, PAGE).expect("sound")[0]
    };
    assert_eq!((read(&cache, ONE, 299), read(&cache, TARGET, 299)), (0, 4), "before the crash");
    // The release becomes durable.
    for _ in 0..3 {
        at_once(&cache, &[ObjectChange::Write { object: OTHER, offset: 0, bytes: &[1; PAGE] }]);
        machine.sync(&cache).expect("a buffer that works");
    }
    drop(cache);
    machine.crash();
    let cache = machine.open();
    step_for(&machine, &cache, 5);
    let found: Vec<u64> = (0..300).filter(|&page| read(&cache, ONE, page) != 0).collect();
    assert_eq!(found, [], "they were moved away, and TARGET has them: {}", read(&cache, TARGET, 299));
}

#[test]
fn a_cut_before_a_clone_that_was_logged_again_behind_it_does_not_take_what_it_brought() {
    let machine = three(10);
    damage_map_of(&machine, TWO, &[ONE, OTHER]);
    let one = damage_map_of(&machine, ONE, &[OTHER]);
    let cache = machine.open();
    at_once(&cache, &[ObjectChange::Write { object: TWO, offset: 0, bytes: &[3; 100] }]);
    for page in 200..500 {
        at_once(
            &cache,
            &[ObjectChange::Write { object: OTHER, offset: page * PAGE as u64, bytes: &[4; PAGE] }],
        );
    }
    // Like a truncation, followed by a clone of a whole file.
    at_once(&cache, &[ObjectChange::Zero { object: ONE, offset: 0, len: 1 << 30 }]);
    at_once(&cache, &[ObjectChange::Transfer(pages(OTHER, 1, 499, ONE))]);
    let _ = asked(|then| cache.sync(then));
    cache.step(BackgroundTask::Commit);
    cache.step(BackgroundTask::WriteBack);
    cache.step(BackgroundTask::WriteBack);
    fill_until(&machine, &cache, is_half_full);
    for _ in 0..5 {
        cache.step(BackgroundTask::WriteBack);
        cache.step(BackgroundTask::Commit);
    }
    assert!(cache.status().counters.pages_relogged >= 2, "{:?}", cache.status());
    heal(&machine, &one);
    machine.clock.advance(Duration::from_secs(100));
    cache.drain().expect_err("a page of TWO is stuck");
    let status = cache.status();
    assert_eq!((status.pending_transfers, status.pending_punches), (0, 0), "{status:?}");
    let read = |cache: &Cache, page: u64| cache.read_now(ONE, page * PAGE as u64, PAGE).expect("sound")[0];
    assert_eq!(read(&cache, 2), 0xab, "before the crash");
    for _ in 0..3 {
        at_once(&cache, &[ObjectChange::Write { object: OTHER, offset: 0, bytes: &[1; PAGE] }]);
        machine.sync(&cache).expect("a buffer that works");
    }
    drop(cache);
    machine.crash();
    let cache = machine.open();
    let answer = asked(|then| {
        cache.read(ONE, 2 * PAGE as u64, 1, 1, then);
    });
    cache.step(BackgroundTask::Fetch);
    let found = answer.lock().expect("no panic").take().map(|bytes| bytes.expect("sound"));
    assert_eq!(found, Some(vec![0xab]), "pending cuts: {}", cache.status().pending_punches);
}

#[test]
fn a_volume_is_deleted_though_a_clone_in_it_is_stuck() {
    for clones in [false, true] {
        let machine = three(12);
        let cache = machine.open();
        let new = NewVolume { name: "copy", mode: VolumeMode::Writable, created: 1 };
        let copy = cache.clone_volume(VolumeId::MAIN, &new).expect("space");
        let one = ONE.in_volume(copy);
        machine.write(&cache, one, 0, &[1; PAGE]).expect("space");
        cache.drain().expect("devices that work");
        drop(cache);
        damage_map_of(&machine, one, &[ONE, TWO, OTHER]);
        let cache = machine.open();
        at_once(&cache, &[ObjectChange::Write { object: one, offset: 0, bytes: &[2; PAGE] }]);
        if clones {
            at_once(&cache, &[ObjectChange::Transfer(pages(one, 0, 4, TARGET.in_volume(copy)))]);
        }
        step_for(&machine, &cache, 2);
        let deleted = cache.delete_volume(copy);
        assert!(deleted.is_ok(), "{deleted:?}, with a clone: {clones}");
    }
}

/// Between the choice of pages to write back and the fetch of their bases there is no call at which a test
/// could stop. So it is tried very often.
#[test]
fn no_base_is_fetched_for_a_page_that_a_clone_has_taken_since_it_was_chosen() {
    const PAGES: u64 = 8;
    let machine = three(14);
    let cache = machine.open();
    let offset = |page: u64| page * PAGE as u64;
    let apply = |changes: &[ObjectChange<'_>]| machine.apply(&cache, changes).expect("space");
    let part = |byte| move |page| ObjectChange::Write { object: THIRD, offset: offset(page), bytes: byte };
    apply(&[ObjectChange::Write { object: TARGET, offset: 0, bytes: &[1; PAGES as usize * PAGE] }]);
    apply(&[ObjectChange::Write { object: TWO, offset: 0, bytes: &[9; PAGES as usize * PAGE] }]);
    let mut wrong = 0;
    const ROUNDS: u64 = 1000;
    for round in 0..ROUNDS {
        // It is stored, and only parts of its pages are in memory.
        apply(&[ObjectChange::Transfer(pages(TARGET, 0, PAGES, THIRD))]);
        cache.drain().expect("devices that work");
        let parts: Vec<ObjectChange<'_>> = (0..PAGES).map(part(&[2; 10])).collect();
        apply(&parts);
        let mut changes = vec![ObjectChange::Transfer(pages(TWO, 0, PAGES, THIRD))];
        changes.extend((0..PAGES).map(part(&[3; 10])));
        machine.clock.advance(Duration::from_secs(400));
        let mut admitted =
            machine.wait(&cache, |then| cache.admit(TransactionCost::of(&changes), then)).expect("space");
        let go = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                go.wait();
                for _ in 0..3 {
                    cache.step(BackgroundTask::WriteBack);
                }
            });
            go.wait();
            (0..round * 7 % 20_000).for_each(|_| std::hint::spin_loop());
            cache.apply(&mut admitted, &changes).expect("a buffer that works");
        });
        drop(admitted);
        cache.drain().expect("devices that work");
        wrong += u64::from(cache.read_now(THIRD, 0, 100).expect("sound")[10] != 9);
    }
    assert_eq!(wrong, 0, "of {ROUNDS} rounds");
}
