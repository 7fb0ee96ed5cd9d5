//! Items that cannot be written back: a damaged map, a store that fails every write.

use crate::common::plain::{Machine, PATIENCE};
use cache::{
    BackgroundTask, Cache, CacheError, CacheSettings, ObjectChange, SpaceReservation, TransactionCost,
};
use device::{BLOCK_BYTES, Block, Clock, Device, DeviceError, DeviceOperation, ObjectId, Page, SeededRng};
use sim_disk::{DiskFaults, SimClock, SimDisk};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{NewVolume, PageRead, Store, StoreError, StoredPage, VolumeId, VolumeMode};

const ALWAYS: DiskFaults =
    DiskFaults { write_one_in: 1, flush_one_in: 1, read_one_in: 0, trim_one_in: 0, once_after: None };

impl Machine {
    /// Damages both copies of the map's nodes that hold pages of `object`, and no others.
    fn damage_map_of(&self, object: ObjectId) {
        let cannot_be_found = || {
            let store = Store::open(self.store.clone()).ok()?;
            Some(store.data().page_lsns(&[(object, device::PageNo(0))])[0].is_err())
        };
        let mut damaged = 0;
        for pair in self.disks.pairs() {
            self.disks.rot_both(pair);
            match cannot_be_found() {
                Some(true) if self.others_are_found() => damaged += 1,
                _ => self.disks.rot_both(pair),
            }
        }
        assert!(damaged > 0, "there is a node for {object}");
    }

    fn others_are_found(&self) -> bool {
        let store = Store::open(self.store.clone()).expect("only a node is damaged");
        store.data().page_lsn(OTHER, device::PageNo(0)).is_ok_and(|page_lsn| page_lsn.is_some())
    }
}

/// Far apart, so that they do not share a leaf of the map.
const VICTIM: ObjectId = VolumeId::MAIN.object(1, 1);
const OTHER: ObjectId = VolumeId::MAIN.object(1 << 40, 1);

/// A machine on which the map's node for `VICTIM` is damaged.
fn damaged(seed: u64) -> Machine {
    let machine = Machine::new(seed);
    let cache = machine.open();
    for page in 0..64 {
        machine.write(&cache, VICTIM, 2 * page, &[0xab; BLOCK_BYTES]).expect("space");
        machine.write(&cache, OTHER, 2 * page, &[0xcd; BLOCK_BYTES]).expect("space");
    }
    cache.drain().expect("devices that work");
    drop(cache);
    machine.damage_map_of(VICTIM);
    machine
}

#[test]
fn a_damaged_map_node_stops_nobody_but_the_pages_below_it() {
    let machine = damaged(1);
    let cache = machine.open();
    machine.write(&cache, VICTIM, 0, &[1; BLOCK_BYTES]).expect("a write needs no map");
    machine.write(&cache, VICTIM, 8, &[1; 10]).expect("a write needs no map");
    machine.fill(&cache, OTHER).expect("it does not concern them");
    let status = cache.status();
    assert_eq!(status.stuck_count, 2, "{status:?}");
    let named = status.stuck.iter().map(|stuck| (stuck.object, stuck.page.expect("a page").0));
    assert_eq!(named.collect::<Vec<_>>(), [(VICTIM, 0), (VICTIM, 8)]);
    assert!(status.stuck[0].why.contains("of the map"), "{status:?}");
    assert!(cache.read_now(VICTIM, 0, BLOCK_BYTES).expect("it is in memory") == [1; BLOCK_BYTES]);
    let error = cache.drain().expect_err("two pages stay");
    assert!(matches!(error, CacheError::Store(StoreError::Corrupt { .. })), "{error}");
    let status = cache.status();
    assert_eq!((status.dirty_pages, status.pending_punches), (2, 0), "all others are stored");
    assert!(cache.store().space().now().reserved > 0, "what stays keeps its reservation");
}

