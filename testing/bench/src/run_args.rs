//! Options of several experiments.

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
