//! Logs the problems of a store that its administrator has to know: changes can no longer be made durable,
//! nothing is written back, some changes cannot be written back. Each is logged when it begins and when it
//! ends.

use cache::{Cache, CacheStatus};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The time between two checks. A shorter problem is not worth a line, and a device that comes and goes
/// causes at most one line per check.
const INTERVAL: Duration = Duration::from_secs(1);

/// Checks `cache` until `serving` is false, in a thread of its own. The process need not wait for the thread.
pub(crate) fn start(cache: Cache, store: PathBuf, serving: Arc<AtomicBool>) -> io::Result<()> {
    let watch = move || {
        let mut before = MountProblems::default();
        while serving.load(Ordering::Acquire) {
            let now = MountProblems::of(cache.status());
            for news in now.news_since(&before) {
                news.log(&store);
            }
            before = now;
            std::thread::sleep(INTERVAL);
        }
    };
    std::thread::Builder::new().name("watch".into()).spawn(watch).map(drop)
}

/// The problems of a mount at one moment.
#[derive(Default)]
struct MountProblems {
    /// Why the mount is read-only from now on.
    failed: Option<String>,
    /// The volume with everything that was in memory when the buffer failed.
    rescued: Option<String>,
    /// Why that volume is not complete yet.
    not_rescued: Option<String>,
    /// Why nothing is written back.
    stalled: Option<String>,
    /// Pages and cuts that cannot be written back.
    stuck_count: u64,
    /// Why the first of them cannot.
    first_stuck: Option<String>,
}

/// A message about a problem that has begun or ended.
#[derive(Debug, PartialEq, Eq)]
enum ProblemNews {
    Error(String),
    Warning(String),
    Info(String),
}

impl ProblemNews {
    fn log(&self, store: &Path) {
        let store = store.display();
        match self {
            ProblemNews::Error(text) => tracing::error!("{store}: {text}"),
            ProblemNews::Warning(text) => tracing::warn!("{store}: {text}"),
            ProblemNews::Info(text) => tracing::info!("{store}: {text}"),
        }
    }
}

impl MountProblems {
    fn of(status: CacheStatus) -> MountProblems {
        MountProblems {
            failed: status.failed,
            rescued: status.rescued,
            not_rescued: status.not_rescued,
            stalled: status.stalled,
            stuck_count: status.stuck_count,
            first_stuck: status.stuck.into_iter().next().map(|stuck| stuck.why),
        }
    }

    /// The messages about what has begun or ended since `before`.
    fn news_since(&self, before: &MountProblems) -> Vec<ProblemNews> {
        let mut news = Vec::new();
        if let (Some(why), None) = (&self.failed, &before.failed) {
            news.push(ProblemNews::Error(format!(
                "{why}: read-only from now on, because changes cannot be made durable; synced data is safe: \
                 repair the buffer's device, unmount, and mount again"
            )));
        }
        if let (Some(volume), None) = (&self.rescued, &before.rescued) {
            news.push(ProblemNews::Info(format!(
                "everything that was written, synced or not, is in the store as volume {volume}: repair or replace the \
                 buffer, and mount that volume"
            )));
        }
        if let (Some(why), None) = (&self.not_rescued, &before.not_rescued) {
            news.push(ProblemNews::Error(format!(
                "the changes in memory could not be saved to the store: {why}; weir tries again"
            )));
        }
        match (&self.stalled, &before.stalled) {
            (Some(why), None) => news.push(ProblemNews::Warning(format!(
                "{why}; changes remain durable in the buffer as long as it has space"
            ))),
            (None, Some(_)) => news.push(ProblemNews::Info("write-back works again".into())),
            _ => {}
        }
        if self.stuck_count > 0 && before.stuck_count == 0 {
            let count = self.stuck_count;
            let first = self.first_stuck.as_deref().unwrap_or_default();
            news.push(ProblemNews::Warning(format!(
                "{count} changes cannot be written back and stay in the buffer, durable; the first: {first}; `weir status` \
                 lists them"
            )));
        }
        if self.stuck_count == 0 && before.stuck_count > 0 {
            let text = "all changes that could not be written back are now stored or superseded";
            news.push(ProblemNews::Info(text.into()));
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The only message of `news`.
    fn text(mut news: Vec<ProblemNews>) -> String {
        assert_eq!(news.len(), 1, "{news:?}");
        let (ProblemNews::Error(text) | ProblemNews::Warning(text) | ProblemNews::Info(text)) =
            news.remove(0);
        text
    }

    #[test]
    fn problem_is_logged_when_it_begins_and_when_it_ends() {
        let none = MountProblems::default();
        let stalled = |seconds: u32| MountProblems {
            stalled: Some(format!("for {seconds} s")),
            ..MountProblems::default()
        };
        assert_eq!(none.news_since(&none), []);
        assert!(text(stalled(1).news_since(&none)).contains("for 1 s"));
        assert_eq!(stalled(2).news_since(&stalled(1)), []);
        assert_eq!(none.news_since(&stalled(2)), [ProblemNews::Info("write-back works again".into())]);

        let stuck = |count| MountProblems {
            stuck_count: count,
            first_stuck: Some("block 7".into()),
            ..MountProblems::default()
        };
        assert!(text(stuck(2).news_since(&none)).contains("2 changes cannot be written back"));
        assert_eq!(stuck(5).news_since(&stuck(2)), []);
        assert_eq!(none.news_since(&stuck(5)).len(), 1);

        let failed = MountProblems { failed: Some("the buffer: EIO".into()), ..MountProblems::default() };
        assert!(text(failed.news_since(&none)).contains("the buffer: EIO: read-only"));
        assert_eq!(failed.news_since(&failed), []);
        let not_rescued = Some("the store: ENOSPC".to_string());
        let at_risk =
            MountProblems { failed: failed.failed.clone(), not_rescued, ..MountProblems::default() };
        let news = text(at_risk.news_since(&failed));
        assert!(news.contains("could not be saved to the store: the store: ENOSPC"));
        let rescued = MountProblems {
            rescued: Some("rescued-7".into()),
            failed: failed.failed,
            ..MountProblems::default()
        };
        assert!(text(rescued.news_since(&at_risk)).contains("volume rescued-7"));
        assert_eq!(rescued.news_since(&rescued), []);
    }
}
