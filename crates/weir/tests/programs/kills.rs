//! Shared by the databases' tests: the number of kills, random numbers, and servers that end with their test.

use device::SeededRng;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time limit: even under heavy load, a correct operation takes less.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Options of a mount on which every write of whole pages may go to the store directly.
pub(crate) const STREAMS: [&str; 4] = ["--data", "ordered", "--bypass-after", "0"];

/// Kills per database: three, or as many as `WEIR_TESTS_KILLS` says; `make databases` says twenty.
pub(crate) fn kills() -> u64 {
    std::env::var("WEIR_TESTS_KILLS").map_or(3, |kills| kills.parse().expect("WEIR_TESTS_KILLS is a number"))
}

/// Random numbers from a seed, which is printed and which `WEIR_TESTS_SEED` sets. A seed repeats the moments
/// and settings of a run, but not the timing of a real daemon.
pub(crate) fn random() -> (u64, SeededRng) {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    let seed = std::env::var("WEIR_TESTS_SEED")
        .map_or_else(|_| now(), |seed| seed.parse().expect("WEIR_TESTS_SEED is a number"));
    println!("WEIR_TESTS_SEED={seed}");
    (seed, SeededRng::new(seed))
}

/// Whether all of `programs` exist. `scripts/install-test-tools` installs them. If tests must mount, as in
/// CI, a missing program is a failure.
pub(crate) fn have(programs: &[&Path]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |program: &&&Path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file());
    let missing: Vec<_> = programs.iter().filter(|program| !is_there(program)).collect();
    let must = std::env::var_os("WEIR_TESTS_MUST_MOUNT").is_some();
    assert!(missing.is_empty() || !must, "missing: {missing:?}; scripts/install-test-tools installs them");
    if !missing.is_empty() {
        eprintln!("skipped: {missing:?} are missing; scripts/install-test-tools installs them");
    }
    missing.is_empty()
}

/// A process that is gone when this is dropped.
pub(crate) struct Server(pub Child);

impl Server {
    pub(crate) fn start(command: &mut Command) -> Server {
        Server(command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")))
    }

    /// Sends a signal by its name, as `QUIT`.
    pub(crate) fn signal(&self, name: &str) {
        // It may have ended by itself.
        let _ = Command::new("kill").args(["-s", name, &self.0.id().to_string()]).status();
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, what: &str) {
        let begin = Instant::now();
        while self.0.try_wait().expect("a child of ours").is_none() {
            assert!(begin.elapsed() < PATIENCE, "{what} does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// True once `ready` says so, false if the process ended before.
    pub(crate) fn wait_until(&mut self, ready: impl Fn() -> bool) -> bool {
        let begin = Instant::now();
        while !ready() {
            if self.0.try_wait().expect("a child of ours").is_some() {
                return false;
            }
            assert!(begin.elapsed() < PATIENCE, "a server is not ready in time");
            std::thread::sleep(Duration::from_millis(10));
        }
        true
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
