//! Events during other work. Each of these cases was a bug once.

use crate::common::Disks;
use crate::common::apply_at_once;
use cache::{
    BackgroundTask, Cache, CacheCompletion, CacheError, CacheSettings, ObjectChange, SpaceClaim,
    SpaceReservation, StepProgress, TransactionCost,
};
use device::{BLOCK_BYTES, Clock, Device, ObjectId, PageNo, PageTransfer, VolumeId};
use sim_disk::{DiskFaults, SimClock};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use store::Store;

struct Machine {
    disks: Disks,
    clock: Arc<SimClock>,
}

impl Deref for Machine {
    type Target = Disks;
    fn deref(&self) -> &Disks {
        &self.disks
    }
}

impl Machine {
    fn new(seed: u64, buffer_blocks: u64) -> Machine {
        Machine { disks: Disks::new(seed, 8192, buffer_blocks, 32), clock: Arc::new(SimClock::new()) }
    }

    fn open(&self) -> Cache {
        let settings = CacheSettings { commit_inline_below: Duration::ZERO, ..CacheSettings::default() };
        self.disks.open(self.clock.clone(), settings).expect("sound media")
    }

    /// Writes if there is space, otherwise steps until there is.
    fn write(&self, cache: &Cache, object: ObjectId, page: u64, bytes: &[u8]) -> Result<(), CacheError> {
        let changes = [ObjectChange::Write { object, offset: page * BLOCK_BYTES as u64, bytes }];
        self.apply(cache, TransactionCost::of(&changes), &changes)
    }

    fn apply(
        &self,
        cache: &Cache,
        cost: TransactionCost,
        changes: &[ObjectChange<'_>],
    ) -> Result<(), CacheError> {
        let admitted: Answer<SpaceReservation> = Answer::default();
        cache.admit(cost, admitted.then());
        let mut reservation = self.wait(cache, &admitted)?;
        cache.apply(&mut reservation, changes).map(drop)
    }

    fn sync(&self, cache: &Cache) {
        let synced = Answer::default();
        cache.sync(synced.then());
        self.wait(cache, &synced).expect("a device that works");
    }

    fn wait<T: Send + 'static>(&self, cache: &Cache, answer: &Answer<T>) -> Result<T, CacheError> {
        for _ in 0..5_000 {
            if let Some(outcome) = answer.take() {
                return outcome;
            }
            for task in BackgroundTask::ALL {
                cache.step(task);
            }
            self.clock.advance(Duration::from_millis(10));
        }
        panic!("nobody answered: {:?}", cache.status());
    }
}

struct Answer<T>(Arc<Mutex<Option<Result<T, CacheError>>>>);

impl<T> Default for Answer<T> {
    fn default() -> Self {
        Answer(Arc::default())
    }
}

impl<T: Send + 'static> Answer<T> {
    fn then(&self) -> CacheCompletion<T> {
        let slot = self.0.clone();
        Box::new(move |outcome| *slot.lock().expect("one thread") = Some(outcome))
    }

    fn take(&self) -> Option<Result<T, CacheError>> {
        self.0.lock().expect("one thread").take()
    }
}

fn object(slot: u64) -> ObjectId {
    VolumeId::MAIN.object(slot, 1)
}

#[test]
fn what_a_cut_made_unneeded_stays_in_the_buffer_until_the_cut_is_durable() {
    stays_in_the_buffer_until_durable(|victim| ObjectChange::Delete { object: victim });
}

#[test]
fn what_a_clone_replaced_stays_in_the_buffer_until_the_clone_is_durable() {
    stays_in_the_buffer_until_durable(|victim| {
        let transfer = PageTransfer { end: PageNo(1), ..PageTransfer::clone_of(object(4), victim) };
        ObjectChange::Transfer(transfer)
    });
}

