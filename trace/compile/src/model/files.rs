//! Applies calls on open files: bytes, sizes, positions, locks.

use super::expected_file::ExpectedFile;
use super::open_descriptions::DescriptionTarget;
use super::tree::ModelNodeId;
use super::world::{Slot, World};
use crate::call::{Call, Fd};
use crate::step::{Prerequisite, Resource, Series, SeriesRole, Step, TouchMode};
use trace_file::{Fate, Modelled, Moment, Name, Op, Request, RequestKind, Rule};

/// A descriptor that is a file.
pub(super) struct OpenFile {
    pub(super) slot: Slot,
    pub(super) node: ModelNodeId,
}

impl World {
    /// The file behind a descriptor. The error is the fate of the call.
    pub(super) fn file(&mut self, call: &Call, fd: Fd) -> Result<OpenFile, Fate> {
        let slot = self.slot(call, fd).ok_or(self.without_descriptor(call))?;
        match self.descriptions[slot.description as usize].on {
            DescriptionTarget::File(node) => Ok(OpenFile { slot, node }),
            _ => Err(Fate::Modelled(Modelled::NoFile)),
        }
    }

    fn pipe_of(&self, call: &Call, fd: Fd) -> Option<(Slot, Name)> {
        let slot = self.slot(call, fd)?;
        match self.descriptions[slot.description as usize].on {
            DescriptionTarget::Pipe(pipe) => Some((slot, pipe)),
            _ => None,
        }
    }

    pub(super) fn read(
        &mut self,
        call: &Call,
        step: &mut Step,
        on: Fd,
        bytes: u64,
        at: Option<u64>,
    ) -> Result<Op<u32>, Fate> {
        if let Some((_, pipe)) = self.pipe_of(call, on) {
            self.read_pipe(call, step, pipe);
            return Err(Fate::Modelled(Modelled::NoFile));
        }
        let file = self.file(call, on)?;
        self.decide(file.node, ExpectedFile::File);
        let state = &mut self.descriptions[file.slot.description as usize];
        let start = at.unwrap_or(state.position);
        let end = start.saturating_add(call.outcome.bytes());
        if at.is_none() {
            state.position = end;
        }
        if call.outcome.bytes() > 0 {
            self.at_least(file.node, end);
        }
        step.uses(file.slot, Some(file.node), if at.is_some() { TouchMode::Read } else { TouchMode::Write });
        step.touch_range(Resource::Bytes(file.node), TouchMode::Read, start, start.saturating_add(bytes));
        Ok(Op::Read { on: file.slot.description, bytes, at })
    }

    fn read_pipe(&mut self, call: &Call, step: &mut Step, pipe: Name) {
        let state = self.pipes.entry(pipe).or_default();
        state.read = state.read.saturating_add(call.outcome.bytes());
        while let Some((end, writer)) = state.writes.front().copied() {
            if call.outcome.bytes() > 0 {
                step.needs.push(Prerequisite { on: writer, moment: Moment::Start, rule: Rule::Pipe });
            }
            if end > state.read {
                break;
            }
            state.writes.pop_front();
        }
    }

    pub(super) fn write(
        &mut self,
        call: &Call,
        step: &mut Step,
        (on, append): (Fd, bool),
        bytes: u64,
        at: Option<u64>,
    ) -> Result<Op<u32>, Fate> {
        if let Some((_, pipe)) = self.pipe_of(call, on) {
            let state = self.pipes.entry(pipe).or_default();
            state.written = state.written.saturating_add(call.outcome.bytes());
            state.writes.push_back((state.written, self.next));
            return Err(Fate::Modelled(Modelled::NoFile));
        }
        let file = self.file(call, on)?;
        self.decide(file.node, ExpectedFile::File);
        let (size, known) = (self.tree.node(file.node).size, self.tree.node(file.node).resized);
        let state = &mut self.descriptions[file.slot.description as usize];
        let append = append || state.append;
        let start = if append { size } else { at.unwrap_or(state.position) };
        let end = start.saturating_add(call.outcome.bytes());
        if at.is_none() {
            state.position = end;
            state.placed = if append { known } else { state.placed };
        }
        step.uses(file.slot, Some(file.node), if at.is_some() { TouchMode::Read } else { TouchMode::Write });
        if append {
            step.touch(Resource::Size(file.node), TouchMode::Write);
        }
        self.grow(step, file.node, start, end);
        Ok(Op::Write { on: file.slot.description, bytes, at })
    }

    /// Notes a write of the bytes from `start` to `end`. A gap after the old size changes from absent to
    /// zeros. A write without bytes, such as a failed one behind the end, changes nothing.
    pub(super) fn grow(&mut self, step: &mut Step, node: ModelNodeId, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let state = self.tree.node_mut(node);
        let size = state.size;
        if end > size {
            (state.size, state.resized) = (end, true);
            step.touch(Resource::Size(node), TouchMode::Write);
        }
        step.touch_range(Resource::Bytes(node), TouchMode::Write, start, end);
        step.touch_range(Resource::Bytes(node), TouchMode::Write, size.min(start), start);
    }

