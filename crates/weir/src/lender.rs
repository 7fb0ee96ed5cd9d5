//! Lends the priority of critical tasks to background tasks that they wait for in the kernel.
//!
//! The thread sleeps until a background request is under way for [`OVERDUE`]. Then it looks, again and again, for
//! which locks critical tasks wait. It lends to what waits at that moment, so there is nothing to take back. Without the
//! permission to read the waits of a task it guesses from the files that critical tasks used lately.

use crate::lending_plan::{OVERDUE, TaskWaits, loans_at, overdue_requests};
use crate::mount_point::device_of;
use cache::{Cache, RequestWait, TaskLoan};
use fs::{Fs, Ino};
use fuse::{BackgroundRequests, LockedInodes, RequestClasses, TaskCursor};
use host::{MountTable, OpenInode, TaskReadError, TaskWait, TaskWaitReader};
use request::LendingLevel;
use rustix::time::{ClockId, clock_gettime};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use weir_status::LendingReport;

/// Looks take at most one part in so many of the time of a processor.
const PROCESSOR_PART: u32 = 100;

/// The most processor time that is saved up for looks.
const SAVED_MAX: Duration = Duration::from_millis(10);

/// Critical tasks that a look begins with. If there are more, the next look begins with others.
const CRITICAL_TASKS_MAX: usize = 64;

/// The most loans after one look: each passes over everything that waits in the cache. The next look makes others.
const LOANS_MAX: usize = 256;

/// Threads of one lock holder that are looked at.
const HOLDER_THREADS_MAX: usize = 1024;

/// How long the known mounts are believed. The kernel uses the ids of removed mounts again, so a mount may be
/// mistaken for another one meanwhile: a loan too many or too few. Reading a long table takes milliseconds.
const MOUNTS_KNOWN_FOR: Duration = Duration::from_secs(10);

/// Counts of a mount, over all of its policies.
#[derive(Default)]
pub(crate) struct LendingCounters {
    looks: AtomicU64,
    lent: AtomicU64,
}

impl LendingCounters {
    /// The part `lending` of `weir status`, of a mount on which these requests wait.
    pub(crate) fn report(&self, waiting: &[RequestWait]) -> LendingReport {
        let present = waiting.iter().filter(|wait| wait.lent_for.is_some()).count() as u64;
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        LendingReport { looks: count(&self.looks), lent: count(&self.lent), present }
    }
}

/// The mount whose operations can wait.
pub(crate) struct LendingMount {
    pub(crate) cache: Cache,
    pub(crate) fs: Fs,
    pub(crate) classes: Arc<RequestClasses>,
    pub(crate) dir: PathBuf,
}

/// A running thread that lends, which ends after this is dropped.
pub(crate) struct LenderThread {
    requests: Arc<BackgroundRequests>,
}

impl LenderThread {
    /// Starts to lend up to `level` to those with `requests` under way.
    pub(crate) fn start(
        mount: LendingMount,
        level: LendingLevel,
        requests: Arc<BackgroundRequests>,
        counters: Arc<LendingCounters>,
    ) -> io::Result<LenderThread> {
        let waits = MountWaits::new(mount.dir, mount.fs, mount.classes.clone());
        let lender = Lender {
            cache: mount.cache,
            classes: mount.classes,
            level,
            requests: requests.clone(),
            counters,
            waits,
            cursor: TaskCursor::default(),
        };
        thread::Builder::new().name("lender".into()).spawn(move || lender.run())?;
        Ok(LenderThread { requests })
    }
}

impl Drop for LenderThread {
    fn drop(&mut self) {
        self.requests.close();
    }
}

struct Lender {
    cache: Cache,
    classes: Arc<RequestClasses>,
    level: LendingLevel,
    requests: Arc<BackgroundRequests>,
    counters: Arc<LendingCounters>,
    waits: MountWaits,
    cursor: TaskCursor,
}

impl Lender {
    fn run(mut self) {
        let mut budget = LookBudget { saved: SAVED_MAX, since: Instant::now() };
        let mut pause = OVERDUE;
        while self.requests.wait_for_one() {
            self.requests.rest(pause);
            let begun = processor_time();
            let loans = self.look();
            pause = budget.pause_after(processor_time().saturating_sub(begun), Instant::now());
            // The time of a loan does not count: the pages that are logged here would be stored otherwise.
            let lent = loans.into_iter().filter(|&loan| self.cache.lend(loan, self.level)).count();
            self.counters.lent.fetch_add(lent as u64, Ordering::Relaxed);
        }
    }

    /// The loans to make at this moment.
    fn look(&mut self) -> Vec<TaskLoan> {
        let now = Instant::now();
        let overdue = overdue_requests(self.requests.under_way(), now);
        if overdue.is_empty() {
            return Vec::new();
        }
        self.counters.looks.fetch_add(1, Ordering::Relaxed);
        let critical = self.classes.recent_critical_tasks(&mut self.cursor, CRITICAL_TASKS_MAX);
        let are_used = |locks: &LockedInodes| self.requests.are_used_by_critical(locks);
        let mut loans = loans_at(now, &critical, &overdue, &mut self.waits, are_used);
        loans.truncate(LOANS_MAX);
        loans
    }
}

/// The processor time that looks may take.
struct LookBudget {
    saved: Duration,
    /// Until when time has been turned into savings.
    since: Instant,
}

impl LookBudget {
    /// The pause after a look that took `spent` and ended at `now`.
    fn pause_after(&mut self, spent: Duration, now: Instant) -> Duration {
        let earned = now.saturating_duration_since(self.since) / PROCESSOR_PART;
        let saved = (self.saved + earned).min(SAVED_MAX);
        let owed = spent.saturating_sub(saved) * PROCESSOR_PART;
        self.saved = saved.saturating_sub(spent);
        self.since = now + owed;
        OVERDUE.max(owed)
    }
}

