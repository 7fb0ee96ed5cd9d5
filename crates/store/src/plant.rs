//! Planted bugs: the simulator must prove that it would notice them.

use crate::bug::StoreBug;
use crate::error::StoreError;
use crate::log_reader::{ENTRY_BLOCKS_AHEAD, LogReader};
use crate::store::Store;
use device::Device;
use std::sync::Arc;

impl Store {
    /// Whether no thread has the writer's lock, or flushes.
    pub fn writer_is_idle(&self) -> bool {
        self.writer.is_idle() && self.shared.medium.is_idle()
    }

    /// Whether no thread has the cleaner's lock.
    pub fn cleaner_is_idle(&self) -> bool {
        self.maintenance.cleaner_is_idle()
    }

    /// Breaks a rule until the store is closed. For the simulator only.
    pub fn plant(&self, bug: StoreBug) {
        match bug {
            StoreBug::CutIgnoresPageLsn
            | StoreBug::LeakedNode
            | StoreBug::RangeRepeated
            | StoreBug::ForgottenReservation
            | StoreBug::FreedOnceTooOften => self.shared.map_mut().plant(bug),
            StoreBug::ReusedBeforePins => self.shared.map_mut().nodes.segments.plant_reuse_at_once(),
            StoreBug::MissingFlush | StoreBug::RepointBeforeCopy | StoreBug::TrimAfterReuse => {
                self.shared.medium.planted().plant(bug);
            }
            StoreBug::EntriesBeforeRoot => {}
            for_the_thread => crate::bug::plant(Some(for_the_thread)),
        }
    }

    /// [`open`](Store::open) with a rule broken from the start. For the simulator only.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open_with_bug(device: Arc<dyn Device>, bug: StoreBug) -> Result<Store, StoreError> {
        let store = Store::open(device)?;
        store.plant(bug);
        if bug == StoreBug::EntriesBeforeRoot {
            store.replay_before_root()?;
        }
        Ok(store)
    }

    /// Applies the log entries in the log's first segment that the root has already.
    fn replay_before_root(&self) -> Result<(), StoreError> {
        let mut writer = self.writer.lock();
        let (end, mut offset) = (writer.log().cursor(), 0);
        let mut log = LogReader::new(self.shared.medium.device(), self.shared.medium.geometry());
        while offset < end.offset
            && let Some(chunk) = log.read_chunk(end.segment, offset, ENTRY_BLOCKS_AHEAD)
        {
            offset += chunk.blocks();
            self.shared.holding_nodes(|| writer.apply_to_map(&self.shared, &chunk.entries))?;
        }
        Ok(())
    }
}
