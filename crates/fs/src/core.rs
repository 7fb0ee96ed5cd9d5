//! What all handles share, and the one way in which anything changes.

use crate::cost;
use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, Slot};
use crate::inode::object;
use crate::nearby::{Nearby, SMALL_BYTES_MAX};
use crate::transaction::{State, Transaction, within};
use crate::types::{Completion, Ino, Kind};
use cache::{Cache, CacheError, Cost, Reservation};
use device::{BLOCK_BYTES, Clock};
use std::ops::Range;
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The largest piece of a write that is one transaction; longer ones are several, in order. What one FUSE request
/// carries at most.
const TRANSACTION_BYTES_MAX: u64 = 1 << 20;

/// The file system behind its handle.
pub(crate) struct Core {
    pub(crate) cache: Arc<Cache>,
    clock: Arc<dyn Clock>,
    /// Look-ups share it, changes take it alone. Never held while anything is waited for or called back: it covers
    /// the change in memory and `Cache::apply`, so the order in memory is the order of the log.
    state: RwLock<State>,
    nearby: Nearby,
}

impl From<CacheError> for FsError {
    fn from(error: CacheError) -> FsError {
        match error {
            error if error.is_full() => FsError::NoSpace,
            other => FsError::Cache(other),
        }
    }
}

impl Core {
    pub(crate) fn new(cache: Arc<Cache>, clock: Arc<dyn Clock>, state: State) -> Core {
        Core { cache, clock, state: RwLock::new(state), nearby: Nearby::default() }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().expect("no panic while holding the file system's state")
    }

    fn change(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("no panic while holding the file system's state")
    }

    /// Lets `work` in when there is space for `cost`, makes its change visible as one transaction, and tells `done`.
    /// An error of `work` or of the cache leaves everything as it was.
    pub(crate) fn enter<T: Send + 'static>(
        self: &Arc<Core>,
        cost: Cost,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, FsError> + Send + 'static,
        done: Completion<T>,
    ) {
        self.enter_with(Vec::new(), cost, work, done);
    }

    /// The same, with the bytes that `work` writes into a file.
    fn enter_with<T: Send + 'static>(
        self: &Arc<Core>,
        bytes: Vec<u8>,
        cost: Cost,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, FsError> + Send + 'static,
        done: Completion<T>,
    ) {
        match self.cache.admit_at_once(cost) {
            Ok(Some(reservation)) => return done(self.commit(reservation, &bytes, cost, work)),
            Ok(None) => {}
            Err(error) => return done(Err(error.into())),
        }
        let core = self.clone();
        let enter = move |reservation: Result<Reservation, CacheError>| {
            done(
                reservation
                    .map_err(FsError::from)
                    .and_then(|reservation| core.commit(reservation, &bytes, cost, work)),
            );
        };
        self.cache.admit(cost, Box::new(enter));
    }

    /// Makes the change of `work` visible. What the reservation did not use is given back on return.
    fn commit<T>(
        &self,
        mut reservation: Reservation,
        bytes: &[u8],
        cost: Cost,
        work: impl FnOnce(&mut Transaction<'_>) -> Result<T, FsError>,
    ) -> Result<T, FsError> {
        let now = self.clock.wall_nanos();
        let mut state = self.change();
        let mut tx = Transaction::begin(&mut state, now);
        let value = work(&mut tx)?;
        let changes = tx.changes(bytes);
        debug_assert!(within(&changes, cost), "{changes:?} are more than {cost:?}");
        if !changes.is_empty() {
            self.cache.apply(&mut reservation, &changes)?;
        }
        drop(changes);
        tx.keep();
        Ok(value)
    }

    /// Reads `len` bytes of a file; a small one that has to be fetched may bring those that were made with it.
    pub(crate) fn read_data(&self, ino: Ino, offset: u64, len: usize, done: Completion<Vec<u8>>) {
        // Its own statement: `done` must not be called while the lock is held.
        let clipped = self.read().clip(ino, offset, len);
        let (object, len, size) = match clipped {
            Ok((_, 0, _)) => return done(Ok(Vec::new())),
            Ok(clipped) => clipped,
            Err(error) => return done(Err(error)),
        };
        let then = move |read: Result<_, CacheError>| done(read.map_err(FsError::from));
        let was_held = self.cache.read(object, offset, len, size, Box::new(then));
        if !was_held && offset == 0 && size <= SMALL_BYTES_MAX {
            // An object's number is its inode's slot.
            self.nearby
                .missed(Slot(object.slot as u32))
                .into_iter()
                .for_each(|slots| self.fetch_small(slots));
        }
    }

    /// Fetches the small files whose inodes have these slots.
    fn fetch_small(&self, slots: Range<u32>) {
        let state = self.read();
        let used = slots.start..slots.end.min(state.header().slots_used.get().saturating_add(1));
        let small = used.filter_map(|slot| {
            let hot = state.hot(Slot(slot)).ok()?;
            let is_small = hot.kind() == Some(Kind::File) && (1..=SMALL_BYTES_MAX).contains(&hot.size());
            is_small.then(|| (object(Slot(slot), &hot), hot.size()))
        });
        let small: Vec<_> = small.collect();
        drop(state);
        self.cache.fetch_ahead(&small);
    }

    /// How much of a write is one transaction: half of what the cache takes, since records have headers; whole pages.
    pub(crate) fn piece_bytes(&self) -> usize {
        let half = self.cache.transaction_bytes_max() / 2;
        let bytes = half.min(TRANSACTION_BYTES_MAX) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        bytes.max(BLOCK_BYTES as u64) as usize
    }
}

