//! Tasks: the parts they share, their beginning and their end.

use super::world::{Table, Task, TaskDirectory, World};
use crate::call::{Call, Share};
use crate::step::{Prerequisite, Resource, Series, SeriesRole, Step, TouchMode};
use std::collections::HashMap;
use std::sync::Arc;
use trace_file::{Fate, Handle, Modelled, Moment, Op, Rule, TASKS_MAX};

/// Descriptors open at one time in all processes of a trace: a thousand processes with four thousand each.
/// Each costs 40 bytes.
const NUMBERS_MAX: usize = 1 << 22;

impl World {
    /// Adds a task whose creation the trace does not show: the first task, or one whose parent's line is
    /// missing.
    pub(super) fn meet(&mut self, id: u32) {
        if self.tasks.contains_key(&id) {
            return;
        }
        self.tables.push(Table { users: 1, ..Table::default() });
        self.directories.push(TaskDirectory { at: None, mask: 0o022, users: 1 });
        let (table, directory) = (self.tables.len() - 1, self.directories.len() - 1);
        self.add_task(id, table, directory, None, Vec::new());
    }

    fn add_task(
        &mut self,
        id: u32,
        table: usize,
        directory: usize,
        process: Option<u32>,
        needs: Vec<Prerequisite>,
    ) {
        let process = process.unwrap_or_else(|| {
            self.processes += 1;
            self.processes - 1
        });
        let thread = self.threads;
        self.threads += 1;
        let task = Task { thread, process, table, directory, needs, last: self.next, holds: None };
        // The number was reused, so the trace lacks the end of the former task. Its descriptors stay open.
        if let Some(before) = self.tasks.insert(id, task) {
            self.directories[before.directory].users -= 1;
            let table = &mut self.tables[before.table];
            table.users -= 1;
            if table.users == 0 {
                self.numbers -= std::mem::take(table).slots.len();
            }
        }
    }

    /// Notes the first line at which the trace exceeds a limit.
    pub(super) fn limit(&mut self, call: &Call) {
        let what = match (self.threads > TASKS_MAX, self.numbers > NUMBERS_MAX) {
            (true, _) => "more than 1,048,576 tasks, and a replay has a thread for each",
            (_, true) => "more than 4,194,304 descriptors open at the same time",
            _ => return,
        };
        self.excess.get_or_insert((call.line, what));
    }

    pub(super) fn clone_task(&mut self, call: &Call, child: Option<u32>, share: Share) -> Step {
        let mut step = self.step(call);
        step.action.fate = Fate::Modelled(Modelled::Process);
        let Some(child) = child else { return step };
        let parent = self.task(call).clone();
        let table = if share.files {
            self.tables[parent.table].users += 1;
            parent.table
        } else {
            self.copy_table(parent.table)
        };
        let directory = if share.directory {
            self.directories[parent.directory].users += 1;
            parent.directory
        } else {
            let copy = TaskDirectory { users: 1, ..self.directories[parent.directory] };
            if let Some(at) = copy.at {
                self.descriptions[at as usize].references += 1;
            }
            self.directories.push(copy);
            self.directories.len() - 1
        };
        let needs = vec![Prerequisite { on: self.next, moment: Moment::Start, rule: Rule::Clone }];
        self.add_task(child, table, directory, share.process.then_some(parent.process), needs);
        // The task id may be reused after an earlier end.
        self.ends.remove(&child);
        if let (true, Some(made)) = (share.hold, self.tasks.get_mut(&child)) {
            made.holds = Some(call.task);
        }
        step
    }

    fn copy_table(&mut self, from: usize) -> usize {
        // Above the limit the trace is refused anyway, so do not use up memory before that.
        let slots = if self.numbers > NUMBERS_MAX {
            HashMap::new()
        } else {
            HashMap::clone(&self.tables[from].slots)
        };
        let mut copy = Table { slots: Arc::new(slots), users: 1 };
        for slot in Arc::make_mut(&mut copy.slots).values_mut() {
            self.descriptions[slot.description as usize].references += 1;
            slot.series = self.entries;
            self.entries += 1;
        }
        self.numbers += copy.slots.len();
        self.tables.push(copy);
        self.tables.len() - 1
    }

    /// Applies exec: closes the descriptors marked close-on-exec. A table shared with other tasks is left to
    /// them.
    pub(super) fn exec(&mut self, call: &Call) -> Step {
        let mut step = self.step(call);
        step.action.fate = Fate::Modelled(Modelled::Process);
        if !call.outcome.succeeded() {
            return step;
        }
        let task = self.task(call).clone();
        if self.tables[task.table].users > 1 {
            let own = self.copy_table(task.table);
            self.tables[task.table].users -= 1;
            self.tasks.get_mut(&call.task).expect("the caller is known").table = own;
        }
        let table = self.task(call).table;
        let marked = |slot: &&super::world::Slot| slot.close_on_exec;
        let mut fds: Vec<i32> =
            self.tables[table].slots.iter().filter(|(_, slot)| marked(slot)).map(|(fd, _)| *fd).collect();
        fds.sort_unstable();
        let closed = fds.into_iter().filter_map(|fd| self.close_one(table, fd, &mut step)).collect();
        self.close_handles(closed, &mut step);
        self.let_go(call.task);
        step
    }

