//! A block volume that is open: reads, writes, zeros, syncs.

use crate::error::BlockVolumeError;
use crate::extents::{BlockExtent, ExtentSearch};
use crate::format::{block_volume_size, data_object};
use crate::planted_bug::{BlockBug, is_planted};
use crate::range_parts::parts_of;
use cache::{
    Cache, CacheCompletion, CacheError, CacheTransaction, ObjectChange, SpaceClaim, SyncScope,
    TransactionCost, VolumeInUse,
};
use device::{BLOCK_BYTES, Lsn, ObjectId, VolumeId};
use request::Origin;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use store::VolumeMode;

/// Called once, with the outcome of an operation, by any thread.
pub type BlockCompletion<T> = CacheCompletion<T, BlockVolumeError>;

/// The most bytes that one request of the cache reads or writes. A longer request is divided.
const PART_BYTES_MAX: u64 = 1 << 20;

/// A block volume that is open. While it is, the volume can be neither opened again, nor deleted, renamed or rolled back.
///
/// A write is visible when it is answered, and durable after a later [`sync`](BlockVolume::sync), as on a disk with a
/// volatile cache. After a crash, each change since then is there as a whole or not at all, and none is there without all
/// changes before it. A write of more than 1 MiB is several changes, and so is one of more than half of the buffer's largest
/// transaction. The exception are whole pages that are written in order, [long enough](Cache::bypass_after): each of them
/// is, as a whole, what it was or what it became.
pub struct BlockVolume {
    cache: Cache,
    data: ObjectId,
    size: u64,
    mode: VolumeMode,
    _in_use: VolumeInUse,
}

impl BlockVolume {
    /// Opens a block volume. Reads its header in the caller's thread.
    ///
    /// # Errors
    /// [`BlockVolumeError::NotBlockVolume`], [`CacheError::InUse`], and those of [`block_volume_size`].
    pub fn open(cache: &Cache, volume: VolumeId) -> Result<BlockVolume, BlockVolumeError> {
        let in_use = cache.use_volume(volume)?;
        let size = block_volume_size(cache, volume)?.ok_or(BlockVolumeError::NotBlockVolume)?;
        let mode = cache.store().volumes().mode(volume).unwrap_or(VolumeMode::ReadOnly);
        Ok(BlockVolume { cache: cache.clone(), data: data_object(volume), size, mode, _in_use: in_use })
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether it may be changed.
    pub fn mode(&self) -> VolumeMode {
        self.mode
    }

    /// Reads `len` bytes from `offset` on. Bytes that were never written, or were discarded, are zeros. A write at
    /// the same time may be seen in some pages and not in others.
    ///
    /// # Errors
    /// [`BlockVolumeError::PastEnd`], and those of the store.
    pub fn read(&self, offset: u64, len: usize, done: BlockCompletion<Vec<u8>>) {
        let Some(range) = self.range(offset, len as u64) else {
            return done(Err(BlockVolumeError::PastEnd));
        };
        if range.end - range.start <= PART_BYTES_MAX {
            let answer = |read: Result<Vec<u8>, CacheError>| done(read.map_err(BlockVolumeError::from));
            self.cache.read_for(Origin::UNMATCHED, (self.data, offset, len), self.size, Box::new(answer));
            return;
        }
        let parts: Vec<Range<u64>> = parts_of(range, PART_BYTES_MAX).collect();
        let gathered = GatheredParts::new(parts.len(), move |parts: Result<Vec<Vec<u8>>, CacheError>| {
            done(parts.map(|parts| parts.concat()).map_err(BlockVolumeError::from));
        });
        for (index, part) in parts.into_iter().enumerate() {
            let gathered = gathered.clone();
            let wanted = (self.data, part.start, (part.end - part.start) as usize);
            let answer = Box::new(move |read| gathered.note(index, read));
            self.cache.read_for(Origin::UNMATCHED, wanted, self.size, answer);
        }
    }

    /// Writes `bytes` at `offset`. A page that is written in part is not read.
    ///
    /// # Errors
    /// [`BlockVolumeError::PastEnd`]: nothing is written. [`CacheError::ReadOnlyVolume`]. The errors of a full or failing
    /// store: some parts of a write of more than 1 MiB may be written.
    pub fn write(&self, offset: u64, bytes: Vec<u8>, done: BlockCompletion<()>) {
        let Some(range) = self.range(offset, bytes.len() as u64) else {
            return done(Err(BlockVolumeError::PastEnd));
        };
        // A small buffer takes small transactions only.
        let half = self.cache.transaction_bytes_max() / 2;
        let page = BLOCK_BYTES as u64;
        let mut part_max = (half / page * page).clamp(page, PART_BYTES_MAX);
        if is_planted(BlockBug::WriteInPages) {
            part_max = page;
        }
        let parts: Vec<Range<u64>> = parts_of(range, part_max).collect();
        let gathered = GatheredParts::new(parts.len(), move |parts: Result<Vec<Lsn>, CacheError>| {
            done(parts.map(drop).map_err(BlockVolumeError::from));
        });
        let bytes = Arc::new(bytes);
        for (index, part) in parts.into_iter().enumerate() {
            let (object, size) = (self.data, self.size);
            let (bytes, gathered) = (bytes.clone(), gathered.clone());
            let of_bytes = (part.start - offset) as usize..(part.end - offset) as usize;
            let cost = TransactionCost::of(&[ObjectChange::FileWrite {
                object,
                offset: part.start,
                bytes: &bytes[of_bytes.clone()],
                size,
            }]);
            let work = move |transaction: &mut CacheTransaction<'_>| {
                let bytes = &bytes[of_bytes.clone()];
                transaction.apply(&[ObjectChange::FileWrite { object, offset: part.start, bytes, size }])
            };
            self.cache.transact(cost, work, move |applied| gathered.note(index, applied));
        }
    }

