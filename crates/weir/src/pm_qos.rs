//! Keeps the machine's processors awake while requests arrive (a PM QoS request of the kernel), and counts
//! the cost.
//!
//! A sleeping processor takes longer to wake than a small request takes in all. A program that sends one
//! request after the other pays for that twice per request. A processor that is kept awake polls when it has
//! nothing to do. So processors are kept awake only while some hundreds of requests a second arrive, and for
//! a tenth of a second after that: each change of the PM QoS request wakes every processor.

use fuse::RequestCounter;
use host::{PmQosRequest, ProcessorTimes};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weir_status::WakeUpReport;

/// Requests within [`FLOW_WINDOW`] that begin a hold: a thousand a second. With fewer requests, programs wait
/// for a disk, or compute. A hold continues while this many arrive within [`SAMPLE_INTERVAL`]: two hundred a
/// second.
const FLOW_REQUESTS: u64 = 20;
const FLOW_WINDOW: Duration = Duration::from_millis(20);
/// Samples within [`FLOW_WINDOW`], so that a fast flow begins a hold at once.
const FLOW_SAMPLES: u32 = 10;
/// The time between two samples during a hold.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Time that processors must have been held, in one hold or in several, before steal time and battery are
/// judged.
const JUDGE_AFTER: Duration = Duration::from_secs(5);
/// The share of all processors' time above which other guests pay for the polling.
const STEAL_SHARE_MAX: f64 = 0.05;
/// How long processors are left alone after that.
const PAUSE_AFTER_STEAL: Duration = Duration::from_secs(10);

/// The PM QoS request of a mount. Shared by the thread that makes it and the threads that report it.
pub(crate) struct PmQos {
    /// The longest time that a processor may take to wake, in microseconds; `None` if nothing is requested.
    latency_us: Option<i32>,
    stats: Mutex<PmQosStats>,
}

/// The cost of the PM QoS request since the mount. Kept in memory only.
#[derive(Debug, Clone, Default)]
struct PmQosStats {
    /// Why processors may sleep, at present or for the whole mount.
    why_off: Option<String>,
    is_held: bool,
    /// The time during which all processors were kept awake.
    held: Duration,
    /// The time that all processors together polled meanwhile.
    polled: Duration,
    /// Requests that arrived meanwhile.
    requests: u64,
}

impl PmQos {
    /// For a mount that lets processors sleep, because of `why`.
    pub(crate) fn off(why: String) -> Arc<PmQos> {
        let stats = PmQosStats { why_off: Some(why), ..PmQosStats::default() };
        Arc::new(PmQos { latency_us: None, stats: Mutex::new(stats) })
    }

    /// Keeps processors awake while requests arrive, in a thread of its own. The process need not wait for
    /// the thread.
    pub(crate) fn start(wake_ups: PmQosRequest, traffic: Arc<RequestCounter>) -> io::Result<Arc<PmQos>> {
        let pm_qos = Arc::new(PmQos { latency_us: Some(wake_ups.latency_micros()), stats: Mutex::default() });
        let holder = PmQosThread { wake_ups, traffic, pm_qos: pm_qos.clone() };
        std::thread::Builder::new().name("pm-qos".into()).spawn(move || holder.run())?;
        Ok(pm_qos)
    }

    /// The part `wake_up` of `weir status`.
    pub(crate) fn report(&self) -> WakeUpReport {
        let stats = self.stats().clone();
        let state = if stats.why_off.is_some() {
            "off"
        } else if stats.is_held {
            "awake"
        } else {
            "idle"
        };
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        WakeUpReport {
            state: state.into(),
            why_off: stats.why_off,
            latency_us: self.latency_us,
            held_ms: millis(stats.held),
            polled_ms: millis(stats.polled),
            requests: stats.requests,
            processor_seconds_per_million_requests: seconds_per_million(stats.polled, stats.requests),
        }
    }

    fn stats(&self) -> MutexGuard<'_, PmQosStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seconds_per_million(polled: Duration, requests: u64) -> f64 {
    if requests == 0 { 0.0 } else { polled.as_secs_f64() * 1e6 / requests as f64 }
}