#[test]
fn what_is_stuck_below_a_damaged_map_node_survives_a_crash_in_the_buffer() {
    let machine = damaged(2);
    let cache = machine.open();
    machine.write(&cache, VICTIM, 0, &[1; BLOCK_BYTES]).expect("a write needs no map");
    machine.fill(&cache, OTHER).expect("it does not concern them");
    machine.sync(&cache).expect("a buffer that works");
    drop(cache);
    machine.crash();
    let cache = machine.open();
    assert!(cache.read_now(VICTIM, 0, BLOCK_BYTES).expect("it is in memory") == [1; BLOCK_BYTES]);
    assert!(cache.read_now(VICTIM, BLOCK_BYTES as u64 * 8, 1).is_err(), "its place is lost");
    assert!(cache.read_now(OTHER, 0, BLOCK_BYTES).expect("it is stored") == [2; BLOCK_BYTES]);
}

#[test]
fn a_cut_that_cannot_be_written_back_does_not_fill_the_buffer_and_survives_a_crash_with_what_came_after_it() {
    for seed in 3..13 {
        let machine = damaged(seed);
        let cache = machine.open();
        let cut = [ObjectChange::Zero { object: VICTIM, offset: 0, len: 1 << 30 }];
        machine.write(&cache, VICTIM, 4, &[3; 100]).expect("space");
        machine.apply(&cache, &cut).expect("space");
        machine.write(&cache, VICTIM, 6, &[5; 100]).expect("space");
        machine.fill(&cache, OTHER).expect("it does not concern them");
        assert!(cache.status().stuck.iter().any(|stuck| stuck.page.is_none()), "{:?}", cache.status());
        machine.sync(&cache).expect("a buffer that works");
        drop(cache);
        machine.crash();
        let cache = machine.open();
        let status = cache.status();
        assert_eq!(status.pending_punches, 1, "{status:?}");
        let read = |page: u64| cache.read_now(VICTIM, page * BLOCK_BYTES as u64, 100);
        assert!(read(6).expect("it was written after the cut") == [5; 100], "seed {seed}");
        assert!(read(4).is_err(), "nobody knows what is there");
    }
}

#[test]
fn a_cut_that_was_logged_again_takes_out_what_is_older_and_leaves_what_is_newer() {
    let machine = Machine::new(20);
    let cache = machine.open();
    let write = |page, byte| machine.write(&cache, VICTIM, page, &[byte; 100]).expect("space");
    (0..4).for_each(|page| write(page, 1));
    let cut = [ObjectChange::Zero { object: VICTIM, offset: 0, len: 4 * BLOCK_BYTES as u64 }];
    machine.apply(&cache, &cut).expect("space");
    let at = cache.status().applied;
    write(2, 2);
    let record = buffer::LogRecord::Punch { object: VICTIM, from: device::PageNo(0), to: device::PageNo(4) };
    cache.buffer().append_relogged(at, &[record]).expect("space");
    machine.sync(&cache).expect("a buffer that works");
    drop(cache);
    machine.crash();
    let cache = machine.open();
    assert_eq!(cache.status().pending_punches, 1);
    for (page, byte) in [(0, 0), (1, 0), (2, 2), (3, 0)] {
        let found = cache.read_now(VICTIM, page * BLOCK_BYTES as u64, 100).expect("a hole or in memory");
        assert!(found == vec![byte; 100], "page {page}");
    }
}

