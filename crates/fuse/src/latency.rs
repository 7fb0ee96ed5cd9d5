//! Latencies of requests, from arrival to reply, and the bytes of reads and writes, by kind and by class; and a counter of
//! requests.

use hdrhistogram::Histogram;
use request::{RequestClass, RequestKind};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Kinds whose latencies are also kept by class.
pub const CLASSED_KINDS: [RequestKind; 3] = [RequestKind::Read, RequestKind::Write, RequestKind::Fsync];

/// The classes, in the order of their numbers.
const CLASSES: [RequestClass; 2] = [RequestClass::Critical, RequestClass::Background];

/// The latencies of some requests since the mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LatencySummary {
    /// How many requests were answered.
    pub count: u64,
    /// Bytes that these requests read or wrote. Requests that failed have none.
    pub bytes: u64,
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

/// The requests that were answered.
struct AnsweredRequests {
    latencies: Histogram<u64>,
    bytes: u64,
}

impl AnsweredRequests {
    fn add(&mut self, nanos: u64, bytes: u64) {
        self.latencies.saturating_record(nanos);
        self.bytes += bytes;
    }
}

/// Requests with a mutex of their own, held for some tens of nanoseconds.
type SharedRequests = Mutex<AnsweredRequests>;

/// The latencies and the bytes of each kind of request, and for some kinds those of each class.
pub struct RequestLatencies {
    kinds: [SharedRequests; RequestKind::ALL.len()],
    classed: [[SharedRequests; CLASSES.len()]; CLASSED_KINDS.len()],
}

impl Default for RequestLatencies {
    fn default() -> RequestLatencies {
        RequestLatencies {
            kinds: RequestKind::ALL.map(|_| empty()),
            classed: CLASSED_KINDS.map(|_| CLASSES.map(|_| empty())),
        }
    }
}

impl RequestLatencies {
    /// The latencies of a kind since the mount.
    pub fn of_kind(&self, kind: RequestKind) -> LatencySummary {
        summary(&self.kinds[kind as usize])
    }

    /// The latencies of a kind and a class since the mount, while rules were in force. `None` for kinds that are
    /// not among [`CLASSED_KINDS`].
    pub fn of_class(&self, kind: RequestKind, class: RequestClass) -> Option<LatencySummary> {
        Some(summary(&self.classed(kind)?[class as usize]))
    }

    fn classed(&self, kind: RequestKind) -> Option<&[SharedRequests; CLASSES.len()]> {
        let number = CLASSED_KINDS.iter().position(|&classed| classed == kind)?;
        Some(&self.classed[number])
    }

    fn record(&self, kind: RequestKind, class: Option<RequestClass>, took: Duration, bytes: u64) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        lock(&self.kinds[kind as usize]).add(nanos, bytes);
        if let Some(class) = class
            && let Some(classed) = self.classed(kind)
        {
            lock(&classed[class as usize]).add(nanos, bytes);
        }
    }
}

fn lock(requests: &SharedRequests) -> MutexGuard<'_, AnsweredRequests> {
    // Each call leaves the histogram consistent, so a poisoned lock is no reason to fail.
    requests.lock().unwrap_or_else(PoisonError::into_inner)
}

fn summary(requests: &SharedRequests) -> LatencySummary {
    let requests = lock(requests);
    let histogram = &requests.latencies;
    let at = |quantile| Duration::from_nanos(histogram.value_at_quantile(quantile));
    LatencySummary {
        count: histogram.len(),
        bytes: requests.bytes,
        p50: at(0.5),
        p99: at(0.99),
        p999: at(0.999),
        max: Duration::from_nanos(histogram.max()),
        buckets: buckets(histogram),
    }
}

fn buckets(histogram: &Histogram<u64>) -> Vec<(Duration, u64)> {
    let steps = histogram.iter_log(BUCKET_NANOS_MIN, BUCKET_GROWTH);
    let counts =
        steps.map(|step| (Duration::from_nanos(step.value_iterated_to()), step.count_since_last_iteration()));
    counts.filter(|&(_, count)| count > 0).collect()
}

fn empty() -> SharedRequests {
    let latencies = Histogram::new_with_max(LATENCY_MAX_NANOS, DIGITS);
    let latencies = latencies.expect("the bounds are constants that fit");
    Mutex::new(AnsweredRequests { latencies, bytes: 0 })
}

