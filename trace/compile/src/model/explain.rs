//! Whether the model's current state could give a call the result in the trace.

use super::linearise::places;
use super::tree::{End, NodeKind};
use super::world::World;
use crate::call::{Ask, Call, Fd};
use trace_file::{Op, Outcome, Place};

/// The state of a name that a successful call needs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NameRequirement {
    /// The name exists.
    There,
    /// The name is absent.
    Free,
    /// Either.
    Any,
}

impl World {
    /// `false` only if the call's result contradicts the model. Unknown state contradicts nothing.
    pub(crate) fn explains(&mut self, call: &Call) -> bool {
        if call.outcome == Outcome::Unknown || !self.tasks.contains_key(&call.task) {
            return true;
        }
        match &call.ask {
            Ask::File(op) => self.explains_op(call, op),
            Ask::Duplicate { on, made, .. } => {
                self.has(call, *on)
                    && (call.notes.iter().any(|(fd, _)| fd == made) || self.is_free(call, *made))
            }
            Ask::Opaque { made, .. } => made.iter().all(|fd| self.is_free(call, *fd)),
            Ask::ChangeDirTo { on } => self.has(call, *on),
            // A task that still exists cannot have been waited for.
            Ask::Wait { child: Some(child) } => !self.tasks.contains_key(child),
            _ => true,
        }
    }

    fn explains_op(&mut self, call: &Call, op: &Op<Fd>) -> bool {
        match op {
            Op::Open { at, flags, made, .. } => {
                let has = |flag: i32| flags & flag as u32 == flag as u32;
                let needs = match (has(libc::O_CREAT), has(libc::O_EXCL)) {
                    (true, true) => NameRequirement::Free,
                    (true, false) => NameRequirement::Any,
                    _ => NameRequirement::There,
                };
                let follow = !has(libc::O_NOFOLLOW) && needs != NameRequirement::Free;
                self.is_free(call, *made) && self.explains_name(call, *at, follow, needs)
            }
            Op::Close { all, .. } => all.iter().all(|fd| self.has(call, *fd)),
            Op::Read { on, bytes, at } | Op::ReadWith { on, bytes, at, .. } => {
                self.has(call, *on) && self.explains_read(call, *on, *bytes, *at)
            }
            Op::Lock { on, .. } | Op::Flock { on, .. } => self.has(call, *on) && self.explains_lock(call, op),
            Op::Write { on, .. }
            | Op::WriteWith { on, .. }
            | Op::SetFlags { on, .. }
            | Op::List { on, .. }
            | Op::Sync { on, .. } => self.has(call, *on),
            Op::Seek { on, offset, whence } => {
                self.has(call, *on) && self.explains_seek(call, *on, *offset, *whence)
            }
            Op::Stat { at, follow, .. } => {
                self.explains_name(call, *at, *follow, NameRequirement::There) && self.explains_size(call, op)
            }
            Op::Access { at, .. } | Op::ChangeDir { at, .. } => {
                self.explains_name(call, *at, true, NameRequirement::There)
            }
            Op::ReadLink { at, .. } => self.explains_name(call, *at, false, NameRequirement::There),
            Op::MakeDir { at, .. } | Op::Symlink { at, .. } | Op::MakeNode { at, .. } => {
                self.explains_name(call, *at, false, NameRequirement::Free)
            }
            Op::Unlink { at } => self.explains_name(call, *at, false, NameRequirement::There),
            Op::RemoveDir { at } => {
                self.explains_name(call, *at, false, NameRequirement::There)
                    && self.explains_emptiness(call, *at)
            }
            Op::Rename { from, to, flags } => self.explains_rename(call, (*from, *to), *flags),
            Op::Exchange { one, other } => self.explains_rename(call, (*one, *other), libc::RENAME_EXCHANGE),
            Op::Link { from, to, follow } => self.explains_link(call, (*from, *to), *follow),
            Op::Resize { at, .. } | Op::SetMode { at, .. } => {
                self.explains_name(call, *at, true, NameRequirement::There)
            }
            Op::SetOwner { at, follow, .. }
            | Op::SetTimes { at, follow }
            | Op::ListAttributes { at, follow, .. } => {
                self.explains_name(call, *at, *follow, NameRequirement::There)
            }
            Op::GetAttribute { at, follow, .. }
            | Op::SetAttribute { at, follow, .. }
            | Op::RemoveAttribute { at, follow, .. } => {
                self.explains_name(call, *at, *follow, NameRequirement::There)
                    && match self.end_of(call, *at, *follow) {
                        Some(End::Found(node)) => self.explains_attribute(call, op, node),
                        _ => true,
                    }
            }
            _ => true,
        }
    }

