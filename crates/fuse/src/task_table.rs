//! The rules that hold for each task, found by its thread id without a lock or a system call.
//!
//! A thread that answers requests must not read /proc: the command line of a process lies in its memory,
//! whose lock is held by threads that wait for answers. So a look-up of a new task finds nothing and notes
//! the task. The [`TaskTableKeeper`], on a thread of its own, reads its facts and enters it.
//!
//! The table has sets of [`WAYS`] slots. A look-up reads a slot's key, then its mask, then the key again: the key
//! has a version, so an unchanged key means that the mask is the task's. The keeper
//! is the only writer, except that a changed hint removes its thread. The thread's next look-up then misses, and
//! finds the hint itself. Both write under the lock of the hints.
//!
//! A change of a task's title counts within a second, and so does the reuse of a thread id. A hint counts at once.

use crate::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::thread_hints::{LockedHints, ThreadHints};
use host::TaskReadError;
use request::{RequestClass, RuleMask, RuleSet};
use std::sync::Arc;
use std::time::Duration;

pub(crate) const SETS: usize = 1024;
pub(crate) const WAYS: usize = 4;
/// Tasks that can be noted between two steps of the keeper. A task that finds its place taken replaces the
/// other one, which is noted again with its next request.
const MISSES: usize = 256;
/// How long the keeper rests between steps while the table has tasks.
const STEP_EVERY: Duration = Duration::from_millis(10);
/// How long it rests while the table is empty.
const EMPTY_STEP_EVERY: Duration = Duration::from_millis(100);
/// The most new tasks that a step reads, so that a program that starts others all the time does not keep a
/// processor busy.
const NEW_TASKS_PER_STEP: usize = 32;
/// Sets that a step reads again: all of them each second.
const REFRESHED_SETS_PER_STEP: usize = SETS.div_ceil(100);
/// The seconds after which a task without requests leaves the table.
const IDLE_ROUNDS_MAX: u8 = 10;

/// The rules that hold for each task, by thread id.
pub struct TaskTable {
    unread: UnreadTaskRules,
    hints: Arc<LockedHints>,
    pub(crate) sets: Box<[TaskSet; SETS]>,
    misses: [AtomicU32; MISSES],
    counts: TaskTableCounts,
}

/// The rules that hold for a task whose facts are unknown.
#[derive(Debug, Clone, Copy)]
pub struct UnreadTaskRules {
    /// Without a hint.
    pub unknown: RuleMask,
    /// With the hint `critical`.
    pub critical: RuleMask,
    /// With the hint `background`.
    pub background: RuleMask,
}

impl UnreadTaskRules {
    /// The rules of a set that hold for tasks whose facts are unknown.
    pub fn of(rules: &RuleSet) -> UnreadTaskRules {
        UnreadTaskRules {
            unknown: rules.unknown_task_mask(),
            critical: rules.tagged_task_mask(RequestClass::Critical),
            background: rules.tagged_task_mask(RequestClass::Background),
        }
    }

    fn hinted(&self, class: RequestClass) -> RuleMask {
        match class {
            RequestClass::Critical => self.critical,
            RequestClass::Background => self.background,
        }
    }
}

/// A task that was read.
#[derive(Debug, Clone, Copy)]
pub struct FoundTask {
    /// The rules that hold for the task.
    pub rules: RuleMask,
    /// When the thread started. Threads that had the same id differ in it.
    pub start_ticks: u64,
}

pub(crate) type TaskSet = [TaskSlot; WAYS];

#[derive(Default)]
pub(crate) struct TaskSlot {
    /// The thread id in the lower half, 0 if the slot is empty. The upper half changes with each new task.
    pub(crate) key: AtomicU64,
    pub(crate) mask: AtomicU64,
    /// Whether a look-up has found the task since the keeper last looked.
    is_used: AtomicBool,
}

#[derive(Default)]
struct TaskTableCounts {
    tasks: AtomicU64,
    requests_without_task: AtomicU64,
    tasks_gone: AtomicU64,
    tasks_unreadable: AtomicU64,
}

