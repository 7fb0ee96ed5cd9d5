//! Whether the file behind a name could give a call the result in the trace.

use super::explain::NameRequirement;
use super::linearise::{moves_locks, places, resizes};
use super::tree::{End, ModelNodeId, NodeKind, Walk};
use super::world::World;
use crate::call::{Ask, Call, Fd};
use trace_file::{Op, Outcome, Place};

impl World {
    /// Where a place leads now. `None` if the start of the path is unknown.
    pub(super) fn end_of(&mut self, call: &Call, at: Place<Fd>, follow: bool) -> Option<End> {
        let path = self.names.bytes(at.path).to_vec();
        let start = self.start_of(call, at.dir, &path)?;
        Some(self.tree.walk(start, &path, follow, &mut self.names).end)
    }

    pub(super) fn explains_rename(
        &mut self,
        call: &Call,
        (from, to): (Place<Fd>, Place<Fd>),
        flags: u32,
    ) -> bool {
        use libc::{EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY};
        if let Some(expected) = self.result_of_rename(call, (from, to), flags) {
            return match call.outcome {
                Outcome::Value(_) => expected == 0,
                Outcome::Error(error) => error == expected || !about_names(error),
                Outcome::Unknown => true,
            };
        }
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        let (source, target) = (self.end_of(call, from, false), self.end_of(call, to, false));
        let (Some(source), Some(target)) = (source, target) else { return true };
        let target_node = if let End::Found(node) = target { Some(node) } else { None };
        // The kernel looks up the source first, so another error proves that the source existed.
        let source_there = !matches!(source, End::Absent | End::NoParent);
        match call.outcome {
            Outcome::Value(_) => {
                let needs = match flags {
                    _ if exchange => NameRequirement::There,
                    _ if flags & libc::RENAME_NOREPLACE != 0 => NameRequirement::Free,
                    _ => NameRequirement::Any,
                };
                let fits = match (&source, target_node) {
                    (End::Found(node), Some(old)) if !exchange => self.replaces(*node, old),
                    _ => true,
                };
                fits && self.explains_name(call, from, false, NameRequirement::There)
                    && self.explains_name(call, to, false, needs)
            }
            Outcome::Error(ENOENT) => match (&source, &target) {
                (End::Found(_), End::Found(_)) => false,
                (End::Found(_), End::Absent) => exchange,
                _ => true,
            },
            Outcome::Error(EEXIST) if flags & libc::RENAME_NOREPLACE != 0 => {
                source_there && !matches!(target, End::Absent | End::NoParent)
            }
            Outcome::Error(ENOTEMPTY | EEXIST) => {
                source_there
                    && !matches!(target, End::Absent | End::NoParent)
                    && target_node.is_none_or(|node| self.tree.is_empty(node) != Some(true))
            }
            Outcome::Error(EISDIR) => source_there && target_node.is_none_or(|node| !self.tree.is_file(node)),
            Outcome::Error(ENOTDIR) => match (&source, &target) {
                (End::Found(_), End::Absent) => false,
                (End::Found(node), End::Found(old)) => {
                    !self.replaces(*node, *old) || self.is_undecided(*node, *old)
                }
                _ => true,
            },
            Outcome::Error(EINVAL) => source_there,
            _ => true,
        }
    }

