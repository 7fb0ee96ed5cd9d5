//! The background requests under way. Until a request is answered, its caller holds locks of the kernel: the
//! file's for a write, a sync or a change of size, the directory's for a change of a name.
//!
//! Only policies that lend have such a list. A critical request never takes its lock. A critical request notes its
//! inode, for a lender without the permission to see the waits of critical tasks.

use crate::protocol::{FuseOp, RequestHeader};
use crate::recent_inodes::RecentInodes;
use fs::Ino;
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The background requests of a mount that are not yet answered.
#[derive(Debug, Default)]
pub struct BackgroundRequests {
    list: Mutex<RequestList>,
    changed: Condvar,
    critical_inodes: RecentInodes,
}

#[derive(Debug, Default)]
struct RequestList {
    /// By the kernel's number of the request.
    requests: HashMap<u64, BackgroundRequest>,
    /// Whether a thread waits for a request.
    is_awaited: bool,
    is_closed: bool,
}

/// A background request that is not yet answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackgroundRequest {
    /// The thread id of the caller.
    pub task: u32,
    /// The inodes of which the caller holds locks.
    pub locks: LockedInodes,
    /// When the request was taken.
    pub since: Instant,
}

/// The inodes of which the kernel holds locks until a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockedInodes {
    /// The file, or the directory whose name changes.
    pub inode: Ino,
    /// The target of a copy, or the new directory of a renamed file.
    pub other: Option<Ino>,
    /// Whether names in these directories change.
    pub changes_names: bool,
}

impl LockedInodes {
    /// Whether a lock of `inode` is among them.
    pub fn has(&self, inode: Ino) -> bool {
        self.inode == inode || self.other == Some(inode)
    }

    /// The locks of a request's caller. `None` for a request that is answered at once, or without a reply.
    pub(crate) fn of(header: &RequestHeader, op: &FuseOp<'_>) -> Option<LockedInodes> {
        let inode = Ino(header.node);
        let names = |other| Some(LockedInodes { inode, other, changes_names: true });
        let file = |other| Some(LockedInodes { inode, other, changes_names: false });
        match *op {
            FuseOp::Rename { new_parent, .. } => names(Some(Ino(new_parent))),
            FuseOp::Symlink { .. }
            | FuseOp::Mknod { .. }
            | FuseOp::Mkdir { .. }
            | FuseOp::Create { .. }
            | FuseOp::Link { .. }
            | FuseOp::Unlink { .. }
            | FuseOp::Rmdir { .. } => names(None),
            FuseOp::CopyFileRange { to, .. } => file(Some(Ino(to))),
            // A read keeps the pages locked that it fills.
            FuseOp::Read { .. }
            | FuseOp::Write { .. }
            | FuseOp::Setattr(_)
            | FuseOp::Fsync
            | FuseOp::Fsyncdir
            | FuseOp::Setxattr { .. }
            | FuseOp::Removexattr { .. }
            | FuseOp::Fallocate { .. }
            | FuseOp::Lseek { .. } => file(None),
            FuseOp::Lookup { .. }
            | FuseOp::Forget { .. }
            | FuseOp::BatchForget(_)
            | FuseOp::Getattr
            | FuseOp::Readlink
            | FuseOp::Open { .. }
            | FuseOp::Statfs
            | FuseOp::Release
            | FuseOp::Getxattr { .. }
            | FuseOp::Listxattr { .. }
            | FuseOp::Opendir
            | FuseOp::Readdir { .. }
            | FuseOp::Readdirplus { .. }
            | FuseOp::Releasedir
            | FuseOp::Destroy => None,
        }
    }
}

impl BackgroundRequests {
    /// Lists the request with this number until the result is dropped.
    pub(crate) fn enter(self: &Arc<Self>, number: u64, task: u32, locks: LockedInodes) -> ListedRequest {
        let mut list = self.list();
        list.requests.insert(number, BackgroundRequest { task, locks, since: Instant::now() });
        let is_awaited = std::mem::take(&mut list.is_awaited);
        drop(list);
        if is_awaited {
            self.changed.notify_all();
        }
        ListedRequest { requests: self.clone(), number }
    }

    /// Waits until a request is under way. Returns false once the list is [closed](BackgroundRequests::close).
    pub fn wait_for_one(&self) -> bool {
        let is_quiet = |list: &mut RequestList| {
            let is_quiet = list.requests.is_empty() && !list.is_closed;
            list.is_awaited = is_quiet;
            is_quiet
        };
        let list = self.changed.wait_while(self.list(), is_quiet).unwrap_or_else(PoisonError::into_inner);
        !list.is_closed
    }