/// Measures a request's latency, from its arrival until the timer is dropped, after the reply was sent.
///
/// A timer in a completion shares the histograms; a timer of a handler borrows them.
pub(crate) struct LatencyTimer<L: Deref<Target = RequestLatencies> = Arc<RequestLatencies>> {
    latencies: L,
    kind: RequestKind,
    /// `None` while no rules are in force.
    class: Option<RequestClass>,
    start: Instant,
    bytes: u64,
}

impl<L: Deref<Target = RequestLatencies>> LatencyTimer<L> {
    pub(crate) fn start(latencies: L, kind: RequestKind, class: Option<RequestClass>) -> LatencyTimer<L> {
        LatencyTimer { latencies, kind, class, start: Instant::now(), bytes: 0 }
    }

    /// Notes how many bytes the request read or wrote.
    pub(crate) fn set_bytes(&mut self, bytes: u64) {
        self.bytes = bytes;
    }
}

impl<L: Deref<Target = RequestLatencies>> Drop for LatencyTimer<L> {
    fn drop(&mut self) {
        self.latencies.record(self.kind, self.class, self.start.elapsed(), self.bytes);
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

    /// Counts a request, of the kernel or of another client, and wakes waiters.
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
    fn a_dropped_timer_counts_once_for_its_own_kind() {
        let latencies = RequestLatencies::default();
        drop(LatencyTimer::start(&latencies, RequestKind::Fsync, None));
        let count = |kind| latencies.of_kind(kind).count;
        assert_eq!(RequestKind::ALL.map(count).iter().sum::<u64>(), 1);
        assert_eq!(count(RequestKind::Fsync), 1);
    }

    #[test]
    fn bytes_count_for_their_kind_and_class() {
        let latencies = RequestLatencies::default();
        for bytes in [4096, 512] {
            let mut timer =
                LatencyTimer::start(&latencies, RequestKind::Write, Some(RequestClass::Background));
            timer.set_bytes(bytes);
        }
        let bytes_of_class =
            |class| latencies.of_class(RequestKind::Write, class).map(|summary| summary.bytes);
        assert_eq!(latencies.of_kind(RequestKind::Write).bytes, 4608);
        assert_eq!(latencies.of_kind(RequestKind::Read).bytes, 0);
        assert_eq!(CLASSES.map(bytes_of_class), [Some(0), Some(4608)]);
    }

    #[test]
    fn classes_count_only_while_rules_are_in_force() {
        let latencies = RequestLatencies::default();
        let took = Duration::from_micros(5);
        latencies.record(RequestKind::Read, None, took, 0);
        latencies.record(RequestKind::Read, Some(RequestClass::Critical), took, 0);
        latencies.record(RequestKind::Lookup, Some(RequestClass::Critical), took, 0);
        let count = |kind, class| latencies.of_class(kind, class).map(|summary| summary.count);
        assert_eq!(count(RequestKind::Read, RequestClass::Critical), Some(1));
        assert_eq!(count(RequestKind::Read, RequestClass::Background), Some(0));
        assert_eq!(count(RequestKind::Lookup, RequestClass::Critical), None);
        assert_eq!(latencies.of_kind(RequestKind::Read).count, 2);
    }

    #[test]
    fn classes_are_listed_at_their_own_places() {
        assert!(CLASSES.iter().enumerate().all(|(at, &class)| class as usize == at));
    }

    #[test]
    fn the_slowest_request_is_the_maximum_and_not_the_median() {
        let latencies = RequestLatencies::default();
        (0..99).for_each(|_| latencies.record(RequestKind::Read, None, Duration::from_micros(5), 0));
        latencies.record(RequestKind::Read, None, Duration::from_secs(2), 0);
        latencies.record(RequestKind::Write, None, Duration::from_secs(100_000), 0);
        let read = latencies.of_kind(RequestKind::Read);
        assert!(read.p50 < Duration::from_micros(6) && read.max >= Duration::from_secs(2));
        assert!(latencies.of_kind(RequestKind::Write).max >= Duration::from_secs(3_600));
    }

    #[test]
    fn the_buckets_hold_every_request_and_are_narrow() {
        let latencies = RequestLatencies::default();
        for micros in 1..=1000 {
            latencies.record(RequestKind::Read, None, Duration::from_micros(micros), 0);
        }
        let read = latencies.of_kind(RequestKind::Read);
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
    fn whoever_waits_hears_of_the_first_request_and_of_none_before() {
        let requests = Arc::new(RequestCounter::default());
        requests.note();
        requests.wait_beyond(0);
        let waiter = requests.clone();
        let seen = requests.arrived();
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