/// The line of `weir status` about it.
pub(crate) fn status_line(report: &WakeUpReport) -> String {
    if let Some(why) = &report.why_off {
        return format!("off: {why}");
    }
    let seconds = report.held_ms / 1e3;
    let cost = report.processor_seconds_per_million_requests;
    format!(
        "awake while requests arrive: for {seconds:.1} s, {cost:.1} processor seconds per million requests"
    )
}

/// Why a hold ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HoldEnd {
    NoRequests,
    Stolen,
    Battery,
}

/// Steal time during holds since it was judged last. It adds up over holds, so that short bursts are judged,
/// too.
#[derive(Default)]
struct StealTime {
    held: Duration,
    times: ProcessorTimes,
}

impl StealTime {
    /// Adds the processor times between `before` and `now`, of which processors were held for `held`. Returns
    /// the stolen share, and starts anew, once processors were held for [`JUDGE_AFTER`].
    fn add(&mut self, held: Duration, before: &ProcessorTimes, now: &ProcessorTimes) -> Option<f64> {
        self.held += held;
        self.times.all += now.all.saturating_sub(before.all);
        self.times.stolen += now.stolen.saturating_sub(before.stolen);
        let is_enough = self.held >= JUDGE_AFTER;
        is_enough.then(|| std::mem::take(self).times.stolen_since(&ProcessorTimes::default()))
    }
}

/// A sample during a hold.
struct TrafficSample {
    /// Requests since the mount.
    arrived: u64,
    /// Time that processors polled since the mount.
    polled: Duration,
    at: Instant,
}

/// The state of the thread that makes the request.
struct PmQosThread {
    wake_ups: PmQosRequest,
    traffic: Arc<RequestCounter>,
    pm_qos: Arc<PmQos>,
}

impl PmQosThread {
    fn run(&self) {
        let mut steal_time = StealTime::default();
        loop {
            let before = self.traffic.arrived();
            self.traffic.wait_beyond(before);
            if !self.flow_begins(before) {
                continue;
            }
            let why_paused = match self.hold(&mut steal_time) {
                Ok(HoldEnd::NoRequests) => continue,
                Ok(HoldEnd::Stolen) => {
                    "the hypervisor gives the processors' time to other guests (steal time); weir tries again soon"
                }
                Ok(HoldEnd::Battery) => "the machine runs on battery; weir tries again soon",
                Err(error) => {
                    self.pm_qos.stats().why_off = Some(format!("the kernel refused: {error}"));
                    return;
                }
            };
            self.pm_qos.stats().why_off = Some(why_paused.into());
            std::thread::sleep(PAUSE_AFTER_STEAL);
            self.pm_qos.stats().why_off = None;
        }
    }

    /// Whether [`FLOW_REQUESTS`] requests arrive within [`FLOW_WINDOW`]. `before` counts the requests that
    /// arrived earlier.
    fn flow_begins(&self, before: u64) -> bool {
        for _ in 0..FLOW_SAMPLES {
            std::thread::sleep(FLOW_WINDOW / FLOW_SAMPLES);
            if self.traffic.arrived() - before >= FLOW_REQUESTS {
                return true;
            }
        }
        false
    }

    /// Keeps processors awake until too few requests arrive, time is stolen, or the machine runs on battery.
    fn hold(&self, steal_time: &mut StealTime) -> io::Result<HoldEnd> {
        if self.wake_ups.is_on_battery() {
            return Ok(HoldEnd::Battery);
        }
        let mut before = self.sample();
        self.wake_ups.acquire()?;
        self.pm_qos.stats().is_held = true;
        let mut times_before = ProcessorTimes::now();
        let end = loop {
            std::thread::sleep(SAMPLE_INTERVAL);
            let now = self.sample();
            let arrived = now.arrived - before.arrived;
            let held = now.at - before.at;
            self.count(arrived, now.polled.saturating_sub(before.polled), held);
            before = now;
            let times = ProcessorTimes::now();
            let stolen = steal_time.add(held, &times_before, &times);
            times_before = times;
            if stolen.is_some_and(|share| share > STEAL_SHARE_MAX) {
                break HoldEnd::Stolen;
            }
            if arrived < FLOW_REQUESTS {
                break HoldEnd::NoRequests;
            }
            if stolen.is_some() && self.wake_ups.is_on_battery() {
                break HoldEnd::Battery;
            }
        };
        self.pm_qos.stats().is_held = false;
        self.wake_ups.release()?;
        Ok(end)
    }

