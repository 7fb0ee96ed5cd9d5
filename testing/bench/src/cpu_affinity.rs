//! Processors for the load and for the modelled devices.
//!
//! A modelled device is a program. Like a real device, it must not take CPU time from the measured systems.
//!
//! The load and the file systems' programs have the first processor, the modelled devices all others. This
//! also makes runs comparable: on a virtual machine, waking a thread on another, idle processor may cost
//! several times a whole request, and the kernel's placement of threads may differ from run to run.

use std::io;

use clap::ValueEnum;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use super::error::BenchError;

/// Whether load and modelled devices share processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum CpuAffinity {
    /// The load and the file system have one processor, the modelled devices the others.
    Apart,
    /// The kernel chooses.
    Free,
}

/// The processors of a run.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProcessorSplit {
    load: CpuSet,
    devices: CpuSet,
}

impl ProcessorSplit {
    /// Moves the calling thread, and all programs and threads that it starts from now on, to the load's
    /// processor.
    ///
    /// Returns `None`, and leaves the choice to the kernel, with `CpuAffinity::Free` or if there is only one
    /// processor.
    pub(super) fn claim(affinity: CpuAffinity) -> Result<Option<ProcessorSplit>, BenchError> {
        let all = sched_getaffinity(None).map_err(failed)?;
        if affinity == CpuAffinity::Free || all.count() < 2 {
            return Ok(None);
        }
        let first = (0..CpuSet::MAX_CPU).find(|&processor| all.is_set(processor)).unwrap_or_default();
        let (mut load, mut devices) = (CpuSet::new(), all);
        load.set(first);
        devices.unset(first);
        sched_setaffinity(None, &load).map_err(failed)?;
        Ok(Some(ProcessorSplit { load, devices }))
    }

    /// Calls `start` on the devices' processors. Programs that `start` starts stay there.
    pub(super) fn start_device<T>(&self, start: impl FnOnce() -> T) -> Result<T, BenchError> {
        sched_setaffinity(None, &self.devices).map_err(failed)?;
        let started = start();
        sched_setaffinity(None, &self.load).map_err(failed)?;
        Ok(started)
    }
}

/// Describes the processors in reports.
pub(super) fn text(processors: Option<ProcessorSplit>) -> &'static str {
    match processors {
        Some(_) => "load and file system on one processor, modelled devices on the others",
        None => "everything wherever the kernel puts it",
    }
}

fn failed(error: rustix::io::Errno) -> BenchError {
    BenchError::CpuAffinity { source: io::Error::from(error) }
}
