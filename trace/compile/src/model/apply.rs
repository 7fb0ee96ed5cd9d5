//! Applies one call: chooses the part of the model that handles the call.

use super::expected_file::ExpectedFile;
use super::open_descriptions::DescriptionTarget;
use super::tree::NodeKind;
use super::world::World;
use crate::call::{Ask, Call, Fd};
use crate::step::{Resource, Series, SeriesRole, Step, TouchMode};
use std::collections::HashMap;
use trace_file::{Fate, Modelled, Op, Outcome, Seen, Skipped};

impl World {
    /// Applies a call with the result in the trace. Calls must come in an order that explains the results. A
    /// contradiction is repaired and counted.
    pub(crate) fn apply(&mut self, call: &Call) -> Step {
        self.meet(call.task);
        self.learn(call);
        let mut step = match &call.ask {
            Ask::Clone { child, share, wakes } => {
                self.note_child(call, *child, *wakes);
                self.clone_task(call, *child, *share)
            }
            Ask::Exec => self.exec(call),
            Ask::Exit => self.end_task(call),
            Ask::Supersede { by } => self.supersede(call, *by),
            Ask::Wait { child } => self.wait(call, *child),
            _ => {
                let mut step = self.step(call);
                self.apply_other(call, &mut step);
                step
            }
        };
        self.limit(call);
        if let Some(task) = self.tasks.get_mut(&call.task) {
            task.last = self.next;
        }
        self.next += 1;
        self.forget(&mut step);
        step
    }

    fn apply_other(&mut self, call: &Call, step: &mut Step) {
        let idle = Fate::Modelled(Modelled::Idle);
        match &call.ask {
            _ if call.outcome == Outcome::Unknown && call.ask != Ask::Idle => {
                step.action.fate = Fate::Skipped(Skipped::NeverReturned);
            }
            Ask::File(Op::Close { all, .. }) => self.close(call, step, all[0]),
            Ask::File(op) => match self.file_op(call, step, op) {
                Ok(op) => step.action.op = op,
                Err(fate) => step.action.fate = fate,
            },
            Ask::Duplicate { on, made, close_on_exec } => {
                self.duplicate(call, step, *on, *made, *close_on_exec)
            }
            Ask::CloseRange { first, last } => self.close_range(call, step, *first, *last),
            Ask::SetCloseOnExec { on, yes } => {
                step.action.fate = Fate::Modelled(Modelled::Descriptors);
                self.mark(call, *on, *yes);
            }
            Ask::Opaque { made, close_on_exec } => self.opaque(call, step, made, *close_on_exec),
            Ask::Pipe { ends, close_on_exec } => {
                // The notes have already shown the ends. If the trace omits them, their first use shows them.
                step.action.fate = Fate::Modelled(Modelled::NoFile);
                for end in ends.iter().flat_map(|(read, write)| [read, write]) {
                    self.mark(call, *end, *close_on_exec);
                }
            }
            Ask::Pass { all } => self.pass(call, step, all),
            Ask::Receive { made } => self.receive(call, step, made),
            Ask::ChangeMask { mask } => {
                let directory = self.task(call).directory;
                self.directories[directory].mask = *mask;
                step.action.fate = Fate::Modelled(Modelled::Process);
            }
            Ask::ChangeDirTo { on } => match self.file(call, *on) {
                Ok(file) => {
                    self.descriptions[file.slot.description as usize].references += 1;
                    step.uses(file.slot, None, TouchMode::Read);
                    step.action.fate = Fate::Modelled(Modelled::Descriptors);
                    self.enter(call, step, file.slot.description);
                }
                Err(fate) => step.action.fate = fate,
            },
            Ask::AioSetup { context } => {
                self.context(*context);
                step.action.fate = idle;
            }
            Ask::AioSubmit { context, requests } => match self.submit(call, step, *context, requests) {
                Ok(op) => step.action.op = op,
                Err(fate) => step.action.fate = fate,
            },
            Ask::AioCollect { context, count } => match self.collect(step, *context, *count) {
                Ok(op) => step.action.op = op,
                Err(fate) => step.action.fate = fate,
            },
            Ask::Sleep { .. } | Ask::Nap { .. } | Ask::Wake { .. } => {
                step.action.fate = idle;
                self.sleep_or_wake(call, step);
            }
            Ask::Unsupported => step.action.fate = Fate::Skipped(Skipped::Unsupported),
            _ => step.action.fate = idle,
        }
    }

