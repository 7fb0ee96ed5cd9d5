//! Which processor runs what: a modelled device is a program, and must not take time from what is measured, as no real
//! device does.
//!
//! The first processor belongs to the load and to the file systems' own programs, all others to the modelled devices.
//! That also makes runs comparable: on a virtual machine, waking a thread on another, idle processor may cost several
//! times a whole request, and left alone the kernel goes one way in one run and the other way in the next.

use std::io;

use clap::ValueEnum;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use super::error::BenchError;

/// Whether load and modelled devices share processors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum CpuAffinity {
    /// The load and the file system on one processor, the modelled device on the others.
    Apart,
    /// Wherever the kernel puts them.
    Free,
}

/// The processors of this run.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProcessorSplit {
    load: CpuSet,
    devices: CpuSet,
}

impl ProcessorSplit {
    /// Moves the calling thread, and with it whatever it starts from now on, to the load's processor. `None` where
    /// everything runs wherever the kernel puts it: with `CpuAffinity::Free`, or where there is only one processor.
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

    /// Calls `start` on the devices' processors, so that programs that it starts stay there.
    pub(super) fn start_device<T>(&self, start: impl FnOnce() -> T) -> Result<T, BenchError> {
        sched_setaffinity(None, &self.devices).map_err(failed)?;
        let started = start();
        sched_setaffinity(None, &self.load).map_err(failed)?;
        Ok(started)
    }
}

/// Where things run, for reports.
pub(super) fn text(processors: Option<ProcessorSplit>) -> &'static str {
    match processors {
        Some(_) => "load and file system on one processor, modelled devices on the others",
        None => "everything wherever the kernel puts it",
    }
}

fn failed(error: rustix::io::Errno) -> BenchError {
    BenchError::CpuAffinity { source: io::Error::from(error) }
}
