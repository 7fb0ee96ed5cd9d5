//! Keeps the machine's processors awake while requests flow, and counts what that costs.
//!
//! Asleep, a processor takes longer to wake than a request takes in all; who asks for one thing after the other waits for
//! that twice each time. Awake, processors that have nothing to do poll instead. So they are kept awake only while requests come faster
//! than some hundreds a second, and for a tenth of a second after: taking the kernel's word back and giving it again wakes
//! every processor.

use fuse::RequestCounter;
use host::{PmQosRequest, ProcessorTimes};
use serde_json::{Value, json};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// So many requests are a flow: within `FLOW_WINDOW` of the first, a thousand a second, to begin with, since below it somebody waits for a
/// disk, or thinks; between two looks, two hundred a second, to go on.
const FLOW_REQUESTS: u64 = 20;
const FLOW_WINDOW: Duration = Duration::from_millis(20);
/// How often it is looked meanwhile, so that what is fast begins at once.
const FLOW_SAMPLES: u32 = 10;
/// Between two looks afterwards.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Between two questions to the machine itself: so long they are kept awake, in one stretch or in several.
const JUDGE_AFTER: Duration = Duration::from_secs(5);
/// The share of all processors' time above which it is others who pay.
const STEAL_SHARE_MAX: f64 = 0.05;
/// For how long nothing is kept awake after that.
const PAUSE_AFTER_STEAL: Duration = Duration::from_secs(10);

/// What a mount does about sleeping processors. Shared by the thread that does it and by whoever shows it.
pub(crate) struct PmQos {
    /// For how long a processor may take to wake, in microseconds.
    micros: Option<i32>,
    stats: Mutex<PmQosStats>,
}

/// What came of it so far. Gone with the process, as the request itself.
#[derive(Debug, Clone, Default)]
struct PmQosStats {
    /// Why nothing is asked for, now or at all.
    off: Option<String>,
    is_held: bool,
    /// For how long all processors were kept awake.
    held: Duration,
    /// What they polled meanwhile, all together.
    polled: Duration,
    /// Requests that came meanwhile.
    requests: u64,
}

impl PmQos {
    /// A mount that asks for nothing, and why.
    pub(crate) fn off(why: String) -> Arc<PmQos> {
        Arc::new(PmQos {
            micros: None,
            stats: Mutex::new(PmQosStats { off: Some(why), ..PmQosStats::default() }),
        })
    }

    /// Begins to keep processors awake while requests flow, in a thread of its own that nobody need wait for.
    pub(crate) fn start(wake_ups: PmQosRequest, traffic: Arc<RequestCounter>) -> io::Result<Arc<PmQos>> {
        let awake = Arc::new(PmQos { micros: Some(wake_ups.latency_micros()), stats: Mutex::default() });
        let keeper = PmQosThread { wake_ups, traffic, awake: awake.clone() };
        std::thread::Builder::new().name("awake".into()).spawn(move || keeper.run())?;
        Ok(awake)
    }

    /// As `weir status --json` shows it.
    pub(crate) fn report(&self) -> Value {
        let stats = self.stats().clone();
        let state = match (&stats.off, stats.is_held) {
            (Some(_), _) => "off",
            (None, true) => "awake",
            (None, false) => "idle",
        };
        let millis = |time: Duration| time.as_secs_f64() * 1e3;
        json!({
            "state": state,
            "why_off": stats.off,
            "latency_us": self.micros,
            "held_ms": millis(stats.held),
            "polled_ms": millis(stats.polled),
            "requests": stats.requests,
            "processor_seconds_per_million_requests": per_million(stats.polled, stats.requests),
        })
    }

    fn stats(&self) -> MutexGuard<'_, PmQosStats> {
        self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn per_million(polled: Duration, requests: u64) -> f64 {
    if requests == 0 { 0.0 } else { polled.as_secs_f64() * 1e6 / requests as f64 }
}

/// The line of `weir status`, of what [`PmQos::report`] says.
pub(crate) fn line(report: &Value) -> String {
    if let Some(why) = report["why_off"].as_str() {
        return format!("off: {why}");
    }
    let seconds = report["held_ms"].as_f64().unwrap_or(0.0) / 1e3;
    let cost = report["processor_seconds_per_million_requests"].as_f64().unwrap_or(0.0);
    format!(
        "processors are kept awake while requests arrive: for {seconds:.1} s, {cost:.1} processor seconds per million requests"
    )
}

/// Why processors may sleep again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HoldEnd {
    NoRequests,
    Stolen,
    Battery,
}

/// What was stolen while processors were kept awake, since that was judged last. Who works in short bursts is judged, too.
#[derive(Default)]
struct StealTime {
    held: Duration,
    times: ProcessorTimes,
}

impl StealTime {
    /// Adds what passed from `before` to `now`, with processors awake for `held`; the share that was stolen once that is enough
    /// to tell.
    fn add(&mut self, held: Duration, before: &ProcessorTimes, now: &ProcessorTimes) -> Option<f64> {
        self.held += held;
        self.times.all += now.all.saturating_sub(before.all);
        self.times.stolen += now.stolen.saturating_sub(before.stolen);
        let is_enough = self.held >= JUDGE_AFTER;
        is_enough.then(|| std::mem::take(self).times.stolen_since(&ProcessorTimes::default()))
    }
}

/// The thread's own.
struct PmQosThread {
    wake_ups: PmQosRequest,
    traffic: Arc<RequestCounter>,
    awake: Arc<PmQos>,
}

