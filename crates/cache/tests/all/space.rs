//! Space is made in the background, a bounded step at a time, before writers need it; and only if there is
//! some to be made.

use crate::common::Disks;
use crate::common::apply_at_once;
use cache::{
    BackgroundTask, Cache, CacheCompletion, CacheError, CacheSettings, ObjectChange, SpaceClaim,
    StepProgress, TransactionCost,
};
use device::{BLOCK_BYTES, Clock, ObjectId, Page, PageNo, PageTransfer, SeededRng, VolumeId};
use sim_disk::SimClock;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{CleaningOutcome, NewVolume, StoreError, VolumeMode};

const SEGMENTS: u64 = 144;
/// Large ones, so that most of the store can be used.
const LARGE_SEGMENTS: u64 = 230;
const SEGMENT_BLOCKS: u64 = 32;
/// So that a step of the cleaner, at least eight blocks, is an eighth of a segment. In small segments a
/// write-back of one page may cost more than a segment, once the store is three quarters full.
const LARGE_SEGMENT_BLOCKS: u64 = 128;
const FILE: ObjectId = VolumeId::MAIN.object(5, 1);
const OTHER_FILE: ObjectId = VolumeId::MAIN.object(6, 1);

struct Machine {
    disks: Disks,
    clock: Arc<SimClock>,
    cache: Cache,
}

impl Machine {
    fn new() -> Machine {
        Machine::sized(SEGMENT_BLOCKS, CacheSettings::default())
    }

    fn sized(segment_blocks: u64, settings: CacheSettings) -> Machine {
        let segments = if segment_blocks == SEGMENT_BLOCKS { SEGMENTS } else { LARGE_SEGMENTS };
        let disks = Disks::new(1, 4 + segments * segment_blocks, 512, segment_blocks as u32);
        let clock = Arc::new(SimClock::new());
        let cache = disks.open(clock.clone(), settings).expect("sound media");
        Machine { disks, clock, cache }
    }

    /// Writes a page, doing background work until it is admitted. `each` gets the result of every maintenance
    /// step.
    fn write(&self, page: u64, each: &mut dyn FnMut(StepProgress)) -> Result<(), CacheError> {
        self.write_to(FILE, page, each)
    }

    fn write_to(
        &self,
        object: ObjectId,
        page: u64,
        each: &mut dyn FnMut(StepProgress),
    ) -> Result<(), CacheError> {
        let changes =
            [ObjectChange::Write { object, offset: page * BLOCK_BYTES as u64, bytes: &[1; BLOCK_BYTES] }];
        let reservation = self.wait(|then| self.cache.admit(TransactionCost::of(&changes), then), each);
        self.cache.apply(&mut reservation?, &changes).map(drop)
    }

    fn wait<T: Send + 'static>(
        &self,
        ask: impl FnOnce(CacheCompletion<T>),
        each: &mut dyn FnMut(StepProgress),
    ) -> Result<T, CacheError> {
        let slot = Arc::new(Mutex::new(None));
        let answer = slot.clone();
        ask(Box::new(move |outcome| *answer.lock().expect("one thread") = Some(outcome)));
        for _ in 0..20_000 {
            if let Some(outcome) = slot.lock().expect("one thread").take() {
                return outcome;
            }
            self.work(each);
        }
        panic!("nobody answered: {:?}", self.cache.status());
    }

    fn work(&self, each: &mut dyn FnMut(StepProgress)) {
        for task in BackgroundTask::ALL {
            let done = self.cache.step(task);
            if task == BackgroundTask::Checkpoint {
                each(done);
            }
        }
        self.clock.advance(Duration::from_millis(10));
    }
}

