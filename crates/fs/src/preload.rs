//! Loading the arena, most of it perhaps before the cache is there.

use crate::arena::Arena;
use crate::error::FsError;
use crate::format::ARENA;
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

    fn is_what_is_below(&self, cache: &Cache) -> bool {
        Arc::ptr_eq(&self.store, cache.store())
            && self.volume == cache.volume()
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
            cache::read_stored(store, volume, ARENA, ranges).map_err(|error| CacheError::from(error).into())
        };
        Ok(PreloadedArena { arena: Arena::load(&mut read)?, as_of })
    }
}

/// The arena of the volume in `cache`, which takes no changes yet. What was read before is used if it still can be.
pub(crate) fn load(preloaded: Option<PreloadedArena>, cache: &Cache) -> Result<Arena, FsError> {
    let mut read = |ranges: &[(u64, usize)]| Ok(cache.read_all_now(ARENA, ranges)?);
    let mut lay = |offset, bytes: &mut [u8]| cache.lay_over(ARENA, offset, bytes);
    if let Some(PreloadedArena { arena, .. }) =
        preloaded.filter(|preloaded| preloaded.as_of.is_what_is_below(cache))
        && let Some(arena) = arena.brought_up_to_date(&mut lay, &mut read)?
    {
        return Ok(arena);
    }
    Arena::load(&mut read)
}