    /// Sets a new working directory. The caller has already counted the reference.
    fn enter(&mut self, call: &Call, step: &mut Step, to: u32) {
        let directory = self.task(call).directory;
        let old = self.directories[directory].at.replace(to);
        // A replay keeps the old directory open, because closing it would need another action.
        if let Some(old) = old {
            step.in_series(Series::Description(old), SeriesRole::Use);
        }
    }

    fn file_op(&mut self, call: &Call, step: &mut Step, op: &Op<Fd>) -> Result<Op<u32>, Fate> {
        match op {
            Op::Open { .. } => self.open(call, step, op),
            Op::Read { on, bytes, at } => self.read(call, step, *on, *bytes, *at),
            Op::Write { on, bytes, at } => self.write(call, step, (*on, false), *bytes, *at),
            Op::ReadWith { on, bytes, at, flags } => match self.read(call, step, *on, *bytes, *at)? {
                Op::Read { on, bytes, at } => Ok(Op::ReadWith { on, bytes, at, flags: *flags }),
                op => Ok(op),
            },
            Op::WriteWith { on, bytes, at, flags } => {
                let append = flags & libc::RWF_APPEND as u32 != 0;
                match self.write(call, step, (*on, append), *bytes, *at)? {
                    Op::Write { on, bytes, at } => Ok(Op::WriteWith { on, bytes, at, flags: *flags }),
                    op => Ok(op),
                }
            }
            Op::SetFlags { on, flags } => {
                let file = self.file(call, *on)?;
                step.uses(file.slot, Some(file.node), TouchMode::Write);
                if call.outcome.succeeded() {
                    let append = flags & libc::O_APPEND as u32 != 0;
                    self.descriptions[file.slot.description as usize].append = append;
                }
                Ok(Op::SetFlags { on: file.slot.description, flags: *flags })
            }
            Op::Seek { on, offset, whence } => self.seek(call, step, *on, *offset, *whence),
            Op::MakeDir { at, mode } => {
                let mode = mode & !self.directories[self.task(call).directory].mask;
                let kind =
                    NodeKind::Directory { entries: HashMap::new(), whole: true, parent: super::tree::ROOT };
                let at = self.make(call, step, *at, kind, mode)?;
                Ok(Op::MakeDir { at, mode })
            }
            Op::MakeNode { at, mode } => {
                let mode = mode & !self.directories[self.task(call).directory].mask;
                let kind = match mode & libc::S_IFMT {
                    libc::S_IFSOCK => NodeKind::Socket,
                    libc::S_IFIFO => NodeKind::Fifo,
                    libc::S_IFCHR | libc::S_IFBLK => NodeKind::Special,
                    _ => NodeKind::File,
                };
                Ok(Op::MakeNode { at: self.make(call, step, *at, kind, mode & 0o7777)?, mode })
            }
            Op::Exchange { one, other } => {
                let flags = libc::RENAME_EXCHANGE;
                match self.rename(call, step, (*one, *other), flags)? {
                    Op::Rename { from, to, .. } => Ok(Op::Exchange { one: from, other: to }),
                    op => Ok(op),
                }
            }
            Op::Symlink { target, at } => {
                let at = self.make(call, step, *at, NodeKind::Link(Some(*target)), 0o777)?;
                Ok(Op::Symlink { target: *target, at })
            }
            Op::RemoveDir { at } => {
                Ok(Op::RemoveDir { at: self.remove_name(call, step, *at, ExpectedFile::Directory)? })
            }
            Op::Unlink { at } => {
                Ok(Op::Unlink { at: self.remove_name(call, step, *at, ExpectedFile::Anything)? })
            }
            Op::Rename { from, to, flags } => self.rename(call, step, (*from, *to), *flags),
            Op::Link { from, to, follow } => self.link(call, step, (*from, *to), *follow),
            Op::Allocate { .. } => self.allocate(call, step, op),
            Op::Flock { on, kind } => self.flock(call, step, (*on, *kind)),
            Op::Lock { .. } => self.lock(call, step, op),
            Op::SyncAll => Ok(Op::SyncAll),
            _ => self.file_op_on_descriptor(call, step, op),
        }
    }

