//! The state of the model, and the small changes that make up a call.

use super::futex_sleeps::FutexSleepers;
use super::open_descriptions::{Description, DescriptionTarget, OpenDescriptions};
use super::tree::{ModelNodeId, Tree};
use crate::call::{Call, Fd};
use crate::step::{Prerequisite, Resource, Series, SeriesRole, Step, Touch, TouchMode};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use trace_file::{Action, ActionId, Fate, Handle, InheritedHandle, ModelRepairs, Name, Names, Nap, Op};

/// The model's state after the calls applied so far.
#[derive(Debug, Clone)]
pub(crate) struct World {
    /// All byte strings.
    pub names: Names,
    /// All files.
    pub tree: Tree,
    /// Counts of repaired contradictions.
    pub repairs: ModelRepairs,
    /// Lines of the first calls whose result no order of overlapping calls explains.
    pub races: Vec<u64>,
    /// Descriptions that were open before the trace began.
    pub inherited: Vec<InheritedHandle>,
    /// Sleeps that faster threads would have ended early.
    pub naps: Vec<Nap>,
    pub(super) hard_links: Vec<(Name, ModelNodeId)>,
    pub(super) tasks: HashMap<u32, Task>,
    pub(super) tables: Vec<Table>,
    pub(super) directories: Vec<TaskDirectory>,
    pub(super) descriptions: OpenDescriptions,
    pub(super) pipes: HashMap<Name, Pipe>,
    /// Descriptions that were sent and not received yet, and the actions that sent them.
    pub(super) passed: VecDeque<(Handle, ActionId)>,
    pub(super) locks: super::locks::Locks,
    pub(super) contexts: HashMap<u64, AioContext>,
    /// Requests under way: the action that submitted each, its touches, and its description.
    pub(super) requests: HashMap<u32, (ActionId, Vec<Touch>, Handle)>,
    pub(super) submitted: u32,
    pub(super) ends: HashMap<u32, ActionId>,
    pub(super) sleepers: FutexSleepers,
    pub(super) threads: u32,
    pub(super) processes: u32,
    pub(super) entries: u64,
    /// Number of descriptors in all tables.
    pub(super) numbers: usize,
    /// The line at which the trace exceeded a limit, and the name of the limited thing.
    pub(super) excess: Option<(u64, &'static str)>,
    pub(super) next: ActionId,
    pub(super) began: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) thread: u32,
    pub(super) process: u32,
    pub(super) table: usize,
    pub(super) directory: usize,
    /// Prerequisites of its next action.
    pub(super) needs: Vec<Prerequisite>,
    /// Its last action.
    pub(super) last: ActionId,
    /// The parent that made this task by vfork and still waits.
    pub(super) holds: Option<u32>,
}

/// A descriptor table; several tasks may share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    /// Copies of the model share it until one of them changes it.
    pub(super) slots: Arc<HashMap<Fd, Slot>>,
    pub(super) users: u32,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    pub(super) description: Handle,
    pub(super) close_on_exec: bool,
    /// Number and generation in one.
    pub(super) series: u64,
}

/// Working directory and umask; several tasks may share them.
#[derive(Debug, Clone, Copy)]
pub(super) struct TaskDirectory {
    pub(super) at: Option<Handle>,
    pub(super) mask: u32,
    pub(super) users: u32,
}

/// A pipe's bytes, counted so that a read finds its write.
#[derive(Debug, Clone, Default)]
pub(super) struct Pipe {
    pub(super) written: u64,
    pub(super) read: u64,
    /// Writes not yet read to their end: the byte after each write, and its action.
    pub(super) writes: VecDeque<(u64, ActionId)>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct AioContext {
    pub(super) number: u32,
    /// Requests not yet collected.
    pub(super) waiting: VecDeque<u32>,
}

impl World {
    /// A world without any knowledge.
    pub(crate) fn new(mut names: Names) -> World {
        let tree = Tree::new(&mut names);
        World {
            names,
            tree,
            repairs: ModelRepairs::default(),
            races: Vec::new(),
            inherited: Vec::new(),
            naps: Vec::new(),
            hard_links: Vec::new(),
            tasks: HashMap::new(),
            tables: Vec::new(),
            directories: Vec::new(),
            descriptions: OpenDescriptions::default(),
            pipes: HashMap::new(),
            passed: VecDeque::new(),
            locks: Default::default(),
            contexts: HashMap::new(),
            requests: HashMap::new(),
            submitted: 0,
            ends: HashMap::new(),
            sleepers: FutexSleepers::default(),
            threads: 0,
            processes: 0,
            entries: 0,
            numbers: 0,
            excess: None,
            next: 0,
            began: None,
        }
    }

    /// A copy of the state without the names, which only ever grow.
    pub(super) fn copy(&mut self) -> World {
        let names = std::mem::take(&mut self.names);
        let copy = self.clone();
        self.names = names;
        copy
    }

    /// Undoes everything applied since `copy` was made.
    pub(super) fn go_back(&mut self, copy: &World) {
        let names = std::mem::take(&mut self.names);
        *self = World { names, ..copy.clone() };
    }

