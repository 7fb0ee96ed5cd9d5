//! Simulated calls on names and attributes.

use super::sim::{Done, Simulation, mix};
use super::tree::{PathResult, SimulatedKind, SimulatedNode};
use trace_file::{ActionId, Device, Handle, Op, Place};

impl Simulation {
    pub(super) fn run_on_name(&mut self, id: ActionId, op: &Op<Handle>) -> Done {
        match op {
            Op::Open { at, flags, made, .. } => self.open_at(id, at, *flags, *made),
            Op::ChangeDir { at, made } => {
                let node = self.find(at, true)?.there()?;
                if self.tree.node(node).kind != SimulatedKind::Directory {
                    return Err(libc::ENOTDIR);
                }
                self.describe(*made, node, (libc::O_PATH | libc::O_DIRECTORY) as u32);
                Ok((0, self.tree.node(node).identity))
            }
            Op::MakeDir { at, .. } => self.make(id, at, SimulatedKind::Directory),
            Op::MakeNode { at, mode } => {
                let socket = mode & libc::S_IFMT == libc::S_IFSOCK;
                self.make(
                    id,
                    at,
                    if socket { SimulatedKind::Special(Device::Socket) } else { SimulatedKind::File },
                )
            }
            Op::Exchange { one, other } => self.rename(one, other, libc::RENAME_EXCHANGE),
            Op::Symlink { target, at } => self.make(id, at, SimulatedKind::Link(*target)),
            Op::RemoveDir { at } => self.remove_directory(at),
            Op::Unlink { at } => {
                let found = self.find(at, false)?;
                let node = found.there()?;
                if self.tree.node(node).kind == SimulatedKind::Directory {
                    return Err(libc::EISDIR);
                }
                self.leave(found.at.ok_or(libc::EISDIR)?);
                Ok((0, self.tree.node(node).identity))
            }
            Op::Rename { from, to, flags } => self.rename(from, to, *flags),
            Op::Link { from, to, follow } => {
                let node = self.find(from, *follow)?.there()?;
                let to = self.find(to, false)?;
                let at = self.free(to)?;
                if self.tree.node(node).kind == SimulatedKind::Directory {
                    return Err(libc::EPERM);
                }
                self.enter(at, node);
                Ok((0, self.tree.node(node).identity))
            }
            _ => self.run_on_attributes(id, op),
        }
    }

    /// Returns the place of a name that is free, in a directory that still exists.
    fn free(&self, found: PathResult) -> Result<(u32, trace_file::Name), i32> {
        match (found.node, found.at) {
            (None, Some((dir, name))) => {
                let gone = dir != super::tree::ROOT && self.tree.node(dir).links == 0;
                if gone { Err(libc::ENOENT) } else { Ok((dir, name)) }
            }
            _ => Err(libc::EEXIST),
        }
    }

    fn make(&mut self, id: ActionId, at: &Place<Handle>, kind: SimulatedKind) -> Done {
        let found = self.find(at, false)?;
        let at = self.free(found)?;
        if found.directory && kind != SimulatedKind::Directory {
            return Err(libc::ENOENT);
        }
        let node = self.tree.add(SimulatedNode::new(kind, made_by(id)));
        self.enter(at, node);
        Ok((0, 0))
    }

    fn open_at(&mut self, id: ActionId, at: &Place<Handle>, flags: u32, made: Handle) -> Done {
        let has = |flag: i32| flags & flag as u32 == flag as u32;
        let exclusive = has(libc::O_CREAT | libc::O_EXCL);
        let found = self.find(at, !has(libc::O_NOFOLLOW) && !exclusive)?;
        if has(libc::O_TMPFILE) {
            found.there()?;
            let node = self.tree.add(SimulatedNode::new(SimulatedKind::File, made_by(id)));
            self.describe(made, node, flags);
            return Ok((0, 0));
        }
        let node = match found.node {
            Some(_) if exclusive => return Err(libc::EEXIST),
            Some(node) => node,
            None if !has(libc::O_CREAT) => return Err(libc::ENOENT),
            None if found.directory => return Err(libc::EISDIR),
            None => {
                let at = self.free(found)?;
                let node = self.tree.add(SimulatedNode::new(SimulatedKind::File, made_by(id)));
                self.enter(at, node);
                node
            }
        };
        let writes = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
        match self.tree.node(node).kind {
            SimulatedKind::Directory if !has(libc::O_PATH) && (writes || has(libc::O_CREAT)) => {
                return Err(libc::EISDIR);
            }
            SimulatedKind::Special(Device::Socket) if !has(libc::O_PATH) => return Err(libc::ENXIO),
            SimulatedKind::Link(_) if has(libc::O_DIRECTORY) => return Err(libc::ENOTDIR),
            SimulatedKind::Link(_) if !has(libc::O_PATH) => return Err(libc::ELOOP),
            SimulatedKind::File | SimulatedKind::Special(_) if has(libc::O_DIRECTORY) => {
                return Err(libc::ENOTDIR);
            }
            _ => {}
        }
        if has(libc::O_TRUNC) {
            self.resize(id, node, 0);
        }
        self.describe(made, node, flags);
        Ok((0, self.tree.node(node).identity))
    }