    fn file_op_on_descriptor(&mut self, call: &Call, step: &mut Step, op: &Op<Fd>) -> Result<Op<u32>, Fate> {
        match op {
            Op::Advise { on, start, bytes, advice } => {
                let file = self.file(call, *on)?;
                step.uses(file.slot, Some(file.node), TouchMode::Read);
                Ok(Op::Advise { on: file.slot.description, start: *start, bytes: *bytes, advice: *advice })
            }
            Op::Sync { on, kind } => {
                let file = self.file(call, *on)?;
                step.uses(file.slot, Some(file.node), TouchMode::Read);
                Ok(Op::Sync { on: file.slot.description, kind: *kind })
            }
            Op::List { on, bytes } => {
                let file = self.file(call, *on)?;
                self.decide(file.node, ExpectedFile::Directory);
                step.uses(file.slot, None, TouchMode::Write);
                step.touch(Resource::Listing(file.node), TouchMode::Read);
                Ok(Op::List { on: file.slot.description, bytes: *bytes })
            }
            Op::Copy { from, from_at, to, to_at, bytes } => {
                let read = self.read(call, step, *from, *bytes, *from_at);
                let write = self.write(call, step, (*to, false), *bytes, *to_at);
                match (read, write) {
                    (Ok(Op::Read { on: from, .. }), Ok(Op::Write { on: to, .. })) => {
                        Ok(Op::Copy { from, from_at: *from_at, to, to_at: *to_at, bytes: *bytes })
                    }
                    // One side is a pipe or socket, so only the file's side remains, with the number of bytes
                    // moved.
                    (Ok(Op::Read { on, at, .. }), _) => Ok(Op::Read { on, bytes: call.outcome.bytes(), at }),
                    (_, Ok(Op::Write { on, at, .. })) => {
                        Ok(Op::Write { on, bytes: call.outcome.bytes(), at })
                    }
                    (Err(fate), _) | (_, Err(fate)) => Err(fate),
                    _ => Err(Fate::Modelled(Modelled::NoFile)),
                }
            }
            _ => self.file_op_on_attributes(call, step, op),
        }
    }