    /// Whether a read fits the file's size. A short read ends at the end of the file.
    fn explains_read(&mut self, call: &Call, on: Fd, bytes: u64, at: Option<u64>) -> bool {
        let Some(slot) = self.slot(call, on) else { return true };
        let Some(node) = self.file_of(slot.description) else { return true };
        let state = self.tree.node(node);
        let description = &self.descriptions[slot.description as usize];
        let known = state.resized && (at.is_some() || description.placed);
        if !known || !matches!(state.kind, NodeKind::File) || !call.outcome.succeeded() {
            return true;
        }
        let start = at.unwrap_or(description.position);
        call.outcome.bytes() == bytes.min(state.size.saturating_sub(start))
    }

    /// Whether a seek's result fits the position that earlier calls left, or the size of the file.
    fn explains_seek(&self, call: &Call, on: Fd, offset: i64, whence: u32) -> bool {
        let Some(slot) = self.slot(call, on) else { return true };
        let Some(node) = self.file_of(slot.description) else { return true };
        let (state, description) = (self.tree.node(node), &self.descriptions[slot.description as usize]);
        let Outcome::Value(result) = call.outcome else { return true };
        let from = match whence as i32 {
            _ if !matches!(state.kind, NodeKind::File) => return true,
            libc::SEEK_CUR if description.placed => description.position,
            libc::SEEK_END if state.resized => state.size,
            _ => return true,
        };
        i64::try_from(from).is_ok_and(|from| from.saturating_add(offset) == result)
    }

    /// Whether a size fits. If the trace has changed the size, a stat must show the new size.
    fn explains_size(&mut self, call: &Call, op: &Op<Fd>) -> bool {
        let Op::Stat { seen: Some(seen), .. } = op else { return true };
        let Some(node) = self.file_meant(call) else { return true };
        let state = self.tree.node(node);
        let known = state.resized && matches!(state.kind, NodeKind::File) && call.outcome.succeeded();
        !known || seen.mode & libc::S_IFMT != libc::S_IFREG || seen.size == state.size
    }

    /// The file that a call works on, if the model knows it without the call's result.
    pub(super) fn file_meant(&mut self, call: &Call) -> Option<super::tree::ModelNodeId> {
        let Ask::File(op) = &call.ask else { return None };
        let (at, follow) = match op {
            Op::Read { on, .. } | Op::Write { on, .. } | Op::Allocate { on, .. } => {
                return self.file_of(self.slot(call, *on)?.description);
            }
            Op::Stat { at, follow, .. } => (*at, *follow),
            Op::Resize { at, .. } => (*at, true),
            Op::Open { at, flags, .. } => (*at, flags & (libc::O_NOFOLLOW | libc::O_EXCL) as u32 == 0),
            _ => return None,
        };
        let path = self.names.bytes(at.path).to_vec();
        let start = self.start_of(call, at.dir, &path)?;
        match self.tree.walk(start, &path, follow, &mut self.names).end {
            End::Found(node) => Some(node),
            _ => None,
        }
    }

