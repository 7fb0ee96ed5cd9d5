//! Latencies of requests, from arrival to reply, per class of operation; and a counter of requests.

use hdrhistogram::Histogram;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The classes of operations for which latencies are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpClass {
    /// Finding a name.
    Lookup,
    /// Reading attributes.
    Getattr,
    /// Setting attributes, truncation among them.
    Setattr,
    /// Reading bytes.
    Read,
    /// Writing bytes.
    Write,
    /// Making a file or directory durable.
    Fsync,
    /// Making a file, directory or link.
    Create,
    /// Removing a name.
    Unlink,
    /// Moving a name.
    Rename,
    /// Listing a directory.
    Readdir,
    /// Everything else.
    Other,
}

impl OpClass {
    /// Every class, in the order in which they are shown.
    pub const ALL: [OpClass; 11] = [
        OpClass::Lookup,
        OpClass::Getattr,
        OpClass::Setattr,
        OpClass::Read,
        OpClass::Write,
        OpClass::Fsync,
        OpClass::Create,
        OpClass::Unlink,
        OpClass::Rename,
        OpClass::Readdir,
        OpClass::Other,
    ];

    /// Its name in `status`.
    pub fn name(self) -> &'static str {
        match self {
            OpClass::Lookup => "lookup",
            OpClass::Getattr => "getattr",
            OpClass::Setattr => "setattr",
            OpClass::Read => "read",
            OpClass::Write => "write",
            OpClass::Fsync => "fsync",
            OpClass::Create => "create",
            OpClass::Unlink => "unlink",
            OpClass::Rename => "rename",
            OpClass::Readdir => "readdir",
            OpClass::Other => "other",
        }
    }
}

/// The latencies of one class since the mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencySummary {
    /// Which class.
    pub class: OpClass,
    /// How many requests were answered.
    pub count: u64,
    /// Half of them took at most this long.
    pub p50: Duration,
    /// 99 in 100.
    pub p99: Duration,
    /// 999 in 1000.
    pub p999: Duration,
    /// The slowest.
    pub max: Duration,
    /// Requests per bucket of latencies: the bucket's upper end, and how many were above the end of the
    /// bucket before. Empty buckets are left out. Two such lists can be subtracted, which quantiles cannot:
    /// that yields the last minute.
    pub buckets: Vec<(Duration, u64)>,
}

/// The longest latency that is recorded; longer ones count as this. An hour is a hang.
const LATENCY_MAX_NANOS: u64 = 3_600_000_000_000;

/// Significant digits. With two a histogram takes some 20 KiB, and a third is of no use.
const DIGITS: u8 = 2;

/// The upper end of the first bucket of a [`LatencySummary`]: no request through the kernel is faster.
const BUCKET_NANOS_MIN: u64 = 250;

/// The ratio of two buckets' upper ends: the fourth root of two.
const BUCKET_GROWTH: f64 = 1.189_207_115;

/// A histogram per class. Each has its own mutex, held for some tens of nanoseconds.
pub struct OpLatencies {
    classes: [Mutex<Histogram<u64>>; OpClass::ALL.len()],
}

impl Default for OpLatencies {
    fn default() -> OpLatencies {
        OpLatencies { classes: OpClass::ALL.map(|_| Mutex::new(empty())) }
    }
}

impl OpLatencies {
    /// Latencies since the mount, in the order of [`OpClass::ALL`].
    pub fn summaries(&self) -> Vec<LatencySummary> {
        OpClass::ALL.map(|class| self.summary(class)).to_vec()
    }

    fn summary(&self, class: OpClass) -> LatencySummary {
        let histogram = self.histogram(class);
        let at = |quantile| Duration::from_nanos(histogram.value_at_quantile(quantile));
        LatencySummary {
            class,
            count: histogram.len(),
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            max: Duration::from_nanos(histogram.max()),
            buckets: buckets(&histogram),
        }
    }

    fn record(&self, class: OpClass, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.histogram(class).saturating_record(nanos);
    }

