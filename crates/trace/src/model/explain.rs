//! Whether the model, as it is now, could give a call the result that the trace shows.

use super::tree::{End, Kind};
use super::world::World;
use crate::op::{Ask, Call, Fd, Op, Outcome, Place};

/// What a successful call needs of a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    /// Something has it.
    There,
    /// Nothing has it.
    Free,
    /// Either.
    Any,
}

impl World {
    /// `false` only if the call's result contradicts what is known. What is unknown contradicts nothing.
    pub fn explains(&mut self, call: &Call) -> bool {
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
            // A task that is still there cannot have been waited for.
            Ask::Wait { child: Some(child) } => !self.tasks.contains_key(child),
            _ => true,
        }
    }

    fn explains_op(&mut self, call: &Call, op: &Op<Fd>) -> bool {
        match op {
            Op::Open { at, flags, made, .. } => {
                let has = |flag: i32| flags & flag as u32 == flag as u32;
                let needs = match (has(libc::O_CREAT), has(libc::O_EXCL)) {
                    (true, true) => Needs::Free,
                    (true, false) => Needs::Any,
                    _ => Needs::There,
                };
                self.is_free(call, *made) && self.explains_name(call, *at, !has(libc::O_NOFOLLOW), needs)
            }
            Op::Close { all } => all.iter().all(|fd| self.has(call, *fd)),
            Op::Read { on, bytes, at } => self.has(call, *on) && self.explains_read(call, *on, *bytes, *at),
            Op::Write { on, .. } | Op::Seek { on, .. } | Op::List { on, .. } | Op::Sync { on, .. } => {
                self.has(call, *on)
            }
            Op::Stat { at, follow, .. } => self.explains_name(call, *at, *follow, Needs::There),
            Op::Access { at, .. } | Op::ChangeDir { at, .. } => {
                self.explains_name(call, *at, true, Needs::There)
            }
            Op::ReadLink { at, .. } => self.explains_name(call, *at, false, Needs::There),
            Op::MakeDir { at, .. } | Op::Symlink { at, .. } => {
                self.explains_name(call, *at, false, Needs::Free)
            }
            Op::Unlink { at } => self.explains_name(call, *at, false, Needs::There),
            Op::RemoveDir { at } => {
                self.explains_name(call, *at, false, Needs::There) && self.explains_emptiness(call, *at)
            }
            Op::Rename { from, to, flags } => {
                let target = match call.outcome.succeeded() {
                    true if flags & libc::RENAME_NOREPLACE != 0 => Needs::Free,
                    true if flags & libc::RENAME_EXCHANGE != 0 => Needs::There,
                    _ => Needs::Any,
                };
                self.explains_name(call, *from, false, Needs::There)
                    && self.explains_name(call, *to, false, target)
            }
            Op::Link { from, to, .. } => match call.outcome {
                Outcome::Value(_) => {
                    self.explains_name(call, *from, false, Needs::There)
                        && self.explains_name(call, *to, false, Needs::Free)
                }
                _ => true,
            },
            _ => true,
        }
    }

    /// A short read ends where the file ends.
    fn explains_read(&mut self, call: &Call, on: Fd, bytes: u64, at: Option<u64>) -> bool {
        let Some(slot) = self.slot(call, on) else { return true };
        let Some(node) = self.file_of(slot.description) else { return true };
        let state = self.tree.node(node);
        if !state.resized || !matches!(state.kind, Kind::File) || !call.outcome.succeeded() {
            return true;
        }
        let start = at.unwrap_or(self.descriptions[slot.description as usize].position);
        call.outcome.bytes() == bytes.min(state.size.saturating_sub(start))
    }

    fn explains_name(&mut self, call: &Call, at: Place<Fd>, follow: bool, needs: Needs) -> bool {
        let path = self.names.bytes(at.path).to_vec();
        let Some(start) = self.start_of(call, at.dir, &path) else {
            let unknown = at.dir != libc::AT_FDCWD && self.slot(call, at.dir).is_none();
            return !unknown || !call.outcome.succeeded() || call.notes.iter().any(|(fd, _)| *fd == at.dir);
        };
        let walk = self.tree.walk(start, &path, follow, &mut self.names);
        let listed = walk.end == End::Absent && self.only_listed_absent(&walk);
        let end = walk.end;
        match (call.outcome, end) {
            (Outcome::Value(_), End::Found(_)) => needs != Needs::Free,
            (Outcome::Value(_), End::Absent) => needs != Needs::There || listed,
            (Outcome::Value(_), End::NoParent) => false,
            (Outcome::Error(libc::ENOENT), End::Found(_)) => needs == Needs::Any,
            (Outcome::Error(libc::EEXIST), End::Absent | End::NoParent) => false,
            _ => true,
        }
    }

    /// Where a path starts, as far as that is known.
    fn start_of(&self, call: &Call, dir: Fd, path: &[u8]) -> Option<super::tree::NodeId> {
        if path.starts_with(b"/") {
            return Some(super::tree::ROOT);
        }
        let handle = match dir {
            libc::AT_FDCWD => self.directories[self.task(call).directory].at?,
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

    /// The descriptor is known, or the trace itself says what it is.
    fn has(&self, call: &Call, fd: Fd) -> bool {
        let known = self.slot(call, fd).is_some() || call.notes.iter().any(|(noted, _)| *noted == fd);
        known != (call.outcome == Outcome::Error(libc::EBADF))
    }

    fn is_free(&self, call: &Call, fd: Fd) -> bool {
        fd < 0 || self.slot(call, fd).is_none()
    }
}