    /// The kernel's result for a rename, checked in the kernel's order. `None` if a needed fact is unknown.
    fn result_of_rename(
        &mut self,
        call: &Call,
        (from, to): (Place<Fd>, Place<Fd>),
        flags: u32,
    ) -> Option<i32> {
        use libc::{EEXIST, EINVAL, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY};
        let (source, target) = (self.walk_to(call, from)?, self.walk_to(call, to)?);
        if let Some(error) = [&source, &target].into_iter().find_map(|walk| refused(&walk.end)) {
            return Some(error);
        }
        let (exchange, keeps) = (flags & libc::RENAME_EXCHANGE != 0, flags & libc::RENAME_NOREPLACE != 0);
        let node = match source.end {
            End::Found(node) => node,
            End::Absent if self.only_listed_absent(&source) => return None,
            _ => return Some(ENOENT),
        };
        let old = match target.end {
            End::Found(old) => Some(old),
            _ if exchange && self.only_listed_absent(&target) => return None,
            _ => None,
        };
        let directory = |node: ModelNodeId| match self.tree.node(node).kind {
            NodeKind::Undecided => None,
            NodeKind::Directory { .. } => Some(true),
            _ => Some(false),
        };
        let above = directory(node)? && self.tree.is_below(target.parent, node);
        let Some(old) = old else {
            let gone = exchange || self.tree.node(target.parent).removed;
            return Some(if gone {
                ENOENT
            } else if above {
                EINVAL
            } else {
                0
            });
        };
        let below = directory(old)? && self.tree.is_below(source.parent, old);
        Some(match (directory(node)?, directory(old)?) {
            _ if keeps => EEXIST,
            _ if above || below && exchange => EINVAL,
            _ if below => ENOTEMPTY,
            _ if node == old || exchange => 0,
            (true, false) => ENOTDIR,
            (false, true) => EISDIR,
            (true, true) if !self.tree.is_empty(old)? => ENOTEMPTY,
            _ => 0,
        })
    }

    /// The walk to a name. `None` if the start is unknown, or the path ends in no name.
    fn walk_to(&mut self, call: &Call, at: Place<Fd>) -> Option<Walk> {
        let path = self.names.bytes(at.path).to_vec();
        let start = self.start_of(call, at.dir, &path)?;
        let walk = self.tree.walk(start, &path, false, &mut self.names);
        let known =
            !matches!(walk.end, End::Unknown(_)) && (walk.name.is_some() || refused(&walk.end).is_some());
        Some(walk).filter(|_| known && !path.ends_with(b"/") && !path.ends_with(b"."))
    }

    /// Whether a rename may replace `old` by `node`.
    fn replaces(&self, node: ModelNodeId, old: ModelNodeId) -> bool {
        let is_directory = |node| match self.tree.node(node).kind {
            NodeKind::Undecided => None,
            NodeKind::Directory { .. } => Some(true),
            _ => Some(false),
        };
        match (is_directory(node), is_directory(old)) {
            (Some(true), Some(true)) => node == old || self.tree.is_empty(old) != Some(false),
            (Some(one), Some(other)) => one == other,
            _ => true,
        }
    }

    fn is_undecided(&self, node: ModelNodeId, old: ModelNodeId) -> bool {
        [node, old].iter().any(|node| matches!(self.tree.node(*node).kind, NodeKind::Undecided))
    }

    pub(super) fn explains_link(
        &mut self,
        call: &Call,
        (from, to): (Place<Fd>, Place<Fd>),
        follow: bool,
    ) -> bool {
        let (source, target) = (self.end_of(call, from, follow), self.end_of(call, to, false));
        let (Some(source), Some(target)) = (source, target) else { return true };
        if [&source, &target].iter().any(|end| matches!(end, End::Unknown(_))) {
            return true;
        }
        let found = matches!(source, End::Found(_));
        match call.outcome {
            Outcome::Value(_) => {
                self.explains_name(call, from, follow, NameRequirement::There)
                    && self.explains_name(call, to, false, NameRequirement::Free)
            }
            Outcome::Error(libc::EPERM) => found && matches!(target, End::Absent),
            Outcome::Error(libc::ENOENT) => !(found && matches!(target, End::Found(_) | End::Absent)),
            Outcome::Error(libc::ENOTDIR) => [&source, &target].iter().any(|end| **end == End::NotDirectory),
            Outcome::Error(libc::ELOOP) => [&source, &target].iter().any(|end| **end == End::Loop),
            Outcome::Error(libc::EEXIST) => {
                !matches!(source, End::Absent | End::NoParent)
                    && !matches!(target, End::Absent | End::NoParent)
            }
            _ => true,
        }
    }