    fn histogram(&self, class: OpClass) -> MutexGuard<'_, Histogram<u64>> {
        // Each call leaves the histogram consistent, so a poisoned lock is no reason to fail.
        self.classes[class as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn buckets(histogram: &Histogram<u64>) -> Vec<(Duration, u64)> {
    let steps = histogram.iter_log(BUCKET_NANOS_MIN, BUCKET_GROWTH);
    let counts =
        steps.map(|step| (Duration::from_nanos(step.value_iterated_to()), step.count_since_last_iteration()));
    counts.filter(|&(_, count)| count > 0).collect()
}

fn empty() -> Histogram<u64> {
    Histogram::new_with_max(LATENCY_MAX_NANOS, DIGITS).expect("the bounds are constants that fit")
}

/// Measures a request's latency, from its arrival until the timer is dropped, after the reply was sent.
///
/// A timer in a completion shares the histograms; a timer of a handler borrows them.
pub(crate) struct LatencyTimer<L: Deref<Target = OpLatencies> = Arc<OpLatencies>> {
    latencies: L,
    class: OpClass,
    start: Instant,
}

impl<L: Deref<Target = OpLatencies>> LatencyTimer<L> {
    pub(crate) fn start(latencies: L, class: OpClass) -> LatencyTimer<L> {
        LatencyTimer { latencies, class, start: Instant::now() }
    }
}

impl<L: Deref<Target = OpLatencies>> Drop for LatencyTimer<L> {
    fn drop(&mut self) {
        self.latencies.record(self.class, self.start.elapsed());
    }
}

/// Counts requests, and lets a thread wait for the next one. Counting never waits.
#[derive(Debug, Default)]
pub struct RequestCounter {
    arrived: AtomicU64,
    /// Whether a thread waits, or is about to.
    is_awaited: AtomicBool,
    /// Held by a waiter from its look at the count until it waits, so that no wake-up is lost in between.
    waiting: Mutex<()>,
    came: Condvar,
}

impl RequestCounter {
    /// Requests since the mount, including those under way.
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::SeqCst)
    }

    /// Waits until more than `seen` requests have arrived.
    pub fn wait_beyond(&self, seen: u64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            self.is_awaited.store(true, Ordering::SeqCst);
            if self.arrived() > seen {
                self.is_awaited.store(false, Ordering::SeqCst);
                return;
            }
            waiting = self.came.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Counts a request, and wakes waiters.
    pub fn note(&self) {
        self.arrived.fetch_add(1, Ordering::SeqCst);
        if self.is_awaited.load(Ordering::SeqCst) && self.is_awaited.swap(false, Ordering::SeqCst) {
            drop(self.waiting.lock());
            self.came.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_timer_counts_once_in_its_own_class() {
        let latencies = OpLatencies::default();
        drop(LatencyTimer::start(&latencies, OpClass::Fsync));
        let counts: Vec<u64> = latencies.summaries().iter().map(|s| s.count).collect();
        assert_eq!(counts.iter().sum::<u64>(), 1);
        assert_eq!(counts[OpClass::Fsync as usize], 1);
    }

    #[test]
    fn the_slowest_request_is_the_maximum_and_not_the_median() {
        let latencies = OpLatencies::default();
        (0..99).for_each(|_| latencies.record(OpClass::Read, Duration::from_micros(5)));
        latencies.record(OpClass::Read, Duration::from_secs(2));
        latencies.record(OpClass::Write, Duration::from_secs(100_000));
        let read = latencies.summary(OpClass::Read);
        assert!(read.p50 < Duration::from_micros(6) && read.max >= Duration::from_secs(2));
        assert!(latencies.summary(OpClass::Write).max >= Duration::from_secs(3_600));
    }

    #[test]
    fn the_buckets_hold_every_request_and_are_narrow() {
        let latencies = OpLatencies::default();
        for micros in 1..=1000 {
            latencies.record(OpClass::Read, Duration::from_micros(micros));
        }
        let read = latencies.summary(OpClass::Read);
        assert_eq!(read.buckets.iter().map(|&(_, count)| count).sum::<u64>(), 1000);
        assert!(read.buckets.is_sorted());
        let mut below = 0;
        let (half, _) = read
            .buckets
            .iter()
            .find(|&&(_, count)| {
                below += count;
                below >= 500
            })
            .expect("a median");
        // A quarter of an octave, and the two digits of the histogram itself.
        assert!(*half >= Duration::from_micros(495) && *half < Duration::from_micros(605), "{half:?}");
    }

    #[test]
    fn every_class_is_listed_at_its_own_place() {
        assert!(OpClass::ALL.iter().enumerate().all(|(at, &class)| class as usize == at));
    }

    #[test]
    fn whoever_waits_hears_of_the_first_request_and_of_none_before() {
        let requests = Arc::new(RequestCounter::default());
        requests.note();
        requests.wait_beyond(0);
        let (waiter, seen) = (requests.clone(), requests.arrived());
        let thread = std::thread::spawn(move || {
            waiter.wait_beyond(seen);
            waiter.arrived()
        });
        while !requests.is_awaited.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert!(!thread.is_finished());
        requests.note();
        assert_eq!(thread.join().expect("it does not panic"), 2);
        assert!(!requests.is_awaited.load(Ordering::SeqCst), "requests after it wake nobody");
    }
}
