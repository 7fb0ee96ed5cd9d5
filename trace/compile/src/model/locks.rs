//! Locks and their owners, by the kernel's rules. Byte-range locks belong to a descriptor table (POSIX) or a
//! description (OFD), flock to a description. Closing any descriptor of a file releases all locks that its
//! table holds on that file.
//!
//! A replay is one process, so POSIX locks would exclude nothing. The replay therefore takes a table's locks
//! on a file through one of the table's descriptions, the *carrier*, as OFD locks. They are released as the
//! kernel would have released them.

use super::expected_file::ExpectedFile;
use super::tree::ModelNodeId;
use super::world::World;
use crate::call::{Call, Fd};
use crate::step::{Resource, Series, SeriesRole, Step, TouchMode};
use std::collections::HashMap;
use trace_file::{Fate, Handle, LockKind, LockOwner, Modelled, Op, Outcome};

/// The owner of a byte-range lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum LockHolder {
    /// A descriptor table: in practice, a process.
    Table(usize),
    /// An open file description.
    Description(Handle),
}

/// A byte-range lock that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HeldLock {
    owner: LockHolder,
    kind: LockKind,
    range: (u64, u64),
    /// Whether a replay takes the lock, too.
    replayed: bool,
}

/// All locks.
#[derive(Debug, Clone, Default)]
pub(super) struct Locks {
    ranges: HashMap<ModelNodeId, Vec<HeldLock>>,
    flocks: HashMap<ModelNodeId, Vec<(Handle, LockKind)>>,
    carriers: HashMap<(ModelNodeId, usize), Handle>,
    /// Descriptions that lose a table's locks in the current action.
    unlocked: Vec<Handle>,
}

impl HeldLock {
    fn conflicts(&self, with: &HeldLock) -> bool {
        let overlap = self.range.0 < with.range.1 && with.range.0 < self.range.1;
        let exclusive = self.kind == LockKind::Exclusive || with.kind == LockKind::Exclusive;
        self.owner != with.owner && overlap && exclusive && with.kind != LockKind::Unlock
    }
}

impl Locks {
    fn is_free(&self, node: ModelNodeId, wanted: &HeldLock) -> bool {
        self.ranges.get(&node).is_none_or(|all| !all.iter().any(|held| held.conflicts(wanted)))
    }

    /// Whether a replay can take a lock: it leaves out all conflicting locks.
    fn is_free_in_replay(&self, node: ModelNodeId, wanted: &HeldLock) -> bool {
        let stands = |held: &HeldLock| held.replayed && held.conflicts(wanted);
        self.ranges.get(&node).is_none_or(|all| !all.iter().any(stands))
    }

    /// Whether the owner of a lock holds an exclusive lock on any byte of the range.
    fn has_exclusive(&self, node: ModelNodeId, wanted: &HeldLock) -> bool {
        let (from, to) = wanted.range;
        let own = |held: &HeldLock| held.owner == wanted.owner && held.range.0 < to && from < held.range.1;
        let exclusive = |held: &HeldLock| held.kind == LockKind::Exclusive;
        self.ranges.get(&node).is_some_and(|all| all.iter().any(|held| own(held) && exclusive(held)))
    }

    fn is_free_for_flock(&self, node: ModelNodeId, owner: Handle, kind: LockKind) -> bool {
        let excludes = |held: LockKind| kind == LockKind::Exclusive || held == LockKind::Exclusive;
        let all = self.flocks.get(&node).into_iter().flatten();
        kind == LockKind::Unlock || !all.into_iter().any(|(other, held)| *other != owner && excludes(*held))
    }

    /// Replaces the owner's locks in the range. Parts outside of the range stay.
    fn set(&mut self, node: ModelNodeId, wanted: HeldLock) {
        let all = self.ranges.entry(node).or_default();
        let (from, to) = wanted.range;
        let mut rest = Vec::new();
        all.retain(|held| {
            let touched = held.owner == wanted.owner && held.range.0 < to && from < held.range.1;
            if touched {
                rest.push(HeldLock { range: (held.range.0, held.range.0.max(from)), ..*held });
                rest.push(HeldLock { range: (held.range.1.min(to), held.range.1), ..*held });
            }
            !touched
        });
        rest.push(wanted);
        all.extend(
            rest.into_iter().filter(|held| held.range.0 < held.range.1 && held.kind != LockKind::Unlock),
        );
        if all.is_empty() {
            self.ranges.remove(&node);
        }
    }