/// The processor time of this thread.
fn processor_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// The locks of the kernel that tasks wait for, as far as they belong to a mount.
struct MountWaits {
    dir: PathBuf,
    fs: Fs,
    classes: Arc<RequestClasses>,
    reader: TaskWaitReader,
    /// The major and minor number of the mounted file system, once it is known.
    device: Option<(u32, u32)>,
    /// Whether a mount, by its id, is of this file system.
    known_mounts: HashMap<u64, bool>,
    known_since: Instant,
    /// Whether a task could not be read for lack of permission.
    was_refused: bool,
}

impl MountWaits {
    fn new(dir: PathBuf, fs: Fs, classes: Arc<RequestClasses>) -> MountWaits {
        MountWaits {
            dir,
            fs,
            classes,
            reader: TaskWaitReader::default(),
            device: None,
            known_mounts: HashMap::new(),
            known_since: Instant::now(),
            was_refused: false,
        }
    }

    /// Whether `open`, which `task` has open, is in this file system. A task in a container has mounts of its own.
    fn is_ours(&mut self, task: u32, open: OpenInode) -> bool {
        if self.known_since.elapsed() > MOUNTS_KNOWN_FOR {
            self.known_mounts.clear();
            self.known_since = Instant::now();
        }
        if let Some(&is_ours) = self.known_mounts.get(&open.mount_id) {
            return is_ours;
        }
        let device = self.device();
        if let Ok(mounts) = MountTable::of_process(task) {
            let known = mounts.iter().map(|mount| (mount.id, Some(mount.device) == device));
            self.known_mounts.extend(known);
        }
        // Pipes and sockets are on mounts that no table has.
        *self.known_mounts.entry(open.mount_id).or_insert(false)
    }

    fn device(&mut self) -> Option<(u32, u32)> {
        if self.device.is_none() {
            self.device = device_of(&self.dir).ok();
        }
        self.device
    }

    fn note_refusal(&mut self) {
        if !std::mem::replace(&mut self.was_refused, true) {
            tracing::warn!(
                "{}: weir may not read in /proc for what programs wait, so it lends to all slow background \
                 requests for files that critical programs used lately; run it as root, or with CAP_SYS_PTRACE and \
                 CAP_DAC_READ_SEARCH",
                self.dir.display()
            );
        }
    }
}

impl TaskWaits for MountWaits {
    fn wait_of(&mut self, task: u32) -> TaskWait {
        match self.reader.read(task) {
            Ok(TaskWait::Inodes(mut inodes)) => {
                inodes.retain(|&open| self.is_ours(task, open));
                TaskWait::Inodes(inodes)
            }
            Ok(TaskWait::FileLock(locked)) if !self.is_ours(task, locked) => TaskWait::Other,
            Ok(wait) => wait,
            Err(TaskReadError::NotPermitted) => {
                self.note_refusal();
                TaskWait::Other
            }
            Err(_) => TaskWait::Other,
        }
    }

    fn was_refused(&self) -> bool {
        self.was_refused
    }

    fn is_critical(&self, task: u32, inode: Ino) -> bool {
        self.classes.is_critical(task, self.fs.rules_of(inode))
    }

    fn lock_holders(&mut self, inode: Ino) -> Vec<u32> {
        let Some(device) = self.device() else { return Vec::new() };
        let processes = host::lock_holders(device, inode.0).unwrap_or_default();
        processes.into_iter().flat_map(|pid| host::process_threads(pid, HOLDER_THREADS_MAX)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cache::WaitCause;
    use request::Origin;

    /// Looks that take `spent` each for `time`. Returns how many there were, and the longest pause.
    fn looks_in(time: Duration, spent: impl Fn(u32) -> Duration) -> (u32, Duration) {
        let begun = Instant::now();
        let mut budget = LookBudget { saved: SAVED_MAX, since: begun };
        let mut now = begun;
        let mut looks = 0;
        let mut longest = Duration::ZERO;
        while now < begun + time {
            let took = spent(looks);
            now += took;
            let pause = budget.pause_after(took, now);
            now += pause;
            longest = longest.max(pause);
            looks += 1;
        }
        (looks, longest)
    }

    #[test]
    fn a_loan_is_present_while_its_request_waits() {
        let wait = |lent_for| RequestWait {
            origin: Origin::UNMATCHED,
            cause: WaitCause::WriteBack,
            since: Duration::ZERO,
            lent_for,
        };
        let report = LendingCounters::default().report(&[wait(None), wait(Some(7)), wait(Some(0))]);
        assert_eq!(report, LendingReport { looks: 0, lent: 0, present: 2 });
    }

    #[test]
    fn short_looks_are_made_every_two_milliseconds() {
        let (looks, longest) = looks_in(Duration::from_secs(10), |_| Duration::from_micros(15));
        assert_eq!(longest, OVERDUE);
        assert!(looks > 4900, "{looks}");
    }

    #[test]
    fn long_looks_take_one_percent_of_the_time() {
        let spent = Duration::from_micros(500);
        let (looks, _) = looks_in(Duration::from_secs(100), |_| spent);
        let part = (looks * spent).as_secs_f64() / 100.0;
        assert!((0.0095..0.0105).contains(&part), "{part}");
    }

    #[test]
    fn a_single_long_look_causes_no_long_pause() {
        let spent = |look| Duration::from_micros(if look % 1000 == 999 { 6000 } else { 10 });
        let (_, longest) = looks_in(Duration::from_secs(10), spent);
        assert_eq!(longest, OVERDUE);
    }
}
