//! Fills the report of `weir why`, whose fields `weir_status` declares and documents.

use crate::mounted_volume::MountedVolume;
use crate::status_report::{millis, whole_millis};
use crate::store_daemon::RequestRefusal;
use cache::{CauseWaits, EndedWait, RequestWait, RequestWaits, WaitCause};
use device::Clock;
use host::SystemClock;
use request::Origin;
use std::cmp::Reverse;
use std::time::Duration;
use weir_status::{WaitReport, WaitTotalsReport, WaitsReport};

/// The most requests that are reported of those that wait now.
const WAITING_MAX: usize = 256;

impl MountedVolume {
    /// The answer of `weir why`. `path`, from the mount's root, limits the waits to requests to one file or directory; an
    /// empty path does not. The totals are those of all waits.
    pub(crate) fn waits_report(&self, path: &str) -> Result<WaitsReport, RequestRefusal> {
        let file = if path.is_empty() { None } else { Some(self.inode_at(path)?) };
        let is_wanted = |wait: &RequestWait| file.is_none_or(|file| wait.origin.file == file.0);
        let RequestWaits { now, mut waiting, mut ended, mut by_cause } = self.daemon.stack.cache.waits();
        waiting.retain(is_wanted);
        keep_longest(&mut waiting);
        ended.retain(|ended| is_wanted(&ended.wait));
        by_cause.sort_by_key(|waits| Reverse(waits.total));
        let totals = by_cause.iter().map(totals_report).collect();
        by_cause.retain(|waits| is_wanted(&waits.longest.wait));
        by_cause.sort_by_key(|waits| Reverse(waits.longest.took));
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
        let report_ended = |ended: &EndedWait| report(&ended.wait, ended.took);
        Ok(WaitsReport {
            waiting: waiting.iter().map(|wait| report(wait, now.saturating_sub(wait.since))).collect(),
            ended: ended.iter().rev().map(report_ended).collect(),
            longest: by_cause.iter().map(|waits| report_ended(&waits.longest)).collect(),
            totals,
            policy: in_force.shown_policy(),
        })
    }
}

/// Sorts waits, the longest first, and leaves out the shortest beyond [`WAITING_MAX`].
fn keep_longest(waiting: &mut Vec<RequestWait>) {
    waiting.sort_by_key(|wait| wait.since);
    waiting.truncate(WAITING_MAX);
}

fn totals_report(waits: &CauseWaits) -> WaitTotalsReport {
    WaitTotalsReport {
        waits_for: cause_word(waits.longest.wait.cause).into(),
        count: waits.count,
        total_ms: millis(waits.total),
        longest_ms: millis(waits.longest.took),
    }
}

/// The time since 1970.
pub(crate) fn unix_time() -> Duration {
    Duration::from_nanos(u64::try_from(SystemClock::new().wall_nanos()).unwrap_or(0))
}

/// The word for a cause in the report.
fn cause_word(cause: WaitCause) -> &'static str {
    match cause {
        WaitCause::BufferSpace => "buffer-space",
        WaitCause::DirtyMemory => "dirty-memory",
        WaitCause::EarlierCopies => "earlier-copies",
        WaitCause::StoreSpace => "store-space",
        WaitCause::EarlierRequest => "earlier-request",
        WaitCause::StoredPage => "stored-page",
        WaitCause::Commit => "commit",
        WaitCause::WriteBack => "write-back",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_too_many_waits_are_kept() {
        let wait = |since| RequestWait {
            origin: Origin::UNMATCHED,
            cause: WaitCause::Commit,
            since: Duration::from_millis(since),
            lent_for: None,
        };
        let mut waiting: Vec<RequestWait> = (0..300).rev().map(wait).collect();
        keep_longest(&mut waiting);
        let longest: Vec<RequestWait> = (0..WAITING_MAX as u64).map(wait).collect();
        assert_eq!(waiting, longest);
    }
}