/// Where the next selection of tasks begins.
#[derive(Debug, Default)]
pub struct TaskCursor {
    set: usize,
}

/// What a task table holds, and which tasks no rule about tasks can match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskTableStatus {
    /// Tasks in the table.
    pub tasks: u64,
    /// Requests without a thread id: of another pid namespace, or of the kernel, which writes mappings back.
    pub requests_without_task: u64,
    /// Tasks that were gone before they were read.
    pub tasks_gone: u64,
    /// Tasks that could not be read, mostly for lack of permission.
    pub tasks_unreadable: u64,
}

impl TaskSlot {
    fn task(&self) -> u32 {
        self.key.load(Ordering::Relaxed) as u32
    }

    /// The mask of `task`, if the slot is its own.
    #[inline]
    fn find(&self, task: u32) -> Option<RuleMask> {
        let key = self.key.load(Ordering::Acquire);
        if key as u32 != task {
            return None;
        }
        // The keeper changes the key before the mask: after the mask of a later task, the key is a later one, too.
        let mask = self.mask.load(Ordering::Acquire);
        if self.key.load(Ordering::Relaxed) != key {
            return None;
        }
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        Some(RuleMask(mask))
    }

    fn enter(&self, task: u32, mask: RuleMask) {
        let version = (self.key.load(Ordering::Relaxed) >> 32).wrapping_add(1) << 32;
        self.key.store(version, Ordering::Relaxed);
        self.update(mask);
        self.key.store(version | u64::from(task), Ordering::Release);
    }

    fn update(&self, mask: RuleMask) {
        self.mask.store(mask.0, Ordering::Release);
    }

    fn clear(&self) {
        let version = self.key.load(Ordering::Relaxed) >> 32 << 32;
        self.key.store(version, Ordering::Relaxed);
    }
}

impl TaskTable {
    /// An empty table, and its keeper.
    pub fn new(unread: UnreadTaskRules, hints: Arc<LockedHints>) -> (Arc<TaskTable>, TaskTableKeeper) {
        let sets: Vec<TaskSet> = (0..SETS).map(|_| TaskSet::default()).collect();
        let table = Arc::new(TaskTable {
            unread,
            hints,
            sets: sets.try_into().ok().expect("as many sets as the table has"),
            misses: std::array::from_fn(|_| AtomicU32::new(0)),
            counts: TaskTableCounts::default(),
        });
        let keeper = TaskTableKeeper {
            table: table.clone(),
            idle_rounds: vec![[0; WAYS]; SETS],
            next_miss: 0,
            next_set: 0,
        };
        (table, keeper)
    }

    /// The rules that hold for a task. If the table lacks the task, those that hold for every task, or for every
    /// one with its hint; the keeper then reads the task's facts.
    #[inline]
    pub fn rules_of(&self, task: u32) -> RuleMask {
        if task == 0 {
            return self.without_task();
        }
        let set = &self.sets[task as usize % SETS];
        set.iter().find_map(|slot| slot.find(task)).unwrap_or_else(|| self.miss(task))
    }

    #[cold]
    fn without_task(&self) -> RuleMask {
        self.counts.requests_without_task.fetch_add(1, Ordering::Relaxed);
        self.unread.unknown
    }

    #[cold]
    fn miss(&self, task: u32) -> RuleMask {
        self.misses[task as usize % MISSES].store(task, Ordering::Relaxed);
        self.rules_by_hint(&self.hints.lock(), task).unwrap_or(self.unread.unknown)
    }

    fn rules_by_hint(&self, hints: &ThreadHints, task: u32) -> Option<RuleMask> {
        hints.class_of(task).map(|class| self.unread.hinted(class))
    }