impl Core {
    /// Writes the first piece of `bytes`, then goes on with the rest.
    pub(crate) fn write_from(self: &Arc<Core>, ino: Ino, offset: u64, bytes: Vec<u8>, done: Completion<()>) {
        let mut bytes = bytes;
        // Pieces end at page ends, so that no page is in two of them.
        let within = (offset % BLOCK_BYTES as u64) as usize;
        let rest = bytes.split_off(bytes.len().min(self.piece_bytes() - within));
        let done = if rest.is_empty() {
            done
        } else {
            self.then_write(ino, offset + bytes.len() as u64, rest, done)
        };
        // Its own statement: `done` must not be called while the lock is held.
        let found = self.read().written_object(ino, offset, bytes.len());
        let object = match found {
            Ok(object) => object,
            Err(error) => return done(Err(error)),
        };
        let core = self.clone();
        let cost = cost::write(offset, bytes.len());
        let len = bytes.len();
        let prepared = move |prepared: Result<(), CacheError>| match prepared {
            Err(error) => done(Err(error.into())),
            Ok(()) => core.enter_with(bytes, cost, move |tx| tx.write_data(ino, offset, len), done),
        };
        self.cache.prepare_write(object, offset, len, Box::new(prepared));
    }

    /// A write of one piece where nothing has to be waited for: no copy of `bytes`, no completion. `None` where `write_from`
    /// must do it.
    pub(crate) fn write_at_once(&self, ino: Ino, offset: u64, bytes: &[u8]) -> Option<Result<(), FsError>> {
        let within = (offset % BLOCK_BYTES as u64) as usize;
        if bytes.is_empty() || bytes.len() > self.piece_bytes() - within || !self.cache.writes_at_once() {
            return None;
        }
        if offset > FILE_BYTES_MAX {
            return Some(Err(FsError::TooLarge));
        }
        let cost = cost::write(offset, bytes.len());
        match self.cache.admit_at_once(cost) {
            Ok(reservation) => {
                Some(self.commit(reservation?, bytes, cost, |tx| tx.write_data(ino, offset, bytes.len())))
            }
            Err(error) => Some(Err(error.into())),
        }
    }

    fn then_write(
        self: &Arc<Core>,
        ino: Ino,
        offset: u64,
        rest: Vec<u8>,
        done: Completion<()>,
    ) -> Completion<()> {
        let core = self.clone();
        Box::new(move |written| match written {
            Ok(()) => core.write_from(ino, offset, rest, done),
            Err(error) => done(Err(error)),
        })
    }
}
