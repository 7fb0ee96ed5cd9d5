//! Reads rule files.

use crate::class_rule::{ClassRule, TaskCondition};
use crate::origin::RequestClass;
use crate::pattern::{PatternKind, RulePattern};
use crate::rule_set::RuleSet;
use std::mem::discriminant;
use std::ops::RangeInclusive;

/// The longest line, in bytes. Messages repeat words of a line.
const LINE_BYTES_MAX: usize = 8192;

/// The longest name of a thread, in bytes.
const THREAD_NAME_BYTES_MAX: usize = 15;

/// The nice values of the kernel.
const NICE_VALUES: RangeInclusive<i8> = -20..=19;

/// An error in a rule file: `line 3: expected …`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct RuleError {
    /// The line, counted from 1.
    pub line: usize,
    /// The words that are wrong, and what was expected.
    pub problem: String,
}

impl RuleSet {
    /// Reads rules, one a line. Returns all errors at once. U+FFFD is an error: it stands for bytes of the file
    /// that are not UTF-8. A byte order mark, with which some editors begin a file, is left out.
    pub fn parse(text: &str) -> Result<RuleSet, Vec<RuleError>> {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut rules = Vec::new();
        let mut errors = Vec::new();
        for (index, text) in text.lines().enumerate() {
            let line = index + 1;
            match parse_line(line, text) {
                Ok(None) => {}
                Ok(Some(_)) if rules.len() == RuleSet::USER_RULES_MAX => {
                    let problem = format!("expected at most {} rules", RuleSet::USER_RULES_MAX);
                    errors.push(RuleError { line, problem });
                    break;
                }
                Ok(Some(rule)) => rules.push(rule),
                Err(problems) => {
                    errors.extend(problems.into_iter().map(|problem| RuleError { line, problem }));
                }
            }
        }
        if errors.is_empty() { Ok(RuleSet::of(rules)) } else { Err(errors) }
    }
}

/// The rule of a line, if it has one, or all that is wrong with the line.
fn parse_line(line: usize, text: &str) -> Result<Option<ClassRule>, Vec<String>> {
    if text.contains(char::REPLACEMENT_CHARACTER) {
        return Err(vec!["expected UTF-8 text".into()]);
    }
    if text.len() > LINE_BYTES_MAX {
        return Err(vec![format!("expected at most {LINE_BYTES_MAX} bytes")]);
    }
    let words = split_words(text).map_err(|problem| vec![problem])?;
    let Some((class, conditions)) = words.split_first() else { return Ok(None) };
    let mut problems = Vec::new();
    let class = RequestClass::named(class).unwrap_or_else(|| {
        problems.push(format!("expected `critical` or `background`, not `{class}`"));
        RequestClass::Critical
    });
    let mut rule = ClassRule { line, class, task: Vec::new(), file: None, share_percent: None };
    for word in conditions {
        if let Err(problem) = rule.add(word) {
            problems.push(problem);
        }
    }
    if rule.share_percent.is_some() && rule.class == RequestClass::Background {
        problems.push("expected `share=` in a critical rule only".into());
    }
    if problems.is_empty() { Ok(Some(rule)) } else { Err(problems) }
}

impl ClassRule {
    /// Adds `KEY=VALUE`.
    fn add(&mut self, word: &str) -> Result<(), String> {
        let (key, value) = word
            .split_once('=')
            .filter(|(_, value)| !value.is_empty())
            .ok_or_else(|| format!("expected a condition such as `title=PATTERN`, not `{word}`"))?;
        let pattern = |kind| {
            if value.contains(char::is_control) {
                return Err(format!("expected no control character after `{key}=`, as in `{value}`"));
            }
            if kind == PatternKind::Path && !value.starts_with('/') && !value.starts_with("**/") {
                return Err(format!("expected `/` or `**/` first after `{key}=`, not `{value}`"));
            }
            if kind == PatternKind::Path && value.len() > 1 && value.ends_with('/') {
                return Err(format!("expected no `/` last after `{key}=`, as in `{value}`"));
            }
            RulePattern::new(value, kind)
                .map_err(|problem| format!("expected a pattern after `{key}=`, not `{value}`: {problem}"))
        };
        let is_new = match key {
            "title" => self.add_task(TaskCondition::Title(pattern(PatternKind::Text)?)),
            "thread" if value.len() > THREAD_NAME_BYTES_MAX && !value.contains(['*', '[', '{', '\\']) => {
                return Err(format!(
                    "expected at most {THREAD_NAME_BYTES_MAX} bytes after `thread=`, not `{value}`: Linux cuts longer names"
                ));
            }
            "thread" => self.add_task(TaskCondition::Thread(pattern(PatternKind::Text)?)),
            "tag" => self.add_task(TaskCondition::Tag(pattern(PatternKind::Text)?)),
            "uid" => {
                let uid = value
                    .parse()
                    .map_err(|_| format!("expected a user's number after `uid=`, not `{value}`"))?;
                self.add_task(TaskCondition::Uid(uid))
            }
            "nice" => self.add_task(TaskCondition::Nice(parse_nice(value)?)),
            "cgroup" => self.add_task(TaskCondition::Cgroup(pattern(PatternKind::Path)?)),
            "file" => self.file.replace(pattern(PatternKind::Path)?).is_none(),
            "share" => self.share_percent.replace(parse_share(value)?).is_none(),
            _ => {
                return Err(format!(
                    "expected title, thread, cgroup, uid, nice, tag, file or share before `=`, not `{key}`"
                ));
            }
        };
        if is_new {
            Ok(())
        } else {
            Err(format!("expected `{key}=` once in a rule: `{{a,b}}` in a pattern matches either"))
        }
    }

