//! Replaces the buffer of a store between two lives, as `weir replace-buffer` does. After a crash at any
//! point one buffer holds everything. Also looks at both media without writing, as `weir mount --read-only`
//! does.

use crate::event_log::MediumRole;
use crate::run_state::{HarnessPhase, SimulationRun};
use crate::stack::{ID, MountedVolume, SimulatedMedia, end_lost, sound};
use cache::{Cache, CacheSettings, RecoveredBuffer};
use device::{Device, Lsn, OverlayDevice};
use sim_disk::{PowerSupply, SimDisk};
use std::sync::Arc;
use store::{Store, VolumeId};

/// The LSNs left out, so that the store refuses the old buffer.
const GAP: u64 = 1 << 40;
/// One start in this many gets a new buffer.
const REPLACED_ONE_IN: u64 = 40;
/// One start in this many follows a read-only look, and one in this many a look at the store without the
/// buffer.
const LOOKED_AT_ONE_IN: u64 = 12;
/// The power may fail within this many operations of a replacement.
const CUT_WITHIN: u64 = 100;

impl SimulationRun {
    /// Does random work between two lives: looks, growth, and the replacement of the buffer. The power may
    /// fail meanwhile.
    pub(crate) fn between_lives(&mut self) -> Result<(), String> {
        if self.random.once_in(LOOKED_AT_ONE_IN) {
            self.look_without_writing()?;
        }
        if self.random.once_in(LOOKED_AT_ONE_IN) {
            self.look_without_buffer()?;
        }
        self.look_if_complete()?;
        if self.grows_now() {
            self.grow_unopened()?;
        }
        if !self.random.once_in(REPLACED_ONE_IN) {
            return Ok(());
        }
        self.phase = HarnessPhase::Replacement;
        if self.random.once_in(2) {
            self.media.power.cut_after(self.random.below(CUT_WITHIN));
        }
        let seed = self.random.next_u64();
        match self.replace_buffer(seed) {
            Ok(()) => self.counts.replaced += 1,
            Err(_) if self.media.power.is_lost() => {
                *self.counts.crashes.entry("replacement of the buffer").or_default() += 1;
                let end = self.draw_end();
                self.lose_power(end);
            }
            // A store without space for all data keeps the old buffer.
            Err(what) if what.contains("full") && self.volumes.has_others() => {}
            Err(what) => return Err(format!("replace-buffer: {what}")),
        }
        self.media.power.restore();
        Ok(())
    }

    fn replace_buffer(&mut self, seed: u64) -> Result<(), String> {
        let media = &self.media;
        let newest = media.write_back()?;
        let blocks = media.buffer.blocks();
        let new = SimDisk::new("buffer", blocks, &media.power, seed);
        media.equip_buffer(&new);
        buffer::Buffer::format_after(&*new, ID, Lsn(newest.0 + GAP))
            .map_err(|error| format!("format_after: {error}"))?;
        let old = std::mem::replace(&mut self.media.buffer, new);
        self.media.log.forget(MediumRole::Buffer);
        buffer::Buffer::retire(&*old).map_err(|error| format!("retire: {error}"))?;
        let cache = self.media.open_cache()?;
        cache.store().data().fence(cache.buffer().newest_lsn()).map_err(|error| format!("fence: {error}"))
    }

    /// Opens both media through overlays. The state must be a legal one, and the media must not change.
    fn look_without_writing(&mut self) -> Result<(), String> {
        let seen = self.media.power.operations_seen();
        let (store, buffer): (Arc<dyn Device>, Arc<dyn Device>) = (
            Arc::new(OverlayDevice::new(self.media.watched(MediumRole::Store))),
            Arc::new(OverlayDevice::new(self.media.watched(MediumRole::Buffer))),
        );
        let cache = self.media.open_cache_on(store, buffer);
        let cache = cache.map_err(|what| format!("read-only: {what}"))?;
        let found = self.media.mount_all(cache, &self.volumes.mounted())?.look()?;
        let outcome = self.oracle.clone().recovered(&found, &self.clients.outstanding());
        outcome.map_err(|what| format!("read-only: {what}"))?;
        if self.media.power.operations_seen() == seen {
            Ok(())
        } else {
            Err("a look at the media has written to them".to_owned())
        }
    }
}

impl SimulationRun {
    /// A store that says that it needs no buffer must have everything.
    fn look_if_complete(&mut self) -> Result<(), String> {
        let store: Arc<dyn Device> = Arc::new(OverlayDevice::new(self.media.watched(MediumRole::Store)));
        let opened = Store::open(store.clone()).map_err(|error| format!("Store::open: {error}"))?;
        if opened.needs_buffer() {
            return Ok(());
        }
        let buffer = self.media.empty_buffer(&opened)?;
        let look = || {
            let cache = self.media.open_cache_on(store, buffer)?;
            let found = self.media.mount_all(cache, &self.volumes.mounted())?.look()?;
            self.oracle.clone().recovered(&found, &self.clients.outstanding())
        };
        look().map_err(|what| format!("a complete store without its buffer: {what}"))?;
        self.counts.complete += 1;
        Ok(())
    }
}

impl SimulatedMedia {
    /// A new, empty buffer for a store, on a disk of its own.
    fn empty_buffer(&self, store: &Store) -> Result<Arc<SimDisk>, String> {
        let buffer = SimDisk::new("buffer", self.buffer.blocks(), &PowerSupply::new(), 0);
        buffer::Buffer::format_after(&*buffer, ID, Lsn(store.data().newest_lsn().0 + GAP))
            .map_err(|error| format!("format_after: {error}"))?;
        Ok(buffer)
    }

    /// Opens a volume as a user who gives up the buffer would: from the store alone, with an empty buffer.
    /// Writes nothing to the media.
    pub(crate) fn open_without_buffer(&self, volume: VolumeId) -> Result<MountedVolume, String> {
        let power = PowerSupply::new();
        let store = Store::open(sound(&self.store, &power));
        let store = store.map_err(|error| format!("Store::open: {error}"))?;
        let buffer = self.empty_buffer(&store)?;
        let cache = Cache::open(Arc::new(store), buffer, self.clock.clone(), self.settings.clone());
        self.mount_alone(Arc::new(cache.map_err(|error| format!("Cache::open: {error}"))?), volume)
    }

    /// Writes all data of the buffer back, and leaves the buffer as it is. Returns its newest LSN.
    fn write_back(&self) -> Result<Lsn, String> {
        // Data written back must not be newer than the data that the buffer has after a crash.
        buffer::Buffer::open(Arc::new(self.watched(MediumRole::Buffer)), ID, &mut |_| ())
            .and_then(|buffer| buffer.make_durable())
            .map_err(|error| format!("the old buffer: {error}"))?;
        let store = Store::open(Arc::new(self.watched(MediumRole::Store)))
            .map_err(|error| format!("Store::open: {error}"))?;
        let recovered = RecoveredBuffer::read(
            Arc::new(OverlayDevice::new(self.watched(MediumRole::Buffer))),
            ID,
            &*self.clock,
        )
        .map_err(|error| format!("Recovered::read: {error}"))?;
        let settings = CacheSettings { buffer_is_given_up: true, ..self.settings.clone() };
        let cache = Cache::begin(Arc::new(store), recovered, self.clock.clone(), settings);
        let cache = cache.map_err(|error| format!("Cache::begin: {error}"))?;
        let cache = Arc::new(cache);
        end_lost(&cache, &self.clock())?;
        cache.drain().map_err(|error| format!("drain: {error}"))?;
        Ok(cache.status().applied)
    }
}
