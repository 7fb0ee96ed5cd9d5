//! Applies calls on names.

use super::expected_file::ExpectedFile;
use super::open_descriptions::DescriptionTarget;
use super::tree::{End, ModelNode, ModelNodeId, NodeKind, Walk};
use super::world::{Slot, World};
use crate::call::{Call, Fd};
use crate::step::{Resource, Series, SeriesRole, Step, TouchMode};
use std::collections::HashMap;
use trace_file::{Fate, Modelled, NO_HANDLE, Name, Op, Outcome, Place, Skipped};

/// A place of a call, after the walk along its path.
pub(super) struct Located {
    pub(super) walk: Walk,
    /// The place with the model's handle.
    pub(super) place: Place<u32>,
    /// The descriptor at which the walk began, if any.
    pub(super) slot: Option<Slot>,
    /// The file, if it exists.
    pub(super) node: Option<ModelNodeId>,
}

impl World {
    /// Walks along a place. The error is the fate of the call.
    pub(super) fn locate(
        &mut self,
        call: &Call,
        at: Place<Fd>,
        follow: bool,
        want: ExpectedFile,
    ) -> Result<Located, Fate> {
        let path = self.names.bytes(at.path).to_vec();
        let (start, handle, slot) = if path.starts_with(b"/") {
            (super::tree::ROOT, NO_HANDLE, None)
        } else if at.dir == libc::AT_FDCWD {
            let directory = self.directories[self.task(call).directory].at;
            let handle = directory.ok_or(Fate::Skipped(Skipped::UnknownDescriptor))?;
            let start = self.file_of(handle).ok_or(Fate::Skipped(Skipped::UnknownDescriptor))?;
            (start, handle, None)
        } else {
            let slot = self.slot(call, at.dir).ok_or(self.without_descriptor(call))?;
            let start = self.file_of(slot.description).ok_or(Fate::Modelled(Modelled::NoFile))?;
            (start, slot.description, Some(slot))
        };
        let walk = self.tree.walk(start, &path, follow, &mut self.names);
        let node = self.believe(&walk, call.outcome, want);
        Ok(Located { walk, place: Place { dir: handle, path: at.path }, slot, node })
    }

    /// The fate of a call on an unknown descriptor, which explains EBADF and no other result.
    pub(super) fn without_descriptor(&self, call: &Call) -> Fate {
        match call.outcome {
            Outcome::Error(libc::EBADF) => Fate::Modelled(Modelled::Descriptors),
            _ => Fate::Skipped(Skipped::UnknownDescriptor),
        }
    }

    /// Notes the names looked up. The last name gets the role `last`.
    pub(super) fn look(&self, step: &mut Step, found: &Located, last: SeriesRole) {
        let key = found.walk.name.map(|name| (found.walk.parent, name));
        for (dir, name) in &found.walk.looked {
            let (role, how) = match Some((*dir, *name)) == key {
                true if matches!(last, SeriesRole::Create | SeriesRole::Delete) => (last, TouchMode::Write),
                true if found.node.is_none() => (SeriesRole::Absent, TouchMode::Read),
                _ => (SeriesRole::Use, TouchMode::Read),
            };
            step.touch(Resource::Name(*dir, *name), how);
            step.in_series(Series::Path(*dir, *name), role);
        }
        if found.place.dir != NO_HANDLE {
            step.touch(Resource::Description(found.place.dir), TouchMode::Read);
            step.in_series(Series::Description(found.place.dir), SeriesRole::Use);
        }
        if let Some(slot) = found.slot {
            step.in_series(Series::Descriptor(slot.series), SeriesRole::Use);
        }
        if let Some(node) = found.node.filter(|node| self.tree.is_file(*node)) {
            step.in_series(Series::File(node), SeriesRole::Use);
        }
    }

    fn last(found: &Located) -> Option<(ModelNodeId, Name)> {
        found.walk.name.map(|name| (found.walk.parent, name))
    }

    /// Makes a file under a free name.
    fn create(&mut self, step: &mut Step, found: &mut Located, kind: NodeKind, mode: u32) -> ModelNodeId {
        if let End::Unknown(rest) = &found.walk.end
            && rest.len() > 1
        {
            // An unknown directory on the way must have existed.
            let parent = self.add_path(found.walk.parent, &rest[..rest.len() - 1]);
            (found.walk.parent, found.walk.name) = (parent, rest.last().copied());
        }
        let node = self.tree.add(ModelNode { mode, ..ModelNode::new(kind, None) });
        self.tree.node_mut(node).resized = true;
        found.node = None;
        self.look(step, found, SeriesRole::Create);
        if let Some((dir, name)) = Self::last(found) {
            self.tree.set_entry(dir, name, Some(node));
            step.touch(Resource::Listing(dir), TouchMode::Update);
            if !found.walk.looked.contains(&(dir, name)) {
                step.touch(Resource::Name(dir, name), TouchMode::Write);
                step.in_series(Series::Path(dir, name), SeriesRole::Create);
            }
        }
        found.node = Some(node);
        if self.tree.is_file(node) {
            step.in_series(Series::File(node), SeriesRole::Use);
        }
        node
    }

