//! Simulated locks: who owns what, by description.

use super::tree::{Errno, Map};
use trace_file::{Handle, LockKind};

/// Bytes that one description has locked.
#[derive(Debug, Clone, Copy)]
struct Held {
    owner: Handle,
    exclusive: bool,
    from: u64,
    to: u64,
}

/// All locks, by file.
#[derive(Debug, Clone, Default)]
pub(super) struct Locks {
    whole: Map<u32, Vec<(Handle, LockKind)>>,
    ranges: Map<u32, Vec<Held>>,
}

impl Locks {
    pub(super) fn flock(&mut self, node: u32, on: Handle, kind: LockKind) -> Result<(), Errno> {
        let locks = self.whole.entry(node).or_default();
        if locks.contains(&(on, kind)) {
            return Ok(());
        }
        // A lock that is converted is given back first, and lost if the other cannot be had.
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

    /// No bytes means all that follow.
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
                kept.push(Held { to: from, ..held });
            }
            if to < held.to {
                kept.push(Held { from: to, ..held });
            }
        }
        if kind != LockKind::Unlock {
            kept.push(Held { owner: on, exclusive, from, to });
        }
        *locks = kept;
        Ok(())
    }

    /// All bytes that a description has locked.
    pub(super) fn give_back(&mut self, node: u32, on: Handle) {
        if let Some(locks) = self.ranges.get_mut(&node) {
            locks.retain(|held| held.owner != on);
        }
    }

    /// A description is gone.
    pub(super) fn closed(&mut self, node: u32, on: Handle) {
        self.give_back(node, on);
        if let Some(locks) = self.whole.get_mut(&node) {
            locks.retain(|(owner, _)| *owner != on);
        }
    }
}
