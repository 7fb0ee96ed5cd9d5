//! Decides who makes a request, and whether somebody waits for it, from the rules in force.

use crate::background_requests::BackgroundRequests;
use crate::task_table::{TaskCursor, TaskTable, TaskTableKeeper, TaskTableStatus, UnreadTaskRules};
use crate::thread_hints::LockedHints;
use arc_swap::ArcSwapOption;
use fs::Ino;
use host::TaskReadError;
use request::{RequestClass, RuleDecision, RuleMask, RuleSet};
use std::sync::Arc;

/// The rules in force for a mount: none at first. Whoever changes the rules shares it with the server.
#[derive(Default)]
pub struct RequestClasses {
    in_force: ArcSwapOption<RulesInForce>,
    hints: Arc<LockedHints>,
}

/// Rules, and the tasks for which they are known to hold. Masks of different rule sets never meet, because
/// both are replaced together.
struct RulesInForce {
    rules: Arc<RuleSet>,
    tasks: Arc<TaskTable>,
    /// Lists background requests, if a thread looks at them.
    background: Option<Arc<BackgroundRequests>>,
}

impl RulesInForce {
    #[inline]
    fn decide(&self, task: u32, file_rules: impl FnOnce() -> RuleMask) -> RuleDecision {
        let task_rules = self.tasks.rules_of(task);
        if task == 0 {
            return RuleDecision::NO_RULE;
        }
        self.rules.decide(task_rules, file_rules())
    }
}

impl RequestClasses {
    /// Puts `rules` in force, and lists later background requests in `background`. Until the keeper
    /// [takes steps](TaskTableKeeper::step), rules about tasks hold for none.
    pub fn set_rules(
        &self,
        rules: Arc<RuleSet>,
        background: Option<Arc<BackgroundRequests>>,
    ) -> TaskTableKeeper {
        let (tasks, keeper) = TaskTable::new(UnreadTaskRules::of(&rules), self.hints.clone());
        self.in_force.store(Some(Arc::new(RulesInForce { rules, tasks, background })));
        keeper
    }

    /// Puts no rules in force: nobody is looked up, and all requests are critical.
    pub fn clear(&self) {
        self.in_force.store(None);
    }

    /// What the rules decide about a request of this task to `inode`, if rules are in force. `file_rules` are those
    /// that hold for the file. A request without a task is critical: the kernel makes it, for example to write a
    /// mapping back, and somebody may wait for that.
    #[inline]
    pub(crate) fn decide(
        &self,
        task: u32,
        inode: Ino,
        file_rules: impl FnOnce() -> RuleMask,
    ) -> Option<RuleDecision> {
        let in_force = self.in_force.load();
        let in_force = in_force.as_deref()?;
        let decision = in_force.decide(task, file_rules);
        if let Some(background) = &in_force.background
            && decision.class == RequestClass::Critical
            && task != 0
        {
            background.note_critical(inode);
        }
        Some(decision)
    }

    /// Sets the hint of a thread, which waits for the answer, or removes it. One call at a time; it may wait
    /// for programs that read /proc, and holds no lock meanwhile.
    pub(crate) fn set_hint(&self, thread: u32, class: Option<RequestClass>) -> Result<(), TaskReadError> {
        let start_ticks = host::read_task_origin(thread)?.start_ticks;
        let mut hints = self.hints.lock();
        hints.set(thread, start_ticks, class);
        if let Some(in_force) = self.in_force.load().as_deref() {
            in_force.tasks.forget(thread, &hints);
        }
        let mut crowd = hints.crowd();
        drop(hints);
        if !crowd.is_empty() {
            crowd.retain(|&thread| !host::is_task(thread));
            self.hints.lock().drop_ended(&crowd);
        }
        Ok(())
    }

    /// The hint of a thread, which waits for the answer. May wait for programs that read /proc.
    pub(crate) fn hint(&self, thread: u32) -> Option<RequestClass> {
        let start_ticks = host::read_task_origin(thread).ok()?.start_ticks;
        let mut hints = self.hints.lock();
        hints.drop_earlier(thread, start_ticks);
        hints.class_of(thread)
    }

    /// Whether a request of this task is critical. `file_rules` are those that hold for its file.
    pub fn is_critical(&self, task: u32, file_rules: RuleMask) -> bool {
        let in_force = self.in_force.load();
        let class = in_force.as_deref().map(|in_force| in_force.decide(task, || file_rules).class);
        class.unwrap_or_default() == RequestClass::Critical
    }

    /// The list of background requests, if there is one.
    pub(crate) fn background(&self) -> Option<Arc<BackgroundRequests>> {
        self.in_force.load().as_deref()?.background.clone()
    }