/// `makes_unneeded` replaces a page that only the buffer has by zeros.
fn stays_in_the_buffer_until_durable(makes_unneeded: fn(ObjectId) -> ObjectChange<'static>) {
    let filler = object(1);
    let victim = object(2);
    let marker = object(3);
    let mut both = [0, 0];
    for seed in 0..60 {
        let machine = Machine::new(seed, 1024);
        let cache = machine.open();
        // A write-back takes 256 pages, without the victim.
        (0..256).for_each(|page| machine.write(&cache, filler, page, &[1; 4096]).expect("space"));
        machine.sync(&cache);
        machine.write(&cache, victim, 0, &[7; 4096]).expect("space");
        machine.sync(&cache);
        // The write-back must first commit this, which calls us. The victim is removed before the write-back
        // ends.
        machine.write(&cache, filler, 0, &[2; 10]).expect("space");
        let inner = cache.clone();
        cache.sync(Box::new(move |_| {
            let applying = inner.clone();
            let changes = move || {
                [makes_unneeded(victim), ObjectChange::Write { object: marker, offset: 0, bytes: &[9; 100] }]
            };
            let enter = move |reservation: Result<SpaceReservation, CacheError>| {
                applying.apply(&mut reservation.expect("space"), &changes()).expect("power");
            };
            inner.admit(TransactionCost::of(&changes()), Box::new(enter));
        }));
        machine.clock.advance(Duration::from_secs(400));
        cache.step(BackgroundTask::WriteBack);
        assert_eq!(cache.status().counters.pages_stored, 256);
        // The next commit writes once and then fails.
        cache.sync(Box::new(drop));
        machine.power.cut_after(1);
        cache.step(BackgroundTask::Commit);
        drop(cache);
        machine.crash();
        let cache = machine.open();
        let read = |object| cache.read_now(object, 0, 100).expect("power");
        let deleted = read(marker) == vec![9; 100];
        let expected = if deleted { 0 } else { 7 };
        assert!(read(victim) == vec![expected; 100], "seed {seed}: deleted: {deleted}");
        both[usize::from(deleted)] += 1;
    }
    assert!(both[0] > 0, "{both:?}");
}

#[test]
fn a_writer_who_waits_for_dirty_pages_is_let_in_by_the_thread_that_writes_them_back() {
    let machine = Machine::new(1, 1024);
    let dirty_bytes_max = 8 * BLOCK_BYTES as u64;
    let settings =
        CacheSettings { commit_inline_below: Duration::ZERO, dirty_bytes_max, ..CacheSettings::default() };
    let cache = machine.disks.open(machine.clock.clone(), settings).expect("sound media");
    let done = AtomicBool::new(false);
    let mut waited = 0;
    let mut told_by_committer = 0;
    std::thread::scope(|scope| {
        let committer = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                cache.step(BackgroundTask::Commit);
            }
        });
        let here = std::thread::current().id();
        for page in 0..2000 {
            let changes = [ObjectChange::Write { object: object(1), offset: page * 4096, bytes: &[1; 4096] }];
            let told = Arc::new(Mutex::new(None));
            let slot = told.clone();
            let tell = move |reservation: Result<SpaceReservation, CacheError>| {
                *slot.lock().expect("no panic") = Some((reservation, std::thread::current().id()));
            };
            cache.admit(TransactionCost::of(&changes), Box::new(tell));
            let waits = told.lock().expect("no panic").is_none();
            while told.lock().expect("no panic").is_none() {
                cache.step(BackgroundTask::WriteBack);
            }
            let (reservation, by) = told.lock().expect("no panic").take().expect("an answer");
            waited += u64::from(waits);
            told_by_committer += u64::from(waits && by != here);
            cache.apply(&mut reservation.expect("space"), &changes).expect("power");
        }
        done.store(true, Ordering::Relaxed);
        committer.join().expect("no panic");
    });
    assert!(waited > 100 && told_by_committer == 0, "{told_by_committer} of {waited}");
}