    /// Makes `len` bytes from `offset` on zeros, exactly these. Whole pages become holes, and their space is freed; so this
    /// discards, too. Takes no longer for many pages than for few.
    ///
    /// # Errors
    /// As of [`write`](BlockVolume::write).
    pub fn zero(&self, offset: u64, len: u64, done: BlockCompletion<()>) {
        let Some(range) = self.range(offset, len) else { return done(Err(BlockVolumeError::PastEnd)) };
        let range = if is_planted(BlockBug::ZeroWithoutEdges) { whole_pages(range) } else { range };
        if range.is_empty() {
            return done(Ok(()));
        }
        let (offset, len) = (range.start, range.end - range.start);
        let change = ObjectChange::Zero { object: self.data, offset, len };
        // Zeros in a part of a page may need a new page, so they must not use the last reserve.
        let is_whole_pages = (offset | len).is_multiple_of(BLOCK_BYTES as u64);
        let claim = if is_whole_pages { SpaceClaim::Frees } else { SpaceClaim::Data };
        let cost = TransactionCost { claim, ..TransactionCost::of(&[change]) };
        let work = move |transaction: &mut CacheTransaction<'_>| transaction.apply(&[change]);
        self.cache.transact(cost, work, move |applied: Result<Lsn, CacheError>| {
            done(applied.map(drop).map_err(BlockVolumeError::from));
        });
    }

    /// Makes all changes of this volume that were answered before the call durable.
    ///
    /// # Errors
    /// Those of the buffer and of the store: it is not known then which changes are durable.
    pub fn sync(&self, done: BlockCompletion<()>) {
        let answer = |synced: Result<(), CacheError>| done(synced.map_err(BlockVolumeError::from));
        let mut scope = SyncScope::Object(self.data);
        if is_planted(BlockBug::SyncWithoutBytes) {
            scope = SyncScope::Logged;
        }
        self.cache.sync_for(Origin::UNMATCHED, scope, Box::new(answer));
    }

    /// Finds the extents of a range, beginning at its start: at least one, unless the range is empty, and at most
    /// `count_max`. They may end before the range does. Reads no data.
    ///
    /// # Errors
    /// [`BlockVolumeError::PastEnd`], and those of the store.
    pub fn extents(&self, offset: u64, len: u64, count_max: usize, done: BlockCompletion<Vec<BlockExtent>>) {
        let Some(left) = self.range(offset, len) else { return done(Err(BlockVolumeError::PastEnd)) };
        let (cache, object) = (self.cache.clone(), self.data);
        ExtentSearch { cache, object, left, count_max, found: Vec::new(), done }.go_on();
    }

    /// The range, if it lies within the volume.
    fn range(&self, offset: u64, len: u64) -> Option<Range<u64>> {
        let end = offset.checked_add(len).filter(|&end| end <= self.size)?;
        Some(offset..end)
    }
}

/// The whole pages of a range.
fn whole_pages(range: Range<u64>) -> Range<u64> {
    let page = BLOCK_BYTES as u64;
    range.start.next_multiple_of(page)..range.end / page * page
}

/// The outcomes of the parts of a request, which come from any thread, in any order.
struct GatheredParts<T> {
    /// `None` after the completion was called.
    state: Mutex<Option<GatheredState<T>>>,
}

struct GatheredState<T> {
    outcomes: Vec<Option<T>>,
    missing: usize,
    failure: Option<CacheError>,
    done: CacheCompletion<Vec<T>>,
}

impl<T: Send + 'static> GatheredParts<T> {
    /// `done` gets the outcomes of all `count` parts in order, or one of the failures, once all parts have ended.
    fn new(count: usize, done: impl FnOnce(Result<Vec<T>, CacheError>) + Send + 'static) -> Arc<Self> {
        if count == 0 {
            done(Ok(Vec::new()));
            return Arc::new(GatheredParts { state: Mutex::new(None) });
        }
        let outcomes = std::iter::repeat_with(|| None).take(count).collect();
        let state = GatheredState { outcomes, missing: count, failure: None, done: Box::new(done) };
        Arc::new(GatheredParts { state: Mutex::new(Some(state)) })
    }

    /// Notes the outcome of a part. The last one answers the request.
    fn note(&self, index: usize, outcome: Result<T, CacheError>) {
        let mut guard = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(state) = &mut *guard else { return };
        match outcome {
            Ok(outcome) => state.outcomes[index] = Some(outcome),
            Err(error) => state.failure = Some(error),
        }
        state.missing -= 1;
        if state.missing > 0 {
            return;
        }
        let ended = guard.take();
        drop(guard);
        if let Some(GatheredState { outcomes, failure, done, .. }) = ended {
            match failure {
                Some(error) => done(Err(error)),
                None => done(Ok(outcomes.into_iter().flatten().collect())),
            }
        }
    }
}
