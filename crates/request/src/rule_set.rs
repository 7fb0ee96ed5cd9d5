//! Rules in their order, and the masks with which they decide quickly.

use crate::class_rule::{ClassRule, TaskCondition};
use crate::origin::{Origin, RequestClass};
use crate::pattern::{PatternKind, RulePattern};
use crate::task_facts::TaskFacts;
use std::ops::BitAnd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A set of rules of one rule set: bit N stands for rule N.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RuleMask(pub u64);

impl RuleMask {
    /// No rule.
    pub const NONE: RuleMask = RuleMask(0);

    /// Whether rule `index` is in the set.
    pub fn contains(self, index: usize) -> bool {
        self.0 >> index & 1 == 1
    }
}

impl BitAnd for RuleMask {
    type Output = RuleMask;

    #[inline]
    fn bitand(self, other: RuleMask) -> RuleMask {
        RuleMask(self.0 & other.0)
    }
}

/// The rules of a mount, in their order. The first rule that matches a request decides its class.
#[derive(Debug, Clone, Default)]
pub struct RuleSet {
    rules: Vec<ClassRule>,
    background: RuleMask,
    /// Critical rules about files.
    of_critical_files: RuleMask,
    /// Rules whose requests have more of the buffer than their share. All clones have the same.
    beyond_share: Arc<AtomicU64>,
}

/// What rules decide about a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RuleDecision {
    /// The index of the rule that decides, or [`Origin::NO_RULE`].
    pub rule: u8,
    /// The class of the request.
    pub class: RequestClass,
    /// See [`Origin::logs_at_once`].
    pub logs_at_once: bool,
}

impl RuleDecision {
    /// The decision if no rule matches.
    pub const NO_RULE: RuleDecision =
        RuleDecision { rule: Origin::NO_RULE, class: RequestClass::Critical, logs_at_once: false };
}

/// A rule that never decides, because an earlier rule matches all that it matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CoveredRule {
    /// The index of the rule.
    pub rule: usize,
    /// The index of the earlier rule.
    pub by: usize,
}

impl RuleSet {
    /// The most rules: as many as a mask has bits.
    pub const RULES_MAX: usize = Origin::NO_RULE as usize;

    /// The most rules of a file: two more are weir's own.
    pub const USER_RULES_MAX: usize = RuleSet::RULES_MAX - 2;

    pub(crate) fn of(rules: Vec<ClassRule>) -> RuleSet {
        assert!(rules.len() <= RuleSet::RULES_MAX, "a mask has a bit for each rule");
        let background = mask_of(&rules, |rule| rule.class() == RequestClass::Background);
        let of_critical_files =
            mask_of(&rules, |rule| rule.class() == RequestClass::Critical && rule.is_about_files());
        RuleSet { rules, background, of_critical_files, beyond_share: Arc::default() }
    }

    /// These rules behind two others: a task that a user tagged `critical` or `background` is that.
    pub(crate) fn with_tags(self) -> RuleSet {
        let tagged = |class: RequestClass| {
            let tag = RulePattern::new(class.name(), PatternKind::Text).expect("a word is a pattern");
            ClassRule { line: 0, class, task: vec![TaskCondition::Tag(tag)], file: None, share_percent: None }
        };
        let own = [RequestClass::Critical, RequestClass::Background].map(tagged);
        RuleSet::of(own.into_iter().chain(self.rules).collect())
    }

    /// The rules, in their order.
    pub fn rules(&self) -> &[ClassRule] {
        &self.rules
    }

    /// The rules whose conditions about tasks hold for a task with these facts.
    pub fn task_mask(&self, facts: &TaskFacts) -> RuleMask {
        mask_of(&self.rules, |rule| rule.holds_for_task(facts))
    }

    /// The rules that hold for every task: those without a condition about tasks. The mask of a task whose
    /// facts are unknown.
    pub fn unknown_task_mask(&self) -> RuleMask {
        mask_of(&self.rules, |rule| !rule.is_about_tasks())
    }

