//! What the buffer is for: the policy of a mount.

use crate::class_rule::ClassRule;
use crate::origin::RequestClass;
use crate::pattern::RulePattern;
use crate::rule_set::RuleSet;
use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// What the buffer is for. It prints as the word that a user gives.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum BufferPolicy {
    /// `none`: all data goes through the buffer, except large sequential writes.
    #[default]
    Streams,
    /// `all`: all data goes through the buffer.
    All,
    /// `sync`: whole pages bypass the buffer until a sync needs them.
    Sync,
    /// `file=PATH`: as `sync`, but only requests to one file, or to files in one directory, are critical.
    File(CriticalPath),
    /// `critical`, `critical+process`, `critical+process+io`: as `sync`, and rules say which requests are
    /// critical.
    Critical(LendingLevel),
}

/// Which background operations are treated as critical while a critical one waits for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LendingLevel {
    /// None.
    None,
    /// Operations that are not yet admitted.
    Admission,
    /// Operations that are not yet admitted, and syncs that wait for the store.
    AdmissionAndSync,
}

/// A file or directory whose requests are critical: a path from the mount's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CriticalPath(String);

impl BufferPolicy {
    /// Whether whole pages bypass the buffer until a critical sync needs them.
    pub fn whole_pages_bypass_buffer(&self) -> bool {
        !matches!(self, BufferPolicy::Streams | BufferPolicy::All)
    }

    /// Which background operations are treated as critical while a critical one waits for them.
    pub fn lending_level(&self) -> LendingLevel {
        match self {
            BufferPolicy::Critical(level) => *level,
            _ => LendingLevel::None,
        }
    }

    /// The rules in force, if the user gave `rules`, which only the `critical` policies follow. These also
    /// have two rules about tags.
    pub fn rules_in_force(&self, rules: RuleSet) -> RuleSet {
        match self {
            BufferPolicy::Streams | BufferPolicy::All | BufferPolicy::Sync => RuleSet::default(),
            BufferPolicy::File(CriticalPath(path)) => {
                let path = RulePattern::at_or_below(path).expect("checked when it was parsed");
                RuleSet::of(vec![
                    rule(RequestClass::Critical, Some(path)),
                    rule(RequestClass::Background, None),
                ])
            }
            BufferPolicy::Critical(_) => rules.with_tags(),
        }
    }
}

/// A rule for all tasks that comes from no file.
fn rule(class: RequestClass, file: Option<RulePattern>) -> ClassRule {
    ClassRule { line: 0, class, task: Vec::new(), file, share_percent: None }
}

impl FromStr for BufferPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<BufferPolicy, String> {
        if let Some(path) = text.strip_prefix("file=") {
            if !path.starts_with('/') {
                return Err("expected `/` after `file=`: the path begins at the mount's root".into());
            }
            RulePattern::at_or_below(path).map_err(|problem| format!("expected a path: {problem}"))?;
            return Ok(BufferPolicy::File(CriticalPath(path.into())));
        }
        match text {
            "none" => Ok(BufferPolicy::Streams),
            "all" => Ok(BufferPolicy::All),
            "sync" => Ok(BufferPolicy::Sync),
            "critical" => Ok(BufferPolicy::Critical(LendingLevel::None)),
            "critical+process" => Ok(BufferPolicy::Critical(LendingLevel::Admission)),
            "critical+process+io" => Ok(BufferPolicy::Critical(LendingLevel::AdmissionAndSync)),
            _ => {
                Err("expected none, all, sync, file=PATH, critical, critical+process or critical+process+io"
                    .into())
            }
        }
    }
}

impl Display for BufferPolicy {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            BufferPolicy::Streams => f.write_str("none"),
            BufferPolicy::All => f.write_str("all"),
            BufferPolicy::Sync => f.write_str("sync"),
            BufferPolicy::File(CriticalPath(path)) => write!(f, "file={path}"),
            BufferPolicy::Critical(LendingLevel::None) => f.write_str("critical"),
            BufferPolicy::Critical(LendingLevel::Admission) => f.write_str("critical+process"),
            BufferPolicy::Critical(LendingLevel::AdmissionAndSync) => f.write_str("critical+process+io"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> BufferPolicy {
        text.parse().expect("a policy")
    }

    #[test]
    fn a_policy_prints_as_its_word() {
        let words =
            ["none", "all", "sync", "file=/a b/*", "critical", "critical+process", "critical+process+io"];
        words.iter().for_each(|word| assert_eq!(parse(word).to_string(), *word));
    }

    #[test]
    fn other_words_are_refused() {
        for word in ["", "ALL", "critical+io", "file=", "file=a", &format!("file=/{}", "a".repeat(1000))] {
            let refused = word.parse::<BufferPolicy>().expect_err(word);
            assert!(refused.starts_with("expected "), "{refused}");
        }
    }

    #[test]
    fn policies_differ_in_bypass_and_lending() {
        let of = |word| {
            let policy = parse(word);
            (policy.whole_pages_bypass_buffer(), policy.lending_level())
        };
        assert_eq!(of("none"), (false, LendingLevel::None));
        assert_eq!(of("all"), (false, LendingLevel::None));
        assert_eq!(of("sync"), (true, LendingLevel::None));
        assert_eq!(of("file=/a"), (true, LendingLevel::None));
        assert_eq!(of("critical"), (true, LendingLevel::None));
        assert_eq!(of("critical+process"), (true, LendingLevel::Admission));
        assert_eq!(of("critical+process+io"), (true, LendingLevel::AdmissionAndSync));
    }

    #[test]
    fn only_the_named_file_is_critical() {
        let rules = parse("file=/pg/pg_wal/").rules_in_force(RuleSet::default());
        let class = |path: &[u8]| rules.decide(rules.unknown_task_mask(), rules.file_mask(path)).class;
        assert_eq!(class(b"/pg/pg_wal"), RequestClass::Critical);
        assert_eq!(class(b"/pg/pg_wal/a/b"), RequestClass::Critical);
        assert_eq!(class(b"/pg/pg_wal2"), RequestClass::Background);
        assert_eq!(class(b"/"), RequestClass::Background);
    }

    #[test]
    fn a_users_rules_are_in_force_only_under_critical() {
        let rules = RuleSet::parse("background").expect("rules");
        let in_force = |word| parse(word).rules_in_force(rules.clone()).rules().len();
        assert_eq!([in_force("all"), in_force("sync"), in_force("critical")], [0, 0, 3]);
    }
}