    /// Releases all of an owner's locks on a file. Returns whether there were any.
    fn release(&mut self, node: ModelNodeId, owner: LockHolder) -> bool {
        let Some(all) = self.ranges.get_mut(&node) else { return false };
        let before = all.len();
        all.retain(|held| held.owner != owner);
        let released = all.len() < before;
        if all.is_empty() {
            self.ranges.remove(&node);
        }
        released
    }

    fn release_flock(&mut self, node: ModelNodeId, owner: Handle) -> bool {
        let Some(all) = self.flocks.get_mut(&node) else { return false };
        let before = all.len();
        all.retain(|(holder, _)| *holder != owner);
        let released = all.len() < before;
        if all.is_empty() {
            self.flocks.remove(&node);
        }
        released
    }

    /// The carrier of a table's locks on a file. `None` if `candidate` is another table's carrier.
    fn carrier(&mut self, node: ModelNodeId, table: usize, candidate: Handle) -> Option<Handle> {
        if let Some(carrier) = self.carriers.get(&(node, table)) {
            return Some(*carrier);
        }
        if self.carriers.iter().any(|((on, _), carrier)| *on == node && *carrier == candidate) {
            return None;
        }
        self.carriers.insert((node, table), candidate);
        Some(candidate)
    }
}

/// A range from a call's arguments. Zero bytes means up to the end of the file, even if the end moves.
fn range_of(start: u64, bytes: u64) -> (u64, u64) {
    (start, if bytes == 0 { u64::MAX } else { start.saturating_add(bytes) })
}

impl World {
    pub(super) fn lock(&mut self, call: &Call, step: &mut Step, op: &Op<Fd>) -> Result<Op<u32>, Fate> {
        let Op::Lock { on, kind, start, bytes, owner } = *op else {
            return Err(Fate::Modelled(Modelled::Idle));
        };
        let file = self.file(call, on)?;
        self.decide(file.node, ExpectedFile::File);
        step.uses(file.slot, Some(file.node), TouchMode::Read);
        let range = range_of(start, bytes);
        let owned_by = self.owner_of(call, file.slot.description, owner);
        let mut wanted = HeldLock { owner: owned_by, kind, range, replayed: true };
        // Shared locks commute. A release does not, because an exclusive lock may wait for it; nor does a
        // change from exclusive to shared.
        let adds = kind == LockKind::Shared && !self.locks.has_exclusive(file.node, &wanted);
        let how = if adds { TouchMode::Read } else { TouchMode::Write };
        step.touch_range(Resource::Locks(file.node), how, range.0, range.1);
        let refused = matches!(call.outcome, Outcome::Error(libc::EAGAIN | libc::EACCES));
        let without_reason = refused
            && self.locks.is_free_in_replay(file.node, &wanted)
            && !self.locks.is_free(file.node, &wanted);
        let on = match wanted.owner {
            // EBADF: the mode of this descriptor forbids the lock, so the replay uses this description.
            _ if call.outcome == Outcome::Error(libc::EBADF) => Some(file.slot.description),
            LockHolder::Description(description) => Some(description),
            LockHolder::Table(table) => self.locks.carrier(file.node, table, file.slot.description),
        };
        wanted.replayed = on.is_some();
        if call.outcome.succeeded() {
            self.locks.set(file.node, wanted);
        }
        let on = on.filter(|_| !without_reason).ok_or(Fate::Modelled(Modelled::SharedLock))?;
        if on != file.slot.description {
            step.in_series(Series::Description(on), SeriesRole::Use);
            step.touch(Resource::Description(on), TouchMode::Read);
        }
        Ok(Op::Lock { on, kind, start, bytes, owner })
    }