    fn file_op_on_attributes(&mut self, call: &Call, step: &mut Step, op: &Op<Fd>) -> Result<Op<u32>, Fate> {
        let (at, follow, want, how) = match op {
            Op::Stat { at, follow, .. } => (*at, *follow, ExpectedFile::Anything, TouchMode::Read),
            Op::Access { at, .. } => (*at, true, ExpectedFile::Anything, TouchMode::Read),
            Op::StatFs { at } => (*at, true, ExpectedFile::Anything, TouchMode::Read),
            Op::ReadLink { at, target } => {
                let link = ExpectedFile::Link(*target);
                (
                    *at,
                    false,
                    if call.outcome.succeeded() { link } else { ExpectedFile::Anything },
                    TouchMode::Read,
                )
            }
            Op::GetAttribute { at, follow, .. } | Op::ListAttributes { at, follow, .. } => {
                (*at, *follow, ExpectedFile::Anything, TouchMode::Read)
            }
            Op::SetAttribute { at, follow, .. } | Op::RemoveAttribute { at, follow, .. } => {
                (*at, *follow, ExpectedFile::Anything, TouchMode::Write)
            }
            Op::ChangeDir { at, .. } => (*at, true, ExpectedFile::Directory, TouchMode::Read),
            Op::Resize { at, .. } => (*at, true, ExpectedFile::File, TouchMode::Read),
            Op::SetMode { at, .. } => (*at, true, ExpectedFile::Anything, TouchMode::Write),
            Op::SetOwner { at, follow, .. } | Op::SetTimes { at, follow } => {
                (*at, *follow, ExpectedFile::Anything, TouchMode::Write)
            }
            _ => return Err(Fate::Skipped(Skipped::Unsupported)),
        };
        let found = self.locate(call, at, follow, want)?;
        self.look(step, &found, SeriesRole::Use);
        let place = found.place;
        if let Some(node) = found.node {
            self.attribute(call, step, node, op);
        }
        if let (Some(node), true) = (found.node, call.outcome.succeeded()) {
            self.decide(node, want);
            if !matches!(
                op,
                Op::Access { .. } | Op::StatFs { .. } | Op::ReadLink { .. } | Op::ChangeDir { .. }
            ) {
                step.touch(Resource::Attributes(node), how);
            }
            match op {
                Op::Resize { size, .. } => self.resize(step, node, *size),
                Op::Stat { seen, .. } => {
                    step.touch(Resource::Size(node), TouchMode::Read);
                    seen.iter().for_each(|seen| self.see(node, *seen));
                }
                Op::SetMode { mode, .. } => self.tree.node_mut(node).mode = *mode,
                _ => {}
            }
        }
        Ok(match op {
            Op::GetAttribute { .. }
            | Op::SetAttribute { .. }
            | Op::ListAttributes { .. }
            | Op::RemoveAttribute { .. } => super::attributes::at_place(op, place),
            Op::Stat { follow, seen, .. } => {
                Op::Stat { at: place, follow: *follow, seen: self.result_of(found.node, *seen) }
            }
            Op::Access { mode, .. } => Op::Access { at: place, mode: *mode },
            Op::StatFs { .. } => Op::StatFs { at: place },
            Op::ReadLink { target, .. } => Op::ReadLink { at: place, target: *target },
            Op::Resize { size, .. } => Op::Resize { at: place, size: *size },
            Op::SetMode { mode, .. } => Op::SetMode { at: place, mode: *mode },
            Op::SetOwner { follow, user, group, .. } => {
                Op::SetOwner { at: place, follow: *follow, user: *user, group: *group }
            }
            Op::ChangeDir { .. } => self.change_dir(call, step, found.node, place),
            _ => Op::SetTimes { at: place, follow },
        })
    }

    /// The attributes that a replay compares. Attributes in /proc and /sys are left out, and so are inode
    /// numbers.
    fn result_of(&self, node: Option<u32>, seen: Option<Seen>) -> Option<Seen> {
        let made_up = node.is_some_and(|node| self.is_made_up(node));
        seen.filter(|_| !made_up).map(|seen| Seen { inode: 0, ..seen })
    }

    fn change_dir(
        &mut self,
        call: &Call,
        step: &mut Step,
        node: Option<u32>,
        at: trace_file::Place<u32>,
    ) -> Op<u32> {
        let (true, Some(node)) = (call.outcome.succeeded(), node) else {
            return Op::ChangeDir { at, made: trace_file::NO_HANDLE };
        };
        let made = self.describe(DescriptionTarget::File(node), false);
        self.descriptions[made as usize].references += 1;
        step.in_series(Series::Description(made), SeriesRole::Create);
        step.touch(Resource::Description(made), TouchMode::Write);
        self.enter(call, step, made);
        Op::ChangeDir { at, made }
    }
}
