//! How changes enter the cache: [`Cache::transact`] runs the caller's work, which changes the caller's own
//! state and hands over the changes. If there is no space, the work undoes that, and runs again later.

use crate::admission::SpaceReservation;
use crate::apply::AppliedAtOnce;
use crate::cache::{Cache, CacheParts};
use crate::change::{ObjectChange, TransactionCost};
use crate::error::CacheError;
use crate::settings::FetchMode;
use crate::task::CacheCompletion;
use device::{Lsn, ObjectId};
use request::Origin;

/// A transaction that is being made.
pub struct CacheTransaction<'a> {
    parts: &'a CacheParts,
    cost: TransactionCost,
    /// `None`: space is reserved when the changes are known.
    reservation: Option<SpaceReservation>,
    /// In `FetchMode::Blocking`: the pages that it writes were fetched.
    is_fetched: bool,
    waits_for: Option<TransactionWait>,
}

/// Why a transaction could not be applied at once.
enum TransactionWait {
    /// For space. The cost says by now how many of the pages may bypass the buffer.
    Space,
    /// For pages of which it writes parts.
    Pages { object: ObjectId, offset: u64, len: usize },
}

impl CacheTransaction<'_> {
    /// Makes all of `changes` visible, in order, as one transaction: after a crash it is there as a whole or
    /// not at all, and only if every transaction before it is. Never waits, and calls no completion. Call it
    /// once in each transaction, under the lock that orders the caller's transactions.
    ///
    /// # Errors
    /// [`CacheError::MustWait`] if there is no space yet, or, in `FetchMode::Blocking`, a page must be
    /// fetched first. The caller undoes its changes and returns the error. Its work runs again later.
    pub fn apply(&mut self, changes: &[ObjectChange<'_>]) -> Result<Lsn, CacheError> {
        if let Some(reservation) = &mut self.reservation {
            return self.parts.applier.apply_reserved(reservation, changes);
        }
        if !self.is_fetched
            && self.parts.shared.settings().fetch == FetchMode::Blocking
            && let Some(wait) = changes.iter().find_map(written_pages)
        {
            self.waits_for = Some(wait);
            return Err(CacheError::MustWait);
        }
        match self.parts.applier.apply_at_once(self.cost.claim, self.cost.origin, changes)? {
            AppliedAtOnce::Applied(lsn) => Ok(lsn),
            AppliedAtOnce::MustWait { bypass_pages } => {
                self.cost.bypass_pages = bypass_pages;
                self.waits_for = Some(TransactionWait::Space);
                Err(CacheError::MustWait)
            }
        }
    }
}

/// The pages that a change of a file's data writes.
fn written_pages(change: &ObjectChange<'_>) -> Option<TransactionWait> {
    match *change {
        ObjectChange::FileWrite { object, offset, bytes, .. } => {
            Some(TransactionWait::Pages { object, offset, len: bytes.len() })
        }
        _ => None,
    }
}

impl Cache {
    /// Runs `work`, which makes one transaction, and passes its outcome to `done`. If the transaction must
    /// wait, `work` undoes its changes and runs again later; `done` gets that outcome, or an error if the
    /// store is full, at once or after an attempt to make space. `cost` is the most that the transaction may
    /// need. It is reserved only if the transaction waits; otherwise the cache reserves what the changes
    /// take.
    pub fn transact<T: 'static, E: From<CacheError> + 'static>(
        &self,
        cost: TransactionCost,
        work: impl FnMut(&mut CacheTransaction<'_>) -> Result<T, E> + Send + 'static,
        done: impl FnOnce(Result<T, E>) + Send + 'static,
    ) {
        self.transact_with(cost, false, work, done);
    }

    /// [`transact`](Cache::transact), if it can answer now. `None` if the transaction must wait: `work` has
    /// run and has undone its changes.
    pub fn try_transact<T, E>(
        &self,
        cost: TransactionCost,
        work: impl FnOnce(&mut CacheTransaction<'_>) -> Result<T, E>,
    ) -> Option<Result<T, E>> {
        let mut transaction = self.begin_transaction(cost, false);
        let outcome = work(&mut transaction);
        if transaction.waits_for.is_some() { None } else { Some(outcome) }
    }

    /// Writes `bytes`, at least one and all within a page of a file, as a transaction of their own, if nothing but
    /// these bytes has to change: the page is in memory and waits to be stored, so the write needs space in the
    /// buffer alone. Returns whether they are written; if not, nothing has changed, and
    /// [`transact`](Cache::transact) can write them. Never waits, and calls no completion.
    ///
    /// Call it under the lock that orders the caller's transactions; a shared one is enough, because two such
    /// writes change nothing of the caller's.
    pub fn try_overwrite(&self, origin: Origin, object: ObjectId, offset: u64, bytes: &[u8]) -> bool {
        self.parts.applier.try_overwrite(origin, object, offset, bytes)
    }

    fn begin_transaction(&self, cost: TransactionCost, is_fetched: bool) -> CacheTransaction<'_> {
        CacheTransaction { parts: &self.parts, cost, reservation: None, is_fetched, waits_for: None }
    }

    fn transact_with<T: 'static, E: From<CacheError> + 'static>(
        &self,
        cost: TransactionCost,
        is_fetched: bool,
        mut work: impl FnMut(&mut CacheTransaction<'_>) -> Result<T, E> + Send + 'static,
        done: impl FnOnce(Result<T, E>) + Send + 'static,
    ) {
        let mut transaction = self.begin_transaction(cost, is_fetched);
        let outcome = work(&mut transaction);
        let CacheTransaction { cost, waits_for, .. } = transaction;
        let cache = self.clone();
        match waits_for {
            None => done(outcome),
            Some(TransactionWait::Space) => self.admit(
                cost,
                Box::new(move |admitted| match admitted {
                    Ok(reservation) => done(cache.transact_within(reservation, cost, work)),
                    Err(error) => done(Err(error.into())),
                }),
            ),
            Some(TransactionWait::Pages { object, offset, len }) => self.prepare_write(
                object,
                offset,
                len,
                Box::new(move |fetched| match fetched {
                    Ok(()) => cache.transact_with(cost, true, work, done),
                    Err(error) => done(Err(error.into())),
                }),
            ),
        }
    }

    fn transact_within<T, E>(
        &self,
        reservation: SpaceReservation,
        cost: TransactionCost,
        mut work: impl FnMut(&mut CacheTransaction<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let reservation = Some(reservation);
        work(&mut CacheTransaction {
            parts: &self.parts,
            cost,
            reservation,
            is_fetched: true,
            waits_for: None,
        })
    }

    /// Reserves space for a transaction that [`apply`](Cache::apply) makes later. `then` gets the
    /// reservation: at once if there is space, otherwise when there is. Refused if the store is full, at once
    /// or after an attempt to make space.
    pub fn admit(&self, cost: TransactionCost, then: CacheCompletion<SpaceReservation>) {
        self.parts.admission.admit(cost, then);
    }

    /// As [`CacheTransaction::apply`], within a reservation, which is good for one transaction. Success
    /// releases the unused rest.
    pub fn apply(
        &self,
        reservation: &mut SpaceReservation,
        changes: &[ObjectChange<'_>],
    ) -> Result<Lsn, CacheError> {
        self.parts.applier.apply_reserved(reservation, changes)
    }
}