impl PmQosThread {
    fn run(&self) {
        let mut stolen = StealTime::default();
        loop {
            let seen = self.traffic.arrived();
            self.traffic.wait_beyond(seen);
            let flows = |_| {
                std::thread::sleep(FLOW_WINDOW / FLOW_SAMPLES);
                self.traffic.arrived() - seen >= FLOW_REQUESTS
            };
            if !(0..FLOW_SAMPLES).any(flows) {
                continue;
            }
            let paused = match self.hold(&mut stolen) {
                Ok(HoldEnd::NoRequests) => continue,
                Ok(HoldEnd::Stolen) => {
                    "the hypervisor gives the processors' time to other guests (steal time); weir tries again soon"
                }
                Ok(HoldEnd::Battery) => "the machine runs on battery; weir tries again soon",
                Err(error) => {
                    self.awake.stats().off = Some(format!("the kernel refused: {error}"));
                    return;
                }
            };
            self.awake.stats().off = Some(paused.into());
            std::thread::sleep(PAUSE_AFTER_STEAL);
            self.awake.stats().off = None;
        }
    }

    /// Keeps them awake until requests no longer flow, or something else speaks against it.
    fn hold(&self, stolen: &mut StealTime) -> io::Result<HoldEnd> {
        if self.wake_ups.is_on_battery() {
            return Ok(HoldEnd::Battery);
        }
        let mut before = (self.traffic.arrived(), self.wake_ups.polled_time(), Instant::now());
        self.wake_ups.acquire()?;
        self.awake.stats().is_held = true;
        let mut times = ProcessorTimes::now();
        let end = loop {
            std::thread::sleep(SAMPLE_INTERVAL);
            let now = (self.traffic.arrived(), self.wake_ups.polled_time(), Instant::now());
            let came = now.0 - before.0;
            let held = now.2 - before.2;
            self.account(came, now.1.saturating_sub(before.1), held);
            before = now;
            let since = std::mem::replace(&mut times, ProcessorTimes::now());
            let share = stolen.add(held, &since, &times);
            if share.is_some_and(|share| share > STEAL_SHARE_MAX) {
                break HoldEnd::Stolen;
            }
            if came < FLOW_REQUESTS {
                break HoldEnd::NoRequests;
            }
            if share.is_some() && self.wake_ups.is_on_battery() {
                break HoldEnd::Battery;
            }
        };
        self.awake.stats().is_held = false;
        self.wake_ups.release()?;
        Ok(end)
    }

    fn account(&self, requests: u64, polled: Duration, held: Duration) {
        let mut stats = self.awake.stats();
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

    /// A virtual machine's files below `root`.
    fn wake_ups(root: &Path) -> PmQosRequest {
        let driver = root.join("devices/system/cpu/cpuidle");
        fs::create_dir_all(&driver).expect("a directory");
        fs::write(driver.join("current_driver"), "haltpoll\n").expect("a file");
        fs::write(root.join("latency"), "").expect("a file");
        PmQosRequest::open_at(root, &root.join("latency")).expect("it may ask")
    }

    #[test]
    fn processors_are_kept_awake_while_requests_flow_and_not_for_a_few() {
        let root = tempfile::tempdir().expect("a directory");
        let traffic = Arc::new(RequestCounter::default());
        let awake = PmQos::start(wake_ups(root.path()), traffic.clone()).expect("a thread");
        let asked = || fs::read(root.path().join("latency")).expect("a file");
        (1..FLOW_REQUESTS).for_each(|_| traffic.note());
        std::thread::sleep(2 * FLOW_WINDOW);
        assert_eq!(asked(), [0_u8; 0], "too few to be worth it");
        while asked().is_empty() {
            (0..FLOW_REQUESTS).for_each(|_| traffic.note());
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(asked(), 0_i32.to_ne_bytes());
        while asked().len() < 8 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(asked(), [0_i32.to_ne_bytes(), (-1_i32).to_ne_bytes()].concat());
        assert!(awake.report()["held_ms"].as_f64().is_some_and(|held| held >= 100.0), "{}", awake.report());
    }

    #[test]
    fn what_is_stolen_in_bursts_is_counted_together() {
        let times = |all: u64, stolen: u64| ProcessorTimes {
            all: Duration::from_millis(all),
            stolen: Duration::from_millis(stolen),
        };
        let mut stolen = StealTime::default();
        // Whatever passes between two bursts is nobody's fault.
        assert_eq!(stolen.add(JUDGE_AFTER * 3 / 4, &times(0, 0), &times(6000, 600)), None);
        let share =
            stolen.add(JUDGE_AFTER / 4, &times(90_000, 80_000), &times(92_000, 80_200)).expect("long enough");
        assert!((share - 0.1).abs() < 1e-9);
        assert_eq!(stolen.add(JUDGE_AFTER / 2, &times(0, 0), &times(4000, 0)), None, "it begins anew");
    }

    #[test]
    fn what_it_costs_is_told_by_the_million_requests_and_why_it_is_off() {
        let awake = PmQos { micros: Some(0), stats: Mutex::default() };
        assert!(line(&awake.report()).contains("for 0.0 s, 0.0 processor seconds"));
        *awake.stats() = PmQosStats {
            held: Duration::from_secs(3),
            polled: Duration::from_secs(4),
            requests: 500_000,
            is_held: true,
            off: None,
        };
        assert_eq!(awake.report()["state"], "awake");
        assert!(line(&awake.report()).contains("for 3.0 s, 8.0 processor seconds per million"));
        let off = PmQos::off("--wake-up=off".into());
        assert_eq!(off.report()["state"], "off");
        assert_eq!(line(&off.report()), "off: --wake-up=off");
    }
}
