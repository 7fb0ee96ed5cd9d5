//! Which background tasks critical tasks wait for. Pure.
//!
//! The kernel does not tell who holds one of its locks. But it holds the lock of a file while the daemon answers a
//! write, a sync or a change of size, and that of a directory for each change of a name. So whoever waits for
//! such a lock waits for all requests under way that may have it.

use cache::TaskLoan;
use fs::Ino;
use fuse::{BackgroundRequest, LockedInodes};
use host::TaskWait;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::time::{Duration, Instant};

/// A background request that takes as long or longer may hold up others. Also the shortest pause between two looks.
pub(crate) const OVERDUE: Duration = Duration::from_millis(2);

/// A background request that takes as long or longer may hold up a critical task whose waits cannot be read. Most requests
/// that wait for a disk are shorter.
const SUSPICIOUS: Duration = Duration::from_millis(20);

/// The most tasks that one plan looks at.
const LOOKS_MAX: usize = 256;

/// The locks of the kernel that tasks wait for.
pub(crate) trait TaskWaits {
    /// The locks that a task may wait for, without those of other file systems.
    fn wait_of(&mut self, task: u32) -> TaskWait;

    /// Whether the wait of some task could not be read for lack of permission.
    fn was_refused(&self) -> bool;

    /// Whether requests of a task to `inode` are critical.
    fn is_critical(&self, task: u32, inode: Ino) -> bool;

    /// The threads of all processes that hold a file lock on `inode`.
    fn lock_holders(&mut self, inode: Ino) -> Vec<u32>;
}

/// The requests that have been under way for [`OVERDUE`] at `now`.
pub(crate) fn overdue_requests(
    mut under_way: Vec<BackgroundRequest>,
    now: Instant,
) -> Vec<BackgroundRequest> {
    under_way.retain(|request| now.saturating_duration_since(request.since) >= OVERDUE);
    under_way
}

/// The loans to make at `now` to tasks with `requests` under way. Guesses only if the wait of some task cannot be read.
pub(crate) fn loans_at(
    now: Instant,
    critical: &[u32],
    requests: &[BackgroundRequest],
    waits: &mut impl TaskWaits,
    are_used_by_critical: impl Fn(&LockedInodes) -> bool,
) -> Vec<TaskLoan> {
    let mut loans = loans_for(critical, requests, waits);
    if waits.was_refused() {
        loans.extend(loans_to_suspects(requests, now - SUSPICIOUS, are_used_by_critical));
    }
    loans
}

/// Loans to the tasks with requests under way that `critical` tasks wait for, directly or through the holders of
/// file locks: one to each. Of a critical task only the waits for files count for which its requests are critical. Each task is
/// looked at once, or once more if it turns out to hold a lock.
fn loans_for(critical: &[u32], requests: &[BackgroundRequest], waits: &mut impl TaskWaits) -> Vec<TaskLoan> {
    let mut lent_for = BTreeMap::new();
    // A task with a request under way waits for the daemon, not for a lock.
    let answered_later: HashSet<u32> = requests.iter().map(|request| request.task).collect();
    let mut critical = critical.iter().copied().filter(|task| !answered_later.contains(task));
    let mut holders_left = VecDeque::new();
    let mut followed = HashSet::new();
    let mut locked_files = HashSet::new();
    for _ in 0..LOOKS_MAX {
        let (task, waiter) = match critical.next() {
            Some(task) => (task, task),
            None => match holders_left.pop_front() {
                Some(holder) => holder,
                None => break,
            },
        };
        if followed.contains(&task) {
            continue;
        }
        let wait = waits.wait_of(task);
        if task == waiter && !is_critical(task, &wait, waits) {
            continue;
        }
        followed.insert(task);
        let holders = match wait {
            TaskWait::Inodes(inodes) => {
                tasks_of(requests, |request| inodes.iter().any(|open| request.locks.has(Ino(open.inode))))
            }
            // Which directories cannot be read without reading the task's memory.
            TaskWait::Directories => tasks_of(requests, |request| request.locks.changes_names),
            TaskWait::FileLock(locked) if locked_files.insert(locked.inode) => {
                waits.lock_holders(Ino(locked.inode))
            }
            TaskWait::FileLock(_) | TaskWait::Other => Vec::new(),
        };
        for holder in holders {
            if answered_later.contains(&holder) {
                lent_for.entry(holder).or_insert(waiter);
            } else {
                holders_left.push_back((holder, waiter));
            }
        }
    }
    lent_for.into_iter().map(|(to, lent_for)| TaskLoan { to, lent_for }).collect()
}

