//! The mounts of this machine, and what their daemons say of them: `weir status` without a directory prints a line for each.

use crate::error::WeirError;
use crate::json_schema::JsonSchema;
use crate::mount_row::{self, MountFigures, MountRow};
use client::{ClientError, WeirMount};
use serde_json::{Value, json};
use std::fmt;
use std::io::{self, IsTerminal};
use std::path::Path;
use std::thread;
use std::time::Duration;
use weir_status::StatusReport;

/// The time over which the list measures rates. The command asks each daemon twice, because a daemon that kept rates itself would
/// wake up for them all the time, also while nobody asks. A longer time would make the rates steadier, and the command slower.
const RATE_TIME: Duration = Duration::from_millis(200);

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
    /// Asks the daemon of a mount for its report.
    pub(crate) fn ask(mount: WeirMount) -> ListedMount {
        let report = mount.connect().and_then(|mut daemon| daemon.request("status"));
        let report = report.map_err(|error| match error {
            ClientError::DaemonGone { .. } => UnreportedHealth::Dead,
            // The kernel would ask the daemon, and that thread would hang as long as the daemon does.
            ClientError::DaemonSilent { .. } | ClientError::DaemonStopped { .. } => UnreportedHealth::Silent,
            _ if mount.is_dead() => UnreportedHealth::Dead,
            _ => UnreportedHealth::Silent,
        });
        ListedMount { mount, report }
    }

    /// The mount.
    pub(crate) fn mount(&self) -> &WeirMount {
        &self.mount
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

    /// The mount in one line. Rates are since the report before.
    pub(crate) fn row(&self, before: Option<&StatusReport>) -> MountRow {
        let report = self.report();
        let store = self.store().display();
        let volume = match &report {
            Some(report) => {
                let restored = if report.damaged_state.is_some() { " (RESTORED)" } else { "" };
                format!("{} of {store}{restored}", report.volume)
            }
            None if self.has_daemon() => format!("a daemon of another version, of {store}"),
            None => format!("of {store}"),
        };
        MountRow {
            health: self.health(),
            dir: self.dir().display().to_string(),
            figures: report.map(|report| MountFigures::of(&report, before)),
            volume,
        }
    }

    fn to_json(&self) -> Value {
        match &self.report {
            Ok(report) => report.clone(),
            Err(health) => {
                let (dir, store) = (self.mount.dir().display(), self.mount.store().display());
                JsonSchema::STATUS.add_to(json!({
                    "health": health.to_string(),
                    "mounted_on": dir.to_string(),
                    "store": store.to_string(),
                }))
            }
        }
    }
}

/// All mounts that this user may control, by their directories.
pub(crate) fn list() -> Result<Vec<ListedMount>, WeirError> {
    let mut listed = ask_all(ListedMount::ask)?;
    listed.sort_by(|one, other| one.dir().cmp(other.dir()));
    Ok(listed)
}

/// All mounts that this user may control, in a line each, by their directories.
fn rows() -> Result<Vec<MountRow>, WeirError> {
    let mut rows = ask_all(row_with_rates)?;
    rows.sort_by(|one, other| one.dir.cmp(&other.dir));
    Ok(rows)
}

/// Asks the daemon of a mount twice if it answers.
fn row_with_rates(mount: WeirMount) -> MountRow {
    let first = ListedMount::ask(mount);
    let Some(before) = first.report() else { return first.row(None) };
    thread::sleep(RATE_TIME);
    ListedMount::ask(first.mount).row(Some(&before))
}

/// Asks the daemons of all mounts that this user may control, all at once: a daemon that does not answer takes some seconds.
fn ask_all<T: Send>(ask: fn(WeirMount) -> T) -> Result<Vec<T>, WeirError> {
    let mounts = WeirMount::all_of_user()?;
    Ok(thread::scope(|scope| {
        let asked: Vec<_> = mounts.into_iter().map(|mount| scope.spawn(move || ask(mount))).collect();
        asked.into_iter().map(|thread| thread.join().expect("no panic while asking")).collect()
    }))
}

/// Prints the list. A script gets lines without a head.
pub(crate) fn print(as_json: bool) -> Result<(), WeirError> {
    if as_json {
        let all: Vec<Value> = list()?.iter().map(ListedMount::to_json).collect();
        println!("{:#}", Value::from(all));
        return Ok(());
    }
    let mut lines: Vec<_> = rows()?.iter().map(MountRow::cells).collect();
    if lines.is_empty() {
        println!("nothing is mounted");
        return Ok(());
    }
    if io::stdout().is_terminal() {
        lines.insert(0, mount_row::HEADS.map(str::to_owned));
    }
    for line in mount_row::aligned(&lines) {
        println!("{line}");
    }
    Ok(())
}
