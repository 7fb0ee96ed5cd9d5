//! Batches: several changes as one transaction.

use super::allocate::{FallocateMode, SizePolicy, is_whole_pages};
use super::file_data::write_cost;
use super::range_change::{
    BATCH_COMPARED_BYTES_MAX, BatchPlace, ComparedRanges, RangeComparison, ensure_within, transfer_cost,
};
use crate::arena::FsTransaction;
use crate::cost;
use crate::error::FsError;
use crate::format::FILE_BYTES_MAX;
use crate::fs::{Fs, FsCore};
use crate::planted_bug::{FsBug, is_planted};
use crate::types::{FsCompletion, IfExists, Ino};
use cache::{SpaceClaim, TransactionCost};
use device::TransferKind;
use std::ops::Range;
use std::sync::Arc;

/// The most changes of a batch.
pub const BATCH_CHANGES_MAX: usize = 64;

/// The most bytes that a batch writes into files.
pub const BATCH_BYTES_MAX: usize = 1 << 20;

/// One change of a [batch](Fs::apply_batch).
#[derive(Debug, Clone)]
pub enum BatchChange {
    /// Writes all of `bytes` at `offset`, as [`Fs::write`] does.
    Write {
        /// The file.
        ino: Ino,
        /// Position in the file, in bytes.
        offset: u64,
        /// The new bytes.
        bytes: Vec<u8>,
    },
    /// Moves a name, as [`Fs::rename`] does.
    Rename {
        /// The directory, and the old name in it.
        from: (Ino, Vec<u8>),
        /// The directory, and the new name in it.
        to: (Ino, Vec<u8>),
        /// Whether a file that has the new name is replaced.
        if_exists: IfExists,
    },
    /// Removes a name of a file, as [`Fs::unlink`] does.
    Unlink {
        /// The directory.
        parent: Ino,
        /// The name in it.
        name: Vec<u8>,
    },
    /// Shares pages of a file, as [`Fs::copy_range`] does. Both offsets are multiples of 4096, and so is `len`, unless the
    /// target ends with the range then. A range of more than [`TRANSFER_PAGES_MAX`](cache::TRANSFER_PAGES_MAX) pages must
    /// have offsets that agree modulo 512 KiB. Reads of the target wait until the store has the clone.
    Clone {
        /// Where the pages are.
        from: BatchPlace,
        /// In bytes.
        len: u64,
        /// The target.
        to: Ino,
        /// Position in the target, in bytes.
        at: u64,
    },
    /// Moves pages, under the conditions of a clone; a part of a page only with the end of its file. A hole is left where the
    /// pages were, and the size of their file stays.
    Move {
        /// The file that has the pages.
        from: Ino,
        /// Position in it, in bytes.
        offset: u64,
        /// In bytes.
        len: u64,
        /// The target, which may be the same file.
        to: Ino,
        /// Position in the target, in bytes.
        at: u64,
    },
    /// Leaves a hole, as [`Fs::allocate`] does with [`FallocateMode::PunchHole`].
    Punch {
        /// The file.
        ino: Ino,
        /// Position in it, in bytes.
        offset: u64,
        /// In bytes.
        len: u64,
    },
    /// Nothing is changed unless both ranges have the same bytes before the batch. A volume of which a range is
    /// [elsewhere](crate::BatchSource::Elsewhere) must be read-only: changes of other volumes are not watched.
    ExpectEqual {
        /// A range within its file.
        one: BatchPlace,
        /// Another one.
        other: BatchPlace,
        /// Length of both, in bytes.
        len: u64,
    },
}

/// How often a batch whose comparisons find pages missing has them fetched.
const FETCHES_MAX: u32 = 3;

/// A batch whose limits were checked.
struct CheckedBatch {
    changes: Vec<BatchChange>,
    /// With their places among the changes.
    comparisons: Vec<(usize, RangeComparison)>,
    sizes: FileSizes,
    cost: TransactionCost,
}

/// Whether a batch may make files larger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileSizes {
    MayGrow,
    Stay,
}

/// The outcome of an attempt to make a batch.
enum BatchAttempt {
    Made {
        must_sync: bool,
    },
    /// Nothing was changed: pages to be compared are not in memory.
    NotInMemory,
}

impl Fs {
    /// Makes all of `changes`, in order, as one transaction: every client sees all of them or none, also after a crash. A read
    /// under way may still see some pages as they were and others as they are. The bytes that a batch writes never bypass the
    /// buffer. Like every change, a batch is durable after a later sync; if it removes a name of a file
    /// that was synced while it was held, it is durable on completion. The caller holds the files and directories that it
    /// names: otherwise another file may have their numbers by then.
    ///
    /// # Errors
    /// That of the first change that fails: nothing has changed then. That of the sync on completion: everything has
    /// changed. [`FsError::BatchTooLarge`] for more than [`BATCH_CHANGES_MAX`] changes, for more than [`BATCH_BYTES_MAX`]
    /// bytes, for more than [`BATCH_COMPARED_BYTES_MAX`] compared ones, or if the buffer is too small for so many at once;
    /// [`FsError::BadRange`]; [`FsError::Differs`] if the ranges of a comparison differ; [`FsError::Busy`] if pages to be
    /// compared were dropped from memory again and again.
    pub fn apply_batch(&self, changes: Vec<BatchChange>, done: FsCompletion<()>) {
        self.apply_checked(changes, FileSizes::MayGrow, done);
    }

