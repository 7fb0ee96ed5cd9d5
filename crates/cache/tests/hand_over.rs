//! The cache's own sources with `shuttle`'s locks and atomics in place of the standard library's. Shuttle
//! runs one thread at a time and draws the next one at each lock, atomic and look at the clock. A call of the
//! buffer is one step, and a wait only ends when a thread wakes the waiter: a wake-up that would only be late
//! is missing here for ever, which shuttle reports.

/// In place of `src/sync.rs`.
mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicU64, Ordering};
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use shuttle::thread_local;
}

/// The sources are linted as a crate.
#[path = "../src"]
#[allow(clippy::all, dead_code, missing_docs, unreachable_pub, unused_imports)]
mod shipped {
    pub(crate) mod admission;
    pub(crate) mod append_cause;
    pub(crate) mod apply;
    pub(crate) mod bypass;
    pub(crate) mod bypass_recovery;
    pub(crate) mod bypassed_pages;
    pub(crate) mod cache;
    pub(crate) mod change;
    pub(crate) mod commit;
    pub(crate) mod delta;
    pub(crate) mod dirty_scan;
    pub(crate) mod error;
    pub(crate) mod locks;
    pub(crate) mod log;
    pub(crate) mod maintenance;
    pub(crate) mod overwrite;
    pub(crate) mod page;
    pub(crate) mod page_table;
    pub(crate) mod planted_bug;
    pub(crate) mod range_ops;
    pub(crate) mod read;
    pub(crate) mod record_applier;
    pub(crate) mod recover;
    pub(crate) mod relog;
    pub(crate) mod request_wait;
    pub(crate) mod rescue;
    pub(crate) mod reservation_estimate;
    pub(crate) mod retry;
    pub(crate) mod rule_shares;
    pub(crate) mod settings;
    pub(crate) mod space;
    pub(crate) mod state;
    pub(crate) mod status;
    pub(crate) mod store_plan;
    pub(crate) mod stream_detector;
    pub(crate) mod sync_queue;
    pub(crate) mod task;
    pub(crate) mod transact;
    pub(crate) mod used_volumes;
    pub(crate) mod volumes;
    pub(crate) mod write_back;
}
use shipped::*;

#[path = "all/common/disks.rs"]
#[allow(dead_code, unreachable_pub)]
mod disks;
use disks::Disks;

// Re-exports as in `src/lib.rs`.
use crate::admission::SpaceReservation;
use crate::cache::Cache;
use crate::change::{ObjectChange, TransactionCost};
use crate::error::CacheError;
use crate::request_wait::{RequestWait, WaitCause};
use crate::settings::CacheSettings;
use crate::task::{BackgroundTask, CacheCompletion, StepProgress};

use ::buffer::Buffer;
use ::store::Store;
use device::{Clock, Lsn, StoreId, VolumeId};
use request::Origin;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shuttle::sync::mpsc;
use shuttle::{Config, Runner, thread};
use sim_disk::{DiskFaults, PowerSupply, SimDisk};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

const ID: StoreId = StoreId([7; 16]);
const CLIENTS: u64 = 3;
const SYNCS_EACH: u64 = 2;
/// The smallest buffer, and segments of the smallest size for the store.
const BUFFER_BLOCKS: u64 = 256;
const STORE_BLOCKS: u64 = 2048;
const SEGMENT_BLOCKS: u32 = 16;

/// Runs a model in 20,000 orders of its threads. Prints how to repeat one that fails.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    // Recovery's frames are larger than what shuttle gives a thread.
    config.stack_size = 1 << 20;
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new_from_seed(19, 20_000), config).run(model);
}

/// The failure of a wrong model, in one of as many orders.
fn failure(model: impl Fn() + Send + Sync + 'static) -> String {
    let failed = catch_unwind(AssertUnwindSafe(|| check(model))).expect_err("the wrong way was not found");
    let message = failed.downcast_ref::<String>().cloned();
    message.or_else(|| failed.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

/// An empty store and its buffer. Every order gets copies.
static FORMATTED: LazyLock<Disks> =
    LazyLock::new(|| Disks::new(7, STORE_BLOCKS, BUFFER_BLOCKS, SEGMENT_BLOCKS));

fn copies() -> [Arc<SimDisk>; 2] {
    [&FORMATTED.store, &FORMATTED.buffer].map(|disk| disk.fork(&PowerSupply::new(), 7))
}

/// A clock: looking at it takes time, in which other threads go on.
struct Ticking(AtomicU64);

impl Clock for Ticking {
    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.0.fetch_add(1, Ordering::SeqCst))
    }

    fn wall_nanos(&self) -> i64 {
        0
    }
}

