//! Loading the arena, most of it perhaps before the cache is there.

use crate::arena::Arena;
use crate::error::FsError;
use crate::format::arena_object;
use cache::{Cache, CacheError};
use std::sync::Arc;
use store::{Store, VolumeId};

/// All metadata of a volume as the store has it, which can be read while the buffer is being read, too.
pub struct PreloadedArena {
    arena: Arena,
    as_of: AsOf,
}

/// A state of a volume in the store: it is another one once anything was written back.
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
    /// Reads it, waiting for the store.
    ///
    /// # Errors
    /// The store's, and [`FsError::Corrupt`]: perhaps only for lack of what is in the buffer, so that this says nothing of the
    /// volume. [`Fs::open`](crate::Fs::open) does.
    pub fn read(store: &Arc<Store>, volume: VolumeId) -> Result<PreloadedArena, FsError> {
        let as_of = AsOf::now(store, volume);
        let mut read = |ranges: &[(u64, usize)]| {
            cache::read_stored(store, arena_object(volume), ranges)
                .map_err(|error| CacheError::from(error).into())
        };
        Ok(PreloadedArena { arena: Arena::load(&mut read)?, as_of })
    }
}

/// The arena of `volume` in `cache`, which takes no changes yet. What was read before is used if it still can be.
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
