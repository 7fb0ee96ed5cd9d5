//! Calls that change the file behind a descriptor number.

use super::open_descriptions::DescriptionTarget;
use super::world::{Slot, World};
use crate::call::{Call, Fd};
use crate::step::{Prerequisite, Resource, Series, SeriesRole, Step, TouchMode};
use std::sync::Arc;
use trace_file::{Fate, Handle, Modelled, Moment, Rule};

impl World {
    pub(super) fn close(&mut self, call: &Call, step: &mut Step, fd: Fd) {
        let table = self.task(call).table;
        // An interrupted close still closes the descriptor.
        let fails = call.outcome == trace_file::Outcome::Error(libc::EBADF);
        if fails || self.slot(call, fd).is_none() {
            step.action.fate = self.without_descriptor(call);
            return;
        }
        step.action.fate = Fate::Modelled(Modelled::Descriptors);
        let closed = self.close_one(table, fd, step);
        self.close_handles(closed.into_iter().collect(), step);
    }

    pub(super) fn close_range(&mut self, call: &Call, step: &mut Step, first: u32, last: u32) {
        step.action.fate = Fate::Modelled(Modelled::Descriptors);
        let table = self.task(call).table;
        let within = |fd: &Fd| u32::try_from(*fd).is_ok_and(|fd| (first..=last).contains(&fd));
        let mut fds: Vec<Fd> = self.tables[table].slots.keys().copied().filter(within).collect();
        fds.sort_unstable();
        let closed = fds.into_iter().filter_map(|fd| self.close_one(table, fd, step)).collect();
        self.close_handles(closed, step);
    }

    pub(super) fn duplicate(&mut self, call: &Call, step: &mut Step, on: Fd, made: Fd, close_on_exec: bool) {
        step.action.fate = Fate::Modelled(Modelled::Descriptors);
        let Some(slot) = self.slot(call, on) else {
            step.action.fate = self.without_descriptor(call);
            return;
        };
        if made < 0 || made == on {
            return;
        }
        step.in_series(Series::Descriptor(slot.series), SeriesRole::Use);
        step.in_series(Series::Description(slot.description), SeriesRole::Use);
        step.touch(Resource::Description(slot.description), TouchMode::Read);
        let table = self.task(call).table;
        let old = self.close_one(table, made, step);
        let (series, _) = self.install(table, made, slot.description, close_on_exec);
        step.in_series(Series::Descriptor(series), SeriesRole::Create);
        self.close_handles(old.into_iter().collect(), step);
    }

    pub(super) fn mark(&mut self, call: &Call, fd: Fd, yes: bool) {
        let table = self.task(call).table;
        if self.tables[table].slots.get(&fd).is_some_and(|slot| slot.close_on_exec != yes)
            && let Some(slot) = Arc::make_mut(&mut self.tables[table].slots).get_mut(&fd)
        {
            slot.close_on_exec = yes;
        }
    }

    /// Sends descriptors in a message. The message keeps their descriptions open.
    pub(super) fn pass(&mut self, call: &Call, step: &mut Step, all: &[Fd]) {
        step.action.fate = Fate::Modelled(Modelled::Descriptors);
        let slots: Vec<Slot> = all.iter().filter_map(|fd| self.slot(call, *fd)).collect();
        for slot in slots {
            step.uses(slot, None, TouchMode::Read);
            self.descriptions[slot.description as usize].references += 1;
            self.passed.push_back((slot.description, self.next));
        }
    }

    /// Receives descriptors. Each received number gets the oldest sent description whose file matches the
    /// note. If none matches, the number is learned like any unknown descriptor.
    pub(super) fn receive(&mut self, call: &Call, step: &mut Step, made: &[Fd]) {
        step.action.fate = Fate::Modelled(Modelled::Descriptors);
        let table = self.task(call).table;
        for fd in made {
            let sent: Vec<Handle> = self.passed.iter().map(|(sent, _)| *sent).collect();
            let found = sent.into_iter().position(|sent| self.is_noted(call, *fd, sent));
            let Some((handle, sender)) = found.and_then(|at| self.passed.remove(at)) else {
                self.learn_one(call, *fd);
                continue;
            };
            step.needs.push(Prerequisite { on: sender, moment: Moment::Start, rule: Rule::Passed });
            let (series, closed) = self.install(table, *fd, handle, false);
            self.repairs.descriptors += u64::from(closed.is_some());
            self.descriptions[handle as usize].references -= 1;
            step.in_series(Series::Descriptor(series), SeriesRole::Create);
            step.in_series(Series::Description(handle), SeriesRole::Use);
            step.touch(Resource::Description(handle), TouchMode::Read);
        }
    }

    /// Whether the trace notes the file of this description beside the number. Without a note, any
    /// description matches.
    fn is_noted(&mut self, call: &Call, fd: Fd, sent: Handle) -> bool {
        let Some((_, note)) = call.notes.iter().find(|(noted, _)| *noted == fd) else { return true };
        let path = self.names.bytes(*note).to_vec();
        match self.descriptions[sent as usize].on {
            DescriptionTarget::File(node) => {
                let walk = self.tree.walk(super::tree::ROOT, &path, true, &mut self.names);
                walk.end == super::tree::End::Found(node)
            }
            DescriptionTarget::Pipe(pipe) => pipe == *note,
            DescriptionTarget::Other => !path.starts_with(b"/") && !path.starts_with(b"pipe:["),
        }
    }

    /// Makes descriptors that are not files.
    pub(super) fn opaque(&mut self, call: &Call, step: &mut Step, made: &[Fd], close_on_exec: bool) {
        step.action.fate = Fate::Modelled(Modelled::NoFile);
        let table = self.task(call).table;
        for fd in made.iter().filter(|fd| **fd >= 0) {
            let handle = self.describe(DescriptionTarget::Other, false);
            let (series, closed) = self.install(table, *fd, handle, close_on_exec);
            self.repairs.descriptors += u64::from(closed.is_some());
            step.in_series(Series::Descriptor(series), SeriesRole::Create);
        }
    }
}
