//! Grows the store and the buffer in use, and the store between two lives. After a crash at any point, each
//! is whole, and as large as before or after.

use crate::event_log::MediumRole;
use crate::run_state::{HarnessPhase, SimulationRun};
use device::Device;
use store::{Store, StoreError};

/// One in this many operations on volumes is a growth, and so is one in this many starts.
const GROWN_ONE_IN: u64 = 8;
/// The power may fail within this many operations of a growth between two lives, which takes four operations.
const CUT_WITHIN: u64 = 5;

impl SimulationRun {
    /// Whether to grow now. A run whose store does not grow draws nothing.
    pub(crate) fn grows_now(&mut self) -> bool {
        self.media.growths_left > 0 && self.random.once_in(GROWN_ONE_IN)
    }

    fn larger(&mut self) -> u64 {
        self.media.growths_left -= 1;
        self.media.store.blocks() * 5 / 4
    }

    /// Grows the store or the buffer while other work goes on.
    pub(crate) fn grow_in_use(&mut self) -> Result<(), String> {
        self.phase = HarnessPhase::Growth;
        self.arm_for_volumes();
        if self.random.once_in(2) { self.grow_buffer() } else { self.grow_store() }
    }

    fn grow_buffer(&mut self) -> Result<(), String> {
        self.media.growths_left -= 1;
        let cache = self.stack().cache.clone();
        let before = cache.buffer().capacity_bytes();
        let blocks = self.media.buffer.blocks() * 5 / 4;
        self.media
            .log
            .event(|| format!("{}: grow the buffer to {blocks}", self.counts.operations), &[blocks]);
        let outcome = cache.grow_buffer(Some(blocks));
        self.deliver()?;
        match outcome {
            Ok(grown) if grown == blocks && cache.buffer().capacity_bytes() > before => {
                self.counts.growths += 1;
                Ok(())
            }
            Ok(grown) => Err(format!("a buffer was to grow to {blocks} blocks, and says {grown}")),
            Err(error) if error.is_full() => self.no_space_to_write_back(),
            Err(_) if self.made_up() || self.media.power.is_lost() => Ok(()),
            Err(error) => Err(format!("a buffer does not grow: {error}")),
        }
    }

    fn made_up(&self) -> bool {
        self.media.log.errors_made_up() > self.errors_at_open
    }

    fn grow_store(&mut self) -> Result<(), String> {
        let (blocks, store) = (self.larger(), self.stack().cache.store().clone());
        self.media.log.event(|| format!("{}: grow to {blocks}", self.counts.operations), &[blocks]);
        let before = store.total_blocks();
        let outcome = self.stack().cache.grow_store(Some(blocks));
        self.deliver()?;
        match outcome {
            Ok(grown) if grown > before && grown == store.total_blocks() => {
                self.counts.growths += 1;
                Ok(())
            }
            Ok(grown) => Err(format!("a store of {before} blocks has grown to {grown}")),
            Err(_) if self.made_up() || self.media.power.is_lost() => Ok(()),
            Err(error) => Err(format!("a store does not grow: {error}")),
        }
    }

    /// Grows the store between two lives. The power may fail meanwhile.
    pub(crate) fn grow_unopened(&mut self) -> Result<(), String> {
        self.phase = HarnessPhase::Growth;
        let (blocks, errors) = (self.larger(), self.media.log.errors_made_up());
        if self.random.once_in(2) {
            self.media.power.cut_after(self.random.below(CUT_WITHIN));
        }
        match Store::grow_unopened(&self.media.watched(MediumRole::Store), Some(blocks)) {
            Ok(_) => self.counts.growths += 1,
            Err(_) if self.media.power.is_lost() => {
                *self.counts.crashes.entry("growth of the store").or_default() += 1;
                let end = self.draw_end();
                self.lose_power(end);
            }
            Err(StoreError::Device(_)) if self.media.log.errors_made_up() > errors => {}
            Err(error) => return Err(format!("a store that is not open does not grow: {error}")),
        }
        self.media.power.restore();
        Ok(())
    }
}
