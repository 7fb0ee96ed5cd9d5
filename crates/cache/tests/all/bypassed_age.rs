//! Whatever the store does, a crash takes the bypassed pages of the last commit interval at most, and the end
//! of a mount takes none.

use crate::common::Disks;
use crate::common::apply_at_once;
use crate::common::plain::Machine;
use crate::common::slow_disk::SlowDisk;
use cache::{BackgroundTask, Cache, CacheSettings, ObjectChange};
use device::{BLOCK_BYTES, Block, Device, ObjectId, PageNo, PageTransfer, VolumeId};
use sim_disk::{DiskFaults, SimClock};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{NewVolume, Store, VolumeMode};

const FAILS: DiskFaults =
    DiskFaults { write_one_in: 1, flush_one_in: 1, read_one_in: 0, trim_one_in: 0, once_after: None };
const STREAMED: ObjectId = VolumeId::MAIN.object(5, 1);
const OTHER: ObjectId = VolumeId::MAIN.object(6, 1);
const PAGE: u64 = BLOCK_BYTES as u64;
const MIB_PAGES: u64 = (1 << 20) / PAGE;

/// A file grows by whole pages, which bypass the log.
fn grow(from: u64, bytes: &[u8]) -> ObjectChange<'_> {
    ObjectChange::FileWrite { object: STREAMED, offset: from * PAGE, bytes, size: from * PAGE }
}