#[test]
fn a_step_of_each_kind_of_background_work_moves_no_more_than_half_a_segment() {
    let machine = Machine::new();
    let mut random = SeededRng::new(1);
    let mut before = 0;
    let mut most = 0;
    // Half of the store, five times its size, written back every now and then.
    for number in 0..5 * SEGMENTS * SEGMENT_BLOCKS {
        let page = random.below(64 * SEGMENT_BLOCKS);
        let mut each = |_| {
            let moved = machine.cache.store().counters().pages_cleaned;
            most = most.max(moved - before);
            before = moved;
        };
        machine.write(page, &mut each).expect("half of the store is free");
        if number % 16 == 0 {
            machine.work(&mut each);
        }
    }
    assert!(before > 1000, "only {before} pages were moved");
    assert!(most <= SEGMENT_BLOCKS / 2, "{most} pages were moved");
}

/// Which pages are overwritten.
#[derive(Debug, Clone, Copy)]
enum Load {
    Uniform,
    /// Nine of ten writes go to a tenth of the pages.
    Skewed,
}

/// When background work is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Background {
    /// A step of each kind for each write.
    Beside,
    /// Only while a write waits: the writer is faster than the store.
    WhileWaiting,
}

/// Overwrites pages of a store that is `percent` full, twice its size. Returns the most blocks that the
/// cleaner moved while one write waited.
fn most_moved_during_a_wait(percent: u64, load: Load, background: Background) -> u64 {
    // Few reservations are out, so only the cleaner can make a write wait.
    let settings = CacheSettings { dirty_bytes_max: 32 * BLOCK_BYTES as u64, ..CacheSettings::default() };
    let machine = Machine::sized(LARGE_SEGMENT_BLOCKS, settings);
    let mut random = SeededRng::new(percent);
    let mut most = 0;
    let blocks = LARGE_SEGMENTS * LARGE_SEGMENT_BLOCKS;
    let pages = blocks * percent / 100;
    let moved = || machine.cache.store().counters().pages_cleaned;
    for number in 0..pages + 2 * blocks {
        let page = match load {
            _ if number < pages => number,
            Load::Skewed if !random.once_in(10) => random.below(pages / 10),
            _ => random.below(pages),
        };
        let before = moved();
        machine.write(page, &mut |_| {}).unwrap_or_else(|error| panic!("{percent} %: {error}"));
        most = most.max(moved() - before);
        if background == Background::Beside {
            machine.work(&mut |_| {});
        }
    }
    assert!(moved() > blocks / 4, "{percent} % full, {load:?}: only {} pages were moved", moved());
    let told = machine.cache.status().counters.cleaned_while_parked;
    let writers_pay = background == Background::WhileWaiting;
    assert!(told <= most && (told > 0 || !writers_pay), "{told} of {most} while somebody waited");
    most
}

#[test]
fn no_write_waits_until_a_whole_segment_is_cleaned() {
    for percent in [50, 60, 70] {
        for load in [Load::Uniform, Load::Skewed] {
            for background in [Background::Beside, Background::WhileWaiting] {
                let most = most_moved_during_a_wait(percent, load, background);
                println!("{percent} % full, {load:?}, {background:?}: {most} of {LARGE_SEGMENT_BLOCKS}");
                assert!(
                    most < LARGE_SEGMENT_BLOCKS,
                    "{percent} % full, {load:?}, {background:?}: {most} blocks"
                );
            }
        }
    }
}

#[test]
fn a_full_store_that_nobody_writes_to_is_left_alone() {
    let machine = Machine::new();
    let full = (0..).find_map(|page| machine.write(page, &mut |_| {}).err());
    assert!(matches!(full, Some(CacheError::Store(StoreError::Full))), "{full:?}");
    let mut idle = false;
    for _ in 0..1000 {
        machine.work(&mut |done| idle = done == StepProgress::Idle);
    }
    assert!(idle, "it is still looking for space");
    let seen = machine.disks.power.operations_seen();
    (0..1000).for_each(|_| machine.work(&mut |done| assert_eq!(done, StepProgress::Idle)));
    assert_eq!(machine.disks.power.operations_seen(), seen, "a device was written to");
}