    /// Whether ftruncate must refuse the file because it is not open for writing.
    fn is_no_target(&self, at: &Place<Handle>) -> bool {
        self.fixed.paths[at.path.0 as usize].empty && self.open(at.dir).is_ok_and(|open| !open.writes())
    }

    fn resize(&mut self, id: ActionId, node: u32, size: u64) {
        let node = self.tree.node_mut(node);
        if node.kind == SimulatedKind::File {
            node.content.write(size, u64::MAX, id + 1);
            node.size = size;
        }
    }

    fn remove_directory(&mut self, at: &Place<Handle>) -> Done {
        let found = self.find(at, false)?;
        let node = found.there()?;
        let state = self.tree.node(node);
        let (identity, empty) = (state.identity, state.entries == 0);
        if state.kind != SimulatedKind::Directory {
            return Err(libc::ENOTDIR);
        }
        let at = found.at.ok_or(libc::EBUSY)?;
        if !empty {
            return Err(libc::ENOTEMPTY);
        }
        self.leave(at);
        Ok((0, identity))
    }

    fn rename(&mut self, from: &Place<Handle>, to: &Place<Handle>, flags: u32) -> Done {
        let (source, target) = (self.find(from, false)?, self.find(to, false)?);
        let node = source.there()?;
        let (Some(from), Some(to)) = (source.at, target.at) else { return Err(libc::EBUSY) };
        let (kind, identity) = (self.tree.node(node).kind, self.tree.node(node).identity);
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        if target.node.is_some() && flags & libc::RENAME_NOREPLACE != 0 {
            return Err(libc::EEXIST);
        }
        if target.node.is_none() && exchange {
            return Err(libc::ENOENT);
        }
        if kind == SimulatedKind::Directory && self.tree.is_below(to.0, node) {
            return Err(libc::EINVAL);
        }
        if target.node.is_some_and(|old| self.tree.is_below(from.0, old)) {
            return Err(if exchange { libc::EINVAL } else { libc::ENOTEMPTY });
        }
        let Some(old) = target.node else {
            self.free(target)?;
            self.leave(from);
            self.enter(to, node);
            return Ok((0, identity));
        };
        // A rename between two names of one file changes nothing.
        if old == node {
            return Ok((0, identity));
        }
        let replaced = self.tree.node(old).identity;
        if exchange {
            self.leave(from);
            self.leave(to);
            self.enter(from, old);
            self.enter(to, node);
            return Ok((0, mix(identity, replaced)));
        }
        match (kind == SimulatedKind::Directory, self.tree.node(old).kind == SimulatedKind::Directory) {
            (true, false) => return Err(libc::ENOTDIR),
            (false, true) => return Err(libc::EISDIR),
            (true, true) if self.tree.node(old).entries > 0 => return Err(libc::ENOTEMPTY),
            _ => {}
        }
        self.leave(to);
        self.leave(from);
        self.enter(to, node);
        Ok((0, mix(identity, replaced)))
    }

    fn run_on_attributes(&mut self, id: ActionId, op: &Op<Handle>) -> Done {
        let (at, follow) = match op {
            Op::Stat { at, follow, .. } | Op::SetOwner { at, follow, .. } | Op::SetTimes { at, follow } => {
                (at, *follow)
            }
            Op::Access { at, .. } | Op::StatFs { at } | Op::SetMode { at, .. } | Op::Resize { at, .. } => {
                (at, true)
            }
            Op::ReadLink { at, .. } => (at, false),
            Op::GetAttribute { at, follow, .. }
            | Op::SetAttribute { at, follow, .. }
            | Op::ListAttributes { at, follow, .. }
            | Op::RemoveAttribute { at, follow, .. } => (at, *follow),
            _ => return Err(libc::ENOSYS),
        };
        let node = self.find(at, follow)?.there()?;
        let state = self.tree.node(node);
        let directory = state.kind == SimulatedKind::Directory;
        let identity = state.identity;
        match op {
            Op::Stat { .. } if !directory => {
                let seen = [state.size, u64::from(state.links), u64::from(state.changed)];
                // A replay returns the size for `stat`, too.
                Ok((state.size as i64, seen.iter().fold(identity, |digest, part| mix(digest, *part))))
            }
            Op::Stat { .. } => Ok((0, mix(identity, state.changed.into()))),
            Op::ReadLink { .. } => match state.kind {
                SimulatedKind::Link(target) => Ok((self.fixed.lengths[target.0 as usize] as i64, identity)),
                _ => Err(libc::EINVAL),
            },
            Op::GetAttribute { .. }
            | Op::SetAttribute { .. }
            | Op::ListAttributes { .. }
            | Op::RemoveAttribute { .. } => super::attributes::run(self.tree.node_mut(node), id, op),
            Op::Resize { at, .. } if self.is_no_target(at) => Err(libc::EINVAL),
            Op::Resize { .. } if directory => Err(libc::EISDIR),
            Op::Resize { size, .. } => {
                self.resize(id, node, *size);
                Ok((0, identity))
            }
            Op::SetMode { .. } | Op::SetOwner { .. } | Op::SetTimes { .. } => {
                self.tree.node_mut(node).changed = id + 1;
                Ok((0, identity))
            }
            _ => Ok((0, identity)),
        }
    }
}

/// The identity of a file that an action made. Files of the initial tree have lower numbers.
fn made_by(id: ActionId) -> u64 {
    (1 << 32) + u64::from(id)
}
