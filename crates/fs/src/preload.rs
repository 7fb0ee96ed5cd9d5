//! Loads the arena, most of it perhaps before the cache exists.

use crate::arena::Arena;
use crate::error::FsError;
use crate::format::arena_object;
use cache::{Cache, CacheError};
use std::sync::Arc;
use store::{Store, VolumeId};

/// All metadata of a volume as the store has it. They can be read while the buffer is still being read.
pub struct PreloadedArena {
    arena: Arena,
    as_of: AsOf,
}

/// The state of a volume in the store at one moment: it is out of date once any page is written back.
struct AsOf {
    store: Arc<Store>,
    volume: VolumeId,
    batches: u64,
}

impl AsOf {
    fn now(store: &Arc<Store>, volume: VolumeId) -> AsOf {
        AsOf { store: store.clone(), volume, batches: store.counters().batches }
    }

    fn is_what_is_below(&self, cache: &Cache, volume: VolumeId) -> bool {
        Arc::ptr_eq(&self.store, cache.store())
            && self.volume == volume
            && self.batches == self.store.counters().batches
    }
}

impl PreloadedArena {
    /// Reads a volume's metadata, and waits for the store.
    ///
    /// # Errors
    /// The store's, and [`FsError::Corrupt`]. The latter may only mean that newer metadata are in the buffer;
    /// [`Fs::open`](crate::Fs::open) tells.
    pub fn read(store: &Arc<Store>, volume: VolumeId) -> Result<PreloadedArena, FsError> {
        let as_of = AsOf::now(store, volume);
        let mut read = |ranges: &[(u64, usize)]| {
            cache::read_stored(store, arena_object(volume), ranges)
                .map_err(|error| CacheError::from(error).into())
        };
        Ok(PreloadedArena { arena: Arena::load(&mut read)?, as_of })
    }
}

/// Loads the arena of `volume` from `cache`, which takes no changes yet. Uses `preloaded`, unless it is out
/// of date.
pub(crate) fn load(
    preloaded: Option<PreloadedArena>,
    cache: &Cache,
    volume: VolumeId,
) -> Result<Arena, FsError> {
    let object = arena_object(volume);
    let mut read = |ranges: &[(u64, usize)]| Ok(cache.read_all_now(object, ranges)?);
    let mut lay = |offset, bytes: &mut [u8]| cache.overlay_memory(object, offset, bytes);
    if let Some(PreloadedArena { arena, .. }) =
        preloaded.filter(|preloaded| preloaded.as_of.is_what_is_below(cache, volume))
        && let Some(arena) = arena.brought_up_to_date(&mut lay, &mut read)?
    {
        return Ok(arena);
    }
    Arena::load(&mut read)
}