    /// Applies the end of a task, and closes its descriptors if no other task shares them.
    pub(super) fn end_task(&mut self, call: &Call) -> Step {
        let mut step = self.step(call);
        step.action.fate = Fate::Modelled(Modelled::Process);
        self.end_all(&[call.task], &mut step);
        step
    }

    /// Ends the first task of a process because another of its threads has called exec, and all other threads
    /// whose end the trace has not shown. The calling thread continues, with its open files, under the first
    /// task's number. If the model does not know that thread, nothing changes.
    pub(super) fn supersede(&mut self, call: &Call, by: u32) -> Step {
        let mut step = self.step(call);
        step.action.fate = Fate::Modelled(Modelled::Process);
        if by == call.task || !self.tasks.contains_key(&by) {
            return step;
        }
        let Task { process, table, .. } = *self.task(call);
        let mut ended = vec![call.task];
        if self.tables[table].users > 1 {
            let others = self.tasks.iter().filter(|(_, task)| task.process == process);
            ended = others.map(|(id, _)| *id).filter(|id| *id != by).collect();
            ended.sort_unstable();
        }
        self.end_all(&ended, &mut step);
        self.ends.remove(&call.task);
        if let Some(thread) = self.tasks.remove(&by) {
            self.tasks.insert(call.task, thread);
        }
        step
    }

    /// Removes tasks and the descriptors and directories that only they used.
    fn end_all(&mut self, tasks: &[u32], step: &mut Step) {
        let mut closed = Vec::new();
        for id in tasks {
            let Some(Task { table, directory, .. }) = self.tasks.get(id).cloned() else { continue };
            self.tables[table].users -= 1;
            if self.tables[table].users == 0 {
                let mut fds: Vec<i32> = self.tables[table].slots.keys().copied().collect();
                fds.sort_unstable();
                closed.extend(fds.into_iter().filter_map(|fd| self.close_one(table, fd, step)));
                // The table is unreferenced. A trace may have as many tables as processes, so free its slots.
                self.numbers -= std::mem::take(&mut self.tables[table]).slots.len();
            }
            self.directories[directory].users -= 1;
            if self.directories[directory].users == 0
                && let Some(at) = self.directories[directory].at
            {
                closed.extend(self.release(at));
            }
        }
        self.close_handles(closed, step);
        for id in tasks {
            self.let_go(*id);
            self.ends.insert(*id, self.next);
            self.tasks.remove(id);
        }
    }

    /// Releases a vfork's parent once the child has called exec or ended.
    fn let_go(&mut self, child: u32) {
        let need = Prerequisite { on: self.next, moment: Moment::End, rule: Rule::Hold };
        let parent = self.tasks.get_mut(&child).and_then(|child| child.holds.take());
        if let Some(parent) = parent.and_then(|parent| self.tasks.get_mut(&parent)) {
            parent.needs.push(need);
        }
    }

    pub(super) fn wait(&mut self, call: &Call, child: Option<u32>) -> Step {
        let mut step = self.step(call);
        step.action.fate = Fate::Modelled(Modelled::Process);
        if let Some(end) = child.and_then(|child| self.ends.get(&child)) {
            step.needs.push(Prerequisite { on: *end, moment: Moment::End, rule: Rule::ChildEnd });
        }
        step
    }

    /// Removes a number from a table and notes that. Returns the description if this was the last reference.
    pub(super) fn close_one(&mut self, table: usize, fd: i32, step: &mut Step) -> Option<Handle> {
        let (slot, closed) = self.remove(table, fd)?;
        self.unlock_at_close(table, slot.description, step);
        step.in_series(Series::Descriptor(slot.series), SeriesRole::Delete);
        closed
    }

    /// Makes `step` close these descriptions. A replay never opened those that are not files.
    pub(super) fn close_handles(&mut self, closed: Vec<Handle>, step: &mut Step) {
        for handle in &closed {
            step.in_series(Series::Description(*handle), SeriesRole::Delete);
            step.touch(Resource::Description(*handle), TouchMode::Write);
            self.unlock_at_last_close(*handle, step);
        }
        let unlocked = self.take_unlocked(&closed, step);
        let files: Box<[Handle]> =
            closed.into_iter().filter(|handle| self.file_of(*handle).is_some()).collect();
        if !files.is_empty() || !unlocked.is_empty() {
            step.action.fate = Fate::Executed;
            step.action.op = Op::Close { all: files, unlocked };
        }
    }
}
