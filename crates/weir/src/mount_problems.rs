//! Tells the daemon's log what a mount's administrator would want to have been told: that changes are over, that nothing
//! is written back, that something cannot, and when that ends.

use crate::tell;
use cache::{Cache, CacheStatus};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between two looks. A problem that is shorter is not worth a line, and a device that comes and goes writes at most one each.
const INTERVAL: Duration = Duration::from_secs(1);

/// Looks at `cache` until `serving` ends; the process need not wait for it.
pub(crate) fn start(cache: Cache, dir: PathBuf, serving: Arc<AtomicBool>) -> io::Result<()> {
    let watch = move || {
        let mut before = MountProblems::default();
        while serving.load(Ordering::Acquire) {
            let now = MountProblems::of(cache.status());
            now.news_since(&before).iter().for_each(|line| tell(&format!("{}: {line}", dir.display())));
            before = now;
            std::thread::sleep(INTERVAL);
        }
    };
    std::thread::Builder::new().name("watch".into()).spawn(watch).map(drop)
}

/// What is wrong at one moment.
#[derive(Default)]
struct MountProblems {
    /// Why nothing can be changed any more.
    failed: Option<String>,
    /// Where everything is that was in memory then, and why it is not there yet.
    rescued: Option<String>,
    not_rescued: Option<String>,
    /// Why nothing is written back.
    stalled: Option<String>,
    /// How many pages and cuts cannot be written back, and why the first of them.
    stuck: (u64, Option<String>),
}

impl MountProblems {
    fn of(status: CacheStatus) -> MountProblems {
        let first = status.stuck.into_iter().next().map(|stuck| stuck.why);
        let CacheStatus { failed, rescued, not_rescued, stalled, .. } = status;
        MountProblems { failed, rescued, not_rescued, stalled, stuck: (status.stuck_count, first) }
    }

    /// What to say, if it was so `before`.
    fn news_since(&self, before: &MountProblems) -> Vec<String> {
        let mut lines = Vec::new();
        if let (Some(why), None) = (&self.failed, &before.failed) {
            lines.push(format!(
                "error: {why}: read-only from now on, because changes cannot be made durable; synced data is safe: \
                 repair the buffer's device, unmount, and mount again"
            ));
        }
        if let (Some(volume), None) = (&self.rescued, &before.rescued) {
            lines.push(format!(
                "everything that was written, synced or not, is in the store as volume {volume}: repair or replace the \
                 buffer, and mount that volume"
            ));
        }
        if let (Some(why), None) = (&self.not_rescued, &before.not_rescued) {
            lines.push(format!(
                "error: the changes in memory could not be saved to the store: {why}; weir tries again"
            ));
        }
        match (&self.stalled, &before.stalled) {
            (Some(why), None) => {
                lines.push(format!(
                    "warning: {why}; changes remain durable in the buffer as long as it has space"
                ));
            }
            (None, Some(_)) => lines.push("write-back works again".into()),
            _ => {}
        }
        match (&self.stuck, &before.stuck) {
            ((count @ 1.., Some(why)), (0, _)) => lines.push(format!(
                "warning: {count} changes cannot be written back and stay in the buffer, durable; the first: {why}; `weir status` \
                 lists them"
            )),
            ((0, _), (1.., _)) => lines.push("all changes that could not be written back are now stored or superseded".into()),
            _ => {}
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_told_when_it_begins_and_when_it_ends_and_not_in_between() {
        let none = MountProblems::default();
        let stalled = |seconds: u32| MountProblems {
            stalled: Some(format!("for {seconds} s")),
            ..MountProblems::default()
        };
        assert_eq!(none.news_since(&none), [""; 0]);
        assert!(stalled(1).news_since(&none)[0].contains("for 1 s"));
        assert_eq!(stalled(2).news_since(&stalled(1)), [""; 0]);
        assert_eq!(none.news_since(&stalled(2)), ["write-back works again"]);

        let stuck =
            |count| MountProblems { stuck: (count, Some("block 7".into())), ..MountProblems::default() };
        assert!(stuck(2).news_since(&none)[0].contains("2 changes cannot be written back"));
        assert_eq!(stuck(5).news_since(&stuck(2)), [""; 0]);
        assert_eq!(none.news_since(&stuck(5)).len(), 1);

        let failed = MountProblems { failed: Some("the buffer: EIO".into()), ..MountProblems::default() };
        assert!(failed.news_since(&none)[0].contains("the buffer: EIO: read-only"));
        assert_eq!(failed.news_since(&failed), [""; 0]);
        let not_rescued = Some("the store: ENOSPC".to_string());
        let at_risk =
            MountProblems { failed: failed.failed.clone(), not_rescued, ..MountProblems::default() };
        assert!(
            at_risk.news_since(&failed)[0].contains("could not be saved to the store: the store: ENOSPC")
        );
        let rescued = MountProblems {
            rescued: Some("rescued-7".into()),
            failed: failed.failed.clone(),
            ..MountProblems::default()
        };
        assert!(rescued.news_since(&at_risk)[0].contains("volume rescued-7"));
        assert_eq!(rescued.news_since(&rescued), [""; 0]);
    }
}
