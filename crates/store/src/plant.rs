//! Bugs on purpose, so that the simulator can prove that it would notice them.

use crate::bug::PlantedBug;
use crate::error::StoreError;
use crate::follow::{ENTRY_BLOCKS_AHEAD, LogReader};
use crate::segments::Use;
use crate::store::Store;
use device::{Block, Device, Page};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Bugs that the store itself has.
#[derive(Default)]
pub(crate) struct Planted {
    pub(crate) missing_flush: AtomicBool,
    pub(crate) late_copies: AtomicBool,
    pub(crate) late_trims: AtomicBool,
    /// What a late copy or trim would have done already.
    delayed: Mutex<Vec<Delayed>>,
}

enum Delayed {
    /// And whether a checkpoint has begun since.
    Copy(Vec<(Block, Box<Page>)>, bool),
    Trim(Vec<u32>),
}

impl Planted {
    /// Takes a copy if it is to be late; gives it back if not.
    pub(crate) fn copy_later(&self, blocks: Vec<(Block, Box<Page>)>) -> Option<Vec<(Block, Box<Page>)>> {
        self.later(&self.late_copies, Delayed::Copy(blocks, false)).map(|delayed| match delayed {
            Delayed::Copy(blocks, _) => blocks,
            Delayed::Trim(_) => unreachable!("given back as it was"),
        })
    }

    /// Takes a trim if it is to be late.
    pub(crate) fn trim_later(&self, segments: &[u32]) -> bool {
        self.later(&self.late_trims, Delayed::Trim(segments.to_vec())).is_none()
    }

    fn later(&self, planted: &AtomicBool, delayed: Delayed) -> Option<Delayed> {
        if !planted.load(Ordering::Relaxed) {
            return Some(delayed);
        }
        self.delayed.lock().expect("no panic while planting").push(delayed);
        None
    }
}

impl Store {
    /// Does what is late: copies at the next checkpoint but one, trims at the first one after the segment's reuse.
    pub(crate) fn do_what_is_delayed(&self) -> Result<(), StoreError> {
        let delayed = std::mem::take(&mut *self.planted.delayed.lock().expect("no panic while planting"));
        for delayed in delayed {
            match delayed {
                Delayed::Copy(blocks, false) => {
                    self.planted
                        .delayed
                        .lock()
                        .expect("no panic while planting")
                        .push(Delayed::Copy(blocks, true));
                }
                Delayed::Copy(blocks, true) => self.write_blocks(blocks)?,
                Delayed::Trim(segments) => {
                    let (reused, waiting): (Vec<u32>, Vec<u32>) = segments
                        .into_iter()
                        .partition(|&segment| self.map().segments.get(segment).usage != Use::Free);
                    for segment in reused {
                        self.device.trim(self.geometry.start(segment), self.geometry.segment_blocks)?;
                    }
                    self.planted.trim_later(&waiting);
                }
            }
        }
        Ok(())
    }

    /// Whether no thread has the writer's lock, or flushes.
    pub fn is_idle(&self) -> bool {
        self.writer.try_lock().is_ok() && self.flushes.is_idle()
    }

    /// Whether no thread has the cleaner's lock.
    pub fn is_not_cleaning(&self) -> bool {
        self.cleaner.try_lock().is_ok()
    }

    /// Breaks a rule until the store is closed. For the simulator only.
    pub fn plant(&self, bug: PlantedBug) {
        match bug {
            PlantedBug::CutIgnoresPageLsn => self.map_mut().plant_cut_ignores_page_lsn = true,
            PlantedBug::ReusedBeforePins => self.map_mut().segments.reuse_at_once = true,
            PlantedBug::LeakedNode => self.map_mut().plant_leaked_node = true,
            PlantedBug::ForgottenReservation => self.map_mut().plant_forgotten_reservation = true,
            PlantedBug::FreedOnceTooOften => self.map_mut().plant_freed_twice = true,
            PlantedBug::MissingFlush => self.planted.missing_flush.store(true, Ordering::Relaxed),
            PlantedBug::RepointBeforeCopy => self.planted.late_copies.store(true, Ordering::Relaxed),
            PlantedBug::TrimAfterReuse => self.planted.late_trims.store(true, Ordering::Relaxed),
            PlantedBug::EntriesBeforeRoot => {}
            for_the_thread => crate::bug::plant(Some(for_the_thread)),
        }
    }

    /// [`open`](Store::open) with a rule broken from the start. For the simulator only.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open_with_bug(device: Arc<dyn Device>, bug: PlantedBug) -> Result<Store, StoreError> {
        let store = Store::open(device)?;
        store.plant(bug);
        if bug == PlantedBug::EntriesBeforeRoot {
            store.replay_before_root()?;
        }
        Ok(store)
    }

    /// Applies the log entries in the log's first segment that the root has already.
    fn replay_before_root(&self) -> Result<(), StoreError> {
        let mut writer = self.lock_writer();
        let (segment, mut offset) = (writer.log.segment, 0);
        let mut log = LogReader::new(&*self.device, &self.geometry);
        while offset < writer.log.offset
            && let Some(chunk) = log.in_place(segment, offset, ENTRY_BLOCKS_AHEAD)
        {
            offset += chunk.blocks();
            self.holding_nodes(|| self.change_map(&mut writer, chunk.head.volume, &chunk.entries))?;
        }
        Ok(())
    }
}
