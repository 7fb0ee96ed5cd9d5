//! The files that critical tasks used lately.

use fs::Ino;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Inodes that are remembered. Two with the same remainder displace each other.
const INODES: usize = 256;

/// How long a use counts.
const LATELY_MS: u32 = 1000;

/// Inodes with the times of their last uses. Nothing is noted before the first question. An inode may be missing, or
/// be mistaken for another one.
#[derive(Debug)]
pub(crate) struct RecentInodes {
    is_wanted: AtomicBool,
    /// The low half of an inode's number, and the time of its last use in milliseconds.
    uses: [AtomicU64; INODES],
}

impl Default for RecentInodes {
    fn default() -> RecentInodes {
        RecentInodes { is_wanted: AtomicBool::new(false), uses: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl RecentInodes {
    /// Notes a use of an inode.
    #[inline]
    pub(crate) fn note(&self, inode: Ino) {
        if self.is_wanted.load(Ordering::Relaxed) {
            self.note_at(inode, now_ms());
        }
    }

    /// Whether an inode was used lately.
    pub(crate) fn has(&self, inode: Ino) -> bool {
        self.is_wanted.store(true, Ordering::Relaxed);
        self.has_at(inode, now_ms())
    }

    fn note_at(&self, inode: Ino, ms: u32) {
        self.slot(inode).store(inode.0 << 32 | u64::from(ms), Ordering::Relaxed);
    }

    fn has_at(&self, inode: Ino, ms: u32) -> bool {
        let last = self.slot(inode).load(Ordering::Relaxed);
        last >> 32 == inode.0 & u64::from(u32::MAX) && ms.wrapping_sub(last as u32) <= LATELY_MS
    }

    fn slot(&self, inode: Ino) -> &AtomicU64 {
        &self.uses[inode.0 as usize % INODES]
    }
}

/// Milliseconds since boot; they wrap after 49 days. This clock ticks every few of them, and is read without a system
/// call.
fn now_ms() -> u32 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    (now.tv_sec as u32).wrapping_mul(1000).wrapping_add(now.tv_nsec as u32 / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_counts_for_a_second() {
        let recent = RecentInodes::default();
        for begin in [0, 5000, u32::MAX - 300] {
            recent.note_at(Ino(7), begin);
            assert!(recent.has_at(Ino(7), begin) && recent.has_at(Ino(7), begin.wrapping_add(1000)));
            assert!(!recent.has_at(Ino(7), begin.wrapping_add(1001)));
            assert!(!recent.has_at(Ino(8), begin));
        }
        recent.note_at(Ino(7 + INODES as u64), 0);
        assert!(!recent.has_at(Ino(7), 0));
    }

    #[test]
    fn nothing_is_noted_before_the_first_question() {
        let recent = RecentInodes::default();
        recent.note(Ino(7));
        assert!(!recent.has(Ino(7)));
        recent.note(Ino(7));
        assert!(recent.has(Ino(7)));
    }
}