    pub(super) fn resize(&mut self, step: &mut Step, node: ModelNodeId, size: u64) {
        let state = self.tree.node_mut(node);
        let old = state.size;
        (state.size, state.resized) = (size, true);
        step.touch(Resource::Size(node), TouchMode::Write);
        step.touch_range(Resource::Bytes(node), TouchMode::Write, old.min(size), u64::MAX);
    }

    pub(super) fn seek(
        &mut self,
        call: &Call,
        step: &mut Step,
        on: Fd,
        offset: i64,
        whence: u32,
    ) -> Result<Op<u32>, Fate> {
        let file = self.file(call, on)?;
        if call.outcome.succeeded() {
            let state = &mut self.descriptions[file.slot.description as usize];
            (state.position, state.placed) = (call.outcome.bytes(), true);
        }
        if whence == libc::SEEK_END as u32 && call.outcome.succeeded() && offset == 0 {
            self.at_least(file.node, call.outcome.bytes());
        }
        let tells = whence == libc::SEEK_CUR as u32 && offset == 0;
        step.uses(file.slot, Some(file.node), if tells { TouchMode::Read } else { TouchMode::Write });
        if !matches!(whence as i32, libc::SEEK_SET | libc::SEEK_CUR) {
            step.touch(Resource::Size(file.node), TouchMode::Read);
        }
        Ok(Op::Seek { on: file.slot.description, offset, whence })
    }

    pub(super) fn allocate(&mut self, call: &Call, step: &mut Step, op: &Op<Fd>) -> Result<Op<u32>, Fate> {
        let Op::Allocate { on, mode, start, bytes } = *op else { return Err(Fate::Modelled(Modelled::Idle)) };
        let file = self.file(call, on)?;
        step.uses(file.slot, Some(file.node), TouchMode::Read);
        if call.outcome.succeeded() {
            let keeps = mode & libc::FALLOC_FL_KEEP_SIZE as u32 != 0;
            let moves = mode & (libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE) as u32;
            let size = self.tree.node(file.node).size;
            match (moves as i32, keeps) {
                (0, true) => step.touch_range(
                    Resource::Bytes(file.node),
                    TouchMode::Write,
                    start,
                    start.saturating_add(bytes),
                ),
                (0, false) => self.grow(step, file.node, start, start.saturating_add(bytes)),
                (libc::FALLOC_FL_COLLAPSE_RANGE, _) => {
                    self.resize(step, file.node, size.saturating_sub(bytes))
                }
                _ => self.resize(step, file.node, size.saturating_add(bytes)),
            }
        }
        Ok(Op::Allocate { on: file.slot.description, mode, start, bytes })
    }

    pub(super) fn submit(
        &mut self,
        call: &Call,
        step: &mut Step,
        context: u64,
        requests: &[Request<Fd>],
    ) -> Result<Op<u32>, Fate> {
        let first = self.submitted;
        let mut typed = Vec::with_capacity(requests.len());
        for request in requests {
            let file = self.file(call, request.on)?;
            step.uses(file.slot, Some(file.node), TouchMode::Read);
            let before = step.touches.len();
            let end = request.start.saturating_add(request.bytes);
            match request.kind {
                RequestKind::Read => {
                    step.touch_range(Resource::Bytes(file.node), TouchMode::Read, request.start, end)
                }
                RequestKind::Write => self.grow(step, file.node, request.start, end),
                RequestKind::Sync => {}
            }
            let number = self.submitted;
            self.submitted = number.checked_add(1).expect("fewer than 2^32 requests");
            let touches = step.touches[before..].to_vec();
            self.requests.insert(number, (self.next, touches, file.slot.description));
            self.context(context).waiting.push_back(number);
            step.in_series(Series::Request(number), SeriesRole::Create);
            let Request { kind, start, bytes, .. } = *request;
            typed.push(Request { on: file.slot.description, kind, start, bytes });
        }
        Ok(Op::Submit { context: self.context(context).number, first, requests: typed.into() })
    }

    /// Collects requests in the order of their submission, because the trace does not show which ones
    /// finished.
    pub(super) fn collect(&mut self, step: &mut Step, context: u64, count: u32) -> Result<Op<u32>, Fate> {
        let state = self.context(context);
        let number = state.number;
        let count = (count as usize).min(state.waiting.len());
        let requests: Box<[u32]> = state.waiting.drain(..count).collect();
        for request in &requests {
            let known = self.requests.remove(request);
            let (submitted, touches, handle) = known.expect("a request that waits is under way");
            step.needs.push(Prerequisite { on: submitted, moment: Moment::End, rule: Rule::AioStage });
            step.in_series(Series::Request(*request), SeriesRole::Delete);
            step.in_series(Series::Description(handle), SeriesRole::Use);
            step.touch(Resource::Description(handle), TouchMode::Read);
            step.touches.extend(touches);
        }
        Ok(Op::Collect { context: number, requests })
    }

    pub(super) fn context(&mut self, context: u64) -> &mut super::world::AioContext {
        let number = self.contexts.len() as u32;
        self.contexts
            .entry(context)
            .or_insert_with(|| super::world::AioContext { number, ..Default::default() })
    }
}
