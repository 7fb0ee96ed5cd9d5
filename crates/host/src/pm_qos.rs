//! Keeping processors awake: a request to the kernel's power management (PM QoS, `/dev/cpu_dma_latency`).
//!
//! A request through FUSE changes threads twice. Where the other thread's processor sleeps, each change waits until it is
//! awake: some tens of microseconds on a virtual machine, where a halt goes through the hypervisor, against four for the
//! change itself. A request says how long waking may take; the kernel then lets no processor sleep more deeply than that.
//! It ends with the file that made it, so that nothing outlives a kill.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

const DEVICE: &str = "/dev/cpu_dma_latency";
const SYS: &str = "/sys";

/// Above it one file system's clients would keep awake a machine that mostly does something else.
const PROCESSORS_MAX: usize = 16;

/// Microseconds asked for where waking from the first sleep takes about as long: the deeper ones are ruled out.
const FIRST_SLEEP: i32 = 2;
/// Microseconds asked for in a virtual machine, whose halt says that it takes 1: polling, no sleep at all.
const NO_SLEEP: i32 = 0;
/// What the kernel takes as "no wish".
const NO_WISH: i32 = -1;

/// Milliseconds of a tick in `/proc/stat`: USER_HZ is 100 on every Linux.
const TICK_MS: u64 = 10;

/// Why processors are not kept awake.
#[derive(Debug, thiserror::Error)]
pub enum PmQosUnavailable {
    /// Only root may ask.
    #[error("{} cannot be opened: {why}", path.display())]
    Refused {
        /// The kernel's interface to its power management.
        path: PathBuf,
        /// What it said.
        why: io::Error,
    },
    /// A kernel without idle states has nothing to choose from.
    #[error("the kernel has no idle driver that could be asked")]
    NoDriver,
    /// So many would be kept awake.
    #[error("{0} processors would be kept awake, which is more than {PROCESSORS_MAX}")]
    TooMany(usize),
}

/// A request for short wake-ups: nothing is asked for until [`acquire`](PmQosRequest::acquire).
#[derive(Debug)]
pub struct PmQosRequest {
    request: File,
    micros: i32,
    sys: PathBuf,
    /// One file for each processor that polls before it sleeps: for how many microseconds it has.
    polled: Vec<PathBuf>,
}

impl PmQosRequest {
    /// Opens the kernel's interface, where this machine and its owner gain by it.
    ///
    /// # Errors
    /// Why not, if they do not.
    pub fn open() -> Result<PmQosRequest, PmQosUnavailable> {
        PmQosRequest::open_at(Path::new(SYS), Path::new(DEVICE))
    }

    /// The same with the kernel's files below `sys`, and `device`.
    pub fn open_at(sys: &Path, device: &Path) -> Result<PmQosRequest, PmQosUnavailable> {
        let read = |name: &str| fs::read_to_string(sys.join("devices/system/cpu").join(name));
        let driver = read("cpuidle/current_driver").unwrap_or_default();
        let micros = match driver.trim() {
            "" | "none" => return Err(PmQosUnavailable::NoDriver),
            "haltpoll" => NO_SLEEP,
            _ => FIRST_SLEEP,
        };
        let processors = count(&read("online").unwrap_or_default());
        if processors > PROCESSORS_MAX {
            return Err(PmQosUnavailable::TooMany(processors));
        }
        let refused = |why| PmQosUnavailable::Refused { path: device.into(), why };
        let request = File::options().write(true).open(device).map_err(refused)?;
        let states =
            (0..PROCESSORS_MAX).map(|n| sys.join(format!("devices/system/cpu/cpu{n}/cpuidle/state0")));
        let polls =
            |state: &PathBuf| fs::read_to_string(state.join("name")).is_ok_and(|name| name.trim() == "POLL");
        let polled = states.filter(polls).map(|state| state.join("time")).collect();
        Ok(PmQosRequest { request, micros, sys: sys.into(), polled })
    }

    /// For how long a processor may take to wake while this is held, in microseconds.
    pub fn latency_micros(&self) -> i32 {
        self.micros
    }

    /// Keeps all processors of the machine awake until [`release`](PmQosRequest::release), or until this process ends. Wakes each.
    pub fn acquire(&self) -> io::Result<()> {
        (&self.request).write_all(&self.micros.to_ne_bytes())
    }

    /// Lets them sleep again.
    pub fn release(&self) -> io::Result<()> {
        (&self.request).write_all(&NO_WISH.to_ne_bytes())
    }

    /// Whether the machine runs on its battery now.
    pub fn is_on_battery(&self) -> bool {
        is_on_battery(&self.sys)
    }

    /// How long all processors together have polled instead of sleeping since the machine was started.
    pub fn polled_time(&self) -> Duration {
        let micros = self.polled.iter().filter_map(|file| fs::read_to_string(file).ok()?.trim().parse().ok());
        micros.map(Duration::from_micros).sum()
    }
}

/// Processors in a list of the kernel's, as `0-3,5`.
fn count(list: &str) -> usize {
    let parts = list.trim().split(',').filter_map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(last.parse::<usize>().ok()? + 1 - first.parse::<usize>().ok()?)
    });
    parts.sum()
}

/// A battery that gives away what it holds. A machine without one, or one whose battery only waits, runs on its mains.
fn is_on_battery(sys: &Path) -> bool {
    let supplies = fs::read_dir(sys.join("class/power_supply")).into_iter().flatten().flatten();
    let says = |supply: &fs::DirEntry, file: &str, what: &str| {
        fs::read_to_string(supply.path().join(file)).is_ok_and(|text| text.trim() == what)
    };
    let mut supplies = supplies.filter(|supply| {
        // A mouse has a battery, too.
        says(supply, "type", "Battery") && !says(supply, "scope", "Device")
    });
    supplies.any(|battery| says(&battery, "status", "Discharging"))
}

