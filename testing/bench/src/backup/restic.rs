//! A repository of restic.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::error::BenchError;
use super::super::program::{command, run_until_stopped};

/// A file that belongs to the running server only. PostgreSQL's documentation says to leave it out.
pub(super) const LEFT_OUT: &str = "postmaster.pid";

/// A repository in a directory.
pub(super) struct ResticRepository {
    directory: PathBuf,
    /// Place of restic's temporary files.
    scratch: PathBuf,
}

/// The last line that restic prints about a backup.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct BackupSummary {
    pub(super) files_new: u64,
    pub(super) files_changed: u64,
    pub(super) files_unmodified: u64,
    pub(super) total_bytes_processed: u64,
    /// In seconds.
    pub(super) total_duration: f64,
}

/// A finished backup.
pub(super) struct ResticBackup {
    pub(super) summary: BackupSummary,
    /// The files that restic read, below the directory that was backed up.
    pub(super) read: BTreeSet<PathBuf>,
}

impl ResticRepository {
    /// A repository that is to be in `directory`.
    pub(super) fn new(directory: PathBuf, scratch: &Path) -> ResticRepository {
        ResticRepository { directory, scratch: scratch.into() }
    }

    /// Creates the repository, without the backups of an earlier one.
    pub(super) fn create(&self) -> Result<(), BenchError> {
        if self.directory.exists() {
            fs::remove_dir_all(&self.directory)
                .map_err(|error| BenchError::io("cannot remove", &self.directory, error))?;
        }
        run_until_stopped(&mut self.restic("init")).map(drop)
    }

    /// Backs up all files below `directory` but [`LEFT_OUT`].
    pub(super) fn back_up(&self, directory: &Path) -> Result<ResticBackup, BenchError> {
        let mut backup = self.restic("backup");
        // With `--verbose=2` restic prints a line for each file.
        backup.args(["--json", "--verbose=2", "--exclude", LEFT_OUT, "."]).current_dir(directory);
        parse(&run_until_stopped(&mut backup)?)
    }

    /// Restores the newest backup to `directory`.
    pub(super) fn restore(&self, directory: &Path) -> Result<(), BenchError> {
        run_until_stopped(self.restic("restore").args(["latest", "--target"]).arg(directory)).map(drop)
    }

    fn restic(&self, verb: &str) -> Command {
        let mut restic = command("restic", [verb, "--no-cache", "--repo"]);
        restic.arg(&self.directory).env("RESTIC_PASSWORD", "weir-bench").env("TMPDIR", &self.scratch);
        // Many status lines cost processor time.
        restic.env("RESTIC_PROGRESS_FPS", "1");
        restic
    }
}

/// Reads restic's lines of JSON. A directory's path ends in a slash.
fn parse(lines: &str) -> Result<ResticBackup, BenchError> {
    let failed = |says: String| BenchError::Restic { says };
    let mut read = BTreeSet::new();
    let mut summary = None;
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).map_err(|error| failed(format!("{error}: {line}")))?;
        let item = line["item"].as_str().unwrap_or("");
        match (line["message_type"].as_str(), line["action"].as_str()) {
            (Some("verbose_status"), Some("new" | "modified")) if !item.ends_with('/') => {
                read.insert(PathBuf::from(item.trim_start_matches('/')));
            }
            (Some("summary"), _) => {
                summary = Some(serde_json::from_value(line).map_err(|error| failed(error.to_string()))?);
            }
            _ => {}
        }
    }
    let summary: BackupSummary = summary.ok_or_else(|| failed("there is no summary".to_owned()))?;
    if summary.files_new + summary.files_changed != read.len() as u64 {
        return Err(failed(format!("{summary:?}, but {} files are listed as read", read.len())));
    }
    Ok(ResticBackup { summary, read })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"{"message_type":"status","percent_done":0}
{"message_type":"verbose_status","action":"unchanged","item":"/base/1"}
{"message_type":"verbose_status","action":"modified","item":"/base/2"}
{"message_type":"verbose_status","action":"modified","item":"/base/"}
{"message_type":"verbose_status","action":"new","item":"/3"}
{"message_type":"status","action":"scan_finished","item":""}
{"message_type":"summary","files_new":1,"files_changed":1,"files_unmodified":1,"total_bytes_processed":9,"total_duration":0.5}"#;

    #[test]
    fn new_and_modified_files_were_read() {
        let backup = parse(LINES).expect("lines of restic");
        assert_eq!(backup.read, ["3", "base/2"].map(PathBuf::from).into());
        assert_eq!(backup.summary.files_unmodified, 1);
    }

    #[test]
    fn a_backup_that_does_not_add_up_is_an_error() {
        assert!(parse(&LINES.replace("files_new\":1", "files_new\":2")).is_err());
        assert!(parse("").is_err());
    }
}
