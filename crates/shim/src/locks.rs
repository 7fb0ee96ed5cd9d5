//! Locks of open files: `flock`, and `fcntl` with `F_OFD_SETLK`.
//!
//! They belong to the open file, which duplicated descriptors share. Only one process has the store, but its threads
//! may exclude each other by such locks. Locks of the whole process (`F_SETLK`) always succeed: there is no other process.

use crate::descriptors::OpenFile;
use rustix::io::Errno;
use std::cell::RefCell;
use std::ffi::c_int;
use std::io::{self, SeekFrom};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

static HELD: Mutex<Vec<HeldLock>> = Mutex::new(Vec::new());
/// Whether there was a lock.
static ANY: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Held by a thread that forks: the child could not get it from another one.
    static HELD_BY_FORK: RefCell<Option<MutexGuard<'static, Vec<HeldLock>>>> = const { RefCell::new(None) };
}

/// How long a waiting thread sleeps between two attempts, in nanoseconds: at first, and at most.
const PAUSE_MIN: i64 = 50_000;
const PAUSE_MAX: i64 = 10_000_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LockKind {
    Whole,
    Range,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HeldLock {
    kind: LockKind,
    ino: u64,
    /// The open file that has it.
    holder: u64,
    is_exclusive: bool,
    begin: i64,
    /// One more than the last byte; `i64::MAX` for all bytes that follow.
    end: i64,
}

impl HeldLock {
    fn conflicts_with(&self, other: &HeldLock) -> bool {
        (self.kind, self.ino) == (other.kind, other.ino)
            && self.holder != other.holder
            && (self.is_exclusive || other.is_exclusive)
            && self.begin < other.end
            && other.begin < self.end
    }

    /// The parts of this lock before and behind `other`, if both have the same holder; else all of it.
    fn beside(self, other: &HeldLock) -> [HeldLock; 2] {
        if (self.kind, self.ino, self.holder) != (other.kind, other.ino, other.holder) {
            return [self, HeldLock { end: self.begin, ..self }];
        }
        [
            HeldLock { end: self.end.min(other.begin), ..self },
            HeldLock { begin: self.begin.max(other.end), ..self },
        ]
    }
}

fn held() -> MutexGuard<'static, Vec<HeldLock>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Releases the range, and locks it again if `is_wanted`. Nothing changes while another open file has a lock in the way.
fn change(locks: &mut Vec<HeldLock>, wanted: HeldLock, is_wanted: bool) -> Result<(), HeldLock> {
    if is_wanted && let Some(other) = locks.iter().find(|held| held.conflicts_with(&wanted)) {
        return Err(*other);
    }
    let beside = std::mem::take(locks).into_iter().flat_map(|held| held.beside(&wanted));
    *locks = beside.filter(|held| held.begin < held.end).collect();
    if is_wanted {
        locks.push(wanted);
    }
    Ok(())
}

/// [`change`], which waits if `waits`. A signal ends the wait, if it has a handler.
fn change_or_wait(wanted: HeldLock, is_wanted: bool, waits: bool) -> io::Result<()> {
    ANY.store(true, Ordering::Release);
    let mut pause = PAUSE_MIN;
    while change(&mut held(), wanted, is_wanted).is_err() {
        if !waits {
            return Err(Errno::AGAIN.into());
        }
        let time = libc::timespec { tv_sec: 0, tv_nsec: pause };
        // SAFETY: the call reads the time, and writes nothing to a null pointer.
        if unsafe { libc::nanosleep(&time, std::ptr::null_mut()) } != 0 {
            return Err(Errno::INTR.into());
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
    Ok(())
}

/// `flock`.
pub(crate) fn lock_whole(open: &OpenFile, operation: c_int) -> io::Result<c_int> {
    let mut wanted = HeldLock {
        kind: LockKind::Whole,
        ino: open.file.ino().0,
        holder: open.number,
        is_exclusive: false,
        begin: 0,
        end: i64::MAX,
    };
    let is_wanted = match operation & !libc::LOCK_NB {
        libc::LOCK_UN => false,
        libc::LOCK_SH => true,
        libc::LOCK_EX => {
            wanted.is_exclusive = true;
            true
        }
        _ => return Err(Errno::INVAL.into()),
    };
    change_or_wait(wanted, is_wanted, operation & libc::LOCK_NB == 0)?;
    Ok(0)
}

/// The commands of `fcntl` that lock, or ask for locks.
pub(crate) fn lock_range(open: &OpenFile, command: c_int, lock: &mut libc::flock) -> io::Result<()> {
    let is_wanted = match c_int::from(lock.l_type) {
        libc::F_UNLCK => false,
        libc::F_RDLCK | libc::F_WRLCK => true,
        _ => return Err(Errno::INVAL.into()),
    };
    let (begin, end) = range_of(open, lock)?;
    let is_exclusive = c_int::from(lock.l_type) == libc::F_WRLCK;
    let opened = open.file.flags().bits() as c_int & libc::O_ACCMODE;
    let needs = if is_exclusive { libc::O_WRONLY } else { libc::O_RDONLY };
    let asks = matches!(command, libc::F_GETLK | libc::F_OFD_GETLK);
    if is_wanted && !asks && opened != libc::O_RDWR && opened != needs {
        return Err(Errno::BADF.into());
    }
    if matches!(command, libc::F_OFD_SETLK | libc::F_OFD_SETLKW | libc::F_OFD_GETLK) && lock.l_pid != 0 {
        return Err(Errno::INVAL.into());
    }
    let wanted = HeldLock {
        kind: LockKind::Range,
        ino: open.file.ino().0,
        holder: open.number,
        is_exclusive,
        begin,
        end,
    };
    match command {
        libc::F_OFD_SETLK | libc::F_OFD_SETLKW => {
            change_or_wait(wanted, is_wanted, command == libc::F_OFD_SETLKW)
        }
        libc::F_GETLK | libc::F_OFD_GETLK => {
            let other = held().iter().find(|held| held.conflicts_with(&wanted)).copied();
            lock.l_type = libc::F_UNLCK as libc::c_short;
            if let Some(other) = other {
                lock.l_type = if other.is_exclusive { libc::F_WRLCK } else { libc::F_RDLCK } as libc::c_short;
                lock.l_whence = libc::SEEK_SET as libc::c_short;
                lock.l_start = other.begin;
                lock.l_len = if other.end == i64::MAX { 0 } else { other.end - other.begin };
                lock.l_pid = -1;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

/// The first byte of a range, and one more than the last.
fn range_of(open: &OpenFile, lock: &libc::flock) -> io::Result<(i64, i64)> {
    let from = match c_int::from(lock.l_whence) {
        libc::SEEK_SET => 0,
        libc::SEEK_CUR => open.file.seek(SeekFrom::Current(0))? as i64,
        libc::SEEK_END => open.file.metadata()?.size as i64,
        _ => return Err(Errno::INVAL.into()),
    };
    let start = from.checked_add(lock.l_start).ok_or(Errno::OVERFLOW)?;
    let end =
        if lock.l_len == 0 { i64::MAX } else { start.checked_add(lock.l_len).ok_or(Errno::OVERFLOW)? };
    // A negative length means the bytes before.
    let (begin, end) = (start.min(end), start.max(end));
    if begin < 0 { Err(Errno::INVAL.into()) } else { Ok((begin, end)) }
}

/// Releases all locks of an open file that nobody uses any more.
pub(crate) fn release_of(open: &OpenFile) {
    if ANY.load(Ordering::Acquire) && open.ensure_own().is_ok() {
        held().retain(|held| held.holder != open.number);
    }
}

/// Before a fork: takes the list, so that no other thread has it in the child.
pub(crate) fn hold_for_fork() {
    if ANY.load(Ordering::Acquire) {
        HELD_BY_FORK.set(Some(held()));
    }
}

/// After a fork, in the parent.
pub(crate) fn release_after_fork() {
    drop(HELD_BY_FORK.take());
}

/// In a forked child: the locks are the parent's.
pub(crate) fn forget_of_parent() {
    release_after_fork();
    if let Ok(mut held) = HELD.try_lock() {
        held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lock(holder: u64, is_exclusive: bool, begin: i64, end: i64) -> HeldLock {
        HeldLock { kind: LockKind::Range, ino: 7, holder, is_exclusive, begin, end }
    }

    #[test]
    fn a_holder_changes_the_middle_of_its_range() {
        let mut locks = Vec::new();
        change(&mut locks, lock(1, true, 0, 100), true).unwrap();
        change(&mut locks, lock(1, false, 40, 60), true).unwrap();
        assert_eq!(locks, [lock(1, true, 0, 40), lock(1, true, 60, 100), lock(1, false, 40, 60)]);
        change(&mut locks, lock(2, false, 45, 50), true).expect("readers share");
        assert_eq!(change(&mut locks, lock(2, false, 45, 61), true), Err(lock(1, true, 60, 100)));
        change(&mut locks, lock(1, false, 0, i64::MAX), false).unwrap();
        assert_eq!(locks, [lock(2, false, 45, 50)]);
    }
}