    /// Up to `tasks_max` tasks that sent requests in the last seconds, and whose requests are critical, at least
    /// those to some files. If there are more, a call continues at `cursor`, where the last one ended.
    pub fn recent_critical_tasks(&self, cursor: &mut TaskCursor, tasks_max: usize) -> Vec<u32> {
        let in_force = self.in_force.load();
        let Some(RulesInForce { rules, tasks, .. }) = in_force.as_deref() else { return Vec::new() };
        tasks.select(cursor, tasks_max, |mask| rules.may_be_critical(mask))
    }

    /// How many tasks that sent requests in the last seconds there are for which each rule holds.
    pub fn tasks_by_rule(&self) -> [u64; RuleSet::RULES_MAX] {
        let in_force = self.in_force.load();
        in_force.as_deref().map_or([0; RuleSet::RULES_MAX], |in_force| in_force.tasks.tasks_by_rule())
    }

    /// What is known about tasks, if rules are in force.
    pub fn task_status(&self) -> Option<TaskTableStatus> {
        self.in_force.load().as_deref().map(|in_force| in_force.tasks.status())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::background_requests::LockedInodes;
    use crate::task_table::FoundTask;
    use request::{BufferPolicy, LendingLevel, TaskFacts};
    use rustix::thread::gettid;

    fn titled(rules: &RuleSet, title: &str) -> FoundTask {
        let facts = TaskFacts { title: title.into(), ..TaskFacts::default() };
        FoundTask { rules: rules.task_mask(&facts), start_ticks: 1 }
    }

    #[test]
    fn a_hint_counts_from_the_next_request_on() {
        let classes = RequestClasses::default();
        let policy = BufferPolicy::Critical(LendingLevel::None);
        let rules = Arc::new(policy.rules_in_force(RuleSet::default()));
        let mut keeper = classes.set_rules(rules.clone(), None);
        let own = gettid().as_raw_pid() as u32;
        let class = || classes.decide(own, Ino(3), || RuleMask(!0)).unwrap().class;
        assert_eq!(class(), RequestClass::Critical);
        for hint in [RequestClass::Background, RequestClass::Critical, RequestClass::Background] {
            keeper.step(&mut |_| Ok(titled(&rules, "a")));
            classes.set_hint(own, Some(hint)).expect("it runs");
            assert_eq!((class(), classes.hint(own)), (hint, Some(hint)));
        }
        classes.hints.lock().set(own, 0, Some(RequestClass::Background));
        assert_eq!(classes.hint(own), None, "it was an earlier thread's");
    }

    #[test]
    fn only_critical_tasks_make_a_file_worth_a_loan() {
        let classes = RequestClasses::default();
        let rules = Arc::new(RuleSet::parse("background file=/a").expect("rules"));
        let requests: Arc<BackgroundRequests> = Arc::default();
        let _keeper = classes.set_rules(rules, Some(requests.clone()));
        let is_used = || {
            let locks = LockedInodes { inode: Ino(3), other: None, changes_names: false };
            requests.are_used_by_critical(&locks)
        };
        assert!(!is_used());
        classes.decide(7, Ino(3), || RuleMask(1));
        classes.decide(0, Ino(3), || RuleMask::NONE);
        assert!(!is_used());
        classes.decide(7, Ino(3), || RuleMask::NONE);
        assert!(is_used());
    }

    #[test]
    fn a_task_is_critical_until_it_is_known() {
        let classes = RequestClasses::default();
        let decide = |task| classes.decide(task, Ino(3), || RuleMask(!0));
        assert_eq!(decide(7), None);
        let rules = Arc::new(RuleSet::parse("background title=tar").expect("rules"));
        let mut keeper = classes.set_rules(rules.clone(), None);
        assert_eq!(decide(7).unwrap().class, RequestClass::Critical);
        keeper.step(&mut |_| Ok(titled(&rules, "tar")));
        assert_eq!(decide(7).unwrap().class, RequestClass::Background);
        assert_eq!(decide(0), Some(RuleDecision::NO_RULE));
        classes.clear();
        assert_eq!(decide(7), None);
    }

    #[test]
    fn tasks_that_are_background_for_all_files_are_left_out() {
        let classes = RequestClasses::default();
        let rules = Arc::new(RuleSet::parse("background title=tar\ncritical file=/a").expect("rules"));
        let mut keeper = classes.set_rules(rules.clone(), None);
        assert!((7..10).all(|task| classes.decide(task, Ino(3), || RuleMask(!0)).is_some()));
        keeper.step(&mut |task| Ok(titled(&rules, if task == 8 { "tar" } else { "sh" })));
        assert_eq!(classes.recent_critical_tasks(&mut TaskCursor::default(), 64), [7, 9]);
        assert_eq!(classes.tasks_by_rule()[..3], [1, 3, 0], "rules about files hold for every task");
    }
}
