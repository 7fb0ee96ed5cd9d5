//! Fills the report of `weir why`, whose fields `weir_status` declares and documents.

use crate::mounted_volume::MountedVolume;
use crate::status_report::{millis, whole_millis};
use crate::store_daemon::RequestRefusal;
use cache::{RequestWait, RequestWaits, WaitCause};
use device::Clock;
use host::SystemClock;
use request::Origin;
use std::time::Duration;
use weir_status::{WaitReport, WaitsReport};

/// The most requests that are reported of those that wait now.
const WAITING_MAX: usize = 256;

impl MountedVolume {
    /// The answer of `weir why`. `path`, from the mount's root, limits it to requests to one file or directory; an
    /// empty path does not.
    pub(crate) fn waits_report(&self, path: &str) -> Result<WaitsReport, RequestRefusal> {
        let file = if path.is_empty() { None } else { Some(self.inode_at(path)?) };
        let is_wanted = |wait: &RequestWait| file.is_none_or(|file| wait.origin.file == file.0);
        let RequestWaits { now, mut waiting, mut ended } = self.daemon.stack.cache.waits();
        waiting.retain(is_wanted);
        waiting.sort_by_key(|wait| wait.since);
        waiting.truncate(WAITING_MAX);
        ended.retain(|ended| is_wanted(&ended.wait));
        let path = file.map(|_| self.dir.join(path).to_string_lossy().into_owned());
        let in_force = self.daemon.policy.in_force();
        let report = |wait: &RequestWait, took| {
            let Origin { task, rule, class, kind, file, logs_at_once: _ } = wait.origin;
            let age = now.saturating_sub(wait.since);
            WaitReport {
                began_unix_ms: whole_millis(unix_time().saturating_sub(age)),
                waited_ms: millis(took),
                task: (task != 0).then_some(task),
                title: None,
                class: class.name().into(),
                rule: in_force.rule_since(rule, age).map(ToString::to_string),
                request: kind.name().into(),
                inode: (file != 0).then_some(file),
                path: path.clone(),
                waits_for: cause_word(wait.cause).into(),
                lent_for: wait.lent_for,
                lent_for_title: None,
            }
        };
        Ok(WaitsReport {
            waiting: waiting.iter().map(|wait| report(wait, now.saturating_sub(wait.since))).collect(),
            ended: ended.iter().rev().map(|ended| report(&ended.wait, ended.took)).collect(),
        })
    }
}

/// The time since 1970.
fn unix_time() -> Duration {
    Duration::from_nanos(u64::try_from(SystemClock::new().wall_nanos()).unwrap_or(0))
}

/// The word for a cause in the report.
fn cause_word(cause: WaitCause) -> &'static str {
    match cause {
        WaitCause::BufferSpace => "buffer-space",
        WaitCause::DirtyMemory => "dirty-memory",
        WaitCause::StoreSpace => "store-space",
        WaitCause::EarlierRequest => "earlier-request",
        WaitCause::StoredPage => "stored-page",
        WaitCause::Commit => "commit",
        WaitCause::WriteBack => "write-back",
    }
}