    /// [`apply_batch`](Fs::apply_batch), but no file grows. For changes past a kernel that knows the sizes of files and would
    /// append at the old end.
    ///
    /// # Errors
    /// [`FsError::BadRange`] for a range that ends behind the end of its file, too.
    pub fn apply_batch_within_sizes(&self, changes: Vec<BatchChange>, done: FsCompletion<()>) {
        self.apply_checked(changes, FileSizes::Stay, done);
    }

    fn apply_checked(&self, mut changes: Vec<BatchChange>, sizes: FileSizes, done: FsCompletion<()>) {
        if changes.len() > 1 && is_planted(FsBug::BatchInTwo) {
            let (fs, rest) = (self.clone(), changes.split_off(1));
            let then = move |made: Result<(), FsError>| match made {
                Ok(()) => fs.apply_checked(rest, sizes, done),
                failed => done(failed),
            };
            return self.apply_checked(changes, sizes, Box::new(then));
        }
        let checked = match self.check_batch(changes, sizes) {
            Ok(checked) => Arc::new(checked),
            Err(error) => return done(Err(error)),
        };
        let moved: Vec<(Ino, &[u8])> = checked.changes.iter().filter_map(BatchChange::moved_name).collect();
        let done = self.sync_if_asked(self.then_step_rules(&moved, done));
        if is_planted(FsBug::StaleComparison) {
            return self.apply_after_comparing(checked, done);
        }
        self.try_batch(checked, FETCHES_MAX, done);
    }

    /// Makes a batch whose comparisons were made before, perhaps of bytes that have changed since.
    fn apply_after_comparing(&self, checked: Arc<CheckedBatch>, done: FsCompletion<bool>) {
        let fs = self.clone();
        let compared = checked.compared();
        let unchecked = CheckedBatch {
            changes: checked.changes.clone(),
            comparisons: Vec::new(),
            sizes: checked.sizes,
            cost: checked.cost,
        };
        let then = move |equal: Result<bool, FsError>| match equal {
            Ok(true) => fs.try_batch(Arc::new(unchecked), 0, done),
            Ok(false) => done(Err(FsError::Differs { part: checked.comparisons[0].0 })),
            Err(error) => done(Err(error)),
        };
        self.fetch_compared(compared, Box::new(then));
    }

    /// Makes a batch, after having pages to be compared fetched at most `fetches` times.
    fn try_batch(&self, checked: Arc<CheckedBatch>, fetches: u32, done: FsCompletion<bool>) {
        let core = self.core().clone();
        let batch = checked.clone();
        let work = move |tx: &mut FsTransaction<'_>| batch.make(&core, tx);
        let fs = self.clone();
        let again = checked.clone();
        let then = move |attempt: Result<BatchAttempt, FsError>| match attempt {
            Ok(BatchAttempt::Made { must_sync }) => done(Ok(must_sync)),
            Ok(BatchAttempt::NotInMemory) if fetches == 0 => done(Err(FsError::Busy)),
            Ok(BatchAttempt::NotInMemory) => {
                let compared = again.compared();
                let next = fs.clone();
                let fetched = move |read: Result<bool, FsError>| match read {
                    Ok(_) => next.try_batch(again, fetches - 1, done),
                    Err(error) => done(Err(error)),
                };
                fs.fetch_compared(compared, Box::new(fetched));
            }
            Err(error) => done(Err(error)),
        };
        let bytes = checked.changes.iter().map(BatchChange::written).collect::<Vec<_>>().concat();
        self.core().run_with_bytes(bytes, checked.cost.by(self.origin()), work, Box::new(then));
    }

    fn check_batch(&self, changes: Vec<BatchChange>, sizes: FileSizes) -> Result<CheckedBatch, FsError> {
        let mut cost = TransactionCost { claim: SpaceClaim::Frees, ..TransactionCost::NONE };
        for change in &changes {
            let more = self.cost_of(change)?;
            cost = TransactionCost { claim: cost.claim.min(more.claim), ..cost::plus(cost, more) };
        }
        let written: usize = changes.iter().map(|change| change.written().len()).sum();
        let comparisons: Vec<(usize, RangeComparison)> = changes
            .iter()
            .enumerate()
            .filter_map(|(part, change)| Some((part, change.comparison()?)))
            .collect();
        let compared = comparisons.iter().fold(0_u64, |sum, (_, one)| sum.saturating_add(one.len));
        let limit = self.core().cache.transaction_bytes_max() / 2;
        if changes.len() > BATCH_CHANGES_MAX
            || written > BATCH_BYTES_MAX
            || compared > BATCH_COMPARED_BYTES_MAX
            || cost.bytes > limit
        {
            return Err(FsError::BatchTooLarge);
        }
        Ok(CheckedBatch { changes, comparisons, sizes, cost })
    }