#[test]
fn what_was_stored_as_deltas_is_folded_when_nothing_was_written_for_a_while_and_then_all_is_still() {
    let mut machine = Machine::new();
    (0..200).for_each(|page| machine.write(page, &mut |_| {}).expect("space"));
    machine.cache.drain().expect("sound media");
    // Pages that are written whole are in memory, and would be stored whole.
    machine.disks.crash();
    machine.cache = machine.disks.open(machine.clock.clone(), CacheSettings::default()).expect("sound media");
    for page in 0..150 {
        let changes =
            [ObjectChange::Write { object: FILE, offset: page * BLOCK_BYTES as u64, bytes: &[2; 10] }];
        let reservation =
            machine.wait(|then| machine.cache.admit(TransactionCost::of(&changes), then), &mut |_| {});
        machine.cache.apply(&mut reservation.expect("space"), &changes).expect("power");
    }
    machine.cache.drain().expect("sound media");
    let counters = || machine.cache.store().counters();
    assert!(counters().delta_blocks_written > 0);
    (0..400).for_each(|_| machine.work(&mut |_| {}));
    assert_eq!(counters().pages_delta_merged, 0, "after four seconds");
    (0..200).for_each(|_| machine.work(&mut |_| {}));
    assert_eq!(counters().pages_delta_merged, 150);
    let seen = machine.disks.power.operations_seen();
    (0..1000).for_each(|_| machine.work(&mut |_| {}));
    assert_eq!(machine.disks.power.operations_seen(), seen, "a device was written to");
    let found = machine.cache.read_now(FILE, 149 * BLOCK_BYTES as u64, 2 * BLOCK_BYTES).expect("sound media");
    let expected = [[2; 10].as_slice(), &[1; 2 * BLOCK_BYTES - 10]].concat();
    assert!(found == expected);
}

impl Machine {
    /// Admits writes of new pages, without any work in between, until one has to wait.
    fn reserve_all(&self) {
        for page in 1 << 20.. {
            let bytes = [1; BLOCK_BYTES];
            let changes =
                [ObjectChange::Write { object: FILE, offset: page * BLOCK_BYTES as u64, bytes: &bytes }];
            // The store knows the estimate for all.
            self.cache.store_without_spare();
            let Some(applied) = apply_at_once(&self.cache, &changes) else { return };
            applied.expect("power");
        }
    }

    fn assert_all_is_reserved(&self) -> u64 {
        let dirty = self.cache.status().dirty_pages;
        // A block for each, and twelve for each leaf of 128 pages, of which five at most are not full.
        let reserved = self.cache.store_without_spare().space().now().reserved;
        assert!((dirty..=dirty + 12 * (dirty / 128 + 5)).contains(&reserved), "{reserved} for {dirty} pages");
        dirty
    }
}

#[test]
fn pages_that_a_crash_left_dirty_keep_their_reservation_though_the_store_has_less_space_afterwards() {
    let mut machine = Machine::new();
    (0..64 * SEGMENT_BLOCKS).for_each(|page| machine.write(page, &mut |_| {}).expect("space"));
    (0..100).for_each(|_| machine.work(&mut |_| {}));
    machine.reserve_all();
    machine.cache.sync(Box::new(|outcome| outcome.expect("power")));
    while machine.cache.step(BackgroundTask::Commit) == StepProgress::Worked {}
    let dirty = machine.assert_all_is_reserved();
    assert!(dirty > 100, "{dirty}");
    machine.disks.crash();
    machine.cache = machine.disks.open(machine.clock.clone(), CacheSettings::default()).expect("sound media");
    assert_eq!(machine.assert_all_is_reserved(), dirty);
}

