//! The volumes in use: each by one user at a time, who mounts or changes it.

use crate::error::CacheError;
use crate::locks::{CacheLock, OrderedMutex};
use std::collections::BTreeSet;
use std::sync::Arc;
use store::VolumeId;

/// The volumes in use.
#[derive(Clone)]
pub(crate) struct UsedVolumes(Arc<OrderedMutex<BTreeSet<VolumeId>>>);

impl UsedVolumes {
    pub(crate) fn new() -> UsedVolumes {
        UsedVolumes(Arc::new(OrderedMutex::new(CacheLock::VolumesInUse, BTreeSet::new())))
    }

    pub(crate) fn begin_use(&self, volume: VolumeId) -> Result<VolumeInUse, CacheError> {
        if !self.0.lock().insert(volume) {
            return Err(CacheError::InUse { volume });
        }
        Ok(VolumeInUse { used: self.clone(), volume })
    }

    pub(crate) fn contain(&self, volume: VolumeId) -> bool {
        self.0.lock().contains(&volume)
    }
}

/// A volume in use. Until this is dropped, the volume can be neither used again, nor deleted, renamed or rolled back.
pub struct VolumeInUse {
    used: UsedVolumes,
    volume: VolumeId,
}

impl Drop for VolumeInUse {
    fn drop(&mut self) {
        self.used.0.lock().remove(&self.volume);
    }
}