#[test]
fn a_store_that_fails_all_writes_fails_writers_after_a_while_and_no_reader_and_recovers() {
    let machine = Machine::new(30);
    let cache = machine.open();
    machine.write(&cache, OTHER, 0, &[7; BLOCK_BYTES]).expect("space");
    cache.drain().expect("devices that work");
    machine.store.set_faults(ALWAYS);
    let error = machine.fill(&cache, VICTIM).expect_err("the buffer is full and nothing is written back");
    assert!(matches!(error, CacheError::Store(StoreError::Device(_))), "{error}");
    let waited = machine.clock.monotonic();
    assert!(waited >= PATIENCE && waited < 2 * PATIENCE, "after {waited:?}");
    let status = cache.status();
    let why = status.stalled.as_ref().expect("it says why");
    assert!(why.contains("made-up") && why.contains("attempts"), "{why}");
    assert_eq!(status.parked_admissions, 0);
    // Later writers get the error at once.
    assert!(machine.fill(&cache, VICTIM).is_err());
    assert!(machine.clock.monotonic() < waited + Duration::from_secs(1));
    machine.sync(&cache).expect("the buffer works, and so does a sync");
    assert!(cache.read_now(OTHER, 0, 10).expect("reads go on") == [7; 10]);
    machine.store.set_faults(DiskFaults::default());
    // Within the time between two attempts.
    (0..200).for_each(|_| {
        cache.step(BackgroundTask::WriteBack);
        cache.step(BackgroundTask::Commit);
        machine.clock.advance(Duration::from_millis(10));
    });
    machine.fill(&cache, VICTIM).expect("the store works again");
    assert_eq!(cache.status().stalled, None);
    cache.drain().expect("devices that work");
    assert_eq!((cache.status().dirty_pages, cache.store().space().now().reserved), (0, 0));
}

#[test]
fn a_store_that_cannot_even_be_read_fails_writers_of_parts_of_pages_after_a_while() {
    let machine = Machine::new(31);
    let cache = machine.open();
    machine.fill(&cache, VICTIM).expect("space");
    cache.drain().expect("devices that work");
    drop(cache);
    let cache = machine.open();
    machine.store.set_faults(DiskFaults { read_one_in: 1, ..ALWAYS });
    let parts = |bytes: u8| {
        let mut pages = (0..8).flat_map(|_| 0..1024);
        pages.try_for_each(|page| machine.write(&cache, VICTIM, page, &vec![bytes; 3000]))
    };
    let error = parts(3).expect_err("nothing is written back");
    assert!(matches!(error, CacheError::Store(StoreError::Device(_))), "{error}");
    assert!(cache.status().stalled.is_some());
    machine.store.set_faults(DiskFaults::default());
    machine.clock.advance(Duration::from_secs(61));
    (0..100).for_each(|_| {
        cache.step(BackgroundTask::WriteBack);
        cache.step(BackgroundTask::Commit);
    });
    parts(4).expect("the store works again");
    assert_eq!(cache.status().stalled, None);
}

#[test]
fn a_store_that_cannot_be_asked_what_is_stored_fails_writers_after_a_while() {
    let machine = Machine::new(33);
    let cache = machine.open();
    machine.fill(&cache, VICTIM).expect("space");
    cache.drain().expect("devices that work");
    machine.write(&cache, VICTIM, 3, &[5; 100]).expect("space");
    machine.sync(&cache).expect("a buffer that works");
    drop(cache);
    machine.crash();
    let cache = machine.open();
    machine.store.set_faults(DiskFaults { read_one_in: 1, ..ALWAYS });
    let error = machine.fill(&cache, OTHER).expect_err("nothing is written back");
    assert!(matches!(error, CacheError::Store(StoreError::Device(_))), "{error}");
    assert!(cache.status().stalled.is_some());
    machine.store.set_faults(DiskFaults::default());
    machine.clock.advance(Duration::from_secs(61));
    (0..100).for_each(|_| {
        cache.step(BackgroundTask::WriteBack);
        cache.step(BackgroundTask::Commit);
    });
    machine.fill(&cache, OTHER).expect("the store works again");
    assert_eq!(cache.status().stalled, None);
    cache.drain().expect("the store works again");
    assert!(cache.read_now(VICTIM, 3 * BLOCK_BYTES as u64, 100).expect("it is stored") == [5; 100]);
}