    fn add_path(&mut self, parent: ModelNodeId, rest: &[Name]) -> ModelNodeId {
        let kind =
            || NodeKind::Directory { entries: HashMap::new(), whole: false, parent: super::tree::ROOT };
        rest.iter().fold(parent, |dir, name| self.add_child(dir, *name, kind()))
    }

    pub(super) fn open(&mut self, call: &Call, step: &mut Step, op: &Op<Fd>) -> Result<Op<u32>, Fate> {
        let Op::Open { at, flags, mode, made } = *op else { return Err(Fate::Modelled(Modelled::Idle)) };
        let has = |flag: i32| flags & flag as u32 == flag as u32;
        let want = if has(libc::O_DIRECTORY) && !has(libc::O_TMPFILE) {
            ExpectedFile::Directory
        } else {
            ExpectedFile::Anything
        };
        let creates = has(libc::O_CREAT);
        // A success with O_CREAT proves nothing about the file before the call; an unknown name counts as
        // free.
        let believed = if creates && call.outcome.succeeded() { Outcome::Unknown } else { call.outcome };
        let located = Call { outcome: believed, ..call.clone() };
        // O_EXCL does not follow a link.
        let follow = !has(libc::O_NOFOLLOW) && !has(libc::O_CREAT | libc::O_EXCL);
        let mut found = self.locate(&located, at, follow, want)?;
        let place = found.place;
        let mode = mode & !self.directories[self.task(call).directory].mask;
        let mut handle = NO_HANDLE;
        if call.outcome.succeeded() {
            let node = match found.node {
                Some(node) if !has(libc::O_TMPFILE) => {
                    self.look(step, &found, SeriesRole::Use);
                    self.decide(node, want);
                    node
                }
                Some(_) => {
                    self.look(step, &found, SeriesRole::Use);
                    self.tree.add(ModelNode { resized: true, ..ModelNode::new(NodeKind::File, None) })
                }
                None => self.create(step, &mut found, NodeKind::File, mode),
            };
            if has(libc::O_TRUNC) && self.tree.is_file(node) {
                self.resize(step, node, 0);
            }
            let on = match self.tree.node(node).kind {
                NodeKind::Fifo => DescriptionTarget::Pipe(call.made_note.unwrap_or(at.path)),
                _ => DescriptionTarget::File(node),
            };
            handle = self.describe(on, has(libc::O_APPEND));
            let description = &mut self.descriptions[handle as usize];
            description.placed = true;
            description.limited = flags & libc::O_ACCMODE as u32 != libc::O_RDWR as u32;
            let table = self.task(call).table;
            let (series, closed) = self.install(table, made, handle, has(libc::O_CLOEXEC));
            // A call that the trace lacks closed the older file under this number.
            self.repairs.descriptors += u64::from(closed.is_some());
            step.in_series(Series::Descriptor(series), SeriesRole::Create);
            step.in_series(Series::Description(handle), SeriesRole::Create);
            step.touch(Resource::Description(handle), TouchMode::Write);
        } else {
            self.look(step, &found, SeriesRole::Use);
        }
        if handle != NO_HANDLE && self.file_of(handle).is_none() {
            return Err(Fate::Modelled(Modelled::NoFile));
        }
        Ok(Op::Open { at: place, flags, mode, made: handle })
    }

    pub(super) fn make(
        &mut self,
        call: &Call,
        step: &mut Step,
        at: Place<Fd>,
        kind: NodeKind,
        mode: u32,
    ) -> Result<Place<u32>, Fate> {
        let succeeded = call.outcome.succeeded();
        let believed = if succeeded { Outcome::Unknown } else { call.outcome };
        let mut found =
            self.locate(&Call { outcome: believed, ..call.clone() }, at, false, ExpectedFile::Anything)?;
        let place = found.place;
        if succeeded {
            self.create(step, &mut found, kind, mode);
        } else {
            self.look(step, &found, SeriesRole::Use);
        }
        Ok(place)
    }

    /// Notes that a directory was not empty, because that decided the result. In the paper's terms, an action
    /// also touches the files that a directory points to. One name is enough to keep the directory occupied.
    fn see_occupied(&self, step: &mut Step, dir: ModelNodeId) {
        step.touch(Resource::Listing(dir), TouchMode::Read);
        if let NodeKind::Directory { entries, .. } = &self.tree.node(dir).kind {
            let witness = entries.iter().filter(|(_, node)| node.is_some()).map(|(name, _)| *name).min();
            witness.into_iter().for_each(|name| step.in_series(Series::Path(dir, name), SeriesRole::Use));
        }
    }

