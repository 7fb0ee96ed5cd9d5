//! Loading the arena, most of it perhaps before the cache is there.

use crate::arena::Arena;
use crate::error::FsError;
use crate::format::ARENA;
use cache::{Cache, CacheError};
use std::sync::Arc;
use store::{Store, VolumeId};

/// All metadata of a volume as the store has it, which can be read while the buffer is being read, too.
pub struct AtHome {
    arena: Arena,
    as_of: AsOf,
}

/// A state of a volume at home: it is another one once anything went home.
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

impl AtHome {
    /// Reads it, waiting for the store.
    ///
    /// # Errors
    /// The store's, and [`FsError::Corrupt`]: perhaps only for lack of what is in the buffer, so that this says nothing of the
    /// volume. [`Fs::open`](crate::Fs::open) does.
    pub fn read(store: &Arc<Store>, volume: VolumeId) -> Result<AtHome, FsError> {
        let as_of = AsOf::now(store, volume);
        let mut read = |ranges: &[(u64, usize)]| {
            cache::read_at_home(store, volume, ARENA, ranges).map_err(|error| CacheError::from(error).into())
        };
        Ok(AtHome { arena: Arena::load(&mut read)?, as_of })
    }
}

/// The arena of the volume in `cache`, which takes no changes yet. What was read before is used if it still can be.
pub(crate) fn load(at_home: Option<AtHome>, cache: &Cache) -> Result<Arena, FsError> {
    let mut read = |ranges: &[(u64, usize)]| Ok(cache.read_all_now(ARENA, ranges)?);
    let mut lay = |offset, bytes: &mut [u8]| cache.lay_over(ARENA, offset, bytes);
    if let Some(AtHome { arena, .. }) = at_home.filter(|at_home| at_home.as_of.is_what_is_below(cache))
        && let Some(arena) = arena.brought_up_to_date(&mut lay, &mut read)?
    {
        return Ok(arena);
    }
    Arena::load(&mut read)
}
