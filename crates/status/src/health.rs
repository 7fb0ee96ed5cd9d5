//! The state of a mount in one word.

use crate::StatusReport;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The state of a mount in one word: of several, the worst.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HealthReport {
    /// All is well.
    #[default]
    Ok,
    /// The buffer loses flushed data when the power fails.
    Volatile,
    /// Some changes cannot be written back. They are durable in the buffer.
    Stuck,
    /// Nothing can be written back at present, or the host file system has no space for the store.
    Stalled,
    /// Changes cannot be made durable. The mount takes no more of them, and everything is saved in the store.
    ReadOnly,
    /// Changes cannot be made durable, and those in memory are not saved in the store yet.
    AtRisk,
}

impl StatusReport {
    /// The health that follows from the other fields.
    pub fn health_of_fields(&self) -> HealthReport {
        if self.not_rescued.is_some() {
            HealthReport::AtRisk
        } else if self.failed.is_some() {
            HealthReport::ReadOnly
        } else if self.stalled.is_some() || self.space.full_below_bytes.is_some() {
            HealthReport::Stalled
        } else if self.stuck.count > 0 {
            HealthReport::Stuck
        } else if self.volatile.is_some() {
            HealthReport::Volatile
        } else {
            HealthReport::Ok
        }
    }
}

impl fmt::Display for HealthReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            HealthReport::Ok => "ok",
            HealthReport::Volatile => "volatile",
            HealthReport::Stuck => "stuck",
            HealthReport::Stalled => "stalled",
            HealthReport::ReadOnly => "read-only",
            HealthReport::AtRisk => "at-risk",
        })
    }
}
