//! Parts of a [batch](crate::BatchChange) that are about ranges: clones and moves of pages, and comparisons.

use super::copy_range::CopySource;
use crate::arena::FsTransaction;
use crate::cost;
use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, PAGE_BYTES};
use crate::fs::{Fs, FsCore};
use crate::types::{FsCompletion, Ino};
use cache::{CacheError, TRANSFER_PAGES_MAX, TransactionCost};
use device::{ObjectId, TransferKind};

/// The most bytes that the comparisons of a batch compare.
pub const BATCH_COMPARED_BYTES_MAX: u64 = 1 << 20;

/// Bytes that are compared at once: as many as [`cache::Cache::try_read`] copies.
const COMPARED_AT_ONCE: u64 = 64 << 10;

/// A file that a batch reads.
#[derive(Debug, Clone, Copy)]
pub enum BatchSource {
    /// A file of this file system.
    Here(Ino),
    /// A file of another volume of the store.
    Elsewhere(CopySource),
}

/// A position in a file that a batch reads.
#[derive(Debug, Clone, Copy)]
pub struct BatchPlace {
    /// The file.
    pub source: BatchSource,
    /// In bytes.
    pub offset: u64,
}

/// Two ranges that must have the same bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RangeComparison {
    pub(crate) one: BatchPlace,
    pub(crate) other: BatchPlace,
    pub(crate) len: u64,
}

/// The outcome of a comparison in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ComparedRanges {
    Equal,
    Different,
    /// Some page is not in memory.
    Unknown,
}

impl BatchSource {
    fn found_in(self, tx: &FsTransaction<'_>) -> Result<CopySource, FsError> {
        match self {
            BatchSource::Here(ino) => tx.copy_source(ino),
            BatchSource::Elsewhere(source) => Ok(source),
        }
    }
}

impl BatchPlace {
    /// The object of a range that lies within the file.
    fn object(self, tx: &FsTransaction<'_>, len: u64) -> Result<ObjectId, FsError> {
        let source = self.source.found_in(tx)?;
        ensure_within(self.offset, len, source.size)?;
        Ok(source.object)
    }
}

pub(crate) fn ensure_within(offset: u64, len: u64, size: u64) -> Result<(), FsError> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(FsError::BadRange("a range ends behind the end of its file, whose size must be set before")),
    }
}

/// The cost of a clone or a move of a range. Refuses ranges that no files could have.
pub(crate) fn transfer_cost(
    kind: TransferKind,
    offset: u64,
    len: u64,
    at: u64,
) -> Result<TransactionCost, FsError> {
    if !(offset | at).is_multiple_of(PAGE_BYTES) {
        return Err(FsError::BadRange("a clone or a move that does not begin with pages"));
    }
    if len == 0 {
        return Err(FsError::BadRange("an empty range"));
    }
    let most = FILE_BYTES_MAX.checked_sub(offset.max(at)).ok_or(FsError::TooLarge)?;
    if len > most {
        return Err(FsError::TooLarge);
    }
    let pages = len.div_ceil(PAGE_BYTES);
    // Whole subtrees of the store's map are shared only if they have the same place in both.
    let is_aligned = (offset / PAGE_BYTES).abs_diff(at / PAGE_BYTES).is_multiple_of(128);
    if !is_aligned && pages > TRANSFER_PAGES_MAX {
        return Err(FsError::BadRange("a long clone or move between offsets that differ modulo 512 KiB"));
    }
    let cost = cost::copy_range(pages, offset / PAGE_BYTES, at / PAGE_BYTES);
    // A move makes holes of the source's pages in the same record, and changes the source's inode.
    Ok(match kind {
        TransferKind::Clone => cost,
        TransferKind::Move => cost::plus(cost, cost::allocate(false)),
    })
}