    pub(super) fn flock(
        &mut self,
        call: &Call,
        step: &mut Step,
        (on, kind): (Fd, LockKind),
    ) -> Result<Op<u32>, Fate> {
        let file = self.file(call, on)?;
        let on = file.slot.description;
        step.uses(file.slot, Some(file.node), TouchMode::Read);
        let all = self.locks.flocks.get(&file.node).into_iter().flatten();
        let held = all.into_iter().find(|(owner, _)| *owner == on).map(|(_, held)| *held);
        let converts = held.is_some_and(|held| held != kind);
        let adds = kind == LockKind::Shared && !converts;
        step.touch(Resource::Flock(file.node), if adds { TouchMode::Read } else { TouchMode::Write });
        // The kernel releases the old lock before it tries to get the new one, and does not restore it after
        // a failure.
        if call.outcome.succeeded() || converts {
            self.locks.release_flock(file.node, on);
        }
        if call.outcome.succeeded() && kind != LockKind::Unlock {
            self.locks.flocks.entry(file.node).or_default().push((on, kind));
        }
        Ok(Op::Flock { on, kind })
    }

    fn owner_of(&self, call: &Call, description: Handle, owner: LockOwner) -> LockHolder {
        match owner {
            LockOwner::Description => LockHolder::Description(description),
            LockOwner::Process => LockHolder::Table(self.task(call).table),
        }
    }

    /// Whether the locks held now allow the result of a lock call.
    pub(super) fn explains_lock(&self, call: &Call, op: &Op<Fd>) -> bool {
        let (Op::Lock { on, .. } | Op::Flock { on, .. }) = op else { return true };
        let Some(slot) = self.slot(call, *on) else { return true };
        let Some(node) = self.file_of(slot.description) else { return true };
        let free = match *op {
            Op::Lock { kind, start, bytes, owner, .. } => {
                let owner = self.owner_of(call, slot.description, owner);
                self.locks
                    .is_free(node, &HeldLock { owner, kind, range: range_of(start, bytes), replayed: true })
            }
            Op::Flock { kind, .. } => self.locks.is_free_for_flock(node, slot.description, kind),
            _ => true,
        };
        match call.outcome {
            Outcome::Value(_) => free,
            Outcome::Error(libc::EAGAIN | libc::EACCES) => !free,
            _ => true,
        }
    }

    /// Applies a close of a descriptor: its table loses all byte-range locks on that file.
    pub(super) fn unlock_at_close(&mut self, table: usize, description: Handle, step: &mut Step) {
        let Some(node) = self.file_of(description) else { return };
        let carrier = self.locks.carriers.remove(&(node, table));
        if self.locks.release(node, LockHolder::Table(table)) {
            step.touch(Resource::Locks(node), TouchMode::Write);
            step.in_series(Series::File(node), SeriesRole::Use);
            self.locks.unlocked.extend(carrier);
        }
    }

    /// Applies the last close of a description, which releases the description's own locks.
    pub(super) fn unlock_at_last_close(&mut self, description: Handle, step: &mut Step) {
        let Some(node) = self.file_of(description) else { return };
        let ranges = self.locks.release(node, LockHolder::Description(description));
        let whole = self.locks.release_flock(node, description);
        for (released, what) in [(ranges, Resource::Locks(node)), (whole, Resource::Flock(node))] {
            if released {
                step.touch(what, TouchMode::Write);
                step.in_series(Series::File(node), SeriesRole::Use);
            }
        }
    }

    /// Takes the carriers that stay open after the current action and lose the locks they carry.
    pub(super) fn take_unlocked(&mut self, closed: &[Handle], step: &mut Step) -> Box<[Handle]> {
        let mut unlocked = std::mem::take(&mut self.locks.unlocked);
        unlocked.retain(|handle| !closed.contains(handle));
        for handle in &unlocked {
            step.in_series(Series::Description(*handle), SeriesRole::Use);
            step.touch(Resource::Description(*handle), TouchMode::Read);
        }
        unlocked.into()
    }
}