/// Whether a buffer would have this LSN if the power failed now.
fn survives(buffer: &SimDisk, lsn: Lsn) -> bool {
    let left = buffer.fork(&PowerSupply::new(), thread_rng().r#gen());
    left.set_faults(DiskFaults::default());
    left.crash();
    let mut found = false;
    let recovered =
        Buffer::open(left, ID, &mut |group| found |= group.iter().any(|one| one.first_lsn == lsn));
    recovered.expect("what a crash leaves is a buffer");
    found
}

/// How a client asks for durability.
type Ask = fn(&Cache, CacheCompletion<()>);

fn unmatched_wait() -> RequestWait {
    RequestWait::new(Origin::UNMATCHED, WaitCause::Commit, Duration::ZERO)
}

/// Wrong: a client that finds another at work relies on the other's commit, which may have begun before.
fn left_to_the_other(cache: &Cache, then: CacheCompletion<()>) {
    let mut state = cache.parts.shared.state();
    let target = state.log.syncs.target(cache.parts.shared.buffer().appended_lsn());
    let alone = state.log.syncs.park(unmatched_wait(), target, then);
    drop(state);
    if alone {
        let _ = cache.parts.committer.commit_now();
    }
}

/// Wrong: whichever commit ends next completes the waiting syncs, even one that began before their changes.
fn told_by_any_commit(cache: &Cache, then: CacheCompletion<()>) {
    let mut state = cache.parts.shared.state();
    if let Some(why) = state.log.failed().cloned() {
        drop(state);
        return then(Err(why.into()));
    }
    let target = state.log.syncs.target(Lsn(0));
    state.log.syncs.park(unmatched_wait(), target, then);
    let stopping = state.log.is_stopping();
    drop(state);
    cache.parts.shared.wake(BackgroundTask::Commit);
    if stopping {
        let _ = cache.parts.committer.commit_now();
    }
}

/// Changes a page and waits until that is durable, several times.
fn client(number: u64, cache: &Cache, buffer: &Arc<SimDisk>, sync: Ask) {
    let object = VolumeId::MAIN.object(number, 1);
    for offset in 0..SYNCS_EACH {
        let change = ObjectChange::Write { object, offset, bytes: b"w" };
        let applied = cache.try_transact(TransactionCost::of(&[change]), |tx| tx.apply(&[change]));
        // The cache has stopped, or the buffer has failed.
        let Ok(lsn) = applied.expect("space") else { return };
        // Other threads may commit, or stop the cache, before it syncs.
        let pause = if thread_rng().gen_bool(0.75) { 0 } else { thread_rng().gen_range(0..300) };
        (0..pause).for_each(|_| thread::yield_now());
        let (sender, answer) = mpsc::channel();
        let buffer = buffer.clone();
        sync(
            cache,
            Box::new(move |outcome| {
                assert!(outcome.is_err() || survives(&buffer, lsn), "told that it is durable, and it is not");
                let _ = sender.send(());
            }),
        );
        answer.recv().expect("an answer");
    }
}

/// Like the daemon's worker.
fn committer(cache: &Cache, stopping: &AtomicBool) {
    while !stopping.load(Ordering::SeqCst) {
        if cache.step(BackgroundTask::Commit) == StepProgress::Idle {
            cache.wait(BackgroundTask::Commit, Duration::from_millis(500));
        }
    }
}

/// Clients sync, by themselves and by the committer. The cache is stopped while they wait, or afterwards.
/// Half of the time the buffer fails at some point.
fn clients_and_a_committer(sync: Ask) {
    let [store, buffer] = copies();
    let store = Arc::new(Store::open(store).expect("an empty store"));
    // Either a client commits for itself, or the committer for all.
    let commit_inline_below = Duration::from_secs(thread_rng().gen_range(0..2));
    let settings = CacheSettings { commit_inline_below, ..CacheSettings::default() };
    let clock = Arc::new(Ticking(AtomicU64::new(0)));
    let cache = Cache::open(store, buffer.clone(), clock, settings).expect("an empty buffer");
    if thread_rng().gen_bool(0.5) {
        let once_after = Some(thread_rng().gen_range(0..12));
        buffer.set_faults(DiskFaults { once_after, ..DiskFaults::default() });
    }
    let stopping = Arc::new(AtomicBool::new(false));
    let committer = {
        let cache = cache.clone();
        let stopping = stopping.clone();
        thread::spawn(move || committer(&cache, &stopping))
    };
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let cache = cache.clone();
            let buffer = buffer.clone();
            thread::spawn(move || client(number + 1, &cache, &buffer, sync))
        })
        .collect();
    if thread_rng().gen_bool(0.5) {
        clients.drain(..).for_each(|client| client.join().unwrap());
    }
    stopping.store(true, Ordering::SeqCst);
    cache.stop();
    committer.join().unwrap();
    let _ = cache.drain();
    clients.into_iter().for_each(|client| client.join().unwrap());
}