#[test]
fn writers_wait_at_the_limit_of_deltas_which_are_counted_apart_from_whole_pages() {
    let machine = Machine::new(1, 1024);
    let delta_bytes_max = 8 * 1024;
    let commit_inline_below = Duration::ZERO;
    let settings = CacheSettings { delta_bytes_max, commit_inline_below, ..CacheSettings::default() };
    let cache = machine.disks.open(machine.clock.clone(), settings).expect("sound media");
    (0..32).for_each(|page| machine.write(&cache, object(1), page, &[1; 4096]).expect("space"));
    cache.drain().expect("sound media");
    drop(cache);
    let settings = CacheSettings { delta_bytes_max, commit_inline_below, ..CacheSettings::default() };
    let cache = machine.disks.open(machine.clock.clone(), settings).expect("sound media");
    let write = |page: u64, len: usize| {
        let bytes = vec![2; len];
        let changes = [ObjectChange::Write { object: object(1), offset: page * 4096, bytes: &bytes }];
        apply_at_once(&cache, &changes).map(|applied| applied.expect("power")).is_some()
    };
    assert!((0..16).all(|page| write(page, 4096)), "whole pages are none");
    assert_eq!(cache.status().deltas, 0);
    let written = (16..32).take_while(|&page| write(page, 500)).count() as u64;
    let status = cache.status();
    assert_eq!(status.deltas, written);
    assert!(written > 8 && written < 13, "{status:?}");
    assert!(
        status.delta_bytes > delta_bytes_max && status.delta_bytes < delta_bytes_max + 1024,
        "{status:?}"
    );
    cache.step(BackgroundTask::WriteBack);
    assert!(write(31, 500), "{:?}", cache.status());
}

#[test]
fn space_that_was_deleted_is_there_for_the_next_writer() {
    let machine = Machine::new(1, 8192);
    let cache = machine.open();
    let bytes = vec![5; 16 * BLOCK_BYTES];
    let mut page = 0;
    let full = loop {
        match machine.write(&cache, object(1), page, &bytes) {
            Ok(()) => page += 16,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, CacheError::Store(store::StoreError::Full)), "{full}");
    assert!(page > 1000, "full after {page} pages");
    let changes = [ObjectChange::Delete { object: object(1) }];
    machine
        .apply(
            &cache,
            TransactionCost { claim: SpaceClaim::Frees, ..TransactionCost::of(&changes) },
            &changes,
        )
        .expect("deleting always works");
    (0..100).for_each(|index| {
        let written = machine.write(&cache, object(2), 16 * index, &bytes);
        assert!(written.is_ok(), "write {index}: {written:?}, {:?}", cache.store().space().now());
    });
}

#[test]
fn a_page_written_again_while_it_fails_to_be_written_back_keeps_one_reservation_and_no_more() {
    let machine = Machine::new(5, 1024);
    let cache = machine.open();
    let bytes = [1; 100];
    for round in 0..3 {
        machine.write(&cache, object(1), 0, &bytes).expect("space");
        let inner = cache.clone();
        // Called by the commit in the middle of the write-back.
        cache.sync(Box::new(move |_| {
            let applying = inner.clone();
            let changes = move || [ObjectChange::Write { object: object(1), offset: 200, bytes: &[2; 100] }];
            let enter = move |reservation: Result<SpaceReservation, CacheError>| {
                applying.apply(&mut reservation.expect("space"), &changes()).expect("power");
            };
            inner.admit(TransactionCost::of(&changes()), Box::new(enter));
        }));
        machine.clock.advance(Duration::from_secs(400));
        machine.store.set_faults(DiskFaults { write_one_in: 1, ..DiskFaults::default() });
        cache.step(BackgroundTask::WriteBack);
        machine.store.set_faults(DiskFaults::default());
        assert_eq!(cache.status().counters.write_back_errors, round + 1);
    }
    cache.drain().expect("a device that works again");
    assert_eq!(cache.status().dirty_pages, 0);
    assert_eq!(cache.store().space().now().reserved, 0);
}

#[test]
fn a_page_whose_base_is_damaged_does_not_fill_the_buffer() {
    let machine = Machine::new(6, 1024);
    let cache = machine.open();
    // Ten times the buffer goes through it.
    let roll = |cache: &Cache| {
        for index in 0..640 {
            machine.write(cache, object(2), 16 * (index % 64), &[2; 16 * BLOCK_BYTES]).expect("space");
        }
    };
    machine.write(&cache, object(1), 0, &[0xab; BLOCK_BYTES]).expect("space");
    cache.drain().expect("devices that work");
    // The log has the page no more, either.
    roll(&cache);
    cache.drain().expect("devices that work");
    drop(cache);
    let is_it = |&at: &device::Block| {
        let mut page = device::pages(1);
        machine.store.read(at, &mut page).expect("power");
        page[0].0 == [0xab; BLOCK_BYTES]
    };
    let at = machine.store.written_blocks().into_iter().find(is_it).expect("it is stored");
    machine.store.rot(at, 5);
    let cache = machine.open();
    machine.write(&cache, object(1), 0, &[1; 100]).expect("a write needs no base");
    machine.sync(&cache);
    roll(&cache);
    drop(cache);
    machine.crash();
    let cache = machine.open();
    assert!(cache.read_now(object(1), 0, 100).expect("what was written covers it") == [1; 100]);
    assert!(cache.read_now(object(1), 0, 101).is_err(), "a damaged byte was read");
}

