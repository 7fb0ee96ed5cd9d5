//! Options of several experiments.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::slow_device::ComparedDevice;

/// Scale, devices and output format.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Scale: `small` only shows that everything works; `real` gives figures
    #[arg(long, value_enum, default_value_t = RunSize::Real)]
    pub(super) size: RunSize,
    /// The modelled device to measure on
    #[arg(long, value_enum, default_value_t = DeviceSelection::All)]
    pub(super) model: DeviceSelection,
    /// Write the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Rounds, place and output format of an experiment in which systems take turns.
#[derive(Debug, Args)]
pub(super) struct TurnArgs {
    /// Rounds, with a turn of each system
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) rounds: u16,
    /// Directory for stores, buffers and images [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    pub(super) on: Option<PathBuf>,
    /// Write the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Scale of an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum RunSize {
    Small,
    Real,
}

/// A choice of modelled devices.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum DeviceSelection {
    Hdd,
    Cloud,
    Ssd,
    All,
}

impl DeviceSelection {
    pub(super) fn list(self) -> &'static [ComparedDevice] {
        match self {
            DeviceSelection::Hdd => &[ComparedDevice::Hdd],
            DeviceSelection::Cloud => &[ComparedDevice::Cloud],
            DeviceSelection::Ssd => &[ComparedDevice::Ssd],
            DeviceSelection::All => &ComparedDevice::ALL,
        }
    }
}
