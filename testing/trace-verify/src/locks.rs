//! Simulated locks. Each has an open file description as its owner.

use super::tree::{Errno, Map};
use trace_file::{Handle, LockKind};

/// A range of bytes locked by one description.
#[derive(Debug, Clone, Copy)]
struct SimulatedLock {
    owner: Handle,
    exclusive: bool,
    from: u64,
    to: u64,
}

/// All locks, by file.
#[derive(Debug, Clone, Default)]
pub(super) struct SimulatedLocks {
    whole: Map<u32, Vec<(Handle, LockKind)>>,
    ranges: Map<u32, Vec<SimulatedLock>>,
}

impl SimulatedLocks {
    pub(super) fn flock(&mut self, node: u32, on: Handle, kind: LockKind) -> Result<(), Errno> {
        let locks = self.whole.entry(node).or_default();
        if locks.contains(&(on, kind)) {
            return Ok(());
        }
        // Converting a lock releases it first. The lock is lost if the new one conflicts.
        locks.retain(|(owner, _)| *owner != on);
        let conflict = locks.iter().any(|(owner, held)| {
            *owner != on && (kind == LockKind::Exclusive || *held == LockKind::Exclusive)
        });
        if kind != LockKind::Unlock && conflict {
            return Err(libc::EAGAIN);
        }
        if kind != LockKind::Unlock {
            locks.push((on, kind));
        }
        Ok(())
    }

    /// Locks or unlocks a range. A length of 0 means up to the end of the file.
    pub(super) fn range(
        &mut self,
        node: u32,
        on: Handle,
        kind: LockKind,
        (from, bytes): (u64, u64),
    ) -> Result<(), Errno> {
        let to = if bytes == 0 { u64::MAX } else { from.saturating_add(bytes) };
        let locks = self.ranges.entry(node).or_default();
        let exclusive = kind == LockKind::Exclusive;
        let conflict = locks.iter().any(|held| {
            held.owner != on && held.from < to && from < held.to && (exclusive || held.exclusive)
        });
        if kind != LockKind::Unlock && conflict {
            return Err(libc::EAGAIN);
        }
        let mut kept = Vec::with_capacity(locks.len() + 2);
        for held in locks.drain(..) {
            if held.owner != on || held.to <= from || to <= held.from {
                kept.push(held);
                continue;
            }
            if held.from < from {
                kept.push(SimulatedLock { to: from, ..held });
            }
            if to < held.to {
                kept.push(SimulatedLock { from: to, ..held });
            }
        }
        if kind != LockKind::Unlock {
            kept.push(SimulatedLock { owner: on, exclusive, from, to });
        }
        *locks = kept;
        Ok(())
    }

    /// Releases all byte ranges that a description has locked.
    pub(super) fn give_back(&mut self, node: u32, on: Handle) {
        if let Some(locks) = self.ranges.get_mut(&node) {
            locks.retain(|held| held.owner != on);
        }
    }

    /// Releases all locks of a closed description.
    pub(super) fn closed(&mut self, node: u32, on: Handle) {
        self.give_back(node, on);
        if let Some(locks) = self.whole.get_mut(&node) {
            locks.retain(|(owner, _)| *owner != on);
        }
    }
}