#[test]
fn what_gives_space_back_is_granted_space_that_there_is_not() {
    let machine = Machine::new();
    (0..79 * SEGMENT_BLOCKS).for_each(|page| machine.write(page, &mut |_| {}).expect("space"));
    machine.cache.drain().expect("sound media");
    machine.reserve_all();
    let dirty = machine.assert_all_is_reserved();
    // Of each file to be truncated, the last page is zeroed from somewhere on.
    for page in 0..10 {
        let changes = [ObjectChange::Zero { object: FILE, offset: page * BLOCK_BYTES as u64, len: 100 }];
        let cost = TransactionCost { claim: SpaceClaim::Frees, ..TransactionCost::of(&changes) };
        let applied = machine.cache.try_transact(cost, |tx| tx.apply(&changes)).expect("a reserve");
        applied.expect("power");
    }
    assert_eq!(machine.assert_all_is_reserved(), dirty + 10);
    assert_eq!(machine.cache.store().space().now().reservable, 0);
    let more = [ObjectChange::Write { object: FILE, offset: 0, bytes: &[1] }];
    assert!(apply_at_once(&machine.cache, &more).is_none());
}

impl Machine {
    /// A store with `pages` pages, and dirty pages that have the rest reserved.
    fn crowded(pages: u64) -> Machine {
        let dirty_bytes_max = 32 * BLOCK_BYTES as u64;
        let dirty_age_max = Duration::from_secs(5);
        let settings = CacheSettings { dirty_bytes_max, dirty_age_max, ..CacheSettings::default() };
        let machine = Machine::sized(SEGMENT_BLOCKS, settings);
        for page in 0..pages {
            machine.write_to(OTHER_FILE, page, &mut |_| {}).expect("space");
        }
        machine.cache.drain().expect("sound media");
        machine.reserve_all();
        assert!(machine.assert_all_is_reserved() > 16);
        machine
    }

    /// Uses up free segments behind the cache's back, as many short mounts with a crash each may do.
    fn use_up_free_segments(&self, mut page: impl FnMut() -> u64) {
        let store = self.cache.store();
        let page_lsn = store.data().newest_lsn();
        let full = std::iter::repeat_with(|| {
            let bytes = Arc::new(Box::new(Page([3; BLOCK_BYTES])));
            store.data().apply(&[store::StoreChange::Write {
                object: OTHER_FILE,
                page: PageNo(page()),
                bytes,
                page_lsn,
            }])
        });
        let error = full.take(100_000).find_map(Result::err).expect("it is full");
        assert!(matches!(error, StoreError::Full), "{error}");
    }

    /// Works until all pages are stored, within the patience of writers.
    fn write_all_back(&self, begun: Duration) {
        while self.cache.status().dirty_pages > 0 {
            self.work(&mut |_| {});
            let waited = self.clock.monotonic() - begun;
            assert!(waited < Duration::from_secs(20), "after {waited:?}: {:?}", self.cache.status());
        }
    }
}

const HALF: u64 = SEGMENTS * SEGMENT_BLOCKS / 2;

#[test]
fn a_volume_that_is_expendable_goes_before_a_writer_is_told_that_the_store_is_full() {
    let overwrite = |is_expendable: bool, is_used: bool, pages: u64| {
        let machine = Machine::sized(LARGE_SEGMENT_BLOCKS, CacheSettings::default());
        let half = machine.cache.store().space().now().usable() * 6 / 10;
        (0..half).try_for_each(|page| machine.write(page, &mut |_| {})).expect("there is some");
        let new = NewVolume { name: "copy", mode: VolumeMode::ReadOnly, created: 1 };
        let copy = machine.cache.clone_volume(VolumeId::MAIN, &new).expect("space");
        machine.cache.set_expendable_volumes(if is_expendable { vec![copy] } else { Vec::new() });
        let _used = is_used.then(|| machine.cache.use_volume(copy));
        let outcome = (0..half * pages / 10).try_for_each(|page| machine.write(page, &mut |_| {}));
        let is_there = machine.cache.store().volumes().named("copy").is_some();
        let is_full = outcome.is_err_and(|error| error.is_full());
        (is_full, is_there, machine.cache.status().counters.volumes_given_up)
    };
    assert_eq!(overwrite(true, false, 10), (false, false, 1));
    assert_eq!(overwrite(false, false, 10), (true, true, 0));
    assert_eq!(overwrite(true, true, 10), (true, true, 0), "it is mounted");
    assert_eq!(overwrite(true, false, 3), (false, true, 0), "there is space");
}