#[test]
fn writers_are_told_after_a_while_where_each_page_that_could_be_written_back_is_below_a_damaged_node() {
    let machine = damaged(34);
    let dirty_bytes_max = 8 * BLOCK_BYTES as u64;
    let commit_inline_below = Duration::ZERO;
    let settings = CacheSettings { dirty_bytes_max, commit_inline_below, ..CacheSettings::default() };
    let cache = machine.disks.open(machine.clock.clone(), settings).expect("only a node is damaged");
    let mut pages = 0..64;
    let told = pages.try_for_each(|page| machine.write(&cache, VICTIM, 2 * page, &[1; BLOCK_BYTES]));
    let error = told.expect_err("nothing is written back");
    assert!(matches!(error, CacheError::Store(StoreError::Corrupt { .. })), "{error}");
    let waited = machine.clock.monotonic();
    assert!(waited >= PATIENCE && waited < 2 * PATIENCE, "after {waited:?}");
    let status = cache.status();
    assert_eq!((status.stuck_count, status.dirty_pages), (8, 8), "{status:?}");
}

#[test]
fn a_page_that_is_stuck_for_long_does_not_fail_writers_who_find_the_buffer_full() {
    let machine = damaged(32);
    let cache = machine.open();
    machine.write(&cache, VICTIM, 0, &[1; BLOCK_BYTES]).expect("a write needs no map");
    machine.clock.advance(Duration::from_secs(400));
    cache.step(BackgroundTask::WriteBack);
    assert!(cache.status().stalled.is_some(), "nothing else was there to be written back");
    machine.clock.advance(4 * PATIENCE);
    // Nothing is written back before the buffer is full.
    machine.fill(&cache, OTHER).expect("they only have to wait");
    assert_eq!(cache.status().stalled, None);
}

