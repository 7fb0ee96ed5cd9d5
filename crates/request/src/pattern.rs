//! Patterns of rules: globs.

use globset::{GlobBuilder, GlobMatcher};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The longest pattern, in bytes.
pub(crate) const PATTERN_BYTES_MAX: usize = 1000;

/// How a pattern treats `/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PatternKind {
    /// `*` and `?` match every character.
    Text,
    /// `*` and `?` do not match `/`; `**` does.
    Path,
}

/// A glob that matches whole values.
#[derive(Debug, Clone)]
pub(crate) struct RulePattern {
    text: String,
    matcher: GlobMatcher,
}

impl RulePattern {
    /// Compiles a pattern. The error says what is wrong with `text`.
    pub(crate) fn new(text: &str, kind: PatternKind) -> Result<RulePattern, String> {
        if text.len() > PATTERN_BYTES_MAX {
            return Err(format!("longer than {PATTERN_BYTES_MAX} bytes"));
        }
        let glob = GlobBuilder::new(text)
            .literal_separator(kind == PatternKind::Path)
            .backslash_escape(true)
            .empty_alternates(true)
            .build()
            .map_err(|error| error.kind().to_string())?;
        Ok(RulePattern { text: text.into(), matcher: glob.compile_matcher() })
    }

    /// The pattern for the file `path`, and for everything below if it is a directory.
    pub(crate) fn at_or_below(path: &str) -> Result<RulePattern, String> {
        RulePattern::new(&(literal_pattern(path.trim_end_matches('/')) + "{,/**}"), PatternKind::Path)
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn matches(&self, value: &[u8]) -> bool {
        self.matcher.is_match(OsStr::from_bytes(value))
    }
}

/// The pattern that matches `text` alone.
pub fn literal_pattern(text: &str) -> String {
    let mut pattern = String::new();
    for char in text.chars() {
        if "\\*?[]{}".contains(char) {
            pattern.push('\\');
        }
        pattern.push(char);
    }
    pattern
}

impl PartialEq for RulePattern {
    fn eq(&self, other: &RulePattern) -> bool {
        self.text == other.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(kind: PatternKind, pattern: &str, value: &str) -> bool {
        RulePattern::new(pattern, kind).expect("a pattern").matches(value.as_bytes())
    }

    #[test]
    fn text_patterns_match_the_whole_value() {
        let matches = |pattern, value| matches(PatternKind::Text, pattern, value);
        assert!(matches("*checkpointer", "postgres: 15/main: checkpointer"));
        assert!(!matches("checkpointer", "postgres: checkpointer"));
        assert!(matches("a*b", "a\n/b"));
        assert!(matches("{tar,rsync}", "rsync"));
        assert!(matches(r"\*[!a]?", "*bc"));
        assert!(!matches("", "a"));
    }

    #[test]
    fn path_patterns_need_two_stars_to_cross_directories() {
        let matches = |pattern, value| matches(PatternKind::Path, pattern, value);
        assert!(matches("/pg/pg_wal/**", "/pg/pg_wal/archive_status/a"));
        assert!(!matches("/pg/pg_wal/**", "/pg/pg_wal"));
        assert!(!matches("/pg/*", "/pg/pg_wal/a"));
        assert!(matches("**/pg_wal/**", "/pg_wal/a"));
        assert!(matches("**/pg_wal/**", "/data/pg/pg_wal/a/b"));
        assert!(matches("/**", "/"));
    }

    #[test]
    fn patterns_match_bytes_that_are_not_text() {
        let pattern = RulePattern::new("/a/?*", PatternKind::Path).expect("a pattern");
        assert!(pattern.matches(b"/a/\xff"));
    }

    #[test]
    fn a_path_and_everything_below_match() {
        let pattern = RulePattern::at_or_below(r"/a*/{b}\[c]").expect("a pattern");
        assert!(pattern.matches(br"/a*/{b}\[c]"));
        assert!(pattern.matches(br"/a*/{b}\[c]/d/e"));
        assert!(!pattern.matches(br"/a*/{b}\[c]d"));
        assert!(!pattern.matches(b"/ab/b/c"));
        let root = RulePattern::at_or_below("/").expect("a pattern");
        assert!(root.matches(b"/") && root.matches(b"/a/b"));
    }
}
