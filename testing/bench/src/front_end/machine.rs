//! Control and load of the processors during a measurement.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{self, Write};
use std::path::Path;

use clap::Args;
use procfs::process::Process;
use procfs::{CurrentSI, KernelStats};
use rustix::process::{WaitOptions, getpid, getppid, set_child_subreaper, setsid, waitpid};
use serde::Serialize;

use super::super::error::BenchError;
use super::super::slow_device::ServerProcess;
use super::super::system::own;

/// Keeps all processors awake until dropped, as `weir mount` does while requests flow. Needs root.
pub(super) struct PmQosHold {
    _file: File,
}

impl PmQosHold {
    pub(super) fn hold() -> io::Result<PmQosHold> {
        let mut file = OpenOptions::new().write(true).open("/dev/cpu_dma_latency")?;
        // The longest time that a processor may take to wake up, in microseconds.
        file.write_all(&0_i32.to_ne_bytes())?;
        Ok(PmQosHold { _file: file })
    }
}

/// Arguments of the process of busy threads.
#[derive(Debug, Args)]
pub(crate) struct BusyArgs {
    threads: usize,
}

/// Computes in `threads` threads until the benchmark kills this process or has ended.
pub(crate) fn run_busy(args: &BusyArgs) {
    // A session of its own. Schedulers that share processors out by session would otherwise group it with the
    // clients.
    let _ = setsid();
    let benchmark = getppid();
    std::thread::scope(|scope| {
        for _ in 0..args.threads {
            scope.spawn(|| {
                while getppid() == benchmark {
                    (0..1_000_000_u64).for_each(|number| {
                        black_box(number);
                    });
                }
            });
        }
    });
}

/// Starts `threads` busy threads at normal priority. Dropping the result ends them.
pub(super) fn keep_busy(threads: usize, root: &Path) -> Result<ServerProcess, BenchError> {
    ServerProcess::start(own("busy").arg(threads.to_string()), root.join("busy.log"))
}

/// Makes this process the parent of daemons started from now on, so that their CPU time counts as its own
/// once they end.
pub(super) fn adopt_daemons() -> Result<(), BenchError> {
    set_child_subreaper(Some(getpid()))
        .map_err(|errno| BenchError::io("cannot adopt daemons in", "/proc/self", errno.into()))
}

/// Reaps adopted processes that have ended. Call this only while no thread waits for a child process.
pub(super) fn take_in_adopted() {
    while let Ok(Some(_)) = waitpid(None, WaitOptions::NOHANG) {}
}

/// CPU time since the machine started, in the kernel's ticks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CpuTicks {
    /// All ticks of all processors.
    all: u64,
    /// Ticks of running threads and interrupts.
    busy: u64,
    /// Ticks that the virtual machine's host took away from runnable threads.
    stolen: u64,
    /// Ticks of this process and of its reaped descendants.
    own: u64,
}

/// Load of other programs, as shares of all CPU time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct ForeignLoad {
    /// Other programs, and the kernel's own threads.
    pub(super) used: f64,
    /// The host of a virtual machine.
    pub(super) host: f64,
}

/// From this share of foreign load on, the machine counts as busy.
const IDLE_MAX: f64 = 0.1;

impl fmt::Display for ForeignLoad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle = if self.used + self.host < IDLE_MAX { "idle" } else { "BUSY" };
        let [used, host] = [self.used, self.host].map(|share| share * 100.0);
        write!(f, "the machine was {idle}: others used {used:.0} % of its processors, its host {host:.0} %")
    }
}

impl CpuTicks {
    /// Reads the ticks.
    pub(super) fn now() -> Result<CpuTicks, BenchError> {
        let failed = |error| BenchError::io("cannot read", "/proc", io::Error::other(error));
        let machine = KernelStats::current().map_err(failed)?.total;
        let own = Process::myself().and_then(|own| own.stat()).map_err(failed)?;
        let [idle, irq, softirq, stolen] =
            [machine.iowait, machine.irq, machine.softirq, machine.steal].map(Option::unwrap_or_default);
        let busy = machine.user + machine.nice + machine.system + irq + softirq;
        Ok(CpuTicks {
            all: busy + machine.idle + idle + stolen,
            busy,
            stolen,
            own: own.utime + own.stime + (own.cutime + own.cstime) as u64,
        })
    }

    /// Load of other programs since `before`.
    pub(super) fn others_since(self, before: CpuTicks) -> ForeignLoad {
        let all = self.all.saturating_sub(before.all).max(1) as f64;
        let own = self.own.saturating_sub(before.own);
        ForeignLoad {
            used: self.busy.saturating_sub(before.busy).saturating_sub(own) as f64 / all,
            host: self.stolen.saturating_sub(before.stolen) as f64 / all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_used_what_the_machine_did_without_us() {
        let before = CpuTicks { all: 1000, busy: 150, stolen: 0, own: 16 };
        let after = CpuTicks { all: 2000, busy: 350, stolen: 150, own: 116 };
        let others = after.others_since(before);
        assert!((others.used - 0.1).abs() < 1e-9, "{others:?}");
        assert!((others.host - 0.15).abs() < 1e-9, "{others:?}");
    }

    #[test]
    fn a_machine_is_busy_if_others_or_its_host_used_much() {
        let idle = ForeignLoad { used: 0.01, host: 0.0 }.to_string();
        assert!(idle.contains("was idle: others used 1 %"), "{idle}");
        let busy = ForeignLoad { used: 0.01, host: 0.3 }.to_string();
        assert!(busy.contains("was BUSY") && busy.contains("its host 30 %"), "{busy}");
    }

    #[test]
    fn this_kernel_counts_as_we_read_it() {
        let now = CpuTicks::now().expect("the kernel tells");
        assert!(now.all > now.busy && now.busy > now.own, "{now:?}");
    }
}