    /// unlink and rmdir.
    pub(super) fn remove_name(
        &mut self,
        call: &Call,
        step: &mut Step,
        at: Place<Fd>,
        want: ExpectedFile,
    ) -> Result<Place<u32>, Fate> {
        let found = self.locate(call, at, false, want)?;
        let succeeded = call.outcome.succeeded();
        if let Some(node) = found.node {
            self.decide(node, want);
            match want {
                ExpectedFile::Directory if succeeded => step.touch(Resource::Listing(node), TouchMode::Write),
                ExpectedFile::Directory => self.see_occupied(step, node),
                _ => step.touch(Resource::Attributes(node), TouchMode::Update),
            }
        }
        self.look(step, &found, if succeeded { SeriesRole::Delete } else { SeriesRole::Use });
        if let (true, Some((dir, name))) = (succeeded, Self::last(&found)) {
            self.tree.set_entry(dir, name, None);
            found.node.into_iter().for_each(|node| self.tree.remove(node));
            step.touch(Resource::Listing(dir), TouchMode::Update);
        }
        Ok(found.place)
    }

    pub(super) fn rename(
        &mut self,
        call: &Call,
        step: &mut Step,
        (from, to): (Place<Fd>, Place<Fd>),
        flags: u32,
    ) -> Result<Op<u32>, Fate> {
        let source = self.locate(call, from, false, ExpectedFile::Anything)?;
        let exchange = flags & libc::RENAME_EXCHANGE != 0;
        // EINVAL says that a directory would move into itself, not that the target exists.
        let proves = match call.outcome {
            Outcome::Error(error) => error != libc::EINVAL,
            _ => exchange,
        };
        let believed = if proves { call.outcome } else { Outcome::Unknown };
        let mut target =
            self.locate(&Call { outcome: believed, ..call.clone() }, to, false, ExpectedFile::Anything)?;
        let places = (source.place, target.place);
        if !call.outcome.succeeded() {
            self.look(step, &source, SeriesRole::Use);
            self.look(step, &target, SeriesRole::Use);
            // The target directory's emptiness decided the result.
            if let Some(node) = target.node.filter(|node| !self.tree.is_file(*node)) {
                self.see_occupied(step, node);
            }
        } else if source.node.is_some() && source.node == target.node {
            // Two names of one file: the kernel keeps both.
            self.look(step, &source, SeriesRole::Use);
            self.look(step, &target, SeriesRole::Use);
        } else if let (Some(node), Some((from_dir, from_name))) = (source.node, Self::last(&source)) {
            self.look(step, &source, SeriesRole::Delete);
            if let End::Unknown(rest) = &target.walk.end
                && rest.len() > 1
            {
                let parent = self.add_path(target.walk.parent, &rest[..rest.len() - 1]);
                (target.walk.parent, target.walk.name) = (parent, rest.last().copied());
            }
            let replaced = target.node;
            if let Some(old) = replaced {
                let what =
                    if self.tree.is_file(old) { Resource::Attributes(old) } else { Resource::Listing(old) };
                step.touch(what, TouchMode::Write);
            }
            self.look(step, &target, SeriesRole::Create);
            replaced.filter(|_| !exchange).into_iter().for_each(|old| self.tree.remove(old));
            self.tree.set_entry(from_dir, from_name, replaced.filter(|_| exchange));
            step.touch(Resource::Listing(from_dir), TouchMode::Update);
            if let Some((dir, name)) = Self::last(&target) {
                self.tree.set_entry(dir, name, Some(node));
                step.touch(Resource::Listing(dir), TouchMode::Update);
            }
        }
        Ok(Op::Rename { from: places.0, to: places.1, flags })
    }

    pub(super) fn link(
        &mut self,
        call: &Call,
        step: &mut Step,
        (from, to): (Place<Fd>, Place<Fd>),
        follow: bool,
    ) -> Result<Op<u32>, Fate> {
        let source = self.locate(call, from, follow, ExpectedFile::Anything)?;
        let believed = if call.outcome.succeeded() { Outcome::Unknown } else { call.outcome };
        let mut target =
            self.locate(&Call { outcome: believed, ..call.clone() }, to, false, ExpectedFile::Anything)?;
        let places = (source.place, target.place);
        self.look(step, &source, SeriesRole::Use);
        match (call.outcome.succeeded(), source.node) {
            (true, Some(node)) => {
                step.touch(Resource::Attributes(node), TouchMode::Update);
                self.create(step, &mut target, NodeKind::Undecided, 0o644);
                if let Some((dir, name)) = Self::last(&target) {
                    self.tree.set_entry(dir, name, Some(node));
                }
            }
            _ => self.look(step, &target, SeriesRole::Use),
        }
        Ok(Op::Link { from: places.0, to: places.1, follow })
    }
}