    fn cost_of(&self, change: &BatchChange) -> Result<TransactionCost, FsError> {
        Ok(match change {
            BatchChange::Write { offset, .. } if *offset > FILE_BYTES_MAX => return Err(FsError::TooLarge),
            // Of several files: no run of pages.
            BatchChange::Write { offset, bytes, .. } => {
                TransactionCost { run: 0, ..write_cost(*offset, bytes.len()) }
            }
            BatchChange::Rename { from, to, .. } => cost::rename(self.levels(from.0), self.levels(to.0)),
            BatchChange::Unlink { parent, .. } => cost::remove(self.levels(*parent)),
            BatchChange::Clone { from, len, at, .. } => {
                transfer_cost(TransferKind::Clone, from.offset, *len, *at)?
            }
            BatchChange::Move { offset, len, at, .. } => {
                transfer_cost(TransferKind::Move, *offset, *len, *at)?
            }
            BatchChange::Punch { offset, len, .. } => cost::allocate(is_whole_pages(*offset, *len)),
            BatchChange::ExpectEqual { .. } => {
                TransactionCost { claim: SpaceClaim::Frees, ..TransactionCost::NONE }
            }
        })
    }
}

impl CheckedBatch {
    fn compared(&self) -> Vec<RangeComparison> {
        self.comparisons.iter().map(|&(_, comparison)| comparison).collect()
    }

    /// Makes all comparisons, then all changes, in order.
    fn make(&self, core: &Arc<FsCore>, tx: &mut FsTransaction<'_>) -> Result<BatchAttempt, FsError> {
        for &(part, comparison) in &self.comparisons {
            match comparison.compare(core, tx)? {
                ComparedRanges::Equal => {}
                ComparedRanges::Different => return Err(FsError::Differs { part }),
                ComparedRanges::Unknown => return Ok(BatchAttempt::NotInMemory),
            }
        }
        let changes_something = self.changes.len() > self.comparisons.len();
        for (_, comparison) in self.comparisons.iter().filter(|_| changes_something) {
            comparison.log_bypassed(tx)?;
        }
        let mut written = 0;
        let mut must_sync = false;
        for change in &self.changes {
            let start = written;
            written += change.written().len();
            if let Some((ino, offset, len)) = change.written_range()
                && self.sizes == FileSizes::Stay
            {
                let (_, inode) = tx.find_file(ino)?;
                ensure_within(offset, len, inode.size())?;
            }
            must_sync |= change.make(core, tx, start..written)?;
        }
        Ok(BatchAttempt::Made { must_sync })
    }
}

impl BatchChange {
    /// The bytes that it writes.
    fn written(&self) -> &[u8] {
        match self {
            BatchChange::Write { bytes, .. } => bytes,
            _ => &[],
        }
    }

    /// The range that it writes, which a file may have to grow for.
    fn written_range(&self) -> Option<(Ino, u64, u64)> {
        match self {
            BatchChange::Write { ino, offset, bytes } => Some((*ino, *offset, bytes.len() as u64)),
            BatchChange::Clone { to, at, len, .. } | BatchChange::Move { to, at, len, .. } => {
                Some((*to, *at, *len))
            }
            _ => None,
        }
    }

    fn comparison(&self) -> Option<RangeComparison> {
        match *self {
            BatchChange::ExpectEqual { one, other, len } => Some(RangeComparison { one, other, len }),
            _ => None,
        }
    }

    /// The directory and the name that it moves away.
    fn moved_name(&self) -> Option<(Ino, &[u8])> {
        match self {
            BatchChange::Rename { from, .. } => Some((from.0, &from.1)),
            _ => None,
        }
    }

    /// Makes the change; the bytes of a write are at `place` in the transaction's. Returns whether the change must be synced
    /// before it is answered.
    fn make(
        &self,
        core: &Arc<FsCore>,
        tx: &mut FsTransaction<'_>,
        place: Range<usize>,
    ) -> Result<bool, FsError> {
        match self {
            BatchChange::Write { bytes, .. } if bytes.is_empty() => Ok(false),
            BatchChange::Write { ino, offset, .. } => {
                core.write_logged(tx, *ino, *offset, place).map(|()| false)
            }
            BatchChange::Rename { from, to, if_exists } => {
                tx.rename((from.0, &from.1), (to.0, &to.1), *if_exists, None).map(|_| false)
            }
            BatchChange::Unlink { parent, name } => tx.unlink(*parent, name),
            BatchChange::Clone { from, len, to, at } => {
                tx.clone_part(*from, *len, (*to, *at)).map(|()| false)
            }
            BatchChange::Move { from, offset, len, to, at } => {
                tx.move_part(*from, (*offset, *len), (*to, *at)).map(|()| false)
            }
            BatchChange::Punch { ino, offset, len } => {
                // A file that grew past the log may be cut off after a crash, and the hole with it.
                let (slot, _) = tx.find_file(*ino)?;
                tx.log_bypassed_pages(slot)?;
                let range = (*offset, *len);
                tx.allocate(*ino, FallocateMode::PunchHole, range, SizePolicy::Keep).map(|()| false)
            }
            BatchChange::ExpectEqual { .. } => Ok(false),
        }
    }
}
