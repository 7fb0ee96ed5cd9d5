//! Frees unlinked files some time after their last opener is gone, several at a time.
//!
//! The kernel remembers every file that it has looked up, so most files are unlinked while they are held, and
//! each would be freed by a transaction of its own when the kernel forgets it. Instead small files wait, and
//! sixteen share one transaction. Until then they are in the orphan list on the media, so after a crash the
//! next opening frees them.

use crate::arena::FsTransaction;
use crate::cost;
use crate::error::FsError;
use crate::format::{Inode, InodeSlot};
use crate::fs::FsCore;
use cache::CacheTransaction;
use std::sync::{Arc, Mutex};

/// Files freed in one transaction. More would save little, and hold back more space.
pub(crate) const FREED_TOGETHER: usize = 16;

/// Larger files do not wait, so all waiting files together hold back at most 1 MiB of space.
const DEFERRED_FILE_BYTES_MAX: u64 = 64 << 10;

/// A slot, with the generation of the inode in it that is to be freed.
type OrphanId = (InodeSlot, u32);

/// Inodes that wait to be freed.
#[derive(Default)]
pub(crate) struct DeferredFrees(Mutex<Vec<OrphanId>>);

impl DeferredFrees {
    /// Adds an inode without names and openers. Frees all waiting inodes if they are many, or this one is
    /// large.
    pub(crate) fn add(&self, core: &Arc<FsCore>, slot: InodeSlot, inode: &Inode) {
        let mut waiting = self.0.lock().expect("no panic while holding the list of those that wait");
        waiting.push((slot, inode.generation.get()));
        if waiting.len() < FREED_TOGETHER && inode.size() <= DEFERRED_FILE_BYTES_MAX {
            return;
        }
        let all = std::mem::take(&mut *waiting);
        drop(waiting);
        free_orphans(core, all);
    }

    /// Frees all waiting inodes.
    pub(crate) fn free_all(&self, core: &Arc<FsCore>) {
        let all =
            std::mem::take(&mut *self.0.lock().expect("no panic while holding the list of those that wait"));
        if !all.is_empty() {
            free_orphans(core, all);
        }
    }
}

/// Frees inodes in one transaction. If that fails, or the file system is closed while the transaction waits for
/// space, all of them stay orphans until the next opening.
pub(crate) fn free_orphans(core: &Arc<FsCore>, inodes: Vec<OrphanId>) {
    let cost = cost::free_orphans(inodes.len());
    // Newest first: it is the last in the orphan list, so no other orphan has to take its place there.
    let work = move |tx: &mut FsTransaction<'_>| {
        inodes.iter().rev().try_for_each(|&(slot, generation)| tx.free_unheld(slot, generation))
    };
    // Nobody waits for it, so it does not keep the file system open.
    let waiting = Arc::downgrade(core);
    let free = move |into: &mut CacheTransaction<'_>| match waiting.upgrade() {
        Some(core) => core.apply_transaction(into, &[], cost, &work),
        None => Ok(()),
    };
    core.cache.transact(cost, free, |_: Result<(), FsError>| {});
}
