//! Extended attributes of files: the current ones, and the ones from before the trace began.

use super::tree::{Attribute, ModelNodeId};
use super::world::World;
use crate::call::{Call, Fd};
use crate::step::{Resource, Series, SeriesRole, Step, TouchMode};
use trace_file::{Name, Op, Outcome, Place};

impl World {
    /// Learns from a call on a file's extended attributes. Absence of an attribute is a result, too.
    pub(super) fn attribute(&mut self, call: &Call, step: &mut Step, node: ModelNodeId, op: &Op<Fd>) {
        let (name, how) = match op {
            Op::GetAttribute { name, .. } => (Some(*name), TouchMode::Read),
            Op::SetAttribute { name, .. } | Op::RemoveAttribute { name, .. } => {
                (Some(*name), TouchMode::Write)
            }
            Op::ListAttributes { .. } => (None, TouchMode::Read),
            _ => return,
        };
        step.touch(Resource::Attributes(node), how);
        if !self.tree.is_file(node) {
            step.in_series(Series::File(node), SeriesRole::Use);
        }
        let Some(name) = name else { return };
        let now = match (op, call.outcome) {
            (Op::GetAttribute { .. }, Outcome::Value(size)) => Some(u64::try_from(size).ok()),
            (Op::SetAttribute { bytes, .. }, Outcome::Value(_)) => Some(Some(*bytes)),
            (Op::RemoveAttribute { .. }, Outcome::Value(_)) | (_, Outcome::Error(libc::ENODATA)) => None,
            (_, Outcome::Error(libc::EEXIST | libc::ERANGE)) => Some(None),
            _ => return,
        };
        let made = self.tree.node(node).initial.is_none();
        let all = &mut self.tree.node_mut(node).attributes;
        if let Some(known) = all.iter_mut().find(|known| known.name == name) {
            // A call may show that the attribute exists without showing its size.
            known.now = if now == Some(None) { known.now.or(now) } else { now };
            return;
        }
        if made {
            all.push(Attribute { name, initial: None, now });
            return;
        }
        let flags = if let Op::SetAttribute { flags, .. } = op { *flags as i32 } else { 0 };
        let initial = match (op, call.outcome) {
            (Op::GetAttribute { .. }, Outcome::Value(size)) => Some(size.max(0) as u32),
            (Op::RemoveAttribute { .. }, Outcome::Value(_)) => Some(0),
            (Op::SetAttribute { .. }, Outcome::Value(_)) if flags & libc::XATTR_REPLACE != 0 => Some(0),
            (Op::SetAttribute { .. }, Outcome::Error(libc::EEXIST)) => Some(0),
            (_, Outcome::Value(_) | Outcome::Error(libc::ENODATA)) => None,
            _ => return,
        };
        self.tree.node_mut(node).attributes.push(Attribute { name, initial, now });
    }

    /// Adds an attribute from the snapshot.
    pub(crate) fn add_attribute(&mut self, node: ModelNodeId, name: Name, bytes: u32) {
        self.tree.node_mut(node).attributes.push(Attribute {
            name,
            initial: Some(bytes),
            now: Some(Some(bytes.into())),
        });
    }

    /// Adds a hole from the snapshot.
    pub(crate) fn add_hole(&mut self, node: ModelNodeId, from: u64, bytes: u64) {
        self.tree.node_mut(node).holes.push((from, bytes));
    }
}

impl World {
    /// Whether a call on an extended attribute of this file could have its result. The model knows only
    /// `user.` attributes, because the system changes others by itself.
    pub(super) fn explains_attribute(&self, call: &Call, op: &Op<Fd>, node: ModelNodeId) -> bool {
        let (Op::GetAttribute { name, .. }
        | Op::SetAttribute { name, .. }
        | Op::RemoveAttribute { name, .. }) = op
        else {
            return true;
        };
        let state = self.tree.node(node);
        let known = state.attributes.iter().find(|known| known.name == *name).map(|known| known.now);
        let Some(now) = known.or(state.initial.is_none().then_some(None)) else { return true };
        let flags = if let Op::SetAttribute { flags, .. } = op { *flags as i32 } else { 0 };
        match (op, call.outcome) {
            _ if !self.names.bytes(*name).starts_with(b"user.") => true,
            (Op::GetAttribute { .. }, Outcome::Value(size)) => {
                now.is_some_and(|now| now.is_none_or(|now| i64::try_from(now) == Ok(size)))
            }
            (Op::SetAttribute { .. }, Outcome::Value(_)) => {
                let refused = if now.is_some() { libc::XATTR_CREATE } else { libc::XATTR_REPLACE };
                flags & refused == 0
            }
            (_, Outcome::Value(_) | Outcome::Error(libc::EEXIST | libc::ERANGE)) => now.is_some(),
            (_, Outcome::Error(libc::ENODATA)) => now.is_none(),
            _ => true,
        }
    }
}

/// The operation with the model's handle.
pub(super) fn at_place(op: &Op<Fd>, at: Place<u32>) -> Op<u32> {
    match *op {
        Op::GetAttribute { follow, name, bytes, .. } => Op::GetAttribute { at, follow, name, bytes },
        Op::SetAttribute { follow, name, bytes, flags, .. } => {
            Op::SetAttribute { at, follow, name, bytes, flags }
        }
        Op::RemoveAttribute { follow, name, .. } => Op::RemoveAttribute { at, follow, name },
        Op::ListAttributes { follow, bytes, .. } => Op::ListAttributes { at, follow, bytes },
        _ => Op::Nothing,
    }
}
