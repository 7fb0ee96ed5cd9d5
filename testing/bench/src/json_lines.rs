//! A file of results, one line of JSON for each, so that a long experiment can continue where it stopped.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::BenchError;

/// The results in a file, and those added.
pub(super) struct JsonLines<T> {
    path: PathBuf,
    file: File,
    all: Vec<T>,
}

impl<T: Serialize + DeserializeOwned> JsonLines<T> {
    /// Reads the results, or makes the file. An incomplete last line is removed, so its result is measured
    /// again.
    pub(super) fn open(path: &Path) -> Result<JsonLines<T>, BenchError> {
        let failed = |what| move |error| BenchError::io(what, path, error);
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed("cannot read")(error)),
        };
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let all = parse(path, whole)?;
        let file = OpenOptions::new().create(true).append(true).open(path).map_err(failed("cannot open"))?;
        file.set_len(whole.len() as u64).map_err(failed("cannot cut"))?;
        Ok(JsonLines { path: path.to_path_buf(), file, all })
    }

    /// The results of the file, then the added ones.
    pub(super) fn all(&self) -> &[T] {
        &self.all
    }

    pub(super) fn add(&mut self, one: T) -> Result<(), BenchError> {
        let line = format!("{}\n", serde_json::json!(one));
        self.file
            .write_all(line.as_bytes())
            .map_err(|error| BenchError::io("cannot write", &self.path, error))?;
        self.all.push(one);
        Ok(())
    }
}

fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<Vec<T>, BenchError> {
    let one = |line| serde_json::from_str(line).map_err(std::io::Error::from);
    text.lines()
        .map(one)
        .collect::<Result<_, _>>()
        .map_err(|error| BenchError::io("cannot understand", path, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_there_again_and_a_torn_line_is_not() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("results");
        let mut lines = JsonLines::open(&path).expect("a new file");
        lines.add("one".to_owned()).expect("written");
        lines.add("two".to_owned()).expect("written");
        lines.file.write_all(b"\"thr").expect("written");
        let mut again = JsonLines::<String>::open(&path).expect("the same file");
        assert_eq!(again.all(), ["one", "two"]);
        again.add("three".to_owned()).expect("written");
        let reopened = JsonLines::<String>::open(&path).expect("the same file");
        assert_eq!(reopened.all(), ["one", "two", "three"]);
    }
}
