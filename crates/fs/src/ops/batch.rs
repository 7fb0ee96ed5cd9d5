//! Batches: several changes as one transaction.

use super::file_data::write_cost;
use crate::arena::FsTransaction;
use crate::cost;
use crate::error::FsError;
use crate::format::FILE_BYTES_MAX;
use crate::fs::{Fs, FsCore};
use crate::planted_bug::{FsBug, is_planted};
use crate::types::{FsCompletion, IfExists, Ino};
use cache::{SpaceClaim, TransactionCost};
use std::ops::Range;
use std::sync::Arc;

/// The most changes of a batch.
pub const BATCH_CHANGES_MAX: usize = 64;

/// The most bytes that a batch writes into files.
pub const BATCH_BYTES_MAX: usize = 1 << 20;

/// One change of a [batch](Fs::apply_batch).
#[derive(Debug, Clone, PartialEq, Eq)]
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
}

impl Fs {
    /// Makes all of `changes`, in order, as one transaction: everybody sees all of them or none, and so does whoever
    /// looks after a crash. A read under way may still see some pages as they were and others as they are. The bytes that it
    /// writes never bypass the buffer. Like every change, it is durable after a later sync; if it removes a name of a file that
    /// was synced while it was held, it is durable on completion. The caller holds the files and directories that it
    /// names: otherwise another file may have their numbers by then.
    ///
    /// # Errors
    /// That of the first change that fails: nothing has changed then. That of the sync on completion: everything has
    /// changed. [`FsError::TooLarge`] for more than [`BATCH_CHANGES_MAX`] changes, for more than [`BATCH_BYTES_MAX`]
    /// bytes, or if the buffer is too small for so many at once.
    pub fn apply_batch(&self, mut changes: Vec<BatchChange>, done: FsCompletion<()>) {
        if changes.len() > 1 && is_planted(FsBug::BatchInTwo) {
            let (fs, rest) = (self.clone(), changes.split_off(1));
            let then = move |made: Result<(), FsError>| match made {
                Ok(()) => fs.apply_batch(rest, done),
                failed => done(failed),
            };
            return self.apply_batch(changes, Box::new(then));
        }
        let mut cost = TransactionCost { claim: SpaceClaim::Frees, ..TransactionCost::NONE };
        for change in &changes {
            match self.cost_of(change) {
                Ok(more) => {
                    cost = TransactionCost { claim: cost.claim.min(more.claim), ..cost::plus(cost, more) }
                }
                Err(error) => return done(Err(error)),
            }
        }
        let bytes = changes.iter().map(BatchChange::written).collect::<Vec<_>>().concat();
        let limit = self.core().cache.transaction_bytes_max() / 2;
        if changes.len() > BATCH_CHANGES_MAX || bytes.len() > BATCH_BYTES_MAX || cost.bytes > limit {
            return done(Err(FsError::TooLarge));
        }
        let moved: Vec<(Ino, &[u8])> = changes.iter().filter_map(BatchChange::moved_name).collect();
        let done = self.sync_if_asked(self.then_step_rules(&moved, done));
        let core = self.core().clone();
        let work = move |tx: &mut FsTransaction<'_>| {
            let mut written = 0;
            changes.iter().try_fold(false, |must_sync, change| {
                let start = written;
                written += change.written().len();
                Ok(change.make(&core, tx, start..written)? || must_sync)
            })
        };
        self.core().run_with_bytes(bytes, cost.by(self.origin()), work, done);
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
        })
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
        }
    }
}