#[test]
fn every_sync_is_answered_and_none_before_it_is_durable() {
    check(|| clients_and_a_committer(Cache::sync));
}

#[test]
fn a_sync_that_is_left_to_another_waits_for_ever_in_some_order() {
    let found = failure(|| clients_and_a_committer(left_to_the_other));
    assert!(found.contains("deadlock"), "{found}");
}

#[test]
fn a_sync_that_any_commit_answers_is_answered_too_early_in_some_order() {
    let found = failure(|| clients_and_a_committer(told_by_any_commit));
    assert!(found.contains("told that it is durable, and it is not"), "{found}");
}

/// How an operation that was admitted gives back its space.
type GiveBack = fn(&Cache, SpaceReservation);

/// It changes something small, and needs nothing more.
fn by_applying(cache: &Cache, mut reservation: SpaceReservation) {
    let change = ObjectChange::Write { object: VolumeId::MAIN.object(1, 1), offset: 0, bytes: b"w" };
    cache.apply(&mut reservation, &[change]).expect("its space was reserved");
}

/// It changes nothing.
fn by_dropping(_: &Cache, reservation: SpaceReservation) {
    drop(reservation);
}

/// Wrong: nobody is woken to admit those that wait.
fn in_silence(cache: &Cache, mut reservation: SpaceReservation) {
    reservation.release_unused(&mut cache.parts.shared.state());
}

/// Admitted operations have reserved all of the buffer. One gives its space back while another client makes a
/// transaction, which has to wait for that space if it comes first.
fn one_waits_for_the_space_of_another(give_back: GiveBack) {
    static BYTES: [u8; 4096] = [b'w'; 4096];
    let [store, buffer] = copies();
    let store = Arc::new(Store::open(store).expect("an empty store"));
    let clock = Arc::new(Ticking(AtomicU64::new(0)));
    let cache = Cache::open(store, buffer, clock, CacheSettings::default()).expect("an empty buffer");
    let change = ObjectChange::Write { object: VolumeId::MAIN.object(2, 1), offset: 0, bytes: &BYTES };
    let cost = TransactionCost::of(&[change]);
    let each = ::buffer::footprint(cost.records, cost.bytes);
    let kept = cache.buffer().capacity_bytes() / 32 * 5;
    let (sender, admitted) = mpsc::channel();
    for _ in 0..(cache.buffer().free_bytes() - kept) / each {
        let sender = sender.clone();
        // Of the buffer alone: the store has no space for so many pages.
        let of_buffer = TransactionCost { pages: 0, run: 0, ..cost };
        cache.admit(of_buffer, Box::new(move |outcome| drop(sender.send(outcome.expect("an empty buffer")))));
    }
    assert_eq!(cache.status().parked_admissions, 0);
    let mut reservations: Vec<_> = std::iter::from_fn(|| admitted.try_recv().ok()).collect();
    let stopping = Arc::new(AtomicBool::new(false));
    let committer = {
        let cache = cache.clone();
        let stopping = stopping.clone();
        thread::spawn(move || committer(&cache, &stopping))
    };
    let client = {
        let cache = cache.clone();
        thread::spawn(move || {
            let (sender, answer) = mpsc::channel();
            let done = move |outcome: Result<Lsn, CacheError>| drop(sender.send(outcome));
            cache.transact(cost, move |tx| tx.apply(&[change]), done);
            answer.recv().expect("an answer").expect("space");
        })
    };
    give_back(&cache, reservations.pop().expect("space for one"));
    client.join().unwrap();
    stopping.store(true, Ordering::SeqCst);
    cache.stop();
    committer.join().unwrap();
}

#[test]
fn a_transaction_that_waits_gets_the_space_of_one_that_applies_less_or_nothing() {
    check(|| one_waits_for_the_space_of_another(by_applying));
    check(|| one_waits_for_the_space_of_another(by_dropping));
}

#[test]
fn a_transaction_waits_for_ever_in_some_order_where_nobody_is_woken() {
    let found = failure(|| one_waits_for_the_space_of_another(in_silence));
    assert!(found.contains("deadlock"), "{found}");
}