    pub(super) fn explains_name(
        &mut self,
        call: &Call,
        at: Place<Fd>,
        follow: bool,
        needs: NameRequirement,
    ) -> bool {
        let path = self.names.bytes(at.path).to_vec();
        let Some(start) = self.start_of(call, at.dir, &path) else {
            let unknown = at.dir != libc::AT_FDCWD && self.slot(call, at.dir).is_none();
            return !unknown || !call.outcome.succeeded() || call.notes.iter().any(|(fd, _)| *fd == at.dir);
        };
        let walk = self.tree.walk(start, &path, follow, &mut self.names);
        let accepts = self.accepts_names(&walk) && !path.ends_with(b"/");
        let end = walk.end;
        match (call.outcome, end) {
            (Outcome::Value(_), End::Found(_)) if needs == NameRequirement::Free => false,
            (Outcome::Value(_), End::Absent) => needs != NameRequirement::There,
            (Outcome::Value(_), End::NoParent | End::NotDirectory | End::Loop) => false,
            (Outcome::Error(libc::ENOENT), End::Found(node)) => self.is_made_up(node),
            (Outcome::Error(libc::ENOENT), End::NotDirectory | End::Loop) => false,
            (Outcome::Error(libc::ENOENT), End::Absent) => needs == NameRequirement::There || !accepts,
            (
                Outcome::Error(
                    libc::EEXIST | libc::EISDIR | libc::ENOTDIR | libc::EINVAL | libc::ENODATA | libc::ELOOP,
                ),
                End::Absent | End::NoParent,
            ) => false,
            (
                Outcome::Error(libc::EEXIST | libc::EISDIR | libc::ENODATA | libc::ELOOP),
                End::NotDirectory,
            ) => false,
            (Outcome::Error(libc::EEXIST | libc::EISDIR | libc::ENODATA | libc::ENOTDIR), End::Loop) => false,
            (_, End::Found(node)) => self.fits(call, node),
            _ => true,
        }
    }

    /// Whether only the snapshot, which lacks a name, contradicts a call.
    pub(super) fn contradicts_snapshot(&mut self, call: &Call) -> bool {
        let places = places(call);
        call.outcome.succeeded()
            && places.into_iter().any(|at| {
                let path = self.names.bytes(at.path).to_vec();
                let Some(start) = self.start_of(call, at.dir, &path) else { return false };
                let walk = self.tree.walk(start, &path, true, &mut self.names);
                walk.end == End::Absent && self.only_listed_absent(&walk)
            })
    }

    /// Whether a file could be created under the name at which a walk ended.
    fn accepts_names(&self, walk: &super::tree::Walk) -> bool {
        let dir = self.tree.node(walk.parent);
        matches!(dir.kind, NodeKind::Directory { whole: true, .. }) && !dir.removed
    }

    /// The node where a path starts, if known.
    pub(super) fn start_of(&self, call: &Call, dir: Fd, path: &[u8]) -> Option<super::tree::ModelNodeId> {
        if path.starts_with(b"/") {
            return Some(super::tree::ROOT);
        }
        let handle = match dir {
            libc::AT_FDCWD => self.directories[self.tasks.get(&call.task)?.directory].at?,
            _ => self.slot(call, dir)?.description,
        };
        self.file_of(handle)
    }

    fn explains_emptiness(&mut self, call: &Call, at: Place<Fd>) -> bool {
        let path = self.names.bytes(at.path).to_vec();
        let Some(start) = self.start_of(call, at.dir, &path) else { return true };
        match self.tree.walk(start, &path, false, &mut self.names).end {
            End::Found(node) => match (call.outcome, self.tree.is_empty(node)) {
                (Outcome::Value(_), Some(empty)) => empty,
                (Outcome::Error(libc::ENOTEMPTY), Some(empty)) => !empty,
                _ => true,
            },
            _ => true,
        }
    }

    /// Whether the result fits the descriptor: known to the model or noted by the trace, unless the call
    /// failed with EBADF.
    fn has(&self, call: &Call, fd: Fd) -> bool {
        let slot = self.slot(call, fd);
        let known = slot.is_some() || call.notes.iter().any(|(noted, _)| *noted == fd);
        // A write to a read-only descriptor fails with EBADF, too.
        let limited = slot.is_some_and(|slot| self.descriptions[slot.description as usize].limited);
        known != (call.outcome == Outcome::Error(libc::EBADF)) || (known && limited)
    }

    fn is_free(&self, call: &Call, fd: Fd) -> bool {
        fd < 0 || self.slot(call, fd).is_none()
    }
}