/// Loans to the tasks with requests since `latest` or longer, on files that critical tasks use. A guess, for critical tasks
/// whose waits cannot be read.
fn loans_to_suspects(
    requests: &[BackgroundRequest],
    latest: Instant,
    are_used_by_critical: impl Fn(&LockedInodes) -> bool,
) -> Vec<TaskLoan> {
    let may_block =
        |request: &&BackgroundRequest| request.since <= latest && are_used_by_critical(&request.locks);
    let tasks: BTreeSet<u32> = requests.iter().filter(may_block).map(|request| request.task).collect();
    tasks.into_iter().map(|to| TaskLoan { to, lent_for: 0 }).collect()
}

/// Whether a wait of a task that makes critical requests is for one.
fn is_critical(task: u32, wait: &TaskWait, waits: &impl TaskWaits) -> bool {
    match wait {
        TaskWait::Inodes(inodes) => inodes.iter().any(|open| waits.is_critical(task, Ino(open.inode))),
        TaskWait::FileLock(locked) => waits.is_critical(task, Ino(locked.inode)),
        TaskWait::Directories => true,
        TaskWait::Other => false,
    }
}

fn tasks_of(requests: &[BackgroundRequest], is_wanted: impl Fn(&BackgroundRequest) -> bool) -> Vec<u32> {
    requests.iter().filter(|request| is_wanted(request)).map(|request| request.task).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use host::OpenInode;
    use std::collections::HashMap;

    fn open(inode: u64) -> OpenInode {
        OpenInode { inode, mount_id: 1 }
    }

    fn on_file(inode: u64) -> TaskWait {
        TaskWait::Inodes(vec![open(inode)])
    }

    fn on_lock(inode: u64) -> TaskWait {
        TaskWait::FileLock(open(inode))
    }

    fn request(task: u32, inode: u64) -> BackgroundRequest {
        let locks = LockedInodes { inode: Ino(inode), other: None, changes_names: false };
        BackgroundRequest { task, locks, since: Instant::now() }
    }

    fn name_change(task: u32, inode: u64, other: Option<u64>) -> BackgroundRequest {
        let locks = LockedInodes { inode: Ino(inode), other: other.map(Ino), changes_names: true };
        BackgroundRequest { task, locks, since: Instant::now() }
    }

    /// Tasks, what they wait for, and the holders of file locks.
    #[derive(Default)]
    struct Model {
        waits: HashMap<u32, TaskWait>,
        holders: HashMap<u64, Vec<u32>>,
        background_files: HashSet<u64>,
        was_refused: bool,
        looked_at: Vec<u32>,
    }

    impl TaskWaits for Model {
        fn wait_of(&mut self, task: u32) -> TaskWait {
            self.looked_at.push(task);
            self.waits.get(&task).cloned().unwrap_or(TaskWait::Other)
        }

        fn was_refused(&self) -> bool {
            self.was_refused
        }

        fn is_critical(&self, _task: u32, inode: Ino) -> bool {
            !self.background_files.contains(&inode.0)
        }

        fn lock_holders(&mut self, inode: Ino) -> Vec<u32> {
            self.holders.get(&inode.0).cloned().unwrap_or_default()
        }
    }

    /// The plan for a model; no task may be looked at twice.
    fn plan(critical: &[u32], requests: &[BackgroundRequest], model: &mut Model) -> Vec<u32> {
        let loans = loans_for(critical, requests, model);
        let looks: HashSet<&u32> = model.looked_at.iter().collect();
        assert_eq!(looks.len(), model.looked_at.len(), "{:?}", model.looked_at);
        loans.iter().map(|loan| loan.to).collect()
    }

    fn model(waits: &[(u32, TaskWait)], holders: &[(u64, &[u32])]) -> Model {
        Model {
            waits: waits.iter().cloned().collect(),
            holders: holders.iter().map(|&(inode, tasks)| (inode, tasks.to_vec())).collect(),
            ..Model::default()
        }
    }

    #[test]
    fn a_blocked_task_reaches_all_requests_on_its_file() {
        let requests = [request(11, 3), request(12, 4), request(13, 3), name_change(14, 9, Some(3))];
        let mut one = model(&[(1, on_file(3))], &[]);
        assert_eq!(plan(&[1, 2], &requests, &mut one), [11, 13, 14]);
        let mut none = model(&[(11, on_file(4))], &[]);
        assert!(plan(&[1, 2], &requests, &mut none).is_empty());
    }

    #[test]
    fn a_wait_for_a_background_file_counts_for_holders_only() {
        let requests = [request(11, 3)];
        let mut alone = model(&[(1, on_file(3))], &[]);
        alone.background_files.insert(3);
        assert!(plan(&[1], &requests, &mut alone).is_empty());
        let mut holder = model(&[(1, on_file(3)), (2, on_lock(4))], &[(4, &[1])]);
        holder.background_files.insert(3);
        assert_eq!(loans_for(&[1, 2], &requests, &mut holder), [TaskLoan { to: 11, lent_for: 2 }]);
    }

    #[test]
    fn a_copy_between_two_files_reaches_requests_on_both() {
        let requests = [request(11, 3), request(12, 4), request(13, 5)];
        let mut model = model(&[(1, TaskWait::Inodes(vec![open(3), open(5)]))], &[]);
        assert_eq!(plan(&[1], &requests, &mut model), [11, 13]);
    }

    #[test]
    fn a_call_about_names_reaches_all_changes_of_names() {
        let requests = [request(11, 3), name_change(12, 4, None), name_change(13, 5, Some(6))];
        assert_eq!(plan(&[1], &requests, &mut model(&[(1, TaskWait::Directories)], &[])), [12, 13]);
        assert_eq!(plan(&[1], &requests, &mut model(&[(1, on_file(6))], &[])), [13]);
    }

    #[test]
    fn a_task_with_a_request_under_way_waits_for_no_lock() {
        let requests = [request(1, 3), request(11, 3)];
        let mut one = model(&[(1, on_file(3))], &[]);
        assert!(plan(&[1], &requests, &mut one).is_empty());
        let mut other = model(&[(2, on_file(3))], &[]);
        assert_eq!(plan(&[1, 2], &requests, &mut other), [1, 11], "another critical task waits for it");
    }

    #[test]
    fn chains_of_file_locks_are_followed_to_all_threads_of_holders() {
        let waits: Vec<_> = (1..6).map(|task| (task, on_lock(task.into()))).collect();
        let mut model = model(&waits, &[(1, &[20, 2]), (2, &[3]), (3, &[4]), (4, &[5]), (5, &[6, 7, 8])]);
        model.waits.insert(7, on_file(30));
        let requests = [request(6, 40), request(11, 30), request(12, 31)];
        assert_eq!(plan(&[1], &requests, &mut model), [6, 11]);
    }

    #[test]
    fn tasks_that_wait_for_each_other_end_the_search() {
        let mut model = model(&[(1, on_lock(1)), (2, on_lock(2))], &[(1, &[2]), (2, &[1, 2])]);
        assert!(plan(&[1, 2], &[request(11, 1)], &mut model).is_empty());
    }

    #[test]
    fn long_requests_on_files_of_critical_tasks_may_block() {
        let latest = Instant::now();
        let short = BackgroundRequest { since: latest + Duration::from_millis(1), ..request(13, 3) };
        let long = |request| BackgroundRequest { since: latest, ..request };
        let requests = [long(request(11, 3)), long(request(12, 4)), short, long(name_change(14, 5, Some(3)))];
        let loans = loans_to_suspects(&requests, latest, |locks| locks.has(Ino(3)));
        assert_eq!(loans.iter().map(|loan| loan.to).collect::<Vec<_>>(), [11, 14]);
    }

    /// Requests of tasks that are named by their ages in microseconds, on file 3.
    fn requests_of_ages(now: Instant, ages_us: &[u32]) -> Vec<BackgroundRequest> {
        let request = |&age: &u32| BackgroundRequest {
            since: now - Duration::from_micros(age.into()),
            ..request(age, 3)
        };
        ages_us.iter().map(request).collect()
    }

    #[test]
    fn a_request_is_overdue_after_two_milliseconds() {
        let now = Instant::now();
        let overdue = overdue_requests(requests_of_ages(now, &[0, 1_999, 2_000, 30_000]), now);
        assert_eq!(overdue.iter().map(|request| request.task).collect::<Vec<_>>(), [2_000, 30_000]);
    }

    #[test]
    fn guesses_need_a_refusal_and_twenty_milliseconds() {
        let now = Instant::now();
        let requests = requests_of_ages(now, &[2_000, 19_999, 20_000, 30_000]);
        let lent_to = |was_refused| {
            let mut waits = Model { was_refused, ..Model::default() };
            let loans = loans_at(now, &[1], &requests, &mut waits, |locks| locks.has(Ino(3)));
            loans.iter().map(|loan| loan.to).collect::<Vec<_>>()
        };
        assert_eq!(lent_to(true), [20_000, 30_000]);
        assert!(lent_to(false).is_empty());
    }

    #[test]
    fn a_lock_with_thousands_of_holders_is_followed_in_part() {
        let holders: Vec<u32> = (10..10_000).collect();
        let mut model = model(&[(1, on_lock(1))], &[(1, &holders)]);
        assert_eq!(plan(&[1], &[request(9_999, 1)], &mut model), [9_999]);
        assert_eq!(model.looked_at.len(), LOOKS_MAX);
    }
}