    /// The rules that hold for every task with this class as its tag. They have no condition about tasks, or
    /// only that one.
    pub fn tagged_task_mask(&self, class: RequestClass) -> RuleMask {
        mask_of(&self.rules, |rule| rule.task.iter().all(|condition| condition.is_tag(class)))
    }

    /// The rules whose condition about files holds for `path`, which begins with `/` at the mount's root.
    pub fn file_mask(&self, path: &[u8]) -> RuleMask {
        mask_of(&self.rules, |rule| rule.holds_for_file(path))
    }

    /// The rules that hold for every file: those without a condition about files.
    pub fn unnamed_file_mask(&self) -> RuleMask {
        mask_of(&self.rules, |rule| !rule.is_about_files())
    }

    /// Decides about a request. `task` has the rules that hold for its task, `file` those that hold for its file.
    #[inline]
    pub fn decide(&self, task: RuleMask, file: RuleMask) -> RuleDecision {
        let matching = (task & file).0;
        // `trailing_zeros` of 0 is 64, which is `NO_RULE`, and 0 has no lowest bit.
        let rule = matching.trailing_zeros() as u8;
        let lowest_bit = matching & matching.wrapping_neg();
        let background = self.background.0 | self.beyond_share.load(Ordering::Relaxed);
        let class =
            if lowest_bit & background == 0 { RequestClass::Critical } else { RequestClass::Background };
        RuleDecision { rule, class, logs_at_once: lowest_bit & self.of_critical_files.0 & !background != 0 }
    }

    /// The share of a rule in percent, if it has one.
    pub fn share_percent(&self, rule: usize) -> Option<u8> {
        self.rules.get(rule)?.share_percent()
    }

    /// Makes the requests of these rules background, and those of all others what their rule says. For whoever
    /// counts the bytes that each rule has in the buffer.
    pub fn set_beyond_share(&self, rules: RuleMask) {
        self.beyond_share.store(rules.0, Ordering::Relaxed);
    }

    /// The rules whose requests are background because they have more of the buffer than their share.
    pub fn beyond_share(&self) -> RuleMask {
        RuleMask(self.beyond_share.load(Ordering::Relaxed))
    }

    /// Whether the rules of this task leave some file for which its requests are critical.
    pub fn may_be_critical(&self, task: RuleMask) -> bool {
        let mut holding = self.rules.iter().enumerate().filter(|&(index, _)| task.contains(index));
        let deciding = |(_, rule): (usize, &ClassRule)| match rule.class() {
            RequestClass::Critical => Some(true),
            RequestClass::Background => (!rule.is_about_files()).then_some(false),
        };
        holding.find_map(deciding).unwrap_or(true)
    }

    /// Rules that never decide, because an earlier rule has none but the same conditions.
    pub fn covered_rules(&self) -> Vec<CoveredRule> {
        let covering = |rule: usize| {
            let by = self.rules[..rule].iter().position(|earlier| earlier.covers(&self.rules[rule]))?;
            Some(CoveredRule { rule, by })
        };
        (0..self.rules.len()).filter_map(covering).collect()
    }
}