#[test]
fn an_expendable_volume_of_a_sparse_store_goes_when_the_file_system_below_is_full() {
    let segments = 2 * LARGE_SEGMENTS * LARGE_SEGMENT_BLOCKS;
    let disks = Disks::new(1, 4 + segments, 512, LARGE_SEGMENT_BLOCKS as u32);
    disks.store.set_space(segments / 2);
    let clock = Arc::new(SimClock::new());
    let cache = disks.open(clock.clone(), CacheSettings::default()).expect("sound media");
    let machine = Machine { disks, clock, cache };
    let pages = segments / 2 * 6 / 10;
    (0..pages).try_for_each(|page| machine.write(page, &mut |_| {})).expect("there is some");
    let new = NewVolume { name: "copy", mode: VolumeMode::ReadOnly, created: 1 };
    let copy = machine.cache.clone_volume(VolumeId::MAIN, &new).expect("space");
    machine.cache.set_expendable_volumes(vec![copy]);
    (0..pages).try_for_each(|page| machine.write(page, &mut |_| {})).expect("the volume goes");
    assert_eq!(machine.cache.status().counters.volumes_given_up, 1);
    assert!(machine.cache.store().space().is_host_fs_known_full());
}

#[test]
fn pages_for_which_the_store_has_no_space_have_it_cleaned_until_it_has_some() {
    for somebody_waits in [true, false] {
        let machine = Machine::crowded(HALF);
        let mut random = SeededRng::new(2);
        machine.use_up_free_segments(|| random.below(HALF));
        let begun = machine.clock.monotonic();
        if somebody_waits {
            machine.write(0, &mut |_| {}).expect("cleaning makes space");
        }
        machine.write_all_back(begun);
    }
}

#[test]
fn an_expendable_volume_stays_while_cleaning_makes_space() {
    let machine = Machine::crowded(HALF / 2);
    let new = NewVolume { name: "copy", mode: VolumeMode::ReadOnly, created: 1 };
    let copy = machine.cache.clone_volume(VolumeId::MAIN, &new).expect("space");
    machine.cache.set_expendable_volumes(vec![copy]);
    let mut random = SeededRng::new(2);
    machine.use_up_free_segments(|| random.below(HALF / 2));
    let begun = machine.clock.monotonic();
    machine.write(0, &mut |_| {}).expect("cleaning makes space");
    machine.write_all_back(begun);
    assert_eq!(machine.cache.status().counters.volumes_given_up, 0);
}

/// A store that is full of two files in turns. A round of cleaning has begun that will empty nothing: blocks
/// were shared once, so it counts what is live.
fn full_and_counting() -> Machine {
    let machine = Machine::sized(LARGE_SEGMENT_BLOCKS, CacheSettings::default());
    let store = machine.cache.store();
    let lsn = machine.cache.store().data().newest_lsn();
    let write = |number: u64| {
        let object = [FILE, OTHER_FILE][(number % 2) as usize];
        let bytes = Arc::new(Box::new(Page([3; BLOCK_BYTES])));
        store::StoreChange::Write { object, page: PageNo(number / 2), bytes, page_lsn: lsn }
    };
    let mut vectors = (0..).map(|vector| (vector * 120..(vector + 1) * 120).map(write).collect::<Vec<_>>());
    let shared = VolumeId::MAIN.object(7, 1);
    let transfer = PageTransfer::clone_range(FILE, PageNo(0)..PageNo(9), shared, PageNo(0));
    store.data().apply(&vectors.next().expect("no end")).expect("space");
    store.data().apply(&[store::StoreChange::Transfer { transfer, lsn: lsn.plus(1) }]).expect("sound media");
    while vectors.find_map(|vector| store.data().apply(&vector).err()).is_some() {
        store.maintenance().checkpoint_twice().expect("sound media");
        if !store.maintenance().clean_round().expect("sound media") {
            break;
        }
    }
    store
        .data()
        .apply(&[store::StoreChange::Delete { object: shared, lsn: lsn.plus(2) }])
        .expect("sound media");
    while store.maintenance().free_deleted_step().expect("sound media") {}
    store.maintenance().checkpoint_twice().expect("sound media");
    assert_eq!(store.space().now().reservable, 0);
    assert_eq!(store.maintenance().clean_step(), Ok(CleaningOutcome::Working));
    machine
}

