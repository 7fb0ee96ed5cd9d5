//! Extended attributes: which a file has now, and which it must have had before the trace began.

use super::tree::{Attribute, NodeId};
use super::world::World;
use crate::action::{How, Resource, Step};
use crate::names::Name;
use crate::op::{Call, Fd, Op, Outcome, Place};

impl World {
    /// What a call on a file's extended attributes shows of them. Their absence is a result, too.
    pub(super) fn attribute(&mut self, call: &Call, step: &mut Step, node: NodeId, op: &Op<Fd>) {
        let (name, how) = match op {
            Op::GetAttribute { name, .. } => (Some(*name), How::Read),
            Op::SetAttribute { name, .. } | Op::RemoveAttribute { name, .. } => (Some(*name), How::Write),
            Op::ListAttributes { .. } => (None, How::Read),
            _ => return,
        };
        step.touch(Resource::Attributes(node), how);
        let Some(name) = name else { return };
        let known = self.tree.node(node).attributes.iter().any(|known| known.name == name);
        if known || self.tree.node(node).initial.is_none() {
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
        self.tree.node_mut(node).attributes.push(Attribute { name, initial });
    }

    /// An attribute that was there, as a snapshot lists it.
    pub fn add_attribute(&mut self, node: NodeId, name: Name, bytes: u32) {
        self.tree.node_mut(node).attributes.push(Attribute { name, initial: Some(bytes) });
    }

    /// A hole that was there, as a snapshot lists it.
    pub fn add_hole(&mut self, node: NodeId, from: u64, bytes: u64) {
        self.tree.node_mut(node).holes.push((from, bytes));
    }
}

/// The same operation, with the model's handle.
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