    /// The rules of a task, by its hint or what was found. `None`: the task could not be read.
    fn rules_after(&self, found: Option<FoundTask>, hints: &mut ThreadHints, task: u32) -> RuleMask {
        if let Some(found) = found {
            hints.drop_earlier(task, found.start_ticks);
        }
        let rules = found.map_or(self.unread.unknown, |found| found.rules);
        self.rules_by_hint(hints, task).unwrap_or(rules)
    }

    /// Removes a task whose hint has changed. The keeper enters it again.
    pub(crate) fn forget(&self, task: u32, _locked: &ThreadHints) {
        if let Some(slot) = self.sets[task as usize % SETS].iter().find(|slot| slot.task() == task) {
            self.clear(slot);
        }
    }

    fn clear(&self, slot: &TaskSlot) {
        slot.clear();
        self.counts.tasks.fetch_sub(1, Ordering::Relaxed);
    }

    /// Up to `tasks_max` tasks, at least as many as a set has, whose rules `is_wanted`. All of them sent requests in
    /// the last [`IDLE_ROUNDS_MAX`] seconds. If there are more, a call continues at `cursor`, where the last one
    /// ended.
    pub(crate) fn select(
        &self,
        cursor: &mut TaskCursor,
        tasks_max: usize,
        is_wanted: impl Fn(RuleMask) -> bool,
    ) -> Vec<u32> {
        let mut tasks = Vec::new();
        let first = cursor.set;
        for number in 0..SETS {
            let set = (first + number) % SETS;
            if tasks.len() + WAYS > tasks_max {
                cursor.set = set;
                break;
            }
            let is_in =
                |slot: &&TaskSlot| slot.task() != 0 && is_wanted(RuleMask(slot.mask.load(Ordering::Relaxed)));
            tasks.extend(self.sets[set].iter().filter(is_in).map(TaskSlot::task));
        }
        tasks
    }

    /// How many tasks of the last seconds there are for which each rule holds.
    pub(crate) fn tasks_by_rule(&self) -> [u64; RuleSet::RULES_MAX] {
        let mut counts = [0; RuleSet::RULES_MAX];
        for slot in self.sets.iter().flatten().filter(|slot| slot.task() != 0) {
            let mask = RuleMask(slot.mask.load(Ordering::Relaxed));
            counts.iter_mut().enumerate().for_each(|(rule, count)| *count += u64::from(mask.contains(rule)));
        }
        counts
    }

    /// The number of tasks in the table, and of those that could not be read.
    pub fn status(&self) -> TaskTableStatus {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        TaskTableStatus {
            tasks: count(&self.counts.tasks),
            requests_without_task: count(&self.counts.requests_without_task),
            tasks_gone: count(&self.counts.tasks_gone),
            tasks_unreadable: count(&self.counts.tasks_unreadable),
        }
    }
}

/// Enters new tasks into a [`TaskTable`], reads the others again each second, and removes those that are gone
/// or send no requests.
pub struct TaskTableKeeper {
    table: Arc<TaskTable>,
    /// For each slot, how many rounds its task has sent no requests.
    idle_rounds: Vec<[u8; WAYS]>,
    /// Where the next step begins among the noted tasks.
    next_miss: usize,
    /// The set that is read again next.
    next_set: usize,
}

impl TaskTableKeeper {
    /// Enters some of the noted tasks, and reads a hundredth of the table again. `read` reads a task. It may
    /// wait for the task's memory, and with it for requests that are not yet answered. Returns how long to rest
    /// before the next step.
    pub fn step(&mut self, read: &mut impl FnMut(u32) -> Result<FoundTask, TaskReadError>) -> Duration {
        self.enter_noted(read);
        for _ in 0..REFRESHED_SETS_PER_STEP {
            self.refresh_next_set(read);
        }
        if self.table.status().tasks == 0 { EMPTY_STEP_EVERY } else { STEP_EVERY }
    }

