//! Simulated extended attributes.

use super::sim::{Done, mix};
use super::tree::SimulatedNode;
use trace_file::{ActionId, Handle, Op};

pub(super) fn run(node: &mut SimulatedNode, id: ActionId, op: &Op<Handle>) -> Done {
    let place = |node: &SimulatedNode, name| node.attributes.iter().position(|(known, ..)| *known == name);
    match *op {
        Op::GetAttribute { name, bytes, .. } => {
            let (_, size, setter) = node.attributes[place(node, name).ok_or(libc::ENODATA)?];
            if bytes != 0 && bytes < size {
                Err(libc::ERANGE)
            } else {
                Ok((size as i64, mix(node.identity, setter.into())))
            }
        }
        Op::SetAttribute { name, bytes, flags, .. } => {
            let (found, flags) = (place(node, name), flags as i32);
            match found {
                Some(_) if flags & libc::XATTR_CREATE != 0 => return Err(libc::EEXIST),
                None if flags & libc::XATTR_REPLACE != 0 => return Err(libc::ENODATA),
                Some(at) => node.attributes[at] = (name, bytes, id + 1),
                None => node.attributes.push((name, bytes, id + 1)),
            }
            Ok((0, node.identity))
        }
        Op::RemoveAttribute { name, .. } => {
            let at = place(node, name).ok_or(libc::ENODATA)?;
            node.attributes.swap_remove(at);
            Ok((0, node.identity))
        }
        _ => {
            let digest =
                node.attributes.iter().fold(0u64, |sum, (name, ..)| sum.wrapping_add(mix(1, name.0.into())));
            Ok((0, mix(node.identity, digest)))
        }
    }
}