    /// The cost of a copy without the names, as a number of parts.
    pub(super) fn size(&self) -> usize {
        self.tree.len() + self.tasks.len() + self.tables.len()
    }

    /// The line at which the trace exceeded a limit, and the name of the limited thing. Such a trace cannot
    /// be compiled.
    pub(crate) fn excess(&self) -> Option<(u64, &'static str)> {
        self.excess
    }

    /// The number of applied calls.
    pub(super) fn applied(&self) -> u64 {
        self.next.into()
    }

    /// The number of threads in the trace so far.
    pub(crate) fn threads(&self) -> u32 {
        self.threads
    }

    /// The number of descriptions made.
    pub(crate) fn handles(&self) -> u32 {
        self.descriptions.made()
    }

    /// The number of asynchronous requests made.
    pub(crate) fn requests(&self) -> u32 {
        self.submitted
    }

    /// The task of a call that is being applied.
    pub(super) fn task(&self, call: &Call) -> &Task {
        &self.tasks[&call.task]
    }

    pub(super) fn step(&mut self, call: &Call) -> Step {
        let task = self.tasks.get_mut(&call.task).expect("a task is known before it acts");
        let needs = std::mem::take(&mut task.needs);
        let began = *self.began.get_or_insert(call.start);
        let action = Action {
            thread: task.thread,
            start: call.start.saturating_sub(began),
            // If the clock was set back, the call would end before it began.
            end: call.end.max(call.start).saturating_sub(began),
            line: call.line,
            name: call.name,
            fate: Fate::Executed,
            op: Op::Nothing,
            recorded: call.outcome,
        };
        Step { action, touches: Vec::new(), series: Vec::new(), needs, gone: Vec::new() }
    }

    pub(super) fn describe(&mut self, on: DescriptionTarget, append: bool) -> Handle {
        if let DescriptionTarget::File(node) = on {
            self.tree.node_mut(node).opened += 1;
        }
        self.descriptions.add(Description {
            on,
            position: 0,
            placed: false,
            append,
            limited: false,
            references: 0,
        })
    }

    /// Puts a description into a table. The description that had the number before loses a reference and is
    /// returned if this was its last.
    pub(super) fn install(
        &mut self,
        table: usize,
        fd: Fd,
        description: Handle,
        close_on_exec: bool,
    ) -> (u64, Option<Handle>) {
        let closed = self.remove(table, fd).and_then(|(_, closed)| closed);
        self.descriptions[description as usize].references += 1;
        let series = self.entries;
        self.entries += 1;
        let slots = Arc::make_mut(&mut self.tables[table].slots);
        slots.insert(fd, Slot { description, close_on_exec, series });
        self.numbers += 1;
        (series, closed)
    }

    /// Removes a number from a table. Returns the description if this was its last reference.
    pub(super) fn remove(&mut self, table: usize, fd: Fd) -> Option<(Slot, Option<Handle>)> {
        self.tables[table].slots.get(&fd)?;
        let slot = Arc::make_mut(&mut self.tables[table].slots).remove(&fd)?;
        self.numbers -= 1;
        Some((slot, self.release(slot.description)))
    }

    pub(super) fn release(&mut self, description: Handle) -> Option<Handle> {
        let state = &mut self.descriptions[description as usize];
        state.references = state.references.saturating_sub(1);
        let last = state.references == 0;
        if last {
            self.descriptions.released(description);
        }
        last.then_some(description)
    }

    /// The slot of a descriptor. `None` for every number of an unknown task.
    pub(super) fn slot(&self, call: &Call, fd: Fd) -> Option<Slot> {
        self.tables[self.tasks.get(&call.task)?.table].slots.get(&fd).copied()
    }

    pub(super) fn file_of(&self, description: Handle) -> Option<ModelNodeId> {
        match self.descriptions[description as usize].on {
            DescriptionTarget::File(node) => Some(node),
            _ => None,
        }
    }
}

/// Methods that note the resources a call touches.
impl Step {
    pub(super) fn touch(&mut self, on: Resource, how: TouchMode) {
        self.touch_range(on, how, 0, u64::MAX);
    }

    pub(super) fn touch_range(&mut self, on: Resource, how: TouchMode, from: u64, to: u64) {
        if from < to {
            self.touches.push(Touch { on, how, range: (from, to) });
        }
    }

    pub(super) fn in_series(&mut self, series: Series, role: SeriesRole) {
        self.series.push((series, role));
    }

    /// Notes a use of an open file: its number, its description, and the file itself.
    pub(super) fn uses(&mut self, slot: Slot, file: Option<ModelNodeId>, how: TouchMode) {
        self.in_series(Series::Descriptor(slot.series), SeriesRole::Use);
        self.in_series(Series::Description(slot.description), SeriesRole::Use);
        self.touch(Resource::Description(slot.description), how);
        if let Some(file) = file {
            self.in_series(Series::File(file), SeriesRole::Use);
        }
    }
}