    /// Waits for this time, or until the list is [closed](BackgroundRequests::close).
    pub fn rest(&self, time: Duration) {
        let is_open = |list: &mut RequestList| !list.is_closed;
        drop(self.changed.wait_timeout_while(self.list(), time, is_open));
    }

    /// The requests that are under way, in no order.
    pub fn under_way(&self) -> Vec<BackgroundRequest> {
        self.list().requests.values().copied().collect()
    }

    /// Notes that a critical task uses `inode`.
    #[inline]
    pub(crate) fn note_critical(&self, inode: Ino) {
        self.critical_inodes.note(inode);
    }

    /// Whether critical tasks have used one of these inodes in the last second. `false` at the first call.
    pub fn are_used_by_critical(&self, locks: &LockedInodes) -> bool {
        self.critical_inodes.has(locks.inode)
            || locks.other.is_some_and(|inode| self.critical_inodes.has(inode))
    }

    /// Ends the waits for a request, these and later ones.
    pub fn close(&self) {
        self.list().is_closed = true;
        self.changed.notify_all();
    }

    fn list(&self) -> MutexGuard<'_, RequestList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listed request. Dropping it removes the request from the list.
#[derive(Debug)]
pub(crate) struct ListedRequest {
    requests: Arc<BackgroundRequests>,
    number: u64,
}

impl Drop for ListedRequest {
    fn drop(&mut self) {
        self.requests.list().requests.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    const LOCKS: LockedInodes = LockedInodes { inode: Ino(3), other: None, changes_names: false };

    fn tasks(requests: &BackgroundRequests) -> Vec<u32> {
        let mut tasks: Vec<u32> = requests.under_way().iter().map(|request| request.task).collect();
        tasks.sort_unstable();
        tasks
    }

    #[test]
    fn a_request_is_listed_until_it_is_answered() {
        let requests = Arc::new(BackgroundRequests::default());
        let first = requests.enter(1, 71, LOCKS);
        let second = requests.enter(2, 72, LOCKS);
        assert_eq!(tasks(&requests), [71, 72]);
        drop(first);
        assert_eq!(tasks(&requests), [72]);
        drop(second);
        assert_eq!(tasks(&requests), []);
    }

    #[test]
    fn a_rest_ends_when_the_list_is_closed() {
        let requests = Arc::new(BackgroundRequests::default());
        let resting = requests.clone();
        let rest = thread::spawn(move || resting.rest(Duration::from_secs(3600)));
        requests.close();
        rest.join().expect("it does not last an hour");
    }

    #[test]
    fn a_waiter_wakes_for_a_request_and_at_the_end() {
        let requests = Arc::new(BackgroundRequests::default());
        let (woken, wakes) = channel();
        let waiting = requests.clone();
        let waiter = thread::spawn(move || {
            woken.send(waiting.wait_for_one()).expect("the test waits");
            while !waiting.under_way().is_empty() {
                thread::yield_now();
            }
            woken.send(waiting.wait_for_one()).expect("the test waits");
        });
        let until_awaited = || {
            while !requests.list().is_awaited {
                thread::yield_now();
            }
        };
        until_awaited();
        let listed = requests.enter(1, 7, LOCKS);
        assert_eq!(wakes.recv(), Ok(true));
        drop(listed);
        until_awaited();
        requests.close();
        assert_eq!(wakes.recv(), Ok(false));
        waiter.join().expect("no panic");
        assert!(!requests.wait_for_one());
    }

    #[test]
    fn locks_are_those_of_the_call() {
        let header =
            RequestHeader { len: 0, opcode: 0, unique: 1, node: 3, uid: 0, gid: 0, pid: 7, extensions: 0 };
        let of = |op| LockedInodes::of(&header, &op);
        assert_eq!(of(FuseOp::Fsync), Some(LOCKS));
        assert_eq!(of(FuseOp::Unlink { name: b"a" }), Some(LockedInodes { changes_names: true, ..LOCKS }));
        assert_eq!(of(FuseOp::Lookup { name: b"a" }), None);
        let rename = FuseOp::Rename { name: b"a", new_parent: 4, new_name: b"b", flags: 0 };
        let renamed = of(rename).expect("names change");
        assert!(renamed.changes_names && renamed.has(Ino(3)) && renamed.has(Ino(4)) && !renamed.has(Ino(5)));
    }
}