fn mask_of(rules: &[ClassRule], is_in: impl Fn(&ClassRule) -> bool) -> RuleMask {
    let bits = rules.iter().enumerate().filter(|(_, rule)| is_in(rule));
    RuleMask(bits.fold(0, |mask, (index, _)| mask | 1 << index))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> RuleSet {
        RuleSet::parse(text).expect("rules")
    }

    fn facts(title: &str) -> TaskFacts {
        TaskFacts { title: title.into(), ..TaskFacts::default() }
    }

    /// A decision by a rule that is not about files, or not critical.
    fn decision(rule: u8, class: RequestClass) -> RuleDecision {
        RuleDecision { rule, class, logs_at_once: false }
    }

    #[test]
    fn files_of_critical_rules_are_logged_at_once() {
        let rules = parse("critical file=/wal share=5%\nbackground file=/data\ncritical");
        let logs_at_once =
            |path: &[u8]| rules.decide(rules.unknown_task_mask(), rules.file_mask(path)).logs_at_once;
        assert_eq!([&b"/wal"[..], b"/data", b"/other"].map(logs_at_once), [true, false, false]);
        rules.set_beyond_share(RuleMask(1));
        assert!(!logs_at_once(b"/wal"), "beyond its share the rule's requests are background");
    }

    #[test]
    fn unmatched_requests_are_critical() {
        let rules = parse("background title=tar file=/a");
        let tar = rules.task_mask(&facts("tar"));
        let other = rules.task_mask(&facts("cp"));
        let file = rules.file_mask(b"/a");
        assert_eq!(rules.decide(tar, file), decision(0, RequestClass::Background));
        assert_eq!(rules.decide(other, file), RuleDecision::NO_RULE);
        assert_eq!(rules.decide(tar, rules.file_mask(b"/b")), RuleDecision::NO_RULE);
        assert_eq!(RuleSet::default().decide(RuleMask(!0), RuleMask::NONE).class, RequestClass::Critical);
    }

    #[test]
    fn a_task_may_be_critical_for_some_files_only() {
        let may_be = |text| parse(text).may_be_critical(parse(text).task_mask(&facts("tar")));
        assert!(may_be(""));
        assert!(may_be("critical title=tar\nbackground"));
        assert!(may_be("background file=/a"));
        assert!(may_be("critical file=/a\nbackground"));
        assert!(!may_be("background\ncritical file=/a"));
        assert!(!may_be("background file=/b\nbackground title=tar\ncritical"));
    }

    #[test]
    fn unknown_tasks_meet_rules_about_files_alone() {
        let rules = parse("background title=*\nbackground file=/log\ncritical");
        assert_eq!(rules.unknown_task_mask(), RuleMask(0b110));
        assert_eq!(rules.unnamed_file_mask(), RuleMask(0b101));
        let log = rules.file_mask(b"/log");
        assert_eq!(rules.decide(rules.unknown_task_mask(), log), decision(1, RequestClass::Background));
    }

    #[test]
    fn a_tag_alone_decides_under_rules_with_tags() {
        let rules = parse("background title=tar\ncritical file=/log").with_tags();
        let decided = |class| rules.decide(rules.tagged_task_mask(class), rules.file_mask(b"/log"));
        assert_eq!(decided(RequestClass::Critical), decision(0, RequestClass::Critical));
        assert_eq!(decided(RequestClass::Background), decision(1, RequestClass::Background));
        let with_more = parse("critical tag=background title=tar");
        assert_eq!(with_more.tagged_task_mask(RequestClass::Background), RuleMask::NONE);
        let without_tags = parse("background title=tar\ncritical file=/log");
        assert_eq!(without_tags.tagged_task_mask(RequestClass::Background), without_tags.unknown_task_mask());
    }

    #[test]
    fn the_last_of_sixty_four_rules_decides() {
        let rules = parse(&("critical uid=1\n".repeat(61) + "background")).with_tags();
        let task = rules.task_mask(&TaskFacts::default());
        assert_eq!(rules.decide(task, rules.file_mask(b"/")), decision(63, RequestClass::Background));
    }

    #[test]
    fn a_cgroup_contains_the_cgroups_below() {
        let rules = parse("background cgroup=/a.slice/*.service");
        let mask =
            |cgroup: &str| rules.task_mask(&TaskFacts { cgroup: cgroup.into(), ..TaskFacts::default() });
        assert_eq!(mask("/a.slice/b.service"), RuleMask(1));
        assert_eq!(mask("/a.slice/b.service/c"), RuleMask(1));
        assert_eq!(mask("/a.slice"), RuleMask::NONE);
        assert_eq!(mask("/c/a.slice/b.service"), RuleMask::NONE);
    }

    #[test]
    fn conditions_about_numbers_compare_numbers() {
        let rules = parse("background uid=34\nbackground nice=10..19\nbackground nice=-5");
        let mask = |uid, nice| rules.task_mask(&TaskFacts { uid, nice, ..TaskFacts::default() }).0;
        assert_eq!(mask(34, 10), 0b011);
        assert_eq!(mask(3, 19), 0b010);
        assert_eq!(mask(0, 9), 0);
        assert_eq!(mask(0, -5), 0b100);
    }

    #[test]
    fn covered_rules_are_found() {
        let rules = parse(
            "critical title=a\n\
             critical title=a file=/b   # covered by 0\n\
             critical title=b\n\
             background                 # covers all others\n\
             critical file=/b",
        );
        let covered = |rule, by| CoveredRule { rule, by };
        assert_eq!(rules.covered_rules(), [covered(1, 0), covered(4, 3)]);
    }

    /// Whether a glob of plain characters, `*` and `**` matches, tried character by character.
    fn glob_matches(pattern: &[u8], value: &[u8], crosses_directories: bool) -> bool {
        match pattern {
            [] => value.is_empty(),
            [b'*', rest @ ..] => {
                let crosses_directories = crosses_directories || rest.starts_with(b"*");
                let rest = rest.strip_prefix(b"*").unwrap_or(rest);
                let reaches = |len: &usize| crosses_directories || !value[..*len].contains(&b'/');
                (0..=value.len())
                    .take_while(reaches)
                    .any(|len| glob_matches(rest, &value[len..], crosses_directories))
            }
            [char, rest @ ..] => {
                value.first() == Some(char) && glob_matches(rest, &value[1..], crosses_directories)
            }
        }
    }

    /// A rule, as a model of what its line says.
    #[derive(Debug, Clone)]
    struct ModelRule {
        class: RequestClass,
        title: Option<String>,
        uid: Option<u32>,
        file: Option<String>,
    }

    impl ModelRule {
        fn line(&self) -> String {
            let mut line = self.class.name().to_owned();
            self.title.iter().for_each(|title| line += &format!(" title=\"{title}\""));
            self.uid.iter().for_each(|uid| line += &format!(" uid={uid}"));
            self.file.iter().for_each(|file| line += &format!(" file={file}"));
            line
        }

        fn matches(&self, facts: &TaskFacts, path: &str) -> bool {
            let glob = |pattern: &String, value: &str, crosses| {
                glob_matches(pattern.as_bytes(), value.as_bytes(), crosses)
            };
            self.title.as_ref().is_none_or(|title| glob(title, &facts.title, true))
                && self.uid.is_none_or(|uid| facts.uid == uid)
                && self.file.as_ref().is_none_or(|file| glob(file, path, false))
        }
    }

    fn model_rule() -> impl Strategy<Value = ModelRule> {
        let class = prop_oneof![Just(RequestClass::Critical), Just(RequestClass::Background)];
        let title = proptest::option::of("[ab*]{1,4}");
        let path = "(/[ab]{0,2}[*]?[ab]?){1,2}(/[*][*])?";
        let path = path.prop_filter("no path of a file ends so", |path| path == "/" || !path.ends_with('/'));
        let file = proptest::option::of(path);
        (class, title, proptest::option::of(0..2_u32), file).prop_map(|(class, title, uid, file)| ModelRule {
            class,
            title,
            uid,
            file,
        })
    }

    proptest! {
        #[test]
        fn the_first_match_decides(
            model in prop::collection::vec(model_rule(), 0..20),
            title in "[ab]{0,4}", uid in 0..2_u32, path in "(/[ab]{1,2}){1,3}",
        ) {
            let lines: Vec<String> = model.iter().map(ModelRule::line).collect();
            let rules = parse(&lines.join("\n"));
            let facts = TaskFacts { uid, ..facts(&title) };
            let first = model.iter().position(|rule| rule.matches(&facts, &path));
            let expected = first.map_or(RuleDecision::NO_RULE, |index| {
                let ModelRule { class, ref file, .. } = model[index];
                let logs_at_once = class == RequestClass::Critical && file.is_some();
                RuleDecision { rule: index as u8, class, logs_at_once }
            });
            prop_assert_eq!(rules.decide(rules.task_mask(&facts), rules.file_mask(path.as_bytes())), expected);
        }
    }
}