#[test]
fn a_round_of_cleaning_that_began_before_and_empties_nothing_is_not_the_last_word_on_a_full_store() {
    let machine = full_and_counting();
    let mut steps = std::iter::repeat_with(|| machine.cache.store().maintenance().clean_step());
    assert_eq!(
        steps.find(|step| *step != Ok(CleaningOutcome::Working)),
        Some(Ok(CleaningOutcome::RoundEnded(0)))
    );
    let machine = full_and_counting();
    let lsn = machine.cache.store().data().newest_lsn().plus(1);
    let delete = store::StoreChange::Delete { object: OTHER_FILE, lsn };
    machine.cache.store().data().apply(&[delete]).expect("a reserve");
    machine.write(0, &mut |_| {}).expect("half of the store is dead");
}

#[test]
fn where_pages_find_no_space_and_cleaning_makes_none_writers_are_told_at_once_and_deletions_help() {
    let machine = Machine::crowded(HALF);
    let mut new = HALF..;
    loop {
        machine.use_up_free_segments(|| new.next().expect("no end"));
        if !machine.cache.store().maintenance().clean_round().expect("sound media") {
            break;
        }
    }
    let begun = machine.clock.monotonic();
    let told = machine.write(0, &mut |_| {});
    assert!(matches!(told, Err(CacheError::Store(StoreError::Full))), "{told:?}");
    let waited = machine.clock.monotonic() - begun;
    assert!(waited < Duration::from_secs(5), "{waited:?}");
    let delete = [ObjectChange::Delete { object: OTHER_FILE }];
    let cost = TransactionCost { claim: SpaceClaim::Frees, ..TransactionCost::of(&delete) };
    let applied = machine.cache.try_transact(cost, |tx| tx.apply(&delete)).expect("a reserve");
    applied.expect("power");
    machine.write_all_back(begun);
    machine.write(0, &mut |_| {}).expect("half of the store is free");
}

#[test]
fn a_writer_gets_what_was_just_trimmed_from_a_sparse_store() {
    let disks = Disks::new(1, 4 + SEGMENTS * SEGMENT_BLOCKS, 512, SEGMENT_BLOCKS as u32);
    disks.store.set_space(u64::MAX);
    let clock = Arc::new(SimClock::new());
    let cache = disks.open(clock.clone(), CacheSettings::default()).expect("sound media");
    let machine = Machine { disks, clock, cache };
    let cache = &machine.cache;
    for page in 0..HALF {
        machine.write(page, &mut |_| {}).expect("space");
    }
    cache.drain().expect("sound media");
    let maintenance = cache.store().maintenance();
    while maintenance.allocate_more().expect("sound media") {}
    assert!(!maintenance.gain_space(&*machine.clock).expect("sound media"), "nothing is dead");
    let delete = [ObjectChange::Delete { object: FILE }];
    let cost = TransactionCost { claim: SpaceClaim::Frees, ..TransactionCost::of(&delete) };
    cache.try_transact(cost, |tx| tx.apply(&delete)).expect("a reserve").expect("power");
    cache.drain().expect("sound media");
    while maintenance.free_deleted_step().expect("sound media") {}
    maintenance.checkpoint_twice().expect("sound media");
    assert!(cache.store().space().now().unbacked > HALF / 2, "{:?}", cache.store().space().now());
    let begun = machine.clock.monotonic();
    // In less time than the pause after a refusal of the host file system.
    for page in 0..HALF {
        machine.write_to(OTHER_FILE, page, &mut |_| {}).unwrap_or_else(|error| {
            let waited = machine.clock.monotonic() - begun;
            panic!("page {page} after {waited:?}: {error}: {:?}", cache.store().space().now())
        });
    }
}
