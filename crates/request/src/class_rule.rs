//! One rule: a class for requests whose task and file meet its conditions.

use crate::origin::RequestClass;
use crate::pattern::RulePattern;
use crate::task_facts::TaskFacts;
use std::fmt::{self, Display, Formatter};
use std::ops::RangeInclusive;

/// A class for requests whose task and file meet all conditions. It prints as a line of a rule file.
#[derive(Debug, Clone)]
pub struct ClassRule {
    pub(crate) line: usize,
    pub(crate) class: RequestClass,
    pub(crate) task: Vec<TaskCondition>,
    pub(crate) file: Option<RulePattern>,
    /// See [`share_percent`](ClassRule::share_percent).
    pub(crate) share_percent: Option<u8>,
}

/// A condition about a task.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum TaskCondition {
    Title(RulePattern),
    Thread(RulePattern),
    Cgroup(RulePattern),
    Tag(RulePattern),
    Uid(u32),
    Nice(RangeInclusive<i8>),
}

impl TaskCondition {
    /// Whether this is the condition that a task has this class as its tag.
    pub(crate) fn is_tag(&self, class: RequestClass) -> bool {
        matches!(self, TaskCondition::Tag(pattern) if pattern.matches(class.name().as_bytes()))
    }

    fn holds_for(&self, facts: &TaskFacts) -> bool {
        match self {
            TaskCondition::Title(pattern) => pattern.matches(facts.title.as_bytes()),
            TaskCondition::Thread(pattern) => pattern.matches(facts.thread.as_bytes()),
            TaskCondition::Cgroup(pattern) => {
                let ends = facts.cgroup.match_indices('/').map(|(at, _)| at).filter(|&at| at > 0);
                ends.chain([facts.cgroup.len()]).any(|end| pattern.matches(&facts.cgroup.as_bytes()[..end]))
            }
            TaskCondition::Tag(pattern) => pattern.matches(facts.tag.as_bytes()),
            TaskCondition::Uid(uid) => facts.uid == *uid,
            TaskCondition::Nice(range) => range.contains(&facts.nice),
        }
    }
}

impl ClassRule {
    /// The line of its file, counted from 1; 0 if it comes from no file.
    pub fn line(&self) -> usize {
        self.line
    }

    /// The class of requests that the rule decides.
    pub fn class(&self) -> RequestClass {
        self.class
    }

    /// The part of the buffer in percent, 1 to 99, that requests of this critical rule may fill. While they
    /// have more, the rule's requests are background.
    pub fn share_percent(&self) -> Option<u8> {
        self.share_percent
    }

    /// Whether the rule has conditions about tasks.
    pub fn is_about_tasks(&self) -> bool {
        !self.task.is_empty()
    }

    /// Whether the rule has a condition about files.
    pub fn is_about_files(&self) -> bool {
        self.file.is_some()
    }

    pub(crate) fn holds_for_task(&self, facts: &TaskFacts) -> bool {
        self.task.iter().all(|condition| condition.holds_for(facts))
    }

    pub(crate) fn holds_for_file(&self, path: &[u8]) -> bool {
        self.file.as_ref().is_none_or(|pattern| pattern.matches(path))
    }

    /// Whether this rule has no condition that `other` lacks. It then matches all requests that `other`
    /// matches.
    pub(crate) fn covers(&self, other: &ClassRule) -> bool {
        let covers_file = self.file.is_none() || self.file == other.file;
        covers_file && self.task.iter().all(|condition| other.task.contains(condition))
    }
}

impl Display for ClassRule {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.class.name())?;
        for condition in &self.task {
            match condition {
                TaskCondition::Title(pattern) => write_pattern(f, "title", pattern)?,
                TaskCondition::Thread(pattern) => write_pattern(f, "thread", pattern)?,
                TaskCondition::Cgroup(pattern) => write_pattern(f, "cgroup", pattern)?,
                TaskCondition::Tag(pattern) => write_pattern(f, "tag", pattern)?,
                TaskCondition::Uid(uid) => write!(f, " uid={uid}")?,
                TaskCondition::Nice(range) if range.start() == range.end() => {
                    write!(f, " nice={}", range.start())?;
                }
                TaskCondition::Nice(range) => write!(f, " nice={}..{}", range.start(), range.end())?,
            }
        }
        if let Some(pattern) = &self.file {
            write_pattern(f, "file", pattern)?;
        }
        if let Some(percent) = self.share_percent {
            write!(f, " share={percent}%")?;
        }
        Ok(())
    }
}

fn write_pattern(f: &mut Formatter<'_>, key: &str, pattern: &RulePattern) -> fmt::Result {
    let text = pattern.text();
    if text.contains(char::is_whitespace) {
        write!(f, " {key}=\"{text}\"")
    } else {
        write!(f, " {key}={text}")
    }
}
