//! Clients that run at the same time, each a thread that repeats a call.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::super::cleanup;
use super::super::error::BenchError;
use super::policies::buffer_mib;

/// The name of background threads.
pub(super) const BACKGROUND_THREAD: &str = "scribe";
/// The rules of the loads. Other threads match none, so they are critical.
pub(super) const RULES: &str = "background thread=scribe\n";
/// Time for which clients run before their calls count. weir knows a new thread's name after a second.
const WARM_UP: Duration = Duration::from_secs(2);
/// The longest sleep before a client looks whether it must stop.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A thread that repeats a call.
pub(super) struct LoadClient<'a> {
    thread: &'static str,
    /// Sleep after each call.
    pause: Duration,
    call: Box<dyn FnMut(u64) -> io::Result<()> + Send + 'a>,
}

impl<'a> LoadClient<'a> {
    /// A client that no rule matches. `call` gets the number of calls before it.
    pub(super) fn critical(
        pause: Duration,
        call: impl FnMut(u64) -> io::Result<()> + Send + 'a,
    ) -> LoadClient<'a> {
        LoadClient { thread: "waiting", pause, call: Box::new(call) }
    }

    /// A client that the rules call background, which makes one call after the other.
    pub(super) fn background(call: impl FnMut(u64) -> io::Result<()> + Send + 'a) -> LoadClient<'a> {
        LoadClient { thread: BACKGROUND_THREAD, pause: Duration::ZERO, call: Box::new(call) }
    }

    /// Calls until `until`. Only calls that end at `from` or later count.
    fn run(mut self, from: Instant, until: Instant) -> io::Result<CallTimes> {
        let mut times = CallTimes::default();
        for number in 0.. {
            let start = Instant::now();
            if start >= until || cleanup::is_stopping() {
                break;
            }
            (self.call)(number)?;
            let end = Instant::now();
            if end >= from {
                times.took_ms.push((end - start).as_secs_f64() * 1e3);
                times.seconds = (end - from).as_secs_f64();
            }
            if !self.pause.is_zero() {
                std::thread::sleep(self.pause.min(SLEEP_MAX));
            }
        }
        Ok(times)
    }
}

/// The calls that a client made while it was measured.
#[derive(Debug, Default)]
pub(super) struct CallTimes {
    pub(super) took_ms: Vec<f64>,
    seconds: f64,
}

impl CallTimes {
    /// Calls per second.
    pub(super) fn rate(&self) -> f64 {
        self.took_ms.len() as f64 / self.seconds.max(1e-9)
    }
}

/// The calls of each client, and MiB that were written to the buffer meanwhile.
pub(super) struct ClientsRun {
    pub(super) clients: Vec<CallTimes>,
    pub(super) buffer_mib: f64,
}

/// Runs clients side by side on a mount for `seconds` seconds after the warm-up. A stop ends them early.
pub(super) fn run_clients(
    mount_point: &Path,
    seconds: u64,
    clients: Vec<LoadClient<'_>>,
) -> Result<ClientsRun, BenchError> {
    let from = Instant::now() + WARM_UP;
    let until = from + Duration::from_secs(seconds);
    let failed = |error| BenchError::io("a client failed on", mount_point, error);
    // Not interrupted: an unmount would fail while they have files open.
    cleanup::uninterrupted(|| {
        std::thread::scope(|scope| {
            let started: Result<Vec<_>, _> = clients
                .into_iter()
                .map(|client| {
                    let name = client.thread.to_owned();
                    std::thread::Builder::new()
                        .name(name)
                        .spawn_scoped(scope, move || client.run(from, until))
                })
                .collect();
            let started = started.map_err(failed)?;
            sleep_until(from);
            let before = buffer_mib(mount_point)?;
            sleep_until(until);
            let buffer_mib = buffer_mib(mount_point)? - before;
            let ended = started.into_iter().map(|client| client.join().expect("a client does not panic"));
            let clients = ended.collect::<io::Result<_>>().map_err(failed)?;
            Ok(ClientsRun { clients, buffer_mib })
        })
    })
}

fn sleep_until(end: Instant) {
    while Instant::now() < end && !cleanup::is_stopping() {
        std::thread::sleep(end.saturating_duration_since(Instant::now()).min(SLEEP_MAX));
    }
}
