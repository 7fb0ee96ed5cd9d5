//! Threads that flush one device: a thread whose flush succeeds finds its write durable.

use crate::flusher::{DeviceFlusher, FailedFlushes};
use crate::{check, failure};
use shuttle::rand::{Rng, thread_rng};
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use std::collections::BTreeSet;

pub(crate) const TESTS: [(&str, fn()); 2] = [
    (
        "who_is_told_that_a_flush_went_well_finds_its_write_durable",
        who_is_told_that_a_flush_went_well_finds_its_write_durable,
    ),
    (
        "a_flush_and_its_count_as_two_steps_lose_a_write_in_some_order",
        a_flush_and_its_count_as_two_steps_lose_a_write_in_some_order,
    ),
];

const THREADS: u64 = 3;
const WRITES_EACH: u64 = 2;

/// A device with the behaviour of Linux: a failed flush drops pending writes and fails for one caller. The
/// next flush succeeds.
#[derive(Default)]
struct Drive(Mutex<Cache>);

#[derive(Default)]
struct Cache {
    pending: BTreeSet<u64>,
    durable: BTreeSet<u64>,
}

impl Drive {
    fn write(&self, what: u64) {
        self.0.lock().unwrap().pending.insert(what);
    }

    fn flush(&self) -> Result<(), ()> {
        let fails = thread_rng().gen_bool(0.25);
        let mut cache = self.0.lock().unwrap();
        let pending = std::mem::take(&mut cache.pending);
        if fails {
            return Err(());
        }
        cache.durable.extend(pending);
        Ok(())
    }

    fn holds(&self, what: u64) -> bool {
        self.0.lock().unwrap().durable.contains(&what)
    }
}

/// How flushes are counted.
trait Counter: Default + Send + Sync + 'static {
    type Before;

    fn before(&self) -> Self::Before;

    /// Whether the writes since `before` are durable.
    fn flush(&self, before: Self::Before, drive: &Drive) -> bool;
}

impl Counter for DeviceFlusher {
    type Before = FailedFlushes;

    fn before(&self) -> FailedFlushes {
        self.failed_flushes()
    }

    fn flush(&self, before: FailedFlushes, drive: &Drive) -> bool {
        self.flush_since(before, || drive.flush()) == Some(Ok(()))
    }
}

/// The wrong way: another flush may run between a failed flush and its count.
#[derive(Default)]
struct TwoSteps(AtomicU64);

impl Counter for TwoSteps {
    type Before = u64;

    fn before(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn flush(&self, before: u64, drive: &Drive) -> bool {
        let flushed = drive.flush();
        if flushed.is_err() {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        flushed.is_ok() && self.before() == before
    }
}

fn threads_write_and_flush<C: Counter>() {
    let shared = Arc::new((Drive::default(), C::default()));
    let writer = |thread: u64| {
        let shared = shared.clone();
        move || {
            let (drive, counter) = &*shared;
            for what in (0..WRITES_EACH).map(|count| thread * WRITES_EACH + count) {
                let before = counter.before();
                drive.write(what);
                if counter.flush(before, drive) {
                    assert!(drive.holds(what), "a write counts as durable that a failed flush dropped");
                }
            }
        }
    };
    let threads: Vec<_> = (0..THREADS).map(|thread| thread::spawn(writer(thread))).collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn who_is_told_that_a_flush_went_well_finds_its_write_durable() {
    check(threads_write_and_flush::<DeviceFlusher>);
}

fn a_flush_and_its_count_as_two_steps_lose_a_write_in_some_order() {
    let found = failure(threads_write_and_flush::<TwoSteps>);
    assert!(found.contains("a failed flush dropped"), "{found}");
}