    fn sample(&self) -> TrafficSample {
        TrafficSample {
            arrived: self.traffic.arrived(),
            polled: self.wake_ups.polled_time(),
            at: Instant::now(),
        }
    }

    fn count(&self, requests: u64, polled: Duration, held: Duration) {
        let mut stats = self.pm_qos.stats();
        stats.requests += requests;
        stats.polled += polled;
        stats.held += held;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    /// The PM QoS files of a virtual machine, below `root`.
    fn wake_ups(root: &Path) -> PmQosRequest {
        let driver = root.join("devices/system/cpu/cpuidle");
        fs::create_dir_all(&driver).expect("a directory");
        fs::write(driver.join("current_driver"), "haltpoll\n").expect("a file");
        fs::write(root.join("latency"), "").expect("a file");
        PmQosRequest::open_at(root, &root.join("latency")).expect("files to write to")
    }

    #[test]
    fn processors_are_held_for_a_flow_of_requests_only() {
        let root = tempfile::tempdir().expect("a directory");
        let traffic = Arc::new(RequestCounter::default());
        let pm_qos = PmQos::start(wake_ups(root.path()), traffic.clone()).expect("a thread");
        let asked = || fs::read(root.path().join("latency")).expect("a file");
        (1..FLOW_REQUESTS).for_each(|_| traffic.note());
        std::thread::sleep(2 * FLOW_WINDOW);
        assert_eq!(asked(), [0_u8; 0], "too few to be worth it");
        while asked().is_empty() {
            (0..FLOW_REQUESTS).for_each(|_| traffic.note());
            std::thread::sleep(Duration::from_millis(1));
        }
        // The release may follow before this thread looks again.
        assert!(asked().starts_with(&0_i32.to_ne_bytes()));
        while asked().len() < 8 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(asked(), [0_i32.to_ne_bytes(), (-1_i32).to_ne_bytes()].concat());
        assert!(pm_qos.report().held_ms >= 100.0, "{:?}", pm_qos.report());
    }

    #[test]
    fn steal_time_adds_up_over_holds() {
        let times = |all: u64, stolen: u64| ProcessorTimes {
            all: Duration::from_millis(all),
            stolen: Duration::from_millis(stolen),
        };
        let mut stolen = StealTime::default();
        // Time between two holds does not count.
        assert_eq!(stolen.add(JUDGE_AFTER * 3 / 4, &times(0, 0), &times(6000, 600)), None);
        let share =
            stolen.add(JUDGE_AFTER / 4, &times(90_000, 80_000), &times(92_000, 80_200)).expect("long enough");
        assert!((share - 0.1).abs() < 1e-9);
        assert_eq!(stolen.add(JUDGE_AFTER / 2, &times(0, 0), &times(4000, 0)), None, "it starts anew");
    }

    #[test]
    fn report_has_the_cost_and_why_it_is_off() {
        let pm_qos = PmQos { latency_us: Some(0), stats: Mutex::default() };
        assert!(status_line(&pm_qos.report()).contains("for 0.0 s, 0.0 processor seconds"));
        *pm_qos.stats() = PmQosStats {
            held: Duration::from_secs(3),
            polled: Duration::from_secs(4),
            requests: 500_000,
            is_held: true,
            why_off: None,
        };
        assert_eq!(pm_qos.report().state, "awake");
        assert!(status_line(&pm_qos.report()).contains("for 3.0 s, 8.0 processor seconds per million"));
        let off = PmQos::off("--wake-up=off".into());
        assert_eq!(off.report().state, "off");
        assert_eq!(status_line(&off.report()), "off: --wake-up=off");
    }
}
