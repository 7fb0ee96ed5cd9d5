//! Options that several experiments have.

use clap::{Args, ValueEnum};

use super::slow_device::ComparedDevice;

/// How much to measure, on which modelled devices, and how to show it.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// `small` only shows that everything works; `real` gives figures
    #[arg(long, value_enum, default_value_t = RunSize::Real)]
    pub(super) size: RunSize,
    /// The modelled device
    #[arg(long, value_enum, default_value_t = DeviceSelection::All)]
    pub(super) model: DeviceSelection,
    /// Write the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// How much to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum RunSize {
    Small,
    Real,
}

/// Which modelled devices.
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