    fn enter_noted(&mut self, read: &mut impl FnMut(u32) -> Result<FoundTask, TaskReadError>) {
        let mut tasks_read = 0;
        for _ in 0..MISSES {
            if tasks_read == NEW_TASKS_PER_STEP {
                return;
            }
            let noted = &self.table.misses[self.next_miss];
            self.next_miss = (self.next_miss + 1) % MISSES;
            if noted.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let task = noted.swap(0, Ordering::Relaxed);
            tasks_read += 1;
            match read(task) {
                Ok(found) => self.enter(task, Some(found)),
                Err(TaskReadError::Gone) => {
                    self.table.counts.tasks_gone.fetch_add(1, Ordering::Relaxed);
                }
                Err(_) => {
                    self.table.counts.tasks_unreadable.fetch_add(1, Ordering::Relaxed);
                    self.enter(task, None);
                }
            }
        }
    }

    /// Enters a task into an empty slot, or in place of the task that has been idle for longest.
    fn enter(&mut self, task: u32, found: Option<FoundTask>) {
        let hints = &mut *self.table.hints.lock();
        let mask = self.table.rules_after(found, hints, task);
        let number = task as usize % SETS;
        let set = &self.table.sets[number];
        let idle_rounds = &mut self.idle_rounds[number];
        // The task was noted again before it was entered.
        if set.iter().any(|slot| slot.task() == task) {
            return;
        }
        // Of tasks that are not idle the last is replaced, so that the others of a crowded set stay.
        let most_idle = || (0..WAYS).max_by_key(|&way| idle_rounds[way]).expect("a set has slots");
        let way = set.iter().position(|slot| slot.task() == 0).unwrap_or_else(most_idle);
        if set[way].task() == 0 {
            self.table.counts.tasks.fetch_add(1, Ordering::Relaxed);
        }
        idle_rounds[way] = 0;
        set[way].enter(task, mask);
    }