/// Admits changes for which there is space at once.
fn admit(cache: &Cache, changes: &[ObjectChange<'_>]) -> SpaceReservation {
    let slot = Arc::new(Mutex::new(None));
    let entered = slot.clone();
    cache.admit(
        TransactionCost::of(changes),
        Box::new(move |reservation| *entered.lock().expect("one thread") = Some(reservation)),
    );
    let admitted: Option<Result<SpaceReservation, CacheError>> = slot.lock().expect("one thread").take();
    admitted.expect("space at once").expect("space")
}

#[test]
fn a_sync_after_the_last_commit_of_a_stop_is_answered() {
    let machine = Machine::new(40);
    let cache = machine.open();
    let change = [ObjectChange::Write { object: VICTIM, offset: 0, bytes: &[1; 10] }];
    let mut reservation = admit(&cache, &change);
    cache.stop();
    cache.drain().expect("devices that work");
    let lsn = cache.apply(&mut reservation, &change).expect("it was let in before");
    let answered = Arc::new(Mutex::new(false));
    let answer = answered.clone();
    cache.sync(Box::new(move |outcome| {
        outcome.expect("a buffer that works");
        *answer.lock().expect("one thread") = true;
    }));
    assert!(*answered.lock().expect("one thread"), "nobody else will answer");
    assert!(cache.status().durable >= lsn);
}

#[test]
fn a_change_that_was_let_in_before_the_stop_is_refused_once_the_store_is_called_complete() {
    let machine = Machine::new(40);
    let cache = machine.open();
    let change = [ObjectChange::Write { object: VICTIM, offset: 0, bytes: &[1; 10] }];
    let mut reservation = admit(&cache, &change);
    cache.stop();
    cache.drain().expect("devices that work");
    cache.note_complete().expect("a store that works");
    let refused = cache.apply(&mut reservation, &change);
    assert!(matches!(refused, Err(CacheError::Stopping)), "{refused:?}");
    drop(reservation);
    drop(cache);
    assert!(!Store::open(machine.store.clone()).expect("a store").needs_buffer());
}

#[test]
fn a_store_that_lacks_a_change_is_not_called_complete() {
    let machine = Machine::new(41);
    let cache = machine.open();
    let change = [ObjectChange::Write { object: VICTIM, offset: 0, bytes: &[1; 10] }];
    let mut reservation = admit(&cache, &change);
    cache.apply(&mut reservation, &change).expect("space");
    cache.stop();
    cache.note_complete().expect("nothing is written");
    drop(reservation);
    drop(cache);
    assert!(Store::open(machine.store.clone()).expect("a store").needs_buffer());
}

#[test]
fn a_damaged_node_of_a_deleted_volume_keeps_nobody_from_the_space_that_cleaning_gives() {
    let machine = Machine::new(21);
    let cache = machine.open();
    for page in 0..64 {
        machine.write(&cache, VICTIM, 2 * page, &[0xab; BLOCK_BYTES]).expect("space");
        machine.write(&cache, OTHER, 2 * page, &[0xcd; BLOCK_BYTES]).expect("space");
    }
    let new = NewVolume { name: "copy", mode: VolumeMode::ReadOnly, created: 1 };
    let copy = cache.clone_volume(VolumeId::MAIN, &new).expect("space");
    machine.apply(&cache, &[ObjectChange::Delete { object: VICTIM }]).expect("a deletion");
    cache.drain().expect("devices that work");
    drop(cache);
    machine.damage_map_of(VICTIM.in_volume(copy));
    let cache = machine.open();
    cache.delete_volume(copy).expect("a log entry");
    let mut random = SeededRng::new(5);
    for _ in 0..24_000 {
        machine.write(&cache, OTHER, random.below(11_200), &[3; BLOCK_BYTES]).expect("space after cleaning");
    }
    assert!(cache.store().maintenance().is_freeing(), "the damaged node stays");
    assert!(cache.store().counters().segments_cleaned > 0, "nothing had to be cleaned");
}

#[test]
fn what_is_damaged_is_left_out_of_a_rescue_and_keeps_nobody_else_from_it() {
    let machine = damaged(9);
    let cache = machine.open();
    machine.write(&cache, VICTIM, 8, &[1; 10]).expect("a write needs no map");
    machine.write(&cache, OTHER, 8, &[2; BLOCK_BYTES]).expect("a write needs no map");
    machine.buffer.set_faults(ALWAYS);
    assert!(machine.sync(&cache).is_err());
    for _ in 0..10 {
        cache.step(BackgroundTask::WriteBack);
        machine.clock.advance(Duration::from_secs(1));
    }
    let status = cache.status();
    assert_eq!((status.rescued.is_some(), status.left_out), (true, 1), "{status:?}");
    let volume = cache.store().volumes().named(&status.rescued.expect("a name")).expect("the volume").id;
    let pages = [VICTIM, OTHER].map(|object| PageRead::new(object.in_volume(volume), device::PageNo(8)));
    let [victim, other] = {
        let mut wants = pages;
        cache.store().data().read(&mut wants);
        wants.map(|want| want.result)
    };
    assert!(matches!(victim, Err(StoreError::Corrupt { .. })), "an error, and no wrong bytes");
    let Ok(StoredPage::Page { bytes, .. }) = other else { panic!("{other:?}") };
    assert!(bytes.0 == [2; BLOCK_BYTES]);
}

#[test]
fn nobody_names_a_copy_like_what_is_rescued() {
    let machine = Machine::new(10);
    let cache = machine.open();
    for name in ["rescuing-7", "rescued-7"] {
        let new = NewVolume { name, mode: VolumeMode::Writable, created: 1 };
        let refused = cache
            .clone_volume(VolumeId::MAIN, &new)
            .expect_err("a start would delete it, or a rescue take it for its own");
        assert!(matches!(refused, CacheError::Store(StoreError::BadName { .. })), "{refused}");
    }
}

#[test]
fn a_rescue_without_a_cut_is_not_called_whole() {
    let machine = damaged(11);
    let cache = machine.open();
    let offset = 0;
    let len = 100 * BLOCK_BYTES as u64;
    machine.apply(&cache, &[ObjectChange::Zero { object: VICTIM, offset, len }]).expect("a cut needs no map");
    machine.buffer.set_faults(ALWAYS);
    assert!(machine.sync(&cache).is_err());
    cache.step(BackgroundTask::WriteBack);
    let status = cache.status();
    assert_eq!(
        (status.rescued, status.not_rescued.is_some()),
        (None, true),
        "what was cut could be read again"
    );
}

/// The time of a failed attempt to write back and the next one.
const AT_ONCE: Duration = Duration::from_secs(5);

#[test]
fn a_file_system_that_takes_back_what_it_gave_is_enospc_at_once_and_all_goes_on_when_it_has_space_again() {
    let machine = Machine::new(35);
    let cache = machine.open();
    machine.write(&cache, VICTIM, 3, &[5; 100]).expect("space");
    machine.sync(&cache).expect("a buffer that works");
    // The store was not told that it is a sparse file, or that each write takes new space: copy-on-write, or
    // a quota.
    machine.store.set_space(machine.store.written_blocks().len() as u64);
    let begun = machine.clock.monotonic();
    let error = machine.fill(&cache, OTHER).expect_err("nothing is written back");
    let waited = machine.clock.monotonic() - begun;
    assert!(error.is_full() && waited < AT_ONCE, "{error} after {waited:?}");
    machine.sync(&cache).expect("a buffer that works");
    let begun = machine.clock.monotonic();
    machine.apply(&cache, &[ObjectChange::Delete { object: VICTIM }]).expect("deletions have a reserve");
    assert!(machine.clock.monotonic() - begun < AT_ONCE);
    assert!(cache.drain().is_err_and(|error| error.is_full()), "nothing is written back");
    machine.store.set_space(u64::MAX);
    machine.clock.advance(Duration::from_secs(2));
    machine.fill(&cache, OTHER).expect("there is space again");
    cache.drain().expect("there is space again");
    assert!(cache.read_now(VICTIM, 3 * BLOCK_BYTES as u64, 100).expect("a hole") == [0; 100]);
    assert!(cache.read_now(OTHER, 0, BLOCK_BYTES).expect("it is stored") == [2; BLOCK_BYTES]);
}

/// A disk whose reads time out, each after half a minute, once it is `away`.
struct TimesOut {
    disk: Arc<SimDisk>,
    clock: Arc<SimClock>,
    away: AtomicBool,
    timeouts: AtomicU64,
}

impl TimesOut {
    fn error(&self, at: Block, count: u64) -> Option<DeviceError> {
        if !self.away.load(Ordering::Relaxed) {
            return None;
        }
        self.timeouts.fetch_add(1, Ordering::Relaxed);
        self.clock.advance(Duration::from_secs(30));
        let device = self.name().to_owned();
        let operation = DeviceOperation::Read;
        let reason = "timed out".to_owned();
        Some(DeviceError { device, operation, at, count, errno: 5, reason })
    }
}

impl Device for TimesOut {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn name(&self) -> &str {
        self.disk.name()
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        self.error(at, into.len() as u64).map_or_else(|| self.disk.read(at, into), Err)
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.disk.write(at, from)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.disk.flush()
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.disk.trim(at, count)
    }
}

#[test]
fn an_unmount_above_a_store_whose_reads_time_out_tries_each_page_once_and_ends() {
    const PAGES: u64 = 600;
    let machine = Machine::new(12);
    let cache = machine.open();
    (0..PAGES).for_each(|page| machine.write(&cache, VICTIM, page, &[1; BLOCK_BYTES]).expect("space"));
    cache.drain().expect("disks that work");
    drop(cache);
    let disk = machine.store.clone();
    let clock = machine.clock.clone();
    let slow = Arc::new(TimesOut { disk, clock, away: false.into(), timeouts: 0.into() });
    let cache = machine.open_on(slow.clone(), machine.buffer.clone()).expect("sound media");
    // Their bases are needed before they can be written back.
    (0..PAGES).for_each(|page| machine.write(&cache, VICTIM, page, &[2; 100]).expect("space"));
    slow.away.store(true, Ordering::Relaxed);
    let error = cache.drain().expect_err("nothing can be written back");
    assert!(error.to_string().contains("timed out"), "{error}");
    let timeouts = slow.timeouts.load(Ordering::Relaxed);
    assert!(timeouts <= 2 * PAGES, "{timeouts} reads timed out for {PAGES} pages");
    let status = cache.status();
    assert_eq!((status.dirty_pages, status.stuck_count), (PAGES, PAGES));
    slow.away.store(false, Ordering::Relaxed);
    cache.drain().expect("the disk is back");
}