    /// Whether `call`'s result may depend on whether `change` came before: on a lock, a size, or a name.
    pub(super) fn sees(&mut self, call: &Call, change: &Call) -> bool {
        let Ask::File(op) = &call.ask else { return false };
        if !self.tasks.contains_key(&call.task) || !self.tasks.contains_key(&change.task) {
            return false;
        }
        match op {
            Op::Lock { .. } | Op::Flock { .. } => {
                let refused = matches!(call.outcome, Outcome::Error(libc::EAGAIN | libc::EACCES));
                return refused && moves_locks(change);
            }
            Op::Stat { .. } if resizes(change) && self.file_meant(call) == self.file_meant(change) => {
                return true;
            }
            Op::Read { bytes, .. } if call.outcome.bytes() < *bytes => {
                return resizes(change) && self.file_meant(call) == self.file_meant(change);
            }
            _ => {}
        }
        let changed: Vec<_> =
            places(change).into_iter().filter_map(|at| self.looked_up(change, at).pop()).collect();
        let mut seen =
            places(call).into_iter().flat_map(|at| self.looked_up(call, at)).collect::<Vec<_>>().into_iter();
        seen.any(|name| changed.contains(&name))
    }

    /// The names that a place's walk looks up now, in order.
    fn looked_up(&mut self, call: &Call, at: Place<Fd>) -> Vec<(ModelNodeId, trace_file::Name)> {
        let path = self.names.bytes(at.path).to_vec();
        match self.start_of(call, at.dir, &path) {
            Some(start) => self.tree.walk(start, &path, false, &mut self.names).looked,
            None => Vec::new(),
        }
    }

    /// Whether a file of this kind could give the call its result.
    pub(super) fn fits(&self, call: &Call, node: ModelNodeId) -> bool {
        use libc::{EINVAL, EISDIR, ELOOP, ENOTDIR, ENOTEMPTY};
        let Ask::File(op) = &call.ask else { return true };
        let state = self.tree.node(node);
        let (directory, link) = match &state.kind {
            NodeKind::Undecided => return true,
            NodeKind::Directory { .. } => (true, false),
            NodeKind::Link(_) => (false, true),
            _ => (false, false),
        };
        match (op, call.outcome) {
            (Op::Open { flags, .. }, outcome) => {
                let has = |flag: i32| flags & flag as u32 == flag as u32;
                let looks = has(libc::O_PATH) || has(libc::O_TMPFILE);
                let writes = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
                match outcome {
                    Outcome::Value(_) if looks => true,
                    Outcome::Value(_) if has(libc::O_DIRECTORY) => directory,
                    Outcome::Value(_) => {
                        !(directory && (writes || has(libc::O_CREAT)) || link && has(libc::O_NOFOLLOW))
                    }
                    Outcome::Error(EISDIR) => directory,
                    Outcome::Error(ELOOP) if has(libc::O_NOFOLLOW) => link,
                    Outcome::Error(ENOTDIR) => !directory,
                    _ => true,
                }
            }
            (Op::RemoveDir { .. }, Outcome::Value(_) | Outcome::Error(ENOTEMPTY)) => directory,
            (Op::RemoveDir { .. }, Outcome::Error(ENOTDIR)) => !directory,
            (Op::Unlink { .. } | Op::Resize { .. }, Outcome::Value(_)) => !directory,
            (Op::Unlink { .. } | Op::Resize { .. }, Outcome::Error(EISDIR)) => directory,
            (Op::ReadLink { .. }, Outcome::Value(_)) => link,
            (Op::ReadLink { .. }, Outcome::Error(EINVAL)) => !link,
            (_, Outcome::Error(ELOOP)) => false,
            (Op::Stat { seen: Some(seen), .. }, Outcome::Value(_)) => {
                let same = seen.inode == 0 || state.inode == 0 || seen.inode == state.inode;
                same && directory == (seen.mode & libc::S_IFMT == libc::S_IFDIR)
            }
            _ => true,
        }
    }
}

/// The error of a walk that stops before its last name.
fn refused(end: &End) -> Option<i32> {
    match end {
        End::NoParent => Some(libc::ENOENT),
        End::NotDirectory => Some(libc::ENOTDIR),
        End::Loop => Some(libc::ELOOP),
        _ => None,
    }
}

/// Whether an error depends only on names and kinds. The model cannot know the reasons for other errors.
fn about_names(error: i32) -> bool {
    use libc::{EEXIST, EINVAL, EISDIR, ELOOP, ENOENT, ENOTDIR, ENOTEMPTY};
    [EEXIST, EINVAL, EISDIR, ELOOP, ENOENT, ENOTDIR, ENOTEMPTY].contains(&error)
}