/// A write that is admitted at once, or refused.
fn try_to_apply(cache: &Cache, changes: &[ObjectChange<'_>]) -> bool {
    matches!(apply_at_once(cache, changes), Some(Ok(_)))
}

/// Does the workers' work for `count` hundredths of a second.
fn work(machine: &Machine, cache: &Cache, count: usize) {
    for _ in 0..count {
        for task in BackgroundTask::ALL {
            cache.step(task);
        }
        machine.clock.advance(Duration::from_millis(10));
    }
}

/// A machine with a buffer of `buffer_mib` beside a store of 512 MiB.
fn machine(buffer_mib: u64) -> Machine {
    let disks = Disks::new(1, 512 * MIB_PAGES, buffer_mib * MIB_PAGES, 256);
    Machine { disks, clock: Arc::new(SimClock::new()) }
}

fn open(machine: &Machine, store: Arc<dyn Device>, sync_logs_max: u64) -> Cache {
    let settings = CacheSettings {
        bypass_after: 0,
        sync_log_bytes_max: sync_logs_max,
        commit_inline_below: Duration::ZERO,
        ..CacheSettings::default()
    };
    let store = Arc::new(Store::open(store).expect("sound media"));
    Cache::open(store, machine.buffer.clone(), machine.clock.clone(), settings).expect("sound media")
}

/// A committer that notes the longest time between two commits.
#[derive(Clone)]
struct Committer {
    cache: Cache,
    clock: Arc<SimClock>,
    last_and_longest: Arc<Mutex<(Duration, Duration)>>,
}

impl Committer {
    fn of(machine: &Machine, cache: &Cache) -> Committer {
        let cache = cache.clone();
        let clock = machine.clock.clone();
        Committer { cache, clock, last_and_longest: Arc::default() }
    }

    fn step(&self) {
        self.cache.step(BackgroundTask::Commit);
        let now = device::Clock::monotonic(&*self.clock);
        let mut looks = self.last_and_longest.lock().expect("one thread");
        looks.1 = looks.1.max(now - looks.0);
        looks.0 = now;
    }

    fn longest(&self) -> Duration {
        self.last_and_longest.lock().expect("one thread").1
    }
}

/// A client that streams into a file, one piece whenever it runs.
#[derive(Clone)]
struct Stream {
    cache: Cache,
    clock: Arc<SimClock>,
    piece: Arc<Vec<u8>>,
    /// When each piece was answered.
    answered: Arc<Mutex<Vec<Duration>>>,
}

impl Stream {
    fn of(machine: &Machine, cache: &Cache, piece_pages: u64) -> Stream {
        let piece = Arc::new(vec![7; (piece_pages * PAGE) as usize]);
        Stream { cache: cache.clone(), clock: machine.clock.clone(), piece, answered: Arc::default() }
    }

    fn piece_pages(&self) -> u64 {
        self.piece.len() as u64 / PAGE
    }

    /// Returns whether the next piece was answered at once.
    fn write(&self) -> bool {
        let mut answered = self.answered.lock().expect("one thread");
        let from = self.piece_pages() * answered.len() as u64;
        let is_written = try_to_apply(&self.cache, &[grow(from, &self.piece)]);
        if is_written {
            answered.push(device::Clock::monotonic(&*self.clock));
        }
        is_written
    }

    /// How long before `crashed` the oldest lost piece was answered.
    fn age_of_lost(&self, found: &Cache, crashed: Duration) -> Duration {
        let Some((_, page)) = found.lost_tails().first().copied() else { return Duration::ZERO };
        let answered = self.answered.lock().expect("one thread");
        let first = answered.get((page.0 / self.piece_pages()) as usize);
        first.map_or(Duration::ZERO, |answered| crashed - *answered)
    }
}

#[test]
fn an_end_over_a_store_that_fails_leaves_them_in_the_buffer() {
    let machine = Machine::new(1);
    let cache = machine.open();
    machine.apply(&cache, &[grow(0, &[2; 4 * BLOCK_BYTES])]).expect("space");
    machine.wait(&cache, |then| cache.sync_logged(then)).expect("a buffer that works");
    machine.store.set_faults(FAILS);
    cache.stop();
    cache.drain().expect_err("the store fails");
    drop(cache);
    machine.store.set_faults(DiskFaults::default());
    let cache = machine.open();
    assert_eq!(cache.lost_tails(), []);
    assert_eq!(cache.read_now(STREAMED, 0, 10).expect("sound"), [2; 10]);
}

#[test]
fn an_end_beside_one_stuck_clone_leaves_what_it_holds_back_in_the_buffer() {
    let machine = machine(64);
    let cache = machine.open();
    let write = |cache: &Cache, object, page, byte| {
        machine.write(cache, object, page, &[byte; BLOCK_BYTES]).expect("space")
    };
    write(&cache, OTHER, 2, 0xab);
    for number in 1..6 {
        write(&cache, OTHER, 20 * number, 1);
    }
    for _ in 0..16 {
        machine.fill(&cache, VolumeId::MAIN.object(1 << 40, 1)).expect("space");
    }
    cache.drain().expect("devices that work");
    drop(cache);
    let cache = machine.open();
    let part = ObjectChange::Write { object: OTHER, offset: 2 * PAGE, bytes: &[7; 10] };
    machine.apply(&cache, &[part]).expect("space");
    cache.drain().expect("devices that work");
    let is_base = |at: &Block| {
        let mut page = device::pages(1);
        machine.store.read(*at, &mut page).is_ok() && page[0].0 == [0xab; BLOCK_BYTES]
    };
    let base = machine.store.written_blocks().into_iter().find(is_base).expect("stored");
    machine.store.damage(base, sim_disk::BlockDamage::Unreadable);
    let transfer = PageTransfer::clone_range(OTHER, PageNo(1)..PageNo(4), STREAMED, PageNo(1));
    machine.apply(&cache, &[ObjectChange::Transfer(transfer)]).expect("space");
    let bytes = &[9; 2 * BLOCK_BYTES];
    let overwrite =
        ObjectChange::FileWrite { object: STREAMED, offset: PAGE, bytes, size: PAGE + bytes.len() as u64 };
    machine.apply(&cache, &[overwrite]).expect("space");
    cache.stop();
    cache.drain().expect_err("the clone is stuck");
    drop(cache);
    machine.store.heal();
    let cache = machine.open();
    assert_eq!(cache.read_now(STREAMED, PAGE, 10).expect("sound"), [9; 10]);
}

#[test]
fn a_store_that_failed_for_a_moment_has_them_logged_and_committed() {
    let machine = Machine::new(1);
    let cache = machine.open();
    machine.apply(&cache, &[grow(0, &[2; 4 * BLOCK_BYTES])]).expect("space");
    machine.store.set_faults(FAILS);
    work(&machine, &cache, 150);
    machine.store.set_faults(DiskFaults::default());
    assert_eq!(cache.status().counters.pages_logged_late, 4);
    drop(cache);
    machine.crash();
    let cache = machine.open();
    assert_eq!(cache.lost_tails(), []);
    assert_eq!(cache.read_now(STREAMED, 0, 10).expect("sound"), [2; 10]);
}

#[test]
fn a_slow_store_beside_a_client_that_syncs_in_a_loop_loses_the_last_second_at_most() {
    let machine = machine(256);
    // 10 MB/s: a card, or a disk behind a network.
    let slow = SlowDisk::of(&machine, Duration::from_micros(400), Duration::from_millis(5));
    let cache = open(&machine, slow.clone(), u64::MAX);
    let stream = Stream::of(&machine, &cache, MIB_PAGES);
    let committer = Committer::of(&machine, &cache);
    let client = cache.clone();
    let commits = committer.clone();
    let mut record = 0u64;
    let mut sync = move || {
        record += 1;
        let bytes = record.to_le_bytes();
        try_to_apply(
            &client,
            &[ObjectChange::Write { object: OTHER, offset: 8 * (record % 512), bytes: &bytes }],
        );
        client.sync_object(OTHER, Box::new(|_| {}));
        commits.step();
    };
    let other_stream = stream.clone();
    let mut other_sync = sync.clone();
    slow.meanwhile(move || {
        while other_stream.write() {}
        other_sync();
    });
    while device::Clock::monotonic(&*machine.clock) < Duration::from_secs(8) {
        while stream.write() {}
        sync();
        for task in [BackgroundTask::WriteBack, BackgroundTask::Commit, BackgroundTask::Checkpoint] {
            cache.step(task);
        }
        machine.clock.advance(Duration::from_millis(1));
    }
    slow.alone();
    let crashed = device::Clock::monotonic(&*machine.clock);
    drop(cache);
    machine.crash();
    let age = stream.age_of_lost(&machine.open(), crashed);
    let may_be = Duration::from_secs(1) + committer.longest();
    assert!(age <= may_be, "lost what was answered {age:?} before the crash; it may be {may_be:?}");
}

/// A client that copies two hundred files a second, each a clone of a page, on a rotating disk; and a stream
/// that begins `after` that and may be synced. Returns whether the sync was answered in time, and how many
/// files were lost after `seconds`.
fn copies_beside_a_stream(sync_logs_max: u64, is_synced: bool, seconds: u64) -> (bool, usize) {
    let machine = machine(64);
    let slow = SlowDisk::of(&machine, Duration::from_micros(20), Duration::from_millis(8));
    let cache = open(&machine, slow.clone(), sync_logs_max);
    let source = |number: u64| VolumeId::MAIN.object(100 + number % 50, 1);
    for number in 0..50 {
        machine.write(&cache, source(number), 0, &[1; BLOCK_BYTES]).expect("space");
    }
    cache.drain().expect("devices that work");
    let clock = machine.clock.clone();
    let now = move || device::Clock::monotonic(&*clock);
    let begun = now();
    let made = Arc::new(Mutex::new(0));
    let copier = cache.clone();
    let time = now.clone();
    let copy = move || {
        let due = ((time() - begun).as_millis() / 5) as u64;
        let mut made = made.lock().expect("one thread");
        while *made < due {
            let copy = VolumeId::MAIN.object(1000 + *made, 1);
            let transfer = PageTransfer { end: PageNo(1), ..PageTransfer::clone_of(source(*made), copy) };
            if !try_to_apply(&copier, &[ObjectChange::Transfer(transfer)]) {
                break;
            }
            *made += 1;
        }
    };
    slow.meanwhile(copy.clone());
    let step = |cache: &Cache| {
        copy();
        for task in BackgroundTask::ALL {
            cache.step(task);
        }
        machine.clock.advance(Duration::from_millis(1));
    };
    while now() < begun + Duration::from_secs(3) {
        step(&cache);
    }
    let stream = Stream::of(&machine, &cache, 32);
    while !stream.write() {
        step(&cache);
    }
    let answer: Arc<Mutex<bool>> = Arc::default();
    if is_synced {
        let answer = answer.clone();
        let told = move |outcome: Result<(), _>| *answer.lock().expect("one thread") = outcome.is_ok();
        cache.sync_object(STREAMED, Box::new(told));
    }
    let written = now();
    while now() < written + Duration::from_secs(seconds) {
        step(&cache);
    }
    slow.alone();
    let is_answered = *answer.lock().expect("one thread");
    drop(cache);
    machine.crash();
    (is_answered, machine.open().lost_tails().len())
}

#[test]
fn clones_that_keep_coming_keep_them_from_the_buffer_for_a_second_at_most() {
    assert_eq!(copies_beside_a_stream(u64::MAX, false, 3), (false, 0));
}

#[test]
fn clones_that_keep_coming_keep_a_sync_of_them_waiting_for_seconds_at_most() {
    let (is_answered, lost) = copies_beside_a_stream(0, true, 3);
    assert!(is_answered && lost == 0, "answered: {is_answered}, {lost} files lost");
}

#[test]
fn an_epoch_beside_heavy_overwrites_keeps_them_from_the_buffer_for_a_second_at_most() {
    let machine = machine(256);
    let slow = SlowDisk::of(&machine, Duration::from_micros(400), Duration::from_millis(8));
    let cache = open(&machine, slow.clone(), u64::MAX);
    let mib = vec![1; 1 << 20];
    for number in 0..24 {
        machine
            .apply(&cache, &[ObjectChange::Write { object: OTHER, offset: number << 20, bytes: &mib }])
            .expect("space");
    }
    // Sixteen pages each tenth of a second are streamed while the epoch is taken, which takes some ten seconds.
    let stream = Stream::of(&machine, &cache, 16);
    let committer = Committer::of(&machine, &cache);
    let streaming = stream.clone();
    let commits = committer.clone();
    let power = machine.power.clone();
    let clock = machine.clock.clone();
    let overwriter = cache.clone();
    let mut number = 0;
    slow.meanwhile(move || {
        let now = device::Clock::monotonic(&*clock);
        while streaming.answered.lock().expect("one thread").len() < (now.as_millis() / 100) as usize {
            if !streaming.write() {
                break;
            }
        }
        number += 1;
        let offset = (number % 24) << 20;
        try_to_apply(&overwriter, &[ObjectChange::Write { object: OTHER, offset, bytes: &mib }]);
        commits.step();
        if now > Duration::from_secs(5) {
            power.cut();
        }
    });
    let new = NewVolume { name: "epoch", mode: VolumeMode::ReadOnly, created: 0 };
    cache.clone_volume(VolumeId::MAIN, &new).expect_err("the power fails before it is made");
    slow.alone();
    let crashed = device::Clock::monotonic(&*machine.clock);
    assert!(stream.answered.lock().expect("one thread").len() > 20, "it streamed meanwhile");
    drop(cache);
    machine.crash();
    let age = stream.age_of_lost(&machine.open(), crashed);
    let may_be = Duration::from_secs(1) + committer.longest();
    assert!(age <= may_be, "lost what was answered {age:?} before the crash; it may be {may_be:?}");
}

#[test]
fn a_store_that_stands_still_keeps_them_from_the_buffer_for_a_second_at_most() {
    let machine = machine(64);
    let slow = SlowDisk::of(&machine, Duration::ZERO, Duration::from_millis(100));
    let cache = open(&machine, slow.clone(), u64::MAX);
    machine.apply(&cache, &[grow(0, &[2; 4 * BLOCK_BYTES])]).expect("space");
    machine.clock.advance(Duration::from_millis(600));
    // Two seconds in one flush of the store, in which the committer goes on; then the power fails.
    let committer = cache.clone();
    let clock = machine.clock.clone();
    let power = machine.power.clone();
    slow.meanwhile(move || {
        for _ in 0..20 {
            committer.step(BackgroundTask::Commit);
            clock.advance(Duration::from_millis(100));
        }
        power.cut();
    });
    cache.step(BackgroundTask::WriteBack);
    slow.alone();
    assert!(machine.power.is_lost(), "it was being stored");
    drop(cache);
    machine.crash();
    let cache = machine.open();
    assert_eq!(cache.lost_tails(), []);
    assert_eq!(cache.read_now(STREAMED, 0, 10).expect("sound"), [2; 10]);
}

#[test]
fn a_fast_store_has_none_of_them_logged() {
    let machine = machine(64);
    let fast = SlowDisk::of(&machine, Duration::from_micros(2), Duration::from_millis(1));
    let cache = open(&machine, fast, u64::MAX);
    let stream = Stream::of(&machine, &cache, MIB_PAGES);
    for _ in 0..300 {
        stream.write();
        work(&machine, &cache, 1);
    }
    work(&machine, &cache, 100);
    let counters = cache.status().counters;
    assert!(counters.pages_bypassed > 100 * MIB_PAGES, "{} pages bypassed", counters.pages_bypassed);
    assert_eq!(counters.pages_logged_late, 0);
}

#[test]
fn what_cuts_or_overwrites_them_is_durable_when_they_would_have_been() {
    let whole = [3; BLOCK_BYTES];
    let overwrite = ObjectChange::Write { object: STREAMED, offset: 0, bytes: &whole };
    let cut = ObjectChange::Zero { object: STREAMED, offset: 0, len: PAGE };
    for (change, found) in [(overwrite, 3), (cut, 0)] {
        let machine = machine(64);
        let cache = machine.open();
        machine.write(&cache, STREAMED, 0, &[1; BLOCK_BYTES]).expect("space");
        machine.sync(&cache).expect("a buffer that works");
        let bypassing =
            ObjectChange::FileWrite { object: STREAMED, offset: 0, bytes: &[2; BLOCK_BYTES], size: PAGE };
        machine.apply(&cache, &[bypassing]).expect("space");
        machine.clock.advance(Duration::from_millis(900));
        machine.apply(&cache, &[change]).expect("space");
        machine.clock.advance(Duration::from_millis(100));
        cache.step(BackgroundTask::Commit);
        drop(cache);
        machine.crash();
        assert_eq!(machine.open().read_now(STREAMED, 0, 1).expect("sound"), [found]);
    }
}