impl FsTransaction<'_> {
    /// Shares a range of `source` with `to`, whole pages or up to both ends.
    pub(crate) fn clone_part(
        &mut self,
        source: BatchPlace,
        len: u64,
        (to, at): (Ino, u64),
    ) -> Result<(), FsError> {
        let from = source.source.found_in(self)?;
        self.transfer_part(TransferKind::Clone, from, (source.offset, len), to, at)
    }

    /// Moves a range from one file to another, or within one, and leaves a hole.
    pub(crate) fn move_part(
        &mut self,
        from: Ino,
        (offset, len): (u64, u64),
        (to, at): (Ino, u64),
    ) -> Result<(), FsError> {
        let source = self.copy_source(from)?;
        self.transfer_part(TransferKind::Move, source, (offset, len), to, at)?;
        let (slot, mut inode) = self.find_file(from)?;
        if inode.is_written() {
            self.uncharge(slot, &mut inode, offset..(offset + len).next_multiple_of(PAGE_BYTES));
            self.set_inode(slot, &inode);
        }
        self.touch_modified(slot)
    }

    fn transfer_part(
        &mut self,
        kind: TransferKind,
        source: CopySource,
        (offset, len): (u64, u64),
        to: Ino,
        at: u64,
    ) -> Result<(), FsError> {
        ensure_within(offset, len, source.size)?;
        let (slot, inode) = self.find_file(to)?;
        if source.object == self.data_object(slot, &inode) && offset.abs_diff(at) < len {
            return Err(FsError::BadRange("a range that overlaps its own source"));
        }
        // A file that grew past the log may be cut off after a crash, and these pages with it.
        self.log_bypassed_pages(slot)?;
        let is_of_pages = len.is_multiple_of(PAGE_BYTES);
        let ends_source = kind == TransferKind::Clone || offset + len == source.size;
        let is_whole = is_of_pages || ends_source && at + len >= inode.size();
        if !is_whole {
            return Err(FsError::BadRange(
                "a clone or a move that ends within a page, and before the end of a file",
            ));
        }
        self.share_range(kind, source, (offset, len), to, at)?;
        if is_of_pages { Ok(()) } else { self.zero_after_end(to) }
    }
}

impl RangeComparison {
    /// Logs compared pages that bypassed the buffer with the batch that depends on them: after a crash, a batch must not be
    /// there without the bytes that allowed it.
    pub(crate) fn log_bypassed(&self, tx: &mut FsTransaction<'_>) -> Result<(), FsError> {
        for place in [self.one, self.other] {
            if let BatchSource::Here(ino) = place.source {
                let (slot, _) = tx.find_file(ino)?;
                tx.log_bypassed_pages(slot)?;
            }
        }
        Ok(())
    }

    /// Compares what is in memory. Under the lock of the file system, nothing of it can change meanwhile.
    pub(crate) fn compare(&self, core: &FsCore, tx: &FsTransaction<'_>) -> Result<ComparedRanges, FsError> {
        let objects = [self.one.object(tx, self.len)?, self.other.object(tx, self.len)?];
        let offsets = [self.one.offset, self.other.offset];
        let mut bytes = [const { Vec::new() }; 2];
        let mut done = 0;
        while done < self.len {
            let step = COMPARED_AT_ONCE.min(self.len - done);
            for ((bytes, object), offset) in bytes.iter_mut().zip(objects).zip(offsets) {
                bytes.resize(step as usize, 0);
                if !core.cache.try_read(object, offset + done, bytes, offset + self.len) {
                    return Ok(ComparedRanges::Unknown);
                }
            }
            if bytes[0] != bytes[1] {
                return Ok(ComparedRanges::Different);
            }
            done += step;
        }
        Ok(ComparedRanges::Equal)
    }
}

impl Fs {
    /// Reads the ranges of all `comparisons` into memory, one after the other. Passes on whether all were equal, although they
    /// were read at different moments.
    pub(crate) fn fetch_compared(&self, mut comparisons: Vec<RangeComparison>, done: FsCompletion<bool>) {
        let Some(comparison) = comparisons.pop() else { return done(Ok(true)) };
        let fs = self.clone();
        let then = move |equal: Result<bool, FsError>| match equal {
            // The others must be in memory, too, for the batch to tell which one differs first.
            Ok(equal) => {
                let done = move |others: Result<bool, FsError>| done(others.map(|others| equal && others));
                fs.fetch_compared(comparisons, Box::new(done));
            }
            error => done(error),
        };
        self.fetch_pair(comparison, Box::new(then));
    }

    fn fetch_pair(&self, comparison: RangeComparison, done: FsCompletion<bool>) {
        let (fs, len) = (self.clone(), comparison.len as usize);
        self.fetch_place(
            comparison.one,
            len,
            Box::new(move |one| match one {
                Ok(one) => fs.fetch_place(
                    comparison.other,
                    len,
                    Box::new(move |other| done(other.map(|other| one == other))),
                ),
                Err(error) => done(Err(error)),
            }),
        );
    }

    fn fetch_place(&self, place: BatchPlace, len: usize, done: FsCompletion<Vec<u8>>) {
        match place.source {
            BatchSource::Here(ino) => self.read(ino, place.offset, len, done),
            BatchSource::Elsewhere(source) => {
                let then = move |read: Result<_, CacheError>| done(read.map_err(FsError::from));
                let range = (source.object, place.offset, len);
                self.core().cache.read_for(self.origin(), range, source.size, Box::new(then));
            }
        }
    }
}