/// What the machine's processors did since it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProcessorTimes {
    /// All of it, of all processors.
    pub all: Duration,
    /// Of it: they had something to do, and the hypervisor ran somebody else.
    pub stolen: Duration,
}

impl ProcessorTimes {
    /// As of now; nothing where the kernel does not say.
    pub fn now() -> ProcessorTimes {
        ProcessorTimes::parse(&fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn parse(stat: &str) -> ProcessorTimes {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
        // user nice system idle iowait irq softirq steal; what guests took is in the first two already.
        let times = line.split_whitespace().take(8).filter_map(|ticks| ticks.parse().ok());
        let times: Vec<Duration> = times.map(|ticks: u64| Duration::from_millis(ticks * TICK_MS)).collect();
        ProcessorTimes { all: times.iter().sum(), stolen: times.get(7).copied().unwrap_or_default() }
    }

    /// The share that was stolen since `before`, 0 to 1.
    pub fn stolen_since(&self, before: &ProcessorTimes) -> f64 {
        let all = self.all.saturating_sub(before.all);
        let stolen = self.stolen.saturating_sub(before.stolen);
        if all.is_zero() { 0.0 } else { stolen.as_secs_f64() / all.as_secs_f64() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine of files: the idle driver's name, its processors, and a battery that says `status`.
    fn machine(driver: &str, online: &str, battery: Option<&str>) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a directory");
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
            fs::write(path, format!("{text}\n")).expect("a file");
        };
        write("devices/system/cpu/cpuidle/current_driver", driver);
        write("devices/system/cpu/online", online);
        write("devices/system/cpu/cpu0/cpuidle/state0/name", "POLL");
        write("devices/system/cpu/cpu0/cpuidle/state0/time", "1500000");
        write("devices/system/cpu/cpu1/cpuidle/state0/name", "C1");
        write("devices/system/cpu/cpu1/cpuidle/state0/time", "7000000");
        write("class/power_supply/mouse/type", "Battery");
        write("class/power_supply/mouse/scope", "Device");
        write("class/power_supply/mouse/status", "Discharging");
        if let Some(status) = battery {
            write("class/power_supply/BAT0/type", "Battery");
            write("class/power_supply/BAT0/status", status);
        }
        write("cpu_dma_latency", "");
        root
    }

    fn open(root: &tempfile::TempDir) -> Result<PmQosRequest, PmQosUnavailable> {
        PmQosRequest::open_at(root.path(), &root.path().join("cpu_dma_latency"))
    }

    #[test]
    fn a_virtual_machine_is_asked_not_to_halt_and_others_not_to_sleep_deeply() {
        for (driver, micros) in [("haltpoll", 0), ("intel_idle", 2), ("acpi_idle", 2)] {
            let root = machine(driver, "0-1", Some("Full"));
            let wake_ups = open(&root).expect("it may ask");
            assert_eq!(wake_ups.latency_micros(), micros);
            fs::write(root.path().join("cpu_dma_latency"), "").expect("a file");
            wake_ups.acquire().and_then(|()| wake_ups.release()).expect("a file is written");
            let asked = fs::read(root.path().join("cpu_dma_latency")).expect("a file");
            assert_eq!(asked, [micros.to_ne_bytes(), (-1_i32).to_ne_bytes()].concat());
            assert_eq!(wake_ups.polled_time(), Duration::from_millis(1500), "only where it polls");
        }
    }

    #[test]
    fn nobody_is_kept_awake_on_a_large_machine_without_a_driver_or_without_permission() {
        let reason = |root: &tempfile::TempDir| open(root).expect_err("it must not").to_string();
        assert!(reason(&machine("haltpoll", "0-7,16-31", None)).contains("24 processors"));
        assert!(reason(&machine("none", "0-1", None)).contains("no idle driver"));
        let root = machine("haltpoll", "0", None);
        fs::remove_file(root.path().join("cpu_dma_latency")).expect("it is there");
        assert!(reason(&root).contains("cannot be opened: No such file"));
    }

    #[test]
    fn a_battery_that_takes_over_is_noticed() {
        let root = machine("intel_idle", "0-3", Some("Charging"));
        let wake_ups = open(&root).expect("it may ask");
        assert!(!wake_ups.is_on_battery());
        fs::write(root.path().join("class/power_supply/BAT0/status"), "Discharging\n").expect("a file");
        assert!(wake_ups.is_on_battery());
    }

    #[test]
    fn what_others_took_is_a_share_of_all_processors_time() {
        let before = ProcessorTimes::parse("cpu  100 0 100 700 0 0 0 100 0 0\ncpu0 1 1 1 1\n");
        let after = ProcessorTimes::parse("cpu  150 0 100 720 0 0 0 130 50 0\n");
        assert_eq!(before.all, Duration::from_secs(10));
        assert!((after.stolen_since(&before) - 0.3).abs() < 1e-9);
        assert!(before.stolen_since(&before).abs() < 1e-9);
        // Sixteen processors that have been idle for a month.
        let before = ProcessorTimes::parse("cpu  100 0 100 5000000000 0 0 0 100 0 0\n");
        let after = ProcessorTimes::parse("cpu  150 0 100 5000000020 0 0 0 130 50 0\n");
        assert!((after.stolen_since(&before) - 0.3).abs() < 1e-9);
        assert!(ProcessorTimes::now().all > Duration::ZERO);
    }
}
