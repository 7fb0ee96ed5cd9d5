//! Names in commands that people are to type.

use std::path::Path;

/// `path` as one word for a shell.
pub fn shell_quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:,@%".contains(c);
    match !text.is_empty() && !text.starts_with('-') && text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_a_quoted_name_as_one_word() {
        let quoted = |name: &str| shell_quoted(Path::new(name));
        assert_eq!(quoted("/srv/weir-1.0/store"), "/srv/weir-1.0/store");
        assert_eq!(quoted("a; rm -rf /"), "'a; rm -rf /'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
        assert_eq!(quoted(""), "''");
        assert_eq!(quoted("-v"), "'-v'");
    }
}