/// A cache on a real clock, and the committer's thread, which sleeps until it is woken.
fn with_committer(interval: Duration, test: impl FnOnce(&Cache)) {
    struct Real(Instant);
    impl Clock for Real {
        fn monotonic(&self) -> Duration {
            self.0.elapsed()
        }

        fn wall_nanos(&self) -> i64 {
            0
        }
    }
    let machine = Machine::new(1, 1024);
    let settings = CacheSettings {
        commit_interval: interval,
        commit_inline_below: Duration::ZERO,
        ..CacheSettings::default()
    };
    let store = Arc::new(Store::open(machine.store.clone()).expect("a sound store"));
    let clock = Arc::new(Real(Instant::now()));
    let cache = Cache::open(store, machine.buffer.clone(), clock, settings).expect("a sound buffer");
    let worker = cache.clone();
    let ended = Arc::new(AtomicBool::new(false));
    let end = ended.clone();
    let committer = std::thread::spawn(move || {
        while !end.load(Ordering::Acquire) {
            if worker.step(BackgroundTask::Commit) == StepProgress::Idle {
                worker.wait(BackgroundTask::Commit, Duration::from_secs(60));
            }
        }
    });
    // It sleeps before anything happens.
    std::thread::sleep(Duration::from_millis(100));
    test(&cache);
    ended.store(true, Ordering::Release);
    cache.stop();
    committer.join().expect("a committer that ends");
}

/// Waits up to five seconds of real time.
fn soon(what: impl Fn() -> bool) -> bool {
    (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        what()
    })
}

#[test]
fn what_nobody_synced_is_durable_after_the_interval_however_long_the_committer_may_sleep() {
    with_committer(Duration::from_millis(50), |cache| {
        for round in 1..4 {
            let admitted: Answer<SpaceReservation> = Answer::default();
            let changes = [ObjectChange::Write { object: object(1), offset: 0, bytes: &[round; 10] }];
            cache.admit(TransactionCost::of(&changes), admitted.then());
            let mut reservation = admitted.take().expect("space at once").expect("space");
            let lsn = cache.apply(&mut reservation, &changes).expect("power");
            drop(reservation);
            assert!(soon(|| cache.status().durable >= lsn), "{:?}", cache.status());
        }
    });
}

#[test]
fn space_that_is_given_back_unused_lets_the_next_one_in() {
    with_committer(Duration::from_secs(3600), |cache| {
        let most = cache.transaction_bytes_max() - 8192;
        let cost = TransactionCost { pages: 1, bytes: most, records: 1, ..TransactionCost::NONE };
        let mut inside = Vec::new();
        let parked = loop {
            let admitted: Answer<SpaceReservation> = Answer::default();
            cache.admit(cost, admitted.then());
            match admitted.take() {
                Some(reservation) => inside.push(reservation.expect("space")),
                None => break admitted,
            }
        };
        // The committer has looked for work, and sleeps.
        std::thread::sleep(Duration::from_millis(100));
        inside.clear();
        assert!(soon(|| parked.take().is_some()), "{:?}", cache.status());
    });
}

#[test]
fn a_read_that_nobody_fetched_for_does_not_keep_its_page_from_being_written_back() {
    let machine = Machine::new(1, 1024);
    let cache = machine.open();
    machine.write(&cache, object(1), 0, &[1; 100]).expect("space");
    let read = Answer::default();
    cache.read(object(1), 0, 200, 200, read.then());
    // The workers end before one of them takes it.
    cache.stop();
    cache.drain().expect("devices that work");
    assert_eq!(cache.status().dirty_pages, 0);
    assert!(read.take().expect("an answer").is_ok());
}
