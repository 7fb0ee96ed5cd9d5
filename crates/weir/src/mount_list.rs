//! The mounts of this machine, and what their daemons say of them: `weir status` without a directory prints a line for each.

use crate::byte_size::ByteSize;
use crate::error::WeirError;
use crate::escape_control_chars;
use client::WeirMount;
use serde_json::{Value, json};
use std::fmt;
use std::path::Path;
use std::thread;
use weir_status::StatusReport;

/// A mount, and what its daemon says of it.
pub(crate) struct ListedMount {
    mount: WeirMount,
    /// The daemon's report, or why there is none.
    report: Result<Value, UnreportedHealth>,
}

/// The health of a mount without a report that says it. docs/errors.md explains each word.
#[derive(Debug, Clone, Copy)]
enum UnreportedHealth {
    /// The mount has no daemon.
    Dead,
    /// The daemon does not answer, or is stopped.
    Silent,
    /// The daemon's version has other reports.
    Unknown,
}

impl fmt::Display for UnreportedHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            UnreportedHealth::Dead => "dead",
            UnreportedHealth::Silent => "silent",
            UnreportedHealth::Unknown => "unknown",
        })
    }
}

impl ListedMount {
    fn ask(mount: WeirMount) -> ListedMount {
        let report = mount.connect().and_then(|mut daemon| daemon.request("status"));
        let report = report
            .map_err(|_| if mount.is_dead() { UnreportedHealth::Dead } else { UnreportedHealth::Silent });
        ListedMount { mount, report }
    }

    /// The store's path, as the mount table has it.
    pub(crate) fn store(&self) -> &Path {
        self.mount.store()
    }

    /// The directory on which it is mounted.
    pub(crate) fn dir(&self) -> &Path {
        self.mount.dir()
    }

    /// The daemon's report; `None` if there is none, or it is from a daemon of another version.
    pub(crate) fn report(&self) -> Option<StatusReport> {
        serde_json::from_value(self.report.clone().ok()?).ok()
    }

    /// Whether a daemon answers, of whatever version.
    pub(crate) fn has_daemon(&self) -> bool {
        self.report.is_ok()
    }

    /// The health in one word, also of a mount without a report.
    pub(crate) fn health(&self) -> String {
        match &self.report {
            Ok(report) => match report["health"].as_str() {
                Some(health) => health.to_owned(),
                None => UnreportedHealth::Unknown.to_string(),
            },
            Err(health) => health.to_string(),
        }
    }

    fn to_json(&self) -> Value {
        match &self.report {
            Ok(report) => report.clone(),
            Err(health) => {
                let (dir, store) = (self.mount.dir().display(), self.mount.store().display());
                json!({ "health": health.to_string(), "mounted_on": dir.to_string(), "store": store.to_string() })
            }
        }
    }
}

/// All mounts that this user may control, by their directories.
pub(crate) fn list() -> Result<Vec<ListedMount>, WeirError> {
    let mounts = WeirMount::all_of_user()?;
    // A daemon that does not answer takes some seconds.
    let mut listed: Vec<ListedMount> = thread::scope(|scope| {
        let asked: Vec<_> = mounts.into_iter().map(|mount| scope.spawn(|| ListedMount::ask(mount))).collect();
        asked.into_iter().map(|thread| thread.join().expect("no panic while asking")).collect()
    });
    listed.sort_by(|one, other| one.dir().cmp(other.dir()));
    Ok(listed)
}

/// Prints the list.
pub(crate) fn print(as_json: bool) -> Result<(), WeirError> {
    let listed = list()?;
    if as_json {
        let all: Vec<Value> = listed.iter().map(ListedMount::to_json).collect();
        println!("{:#}", Value::from(all));
        return Ok(());
    }
    if listed.is_empty() {
        println!("nothing is mounted");
        return Ok(());
    }
    println!(
        "{:9}  {:>10}  {:>10}  {:>11}  {:>10}  MOUNT",
        "HEALTH", "DIRTY", "OLDEST", "BUFFER FREE", "SPACE FREE"
    );
    for one in &listed {
        println!("{}", line(one));
    }
    Ok(())
}

fn line(one: &ListedMount) -> String {
    let (dir, store, health) = (one.dir().display(), one.store().display(), one.health());
    let line = match (one.report(), &one.report) {
        (Some(report), _) => {
            let log = &report.buffer_log;
            let buffer_free = log.free_bytes * 100 / log.bytes.max(1);
            let restored = if report.damaged_state.is_some() { " (RESTORED)" } else { "" };
            format!(
                "{health:9}  {:>10}  {:>8.1} s  {:>10}%  {:>10}  {dir}: volume {} of {store}{restored}",
                ByteSize(report.dirty.bytes).to_string(),
                report.dirty.age_ms as f64 / 1000.0,
                buffer_free,
                ByteSize(report.space.available_bytes).to_string(),
                report.volume
            )
        }
        (None, Ok(_)) => {
            let health = UnreportedHealth::Unknown;
            format!("{health:9}  {:>47}  {dir}: a daemon of another version, of {store}", "")
        }
        (None, Err(_)) => format!("{health:9}  {:>47}  {dir}: of {store}", ""),
    };
    escape_control_chars(&line)
}