    fn refresh_next_set(&mut self, read: &mut impl FnMut(u32) -> Result<FoundTask, TaskReadError>) {
        let table = &self.table;
        let set = &table.sets[self.next_set];
        let idle_rounds = &mut self.idle_rounds[self.next_set];
        self.next_set = (self.next_set + 1) % SETS;
        for (slot, idle_rounds) in set.iter().zip(idle_rounds) {
            let task = slot.task();
            if task == 0 {
                continue;
            }
            let is_used = slot.is_used.swap(false, Ordering::Relaxed);
            *idle_rounds = if is_used { 0 } else { *idle_rounds + 1 };
            let is_idle = *idle_rounds == IDLE_ROUNDS_MAX;
            let found = if is_idle { Err(TaskReadError::Gone) } else { read(task) };
            let hints = &mut *table.hints.lock();
            match found {
                // A changed hint has removed the task meanwhile.
                _ if slot.task() != task => {}
                Ok(found) => slot.update(table.rules_after(Some(found), hints, task)),
                Err(TaskReadError::Gone) => table.clear(slot),
                Err(_) => slot.update(table.rules_after(None, hints, task)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use request::RuleSet;
    use std::collections::HashMap;
    use std::thread;

    const UNKNOWN: RuleMask = RuleMask(1 << 63);
    const UNREAD: UnreadTaskRules =
        UnreadTaskRules { unknown: UNKNOWN, critical: RuleMask(1 << 62), background: RuleMask(1 << 61) };
    const STEPS_PER_ROUND: usize = SETS.div_ceil(REFRESHED_SETS_PER_STEP);

    /// A table, its keeper, and what the keeper reads.
    struct Model {
        table: Arc<TaskTable>,
        keeper: TaskTableKeeper,
        masks: HashMap<u32, RuleMask>,
    }

    impl Model {
        fn new(tasks: impl IntoIterator<Item = u32>) -> Model {
            let (table, keeper) = TaskTable::new(UNREAD, Arc::default());
            let masks = tasks.into_iter().map(|task| (task, RuleMask(task.into()))).collect();
            Model { table, keeper, masks }
        }

        fn step(&mut self) {
            self.keeper.step(&mut |task| {
                let rules = self.masks.get(&task).copied().ok_or(TaskReadError::Gone)?;
                Ok(FoundTask { rules, start_ticks: 1 })
            });
        }

        fn set_hint(&self, task: u32, class: Option<RequestClass>) {
            let mut hints = self.table.hints.lock();
            hints.set(task, 1, class);
            self.table.forget(task, &hints);
        }

        fn round(&mut self) {
            (0..STEPS_PER_ROUND).for_each(|_| self.step());
        }
    }

    #[test]
    fn a_new_task_is_unknown_until_the_keeper_has_read_it() {
        let mut model = Model::new([7]);
        assert_eq!(model.table.rules_of(7), UNKNOWN);
        assert_eq!(model.table.rules_of(7), UNKNOWN);
        model.step();
        assert_eq!(model.table.rules_of(7), RuleMask(7));
        assert_eq!(model.table.status().tasks, 1);
    }

    #[test]
    fn a_changed_title_counts_after_a_round() {
        let mut model = Model::new([7]);
        model.table.rules_of(7);
        model.step();
        model.masks.insert(7, RuleMask(8));
        model.round();
        assert_eq!(model.table.rules_of(7), RuleMask(8));
    }

    #[test]
    fn gone_tasks_leave() {
        let mut model = Model::new([7]);
        model.table.rules_of(7);
        model.step();
        model.masks.clear();
        model.round();
        assert_eq!(model.table.rules_of(7), UNKNOWN);
        assert_eq!(model.table.status().tasks, 0);
        model.step();
        assert_eq!(model.table.status().tasks_gone, 1);
    }

    #[test]
    fn idle_tasks_leave_and_busy_ones_stay() {
        let mut model = Model::new([7, 8]);
        model.table.rules_of(7);
        model.table.rules_of(8);
        model.step();
        for _ in 0..=IDLE_ROUNDS_MAX {
            model.table.rules_of(8);
            model.round();
        }
        assert_eq!(model.table.status().tasks, 1);
        assert_eq!(model.table.rules_of(8), RuleMask(8));
        assert_eq!(model.table.rules_of(7), UNKNOWN);
    }

    #[test]
    fn a_hint_counts_at_once_and_until_it_is_taken_back() {
        let mut model = Model::new([7, 8]);
        model.table.rules_of(7);
        model.step();
        for task in [7, 8] {
            model.set_hint(task, Some(RequestClass::Background));
            assert_eq!(model.table.rules_of(task), UNREAD.background);
            model.round();
            assert_eq!(model.table.rules_of(task), UNREAD.background);
        }
        assert_eq!(model.table.status().tasks, 2);
        model.set_hint(7, None);
        assert_eq!(model.table.rules_of(7), UNKNOWN);
        model.step();
        assert_eq!(model.table.rules_of(7), RuleMask(7));
        assert_eq!(model.table.status().tasks, 2);
    }

    #[test]
    fn a_task_that_a_hint_removes_while_it_is_read_is_counted_once() {
        let (table, mut keeper) = TaskTable::new(UNREAD, Arc::default());
        table.rules_of(7);
        keeper.enter_noted(&mut |_| Ok(FoundTask { rules: RuleMask(7), start_ticks: 1 }));
        assert_eq!(table.status().tasks, 1);
        for _ in 0..STEPS_PER_ROUND {
            keeper.step(&mut |task| {
                table.forget(task, &table.hints.lock());
                Err(TaskReadError::Gone)
            });
        }
        assert_eq!(table.status().tasks, 0);
    }

    #[test]
    fn a_reused_thread_id_has_a_hint_for_a_round_at_most() {
        let model = &mut Model::new([7]);
        model.set_hint(7, Some(RequestClass::Background));
        model.table.rules_of(7);
        model.step();
        for _ in 0..STEPS_PER_ROUND {
            model.keeper.step(&mut |_| Ok(FoundTask { rules: RuleMask(9), start_ticks: 2 }));
        }
        assert_eq!(model.table.rules_of(7), RuleMask(9));
    }

    #[test]
    fn unreadable_tasks_are_unknown_and_counted_once() {
        let (table, mut keeper) = TaskTable::new(UNREAD, Arc::default());
        table.rules_of(7);
        for _ in 0..2 * STEPS_PER_ROUND {
            keeper.step(&mut |_| Err(TaskReadError::NotPermitted));
            assert_eq!(table.rules_of(7), UNKNOWN);
        }
        assert_eq!((table.status().tasks, table.status().tasks_unreadable), (1, 1));
    }

    #[test]
    fn selections_pass_over_all_wanted_tasks_in_turn() {
        let tasks: Vec<u32> = (1..=24).collect();
        let mut model = Model::new(tasks.iter().copied());
        assert!(tasks.iter().all(|&task| model.table.rules_of(task) == UNKNOWN));
        model.step();
        let mut cursor = TaskCursor::default();
        let mut select = || {
            let tasks = model.table.select(&mut cursor, 8, |mask| mask.0 % 2 == 0);
            assert!(tasks.len() <= 8);
            tasks
        };
        let mut selected: Vec<u32> = (0..3).flat_map(|_| select()).collect();
        selected.sort_unstable();
        selected.dedup();
        assert_eq!(selected, (1..=12).map(|half| 2 * half).collect::<Vec<u32>>());
    }

    #[test]
    fn requests_without_a_task_are_counted() {
        let (table, _) = TaskTable::new(UNREAD, Arc::default());
        assert_eq!(table.rules_of(0), UNKNOWN);
        assert_eq!(table.status().requests_without_task, 1);
    }

    #[test]
    fn a_full_set_gives_up_its_idle_task() {
        let tasks: Vec<u32> = (0..=WAYS as u32).map(|way| 7 + way * SETS as u32).collect();
        let (first, new) = (tasks[0], tasks[WAYS]);
        let mut model = Model::new(tasks.clone());
        for &task in &tasks[..WAYS] {
            model.table.rules_of(task);
            model.step();
        }
        for _ in 0..2 {
            for &task in &tasks[1..WAYS] {
                model.table.rules_of(task);
            }
            model.round();
        }
        model.table.rules_of(new);
        model.step();
        assert_eq!(model.table.status().tasks, WAYS as u64);
        tasks[1..].iter().for_each(|&task| assert_eq!(model.table.rules_of(task), RuleMask(task.into())));
        assert_eq!(model.table.rules_of(first), UNKNOWN);
    }

    #[test]
    fn a_flood_of_new_tasks_is_read_in_parts() {
        let tasks = 1..=MISSES as u32;
        let mut model = Model::new(tasks.clone());
        for task in tasks.clone() {
            model.table.rules_of(task);
        }
        model.keeper.enter_noted(&mut |task| Ok(FoundTask { rules: RuleMask(task.into()), start_ticks: 1 }));
        assert_eq!(model.table.status().tasks, NEW_TASKS_PER_STEP as u64);
        (0..MISSES / NEW_TASKS_PER_STEP).for_each(|_| model.step());
        tasks.for_each(|task| assert_eq!(model.table.rules_of(task), RuleMask(task.into())));
    }

    #[test]
    fn a_thread_is_found_by_its_facts() {
        let rules = RuleSet::parse("background thread=a-task").expect("rules");
        let (table, mut keeper) = TaskTable::new(UnreadTaskRules::of(&rules), Arc::default());
        let mut read = move |task| {
            let found = host::read_task(task)?;
            Ok(FoundTask { rules: rules.task_mask(&found.facts), start_ticks: found.start_ticks })
        };
        let looked_up = move || {
            let task = rustix::thread::gettid().as_raw_pid() as u32;
            assert_eq!(table.rules_of(task), RuleMask::NONE, "it is new");
            keeper.step(&mut read);
            table.rules_of(task)
        };
        let found = thread::Builder::new().name("a-task".into()).spawn(looked_up).expect("a thread").join();
        assert_eq!(found.expect("no panic"), RuleMask(1));
    }
}