    /// Returns `false` if the rule has such a condition already.
    fn add_task(&mut self, condition: TaskCondition) -> bool {
        let is_new = self.task.iter().all(|other| discriminant(other) != discriminant(&condition));
        self.task.push(condition);
        is_new
    }
}

fn parse_nice(value: &str) -> Result<RangeInclusive<i8>, String> {
    let (start, end) = value.split_once("..").unwrap_or((value, value));
    let number = |text: &str| text.parse().ok().filter(|nice| NICE_VALUES.contains(nice));
    match (number(start), number(end)) {
        (Some(start), Some(end)) if start <= end => Ok(start..=end),
        _ => Err(format!("expected N or N..M after `nice=`, from -20 to 19, not `{value}`")),
    }
}

fn parse_share(value: &str) -> Result<u8, String> {
    let percent = value.strip_suffix('%').and_then(|number| number.parse().ok());
    percent
        .filter(|percent| (1..=99).contains(percent))
        .ok_or_else(|| format!("expected 1% to 99% after `share=`, not `{value}`"))
}

/// The words of a line, without its comment. Quotes keep blanks in a word.
fn split_words(line: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut rest = line.trim_start();
    while !rest.is_empty() && !rest.starts_with('#') {
        let mut is_quoted = false;
        let ends_word = |char: char| {
            is_quoted ^= char == '"';
            char.is_whitespace() && !is_quoted
        };
        let end = rest.find(ends_word).unwrap_or(rest.len());
        if is_quoted {
            return Err(format!("expected a second `\"` after `{}`", &rest[..end]));
        }
        words.push(rest[..end].replace('"', ""));
        rest = rest[end..].trim_start();
    }
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(text: &str) -> Vec<String> {
        RuleSet::parse(text).expect("rules").rules().iter().map(ToString::to_string).collect()
    }

    fn errors(text: &str) -> Vec<String> {
        RuleSet::parse(text).expect_err("errors").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_rule_prints_as_its_line() {
        let lines = [
            "background title=\"a b*\" thread=c cgroup=/d uid=34 nice=10..19 tag=e file=/f/**",
            "critical nice=-20",
            "critical file=/a#b share=25%",
        ];
        assert_eq!(printed(&lines.join("\n")), lines);
    }

    #[test]
    fn comments_and_empty_lines_are_no_rules() {
        let text = "# a comment\n\n  \t critical  title=\"#a\" # \"another\r\nbackground";
        assert_eq!(printed(text), ["critical title=#a", "background"]);
        assert_eq!(RuleSet::parse(text).expect("rules").rules()[0].line(), 3);
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        let found = errors(
            "urgent title=a uid=root\n\
             background title=\"a\n\
             background title=a title=b\n\
             critical file=pg_wal size=3 nice=20\n\
             critical title= thread={a\n\
             critical nice=5..1\n\
             background share=25%\n\
             critical share=100% share=1",
        );
        let expected = [
            "line 1: expected `critical` or `background`, not `urgent`",
            "line 1: expected a user's number after `uid=`, not `root`",
            "line 2: expected a second `\"` after `title=\"a`",
            "line 3: expected `title=` once in a rule: `{a,b}` in a pattern matches either",
            "line 4: expected `/` or `**/` first after `file=`, not `pg_wal`",
            "line 4: expected title, thread, cgroup, uid, nice, tag, file or share before `=`, not `size`",
            "line 4: expected N or N..M after `nice=`, from -20 to 19, not `20`",
            "line 5: expected a condition such as `title=PATTERN`, not `title=`",
            "line 5: expected a pattern after `thread=`, not `{a`: unclosed alternate group; missing '}' (maybe escape \
             '{' with '[{]'?)",
            "line 6: expected N or N..M after `nice=`, from -20 to 19, not `5..1`",
            "line 7: expected `share=` in a critical rule only",
            "line 8: expected 1% to 99% after `share=`, not `100%`",
            "line 8: expected 1% to 99% after `share=`, not `1`",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn patterns_that_never_match_are_errors() {
        let found = errors("critical file=/a/ thread=0123456789abcdef\nbackground title=a\0b cgroup=/a/");
        let expected = [
            "line 1: expected no `/` last after `file=`, as in `/a/`",
            "line 1: expected at most 15 bytes after `thread=`, not `0123456789abcdef`: Linux cuts longer names",
            "line 2: expected no control character after `title=`, as in `a\0b`",
            "line 2: expected no `/` last after `cgroup=`, as in `/a/`",
        ];
        assert_eq!(found, expected);
        let lines = ["critical thread={tar,bsdtar,rsync,restic}", "critical cgroup=/ file=/"];
        assert_eq!(printed(&lines.join("\n")), lines);
    }

    #[test]
    fn a_byte_order_mark_is_no_word() {
        assert_eq!(printed("\u{feff}critical title=a"), ["critical title=a"]);
    }

    #[test]
    fn long_lines_are_not_repeated() {
        assert_eq!(errors(&"a".repeat(8193)), ["line 1: expected at most 8192 bytes"]);
    }

    #[test]
    fn more_rules_than_bits_are_refused_once() {
        let rules = |count| "critical\n".repeat(count);
        assert_eq!(printed(&rules(62)).len(), 62);
        assert_eq!(errors(&rules(70)), ["line 63: expected at most 62 rules"]);
    }

    #[test]
    fn bytes_that_are_not_text_are_an_error() {
        let text = String::from_utf8_lossy(b"critical\ncritical file=/\xff");
        assert_eq!(errors(&text), ["line 2: expected UTF-8 text"]);
    }

    #[test]
    fn patterns_have_a_longest_length() {
        let found = errors(&format!("critical title={}", "a".repeat(1001)));
        assert!(found[0].ends_with("longer than 1000 bytes"), "{found:?}");
    }
}
