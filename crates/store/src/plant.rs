//! Bugs on purpose, so that the simulator can prove that it would notice them.

use crate::store::Store;
use std::sync::atomic::Ordering;

/// A rule to break from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// A cut removes pages whose home is newer than the cut.
    CutIgnoresHome,
    /// A segment is used again as soon as nothing in memory refers to it, whatever roots and readers need.
    ReusedBeforePins,
    /// Applying a vector returns without a flush.
    MissingFlush,
}

impl Store {
    /// Breaks a rule until the store is closed. For the simulator only.
    pub fn plant(&self, bug: PlantedBug) {
        match bug {
            PlantedBug::CutIgnoresHome => self.map_mut().plant_cut_ignores_home = true,
            PlantedBug::ReusedBeforePins => self.map_mut().segments.reuse_at_once = true,
            PlantedBug::MissingFlush => self.plant_missing_flush.store(true, Ordering::Relaxed),
        }
    }
}
